"""What a transaction consumed, changed and published is one decision: acknowledged with its outputs, or neither."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from basalt.api.bodies.groups import GroupMode, GroupOptions
from basalt.api.bodies.messages import Work, WorkAcknowledge, WorkPublish
from basalt.errors import (
    AcknowledgeConflictError,
    AcknowledgeOrderError,
    ClaimLostError,
    ConflictError,
    GroupNotFoundError,
    TopicNotFoundError,
    TransactionConflictError,
    TransactionEndedError,
    UnknownOutcomeError,
)
from basalt.operations.jobs import end_late
from basalt.runtime.group_commit import Group
from basalt.transactions.log.timeline import timeline_of
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import ReturnReason
from basalt.transactions.rules.transaction import Kind, State
from basalt_engine.records import Extras
from basalt_engine.spans.spans import Spans
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Insert, TableWrite
from tests.control.groups.conftest import Billing, ids_of
from tests.wiring import A, B, Wired, encoded

pytestmark = pytest.mark.anyio


def work_of(*outputs: str, ids: Sequence[bytes] = (), group: str = "billing", **how: object) -> Work:
    """Outputs to the invoices, and what they were made of in the orders."""
    publish = [WorkPublish(*B, encoded(outputs))] if outputs else []
    return Work(publish=publish, acknowledge=[WorkAcknowledge(*A, group, tuple(ids), **how)])  # type: ignore[arg-type]


async def billing_of(shop: Wired, *messages: str, **options: int) -> tuple[Billing, list[bytes]]:
    """A group, and the ids of what it has to read, which nobody has claimed."""
    await shop.publish(A, *messages)
    billing = await Billing.made(shop, GroupOptions(retry_delay_ms=0, **options))  # type: ignore[arg-type]
    page = await billing.fetch()
    await billing.release(page.claim, counts=False)
    return billing, ids_of(page)


def acknowledged(shop: Wired, found: Sequence[bytes]) -> list[bool]:
    """Which of these the group has acknowledged, as the log says it."""
    (state,) = shop.transactions.state.groups.by_number.values()
    return [state.acknowledged.covers(each) for each in found]


def attempts(shop: Wired, message_id: bytes) -> int:
    (state,) = shop.transactions.state.groups.by_number.values()
    found = state.returns.at(message_id)
    return 0 if found is None else found.attempts


async def again(billing: Billing, shop: Wired) -> Billing:
    """The group as another process sees it, which has read the log."""
    return Billing(await shop.restarted(), billing.name)


async def test_a_commit_acknowledges_and_publishes_in_one_decision(shop: Wired):
    billing, found = await billing_of(shop, "a", "b")
    tx = await shop.transactions.begin()
    await shop.transactions.commit(tx.id, work_of("A", ids=found[:1]))
    assert (await shop.read(B, committed=True), acknowledged(shop, found)) == (["A"], [True, False])
    billing = await again(billing, shop)
    assert acknowledged(billing.shop, found) == [True, False]
    assert await billing.read() == ["b"]


async def test_a_one_shot_acknowledges_and_publishes_in_one_decision(shop: Wired):
    billing, found = await billing_of(shop, "a", "b")
    await shop.transactions.one_shot(work_of("A", ids=found[:1]))
    await shop.transactions.one_shot(work_of(ids=found[1:]))
    assert (await shop.read(B, committed=True), acknowledged(shop, found)) == (["A"], [True, True])
    assert acknowledged((await again(billing, shop)).shop, found) == [True, True]


async def test_what_an_open_transaction_acknowledged_is_pending_and_survives_a_restart(shop: Wired):
    billing, found = await billing_of(shop, "a", "b")
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=found[:1], tx=tx.id)
    assert acknowledged(shop, found) == [False, False]
    assert await billing.read() == ["b"], "what is pending is nobody's"
    billing = await again(billing, shop)
    assert await billing.read() == ["b"]
    with pytest.raises(AcknowledgeConflictError):
        await billing.acknowledge(ids=found[:1])
    await billing.shop.transactions.commit(tx.id)
    assert acknowledged(billing.shop, found) == [True, False]


async def test_a_snapshot_of_the_log_holds_what_is_pending(shop: Wired):
    billing, found = await billing_of(shop, "a", "b")
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=found[:1], tx=tx.id)
    await shop.transactions.write_log_snapshot()
    billing = await again(billing, shop)
    assert billing.shop.transactions.manager.log_length[0] <= 1
    await billing.shop.transactions.commit(tx.id)
    assert acknowledged(billing.shop, found) == [True, False]
    await billing.shop.transactions.write_log_snapshot()
    assert acknowledged((await again(billing, billing.shop)).shop, found) == [True, False]


@pytest.mark.parametrize("end", ["abort", "invalidate", "time-out", "too late"])
async def test_what_was_pending_comes_back_with_an_attempt_when_its_transaction_ends_otherwise(shop: Wired, end: str):
    billing, found = await billing_of(shop, "a", "b")
    tx = await shop.transactions.begin()
    await shop.publish(B, "early", tx=tx)  # there is something to roll back
    await billing.acknowledge(ids=found[:1], tx=tx.id)
    if end in ("abort", "invalidate"):
        await getattr(shop.transactions, end)(tx.id)
    else:
        shop.clock.advance(30_000)
        if end == "time-out":
            await end_late(shop.transactions, shop.clock)
        else:
            with pytest.raises(TransactionEndedError):
                await shop.transactions.commit(tx.id)
    reason = ReturnReason.ABORTED if end in ("abort", "invalidate") else ReturnReason.TIMED_OUT
    for seen in (billing, await again(billing, shop)):
        (state,) = seen.shop.transactions.state.groups.by_number.values()
        assert (state.returns.at(found[0]).attempts, state.returns.at(found[0]).reason) == (1, reason)
        assert attempts(seen.shop, found[1]) == 0
    assert sorted(await billing.read() + await billing.read()) == ["a", "b"]


async def test_an_abort_that_comes_after_the_time_out_counts_no_second_attempt(shop: Wired):
    billing, found = await billing_of(shop, "a")
    tx = await shop.transactions.begin(external_writes=True)
    await billing.acknowledge(ids=found, tx=tx.id)
    shop.clock.advance(30_000)
    await end_late(shop.transactions, shop.clock)
    assert (await shop.transactions.outcome(tx.id)).state is State.INVALID
    await shop.transactions.abort(tx.id)
    assert (await shop.transactions.outcome(tx.id)).state is State.ABORTED
    assert attempts(shop, found[0]) == 1


async def test_a_long_transaction_frees_what_it_acknowledged_though_its_abort_is_invalid(shop: Wired):
    billing, found = await billing_of(shop, "a")
    tx = await shop.transactions.begin(Kind.LONG)
    await billing.acknowledge(ids=found, tx=tx.id)
    await shop.transactions.abort(tx.id)
    assert (await shop.transactions.outcome(tx.id)).state is State.INVALID
    assert await billing.read() == ["a"]


async def test_a_claim_of_before_a_restart_is_no_claim_of_another(shop: Wired):
    """The clock stood still, or stepped back: a zombie's outputs must not take along what somebody else was dealt since."""
    billing, found = await billing_of(shop, "a", "b")
    zombie = await billing.fetch(limit=1)
    billing = await again(billing, shop)
    await billing.fetch(limit=1)  # the first claim of the new process
    await billing.fetch(limit=1)
    work = Work(
        publish=[WorkPublish(*B, encoded(["A"]))], acknowledge=[WorkAcknowledge(*A, "billing", claims=(zombie.claim,))]
    )
    with pytest.raises(ClaimLostError):
        await billing.shop.transactions.one_shot(work)
    assert (await billing.shop.read(B, committed=True), acknowledged(billing.shop, found)) == ([], [False, False])


