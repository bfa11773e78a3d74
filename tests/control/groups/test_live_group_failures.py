"""What fails, goes or is taken away amid a fetch: nothing waits for ever, and nobody pays for another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from basalt.api.bodies.groups import Acknowledged, GroupMode, GroupOptions, SeekRequest
from basalt.api.bodies.messages import WorkAcknowledge
from basalt.errors import ClaimLostError, ConflictError, GroupNotFoundError, MemberFencedError
from basalt.groups import attendance, live_group
from basalt.groups.dealing.dispatcher import Dispatcher
from basalt.groups.fetches import FetchAsk
from basalt.groups.live_group import LiveGroup
from basalt.messaging.messages import Messages
from basalt.transactions.rules import edits
from basalt_engine.errors import RetryError, StoreError
from basalt_engine.records import Extras
from basalt_engine.spans.spans import ZERO_ID, Spans
from tests.control.groups.conftest import WAIT_S_MAX, Billing, ids_of
from tests.wiring import A, Wired, encoded, texts

pytestmark = pytest.mark.anyio

AT_ONCE = GroupOptions(retry_delay_ms=0)


async def test_a_returned_message_is_dealt_after_a_fetch_of_it_was_torn(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that fails and a client that goes lose nothing of what was returned."""
    await shop.publish(A, "a", "b")
    billing = await Billing.made(shop, AT_ONCE)
    page = await billing.fetch("mary")
    await billing.release(page.claim, member="mary")

    for torn in (StoreError("the store is gone"), asyncio.CancelledError()):

        async def read(*_: object, torn: BaseException = torn) -> None:
            raise torn

        with monkeypatch.context() as patched:
            patched.setattr(Dispatcher, "_read", read)
            with pytest.raises(type(torn)):
                await billing.fetch("mary", epoch=page.member_epoch)
        again = await billing.fetch("mary", epoch=page.member_epoch)
        assert texts(again.fetch) == ["a", "b"]
        await billing.release(again.claim, member="mary", counts=False)


async def test_a_returned_message_is_dealt_after_a_pause_came_amid_its_fetch(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop, AT_ONCE)
    page = await billing.fetch("mary")
    await billing.release(page.claim, member="mary")
    read = Dispatcher._read

    async def pausing(self: Dispatcher, *asked: Any) -> Any:
        await billing.groups.pause(A, "billing")
        return await read(self, *asked)

    with monkeypatch.context() as patched:
        patched.setattr(Dispatcher, "_read", pausing)
        assert (await billing.fetch("mary", epoch=page.member_epoch)).waiting_for == "paused"
    await billing.groups.resume(A, "billing")
    assert await billing.read("mary", epoch=page.member_epoch) == ["a"]


async def test_the_end_of_one_fetchs_transaction_is_no_failure_of_other_fetches(shop: Wired) -> None:
    billing = await Billing.made(shop)
    tx = await shop.transactions.begin()
    one = asyncio.create_task(billing.fetch("mary", wait_ms=60_000, transaction_id=tx.id))
    await billing.waiting()
    other = asyncio.create_task(billing.fetch("john", wait_ms=60_000))
    await billing.waiting(2)
    await shop.transactions.commit(tx.id)
    await shop.publish(A, "a")
    with pytest.raises(ConflictError, match="takes no further work"):
        await asyncio.wait_for(one, WAIT_S_MAX)
    assert texts((await asyncio.wait_for(other, WAIT_S_MAX)).fetch) == ["a"]


async def test_a_deleted_group_has_no_timer_for_the_claims_that_it_had(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_group, "RETRY_MS", 1)
    await shop.publish(A, "a")
    billing = await Billing.made(shop)
    await billing.fetch("mary")
    live = billing.live
    await billing.groups.delete(A, "billing")
    shop.clock.advance(86_400_000)
    live._time_is_up()
    async with asyncio.timeout(WAIT_S_MAX):
        while (live._timer, len(billing.groups.desk.tasks)) != (None, 0):
            await asyncio.sleep(0.005)
    with pytest.raises(GroupNotFoundError):
        await billing.fetch("mary")


