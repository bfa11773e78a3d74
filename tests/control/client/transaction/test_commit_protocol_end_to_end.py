"""Participants of both clients against the whole server: what it knows of them, and that both clients ask the same of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings

import pytest

from basalt.client.transaction.open_transaction import PostCommitError
from basalt.errors import SessionFencedError, TransactionConflictError, TransactionEndedError
from tests.control.client.participants_world import Awaited, Broken, Recording
from tests.control.client.test_client_end_to_end import everything, transaction


def participant(side, name: str = "a", failures: dict[str, str] | None = None, *, hosted: bool = False) -> Recording:
    kind = Recording if side.name == "blocking" else Awaited
    return kind(name, [], failures or {}, hosted=hosted)


def test_it_commits_with_the_transaction(side, connected):
    mine = participant(side)
    with transaction(side, connected, participants=[mine]) as tx:
        side.do(tx.publish("orders", ["1"]))
        assert side.do(connected.transactions.get(tx.id)).external_writes
    assert mine.journal == ["a.start", "a.changes", "a.commit", "a.post"]
    assert tx.outcome.state == "COMMITTED"
    assert everything(side, connected.topic("orders").read()) == [b"1"]


def test_it_is_given_the_pointer_and_the_snapshot_to_write_and_read_under(side, connected):
    seen = []
    mine = participant(side)
    mine.start_tx = mine.update_tx = seen.append
    with transaction(side, connected, participants=[mine]) as tx:
        side.do(tx.checkpoint())
    first, second = seen
    assert first.id == second.id == tx.id
    assert first.write_pointer < second.write_pointer == tx.write_pointer
    assert first.transaction and second.transaction


def test_messages_stored_before_and_after_a_checkpoint_are_published(side, connected):
    with transaction(side, connected, participants=[participant(side)]) as tx:
        side.do(tx.store("orders", ["1"]))
        side.do(tx.checkpoint())
        side.do(tx.store("orders", ["2"]))
        side.do(tx.publish("orders", ["3"]))
    assert everything(side, connected.topic("orders").read(isolation="committed")) == [b"1", b"2", b"3"]


def test_it_rolls_back_with_the_transaction(side, connected):
    mine = participant(side, failures={"a.commit": "raise"})
    with pytest.raises(Broken), transaction(side, connected, participants=[mine]) as tx:
        side.do(tx.publish("orders", ["1"]))
    assert mine.journal == ["a.start", "a.changes", "a.commit", "a.rollback"]
    assert side.do(connected.transactions.get(tx.id)).state == tx.outcome.state == "ABORTED"
    assert everything(side, connected.topic("orders").read()) == []


def test_a_block_that_swallows_a_failed_checkpoint_does_not_end_quietly(side, connected):
    mine = participant(side, failures={"a.update": "raise"})
    with pytest.raises(TransactionEndedError, match="was rolled back when its checkpoint failed"):
        with transaction(side, connected, participants=[mine]) as tx:
            with contextlib.suppress(Broken):
                side.do(tx.checkpoint())
    assert mine.journal[-1] == "a.rollback"
    assert tx.outcome.state == "ABORTED"


def test_what_cannot_be_undone_is_hidden_for_good(side, connected):
    mine = participant(side, failures={"a.commit": "raise", "a.rollback": "false"})
    with pytest.raises(Broken), transaction(side, connected, participants=[mine]) as tx:
        pass
    assert side.do(connected.transactions.get(tx.id)).state == tx.outcome.state == "INVALID"


def test_of_two_that_change_the_same_the_second_is_rolled_back(side, connected):
    first, second = participant(side), participant(side)
    with pytest.raises(TransactionConflictError), transaction(side, connected, participants=[second]):
        with transaction(side, connected, participants=[first]):
            pass
    assert first.journal[-1] == "a.post"
    assert second.journal == ["a.start", "a.changes", "a.rollback"]


@pytest.mark.parametrize("commits", [True, False])
def test_a_commit_whose_answer_is_lost_is_found_out(side, connected, commits):
    mine = participant(side)
    tx = connected.transaction(participants=[mine])
    side.do(tx.__enter__() if side.name == "blocking" else tx.__aenter__())
    if not commits:  # as when its time is over while the commit is on its way
        side.do(connected.transactions.invalidate(tx.id))
        connected.losing.loses = "/changes"
        with pytest.raises(TransactionEndedError):
            side.do(tx.commit())
        assert mine.journal[-1] == "a.rollback"
        assert (
            side.do(connected.transactions.get(tx.id)).state == "ABORTED"
        )  # its writes are undone: it leaves the list
        return
    connected.losing.loses = "/commit"
    assert side.do(tx.commit()).state == "COMMITTED"
    assert mine.journal[-1] == "a.post"


def test_one_that_comes_later_makes_it_a_transaction_with_writes_elsewhere(side, connected):
    mine, hosted = participant(side), participant(side, "h", hosted=True)
    with transaction(side, connected, participants=[hosted]) as tx:
        assert not side.do(connected.transactions.get(tx.id)).external_writes
        side.do(tx.add(mine))
        assert side.do(connected.transactions.get(tx.id)).external_writes
    assert mine.journal == ["a.start", "a.changes", "a.commit", "a.post"]


def test_after_the_commit_its_failure_undoes_nothing(side, connected):
    mine = participant(side, failures={"a.post": "raise"})
    with pytest.raises(PostCommitError), transaction(side, connected, participants=[mine]) as tx:
        side.do(tx.publish("orders", ["1"]))
    assert tx.outcome.state == "COMMITTED"
    assert everything(side, connected.topic("orders").read()) == [b"1"]


def test_a_blocking_client_refuses_coroutines_and_rolls_back(side, connected):
    if side.name != "blocking":
        pytest.skip("the async client takes them")
    undone = []
    mine = Awaited("a", [], {})
    mine.rollback_tx = lambda: undone.append("a") or True  # type: ignore[return-value]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(TypeError, match=r"a\.start_tx is a coroutine"):
            connected.transaction(participants=[mine]).__enter__()
        gc.collect()
    assert undone == ["a"]
    assert [str(each.message) for each in warned if "never awaited" in str(each.message)] == []
    assert side.do(connected.transactions.list()) == []


def test_a_cancelled_task_rolls_its_participants_back(side, connected):
    if side.name == "blocking":
        pytest.skip("threads are not cancelled")
    waiting = asyncio.Event()

    class Slow(Awaited):
        async def commit_tx(self) -> None:  # type: ignore[override]
            self.journal.append("a.commit")
            waiting.set()
            await asyncio.sleep(60)

    mine = Slow("a", [], {})

    async def work() -> None:
        async with connected.transaction(participants=[mine]):
            pass

    async def cancel_it() -> None:
        task = asyncio.create_task(work())
        await waiting.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    side.do(cancel_it())
    assert mine.journal == ["a.start", "a.changes", "a.commit", "a.rollback"]
    assert side.do(connected.transactions.list()) == []


GOES_ON = {
    "commits": lambda side, tx: None,
    "stores": lambda side, tx: side.do(tx.store("orders", ["2"])),
    "reads": lambda side, tx: side.do(tx.poll("orders")),
    "checkpoints": lambda side, tx: side.do(tx.checkpoint()),
    "tells changes": lambda side, tx: side.do(tx.changes([b"row-2"])),
}


@pytest.mark.parametrize("goes_on", GOES_ON)
@pytest.mark.parametrize("kind", ["plain", "participant", "changes"])
def test_a_zombie_learns_in_the_midst_of_its_transaction_that_it_was_replaced(side, connected, kind, goes_on):
    zombie = side.do(connected.session("billing", run="monday"))
    mine = [participant(side)] if kind == "participant" else []
    with pytest.raises(SessionFencedError, match="run 'tuesday' holds it"):
        with transaction(side, zombie, participants=mine) as tx:
            side.do(tx.store("orders", ["1"]))
            if kind == "changes":
                side.do(tx.changes([b"row-1"]))
            side.do(connected.session("billing", run="tuesday"))
            GOES_ON[goes_on](side, tx)
    assert side.do(connected.transactions.get(tx.id)).state == "ABORTED"
    assert side.do(connected.admin.prune_status()).invalid == 0, "what it undid needs no pruning"


def test_changes_that_are_no_writes_elsewhere_leave_nothing_to_be_undone(side, connected):
    zombie = side.do(connected.session("billing", run="monday"))
    with contextlib.suppress(SessionFencedError), transaction(side, zombie) as tx:
        side.do(tx.changes([b"row-1"], external_writes=False))
        side.do(connected.session("billing", run="tuesday"))
        assert side.do(connected.transactions.get(tx.id)).state == "ABORTED", "though its program may be dead"


def test_who_stores_under_a_segment_of_a_replaced_run_learns_it(side, connected):
    named = side.do(connected.named_transaction("etl", run="monday", version=1))
    segment = side.do(named.segment())
    side.do(connected.named_transaction("etl", run="tuesday", version=1))
    for call in (
        lambda: connected.topic("orders").store(["1"], segment),
        named.segment,
        lambda: connected.transactions.commit_segments(named.id, [segment]),
    ):
        with pytest.raises(SessionFencedError, match="run 'tuesday' holds it"):
            side.do(call())
