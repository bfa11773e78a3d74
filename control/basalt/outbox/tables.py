"""An outbox's two tables: their SQL, for SQLite and PostgreSQL in any DB-API 2.0 driver's parameter style, and their rows.

What each column means: docs/reference/outbox.md, "The tables".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, cast

from basalt.errors import InputError

_TABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,40}")
_SQLITE_COLUMNS = {"number": "INTEGER PRIMARY KEY AUTOINCREMENT", "bytes": "BLOB"}
# ALWAYS: a number that an application chose could come before one that was published.
_POSTGRESQL_COLUMNS = {"number": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "bytes": "BYTEA"}


class DatabaseDriver(Protocol):
    """The parts of a DB-API 2.0 module that are used."""

    paramstyle: str
    OperationalError: type[Exception]
    InterfaceError: type[Exception]
    ProgrammingError: type[Exception]

    def Binary(self, data: bytes) -> Any:  # noqa: N802  # the standard's name
        """A parameter that is bytes."""
        ...


class DatabaseCursor(Protocol):
    """The parts of a DB-API 2.0 cursor that statements use."""

    def execute(self, operation: str, parameters: Any = ..., /) -> Any:
        """Run a statement."""
        ...

    def executemany(self, operation: str, parameters: Any, /) -> Any:
        """Run a statement once per set of parameters."""
        ...


class DatabaseConnection(Protocol):
    """A DB-API 2.0 connection."""

    def cursor(self) -> Any:
        """A cursor in the connection's transaction."""
        ...

    def commit(self) -> Any:
        """Commit the transaction that is open, if one is."""
        ...

    def rollback(self) -> Any:
        """Roll it back."""
        ...

    def close(self) -> Any:
        """Close it."""
        ...


def driver_of(handle: object) -> DatabaseDriver:
    """Find the DB-API module that a connection or a cursor comes from. `InputError` when that cannot be seen."""
    for kind in type(handle).__mro__:
        parts = kind.__module__.split(".")
        for length in range(len(parts), 0, -1):
            module = sys.modules.get(".".join(parts[:length]))
            if hasattr(module, "paramstyle"):
                return cast("DatabaseDriver", module)
    raise InputError(
        f"{type(handle).__qualname__} comes from no DB-API 2.0 module that can be seen",
        field="driver",
        hint="Give the module: Outbox(connect, driver=sqlite3).",
    )