async def test_two_transactions_that_commit_one_message_publish_once(shop: Wired):
    billing, found = await billing_of(shop, "a")
    one, two = await shop.transactions.begin(owner="one"), await shop.transactions.begin(owner="two")
    ends = await asyncio.gather(  # in one group
        shop.transactions.commit(one.id, work_of("by one", ids=found)),
        shop.transactions.commit(two.id, work_of("by two", ids=found), "commit-two"),
        return_exceptions=True,
    )
    assert sorted(type(end).__name__ for end in ends) == ["Outcome", "TransactionConflictError"]
    assert len(await shop.read(B, committed=True)) == 1
    lost = one if isinstance(ends[0], Exception) else two
    doomed = (await shop.transactions.get(lost.id)).doomed
    assert doomed is not None
    assert doomed.key.decode() == f"message {found[0].hex()} of group billing"
    with pytest.raises(TransactionConflictError):
        await shop.transactions.commit(lost.id, work_of("again", ids=found))
    await shop.transactions.abort(lost.id)
    assert attempts(shop, found[0]) == 0
    billing = await again(billing, shop)
    assert len(await billing.shop.read(B, committed=True)) == 1
    assert await billing.read() == []


async def test_of_a_one_shot_and_a_transaction_in_one_group_the_second_does_nothing(shop: Wired):
    _, found = await billing_of(shop, "a")
    tx = await shop.transactions.begin()
    ends = await asyncio.gather(
        shop.transactions.commit(tx.id, work_of("by tx", ids=found)),
        shop.transactions.one_shot(work_of("by one-shot", ids=found)),
        shop.transactions.one_shot(work_of("by another", ids=found)),
        return_exceptions=True,
    )
    assert sorted(type(end).__name__ for end in ends) == ["Outcome", *["TransactionConflictError"] * 2]
    await (
        shop.transactions.carry_through()
    )  # where rows and log are apart: readers pass what the others had placed once that is undone
    assert len(await shop.read(B, committed=True)) == 1


