"""A log as the store has it: its rows, a page at a time, and the notes about what its rows cannot tell.

The notes are entries of the system table (docs/formats/system-table.md), written together with the removal that they tell of:
- the end (`newest`) is the newest place that was ever given out: a row that is gone cannot tell it after a restart, and a
  place that was given out once must never be given out again;
- the last numbers of producers up to a place (`producers`), as `basalt.messaging.producers` keeps them; no later than a topic's
  first row with numbers;
- what the markers said up to a place (`markers`), as `basalt.messaging.markers` keeps it; no later than a topic's first marker;
- the start (`expired`) is the time before which everything is gone: sums from before a removal leave that out.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from itertools import groupby
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from basalt.catalog.topics import Topic
from basalt.messaging.index import RowCount, count_batch
from basalt.runtime.group_commit import Group, Phase
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.keys import TopicKeys, position_fields
from basalt_engine.messages import MessageRow, MessageTable
from basalt_engine.payloads import PayloadRow, PayloadTable
from basalt_engine.records import Buffer, decode, uncompressed_bytes
from basalt_engine.system import SystemRecord, SystemTable

PAGE_ROWS = 256
PAGE_BYTES = 2 << 20  # a page with payloads is read in a few milliseconds

RowT = TypeVar("RowT", MessageRow, PayloadRow)


class LogPage(NamedTuple):
    """Some rows of a range; `rest` is the position from which there may be more, None when these are the last."""

    rows: list[MessageRow]
    rest: bytes | None


async def pages(
    call: StoreCalls, messages: MessageTable, keys: TopicKeys, start: bytes = b"", stop: bytes | None = None
) -> AsyncGenerator[list[MessageRow], None]:
    """Rows with start <= position < stop, in pages that are not empty, so that others get their turn in between.

    It ends when a read has found nothing more. Rows that are written meanwhile may be among them, or not.
    """
    while rows := (await call(read_page, messages, keys, start, stop)).rows:
        yield rows
        start = rows[-1].position + b"\0"
        await asyncio.sleep(0)


def read_page(
    messages: MessageTable, keys: TopicKeys, start: bytes, stop: bytes | None, rows_max: float = math.inf
) -> LogPage:
    """The first rows with start <= position < stop."""
    return LogPage(*first_rows(messages.scan(keys, start, stop), lambda row: row.size_bytes, rows_max))


def first_rows(
    rows: Iterable[RowT], size_bytes: Callable[[RowT], int], rows_max: float = math.inf
) -> tuple[list[RowT], bytes | None]:
    """As many of these rows as make a page, or `rows_max` of them, and the position from which there may be more; None when these are all."""
    found: list[RowT] = []
    found_bytes = 0
    for row in rows:
        found.append(row)
        found_bytes += size_bytes(row)
        if len(found) >= min(PAGE_ROWS, rows_max) or found_bytes >= PAGE_BYTES:
            return found, row.position + b"\0"
    return found, None


async def counted(
    call: StoreCalls, payloads: PayloadTable, topic: Topic, rows: Iterable[MessageRow]
) -> AsyncGenerator[tuple[MessageRow, RowCount], None]:
    """Each row with the count of its messages.

    A row that refers to payload rows comes several times, each time with the count of one of these: a transaction may have
    stored more than fits into memory, so they are read a page at a time.
    """
    for is_reference, some in groupby(rows, lambda row: row.batch is None):
        if not is_reference:
            for inline in await call.about(topic.keys, _count_inline, list(some), topic.metadata.ttl_ms):
                yield inline
            continue
        for row in some:
            first: bytes | None = b""
            while first is not None:
                counts, first = await call.about(topic.keys, _count_payloads, payloads, topic, row, first)
                for each in counts:
                    yield row, each
                await asyncio.sleep(0)


def _count_inline(rows: list[MessageRow], ttl_ms: int) -> list[tuple[MessageRow, RowCount]]:
    return [(row, _count(row, row.batch or b"", ttl_ms)) for row in rows]


def _count_payloads(
    payloads: PayloadTable, topic: Topic, row: MessageRow, first: bytes
) -> tuple[list[RowCount], bytes | None]:
    assert row.reference is not None
    assert row.written_by is not None
    start, last, _ = row.reference
    stored = payloads.scan(topic.keys, abs(row.written_by), max(start, first), last)
    found, rest = first_rows(stored, lambda each: uncompressed_bytes(each.batch))
    return [_count(row, each.batch, topic.metadata.ttl_ms) for each in found], rest


def _count(row: MessageRow, batch: Buffer, ttl_ms: int) -> RowCount:
    return count_batch(position_fields(row.position)[0], decode(batch, verify=False), ttl_ms)


# The start and the end of the log.


class TopicEntry(Protocol):
    """An entry of the system table about one generation of a topic, by the topic's prefix."""

    @property
    def generation(self) -> int:
        """The generation that it is about."""
        ...


