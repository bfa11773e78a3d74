"""The outbox: a table of messages beside an application's own tables, and its participant.

Reference: docs/reference/outbox.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeAlias

from basalt.api.bodies.messages import Buffer
from basalt.client import Transaction, TransactionInfo
from basalt.client.calls.payloads import BODY_BYTES_MAX, REQUEST_BYTES_MAX, Text, each_payload
from basalt.errors import InputError, TooLargeError, TransactionEndedError
from basalt.outbox.tables import DatabaseConnection, DatabaseCursor, DatabaseDriver, OutboxRows, Statements, driver_of
from basalt.redaction import without_passwords

TABLE_DEFAULT = "basalt_outbox"
MESSAGE_BYTES_MAX = (
    BODY_BYTES_MAX - REQUEST_BYTES_MAX
)  # a message that no request can carry would stop the relay for ever

_INSERT = "INSERT INTO {outbox} (namespace, topic, payload, transaction_id) VALUES (?, ?, ?, ?)"
_FIRST = "INSERT INTO {relay} (name, epoch, batch) VALUES (?, 0, 0)"

Connect: TypeAlias = Callable[[], DatabaseConnection] | DatabaseConnection

log = logging.getLogger("basalt.outbox")


class Outbox:
    """Messages that wait in an SQL table to be published. Each table has one outbox, each outbox one relay at a time.

    `connect` makes connections of a DB-API 2.0 driver (or is one); `name` names the relay's session at Basalt. Topics are in
    `namespace` unless a publish says otherwise.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        name: str = "outbox",
        namespace: str = "default",
        table: str = TABLE_DEFAULT,
        driver: DatabaseDriver | None = None,
    ) -> None:
        self.name = name
        self.namespace = namespace
        self._connect = connect
        self._table = table
        self._driver = driver

    def connect(self) -> DatabaseConnection:
        """A connection of its own, or the one that it was given.

        `InputError` for one that commits each statement, or cannot be used in this thread.
        """
        given: Any = self._connect  # sqlite3's connections can be called, so whether it can tells nothing
        connection: DatabaseConnection = self._usable(given) if hasattr(given, "cursor") else given()
        self.refuse_autocommit(connection)
        return connection

    def _usable(self, connection: DatabaseConnection) -> DatabaseConnection:
        try:
            connection.cursor().close()
        except self.driver(connection).ProgrammingError as error:
            raise InputError(
                f"outbox {self.name}: the connection that it was given cannot be used here: {error}",
                field="connect",
                hint="Give a function that makes connections, such as lambda: sqlite3.connect(path).",
            ) from error
        return connection

    def refuse_autocommit(self, connection: DatabaseConnection) -> None:
        """Raise `InputError` for a connection that commits each statement: it would publish what is rolled back later."""
        autocommit = getattr(connection, "autocommit", None)
        if not isinstance(autocommit, bool):  # sqlite3, which has none before Python 3.12, and then -1 by default
            sqlite = hasattr(self.driver(connection), "sqlite_version")
            autocommit = sqlite and getattr(connection, "isolation_level", "") is None
        if autocommit:
            raise InputError(
                f"outbox {self.name}: the connection commits each statement by itself (autocommit)",
                field="connection",
                hint="Give one with transactions.",
            )

    def driver(self, handle: object) -> DatabaseDriver:
        """The DB-API module of a connection or cursor."""
        if self._driver is None:
            self._driver = driver_of(handle)
        return self._driver

    def statements(self, handle: object) -> Statements:
        """The SQL for a connection or cursor."""
        return Statements(self._table, self.driver(handle))

    def create_table(self) -> None:
        """Create its tables, where they are not there yet."""
        connection = self.connect()
        statements = self.statements(connection)
        try:
            cursor = connection.cursor()
            for statement in statements.create():
                statements.run(cursor, statement)
            statements.run(cursor, "SELECT name FROM {relay}")
            if not cursor.fetchall():
                statements.run(cursor, _FIRST, self.name)
            connection.commit()
        finally:
            self.give_back(connection)

    def publish(
        self,
        into: DatabaseConnection | DatabaseCursor,
        topic: str,
        messages: Text | Iterable[Text],
        *,
        namespace: str | None = None,
        transaction_id: str | None = None,
    ) -> int:
        """Write messages into the outbox, within the SQL transaction that is open on this connection or cursor; how many.

        They are published, in this order, once that transaction has committed. `InputError` for a connection in autocommit.
        `transaction_id` is for `OutboxParticipant`: the Basalt transaction that publishes them, too.
        """
        given: Any = into
        connection = given if hasattr(given, "cursor") else getattr(given, "connection", None)
        if connection is not None:  # DB-API 2.0 leaves it to the driver whether a cursor tells
            self.refuse_autocommit(connection)
        statements = self.statements(into)
        place = (namespace or self.namespace, topic)
        rows = [(*place, statements.binary(_checked(payload)), transaction_id) for payload in each_payload(messages)]
        if not hasattr(given, "cursor"):
            statements.run_many(given, _INSERT, rows)
            return len(rows)
        cursor = given.cursor()
        try:
            statements.run_many(cursor, _INSERT, rows)
        finally:
            cursor.close()
        return len(rows)

    def give_back(self, connection: DatabaseConnection) -> None:
        """Close a connection that `connect` made."""
        if connection is not self._connect:
            connection.close()