async def test_a_conflict_is_no_attempt_of_what_else_the_transaction_acknowledged(shop: Wired):
    billing, found = await billing_of(shop, "a", "b")
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=found[:1], tx=tx.id)
    await billing.acknowledge(ids=found[1:])
    with pytest.raises(TransactionConflictError):
        await shop.transactions.commit(tx.id, work_of("AB", ids=found))
    await shop.transactions.abort(tx.id)
    assert (attempts(shop, found[0]), acknowledged(shop, found)) == (0, [False, True])
    assert await billing.read() == ["a"]
    assert await shop.read(B, committed=True) == []


async def test_what_is_acknowledged_again_in_the_commit_was_its_own(shop: Wired):
    billing, found = await billing_of(shop, "a", "b")
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=found[:1], tx=tx.id)
    await shop.transactions.commit(tx.id, work_of("AB", ids=found))
    assert acknowledged(shop, found) == [True, True]


async def test_a_commit_is_answered_again_though_group_and_topic_are_gone(shop: Wired):
    billing, found = await billing_of(shop, "a")
    tx = await shop.transactions.begin()
    work = work_of("A", ids=found)
    first = await shop.transactions.commit(tx.id, work)
    assert await shop.transactions.commit(tx.id, work) == first
    await billing.groups.delete(A, "billing")
    assert await shop.transactions.commit(tx.id, work) == first
    await shop.topics.delete(A)
    assert await shop.transactions.commit(tx.id, work) == first
    billing = await again(billing, shop)
    assert await billing.shop.transactions.commit(tx.id, work) == first
    other = await billing.shop.transactions.begin()
    with pytest.raises(TopicNotFoundError):
        await billing.shop.transactions.commit(other.id, work)
    assert (await billing.shop.transactions.outcome(other.id)).state is State.OPEN


async def test_a_one_shot_is_answered_again_by_its_request_though_the_group_is_gone(shop: Wired):
    billing, found = await billing_of(shop, "a")
    work = work_of("A", ids=found)
    first = await shop.transactions.one_shot(work, request_id="r")
    assert await shop.transactions.one_shot(work, request_id="r") == first
    await billing.groups.delete(A, "billing")
    assert await shop.transactions.one_shot(work, request_id="r") == first
    with pytest.raises(GroupNotFoundError):
        await shop.transactions.one_shot(work, request_id="s")
    assert await shop.read(B, committed=True) == ["A"]


async def test_a_commit_of_a_group_that_was_deleted_by_force_publishes_all_the_same(shop: Wired):
    billing, found = await billing_of(shop, "a")
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=found, tx=tx.id)
    with pytest.raises(ConflictError):
        await billing.groups.delete(A, "billing")
    await billing.groups.delete(A, "billing", force=True)
    await Billing.made(shop)
    await shop.transactions.commit(tx.id)
    assert acknowledged(shop, found) == [False], "the new group has another number"


def span(*places: int) -> Spans:
    ids = [place.to_bytes(20, "big") for place in places]
    return Spans(zip(ids[::2], ids[1::2], strict=True))


def logged(shop: Wired) -> list[edits.Edit]:
    """The edits of the newest entry of the log."""
    return list(shop.transactions.journal.entries()[-1].edits)


def acknowledging(shop: Wired, spans: Spans) -> Callable[[Group], None]:
    """The stage that acknowledges this in the first group."""

    def stage(group: Group) -> None:
        manager = shop.transactions.manager
        manager.apply(group, manager.state.groups.propose_acknowledge(1, spans, group.now_ms).proposal.edits)

    return stage


