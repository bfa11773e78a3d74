"""Counts of a topic's messages: sums by publish time, from which those that expired can be left out. Pure.

A topic's counts are incomplete until what was counted before this process began, and rows that no saved count covers, are
added in front of what was appended since. Format of saved counts: docs/formats/system-table.md, kind `usage`.

A bucket sums the rows of about an hour, or of `BUCKET_BYTES`, whichever is less. What a reader may still see is the sum
of the buckets that are young enough as a whole, and of the bucket in which the oldest message lies: its rows are read
again (`Buckets.since` says which), and the finer buckets that this gives take its place, so that next time less is read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from basalt_engine.keys import position_fields
from basalt_engine.messages import MessageRow
from basalt_engine.payloads import PayloadRow
from basalt_engine.records import Flag, Kind, decode

BUCKET_MS = 3_600_000
BUCKET_BYTES = 16 << 20  # what is read again at most to count the oldest bucket: some 20 ms
FINER = 16  # a bucket that was read again becomes about so many
BUCKETS_MAX = 256  # a week in hours, and room; beyond, the oldest are joined in pairs. 24 bytes each
RECENT_SLOTS = 12
RECENT_SLOT_MS = 5_000  # so the rate of publishing is over the last minute
OWN_STEPS = 32  # the expiry of a message with a TTL of its own is rounded up by at most this part of the TTL
OWN_STEP_MS_MIN = 1_000


class Count(NamedTuple):
    """Messages and the bytes of their payloads."""

    messages: int = 0
    payload_bytes: int = 0


class Expiry(NamedTuple):
    """Messages that expire at this time, rounded up, by a TTL of their own."""

    expire_ms: int
    messages: int
    payload_bytes: int


class RowCount(NamedTuple):
    """The counts of one row: messages that live for the topic's TTL, and in `own` those that expire sooner."""

    publish_ms: int
    messages: int
    payload_bytes: int
    own: tuple[Expiry, ...] = ()


def count_row(row: MessageRow, stored: Callable[[MessageRow], Iterable[PayloadRow]], ttl_ms: int) -> RowCount:
    """Count a row's messages; `stored` reads the payload rows that it refers to, `ttl_ms` is the topic's."""
    publish_ms = position_fields(row.position)[0]
    messages = payload_bytes = 0
    own: list[Expiry] = []
    # One payload row at a time: together they may be more than fits into memory.
    for data in [row.batch] if row.batch is not None else (payload.batch for payload in stored(row)):
        batch = decode(data, verify=False)
        if batch.kind is not Kind.USER:  # markers are not messages
            continue
        ttls = batch.ttls_ms()
        if ttls is None:
            messages += batch.count
            payload_bytes += batch.payload_bytes
            continue
        for index, ttl in enumerate(ttls):
            length = batch.bytes_between(index, index + 1)
            if ttl and ttl < ttl_ms:
                own.append(Expiry(_rounded(publish_ms + ttl, ttl), 1, length))
            else:
                messages += 1
                payload_bytes += length
    return RowCount(publish_ms, messages, payload_bytes, tuple(own))


def count_appended(row: MessageRow, messages: int, payload_bytes: int, ttl_ms: int) -> RowCount:
    """Count a row that was just appended by the appender's own numbers; only TTLs of messages need a decoded batch."""
    publish_ms = position_fields(row.position)[0]
    if row.batch is None:
        return RowCount(publish_ms, messages, payload_bytes)
    if row.batch[1] != Kind.USER:
        return RowCount(publish_ms, 0, 0)
    if row.batch[2] & Flag.TTLS:
        return count_row(row, lambda _: (), ttl_ms)
    return RowCount(publish_ms, messages, payload_bytes)


