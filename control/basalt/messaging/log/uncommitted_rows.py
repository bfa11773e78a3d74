"""Where the rows lie that open transactions published before their commit, so that an abort need not search for them.

Only of this process: of transactions that began before it started nothing is known, and their topics are searched.
"""

from __future__ import annotations

from collections.abc import Mapping

from basalt.messaging.log.tail import TopicKey
from basalt.transactions.rules.pointers import POINTER_MAX
from basalt.transactions.rules.states import Transaction

Range = tuple[bytes, bytes | None]  # positions, half-open; None: to the end


class EarlyRows:
    """For each topic and write pointer the range of positions in which its rows lie."""

    def __init__(self) -> None:
        self._unknown_up_to = POINTER_MAX
        self._ranges: dict[TopicKey, dict[int, tuple[bytes, bytes]]] = {}

    def nothing_known_of(self, last_pointer: int) -> None:
        """Transactions with an id up to this one may have rows that were not noted here."""
        self._unknown_up_to = last_pointer

    def note(self, topic: TopicKey, write_pointer: int, after: bytes, last: bytes) -> None:
        """The writer has added rows with after < position <= last."""
        ranges = self._ranges.setdefault(topic, {})
        known = ranges.get(write_pointer)
        ranges[write_pointer] = (after + b"\0" if known is None else known[0], last + b"\0")

    def found(self, topic: TopicKey, write_pointer: int, at: bytes) -> None:
        """A search came to a row of the writer at this position, after those at which it had come before."""
        ranges = self._ranges.setdefault(topic, {})
        known = ranges.get(write_pointer)
        ranges[write_pointer] = (at if known is None else known[0], at + b"\0")

    def range_of(self, topic: TopicKey, transaction: Transaction, from_position: bytes) -> Range | None:
        """Where rows of the transaction may lie in the topic; None when it has none there."""
        if not self.all_known(transaction):
            return from_position, None
        known = self._ranges.get(topic, {})
        ranges = [known[pointer] for pointer in transaction.pointers if pointer in known] if known else []
        if not ranges:
            return None
        return min(start for start, _ in ranges), max(stop for _, stop in ranges)

    def all_known(self, transaction: Transaction) -> bool:
        """Whether all its rows were noted."""
        return transaction.id > self._unknown_up_to and not transaction.was_invalid  # else it was forgotten

    def has(self, topic: TopicKey, write_pointer: int) -> bool:
        """Whether rows of the writer were noted."""
        return write_pointer in self._ranges.get(topic, ())

    def writers_in(self, topic: TopicKey, write_pointers: Mapping[int, int]) -> set[int]:
        """Those of these writers whose rows in the topic were noted; costs the smaller of both numbers."""
        return write_pointers.keys() & self._ranges.get(topic, {}).keys()

    def forget(self, topic: TopicKey, write_pointer: int) -> None:
        """The writer has ended."""
        ranges = self._ranges.get(topic)
        if ranges is not None:
            ranges.pop(write_pointer, None)
            if not ranges:
                del self._ranges[topic]
