"""Facts about stretches of a topic that need no reading: the number of messages, their bytes, what the markers said.

Pure, and only in memory: readers of ranges fill it as they go. Blocks are about as long as `BLOCK_MESSAGES` or `BLOCK_BYTES`, whichever is
less, and begin and end anywhere, so also within a row that refers to a million stored messages. Only what is
settled gets in, so a block goes wrong in two ways alone, and it says itself when: messages expire, and an operator makes
the manager forget a failed writer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import NamedTuple

from basalt.api.markers import NOTHING_KNOWN, MarkerState, merged
from basalt.messaging.log.topic_log import TopicLog
from basalt_engine.snapshot import InvalidList

BLOCK_MESSAGES = 4_096
BLOCK_BYTES = 4 << 20
CRUMB = 16  # a part of a block that is less than one in so many is no block of its own
BLOCK_SKIPPED_MAX = 64  # failed writers whose rows a block passes over; each is looked up whenever the block is used
SKIPPED_PER_ENTRY = 4  # that take as much memory as a block without any
TOPIC_ENTRIES_MAX = 16_384  # 67 million small messages; beyond, neighbours are joined in pairs. Some 300 bytes each
ENTRIES_MAX = 131_072  # of all topics together: 40 MB; the topics that were least recently used go
FOREVER_MS = (1 << 63) - 1


class Block(NamedTuple):
    """The messages with after < id <= through (20 bytes; `after` may be empty), as readers of committed messages see them.

    It holds while from_ms <= now < until_ms, for messages may have a TTL of their own, and as long as `skipped` are invalid.
    """

    after: bytes
    through: bytes
    messages: int = 0
    payload_bytes: int = 0
    said: MarkerState = NOTHING_KNOWN
    skipped: frozenset[int] = frozenset()
    from_ms: int = 0
    until_ms: int = FOREVER_MS

    def joined(self, later: Block) -> Block:
        """This block and the one that follows it, as one."""
        assert self.through == later.after, (self.through, later.after)
        return Block(
            self.after,
            later.through,
            self.messages + later.messages,
            self.payload_bytes + later.payload_bytes,
            merged(self.said, later.said) if later.said.tasks else self.said,
            self.skipped | later.skipped,
            max(self.from_ms, later.from_ms),
            min(self.until_ms, later.until_ms),
        )

    def takes(self, later: Block) -> bool:
        """True when this block and the one that follows it are together small enough for one block."""
        return (
            self.messages + later.messages <= BLOCK_MESSAGES
            and self.payload_bytes + later.payload_bytes <= BLOCK_BYTES
            and len(self.skipped) + len(later.skipped) <= BLOCK_SKIPPED_MAX
        )

    def holds(self, now_ms: int, invalid: InvalidList) -> bool:
        """True while reading would find the same: no message has expired, and all `skipped` are still invalid."""
        return self.from_ms <= now_ms < self.until_ms and all(pointer in invalid for pointer in self.skipped)

    @property
    def entries(self) -> int:
        """The number of entries that it counts as: one, and more for what tasks said and the writers that it skips."""
        return 1 + len(self.said.tasks) + len(self.skipped) // SKIPPED_PER_ENTRY


class TopicIndex:
    """The blocks of one generation of a topic, ascending; between them may be gaps."""

    __slots__ = ("_afters", "_blocks", "entries", "ttl_ms")

    def __init__(self, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms
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
        """Know this stretch; nothing changes where a part of it is known already."""
        index = bisect_right(self._afters, block.after)
        if block.after >= block.through or (index and block.after < self._blocks[index - 1].through):
            return
        if index < len(self._blocks) and self._afters[index] < block.through:
            return
        previous = self._blocks[index - 1] if index else None
        if previous is not None and previous.through == block.after and previous.takes(block):
            block = previous.joined(block)
            self._put(index - 1, index, block)
        else:
            self._put(index, index, block)
        if self.entries > TOPIC_ENTRIES_MAX:
            self._join_pairs()

    def split(self, block: Block, at: bytes, messages: int, payload_bytes: int) -> None:
        """It was read up to an id, and so much was there: what is left of it need not be read any more. Not for crumbs."""
        index = bisect_right(self._afters, block.after) - 1
        rest, rest_bytes = block.messages - messages, block.payload_bytes - payload_bytes
        is_crumb = min(messages, rest) * CRUMB < BLOCK_MESSAGES and min(payload_bytes, rest_bytes) * CRUMB < BLOCK_BYTES
        if is_crumb or block.said.tasks or index < 0 or self._blocks[index] is not block:
            return
        first = block._replace(through=at, messages=messages, payload_bytes=payload_bytes)
        second = block._replace(after=at, messages=rest, payload_bytes=rest_bytes)
        self._put(index, index + 1, first, second)

    def drop(self, block: Block) -> None:
        """It does not hold any more."""
        index = bisect_right(self._afters, block.after) - 1
        if index >= 0 and self._blocks[index] is block:
            self._put(index, index + 1)

    def drop_before(self, floor: bytes) -> None:
        """Forget the blocks that begin before this id: some of their messages may have expired."""
        index = bisect_right(self._afters, floor)
        while index and self._afters[index - 1] >= floor:
            index -= 1
        if index:
            self._put(0, index)

    def _put(self, start: int, stop: int, *blocks: Block) -> None:
        self.entries += sum(block.entries for block in blocks) - sum(each.entries for each in self._blocks[start:stop])
        self._blocks[start:stop] = blocks
        self._afters[start:stop] = [block.after for block in blocks]

    def _join_pairs(self) -> None:
        """Half as many blocks, twice as long, so that what is known reaches as far as before."""
        joined: list[Block] = []
        index = 0
        while index < len(self._blocks):
            block = self._blocks[index]
            if index + 1 < len(self._blocks) and self._blocks[index + 1].after == block.through:
                index += 1
                block = block.joined(self._blocks[index])
            joined.append(block)
            index += 1
        if sum(block.entries for block in joined) > TOPIC_ENTRIES_MAX * 3 // 4:  # there are gaps everywhere
            joined = joined[len(joined) // 2 :]
        self._put(0, len(self._blocks), *joined)


class SparseIndex:
    """The indexes of the topics that were used last; each is kept with its log."""

    def __init__(self) -> None:
        self.entries = 0
        self._counted: OrderedDict[TopicLog, int] = OrderedDict()  # entries of each, the least recently used first

    def of(self, log: TopicLog) -> TopicIndex:
        """The topic's index; what was learnt under another TTL is forgotten, for what expired under it may be gone."""
        found: TopicIndex | None = log.index
        if found is None or found.ttl_ms != log.topic.ttl_ms:
            for gone in [each for each in self._counted if each.index is None]:  # deleted, or out of memory
                self._forget(gone)
            self._forget(log)
            found = log.index = TopicIndex(log.topic.ttl_ms)
        log.memory.touch_details(log)
        return found

    def settle(self, log: TopicLog) -> None:
        """The topic's index has changed: keep all of them together within the limit."""
        found: TopicIndex | None = log.index
        if found is None:  # it was deleted meanwhile, or has left memory
            self._forget(log)
            return
        self.entries += found.entries + 1 - self._counted.get(log, 0)  # one for the topic itself
        self._counted[log] = found.entries + 1
        self._counted.move_to_end(log)
        while self.entries > ENTRIES_MAX and len(self._counted) > 1:
            self._forget(next(iter(self._counted)))

    def forget_all(self) -> None:
        """Writers that had been decided about were decided about anew."""
        for log in list(self._counted):
            self._forget(log)

    def _forget(self, log: TopicLog) -> None:
        """Nobody needs the index of this topic."""
        log.index = None
        self.entries -= self._counted.pop(log, 0)

    def __len__(self) -> int:
        return len(self._counted)
