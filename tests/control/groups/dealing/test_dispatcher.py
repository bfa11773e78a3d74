"""Dealing: each message to one member, what came back first, and gaps without life passed over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import replace

import pytest

from basalt.api.bodies.groups import GroupMode, GroupOptions, SeekRequest
from basalt.api.bodies.messages import RecordIn
from basalt.catalog.topics import TopicName
from basalt.groups import live_group
from basalt.groups.dealing import dispatcher, free_gaps, retries
from basalt.groups.live_group import GroupFetch
from basalt.messaging.read.log_reader import Fetch
from basalt.transactions.rules import acknowledgements
from basalt.transactions.rules.edits import ReturnReason
from basalt.transactions.rules.groups import Attempt, Returns
from basalt_engine.records import Extras
from basalt_engine.spans.spans import ZERO_ID, Spans
from tests.control.groups.conftest import WAIT_S_MAX, Billing, ids_of
from tests.wiring import A, Wired, texts

pytestmark = pytest.mark.anyio


async def test_each_message_is_dealt_once_and_claims_end_with_their_acknowledgement(shop: Wired) -> None:
    await shop.publish(A, "a", "b", "c")
    await shop.publish(A, "d", "e")
    billing = await Billing.made(shop)
    first = await billing.fetch("mary", 2)
    second = await billing.fetch("john", 10)
    rest = await billing.fetch("john", 10, epoch=second.member_epoch)
    dealt = texts(first.fetch) + texts(second.fetch) + texts(rest.fetch)
    assert dealt == ["a", "b", "c", "d", "e"]
    assert first.after == ZERO_ID
    assert first.through == second.after
    nothing = await billing.fetch("mary", epoch=first.member_epoch)
    assert (nothing.claim, nothing.waiting_for) == (None, "claimed")
    for page, member in ((second, "john"), (first, "mary"), (rest, "john")):
        if page.claim is not None:
            await billing.acknowledge(page.claim, member=member)
    assert (await billing.fetch("mary")).waiting_for == "no_messages"
    assert len(billing.live.state.acknowledged) == 1
    assert billing.floor() == ids_of(rest if rest.claim else second)[-1]


async def test_what_was_released_comes_again_later_and_alone_from_the_third_attempt_on(shop: Wired) -> None:
    await shop.publish(A, "a", "b", "c")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary")
    await billing.release(page.claim, member="mary")
    waits = await billing.fetch("mary")
    assert waits.waiting_for == "delayed 1000"
    shop.clock.advance(1_000)
    page = await billing.fetch("mary")
    assert (texts(page.fetch), page.attempt) == (["a", "b", "c"], 2)
    await billing.release(page.claim, member="mary")
    shop.clock.advance(2_000)
    alone = await billing.fetch("mary")
    assert (texts(alone.fetch), alone.attempt) == (["a"], 3)
    await billing.acknowledge(alone.claim, member="mary")
    assert await billing.handled("mary") == ["b", "c"]


@pytest.mark.parametrize("mode", ["shared", "stream", "keyed"])
async def test_a_poison_message_is_found_alone_and_its_company_is_dealt_in_batches_again(
    shop: Wired, mode: GroupMode
) -> None:
    """The second message always fails, and the fourth twice more after it was spared."""
    texts_ = [f"m{number:02}" for number in range(40)]
    await shop.publish(A, *texts_)
    billing = await Billing.made(
        shop, GroupOptions(mode, retry_delay_ms=0, retry_delay_ms_max=0, attempts_max=8, dead_letter_topic="dead")
    )
    seen, fetches, epoch, failing = dict.fromkeys(texts_, 0), 0, 0, {"m01": 99, "m03": 4}
    done: list[str] = []
    while True:
        await shop.transactions.move_dead_letters()
        page = await billing.fetch("mary", epoch=epoch)
        if page.claim is None:
            break
        epoch, fetches, batch = page.member_epoch, fetches + 1, texts(page.fetch)
        assert page.attempt < 8 or len(batch) == 1, "the last attempt is alone"
        fails = [each for each in batch if seen[each] < failing.get(each, 0)]
        for each in batch:
            seen[each] += 1
        if fails:
            await billing.release(page.claim, member="mary")
        else:
            done += batch
            await billing.acknowledge(page.claim, member="mary")
    assert sorted(done) == sorted(set(texts_) - {"m01"})
    assert mode != "stream" or done == [each for each in texts_ if each != "m01"]
    assert await shop.read(TopicName(A.namespace, "dead"), committed=True) == ["m01"]
    assert max(seen[each] for each in done) <= 5
    assert fetches < 20, "without it each of them is a fetch of its own"


@pytest.mark.parametrize("attempts_max", [2, 3])
@pytest.mark.parametrize("mode", ["shared", "stream", "keyed"])
async def test_no_message_becomes_a_dead_letter_for_anothers_failure(
    shop: Wired, mode: GroupMode, attempts_max: int
) -> None:
    await shop.publish(A, *"abcd")
    options = GroupOptions(mode, retry_delay_ms=0, attempts_max=attempts_max, dead_letter_topic="dead")
    billing, epoch, done = await Billing.made(shop, options), 0, list[str]()
    while True:
        await shop.transactions.move_dead_letters()
        page = await billing.fetch("mary", epoch=epoch)
        if page.claim is None:
            break
        epoch = page.member_epoch
        if "b" in texts(page.fetch):
            await billing.release(page.claim, member="mary")
        else:
            done += texts(page.fetch)
            await billing.acknowledge(page.claim, member="mary")
    assert sorted(done) == ["a", "c", "d"]
    assert await shop.read(TopicName(A.namespace, "dead"), committed=True) == ["b"]


@pytest.mark.parametrize("mode", ["shared", "keyed"])
async def test_a_group_far_out_of_order_is_dealt_what_came_back_and_what_lies_in_its_gaps(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, mode: GroupMode
) -> None:
    monkeypatch.setattr(acknowledgements, "OWN_SPANS", 1)
    await shop.publish(A, *(f"m{number}" for number in range(8)))
    billing = await Billing.made(shop, GroupOptions(mode, retry_delay_ms=0))
    epoch, claims = 0, list[int | None]()
    for _ in range(6):
        page = await billing.fetch("mary", 1, epoch=epoch)
        epoch = page.member_epoch
        claims.append(page.claim)
    for number in (1, 3):
        await billing.acknowledge(claims[number], member="mary")
    limited(shop, 2)
    assert (await billing.fetch("mary", epoch=epoch)).waiting_for == "spans"
    await billing.release(claims[4], member="mary")
    back = await billing.fetch("mary", epoch=epoch)
    assert (texts(back.fetch), back.attempt) == (["m4"], 2)
    await billing.acknowledge(back.claim, member="mary")
    await billing.groups.live.close()
    shop = await shop.restarted()
    limited(shop, 2)
    billing = Billing(shop)  # nobody knows any more that m0 and m2 were dealt
    page = await billing.fetch("john")
    found = texts(page.fetch)
    if mode == "shared":
        await billing.acknowledge(page.claim, member="john")
        page = await billing.fetch("john", epoch=page.member_epoch)
        found += texts(page.fetch)
    assert found == ["m0", "m2"]
    assert (await billing.fetch("john", epoch=page.member_epoch)).waiting_for == "spans"
    await billing.acknowledge(page.claim, member="john")
    assert await billing.handled("john") == ["m5", "m6", "m7"]


async def test_a_fetch_that_waits_for_fewer_spans_hears_of_them_wherever_they_were(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledgements, "OWN_SPANS", 1)
    monkeypatch.setattr(live_group, "SPANS_LOOK_MS", 10)
    await shop.publish(A, *"abcd")
    billing = await Billing.made(shop)
    claims = [(await billing.fetch(limit=1)).claim for _ in range(3)]
    await billing.acknowledge(claims[0])
    await billing.acknowledge(claims[2])
    limited(shop, 2)
    waits = asyncio.create_task(billing.fetch(wait_ms=60_000))
    await asyncio.sleep(0.05)
    assert not waits.done()
    limited(shop, 3)  # as if another group had filled its gaps
    for _ in range(500):
        if waits.done():
            break
        shop.clock.advance(10)
        await asyncio.sleep(0.01)
    assert texts((await asyncio.wait_for(waits, WAIT_S_MAX)).fetch) == ["d"]


def limited(shop: Wired, spans: int) -> None:
    """So many spans may all groups have."""
    state = shop.transactions.state
    state.limits = replace(state.limits, group_spans_max=spans)


@pytest.mark.parametrize(("stretches", "dealt"), [(1, ["c"]), (2, ["c", "d"])])
async def test_so_many_stretches_behind_a_message_that_failed_alone_are_dealt_in_batches_again(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, stretches: int, dealt: list[str]
) -> None:
    monkeypatch.setattr(retries, "SPARED_LOOKS_MAX", stretches)
    await shop.publish(A, *"abcd")
    billing = await Billing.made(shop, GroupOptions(retry_delay_ms=0, retry_delay_ms_max=0))
    for _ in range(2):
        pages = [await billing.fetch(limit=2) for _ in range(2)]
        assert [texts(page.fetch) for page in pages] == [["a", "b"], ["c", "d"]]
        for page in pages:
            shop.clock.advance(1)  # so that they did not come back alike
            await billing.release(page.claim)
    alone = await billing.fetch()
    assert texts(alone.fetch) == ["a"]
    await billing.release(alone.claim)
    assert await billing.read() == ["b"]
    assert await billing.read() == dealt


@pytest.mark.parametrize("mode", ["shared", "stream"])
async def test_nothing_becomes_a_dead_letter_for_the_failures_of_others(shop: Wired, mode: GroupMode) -> None:
    """However many poison messages are in a batch, and how few attempts there are."""
    names = [f"m{number}" for number in range(12)]
    poison = {"m0", "m3", "m4", "m8", "m11"}
    await shop.publish(A, *names)
    for attempts_max in (3, 4, 5):
        billing = await Billing.made(
            shop,
            GroupOptions(
                mode,
                retry_delay_ms=0,
                retry_delay_ms_max=0,
                attempts_max=attempts_max,
                dead_letter_topic=f"dead-{attempts_max}",
            ),
            f"group-{attempts_max}",
        )
        epoch, done = 0, list[str]()
        while True:
            page = await billing.fetch("mary", epoch=epoch)
            if page.claim is None:
                if not await shop.transactions.move_dead_letters():
                    break
                continue
            epoch, batch = page.member_epoch, texts(page.fetch)
            if poison & set(batch):
                await billing.release(page.claim, member="mary")
            else:
                done += batch
                await billing.acknowledge(page.claim, member="mary")
        dead = await shop.read(TopicName(A.namespace, f"dead-{attempts_max}"), committed=True)
        assert (set(done), set(dead)) == (set(names) - poison, poison)


async def test_what_is_released_uncounted_is_free_at_once(shop: Wired) -> None:
    await shop.publish(A, "a", "b")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary", 1)
    await billing.release(page.claim, member="mary", counts=False)
    assert texts((await billing.fetch("john", 10)).fetch) == ["a", "b"]


async def test_the_limit_of_unacknowledged_messages_stops_fresh_ones_alone(shop: Wired) -> None:
    await shop.publish(A, "a", "b", "c")
    billing = await Billing.made(shop, GroupOptions(unacked_max=2, retry_delay_ms=0))
    page = await billing.fetch("mary")
    assert texts(page.fetch) == ["a", "b"]
    assert (await billing.fetch("john")).waiting_for == "unacked mary"
    await billing.release(page.claim, member="mary")
    again = await billing.fetch("john")
    assert texts(again.fetch) == ["a", "b"]
    await billing.acknowledge(again.claim, member="john")
    assert await billing.handled("john") == ["c"]


async def test_a_fetch_that_is_repeated_gets_the_same_claim(shop: Wired) -> None:
    await shop.publish(A, "a", "b")
    await shop.publish(A, "c")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary", request_id="r1")
    again = await billing.fetch("mary", request_id="r1", epoch=page.member_epoch)
    assert (again.claim, texts(again.fetch)) == (page.claim, texts(page.fetch))


async def test_gaps_without_living_messages_are_closed(shop: Wired) -> None:
    await shop.topics.update(A, {"ttl": "10"})
    await shop.publish(A, "a", "b", "c")
    shop.clock.advance(5_000)
    await shop.publish(A, "d", "e")
    billing = await Billing.made(shop)
    known: list[bytes] = []
    while (page := await billing.fetch()).claim:
        known += ids_of(page)
    await billing.groups.seek(A, "billing", SeekRequest("start"))
    await billing.acknowledge(ids=[known[1], known[4]])
    assert len(billing.live.state.acknowledged) >= 2
    shop.clock.advance(6_000)
    assert await billing.handled() == ["d"]
    await billing.groups.upkeep.run()
    assert list(billing.live.state.acknowledged) == [(ZERO_ID, known[4])]


async def test_a_fetch_passes_so_many_gaps_without_life_and_the_next_goes_on(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.topics.update(A, {"ttl": "10"})
    await shop.publish(A, *"abcdefg")
    billing = await Billing.made(shop)
    known = ids_of(await billing.fetch())
    await billing.groups.seek(A, "billing", SeekRequest("start"))
    for index in (1, 3, 5):
        await billing.acknowledge(ids=[known[index]])
    shop.clock.advance(11_000)
    await shop.publish(A, "living")
    monkeypatch.setattr(dispatcher, "LOOKS_MAX", 2)
    looks = [await billing.read() for _ in range(3)]
    assert [each for each in looks if each] == [["living"]]
    assert looks[0] == []


@pytest.mark.parametrize("how", ["plainly", "in a transaction that commits", "in one that aborts"])
async def test_of_what_came_back_the_rest_is_dealt_when_others_acknowledge_some_by_id(shop: Wired, how: str) -> None:
    """It was found already: the rest of it is there still, and comes with its own attempts and delay."""
    await shop.publish(A, *"abcdefgh")
    billing = await Billing.made(shop, GroupOptions(retry_delay_ms=100))
    page = await billing.fetch("mary")
    await billing.release(page.claim, member="mary", delay_ms=0)
    one = await billing.fetch("mary", 1, epoch=page.member_epoch)
    tx = None if how == "plainly" else (await shop.transactions.begin()).id
    named = dict(zip(texts(page.fetch), ids_of(page), strict=True))
    left = sorted(named.keys() - set(texts(one.fetch)))
    await billing.acknowledge(ids=[named[left[3]]], member="mary", tx=tx)
    if tx is not None:
        await (shop.transactions.abort if "aborts" in how else shop.transactions.commit)(tx)
    back = [left.pop(3)]
    assert sorted(await billing.handled("mary")) == left
    shop.clock.advance(200)
    again = await billing.fetch("mary", epoch=page.member_epoch)
    assert (texts(again.fetch), again.attempt) == ((back, 3) if "aborts" in how else ([], 0))


@pytest.mark.parametrize("mode", ["shared", "stream"])
async def test_what_came_back_and_expired_holds_nothing_up_however_much_it_is(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, mode: GroupMode
) -> None:
    monkeypatch.setattr(retries, "READY_MAX", 2)
    await shop.topics.update(A, {"ttl": "10"})
    await shop.publish(A, *"abcdef")
    billing = await Billing.made(shop, GroupOptions(mode, retry_delay_ms=0))
    pages = [await billing.fetch("mary", 1)]
    pages += [await billing.fetch("mary", 1, epoch=pages[0].member_epoch) for _ in range(5)]
    for number, page in enumerate(pages):
        await billing.release(page.claim, member="mary", delay_ms=number)
    shop.clock.advance(11_000)
    await shop.publish(A, "living")
    assert await billing.handled("mary") == ["living"]


@pytest.mark.parametrize("delay_ms", [0, 1_000])
@pytest.mark.parametrize("mode", ["stream", "keyed"])
async def test_what_lies_before_a_message_that_came_back_is_dealt_before_it_where_order_counts(
    shop: Wired, delay_ms: int, mode: GroupMode
) -> None:
    """The earlier ones were given back uncounted, or a restart forgot that they were dealt."""
    await shop.messaging.publish(A, [b"a", b"b", b"c", b"d"], extras=[Extras(b"key")] * 4)
    billing = await Billing.made(shop, GroupOptions(mode, unacked_max=2 if mode == "stream" else 10))
    earlier = await billing.fetch("mary", 1)
    later = await billing.fetch("mary", 1, epoch=earlier.member_epoch)
    await billing.release(later.claim, member="mary", delay_ms=delay_ms)
    await billing.release(earlier.claim, member="mary", counts=False)
    assert await billing.handled("mary") == (["a"] if delay_ms else ["a", "b", "c", "d"])
    shop.clock.advance(1_000)
    assert await billing.handled("mary") == (["b", "c", "d"] if delay_ms else [])


async def test_what_came_back_is_found_a_part_at_a_time(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "READY_MAX", 1)
    await shop.publish(A, *"abcdef")
    billing = await Billing.made(shop, GroupOptions(retry_delay_ms=0))
    claims = [await billing.fetch(limit=1) for _ in range(6)]
    for page in claims[::2]:
        await billing.release(page.claim)
    assert await billing.handled() == ["a", "c", "e"]
    for page in claims[1::2]:
        await billing.release(page.claim)
    assert await billing.handled() == ["b", "d", "f"]
    assert len(billing.live.state.acknowledged) == 1


async def test_what_is_due_is_dealt_though_the_clock_steps_back(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "READY_MAX", 1)
    await shop.publish(A, *"abcde")
    billing = await Billing.made(shop, GroupOptions(retry_delay_ms=0))
    claims = [await billing.fetch(limit=1) for _ in range(5)]
    for page in claims[::2]:
        await billing.release(page.claim)
    shop.clock.advance(240_000)
    assert await billing.read() == ["a"]
    shop.clock.step(shop.clock.now_ms() - 120_000)
    assert await billing.handled() == ["c", "e"]


async def test_what_was_due_until_the_clock_stepped_back_is_dealt_once_it_is_due_again(shop: Wired) -> None:
    await shop.publish(A, *"abcde")
    billing = await Billing.made(shop, GroupOptions(retry_delay_ms=60_000))
    claims = [await billing.fetch(limit=1) for _ in range(5)]
    for page in claims[::2]:
        await billing.release(page.claim)
    shop.clock.advance(60_000)
    assert await billing.read() == ["a"]
    shop.clock.step(shop.clock.now_ms() - 30_000)
    assert (await billing.fetch()).waiting_for == "delayed 30000"
    shop.clock.step(shop.clock.now_ms() + 30_000)
    assert await billing.handled() == ["c", "e"]


@pytest.mark.parametrize("mode", ["shared", "keyed"])
async def test_what_expires_before_it_is_dealt_again_is_unacknowledged_no_more(shop: Wired, mode: GroupMode) -> None:
    """Or messages that failed and expired would stop a group for good in which another one is parked."""
    await shop.publish(A, "parked")
    options = GroupOptions(
        mode, member_ms=600_000, attempts_max=2, retry_delay_ms=6_000, retry_delay_ms_max=6_000, unacked_max=4
    )
    billing = await Billing.made(shop, options)
    epoch = 0
    for _ in range(2):
        page = await billing.fetch("mary", epoch=epoch)
        epoch = page.member_epoch
        await billing.release(page.claim, member="mary")
        shop.clock.advance(6_000)
    for turn in range(5):
        short = [RecordIn(b"%d" % (3 * turn + each), b"k", ttl_ms=5_000) for each in range(3)]
        await shop.messaging.publish_records(A, short)
        page = await billing.fetch("mary", epoch=epoch)
        assert page.fetch.messages == 3, page.waiting_for
        await billing.release(page.claim, member="mary")
        shop.clock.advance(30_000)
        epoch = (await billing.fetch("mary", epoch=epoch)).member_epoch
        shop.clock.advance(30_000)
        epoch = (await billing.fetch("mary", epoch=epoch)).member_epoch
    assert billing.live.dispatcher.unacked <= 4


async def test_what_is_acknowledged_while_it_is_read_is_not_dealt(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    await shop.publish(A, "a", "b")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary")
    await billing.release(page.claim, member="mary", counts=False)
    read = shop.messaging.read_committed

    async def slowly(*args: object, **options: object) -> Fetch:
        found = await read(*args, **options)  # type: ignore[arg-type]
        monkeypatch.undo()
        await billing.acknowledge(ids=ids_of(page)[:1])
        return found

    monkeypatch.setattr(shop.messaging, "read_committed", slowly)
    assert await billing.read("john") == ["b"]


async def test_a_request_id_that_two_members_give_is_two_requests(shop: Wired) -> None:
    await shop.publish(A, "a", "b")
    billing = await Billing.made(shop)
    assert await billing.read("mary", 1, request_id="r1") == ["a"]
    assert await billing.read("john", 1, request_id="r1") == ["b"]


class _Steps:
    """The spans that were looked at in one turn of the event loop: in the longest one, and in all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.longest = self.all = self._of_turn = 0
        within, gap_after = Returns.within, Spans.gap_after

        def counted_within(returns: Returns, *asked: bytes) -> Iterator[tuple[bytes, bytes, Attempt]]:
            for part in within(returns, *asked):
                self._count()
                yield part

        def counted_gap_after(spans: Spans, place: bytes) -> tuple[bytes, bytes | None]:
            self._count()
            return gap_after(spans, place)

        monkeypatch.setattr(Returns, "within", counted_within)
        monkeypatch.setattr(Spans, "gap_after", counted_gap_after)

    def _count(self) -> None:
        self.all += 1
        self._of_turn += 1
        self.longest = max(self.longest, self._of_turn)

    async def of(self, call: Awaitable[GroupFetch]) -> GroupFetch:
        """Count those of this call, turn by turn."""
        self.longest = self.all = self._of_turn = 0
        running = asyncio.ensure_future(call)
        while not running.done():
            self._of_turn = 0
            await asyncio.sleep(0)
        return running.result()


