"""Calls to a remote store while some of its reads do not answer: who waits for them, and who does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from basalt.catalog.topics import TopicName, topic_name
from basalt.errors import BusyError
from basalt.runtime import store_calls
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import TOPIC_LANES_MAX
from basalt_engine.keys import base_bucket, topic_prefix
from basalt_engine.stores.hbase.store import PREFETCH_THREADS_MAX, READ_CONNECTIONS_MAX, WRITE_CONNECTIONS_MAX
from basalt_engine.stores.memory import MemoryStore, MemoryTable
from tests.wiring import A, B, Wired

BUCKETS = 16
HANG_S = 20  # a call that was to go through, and has not by then, never will


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


pytestmark = pytest.mark.anyio


def named(in_bucket_of_a: bool) -> Iterator[TopicName]:
    """Topics whose rows lie in the same bucket as those of A, or in another than A's and B's."""
    buckets = [base_bucket(topic_prefix(*title), BUCKETS) for title in (A, B)]
    for number in range(10_000):
        title = topic_name("shop", f"topic-{number}")
        bucket = base_bucket(topic_prefix(*title), BUCKETS)
        if bucket == buckets[0] if in_bucket_of_a else bucket not in buckets:
            yield title


C = next(named(in_bucket_of_a=False))


class StuckTable:
    """One table of a `StuckStore`."""

    def __init__(self, inner: MemoryTable, store: StuckStore) -> None:
        self._inner = inner
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, key: bytes) -> Any:
        self._store.read(self._inner.name, key)
        return self._inner.get(key)

    def scan(self, start: bytes, *args: Any, **how: Any) -> Any:
        self._store.read(self._inner.name, start)
        return self._inner.scan(start, *args, **how)

    def check_and_write(self, key: bytes, *args: Any) -> bool:
        self._store.read(f"write of {self._inner.name}", key)
        return self._inner.check_and_write(key, *args)


class StuckStore(MemoryStore):
    """A remote store. Once `stick` is called, reads of a table's keys that hold certain bytes wait until `free` is set."""

    remote = True

    def __init__(self) -> None:
        super().__init__(atomic=False)
        self.remote = True
        self.free = threading.Event()
        self.waiting = 0
        self.waiting_most = 0
        self._stuck: tuple[str, Sequence[bytes]] | None = None
        self._lock = threading.Lock()

    def stick(self, table: str, *parts: bytes) -> None:
        self._stuck = (table, parts)

    def read(self, table: str, key: bytes) -> None:
        if self._stuck is None or self._stuck[0] != table or not any(part in key for part in self._stuck[1]):
            return
        with self._lock:
            self.waiting += 1
            self.waiting_most = max(self.waiting_most, self.waiting)
        self.free.wait(60)
        with self._lock:
            self.waiting -= 1

    def table(self, name: str) -> Any:
        return StuckTable(super().table(name), self)


@asynccontextmanager
async def shop(*more: TopicName) -> AsyncIterator[tuple[StuckStore, Wired]]:
    """A shop whose topics A, B, C, and `more`, hold a message each, and are read from the store each time."""
    store = StuckStore()
    wired = await Wired.start(store, cached=False)
    for title in (A, B, C, *more):
        await wired.topics.create(title, {})
        await wired.publish(title, "first")
    try:
        yield store, wired
    finally:
        store.free.set()
        await wired.services.close()


async def until(store: StuckStore, waiting: int) -> None:
    while store.waiting < waiting:
        await asyncio.sleep(0)


async def others_are_served(wired: Wired) -> None:
    """Publish to B, begin, commit, and read B and C."""

    async def work() -> None:
        await wired.publish(B, "second")
        tx = await wired.transactions.begin()
        await wired.commit(tx, invoices=["third"])
        assert await wired.read(C) == ["first"]
        assert await wired.read(B) == ["first", "second", "third"]

    await asyncio.wait_for(work(), HANG_S)


def started(count: int, call: Callable[[], Awaitable[Any]]) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(call()) for _ in range(count)]


@pytest.mark.parametrize("readers", [20, 100])
async def test_readers_of_a_stuck_topic_hold_up_nobody_else(readers: int):
    async with shop() as (store, wired):
        store.stick("message", topic_prefix(*A))
        reading = started(readers, lambda: wired.read(A))
        await until(store, 1)
        await others_are_served(wired)
        store.free.set()
        assert await asyncio.gather(*reading) == [["first"]] * readers
        assert store.waiting_most <= store_calls.OWNER_READS_MAX


async def test_readers_of_all_topics_of_a_stuck_region_hold_up_nobody_else():
    titles = [title for title, _ in zip(named(in_bucket_of_a=True), range(20), strict=False)]
    async with shop(*titles) as (store, wired):
        store.stick("message", *(topic_prefix(*title) for title in titles))
        reading = [asyncio.ensure_future(wired.read(title)) for title in titles for _ in range(5)]
        await until(store, 1)
        await others_are_served(wired)
        store.free.set()
        assert await asyncio.gather(*reading) == [["first"]] * 100
        assert store.waiting_most <= store_calls.REGION_READS_MAX


