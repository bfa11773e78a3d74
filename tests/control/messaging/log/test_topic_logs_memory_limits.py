"""More topics and writers than the services remember: what they forget, they can read again.

Of rows that are being written the store knows nothing yet. Where their places were forgotten, they would be given out a
second time, and the later row would take the place of one that its caller was told is there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

import pytest

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.catalog.topics import TopicName, topic_name
from basalt.errors import UnavailableError
from basalt.messaging.log.topic_log import LogLimits
from basalt.runtime.group_commit import Group
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.errors import StoreError, UnknownOutcomeError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable
from basalt_engine.table import TableWrite
from tests.wiring import Wired, encoded

pytestmark = pytest.mark.anyio

T = TypeVar("T")
TOPICS = [topic_name("shop", f"t{number}") for number in range(5)]


class Store(MemoryStore):
    """Writes on a thread while `held`, and fails as it is told: before the write, or after it. A log with a lane of its own is never held."""

    def __init__(self, *, atomic: bool, remote: bool) -> None:
        super().__init__(atomic=atomic)
        self.remote = remote
        self.fails: str | None = None
        self.writing = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def write(self, writes: Sequence[TableWrite]) -> None:
        fails = self.fails  # as it was told before it was held
        if self.atomic or writes[0].table != "transaction_log":
            self.writing.set()
            self.go_on.wait(60)
        if fails == "refused":
            raise StoreError("the disk is full")
        super().write(writes)
        if fails == "no answer":
            raise UnknownOutcomeError("the connection broke")

    def hold(self) -> None:
        """Let no write go on until `release`."""
        self.writing.clear()
        self.go_on.clear()

    async def held(self) -> None:
        """A write has come to where it is held."""
        while not self.writing.is_set():
            await asyncio.sleep(0)

    def release(self) -> None:
        self.go_on.set()


@pytest.fixture(params=["atomic", "by row"])
def atomic(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "atomic")


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest, atomic: bool) -> Store:
    return Store(atomic=atomic, remote=request.param == "remote")


@pytest.fixture(params=[1, 2, 3])
async def shop(request: pytest.FixtureRequest, store: Store) -> AsyncIterator[Wired]:
    """Five empty topics, of which one to three are remembered, and as many writers."""
    wired = await Wired.start(store, memory=LogLimits(logs=request.param, writers=request.param))
    for title in TOPICS:
        await wired.topics.create(title, {})
    yield wired
    store.release()
    await wired.services.close()


async def together(shop: Wired, *calls: Awaitable[T]) -> list[T | BaseException]:
    """Make calls whose stages meet in one group: all wait for one that is about to be written, or are ready at once."""
    before = shop.services.writer.groups
    blocker = None
    store = shop.store
    assert isinstance(store, Store)
    if store.remote:  # they read on threads, and come when they have read
        fails, store.fails = store.fails, None
        store.hold()
        blocker = asyncio.ensure_future(shop.services.writer.each[0].run(touch))
        await store.held()
    answers = asyncio.gather(*calls, return_exceptions=True)
    if blocker is not None:
        while len(shop.services.writer.each[0]._queue) < len(calls):
            await asyncio.sleep(0)
        store.fails = fails
        store.release()
        await blocker
        before += 1
    found = await answers
    # A stage that needs what is not in memory runs again, in a later group: each call at most once for each thing it lacks.
    assert shop.services.writer.groups <= before + 1 + len(calls) * len(TOPICS)
    return found


def touch(group: Group) -> None:
    """A stage that writes something of no meaning."""
    group.add(SystemTable.name, SystemTable.put("test", "touched", b""))


async def restarted(shop: Wired) -> Wired:
    """Services that remember nothing of what these did, over what the store has."""
    return await shop.restarted(cached=False)


async def contents(shop: Wired, *, committed: bool = False) -> list[list[str]]:
    """What each topic holds: to readers now, and the same after a restart."""
    now = [await shop.read(title, committed=committed) for title in TOPICS]
    later = await restarted(shop)
    assert [await later.read(title, committed=committed) for title in TOPICS] == now
    return now


async def test_a_group_that_appends_to_more_topics_than_are_remembered_gives_each_place_once(shop: Wired) -> None:
    calls = [shop.messaging.publish(title, encoded([text])) for text in ("first", "second") for title in TOPICS]
    answers = await together(shop, *calls)
    assert len(set(zip([*TOPICS, *TOPICS], answers, strict=True))) == len(answers)
    assert await contents(shop) == [["first", "second"]] * len(TOPICS)


async def test_publishes_under_pointers_in_one_group_do_not_write_over_each_other(shop: Wired) -> None:
    txs = [await shop.transactions.begin() for _ in range(2)]
    for tx in txs:
        for title in TOPICS:
            await shop.services.join_topic(tx.id, title)
    await together(shop, *(shop.publish(title, f"{at}", tx=tx) for at, tx in enumerate(txs) for title in TOPICS))
    for tx in txs:
        await shop.commit(tx)
    assert await contents(shop, committed=True) == [["0", "1"]] * len(TOPICS)


async def test_a_one_shot_to_more_topics_than_are_remembered_keeps_what_others_appended(shop: Wired) -> None:
    def one_shot(text: str) -> Awaitable[object]:
        work = Work(publish=[WorkPublish(*title, encoded([text])) for title in (*TOPICS, *TOPICS)])
        return shop.transactions.one_shot(work, "test", text)

    published = [shop.messaging.publish(title, encoded(["published"])) for title in TOPICS]
    answers: list[Awaitable[object]] = [*published, one_shot("first"), one_shot("second")]
    await together(shop, *answers)
    for held in await contents(shop, committed=True):
        assert sorted(held) == ["first", "first", "published", "second", "second"]


async def test_stores_of_more_writers_than_are_remembered_take_each_place_once(shop: Wired) -> None:
    txs = [await shop.transactions.begin() for _ in range(4)]
    stores = [shop.store_aside(TOPICS[0], text, tx=tx) for text in ("first", "second") for tx in txs]
    assert await together(shop, *stores) == [None] * len(stores)
    for tx in txs:
        await shop.commit(tx)
    assert await contents(shop, committed=True) == [["first", "second"] * len(txs), [], [], [], []]


async def test_a_commit_of_many_writers_keeps_what_others_store_in_the_same_group(shop: Wired) -> None:
    """The commit looks at each of its topics; the others store before and after it."""
    large = await shop.transactions.begin()
    for title in TOPICS:
        await shop.store_aside(title, "large", tx=large)
    others = [await shop.transactions.begin() for _ in range(2)]
    for title in TOPICS[:2]:
        for tx in others:
            await shop.store_aside(title, "before", tx=tx)

    def stores(text: str) -> list[Awaitable[None]]:
        return [shop.store_aside(title, text, tx=tx) for title in TOPICS[:2] for tx in others]

    answers = await together(shop, *stores("first"), shop.commit(large), *stores("second"))
    assert not [answer for answer in answers if isinstance(answer, BaseException)]
    for tx in others:
        await shop.commit(tx)
    stored = ["large", *["before", "first", "second"] * 2]
    assert await contents(shop, committed=True) == [stored, stored, *[["large"]] * 3]


async def test_references_to_more_writers_than_are_remembered_publish_each_message_once(shop: Wired) -> None:
    """Stores and the publishes of what was stored meet in one group, and again in the next."""
    txs = [await shop.transactions.begin() for _ in range(4)]
    for text in ("first", "second"):
        stores = [shop.store_aside(TOPICS[0], text, tx=tx) for tx in txs]
        references = [shop.publish(TOPICS[0], tx=tx) for tx in txs]
        await together(shop, *stores, *references)
    for tx in txs:
        await shop.commit(tx)
    assert await contents(shop, committed=True) == [["first"] * 4 + ["second"] * 4, [], [], [], []]


@pytest.mark.parametrize("fails", ["refused", "no answer"])
async def test_after_a_group_that_failed_no_place_is_given_out_twice(shop: Wired, store: Store, fails: str) -> None:
    tx = await shop.transactions.begin()
    for title in TOPICS:
        await shop.store_aside(title, "stored before", tx=tx)
    store.fails = fails
    calls: list[Awaitable[object]] = []
    for text in ("first", "second"):
        calls += [shop.messaging.publish(title, encoded([text])) for title in TOPICS]
        calls += [shop.store_aside(title, f"stored {text}", tx=tx) for title in TOPICS]
    for answer in await together(shop, *calls):
        assert isinstance(answer, StoreError | UnknownOutcomeError | UnavailableError)
    store.fails = None
    await shop.transactions.recover()
    for title in TOPICS:
        await shop.publish(title, "third")
        await shop.store_aside(title, "stored third", tx=tx)
    await shop.commit(tx)
    # What was refused or never answered may be there where the answer was lost; what was acknowledged is there once.
    lost = ["first", "second"] if fails == "no answer" else []
    possible = [*lost, "third", "stored before", *(f"stored {text}" for text in (*lost, "third"))]
    for held in await contents(shop, committed=True):
        assert held == [text for text in possible if text in held]
        assert {"third", "stored before", "stored third"} <= set(held)


async def test_calls_that_come_while_a_group_is_written_do_not_make_it_forgotten(atomic: bool) -> None:
    """They read what they need to know, which takes room in memory, and are staged when that group is durable."""
    store = Store(atomic=atomic, remote=True)
    shop = await Wired.start(store, memory=LogLimits(logs=2, writers=2))
    for title in TOPICS:
        await shop.topics.create(title, {})
    txs = [await shop.transactions.begin() for _ in range(2)]
    for tx in txs:
        for title in TOPICS:
            await shop.services.join_topic(tx.id, title)
    for text in ("first", "second", "third"):
        store.hold()
        writes = [asyncio.ensure_future(shop.publish(TOPICS[0], text))]
        await store.held()
        writes += [asyncio.ensure_future(call) for title in TOPICS for call in writes_of(shop, title, text, txs)]
        for _ in range(100):  # what they read, they read now
            await asyncio.sleep(0)
        store.release()
        await asyncio.gather(*writes)
    for tx in txs:
        await shop.commit(tx)
    for title, held in zip(TOPICS, await contents(shop, committed=True), strict=True):
        published = ["first", "first", "second", "second", "third", "third"]
        expected = published if title == TOPICS[0] else published[::2]
        assert held == [*expected, *["first", "second", "third"] * 2]
    await shop.services.close()


def writes_of(shop: Wired, title: TopicName, text: str, txs: Sequence[Transaction]) -> list[Awaitable[None]]:
    return [shop.publish(title, text), *(shop.store_aside(title, text, tx=tx) for tx in txs)]


async def test_blocks_beyond_the_limit_of_all_topics_go_and_sums_stay() -> None:
    shop = await Wired.start(memory=LogLimits(block_entries=3))
    for title in TOPICS:
        await shop.topics.create(title, {})
        await shop.publish(title, "one", "two")
        assert (await shop.services.ranges.advance(title, None)).messages == 2
    indexes = [(await shop.topics.open(title)).index for title in TOPICS]
    assert [len(index.blocks) for index in indexes if index is not None] == [0, 0, 1, 1, 1]
    assert [len(index.buckets) for index in indexes if index is not None] == [1] * 5
    assert shop.topics.memory.block_entries == 3
    shop.topics.memory.forget_all_blocks()
    assert shop.topics.memory.block_entries == 0
    assert [(await shop.services.ranges.advance(title, None)).messages for title in TOPICS] == [2] * 5
    await shop.services.close()


async def test_a_topic_that_was_only_created_takes_no_memory_of_logs() -> None:
    shop = await Wired.start()
    for title in TOPICS:
        await shop.topics.create(title, {})
    assert (len(shop.topics.memory.recent), len(shop.topics._open)) == (0, 0)
    await shop.publish(TOPICS[0], "x")
    assert list(shop.topics.memory.recent) == [TOPICS[0]]
    await shop.services.close()
