"""Payloads that writers stage in a topic ahead of their transaction's commit, and how a reference publishes them.

A writer's staged payloads in a topic form one sequence. A reference publishes those that no earlier reference did; what
is published never changes. What is known of a writer is kept in memory and can be read again from the payload table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from basalt.catalog.topics import Topic, TopicName
from basalt.errors import SequenceGapError
from basalt.messaging.index import NO_TTLS, TtlCounts, count_staged, count_ttls
from basalt.messaging.log import stored_log
from basalt.messaging.log.append import Placed, before_one_millisecond, last_of, placed_cuts, places
from basalt.messaging.log.staged_writers import StagedWriter, StagedWriters
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.rows_in_doubt import RowsInDoubt
from basalt.runtime.group_commit import Group, NextGroupError, NotLoadedError, Phase
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.keys import position, position_fields, topic_prefix
from basalt_engine.messages import POSITION_BYTES, MessageTable, Reference
from basalt_engine.payloads import PayloadRow, PayloadTable
from basalt_engine.records import Buffer, Extras, decode, encode, uncompressed_bytes
from basalt_engine.snapshot import POINTER_MAX
from basalt_engine.stores.shards import shard_of
from basalt_engine.system import SystemTable
from basalt_engine.table import Put, Store

LAST_POSITION = b"\xff" * (POSITION_BYTES - 1) + b"\xfe"  # of payload rows: what comes after it is the writer's note

WriterOfLog = tuple[tuple[bytes, int], int]  # a generation of a topic, and a write pointer
Wanted = Mapping[TopicLog, Collection[int]]  # writers, by topic


class GroupWriters:
    """The writers that one group changes, each with its log."""

    def __init__(self, staged: StagedPayloads, writers: StagedWriters) -> None:
        self._staged = staged
        self._writers = writers
        self._changed: dict[StagedWriter, TopicLog] = {}
        self._rows: dict[WriterOfLog, list[bytes]] = {}

    def has(self, log: TopicLog, write_pointer: int) -> bool:
        """True when the group stores something under the pointer already."""
        return (log.topic.keys.generation_key, write_pointer) in self._rows

    def stored(self, log: TopicLog, write_pointer: int, key: bytes) -> None:
        """The group writes this payload row."""
        self._rows.setdefault((log.topic.keys.generation_key, write_pointer), []).append(key)

    def add(self, log: TopicLog, writer: StagedWriter) -> None:
        """The group changes what the writer has staged."""
        if writer not in self._changed:
            self._changed[writer] = log
            self._writers.pin(writer)
            log.memory.pin(log)

    def closing(self, group: Group) -> None:
        """Their rows are in the group already."""

    def durable(self) -> None:
        self._landed()

    def failed(self) -> None:
        for writer in self._changed:  # what it has staged is only to be learnt from the store now
            self._writers.evict(writer)
        ended = {log.topic.keys.generation_key for log in self._changed.values() if log.ended}
        self._staged.doubt({writer: keys for writer, keys in self._rows.items() if writer[0] not in ended})
        self._landed()

    def _landed(self) -> None:
        for writer, log in self._changed.items():
            self._writers.unpin(writer)
            log.memory.unpin(log)


class StagedPayloads:
    """All writers' staged payloads. All but `ready` and `hold` is called from stages of the group commit."""

    def __init__(self, store: Store, clock: Clock, writers: StagedWriters) -> None:
        self._table = PayloadTable(store.table(PayloadTable.name))
        self._messages = MessageTable.of(store)
        self._system = SystemTable(store.table(SystemTable.name))
        self._atomic = store.atomic
        self._store_drops = store.applies_retention
        self._clock = clock
        self._call = StoreCalls(store)
        self._writers = writers
        # Keys of rows whose write failed, and may still take effect later: decided about before the writer is read again.
        self._unconfirmed: dict[WriterOfLog, list[bytes]] = {}
        self._rows_in_doubt = RowsInDoubt(store, PayloadTable.name)

    # Loading.

    async def ready(self, log: TopicLog, write_pointers: Collection[int]) -> None:
        """Read what these writers have staged, as far as this process does not know it yet, before a stage needs it."""
        await self.hold({log: self.missing(log, write_pointers)})

    async def hold(self, wanted: Wanted, *, pinned: bool = False) -> Callable[[], None]:
        """Read what these writers have staged. With `pinned` they stay in memory until the caller calls what is returned."""
        held: list[StagedWriter] = []
        try:
            for log, pointers in wanted.items():
                if log.unconfirmed and pointers:
                    await log.confirm_or_delete()  # what is published goes by which references there are
                async with log.locks.staging:
                    for pointer in pointers:
                        writer = self._kept(log, pointer)
                        if writer is None and pointer <= self._unknown_up_to(log):
                            await self._confirm_or_delete(log.topic, pointer)
                            writer = self._keep(log, await self._read(log.topic, pointer))
                        if pinned and writer is not None:
                            self._writers.pin(writer)
                            held.append(writer)
        except BaseException:
            self._release(held)
            raise
        return partial(self._release, held)

    def writers_in(self, log: TopicLog, places: Mapping[int, int]) -> list[int]:
        """Those of these writers, which are mapped to their places, that may have staged something in the log.

        In the order of their places. Costs no more than the smaller of what is asked for and what is kept of the log.
        """
        if min(places, default=POINTER_MAX) <= self._unknown_up_to(log):
            return list(places)  # only the store knows what older ones have
        return [] if log.staged is None else sorted(places.keys() & log.staged.keys(), key=places.__getitem__)

    def missing(self, log: TopicLog, write_pointers: Collection[int]) -> list[int]:
        """Of these writers those of which only the store knows what they have staged."""
        unknown_up_to = self._unknown_up_to(log)
        if min(write_pointers, default=POINTER_MAX) > unknown_up_to:
            return []
        kept = log.staged or {}
        return [pointer for pointer in write_pointers if pointer <= unknown_up_to and pointer not in kept]

    def require(self, wanted: Wanted) -> None:
        """In a stage, before it changes anything: `NotLoadedError` when something of these writers is not in memory."""
        missing = {log: pointers for log, given in wanted.items() if (pointers := self.missing(log, given))}
        if missing:
            raise NotLoadedError(partial(self.hold, missing, pinned=True))

    # What stages do.

    def store(
        self, group: Group, log: TopicLog, write_pointer: int, payloads: Sequence[Buffer],
        extras: Sequence[Extras] | None = None,
    ) -> None:  # fmt: skip
        """Keep messages aside, after what the writer staged before, which is in memory. Cannot fail."""
        writer, topic = self._change(group, log, write_pointer), log.topic
        part = self._part(group)
        ranges = places(writer.newest, group.now_ms, len(payloads))
        for ms, last, messages, theirs, cut in placed_cuts(ranges, payloads, extras):
            where, batch = position(ms, last), encode(messages, theirs)
            if not self._atomic:
                part.stored(log, write_pointer, topic.keys.payload_key(write_pointer, ms, last))
            group.add_late(PayloadTable.name, partial(_packed, log, topic, write_pointer, where, batch))
            writer.add(where, cut.stop - cut.start, cut.payload_bytes, count_staged(batch))
        writer.newest = last_of(ranges)

    def already(self, group: Group, log: TopicLog, write_pointer: int, before: int, count: int) -> int:
        """Count those of the next `count` messages that are stored already: the caller says how many were stored `before` them.

        Changes nothing; what the writer stored is in memory. `SequenceGapError`.
        """
        writer = self._known(log, write_pointer)
        stored = 0 if writer is None else writer.messages
        if not before <= stored <= before + count:
            raise SequenceGapError(
                f"write pointer {write_pointer} has {stored} messages stored and not published in the topic, and the call follows"
                f" {before}",
                hint="send what lies between first, or say how many were stored before in Basalt-Stored-Before",
            )
        if stored < before + count and not self._atomic:
            if self._part(group).has(log, write_pointer):
                raise NextGroupError  # of two rows that are written at once, the second could be there without the first
            if writer is not None:
                writer.newest = before_one_millisecond(writer.newest, group.now_ms, count)
        return stored - before

    def unpublished(self, log: TopicLog, write_pointer: int) -> Reference | None:
        """The reference that publishes all that the writer staged since the last one; None when there is nothing."""
        writer = self._known(log, write_pointer)
        if writer is None or writer.first is None:
            return None
        return Reference(writer.first, writer.last, writer.messages)

    def unpublished_counts(self, log: TopicLog, write_pointer: int) -> tuple[int, TtlCounts | None]:
        """The bytes of the payloads that the writer's next reference would publish, and which have a TTL of their own."""
        writer = self._known(log, write_pointer)
        return (0, NO_TTLS) if writer is None else (writer.payload_bytes, writer.own_ttls)

    def in_memory(self, log: TopicLog, write_pointer: int) -> tuple[int, int] | None:
        """The number and bytes of the messages that the writer has staged and not published; None: not in memory."""
        writer = self._kept(log, write_pointer)
        return None if writer is None else (writer.messages, writer.payload_bytes)

    def publish_up_to(
        self, group: Group, log: TopicLog, write_pointer: int, reference: Reference, placed: Placed
    ) -> None:
        """Note that a reference, placed there, publishes the staged payloads, so that no later one does.

        Where the two are not one batch, the note is durable before the reference, and holds only once that is.
        """
        writer = self._change(group, log, write_pointer)
        at = None if self._atomic else placed.end
        note = PayloadTable.bind(log.topic.keys, write_pointer, reference.last, writer.published_to, at)
        group.add(PayloadTable.name, note, phase=Phase.BEFORE)
        writer.publish(reference.last)
        writer.announced = at

    def confirm(self, group: Group, log: TopicLog, write_pointer: int, at: bytes) -> None:
        """Write down what the writer has published, for the reference at this position is about to be rolled back.

        The store may drop the reference at any time then, and what it published must not count as unpublished. The writer
        is in memory.
        """
        writer = self._known(log, write_pointer)
        if writer is not None and writer.announced == at:
            self._change(group, log, write_pointer)
            note = PayloadTable.confirm(log.topic.keys, write_pointer)
            group.add(PayloadTable.name, note, phase=Phase.BEFORE)
            writer.announced = None

    def remove_unpublished(self, group: Group, log: TopicLog, write_pointer: int) -> None:
        """Delete what no reference publishes; what one does goes when its message row goes."""
        reference = self.unpublished(log, write_pointer)
        if reference is None:
            return
        writer = self._change(group, log, write_pointer)
        # The note stays: without it, a second try after a crash would take all that is published for unpublished.
        rows = PayloadTable.remove_between(log.topic.keys, write_pointer, reference.first, reference.last)
        group.add(PayloadTable.name, rows)
        self._writers.forget(writer)

    # Memory.

    def _release(self, held: Iterable[StagedWriter]) -> None:
        for writer in held:
            self._writers.unpin(writer)

    def _kept(self, log: TopicLog, write_pointer: int) -> StagedWriter | None:
        return None if log.staged is None else log.staged.get(write_pointer)

    def _keep(self, log: TopicLog, writer: StagedWriter) -> StagedWriter:
        if log.staged is None:
            log.staged = {}
        self._writers.keep(log.staged, writer)
        return writer

    def _unknown_up_to(self, log: TopicLog) -> int:
        """Of writers up to this pointer that are not kept only the store knows what they have staged in the log."""
        return max(self._writers.unknown_up_to, log.unknown_up_to)

    def _known(self, log: TopicLog, write_pointer: int) -> StagedWriter | None:
        """The writer's entry; None when it has staged nothing. `NotLoadedError` when only the store can tell."""
        writer = self._kept(log, write_pointer)
        if writer is not None:
            self._writers.touch(writer)
        elif write_pointer <= self._unknown_up_to(log):
            raise NotLoadedError(partial(self.hold, {log: [write_pointer]}, pinned=True))
        return writer

    def _change(self, group: Group, log: TopicLog, write_pointer: int) -> StagedWriter:
        writer = self._known(log, write_pointer) or self._keep(log, StagedWriter(write_pointer))
        self._part(group).add(log, writer)
        return writer

    def _part(self, group: Group) -> GroupWriters:
        return group.part(self, lambda: GroupWriters(self, self._writers))

    def doubt(self, rows: Mapping[WriterOfLog, Sequence[bytes]]) -> None:
        """The write of these rows failed."""
        for writer, keys in rows.items():
            self._unconfirmed.setdefault(writer, []).extend(keys)

    def in_doubt(self, shards: Collection[int]) -> bool:
        """True when rows of these shards may take effect late."""
        return any(shard_of(prefix) in shards for (prefix, _), _ in self._unconfirmed)

    async def confirm_or_delete(self, shards: Collection[int]) -> None:
        """Decide about rows in doubt of these shards."""
        for key in [key for key in self._unconfirmed if shard_of(key[0][0]) in shards]:
            await self._decide(key)

    def forget_doubts(self, shards: Collection[int]) -> None:
        """Another server has these shards: it decides by what it reads."""
        for writer in [writer for writer in self._unconfirmed if shard_of(writer[0][0]) in shards]:
            self._rows_in_doubt.forget(self._unconfirmed.pop(writer))

    async def _confirm_or_delete(self, topic: Topic, write_pointer: int) -> None:
        await self._decide((topic.keys.generation_key, write_pointer))

    async def _decide(self, key: WriterOfLog) -> None:
        rows = self._unconfirmed.get(key)
        if rows:
            decided = tuple(rows)
            await self._rows_in_doubt.decide(decided)
            del rows[: len(decided)]  # a later group may have failed meanwhile
            if not rows and self._unconfirmed.get(key) is rows:
                del self._unconfirmed[key]  # the topic may have ended meanwhile

    def end_topic(self, title: TopicName) -> None:
        """Forget the rows in doubt of a topic that is no more: nobody reads them again, and retention removes what comes."""
        prefix = topic_prefix(*title)
        for writer in [writer for writer in self._unconfirmed if writer[0][0] == prefix]:
            self._rows_in_doubt.forget(self._unconfirmed.pop(writer))

    # Reading.

    async def _read(self, topic: Topic, write_pointer: int) -> StagedWriter:
        """Read the writer from the store, a page at a time: it may have staged more than fits into memory."""
        published_to, announced = await self._call(self._read_note, topic, write_pointer)
        writer = StagedWriter(write_pointer, published_to)
        writer.announced = announced
        start: bytes | None = b"" if writer.published_to is None else writer.published_to + b"\0"
        while start is not None:
            found, start = await self._call(self._read_page, topic, write_pointer, start)
            for row in found:
                writer.add(*row)
            await asyncio.sleep(0)
        return writer

    def _read_note(self, topic: Topic, write_pointer: int) -> tuple[bytes | None, bytes | None]:
        announced: list[bytes] = []

        def was_written(at: bytes) -> bool:
            written = self._was_written(topic, at)
            announced.extend([at] if written else [])
            return written

        published_to, _ = self._table.unbound(topic.keys, write_pointer, was_written)
        return published_to, announced[0] if announced else None

    def _read_page(
        self, topic: Topic, write_pointer: int, start: bytes
    ) -> tuple[list[tuple[bytes, int, int, TtlCounts]], bytes | None]:
        """Return position and counts of the first rows from a position on; and where there may be more."""
        stored = self._table.scan(topic.keys, write_pointer, start, LAST_POSITION)
        rows, rest = stored_log.first_rows(stored, lambda row: uncompressed_bytes(row.batch))
        batches = ((row.position, decode(row.batch, verify=False)) for row in rows)
        return [(where, batch.count, batch.payload_bytes, count_ttls(batch)) for where, batch in batches], rest

    def _was_written(self, topic: Topic, at: bytes) -> bool:
        """True if a message row was ever at this position; one that has expired published its payloads all the same.

        Where the store drops expired rows itself, nobody notes which. Then a row that would have expired by now counts as
        one that was there: its payloads would have expired with it, and must not be published under a later time.
        """
        if self._messages.first(topic.read_keys, at, at + b"\0") is not None:
            return True
        publish_ms = position_fields(at)[0]
        if self._store_drops and publish_ms + topic.metadata.ttl_ms <= self._clock.now_ms():
            return True
        return publish_ms < stored_log.expired_before_ms(self._system, topic)


def _packed(log: TopicLog, topic: Topic, write_pointer: int, where: bytes, batch: bytes) -> Put:
    """The mutation that stores the batch, packed."""
    return PayloadTable.put(topic.keys, write_pointer, PayloadRow(where, log.packing.stored(batch, topic.compression)))