async def test_a_stuck_metadata_region_holds_up_only_who_needs_it():
    async with shop() as (store, wired):
        later = [topic_name("elsewhere", f"topic-{number}") for number in range(100)]
        for title in later[:50]:
            await wired.topics.create(title, {})
        again = await wired.restarted(cached=False)
        for title in (A, B, C):
            await again.read(title)
        store.stick("metadata", b"elsewhere:")
        asking = [asyncio.ensure_future(again.topics.get(title)) for title in later[:50]]
        await until(store, 1)
        await others_are_served(again)
        store.free.set()
        assert [topic.title for topic in await asyncio.gather(*asking)] == later[:50]


async def test_a_topic_that_is_created_in_a_stuck_metadata_region_holds_up_nobody_else():
    async with shop() as (store, wired):
        store.stick("write of metadata", b"elsewhere:")
        creating = asyncio.ensure_future(wired.topics.create(topic_name("elsewhere", "new"), {}))
        await until(store, 1)
        await others_are_served(wired)
        store.free.set()
        assert (await creating).generation == 1


async def test_readers_that_gave_up_keep_their_threads_until_the_store_answers():
    async with shop() as (store, wired):
        store.stick("message", topic_prefix(*A))
        for _ in range(10):
            reading = started(10, lambda: wired.read(A))
            await until(store, 1)
            for _ in range(10):
                await asyncio.sleep(0)
            for one in reading:
                one.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        await others_are_served(wired)
        assert store.waiting_most <= store_calls.OWNER_READS_MAX
        store.free.set()
        assert await wired.read(A) == ["first"]


async def test_reads_beyond_the_bounded_queue_of_their_topic_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store_calls, "OWNER_READS_MAX", 3)
    monkeypatch.setattr(store_calls, "WAITING_READS_MAX", 2)
    async with shop() as (store, wired):
        store.stick("message", topic_prefix(*A))
        reading = started(8, lambda: wired.read(A))
        await until(store, 3)
        done, open_ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
        while len(open_) > 5:
            more, open_ = await asyncio.wait(open_, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        assert len(done) == 3
        for refused in done:
            with pytest.raises(BusyError, match=r"topic shop:orders .*limit is 2"):
                await refused
        await others_are_served(wired)
        store.free.set()
        assert await asyncio.gather(*open_) == [["first"]] * 5
        assert await wired.read(A) == ["first"]  # the share is free again


async def test_a_read_that_gets_no_turn_in_time_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store_calls, "OWNER_READS_MAX", 2)
    monkeypatch.setattr(store_calls, "WAIT_MS_MAX", 0)
    async with shop() as (store, wired):
        store.stick("message", topic_prefix(*A))
        reading = started(2, lambda: wired.read(A))
        await until(store, 2)
        with pytest.raises(BusyError, match="no turn within 0 ms"):
            await wired.read(A)
        await others_are_served(wired)
        store.free.set()
        assert await asyncio.gather(*reading) == [["first"]] * 2
        assert await wired.read(A) == ["first"]


async def test_a_write_does_not_wait_for_threads_of_readers(monkeypatch: pytest.MonkeyPatch):
    for name in ("READ_THREADS", "OWNER_READS_MAX", "REGION_READS_MAX"):
        monkeypatch.setattr(store_calls, name, 2)
    async with shop() as (store, wired):
        store.stick("message", topic_prefix(*A))
        reading = started(20, lambda: wired.read(A))
        await until(store, 2)  # there is no other thread to read with
        await asyncio.wait_for(wired.publish(B, "second"), HANG_S)
        tx = await asyncio.wait_for(wired.transactions.begin(), HANG_S)
        await asyncio.wait_for(wired.commit(tx, invoices=["third"]), HANG_S)
        store.free.set()
        assert await asyncio.gather(*reading) == [["first"]] * 20
        assert await wired.read(B) == ["first", "second", "third"]


def test_each_thread_that_reads_or_writes_hbase_has_a_connection():
    assert READ_CONNECTIONS_MAX >= store_calls.READ_THREADS + PREFETCH_THREADS_MAX
    # The writers; services that change a topic or a note, which do so as readers of what belongs to no topic; a new leader.
    assert WRITE_CONNECTIONS_MAX >= TOPIC_LANES_MAX + 1 + store_calls.REGION_READS_MAX + 1


async def test_a_local_store_is_read_at_once_and_written_on_a_thread() -> None:
    call = StoreCalls(MemoryStore())
    assert await call(threading.get_ident) == threading.get_ident()
    assert await call.write(threading.get_ident) != threading.get_ident()


async def test_a_job_that_is_paused_is_noted_without_a_wait_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup holds the lock, or the disk takes 300 ms: others are served meanwhile."""
    wired = await Wired.start(MemoryStore(atomic=True))
    threads: list[int] = []
    write = MemoryTable.write

    def noted(table: MemoryTable, *given: Any) -> None:
        threads.append(threading.get_ident())
        write(table, *given)

    monkeypatch.setattr(MemoryTable, "write", noted)
    await wired.services.scheduler.pause("stats")
    assert threads
    assert threading.get_ident() not in threads
