"""Stretches of logs as readers were answered them: encoded once, for all who read the same.

A stretch is made of what a log holds between two positions, and of rows in which nothing may change for a reader but
whether it sees their writers: plain messages, without TTLs of their own, that were not rolled back. When such a row is
rolled back or removed after all, its stretch is dropped. Together they take at most so many bytes; the one that was not
read for the longest time goes first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from basalt.api.codecs.encoded import AvroMessages, BatchedMessages, Encoding
from basalt_engine.snapshot import Writers

STRETCH_BYTES = 1_000  # that a stretch takes in memory beside its messages


class Stretch:
    """Neighbouring rows of a log, encoded: all with start <= position <= last. Immutable.

    `row_stops` are the messages up to the end of each row. Without `writers` everybody sees them.
    """

    __slots__ = ("encoding", "last", "messages", "row_stops", "start", "writers")

    def __init__(
        self, start: bytes, last: bytes, row_stops: Sequence[int], writers: Writers | None,
        messages: AvroMessages | BatchedMessages,
    ) -> None:  # fmt: skip
        self.start = start
        self.last = last
        self.row_stops = row_stops
        self.writers = writers
        self.messages = messages
        self.encoding: Encoding = type(messages)

    @property
    def size_bytes(self) -> int:
        """The approximate bytes in memory."""
        return STRETCH_BYTES + self.messages.size_bytes + 64 * len(self.row_stops)


class StretchPart:
    """Neighbouring messages of a stretch: start <= index < stop, and one at least."""

    __slots__ = ("start", "stop", "stretch")

    def __init__(self, stretch: Stretch, start: int, stop: int) -> None:
        self.stretch = stretch
        self.start = start
        self.stop = stop

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def payload_bytes(self) -> int:
        ends = self.stretch.messages.ends
        return ends[self.stop] - ends[self.start]

    def last_id(self) -> bytes:
        """The id of the last message."""
        return self.stretch.messages.id_at(self.stop - 1)

    def pieces(self) -> list[bytes | bytearray | memoryview]:
        """The messages as the stretch's format has them."""
        return self.stretch.messages.pieces(self.start, self.stop)


class _Order:
    """The stretches of one log in one encoding, which do not overlap, ascending."""

    __slots__ = ("starts", "stretches")

    def __init__(self) -> None:
        self.starts: list[bytes] = []
        self.stretches: list[Stretch] = []

    def at(self, position: bytes) -> Stretch | None:
        """The stretch in which the first row at or after this position is."""
        index = bisect_right(self.starts, position) - 1
        if index < 0 or self.stretches[index].last < position:
            return None
        return self.stretches[index]


class Answers:
    """The stretches of all logs, together at most `bytes_max`. A log is known by what it is: one object for a generation."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0  # readers who took of a stretch that another one had made
        self.made = 0
        self._orders: dict[Hashable, dict[Encoding, _Order]] = {}
        self._by_use: OrderedDict[Stretch, Hashable] = OrderedDict()  # the one not read for the longest time first

    def __len__(self) -> int:
        return len(self._by_use)

    def find(self, log: Hashable, encoding: Encoding, position: bytes) -> Stretch | None:
        """The stretch in which the log's first row at or after this position is, if there is one."""
        orders = self._orders.get(log)
        order = None if orders is None else orders.get(encoding)
        found = None if order is None else order.at(position)
        if found is not None:
            self._by_use.move_to_end(found)
        return found

    def start_behind(self, log: Hashable, encoding: Encoding, position: bytes) -> bytes | None:
        """The start of the first stretch after this position."""
        order = self._orders.get(log, {}).get(encoding)
        index = 0 if order is None else bisect_right(order.starts, position)
        return None if order is None or index == len(order.starts) else order.starts[index]

    def keep(self, log: Hashable, stretch: Stretch) -> None:
        """Keep a stretch of what the log holds in this turn of the event loop."""
        size_bytes = stretch.size_bytes
        if size_bytes > self.bytes_max:
            return
        order = self._orders.setdefault(log, {}).setdefault(stretch.encoding, _Order())
        index = bisect_right(order.starts, stretch.start)
        order.starts.insert(index, stretch.start)
        order.stretches.insert(index, stretch)
        self._by_use[stretch] = log
        self.bytes += size_bytes
        self.made += 1
        while self.bytes > self.bytes_max:
            oldest, owner = next(iter(self._by_use.items()))
            self._remove(owner, oldest)

    def forget(self, log: Hashable, position: bytes) -> None:
        """The row at this position was rolled back, or removed."""
        for order in list(self._orders.get(log, {}).values()):
            found = order.at(position)
            if found is not None:
                self._remove(log, found)

    def forget_before(self, log: Hashable, position: bytes) -> None:
        """All rows before this position were removed."""
        for order in list(self._orders.get(log, {}).values()):
            for stretch in [each for each in order.stretches if each.start < position]:
                self._remove(log, stretch)

    def drop(self, log: Hashable) -> None:
        """Drop all of a log."""
        for order in list(self._orders.get(log, {}).values()):
            for stretch in list(order.stretches):
                self._remove(log, stretch)

    def clear(self) -> None:
        """Drop everything: writers that had been decided about were decided about anew."""
        self._orders.clear()
        self._by_use.clear()
        self.bytes = 0

    def _remove(self, log: Hashable, stretch: Stretch) -> None:
        orders = self._orders[log]
        order = orders[stretch.encoding]
        index = order.stretches.index(stretch)
        del order.starts[index], order.stretches[index]
        if not order.stretches:
            del orders[stretch.encoding]
            if not orders:
                del self._orders[log]
        del self._by_use[stretch]
        self.bytes -= stretch.size_bytes
