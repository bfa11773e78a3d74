"""Several lanes of topics: what hangs in one holds up no other, and each topic's calls keep their order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.errors import BusyError
from basalt.runtime import write_lanes
from basalt.runtime.group_commit import STAGE_BYTES, Group, GroupCommit
from basalt.runtime.write_lanes import HELD_UP_MS, QUEUE_PART_MAX, TOPIC_LANES_MAX, TopicLanes, WriteLanes, in_each_lane
from basalt_engine.clock import ManualClock, SystemClock
from basalt_engine.errors import StoreError
from basalt_engine.keys import base_bucket, topic_prefix
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import SHARDS, shard_of
from basalt_engine.table import Put, TableWrite

pytestmark = pytest.mark.anyio

BUCKETS = 16
PREFIXES = [topic_prefix("shop", f"topic-{number}") for number in range(64)]
HANG_S = 60


class Hanging:
    """A store by row that is far away: a write to a bucket that hangs ends when it is let go."""

    kind = "memory"
    atomic = False
    remote = True
    applies_retention = False
    busy = False

    def __init__(self) -> None:
        self._inner = MemoryStore(atomic=False)
        self._answers: dict[int, threading.Event] = {}
        self.written: list[bytes] = []
        self.fails = False

    def hang(self, bucket: int) -> None:
        self._answers[bucket] = threading.Event()

    def let_go(self, bucket: int) -> None:
        self._answers.pop(bucket).set()

    def write(self, writes: Sequence[TableWrite]) -> None:
        keys = [mutation.key for write in writes for mutation in write.mutations if isinstance(mutation, Put)]
        for key in keys:
            answers = self._answers.get(key[0])
            if answers is not None:
                assert answers.wait(HANG_S)
        if self.fails:
            raise StoreError("the region is away")
        self.written += keys

    def table(self, name: str) -> object:
        return self._inner.table(name)


def bucket_of(prefix: bytes) -> int:
    return base_bucket(prefix, BUCKETS)


def add(prefix: bytes, text: bytes, group: Group) -> bytes:
    group.add("message", Put(bytes([bucket_of(prefix)]) + prefix + text, {b"c": b""}))
    return text


def handing(lanes: TopicLanes, first: bytes, other: bytes, told: asyncio.Future[bytes], group: Group) -> None:
    """A stage of one topic's lane that hands a call to the lane of another."""
    add(first, b"first", group)
    lanes.lane_of(other).submit(partial(add, other, b"handed"), told, must_run=True)


def lanes_of(store: object, *, clock: object = None, queue_bytes_max: int = 64 << 20, number: int = 8) -> TopicLanes:
    return TopicLanes.of(
        store,  # type: ignore[arg-type]
        clock or SystemClock(),  # type: ignore[arg-type]
        BUCKETS,
        queue_bytes_max=queue_bytes_max,
        number=number,
    )


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not is_so():
            await asyncio.sleep(0.001)


def of_other_lanes(lanes: TopicLanes, prefix: bytes) -> list[bytes]:
    return [other for other in PREFIXES if lanes.lane_of(other) is not lanes.lane_of(prefix)]


async def test_a_bucket_that_hangs_holds_up_the_topics_of_its_lane_and_no_others():
    store = Hanging()
    lanes = lanes_of(store)
    stuck = PREFIXES[0]
    store.hang(bucket_of(stuck))
    held = asyncio.ensure_future(lanes.lane_of(stuck).run(partial(add, stuck, b"1")))
    behind = asyncio.ensure_future(lanes.lane_of(stuck).run(partial(add, stuck, b"2")))
    others = of_other_lanes(lanes, stuck)
    async with asyncio.timeout(HANG_S):
        for turn in range(3):
            await asyncio.gather(*(lanes.lane_of(each).run(partial(add, each, b"%d" % turn)) for each in others))
    assert len(store.written) == 3 * len(others)
    assert not held.done() and not behind.done()
    store.let_go(bucket_of(stuck))
    assert await asyncio.gather(held, behind) == [b"1", b"2"]
    await lanes.stop()


async def test_an_atomic_store_has_one_lane_for_all_and_the_log():
    lanes = WriteLanes.of(MemoryStore(), ManualClock(), BUCKETS, topic_lanes=8)
    assert lanes.each == (lanes.log,)
    assert {lanes.topics.lane_of(prefix) for prefix in PREFIXES} == {lanes.log}


