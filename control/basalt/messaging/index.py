"""The index of a topic's log: sums of what lies in its stretches, so that counting reads next to nothing. Pure.

There are two lists because two kinds of readers count differently, and both must be small (docs/decisions/0023-two-lists-in-one-index.md):
- `Buckets`, by publish time: all that a reader without a snapshot gets. Kept from the first row on, and saved by the
  statistics job (kind `index`, docs/formats/system-table.md); what no saved sum covers is read once and added in front.
- `Blocks`, by id: what readers of committed messages get, with what the markers said. In memory only: readers of ranges add
  what they have read, once it is decided for good.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import msgspec

from basalt.api.markers import NOTHING_KNOWN, MarkerState, merged
from basalt_engine.records import BatchSection, Buffer, RecordBatch, RecordKind, decode
from basalt_engine.snapshot import InvalidList
from basalt_engine.system import SystemRecord

BUCKET_MS = 3_600_000
BUCKET_BYTES = 16 << 20  # what is read again at most to count the oldest bucket: some 20 ms
RECOUNT_BYTES_MAX = 64 << 20  # what is read again at most after a truncation, to count messages with a TTL of their own
FINER = 16  # a bucket that was read again becomes about so many
BUCKETS_MAX = 256  # a week in hours, and room; beyond, neighbours are joined, the oldest first. 32 bytes each
JOINED_FRACTION_MIN = (
    64  # buckets that were joined are no more than one in so many of the bytes: a size limit drops whole ones
)
RECENT_SLOTS = 12
RECENT_SLOT_MS = 5_000  # so the rate of publishing is over the last minute
OWN_STEPS = 32  # the expiry of a message with a TTL of its own is rounded up by at most this part of the TTL
OWN_STEP_MS_MIN = 1_000
OWN_TTLS_MAX = 100  # different ones that are kept of a writer's staged payloads; where there are more, these are read

BLOCK_MESSAGES = 4_096
BLOCK_BYTES = 4 << 20
SPLIT_FRACTION_MIN = 16  # a part of a block that is less than one in so many is no block of its own
BLOCK_SKIPPED_MAX = 64  # failed writers whose rows a block passes over; each is looked up whenever the block is used
SKIPPED_PER_ENTRY = 4  # that take as much memory as a block without any
BLOCK_ENTRIES_MAX = 16_384  # of a topic: 67 million small messages; beyond, neighbours are joined. 300 bytes each
FOREVER_MS = (1 << 63) - 1


class Count(NamedTuple):
    """Messages and the bytes of their payloads."""

    messages: int = 0
    payload_bytes: int = 0

    def plus(self, messages: int, payload_bytes: int) -> Count:
        """These and others."""
        return Count(self.messages + messages, self.payload_bytes + payload_bytes)


TtlCounts: TypeAlias = Mapping[int, Count]  # messages with a TTL of their own, by that
NO_TTLS: TtlCounts = MappingProxyType({})


class Expiry(NamedTuple):
    """Messages that expire at this time, rounded up, by a TTL of their own."""

    expire_ms: int
    messages: int
    payload_bytes: int


class RowCount(NamedTuple):
    """The counts of one row, or of a part of it: messages that live for the topic's TTL, and in `own` those that expire sooner."""

    publish_ms: int
    messages: int
    payload_bytes: int
    own: tuple[Expiry, ...] = ()

    @property
    def own_bytes(self) -> int:
        """The bytes of those that expire sooner."""
        return sum(expiry.payload_bytes for expiry in self.own)


def count_batch(publish_ms: int, batch: RecordBatch, ttl_ms: int) -> RowCount:
    """Count the messages of one batch; `ttl_ms` is the topic's."""
    if batch.kind is not RecordKind.USER:  # markers are not messages
        return RowCount(publish_ms, 0, 0)
    return count_row(publish_ms, batch.count, batch.payload_bytes, count_ttls(batch), ttl_ms)


def count_ttls(batch: RecordBatch) -> TtlCounts:
    """Count the messages of one batch that have a TTL of their own."""
    counts: dict[int, Count] = {}
    for index, ttl_ms in enumerate(batch.ttls_ms() or ()):
        if ttl_ms:
            counts[ttl_ms] = counts.get(ttl_ms, Count()).plus(1, batch.bytes_between(index, index + 1))
    return counts or NO_TTLS