class LogEnd(msgspec.Struct, frozen=True):
    """No place up to this position (hex) is given out again in this generation."""

    generation: int
    position: str


class LogStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every row of this generation that was published before this time is gone.

    `last` is the position (hex) of the newest one that was there to be removed; None where nobody looked.
    """

    generation: int
    before_ms: int
    last: str | None = None


class SavedMarkers(msgspec.Struct, frozen=True):
    """The state of a generation's markers up to a position (hex). Each task: watermark, whether it ended, when it spoke last."""

    generation: int
    position: str
    task_count: int | None
    tasks: dict[str, tuple[int | None, bool, int]]


class SavedProducers(msgspec.Struct, frozen=True):
    """The producers of a generation up to a position (hex), by name: last number, epoch, time of the last use, run of a named one."""

    generation: int
    position: str
    producers: dict[str, tuple[int, int, int, str]]


EntryT = TypeVar("EntryT", bound=TopicEntry)
NEWEST = SystemRecord("newest", "", LogEnd)
# The same, noted in the lane of the log: of two writes of one row that are under way at once, the older one could come last.
NEWEST_OF_FAILED = SystemRecord("newest-of-failed", "", LogEnd)
EXPIRED = SystemRecord("expired", "", LogStart)
MARKERS = SystemRecord("markers", "", SavedMarkers)
PRODUCERS = SystemRecord("producers", "", SavedProducers)


def entry_name(prefix: bytes) -> str:
    """Under which name a topic's entries lie in the system table: its prefix, so that both sort alike."""
    return prefix.decode("ascii")


def read_entry(record: SystemRecord[EntryT], system: SystemTable, topic: Topic) -> EntryT | None:
    """The topic's entry of this kind; None when there is none, or only one of another generation."""
    entry = record.get(system, entry_name(topic.keys.prefix))
    return None if entry is None or entry.generation != topic.generation else entry


def put_entry(
    group: Group, record: SystemRecord[EntryT], topic: Topic, entry: EntryT, phase: Phase = Phase.ROWS
) -> None:
    """Write the topic's entry of this kind with the group."""
    group.add_late(SystemTable.name, partial(record.put, entry, entry_name(topic.keys.prefix)), phase)


def note_newest(group: Group, topic: Topic, newest: bytes, record: SystemRecord[LogEnd] = NEWEST) -> None:
    """Write, with the group that removes rows and no later than they go, the newest place that was given out."""
    put_entry(group, record, topic, LogEnd(topic.generation, newest.hex()), Phase.BEFORE)


def note_expired(group: Group, topic: Topic, before_ms: int, last: bytes) -> None:
    """Write, with the group that removes them, that all rows published before this time are gone, and which was the last."""
    put_entry(group, EXPIRED, topic, LogStart(topic.generation, before_ms, last.hex()), Phase.AFTER)


def forget(group: Group, prefix: bytes) -> None:
    """The topic is no more."""
    for record in (NEWEST, NEWEST_OF_FAILED, EXPIRED):
        group.add(SystemTable.name, record.delete(entry_name(prefix)))


def newest(system: SystemTable, topic: Topic) -> bytes:
    """The newest place that was given out when rows were last removed; empty when none ever were."""
    found = (read_entry(record, system, topic) for record in (NEWEST, NEWEST_OF_FAILED))
    return max([b"", *(bytes.fromhex(entry.position) for entry in found if entry is not None)])


def expired(system: SystemTable, topic: Topic) -> LogStart | None:
    """The note about the rows of this generation that the TTL has taken; None when none ever went."""
    return read_entry(EXPIRED, system, topic)


def expired_before_ms(system: SystemTable, topic: Topic) -> int:
    """The time before which every row is gone; 0 when none was ever removed."""
    found = expired(system, topic)
    return 0 if found is None else found.before_ms
