"""What leaves memory is read again, never on the event loop; what memory alone knows stays, whatever the limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any

import pytest

from basalt.api.bodies.messages import Work, WorkMarker, WorkPublish
from basalt.api.bodies.tables import CellPut
from basalt.api.markers import Marker
from basalt.catalog.tables import table_name
from basalt.catalog.topics import TopicName, topic_name
from basalt.errors import StoreError, TopicNotFoundError, UnavailableError, UnknownOutcomeError
from basalt.messaging.log import roll_back, stored_log
from basalt.messaging.log.topic_log import LogLimits
from basalt.tables.tables import CellWrites
from basalt_engine.stores.memory import MemoryStore, MemoryTable
from basalt_engine.table import Columns, Row, TableWrite
from tests.counted_reads import CountedReads
from tests.wiring import Wired, encoded

pytestmark = pytest.mark.anyio

TOPICS = [topic_name("shop", f"t{number}") for number in range(5)]
LITTLE = [LogLimits(*[limit] * 3) for limit in (1, 2, 3)]
CELLS = table_name("shop", "cells")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Remote(MemoryStore):
    """A store far away. Reads on the thread that `watch` names fail the test; writes fail, or wait, when told to."""

    remote = True

    def __init__(self, *, atomic: bool = True, applies_retention: bool = False) -> None:
        super().__init__(atomic)
        self.applies_retention = applies_retention
        self.loop_thread: int | None = None
        self.reads_on_loop: list[str] = []
        self.fails: str | None = None
        self._watched = {name: WatchedTable(table, self) for name, table in self._tables.items()}

    def table(self, name: str) -> Any:
        """The table, whose reads are watched."""
        return self._watched[name]

    def watch(self) -> None:
        """From now on no read may be made on this thread."""
        self.loop_thread = threading.get_ident()

    def read(self, what: str) -> None:
        if threading.get_ident() == self.loop_thread:
            self.reads_on_loop.append(what)
            raise AssertionError(f"a read on the event loop: {what}")

    def write(self, writes: Sequence[TableWrite]) -> None:
        if self.fails != "refused":
            super().write(writes)
        if self.fails is not None:
            raise StoreError(self.fails)


class WatchedTable:
    def __init__(self, inner: MemoryTable, store: Remote) -> None:
        self._inner = inner
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, key: bytes) -> Columns | None:
        self._store.read(f"{self._inner.name} {key!r}")
        return self._inner.get(key)

    def scan(self, *args: Any, **kwargs: Any) -> Iterator[Row]:
        self._store.read(f"{self._inner.name} {args!r}")
        return self._inner.scan(*args, **kwargs)


async def opened(store: Remote, memory: LogLimits) -> Wired:
    """A server that remembers little, over a store in which every read waits."""
    shop = await Wired.start(store, memory=memory)
    for title in TOPICS:
        await shop.topics.create(title, {})
    await shop.services.tables.catalog.create(CELLS)
    store.watch()
    return shop


async def restarted(shop: Wired, memory: LogLimits) -> Wired:
    """A start reads before anybody can wait for it."""
    assert isinstance(shop.store, Remote)
    shop.store.loop_thread = None
    again = await Wired.start(shop.store, shop.clock, memory=memory)
    shop.store.watch()
    return again


def forget_everything(shop: Wired) -> None:
    """What is not in use leaves memory."""
    memory, catalog = shop.topics.memory, shop.services.tables.catalog
    for log in list(memory.recent.values()):
        memory.recent.pop(log.topic.title)
        memory.shed(log)
    catalog._known.clear()


async def contents(shop: Wired) -> list[list[str]]:
    return [await shop.read(title, committed=True) for title in TOPICS]


def work(text: str, task: str) -> Work:
    return Work(
        publish=[WorkPublish(*title, encoded([text])) for title in TOPICS],
        markers=[WorkMarker(*title, task, 2, "watermark", 1) for title in TOPICS],
    )


@pytest.mark.parametrize("memory", LITTLE)
@pytest.mark.parametrize(("atomic", "drops"), [(True, False), (False, False), (False, True)])
async def test_no_call_reads_on_the_event_loop_whatever_has_left_memory(
    memory: LogLimits, atomic: bool, drops: bool
) -> None:
    store = Remote(atomic=atomic, applies_retention=drops)
    shop = await opened(store, memory)
    kept, undone, lost = [await shop.transactions.begin() for _ in range(3)]
    for tx in (kept, undone, lost):
        for title in TOPICS:
            forget_everything(shop)
            await shop.store_aside(title, f"stored {tx.id}", tx=tx)
    for title in TOPICS:
        forget_everything(shop)
        await shop.publish(title, "published")
        await shop.publish(title, "early", tx=undone)
        await shop.messaging.publish(title, [], kept.write_pointer)
    forget_everything(shop)
    await shop.services.tables.write(CELLS, kept.id, CellWrites([CellPut(b"r", b"c", b"v")]))
    forget_everything(shop)
    await shop.transactions.one_shot(work("one-shot", "a"))
    forget_everything(shop)
    await shop.transactions.commit(kept.id, work("work", "b"))
    forget_everything(shop)
    await shop.transactions.abort(undone.id)
    forget_everything(shop)
    await shop.transactions.invalidate(lost.id)
    forget_everything(shop)
    for title in TOPICS:
        assert not (await shop.services.markers.facts(title)).ended
        await shop.services.markers.publish(title, Marker("a", 2, None))
        await shop.services.topic_stats.stats(title)
        await shop.services.truncation.truncate(title, 1)
    assert await contents(shop) == [["published", f"stored {kept.id}", "one-shot", "work"]] * len(TOPICS)
    assert store.reads_on_loop == []
    again = await restarted(shop, memory)
    assert await contents(again) == [["published", f"stored {kept.id}", "one-shot", "work"]] * len(TOPICS)


@pytest.mark.parametrize("memory", LITTLE)
@pytest.mark.parametrize("atomic", [True, False])
async def test_a_commit_without_a_plan_of_its_own_reads_what_its_stage_needs_and_runs_again(
    memory: LogLimits, atomic: bool
) -> None:
    """As over Thrift, where a call is told and does not wait."""
    store = Remote(atomic=atomic)
    shop = await opened(store, memory)
    tx = await shop.transactions.begin()
    for title in TOPICS:
        await shop.store_aside(title, "stored", tx=tx)
    forget_everything(shop)
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    assert shop.transactions.submit_commit(told, tx.id)
    await asyncio.wait_for(told, 60)
    assert await contents(shop) == [["stored"]] * len(TOPICS)
    assert store.reads_on_loop == []


async def together(*calls: Awaitable[object]) -> list[object]:
    return await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize("memory", LITTLE)
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("remote", [True, False])
async def test_places_that_a_group_gave_out_are_not_given_out_again(
    memory: LogLimits, atomic: bool, remote: bool
) -> None:
    store = Remote(atomic=atomic)
    store.remote = remote
    shop = await Wired.start(store, memory=memory)
    for title in TOPICS:
        await shop.topics.create(title, {})
    txs = [await shop.transactions.begin() for _ in range(3)]
    calls: list[Awaitable[object]] = []
    for text in ("first", "second"):
        calls += [shop.publish(title, text) for title in TOPICS]
        calls += [shop.store_aside(title, f"stored {text}", tx=tx) for tx in txs for title in TOPICS]
    assert set(await together(*calls)) == {None}
    for tx in txs:
        await shop.commit(tx)
    for held in await contents(shop):
        # What is to be read first comes later: calls that are made at the same time have no order.
        assert sorted(held[:2]) == ["first", "second"]
        assert [sorted(held[start : start + 2]) for start in (2, 4, 6)] == [["stored first", "stored second"]] * 3
        assert len(held) == 8


@pytest.mark.parametrize("memory", LITTLE)
@pytest.mark.parametrize("fails", ["refused", "no answer"])
@pytest.mark.parametrize("atomic", [True, False])
async def test_after_a_group_that_failed_no_place_is_given_out_twice(
    memory: LogLimits, fails: str, atomic: bool
) -> None:
    store = Remote(atomic=atomic)
    shop = await opened(store, memory)
    tx = await shop.transactions.begin()
    for title in TOPICS:
        await shop.store_aside(title, "stored before", tx=tx)
    store.fails = fails
    calls: list[Awaitable[object]] = []
    for text in ("first", "second"):
        calls += [shop.publish(title, text) for title in TOPICS]
        calls += [shop.store_aside(title, f"stored {text}", tx=tx) for title in TOPICS]
    for answer in await together(*calls):
        assert isinstance(answer, StoreError | UnknownOutcomeError | UnavailableError)
    store.fails = None
    await shop.transactions.recover()
    for title in TOPICS:
        await shop.publish(title, "third")
        await shop.store_aside(title, "stored third", tx=tx)
    await shop.commit(tx)
    for held in await contents(shop):
        assert held[-1] == "stored third"
        assert len(set(held)) == len(held)
        assert {"third", "stored before"} <= set(held)
    assert store.reads_on_loop == []


@pytest.mark.parametrize("memory", LITTLE)
async def test_idle_logs_go_and_there_is_never_more_than_one_for_a_generation(memory: LogLimits) -> None:
    shop = await opened(Remote(), memory)
    held = await shop.topics.open(TOPICS[0])
    for title in TOPICS:
        await shop.publish(title, "x")
    assert len(shop.topics.memory.recent) == memory.logs
    assert len(shop.topics.memory.detailed) <= memory.detailed
    assert await shop.topics.open(TOPICS[0]) is held
    assert len(shop.topics._open) <= memory.logs + 1


async def test_a_fetch_that_waits_is_woken_though_its_log_left_the_logs_used_last() -> None:
    shop = await opened(Remote(), LITTLE[0])
    waiting = asyncio.ensure_future(shop.messaging.fetch(TOPICS[0], None, True, wait_ms=30_000))
    while not shop.topics.memory.waiting:
        await asyncio.sleep(0)
    for title in TOPICS[1:]:
        await shop.publish(title, "x")
    await shop.publish(TOPICS[0], "news")
    assert (await asyncio.wait_for(waiting, 60)).messages == 1


async def test_where_an_open_transaction_has_published_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = await opened(Remote(), LITTLE[0])
    await shop.publish(TOPICS[0], *"before")
    tx = await shop.transactions.begin()
    await shop.publish(TOPICS[0], "early", tx=tx)
    for title in TOPICS[1:]:
        await shop.publish(title, "x")
    starts: list[bytes] = []

    def read_page(messages: Any, keys: Any, start: bytes, stop: bytes | None) -> stored_log.LogPage:
        starts.append(start)
        return stored_log.read_page(messages, keys, start, stop)

    monkeypatch.setattr(roll_back, "read_page", read_page)
    await shop.transactions.abort(tx.id)
    assert min(starts) > b"\0" * 10, "the whole log was searched"
    assert shop.topics.memory.with_uncommitted == set()


@pytest.mark.parametrize("rows_max", [2, 3])
async def test_a_long_roll_back_of_a_transaction_older_than_the_process_goes_by_pages(
    rows_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = await opened(Remote(), LITTLE[1])
    tx = await shop.transactions.begin()
    for number in range(9):
        await shop.publish(TOPICS[0], f"early {number}", tx=tx)
        await shop.publish(TOPICS[0], *["plain"] * 3)
    again = await restarted(shop, LITTLE[1])
    monkeypatch.setattr(stored_log, "PAGE_ROWS", rows_max)
    monkeypatch.setattr(roll_back, "GROUP_ROWS_MAX", rows_max)
    monkeypatch.setattr(roll_back, "LOCKED_PAGES_MAX", 2)
    groups = again.services.writer.groups
    await again.transactions.abort(tx.id)
    assert again.services.writer.groups - groups >= 9 // rows_max
    assert await again.read(TOPICS[0], committed=True) == ["plain"] * 27


async def test_others_get_their_turn_while_rows_of_a_transaction_older_than_the_process_are_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a local store, which is read on the event loop."""
    store = CountedReads()
    shop = await Wired.start(store, memory=LITTLE[1])
    await shop.topics.create(TOPICS[0], {})
    tx = await shop.transactions.begin()
    for _ in range(20):
        await shop.publish(TOPICS[0], "x" * 1_000, tx=tx)
        await shop.publish(TOPICS[0], "y" * 1_000)
    again = await Wired.start(store, shop.clock, memory=LITTLE[1])
    monkeypatch.setattr(stored_log, "PAGE_ROWS", 3)
    async with store.watched():
        await again.transactions.abort(tx.id)
    assert store.read_bytes > 40_000, "the whole log was searched"
    assert store.most_bytes < 4 * 1_100, "more than a page was read while others waited"


