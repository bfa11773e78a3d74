"""Commits and one-shot transactions in two write lanes: what is durable before what, and what a write that fails or hangs leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from basalt.commits import recovery
from basalt.errors import (
    CoordinatorUnavailableError,
    ShardMovingError,
    StoreError,
    TransactionEndedError,
    UnknownOutcomeError,
)
from basalt.http.services import COORDINATOR
from basalt.runtime import write_lanes
from basalt.runtime.group_commit import GroupCommit
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import TopicLanes
from basalt.transactions.rules import edits
from basalt.transactions.rules.transaction import State
from basalt_engine.errors import BasaltError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Table, TableWrite
from tests.wiring import A, B, Wired, shop_work

pytestmark = pytest.mark.anyio

LOG = "transaction_log"
HANG_S = 60.0  # nothing waits that long


class LogAway:
    """The table of the log, away while its store says so."""

    def __init__(self, store: ByRow, inner: Table) -> None:
        self._store = store
        self._inner = inner

    def __getattr__(self, name: str):
        if name != "name" and LOG in self._store.away:
            raise StoreError("the region of the log is away")
        return getattr(self._inner, name)


class ByRow(MemoryStore):
    """A store by row; writes to tables that are away fail. Each write is made when the event loop comes by again."""

    busy = True

    def __init__(self) -> None:
        super().__init__(atomic=False)
        self.away: set[str] = set()
        self.written: list[tuple[str, ...]] = []

    def table(self, name: str):
        table = super().table(name)
        return LogAway(self, table) if name == LOG else table

    def write(self, writes: Sequence[TableWrite]) -> None:
        if any(write.table in self.away for write in writes):
            raise StoreError("the region is away")
        self.written.append(tuple(write.table for write in writes))
        for name, mutations in writes:
            for mutation in mutations:
                self._apply([TableWrite(name, [mutation])])

    def _apply(self, writes: Sequence[TableWrite]) -> None:
        with self.locked():
            for name, mutations in writes:
                table = MemoryStore.table(self, name) if name != LOG else self._tables[name]
                table.replace(table.staged(mutations, {}))


class Threads:
    """The threads of the lanes: a write is made at the next turn, or is held until it is let go."""

    def __init__(self) -> None:
        self._held: dict[StoreCalls, list[Callable[[], None]]] = {}

    def begin_write(self, calls: StoreCalls, write: Callable[[], None]) -> None:
        held = self._held.get(calls)
        if held is not None:
            held.append(write)
        else:
            asyncio.get_running_loop().call_soon(write)

    def hold(self, lanes: GroupCommit | TopicLanes) -> None:
        """Hold the writes of the lane, or of all lanes of topics, from now on."""
        self._held.update((calls, []) for calls in _calls_of(lanes))

    async def held(self, lanes: GroupCommit | TopicLanes) -> None:
        """Return once a write is held."""
        await until(lambda: any(self._held[calls] for calls in _calls_of(lanes)))

    def let_go(self, lanes: GroupCommit | TopicLanes) -> None:
        for calls in _calls_of(lanes):
            for write in self._held.pop(calls):
                asyncio.get_running_loop().call_soon(write)


def _calls_of(lanes: GroupCommit | TopicLanes) -> list[StoreCalls]:
    return [lane._calls for lane in (lanes.each if isinstance(lanes, TopicLanes) else (lanes,))]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not is_so():
            await asyncio.sleep(0)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    made = Threads()
    monkeypatch.setattr(StoreCalls, "begin_write", lambda calls, write: made.begin_write(calls, write))
    return made


@pytest.fixture
async def store() -> ByRow:
    return ByRow()


@pytest.fixture
async def shop(store: ByRow, threads: Threads) -> Wired:
    wired = await Wired.start(store)
    for title in (A, B):
        await wired.topics.create(title, {})
    store.written.clear()
    return wired


def lanes(shop: Wired):
    return shop.transactions.manager.lanes


def kinds(shop: Wired) -> list[str]:
    return [type(edit).__name__ for entry in shop.transactions.journal.entries() for edit in entry.edits]


async def test_a_commit_logs_its_intent_then_writes_its_rows_then_logs_its_outcome(shop: Wired, store: ByRow):
    tx = await shop.transactions.begin()
    store.written.clear()
    await shop.commit(tx, orders=["a"], invoices=["b"])
    assert store.written == [(LOG,), ("message",), (LOG,)]
    assert kinds(shop)[-4:] == ["Joined", "Joined", "Committing", "Committed"]
    assert await shop.read(A, committed=True) == ["a"]


async def test_a_topic_joins_in_the_log_before_the_first_row_and_no_more_after(shop: Wired, store: ByRow):
    tx = await shop.transactions.begin()
    store.written.clear()
    await shop.store_aside(A, "one", tx=tx)
    await shop.store_aside(A, "two", tx=tx)
    assert store.written == [(LOG,), ("payload",), ("payload",)]


async def test_two_first_writes_at_once_wait_for_one_join(shop: Wired, threads: Threads):
    tx = await shop.transactions.begin()
    threads.hold(lanes(shop).log)
    calls = [asyncio.ensure_future(shop.store_aside(A, text, tx=tx)) for text in ("one", "two")]
    await threads.held(lanes(shop).log)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(call.done() for call in calls), "a row was written before the log had its topic"
    threads.let_go(lanes(shop).log)
    await asyncio.gather(*calls)
    await shop.commit(tx)
    assert sorted(await shop.read(A, committed=True)) == ["one", "two"]


async def test_a_commit_without_rows_is_one_entry(shop: Wired, store: ByRow):
    tx = await shop.transactions.begin()
    store.written.clear()
    await shop.commit(tx)
    assert store.written == [(LOG,)]


async def test_a_publish_does_not_wait_for_the_log_and_does_not_fail_with_it(
    shop: Wired, store: ByRow, threads: Threads
):
    threads.hold(lanes(shop).log)
    begin = asyncio.ensure_future(shop.transactions.begin())
    await shop.publish(A, "plain")
    await threads.held(lanes(shop).log)
    store.away.add(LOG)
    threads.let_go(lanes(shop).log)
    with pytest.raises(BasaltError):
        await begin
    await shop.publish(A, "also")
    store.away.clear()
    assert await shop.read(A) == ["plain", "also"]


async def test_a_one_shot_in_flight_holds_readers_and_the_stable_end(shop: Wired, threads: Threads):
    await shop.publish(A, "before")
    threads.hold(lanes(shop).log)
    call = asyncio.ensure_future(shop.transactions.one_shot(shop_work(orders=["shot"])))
    await threads.held(lanes(shop).log)  # it is lent pointers
    threads.let_go(lanes(shop).log)
    threads.hold(lanes(shop).log)
    await threads.held(lanes(shop).log)  # its rows are written, and it is to be decided
    log = await shop.topics.open(A)
    settled = await shop.services.markers._ends.settled(log)
    assert (await shop.read(A), await shop.read(A, committed=True)) == (["before", "shot"], ["before"])
    assert settled.position < log.newest
    threads.let_go(lanes(shop).log)
    await call
    assert await shop.read(A, committed=True) == ["before", "shot"]


async def test_the_stable_end_waits_until_it_is_durable_what_became_of_rows_that_have_no_outcome(
    shop: Wired, store: ByRow, threads: Threads
):
    await shop.transactions.one_shot(shop_work(orders=["first"]))  # it has a loan
    threads.hold(lanes(shop).topics)
    call = asyncio.ensure_future(shop.transactions.one_shot(shop_work(orders=["shot"])))
    await threads.held(lanes(shop).topics)
    threads.hold(lanes(shop).log)
    threads.let_go(lanes(shop).topics)
    await threads.held(lanes(shop).log)  # its outcome is under way
    store.away.add(LOG)
    threads.let_go(lanes(shop).log)
    with pytest.raises(BasaltError):
        await call
    store.away.clear()
    threads.hold(lanes(shop).log)
    begin = asyncio.ensure_future(shop.transactions.begin())
    await threads.held(lanes(shop).log)  # so is the entry of recovery
    log = await shop.topics.open(A)
    settling = asyncio.ensure_future(shop.services.markers._ends.settled(log))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not settling.done(), "the outcome may still come first"
    assert await shop.read(A, committed=True) == ["first"]
    threads.let_go(lanes(shop).log)
    assert (await settling).position == log.newest
    await begin


@pytest.mark.parametrize("restart", [False, True])
async def test_a_begin_passes_a_one_shot_in_flight_and_never_sees_it(shop: Wired, threads: Threads, restart: bool):
    await shop.transactions.one_shot(shop_work(orders=["first"]))
    threads.hold(lanes(shop).topics)
    call = asyncio.ensure_future(shop.transactions.one_shot(shop_work(orders=["shot"]), request_id="r"))
    await threads.held(lanes(shop).topics)
    tx = await shop.transactions.begin()
    assert kinds(shop)[-1] == "Began"
    if restart:
        threads.hold(lanes(shop).log)
        threads.let_go(lanes(shop).topics)
        await threads.held(lanes(shop).log)
        reborn = await shop.restarted()
        assert await reborn.read(A, committed=True) == ["first"]
        call.cancel()
        return
    threads.let_go(lanes(shop).topics)
    outcome = await call
    assert outcome.state is State.COMMITTED
    assert outcome.id < tx.id
    assert not tx.snapshot().is_visible(outcome.id)
    assert await shop.read(A, committed=True) == ["first", "shot"]
    again = await shop.transactions.one_shot(shop_work(orders=["shot"]), request_id="r")
    assert again.id == outcome.id
    reborn = await shop.restarted()
    assert await reborn.read(A, committed=True) == ["first", "shot"]


async def test_a_request_that_is_repeated_in_flight_gets_the_first_outcome(shop: Wired, threads: Threads):
    await shop.transactions.one_shot(shop_work(orders=["first"]))
    threads.hold(lanes(shop).topics)
    calls = [
        asyncio.ensure_future(shop.transactions.one_shot(shop_work(orders=["once"]), request_id="r")) for _ in range(2)
    ]
    await threads.held(lanes(shop).topics)
    threads.let_go(lanes(shop).topics)
    one, other = await asyncio.gather(*calls)
    assert one.id == other.id
    assert await shop.read(A) == ["first", "once"]


async def test_rows_that_cannot_be_written_are_given_up_and_the_state_stays(shop: Wired, store: ByRow):
    other = await shop.transactions.begin()
    tx = await shop.transactions.begin()
    store.away.add("message")
    with pytest.raises(TransactionEndedError, match="is rolled back, for its commit could not place its messages"):
        await shop.commit(tx, orders=["lost"])
    with pytest.raises(StoreError):
        await shop.transactions.one_shot(shop_work(orders=["lost, too"]), request_id="r")
    assert shop.transactions.manager.is_known, "the log did not fail"
    store.away.clear()
    with pytest.raises(TransactionEndedError):
        await shop.commit(tx)
    await shop.transactions.one_shot(shop_work(orders=["again"]), request_id="r")
    await shop.commit(other, orders=["kept"])
    await shop.transactions.expire()
    assert await shop.read(A, committed=True) == ["again", "kept"]
    assert await shop.transactions.list() == []


async def test_a_commit_that_is_asked_for_again_waits_for_the_first(shop: Wired, threads: Threads):
    tx = await shop.transactions.begin()
    threads.hold(lanes(shop).topics)
    first = asyncio.ensure_future(shop.commit(tx, orders=["a"]))
    await threads.held(lanes(shop).topics)
    second = asyncio.ensure_future(shop.commit(tx, orders=["a"]))
    abort = asyncio.ensure_future(shop.transactions.abort(tx.id))
    threads.let_go(lanes(shop).topics)
    await asyncio.gather(first, second)
    with pytest.raises(TransactionEndedError):
        await abort
    assert await shop.read(A, committed=True) == ["a"]


async def test_commits_that_are_asked_for_at_once_are_all_told_the_outcome(shop: Wired, store: ByRow):
    tx = await shop.transactions.begin()
    asked = [shop.transactions.commit(tx.id, shop_work(orders=["once"])) for _ in range(3)]
    assert [outcome.state for outcome in await asyncio.gather(*asked)] == [State.COMMITTED] * 3
    assert await shop.read(A, committed=True) == ["once"]

    other = await shop.transactions.begin()
    store.away.add("message")
    asked = [shop.transactions.commit(other.id, shop_work(orders=["never"])) for _ in range(3)]
    assert all(isinstance(answer, BasaltError) for answer in await asyncio.gather(*asked, return_exceptions=True))
    store.away.clear()
    await shop.transactions.expire()
    assert (await shop.transactions.outcome(other.id)).state is State.ABORTED


async def test_a_commit_is_decided_though_its_client_has_gone(shop: Wired, threads: Threads):
    tx = await shop.transactions.begin()
    threads.hold(lanes(shop).topics)
    call = asyncio.ensure_future(shop.commit(tx, orders=["a"]))
    await threads.held(lanes(shop).topics)
    call.cancel()
    threads.let_go(lanes(shop).topics)
    await shop.transactions.carry_through()
    assert (await shop.transactions.outcome(tx.id)).state is State.COMMITTED


async def test_a_log_that_hangs_is_told_of_in_time_and_comes_back(
    shop: Wired, threads: Threads, monkeypatch: pytest.MonkeyPatch
):
    log = lanes(shop).log
    assert log._late_ms == write_lanes.LOG_LATE_MS_MAX
    log._late_ms = 1.0
    threads.hold(log)
    begin = asyncio.ensure_future(shop.transactions.begin(request_id="r"))
    with pytest.raises(UnknownOutcomeError):
        await begin
    with pytest.raises(CoordinatorUnavailableError):
        await shop.transactions.begin()
    await shop.publish(A, "plain")
    ready = await shop.services.readiness()
    assert ready.ready
    assert [part.ok for part in ready.parts if part.name == COORDINATOR] == [False]
    log._late_ms = None
    threads.let_go(log)
    await until(lambda: not log.is_late)
    tx = await shop.transactions.begin(request_id="r")
    assert [type(edit) for entry in shop.transactions.journal.entries() for edit in entry.edits] == [edits.Began]
    await shop.commit(tx, orders=["mine"])
    assert await shop.read(A, committed=True) == ["plain", "mine"]


async def test_services_open_without_the_log_and_serve_what_needs_none(shop: Wired, store: ByRow):
    await shop.publish(A, "plain")
    await shop.transactions.one_shot(shop_work(invoices=["shot"]))
    store.away.add(LOG)
    reborn = await shop.restarted()
    await reborn.publish(A, "more")
    assert await reborn.read(A) == await reborn.read(A, committed=True) == ["plain", "more"]
    assert await reborn.read(B) == ["shot"]
    with pytest.raises(CoordinatorUnavailableError):
        await reborn.read(B, committed=True)  # it would look like the topic's end
    with pytest.raises(CoordinatorUnavailableError, match="cannot be read"):
        await reborn.transactions.begin()
    ready = await reborn.services.readiness()
    (part,) = [part for part in ready.parts if part.name == COORDINATOR]
    assert (ready.ready, part.ok) == (True, False)
    assert "the last attempt: " in part.detail
    assert reborn.transactions.manager.unread_because in part.detail
    store.away.clear()
    tx = await reborn.transactions.begin()
    await reborn.commit(tx, orders=["mine"])
    assert await reborn.read(B, committed=True) == ["shot"]
    ready = await reborn.services.readiness()
    assert [part.ok for part in ready.parts if part.name == COORDINATOR] == [True]


async def test_who_waits_for_the_log_to_be_read_is_told_in_time_and_the_attempt_goes_on(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
):
    assert 0 < recovery.KNOWN_WAIT_MS_MAX < 5_000, "clients are answered within five seconds"
    manager, read = shop.transactions.manager, asyncio.Event()
    read_log = manager.read_log

    async def slow():
        await read.wait()
        return await read_log()

    monkeypatch.setattr(manager, "read_log", slow)
    manager.lost()
    with pytest.raises(CoordinatorUnavailableError, match="not been read within 1 ms"):
        await shop.transactions._recovery.ensure_known(1.0)
    await shop.publish(A, "plain")
    read.set()
    await until(lambda: manager.is_known)
    await shop.transactions.begin()


async def test_a_stop_carries_through_what_was_taken(shop: Wired, threads: Threads):
    tx = await shop.transactions.begin()
    threads.hold(lanes(shop).topics)
    commit = asyncio.ensure_future(shop.commit(tx, orders=["a"]))
    await threads.held(lanes(shop).topics)
    stop = asyncio.ensure_future(shop.services._stop_writing())
    threads.let_go(lanes(shop).topics)
    await stop
    await commit
    assert (shop.transactions.state.outcome(tx.id)).state is State.COMMITTED


async def late(shop: Wired, threads: Threads) -> GroupCommit:
    """The log, whose write hangs and is late."""
    log = lanes(shop).log
    log._late_ms = 1.0
    threads.hold(log)
    with pytest.raises(UnknownOutcomeError):
        await shop.transactions.begin()
    assert log.is_late
    return log


async def test_while_the_log_is_late_a_one_shot_transaction_is_refused_before_it_leaves_rows(
    shop: Wired, threads: Threads
):
    await shop.publish(B, "before")
    log = await late(shop, threads)
    with pytest.raises(CoordinatorUnavailableError, match="nothing was done"):
        await shop.transactions.one_shot(shop_work(invoices=["shot"]))
    assert await shop.read(B) == ["before"]
    log._late_ms = None
    threads.let_go(log)
    await until(lambda: not log.is_late)
    await shop.transactions.one_shot(shop_work(invoices=["shot"]))
    assert await shop.read(B, committed=True) == ["before", "shot"]


@pytest.mark.parametrize("fails", [False, True])
async def test_who_comes_to_the_log_with_a_later_step_while_it_is_late_is_told_at_once(
    shop: Wired, store: ByRow, threads: Threads, caplog: pytest.LogCaptureFixture, fails: bool
):
    await shop.transactions.one_shot(shop_work(invoices=["first"]))  # it has a loan
    topics = lanes(shop).topics
    threads.hold(topics)
    shot = asyncio.ensure_future(shop.transactions.one_shot(shop_work(invoices=["shot"]), request_id="r"))
    await threads.held(topics)
    log = await late(shop, threads)
    threads.let_go(topics)
    with pytest.raises(UnknownOutcomeError):
        await asyncio.wait_for(shot, 60)
    assert log.is_late, "nobody waited for the write"
    log._late_ms = None
    if fails:
        store.away.add(LOG)
    threads.let_go(log)
    await until(lambda: not log.is_late and not log._busy)
    store.away.clear()
    assert "could not be told" not in caplog.text
    await shop.transactions.one_shot(shop_work(invoices=["shot"]), request_id="r")
    await shop.transactions.expire()  # the job that also rolls back what was given up
    assert await shop.read(B, committed=True) == ["first", "shot"]


async def test_a_stop_does_not_wait_for_a_log_that_is_late(shop: Wired, threads: Threads):
    log = lanes(shop).log
    log._late_ms = 1.0
    threads.hold(log)
    begin = asyncio.ensure_future(shop.transactions.begin())
    await threads.held(log)
    await asyncio.wait_for(shop.services._stop_writing(), 60)  # it was not late yet
    assert log.is_late
    with pytest.raises(UnknownOutcomeError):
        await begin
    await asyncio.wait_for(shop.services._stop_writing(), 60)
    threads.let_go(log)
    await until(lambda: not log.is_late)


async def test_a_commit_whose_rows_take_too_long_is_given_up_and_shows_nothing_when_they_come(
    shop: Wired, threads: Threads
):
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    shop.transactions.carrier._place_ms = 1
    threads.hold(lanes(shop).topics)
    with pytest.raises(TransactionEndedError, match="not durable within 1 ms"):
        await shop.commit(tx, invoices=["late"])
    late = asyncio.ensure_future(shop.store_aside(A, "after the answer", tx=tx))
    threads.let_go(lanes(shop).topics)
    with pytest.raises(TransactionEndedError):
        await late
    await shop.transactions.carry_through()
    assert await shop.read(A, committed=True) == await shop.read(B, committed=True) == []
    assert (await shop.transactions.outcome(tx.id)).state is State.ABORTED


async def test_a_place_that_waits_behind_others_when_its_commit_is_given_up_leaves_no_row(
    shop: Wired, threads: Threads
):
    tx = await shop.transactions.begin()
    shop.transactions.carrier._place_ms = 1
    threads.hold(lanes(shop).topics)
    before = asyncio.ensure_future(shop.publish(A, "before"))
    await threads.held(lanes(shop).topics)
    with pytest.raises(TransactionEndedError, match="not durable within 1 ms"):
        await shop.commit(tx, orders=["late"])
    threads.let_go(lanes(shop).topics)
    await before
    await shop.transactions.carry_through()
    assert await shop.read(A) == ["before"]


@pytest.fixture
async def uncarried(shop: Wired, store: ByRow, monkeypatch: pytest.MonkeyPatch) -> int:
    """A transaction whose commit has an intent, no rows, and no carrier: it could not be given up, for a shard moved."""
    tx = await shop.transactions.begin()
    stages = shop.transactions.carrier._stages
    store.away.add("message")

    def moving(*_: object) -> None:
        raise ShardMovingError("shard 1 moves between servers")

    with monkeypatch.context() as patched:
        patched.setattr(stages, "decide", moving)
        with pytest.raises(UnknownOutcomeError):
            await shop.commit(tx, orders=["lost"])
    store.away.clear()
    assert shop.transactions.state.get(tx.id).state is State.COMMITTING
    return tx.id


async def test_who_asks_again_for_a_commit_that_nobody_carries_is_told_that_it_is_rolled_back(
    shop: Wired, uncarried: int
):
    with pytest.raises(TransactionEndedError):
        await shop.transactions.commit(uncarried, shop_work(orders=["lost"]))
    await shop.transactions.carry_through()
    assert (await shop.transactions.outcome(uncarried)).state is State.ABORTED
    assert await shop.read(A, committed=True) == []


async def test_a_commit_that_nobody_carries_is_given_up_when_time_passes(shop: Wired, uncarried: int):
    await shop.transactions.expire()
    assert shop.transactions.state.get(uncarried).state is State.COMMITTING, "its carrier may be about to begin"
    await shop.transactions.expire()
    assert (await shop.transactions.outcome(uncarried)).state is State.ABORTED


async def test_rows_that_were_given_up_are_closed_before_the_answer(shop: Wired, store: ByRow, threads: Threads):
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    store.away.add("message")
    with pytest.raises(TransactionEndedError, match="is rolled back"):
        await shop.commit(tx, orders=["lost"])
    with pytest.raises(TransactionEndedError):
        await shop.store_aside(B, "after the answer", tx=tx)
    store.away.clear()
    with pytest.raises(TransactionEndedError):
        await shop.store_aside(A, "after the answer", tx=tx)
    await shop.transactions.expire()
    assert (await shop.transactions.outcome(tx.id)).state is State.ABORTED
