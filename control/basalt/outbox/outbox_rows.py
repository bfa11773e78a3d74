"""What a relay does with the rows of an outbox: each method is one SQL transaction, and may be repeated.

Rows are told apart by two columns: `transaction_id` (a Basalt transaction may have published them: undecided) and `batch`
(a relay has taken them). The relay's own row says which relay may take rows: the one of the newest epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from basalt.outbox.statements import Connection, Statements


class Standing(NamedTuple):
    """Which outbox the tables are, the epoch of the relay that may take rows, and the newest batch that was taken."""

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
    """The rows of one outbox, over a connection of the relay's own."""

    def __init__(self, connection: Connection, statements: Statements) -> None:
        self._connection = connection
        self._statements = statements

    def listed(self) -> bool:
        """Whether the database lists the relay's table among those that this connection may see."""
        return bool(self._ask(*self._statements.listed()))

    def standing(self) -> Standing | None:
        """Where the relay stands; None when the outbox has no row for it."""
        found = self._ask("SELECT name, epoch, batch FROM {relay}")
        return Standing(*found[0]) if found else None

    def register(self, before: int, epoch: int) -> bool:
        """Let only the relay of this epoch take rows from now on; False when another one came between."""
        with self._transaction() as cursor:
            self._statements.run(cursor, "UPDATE {relay} SET epoch = ? WHERE epoch = ?", epoch, before)
            return bool(cursor.rowcount == 1)

    def taken(self) -> int | None:
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

        A batch is what makes "published" one number: the rows' own numbers do not, for PostgreSQL gives them out before
        their transactions commit, so that a lower one may appear after a higher one was published.
        """
        with self._transaction() as cursor:
            # First, so that SQLite locks the database before it has read anything, and PostgreSQL the row.
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
        """Forget a batch that was published."""
        self._do("DELETE FROM {outbox} WHERE batch = ?", batch)

    def undecided(self, count_max: int) -> list[str]:
        """The Basalt transactions whose rows are not decided yet, oldest rows first."""
        found = self._ask(
            "SELECT transaction_id FROM {outbox} WHERE transaction_id IS NOT NULL AND batch IS NULL"
            " GROUP BY transaction_id ORDER BY MIN(number) LIMIT ?",
            count_max,
        )
        return [str(transaction_id) for (transaction_id,) in found]

    def drop(self, transaction_id: str) -> None:
        """Forget the rows that this Basalt transaction has published."""
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
