"""Change sets that are logged only with the commit: what is checked, what is logged, and what a lost one leads to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from basalt.commits import callback_calls as prompt_calls
from basalt.errors import (
    ChangesLostError,
    StoreError,
    TooLargeError,
    TransactionConflictError,
    TransactionEndedError,
)
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt.transactions.rules import edits
from basalt.transactions.rules.limits import Limits
from basalt.transactions.rules.states import Kind, State, Transaction
from basalt_engine.stores.memory import MemoryStore
from tests.control.transactions.conftest import Scene


def begin(scene: Scene, **options: Any) -> Transaction:
    """One whose change set is logged with its commit."""
    options = {"outside": True, **options}
    proposal = scene.state.unlogged.begin(scene.state.begin(scene.now_ms, **options))
    return scene.state.get(scene.done(proposal))


def tell(scene: Scene, transaction: Transaction, *changes: bytes) -> bool:
    return scene.state.unlogged.tell(transaction.id, changes, scene.now_ms)


def names(made: list[Any]) -> list[str]:
    return [type(edit).__name__ for edit in made]


# What is logged.


@pytest.mark.parametrize("inline", [True, False])
def test_what_was_told_last_is_logged_with_the_commit_and_not_before(scene: Scene, inline: bool):
    one = begin(scene)
    assert tell(scene, one, b"row 1")
    assert tell(scene, one, b"row 2")
    assert names(scene.edits) == ["Began", "ChangesUnlogged"]
    scene.commit(one, inline)
    assert names(scene.edits[2:]) == ["Changed", "Committed" if inline else "Committing"]
    assert scene.edits[2] == edits.Changed(one.id, True, frozenset([b"row 2"]))


def test_one_that_told_nothing_commits_without_a_change_set(scene: Scene):
    for one in (begin(scene), begin(scene)):
        scene.commit(one)
    assert names(scene.edits[-1:]) == ["Committed"]
    assert "Changed" not in names(scene.edits)


@pytest.mark.parametrize("options", [{"kind": Kind.LONG}, {"outside": False}])
def test_no_mark_where_it_makes_no_sense(scene: Scene, options: dict[str, Any]):
    one = begin(scene, **options)
    assert names(scene.edits) == ["Began"]
    assert not tell(scene, one, b"row")


def test_a_set_that_is_told_to_the_log_takes_the_mark_away(scene: Scene):
    one = begin(scene)
    tell(scene, one, b"kept in memory")
    scene.change(one, b"logged")
    assert not scene.state.get(one.id).changes_unlogged
    assert not tell(scene, one, b"later")
    scene.state.unlogged.forget()
    scene.commit(one)
    assert [edit.changes for edit in scene.edits if isinstance(edit, edits.Changed)] == [frozenset([b"logged"])]


# What is checked.


def test_a_set_that_was_told_wins_and_loses_conflicts_as_any_other(scene: Scene):
    winner, loser, logged = begin(scene), begin(scene), scene.begin()
    for one in (winner, loser):
        assert tell(scene, one, b"row")
    scene.change(logged, b"row")
    scene.commit(winner)
    for one in (loser, logged):
        with pytest.raises(TransactionConflictError, match=f"to transaction {winner.id}"):
            scene.commit(one)
        assert scene.state.get(one.id).doomed is not None


def test_a_set_that_clashes_already_is_left_to_the_log(scene: Scene):
    winner, loser = begin(scene), begin(scene)
    assert tell(scene, loser, b"other")
    tell(scene, winner, b"row")
    scene.commit(winner)
    assert not tell(scene, loser, b"row")
    with pytest.raises(TransactionConflictError):
        scene.change(loser, b"row")
    assert names(scene.edits[-1:]) == ["Doomed"]
    assert not tell(scene, loser, b"other")


def test_a_set_over_the_limits_is_refused_and_the_one_before_stays():
    scene = Scene(Limits(changes_max=2))
    one = begin(scene)
    tell(scene, one, b"a")
    with pytest.raises(TooLargeError):
        tell(scene, one, b"a", b"b", b"c")
    assert scene.state.unlogged.told() == {one.id: frozenset([b"a"])}


def test_only_an_open_transaction_in_time_is_told_of_without_the_log(scene: Scene):
    ended, late = begin(scene), begin(scene)
    scene.commit(ended)
    assert not tell(scene, ended, b"row")
    assert not scene.state.unlogged.tell(17, [b"row"], scene.now_ms)
    committing = begin(scene)
    scene.commit(committing, inline=False)
    assert not tell(scene, committing, b"row")
    scene.clock.advance(30_000)
    assert not tell(scene, late, b"row")


def test_an_ended_transaction_leaves_no_set_behind(scene: Scene):
    for end in (scene.commit, scene.abort, scene.invalidate):
        one = begin(scene)
        tell(scene, one, b"row")
        end(one)
    begin(scene, timeout_ms=5)
    scene.clock.advance(5)
    scene.expire()
    assert scene.state.unlogged.told() == {}


# What is lost.


def test_a_commit_whose_set_was_lost_is_refused_until_it_is_told_again(scene: Scene):
    one = begin(scene, owner="app")
    tell(scene, one, b"row")
    scene.state.unlogged.forget()
    with pytest.raises(ChangesLostError, match=rf"transaction {one.id} \(owner app\) .* tell it again"):
        scene.commit(one)
    assert scene.state.get(one.id).doomed is None
    assert tell(scene, one, b"row")
    assert scene.commit(one).state is State.COMMITTED


def test_a_lost_set_does_not_hide_a_conflict(scene: Scene):
    loser, winner = begin(scene), begin(scene)
    tell(scene, loser, b"row")
    tell(scene, winner, b"row")
    scene.commit(winner)
    scene.state.unlogged.forget()
    with pytest.raises(ChangesLostError):
        scene.commit(loser)
    assert not tell(scene, loser, b"row")
    with pytest.raises(TransactionConflictError):
        scene.change(loser, b"row")


@pytest.mark.parametrize("snapshot", [True, False])
@pytest.mark.parametrize("doomed", [True, False])
def test_reading_the_log_again_loses_the_set_and_nothing_else(snapshot: bool, doomed: bool):
    async def story() -> None:
        store = MemoryStore()
        services = await open_services(Settings(), None, store=store)
        coordinator = services.transactions
        told: list[Any] = []
        waiter = _Waiter(told)
        assert coordinator.prompt.begin(waiter, Kind.SHORT, None, "app")
        winner = await coordinator.begin()
        one = told[0]
        assert coordinator.prompt.tell_changes(one.id, [b"row"])
        checked = await coordinator.checkpoint(one.id)
        if doomed:
            await coordinator.set_changes(winner.id, [b"row"])
            await coordinator.commit(winner.id)
            with pytest.raises(TransactionConflictError):
                await coordinator.commit(one.id)
        if snapshot:
            await coordinator.write_log_snapshot()
        coordinator._durable.lost()
        await coordinator.recover()
        found = coordinator.state.get(one.id)
        assert (found.changes_unlogged, found.changes, found.checkpoints) == (True, None, checked.checkpoints)
        for _ in range(2):
            with pytest.raises(TransactionConflictError if doomed else ChangesLostError):
                await coordinator.commit(one.id)
        assert coordinator.prompt.tell_changes(one.id, [b"row"]) is not doomed
        if doomed:
            await coordinator.abort(one.id)
        else:
            assert (await coordinator.commit(one.id)).state is State.COMMITTED
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
        told: list[Any] = []
        for _ in range(2):
            coordinator.prompt.begin(_Waiter(told), Kind.SHORT, None, "app")
        await coordinator.begin()
        one, other = told
        for each in (one, other):
            assert coordinator.prompt.tell_changes(each.id, [b"row %d" % each.id])
        store.fails = True
        with pytest.raises(StoreError):
            await coordinator.commit(one.id)
        assert not coordinator.prompt.tell_changes(other.id, [b"row"])  # the log is to be read first
        assert not coordinator.prompt.commit(_Waiter(told), other.id)
        for each in (one, other):
            with pytest.raises(ChangesLostError):
                await coordinator.commit(each.id)
        assert coordinator.prompt.tell_changes(other.id, [b"row"])
        assert coordinator.prompt.commit(_Waiter(told), other.id)
        await coordinator.abort(one.id)
        assert told[-1].state is State.COMMITTED
        with pytest.raises(TransactionEndedError):
            await coordinator.commit(one.id)
        await services.close()

    asyncio.run(story())


class KeptStore(MemoryStore):
    """Its rows outlive the server, as those on a disk do."""

    def close(self) -> None:
        pass


@pytest.mark.parametrize("atomic", [True, False])
def test_who_told_nothing_commits_after_an_orderly_restart_and_who_told_is_asked_again(atomic: bool):
    async def story() -> None:
        store = KeptStore(atomic)
        services = await open_services(Settings(), None, store=store)
        begun: list[Any] = []
        for _ in range(4):
            services.transactions.prompt.begin(_Waiter(begun), Kind.SHORT, None, "app")
        await services.transactions.begin()
        silent, told, later, logged = begun
        assert services.transactions.prompt.tell_changes(told.id, [b"row"])
        await services.transactions.set_changes(logged.id, [b"other row"])
        await services.close()

        coordinator = (await open_services(Settings(), None, store=store)).transactions
        assert (await coordinator.commit(silent.id)).state is State.COMMITTED
        with pytest.raises(ChangesLostError):
            await coordinator.commit(told.id)
        await coordinator.set_changes(later.id, [b"row"])
        assert (await coordinator.commit(later.id)).state is State.COMMITTED
        with pytest.raises(TransactionConflictError):
            await coordinator.set_changes(told.id, [b"row"])
        assert coordinator.state.get(logged.id).changes == {b"other row"}

    asyncio.run(story())


def test_more_silent_transactions_than_one_entry_takes_are_noted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompt_calls, "UNTOLD_PER_ENTRY_MAX", 2)

    async def story() -> None:
        store = KeptStore()
        services = await open_services(Settings(), None, store=store)
        begun: list[Any] = []
        for _ in range(5):
            services.transactions.prompt.begin(_Waiter(begun), Kind.SHORT, None, "app")
        await services.transactions.begin()
        await services.close()
        coordinator = (await open_services(Settings(), None, store=store)).transactions
        for each in begun:
            assert (await coordinator.commit(each.id)).state is State.COMMITTED

    asyncio.run(story())


def test_after_a_crash_who_told_nothing_says_so_and_commits(scene: Scene):
    one = begin(scene, owner="app")
    scene.state.unlogged.forget()
    with pytest.raises(ChangesLostError, match="may have told its change set") as refused:
        scene.commit(one)
    assert "an empty one" in str(refused.value)
    assert tell(scene, one)
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