def _id(number: int) -> bytes:
    return number.to_bytes(12, "big").ljust(20, b"\0")


@pytest.mark.parametrize("mode", ["shared", "stream"])
async def test_twenty_thousand_stretches_that_are_delayed_are_looked_at_once_and_in_parts(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, mode: GroupMode
) -> None:
    await shop.publish(A, *(f"m{number}" for number in range(20)))
    billing = await Billing.made(shop, GroupOptions(mode, unacked_max=100_000))
    state, live = billing.live.state, billing.live
    later = Spans([(_id(3 * number), _id(3 * number + 1)) for number in range(20_000)])
    due_ms = shop.clock.now_ms() + 60_000
    state.returns.fill([(later, Attempt(1, due_ms, ReturnReason.RELEASED))])
    state.acknowledged.update(Spans([(_id(3 * number + 1), _id(3 * number + 3)) for number in range(20_000)]))
    live.dispatcher.rebuild(state, ())
    steps = _Steps(monkeypatch)
    page = await steps.of(billing.fetch("mary", 1))
    if mode == "stream":
        assert page.waiting_for == "delayed 60000", "it holds back all that follows"
        assert steps.all <= 20
        return
    assert texts(page.fetch) == ["m0"]
    assert steps.all > 20_000, "each of them was sorted"
    assert steps.longest <= 5_000, "others had their turn meanwhile"
    for number in range(1, 20):
        page = await steps.of(billing.fetch("mary", 1, epoch=page.member_epoch))
        assert texts(page.fetch) == [f"m{number}"]
        assert steps.all <= 20, "and none of them again"
    shop.clock.advance(60_000)
    page = await steps.of(billing.fetch("mary", 1, epoch=page.member_epoch))
    assert steps.longest <= 5_000, "now they are due, and nothing lives there any more"