def count_staged(batch: Buffer) -> TtlCounts:
    """The same of a batch as it is stored; only TTLs of messages need a decoded one."""
    return count_ttls(decode(batch, verify=False)) if batch[2] & BatchSection.TTLS else NO_TTLS


def count_row(publish_ms: int, messages: int, payload_bytes: int, ttls: TtlCounts, ttl_ms: int) -> RowCount:
    """The counts of a row that was published at this time, of all of it and by TTL; `ttl_ms` is the topic's."""
    if not ttls:
        return RowCount(publish_ms, messages, payload_bytes)
    own = [Expiry(_rounded(publish_ms + ttl, ttl), *count) for ttl, count in ttls.items() if ttl < ttl_ms]
    messages -= sum(each.messages for each in own)
    payload_bytes -= sum(each.payload_bytes for each in own)
    return RowCount(publish_ms, messages, payload_bytes, OwnExpiry(own).entries())


def _rounded(expire_ms: int, ttl_ms: int) -> int:
    """Up to a multiple of a power of two (or a second), so that few different times need to be kept."""
    step_ms = max(OWN_STEP_MS_MIN, 1 << max(0, (ttl_ms // OWN_STEPS).bit_length() - 1))
    return -(-expire_ms // step_ms) * step_ms


class PartialBucket(NamedTuple):
    """A stretch of publish time, start <= publish_ms < stop (None: to the end), that a sum covers only in part.

    `estimate` is what of it is counted unless it is read: its share by time.
    """

    start_ms: int
    stop_ms: int | None
    estimate: Count
    bucket_bytes: int


class Buckets:
    """Sums by publish time, ascending; rows are added in the topic's order.

    A bucket sums the rows of about an hour, or of `BUCKET_BYTES`, whichever is less. What a reader may still see is the sum
    of the buckets that are young enough as a whole, and of the bucket in which the oldest message lies: its rows are read
    again (`since` says which), and the finer buckets that this gives take its place, so that next time less is read.

    Messages with a TTL of their own are no part of these sums, but of `own_bytes`, until retention removes them: they take space.
    """

    __slots__ = (
        "_bucket_bytes",
        "_bucket_ms",
        "from_ms",
        "messages",
        "newest_ms",
        "own_bytes",
        "payload_bytes",
        "starts",
    )

    def __init__(self, finer: int = 1) -> None:
        self._bucket_ms = BUCKET_MS // finer
        self._bucket_bytes = BUCKET_BYTES // finer
        self.from_ms = 0  # what was published before is not counted
        self.starts = array("q")
        self.messages = array("q")
        self.payload_bytes = array("q")
        self.own_bytes = array("q")
        self.newest_ms = -1

    def __len__(self) -> int:
        return len(self.starts)

    def add(self, publish_ms: int, messages: int, payload_bytes: int, own_bytes: int = 0) -> None:
        """Count a row that is newer than all before it."""
        if not self.starts or (publish_ms > self.newest_ms and self._full(publish_ms)):
            self._append(publish_ms, messages, payload_bytes, own_bytes)
        else:  # rows of one millisecond stay in one bucket
            self.messages[-1] += messages
            self.payload_bytes[-1] += payload_bytes
            self.own_bytes[-1] += own_bytes
        self.newest_ms = publish_ms

    def _full(self, publish_ms: int) -> bool:
        size_bytes = self.payload_bytes[-1] + self.own_bytes[-1]
        return publish_ms - self.starts[-1] >= self._bucket_ms or size_bytes >= self._bucket_bytes

    def _append(self, start_ms: int, messages: int, payload_bytes: int, own_bytes: int) -> None:
        self.starts.append(start_ms)
        self.messages.append(messages)
        self.payload_bytes.append(payload_bytes)
        self.own_bytes.append(own_bytes)
        if len(self.starts) > BUCKETS_MAX:
            self._join_oldest()

    def _join_oldest(self) -> None:
        """Join neighbours, the oldest first, a quarter of all; none of them becomes more than its part of all bytes."""
        sizes = [max(size + own, 0) for size, own in zip(self.payload_bytes, self.own_bytes, strict=True)]
        size_max, left = sum(sizes) // JOINED_FRACTION_MIN, len(self) // 4  # fewer pairs than that can be too large
        index = 0
        while left and index + 1 < len(self):
            if sizes[index] + sizes[index + 1] <= size_max:
                for values in (self.messages, self.payload_bytes, self.own_bytes):
                    values[index : index + 2] = array("q", [values[index] + values[index + 1]])
                del self.starts[index + 1]
                sizes[index : index + 2] = [sizes[index] + sizes[index + 1]]
                left -= 1
                index += 1
            else:
                index += 2

    def subtract(self, counted: RowCount) -> None:
        """A row that was counted is gone."""
        index = bisect_right(self.starts, counted.publish_ms) - 1
        if index >= 0:
            self.messages[index] -= counted.messages
            self.payload_bytes[index] -= counted.payload_bytes
            self.own_bytes[index] -= counted.own_bytes

    def extend(self, newer: Buckets) -> None:
        """Add the sums of rows that are newer than all these."""
        for start_ms, messages, payload_bytes, own_bytes in newer.entries():
            if self.starts and start_ms <= self.newest_ms:
                self.messages[-1] += messages
                self.payload_bytes[-1] += payload_bytes
                self.own_bytes[-1] += own_bytes
            else:
                self._append(start_ms, messages, payload_bytes, own_bytes)
        self.newest_ms = max(self.newest_ms, newer.newest_ms)

    def entries(self) -> list[tuple[int, int, int, int]]:
        """Each bucket: start in ms, messages, their bytes, and the bytes of those with a TTL of their own."""
        return list(zip(self.starts, self.messages, self.payload_bytes, self.own_bytes, strict=True))

    def start_of_newest(self, size_bytes: int) -> int | None:
        """The start of the fewest newest buckets that have at least so many bytes together; None: these are all, or have less."""
        for index in range(len(self.starts) - 1, 0, -1):
            size_bytes -= self.payload_bytes[index] + self.own_bytes[index]
            if size_bytes <= 0:
                return self.starts[index]
        return None

    def start_at(self, publish_ms: int) -> int:
        """The start of the bucket in which a time lies; 0 before all of them."""
        index = bisect_right(self.starts, publish_ms) - 1
        return self.starts[index] if index >= 0 else 0

    def since(self, lower_ms: int) -> tuple[Count, PartialBucket | None]:
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
        return whole, PartialBucket(lower_ms, stop_ms, estimate, bucket.payload_bytes)

    def refine(self, part: PartialBucket, finer: Buckets) -> None:
        """Put what was read of the part in the place of everything before its end."""
        index = len(self.starts) if part.stop_ms is None else bisect_left(self.starts, part.stop_ms)
        for name in ("starts", "messages", "payload_bytes", "own_bytes"):
            getattr(self, name)[:index] = getattr(finer, name)
        self.from_ms = part.start_ms
        while len(self.starts) > BUCKETS_MAX:
            self._join_oldest()

    def drop_before(self, lower_ms: int) -> None:
        """Forget the buckets of which every row was published before `lower_ms`."""
        index = bisect_right(self.starts, lower_ms) - 1
        if index > 0:
            for values in (self.starts, self.messages, self.payload_bytes, self.own_bytes):
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
            self._by_time[expire_ms] = known.plus(sign * messages, sign * payload_bytes)

    def __len__(self) -> int:
        return len(self._by_time)

    def alive(self, now_ms: int) -> Count:
        """The sum of those that have not expired; the others are forgotten."""
        for expire_ms in [time for time, count in self._by_time.items() if time <= now_ms or not any(count)]:
            del self._by_time[expire_ms]
        counts = self._by_time.values()
        messages, payload_bytes = sum(count.messages for count in counts), sum(count.payload_bytes for count in counts)
        return Count(max(messages, 0), max(payload_bytes, 0))  # estimates may be less than what is removed of them

    def scale(self, part: int, whole: int) -> int:
        """Take so much of all of them; the time by which the last of them expires."""
        passed = taken = Count()
        for expire_ms, count in self._by_time.items():
            passed = passed.plus(*count)
            share = Count(*(each * part // max(whole, 1) for each in passed))
            self._by_time[expire_ms] = share.plus(-taken.messages, -taken.payload_bytes)
            taken = share
        return max(self._by_time, default=0)

    def entries(self) -> tuple[Expiry, ...]:
        """All that is counted, by time."""
        return tuple(Expiry(expire_ms, *self._by_time[expire_ms]) for expire_ms in sorted(self._by_time))


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
        if slot > self._newest:
            for passed in range(max(self._newest + 1, slot - RECENT_SLOTS + 1), slot + 1):
                self._slots[passed % RECENT_SLOTS] = 0
            self._newest = slot


class Block(NamedTuple):
    """The messages with after < id <= through (20 bytes; `after` may be empty), as readers of committed messages see them.

    It holds while from_ms <= now < until_ms, for messages may have a TTL of their own, and as long as `skipped` are invalid.
    """

    after: bytes
    through: bytes
    messages: int = 0
    payload_bytes: int = 0
    marker_summary: MarkerState = NOTHING_KNOWN
    skipped: frozenset[int] = frozenset()
    from_ms: int = 0
    until_ms: int = FOREVER_MS

    def joined(self, later: Block) -> Block:
        """This block and the one that follows it, as one."""
        assert self.through == later.after, (self.through, later.after)
        has_markers = bool(later.marker_summary.tasks)
        return Block(
            self.after,
            later.through,
            self.messages + later.messages,
            self.payload_bytes + later.payload_bytes,
            merged(self.marker_summary, later.marker_summary) if has_markers else self.marker_summary,
            self.skipped | later.skipped,
            max(self.from_ms, later.from_ms),
            min(self.until_ms, later.until_ms),
        )

    def can_merge(self, later: Block) -> bool:
        """True when this block and the one that follows it are together small enough for one block."""
        return (
            self.messages + later.messages <= BLOCK_MESSAGES
            and self.payload_bytes + later.payload_bytes <= BLOCK_BYTES
            and len(self.skipped) + len(later.skipped) <= BLOCK_SKIPPED_MAX
        )

    def is_valid(self, now_ms: int, invalid: InvalidList) -> bool:
        """True while reading would find the same: no message has expired, and all `skipped` are still invalid."""
        return self.from_ms <= now_ms < self.until_ms and all(pointer in invalid for pointer in self.skipped)

    @property
    def entries(self) -> int:
        """The number of entries that it counts as: one, and more for what tasks said and the writers that it skips."""
        return 1 + len(self.marker_summary.tasks) + len(self.skipped) // SKIPPED_PER_ENTRY


class Blocks:
    """The blocks of a topic, ascending; between them may be gaps.

    Each is about as long as `BLOCK_MESSAGES` or `BLOCK_BYTES`, whichever is less, and begins and ends anywhere, so also within
    a row that refers to a million stored messages.
    """

    __slots__ = ("_afters", "_blocks", "entries")

    def __init__(self) -> None:
        self.entries = 0
        self._afters: list[bytes] = []
        self._blocks: list[Block] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def at(self, after: bytes) -> Block | None:
        """The block that begins right behind this id."""
        index = bisect_right(self._afters, after) - 1
        return self._blocks[index] if index >= 0 and self._afters[index] == after else None

    def bound(self, after: bytes, end: bytes) -> bytes:
        """Up to where at most to read from here: the end of the block in which this id lies, or the begin of the next."""
        index = bisect_right(self._afters, after)
        if index and after < self._blocks[index - 1].through:
            return min(end, self._blocks[index - 1].through)
        return min(end, self._afters[index]) if index < len(self._afters) else end

    def add(self, block: Block) -> None:
        """Remember this block; it is ignored where it overlaps one that is kept."""
        index = bisect_right(self._afters, block.after)
        if block.after >= block.through or (index and block.after < self._blocks[index - 1].through):
            return
        if index < len(self._blocks) and self._afters[index] < block.through:
            return
        previous = self._blocks[index - 1] if index else None
        if previous is not None and previous.through == block.after and previous.can_merge(block):
            block = previous.joined(block)
            self._put(index - 1, index, block)
        else:
            self._put(index, index, block)
        if self.entries > BLOCK_ENTRIES_MAX:
            self._join_pairs()

    def split(self, block: Block, at: bytes, messages: int, payload_bytes: int) -> None:
        """Split a block at an id, given what lies before it; a part that would be too small is not worth a block."""
        index = bisect_right(self._afters, block.after) - 1
        rest, rest_bytes = block.messages - messages, block.payload_bytes - payload_bytes
        is_small = (
            min(messages, rest) * SPLIT_FRACTION_MIN < BLOCK_MESSAGES
            and min(payload_bytes, rest_bytes) * SPLIT_FRACTION_MIN < BLOCK_BYTES
        )
        if is_small or block.marker_summary.tasks or index < 0 or self._blocks[index] is not block:
            return
        first = block._replace(through=at, messages=messages, payload_bytes=payload_bytes)
        second = block._replace(after=at, messages=rest, payload_bytes=rest_bytes)
        self._put(index, index + 1, first, second)

    def drop(self, block: Block) -> None:
        """Forget this block: it is out of date."""
        index = bisect_right(self._afters, block.after) - 1
        if index >= 0 and self._blocks[index] is block:
            self._put(index, index + 1)

    def drop_before(self, floor: bytes) -> None:
        """Forget the blocks that begin before this id: some of their messages may have expired."""
        index = bisect_left(self._afters, floor)
        if index:
            self._put(0, index)

    def _put(self, start: int, stop: int, *blocks: Block) -> None:
        self.entries += sum(block.entries for block in blocks) - sum(each.entries for each in self._blocks[start:stop])
        self._blocks[start:stop] = blocks
        self._afters[start:stop] = [block.after for block in blocks]

    def _join_pairs(self) -> None:
        """Half as many blocks, twice as long, so that what is known reaches as far as before."""
        joined: list[Block] = []
        is_single = False  # the last of these is one block, and not two
        for block in self._blocks:
            if is_single and joined[-1].through == block.after:
                joined[-1], is_single = joined[-1].joined(block), False
            else:
                joined.append(block)
                is_single = True
        if sum(block.entries for block in joined) > BLOCK_ENTRIES_MAX * 3 // 4:  # there are gaps everywhere
            joined = joined[len(joined) // 2 :]
        self._put(0, len(self._blocks), *joined)


class SavedIndex(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sums of everything up to position `counted_to` (hex) and not published before `from_ms`.

    Each bucket: start in ms, messages, their bytes, bytes of those with a TTL of their own. Nothing in `own` was published before
    `truncated_ms`; until `estimated_until_ms` how much of it was is an estimate.
    """

    generation: int
    counted_to: str
    from_ms: int
    newest_ms: int
    buckets: list[tuple[int, int, int, int]]
    own: list[Expiry]
    truncated_ms: int = 0
    estimated_until_ms: int = 0


SAVED = SystemRecord("index", "", SavedIndex)  # by the topic's prefix


class TopicIndex:
    """The index of one generation of a topic, kept up to date by its log.

    Its buckets are incomplete until what was counted before this process began, and rows that no saved sum covers, are
    added in front of what was appended since.
    """

    __slots__ = (
        "blocks", "buckets", "changed_ms", "complete", "counted_to", "estimated_until_ms", "first", "gone_before_ms", "own",
        "recent", "removals", "truncated_ms", "ttl_ms", "unsaved_bytes",
    )  # fmt: skip

    def __init__(self, ttl_ms: int, truncated_ms: int = 0) -> None:
        self.ttl_ms = ttl_ms  # under which the blocks were read
        self.truncated_ms = truncated_ms  # the topic was truncated before: no message in `own` is older
        self.estimated_until_ms = 0  # nobody counted the messages in `own`, that expire by then, since the truncation
        self.blocks = Blocks()
        self.buckets = Buckets()
        self.own = OwnExpiry()
        self.recent = Recent()
        self.counted_to = b""  # the position of the newest row that is counted
        self.first = b""  # while incomplete: the position of the oldest message that was appended since
        self.complete = False
        self.gone_before_ms = 0  # everything published before was removed
        self.removals = 0
        self.changed_ms: int | None = None  # when they changed first since they were saved
        self.unsaved_bytes = 0

    def observe(self, where: bytes, counted: RowCount, now_ms: int, first: bytes = b"") -> None:
        """A row at this position became durable; `first` is that of its first message, where it has several."""
        if where <= self.counted_to:  # it was read before we were told
            return
        self.first = self.first or first or where
        self.add(where, counted)
        messages = counted.messages
        if counted.own:
            messages += sum(expiry.messages for expiry in counted.own)
        self.recent.add(now_ms, messages)
        self.changed_ms = now_ms if self.changed_ms is None else self.changed_ms
        self.unsaved_bytes += counted.payload_bytes

    def add(self, where: bytes, counted: RowCount) -> None:
        """Count a row that is newer than all before it."""
        self.counted_to = where
        own_bytes = counted.own_bytes if counted.own else 0
        self.buckets.add(counted.publish_ms, counted.messages, counted.payload_bytes, own_bytes)
        if counted.own and counted.publish_ms >= self.truncated_ms:
            self.own.add(counted.own)

    def complete_with(self, older: TopicIndex) -> None:
        """Add the counts of all rows older than those that were appended since."""
        older.buckets.extend(self.buckets)
        self.buckets = older.buckets
        self.own.add(older.own.entries())
        self.estimated_until_ms = max(self.estimated_until_ms, older.estimated_until_ms)
        self.counted_to = max(self.counted_to, older.counted_to)
        self.expired(max(self.gone_before_ms, older.gone_before_ms))
        self.complete = True

    def remove(self, where: bytes, counted: RowCount) -> None:
        """The row at this position is gone."""
        if where <= self.counted_to:
            self.buckets.subtract(counted)
            if counted.publish_ms >= self.truncated_ms:
                self.own.add(counted.own, -1)
            self.removals += 1

    def under(self, ttl_ms: int, truncated_ms: int) -> TopicIndex:
        """The index of the topic with this TTL, truncated before this time.

        Blocks that were read under another TTL are forgotten: what expired under it may be gone.
        """
        if ttl_ms != self.ttl_ms:
            self.ttl_ms, self.blocks = ttl_ms, Blocks()
        if truncated_ms <= self.truncated_ms:
            return self
        if self.complete and self.truncate(truncated_ms):
            return self
        anew = TopicIndex(ttl_ms, truncated_ms)
        anew.recent, anew.blocks = self.recent, self.blocks
        return anew

    def truncate(self, before_ms: int) -> bool:
        """Leave out what was published before; False where what is left is to be read instead.

        Buckets tell what is older. Of messages with a TTL of their own nobody knows: they are read, or, where that is much, the part of
        them that is left is estimated by their bytes.
        """
        if self.own:
            left = [entry for entry in self.buckets.entries() if entry[0] >= self.buckets.start_at(before_ms)]
            if sum(size + own_bytes for _, _, size, own_bytes in left) <= RECOUNT_BYTES_MAX:
                return False
            part, whole = sum(own_bytes for *_, own_bytes in left), sum(self.buckets.own_bytes)
            self.estimated_until_ms = self.own.scale(part, whole)
        self.truncated_ms = before_ms
        return True

    def expired(self, before_ms: int) -> None:
        """All rows published before this time are gone."""
        self.gone_before_ms = max(self.gone_before_ms, before_ms)
        self.buckets.drop_before(self.gone_before_ms)

    def to_save(self, generation: int) -> SavedIndex:
        """The sums as the system table keeps them; they count as saved."""
        self.changed_ms, self.unsaved_bytes = None, 0
        kept = self.buckets
        return SavedIndex(
            generation, self.counted_to.hex(), kept.from_ms, kept.newest_ms, kept.entries(), list(self.own.entries()),
            self.truncated_ms, self.estimated_until_ms,
        )  # fmt: skip

    @classmethod
    def of(cls, saved: SavedIndex, ttl_ms: int) -> TopicIndex:
        """The index that was saved."""
        index = cls(ttl_ms, saved.truncated_ms)
        index.counted_to = bytes.fromhex(saved.counted_to)
        index.own.add(saved.own)
        index.estimated_until_ms = saved.estimated_until_ms
        buckets = index.buckets
        buckets.from_ms, buckets.newest_ms = saved.from_ms, saved.newest_ms
        columns = (buckets.starts, buckets.messages, buckets.payload_bytes, buckets.own_bytes)
        for bucket in saved.buckets:
            for values, value in zip(columns, bucket, strict=True):
                values.append(value)
        return index
