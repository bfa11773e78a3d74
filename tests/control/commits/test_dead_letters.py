"""Dead letters: a message that failed too often, or was rejected, is in its group or in the other topic, and never in both or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from basalt.api.bodies.groups import GroupOptions, SeekRequest
from basalt.api.bodies.json import HexMessageId
from basalt.api.bodies.messages import RecordIn, Rejection, Work, WorkAcknowledge, WorkPublish
from basalt.catalog.topics import TopicName
from basalt.commits import dead_letters as dead_letters_module
from basalt.commits.dead_letters import TRY_AGAIN_MS, DeadLetters
from basalt.commits.owning.owner import Owner
from basalt.errors import BusyError, ConflictError, InputError, MessageNotFoundError, TooLargeError
from basalt.groups import acknowledgements
from basalt.groups.live_group import LiveGroup
from basalt.messaging.read.slices import Slice
from basalt.operations.jobs import end_late
from basalt.transactions.protocol import RollBack
from basalt_engine.errors import CorruptionError, StoreError
from basalt_engine.table import Store
from tests.control.groups.conftest import Billing, ids_of
from tests.control.messaging.conftest import anyio_backend, memory, shop
from tests.wiring import A, B, Wired, texts

__all__ = ["anyio_backend", "memory", "shop"]

pytestmark = pytest.mark.anyio

DEAD = TopicName("default", "dead")
OPTIONS = GroupOptions(attempts_max=2, retry_delay_ms=0, dead_letter_topic="dead")


async def made(shop: Wired, options: GroupOptions = OPTIONS) -> tuple[Billing, TopicName]:
    return await Billing.made(shop, options), TopicName(A.namespace, "dead")


async def fail(billing: Billing, times: int) -> None:
    """Everything that is dealt comes back, so often."""
    for _ in range(times):
        while (
            page := await billing.fetch("mary", epoch=epoch_of(billing))
        ).claim is not None and page.attempt <= times:
            await billing.release(page.claim, member="mary")


def epoch_of(billing: Billing) -> int:
    member = billing.live.members.get("mary")
    return 0 if member is None else member.epoch


async def read(shop: Wired, title: TopicName) -> list[str]:
    return await shop.read(title, committed=True)


async def test_what_failed_too_often_is_moved_with_all_that_it_carries(shop: Wired) -> None:
    billing, dead = await made(shop)
    await shop.messaging.publish_records(
        A, [RecordIn(b"a", b"key", (("page", b"1"), ("basalt-dead-group", b"old")), 77)]
    )
    await shop.publish(A, "b")
    page = await billing.fetch("mary")
    first = ids_of(page)[0]
    await billing.release(page.claim, member="mary")
    page = await billing.fetch("mary", 1, epoch=epoch_of(billing))
    await billing.release(page.claim, member="mary", reason="no such customer")
    assert await shop.transactions.move_dead_letters() == 1
    found = await shop.messaging.fetch(dead, None, True)
    (extras,) = [extras for piece in found.slices for extras in piece.extras()]
    assert (texts(found), extras.key, extras.event_time_ms) == (["a"], b"key", 77)
    assert dict(extras.headers) == {
        "page": b"1", "basalt-dead-topic": str(A).encode(), "basalt-dead-group": b"billing", "basalt-dead-id": first.hex().encode(),
        "basalt-dead-attempts": b"2", "basalt-dead-reason": b"released", "basalt-dead-published-ms": b"%d" % int.from_bytes(first[:8], "big"),
    }  # fmt: skip
    assert len(extras.headers) == 7
    assert billing.live.state.acknowledged.covers(first)
    assert await billing.handled("mary") == ["b"]
    assert await shop.transactions.move_dead_letters() == 0
    assert await read(shop, dead) == ["a"]
    assert billing.live.totals.dead_lettered == 1


def failing_after(store: Store, writes: int) -> Callable[..., None]:
    """The store's way to write, so many times; then it is gone."""
    write, left = type(store).write, [writes]

    def fails(self: Store, *args: Any, **kwargs: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StoreError("the store is gone")
        write(self, *args, **kwargs)

    return fails


async def test_a_dead_letter_comes_once_though_the_server_is_killed_before_any_write(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead letter twice, dead letter lost: neither, wherever the store stops."""
    billing, dead = await made(shop)
    await shop.publish(A, "a", "b", "c")
    await fail(billing, 2)
    for failing in range(6):
        with monkeypatch.context() as patched:
            patched.setattr(type(shop.store), "write", failing_after(shop.store, failing))
            try:
                await shop.transactions.move_dead_letters()
            except Exception:  # whatever it says: nobody hears it
                pass
        await shop.services.groups.live.close()
        shop.clock.advance(10)
        shop = await shop.restarted()
        await shop.transactions.recover()
        in_group = Billing(shop).live.state
        moved = await read(shop, dead)
        assert len(set(moved)) == len(moved)
        parked = sum(1 for _ in in_group.returns)
        assert bool(parked) != (len(moved) == 3)
    await shop.transactions.move_dead_letters()
    assert sorted(await read(shop, dead)) == ["a", "b", "c"]
    assert await Billing(shop).handled("mary") == []


async def test_a_count_is_not_lost_with_the_server(shop: Wired) -> None:
    billing, dead = await made(shop)
    await shop.publish(A, "a")
    page = await billing.fetch("mary")
    await billing.release(page.claim, member="mary")
    again = Billing(await shop.restarted())
    page = await again.fetch("mary")
    assert page.attempt == 2
    await again.release(page.claim, member="mary")
    last = await again.shop.restarted()
    assert (await Billing(last).fetch("mary")).claim is None
    assert await last.transactions.move_dead_letters() == 1
    assert await read(last, dead) == ["a"]


async def test_while_its_topic_refuses_it_a_message_stays_parked_and_is_tried_again(shop: Wired) -> None:
    billing, dead = await made(shop)
    await shop.publish(A, "a", "b")
    await shop.topics.delete(dead)
    await fail(billing, 2)
    assert await shop.transactions.move_dead_letters() == 0
    assert (await billing.fetch("mary")).claim is None
    await shop.topics.create(dead, {})
    assert await shop.transactions.move_dead_letters() == 0  # not each second
    shop.clock.advance(TRY_AGAIN_MS)
    assert await shop.transactions.move_dead_letters() == 2
    assert await read(shop, dead) == ["a", "b"]


async def test_many_are_moved_in_parts(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters_module, "MOVED_MAX", 2)
    monkeypatch.setattr(dead_letters_module, "MOVED_BYTES_MAX", 3)
    monkeypatch.setattr(dead_letters_module, "REFUSED_MAX", 1)
    billing, dead = await made(shop)
    await shop.publish(A, *"abcdefg")
    await fail(billing, 2)
    assert await shop.transactions.move_dead_letters() == 7
    assert await read(shop, dead) == list("abcdefg")


async def test_without_a_topic_for_them_messages_are_parked_until_somebody_unparks_them(shop: Wired) -> None:
    billing, _ = await made(shop, GroupOptions(attempts_max=1))
    await shop.publish(A, "a", "b", "c")
    page = await billing.fetch("mary")
    await billing.release(page.claim, member="mary")
    assert await shop.transactions.move_dead_letters() == 0
    assert (await billing.fetch("mary")).claim is None
    shop.clock.advance(86_400_000)
    assert (await billing.fetch("mary")).claim is None
    assert await billing.groups.unpark(A, "billing", ids_of(page)[1:2]) == 1
    again = await billing.fetch("mary")
    assert (texts(again.fetch), again.attempt) == (["b"], 1)
    await billing.acknowledge(again.claim, member="mary")
    assert await billing.groups.unpark(A, "billing", None) == 2
    assert await billing.groups.unpark(A, "billing", None) == 0
    assert await billing.handled("mary") == ["a", "c"]
    assert billing.live.dispatcher.unacked == 0


async def test_a_parked_key_goes_on_when_it_is_unparked_or_moved(shop: Wired) -> None:
    billing, dead = await made(shop, GroupOptions("keyed", attempts_max=1))
    await shop.messaging.publish_records(
        A, [RecordIn(text.encode(), text[0].encode()) for text in ("a1", "b1", "a2", "b2")]
    )
    page = await billing.fetch("mary", 2)
    await billing.release(page.claim, member="mary")
    assert await billing.handled("mary") == []
    assert await billing.groups.unpark(A, "billing", ids_of(page)[:1]) == 1
    assert await billing.handled("mary") == ["a1", "a2"]
    await billing.groups.change(A, "billing", GroupOptions("keyed", attempts_max=1, dead_letter_topic="dead"))
    assert await shop.transactions.move_dead_letters() == 1
    assert await billing.handled("mary") == ["b2"]
    assert await read(shop, dead) == ["b1"]


def work(ids: Sequence[bytes], rejected: bytes, *publish: str) -> Work:
    entry = WorkAcknowledge(
        *A, "billing", tuple(map(HexMessageId, ids)), member="mary", reject=(Rejection(rejected, "no customer"),)
    )
    return Work([WorkPublish(*B, [text.encode() for text in publish])] if publish else [], acknowledge=[entry])


async def test_what_a_work_rejects_is_a_dead_letter_by_the_same_decision(shop: Wired) -> None:
    billing, dead = await made(shop)
    await shop.publish(A, "a", "b", "c")
    page = await billing.fetch("mary")
    first, second, third = ids_of(page)
    await shop.transactions.one_shot(work([first], second, "bill"))
    assert (await read(shop, B), await read(shop, dead)) == (["bill"], ["b"])
    tx = await shop.transactions.begin()
    await shop.transactions.commit(tx.id, work([], third))
    assert await read(shop, dead) == ["b", "c"]
    assert billing.floor() == third
    found = await shop.messaging.fetch(dead, None, True)
    reasons = [dict(extras.headers)["basalt-dead-reason"] for piece in found.slices for extras in piece.extras()]
    assert reasons == [b"no customer", b"no customer"]
    assert billing.live.totals.dead_lettered == 2


async def test_what_is_rejected_counts_once_however_often_the_work_is_sent_and_not_when_it_is_refused(
    shop: Wired,
) -> None:
    billing, dead = await made(shop)
    await shop.publish(A, "a", "b")
    first, second = ids_of(await billing.fetch("mary"))
    for _ in range(2):
        await shop.transactions.one_shot(work([], first), request_id="once")
    with pytest.raises(InputError):
        await shop.transactions.one_shot(work([first], second))
    assert await read(shop, dead) == ["a"]
    assert billing.live.totals.dead_lettered == 1


async def test_a_work_that_is_refused_makes_no_dead_letter(shop: Wired) -> None:
    billing, dead = await made(shop)
    await shop.publish(A, "a", "b")
    page = await billing.fetch("mary")
    first, second = ids_of(page)
    await billing.acknowledge(ids=[second], member="mary")
    with pytest.raises(InputError):
        await shop.transactions.one_shot(work([first], second))
    with pytest.raises(MessageNotFoundError):
        await shop.transactions.one_shot(work([], second[:-1] + b"\1"))
    assert await read(shop, dead) == []
    await billing.groups.change(A, "billing", GroupOptions(attempts_max=2))
    with pytest.raises(ConflictError, match="no topic for dead letters"):
        await shop.transactions.one_shot(work([], first))


async def test_a_topic_does_not_take_its_own_dead_letters(shop: Wired) -> None:
    with pytest.raises(InputError, match="come back for ever"):
        await made(shop, GroupOptions(dead_letter_topic=A.name))


async def test_a_message_is_rejected_by_one_entry_of_a_work(shop: Wired) -> None:
    """Two entries would make two dead letters of it."""
    billing, dead = await made(shop)
    await shop.publish(A, "a")
    (first,) = ids_of(await billing.fetch("mary"))
    (entry,) = work([], first).acknowledge
    with pytest.raises(InputError, match="rejected twice"):
        await shop.transactions.one_shot(Work(acknowledge=[entry, entry]))
    assert await read(shop, dead) == []
    await shop.transactions.one_shot(Work(acknowledge=[entry]))
    assert await read(shop, dead) == ["a"]


async def test_a_sought_group_moves_nothing_that_was_parked_before(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    billing, dead = await made(shop)
    await shop.publish(A, "a")
    await fail(billing, 2)
    one_shot = shop.transactions.one_shot

    async def sought_before(asked: Work, owner: str = "") -> object:
        await billing.groups.seek(A, "billing", SeekRequest("start"))
        return await one_shot(asked, owner)

    monkeypatch.setattr(shop.transactions, "one_shot", sought_before)
    assert await shop.transactions.move_dead_letters() == 0
    assert await read(shop, dead) == []
    assert await billing.handled("mary") == ["a"]


async def test_many_that_are_refused_are_tried_each_minute(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters_module, "REFUSED_MAX", 1)
    billing, dead = await made(shop)
    await shop.publish(A, "a", "b", "c")
    await fail(billing, 2)
    tried: list[Work] = []

    async def busy(asked: Work, owner: str = "") -> object:
        tried.append(asked)
        raise BusyError("too much is going on")

    with monkeypatch.context() as patched:
        patched.setattr(shop.transactions, "one_shot", busy)
        assert await shop.transactions.move_dead_letters() == 0
        before = len(tried)
        assert await shop.transactions.move_dead_letters() == 0
        assert len(tried) == before
    shop.clock.advance(TRY_AGAIN_MS)
    assert await shop.transactions.move_dead_letters() == 3
    assert await read(shop, dead) == ["a", "b", "c"]


async def test_what_one_decision_rejects_fits_into_memory(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters_module, "REJECTED_BYTES_MAX", 20)
    billing, dead = await made(shop)
    other = await Billing.made(shop, OPTIONS, "other")
    await shop.publish(A, "a" * 10, "b" * 10, "c")
    known = ids_of(await billing.fetch("mary"))

    def entry(group: Billing, *ids: bytes) -> WorkAcknowledge:
        return WorkAcknowledge(*A, group.name, reject=[Rejection(each, "no") for each in ids], member="mary")

    for entries in ([entry(billing, *known)], [entry(billing, *known[:2]), entry(other, known[2])]):
        with pytest.raises(TooLargeError):
            await shop.transactions.one_shot(Work(acknowledge=entries))
    await shop.transactions.one_shot(Work(acknowledge=[entry(billing, *known[:2])]))
    assert await read(shop, dead) == ["a" * 10, "b" * 10]


async def test_a_transaction_that_cannot_be_rolled_back_keeps_no_dead_letter_where_it_is(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    billing, dead = await made(shop)
    await shop.publish(A, "a")
    await fail(billing, 2)
    tx = await shop.transactions.begin(timeout_ms=1_000)
    await shop.publish(B, "never", tx=tx)
    shop.clock.advance(2_000)

    async def fails(_: Owner, __: RollBack) -> None:
        raise StoreError("a region is away")

    monkeypatch.setattr(Owner, "roll_back", fails)
    with pytest.raises(StoreError):
        await end_late(shop.transactions, shop.clock)
    assert await read(shop, dead) == ["a"]


async def test_a_message_that_cannot_be_read_keeps_no_other_groups_dead_letters_where_they_are(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    billing, dead = await made(shop)
    other = await Billing.made(shop, OPTIONS, "other")
    await shop.publish(A, "a")
    await fail(billing, 2)
    await fail(other, 2)
    dead_of = DeadLetters._dead

    def fails(letters: DeadLetters, live: LiveGroup, part: Slice) -> Any:
        if live.number == billing.live.number:
            raise CorruptionError("a row does not say what was written")
        return dead_of(letters, live, part)

    monkeypatch.setattr(DeadLetters, "_dead", fails)
    with pytest.raises(CorruptionError):
        await shop.transactions.move_dead_letters()
    assert await read(shop, dead) == ["a"]
    assert other.live.totals.dead_lettered == 1


async def test_what_a_transaction_acknowledges_is_no_dead_letter_and_is_one_as_soon_as_that_ended_otherwise(
    shop: Wired,
) -> None:
    billing, dead = await made(shop)
    await shop.publish(A, "a")
    parked = ids_of(await billing.fetch("mary"))
    await billing.release(ids=parked, member="mary")
    await fail(billing, 2)
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=parked, tx=tx.id)
    assert await shop.transactions.move_dead_letters() == 0
    await shop.transactions.abort(tx.id)
    assert await shop.transactions.move_dead_letters() == 1
    assert await read(shop, dead) == ["a"]


async def test_of_several_messages_only_the_one_stays_that_its_topic_refuses(shop: Wired) -> None:
    billing, dead = await made(shop)
    await shop.publish(A, "a", "b", "c")
    await fail(billing, 2)

    async def refusing(work: Work, owner: str) -> object:
        if any(record.payload == b"b" for part in work.publish for record in part.records):
            raise ConflictError("no b")
        return await shop.transactions.one_shot(work, owner)

    assert await shop.transactions._dead_letters.move(refusing) == 2
    assert await read(shop, dead) == ["a", "c"]


async def test_a_rejected_message_says_how_often_it_was_dealt(shop: Wired) -> None:
    billing, dead = await made(shop, GroupOptions(retry_delay_ms=0, dead_letter_topic="dead"))
    await shop.publish(A, "a", "b")
    page = await billing.fetch("mary")
    await billing.release(ids=ids_of(page)[:1], member="mary")
    again = await billing.fetch("mary", epoch=page.member_epoch)
    assert again.attempt == 2
    rejected = [Rejection(each, "no") for each in ids_of(page)]
    await shop.transactions.one_shot(Work(acknowledge=[WorkAcknowledge(*A, "billing", member="mary", reject=rejected)]))
    found = await shop.messaging.fetch(dead, None, True)
    told = [dict(extras.headers)["basalt-dead-attempts"] for part in found.slices for extras in part.extras()]
    assert told == [b"2", b"1"]


async def test_no_message_is_tried_while_the_topic_of_dead_letters_is_not_there(
    shop: Wired, caplog: pytest.LogCaptureFixture
) -> None:
    billing, dead = await made(shop)
    await shop.publish(A, "a", "b", "c")
    await fail(billing, 2)
    await shop.topics.delete(dead)
    tried: list[Work] = []

    async def counted(work: Work, owner: str) -> object:
        tried.append(work)
        return await shop.transactions.one_shot(work, owner)

    for _ in range(3):
        assert await shop.transactions._dead_letters.move(counted) == 0
    assert tried == []
    assert len([each for each in caplog.records if "stay parked" in each.message]) == 1
    await shop.topics.create(dead, {})
    shop.clock.advance(TRY_AGAIN_MS)
    assert await shop.transactions._dead_letters.move(counted) == 3
    assert await read(shop, dead) == ["a", "b", "c"]


async def test_many_are_unparked_in_parts(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledgements, "UNPARKED_TOGETHER", 2)
    monkeypatch.setattr(acknowledgements, "PLACES_TURN", 1)
    monkeypatch.setattr(acknowledgements, "STRETCHES_TURN", 1)
    billing, _ = await made(shop, GroupOptions(attempts_max=1))
    await shop.publish(A, *"abcdefghij")
    pages = [await billing.fetch("mary", 1)]
    while pages[-1].claim is not None:
        pages.append(await billing.fetch("mary", 1, epoch=pages[0].member_epoch))
    dealt = pages[:-1]
    await billing.acknowledge(*[page.claim for page in dealt[1::2]], member="mary")
    await billing.release(*[page.claim for page in dealt[::2]], member="mary")
    assert await shop.transactions.move_dead_letters() == 0
    edits = shop.transactions.state.edits_applied
    assert await billing.groups.unpark(A, "billing", [message for page in dealt[:6] for message in ids_of(page)]) == 3
    assert await billing.groups.unpark(A, "billing", None) == 2
    assert shop.transactions.state.edits_applied - edits == 2 + 1
    assert await billing.handled("mary") == list("acegi")
    assert billing.live.dispatcher.unacked == 0
