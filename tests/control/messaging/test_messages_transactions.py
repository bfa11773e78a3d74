"""Messages under transactions: who sees them when, whatever happens in between."""

from __future__ import annotations

import pytest

from basalt.errors import InputError, TopicNotFoundError, TransactionEndedError
from basalt_engine.snapshot import POINTERS_PER_MS
from tests.wiring import A, B, Wired, encoded, ids, shop_work, texts

pytestmark = pytest.mark.anyio


async def test_a_commit_shows_all_its_messages_in_all_topics_at_once(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    before = shop.transactions.manager.current()
    await shop.commit(tx, orders=["order"], invoices=["invoice"])
    for title in (A, B):
        assert texts(await shop.messaging.fetch(title, None, True, snapshot=before)) == []
    assert await shop.read(A, committed=True) == ["stored", "order"]
    assert await shop.read(B, committed=True) == ["invoice"]


async def test_a_snapshot_reads_the_same_for_as_long_as_it_is_held(shop: Wired) -> None:
    await shop.commit(await shop.transactions.begin(), orders=["1"])
    held = shop.transactions.manager.current()
    await shop.commit(await shop.transactions.begin(), orders=["2"], invoices=["2"])
    assert texts(await shop.messaging.fetch(A, None, True, snapshot=held)) == ["1"]
    assert texts(await shop.messaging.fetch(B, None, True, snapshot=held)) == []


async def test_an_open_transaction_holds_nobody_back_unless_it_published_early(shop: Wired) -> None:
    quiet, early = await shop.transactions.begin(), await shop.transactions.begin(owner="early bird")
    await shop.store_aside(A, "aside", tx=quiet)
    await shop.publish(A, "1")
    assert await shop.read(A, committed=True) == ["1"]
    await shop.publish(A, "held", tx=early)
    await shop.publish(A, "2")
    page = await shop.messaging.fetch(A, None, True, committed=True)
    assert (texts(page), page.held_by) == (["1"], early.write_pointer)
    assert await shop.read(A) == ["1", "held", "2"]
    await shop.commit(early)
    assert await shop.read(A, committed=True) == ["1", "held", "2"]


async def test_a_writer_sees_its_own_messages(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.publish(A, "own", tx=tx)
    assert await shop.read(A, tx=tx) == ["own"]


async def test_a_checkpoint_writes_under_a_further_pointer_and_commits_with_the_first(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "first", tx=tx)
    further = await shop.transactions.checkpoint(tx.id)
    assert further.write_pointer > tx.write_pointer
    await shop.store_aside(A, "second", tx=further)
    await shop.publish(B, "early", tx=further)
    assert texts(await shop.messaging.fetch(B, None, True, committed=True)) == []
    await shop.transactions.commit(tx.id)
    assert await shop.read(A, committed=True) == ["first", "second"]
    assert await shop.read(B, committed=True) == ["early"]


async def test_an_aborted_transaction_is_never_seen_even_when_nobody_rolled_it_back(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    await shop.publish(A, "early", tx=tx)
    await shop.transactions.abort(tx.id)
    await shop.commit(await shop.transactions.begin(), orders=["later"])
    assert await shop.read(A, committed=True) == ["later"]
    again = await shop.restarted()
    assert await again.read(A, committed=True) == ["later"]
    assert await again.read(A) == ["early", "later"]


async def test_an_abandoned_transaction_is_rolled_back_when_its_time_is_up(shop: Wired) -> None:
    tx = await shop.transactions.begin(timeout_ms=1_000)
    await shop.publish(A, "abandoned", tx=tx)
    await shop.publish(A, "behind")
    shop.clock.advance(1_000)
    assert await shop.transactions.expire() == 1
    assert await shop.read(A, committed=True) == ["behind"]
    assert len(shop.transactions.manager.current().invalid) == 0


async def test_a_crash_leaves_an_open_transaction_to_its_time_out(shop: Wired) -> None:
    tx = await shop.transactions.begin(timeout_ms=1_000)
    await shop.publish(A, "abandoned", tx=tx)
    await shop.store_aside(B, "stored", tx=tx)
    again = await shop.restarted()
    assert texts(await again.messaging.fetch(A, None, True, committed=True)) == []
    again.clock.advance(1_000)
    await again.transactions.expire()
    await again.publish(A, "after")
    assert await again.read(A, committed=True) == ["after"]


async def test_an_open_transaction_goes_on_after_a_restart(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "1", tx=tx)
    again = await shop.restarted()
    await again.store_aside(A, "2", tx=tx)
    await again.commit(tx, orders=["3"])
    assert await again.read(A, committed=True) == ["1", "2", "3"]


async def test_a_timed_out_writer_with_external_writes_goes_to_the_invalid_list(shop: Wired) -> None:
    tx = await shop.transactions.begin(timeout_ms=1_000, external_writes=True)
    await shop.publish(A, "invalid", tx=tx)
    shop.clock.advance(1_000)
    await shop.transactions.expire()
    await shop.publish(A, "valid")
    assert tx.write_pointer in shop.transactions.manager.current().invalid
    assert await shop.read(A, committed=True) == ["valid"]
    assert await shop.read(A) == ["invalid", "valid"]


@pytest.mark.parametrize("end", ["commit", "abort", "time out"])
async def test_a_late_write_of_an_ended_transaction_is_refused(shop: Wired, end: str) -> None:
    tx = await shop.transactions.begin(timeout_ms=1_000)
    if end == "commit":
        await shop.commit(tx)
    elif end == "abort":
        await shop.transactions.abort(tx.id)
    else:
        shop.clock.advance(1_000)
        await shop.transactions.expire()
    for late in (
        shop.messaging.publish(A, [b"late"], tx.write_pointer),
        shop.messaging.publish(A, [], tx.write_pointer),
        shop.messaging.store(A, [b"late"], tx.write_pointer),
    ):
        with pytest.raises(TransactionEndedError):
            await late
    assert await shop.read(A) == []


async def test_a_pointer_that_no_transaction_can_have_is_bad_input(shop: Wired) -> None:
    ancient = (shop.clock.now_ms() - 90_000_001) * POINTERS_PER_MS
    for pointer in (ancient, 1, 0, -5, 1 << 63):
        with pytest.raises(InputError) as refused:
            await shop.messaging.publish(A, [b"x"], pointer)
        assert not isinstance(refused.value, TransactionEndedError)
        with pytest.raises(InputError):
            await shop.messaging.store(A, [b"x"], pointer)


async def test_a_one_shot_transaction_is_all_or_nothing_and_its_retry_publishes_nothing_twice(shop: Wired) -> None:
    work = shop_work(orders=["o"], invoices=["i1", "i2"])
    first = await shop.transactions.one_shot(work, "test", request_id="r1")
    again = await shop.transactions.one_shot(work, "test", request_id="r1")
    restarted = await shop.restarted()
    third = await restarted.transactions.one_shot(work, "test", request_id="r1")
    assert first.id == again.id == third.id
    assert await restarted.read(A, committed=True) == ["o"]
    assert await restarted.read(B, committed=True) == ["i1", "i2"]


async def test_a_commit_whose_work_names_a_missing_topic_changes_nothing(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.topics.delete(B)
    with pytest.raises(TopicNotFoundError):
        await shop.commit(tx, orders=["o"], invoices=["i"])
    assert await shop.read(A) == []
    await shop.commit(tx, orders=["o"])
    assert await shop.read(A, committed=True) == ["o"]


async def test_a_repeated_commit_publishes_its_work_once(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    for _ in range(3):
        await shop.commit(tx, orders=["once"])
    assert await shop.read(A) == ["once"]
    with pytest.raises(TransactionEndedError):
        await shop.transactions.abort(tx.id)


async def test_messages_of_a_transaction_are_found_by_the_place_that_publish_answered(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    answer = await shop.messaging.publish(A, encoded(["a", "b"]), tx.write_pointer)
    page = await shop.messaging.fetch(A, answer.start_ms, True)
    assert [found[:10] for found in ids(page)] == [
        answer.start_ms.to_bytes(8, "big") + sequence.to_bytes(2, "big")
        for sequence in range(answer.start_sequence, answer.end_sequence + 1)
    ]
