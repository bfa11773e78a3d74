"""The newest rows of logs, in memory: readers that keep up never look into the store.

A log's tail has every row after some position, so it answers as the store would, or not at all. All tails together are
bounded; the oldest row of all goes first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

from basalt.messaging.log.answers import Answers
from basalt_engine.messages import MERGED_SPAN_MS_MAX, MessageRow
from basalt_engine.records import count_messages

SLOT_BYTES = 100  # a row that was removed from a tail keeps its place: rows are dropped in the order in which they came
DEAD_ROWS_MAX = 1_000  # rows of dropped tails that may stand in the order, whatever the number of living ones
MERGED_BYTES_MAX = 128 << 10  # of a row that small rows become: who wants one message of it reads and checks all of it
MERGED_MESSAGES_MAX = 1_024


class TailOwner:
    """A log, as far as it may have a tail."""

    __slots__ = ("tail",)

    tail: Tail | None


class SmallRun:
    """Neighbouring rows at the end of a log that can become one."""

    __slots__ = ("batch_bytes", "first", "flags", "last", "messages", "rows")

    def __init__(self, row: MessageRow, batch: bytes) -> None:
        self.first = self.last = row.position
        self.flags = batch[2]
        self.rows = 1
        self.messages = count_messages(batch)
        self.batch_bytes = len(batch)

    def takes(self, row: MessageRow, batch: bytes) -> bool:
        """True when the row may join: it carries the same sections, and the whole stays within the limits."""
        return (
            batch[2] == self.flags
            and self.batch_bytes + len(batch) <= MERGED_BYTES_MAX
            and self.messages + count_messages(batch) <= MERGED_MESSAGES_MAX
            and int.from_bytes(row.position[:8], "big") - int.from_bytes(self.first[:8], "big") <= MERGED_SPAN_MS_MAX
        )

    def join(self, row: MessageRow, batch: bytes) -> None:
        """One more row, at the end."""
        self.last = row.position
        self.rows += 1
        self.messages += count_messages(batch)
        self.batch_bytes += len(batch)


class Tail:
    """One topic's rows, ascending; `first` is the index of the oldest that still counts."""

    __slots__ = ("expired", "first", "owner", "places", "positions", "rows", "small_run", "starts_after")

    def __init__(self, owner: TailOwner, starts_after: bytes) -> None:
        self.owner: TailOwner | None = owner  # None once the tail was dropped
        self.starts_after = starts_after  # every row after this position is here
        self.positions: list[bytes] = []
        self.rows: list[MessageRow | None] = []
        # The places that each row has in the order in which rows are dropped; a merged one has several.
        self.places: list[int] = []
        self.small_run: SmallRun | None = None  # small rows at the end, which may become one
        self.first = 0
        self.expired = 0  # every row before this index was removed

    def rows_from(self, start: bytes, rows_max: int | None = None) -> list[MessageRow]:
        """The rows with a position >= `start`, ascending; the first so many at least, where there are more."""
        index, end = bisect_left(self.positions, start, self.first), len(self.rows)
        step = end if rows_max is None else rows_max
        found: list[MessageRow] = []
        while index < end and len(found) < step:
            found += [row for row in self.rows[index : index + step] if row is not None]
            index += step
        return found

    def roll_back(self, position: bytes) -> None:
        """The row at this position was rolled back in the store."""
        index = self._index_of(position)
        row = None if index is None else self.rows[index]
        if index is not None and row is not None and row.written_by is not None:
            self.rows[index] = row._replace(written_by=-abs(row.written_by))

    def between(self, first: bytes, last: bytes) -> list[MessageRow]:
        """The rows with first <= position <= last that are still here."""
        start, stop = bisect_left(self.positions, first, self.first), bisect_right(self.positions, last)
        return [row for row in self.rows[start:stop] if row is not None]

    def replace(self, rows: Sequence[MessageRow], merged: MessageRow) -> int:
        """These neighbours, and what was removed between them, are one row now; the bytes that this frees.

        None are freed when some of them were dropped meanwhile: what is left here says the same.
        """
        start, stop = bisect_left(self.positions, rows[0].position), bisect_right(self.positions, merged.position)
        if start < self.first or self.between(rows[0].position, merged.position) != rows:
            return 0
        freed_bytes = sum(map(_size_bytes, self.rows[start:stop])) - merged.size_bytes
        self.rows[start:stop], self.positions[start:stop] = [merged], [merged.position]
        self.places[start:stop] = [sum(self.places[start:stop])]
        self.expired = min(self.expired, start)
        return freed_bytes

    def drop_oldest(self) -> int:
        """Forget the oldest row, once all its places have come; its bytes."""
        self.places[self.first] -= 1
        if self.places[self.first]:
            return 0
        size_bytes = _size_bytes(self.rows[self.first])
        self.starts_after = max(self.starts_after, self.positions[self.first])
        self.rows[self.first] = None
        self.first += 1
        if self.first * 2 > len(self.rows):  # amortised: each row is moved once on average
            del self.rows[: self.first], self.positions[: self.first], self.places[: self.first]
            self.expired = max(0, self.expired - self.first)
            self.first = 0
        return size_bytes

    def remove(self, position: bytes) -> int:
        """The row at this position was removed from the store. Its place stays; the bytes that this frees."""
        index = self._index_of(position)
        return 0 if index is None else self._remove_at(index)

    def remove_before(self, position: bytes) -> int:
        """All rows before this position were removed from the store; the bytes that this frees."""
        stop = bisect_left(self.positions, position, self.first)
        freed_bytes = sum(map(self._remove_at, range(max(self.first, self.expired), stop)))
        self.expired = max(self.expired, stop)
        return freed_bytes

    @property
    def size_bytes(self) -> int:
        return sum(map(_size_bytes, self.rows[self.first :]))

    def _index_of(self, position: bytes) -> int | None:
        index = bisect_left(self.positions, position, self.first)
        return index if index < len(self.positions) and self.positions[index] == position else None

    def _remove_at(self, index: int) -> int:
        freed_bytes = _size_bytes(self.rows[index]) - SLOT_BYTES
        self.rows[index] = None
        return freed_bytes


