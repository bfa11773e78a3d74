"""What an application uses: an outbox is a table of messages beside its own tables. docs/reference/outbox.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from basalt.api.bodies.work import Buffer
from basalt.client.calls.payloads import BODY_BYTES_MAX, REQUEST_BYTES_MAX, Payloads, each_payload
from basalt.errors import InputError, TooLargeError
from basalt.outbox.statements import Connection, Cursor, Driver, Statements, driver_of

TABLE_DEFAULT = "basalt_outbox"
MESSAGE_BYTES_MAX = BODY_BYTES_MAX - REQUEST_BYTES_MAX  # what no request can carry would stop the relay for ever

_INSERT = "INSERT INTO {outbox} (namespace, topic, payload, transaction_id) VALUES (?, ?, ?, ?)"
_FIRST = "INSERT INTO {relay} (name, epoch, batch) VALUES (?, 0, 0)"

Connect: TypeAlias = Callable[[], Connection] | Connection


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
        driver: Driver | None = None,
    ) -> None:
        self.name = name
        self.namespace = namespace
        self._connect = connect
        self._table = table
        self._driver = driver

    def connect(self) -> Connection:
        """A connection of its own, or the one that it was given. `InputError` for one that commits each statement."""
        given: Any = self._connect  # sqlite3's connections can be called, so whether it can tells nothing
        connection: Connection = given if hasattr(given, "cursor") else given()
        self.refuse_autocommit(connection)
        return connection

    def refuse_autocommit(self, connection: Connection) -> None:
        """`InputError` for a connection that commits each statement: what it rolls back would be published."""
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

    def driver(self, handle: object) -> Driver:
        """The DB-API module of a connection or cursor."""
        if self._driver is None:
            self._driver = driver_of(handle)
        return self._driver

    def statements(self, handle: object) -> Statements:
        """The SQL for a connection or cursor."""
        return Statements(self._table, self.driver(handle))

    def create_table(self) -> None:
        """Make its tables, where they are not there yet."""
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
        into: Connection | Cursor,
        topic: str,
        messages: Payloads,
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

    def give_back(self, connection: Connection) -> None:
        """Close a connection that `connect` made."""
        if connection is not self._connect:
            connection.close()


def _checked(payload: Buffer) -> bytes:
    if len(payload) > MESSAGE_BYTES_MAX:
        raise TooLargeError(
            f"a message of {len(payload)} bytes is over the limit, {MESSAGE_BYTES_MAX}", field="messages"
        )
    return bytes(payload)
