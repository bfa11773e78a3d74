"""Payloads stored ahead of their transaction's commit, and how a reference binds them.

A writer's stored payloads in a topic form one sequence. A reference publishes those that no earlier reference did; what
is bound never changes. What is known of a writer is kept in memory and can be read again from the payload table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from basalt.catalog.topics import Topic
from basalt.messaging.log import log_bounds as removed
from basalt.messaging.log.append import Placed, cuts
from basalt.messaging.log.positions import NEVER, Stamp, after, places
from basalt.messaging.log.recent_entries import RecentEntries
from basalt.messaging.log.tail import TopicKey
from basalt.runtime.group_commit import Group, Phase
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.keys import position, position_fields
from basalt_engine.messages import MessageTable, Reference
from basalt_engine.payloads import PayloadRow, PayloadTable
from basalt_engine.records import Buffer, Extras, decode, encode
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

POINTER_MAX = (1 << 63) - 1
WRITERS_MAX = 100_000  # (topic, writer) pairs kept in memory; beyond, the least recently used is read again

WriterKey = tuple[TopicKey, int]


@dataclass(slots=True)
class _Writer:
    """What one writer has stored in one topic: its newest place, and the rows that no reference binds yet."""

    stamp: Stamp = NEVER
    first: bytes | None = None
    last: bytes = b""
    messages: int = 0
    payload_bytes: int = 0
    bound: bytes | None = None  # up to where references publish its payloads
    announced: bytes | None = None  # where the message row is that the bound relies on


class _Changed:
    """The writers that one group changes."""

    def __init__(self, stored: StoredPayloads) -> None:
        self._stored = stored

    def closing(self, group: Group) -> None:
        """Their rows are in the group already."""

    def durable(self) -> None:
        self._stored.landed()

    def failed(self) -> None:
        self._stored.landed()


class StoredPayloads:
    """All writers' stored payloads. All but `ready` is called from stages of the group commit."""

    def __init__(self, store: Store, clock: Clock, *, writers_max: int = WRITERS_MAX) -> None:
        self._table = PayloadTable(store.table(PayloadTable.name))
        self._messages = MessageTable(store.table(MessageTable.name))
        self._system = SystemTable(store.table(SystemTable.name))
        self._atomic = store.atomic
        self._vanish = store.applies_retention
        self._clock = clock
        self._call = StoreCalls(store)
        self._writers: RecentEntries[WriterKey, _Writer] = RecentEntries(writers_max)
        self._of_topic: dict[TopicKey, set[int]] = {}  # the writers of `_writers`, by topic
        self._known_after = POINTER_MAX  # who writes under a later pointer and is not kept here has stored nothing

    def recovered(self, last_pointer: int) -> None:
        """Pointers after this one are handed out from now on, so all that they store comes through here."""
        self._known_after = last_pointer

    async def ready(self, topic: Topic, write_pointer: int) -> None:
        """Read what the writer has stored, if this process does not know it yet, before a stage needs it."""
        key = (topic.keys[:2], write_pointer)
        if key not in self._writers and write_pointer <= self._known_after:
            await self._writers.load(key, lambda: self._call(self._read, topic, write_pointer))
            self._of_topic.setdefault(key[0], set()).add(write_pointer)
            self.evict(keep=key)

    def landed(self) -> None:
        """The group is durable, or has failed: the store knows what its writers have stored."""
        self._writers.unpin_all()
        self.evict()

    def evict(self, keep: WriterKey | None = None) -> None:
        """Forget the least recently used writers beyond the limit."""
        for topic, write_pointer in self._writers.evict(keep):
            self._drop_from_topic(topic, write_pointer)
            self._known_after = max(self._known_after, write_pointer)

    def store(
        self, group: Group, topic: Topic, write_pointer: int, payloads: Sequence[Buffer],
        extras: Sequence[Extras] | None = None,
    ) -> None:  # fmt: skip
        """Keep messages aside, after what the writer stored before. Cannot fail."""
        writer = self._changed(group, topic, write_pointer)
        runs = places(writer.stamp, group.now_ms, len(payloads))
        at = 0
        for run in runs:
            stop = at + run.stop - run.start
            messages, carried = payloads[at:stop], None if extras is None else extras[at:stop]
            at = stop
            for cut in cuts(messages, carried):
                where = position(run.ms, run.start + cut.stop - 1)
                theirs = None if carried is None else carried[cut.start : cut.stop]
                batch = encode(messages[cut.start : cut.stop], theirs, compression=topic.compression)
                group.add(PayloadTable.name, PayloadTable.put(topic.keys, write_pointer, PayloadRow(where, batch)))
                writer.first = writer.first or where
                writer.last = where
        writer.messages += len(payloads)
        writer.payload_bytes += sum(map(len, payloads))
        writer.stamp = after(runs)

    def unbound(self, topic: Topic, write_pointer: int) -> Reference | None:
        """What the writer's next reference would publish; None when it stored nothing since the last one."""
        if write_pointer > self._known_after and (topic.keys[:2], write_pointer) not in self._writers:
            return None  # nothing is kept of the many that store nothing in a topic
        writer = self._writer(topic, write_pointer)
        return None if writer.first is None else Reference(writer.first, writer.last, writer.messages)

    def unbound_bytes(self, topic: Topic, write_pointer: int) -> int:
        """The bytes of the payloads that the writer's next reference would publish."""
        return self._writer(topic, write_pointer).payload_bytes

    def in_memory(self, topic: TopicKey, write_pointer: int) -> tuple[int, int] | None:
        """How many messages, of how many bytes, the writer has stored and not published; None when only the store knows."""
        writer = self._writers.get((topic, write_pointer))
        return None if writer is None else (writer.messages, writer.payload_bytes)

    def bind(self, group: Group, topic: Topic, write_pointer: int, reference: Reference, placed: Placed) -> None:
        """Note that a reference, placed there, publishes the stored payloads, so that no later one does.

        Where the two are not one batch, the note is durable before the reference, and holds only once that is.
        """
        writer = self._changed(group, topic, write_pointer)
        at = None if self._atomic else position(placed.end_ms, placed.end_sequence)
        note = PayloadTable.bind(topic.keys, write_pointer, reference.last, writer.bound, at)
        group.add(PayloadTable.name, note, phase=Phase.INTENT)
        writer.first, writer.messages, writer.payload_bytes, writer.bound = None, 0, 0, reference.last
        writer.announced = at

    def confirm(self, group: Group, topic: Topic, write_pointer: int, at: bytes) -> None:
        """The reference at this position is about to be rolled back, after which the store may drop it at any time.

        What it published must not count as unbound then. The writer is ready.
        """
        writer = self._writer(topic, write_pointer)
        if writer.announced == at:
            self._changed(group, topic, write_pointer)
            group.add(PayloadTable.name, PayloadTable.confirm(topic.keys, write_pointer), phase=Phase.INTENT)
            writer.announced = None

    def remove_unbound(self, group: Group, topic: Topic, write_pointer: int) -> None:
        """Delete what no reference publishes; what one does goes when its message row goes."""
        reference = self.unbound(topic, write_pointer)
        if reference is None:
            return
        # The bound row stays: without it, a second try after a crash would take all that is published for unbound.
        rows = PayloadTable.remove_between(topic.keys, write_pointer, reference.first, reference.last)
        group.add(PayloadTable.name, rows)
        group.when_failed(lambda: self._doubt(topic.keys[:2], write_pointer))
        self.forget(topic.keys[:2], write_pointer)

    def forget(self, topic: TopicKey, write_pointer: int) -> None:
        """Drop from memory what is known of a writer."""
        self._writers.pop((topic, write_pointer))
        self._drop_from_topic(topic, write_pointer)

    def writers_in(self, topic: TopicKey, places: Mapping[int, int]) -> list[int]:
        """Those of these write pointers, which are mapped to their places, that may have stored something in the topic.

        In the order of their places. Costs no more than the smaller of what is asked for and what is kept of the topic.
        """
        if min(places, default=POINTER_MAX) <= self._known_after:
            return list(places)  # only the store knows what older ones have
        return sorted(places.keys() & self._of_topic.get(topic, set()), key=places.__getitem__)

    def _drop_from_topic(self, topic: TopicKey, write_pointer: int) -> None:
        kept = self._of_topic.get(topic)
        if kept is not None:
            kept.discard(write_pointer)
            if not kept:
                del self._of_topic[topic]

    def _doubt(self, topic: TopicKey, write_pointer: int) -> None:
        """What the writer has stored is only to be learnt from the store now."""
        self.forget(topic, write_pointer)
        self._known_after = max(self._known_after, write_pointer)

    def _writer(self, topic: Topic, write_pointer: int) -> _Writer:
        key = (topic.keys[:2], write_pointer)
        writer = self._writers.get(key)
        if writer is None:
            writer = self._read(topic, write_pointer) if write_pointer <= self._known_after else _Writer()
        self._writers.put(key, writer)
        self._of_topic.setdefault(key[0], set()).add(write_pointer)
        return writer

    def _changed(self, group: Group, topic: Topic, write_pointer: int) -> _Writer:
        """The writer, which this group changes."""
        key, writer = (topic.keys[:2], write_pointer), self._writer(topic, write_pointer)
        group.part(self, lambda: _Changed(self))
        group.when_failed(lambda: self._doubt(*key))
        self._writers.pin(key, writer)
        return writer

    def _was_written(self, topic: Topic, at: bytes) -> bool:
        """Whether the topic has, or had, a message row at this position: one that expired has published all the same.

        Where the store drops expired rows itself, nobody notes which. Then a row that would have expired by now counts as
        one that was there: its payloads would have expired with it, and must not be published under a later time.
        """
        if self._messages.first(topic.read_keys, at, at + b"\0") is not None:
            return True
        publish_ms = position_fields(at)[0]
        if self._vanish and publish_ms + topic.ttl_ms <= self._clock.now_ms():
            return True
        return publish_ms < removed.expired_before_ms(self._system, topic)

    def _read(self, topic: Topic, write_pointer: int) -> _Writer:
        announced: list[bytes] = []

        def was_written(at: bytes) -> bool:
            written = self._was_written(topic, at)
            announced.extend([at] if written else [])
            return written

        bound, rows = self._table.unbound(topic.keys, write_pointer, was_written)
        writer = _Writer(NEVER if bound is None else Stamp(*position_fields(bound)), bound=bound)
        writer.announced = announced[0] if announced else None
        for row in rows:
            writer.first = writer.first or row.position
            writer.last = row.position
            batch = decode(row.batch, verify=False)
            writer.messages += batch.count
            writer.payload_bytes += batch.payload_bytes
            writer.stamp = Stamp(*position_fields(row.position))
        return writer