@pytest.mark.parametrize("rows_max", [1, 2, 3])
async def test_what_a_writer_has_staged_is_read_by_pages(rows_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = await opened(Remote(), LITTLE[1])
    tx = await shop.transactions.begin()
    for number in range(6):
        await shop.store_aside(TOPICS[0], f"stored {number}", tx=tx)
        if number == 2:
            await shop.messaging.publish(TOPICS[0], [], tx.write_pointer)
    again = await restarted(shop, LITTLE[1])
    monkeypatch.setattr("basalt.messaging.log.stored_log.PAGE_ROWS", rows_max)
    await again.commit(tx)
    assert await again.read(TOPICS[0], committed=True) == [f"stored {number}" for number in range(6)]


async def test_a_topic_that_is_deleted_and_created_while_its_log_is_read_is_one_of_both() -> None:
    shop = await opened(Remote(), LITTLE[0])
    await shop.publish(TOPICS[0], "old")
    for _ in range(20):
        forget_everything(shop)

        async def again(title: TopicName = TOPICS[0]) -> None:
            await shop.topics.delete(title)
            await shop.topics.create(title, {})

        answers = await together(shop.topics.open(TOPICS[0]), again(), shop.publish(TOPICS[0], "new"))
        assert all(isinstance(answer, TopicNotFoundError) for answer in answers if isinstance(answer, Exception))
        log = await shop.topics.open(TOPICS[0])
        assert log.topic == await shop.topics.catalog.read(TOPICS[0])
        assert not log.ended