class OutboxParticipant:
    """An SQL transaction as a participant of a Basalt transaction, so that its messages need not wait for the relay.

    `client.transaction(participants=[..., OutboxParticipant(outbox, connection)])`: name it last, because a participant that
    persists after it can no longer keep it from being committed. The SQL transaction's commit is the decision, as ever: its
    messages are written into the outbox with the Basalt transaction's id, that transaction publishes them too, and once it has
    committed they are deleted. When it is not known to have committed (the process died, an answer was lost) they stay, and
    the relay asks Basalt how the transaction ended. `decided` says what became of the SQL transaction: True committed, False
    rolled back, None not known, or not yet. Each point at which this can break: docs/reference/outbox.md, "The participant".
    """

    hosted = True  # it writes nothing under the transaction's pointer, so there is nothing to hide from snapshots

    def __init__(self, outbox: Outbox, connection: DatabaseConnection) -> None:
        outbox.refuse_autocommit(connection)
        self.name = f"outbox {outbox.name}"
        self.decided: bool | None = None
        self._outbox = outbox
        self._connection = connection
        self._rows = OutboxRows(connection, outbox.statements(connection))
        self._transaction_id: str | None = None
        self._published = 0
        self._deciding = False

    def publish(
        self, tx: Transaction, topic: str, messages: Text | Iterable[Text], *, namespace: str | None = None
    ) -> None:
        """Publish to a topic if and only if the SQL transaction commits."""
        if self._transaction_id is None or tx.id != self._transaction_id:
            raise TransactionEndedError(f"{self.name} takes no part in transaction {tx.id}", hint="Add it to it first.")
        payloads = list(each_payload(messages))
        namespace = namespace or self._outbox.namespace
        self._published += self._outbox.publish(
            self._connection, topic, payloads, namespace=namespace, transaction_id=self._transaction_id
        )
        tx.publish(topic, payloads, namespace=namespace)

    def start_tx(self, tx: TransactionInfo) -> None:
        """The rows will have this transaction's id."""
        self._transaction_id, self._published = tx.id, 0
        self.decided, self._deciding = None, False

    def update_tx(self, tx: TransactionInfo) -> None:
        """A checkpoint changes nothing: the rows have the id, not the pointer."""

    def flush_tx(self) -> None:
        """Nor does it commit anything."""

    def tx_changes(self) -> Collection[bytes]:
        """The database sees to its own conflicts."""
        return ()

    def commit_tx(self) -> None:
        self._deciding = True
        self._connection.commit()
        self.decided = True

    def post_commit_tx(self) -> None:
        """Basalt has published the rows. If they cannot be removed now, the relay will."""
        if not self._published or self._transaction_id is None:
            return
        try:
            self._rows.drop(self._transaction_id)
        except Exception as error:  # noqa: BLE001  # a driver's; the transaction is committed whatever it says
            reason = without_passwords(str(error))
            log.info(
                "%s: the relay will remove the rows of transaction %s: %s", self.name, self._transaction_id, reason
            )

    def rollback_tx(self) -> bool:
        """Roll the SQL transaction back. The relay publishes the rows that it committed before."""
        if self.decided:
            return True
        try:
            self._connection.rollback()
        except Exception as error:  # noqa: BLE001  # a driver's: the connection is broken, and its transaction with it
            reason = without_passwords(str(error))
            log.info("%s: transaction %s ends with its connection: %s", self.name, self._transaction_id, reason)
        self.decided = None if self._deciding else False  # a commit that failed may have happened
        return True


def _checked(payload: Buffer) -> bytes:
    if len(payload) > MESSAGE_BYTES_MAX:
        raise TooLargeError(
            f"a message of {len(payload)} bytes is over the limit, {MESSAGE_BYTES_MAX}", field="messages"
        )
    return bytes(payload)
