"""The newest rows of each topic, kept in memory, so that consumers that keep up never touch the store.

Rows are immutable and stay encoded. The oldest row of all topics goes first when the bytes run out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

from basalt_engine.messages import MessageRow

TopicKey = tuple[bytes, int]  # topic prefix and generation

SLOT_BYTES = 100  # a row that was removed keeps its place: rows are dropped in the order in which they came


class _Tail:
    """One topic's rows, ascending; `first` is the index of the oldest that still counts."""

    __slots__ = ("expired", "first", "positions", "rows", "starts_after")

    def __init__(self, starts_after: bytes) -> None:
        self.starts_after = starts_after  # every row after this position is here
        self.positions: list[bytes] = []
        self.rows: list[MessageRow | None] = []
        self.first = 0
        self.expired = 0  # every row before this index was removed

    def drop_oldest(self) -> int:
        """Forget the oldest row; its bytes."""
        size_bytes = _size_bytes(self.rows[self.first])
        self.starts_after = max(self.starts_after, self.positions[self.first])
        self.rows[self.first] = None
        self.first += 1
        if self.first * 2 > len(self.rows):  # amortised: each row is moved once on average
            del self.rows[: self.first], self.positions[: self.first]
            self.expired = max(0, self.expired - self.first)
            self.first = 0
        return size_bytes

    def remove(self, index: int) -> int:
        """Let go of a row but keep its place; the bytes that this frees."""
        freed_bytes = _size_bytes(self.rows[index]) - SLOT_BYTES
        self.rows[index] = None
        return freed_bytes


class TailCache:
    """The tails of all topics, together at most `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._tails: dict[TopicKey, _Tail] = {}
        self._order: deque[TopicKey] = deque()  # the topic of each cached row, oldest row first
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    def append(self, topic: TopicKey, row: MessageRow, after: bytes) -> None:
        """Keep a row that was just written; no row lies between position `after` and it."""
        tail = self._tails.get(topic)
        if tail is None:
            tail = self._tails[topic] = _Tail(after)
        tail.positions.append(row.position)
        tail.rows.append(row)
        self._order.append(topic)
        self.bytes += row.size_bytes
        while self.bytes > self._bytes_max:
            self._drop_oldest()

    def rows(self, topic: TopicKey, start: bytes, rows_max: int | None = None) -> list[MessageRow] | None:
        """The rows with a position >= `start`, ascending; None when some of them may be only in the store.

        `rows_max`: the first so many at least, where there are more; a tail may be far longer than one fetch looks.
        """
        tail = self._tails.get(topic)
        if tail is None or start <= tail.starts_after:
            self.misses += 1
            return None
        self.hits += 1
        index, end = bisect_left(tail.positions, start, tail.first), len(tail.rows)
        step = end if rows_max is None else rows_max
        found: list[MessageRow] = []
        while index < end and len(found) < step:
            found += [row for row in tail.rows[index : index + step] if row is not None]
            index += step
        return found

    def roll_back(self, topic: TopicKey, position: bytes) -> None:
        """The row at this position was rolled back in the store."""
        tail = self._tails.get(topic)
        if tail is None:
            return
        index = bisect_left(tail.positions, position, tail.first)
        row = tail.rows[index] if index < len(tail.positions) else None
        if row is not None and row.position == position and row.written_by is not None:
            tail.rows[index] = row._replace(written_by=-abs(row.written_by))

    def remove(self, topic: TopicKey, position: bytes) -> None:
        """The row at this position was removed from the store."""
        tail = self._tails.get(topic)
        if tail is None:
            return
        index = bisect_left(tail.positions, position, tail.first)
        if index < len(tail.positions) and tail.positions[index] == position:
            self.bytes -= tail.remove(index)

    def drop_before(self, topic: TopicKey, position: bytes) -> None:
        """All rows before this position were removed from the store."""
        tail = self._tails.get(topic)
        if tail is None:
            return
        stop = bisect_left(tail.positions, position, tail.first)
        for index in range(max(tail.first, tail.expired), stop):
            self.bytes -= tail.remove(index)
        tail.expired = max(tail.expired, stop)

    def forget(self, topic: TopicKey) -> None:
        """Drop all of a topic: it was deleted, or its rows changed in the store."""
        tail = self._tails.pop(topic, None)
        if tail is None:
            return
        self.bytes -= sum(map(_size_bytes, tail.rows[tail.first :]))
        self._order = deque(key for key in self._order if key != topic)

    def _drop_oldest(self) -> None:
        topic = self._order.popleft()
        tail = self._tails[topic]
        self.bytes -= tail.drop_oldest()
        if not tail.rows:
            del self._tails[topic]


def _size_bytes(row: MessageRow | None) -> int:
    """What a row, or the place of one that was removed, counts against the limit."""
    return SLOT_BYTES if row is None else row.size_bytes
