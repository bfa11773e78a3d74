"""Keyed groups: each key in order to one member at a time, over resizes, failures, transactions and restarts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from random import Random

import pytest
from crc32c import crc32c

from basalt.api.bodies.groups import GroupOptions, SeekRequest
from basalt.api.bodies.messages import RecordIn, Work, WorkAcknowledge
from basalt.catalog.topics import TopicName
from basalt.errors import (
    AcknowledgeConflictError,
    AcknowledgeOrderError,
    BasaltError,
    ClaimLostError,
    InputError,
    MemberFencedError,
)
from basalt.groups.keyed import lanes as lanes_module
from basalt.groups.keyed import window as window_module
from basalt.groups.keyed.slots import SLOTS
from basalt.groups.live_group import GroupFetch
from basalt_engine.records import Extras
from basalt_engine.stores.memory import MemoryStore
from tests.control.groups.conftest import Billing, ids_of
from tests.wiring import A, Wired, texts

pytestmark = pytest.mark.anyio

KEYED = GroupOptions("keyed", retry_delay_ms=1_000)


async def publish(shop: Wired, *keyed: str) -> None:
    """Messages such as a1, whose keys are their letters; one without a letter has none."""
    records = [RecordIn(text.encode(), text[0].encode() if text[0].isalpha() else None) for text in keyed]
    await shop.messaging.publish_records(A, records)


def owner_of(billing: Billing, key: str) -> str | None:
    lanes = billing.live.dispatcher.lanes
    assert lanes is not None
    return lanes.slots.owners[crc32c(key.encode()) % SLOTS]


async def joined(billing: Billing, *names: str) -> dict[str, GroupFetch]:
    """Members that have joined, before anything was dealt to them."""
    for name in names:
        billing.live.join(name, 0)
    return {}


async def test_a_keyed_group_needs_members_with_names(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    with pytest.raises(InputError, match="keyed"):
        await billing.fetch()


async def test_each_key_goes_to_one_member_in_order(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    letters = "abcdefghijklmnopqrstuvwxyz"
    await joined(billing, "mary", "john")
    await publish(shop, *(f"{letter}{turn}" for turn in range(3) for letter in letters))
    dealt = {}
    for name in ("mary", "john"):
        dealt[name] = texts((await billing.fetch(name)).fetch)
    assert sorted(dealt["mary"] + dealt["john"]) == sorted(f"{letter}{turn}" for turn in range(3) for letter in letters)
    assert {text[0] for text in dealt["mary"]}.isdisjoint({text[0] for text in dealt["john"]})
    assert all(owner_of(billing, text[0]) == name for name in dealt for text in dealt[name])
    for found in dealt.values():
        for letter in letters:
            own = [text for text in found if text[0] == letter]
            assert own == sorted(own)
    assert dealt["mary"] != []
    assert dealt["john"] != []
    for name in dealt:
        claims = billing.live.dispatcher.claims.of_member(name)
        await billing.acknowledge(*(claim.number for claim in claims), member=name)
    assert len(billing.live.state.acknowledged) == 1
    lanes = billing.live.dispatcher.lanes
    assert lanes is not None
    assert (len(lanes.flight), len(lanes.window), lanes._by_lane, lanes._counted) == (0, 0, {}, set())


async def test_the_key_may_be_a_header(shop: Wired) -> None:
    billing = await Billing.made(shop, GroupOptions("keyed", key="header:page"))
    await joined(billing, "mary", "john")
    records = [
        RecordIn(f"{page}{turn}".encode(), b"same", [("page", page.encode())])
        for turn in range(2)
        for page in "abcdefgh"
    ]
    await shop.messaging.publish_records(A, records)
    mary, john = texts((await billing.fetch("mary")).fetch), texts((await billing.fetch("john")).fetch)
    assert sorted(mary + john) == sorted(f"{page}{turn}" for turn in range(2) for page in "abcdefgh")
    assert all(owner_of(billing, text[0]) == "mary" for text in mary)
    assert {text[0] for text in mary}.isdisjoint({text[0] for text in john})


async def test_messages_stored_ahead_and_merged_ones_are_dealt_as_others(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    await joined(billing, "mary", "john")
    tx = await shop.transactions.begin()
    await shop.store_aside(A, *(f"s{turn}" for turn in range(20)), tx=tx)
    await shop.store_aside(A, *(f"t{turn}" for turn in range(20)), tx=tx)
    await shop.commit(tx)
    for turn in range(20):  # small ones, which become one row
        await publish(shop, f"a{turn}", f"b{turn}")
    seen = await billing.handled("mary") + await billing.handled("john")
    assert sorted(seen) == sorted(f"{letter}{turn}" for letter in "stab" for turn in range(20))
    assert [text for text in seen if text[0] == "a"] == [f"a{turn}" for turn in range(20)]
    assert len(billing.live.state.acknowledged) == 1


async def test_messages_without_a_key_are_spread_and_none_waits_for_another(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    await joined(billing, "mary", "john")
    await publish(shop, *map(str, range(60)))
    mary = await billing.fetch("mary")
    assert 10 < mary.fetch.messages < 50
    await billing.acknowledge(ids=ids_of(mary)[5:6], member="mary")  # not the first: there is no order


async def test_an_earlier_message_of_the_key_is_named_and_who_has_it(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    await publish(shop, "a1", "b1", "a2")
    first = await billing.fetch("mary", 1)
    second = await billing.fetch("mary", epoch=first.member_epoch)
    a1, (b1, a2) = ids_of(first)[0], ids_of(second)
    with pytest.raises(AcknowledgeOrderError, match=f"{a1.hex()} .* before {a2.hex()}.* claim {first.claim} of mary"):
        await billing.acknowledge(second.claim, member="mary")
    await billing.acknowledge(ids=[b1], member="mary")
    await billing.acknowledge(ids=[a1, a2], member="mary")
    assert billing.floor() == a2


async def test_a_released_message_holds_back_what_follows_in_its_lane_only(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    await publish(shop, "a1", "b1", "a2", "b2")
    page = await billing.fetch("mary", 2)
    await billing.release(ids=ids_of(page)[:1], member="mary")
    await billing.acknowledge(page.claim, member="mary")
    assert await billing.handled("mary") == ["b2"]
    assert (await billing.fetch("mary", epoch=page.member_epoch)).waiting_for == "delayed 1000"
    await publish(shop, "a3", "b3")
    assert await billing.handled("mary") == ["b3"]
    shop.clock.advance(1_000)
    again = await billing.fetch("mary", epoch=page.member_epoch)
    assert (texts(again.fetch), again.attempt) == (["a1"], 2)
    assert (await billing.fetch("mary", epoch=page.member_epoch)).claim is None  # a2 waits for a1
    await billing.acknowledge(again.claim, member="mary")
    assert await billing.handled("mary") == ["a2", "a3"]


async def test_reorder_after_a_release_is_refused_and_after_it_all_come_in_order(shop: Wired) -> None:
    """One member has two claims of a key, and gives back the first: the second must not be acknowledged before it."""
    billing = await Billing.made(shop, KEYED)
    await publish(shop, "a1", "a2", "a3")
    first, second = await billing.fetch("mary", 1), None
    second = await billing.fetch("mary", 1, epoch=first.member_epoch)
    await billing.release(first.claim, member="mary")
    with pytest.raises(AcknowledgeOrderError, match="came back after 1 attempts"):
        await billing.acknowledge(second.claim, member="mary")
    await billing.release(second.claim, member="mary", counts=False)
    shop.clock.advance(1_000)
    assert await billing.handled("mary") == ["a1", "a2", "a3"]


async def test_reorder_after_an_abort_is_refused(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    await publish(shop, "a1", "a2")
    tx, other = [await shop.transactions.begin() for _ in range(2)]
    first = await billing.fetch("mary", 1)
    await billing.acknowledge(first.claim, member="mary", tx=tx.id)
    second = await billing.fetch("mary", 1, epoch=first.member_epoch)
    await billing.acknowledge(second.claim, member="mary", tx=other.id)
    with pytest.raises(AcknowledgeOrderError, match="a transaction that has not ended"):
        await shop.transactions.commit(other.id)
    await shop.transactions.abort(tx.id)
    with pytest.raises(AcknowledgeOrderError, match="came back"):
        await shop.transactions.commit(other.id)
    await shop.transactions.abort(other.id)
    shop.clock.advance(1_000)
    assert await billing.handled("mary") == ["a1", "a2"]


async def test_reorder_after_a_slot_move_cannot_be_for_the_slot_drains(shop: Wired) -> None:
    billing = await Billing.made(shop, GroupOptions("keyed", unacked_max=20_000))
    keys = [f"k{number}" for number in range(3 * SLOTS)]
    for turn in (1, 2):
        await shop.messaging.publish_records(A, [RecordIn(f"{key}:{turn}".encode(), key.encode()) for key in keys])
    first = await billing.fetch("mary", len(keys))
    assert first.fetch.messages == len(keys)  # some in nearly every slot
    nothing = await billing.fetch("john")
    assert nothing.waiting_for == "draining"
    his = next(key for key in keys if owner_of(billing, key) == "john")
    done = [message_id for message_id, text in zip(ids_of(first), texts(first.fetch), strict=True)
            if crc32c(text.split(":")[0].encode()) % SLOTS == crc32c(his.encode()) % SLOTS]  # fmt: skip
    await billing.acknowledge(ids=done, member="mary", epoch=first.member_epoch)
    john = await billing.fetch("john", epoch=nothing.member_epoch)
    assert f"{his}:2" in texts(john.fetch)
    assert {crc32c(text.split(":")[0].encode()) % SLOTS for text in texts(john.fetch)} == {crc32c(his.encode()) % SLOTS}


async def test_a_slot_does_not_drain_for_ever_for_the_claim_ends(shop: Wired) -> None:
    billing = await Billing.made(shop, GroupOptions("keyed", claim_ms=60_000, member_ms=3_600_000))
    await publish(shop, "a1", "a2")
    first = await billing.fetch("mary", 1)
    await joined(billing, "john", "jane", "mark", "paul", "luke", "anna")
    billing.live.dispatcher.lanes.assign(billing.live.members)  # type: ignore[union-attr]
    now = owner_of(billing, "a")
    if now == "mary":  # it moves without it: nobody else has anything claimed
        billing.live.members.leave("mary")
        now = None
    shop.clock.advance(60_000)
    assert await billing.live.return_run_out() == 1
    shop.clock.advance(1_000)
    seen = []
    for name in ("john", "jane", "mark", "paul", "luke", "anna"):
        seen += await billing.handled(name)
    assert seen == ["a1", "a2"]
    with pytest.raises(ClaimLostError):
        await billing.acknowledge(first.claim, member="mary", epoch=first.member_epoch)


async def test_a_fenced_members_late_acknowledgement_is_refused(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    await publish(shop, "a1")
    old = await billing.fetch("mary")
    new = await billing.fetch("mary")
    assert new.member_epoch > old.member_epoch
    with pytest.raises(MemberFencedError):
        await billing.acknowledge(old.claim, member="mary", epoch=old.member_epoch)
    with pytest.raises(MemberFencedError):
        await billing.acknowledge(ids=ids_of(old), member="mary", epoch=old.member_epoch)
    shop.clock.advance(1_000)
    again = await billing.fetch("mary", epoch=new.member_epoch)
    assert (texts(again.fetch), again.attempt) == (["a1"], 2)


async def test_after_a_restart_order_holds_though_nothing_is_known_of_what_was_dealt(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    await publish(shop, "a1", "b1", "a2", "a3")
    page = await billing.fetch("mary")
    a1, b1, a2, a3 = ids_of(page)
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=[a2], member="mary", tx=tx.id)
    again = Billing(await shop.restarted())
    with pytest.raises(AcknowledgeOrderError, match=a1.hex()):
        await again.shop.transactions.commit(tx.id)  # which nobody has named since the restart
    with pytest.raises(AcknowledgeOrderError, match=f"before {a3.hex()}"):
        await again.acknowledge(ids=[a3], member="mary", epoch=page.member_epoch)
    await again.acknowledge(ids=[b1], member="mary", epoch=page.member_epoch)
    with pytest.raises(AcknowledgeOrderError, match="not ended"):
        await again.acknowledge(ids=[a1, a3], member="mary", epoch=page.member_epoch)
    await again.acknowledge(ids=[a1], member="mary", epoch=page.member_epoch)
    await again.shop.transactions.commit(tx.id)
    await again.acknowledge(ids=[a3], member="mary", epoch=page.member_epoch)
    assert again.floor() == a3
    await again.shop.services.close()


async def test_after_a_restart_what_came_back_waits_for_what_was_claimed_before_it(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    await publish(shop, "a1", "a2", "a3")
    await billing.fetch("mary", 1)
    epoch = billing.live.members.get("mary").epoch  # type: ignore[union-attr]
    second = await billing.fetch("mary", 1, epoch=epoch)
    await billing.release(second.claim, member="mary")
    shop.clock.advance(1_000)
    again = Billing(await shop.restarted())
    assert await again.handled("mary") == ["a1", "a2", "a3"]
    await again.shop.services.close()


async def test_a_message_fails_alone_from_its_third_attempt_on_and_its_company_goes_on_in_batches(shop: Wired) -> None:
    """In the order of each key. The last attempt is alone in any case."""
    billing = await Billing.made(
        shop, GroupOptions("keyed", retry_delay_ms=0, attempts_max=8, dead_letter_topic="dead")
    )
    told = [f"{'abcd'[number % 4]}{number:02}" for number in range(40)]
    await publish(shop, *told)
    seen, failing, done, sizes, epoch = Counter[str](), {"b01": 99, "c06": 4}, list[str](), list[tuple[int, int]](), 0
    while True:
        await shop.transactions.move_dead_letters()
        page = await billing.fetch("mary", epoch=epoch)
        if page.claim is None:
            break
        epoch, batch = page.member_epoch, texts(page.fetch)
        sizes.append((page.attempt, len(batch)))
        fails = any(seen[each] < failing.get(each, 0) for each in batch)
        seen.update(batch)
        if fails:
            await billing.release(page.claim, member="mary")
        else:
            done += batch
            await billing.acknowledge(page.claim, member="mary")
    for key in "abcd":
        assert [each for each in done if each[0] == key] == [each for each in told if each[0] == key and each != "b01"]
    assert await shop.read(TopicName(A.namespace, "dead"), committed=True) == ["b01"]
    assert sizes[:2] == [(1, 40), (2, 40)]
    assert all(size == 1 for attempt, size in sizes if attempt == 8)
    assert max(seen[each] for each in done) <= 6
    assert len(sizes) < 25, "without it each of them is a fetch of its own"


@pytest.mark.parametrize("how", ["a transaction aborts", "they are given back uncounted", "a new server"])
async def test_who_was_company_is_known_by_failures_alone(shop: Wired, how: str) -> None:
    """What is given back uncounted is no reason to spare others; after a restart nobody is spared before another failed alone."""
    billing = await Billing.made(shop, GroupOptions("keyed", retry_delay_ms=0))
    await publish(shop, "a1", "b1", "c1")
    page = await billing.fetch("mary")
    for _ in range(2):
        if how == "a transaction aborts":
            tx = await shop.transactions.begin()
            await billing.acknowledge(page.claim, member="mary", tx=tx.id)
            await shop.transactions.abort(tx.id)
        else:
            await billing.release(page.claim, member="mary")
        page = await billing.fetch("mary", epoch=page.member_epoch)
    assert (len(texts(page.fetch)), page.attempt) == (1, 3)
    if how == "a new server":
        shop.transactions.manager.lost()
    await billing.release(page.claim, member="mary", counts="uncounted" not in how)
    again = await billing.fetch("mary", 2, epoch=page.member_epoch)
    assert len(texts(again.fetch)) == (2 if how == "a transaction aborts" else 1)


async def test_a_hot_key_that_is_parked_starves_nobody(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "READ_MESSAGES_MAX", 500)
    monkeypatch.setattr(window_module, "LANE_ASIDE_MAX", 50)
    billing = await Billing.made(shop, GroupOptions("keyed", attempts_max=1))
    await publish(shop, *(f"a{turn}" for turn in range(1)))
    page = await billing.fetch("mary")
    await billing.release(page.claim, member="mary")
    for start in range(0, 3_000, 500):
        await publish(shop, *(f"a{turn + 1}" for turn in range(start, start + 500)))
    await publish(shop, "b1")
    assert await billing.handled("mary") == ["b1"]
    lanes = billing.live.dispatcher.lanes
    assert lanes is not None
    assert len(lanes.window) <= 50
    await billing.acknowledge(ids=ids_of(page), member="mary")  # a person has looked at it
    seen = await billing.handled("mary")
    assert seen == [f"a{turn + 1}" for turn in range(3_000)]


async def test_order_holds_in_a_topic_whose_messages_live_for_ever(shop: Wired) -> None:
    await shop.topics.update(A, {"ttl": str(100 * 365 * 86_400)})
    billing = await Billing.made(shop, KEYED)
    await joined(billing, "mary")
    await publish(shop, "a1", "a2")
    first = await billing.fetch("mary", 1)
    second = await billing.fetch("mary", 1, epoch=first.member_epoch)
    with pytest.raises(AcknowledgeOrderError):
        await billing.acknowledge(second.claim, member="mary")
    await billing.acknowledge(first.claim, member="mary")
    await billing.acknowledge(second.claim, member="mary")


@pytest.mark.parametrize("batch", [1, 40])
async def test_claims_of_whole_batches_and_of_single_messages_are_dealt_and_decided_alike(
    shop: Wired, batch: int
) -> None:
    billing = await Billing.made(shop, KEYED)
    await joined(billing, "mary", "john")
    letters = "abcdefgh"
    whole = [f"{letters[number % 8]}{number // 8}" for number in range(160)]
    for start in range(0, len(whole), batch):
        await publish(shop, *whole[start : start + batch])
    mary = [await billing.fetch("mary", 30)]
    mary.append(await billing.fetch("mary", 30, epoch=mary[0].member_epoch))
    john = await billing.fetch("john", 10)
    with pytest.raises(AcknowledgeOrderError):
        await billing.acknowledge(mary[1].claim, member="mary")
    await billing.release(mary[0].claim, member="mary", counts=False)
    await billing.acknowledge(john.claim, member="john")
    with pytest.raises(AcknowledgeOrderError):
        await billing.acknowledge(mary[1].claim, member="mary")
    again = await billing.fetch("mary", 30, epoch=mary[0].member_epoch)
    assert sorted(texts(again.fetch)) == sorted(texts(mary[0].fetch))
    await billing.acknowledge(again.claim, member="mary")
    seen = texts(john.fetch) + texts(again.fetch)
    await billing.acknowledge(mary[1].claim, member="mary")
    seen += texts(mary[1].fetch) + await billing.handled("mary") + await billing.handled("john")
    assert sorted(seen) == sorted(whole)
    for letter in letters:
        own = [int(text[1:]) for text in seen if text[0] == letter]
        assert own == sorted(own)
    lanes = billing.live.dispatcher.lanes
    assert lanes is not None
    assert (len(lanes.flight), lanes._deals, lanes._deals_of, len(lanes.window)) == (0, {}, {}, 0)
    assert not any(map(lanes.slots.claimed, range(SLOTS)))


async def test_a_batch_that_expired_since_it_was_read_ahead_is_not_dealt(shop: Wired) -> None:
    await shop.topics.update(A, {"ttl": "10"})
    billing = await Billing.made(shop, KEYED)
    await joined(billing, "mary")
    await publish(shop, *(f"a{number}" for number in range(40)))
    first = await billing.fetch("mary", 10)
    assert texts(first.fetch) == [f"a{number}" for number in range(10)]
    shop.clock.advance(11_000)
    await publish(shop, "b1")
    assert texts((await billing.fetch("mary", 5, epoch=first.member_epoch)).fetch) == ["b1"]


async def test_a_seek_begins_again_for_all(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    await publish(shop, "a1", "b1", "a2")
    page = await billing.fetch("mary")
    await billing.acknowledge(ids=ids_of(page)[:1], member="mary")
    await billing.groups.seek(A, "billing", SeekRequest("start"))
    with pytest.raises(ClaimLostError):
        await billing.acknowledge(page.claim, member="mary")
    assert await billing.handled("mary") == ["a1", "b1", "a2"]


async def test_what_is_acknowledged_without_having_been_dealt_is_not_dealt(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    await publish(shop, "a1", "b1", "a2", "b2")
    page = await billing.fetch("mary")
    known = ids_of(page)
    await billing.release(page.claim, member="mary", counts=False)
    with pytest.raises(AcknowledgeOrderError):
        await billing.acknowledge(ids=known[2:3])
    await billing.acknowledge(up_to=known[1])
    assert await billing.handled("mary") == ["a2", "b2"]


async def test_a_fetch_that_is_repeated_has_the_same_claim(shop: Wired) -> None:
    billing = await Billing.made(shop, KEYED)
    await publish(shop, "a1", "b1", "a2")
    page = await billing.fetch("mary", request_id="r1")
    again = await billing.fetch("mary", epoch=page.member_epoch, request_id="r1")
    assert (again.claim, texts(again.fetch)) == (page.claim, texts(page.fetch))


class _World:
    """Members of one keyed group that work, fail, come and go, over restarts of the server."""

    def __init__(self, random: Random, billing: Billing) -> None:
        self.random = random
        self.billing = billing
        self.epochs: dict[str, int] = {}
        self.pages: dict[str, list[tuple[int, list[bytes], int]]] = defaultdict(list)
        self.open: list[tuple[int, str, list[bytes]]] = []
        self.texts: dict[bytes, str] = {}
        self.done: list[bytes] = []
        self.written = defaultdict[str, int](int)

    @property
    def shop(self) -> Wired:
        return self.billing.shop

    def note(self, ids: Sequence[bytes]) -> None:
        """They are acknowledged now: each for the first time, and in the order of its key."""
        for message_id in sorted(ids):
            assert message_id not in self.done
            text = self.texts[message_id]
            before = [self.texts[each] for each in self.done if self.texts[each][0] == text[0]]
            assert int(text[1:]) == len(before) + 1, (text, before)
            self.done.append(message_id)

    async def step(self) -> None:
        acts = [self.publish, self.fetch, self.fetch, self.fetch, self.acknowledge, self.acknowledge, self.acknowledge_in,
                self.acknowledge_in, self.commit, self.commit, self.commit, self.abort, self.release, self.leave, self.pass_time]  # fmt: skip
        await self.random.choice(acts)()

    async def publish(self) -> None:
        keyed = []
        for key in self.random.choices("abcdef", k=self.random.randint(1, 6)):
            self.written[key] += 1
            keyed.append(f"{key}{self.written[key]}")
        await publish(self.shop, *keyed)

    async def fetch(self) -> None:
        name = self.random.choice(["mary", "john", "jane"])
        page = await self.billing.fetch(name, self.random.randint(1, 5), epoch=self.epochs.get(name, 0))
        self.epochs[name] = page.member_epoch
        if page.claim is not None:
            ids = ids_of(page)
            self.texts.update(zip(ids, texts(page.fetch), strict=True))
            self.pages[name].append((page.claim, ids, page.member_epoch))

    def page(self) -> tuple[str, int, list[bytes], int] | None:
        held = [name for name in self.pages if self.pages[name]]
        if not held:
            return None
        name = self.random.choice(held)
        return (name, *self.pages[name].pop(self.random.randrange(len(self.pages[name]))))

    async def acknowledge(self) -> None:
        page = self.page()
        if page is None:
            return
        name, claim, ids, epoch = page
        try:
            if self.random.random() < 0.5:
                ids = [each for each in ids if self.random.random() < 0.7 and each not in self.done]
                if ids:
                    await self.billing.acknowledge(ids=ids, member=name, epoch=epoch)
                    self.note(ids)
                return
            answer = await self.billing.acknowledge(claim, member=name, epoch=epoch)
        except (AcknowledgeOrderError, ClaimLostError, MemberFencedError, AcknowledgeConflictError):
            return
        fresh = [each for each in ids if each not in self.done]  # what a later claim had may be done, by ids
        if answer.acknowledged:
            assert answer.acknowledged == len(fresh)
            self.note(fresh)

    async def acknowledge_in(self) -> None:
        page = self.page()
        if page is None:
            return
        name, claim, ids, epoch = page
        tx = await self.shop.transactions.begin()
        try:
            answer = await self.billing.acknowledge(claim, member=name, epoch=epoch, tx=tx.id)
        except BasaltError:
            await self.shop.transactions.abort(tx.id)
            return
        self.open.append((tx.id, name, ids if answer.acknowledged == len(ids) else []))

    async def commit(self) -> None:
        if self.open:
            index = self.random.randrange(len(self.open))
            tx, _, ids = self.open[index]
            try:
                await self.shop.transactions.commit(tx)
            except AcknowledgeOrderError:
                return
            del self.open[index]
            self.note(ids)

    async def abort(self) -> None:
        if self.open:
            tx, _, _ = self.open.pop(self.random.randrange(len(self.open)))
            await self.shop.transactions.abort(tx)

    async def release(self) -> None:
        page = self.page()
        if page is not None:
            name, claim, _, epoch = page
            try:
                await self.billing.release(claim, member=name, epoch=epoch, counts=self.random.random() < 0.5)
            except (ClaimLostError, MemberFencedError):
                pass

    async def leave(self) -> None:
        name = self.random.choice(["mary", "john", "jane"])
        self.epochs.pop(name, None)
        if self.random.random() < 0.5:
            member = self.billing.live.members.leave(name)
            if member is not None:
                for claim in self.billing.live.dispatcher.claims.of_member(name, member.epoch):
                    self.billing.live.give_back(claim)

    async def pass_time(self) -> None:
        self.shop.clock.advance(self.random.choice([10, 1_000, 3_000]))

    async def restart(self) -> None:
        await self.shop.services.groups.live.close()
        self.shop.clock.advance(1)  # numbers of claims begin at the clock's
        self.billing = Billing(await self.shop.restarted())

    async def finish(self) -> None:
        """Everything is handled in the end, in order."""
        for tx, _, _ in self.open:
            await self.shop.transactions.abort(tx)
        for name in ("mary", "john", "jane"):
            for claim in self.billing.live.dispatcher.claims.of_member(name):
                self.billing.live.give_back(claim)
            self.billing.live.members.leave(name)
        total = sum(self.written.values())
        for _ in range(20 * total + 20):
            if len(self.done) == total:
                break
            page = await self.billing.fetch("anna", epoch=self.epochs.get("anna", 0))
            self.epochs["anna"] = page.member_epoch
            if page.claim is None:
                self.shop.clock.advance(10_000)
                continue
            self.texts.update(zip(ids_of(page), texts(page.fetch), strict=True))
            await self.billing.acknowledge(page.claim, member="anna", epoch=page.member_epoch)
            self.note(ids_of(page))
        assert len(self.done) == total, total - len(self.done)
        spans = self.billing.live.state.acknowledged
        assert len(spans) <= 1


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_members_do_each_message_is_handled_once_in_the_order_of_its_key(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    if seed % 2:
        monkeypatch.setattr(lanes_module, "READ_MESSAGES_MAX", 3)
        monkeypatch.setattr(lanes_module, "READ_BYTES_MAX", 5)
        monkeypatch.setattr(lanes_module, "PICK_LOOKS_MAX", 2)
        monkeypatch.setattr(window_module, "LANE_ASIDE_MAX", 2)
    if seed % 3:
        monkeypatch.setattr(lanes_module, "SHEET_MESSAGES_MIN", 1)
    shop = await Wired.start(MemoryStore(atomic=seed % 4 < 2), cached=seed % 3 > 0)
    await shop.topics.create(A, {"spread": "3"} if seed % 5 else {})
    world = _World(random, await Billing.made(shop, GroupOptions("keyed", attempts_max=0, retry_delay_ms=100)))
    for _ in range(80):
        await world.step()
        if random.random() < 0.02:
            await world.restart()
    await world.finish()
    await shop.services.close()


@pytest.mark.parametrize("came_back", [False, True])
@pytest.mark.parametrize("how", ["in a transaction", "in a one-shot"])
async def test_what_was_read_ahead_is_acknowledged_though_the_gap_before_it_was_closed_since(
    shop: Wired, how: str, came_back: bool
) -> None:
    """What expired before it is acknowledged by the upkeep, up to somewhere between the two."""
    await shop.topics.update(A, {"ttl": "10"})
    await shop.messaging.publish(A, [b"a", b"b", b"c", b"d"], extras=[Extras(b"%d" % key) for key in range(4)])
    shop.clock.advance(5_000)
    await shop.messaging.publish(A, [b"e", b"f"], extras=[Extras(b"5"), Extras(b"6")])
    billing = await Billing.made(shop, GroupOptions("keyed", member_ms=60_000, retry_delay_ms=0))
    pages = [await billing.fetch("mary", 1)]
    epoch = pages[0].member_epoch
    pages += [await billing.fetch("mary", 1, epoch=epoch) for _ in range(3)]
    if came_back:
        page = await billing.fetch("mary", epoch=epoch)
        await billing.release(page.claim, member="mary")
    for page in (pages[1], pages[3]):
        await billing.acknowledge(page.claim, member="mary")
    shop.clock.advance(6_000)
    assert (await billing.groups.upkeep.run()).closed
    page = await billing.fetch("mary", epoch=epoch)
    assert texts(page.fetch) == ["e", "f"]
    if how == "in a one-shot":
        await shop.transactions.one_shot(
            Work(acknowledge=[WorkAcknowledge(*A, "billing", member="mary", claims=[page.claim or 0])])
        )
    else:
        tx = await shop.transactions.begin()
        await billing.acknowledge(page.claim, member="mary", tx=tx.id)
        await shop.transactions.commit(tx.id)
    assert billing.live.state.acknowledged.end == page.through
    assert (await billing.fetch("mary", epoch=epoch)).waiting_for == "claimed"
