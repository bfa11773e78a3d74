"""Publishes lines exactly once, whatever happens to the server: the pattern that any producer may copy.

Each transaction publishes some lines to one topic and, to another, how far that is. So both are true or neither is,
and after a crash the second topic tells where to go on. A transaction whose end is in doubt is aborted first: if it was
committed after all, the server says so, and its lines count as published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from basalt.client import Client, Transaction
from basalt.errors import TransactionEndedError, TransactionNotFoundError

LINES_TOPIC = "access-log"
PROGRESS_TOPIC = "progress"
ABORTED_MARK = b"this message was in a transaction that was aborted"

BeforeCommit = Callable[[Transaction], None]


def nothing(_: Transaction) -> None:
    """Nothing goes wrong before the commit."""


class ChangedItsMindError(Exception):
    """Raised within a transaction to abort it."""


class Producer:
    """One producer of `lines`. `transaction_id` is its latest transaction, until that is known to have ended."""

    def __init__(self, lines: Sequence[bytes], lines_per_transaction: int) -> None:
        self.transaction_id: str | None = None
        self._lines = lines
        self._lines_per_transaction = lines_per_transaction

    def create_topics(self, client: Client) -> None:
        """Make the two topics; `TopicExistsError` when there is one already."""
        client.topics.create(LINES_TOPIC)
        client.topics.create(PROGRESS_TOPIC)

    def publish(self, client: Client, start: int, *, before_commit: BeforeCommit = nothing) -> int:
        """Publish the next lines from `start` on in one transaction; returns where those after them start."""
        stop = min(start + self._lines_per_transaction, len(self._lines))
        middle = (start + stop) // 2
        with client.transaction(owner="demo") as tx:
            self.transaction_id = tx.id
            tx.store(LINES_TOPIC, self._lines[start:middle])  # lies on the server now, and is published by the commit
            tx.publish(LINES_TOPIC, self._lines[middle:stop])  # travels with the commit
            tx.publish(PROGRESS_TOPIC, str(stop))
            before_commit(tx)
        self.transaction_id = None
        return stop

    def publish_and_abort(self, client: Client, start: int) -> None:
        """Publish the same lines, and a mark that nobody must ever see, in a transaction that is aborted."""

        def abort(tx: Transaction) -> None:
            tx.store(LINES_TOPIC, ABORTED_MARK)
            raise ChangedItsMindError

        try:
            self.publish(client, start, before_commit=abort)
        except ChangedItsMindError:
            self.transaction_id = None

    def settle(self, client: Client) -> str | None:
        """After a crash: see to it that the latest transaction has ended, and tell how; None when there was none."""
        transaction_id, self.transaction_id = self.transaction_id, None
        if transaction_id is None:
            return None
        try:
            return client.transactions.abort(transaction_id).state.lower()
        except TransactionEndedError:
            return client.transactions.get(transaction_id).state.lower()
        except TransactionNotFoundError:
            return "never begun"

    def position(self, client: Client) -> int:
        """The number of published lines, as the last committed transaction says."""
        position = 0
        for message in client.topic(PROGRESS_TOPIC).read():
            position = int(message.text)
        return position


def read_lines(client: Client) -> list[bytes]:
    """All that a reader of committed messages sees, in order."""
    return [message.payload for message in client.topic(LINES_TOPIC).read(isolation="committed")]