async def test_plain_acknowledgements_of_one_group_commit_are_one_edit(shop: Wired):
    await billing_of(shop, "a")
    run = shop.transactions.manager.run
    await asyncio.gather(*(run(acknowledging(shop, span(*pair))) for pair in ((1, 2), (5, 6), (2, 3), (1, 3))))
    (made,) = logged(shop)
    assert isinstance(made, edits.Acknowledged)
    assert made.spans == span(1, 3, 5, 6)
    shop = await shop.restarted()
    assert shop.transactions.state.groups.by_number[1].acknowledged == span(1, 3, 5, 6)


async def test_a_plain_acknowledgement_stays_behind_the_seek_that_it_came_behind(shop: Wired):
    await billing_of(shop, "a")
    manager = shop.transactions.manager

    def seek(group: Group) -> None:
        manager.apply(group, manager.state.groups.propose_seek(1, bytes(20), group.now_ms, 77).edits)

    first, second = acknowledging(shop, span(1, 2)), acknowledging(shop, span(5, 6))
    await asyncio.gather(*map(manager.run, (first, seek, second)))
    assert [type(edit) for edit in logged(shop)] == [edits.Acknowledged, edits.GroupSought, edits.Acknowledged]
    shop = await shop.restarted()
    assert shop.transactions.state.groups.by_number[1].acknowledged == span(5, 6)


async def test_what_a_transaction_acknowledges_stays_behind_the_seek_that_it_came_behind(shop: Wired):
    """Not an intent: where rows and log are not one batch these are replayed first."""
    await billing_of(shop, "a")
    tx = await shop.transactions.begin()
    manager = shop.transactions.manager

    def seek(group: Group) -> None:
        manager.apply(group, manager.state.groups.propose_seek(1, bytes(20), group.now_ms, 77).edits)

    def acknowledge(group: Group) -> None:
        manager.apply(group, manager.state.acknowledge_in(tx.id, 1, span(1, 2), group.now_ms).edits)

    await asyncio.gather(manager.run(seek), manager.run(acknowledge))
    assert [type(edit) for edit in logged(shop)] == [edits.GroupSought, edits.AcknowledgedIn]
    shop = await shop.restarted()
    assert shop.transactions.state.groups.pending_of(tx.id) == {1: span(1, 2)}
    await shop.transactions.commit(tx.id)
    assert shop.transactions.state.groups.by_number[1].acknowledged == span(1, 2)


async def test_the_timeline_of_a_transaction_tells_what_it_acknowledged(shop: Wired):
    billing, found = await billing_of(shop, "a", "b")
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=found[:1], tx=tx.id)
    done = await shop.transactions.commit(tx.id)
    shot = await shop.transactions.one_shot(work_of("B", ids=found[1:]))
    entries = shop.transactions.journal.entries()
    of_tx = [(step.event, step.detail) for step in timeline_of((tx.id,), entries, done, 0).steps]
    assert [event for event, _ in of_tx if event != "committing"] == ["begun", "acknowledged", "committed"]
    assert of_tx[1][1] == {"group": 1, "spans": 1}
    assert [step.event for step in timeline_of((shot.id,), entries, shot, 0).steps] == ["one_shot", "acknowledged"]


async def test_a_group_begins_again_when_its_topic_does(shop: Wired):
    billing, found = await billing_of(shop, "a")
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=found, tx=tx.id)
    await shop.topics.delete(A)
    await shop.topics.create(A, {})
    with pytest.raises(GroupNotFoundError):
        await billing.fetch()
    await shop.transactions.commit(tx.id)


class FailingStore(MemoryStore):
    """Not atomic; a write that `fails` says yes to is not made, nor any after it, until a restart."""

    fails: Callable[[TableWrite], bool] | None = None

    def __init__(self) -> None:
        super().__init__(atomic=False)
        self.crashed = False

    def write(self, writes: Sequence[TableWrite]) -> None:
        self.crashed = self.crashed or (self.fails is not None and any(map(self.fails, writes)))
        if self.crashed:
            raise UnknownOutcomeError("the process was killed")
        super().write(writes)


def is_entry(write: TableWrite) -> bool:
    return write.table == "transaction_log" and any(isinstance(mutation, Insert) for mutation in write.mutations)


