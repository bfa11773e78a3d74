"""A change whose answer was lost, and which the store makes long after: once the entry was read again it takes effect no more.

So what a server serves is what the next server finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from basalt.catalog import catalog as catalog_module
from basalt.catalog.tables import TableCatalog, table_name
from basalt.catalog.topics import Topics, topic_name
from basalt.errors import BusyError, TableNotFoundError, TopicExistsError, TopicNotFoundError
from basalt.messaging.log.topic_logs import TopicLogs
from basalt_engine.clock import ManualClock
from basalt_engine.errors import StoreError, UnknownOutcomeError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Columns, Table

pytestmark = pytest.mark.anyio

ORDERS, BILLS = topic_name("shop", "orders"), topic_name("shop", "bills")
STOCK = table_name("shop", "stock")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class LateTable:
    """The metadata table behind a network: the answers to changes may be lost, and the changes come later, or at once."""

    def __init__(self, inner: Table) -> None:
        self.inner = inner
        self.name = inner.name
        self.lose: int = 0
        self.error: Exception | None = None
        self.made = False  # a change whose answer is lost is made at once
        self.on_their_way: list[Callable[[], bool]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def check_and_write(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        if self.error is not None:
            raise self.error
        if not self.lose:
            return self.inner.check_and_write(key, column, expected, columns)
        self.lose -= 1
        self.on_their_way.append(lambda: self.inner.check_and_write(key, column, expected, columns))
        if self.made:
            self.arrive()
        raise UnknownOutcomeError("no answer")

    def arrive(self) -> list[bool]:
        """What was on its way reaches the store, and whether it changed something there."""
        coming, self.on_their_way = self.on_their_way, []
        return [change() for change in coming]


class LateStore(MemoryStore):
    """Behind a network."""

    remote = True

    def __init__(self) -> None:
        super().__init__()
        table = self.table
        self.metadata = LateTable(table("metadata"))
        self.table = lambda name: self.metadata if name == "metadata" else table(name)  # type: ignore[assignment, method-assign, return-value]


@pytest.fixture
def store() -> LateStore:
    return LateStore()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000)


def served(store: LateStore, clock: ManualClock) -> TopicLogs:
    """The topics of a server."""
    return TopicLogs(store, clock, Topics(store, clock, 16), tail_bytes_max=0)


async def lost(store: LateStore, change: Awaitable[object], times: int = 1) -> None:
    """Make a change whose answer is lost."""
    store.metadata.lose = times
    with pytest.raises(UnknownOutcomeError):
        await change
    assert store.metadata.lose == 0


CHANGES = {
    "delete": lambda topics: topics.delete(ORDERS),
    "update": lambda topics: topics.update(ORDERS, {"ttl": "60"}),
    "truncate": lambda topics: topics.truncate(ORDERS, 900),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("made", [False, True], ids=["late", "at once"])
async def test_what_was_read_after_a_change_whose_answer_was_lost_stays_so(
    store: LateStore, clock: ManualClock, change: Callable[[TopicLogs], Awaitable[object]], made: bool
) -> None:
    topics = served(store, clock)
    await topics.create(ORDERS, {})
    store.metadata.made = made
    await lost(store, change(topics))
    try:
        found = (await topics.get(ORDERS)).metadata
    except TopicNotFoundError:
        assert made
        found = None
    assert store.metadata.arrive() == ([] if made else [False])
    for server in (topics, served(store, clock)):
        if found is None:
            with pytest.raises(TopicNotFoundError):
                await server.get(ORDERS)
        else:
            assert (await server.get(ORDERS)).metadata == found


async def test_a_topic_whose_late_delete_was_given_up_can_be_changed_and_deleted(
    store: LateStore, clock: ManualClock
) -> None:
    topics = served(store, clock)
    await topics.create(ORDERS, {})
    await lost(store, topics.delete(ORDERS))
    assert (await topics.update(ORDERS, {"ttl": "60"})).metadata.ttl_ms == 60_000
    assert store.metadata.arrive() == [False]
    await topics.delete(ORDERS)
    assert (await topics.create(ORDERS, {})).generation == 2


async def test_a_topic_is_not_said_to_exist_while_its_delete_is_on_its_way(
    store: LateStore, clock: ManualClock
) -> None:
    topics = served(store, clock)
    await topics.create(ORDERS, {})
    await lost(store, topics.delete(ORDERS))
    with pytest.raises(TopicExistsError):
        await topics.create(ORDERS, {})
    assert store.metadata.arrive() == [False]
    assert (await topics.get(ORDERS)).generation == 1


async def test_a_delete_that_comes_while_its_fate_is_decided_is_found(store: LateStore, clock: ManualClock) -> None:
    topics = served(store, clock)
    await topics.create(ORDERS, {})
    await lost(store, topics.delete(ORDERS))
    write = store.metadata.check_and_write

    def overtaken(key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        store.metadata.arrive()
        return write(key, column, expected, columns)

    store.metadata.check_and_write = overtaken  # type: ignore[method-assign]
    with pytest.raises(TopicNotFoundError):
        await topics.get(ORDERS)
    assert not topics.catalog._in_doubt


async def test_while_the_store_takes_no_writes_the_topic_is_not_served(store: LateStore, clock: ManualClock) -> None:
    topics = served(store, clock)
    await topics.create(ORDERS, {})
    await lost(store, topics.delete(ORDERS))
    store.metadata.error = StoreError("the region is away")
    with pytest.raises(StoreError):
        await topics.get(ORDERS)
    store.metadata.error = None
    await lost(store, topics.get(ORDERS))  # the answer of that write, too
    assert (await topics.get(ORDERS)).generation == 1
    assert True not in store.metadata.arrive()


async def test_who_gives_up_waiting_leaves_the_change_in_doubt(store: LateStore, clock: ManualClock) -> None:
    topics = served(store, clock)
    await topics.create(ORDERS, {})
    store.metadata.error = asyncio.CancelledError()  # type: ignore[assignment]
    with pytest.raises(asyncio.CancelledError):
        await topics.delete(ORDERS)
    assert list(topics.catalog._in_doubt) == [ORDERS]


@pytest.mark.parametrize("error", [StoreError("no connection"), BusyError("no thread is free")])
async def test_a_change_that_surely_was_not_made_is_not_in_doubt(
    store: LateStore, clock: ManualClock, error: Exception
) -> None:
    topics = served(store, clock)
    await topics.create(ORDERS, {})
    store.metadata.error = error
    with pytest.raises(type(error)):
        await topics.delete(ORDERS)
    assert (await topics.get(ORDERS)).generation == 1  # needs no write


async def test_with_too_many_changes_in_doubt_one_is_decided_before_the_next(
    store: LateStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "IN_DOUBT_MAX", 1)
    topics = served(store, clock)
    for title in (ORDERS, BILLS):
        await topics.create(title, {})
    await lost(store, topics.delete(ORDERS))
    await topics.update(BILLS, {"ttl": "60"})
    assert not topics.catalog._in_doubt
    assert store.metadata.arrive() == [False]


async def test_a_table_whose_delete_comes_late_is_the_same_for_the_next_server(
    store: LateStore, clock: ManualClock
) -> None:
    tables = TableCatalog(store, clock, 16)
    await tables.create(STOCK)
    await lost(store, tables.delete(STOCK))
    found = await tables.get(STOCK)
    assert store.metadata.arrive() == [False]
    assert await TableCatalog(store, clock, 16).get(STOCK) == found
    await tables.delete(STOCK)
    with pytest.raises(TableNotFoundError):
        await TableCatalog(store, clock, 16).get(STOCK)