async def test_what_was_given_back_amid_many_gaps_is_found_without_a_walk_past_them(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.publish(A, *(f"m{number:03}" for number in range(200)))
    billing = await Billing.made(shop)
    pages = [await billing.fetch("mary", 1)]
    pages += [await billing.fetch("mary", 1, epoch=pages[0].member_epoch) for _ in range(199)]
    for page in pages[1::2]:
        await billing.acknowledge(page.claim, member="mary")
    await billing.release(pages[0].claim, member="mary", counts=False)
    await billing.release(pages[100].claim, member="mary", counts=False)
    steps, epoch = _Steps(monkeypatch), pages[0].member_epoch
    assert texts((await steps.of(billing.fetch("mary", 1, epoch=epoch))).fetch) == ["m000"]
    assert texts((await steps.of(billing.fetch("mary", 1, epoch=epoch))).fetch) == ["m100"]
    assert steps.all <= 20, "of two hundred spans before it"
    assert (await steps.of(billing.fetch("mary", 1, epoch=epoch))).claim is None
    assert steps.all <= 20


async def test_a_walk_past_many_spans_lets_others_have_their_turn(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_gaps, "STEPS_MAX", 10)
    await shop.publish(A, *(f"m{number:03}" for number in range(101)))
    billing = await Billing.made(shop)
    pages = [await billing.fetch(limit=1) for _ in range(100)]
    for page in pages[1::2]:
        await billing.acknowledge(page.claim)
    billing.live.dispatcher.rebuild(
        billing.live.state, ()
    )  # as when the log was read again: nobody knows where to begin
    steps = _Steps(monkeypatch)
    assert texts((await steps.of(billing.fetch())).fetch) == ["m100"]
    assert steps.all > 100, "of a hundred spans before it"
    assert steps.longest <= 30, "of two sets in ten steps, and what is asked of a claim that is made"
