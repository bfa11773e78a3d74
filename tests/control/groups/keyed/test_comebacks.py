"""Messages of a keyed group that came back: nothing is dealt, or counted as failed, that nobody could acknowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies.groups import GroupOptions, SeekRequest
from basalt.api.bodies.messages import RecordIn
from basalt.commits.commit_stage import Asking
from basalt.errors import AcknowledgeOrderError
from basalt.groups.keyed.comebacks import Comebacks
from basalt.groups.keyed.slots import Ahead
from basalt.transactions.rules.edits import ReturnReason
from basalt.transactions.rules.groups import Attempt, GroupState, Returns
from basalt_engine.spans.spans import Spans
from tests.control.groups.conftest import Billing, ids_of
from tests.wiring import A, Wired, texts

KEYED = GroupOptions("keyed", attempts_max=2, retry_delay_ms=1_000, dead_letter_topic="dead", claim_ms=5_000)


async def publish(shop: Wired, *keyed: str) -> None:
    await shop.messaging.publish_records(A, [RecordIn(text.encode(), text[0].encode()) for text in keyed])


class Held:
    """A group of which a transaction that stays open has acknowledged the first message, a1; `member` has the others."""

    def __init__(self, billing: Billing, tx: int) -> None:
        self.billing = billing
        self.tx = tx
        self.epoch = 0

    @classmethod
    async def made(cls, shop: Wired, *keyed: str, options: GroupOptions = KEYED) -> Held:
        billing = await Billing.made(shop, options)
        await publish(shop, *keyed)
        first = await billing.fetch("mary", 1)
        tx = await shop.transactions.begin(timeout_ms=600_000)
        await billing.acknowledge(first.claim, member="mary", tx=tx.id)
        held = cls(billing, tx.id)
        held.epoch = first.member_epoch
        return held

    async def fetch(self, limit: int | None = None) -> Any:
        return await self.billing.fetch("mary", limit, epoch=self.epoch)

    async def read(self) -> list[str]:
        return texts((await self.fetch()).fetch)

    def attempts(self, message_id: bytes) -> int:
        attempt = self.billing.live.state.returns.at(message_id)
        return 0 if attempt is None else attempt.attempts

    async def refused(self, page: Any) -> None:
        with pytest.raises(AcknowledgeOrderError, match="has not ended"):
            await self.billing.acknowledge(page.claim, member="mary")


@pytest.mark.anyio
@pytest.mark.parametrize("ends", ["commit", "abort", "its time is up"])
async def test_a_message_behind_one_that_a_transaction_holds_is_refused_once_and_no_attempt(
    shop: Wired, ends: str
) -> None:
    held = await Held.made(shop, "a1", "a2", "b1")
    page = await held.fetch()
    assert texts(page.fetch) == ["a2", "b1"]
    await held.refused(page)
    assert (await held.billing.release(page.claim, member="mary")).released == 2
    other = await held.fetch()
    assert (texts(other.fetch), other.attempt) == (["b1"], 1)  # it was no failure of b1 either
    await held.billing.acknowledge(other.claim, member="mary")
    for _ in range(5):
        shop.clock.advance(60_000)
        held.epoch = (waiting := await held.billing.fetch("mary")).member_epoch
        assert (waiting.claim, waiting.waiting_for) == (None, "claimed")
    if ends == "commit":
        await shop.transactions.commit(held.tx)
    elif ends == "abort":
        await shop.transactions.abort(held.tx)
    else:
        shop.clock.advance(600_000)
        await shop.transactions.expire()
    shop.clock.advance(5_000)
    assert await held.billing.handled("mary") == (["a2"] if ends == "commit" else ["a1", "a2"])
    assert await shop.transactions.move_dead_letters() == 0
    assert len(held.billing.live.state.acknowledged) == 1
    lanes = held.billing.live.dispatcher.lanes
    assert lanes is not None
    assert not lanes._comebacks


@pytest.mark.anyio
async def test_what_lies_behind_a_held_message_is_not_dealt_together_with_what_lies_before_it(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    await publish(shop, "a1", "a2", "a3")
    page = await billing.fetch("mary")
    a1, a2, a3 = ids_of(page)
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=[a2], member="mary", tx=tx.id)
    await billing.release(page.claim, member="mary", counts=False)
    again = await billing.fetch("mary", epoch=page.member_epoch)
    assert ids_of(again) == [a1]
    await billing.acknowledge(again.claim, member="mary")
    await shop.transactions.commit(tx.id)
    assert ids_of(await billing.fetch("mary", epoch=page.member_epoch)) == [a3]


@pytest.mark.anyio
async def test_once_nothing_is_held_the_next_failure_counts_for_all(shop: Wired) -> None:
    billing = await Billing.made(shop, GroupOptions("keyed", retry_delay_ms=0))
    await publish(shop, "a1", "a2")
    page = await billing.fetch("mary", 1)
    async with shop.transactions._begun.begin(Asking()) as begun:  # is interrupted, which is no attempt
        await billing.acknowledge(page.claim, member="mary", tx=begun.id)
        behind = await billing.fetch("mary", epoch=page.member_epoch)
        await billing.release(behind.claim, member="mary")
    again = await billing.fetch("mary", epoch=page.member_epoch)
    assert (texts(again.fetch), again.attempt) == (["a1", "a2"], 1)
    await billing.release(again.claim, member="mary")
    assert [attempt.attempts for _, _, attempt in billing.live.state.returns] == [1]
    assert billing.live.state.returns.at(ids_of(again)[1]) is not None


@pytest.mark.anyio
async def test_a_message_that_was_acknowledged_without_having_been_dealt_holds_what_follows(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    await publish(shop, "b0", "a1", "a2")
    b0, a1, a2 = (
        each for part in (await shop.messaging.fetch(A, None, True, committed=True)).slices for each in part.ids()
    )
    first = await billing.fetch("mary", 1)
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=[a1], member="mary", tx=tx.id)
    page = await billing.fetch("mary", epoch=first.member_epoch)
    assert (ids_of(first), ids_of(page)) == ([b0], [a2])
    await billing.release(page.claim, member="mary")
    assert (await billing.fetch("mary", epoch=first.member_epoch)).claim is None
    await shop.transactions.commit(tx.id)
    assert ids_of(await billing.fetch("mary", epoch=first.member_epoch)) == [a2]


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["the claim runs out", "the member is lost"])
async def test_claims_that_end_by_themselves_behind_what_is_held_are_no_attempts(shop: Wired, how: str) -> None:
    held = await Held.made(shop, "a1", "a2")
    page = await held.fetch()
    (a2,) = ids_of(page)
    shop.clock.advance(6_000 if how == "the claim runs out" else 60_000)
    await held.billing.live.return_run_out()
    assert held.billing.live.dispatcher.claims.messages == 0
    assert held.attempts(a2) == 0
    again = await held.billing.fetch("mary")
    assert (again.claim, again.waiting_for) == (None, "claimed")


@pytest.mark.anyio
async def test_what_lies_before_a_held_message_comes_again_though_that_one_waits_for_it(shop: Wired) -> None:
    """Else neither ever could be acknowledged."""
    billing = await Billing.made(shop, KEYED)
    await publish(shop, "a1", "a2", "a3")
    first = await billing.fetch("mary", 1)
    epoch = first.member_epoch
    second = await billing.fetch("mary", 1, epoch=epoch)
    third = await billing.fetch("mary", 1, epoch=epoch)
    tx = await shop.transactions.begin()
    await billing.acknowledge(second.claim, member="mary", tx=tx.id)
    await billing.release(first.claim, member="mary")
    await billing.release(third.claim, member="mary")
    shop.clock.advance(1_000)
    again = await billing.fetch("mary", epoch=epoch)
    assert (texts(again.fetch), again.attempt) == (["a1"], 2)
    await billing.acknowledge(again.claim, member="mary")
    assert (await billing.fetch("mary", epoch=epoch)).claim is None
    await shop.transactions.commit(tx.id)
    last = await billing.fetch("mary", epoch=epoch)
    assert (texts(last.fetch), last.attempt) == (["a3"], 1)


@pytest.mark.anyio
async def test_a_restart_forgets_that_a_message_waits_and_the_next_refusal_is_no_attempt_either(shop: Wired) -> None:
    held = await Held.made(shop, "a1", "a2", "a3")
    page = await held.fetch(1)
    await held.billing.release(page.claim, member="mary")
    assert (await held.fetch()).claim is None
    shop.clock.advance(1)
    again = held.billing = Billing(await shop.restarted())
    page = await again.fetch("mary", 1)
    held.epoch = page.member_epoch
    assert (texts(page.fetch), page.attempt) == (["a2"], 1)
    await held.refused(page)
    await again.release(page.claim, member="mary")
    assert (await held.fetch()).claim is None
    await again.shop.transactions.commit(held.tx)
    assert await again.handled("mary") == ["a2", "a3"]
    await again.shop.services.close()


@pytest.mark.anyio
async def test_another_member_that_gets_the_key_waits_as_well(shop: Wired) -> None:
    held = await Held.made(shop, "a1", "a2")
    page = await held.fetch()
    await held.billing.release(page.claim, member="mary")
    held.billing.live.members.leave("mary")
    waiting = await held.billing.fetch("john")
    assert waiting.claim is None
    await shop.transactions.commit(held.tx)
    after = await held.billing.fetch("john", epoch=waiting.member_epoch)
    assert (texts(after.fetch), after.attempt) == (["a2"], 1)


@pytest.mark.anyio
async def test_a_failure_of_the_first_of_a_key_counts_as_ever(shop: Wired) -> None:
    held = await Held.made(shop, "a1", "b1")
    page = await held.fetch()
    (b1,) = ids_of(page)
    await held.billing.release(page.claim, member="mary")
    assert held.attempts(b1) == 1


@pytest.mark.anyio
async def test_messages_of_a_group_without_keys_wait_for_nothing_and_fail_as_ever(shop: Wired) -> None:
    billing = await Billing.made(shop, GroupOptions(attempts_max=2, retry_delay_ms=0, dead_letter_topic="dead"))
    await publish(shop, "a1", "a2")
    first = await billing.fetch("mary", 1)
    tx = await shop.transactions.begin()
    await billing.acknowledge(first.claim, member="mary", tx=tx.id)
    for attempt in (1, 2):
        page = await billing.fetch("mary", epoch=first.member_epoch)
        assert (texts(page.fetch), page.attempt) == (["a2"], attempt)
        await billing.release(page.claim, member="mary")
    assert await shop.transactions.move_dead_letters() == 1


@pytest.mark.anyio
@pytest.mark.parametrize("ends", ["commit", "abort"])
async def test_a_stream_waits_for_what_is_held_before_it_likewise(shop: Wired, ends: str) -> None:
    options = GroupOptions("stream", attempts_max=2, retry_delay_ms=0, dead_letter_topic="dead")
    held = await Held.made(shop, "a1", "b2", "c3", options=options)
    page = await held.fetch(1)
    (b2,) = ids_of(page)
    with pytest.raises(AcknowledgeOrderError):
        await held.billing.acknowledge(page.claim, member="mary")
    await held.billing.release(page.claim, member="mary")
    for _ in range(5):
        shop.clock.advance(1_000)
        waiting = await held.fetch()
        assert (waiting.claim, waiting.waiting_for) == (None, "claimed")
    assert held.attempts(b2) == 0
    await (shop.transactions.commit if ends == "commit" else shop.transactions.abort)(held.tx)
    assert await held.billing.handled("mary") == (["b2", "c3"] if ends == "commit" else ["a1", "b2", "c3"])


@pytest.mark.anyio
async def test_a_stream_deals_what_lies_before_a_held_message_and_waits_with_what_an_abort_gives_back_behind_it(
    shop: Wired,
) -> None:
    options = GroupOptions("stream", attempts_max=0, retry_delay_ms=0)
    billing = await Billing.made(shop, options)
    await publish(shop, "a1", "b2", "c3")
    page = await billing.fetch("mary")
    epoch = page.member_epoch
    _, b2, c3 = ids_of(page)
    tx, other = await shop.transactions.begin(), await shop.transactions.begin()
    await billing.acknowledge(ids=[b2], member="mary", tx=tx.id)
    await billing.acknowledge(ids=[c3], member="mary", tx=other.id)
    await shop.transactions.abort(other.id)
    assert (await billing.fetch("mary", epoch=epoch)).claim is None
    await billing.release(page.claim, member="mary", counts=False)
    first = await billing.fetch("mary", epoch=epoch)
    assert texts(first.fetch) == ["a1"]
    await billing.acknowledge(first.claim, member="mary")
    waiting = await billing.fetch("mary", epoch=epoch)
    assert (waiting.claim, waiting.waiting_for) == (None, "claimed")
    await shop.transactions.commit(tx.id)
    assert await billing.handled("mary") == ["c3"]


@pytest.mark.anyio
async def test_a_stream_that_waited_once_goes_on_in_the_next_transaction_as_ever(shop: Wired) -> None:
    held = await Held.made(shop, "a1", "b2", "c3", options=GroupOptions("stream", retry_delay_ms=0))
    page = await held.fetch(1)
    await held.billing.release(page.claim, member="mary")
    await shop.transactions.commit(held.tx)
    tx = await shop.transactions.begin()
    for text in ("b2", "c3"):
        page = await held.fetch(1)
        assert texts(page.fetch) == [text]
        await held.billing.acknowledge(page.claim, member="mary", tx=tx.id)
    await shop.transactions.commit(tx.id)
    assert len(held.billing.live.state.acknowledged) == 1


@pytest.mark.anyio
async def test_a_stream_deals_in_a_transaction_while_nothing_came_back(shop: Wired) -> None:
    held = await Held.made(shop, "a1", "b2", options=GroupOptions("stream"))
    page = await held.fetch()
    assert texts(page.fetch) == ["b2"]
    await held.billing.acknowledge(page.claim, member="mary", tx=held.tx)
    await shop.transactions.commit(held.tx)
    assert await held.billing.handled("mary") == []


@pytest.mark.anyio
async def test_a_key_that_is_waited_for_holds_up_no_fetch_that_waits_for_it(shop: Wired) -> None:
    """It is woken by the end of the transaction."""
    held = await Held.made(shop, "a1", "a2")
    page = await held.fetch()
    await held.billing.release(page.claim, member="mary")
    fetch = asyncio.ensure_future(held.billing.fetch("mary", epoch=held.epoch, wait_ms=30_000))
    await held.billing.waiting()
    await shop.transactions.commit(held.tx)
    assert texts((await fetch).fetch) == ["a2"]


@pytest.mark.anyio
@pytest.mark.parametrize("ends", ["abort", "its time is up"])
@pytest.mark.parametrize("mode", ["keyed", "stream"])
async def test_the_end_of_a_transaction_is_no_attempt_for_what_it_could_not_have_committed(
    shop: Wired, ends: str, mode: Any
) -> None:
    """It acknowledged a message behind one that another transaction holds, and its commit was refused."""
    options = GroupOptions(mode, attempts_max=1, dead_letter_topic="dead", claim_ms=600_000)
    held = await Held.made(shop, "a1", "a2", options=options)
    tx = await shop.transactions.begin(timeout_ms=60_000)
    page = await held.fetch()
    (a2,) = ids_of(page)
    await held.billing.acknowledge(page.claim, member="mary", tx=tx.id)
    with pytest.raises(AcknowledgeOrderError):
        await shop.transactions.commit(tx.id)
    if ends == "abort":
        await shop.transactions.abort(tx.id)
    else:
        shop.clock.advance(61_000)
        await shop.transactions.expire()
    assert held.attempts(a2) == 0
    assert await shop.transactions.move_dead_letters() == 0
    held.epoch = (waiting := await held.billing.fetch("mary")).member_epoch
    assert (waiting.claim, waiting.waiting_for) == (None, "claimed")
    await shop.transactions.commit(held.tx)
    again = await held.fetch()
    assert (texts(again.fetch), again.attempt) == (["a2"], 1)


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["keyed", "stream"])
async def test_an_abort_counts_for_what_only_its_own_transaction_held(shop: Wired, mode: Any) -> None:
    held = await Held.made(shop, "a1", "a2", options=GroupOptions(mode, attempts_max=5, retry_delay_ms=0))
    page = await held.fetch()
    (a2,) = ids_of(page)
    await held.billing.acknowledge(page.claim, member="mary", tx=held.tx)
    await shop.transactions.abort(held.tx)
    assert held.attempts(a2) == 1


@pytest.mark.anyio
async def test_a_stream_goes_on_in_a_transaction_behind_what_lives_no_more(shop: Wired) -> None:
    """What lies between the messages that it acknowledged one by one did not come back."""
    billing = await Billing.made(shop, GroupOptions("stream"))
    await publish(shop, "a1")
    undone = await shop.transactions.begin()
    await shop.store_aside(A, "b2", tx=undone)
    await shop.transactions.abort(undone.id)
    await publish(shop, "c3", "d4")
    page = await billing.fetch("mary", 2)
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=ids_of(page), member="mary", tx=tx.id)
    assert await billing.read("mary", epoch=page.member_epoch) == ["d4"]


@pytest.mark.anyio
async def test_a_stream_that_was_sought_goes_on_in_a_transaction_from_message_to_message(shop: Wired) -> None:
    """It was dealt in a former round what it gets now, which is nothing that came back."""
    held = await Held.made(shop, "a1", "b2", options=GroupOptions("stream"))
    await held.billing.acknowledge((await held.fetch()).claim, member="mary", tx=held.tx)
    await shop.transactions.commit(held.tx)
    await held.billing.groups.seek(A, "billing", SeekRequest("start"))
    tx = await shop.transactions.begin()
    for text in ("a1", "b2"):
        page = await held.fetch(1)
        assert texts(page.fetch) == [text]
        await held.billing.acknowledge(page.claim, member="mary", tx=tx.id)
    await shop.transactions.commit(tx.id)


# The rule alone.


def message(lane: int, number: int) -> Ahead:
    return Ahead(number.to_bytes(20, "big"), max(number - 1, 0).to_bytes(20, "big"), lane, 1)


def state_of(returned: Sequence[Ahead] = (), not_before_ms: int = 0) -> GroupState:
    table = Returns()
    for each in returned:
        table.fill([(Spans([(each.after, each.id)]), Attempt(1, not_before_ms, ReturnReason.RELEASED))])
    return cast("GroupState", type("State", (), {"returns": table}))


def ready(comebacks: Comebacks, state: GroupState | None = None, now_ms: int = 0) -> dict[int, list[bytes]]:
    return {lane: list(ids) for lane, ids in comebacks.ready(state or state_of(), now_ms)}


def test_a_hundred_thousand_keys_that_wait_cost_a_fetch_nothing() -> None:
    comebacks = Comebacks()
    count = 100_000
    for lane in range(count):
        comebacks.hold(message(lane, 2 * lane))
        comebacks.add(message(lane, 2 * lane + 1))
    assert ready(comebacks) == {}
    assert (len(comebacks._ready), len(comebacks._due), len(comebacks._unsorted)) == (0, 0, 0)
    comebacks.let_go(message(7, 14))
    assert ready(comebacks) == {7: [message(7, 15).id]}
    for lane in range(count):
        comebacks.let_go(message(lane, 2 * lane))
    assert len(ready(comebacks)) == count
    assert not comebacks.has_pending


def test_a_lane_that_was_due_waits_when_an_earlier_message_of_it_becomes_pending() -> None:
    comebacks = Comebacks()
    first, second = message(1, 1), message(1, 2)
    comebacks.add(second)
    assert ready(comebacks) == {1: [second.id]}
    comebacks.hold(first)
    comebacks.hold(first)
    assert ready(comebacks) == {}
    comebacks.let_go(first)
    comebacks.let_go(first)
    assert ready(comebacks) == {1: [second.id]}
    comebacks.clear()
    assert (ready(comebacks), bool(comebacks)) == ({}, False)


def test_a_delay_goes_on_while_a_lane_waits() -> None:
    comebacks, first, second = Comebacks(), message(1, 1), message(1, 2)
    state = state_of([second], not_before_ms=500)
    comebacks.add(second)
    assert ready(comebacks, state, 0) == {}
    assert comebacks.due_ms == 500
    comebacks.hold(first)
    assert ready(comebacks, state, 500) == {}
    comebacks.let_go(first)
    assert ready(comebacks, state, 499) == {}
    assert ready(comebacks, state, 500) == {1: [second.id]}


MESSAGES = st.builds(message, st.integers(0, 1), st.integers(1, 4))
ACTS = ["add", "add", "add", "hold", "hold", "hold", "stop", "deal", "decided", "let_go", "ready"]
STEPS = st.lists(st.tuples(st.sampled_from(ACTS), MESSAGES), min_size=4, max_size=40)


@given(STEPS)
def test_what_is_ready_is_what_the_rules_say(steps: list[tuple[str, Ahead]]) -> None:
    comebacks = Comebacks()
    waiting, retried, pending = set[Ahead](), set[Ahead](), set[Ahead]()
    for what, each in steps:
        where = next((known for known in (waiting, retried, pending) if each in known), None)
        if what == "add" and where is None:
            comebacks.add(each)
            waiting.add(each)
        elif what == "stop" and where is waiting:
            comebacks.stop(each)
            waiting.remove(each)
        elif what == "deal" and where is waiting:
            comebacks.deal(each)
            waiting.remove(each)
            retried.add(each)
        elif what == "decided" and where is retried:
            comebacks.decided(each)
            retried.remove(each)
        elif what == "hold" and where is None:
            comebacks.hold(each)
            pending.add(each)
        elif what == "let_go" and where is pending:
            comebacks.let_go(each)
            pending.remove(each)
        if what == "ready":
            _compare(comebacks, waiting, retried, pending)
    _compare(comebacks, waiting, retried, pending)


def _compare(comebacks: Comebacks, waiting: set[Ahead], retried: set[Ahead], pending: set[Ahead]) -> None:
    wanted = {}
    for lane in {each.lane for each in waiting}:
        ids = sorted(each.id for each in waiting if each.lane == lane)
        is_held = any(each.lane == lane and each.id < ids[0] for each in pending)
        if not is_held and all(each.lane != lane for each in retried):
            wanted[lane] = ids
    assert ready(comebacks) == wanted
    for each in waiting | retried:
        assert comebacks.is_held(each.lane, each.id) == any(
            held.lane == each.lane and held.id < each.id for held in pending
        )
