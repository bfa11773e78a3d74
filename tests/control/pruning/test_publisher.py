"""The published snapshot: what is in it, when it is written, and that a former leader's never replaces a newer one."""

from __future__ import annotations

import pytest

from basalt.errors import ConflictError
from basalt.operations.jobs import publish_snapshot
from basalt.pruning.publisher import AT_LEAST_EVERY_MS, RUN_TOLD_AFTER_MS, SnapshotPublisher
from basalt.pruning.state import STATE, PruneState, change_state
from basalt.transactions.log_state import ManagerSnapshot
from basalt.transactions.rules.transaction import Kind
from basalt_engine.clock import ManualClock
from basalt_engine.errors import FencedError
from basalt_engine.snapshot import POINTERS_PER_MS, InvalidList, PointerRun, PointerRuns, TransactionSnapshot
from basalt_engine.stores.hbase.regions import RegionSnapshot
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable
from basalt_engine.table import Put
from tests.control.pruning.conftest import LIFETIME_MS, SKEW_MS, failed_writer
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


class Still:
    """A transaction manager in which nothing moves but by hand."""

    def __init__(self, epoch: int = 3) -> None:
        self.now = ManagerSnapshot(
            epoch, 100, 80, TransactionSnapshot(90, in_progress=(95,), invalid=InvalidList((7, 8)))
        )

    async def manager_snapshot(self) -> ManagerSnapshot:
        return self.now


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(atomic=False)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def publisher(
    store: MemoryStore,
    clock: ManualClock,
    epoch: int = 3,
    lifetime_ms: int = LIFETIME_MS,
    manager: Still | None = None,
) -> SnapshotPublisher:
    return SnapshotPublisher(store, clock, manager or Still(epoch), lifetime_ms)


def stored(store: MemoryStore) -> RegionSnapshot:
    body = SystemTable(store.table("system")).get("snapshot", "latest")
    assert body is not None
    return RegionSnapshot.decode(body)


async def test_a_snapshot_says_what_the_manager_knows(store, clock):
    made = await publisher(store, clock).publish()
    expected = RegionSnapshot(3, 1, clock.now_ms(), 90, 100, 94, 80, LIFETIME_MS, (95,), (7, 8))
    assert stored(store) == made == expected


async def test_many_pointers_without_a_gap_are_published_as_a_run(store, clock):
    manager = Still()
    pointers = (7, 8, *range(20, 60), 70)
    manager.now = manager.now._replace(view=manager.now.view._replace(invalid=InvalidList(pointers)))
    made = await publisher(store, clock, manager=manager).publish()
    assert (made.invalid, list(made.invalid_runs)) == ((7, 8, 70), [(20, 59)])
    assert made.invalid_count == len(pointers)
    assert stored(store) == made


async def test_region_servers_hear_of_a_failed_run_only_when_no_clock_gives_its_places_out_again(store, clock):
    manager = Still()
    first = clock.now_ms() * POINTERS_PER_MS
    run, old = PointerRun(first, first + 4_095), PointerRun(20, 4_115)
    view = TransactionSnapshot(first + 9_000, 0, (first + 8_000,), InvalidList((7,), 1, PointerRuns([old, run])))
    manager.now = ManagerSnapshot(3, first + 9_000, 80, view)
    made = publisher(store, clock, manager=manager)
    told = await made.publish()
    assert (list(told.in_progress_runs), list(told.invalid_runs)) == ([run], [old])
    assert told.decided == first - 1, "a file that is filtered by this copy may hold rows of the run"
    clock.advance(RUN_TOLD_AFTER_MS - 1)
    assert list((await made.publish()).invalid_runs) == [old]
    clock.advance(1)
    told = await made.publish()
    assert (list(told.in_progress_runs), list(told.invalid_runs)) == ([], [old, run])
    assert told.decided == first + 7_999


async def test_a_run_in_progress_is_published_and_nothing_behind_it_is_decided(store, clock):
    manager = Still()
    runs = PointerRuns([(92, 94), (96, 99)])
    view = manager.now.view._replace(in_progress_runs=runs)
    manager.now = manager.now._replace(view=view)
    made = await publisher(store, clock, manager=manager).publish()
    assert (made.in_progress_runs, made.in_progress, made.decided) == (runs, (95,), 91)


async def test_the_sequence_goes_on_within_a_term_and_begins_anew_with_the_next(store, clock):
    first = publisher(store, clock)
    assert [(await first.publish()).order for _ in range(3)] == [(3, 1), (3, 2), (3, 3)]
    assert (await publisher(store, clock).publish()).order == (3, 4), "after a restart"
    assert (await publisher(store, clock, epoch=4).publish()).order == (4, 1)


async def test_a_former_leader_never_replaces_a_newer_copy(store, clock):
    former = publisher(store, clock, epoch=3)
    await former.publish()
    await publisher(store, clock, epoch=4).publish()
    for _ in range(2):
        with pytest.raises(FencedError, match="epoch 4"):
            await former.publish()
    assert stored(store).order == (4, 1)


async def test_two_servers_of_one_term_never_write_one_over_the_other_unseen(store, clock):
    one, other = publisher(store, clock), publisher(store, clock)
    for _ in range(3):
        await one.publish()
        await other.publish()
    assert stored(store).order == (3, 6)


