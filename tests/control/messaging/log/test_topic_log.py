"""Appending to a log: how publishes become rows, which places they get, and what readers are told."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.catalog.topics import TopicName, Topics, topic_name
from basalt.messaging.index import NO_TTLS
from basalt.messaging.log import append as appending
from basalt.messaging.log.append import BATCH_BYTES_MAX, Placed, cuts
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.read.log_reader import SliceLimits, start_from
from basalt.runtime.group_commit import Group, GroupCommit
from basalt_engine.clock import ManualClock
from basalt_engine.errors import StoreError
from basalt_engine.keys import MessageId, position, position_fields
from basalt_engine.messages import ROW_BYTES_MAX, MessageRow, MessageTable, Reference
from basalt_engine.metadata import TopicMetadata
from basalt_engine.records import Compression, Extras, decode, encode
from basalt_engine.retention import OnInvalid
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import TableWrite
from tests.control.messaging.read.test_log_reader import fetch

relaxed = settings(deadline=None)
T = TypeVar("T")

FIRST = position(0, 0)
NOW_MS = 1_000
TTL_MS = 60_000
EVERYTHING = SliceLimits(10**6, 10**9)


class FailingStore(MemoryStore):
    """Refuses the next write when it is told to; with `made` it has made it all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = False
        self.made = False

    def write(self, writes: Sequence[TableWrite]) -> None:
        if self.failing and not self.made:
            raise StoreError("no")
        super().write(writes)
        if self.failing:
            raise StoreError("no answer")


def unpacked(batch: bytes | None) -> bytes | None:
    """The stored batch as it was before it was compressed."""
    if batch is None:
        return None
    stored = decode(batch)
    return encode(stored.payloads(), stored.extras(), kind=stored.kind)


class Scene:
    """Logs over a store, and the shortest words for what the tests do with it."""

    def __init__(self, store: MemoryStore | None = None, *, cache_bytes: int = 1 << 30) -> None:
        self.store = store or FailingStore()
        self.clock = ManualClock(NOW_MS)
        self.writer = GroupCommit(self.store, self.clock)
        self.logs = TopicLogs(self.store, self.clock, Topics(self.store, self.clock, 16), tail_bytes_max=cache_bytes)
        self.memory = self.logs.memory
        self.messages = MessageTable(self.store.table(MessageTable.name))

    def topic(
        self, name: str = "orders", *, spread: int = 1, compression: str = "auto", generation: int = 1
    ) -> TopicLog:
        """The log of a topic, as it is opened."""
        others = {"compression": compression}
        stored = TopicMetadata(generation, TTL_MS, OnInvalid.DROP, spread, max(spread, 4), 0, 0, others)
        topic = self.logs.catalog.at(topic_name("shop", name), stored)
        return TopicLog(topic, self.logs._read_end(topic), self.memory)

    async def together(self, *stages: Callable[[Group], T]) -> list[T]:
        """Run stages in one group."""
        before = self.writer.groups
        answers = await asyncio.gather(*(self.writer.run(stage) for stage in stages))
        assert self.writer.groups == before + 1
        return answers

    def append(
        self,
        topic: TopicLog,
        *payloads: bytes,
        extras: Sequence[Extras] | None = None,
        written_by: int | None = None,
    ) -> Callable[[Group], Placed]:
        return lambda group: topic.append(group, payloads, extras, written_by)

    def rows(self, topic: TopicLog) -> list[MessageRow]:
        """What the store holds; the tail has the same, uncompressed."""
        stored = list(self.messages.scan(topic.topic.read_keys))
        cached = self.logs.tails.rows(topic.tail, FIRST)
        assert cached is None or cached == [row._replace(key=b"", batch=unpacked(row.batch)) for row in stored]
        return stored

    def read(self, topic: TopicLog) -> dict[tuple[int, int], bytes]:
        """Every message by its place."""
        found = fetch(self.rows(topic), lambda row: [], start_from(None, True), EVERYTHING, None, 0)
        return {
            MessageId.decode(message_id)[:2]: bytes(payload)
            for part in found.slices
            for message_id, payload in zip(part.ids(), part.payloads(), strict=True)
        }


def run(scenario: Coroutine[object, object, T]) -> T:
    return asyncio.run(scenario)


def batches(rows: Sequence[MessageRow]) -> list[list[bytes]]:
    return [[bytes(payload) for payload in decode(row.batch or b"").payloads()] for row in rows]


# Where a publish is cut.