async def test_there_are_no_more_lanes_than_buckets_and_than_connections_are_kept_for():
    assert len(TopicLanes.of(MemoryStore(atomic=False), ManualClock(), 3, number=8).each) == 3
    assert len(lanes_of(MemoryStore(atomic=False), number=100).each) == TOPIC_LANES_MAX


@pytest.mark.parametrize("buckets", [1, 3, 6, 8, 12, 16, 64, 256])
@pytest.mark.parametrize("number", [1, 2, 3, 8])
async def test_the_lanes_of_a_shard_have_all_its_topics_and_follow_the_bucket(buckets: int, number: int):
    lanes = TopicLanes.of(MemoryStore(atomic=False), ManualClock(), buckets, number=number)
    by_bucket: dict[int, GroupCommit] = {}
    for prefix in (topic_prefix("n", f"t{each}") for each in range(3 * SHARDS)):
        assert lanes.lane_of(prefix) in lanes.of_shards([shard_of(prefix)])
        assert by_bucket.setdefault(base_bucket(prefix, buckets), lanes.lane_of(prefix)) is lanes.lane_of(prefix)
    assert set(by_bucket.values()) == set(lanes.each)


async def test_a_lane_that_is_held_up_may_have_its_part_of_the_queue_only_and_the_others_go_on():
    store, clock = Hanging(), ManualClock()
    lanes = lanes_of(store, clock=clock, queue_bytes_max=80 * STAGE_BYTES)
    stuck = PREFIXES[0]
    store.hang(bucket_of(stuck))
    calls = [asyncio.ensure_future(lanes.lane_of(stuck).run(partial(add, stuck, b"first")))]
    await until(lambda: lanes.lane_of(stuck)._write_began_ms is not None)
    assert lanes.held_up == 0
    clock.advance(HELD_UP_MS + 1)
    assert lanes.held_up == 1
    waiting = 0
    with pytest.raises(BusyError):
        while True:
            lanes.lane_of(stuck).submit(partial(add, stuck, b"%d" % waiting), asyncio.Future())
            waiting += 1
    assert waiting == 80 // 8
    other = of_other_lanes(lanes, stuck)[0]
    assert await lanes.lane_of(other).run(partial(add, other, b"goes on")) == b"goes on"
    store.let_go(bucket_of(stuck))
    await asyncio.gather(*calls)
    await lanes.stop()


async def test_a_lane_has_half_of_the_queue_and_all_together_have_one():
    lanes = lanes_of(Hanging(), queue_bytes_max=40 * STAGE_BYTES)
    taken = dict.fromkeys(PREFIXES, 0)
    for prefix in PREFIXES:
        with pytest.raises(BusyError):
            while True:
                lanes.lane_of(prefix).submit(partial(add, prefix, b""), asyncio.Future())
                taken[prefix] += 1
    assert max(taken.values()) == 40 // QUEUE_PART_MAX
    assert sum(taken.values()) == 40
    await lanes.stop()


async def test_who_passes_has_what_a_stage_handed_to_another_lane():
    store = Hanging()
    lanes = lanes_of(store)
    first, other = PREFIXES[0], of_other_lanes(lanes, PREFIXES[0])[0]
    told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    store.hang(bucket_of(other))

    store.hang(bucket_of(first))
    before = asyncio.ensure_future(lanes.lane_of(first).run(partial(add, first, b"before")))
    await until(lambda: lanes.lane_of(first)._write_began_ms is not None)
    handed = asyncio.ensure_future(lanes.lane_of(first).run(partial(handing, lanes, first, other, told)))
    passing = asyncio.ensure_future(lanes.passed())
    await until(lambda: lanes.lane_of(first).waiting == 2 and lanes.lane_of(other).is_idle)
    store.let_go(bucket_of(first))
    await asyncio.gather(before, handed)
    await until(lambda: lanes.lane_of(other)._write_began_ms is not None)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not passing.done()
    store.let_go(bucket_of(other))
    await passing
    assert told.done()


