"""One way through a range of a topic, counting what a reader sees of it, up to limits. Known stretches are not read.

What lies between two ids is the same whoever walks there and how often: the blocks of the sparse index are sums of what
reading finds, and where a limit falls into a block, it is read. A walk never holds up the event loop: it reads a page at a
time, and gives others their turn in between.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from basalt.api.markers import NOTHING_KNOWN, MarkerState, apply, merged
from basalt.errors import InternalError
from basalt.messaging.index import (
    BLOCK_BYTES,
    BLOCK_MESSAGES,
    BLOCK_SKIPPED_MAX,
    FOREVER_MS,
    Block,
    Blocks,
)
from basalt.messaging.log.stored_log import PAGE_BYTES, PAGE_ROWS, Page, read_page
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.read.fetch import Limits, Slice, Start, end_of, marker_of
from basalt.messaging.read.log_reads import LogReads
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.messages import MessageRow
from basalt_engine.payloads import PayloadRow
from basalt_engine.records import Kind, decode
from basalt_engine.snapshot import NO_INVALID, TransactionSnapshot, Visibility

MESSAGE_WEIGHT_BYTES = 64  # what a message costs a reader beside its payload, roughly: many small ones are work too
READ_ROWS_MAX = 100_000  # that one walk reads at most; half a second where they are small,
READ_BYTES_MAX = 256 << 20  # or where they are large
SKIPS_MAX = 500  # known blocks that are passed before others get their turn: a millisecond or two
NO_LIMIT = 1 << 62


class Bounds(NamedTuple):
    """The most that a walk takes: messages, bytes of their payloads, and the weight of both together."""

    messages: int = NO_LIMIT
    payload_bytes: int = NO_LIMIT
    weight: int = NO_LIMIT


def weight(messages: int, payload_bytes: int) -> int:
    """The cost of reading these messages, in bytes: their payloads, and `MESSAGE_WEIGHT_BYTES` for each."""
    return payload_bytes + MESSAGE_WEIGHT_BYTES * messages


class Tally:
    """The sum of all that was taken so far, against the bounds of the walk."""

    __slots__ = ("_bounds", "messages", "payload_bytes", "said")

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.messages = 0
        self.payload_bytes = 0
        self.said: MarkerState = NOTHING_KNOWN

    def admits(self, block: Block) -> bool:
        """True when the whole block can be taken within the bounds."""
        messages, payload_bytes = self.messages + block.messages, self.payload_bytes + block.payload_bytes
        bounds = self._bounds
        return (
            messages <= bounds.messages
            and payload_bytes <= bounds.payload_bytes
            and weight(messages, payload_bytes) <= bounds.weight
        )

    def add(self, messages: int, payload_bytes: int) -> None:
        """Take these."""
        self.messages += messages
        self.payload_bytes += payload_bytes

    def cut(self, part: Slice) -> Slice:
        """As many of these messages as can be taken: the first of all whatever its size."""
        bounds, least = self._bounds, 0 if self.messages else 1
        part = part.up_to(bounds.messages - self.messages, bounds.payload_bytes - self.payload_bytes, least)
        left = bounds.weight - weight(self.messages, self.payload_bytes)
        if weight(part.count, part.payload_bytes) <= left:
            return part
        start = part.start

        def so_far(count: int) -> int:
            return weight(count, part.batch.bytes_between(start, start + count))

        return part.up_to(max(least, bisect_right(range(part.count + 1), left, key=so_far) - 1), NO_LIMIT, least)


class _Fresh:
    """The block in the making: rows that were read behind `after` and are not in the index yet."""

    __slots__ = ("after", "from_ms", "messages", "payload_bytes", "said", "skipped", "until_ms")

    def __init__(self, after: bytes) -> None:
        self.after = after
        self.messages = 0
        self.payload_bytes = 0
        self.said: MarkerState = NOTHING_KNOWN
        self.skipped: set[int] = set()
        self.from_ms = 0
        self.until_ms = FOREVER_MS

    @property
    def is_full(self) -> bool:
        return (
            self.messages >= BLOCK_MESSAGES
            or self.payload_bytes >= BLOCK_BYTES
            or len(self.skipped) >= BLOCK_SKIPPED_MAX
        )

    def block(self, through: bytes) -> Block:
        return Block(
            self.after, through, self.messages, self.payload_bytes, self.said, frozenset(self.skipped),
            self.from_ms, self.until_ms,
        )  # fmt: skip


class Walk:
    """A walk from behind an id on. `snapshot` is that of the stable end up to which it goes; None sees everything."""

    def __init__(
        self, call: StoreCalls, reads: LogReads, log: TopicLog, snapshot: TransactionSnapshot | None, now_ms: int,
        index: Blocks | None, after: bytes, bounds: Bounds,
    ) -> None:  # fmt: skip
        self._call = call
        self._reads = reads
        self._log = log
        self._snapshot = snapshot
        self._now_ms = now_ms
        self._index = index
        self.at = after  # what lies up to here was passed
        self.tally = Tally(bounds)
        self.is_full = False
        self.is_tired = False  # it has read as much as one call should
        self.read_rows = 0
        self.read_bytes = 0
        self._fresh = _Fresh(after)

    async def to(self, end: bytes) -> None:
        """Go on up to this id, or until a limit is reached."""
        skipped = 0
        while self.at < end and not self.is_full and not self.is_tired:
            known = self._known()
            if known is not None and known.through <= end and self.tally.admits(known):
                self._skip(known)
                skipped += 1
                if skipped % SKIPS_MAX == 0:
                    await asyncio.sleep(0)
                continue
            messages, payload_bytes = self.tally.messages, self.tally.payload_bytes
            await self._read(end if self._index is None else self._index.bound(self.at, end))
            if self._index is not None and known is not None and known.after < self.at < known.through:
                read, read_bytes = self.tally.messages - messages, self.tally.payload_bytes - payload_bytes
                self._index.split(known, self.at, read, read_bytes)

    def rest(self) -> None:
        """It may read as much again."""
        self.read_rows = self.read_bytes = 0
        self.is_tired = False

    def _known(self) -> Block | None:
        """The block that begins here, if one is known that still holds."""
        block = None if self._index is None else self._index.at(self.at)
        if block is None or self._index is None:
            return None
        if not block.is_valid(self._now_ms, NO_INVALID if self._snapshot is None else self._snapshot.invalid):
            self._index.drop(block)
            return None
        return block

    def _skip(self, block: Block) -> None:
        """Take all of the block."""
        self.tally.add(block.messages, block.payload_bytes)
        self.tally.said = merged(self.tally.said, block.marker_summary)
        self.at = block.through

    async def _read(self, end: bytes) -> None:
        """Read what lies up to this id."""
        self._fresh, bound = _Fresh(self.at), Limits(NO_LIMIT, NO_LIMIT, 0, end)
        try:
            async with aclosing(self._pages(end)) as pages:
                async for page, verify in pages:
                    for row in page:
                        if bound.end_before(row):
                            break
                        await self._row(row, end, verify)
                        if self.is_full or self.is_tired:
                            return
            self.at = end
        finally:
            self._learn()

    async def _pages(self, end: bytes) -> AsyncGenerator[tuple[Sequence[MessageRow], bool], None]:
        """The rows up to that of this id, from the tail or the store; and whether their checksums need a look."""
        # A row lies at its last message, so the one in which the range ends may lie behind that, within the millisecond.
        start, stop = Start(self.at, False).position, end[:8] + b"\xff\xff\0"
        while start < stop:
            cached = self._log.memory.tails.rows(self._log.tail, start, PAGE_ROWS)
            verify = cached is None
            if cached is None:
                page = await self._call(read_page, self._reads.messages, self._log.topic.read_keys, start, stop)
            else:
                page = cut_page(cached, stop)
            rows, rest = page
            if rows:
                yield rows, verify
            if rest is None:
                return
            start = rest
            await asyncio.sleep(0)

    async def _row(self, row: MessageRow, end: bytes, verify: bool) -> None:
        self.read_rows += 1
        self.read_bytes += row.size_bytes
        start = Start(self.at, False)
        seen = Visibility.VISIBLE if self._snapshot is None else self._snapshot.judge(row.written_by)
        if seen is Visibility.HOLD:
            raise InternalError(f"row {row.key.hex()} is undecided, and lies before the stable end of its topic")
        if start.is_past(row):
            pass
        elif seen is Visibility.SKIP:
            if row.written_by is not None and row.written_by > 0:
                self._fresh.skipped.add(row.written_by)
        elif row.batch is not None:
            self._batch(row, row.batch, end, verify)
        else:
            await self._reference(start.within(row), end)
        if not self.is_full and not self.is_tired:
            self._pass(min(end_of(row.position), end))

    def _batch(self, row: MessageRow, data: bytes, end: bytes, verify: bool) -> None:
        batch = decode(data, verify=verify)
        if batch.kind is Kind.USER:
            self._slice(Slice(row, batch, 0, batch.count, None), end)
        elif self._snapshot is not None or row.written_by is None or row.written_by > 0:
            marker, publish_ms = marker_of(row), int.from_bytes(row.position[:8], "big")
            self.tally.said = apply(self.tally.said, marker, publish_ms)
            self._fresh.said = apply(self._fresh.said, marker, publish_ms)

    async def _reference(self, row: MessageRow, end: bytes) -> None:
        """The stored messages behind a reference, which may be a million: read a page at a time."""
        assert row.reference is not None
        first: bytes | None = row.reference.first
        while first is not None:
            found, first = await self._call.about(self._log.topic.read_keys, self._stored, row, first)
            for stored in found:
                batch = decode(stored.batch)
                self.read_bytes += len(stored.batch)
                self._slice(Slice(row, batch, 0, batch.count, stored.position), end)
                if self.is_full:
                    return
                self._pass(min(row.position + stored.position, end))
                if self.at == end or self.is_tired:
                    return
            await asyncio.sleep(0)

    def _stored(self, row: MessageRow, first: bytes) -> tuple[list[PayloadRow], bytes | None]:
        """Some payload rows of a reference, and where there may be more."""
        assert row.reference is not None
        assert row.written_by is not None
        found: list[PayloadRow] = []
        size_bytes = 0
        rows = self._reads.payloads.scan(self._log.topic.keys, abs(row.written_by), first, row.reference.last)
        for stored in rows:
            found.append(stored)
            size_bytes += len(stored.batch)
            if size_bytes >= PAGE_BYTES or len(found) >= PAGE_ROWS:
                return found, stored.position + b"\0"
        return found, None

    def _slice(self, whole: Slice, end: bytes) -> None:
        """Take the messages behind `at`, up to `end`, that have not expired, as far as the limits go."""
        self._note_expiry(whole)
        for part in whole.after(self.at, False).through(end).unexpired(self._now_ms):
            taken = self.tally.cut(part)
            self.tally.add(taken.count, taken.payload_bytes)
            self._fresh.messages += taken.count
            self._fresh.payload_bytes += taken.payload_bytes
            if taken.stop < part.stop:
                # Whatever was read or skipped on the way here, the walk ends right before what did not fit.
                self.at = before_id(part.after(taken.last_id(), False).first_id() if taken.count else part.first_id())
                self.is_full = True
                return
            self.at = part.last_id()

    def _note_expiry(self, whole: Slice) -> None:
        """A message with a TTL of its own counts only for a while."""
        ttls = whole.batch.ttls_ms()
        for ttl_ms in set(ttls or ()) - {0}:
            expire_ms = whole.publish_ms + ttl_ms
            if expire_ms > self._now_ms:
                self._fresh.until_ms = min(self._fresh.until_ms, expire_ms)
            else:
                self._fresh.from_ms = max(self._fresh.from_ms, expire_ms)

    def _pass(self, through: bytes) -> None:
        """Everything up to this id is counted."""
        self.at = through
        self.is_tired = self.read_rows > READ_ROWS_MAX or self.read_bytes > READ_BYTES_MAX
        if self._fresh.is_full:
            self._learn()

    def _learn(self) -> None:
        if self._index is not None:
            self._index.add(self._fresh.block(self.at))
        self._fresh = _Fresh(self.at)


def before_id(message_id: bytes) -> bytes:
    """The last id before this one; empty when there is none."""
    number = int.from_bytes(message_id, "big")
    return (number - 1).to_bytes(len(message_id), "big") if number else b""


def cut_page(rows: Sequence[MessageRow], stop: bytes) -> Page:
    """A page of those of these rows that lie before a position."""
    size_bytes = 0
    for index, row in enumerate(rows):
        size_bytes += row.size_bytes
        if row.position >= stop:
            return Page(list(rows[:index]), None)
        if size_bytes >= PAGE_BYTES:
            return Page(list(rows[: index + 1]), row.position + b"\0")
    return Page(list(rows), rows[-1].position + b"\0" if rows else None)