EXTRAS = st.builds(
    Extras,
    st.none() | st.binary(max_size=300),
    st.lists(st.tuples(st.text(min_size=1, max_size=3), st.binary(max_size=300)), max_size=2).map(tuple),
    st.none() | st.just(5),
    st.none() | st.just(5),
)


@relaxed
@given(st.lists(st.binary(max_size=400), min_size=1, max_size=20), st.booleans(), st.data())
def test_a_publish_is_cut_where_the_next_message_would_not_fit(
    payloads: list[bytes], rich: bool, data: st.DataObject
) -> None:
    count = len(payloads)
    extras = data.draw(st.lists(EXTRAS, min_size=count, max_size=count)) if rich else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appending, "BATCH_BYTES_MAX", 1_000)
        found = cuts(payloads, extras)
    assert [cut.start for cut in found] == [0, *(cut.stop for cut in found[:-1])]
    assert found[-1].stop == count
    for cut in found:
        part = None if extras is None else extras[cut.start : cut.stop]
        encoded = encode(payloads[cut.start : cut.stop], part)
        assert cut.payload_bytes == sum(map(len, payloads[cut.start : cut.stop]))
        assert len(encoded) <= cut.size_bytes + 12
        assert cut.size_bytes <= 1_000 or cut.stop == cut.start + 1
    for cut, later in itertools.pairwise(found):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(appending, "BATCH_BYTES_MAX", 10**9)
            one_more = None if extras is None else extras[cut.start : later.start + 1]
            assert cuts(payloads[cut.start : later.start + 1], one_more)[0].size_bytes > 1_000


@pytest.mark.parametrize("compression", ["auto", "none", "zstd"])
def test_a_large_publish_becomes_rows_of_a_mebibyte_at_most(compression: str) -> None:
    scene = Scene()
    topic = scene.topic(compression=compression)
    payloads = [bytes([number % 251]) * 1_024 for number in range(3_000)]
    (placed,) = run(scene.together(scene.append(topic, *payloads)))
    rows = scene.rows(topic)
    assert [payload for batch in batches(rows) for payload in batch] == payloads
    assert len(rows) == 3
    assert all(len(row.batch or b"") <= ROW_BYTES_MAX for row in rows)
    assert {(row.batch or b"")[3] for row in rows} == {Compression.NONE if compression == "none" else Compression.ZSTD}
    assert placed == Placed(NOW_MS, 0, NOW_MS, 2_999)
    assert list(scene.read(topic)) == [(NOW_MS, number) for number in range(3_000)]


def test_keys_and_headers_count_when_rows_are_cut() -> None:
    scene = Scene()
    topic = scene.topic()
    extras = [Extras(key=bytes(100), headers=(("trace", bytes(1_000)),)) for _ in range(3_000)]
    run(scene.together(scene.append(topic, *[b""] * 3_000, extras=extras)))
    rows = scene.rows(topic)
    assert sum(decode(row.batch or b"").count for row in rows) == 3_000
    assert all(len(row.batch or b"") <= ROW_BYTES_MAX for row in rows)
    assert len(rows) == 4


def test_a_message_that_is_larger_than_a_row_is_alone_in_its_row() -> None:
    scene = Scene()
    topic = scene.topic()
    payloads = [b"a", b"b", bytes(ROW_BYTES_MAX + 1), b"c"]
    run(scene.together(scene.append(topic, *payloads)))
    assert [len(batch) for batch in batches(scene.rows(topic))] == [2, 1, 1]
    assert list(scene.read(topic).values()) == payloads


def test_the_largest_batch_that_is_not_cut_is_a_mebibyte() -> None:
    payload = bytes(BATCH_BYTES_MAX - 4)
    assert len(cuts([payload])) == 1
    scene = Scene()
    topic = scene.topic(compression="none")
    run(scene.together(scene.append(topic, payload)))
    assert ROW_BYTES_MAX - 16 < len(scene.rows(topic)[0].batch or b"") <= ROW_BYTES_MAX
    assert [cut.stop for cut in cuts([payload, b""])] == [1, 2]


def test_a_publish_over_the_end_of_a_millisecond_is_two_rows() -> None:
    scene = Scene()
    topic = scene.topic()
    run(scene.together(scene.append(topic, *[b"a"] * 65_535)))
    (placed,) = run(scene.together(scene.append(topic, b"x", b"y", b"z")))
    assert placed == Placed(NOW_MS, 65_535, NOW_MS + 1, 1)
    assert batches(scene.rows(topic))[1:] == [[b"x"], [b"y", b"z"]]


# What meets in one group.


