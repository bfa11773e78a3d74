"""An SQL transaction as a participant of a Basalt transaction: its messages need not wait for the relay.

The SQL transaction's commit is the decision, as ever. Its messages are written into the outbox, with the Basalt transaction's
id, and published by that transaction, too; once it has committed they are removed. When it is not known to have committed
(the process died, an answer was lost) they stay, and the relay asks Basalt how the transaction ended. Every point at which
this can break is in docs/reference/outbox.md, "The participant".
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from basalt.api.bodies.transactions import TransactionInfo
from basalt.client.blocking_client import Transaction
from basalt.client.calls.payloads import Payloads, each_payload
from basalt.errors import TransactionEndedError
from basalt.outbox.outbox import Outbox
from basalt.outbox.outbox_rows import OutboxRows
from basalt.outbox.statements import Connection

log = logging.getLogger("basalt.outbox")


class OutboxParticipant:
    """Takes part with an SQL connection: `client.transaction(participants=[..., OutboxParticipant(outbox, connection)])`.

    Name it last, for what persists after it can no longer keep it from being committed. `decided` tells what became of the
    SQL transaction: True committed, False rolled back, None not known, or not yet.
    """

    hosted = True  # it writes nothing under the transaction's pointer, so there is nothing to hide from snapshots

    def __init__(self, outbox: Outbox, connection: Connection) -> None:
        outbox.refuse_autocommit(connection)
        self.name = f"outbox {outbox.name}"
        self.decided: bool | None = None
        self._outbox = outbox
        self._connection = connection
        self._rows = OutboxRows(connection, outbox.statements(connection))
        self._transaction_id: str | None = None
        self._published = 0
        self._deciding = False

    def publish(self, tx: Transaction, topic: str, messages: Payloads, *, namespace: str | None = None) -> None:
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
        """The decision."""
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
            log.info("%s: the relay will remove the rows of transaction %s: %s", self.name, self._transaction_id, error)

    def rollback_tx(self) -> bool:
        """What the database has not committed it forgets; what it has committed the relay publishes."""
        if self.decided:
            return True
        try:
            self._connection.rollback()
        except Exception as error:  # noqa: BLE001  # a driver's: the connection is broken, and its transaction with it
            log.info("%s: transaction %s ends with its connection: %s", self.name, self._transaction_id, error)
        self.decided = None if self._deciding else False  # a commit that failed may have happened
        return True