def the_outcome() -> Callable[[TableWrite], bool]:
    """True of the first log entry behind rows of messages."""
    rows = False

    def found(write: TableWrite) -> bool:
        nonlocal rows
        rows = rows or write.table == "message"
        return rows and is_entry(write)

    return found


@pytest.mark.parametrize("how", ["one-shot", "commit", "commit of what was pending"])
async def test_a_crash_between_rows_and_outcome_acknowledges_nothing_and_publishes_nothing(how: str):
    store = FailingStore()
    shop = await Wired.start(store)
    await shop.topics.create(A, {})
    await shop.topics.create(B, {})
    billing, found = await billing_of(shop, "a")
    await shop.transactions.one_shot(Work(publish=[WorkPublish(*B, encoded(["before"]))]))
    tx = await shop.transactions.begin()
    if how == "commit of what was pending":
        await billing.acknowledge(ids=found, tx=tx.id)
    store.fails = the_outcome()
    with pytest.raises(UnknownOutcomeError):
        if how == "one-shot":
            await shop.transactions.one_shot(work_of("A", ids=found))
        else:
            await shop.transactions.commit(tx.id, work_of("A", ids=found))
    store.fails, store.crashed = None, False
    billing = await again(billing, shop)
    assert await billing.shop.read(B, committed=True) == ["before"]
    assert acknowledged(billing.shop, found) == [False]
    assert attempts(billing.shop, found[0]) == 0, "a restart is no attempt"
    assert await billing.read() == ["a"]
    if how != "one-shot":
        assert (await billing.shop.transactions.outcome(tx.id)).state is State.ABORTED


@pytest.mark.parametrize("how", ["plain", "pending", "one-shot", "commit"])
@pytest.mark.parametrize("atomic", [True, False])
async def test_an_acknowledgement_whose_write_failed_is_unknown_until_the_log_is_read(how: str, atomic: bool):
    """A failed write drops the working state, and what claims and windows say is made anew from what the log has."""
    store = FailingStore()
    store.atomic = atomic
    shop = await Wired.start(store)
    await shop.topics.create(A, {})
    await shop.topics.create(B, {})
    billing, found = await billing_of(shop, "a")
    tx = await shop.transactions.begin()
    store.fails = lambda write: True
    with pytest.raises(UnknownOutcomeError):
        if how == "plain":
            await billing.acknowledge(ids=found)
        elif how == "pending":
            await billing.acknowledge(ids=found, tx=tx.id)
        elif how == "one-shot":
            await shop.transactions.one_shot(work_of("A", ids=found))
        else:
            await shop.transactions.commit(tx.id, work_of("A", ids=found))
    store.fails, store.crashed = None, False
    await shop.transactions.recover()
    assert acknowledged(shop, found) == [False]
    assert await billing.read() == ["a"]
    assert await shop.read(B, committed=True) == []


async def test_the_log_tells_what_a_one_shot_acknowledged_beside_others_in_its_group_of_writes(shop: Wired):
    billing, found = await billing_of(shop, "a", "b", "c")
    _, outcome, _ = await asyncio.gather(
        billing.acknowledge(ids=found[:1]),
        shop.transactions.one_shot(work_of("B", ids=found[1:2])),
        billing.acknowledge(ids=found[2:]),
    )
    told: dict[int, Spans] = {}
    for entry in shop.transactions.journal.entries():
        for edit in entry.edits:
            if isinstance(edit, edits.Acknowledged):
                told.setdefault(edit.writer, Spans()).update(edit.spans)
    covered = {writer: [spans.covers(each) for each in found] for writer, spans in told.items()}
    assert covered == {0: [True, False, True], outcome.id: [False, True, False]}
    assert acknowledged((await again(billing, shop)).shop, found) == [True] * 3


@pytest.mark.parametrize("mode", ["stream", "keyed"])
async def test_a_commit_without_work_is_refused_for_what_its_transaction_acknowledged_out_of_order(
    shop: Wired, mode: GroupMode
):
    await shop.messaging.publish(A, encoded(["a", "b"]), extras=[Extras(b"key")] * 2)
    billing = await Billing.made(shop, GroupOptions(mode))
    page = await billing.fetch("mary")
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=ids_of(page)[1:], member="mary", tx=tx.id)
    with pytest.raises(AcknowledgeOrderError):
        await shop.transactions.commit(tx.id)
    await billing.acknowledge(ids=ids_of(page)[:1], member="mary", tx=tx.id)
    await shop.transactions.commit(tx.id)
    assert acknowledged(shop, ids_of(page)) == [True, True]