def test_publishes_without_a_transaction_that_meet_become_one_row_and_keep_their_places() -> None:
    scene = Scene()
    topic = scene.topic()
    placed = run(scene.together(*(scene.append(topic, b"%da" % n, b"%db" % n) for n in range(20))))
    assert len(scene.rows(topic)) == 1
    read = scene.read(topic)
    for number, each in enumerate(placed):
        assert read[each.start_ms, each.start_sequence] == b"%da" % number
        assert read[each.end_ms, each.end_sequence] == b"%db" % number


def test_a_place_that_stays_empty_parts_its_neighbours() -> None:
    """A row's messages are counted back from its last one, so a hole in it would move those before the hole."""
    scene = Scene()
    topic = scene.topic()
    before, skipped, after = run(
        scene.together(
            scene.append(topic, b"before"),
            lambda group: topic.skip(group),
            scene.append(topic, b"after"),
        )
    )
    assert [placed.start_sequence for placed in (before, skipped, after)] == [0, 1, 2]
    assert scene.read(topic) == {(NOW_MS, 0): b"before", (NOW_MS, 2): b"after"}


def test_a_stage_that_raises_after_it_took_a_place_moves_nobodys_messages() -> None:
    scene = Scene()
    topic = scene.topic()

    def failing(group: Group) -> Placed:
        topic.skip(group)
        raise ValueError("too late")

    async def scenario() -> list[Placed | BaseException]:
        stages = [scene.append(topic, b"before"), failing, scene.append(topic, b"after")]
        return await asyncio.gather(*map(scene.writer.run, stages), return_exceptions=True)

    before, error, after = run(scenario())
    assert isinstance(error, ValueError)
    assert isinstance(before, Placed)
    assert isinstance(after, Placed)
    read = scene.read(topic)
    assert (read[before[:2]], read[after[:2]], len(read)) == (b"before", b"after", 2)


def test_a_writers_messages_have_a_row_of_their_own() -> None:
    scene = Scene()
    topic = scene.topic()
    run(
        scene.together(
            scene.append(topic, b"1"),
            scene.append(topic, b"2", written_by=7),
            scene.append(topic, b"3", written_by=7),
            scene.append(topic, b"4", written_by=8),
            scene.append(topic, b"5"),
            scene.append(topic, b"6"),
        )
    )
    rows = scene.rows(topic)
    assert [row.written_by for row in rows] == [None, 7, 7, 8, None]
    assert batches(rows) == [[b"1"], [b"2"], [b"3"], [b"4"], [b"5", b"6"]]


def test_a_reference_takes_one_place_and_parts_the_rows_around_it() -> None:
    scene = Scene()
    topic = scene.topic()
    reference = Reference(position(1, 0), position(1, 9), 10)
    told: list[tuple[TopicName, int, int]] = []
    scene.memory.meter = lambda *counted: told.append(counted)
    _, placed, _ = run(
        scene.together(
            scene.append(topic, b"1"),
            lambda group: topic.refer(group, reference, 7, 500, NO_TTLS),
            scene.append(topic, b"2"),
        )
    )
    rows = scene.rows(topic)
    assert placed == Placed(NOW_MS, 1, NOW_MS, 1)
    assert [(row.written_by, row.reference) for row in rows] == [(None, None), (7, reference), (None, None)]
    assert [position_fields(row.position) for row in rows] == [(NOW_MS, 0), (NOW_MS, 1), (NOW_MS, 2)]
    assert [each[1:] for each in told] == [(1, 1), (10, 500), (1, 1)]


def test_rows_that_meet_do_not_grow_beyond_a_mebibyte() -> None:
    scene = Scene()
    topic = scene.topic()
    run(scene.together(*(scene.append(topic, *[bytes(10_000)] * 30) for _ in range(10))))
    rows = scene.rows(topic)
    assert all(len(row.batch or b"") <= ROW_BYTES_MAX for row in rows)
    assert [len(batch) for batch in batches(rows)] == [90, 90, 90, 30]


def test_rows_of_plain_and_of_rich_messages_that_meet_do_not_grow_beyond_a_mebibyte() -> None:
    scene = Scene()
    topic = scene.topic()
    plain = scene.append(topic, *[bytes(10)] * 20_000)
    rich = scene.append(topic, *[b""] * 20_000, extras=[Extras(b"", (), 1, 1)] * 20_000)
    run(scene.together(plain, rich, plain))
    rows = scene.rows(topic)
    assert all(len(row.batch or b"") <= ROW_BYTES_MAX for row in rows)
    assert sum(decode(row.batch or b"").count for row in rows) == 60_000