async def test_a_stop_waits_for_what_a_stage_hands_to_a_lane_that_had_nothing_to_do():
    store = Hanging()
    lanes = lanes_of(store)
    first, other = PREFIXES[0], of_other_lanes(lanes, PREFIXES[0])[0]
    told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    store.hang(bucket_of(other))

    handed = asyncio.ensure_future(lanes.lane_of(first).run(partial(handing, lanes, first, other, told)))
    await asyncio.sleep(0)
    stopping = asyncio.ensure_future(lanes.stop())
    await handed
    assert not stopping.done()
    store.let_go(bucket_of(other))
    await stopping
    assert told.done()


async def test_a_call_that_is_to_be_alone_finds_no_write_under_way_and_lets_go_afterwards():
    store = Hanging()
    lanes = lanes_of(store)
    first, other = PREFIXES[0], of_other_lanes(lanes, PREFIXES[0])[0]
    store.hang(bucket_of(first))
    under_way = asyncio.ensure_future(lanes.lane_of(first).run(partial(add, first, b"under way")))
    await until(lambda: lanes.waiting == 0)
    seen: list[list[bytes]] = []
    alone = asyncio.ensure_future(
        lanes.alone([lanes.lane_of(first), lanes.lane_of(other)], lambda: seen.append(list(store.written)))
    )
    await asyncio.sleep(0)
    behind = asyncio.ensure_future(lanes.lane_of(other).run(partial(add, other, b"behind")))
    await asyncio.sleep(0.01)
    assert not seen and not behind.done()
    store.let_go(bucket_of(first))
    await asyncio.gather(under_way, alone, behind)
    assert [len(written) for written in seen] == [1]


async def test_who_gives_up_being_alone_leaves_no_lane_paused():
    store = Hanging()
    lanes = lanes_of(store)
    first, other = PREFIXES[0], of_other_lanes(lanes, PREFIXES[0])[0]
    store.hang(bucket_of(first))
    under_way = asyncio.ensure_future(lanes.lane_of(first).run(partial(add, first, b"under way")))
    await until(lambda: lanes.waiting == 0)
    alone = asyncio.ensure_future(lanes.alone([lanes.lane_of(first), lanes.lane_of(other)], lambda: None))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    alone.cancel()
    await asyncio.wait([alone])
    assert await lanes.lane_of(other).run(partial(add, other, b"goes on")) == b"goes on"
    store.let_go(bucket_of(first))
    await under_way
    assert await lanes.lane_of(first).run(partial(add, first, b"too")) == b"too"


async def test_a_part_that_fails_is_told_when_all_have_ended():
    store = Hanging()
    lanes = lanes_of(store)
    first, other = PREFIXES[0], of_other_lanes(lanes, PREFIXES[0])[0]

    def refused(_: Group) -> None:
        raise StoreError("no")

    store.hang(bucket_of(other))
    stages = {lanes.lane_of(first): (refused, 0), lanes.lane_of(other): (partial(add, other, b"there"), 0)}
    calls = asyncio.ensure_future(in_each_lane(stages))
    await asyncio.sleep(0.01)
    assert not calls.done()
    store.let_go(bucket_of(other))
    with pytest.raises(StoreError, match="no"):
        await calls
    assert len(store.written) == 1


@given(st.lists(st.tuples(st.integers(0, 63), st.integers(0, 3)), max_size=60), st.sets(st.integers(0, 15), max_size=3))
def test_the_rows_of_each_topic_are_written_in_the_order_of_its_calls(calls: list[tuple[int, int]], hang: set[int]):
    async def story() -> None:
        store = Hanging()
        lanes = lanes_of(store)
        for bucket in hang:
            store.hang(bucket)
        asked = []
        for number, (topic, pauses) in enumerate(calls):
            prefix = PREFIXES[topic]
            asked.append(asyncio.ensure_future(lanes.lane_of(prefix).run(partial(add, prefix, b"%04d" % number))))
            for _ in range(pauses):
                await asyncio.sleep(0)
        for bucket in hang:
            store.let_go(bucket)
        await asyncio.gather(*asked)
        assert len(store.written) == len(calls)
        for prefix in PREFIXES:
            rows = [key for key in store.written if key[1:].startswith(prefix)]
            assert rows == sorted(rows)
        await lanes.stop()

    asyncio.run(story())


def test_a_log_that_is_late_is_told_of_before_a_lane_would_be():
    assert write_lanes.LOG_LATE_MS_MAX > HELD_UP_MS