class Tails:
    """The tails of all topics, together at most `bytes_max`; and stretches of any part of them, as readers were answered them."""

    def __init__(self, bytes_max: int, answers_bytes_max: int = 0) -> None:
        self._bytes_max = bytes_max
        self.answers = Answers(answers_bytes_max)
        self._order: deque[Tail] = deque()  # the tail of each cached row, oldest row first
        self._dead_rows = 0  # entries of the order whose tail was dropped
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    @property
    def bytes_max(self) -> int:
        return self._bytes_max

    def append(self, owner: TailOwner, row: MessageRow, after: bytes) -> None:
        """Keep a row that was just written; no row lies between position `after` and it."""
        tail = owner.tail
        if tail is None:
            tail = owner.tail = Tail(owner, after)
        tail.positions.append(row.position)
        tail.rows.append(row)
        tail.places.append(1)
        self._order.append(tail)
        self.bytes += row.size_bytes
        while self.bytes > self._bytes_max:
            self._drop_oldest()

    def rows(self, tail: Tail | None, start: bytes, rows_max: int | None = None) -> list[MessageRow] | None:
        """The tail's rows from a position on; None when some of them may be only in the store."""
        if tail is None or start <= tail.starts_after:
            self.misses += 1
            return None
        self.hits += 1
        return tail.rows_from(start, rows_max)

    def roll_back(self, owner: TailOwner, position: bytes) -> None:
        """The row at this position was rolled back in the store."""
        self.answers.forget(owner, position)
        if owner.tail is not None:
            owner.tail.roll_back(position)

    def remove(self, owner: TailOwner, position: bytes) -> None:
        """The row at this position was removed from the store."""
        self.answers.forget(owner, position)
        if owner.tail is not None:
            self.bytes -= owner.tail.remove(position)

    def remove_before(self, owner: TailOwner, position: bytes) -> None:
        """All rows before this position were removed from the store."""
        self.answers.forget_before(owner, position)
        if owner.tail is not None:
            self.bytes -= owner.tail.remove_before(position)

    def replace(self, tail: Tail, rows: Sequence[MessageRow], merged: MessageRow) -> None:
        """These neighbours became one row in the store."""
        if tail.owner is not None:
            self.bytes -= tail.replace(rows, merged)

    def drop(self, owner: TailOwner) -> None:
        """Drop all of a topic: it was deleted, or its rows changed in the store."""
        self.answers.drop(owner)
        tail = owner.tail
        if tail is None:
            return
        self.bytes -= tail.size_bytes
        self._dead_rows += sum(tail.places[tail.first :])
        owner.tail, tail.owner = None, None
        if self._dead_rows > max(len(self._order) // 2, DEAD_ROWS_MAX):  # each row is passed twice on average
            self._order = deque(each for each in self._order if each.owner is not None)
            self._dead_rows = 0

    def _drop_oldest(self) -> None:
        tail = self._order.popleft()
        if tail.owner is None:
            self._dead_rows -= 1
            return
        self.bytes -= tail.drop_oldest()
        if not tail.rows:
            owner, tail.owner = tail.owner, None
            owner.tail = None


def _size_bytes(row: MessageRow | None) -> int:
    """The bytes that a row, or the place of a removed one (None), counts against the limit."""
    return SLOT_BYTES if row is None else row.size_bytes