@pytest.mark.parametrize("gone", ["deleted", "its server was closed", "made anew behind that"])
async def test_a_group_that_is_gone_looks_at_no_time_any_more(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """Nobody would cancel its timer, which would go off while the loop ends."""
    looks: list[LiveGroup] = []

    async def look(self: LiveGroup) -> None:
        looks.append(self)

    monkeypatch.setattr(LiveGroup, "_look_at_time", look)
    monkeypatch.setattr(live_group, "TIMER_MS_MIN", 100)
    await shop.publish(A, "a")
    billing = await Billing.made(shop)
    if gone == "made anew behind that":
        await billing.groups.upkeep.run()  # it was idle, and is forgotten
        await billing.groups.live.close()
        await billing.live.fetch(FetchAsk("mary"))
        billing.live._look_at(shop.clock.monotonic_ms())
    else:
        await billing.fetch("mary", claim_ms=1)
        await (billing.groups.delete(A, "billing") if gone == "deleted" else billing.groups.live.close())
    looks.clear()  # before it was gone, on a slow machine
    await asyncio.sleep(2 * live_group.TIMER_MS_MIN / 1_000)
    assert looks == []


async def test_who_waits_longer_than_a_lease_stays_a_member(shop: Wired) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop, GroupOptions("keyed", member_ms=1_000))
    assert await billing.handled("mary") == ["a"]
    epoch = billing.live.members.get("mary").epoch
    waits = asyncio.create_task(billing.fetch("mary", epoch=epoch, wait_ms=60_000))
    await billing.waiting()
    shop.clock.advance(1_500)
    await billing.live.return_run_out()
    await shop.publish(A, "b")
    assert texts((await asyncio.wait_for(waits, WAIT_S_MAX)).fetch) == ["b"]


async def test_a_fetch_that_waits_is_told_that_a_newer_process_took_its_name(shop: Wired) -> None:
    billing = await Billing.made(shop)
    older = asyncio.create_task(billing.fetch("mary", wait_ms=60_000))
    await billing.waiting()
    before = billing.live.members.get("mary")
    newer = asyncio.create_task(billing.fetch("mary", wait_ms=60_000))
    async with asyncio.timeout(WAIT_S_MAX):
        while billing.live.members.get("mary") is before:
            await asyncio.sleep(0.001)
    await shop.publish(A, "a")
    with pytest.raises(ConflictError, match="was replaced"):
        await asyncio.wait_for(older, WAIT_S_MAX)
    assert texts((await asyncio.wait_for(newer, WAIT_S_MAX)).fetch) == ["a"]


async def test_what_was_planned_before_an_idle_group_was_dropped_knows_the_claims_since(shop: Wired) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop)
    page = await billing.fetch()
    await billing.release(page.claim, counts=False)
    entry = WorkAcknowledge(*A, "billing", ids=tuple(ids_of(page)))
    planned = await billing.groups.plan([entry], None)
    await billing.groups.upkeep.run()
    held = await billing.fetch("john")
    assert texts(held.fetch) == ["a"]
    with pytest.raises(ClaimLostError):
        billing.groups.check(planned, None, shop.clock.now_ms(), 1)


@pytest.mark.parametrize("mode", ["shared", "keyed", "stream"])
async def test_a_claim_whose_acknowledgement_was_not_written_goes_on(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, mode: GroupMode
) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop, GroupOptions(mode, claim_ms=5_000, member_ms=60_000, retry_delay_ms=0))
    page = await billing.fetch("mary")

    def fails(*_: object, **__: object) -> None:
        raise StoreError("the store is gone")

    with monkeypatch.context() as patched:
        patched.setattr(type(shop.store), "write", fails)
        with pytest.raises(RetryError):
            await billing.acknowledge(page.claim, member="mary")
    held = await billing.fetch("john")
    assert (texts(held.fetch), [claim.number for claim in billing.live.dispatcher.claims]) == ([], [page.claim])
    with pytest.raises(ClaimLostError):
        await billing.acknowledge(ids=ids_of(page), member="john", epoch=held.member_epoch)
    if mode == "shared":  # it goes on until its time is up
        shop.clock.advance(6_000)
        held = await billing.fetch("john", epoch=held.member_epoch)
        assert (texts(held.fetch), held.attempt) == (["a"], 2)
        with pytest.raises(ClaimLostError):
            await billing.acknowledge(page.claim, member="mary")
        await billing.acknowledge(held.claim, member="john")
    else:
        assert await billing.acknowledge(page.claim, member="mary") == Acknowledged(1, 0)
    assert billing.live.dispatcher.unacked == 0


