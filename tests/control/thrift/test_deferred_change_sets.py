"""Change sets that are logged only with the commit: what is checked, what is logged, and what a lost one leads to."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from basalt.errors import (
    BusyError,
    ChangesLostError,
    StoreError,
    TooLargeError,
    TransactionConflictError,
    TransactionEndedError,
)
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt.thrift import deferred_change_sets
from basalt.thrift.deferred_change_sets import DeferredChangeSets
from basalt.transactions.rules import edits
from basalt.transactions.rules.conflicts import CHANGE_BYTES
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import Kind, State, Transaction, TransactionLimits
from basalt_engine.stores.memory import MemoryStore
from tests.control.transactions.conftest import Scene


class Deferred(Scene):
    """A face that defers change sets, over rules without a log. `sets` is what it keeps."""

    def __init__(self, limits: TransactionLimits | None = None) -> None:
        super().__init__(limits)
        self.is_known, self.known_since, self.manager = True, 0, self
        self.sets = DeferredChangeSets(cast("Any", self), self.clock)

    def defer(self, **options: Any) -> Transaction:
        """Begin one whose change set is logged with its commit."""
        return self.begin(**{"external_writes": True, "changes_deferred": True, **options})

    def tell(self, transaction: Transaction, *changes: bytes) -> bool:
        return self.sets.tell(transaction.id, changes)

    def commit(self, transaction: Transaction, inline: bool = True, **options: Any) -> Outcome:
        return super().commit(transaction, inline, deferred_changes=self.sets.get(transaction.id), **options)

    def lose_log(self) -> None:
        """The log is read again, and what came after it was told is not in it."""
        self.state = self.replayed()
        self.known_since = self.state.last_pointer


@pytest.fixture
def scene() -> Deferred:
    return Deferred()


def names(made: list[Any]) -> list[str]:
    return [type(edit).__name__ for edit in made]


# What is logged.


@pytest.mark.parametrize("inline", [True, False])
def test_what_was_told_last_is_logged_with_the_commit_and_not_before(scene: Deferred, inline: bool):
    one = scene.defer()
    assert scene.tell(one, b"row 1")
    assert scene.tell(one, b"row 2")
    assert names(scene.edits) == ["Began", "ChangesUnlogged"]
    scene.commit(one, inline)
    assert names(scene.edits[2:]) == ["Changed", "Committed" if inline else "Committing"]
    assert scene.edits[2] == edits.Changed(one.id, True, frozenset([b"row 2"]))


def test_one_that_told_nothing_commits_without_a_change_set(scene: Deferred):
    for one in (scene.defer(), scene.defer()):
        scene.commit(one)
    assert names(scene.edits[-1:]) == ["Committed"]
    assert "Changed" not in names(scene.edits)


@pytest.mark.parametrize("options", [{"kind": Kind.LONG}, {"external_writes": False}])
def test_no_mark_where_it_makes_no_sense(scene: Deferred, options: dict[str, Any]):
    one = scene.defer(**options)
    assert names(scene.edits) == ["Began"]
    assert not scene.tell(one, b"row")


def test_a_set_that_is_told_to_the_log_takes_the_mark_away(scene: Deferred):
    one = scene.defer()
    scene.tell(one, b"kept in memory")
    scene.change(one, b"logged")
    assert not scene.state.get(one.id).changes_unlogged
    assert not scene.tell(one, b"later")
    scene.lose_log()
    scene.commit(one)
    assert [edit.changes for edit in scene.edits if isinstance(edit, edits.Changed)] == [frozenset([b"logged"])]


# What is checked.


def test_a_set_that_was_told_wins_and_loses_conflicts_as_any_other(scene: Deferred):
    winner, loser, logged = scene.defer(), scene.defer(), scene.begin()
    for one in (winner, loser):
        assert scene.tell(one, b"row")
    scene.change(logged, b"row")
    scene.commit(winner)
    for one in (loser, logged):
        with pytest.raises(TransactionConflictError, match=f"to transaction {winner.id}"):
            scene.commit(one)
        assert scene.state.get(one.id).doomed is not None


def test_a_set_that_clashes_already_is_left_to_the_log(scene: Deferred):
    winner, loser = scene.defer(), scene.defer()
    assert scene.tell(loser, b"other")
    scene.tell(winner, b"row")
    scene.commit(winner)
    assert not scene.tell(loser, b"row")
    with pytest.raises(TransactionConflictError):
        scene.change(loser, b"row")
    assert names(scene.edits[-1:]) == ["Doomed"]
    assert not scene.tell(loser, b"other")


def test_a_set_over_the_limits_is_refused_and_the_one_before_stays():
    scene = Deferred(TransactionLimits(changes_max=2))
    one = scene.defer()
    scene.tell(one, b"a")
    with pytest.raises(TooLargeError):
        scene.tell(one, b"a", b"b", b"c")
    assert scene.sets.all() == {one.id: frozenset([b"a"])}


def test_only_an_open_transaction_in_time_is_told_of_without_the_log(scene: Deferred):
    ended, late = scene.defer(), scene.defer()
    scene.commit(ended)
    assert not scene.tell(ended, b"row")
    assert not scene.sets.tell(17, [b"row"])
    committing = scene.defer()
    scene.commit(committing, inline=False)
    assert not scene.tell(committing, b"row")
    scene.clock.advance(30_000)
    assert not scene.tell(late, b"row")


def test_an_ended_transaction_leaves_no_set_behind(scene: Deferred):
    for end in (scene.commit, scene.abort, scene.invalidate):
        one = scene.defer()
        scene.tell(one, b"row")
        end(one)
    scene.defer(timeout_ms=5)
    scene.clock.advance(5)
    scene.expire()
    assert scene.sets.all() == {}


# What is lost.


def test_a_commit_whose_set_was_lost_is_refused_until_it_is_told_again(scene: Deferred):
    one = scene.defer(owner="app")
    scene.tell(one, b"row")
    scene.lose_log()
    with pytest.raises(ChangesLostError, match=rf"transaction {one.id} \(owner app\) .* tell it again"):
        scene.commit(one)
    assert scene.state.get(one.id).doomed is None
    assert scene.tell(one, b"row")
    assert scene.commit(one).state is State.COMMITTED


def test_a_lost_set_does_not_hide_a_conflict(scene: Deferred):
    loser, winner = scene.defer(), scene.defer()
    scene.tell(loser, b"row")
    scene.tell(winner, b"row")
    scene.commit(winner)
    scene.lose_log()
    with pytest.raises(ChangesLostError):
        scene.commit(loser)
    assert not scene.tell(loser, b"row")
    with pytest.raises(TransactionConflictError):
        scene.change(loser, b"row")


@pytest.mark.parametrize("snapshot", [True, False])
@pytest.mark.parametrize("doomed", [True, False])
def test_reading_the_log_again_loses_the_set_and_nothing_else(snapshot: bool, doomed: bool):
    async def story() -> None:
        store = MemoryStore()
        services = await open_services(Settings(), None, store=store)
        coordinator = services.transactions
        sets = DeferredChangeSets(coordinator, services.clock)
        told: list[Any] = []
        waiter = _Waiter(told)
        assert sets.begin(waiter, None, "app")
        winner = await coordinator.begin()
        one = told[0]
        assert sets.tell(one.id, [b"row"])
        checked = await coordinator.checkpoint(one.id)
        if doomed:
            await coordinator.set_changes(winner.id, [b"row"])
            await coordinator.commit(winner.id)
            with pytest.raises(TransactionConflictError):
                await sets.commit(one.id)
        if snapshot:
            await coordinator.write_log_snapshot()
        coordinator.manager.lost()
        await coordinator.recover()
        found = coordinator.state.get(one.id)
        assert (found.changes_unlogged, found.changes, found.checkpoints) == (True, None, checked.checkpoints)
        for _ in range(2):
            with pytest.raises(TransactionConflictError if doomed else ChangesLostError):
                await sets.commit(one.id)
        assert sets.tell(one.id, [b"row"]) is not doomed
        if doomed:
            await coordinator.abort(one.id)
        else:
            assert (await sets.commit(one.id)).state is State.COMMITTED
        await services.close()

    asyncio.run(story())


@pytest.mark.parametrize("atomic", [True, False])
def test_a_write_that_fails_loses_the_sets_of_all_who_are_open(atomic: bool):
    class Failing(MemoryStore):
        fails = False

        def write(self, writes: Any) -> None:
            if self.fails:
                self.fails = False
                raise StoreError("the disk is gone for a moment")
            super().write(writes)

    async def story() -> None:
        store = Failing(atomic)
        services = await open_services(Settings(), None, store=store)
        coordinator = services.transactions
        sets = DeferredChangeSets(coordinator, services.clock)
        told: list[Any] = []
        for _ in range(2):
            sets.begin(_Waiter(told), None, "app")
        await coordinator.begin()
        one, other = told
        for each in (one, other):
            assert sets.tell(each.id, [b"row %d" % each.id])
        store.fails = True
        with pytest.raises(StoreError):
            await sets.commit(one.id)
        assert not sets.tell(other.id, [b"row"])  # the log is to be read first
        assert not sets.submit_commit(_Waiter(told), other.id)
        for each in (one, other):
            with pytest.raises(ChangesLostError):
                await sets.commit(each.id)
        assert sets.tell(other.id, [b"row"])
        assert sets.submit_commit(_Waiter(told), other.id)
        await coordinator.abort(one.id)
        assert told[-1].state is State.COMMITTED
        with pytest.raises(TransactionEndedError):
            await sets.commit(one.id)
        await services.close()

    asyncio.run(story())


# What they take, and what an orderly stop notes.


def test_deferred_sets_count_among_all_change_sets(scene: Deferred):
    scene = Deferred(TransactionLimits(change_memory_bytes_max=2 * (CHANGE_BYTES + 1)))
    one, other, third = scene.defer(), scene.defer(), scene.defer()
    assert scene.tell(one, b"a")
    assert scene.tell(one, b"b"), "it replaces what was told before"
    assert scene.tell(other, b"c")
    with pytest.raises(BusyError, match="try again"):
        scene.tell(third, b"d")
    scene.abort(one)
    assert scene.tell(third, b"d"), "what an ended one told takes no room"
    assert set(scene.sets.all()) == {other.id, third.id}


@pytest.mark.parametrize(("limit", "value"), [("ENDED_SETS_MAX", 3), ("ENDED_BYTES_MAX", 3 * CHANGE_BYTES)])
def test_sets_of_transactions_that_ended_by_themselves_do_not_pile_up(
    scene: Deferred, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
):
    monkeypatch.setattr(deferred_change_sets, limit, value)
    scene.sets = DeferredChangeSets(cast("Any", scene), scene.clock)
    for _ in range(40):
        one = scene.defer(timeout_ms=5)
        assert scene.tell(one, b"row")
        scene.clock.advance(5)
        scene.expire()
        assert len(scene.sets._sets) <= 5


def test_sets_of_open_transactions_are_kept_however_many_are_dropped(scene: Deferred, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deferred_change_sets, "ENDED_BYTES_MAX", 2)
    scene.sets = DeferredChangeSets(cast("Any", scene), scene.clock)
    kept = [scene.defer() for _ in range(5)]
    for number, one in enumerate(kept):
        for row in (b"other %d" % number, b"row %d" % number):
            assert scene.tell(one, row)
            ended = scene.defer()
            assert scene.tell(ended, b"gone")
            scene.abort(ended)
    assert scene.sets.all() == {one.id: {b"row %d" % number} for number, one in enumerate(kept)}
    for one in kept:
        scene.commit(one)
    told = [edit.changes for edit in scene.edits if isinstance(edit, edits.Changed)]
    assert told == [{b"row %d" % number} for number in range(5)]


class KeptStore(MemoryStore):
    """Its rows outlive the server, as those on a disk do."""

    def close(self) -> None:
        pass


@pytest.mark.parametrize("atomic", [True, False])
def test_who_told_nothing_commits_after_an_orderly_restart_and_who_told_is_asked_again(
    atomic: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(deferred_change_sets, "LOGGED_TOGETHER_MAX", 2)

    async def story() -> None:
        store = KeptStore(atomic)
        services = await open_services(Settings(), None, store=store)
        sets = DeferredChangeSets(services.transactions, services.clock)
        begun: list[Any] = []
        for _ in range(6):
            sets.begin(_Waiter(begun), None, "app")
        await services.transactions.begin()
        *silent, told, logged = begun
        assert sets.tell(told.id, [b"row"])
        await services.transactions.set_changes(logged.id, [b"other row"])
        await sets.log_empty_sets()
        await services.close()

        coordinator = (await open_services(Settings(), None, store=store)).transactions
        sets = DeferredChangeSets(coordinator, services.clock)
        for each in silent:
            assert (await sets.commit(each.id)).state is State.COMMITTED
        with pytest.raises(ChangesLostError):
            await sets.commit(told.id)
        await coordinator.set_changes(told.id, [b"row"])
        assert (await sets.commit(told.id)).state is State.COMMITTED
        assert coordinator.state.get(logged.id).changes == {b"other row"}

    asyncio.run(story())


def test_after_a_crash_who_told_nothing_says_so_and_commits(scene: Deferred):
    one = scene.defer(owner="app")
    scene.lose_log()
    with pytest.raises(ChangesLostError, match="may have told its change set") as refused:
        scene.commit(one)
    assert "an empty one" in str(refused.value)
    assert scene.tell(one)
    assert scene.commit(one).state is State.COMMITTED


class _Waiter:
    """Notes what it is told."""

    def __init__(self, told: list[Any]) -> None:
        self._told = told

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        self._told.append(result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._told.append(exception)
