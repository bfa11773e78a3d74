"""Consumers by their plans: joining, batch after batch, what goes back and whether it counts, renewal, the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from basalt.api.bodies.messages import REASON_CHARS_MAX, is_member
from basalt.client.calls.pages import Message
from basalt.client.consumer import open_consumer
from basalt.client.consumer.batches import Batch
from basalt.client.consumer.open_consumer import HOST_CHARS_MAX, BatchCursor, OpenConsumer
from basalt.errors import (
    AcknowledgeOrderError,
    ClaimLostError,
    GroupNotFoundError,
    InputError,
    MemberFencedError,
    TransactionConflictError,
    TransactionEndedError,
    UnavailableError,
)
from tests.control.client.consumer.group_world import GroupWorld


def next_batch(world: GroupWorld, cursor: BatchCursor) -> Batch:
    """The next batch, which must be there."""
    found: Sequence[Batch] = world.run(cursor.next_items())
    return found[0]


def started(world: GroupWorld, limit: int | None = None) -> tuple[OpenConsumer, BatchCursor, Batch]:
    """A consumer with its first batch in hand."""
    consumer = world.consumer()
    cursor = open_consumer.batches(consumer, limit=limit, wait=False)
    batch = next_batch(world, cursor)
    world.story.clear()
    return consumer, cursor, batch


def interrupted_behind(world: GroupWorld, steps: Any) -> Any:
    """The plan, interrupted while the answer to its first fetch is on its way."""
    call: Any = next(steps)
    while "fetch" not in call.path:
        call = steps.send(world._step(call))
    world._step(call)
    yield from ()
    steps.throw(KeyboardInterrupt())


def test_a_group_that_is_not_there_is_made_with_the_options_given():
    world = GroupWorld()
    consumer = open_consumer.consumer(world.scope, "orders", group="billing", mode="keyed", start="end")
    world.run(open_consumer.enter(consumer))
    assert world.story == ["get", "put", "renew"]
    assert world.options is not None
    assert (world.options.mode, world.options.start, world.options.attempts_max) == ("keyed", "end", 8)
    assert consumer.made_group
    assert not world.consumer().made_group


def test_one_that_is_there_is_joined_as_it_is():
    world = GroupWorld()
    world.consumer(mode="keyed", claim_ms=60_000)
    for options in ({}, {"mode": "keyed"}):
        again = open_consumer.consumer(world.scope, "orders", group="billing", **options)
        world.run(open_consumer.enter(again))
        assert again.joined().options.claim_ms == 60_000
    assert world.story == ["get", "renew"] * 2


def test_the_server_is_asked_to_judge_options_that_differ():
    world = GroupWorld()
    world.consumer(claim_ms=60_000)
    other = open_consumer.consumer(world.scope, "orders", group="billing", mode="keyed")
    world.run(open_consumer.enter(other))
    assert world.story == ["get", "put", "renew"]
    assert world.options is not None
    assert (world.options.mode, world.options.claim_ms) == ("keyed", 60_000)


def test_a_consumer_is_used_once():
    """It is closed for good: a second block would find nothing to do, and say nothing."""
    world = GroupWorld(b"a")
    consumer = world.consumer()
    for _ in range(2):
        with pytest.raises(InputError, match="was used before") as raised:
            world.run(open_consumer.enter(consumer))
        assert raised.value.hint is not None
        world.run(open_consumer.leave(consumer, None))


def test_a_tracked_group_deals_nothing_to_consumers():
    world = GroupWorld()
    with pytest.raises(InputError, match="is tracked"):
        world.consumer(mode="tracked")


def test_names_that_are_made_up_differ_and_are_names(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "häuschen/" * 100)
    names = {open_consumer.made_up_name() for _ in range(100)}
    assert len(names) == 100
    assert all(is_member(name) and name[HOST_CHARS_MAX] == "-" for name in names)


def test_nothing_is_done_before_it_has_joined():
    world = GroupWorld(b"a")
    consumer = open_consumer.consumer(world.scope, "orders", group="billing")
    with pytest.raises(InputError, match="has not joined"):
        world.run(open_consumer.batches(consumer).next_items())
    assert world.story == []


def test_a_batch_is_acknowledged_by_its_claim():
    world = GroupWorld(b"a", b"b", b"c")
    consumer, cursor, batch = started(world, limit=2)
    assert world.run(open_consumer.acknowledge(consumer, batch)).acknowledged == 2
    assert batch.decided
    assert [message.payload for message in next_batch(world, cursor)] == [b"c"]
    assert (world.story, world.texts(world.acknowledged), world.returned) == (["acknowledge", "fetch"], ["a", "b"], [])


def test_some_messages_are_acknowledged_by_their_ids_and_the_rest_goes_back():
    world = GroupWorld(b"a", b"b", b"c")
    consumer, cursor, batch = started(world)
    world.run(open_consumer.acknowledge(consumer, batch[0]))
    world.run(open_consumer.acknowledge(consumer, batch[2:]))
    assert not batch.decided
    world.run(cursor.next_items())
    assert world.texts(world.acknowledged) == ["a", "c"]
    assert [(each[0], each[1]) for each in world.returned] == [(batch[1].id, True)]


def test_what_was_not_acknowledged_when_the_next_batch_is_asked_for_goes_back_as_an_attempt():
    world = GroupWorld(b"a", b"b")
    _, cursor, batch = started(world, limit=1)
    next_batch(world, cursor)
    assert world.story == ["release", "fetch"]
    assert world.returned == [(batch[0].id, True, "it was not acknowledged")]


def test_after_a_restart_the_ids_are_sent_once_with_the_round():
    world = GroupWorld(b"a", b"b")
    consumer, _, batch = started(world)
    world.restart()
    world.run(open_consumer.acknowledge(consumer, batch))
    assert (world.story, world.texts(world.acknowledged)) == (["acknowledge", "acknowledge"], ["a", "b"])


@pytest.mark.parametrize("how", ["another has it", "a seek"])
def test_a_claim_that_is_lost_for_good_is_said_after_the_second_try(how):
    world = GroupWorld(b"a")
    consumer, _, batch = started(world)
    world.restart()
    if how == "a seek":
        world.round += 1
    else:
        world.others.add(batch[0].id)
    with pytest.raises(ClaimLostError):
        world.run(open_consumer.acknowledge(consumer, batch))
    assert (world.story, world.acknowledged) == (["acknowledge", "acknowledge"], [])


def test_a_batch_that_was_released_is_not_released_again():
    world = GroupWorld(b"a", b"b")
    consumer, cursor, batch = started(world, limit=1)
    assert world.run(open_consumer.release(consumer, batch, counts=False, reason="not now")).released == 1
    assert world.returned == [(batch[0].id, False, "not now")]
    next_batch(world, cursor)
    assert world.story == ["release", "fetch"]


def test_what_is_released_of_a_batch_is_named_by_ids():
    world = GroupWorld(b"a", b"b")
    consumer, cursor, batch = started(world)
    world.run(open_consumer.release(consumer, batch[0], reason="no customer"))
    assert [(each[0], each[2]) for each in world.returned] == [(batch[0].id, "no customer")]
    world.run(open_consumer.acknowledge(consumer, batch))
    assert world.texts(world.acknowledged) == ["b"]
    world.run(cursor.next_items())
    assert len(world.returned) == 1


def test_a_message_that_was_polled_is_no_batchs():
    world = GroupWorld(b"a")
    consumer, _, batch = started(world)
    with pytest.raises(InputError, match="is of no batch"):
        world.run(open_consumer.acknowledge(consumer, [Message(batch[0].id, b"a")]))  # type: ignore[list-item]
    with pytest.raises(TypeError):
        world.run(open_consumer.acknowledge(consumer, [b"a"]))  # type: ignore[list-item]
    other = world.consumer("m2")
    with pytest.raises(InputError, match="is not of this consumer"):
        world.run(open_consumer.acknowledge(other, batch))
    assert world.acknowledged == []


def test_batches_end_where_nothing_waits_when_they_shall_not_wait():
    world = GroupWorld()
    consumer = world.consumer()
    cursor = open_consumer.batches(consumer, wait=False)
    world.empty = "delayed 1700"
    assert not world.run(cursor.next_items())
    assert (cursor.done, consumer.waiting_for) == (True, "delayed 1700")
    waiting = open_consumer.batches(consumer)
    world.run(waiting.next_items())
    assert not waiting.done


@pytest.mark.parametrize(
    ("word", "raised"), [("member_fenced", MemberFencedError), ("group_not_found", GroupNotFoundError)]
)
def test_what_failed_behind_a_work_that_was_done_is_raised_when_waiting_does_not_help(word, raised):
    world = GroupWorld()
    consumer = world.consumer()
    world.empty = word
    with pytest.raises(raised):
        world.run(open_consumer.batches(consumer).next_items())


def test_a_server_that_is_busy_behind_a_work_is_asked_again():
    world = GroupWorld()
    cursor = open_consumer.batches(world.consumer())
    world.empty = "store_unavailable"
    assert not world.run(cursor.next_items())
    assert not cursor.done


def test_a_member_that_was_fenced_stops_and_asks_nothing_more():
    world = GroupWorld(b"a", b"b")
    consumer, cursor, batch = started(world, limit=1)
    world.fence()
    with pytest.raises(MemberFencedError):
        world.run(open_consumer.acknowledge(consumer, batch))
    world.story.clear()
    for steps in (open_consumer.acknowledge(consumer, batch), cursor.next_items()):
        with pytest.raises(MemberFencedError):
            world.run(steps)
    assert world.run(open_consumer.renew(consumer)) is None
    world.run(open_consumer.leave(consumer, None))
    assert (world.story, world.acknowledged) == ([], [])


def test_a_fence_under_an_epoch_that_a_renewal_has_replaced_meanwhile_is_none():
    world = GroupWorld(b"a")
    consumer, _, batch = started(world)

    def joins_anew() -> None:
        world.epochs["m1"] = consumer.member.epoch = 5

    world.before["acknowledge"] = joins_anew
    world.run(open_consumer.acknowledge(consumer, batch))
    assert (consumer.member.fenced, world.story) == (None, ["acknowledge", "acknowledge"])
    assert world.texts(world.acknowledged) == ["a"]


def test_a_renewal_extends_what_is_out_and_nothing_that_is_decided():
    world = GroupWorld(b"a", b"b")
    consumer, cursor, batch = started(world, limit=1)
    assert world.run(open_consumer.renew(consumer)) == consumer.renewal_ms()
    world.run(open_consumer.acknowledge(consumer, batch))
    second = next_batch(world, cursor)
    world.run(open_consumer.renew(consumer))
    world.run(open_consumer.release(consumer, second))
    world.run(open_consumer.renew(consumer))
    assert world.extended[1:] == [(1,), (2,), ()]


def test_a_renewal_is_tried_again_soon_after_an_outage_and_ends_with_its_group():
    world = GroupWorld()
    consumer = world.consumer()
    world.fails["renew"] = [UnavailableError("gone"), None, GroupNotFoundError("deleted")]
    waits_ms = [world.run(open_consumer.renew(consumer)) for _ in range(3)]
    assert waits_ms == [open_consumer.RENEW_AGAIN_MS, consumer.renewal_ms(), None]


def test_a_renewal_and_the_calls_of_an_end_do_not_keep_anybody_waiting_for_a_server_that_is_away():
    """Whoever closes waits for a renewal that is on its way, then for these."""
    world = GroupWorld(b"a")
    consumer, _, _ = started(world)
    world.run(open_consumer.renew(consumer))
    world.run(open_consumer.leave(consumer, ValueError("bad")))
    assert world.story == ["renew", "release", "leave"]
    assert [call.timeout_ms_max for call in world.calls[-3:]] == [open_consumer.ASIDE_MS_MAX] * 3


def test_a_server_that_does_not_take_back_what_is_claimed_is_not_asked_to_let_the_member_go():
    world = GroupWorld(b"a")
    consumer, _, _ = started(world)
    world.fails["release"] = [UnavailableError("gone")]
    world.run(open_consumer.leave(consumer, KeyboardInterrupt()))
    assert world.story == ["release"]


def test_renewals_are_several_to_a_lease_and_to_a_claim():
    assert GroupWorld().consumer().renewal_ms() == 10_000
    assert GroupWorld().consumer(claim_ms=9_000).renewal_ms() == 3_000


@pytest.mark.parametrize(
    ("raised", "story"),
    [
        (None, ["leave"]),
        (ValueError("bad"), ["release", "leave"]),
        (TransactionConflictError("slow"), ["release", "leave"]),
        (TransactionEndedError("timed out"), ["release", "leave"]),
        (AcknowledgeOrderError("behind another"), ["release", "leave"]),
        (KeyboardInterrupt(), ["release", "leave"]),
        (UnavailableError("gone"), []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_leaving_gives_back_what_is_claimed_and_counts_only_what_failed(raised, story):
    world = GroupWorld(b"a")
    consumer, _, batch = started(world)
    world.run(open_consumer.leave(consumer, raised))
    assert world.story == story
    counted = isinstance(raised, ValueError | TransactionEndedError | AcknowledgeOrderError)
    assert [each[:2] for each in world.returned] == ([(batch[0].id, counted)] if "release" in story else [])


def test_a_reason_is_no_longer_than_a_server_takes():
    assert open_consumer.reason_of(ValueError("x" * 9_999)) == f"ValueError: {'x' * 9_999}"[:REASON_CHARS_MAX]


@pytest.mark.parametrize("claims", [1, 2])
def test_an_interrupted_fetch_leaves_no_claim_that_nobody_knows_of(claims):
    """Its answer may have been on its way: a claim that no client has would keep its messages from everybody."""
    world = GroupWorld(b"a", b"b", b"c")
    consumer = world.consumer()
    cursor = open_consumer.batches(consumer, limit=1)
    for _ in range(claims):
        with pytest.raises(KeyboardInterrupt):
            world.run(interrupted_behind(world, cursor.next_items()))
    assert len(world.claimed) == 1
    world.story.clear()
    batch = next_batch(world, cursor)
    assert world.story == ["renew", "release", "fetch"]
    assert (list(world.claimed), world.returned[-1][1]) == ([batch.claim], False)
    world.run(open_consumer.acknowledge(consumer, batch))
    world.story.clear()
    world.run(cursor.next_items())
    assert world.story == ["fetch"], "it is asked once"


def test_what_a_transaction_holds_is_no_claim_that_nobody_knows_of():
    world = GroupWorld(b"a", b"b", b"c")
    consumer, cursor, held = started(world, limit=1)
    held.held = True
    with pytest.raises(KeyboardInterrupt):
        world.run(interrupted_behind(world, cursor.next_items()))
    batch = next_batch(world, cursor)
    assert list(world.claimed) == [held.claim, batch.claim]
    assert list(consumer.member.out) == [held.claim, batch.claim]


def test_a_claim_that_could_not_be_given_back_is_given_back_before_the_next_one():
    world = GroupWorld(b"a", b"b", b"c")
    _, cursor, first = started(world, limit=1)
    world.fails["release"] = [UnavailableError("gone")]
    world.fails["renew"] = [UnavailableError("still gone")]
    second = next_batch(world, cursor)
    assert list(world.claimed) == [first.claim, second.claim]
    third = next_batch(world, cursor)
    assert list(world.claimed) == [third.claim]
    assert [each[1] for each in world.returned] == [True, False]


def test_what_no_transaction_holds_any_more_goes_back_with_the_next_batch():
    """One that was in hand before the last, and whose transaction then failed, would else be renewed for ever."""
    world = GroupWorld(b"a", b"b", b"c")
    consumer, cursor, first = started(world, limit=1)
    first.held = True
    second = next_batch(world, cursor)
    second.held = True
    third = next_batch(world, cursor)
    first.held = second.held = False
    world.run(cursor.next_items())
    assert [each[0] for each in world.returned] == [first[0].id, second[0].id, third[0].id]
    assert consumer.member.out == {}


def test_a_batch_that_comes_when_the_consumer_is_closed_is_not_handed_out():
    world = GroupWorld(b"a")
    consumer = world.consumer()
    cursor = open_consumer.batches(consumer)

    def closes() -> None:
        consumer.closing = True

    world.before["fetch"] = closes
    assert list(world.run(cursor.next_items())) == []
    assert (cursor.done, world.story, world.claimed) == (True, ["fetch", "release", "leave"], {})
    assert [each[1] for each in world.returned] == [False]


def test_what_goes_wrong_in_leaving_is_left_to_the_lease():
    world = GroupWorld(b"a")
    consumer, _, _ = started(world)
    world.fails["release"] = [ClaimLostError("gone")]
    world.fails["leave"] = [UnavailableError("gone")]
    world.run(open_consumer.leave(consumer, ValueError("bad")))
    assert world.story == ["release", "leave"]