def _rounded(expire_ms: int, ttl_ms: int) -> int:
    """Up to a multiple of a power of two (or a second), so that few different times need to be kept."""
    step_ms = max(OWN_STEP_MS_MIN, 1 << max(0, (ttl_ms // OWN_STEPS).bit_length() - 1))
    return -(-expire_ms // step_ms) * step_ms


class Part(NamedTuple):
    """A stretch of publish time, start <= publish_ms < stop (None: to the end), that a sum covers only in part.

    `estimate` is what of it is counted unless it is read: its share by time.
    """

    start_ms: int
    stop_ms: int | None
    estimate: Count
    bucket_bytes: int


class Buckets:
    """Sums by publish time, ascending; rows are added in the topic's order."""

    __slots__ = ("_bucket_bytes", "_bucket_ms", "from_ms", "messages", "newest_ms", "payload_bytes", "starts")

    def __init__(self, finer: int = 1) -> None:
        self._bucket_ms = BUCKET_MS // finer
        self._bucket_bytes = BUCKET_BYTES // finer
        self.from_ms = 0  # what was published before is not counted
        self.starts = array("q")
        self.messages = array("q")
        self.payload_bytes = array("q")
        self.newest_ms = -1

    @classmethod
    def of(
        cls, from_ms: int, newest_ms: int, starts: list[int], messages: list[int], payload_bytes: list[int]
    ) -> Buckets:
        """The buckets with these values."""
        buckets = cls()
        buckets.from_ms, buckets.newest_ms = from_ms, newest_ms
        buckets.starts, buckets.messages = array("q", starts), array("q", messages)
        buckets.payload_bytes = array("q", payload_bytes)
        return buckets

    def __len__(self) -> int:
        return len(self.starts)

    def add(self, publish_ms: int, messages: int, payload_bytes: int) -> None:
        """Count a row that is newer than all before it."""
        if not self.starts or (publish_ms > self.newest_ms and self._full(publish_ms)):
            self._append(publish_ms, messages, payload_bytes)
        else:
            self.messages[-1] += messages
            self.payload_bytes[-1] += payload_bytes
        self.newest_ms = publish_ms

    def _full(self, publish_ms: int) -> bool:
        return publish_ms - self.starts[-1] >= self._bucket_ms or self.payload_bytes[-1] >= self._bucket_bytes

    def _append(self, start_ms: int, messages: int, payload_bytes: int) -> None:
        self.starts.append(start_ms)
        self.messages.append(messages)
        self.payload_bytes.append(payload_bytes)
        if len(self.starts) > BUCKETS_MAX:
            self._join_oldest()

    def _join_oldest(self) -> None:
        half = len(self.starts) // 4 * 2
        for values in (self.messages, self.payload_bytes):
            values[:half] = array("q", map(sum, zip(values[:half:2], values[1:half:2], strict=True)))
        self.starts[:half] = self.starts[:half:2]

    def subtract(self, publish_ms: int, messages: int, payload_bytes: int) -> None:
        """A row that was counted is gone."""
        index = bisect_right(self.starts, publish_ms) - 1
        if index >= 0:
            self.messages[index] -= messages
            self.payload_bytes[index] -= payload_bytes

    def extend(self, newer: Buckets) -> None:
        """Add the sums of rows that are newer than all these."""
        for start_ms, messages, payload_bytes in zip(newer.starts, newer.messages, newer.payload_bytes, strict=True):
            if self.starts and start_ms <= self.newest_ms:  # rows of one millisecond stay in one bucket
                self.messages[-1] += messages
                self.payload_bytes[-1] += payload_bytes
            else:
                self._append(start_ms, messages, payload_bytes)
        self.newest_ms = max(self.newest_ms, newer.newest_ms)

    def since(self, lower_ms: int) -> tuple[Count, Part | None]:
        """The sum of what was published at or after `lower_ms`: of whole buckets, and what must be read for the rest.

        `lower_ms` is not before `from_ms`.
        """
        index = bisect_left(self.starts, lower_ms)
        whole = Count(sum(self.messages[index:]), sum(self.payload_bytes[index:]))
        stop_ms = self.starts[index] if index < len(self.starts) else None
        if index == 0 or lower_ms > self.newest_ms or lower_ms == stop_ms or not self.messages[index - 1]:
            return whole, None
        start_ms = self.starts[index - 1]
        end_ms = self.newest_ms + 1 if stop_ms is None else stop_ms
        share = (end_ms - lower_ms) / max(end_ms - start_ms, 1)
        bucket = Count(self.messages[index - 1], self.payload_bytes[index - 1])
        estimate = Count(round(bucket.messages * share), round(bucket.payload_bytes * share))
        return whole, Part(lower_ms, stop_ms, estimate, bucket.payload_bytes)

    def refine(self, part: Part, finer: Buckets) -> None:
        """Put what was read of the part in the place of everything before its end."""
        index = len(self.starts) if part.stop_ms is None else bisect_left(self.starts, part.stop_ms)
        for mine, theirs in ((self.starts, finer.starts), (self.messages, finer.messages)):
            mine[:index] = theirs
        self.payload_bytes[:index] = finer.payload_bytes
        self.from_ms = part.start_ms
        while len(self.starts) > BUCKETS_MAX:
            self._join_oldest()

    def drop_before(self, lower_ms: int) -> None:
        """Forget the buckets of which every row was published before `lower_ms`."""
        index = bisect_right(self.starts, lower_ms) - 1
        if index > 0:
            for values in (self.starts, self.messages, self.payload_bytes):
                del values[:index]


class OwnExpiry:
    """Messages that expire by a TTL of their own, by when they do."""

    __slots__ = ("_by_time",)

    def __init__(self, entries: Iterable[Expiry] = ()) -> None:
        self._by_time: dict[int, Count] = {}
        self.add(entries)

    def add(self, entries: Iterable[Expiry], sign: int = 1) -> None:
        """Count messages; with sign -1, messages that were counted are gone."""
        for expire_ms, messages, payload_bytes in entries:
            known = self._by_time.get(expire_ms, Count())
            counted = Count(known.messages + sign * messages, known.payload_bytes + sign * payload_bytes)
            self._by_time[expire_ms] = counted

    def __len__(self) -> int:
        return len(self._by_time)

    def alive(self, now_ms: int) -> Count:
        """The sum of those that have not expired; the others are forgotten."""
        for expire_ms in [time for time, count in self._by_time.items() if time <= now_ms or not count.messages]:
            del self._by_time[expire_ms]
        counts = self._by_time.values()
        return Count(sum(count.messages for count in counts), sum(count.payload_bytes for count in counts))

    def entries(self) -> list[Expiry]:
        """All that is counted, by time."""
        return [Expiry(expire_ms, *self._by_time[expire_ms]) for expire_ms in sorted(self._by_time)]


class Recent:
    """Messages of the last minute, in slots of some seconds."""

    __slots__ = ("_newest", "_slots")

    def __init__(self) -> None:
        self._newest = 0
        self._slots = [0] * RECENT_SLOTS

    def add(self, now_ms: int, messages: int) -> None:
        """Count messages that were published now."""
        self._advance(now_ms)
        self._slots[self._newest % RECENT_SLOTS] += messages

    def per_second(self, now_ms: int) -> float:
        """Messages a second, over the last minute."""
        self._advance(now_ms)
        return sum(self._slots) * 1_000 / (RECENT_SLOTS * RECENT_SLOT_MS)

    def _advance(self, now_ms: int) -> None:
        slot = now_ms // RECENT_SLOT_MS
        for passed in range(max(self._newest + 1, slot - RECENT_SLOTS + 1), slot + 1):
            self._slots[passed % RECENT_SLOTS] = 0
        self._newest = max(self._newest, slot)


class SavedCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a `usage` entry: everything up to position `counted_to` (hex) and not published before `from_ms`.

    Nothing in `own` was published before `truncated_ms`.
    """

    generation: int
    counted_to: str
    from_ms: int
    newest_ms: int
    starts: list[int]
    messages: list[int]
    payload_bytes: list[int]
    own: list[tuple[int, int, int]]
    truncated_ms: int = 0


class TopicCounts:
    """The counts of one generation of a topic, kept up to date by its log."""

    __slots__ = (
        "buckets", "changed_ms", "complete", "counted_to", "first", "gone_before_ms", "own", "recent", "removals",
        "truncated_ms", "unsaved_bytes",
    )  # fmt: skip

    def __init__(self, truncated_ms: int = 0) -> None:
        self.truncated_ms = truncated_ms  # the topic was truncated before: no message in `own` is older
        self.buckets = Buckets()
        self.own = OwnExpiry()
        self.recent = Recent()
        self.counted_to = b""  # the position of the newest row that is counted
        self.first = b""  # while incomplete: the position of the oldest row that was appended since
        self.complete = False
        self.gone_before_ms = 0  # everything published before was removed
        self.removals = 0
        self.changed_ms: int | None = None  # when they changed first since they were saved
        self.unsaved_bytes = 0

    def observe(self, where: bytes, counted: RowCount, now_ms: int) -> None:
        """A row at this position became durable."""
        if where <= self.counted_to:  # it was read before we were told
            return
        self.first = self.first or where
        self.add(where, counted)
        self.recent.add(now_ms, counted.messages + len(counted.own))
        self.changed_ms = now_ms if self.changed_ms is None else self.changed_ms
        self.unsaved_bytes += counted.payload_bytes

    def add(self, where: bytes, counted: RowCount) -> None:
        """Count a row that is newer than all before it."""
        self.counted_to = where
        self.buckets.add(counted.publish_ms, counted.messages, counted.payload_bytes)
        if counted.publish_ms >= self.truncated_ms:
            self.own.add(counted.own)

    def complete_with(self, older: TopicCounts) -> None:
        """Add the counts of all rows older than those that were appended since."""
        older.buckets.extend(self.buckets)
        self.buckets = older.buckets
        self.own.add(older.own.entries())
        self.counted_to = max(self.counted_to, older.counted_to)
        self.expired(max(self.gone_before_ms, older.gone_before_ms))
        self.complete = True

    def remove(self, where: bytes, counted: RowCount) -> None:
        """The row at this position is gone."""
        if where <= self.counted_to:
            self.buckets.subtract(counted.publish_ms, counted.messages, counted.payload_bytes)
            if counted.publish_ms >= self.truncated_ms:
                self.own.add(counted.own, -1)
            self.removals += 1

    def truncated(self, before_ms: int) -> TopicCounts:
        """The counts of a topic that was truncated before this time.

        Buckets tell what is older; of messages with a TTL of their own nobody knows, so where there are some it is counted anew.
        """
        if before_ms <= self.truncated_ms:
            return self
        if self.complete and not self.own:
            self.truncated_ms = before_ms
            return self
        anew = TopicCounts(before_ms)
        anew.recent = self.recent
        return anew

    def expired(self, before_ms: int) -> None:
        """All rows published before this time are gone."""
        self.gone_before_ms = max(self.gone_before_ms, before_ms)
        self.buckets.drop_before(self.gone_before_ms)

    def saved(self) -> None:
        """The counts are being saved as they are."""
        self.changed_ms, self.unsaved_bytes = None, 0

    def body(self, generation: int) -> bytes:
        """Encode the counts for the system table (kind `usage`)."""
        kept = self.buckets
        return msgspec.json.encode(
            SavedCounts(
                generation,
                self.counted_to.hex(),
                kept.from_ms,
                kept.newest_ms,
                kept.starts.tolist(),
                kept.messages.tolist(),
                kept.payload_bytes.tolist(),
                [(entry.expire_ms, entry.messages, entry.payload_bytes) for entry in self.own.entries()],
                self.truncated_ms,
            )
        )

    @classmethod
    def of(cls, stored: SavedCounts) -> TopicCounts:
        """The counts that were saved."""
        counts = cls(stored.truncated_ms)
        counts.counted_to = bytes.fromhex(stored.counted_to)
        counts.own = OwnExpiry(Expiry(*entry) for entry in stored.own)
        counts.buckets = Buckets.of(
            stored.from_ms, stored.newest_ms, stored.starts, stored.messages, stored.payload_bytes
        )
        return counts