def test_messages_with_and_without_extras_share_a_row_and_keep_their_own() -> None:
    scene = Scene()
    topic = scene.topic()
    rich = Extras(b"key", (("h", b"v"),), 5, 6)
    run(scene.together(scene.append(topic, b"1"), scene.append(topic, b"2", extras=[rich]), scene.append(topic, b"3")))
    (row,) = scene.rows(topic)
    assert decode(row.batch or b"").extras() == [Extras(), rich, Extras()]


def test_topics_that_meet_never_share_a_row() -> None:
    scene = Scene()
    topics = [scene.topic("orders"), scene.topic("orders-2"), scene.topic(generation=2)]
    run(scene.together(*(scene.append(topic, b"%d" % n) for n in range(5) for topic in topics)))
    for topic in topics:
        assert batches(scene.rows(topic)) == [[b"0", b"1", b"2", b"3", b"4"]]


PUBLISHES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 300), st.sampled_from([None, None, 7, 8])), min_size=1, max_size=6
)
GROUPS = st.lists(st.tuples(st.integers(-2, 3), PUBLISHES), max_size=5)


@settings(deadline=None, max_examples=60)
@given(GROUPS, st.integers(1, 4), st.sampled_from([0, 1_500, 1 << 30]))
def test_every_message_is_found_at_the_place_that_its_publisher_was_told(
    groups: list[tuple[int, list[tuple[int, int, int | None]]]], spread: int, cache_bytes: int
) -> None:
    scene = Scene(cache_bytes=cache_bytes)
    topic = scene.topic(spread=spread)
    expected: dict[tuple[int, int], bytes] = {}

    async def publish(number: int, count: int, size: int, written_by: int | None) -> None:
        payloads = [b"%d.%d" % (number, at) + bytes(size) for at in range(count)]
        if not payloads:
            await scene.writer.run(lambda group: topic.skip(group))
            return
        placed = await scene.writer.run(scene.append(topic, *payloads, written_by=written_by))
        for at, payload in enumerate(payloads):
            expected[placed.start_ms, placed.start_sequence + at] = payload

    async def scenario() -> None:
        for step_ms, publishes in groups:
            scene.clock.step(max(1, scene.clock.now_ms() + step_ms))
            await asyncio.gather(*(publish(number, *each) for number, each in enumerate(publishes)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appending, "BATCH_BYTES_MAX", 1_000)
        run(scenario())
    read = scene.read(topic)
    assert read == expected
    assert list(read) == sorted(expected)


# The column x.


@pytest.mark.parametrize(
    ("ttls", "expire_ms"),
    [
        ([None], None),
        ([5], NOW_MS + 5),
        ([5, 7, 6], NOW_MS + 7),
        ([5, None], None),
        ([5, TTL_MS - 1], NOW_MS + TTL_MS - 1),
        ([5, TTL_MS], None),  # lives as long as the topic says
        ([5, 2**63 - 1], None),
    ],
)
def test_a_row_says_when_its_last_message_expires_where_all_have_a_ttl(
    ttls: list[int | None], expire_ms: int | None
) -> None:
    scene = Scene()
    topic = scene.topic()
    run(scene.together(scene.append(topic, *[b""] * len(ttls), extras=[Extras(ttl_ms=ttl) for ttl in ttls])))
    assert [row.expire_ms for row in scene.rows(topic)] == [expire_ms]


def test_a_plain_message_that_joins_a_row_keeps_it_from_expiring_early() -> None:
    scene = Scene()
    topic = scene.topic()
    short = scene.append(topic, b"a", extras=[Extras(ttl_ms=5)])
    run(scene.together(short, scene.append(topic, b"b")))
    assert [row.expire_ms for row in scene.rows(topic)] == [None]


# The spread.


def test_the_rows_of_a_spread_topic_take_its_buckets_in_turn_and_read_in_order() -> None:
    scene = Scene()
    topic = scene.topic(spread=3)
    for number in range(9):
        run(scene.together(scene.append(topic, b"%d" % number)))
    rows = scene.rows(topic)
    assert [row.key[0] for row in rows[:3]] == [row.key[0] for row in rows[3:6]] == [row.key[0] for row in rows[6:]]
    assert {row.key[0] for row in rows} == set(topic.topic.keys.scanned())
    assert list(scene.read(topic).values()) == [b"%d" % number for number in range(9)]


# Where a topic ends.


@pytest.mark.parametrize("spread", [1, 4])
def test_a_log_that_is_opened_again_goes_on_after_the_newest_row(spread: int) -> None:
    scene = Scene()
    topic = scene.topic(spread=spread)
    run(scene.together(scene.append(topic, b"1"), scene.append(topic, b"2", written_by=7)))
    again = Scene(scene.store)
    again.clock.step(NOW_MS - 500)
    reopened = again.topic(spread=spread)
    assert reopened.newest == position(NOW_MS, 1)
    assert run(again.together(again.append(reopened, b"3"))) == [Placed(NOW_MS, 2, NOW_MS, 2)]
    assert again.logs.tails.rows(reopened.tail, FIRST) is None
    assert list(again.read(reopened).values()) == [b"1", b"2", b"3"]


def test_an_empty_topic_has_no_newest_place() -> None:
    scene = Scene()
    assert scene.topic().newest == b""


# Who is told.


def test_what_is_durable_wakes_readers_and_is_counted() -> None:
    scene = Scene()
    topic, other = scene.topic(), scene.topic("other")
    told: list[tuple[TopicName, int, int]] = []
    scene.memory.meter = lambda *counted: told.append(counted)

    async def scenario() -> None:
        waiter, elsewhere = topic.waiter(), other.waiter()
        await scene.together(scene.append(topic, b"ab", b"c"), scene.append(topic, b"d", written_by=7))
        assert waiter.done()
        assert not elsewhere.done()
        elsewhere.cancel()

    run(scenario())
    assert told == [(topic.topic.title, 2, 3), (topic.topic.title, 1, 1)]
    assert len(scene.rows(topic)) == 2
    assert (scene.memory.messages_total, scene.memory.payload_bytes_total) == (3, 4)


def test_a_meter_that_fails_costs_no_reader_a_message() -> None:
    scene = Scene()
    topic = scene.topic()

    def failing(*counted: object) -> None:
        raise ValueError("a meter's own bug")

    scene.memory.meter = failing
    run(scene.together(scene.append(topic, b"1"), scene.append(topic, b"2", written_by=7)))
    scene.memory.meter = None
    run(scene.together(scene.append(topic, b"3")))
    assert scene.logs.tails.rows(topic.tail, FIRST) is not None
    assert list(scene.read(topic).values()) == [b"1", b"2", b"3"]


class GatedStore(FailingStore):
    """Writes on a thread, once the gate is open."""

    remote = True

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def write(self, writes: Sequence[TableWrite]) -> None:
        self.gate.wait(60)
        super().write(writes)


@pytest.mark.parametrize("failing", [False, True])
def test_readers_of_the_store_are_told_where_rows_are_still_being_written(failing: bool) -> None:
    store = GatedStore()
    scene = Scene(store)
    topic, other = scene.topic(), scene.topic("other")

    async def scenario() -> None:
        store.gate.set()
        await scene.together(scene.append(topic, b"1"), scene.append(topic, b"2"))
        store.gate.clear()
        store.failing = failing
        stages = [scene.append(topic, b"3"), scene.append(topic, b"4", written_by=7), scene.append(other, b"5")]
        writing = asyncio.gather(*map(scene.writer.run, stages), return_exceptions=True)
        while topic.in_flight is None:
            await asyncio.sleep(0)
        assert (topic.in_flight, other.in_flight) == (position(NOW_MS, 1), b"")
        assert (topic.durable_stop, other.durable_stop) == (position(NOW_MS, 1) + b"\0", b"\0")
        store.gate.set()
        assert [isinstance(answer, StoreError) for answer in await writing] == [failing] * 3
        assert topic.in_flight is other.in_flight is None

    run(scenario())


@pytest.mark.parametrize("made", [False, True])
def test_a_write_that_failed_takes_its_places_along_and_leaves_the_answer_to_the_store(made: bool) -> None:
    store = FailingStore()
    scene = Scene(store)
    topic = scene.topic()

    async def scenario() -> None:
        await scene.together(scene.append(topic, b"1"))
        topic.newest_row, topic.markers = b"known", object()
        store.failing, store.made = True, made
        with pytest.raises(StoreError):
            await scene.writer.run(scene.append(topic, b"doubtful"))
        store.failing = False
        assert scene.logs.tails.rows(topic.tail, FIRST) is None
        assert topic.newest_row is topic.markers is topic.index is None  # whoever asks next reads
        await scene.together(scene.append(topic, b"3"))

    run(scenario())
    read = scene.read(topic)
    assert read.pop((NOW_MS, 1), None) == (b"doubtful" if made else None)
    assert read == {(NOW_MS, 0): b"1", (NOW_MS, 2): b"3"}
    assert scene.memory.messages_total == 2