async def test_what_was_parked_is_not_unparked_in_a_round_that_was_sought_since(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop, GroupOptions(attempts_max=1))
    page = await billing.fetch("mary")
    await billing.release(page.claim, member="mary")
    read = billing.groups.desk.messages.read_committed

    async def seeking(*asked: Any, **limits: Any) -> Any:
        found = await read(*asked, **limits)
        monkeypatch.undo()
        await billing.groups.seek(A, "billing", SeekRequest("start"))
        await billing.fetch("mary", epoch=page.member_epoch)
        return found

    monkeypatch.setattr(type(billing.groups.desk.messages), "read_committed", lambda _, *a, **b: seeking(*a, **b))
    await billing.groups.unpark(A, "billing", None)
    assert billing.live.dispatcher.unacked == 1


async def test_the_claims_of_a_member_that_is_lost_come_back_a_part_at_a_time_and_none_stays_when_a_part_fails(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_group, "TOGETHER_MAX", 2)
    monkeypatch.setattr(live_group, "RETRY_MS", 0)
    await shop.publish(A, *"abcde")
    billing = await Billing.made(shop, GroupOptions(retry_delay_ms=0, member_ms=1_000))
    page = await billing.fetch("mary", 1)
    for _ in range(4):
        await billing.fetch("mary", 1, epoch=page.member_epoch)
    shop.clock.advance(1_000)
    run, parts = shop.transactions.manager.run, list[int]()

    async def second_fails(stage: Any) -> Any:
        parts.append(len(billing.live.dispatcher.claims))
        if len(parts) == 2:
            raise StoreError("the store is gone")
        return await run(stage)

    with monkeypatch.context() as patched:
        patched.setattr(shop.transactions.manager, "run", second_fails)
        with pytest.raises(StoreError):
            await billing.live.return_run_out()
    assert parts == [5, 3]
    again = await billing.fetch("john")
    assert (texts(again.fetch), again.attempt) == ([*"abcde"], 2)


async def test_of_claims_that_have_many_spans_left_fewer_come_back_at_once(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_group, "TOGETHER_SPANS_MAX", 3)
    await shop.publish(A, *"abcdefgh", *"ijklmnop", *"xyz")
    billing = await Billing.made(shop, GroupOptions(retry_delay_ms=0, member_ms=1_000))
    page = await billing.fetch("mary", 8)
    other = await billing.fetch("mary", 8, epoch=page.member_epoch)
    await billing.acknowledge(ids=[*ids_of(page)[1::2], *ids_of(other)[1::2]], member="mary")
    for _ in range(2):
        await billing.fetch("mary", 1, epoch=page.member_epoch)
    shop.clock.advance(1_000)
    edits_before = shop.transactions.state.edits_applied
    assert await billing.live.return_run_out() == 4
    assert shop.transactions.state.edits_applied - edits_before == 3
    assert await billing.handled("john") == [*"acegikmoxyz"]


async def test_a_member_that_leaves_gives_all_back_also_when_it_does_not_wait_for_that(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_group, "TOGETHER_MAX", 1)
    await shop.publish(A, *"abc")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary", 1)
    for _ in range(2):
        await billing.fetch("mary", 1, epoch=page.member_epoch)
    leaving = asyncio.create_task(attendance.leave(billing.live, "mary", page.member_epoch))
    await asyncio.sleep(0)
    leaving.cancel()
    while len(billing.live.dispatcher.claims):
        await asyncio.sleep(0)
    found = await billing.fetch("john")
    assert (texts(found.fetch), found.attempt) == ([*"abc"], 1)