async def test_a_store_that_always_changes_beneath_is_a_conflict(store, clock, monkeypatch):
    made = publisher(store, clock)
    monkeypatch.setattr(SystemTable, "replace", lambda self, kind, *rest: kind != "snapshot")
    with pytest.raises(ConflictError):
        await made.publish()


async def test_a_damaged_copy_is_replaced(store, clock):
    made = publisher(store, clock)
    await made.publish()
    SystemTable(store.table("system")).write("snapshot", "latest", b"\x09nonsense")
    assert (await publisher(store, clock).publish()).order == (3, 1)
    store.table("system").write([Put(b"snapshot:latest", {b"v": b"\x01nonsense"})])
    assert (await publisher(store, clock).publish()).order == (3, 1)


async def test_only_changes_are_published_but_for_one_a_minute(store, clock):
    manager = Still()
    made = publisher(store, clock, manager=manager)
    assert await made.publish(only_changes=True) is not None
    assert await made.publish(only_changes=True) is None
    clock.advance(AT_LEAST_EVERY_MS - 1)
    assert await made.publish(only_changes=True) is None
    clock.advance(1)
    assert (await made.publish(only_changes=True)).sequence == 2
    manager.now = manager.now._replace(write_pointer=101)
    assert (await made.publish(only_changes=True)).write_pointer == 101
    assert made.age_ms == 0
    clock.step(clock.now_ms() - 5_000)
    assert (await made.publish(only_changes=True)) is not None, (
        "a clock that was set back does not keep it from writing"
    )


async def test_the_job_publishes_and_keeps_no_history_of_it(store, clock):
    made = publisher(store, clock)
    assert await publish_snapshot(made) == {}
    assert stored(store).sequence == 1
    assert await publish_snapshot(made) == {}
    assert stored(store).sequence == 1


# The lifetime in it.


async def test_the_longest_lifetime_that_a_region_may_know_is_remembered(store, clock):
    system = SystemTable(store.table("system"))
    await publisher(store, clock, lifetime_ms=5_000).publish()
    assert STATE.get(system).lifetime_ms == 5_000
    await publisher(store, clock, lifetime_ms=9_000).publish()
    await publisher(store, clock, lifetime_ms=7_000).publish()
    state = STATE.get(system)
    assert (state.lifetime_ms, state.lowered_to_ms, tuple(state.lowered_at)) == (9_000, 7_000, (3, 3))
    assert state.when_all_know((3, 2)) == state
    assert state.when_all_know((3, 3)).lifetime_ms == 7_000
    assert stored(store).lifetime_ms_max == 7_000


async def test_a_raised_lifetime_never_lets_in_a_writer_that_was_forgotten(store, clock):
    system = SystemTable(store.table("system"))
    pruned_ms = clock.now_ms() - 2 * SKEW_MS
    change_state(system, lambda old: PruneState(newest_pruned=pruned_ms * POINTERS_PER_MS))
    made = publisher(store, clock, lifetime_ms=24 * 3_600_000)
    for _ in range(30):
        lifetime_ms = (await made.publish()).lifetime_ms_max
        assert pruned_ms + lifetime_ms <= clock.now_ms() - SKEW_MS
        clock.advance(3_600_000)
    assert lifetime_ms == 24 * 3_600_000


# Over the real manager.


async def test_what_is_published_is_durable_and_consistent(clustered: Wired):
    pruner = clustered.services.pruner
    reader = await clustered.transactions.begin()
    await clustered.publish(A, "x", tx=await clustered.transactions.begin())
    invalid = await failed_writer(clustered)
    made = await pruner.publisher.publish()
    assert made.in_progress[0] == reader.id
    assert made.decided == reader.id - 1
    assert made.invalid == (invalid,)
    assert made.write_pointer == clustered.transactions.state.last_pointer
    assert made.visibility_upper_bound == 0, "nothing was committed when the oldest reader began"


async def test_the_upper_bound_is_that_of_the_oldest_reader(clustered: Wired):
    first = await clustered.transactions.begin()
    await clustered.transactions.commit(first.id)
    clustered.clock.advance(1)
    reader = await clustered.transactions.begin(Kind.LONG)
    assert reader.read_pointer == first.id
    for _ in range(3):
        await clustered.transactions.commit((await clustered.transactions.begin()).id)
    moment = await clustered.transactions.manager_snapshot()
    assert moment.visibility_upper_bound == first.id < reader.id - 1 == moment.decided
    await clustered.transactions.commit(reader.id)
    moment = await clustered.transactions.manager_snapshot()
    assert moment.visibility_upper_bound == moment.view.read_pointer


async def test_a_reader_that_began_beside_an_older_writer_needs_what_that_one_replaces(clustered: Wired):
    writer = await clustered.transactions.begin()
    done = await clustered.transactions.begin()
    await clustered.transactions.commit(done.id)
    await clustered.transactions.begin()  # sees `done`, and not `writer`
    await clustered.transactions.commit(writer.id)
    assert (await clustered.transactions.manager_snapshot()).visibility_upper_bound == writer.id - 1


async def test_where_nothing_is_in_progress_all_is_decided(clustered: Wired):
    tx = await clustered.transactions.begin()
    assert (await clustered.transactions.manager_snapshot()).decided == tx.id - 1
    await clustered.transactions.commit(tx.id)
    assert (
        (await clustered.transactions.manager_snapshot()).decided == clustered.transactions.state.last_pointer >= tx.id
    )
