"""Compression of what is stored: batches of topics that ask for it, and of others where it pays.

Compressed bytes are fewer for the store to copy, check and sync, and for a remote one to send; so a topic whose batches
shrink is compressed unless its property `compression` says `none`. Batches that do not shrink must cost next to nothing: a
small piece of one is tried first, and after one that did not shrink some go by untried. Format: docs/formats/record-batch.md.

A remote store counts the bytes that it has. Where batches are compressed, or messages small, a page's worth of them brings many
pages, and all rows behind the first are read in vain; so the rows of one look say how much to ask for at the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from basalt.catalog.topics import Topic
from basalt.runtime.group_commit import Group
from basalt_engine.messages import ROW_BYTES_MAX, MessageRow, MessageTable
from basalt_engine.records import Compression, compressed, compressed_share, count_messages, uncompressed_bytes
from basalt_engine.table import Put

TRIED_BYTES_MIN = 16 << 10  # smaller batches cost little anyway, and a reader of many of them would unpack each
SAMPLE_BYTES = 4 << 10  # tried first, in some microseconds
SHARE_MAX = 0.75  # of its bytes, that a batch takes when compressed; else it is stored as it is
UNTRIED_BATCHES = 32  # that follow one which did not shrink
LEARNT_MESSAGES_MIN = 500  # fewer say little of those to come


class Packed(NamedTuple):
    """A batch as it is to be stored, and how many of the log's batches to come are not to be tried."""

    batch: bytes
    untried: int


class StoredSize:
    """The rows of one log that were looked at last."""

    __slots__ = ("messages", "rows", "stored_bytes", "whole_bytes")

    def __init__(self) -> None:
        self.rows = self.messages = 0
        self.stored_bytes = self.whole_bytes = 0  # as they are in the store, and uncompressed

    def counted(self, rows: Iterable[MessageRow]) -> Iterator[MessageRow]:
        """The same rows, each counted as it passes."""
        for row in rows:
            if row.batch is not None:
                self.rows += 1
                self.messages += count_messages(row.batch)
                self.stored_bytes += len(row.batch)
                self.whole_bytes += uncompressed_bytes(row.batch)
            yield row

    def bytes_for(self, messages: int, bytes_max: int) -> int:
        """The stored bytes that make a page of so many messages or bytes, the row in which it ends included."""
        if self.messages < LEARNT_MESSAGES_MIN:
            return bytes_max + ROW_BYTES_MAX
        share = min(bytes_max / self.whole_bytes, messages / self.messages)
        return min(bytes_max + ROW_BYTES_MAX, int(self.stored_bytes * share + self.stored_bytes / self.rows) + 1)


class Packing:
    """The memory of one log of what its batches were like. `read`: those that the last look at a remote store brought."""

    __slots__ = ("read", "untried")

    def __init__(self) -> None:
        self.untried = 0
        self.read: StoredSize | None = None

    def add(self, group: Group, topic: Topic, row: MessageRow) -> None:
        """Write the log's next row with the group. One that may be compressed is packed only then: some megabytes take milliseconds."""
        batch = row.batch
        if batch is None or (len(batch) < TRIED_BYTES_MIN and topic.compression is not Compression.ZSTD):
            group.add(MessageTable.name, MessageTable.put(topic.keys, row))
        else:
            group.add_late(MessageTable.name, partial(self._put, topic, row, batch))

    def _put(self, topic: Topic, row: MessageRow, batch: bytes) -> Put:
        return MessageTable.put(topic.keys, row._replace(batch=self.stored(batch, topic.compression)))

    def stored(self, batch: bytes, compression: Compression | None) -> bytes:
        """The log's next batch as it is to be stored; on the thread that writes it."""
        stored, self.untried = packed(batch, compression, self.untried)
        return stored


def packed(batch: bytes, compression: Compression | None, untried: int) -> Packed:
    """The batch of a topic with this property (None: what pays), of whose batches so many are not to be tried now."""
    if compression is not None:
        return Packed(compressed(batch) if compression else batch, 0)
    if len(batch) < TRIED_BYTES_MIN:
        return Packed(batch, untried)
    if untried:
        return Packed(batch, untried - 1)
    if compressed_share(batch, SAMPLE_BYTES) <= SHARE_MAX:
        smaller = compressed(batch)
        if len(smaller) <= SHARE_MAX * len(batch):
            return Packed(smaller, 0)
    return Packed(batch, UNTRIED_BATCHES)