async def test_no_attempt_is_counted_of_what_a_member_had_that_left_though_another_is_lost_meanwhile(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_group, "TOGETHER_MAX", 1)
    await shop.publish(A, *"abcdefgh")
    billing = await Billing.made(shop, GroupOptions(retry_delay_ms=0, member_ms=1_000, claim_ms=1_200))
    live, epoch = billing.live, 0
    for _ in range(7):
        epoch = (await billing.fetch("mary", 1, epoch=epoch)).member_epoch
    await billing.fetch("john", 1)
    shop.clock.advance(600)
    live.join("mary", epoch)
    shop.clock.advance(600)
    leaving = asyncio.create_task(attendance.leave(live, "mary", epoch))
    while len(live.dispatcher.claims) == 8:
        await asyncio.sleep(0)
    await live.return_run_out()
    await leaving
    epoch = live.join("sue", 0).epoch
    found = [await billing.fetch("sue", 1, epoch=epoch) for _ in range(8)]
    assert sorted((*texts(page.fetch), page.attempt) for page in found) == [
        *((each, 1) for each in "abcdefg"),
        ("h", 2),
    ]


@pytest.mark.parametrize("mode", ["shared", "keyed", "stream"])
async def test_a_fetch_of_a_member_that_has_left_is_dealt_nothing(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, mode: GroupMode
) -> None:
    billing = await Billing.made(shop, GroupOptions(mode, retry_delay_ms=0))
    waiting = asyncio.create_task(billing.fetch("mary", wait_ms=60_000))
    while not billing.live.waiting:
        await asyncio.sleep(0)
    await attendance.leave(billing.live, "mary", 0)
    await shop.publish(A, *"abc")
    assert (await asyncio.wait_for(waiting, WAIT_S_MAX)).claim is None

    read = Messages.read_committed

    async def leaving(self: Messages, *asked: Any, **how: Any) -> Any:
        await attendance.leave(billing.live, "mary", 0)
        return await read(self, *asked, **how)

    with monkeypatch.context() as patched:
        patched.setattr(Messages, "read_committed", leaving)
        assert (await billing.fetch("mary")).claim is None
    await billing.live.return_run_out()
    page = await billing.fetch("john")
    assert (texts(page.fetch), page.attempt) == ([*"abc"], 1)


@pytest.mark.parametrize("step_ms", [1_000, -3_600_000])
async def test_an_older_process_stays_fenced_though_the_group_was_idle_since(shop: Wired, step_ms: int) -> None:
    """And a process that joins then is newer than both, whatever the clock did."""
    billing = await Billing.made(shop)
    older, newer = (billing.live.join("mary", 0).epoch for _ in range(2))
    await attendance.leave(billing.live, "mary", newer)
    idle = billing.live
    await billing.groups.upkeep.run()
    assert billing.live is not idle
    with pytest.raises(MemberFencedError):
        await billing.fetch("mary", epoch=older)
    await billing.groups.upkeep.run()
    shop.clock.step(shop.clock.now_ms() + step_ms)
    newest = billing.live.join("mary", 0).epoch
    assert newest > newer
    with pytest.raises(MemberFencedError):
        await billing.fetch("mary", epoch=newer)


