"""Acknowledgements and releases, as members and transactions see them."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Sequence

import pytest

from basalt.api.bodies.groups import Acknowledged, GroupOptions
from basalt.api.bodies.json import HexMessageId
from basalt.api.bodies.messages import RecordIn, Work, WorkAcknowledge
from basalt.api.markers import Marker
from basalt.errors import (
    AcknowledgeConflictError,
    AcknowledgeOrderError,
    ClaimLostError,
    MemberFencedError,
    TransactionConflictError,
)
from basalt.groups import acknowledgements, places
from basalt.transactions.log import transaction_log
from basalt.transactions.log.entry_format import encode_entry
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.transaction import Kind
from basalt_engine.spans.spans import ZERO_ID
from tests.control.groups.conftest import Billing, ids_of
from tests.wiring import A, Wired, ids, texts

pytestmark = pytest.mark.anyio


async def test_a_repeated_acknowledgement_is_told_that_it_was_done(shop: Wired) -> None:
    await shop.publish(A, "a", "b")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary")
    assert await billing.acknowledge(page.claim, member="mary") == Acknowledged(2, 0)
    assert await billing.acknowledge(page.claim, member="mary") == Acknowledged(0, 2)
    assert await billing.acknowledge(ids=ids_of(page)) == Acknowledged(0, 2)


async def test_a_repeated_release_gives_nothing_back_again_and_one_of_what_ran_out_is_told_so(shop: Wired) -> None:
    await shop.publish(A, "a", "b")
    billing = await Billing.made(shop, GroupOptions(claim_ms=1_000))
    page = await billing.fetch("mary")
    assert (await billing.release(page.claim, member="mary", counts=False)).released == 2
    other = await billing.fetch("john")
    assert (await billing.release(page.claim, member="mary", counts=False)).released == 0
    with pytest.raises(ClaimLostError):
        await billing.acknowledge(page.claim, member="mary")
    shop.clock.advance(2_000)
    await billing.fetch("mary", epoch=page.member_epoch)
    with pytest.raises(ClaimLostError):
        await billing.release(other.claim, member="john")


async def test_what_another_has_claimed_is_not_acknowledged(shop: Wired) -> None:
    await shop.publish(A, "a", "b")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary")
    for attempt in (
        billing.acknowledge(page.claim, member="john"),
        billing.acknowledge(ids=ids_of(page)[:1], member="john"),
        billing.acknowledge(up_to=page.through, member="john"),
        billing.acknowledge(page.claim + 1, member="john"),
    ):
        with pytest.raises(ClaimLostError):
            await attempt
    assert billing.floor() == ZERO_ID


async def test_after_a_restart_members_go_on_by_ids(shop: Wired) -> None:
    await shop.publish(A, "a", "b", "c")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary")
    again = Billing(await shop.restarted())
    with pytest.raises(ClaimLostError):
        await again.acknowledge(page.claim, member="mary", epoch=page.member_epoch)
    await again.acknowledge(ids=ids_of(page), member="mary", epoch=page.member_epoch)
    assert await again.handled() == []
    assert again.floor() == page.through
    await again.shop.services.close()


async def test_part_of_a_claim_is_given_back_and_the_rest_acknowledged(shop: Wired) -> None:
    await shop.publish(A, "a", "b", "c", "d")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary")
    known = ids_of(page)
    assert (
        await billing.acknowledge(page.claim, member="mary", except_ids=tuple(map(HexMessageId, known[1:3])))
    ).acknowledged == 2
    assert (await billing.release(ids=known[1:2], member="mary")).released == 1
    assert (await billing.acknowledge(page.claim, member="mary")).acknowledged == 1
    shop.clock.advance(1_000)
    again = await billing.fetch("john")
    assert (texts(again.fetch), again.attempt) == (["b"], 2)


async def test_two_transactions_acknowledge_one_message_and_the_second_is_doomed(shop: Wired) -> None:
    await shop.publish(A, "a", "b")
    billing = await Billing.made(shop)
    page = await billing.fetch()
    first, second = await shop.transactions.begin(), await shop.transactions.begin()
    await billing.acknowledge(page.claim, tx=first.id)
    await billing.acknowledge(ids=ids_of(page), tx=first.id)  # its own
    with pytest.raises(AcknowledgeConflictError):
        await billing.acknowledge(ids=ids_of(page)[:1])
    with pytest.raises(TransactionConflictError):
        await billing.acknowledge(ids=ids_of(page)[:1], tx=second.id)
    with pytest.raises(TransactionConflictError):
        await shop.commit(second, orders=["never"])
    assert (await billing.fetch()).waiting_for == "claimed"
    await shop.commit(first)
    assert billing.floor() == page.through
    assert (await billing.fetch()).waiting_for == "no_messages"


async def test_what_an_aborted_transaction_had_acknowledged_is_dealt_again(shop: Wired) -> None:
    await shop.publish(A, "a", "b")
    billing = await Billing.made(shop, GroupOptions(retry_delay_ms=0))
    tx = await shop.transactions.begin()
    page = await billing.fetch("mary", 1, transaction_id=tx.id)
    kept = await billing.fetch("mary", 1, epoch=page.member_epoch, transaction_id=tx.id)
    await billing.acknowledge(page.claim, tx=tx.id)
    await shop.transactions.abort(tx.id)
    assert billing.floor() == ZERO_ID
    with pytest.raises(ClaimLostError):
        await billing.acknowledge(page.claim)
    with pytest.raises(ClaimLostError):
        await billing.acknowledge(kept.claim)
    again = await billing.fetch("john")
    assert (texts(again.fetch)[0], again.attempt) == ("a", 2)


async def test_a_claim_of_which_a_part_came_back_is_not_acknowledged_by_its_number(shop: Wired) -> None:
    await shop.publish(A, "a", "b", "c")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary")
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=ids_of(page)[:1], tx=tx.id, member="mary")
    with pytest.raises(AcknowledgeConflictError):
        await billing.acknowledge(page.claim, member="mary")
    await shop.transactions.abort(tx.id)
    with pytest.raises(ClaimLostError):
        await billing.acknowledge(page.claim, member="mary")
    assert billing.floor() == ZERO_ID
    assert (await billing.release(page.claim, member="mary")).released == 2


async def test_a_member_that_is_replaced_before_the_stage_acknowledges_nothing(shop: Wired) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary")
    entry = WorkAcknowledge(*A, "billing", ids=ids_of(page), member="mary", epoch=page.member_epoch)
    planned = await billing.groups.plan([entry], None)
    billing.live.join("mary", 0)
    with pytest.raises(MemberFencedError):
        billing.groups.check(planned, None, shop.clock.now_ms())


@pytest.mark.parametrize("how", ["restart", "read log again"])
async def test_what_is_pending_stays_so_when_the_log_is_read_again(shop: Wired, how: str) -> None:
    await shop.publish(A, "a", "b")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary", 1)
    tx = await shop.transactions.begin()
    await billing.acknowledge(page.claim, tx=tx.id, member="mary")
    if how == "restart":
        shop = await shop.restarted()
        billing = Billing(shop)
    else:
        shop.transactions.manager.lost()
    assert await billing.read("john") == ["b"]
    await shop.transactions.commit(tx.id)
    assert billing.floor() == page.through


async def test_up_to_counts_messages_as_claims_and_ids_do(shop: Wired) -> None:
    await shop.publish(A, *"abcde")
    await shop.publish(A, *"fghij")
    billing = await Billing.made(shop)
    first = await billing.fetch("mary", 3)
    known = await all_ids(shop)
    second = await billing.fetch("mary", 2, epoch=first.member_epoch)
    done = await billing.acknowledge(up_to=known[3], member="mary")
    assert (done.acknowledged, done.already, done.exact) == (4, 0, True)
    assert (billing.live.dispatcher.unacked, billing.live.totals.acknowledged) == (1, 4)
    done = await billing.acknowledge(second.claim, up_to=known[7], except_ids=[HexMessageId(known[6])], member="mary")
    assert (done.acknowledged, done.already, done.exact) == (3, 1, True), "e, f and h; d was so before"
    tx = await shop.transactions.begin()
    assert (await billing.acknowledge(up_to=known[8], ids=[known[6], known[9]], tx=tx.id)).acknowledged == 3
    assert (await billing.acknowledge(up_to=known[9], tx=tx.id)).acknowledged == 0, "pending by then"
    await shop.transactions.commit(tx.id)
    assert billing.floor() == known[9]


async def test_up_to_counts_at_least_so_many_where_it_covers_very_many_stretches(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledgements, "COUNTED_MAX", 1)
    await shop.publish(A, *"abcde")
    billing = await Billing.made(shop)
    known = await all_ids(shop)
    await billing.acknowledge(ids=[known[1]])
    done = await billing.acknowledge(up_to=known[4])
    assert (done.acknowledged, done.exact) == (1, False)
    assert billing.floor() == known[4]


@pytest.mark.parametrize("seed", range(4))
async def test_every_acknowledgement_counts_each_message_once(shop: Wired, seed: int) -> None:
    """Against a set of messages, whatever is claimed, returned and acknowledged in between."""
    chances = random.Random(seed)
    for _ in range(6):
        await shop.publish(A, *"abcd")
    billing = await Billing.made(shop, GroupOptions(retry_delay_ms=0))
    known = await all_ids(shop)
    claims, done, epoch = list[int | None](), set[bytes](), 0
    while len(done) < len(known):
        what = chances.choice(["fetch", "fetch", "ids", "up to", "release"])
        if what == "fetch":
            page = await billing.fetch("mary", chances.randint(1, 4), epoch=epoch)
            epoch = page.member_epoch
            claims += [page.claim] if page.claim else []
            continue
        if what == "release":
            if claims:
                claim = claims.pop()
                with contextlib.suppress(ClaimLostError):
                    await billing.release(claim, member="mary", counts=chances.random() < 0.5)
            continue
        meant = {known[chances.randrange(len(known))]}
        if what == "up to":
            through = max(meant)
            left_out = set(chances.sample(known, 2))
            meant = {each for each in known if each <= through} - left_out
            found = await billing.acknowledge(
                up_to=through, except_ids=[HexMessageId(each) for each in left_out], member="mary" if epoch else ""
            )
        else:
            found = await billing.acknowledge(ids=sorted(meant), member="mary" if epoch else "")
        assert (found.acknowledged, found.exact) == (len(meant - done), True)
        done |= meant
    assert billing.live.totals.acknowledged <= len(known)
    assert billing.live.dispatcher.unacked == 0


async def test_a_release_up_to_a_message_gives_back_all_that_the_caller_has_until_there(shop: Wired) -> None:
    await shop.publish(A, *"abcdefg")
    billing = await Billing.made(shop, GroupOptions(retry_delay_ms=0))
    known = await all_ids(shop)
    page = await billing.fetch("mary", 2)
    await billing.fetch("mary", 3, epoch=page.member_epoch)
    other = await billing.fetch("john", 1)
    with pytest.raises(ClaimLostError):
        await billing.release(member="mary", up_to=HexMessageId(known[5]))
    released = await billing.release(
        member="mary", up_to=HexMessageId(known[3]), except_ids=(HexMessageId(known[0]),), counts=False
    )
    assert released.released == 3
    assert await billing.read("john", epoch=other.member_epoch) == ["b", "c", "d"]
    assert (await billing.release(member="mary", up_to=HexMessageId(known[0]))).released == 1
    again = await billing.fetch("john", epoch=other.member_epoch)
    assert (texts(again.fetch), again.attempt) == (["a"], 2), "this one was an attempt"
    tx = await shop.transactions.begin()
    await billing.acknowledge(again.claim, member="john", tx=tx.id)
    with pytest.raises(AcknowledgeConflictError):
        await billing.release(member="mary", up_to=HexMessageId(known[0]))


async def all_ids(shop: Wired) -> list[bytes]:
    return ids(await shop.messaging.fetch(A, None, True, committed=True))


@pytest.mark.parametrize("how", ["plainly", "in a transaction", "in a one-shot"])
async def test_what_was_acknowledged_and_removed_by_retention_is_no_conflict_with_the_message_behind_it(
    shop: Wired, how: str
) -> None:
    """The message before it that can be found is far away, or there is none."""
    await shop.topics.update(A, {"ttl": "10"})
    await shop.publish(A, *"abcd")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary")
    gone = ids_of(page)
    await billing.acknowledge(ids=[gone[0], gone[2]], member="mary")
    shop.clock.advance(5_000_000)
    await shop.publish(A, "e", "f")
    await shop.services.scheduler.run_now("retention")
    page = await billing.fetch("mary")
    first, second = ids_of(page)
    if how == "in a one-shot":
        entry = WorkAcknowledge(*A, "billing", [first], member="mary")
        await shop.transactions.one_shot(Work(acknowledge=[entry]))
    else:
        tx = await shop.transactions.begin() if how == "in a transaction" else None
        await billing.acknowledge(ids=[first], member="mary", tx=None if tx is None else tx.id)
        if tx is not None:
            await shop.transactions.commit(tx.id)
    state = billing.live.state.acknowledged
    assert (state.covers(first), state.covers(second)) == (True, False)


@pytest.mark.parametrize("between", ["aborted rows", "markers", "rows of stored payloads", "what has expired"])
async def test_a_stream_is_acknowledged_message_by_message_whatever_lies_between_them(
    shop: Wired, between: str
) -> None:
    await shop.publish(A, "a")
    if between == "rows of stored payloads":
        tx = await shop.transactions.begin()
        for message in "bcde":
            await shop.store_aside(A, message, tx=tx)
        await shop.transactions.commit(tx.id)
    for number in range(2 * places.ROWS_BEFORE_MAX):
        if between == "aborted rows":
            tx = await shop.transactions.begin()
            await shop.publish(A, "never", tx=tx)
            await shop.transactions.abort(tx.id)
        elif between == "markers":
            await shop.services.markers.publish(A, Marker("task", 1, number))
        elif between == "what has expired":
            await shop.messaging.publish_records(A, [RecordIn(b"gone", ttl_ms=1_000)])
    await shop.publish(A, "y", "z")
    shop.clock.advance(2_000)
    billing = await Billing.made(shop, GroupOptions("stream"))
    page = await billing.fetch("mary")
    for each in ids_of(page):
        await billing.acknowledge(ids=[each], member="mary")
    assert list(billing.live.state.acknowledged) == [(ZERO_ID, page.through)]


@pytest.mark.parametrize("mode", ["shared", "keyed"])
@pytest.mark.parametrize("way", ["plain", "by a transaction", "released"])
async def test_a_claim_of_which_each_message_was_named_by_its_id_is_over_though_rows_that_nobody_sees_lie_before_them(
    shop: Wired, mode: str, way: str
) -> None:
    for message in "ab":
        for _ in range(places.ROWS_BEFORE_MAX + 1):
            aborted = await shop.transactions.begin()
            await shop.publish(A, "never", tx=aborted)
            await shop.transactions.abort(aborted.id)
        await shop.publish(A, message)
    billing = await Billing.made(shop, GroupOptions(mode, retry_delay_ms=0))
    page = await billing.fetch("mary")
    tx = await shop.transactions.begin() if way == "by a transaction" else None
    for each in ids_of(page):
        assert len(billing.live.dispatcher.claims) == 1
        if way == "released":
            assert (await billing.release(ids=[each], member="mary")).released == 1
        else:
            await billing.acknowledge(ids=[each], member="mary", tx=None if tx is None else tx.id)
    assert len(billing.live.dispatcher.claims) == 0
    if tx is not None:
        await billing.acknowledge(page.claim, member="mary", tx=tx.id)
        assert (await billing.fetch("mary", epoch=page.member_epoch)).waiting_for == "claimed", "it is pending"
        await shop.transactions.commit(tx.id)
    again = await billing.fetch("mary", epoch=page.member_epoch)
    assert texts(again.fetch)[:1] == (["a"] if way == "released" else [])
    if way != "released":
        assert (again.waiting_for, billing.live.dispatcher.unacked) == ("no_messages", 0)
        assert (await billing.acknowledge(page.claim, member="mary")).already == 2


async def test_a_stream_refuses_a_message_behind_a_far_one_that_is_not_acknowledged(shop: Wired) -> None:
    await shop.publish(A, "a")
    for number in range(2 * places.ROWS_BEFORE_MAX):
        await shop.services.markers.publish(A, Marker("task", 1, number))
    await shop.publish(A, "b")
    billing = await Billing.made(shop, GroupOptions("stream"))
    page = await billing.fetch("mary")
    with pytest.raises(AcknowledgeOrderError):
        await billing.acknowledge(ids=ids_of(page)[1:], member="mary")


async def test_what_a_transaction_acknowledged_and_retention_removed_is_no_conflict_with_the_message_behind_it(
    shop: Wired,
) -> None:
    await shop.topics.update(A, {"ttl": "10"})
    await shop.publish(A, "a", "b")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary")
    tx = await shop.transactions.begin(Kind.LONG, timeout_ms=10_000_000)
    await billing.acknowledge(ids=ids_of(page)[1:], member="mary", tx=tx.id)
    shop.clock.advance(5_000_000)
    await shop.publish(A, "c")
    await shop.services.scheduler.run_now("retention")
    page = await billing.fetch("john")
    await billing.acknowledge(ids=ids_of(page), member="john")
    await shop.transactions.commit(tx.id)
    assert billing.live.state.acknowledged.covers(ids_of(page)[0])


@pytest.mark.parametrize("by_ids", [False, True])
async def test_what_one_call_gives_back_is_one_edit_of_the_log_however_many_claims_it_was(
    shop: Wired, by_ids: bool
) -> None:
    await shop.publish(A, *"abcdefgh")
    billing = await Billing.made(shop, GroupOptions(retry_delay_ms=0))
    pages = [await billing.fetch("mary", 2)]
    pages += [await billing.fetch("mary", 2, epoch=pages[0].member_epoch) for _ in range(3)]
    named = [[page.claim for page in pages[:3]], [message for page in pages[:3] for message in ids_of(page)]][by_ids]
    edits = shop.transactions.state.edits_applied
    asked = {"ids": named} if by_ids else {}
    released = await billing.release(*([] if by_ids else named), member="mary", **asked)  # type: ignore[arg-type]
    assert released.released == 6
    assert shop.transactions.state.edits_applied == edits + 1
    assert [claim.number for claim in billing.live.dispatcher.claims] == [pages[3].claim]
    again = await billing.fetch("john")
    assert (texts(again.fetch), again.attempt) == (list("abcdef"), 2)


async def test_an_edit_of_many_spans_is_encoded_where_it_is_written_and_read_back(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[int]()

    def noted(first_edit: int, made: Sequence[Edit]) -> bytes:
        threads.add(threading.get_ident())
        return encode_entry(first_edit, made)

    await shop.publish(A, *map(str, range(4_000)))
    billing = await Billing.made(shop)
    found = ids(await shop.messaging.fetch(A, None, True, messages_max=4_000))
    monkeypatch.setattr(transaction_log, "encode_entry", noted)
    await billing.acknowledge(ids=found[1::2])
    assert threads
    assert threading.get_ident() not in threads
    again = Billing(await shop.restarted())
    assert list(again.live.state.acknowledged) == list(billing.live.state.acknowledged)
    assert again.groups._manager.log_length == shop.services.groups._manager.log_length
    await again.shop.services.close()
