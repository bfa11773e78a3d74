"""The outbox's SQL, for SQLite and PostgreSQL, in whatever parameter style a DB-API 2.0 driver has.

What each column means: docs/reference/outbox.md, "The tables".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, cast

from basalt.errors import InputError

_TABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,40}")
_SQLITE_COLUMNS = {"number": "INTEGER PRIMARY KEY AUTOINCREMENT", "bytes": "BLOB"}
# ALWAYS: a number that an application chose could come before one that was published.
_POSTGRESQL_COLUMNS = {"number": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "bytes": "BYTEA"}


class Driver(Protocol):
    """What a DB-API 2.0 module is used for."""

    paramstyle: str
    OperationalError: type[Exception]
    InterfaceError: type[Exception]

    def Binary(self, data: bytes) -> Any:  # noqa: N802  # the standard's name
        """A parameter that is bytes."""
        ...


class Cursor(Protocol):
    """A DB-API 2.0 cursor."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed."""
        ...

    def execute(self, operation: str, parameters: Any = ..., /) -> Any:
        """Run a statement."""
        ...

    def executemany(self, operation: str, parameters: Any, /) -> Any:
        """Run a statement once per set of parameters."""
        ...

    def fetchall(self) -> Sequence[Any]:
        """The rows that are left."""
        ...

    def close(self) -> Any:
        """Give it back."""
        ...


class Connection(Protocol):
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


def driver_of(handle: object) -> Driver:
    """The DB-API module that a connection or a cursor comes from. `InputError` when that cannot be seen."""
    for kind in type(handle).__mro__:
        parts = kind.__module__.split(".")
        for length in range(len(parts), 0, -1):
            module = sys.modules.get(".".join(parts[:length]))
            if hasattr(module, "paramstyle"):
                return cast("Driver", module)
    raise InputError(
        f"{type(handle).__qualname__} comes from no DB-API 2.0 module that can be seen",
        field="driver",
        hint="Give the module: Outbox(connect, driver=sqlite3).",
    )


class Statements:
    """The statements on one outbox's two tables. `?` stands for a parameter, and is written as the driver wants it."""

    def __init__(self, table: str, driver: Driver) -> None:
        if _TABLE.fullmatch(table) is None:
            raise InputError(f"{table[:100]!r} is no name of a table", field="table")
        self._table = table
        self._driver = driver
        self._columns = _SQLITE_COLUMNS if getattr(driver, "sqlite_version", None) else _POSTGRESQL_COLUMNS

    def create(self) -> list[str]:
        """What makes both tables, where they are not there yet."""
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
        """What finds the relay's table in the database's own list of tables, and the parameter."""
        schema, dot, table = self._table.rpartition(".")
        name = f"{table}_relay".lower()
        if self._columns is _SQLITE_COLUMNS:
            return f"SELECT name FROM {schema}{dot}sqlite_master WHERE LOWER(name) = ?", name  # noqa: S608  # see _TABLE
        return "SELECT table_name FROM information_schema.tables WHERE LOWER(table_name) = ?", name

    def run(self, cursor: Cursor, statement: str, *parameters: object) -> None:
        """Run one; `{outbox}` and `{relay}` are the tables."""
        cursor.execute(*self._written(statement, parameters))

    def run_many(self, cursor: Cursor, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
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


def _mark(style: str, place: int) -> str:
    marks = {"qmark": "?", "format": "%s", "numeric": f":{place}", "named": f":p{place}", "pyformat": f"%(p{place})s"}
    if style not in marks:
        raise InputError(f"{style!r} is no parameter style of DB-API 2.0", field="driver")
    return marks[style]
