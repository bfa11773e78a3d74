"""Stored payloads against a model: what a writer's next reference publishes, after failures and restarts too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.catalog.topics import Topics, topic_name
from basalt.messaging.log import append as appender
from basalt.messaging.log import stored_log
from basalt.messaging.log.append import Placed
from basalt.messaging.log.topic_log import LogLimits, TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.runtime.group_commit import Group, GroupCommit
from basalt_engine.clock import ManualClock
from basalt_engine.errors import RetryError, StoreError
from basalt_engine.keys import position
from basalt_engine.messages import MessageRow, MessageTable, Reference
from basalt_engine.metadata import TopicMetadata
from basalt_engine.payloads import PayloadTable
from basalt_engine.records import decode
from basalt_engine.retention import OnInvalid
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import DeleteRange, TableWrite

WRITERS = (1_000_000_001, 1_000_000_002)


class FailingStore(MemoryStore):
    """Fails writes when told to. `made`: after it has made them; `half`: makes the first of a group and no other."""

    def __init__(self, atomic: bool = True) -> None:
        super().__init__(atomic)
        self.fails: str | None = None

    def write(self, writes: Sequence[TableWrite]) -> None:
        if self.fails != "refused":
            super().write(writes)
        if self.fails == "half":
            self.fails = "refused"
        elif self.fails is not None:
            raise StoreError(self.fails)


@dataclass
class Writer:
    """What one writer has stored in one topic, as a model."""

    unpublished: list[bytes] = field(default_factory=list)
    published: list[tuple[Reference, list[bytes]]] = field(default_factory=list)


class Scene:
    """Stored payloads over a store, beside the model."""

    def __init__(self, atomic: bool = True, writers_max: int = 100) -> None:
        self.store = FailingStore(atomic)
        self.writers_max = writers_max
        self.clock = ManualClock(1_000)
        self.writer = GroupCommit(self.store, self.clock)
        self.restart()
        self.table = PayloadTable(self.store.table(PayloadTable.name))
        self.model = {(topic, writer): Writer() for topic in range(2) for writer in WRITERS}
        self.number = 0
        self.references = 0

    def restart(self) -> None:
        catalog = Topics(self.store, self.clock, 16)
        metadata = TopicMetadata(1, 60_000, OnInvalid.DROP, 1, 1, 0, 0, {})
        topics = [catalog.at(topic_name("shop", name), metadata) for name in ("orders", "invoices")]
        logs = TopicLogs(self.store, self.clock, catalog, tail_bytes_max=0, limits=LogLimits(writers=self.writers_max))
        self.payloads = logs.staged
        self.logs = [TopicLog(topic, logs._read_end(topic), logs.memory) for topic in topics]

    async def write(self, topic: int, writer: int, count: int, size: int, fails: str | None) -> None:
        """Store messages; on a failure the model believes what the store holds."""
        self.number += 1
        messages = [b"%d.%d" % (self.number, at) + bytes(size) for at in range(count)]
        self.store.fails = fails
        try:
            await self.writer.run(lambda group: self.stage_store(group, topic, writer, messages))
        except RetryError:
            pass
        self.store.fails = None
        if fails != "refused":
            self.model[topic, writer].unpublished += messages

    async def publish(self, topic: int, writer: int, fails: str | None) -> None:
        """Bind what is unbound, as a reference does that is written with it."""
        model = self.model[topic, writer]

        def stage(group: Group) -> Reference | None:
            reference = self.payloads.unpublished(self.logs[topic], writer)
            if reference is not None:
                self.references += 1
                row = MessageRow(position(1, self.references), writer, None, reference)
                group.add(MessageTable.name, MessageTable.put(self.logs[topic].topic.keys, row))
                placed = Placed(1, self.references, 1, self.references)
                self.payloads.publish_up_to(group, self.logs[topic], writer, reference, placed)
            return reference

        reference = await self.unpublished(topic, writer)
        assert (reference is None) == (not model.unpublished)
        self.store.fails = fails
        try:
            await self.writer.run(stage)
        except RetryError:
            pass
        self.store.fails = None
        written = fails is None or (self.store.atomic and fails != "refused")  # else the bound row at most
        if reference is not None and written:
            model.published.append((reference, model.unpublished))
            model.unpublished = []

    async def abort(self, topic: int, writer: int) -> None:
        """Remove what no reference publishes."""
        await self.writer.run(lambda group: self.payloads.remove_unpublished(group, self.logs[topic], writer))
        self.model[topic, writer].unpublished = []

    def read(self, log: TopicLog, writer: int, reference: Reference) -> list[bytes]:
        rows = self.table.scan(log.topic.keys, writer, reference.first, reference.last)
        return [bytes(payload) for row in rows for payload in decode(row.batch).payloads()]

    def stage_store(self, group: Group, topic: int, writer: int, messages: Sequence[bytes]) -> None:
        self.payloads.require({self.logs[topic]: [writer]})
        self.payloads.store(group, self.logs[topic], writer, messages)

    async def unpublished(self, topic: int, writer: int) -> Reference | None:
        return await self.writer.run(lambda _: self.payloads.unpublished(self.logs[topic], writer))

    async def check(self) -> None:
        assert len(self.payloads._writers._idle) <= self.writers_max
        for (topic, writer), model in self.model.items():
            reference = await self.unpublished(topic, writer)
            if reference is None:
                assert model.unpublished == []
            else:
                assert self.read(self.logs[topic], writer, reference) == model.unpublished
                assert reference.messages == len(model.unpublished)
                log = self.logs[topic]
                payload_bytes, _ = await self.writer.run(
                    lambda _, log=log, w=writer: self.payloads.unpublished_counts(log, w)
                )  # type: ignore[misc]
                assert payload_bytes == sum(map(len, model.unpublished))
            for published, messages in model.published:
                assert self.read(self.logs[topic], writer, published) == messages


WHO = st.sampled_from([(0, WRITERS[0])] * 5 + [(1, WRITERS[0]), (0, WRITERS[1])])
FAILS = st.sampled_from([None, None, None, None, "refused", "made", "half"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), WHO, st.integers(1, 5), st.integers(0, 60), FAILS),
        st.tuples(st.just("write"), WHO, st.integers(1, 5), st.integers(0, 60), FAILS),
        st.tuples(st.just("publish"), WHO, FAILS),
        st.tuples(st.just("abort"), WHO),
        st.tuples(st.just("restart")),
        st.tuples(st.just("clock"), st.integers(-3, 3)),
    ),
    min_size=3,
    max_size=24,
)


@settings(deadline=None, max_examples=200)
@given(STEPS, st.sampled_from([1, 2, 3, 100]), st.booleans())
def test_a_reference_publishes_what_its_writer_stored_since_the_last_one(
    steps: list[tuple[object, ...]], writers_max: int, atomic: bool
) -> None:
    async def scenario() -> None:
        scene = Scene(atomic, writers_max)
        for kind, *arguments in steps:
            if kind == "clock":
                scene.clock.step(scene.clock.now_ms() + int(str(arguments[0])))
            elif kind == "restart":
                scene.restart()
            else:
                who, *rest = arguments
                assert isinstance(who, tuple)
                await getattr(scene, str(kind))(*who, *rest)
            await scene.check()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appender, "BATCH_BYTES_MAX", 100)
        asyncio.run(scenario())


def test_removing_what_is_unbound_can_be_repeated_and_leaves_what_references_publish() -> None:
    """An abort that a crash interrupted is carried out again, by a process that knows nothing of the first time."""

    async def scenario() -> None:
        scene = Scene()
        await scene.write(0, WRITERS[0], 2, 0, None)
        await scene.publish(0, WRITERS[0], None)
        await scene.write(0, WRITERS[0], 2, 0, None)
        for _ in range(2):
            await scene.abort(0, WRITERS[0])
            await scene.check()
            scene.restart()
        assert [len(messages) for _, messages in scene.model[0, WRITERS[0]].published] == [2]

    asyncio.run(scenario())


@pytest.mark.parametrize("atomic", [True, False])
def test_what_a_reference_published_is_not_published_again_once_that_has_expired(atomic: bool) -> None:
    """A writer may outlive its first messages, and a restart then finds no row that refers to what it stored."""

    async def scenario() -> None:
        scene = Scene(atomic)
        topic = scene.logs[0].topic
        await scene.write(0, WRITERS[0], 2, 0, None)
        await scene.publish(0, WRITERS[0], None)
        before = [MessageTable.before(topic.keys, salt, 2) for salt in topic.keys.scanned()]

        def expire(group: Group) -> None:
            group.add(MessageTable.name, *before)
            stored_log.note_expired(group, topic, 2, b"")

        await scene.writer.run(expire)
        assert list(scene.store.table(MessageTable.name).scan(b"", None)) == []
        scene.restart()
        await scene.check()
        await scene.write(0, WRITERS[0], 1, 0, None)
        await scene.check()

    asyncio.run(scenario())


def test_nor_where_the_store_drops_expired_rows_itself_and_nobody_notes_it() -> None:
    async def scenario() -> None:
        scene = Scene(atomic=False)
        await scene.write(0, WRITERS[0], 2, 0, None)
        await scene.publish(0, WRITERS[0], None)
        scene.store.table(MessageTable.name).write([DeleteRange(b"\0", b"\xff" * 40)])
        scene.clock.advance(scene.logs[0].topic.metadata.ttl_ms)
        for drops, published in ((False, False), (True, True)):
            scene.store.applies_retention = drops
            scene.restart()
            assert (await scene.unpublished(0, WRITERS[0]) is None) is published

    asyncio.run(scenario())
