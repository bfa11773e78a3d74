"""What operators learn of a group: in which state each message is, what waits, and for what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies.groups import AcknowledgeRequest, GroupMessage, GroupOptions, ReleaseRequest
from basalt.api.bodies.json import HexMessageId
from basalt.api.bodies.messages import RecordIn
from basalt.catalog.topics import TopicName
from basalt.errors import GroupNotFoundError
from basalt.groups import attendance
from basalt.groups.claims import Claim, Claims
from basalt.groups.dispatcher import FetchAsk
from basalt.groups.live_group import GroupFetch, LiveGroup
from basalt.operations.groups.inspection import (
    AVAILABLE,
    CLAIMED,
    DELAYED,
    LAST_ID,
    PARKED,
    PENDING,
    Known,
    Stretch,
    stretches,
)
from basalt.transactions.rules import acknowledgements
from basalt.transactions.rules.edits import ReturnReason
from basalt.transactions.rules.groups import NEVER_MS, Attempt, GroupState
from basalt_engine.spans.spans import ZERO_ID, Spans
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


def place(number: int) -> bytes:
    return number.to_bytes(20, "big")


def spans_of(*pairs: tuple[int, int]) -> Spans:
    return Spans([(place(after), place(through)) for after, through in pairs])


def group_state(acknowledged: Spans | None = None) -> GroupState:
    return GroupState(1, b"shop:orders:", 1, "g", b"{}", 0, 0, 1, acknowledged=acknowledged or Spans())


def claim_of(*pairs: tuple[int, int], attempt: int = 1) -> Claim:
    return Claim(7, spans_of(*pairs), 1, since_ms=0, until_ms=9, member="ann", attempt=attempt)


def known_of(state: GroupState, pending: Mapping[int, Spans], claims: list[Claim]) -> Known:
    held, claimed = Spans(), Claims()
    for spans in pending.values():
        held.update(spans)
    for number, claim in enumerate(claims, 1):
        claim.number = number
        claimed.add(claim)
    return Known(state, pending, held, claimed, Spans([(after, through) for after, through, _ in state.returns]))


def parts_of(
    state: GroupState, pending: Mapping[int, Spans], claims: list[Claim], now_ms: int, end: bytes
) -> list[Stretch]:
    found = stretches(known_of(state, pending, claims), now_ms, ZERO_ID, end, 10_000)
    assert found.through == LAST_ID
    for part in found.parts:
        told = known_of(state, pending, claims).at(part.through, now_ms)
        assert told[2:] == part[2:], "one message is in the state of its part"
    return found.parts


def in_turns(known: Known, now_ms: int, end: bytes, looks: int, wanted: str | None = None) -> list[Stretch]:
    parts, at = list[Stretch](), ZERO_ID
    for _ in range(1_000):
        found = stretches(known, now_ms, at, end, looks, wanted)
        assert len(found.parts) <= 4 * looks
        parts += found.parts
        if found.through == LAST_ID:
            return parts
        assert found.through > at
        at = found.through
    raise AssertionError("it does not end")


def shown(found: list[Stretch]) -> list[tuple[int, int, str]]:
    return [(int.from_bytes(each.after, "big"), int.from_bytes(each.through, "big"), each.state) for each in found]


def test_each_place_is_shown_once_under_the_strongest_state():
    state = group_state(spans_of((0, 10)))
    state.returns.put(place(30), place(50), Attempt(2, 500, ReturnReason.ABORTED))
    state.returns.put(place(60), place(70), Attempt(8, NEVER_MS, ReturnReason.RELEASED))
    state.returns.put(place(70), place(75), Attempt(1, 50, ReturnReason.MEMBER_LOST))
    claims = [claim_of((12, 25)), claim_of((40, 45), attempt=3)]
    found = parts_of(state, {9: spans_of((15, 20))}, claims, 100, place(80))
    assert shown(found) == [
        (10, 12, "available"), (12, 15, "claimed"), (15, 20, "pending"), (20, 25, "claimed"), (25, 30, "available"),
        (30, 40, "delayed"), (40, 45, "claimed"), (45, 50, "delayed"), (50, 60, "available"), (60, 70, "parked"),
        (70, 75, "available"), (75, 80, "available"),
    ]  # fmt: skip
    by_place = {int.from_bytes(each.after, "big"): each for each in found}
    assert (by_place[15].transaction_id, by_place[40].attempts, by_place[30].not_before_ms) == (9, 2, 500)
    assert (by_place[70].attempts, by_place[70].reason, by_place[75].attempts) == (1, "member_lost", 0)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8), st.sampled_from("apcrn")), max_size=12),
    st.integers(0, 60),
)
def test_all_that_is_not_acknowledged_is_in_exactly_one_state(marks: list[tuple[int, int, str]], end: int):
    state, pending, claimed = group_state(), Spans(), Spans()
    for after, length, kind in marks:
        span = place(after), place(after + length)
        if kind == "a":
            state.acknowledged.add(*span)
        elif kind == "p":
            pending.add(*span)
        elif kind == "c":
            claimed.add(*span)
        else:
            state.returns.put(*span, Attempt(1, NEVER_MS if kind == "n" else 5, ReturnReason.RELEASED))
    claims = [Claim(1, claimed, 1, since_ms=0, until_ms=1)] if claimed else []
    known = known_of(state, {3: pending} if pending else {}, claims)
    found = parts_of(state, known.pending, claims, 9, place(end))
    assert in_turns(known, 9, place(end), 1) == found, "in turns as at once"
    for state_ in (PENDING, CLAIMED, DELAYED, PARKED, AVAILABLE):
        one = [each for each in found if each.state == state_]
        assert in_turns(known, 9, place(end), 2, state_) == one
    for message in range(1, 60):
        states = [each.state for each in found if each.after < place(message) <= each.through]
        if state.acknowledged.covers(place(message)):
            assert states == []
        elif (
            message <= end
            or pending.covers(place(message))
            or claimed.covers(place(message))
            or state.returns.at(place(message))
        ):
            assert len(states) == 1
        else:
            assert states == []
    assert [each.after for each in found] == sorted(each.after for each in found)


class Shop:
    """A topic of ten messages, and one group of it."""

    def __init__(self, wired: Wired, live: LiveGroup, ids: list[bytes]) -> None:
        self.wired = wired
        self.live = live
        self.ids = ids
        self.inspection = wired.services.group_inspection

    async def fetch(self, limit: int, member: str = "ann") -> GroupFetch:
        return await self.wired.services.groups.fetch(A, "billing", FetchAsk(member=member, limit=limit))

    async def acknowledge(self, *indexes: int, transaction_id: int | None = None, member: str = "") -> None:
        ids = tuple(HexMessageId(self.ids[index]) for index in indexes)
        asked = AcknowledgeRequest(ids=ids, member=member)
        await self.wired.services.groups.acknowledge(A, "billing", asked, transaction_id)

    async def release(self, claim: int, delay_ms: int | None = None) -> None:
        asked = ReleaseRequest(claims=(claim,), delay_ms=delay_ms)
        await self.wired.services.groups.release(A, "billing", asked)

    async def states(self, wanted: str | None = None) -> list[tuple[int, str]]:
        found = await self.inspection.messages(self.live, wanted, 100)
        return [(self.ids.index(each.id), each.state) for each in found]

    async def explain(self, index: int) -> GroupMessage:
        return await self.inspection.message(self.live, self.ids[index])

    async def figures(self) -> dict[str, int]:
        found = await self.inspection.figures(self.live)
        names = ("lag_messages", "unread", "claimed", "pending", "delayed", "parked")
        return {name: getattr(found, name) for name in names if getattr(found, name)}


async def opened(**options: object) -> Shop:
    wired = await Wired.start()
    await wired.topics.create(A, {})
    await wired.publish(A, *map(str, range(10)))
    live = await wired.services.groups.make(A, "billing", GroupOptions(**options))  # type: ignore[arg-type]
    page = await wired.messaging.fetch(A, None, True, committed=True)
    return Shop(wired, live, [message_id for piece in page.slices for message_id in piece.ids()])


async def test_figures_tell_what_each_message_waits_for():
    shop = await opened(attempts_max=1)
    assert await shop.figures() == {"lag_messages": 10, "unread": 10}
    first = await shop.fetch(2)
    await shop.release(first.claim or 0)
    assert await shop.figures() == {"lag_messages": 10, "unread": 8, "parked": 2}, "parked is neither done nor lost"
    await shop.fetch(3)
    tx = await shop.wired.transactions.begin(owner="etl")
    await shop.acknowledge(9, transaction_id=tx.id)
    await shop.acknowledge(8)
    assert await shop.figures() == {"lag_messages": 9, "unread": 3, "claimed": 3, "pending": 1, "parked": 2}
    assert await shop.states() == [(0, "parked"), (2, "claimed"), (5, "available"), (9, "pending")]
    assert await shop.states("pending") == [(9, "pending")]
    await shop.wired.transactions.abort(tx.id)
    assert await shop.figures() == {"lag_messages": 9, "unread": 3, "claimed": 3, "parked": 3}


async def test_the_reason_for_which_a_message_waits_is_told_with_what_frees_it():
    shop = await opened(attempts_max=3)
    clock = shop.wired.clock
    claim = await shop.fetch(2)
    told = await shop.explain(0)
    assert (told.state, told.reason, told.explanation, told.member) == (
        "claimed",
        "claimed",
        "member ann works on it",
        "ann",
    )
    assert told.until_ms == clock.now_ms() + shop.live.options.claim_ms
    await shop.release(claim.claim or 0, delay_ms=5_000)
    told = await shop.explain(1)
    assert (told.state, told.reason, told.attempts, told.until_ms) == ("delayed", "delayed", 1, clock.now_ms() + 5_000)
    tx = await shop.wired.transactions.begin(owner="etl")
    await shop.acknowledge(2, transaction_id=tx.id)
    told = await shop.explain(2)
    assert (told.state, told.owner, told.until_ms) == ("pending", "etl", tx.deadline_ms)
    assert told.transaction == shop.wired.services.ids.text(tx.id)
    await shop.acknowledge(3)
    told = await shop.explain(3)
    assert (told.state, told.explanation, told.since_ms) == ("acknowledged", "it is acknowledged", clock.now_ms())
    assert (await shop.explain(4)).reason == "next"
    told = await shop.explain(7)
    assert (told.reason, told.explanation) == ("unread", "it was not dealt yet: 3 messages before it were not either")
    await shop.wired.services.groups.pause(A, "billing")
    assert (await shop.explain(7)).reason == "paused"


async def test_a_message_that_a_transaction_acknowledged_names_it():
    shop = await opened()
    tx = await shop.wired.transactions.begin(owner="etl")
    await shop.acknowledge(0, transaction_id=tx.id)
    shop.wired.clock.advance(40)
    await shop.wired.transactions.commit(tx.id)
    told = await shop.explain(0)
    text = shop.wired.services.ids.text(tx.id)
    assert (told.explanation, told.since_ms) == (f"it is acknowledged by transaction {text}", shop.wired.clock.now_ms())


async def test_a_message_behind_an_open_transaction_names_it():
    shop = await opened()
    tx = await shop.wired.transactions.begin(owner="slow")
    await shop.wired.publish(A, "early", tx=tx)
    await shop.wired.publish(A, "behind")
    page = await shop.wired.messaging.fetch(A, shop.ids[-1], False)
    early, behind = (message_id for piece in page.slices for message_id in piece.ids())
    for message_id in (early, behind):
        told = await shop.inspection.message(shop.live, message_id)
        assert (told.reason, told.until_ms) == ("held", tx.deadline_ms)
        assert "of slow" in (told.explanation or "")
    await shop.wired.transactions.abort(tx.id)
    assert (await shop.inspection.message(shop.live, early)).reason in ("hidden", "absent")
    assert (await shop.inspection.message(shop.live, behind)).reason == "unread"


async def test_what_is_no_message_is_told_as_such():
    shop = await opened()
    absent = shop.ids[-1][:8] + b"\xff" * 12
    assert (await shop.inspection.message(shop.live, absent)).reason == "absent"
    assert (await shop.inspection.message(shop.live, place(1))).reason == "expired"


async def test_a_stream_without_members_waits_for_one():
    shop = await opened(mode="stream")
    assert (await shop.explain(0)).reason == "no_member"
    await shop.fetch(1)
    assert (await shop.explain(0)).reason == "claimed"


async def test_too_much_that_is_not_acknowledged_is_told_with_who_has_most():
    shop = await opened(unacked_max=3)
    await shop.fetch(3, "bob")
    told = await shop.explain(5)
    assert told.reason == "unacked"
    assert (told.explanation or "").endswith("no more than 3 may be; 3 of them with member bob")


async def test_a_group_far_out_of_order_is_told_to_fill_its_gaps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(acknowledgements, "OWN_SPANS", 1)
    shop = await opened()
    for index in (1, 3):
        await shop.acknowledge(index)
    state = shop.wired.transactions.state
    state.limits = replace(state.limits, group_spans_max=2)
    told = await shop.explain(5)
    assert (told.reason, (told.explanation or "")[:50]) == (
        "spans",
        "what the group has acknowledged lies in 2 pieces, ",
    )
    assert (await shop.explain(2)).reason in ("next", "unread"), "it lies in a gap"


async def test_a_list_of_messages_is_as_long_as_was_asked_for():
    shop = await opened()
    for index in (1, 3, 5):
        await shop.acknowledge(index)
    found = await shop.inspection.messages(shop.live, None, 2)
    assert [shop.ids.index(each.id) for each in found] == [0, 2]
    assert found[0].through is None, "it is a single message"


async def test_a_group_that_is_gone_has_no_figures():
    shop = await opened()
    await shop.wired.services.groups.delete(A, "billing")
    with pytest.raises(GroupNotFoundError):
        await shop.inspection.figures(shop.live)


async def test_the_group_of_a_state_is_found(monkeypatch: pytest.MonkeyPatch):
    shop = await opened()
    [state] = shop.inspection.states()
    assert await shop.inspection.live_of(state) is shop.live
    assert shop.inspection.member_counts() == {state.number: 0}
    await shop.fetch(2)
    assert shop.inspection.totals()[state.number].fetched == 2
    assert shop.inspection.member_counts() == {state.number: 1}
    monkeypatch.setattr("basalt.operations.groups.inspection.FIGURES_MAX", 1)
    other = await shop.wired.services.groups.make(A, "audit", GroupOptions())
    for live in (shop.live, other, shop.live):
        assert (await shop.inspection.figures(live)).lag_messages == 10
        assert len(shop.inspection._figures) == 1
    assert TopicName("shop", "orders") == A


async def test_a_list_has_a_bound_whatever_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    shop = await opened()
    await shop.acknowledge(1)
    monkeypatch.setattr("basalt.operations.groups.inspection.ENTRIES_MAX", 1)
    assert len(await shop.inspection.messages(shop.live, None, 100)) == 1
    assert shop.ids[0] > ZERO_ID


async def keyed() -> Shop:
    """A keyed group of a topic whose messages 0, 2, 4 … have one key, and the others another."""
    wired = await Wired.start()
    await wired.topics.create(A, {})
    records = [RecordIn(str(number).encode(), b"even" if number % 2 == 0 else b"odd") for number in range(6)]
    await wired.messaging.publish_records(A, records)
    live = await wired.services.groups.make(A, "billing", GroupOptions(mode="keyed"))
    page = await wired.messaging.fetch(A, None, True, committed=True)
    return Shop(wired, live, [message_id for piece in page.slices for message_id in piece.ids()])


async def test_a_message_behind_another_of_its_key_names_that_one_and_who_has_it():
    shop = await keyed()
    assert (await shop.explain(0)).reason == "no_member"
    await shop.fetch(1)
    told = await shop.explain(4)
    assert (told.reason, shop.ids[0].hex() in (told.explanation or "")) == ("behind", True)
    assert (told.explanation or "").endswith("which member ann works on")
    assert (await shop.explain(1)).reason == "next", "another key"
    await shop.acknowledge(0, member="ann")
    assert (await shop.explain(4)).reason in ("unread", "next")


async def test_a_slot_that_moves_drains_first_and_a_silent_owner_is_told():
    shop = await keyed()
    await shop.fetch(6, "ann")
    await shop.fetch(1, "bob")
    slots = {member.name: member.slots for member in attendance.members_of(shop.live, shop.wired.clock).members}
    assert sum(slots.values()) == 1_024
    assert sorted(slots.values()) == [512, 512]
    await shop.wired.messaging.publish_records(A, [RecordIn(b"new", key) for key in (b"even", b"odd")])
    page = await shop.wired.messaging.fetch(A, shop.ids[-1], False, committed=True)
    new = [message_id for piece in page.slices for message_id in piece.ids()]
    assert {(await shop.inspection.message(shop.live, each)).reason for each in new} == {"behind"}
    shop.wired.clock.advance(shop.live.options.member_ms * 3 // 4)
    await shop.wired.messaging.publish_records(A, [RecordIn(str(n).encode(), f"key {n}".encode()) for n in range(20)])
    page = await shop.wired.messaging.fetch(A, new[-1], False, committed=True)
    fresh = [message_id for piece in page.slices for message_id in piece.ids()]
    found = [await shop.inspection.message(shop.live, each) for each in fresh]
    assert {each.reason for each in found} <= {"silent", "draining"}
    assert any("is silent" in (each.explanation or "") for each in found)


async def test_of_very_many_pieces_a_part_is_counted_and_the_figures_say_so(monkeypatch: pytest.MonkeyPatch):
    shop = await opened()
    tx = await shop.wired.transactions.begin(owner="etl")
    await shop.acknowledge(1, 3, 5, 7, 9, transaction_id=tx.id)
    found = await shop.inspection.figures(shop.live)
    assert (found.exact, found.pending, found.lag_messages) == (True, 5, 10)
    monkeypatch.setattr("basalt.operations.groups.inspection.LOOKS_MAX", 3)
    found = await shop.inspection.figures(shop.live)
    assert (found.exact, found.pending, found.lag_messages) == (True, 5, 10), "in more turns than one"
    monkeypatch.setattr("basalt.operations.groups.inspection.COUNT_TURNS", 1)
    found = await shop.inspection.figures(shop.live)
    assert (found.exact, found.pending, found.lag_messages) == (False, 3, 10)
    assert [number for number, _ in await shop.states("pending")] == [1, 3, 5, 7, 9], "a list goes on in turns"
    assert [number for number, _ in await shop.states()] == list(range(10))
    told = await shop.explain(8)
    assert told.explanation == "it was not dealt yet: 2 messages or more before it were not either"


async def test_a_list_lets_others_in_between_and_ends(monkeypatch: pytest.MonkeyPatch):
    shop = await opened()
    await shop.acknowledge(1, 3, 5, 7)
    monkeypatch.setattr("basalt.operations.groups.inspection.LOOKS_MAX", 2)
    looks = list[bytes]()

    def looked(known: Known, now_ms: int, begin: bytes, *others: object) -> object:
        looks.append(begin)
        return stretches(known, now_ms, begin, *others)  # type: ignore[arg-type]

    monkeypatch.setattr("basalt.operations.groups.inspection.stretches", looked)
    assert [number for number, _ in await shop.states()] == [0, 2, 4, 6, 8]
    assert len(looks) >= 3
    assert looks == sorted(set(looks))
    looks.clear()
    monkeypatch.setattr("basalt.operations.groups.inspection.TURNS_MAX", 1)
    assert [number for number, _ in await shop.states()] == [0]
    assert len(looks) == 1