async def test_a_seek_takes_nothing_from_who_is_dealt_messages_behind_it(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was revoked is let go of later, a part at a time."""
    monkeypatch.setattr(live_group, "TOGETHER_MAX", 1)
    await shop.publish(A, *"abc")
    billing = await Billing.made(shop)
    for _ in range(3):
        await billing.fetch(limit=1)
    await billing.groups.seek(A, "billing", SeekRequest("start"))
    page = await billing.fetch()
    while billing.groups.desk.tasks:
        await asyncio.sleep(0)
    assert texts(page.fetch) == [*"abc"]
    await billing.acknowledge(page.claim)
    assert await billing.handled() == []


@pytest.mark.parametrize("mode", ["shared", "stream", "keyed"])
async def test_a_seek_amid_a_fetch_that_finds_nothing_hides_nothing(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, mode: GroupMode
) -> None:
    await shop.publish(A, "a", "b")
    billing = await Billing.made(shop, GroupOptions(mode))
    assert await billing.handled("mary") == ["a", "b"]
    epoch, read = billing.live.members.get("mary").epoch, Messages.read_committed  # type: ignore[union-attr]

    async def sought(messages: Messages, *asked: Any, **how: Any) -> Any:
        found = await read(messages, *asked, **how)
        monkeypatch.undo()
        await billing.groups.seek(A, "billing", SeekRequest("start"))
        return found

    monkeypatch.setattr(Messages, "read_committed", sought)
    dealt = await billing.fetch("mary", epoch=epoch)
    assert texts(dealt.fetch) == ["a", "b"]


@pytest.mark.parametrize("mode", ["shared", "stream", "keyed"])
async def test_what_was_not_acknowledged_after_all_is_dealt_though_a_fetch_was_under_way(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, mode: GroupMode
) -> None:
    """A fetch looks behind what is acknowledged; the write of that fails, and the log is read again, before it has looked."""
    await shop.messaging.publish(A, encoded(["a", "b"]), extras=[Extras(b"key")] * 2)
    billing = await Billing.made(shop, GroupOptions(mode))
    page = await billing.fetch("mary")
    await billing.release(page.claim, member="mary", counts=False)
    lost, read = Spans([(ZERO_ID, page.through or ZERO_ID)]), Messages.read_committed
    shop.transactions.state.apply(edits.Acknowledged(0, billing.live.number, shop.clock.now_ms(), lost))
    billing.live.dispatcher.settle(lost, None, 0)

    async def failing(messages: Messages, *asked: Any, **how: Any) -> Any:
        found = await read(messages, *asked, **how)
        monkeypatch.undo()
        shop.transactions.manager.lost()
        await shop.transactions.manager.ensure_known()
        assert billing.live.state.acknowledged.floor == ZERO_ID
        return found

    monkeypatch.setattr(Messages, "read_committed", failing)
    dealt = await billing.fetch("mary", epoch=page.member_epoch)
    await shop.messaging.publish(A, encoded(["c"]), extras=[Extras(b"key")])
    if dealt.claim is not None:
        await billing.acknowledge(dealt.claim, member="mary")
    assert [*texts(dealt.fetch), *await billing.handled("mary")] == ["a", "b", "c"]


@pytest.mark.parametrize("mode", ["shared", "stream", "keyed"])
async def test_who_waits_is_dealt_what_was_not_acknowledged_after_all(shop: Wired, mode: GroupMode) -> None:
    await shop.publish(A, "a", "b")
    billing = await Billing.made(shop, GroupOptions(mode))
    page = await billing.fetch("mary")
    await billing.release(page.claim, member="mary", counts=False)
    lost = Spans([(ZERO_ID, page.through or ZERO_ID)])
    shop.transactions.state.apply(edits.Acknowledged(0, billing.live.number, shop.clock.now_ms(), lost))
    billing.live.dispatcher.settle(lost, None, 0)
    waits = asyncio.create_task(billing.fetch("mary", epoch=page.member_epoch, wait_ms=60_000))
    await billing.waiting()
    shop.transactions.manager.lost()
    await shop.transactions.manager.ensure_known()
    assert billing.live.state.acknowledged.floor == ZERO_ID
    assert texts((await asyncio.wait_for(waits, WAIT_S_MAX)).fetch) == ["a", "b"]


async def test_what_is_found_for_a_fetch_whose_time_is_up_is_dealt_to_the_next(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    billing = await Billing.made(shop)
    waits = asyncio.create_task(billing.fetch("mary", wait_ms=50))
    await billing.waiting()
    read, may_read = Dispatcher._read, asyncio.Event()

    async def slow(self: Dispatcher, *asked: Any) -> Any:
        await may_read.wait()
        return await read(self, *asked)

    monkeypatch.setattr(Dispatcher, "_read", slow)
    await shop.publish(A, "a")
    assert (await asyncio.wait_for(waits, WAIT_S_MAX)).claim is None
    may_read.set()
    assert texts((await asyncio.wait_for(billing.fetch("john", wait_ms=60_000), WAIT_S_MAX)).fetch) == ["a"]


async def test_what_ran_out_while_the_store_failed_comes_back_though_nobody_asks(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_group, "RETRY_MS", 1)
    await shop.publish(A, "a")
    billing = await Billing.made(shop, GroupOptions(claim_ms=60_000))
    page = await billing.fetch("mary")
    live, run_out, failures = billing.live, LiveGroup.return_run_out, [StoreError("the store is gone")]

    async def failing(self: LiveGroup) -> int:
        if failures:
            raise failures.pop()
        return await run_out(self)

    monkeypatch.setattr(LiveGroup, "return_run_out", failing)
    shop.clock.advance(60_000)
    live._time_is_up()
    async with asyncio.timeout(WAIT_S_MAX):
        while len(live.dispatcher.claims):
            await asyncio.sleep(0.01)
    assert live.state.returns.at(ids_of(page)[0]) is not None
