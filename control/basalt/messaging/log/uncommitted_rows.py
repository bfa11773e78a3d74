"""Where the rows lie that open transactions published before their commit, so that an abort need not search for them.

Only of this process: of transactions that began before it started nothing is known, and their topics are searched.
"""

from __future__ import annotations

from basalt.messaging.log.tail import TopicKey
from basalt.transactions.rules.states import Transaction
from basalt_engine.snapshot import POINTER_MAX

Range = tuple[bytes, bytes | None]  # positions, half-open; None: to the end


class EarlyRows:
    """For each topic and write pointer the range of positions in which its rows lie."""

    def __init__(self) -> None:
        self._unknown_up_to = POINTER_MAX
        self._ranges: dict[tuple[TopicKey, int], tuple[bytes, bytes]] = {}

    def nothing_known_of(self, last_pointer: int) -> None:
        """Transactions with an id up to this one may have rows that were not noted here."""
        self._unknown_up_to = last_pointer

    def note(self, topic: TopicKey, write_pointer: int, after: bytes, last: bytes) -> None:
        """The writer has added rows with after < position <= last."""
        known = self._ranges.get((topic, write_pointer))
        self._ranges[topic, write_pointer] = (after + b"\0" if known is None else known[0], last + b"\0")

    def found(self, topic: TopicKey, write_pointer: int, at: bytes) -> None:
        """A search came to a row of the writer at this position, after those at which it had come before."""
        known = self._ranges.get((topic, write_pointer))
        self._ranges[topic, write_pointer] = (at if known is None else known[0], at + b"\0")

    def range_of(self, topic: TopicKey, transaction: Transaction, from_position: bytes) -> Range | None:
        """Where rows of the transaction may lie in the topic; None when it has none there."""
        if not self.all_known(transaction):
            return from_position, None
        ranges = [self._ranges[topic, pointer] for pointer in transaction.pointers if (topic, pointer) in self._ranges]
        if not ranges:
            return None
        return min(start for start, _ in ranges), max(stop for _, stop in ranges)

    def all_known(self, transaction: Transaction) -> bool:
        """Whether all its rows were noted."""
        return transaction.id > self._unknown_up_to and not transaction.was_invalid  # else it was forgotten

    def has(self, topic: TopicKey, write_pointer: int) -> bool:
        """Whether rows of the writer were noted."""
        return (topic, write_pointer) in self._ranges

    def forget(self, topic: TopicKey, write_pointer: int) -> None:
        """The writer has ended."""
        self._ranges.pop((topic, write_pointer), None)