class Statements:
    """The statements on one outbox's two tables. `?` stands for a parameter, and is written as the driver wants it."""

    def __init__(self, table: str, driver: DatabaseDriver) -> None:
        if _TABLE.fullmatch(table) is None:
            raise InputError(f"{table[:100]!r} is no name of a table", field="table")
        self._table = table
        self._driver = driver
        self._columns = _SQLITE_COLUMNS if getattr(driver, "sqlite_version", None) else _POSTGRESQL_COLUMNS

    def create(self) -> list[str]:
        """Return the statements that create both tables, where they are not there yet."""
        number, payload = self._columns["number"], self._columns["bytes"]
        messages = f"number {number}, namespace TEXT NOT NULL, topic TEXT NOT NULL, payload {payload} NOT NULL"
        relay = "name TEXT PRIMARY KEY, epoch BIGINT NOT NULL, batch BIGINT NOT NULL"
        index = self._table.rpartition(".")[2]
        return [
            f"CREATE TABLE IF NOT EXISTS {self._table} ({messages}, transaction_id TEXT, batch BIGINT)",
            f"CREATE INDEX IF NOT EXISTS {index}_batch ON {self._table} (batch, number)",
            f"CREATE TABLE IF NOT EXISTS {self._table}_relay ({relay})",
        ]

    def listed(self) -> tuple[str, str]:
        """Return the query for the relay's table in the database's own list of tables, and its parameter."""
        schema, dot, table = self._table.rpartition(".")
        name = f"{table}_relay".lower()
        if self._columns is _SQLITE_COLUMNS:
            return f"SELECT name FROM {schema}{dot}sqlite_master WHERE LOWER(name) = ?", name  # noqa: S608  # see _TABLE
        return "SELECT table_name FROM information_schema.tables WHERE LOWER(table_name) = ?", name

    def run(self, cursor: DatabaseCursor, statement: str, *parameters: object) -> None:
        """Run one; `{outbox}` and `{relay}` are the tables."""
        cursor.execute(*self._written(statement, parameters))

    def run_many(self, cursor: DatabaseCursor, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Run one for each of these rows of parameters."""
        written = [self._written(statement, row) for row in rows]
        if written:
            cursor.executemany(written[0][0], [parameters for _, parameters in written])

    def binary(self, payload: bytes) -> Any:
        """A parameter that is bytes."""
        return self._driver.Binary(payload)

    def _written(self, statement: str, parameters: tuple[object, ...]) -> tuple[str, Any]:
        pieces = statement.format(outbox=self._table, relay=f"{self._table}_relay").split("?")
        assert len(pieces) == len(parameters) + 1, statement
        style = self._driver.paramstyle
        marks = [_mark(style, place) for place in range(1, len(pieces))]
        text = pieces[0] + "".join(mark + piece for mark, piece in zip(marks, pieces[1:], strict=True))
        if style in ("named", "pyformat"):
            return text, {f"p{place}": value for place, value in enumerate(parameters, 1)}
        return text, parameters


class Standing(NamedTuple):
    """The relay's row: the outbox's name, the epoch of the relay that may take rows, and the newest batch that was taken."""

    name: str
    epoch: int
    batch: int


class OutboxRow(NamedTuple):
    """A message that waits."""

    number: int
    namespace: str
    topic: str
    payload: bytes


class OutboxRows:
    """The rows of one outbox over one connection. Each method is one SQL transaction, and may be repeated.

    Two columns say what became of a row: `transaction_id` (a Basalt transaction may have published it: undecided) and `batch`
    (a relay has taken it). The relay's own row says which relay may take rows: the one of the newest epoch.
    """

    def __init__(self, connection: DatabaseConnection, statements: Statements) -> None:
        self._connection = connection
        self._statements = statements

    def listed(self) -> bool:
        """Say whether the database lists the relay's table among those that this connection may see."""
        return bool(self._ask(*self._statements.listed()))

    def standing(self) -> Standing | None:
        """Read the relay's row; None when there is none."""
        rows = self._ask("SELECT name, epoch, batch FROM {relay}")
        return Standing(*rows[0]) if rows else None

    def register(self, before: int, epoch: int) -> bool:
        """Let only the relay of this epoch take rows from now on; False when another one has registered meanwhile."""
        with self._transaction() as cursor:
            self._statements.run(cursor, "UPDATE {relay} SET epoch = ? WHERE epoch = ?", epoch, before)
            return bool(cursor.rowcount == 1)

    def oldest_taken(self) -> int | None:
        """The oldest batch that was taken and is not removed."""
        found = self._ask("SELECT MIN(batch) FROM {outbox} WHERE batch IS NOT NULL")
        return None if found[0][0] is None else int(found[0][0])

    def waiting(self, rows_max: int, bytes_max: int) -> list[int]:
        """The numbers of the next rows, at least one if any waits, in order."""
        found = self._ask(
            "SELECT number, LENGTH(payload) FROM {outbox} WHERE batch IS NULL AND transaction_id IS NULL"
            " ORDER BY number LIMIT ?",
            rows_max,
        )
        numbers: list[int] = []
        size_bytes = 0
        for number, length in found:
            size_bytes += length
            if numbers and size_bytes > bytes_max:
                break
            numbers.append(number)
        return numbers

    def take(self, epoch: int, batch: int, numbers: list[int]) -> bool:
        """Make a batch of these rows; False when a newer relay has registered, and nothing was taken.

        The number of a batch says what is published. The rows' own numbers cannot say it: PostgreSQL gives them out before
        their transactions commit, so that a lower one may appear after a higher one was published.
        """
        with self._transaction() as cursor:
            # This statement comes first, so that SQLite locks the database before it has read anything, and PostgreSQL the row.
            self._statements.run(
                cursor, "UPDATE {relay} SET batch = ? WHERE epoch = ? AND batch = ?", batch, epoch, batch - 1
            )
            if cursor.rowcount != 1:
                return False
            marks = ", ".join("?" * len(numbers))
            update = f"UPDATE {{outbox}} SET batch = ? WHERE number IN ({marks})"  # noqa: S608  # marks alone
            self._statements.run(cursor, update, batch, *numbers)
            return True

    def rows(self, batch: int) -> list[OutboxRow]:
        """A batch's messages, in order."""
        found = self._ask(
            "SELECT number, namespace, topic, payload FROM {outbox} WHERE batch = ? ORDER BY number", batch
        )
        return [OutboxRow(number, namespace, topic, bytes(payload)) for number, namespace, topic, payload in found]

    def remove(self, batch: int) -> None:
        """Delete the rows of a batch that was published."""
        self._do("DELETE FROM {outbox} WHERE batch = ?", batch)

    def undecided(self, after: int, count_max: int) -> dict[str, int]:
        """The Basalt transactions whose rows are not decided yet, by their first row's number beyond `after`, in its order."""
        found = self._ask(
            "SELECT transaction_id, MIN(number) FROM {outbox} WHERE transaction_id IS NOT NULL AND batch IS NULL"
            " GROUP BY transaction_id HAVING MIN(number) > ? ORDER BY MIN(number) LIMIT ?",
            after,
            count_max,
        )
        return {str(transaction_id): int(number) for transaction_id, number in found}

    def drop(self, transaction_id: str) -> None:
        """Delete the rows that this Basalt transaction has published."""
        self._do("DELETE FROM {outbox} WHERE transaction_id = ?", transaction_id)

    def release(self, transaction_id: str) -> None:
        """Let the relay publish the rows that this Basalt transaction has not, and never will."""
        self._do("UPDATE {outbox} SET transaction_id = NULL WHERE transaction_id = ?", transaction_id)

    def _ask(self, statement: str, *parameters: object) -> Any:
        with self._transaction() as cursor:
            self._statements.run(cursor, statement, *parameters)
            return cursor.fetchall()

    def _do(self, statement: str, *parameters: object) -> None:
        with self._transaction() as cursor:
            self._statements.run(cursor, statement, *parameters)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        cursor = self._connection.cursor()
        try:
            yield cursor
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        finally:
            cursor.close()


def _mark(style: str, place: int) -> str:
    marks = {"qmark": "?", "format": "%s", "numeric": f":{place}", "named": f":p{place}", "pyformat": f"%(p{place})s"}
    if style not in marks:
        raise InputError(f"{style!r} is no parameter style of DB-API 2.0", field="driver")
    return marks[style]
