"""Segments: of all that was stored under a transaction its commit publishes what it lists, in that order, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from basalt.api.bodies.messages import Work, WorkMarker, WorkPublish
from basalt.commits.commit_stage import Beginning
from basalt.errors import InputError, SessionFencedError, TransactionEndedError
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.sessions import SessionState, WorkVersion
from basalt.transactions.rules.transaction import Kind, State, Transaction
from basalt_engine.payloads import PayloadTable
from tests.wiring import A, B, Wired, encoded

pytestmark = pytest.mark.anyio


async def begin(shop: Wired, run: str = "r1", version: int = 0) -> Transaction:
    found = await shop.transactions.sessions.begin_named(WorkVersion("etl", run, version), Beginning(Kind.LONG))
    assert isinstance(found, Transaction)
    return found


async def segment(shop: Wired, tx: Transaction, *orders: str, invoices: Sequence[str] = ()) -> int:
    """A segment with these messages."""
    pointer = (await shop.transactions.checkpoint(tx.id)).write_pointer
    for title, messages in ((A, orders), (B, invoices)):
        if messages:
            await shop.messaging.store(title, encoded(messages), pointer)
    return pointer


async def commit(shop: Wired, tx: Transaction, *segments: int, work: Work | None = None) -> Outcome:
    made = work or Work()
    return await shop.transactions.commit(tx.id, Work(made.publish, made.markers, segments))


async def committed(shop: Wired) -> list[list[str]]:
    return [await shop.read(title, committed=True) for title in (A, B)]


def payload_rows(shop: Wired) -> int:
    return sum(1 for _ in shop.store.table(PayloadTable.name).scan(b"", None))


async def test_the_winners_are_published_in_the_order_of_the_list_and_the_losers_are_gone(shop: Wired) -> None:
    tx = await begin(shop)
    lost = await segment(shop, tx, "a lost", invoices=["1 lost"])
    second = await segment(shop, tx, "b1", "b2", invoices=["2"])
    first = await segment(shop, tx, "a1")
    empty = await segment(shop, tx)
    await shop.publish(A, "between")
    assert (await commit(shop, tx, first, empty, second)).state is State.COMMITTED
    assert await committed(shop) == [["between", "a1", "b1", "b2"], ["2"]]
    assert payload_rows(shop) == 3, "of the loser nothing is left"
    assert lost not in (first, second)
    again = await shop.restarted()
    assert await committed(again) == [["between", "a1", "b1", "b2"], ["2"]]


async def test_without_segments_nothing_that_was_stored_is_published_but_the_work_is_and_markers_come_last(
    shop: Wired,
) -> None:
    tx = await begin(shop)
    await segment(shop, tx, "lost")
    await shop.messaging.store(A, [b"under the first pointer"], tx.id)
    work = Work([WorkPublish(*A, [b"work"])], [WorkMarker(*A, "etl", 1, "watermark", 700)])
    await commit(shop, tx, work=work)
    assert await committed(shop) == [["work"], []]
    assert payload_rows(shop) == 0
    assert (await shop.services.markers.facts(A)).watermark_ms == 700


async def test_what_is_stored_under_the_first_pointer_is_a_segment_like_any_other(shop: Wired) -> None:
    tx = await begin(shop)
    await shop.messaging.store(A, [b"first"], tx.id)
    later = await segment(shop, tx, "later")
    await commit(shop, tx, later, tx.id)
    assert await committed(shop) == [["later", "first"], []]


async def test_a_second_commit_answers_the_first_one_s_outcome_whatever_its_segments(shop: Wired) -> None:
    tx = await begin(shop)
    one, other = await segment(shop, tx, "one"), await segment(shop, tx, "other")
    first = await commit(shop, tx, one)
    for segments in ((one,), (other,), (), (17,)):
        assert await commit(shop, tx, *segments) == first
    assert await shop.transactions.commit(tx.id) == first
    assert await committed(shop) == [["one"], []]
    with pytest.raises(TransactionEndedError, match="was committed"):
        await shop.transactions.abort(tx.id)


async def test_a_pointer_that_is_none_of_its_segments_is_refused_and_nothing_has_happened(shop: Wired) -> None:
    tx, stranger = await begin(shop), await shop.transactions.begin()
    one = await segment(shop, tx, "one")
    for wrong in (stranger.id, one + 1):
        with pytest.raises(InputError, match=f"write pointer {wrong} is no segment of transaction {tx.id}") as refused:
            await commit(shop, tx, one, wrong)
        assert refused.value.field == "segments[1].writePointer"
    with pytest.raises(InputError, match=f"write pointer {one} is named twice"):
        await commit(shop, tx, one, one)
    assert (await shop.transactions.get(tx.id)).state is State.OPEN
    await commit(shop, tx, one)
    assert await committed(shop) == [["one"], []]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_segment_that_published_ahead_of_the_commit_cannot_be_left_out(shop: Wired, restarted: bool) -> None:
    tx = await begin(shop)
    kept = await segment(shop, tx, "kept")
    early = await segment(shop, tx, "stored")
    await shop.messaging.publish(A, [b"early"], early)
    server = await shop.restarted() if restarted else shop
    for segments in ((kept,), ()):
        with pytest.raises(InputError, match=rf"segment {early} of .* in topic shop:orders ahead of the commit"):
            await commit(server, tx, *segments)
    await commit(server, tx, kept, early)
    assert await committed(server) == [["early", "kept", "stored"], []]


async def test_a_transaction_goes_on_after_a_restart_and_its_losers_are_still_known(shop: Wired) -> None:
    tx = await begin(shop)
    lost, kept = await segment(shop, tx, "lost", invoices=["lost"]), await segment(shop, tx, "kept")
    again = await shop.restarted()
    joined = await begin(again)
    assert (joined.id, joined.pointers) == (tx.id, (tx.id, lost, kept))
    later = await segment(again, tx, "later")
    await commit(again, tx, later, kept)
    assert await committed(again) == [["later", "kept"], []]
    assert payload_rows(again) == 2


async def test_a_topic_that_was_deleted_takes_along_what_was_stored_in_it(shop: Wired) -> None:
    tx = await begin(shop)
    one = await segment(shop, tx, "one", invoices=["1"])
    await shop.topics.delete(B)
    await commit(shop, tx, one)
    assert await shop.read(A, committed=True) == ["one"]


async def test_an_abort_removes_every_segment_of_a_long_transaction_and_leaves_nothing_invalid(shop: Wired) -> None:
    tx = await begin(shop)
    for number in range(5):
        await segment(shop, tx, f"{number}", invoices=[f"{number}"])
    assert (await shop.transactions.abort(tx.id)).state is State.ABORTED
    assert payload_rows(shop) == 0
    assert shop.transactions.state.invalid.pointers == ()
    assert (await begin(shop)).id != tx.id, "the version is to be done again"


async def test_an_abort_removes_more_segments_than_one_group_takes(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("basalt.commits.owning.owner.REMOVED_TOGETHER_MAX", 2)
    tx = await begin(shop)
    for number in range(4):
        await segment(shop, tx, f"{number}")
    await shop.transactions.abort(tx.id)
    assert payload_rows(shop) == 0


async def test_a_new_run_finds_the_segments_of_the_old_one_removed(shop: Wired) -> None:
    old = await begin(shop, "r1")
    zombie = await segment(shop, old, "old")
    new = await begin(shop, "r2")
    assert payload_rows(shop) == 0
    with pytest.raises(SessionFencedError):
        await shop.messaging.store(A, [b"late"], zombie)
    with pytest.raises(SessionFencedError):
        await commit(shop, old, zombie)
    with pytest.raises(SessionFencedError):
        await begin(shop, "r1", 1)
    await commit(shop, new, await segment(shop, new, "new"))
    assert await committed(shop) == [["new"], []]
    again = await shop.restarted()
    with pytest.raises(SessionFencedError):
        await begin(again, "r1", 1)


async def test_racing_processes_of_a_run_get_one_transaction(shop: Wired) -> None:
    found = await asyncio.gather(*(begin(shop) for _ in range(8)))
    assert len({tx.id for tx in found}) == 1
    assert len(shop.transactions.state.transactions()) == 1


async def test_a_version_that_is_committed_is_told_to_all_who_come_later(shop: Wired) -> None:
    tx = await begin(shop)
    await commit(shop, tx)
    for run in ("r1", "r2"):
        found = await shop.transactions.sessions.begin_named(WorkVersion("etl", run, 0), Beginning())
        assert isinstance(found, SessionState)
        assert (found.version, found.committed_by, found.run) == (0, tx.id, "r1")


async def test_a_one_shot_transaction_has_no_segments(shop: Wired) -> None:
    with pytest.raises(InputError, match="a one-shot transaction has stored nothing"):
        await shop.transactions.one_shot(Work([WorkPublish(*A, [b"work"])], segments=()))
    assert await committed(shop) == [[], []]


async def test_a_commit_reads_nothing_for_the_segments_that_stored_nothing_in_a_topic(shop: Wired) -> None:
    tx = await begin(shop)
    segments = [await segment(shop, tx, *(["one"] if number == 3 else [])) for number in range(20)]
    await shop.messaging.store(B, [b"1"], segments[7])
    table, reads = shop.store.table(PayloadTable.name), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "get", reads.append)
        await commit(shop, tx, *segments)
    assert reads == []
    assert await committed(shop) == [["one"], ["1"]]
