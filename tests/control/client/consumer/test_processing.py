"""`process` by its plan: one request a round, what is acknowledged and what is not, and what each failure does to the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from basalt.client.consumer import open_consumer, processing
from basalt.client.consumer.batches import Batch
from basalt.client.consumer.open_consumer import OpenConsumer
from basalt.client.consumer.processing import Handle, Output
from basalt.client.plans import Answer, CoroutineRefusedError
from basalt.client.transaction import commit_protocol, open_transaction
from basalt.errors import (
    AcknowledgeConflictError,
    AcknowledgeOrderError,
    BusyError,
    ClaimLostError,
    ConflictError,
    DiskFullError,
    InternalError,
    MemberFencedError,
    TooLargeError,
    TopicNotFoundError,
    TransactionConflictError,
    UnavailableError,
    UnknownOutcomeError,
)
from tests.control.client.consumer.group_world import GroupWorld


def rounds(number: int) -> Callable[[], bool]:
    """True from the call behind so many."""
    asked = iter(range(number))
    return lambda: next(asked, None) is None


def transform(batch: Batch, out: Output) -> None:
    """Publish each message again."""
    out.publish("invoices", [message.payload.upper() for message in batch])


def process(world: GroupWorld, handle: Handle, count: int, **options: Any) -> OpenConsumer:
    """Process until it is told to stop when it has asked so often."""
    consumer = world.consumer()
    world.run(processing.process(consumer, handle, until=rounds(count), **options))
    return consumer


def test_a_round_commits_what_was_handled_and_claims_the_next():
    world = GroupWorld(b"a", b"b", b"c")
    process(world, transform, 2, limit=2)
    assert world.story == ["fetch", "work+fetch", "one-shot"]
    assert world.published == [("invoices", b"A"), ("invoices", b"B"), ("invoices", b"C")]
    assert world.texts(world.acknowledged) == ["a", "b", "c"]
    assert [entry.claims for work in world.works for entry in work.acknowledge] == [[1], [2]]


def test_acknowledgements_alone_travel_with_the_fetch_too():
    world = GroupWorld(b"a")
    process(world, lambda _batch, _out: None, 2)
    assert world.story == ["fetch", "work+fetch"]
    assert world.texts(world.acknowledged) == ["a"]


def test_it_returns_with_all_decided_when_it_is_told_to():
    world = GroupWorld(b"a", b"b")
    consumer = process(world, transform, 1, limit=1)
    assert world.story == ["fetch", "one-shot"]
    assert (world.texts(world.acknowledged), world.claimed, consumer.processing) == (["a"], {}, False)


def test_it_returns_when_the_consumer_is_closed_in_the_midst():
    world = GroupWorld(b"a", b"b")
    consumer = world.consumer()

    def handle(_batch: Batch, _out: Output) -> None:
        consumer.closing = True

    world.run(processing.process(consumer, handle, limit=1))
    assert (world.story, world.texts(world.acknowledged)) == (["fetch", "one-shot"], ["a"])


def test_until_is_asked_again_when_no_messages_come():
    world = GroupWorld()
    process(world, transform, 3)
    assert world.story == ["fetch"] * 3


def test_what_was_waited_for_before_it_began_ends_nothing():
    world = GroupWorld()
    consumer = world.consumer()

    def drained() -> bool:
        return consumer.waiting_for == "no_messages"

    for _ in range(2):
        world.run(processing.process(consumer, transform, until=drained))
    assert world.story == ["fetch", "fetch"]


def test_what_is_rejected_is_a_dead_letter_and_all_else_is_acknowledged():
    world = GroupWorld(b"a", b"bad", b"c")

    def handle(batch: Batch, out: Output) -> None:
        for message in batch:
            if message.text == "bad":
                out.reject(message, "no customer")
            else:
                out.publish("invoices", message.payload)

    process(world, handle, 1)
    (entry,) = world.works[0].acknowledge
    assert [(world.messages[each.id], each.reason) for each in entry.reject] == [(b"bad", "no customer")]
    assert list(world.rejected.values()) == ["no customer"]
    assert world.published == [("invoices", b"a"), ("invoices", b"c")]


def test_what_is_rejected_is_acknowledged_by_no_id_either():
    world = GroupWorld(b"a", b"bad")

    def handle(batch: Batch, out: Output) -> None:
        out.reject(batch[1], "no customer")
        world.restart()  # so that the ids are sent

    process(world, handle, 1)
    (entry,) = world.works[-1].acknowledge
    assert (world.texts(list(entry.ids)), world.texts([each.id for each in entry.reject])) == (["a"], ["bad"])


def test_of_a_batch_that_is_acknowledged_in_part_the_rest_goes_back_counted():
    world = GroupWorld(b"a", b"b", b"c")

    def handle(batch: Batch, out: Output) -> None:
        out.acknowledge(batch[:1])
        out.acknowledge(batch[2])

    process(world, handle, 1)
    assert world.texts(world.acknowledged) == ["a", "c"]
    assert [(world.messages[each], counted) for each, counted, _ in world.returned] == [(b"b", True)]


def test_a_batch_of_another_consumer_is_acknowledged_beside_its_own():
    world = GroupWorld(b"a", b"b")
    other = world.consumer("m2")
    (stock,) = world.run(open_consumer.batches(other, limit=1).next_items())
    world.story.clear()
    process(world, lambda _batch, out: out.acknowledge(stock), 1)
    assert (world.texts(world.acknowledged), stock.decided) == (["a", "b"], True)


def test_after_a_restart_the_ids_are_sent_with_the_round_once_and_nothing_is_done_twice():
    world = GroupWorld(b"a", b"b")

    def handle(batch: Batch, out: Output) -> None:
        transform(batch, out)
        world.restart()

    process(world, handle, 1, limit=1)
    assert world.story == ["fetch", "one-shot", "one-shot"]
    assert (world.texts(world.acknowledged), world.published) == (["a"], [("invoices", b"A")])


@pytest.mark.parametrize(
    "error",
    [
        ClaimLostError("another has it"),
        AcknowledgeConflictError("pending in 7"),
        TransactionConflictError("acknowledged by 7"),
        ConflictError("behind an open transaction"),
    ],
    ids=lambda error: error.code,
)
def test_a_conflict_drops_the_batch_uncounted_and_goes_on(error):
    world = GroupWorld(b"a", b"b")
    world.fails["work+fetch"] = [error, error] if isinstance(error, ClaimLostError) else [error]
    handled: list[str] = []

    def handle(batch: Batch, out: Output) -> None:
        transform(batch, out)
        handled.append(batch[0].text)

    process(world, handle, 3, limit=1)
    assert handled == ["a", "b"]
    assert [each[1] for each in world.returned] == [False]
    assert world.published == [("invoices", b"B")]
    assert [line.partition(": ")[0] for line in world.lines] == [
        "Batch(1 messages of group billing of shop:orders, claim=1, attempt=1) is dropped"
    ]


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (TopicNotFoundError("no invoices"), True),
        (TooLargeError("too much"), True),
        (AcknowledgeOrderError("behind another"), True),
        (ConflictError("the group has no topic for dead letters", field="reject"), True),
        (DiskFullError("full"), False),
    ],
    ids=lambda each: getattr(each, "code", None),
)
def test_a_work_that_is_refused_gives_the_batch_back_and_is_raised_in_the_end(error, counts):
    world = GroupWorld(b"a", b"b", b"c")
    world.fails["work+fetch"] = [error] * 3
    with pytest.raises(type(error)) as raised:
        process(world, transform, 99, limit=1, errors_max=3)
    assert "after 3 errors in a row" in raised.value.__notes__[0]
    assert [each[1] for each in world.returned] == [counts] * 3
    assert (world.acknowledged, world.published) == ([], [])


def test_what_no_other_batch_would_change_is_raised_at_once():
    world = GroupWorld(b"a", b"b")
    world.fails["work+fetch"] = [InternalError("a bug")]
    with pytest.raises(InternalError):
        process(world, transform, 99, limit=1)
    assert [each[1] for each in world.returned] == [False]


def test_an_unknown_outcome_at_the_end_is_raised_and_nothing_is_given_back():
    world = GroupWorld(b"a")
    world.fails["one-shot"] = [UnknownOutcomeError("lost")]
    with pytest.raises(UnknownOutcomeError):
        process(world, transform, 1)
    assert world.returned == []


def test_what_handle_raises_gives_the_batch_back_counted_and_publishes_nothing():
    world = GroupWorld(b"bad", b"b")

    def handle(batch: Batch, out: Output) -> None:
        transform(batch, out)
        if batch[0].text == "bad":
            raise ValueError("no customer")

    process(world, handle, 3, limit=1)
    assert world.returned == [(next(iter(world.messages)), True, "ValueError: no customer")]
    assert world.published == [("invoices", b"B")]
    assert "error 1 of 8 in a row: Traceback" in world.lines[0]


def test_errors_in_a_row_are_raised_and_a_success_ends_the_row():
    world = GroupWorld(*[b"bad", b"bad", b"good", b"bad", b"bad", b"bad", b"never"])
    handled: list[str] = []

    def handle(batch: Batch, _out: Output) -> None:
        handled.append(batch[0].text)
        if batch[0].text == "bad":
            raise ValueError("no customer")

    with pytest.raises(ValueError, match="no customer") as raised:
        process(world, handle, 99, limit=1, errors_max=3)
    assert handled == ["bad", "bad", "good", "bad", "bad", "bad"]
    assert "after 3 errors in a row" in raised.value.__notes__[0]
    assert world.texts(world.acknowledged) == ["good"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_no_attempt(interrupt):
    world = GroupWorld(b"a")
    consumer = world.consumer()

    def handle(_batch: Batch, _out: Output) -> None:
        raise interrupt

    with pytest.raises(interrupt):
        world.run(processing.process(consumer, handle))
    assert world.story == ["fetch"]
    world.run(open_consumer.leave(consumer, None))
    assert (world.story, world.returned) == (["fetch", "leave"], [])


@pytest.mark.parametrize("error", [UnavailableError("gone"), BusyError("full")], ids=lambda error: error.code)
def test_an_outage_within_handle_is_no_attempt_and_is_not_met_at_full_speed(error):
    """The dead-letter topic is for messages that cannot be handled, not for those that met a server that was away."""
    world = GroupWorld(b"a")

    def handle(_batch: Batch, _out: Output) -> None:
        raise error

    with pytest.raises(type(error)):
        process(GroupWorld(b"a"), handle, 99, errors_max=1)
    process(world, handle, 1)
    assert [each[1] for each in world.returned] == [False]
    assert world.rests_ms == [0, processing.REFUSED_REST_MS]


def test_an_interrupt_while_a_round_is_sent_is_no_attempt():
    world = GroupWorld(b"a", b"b")
    consumer = world.consumer()
    world.fails["work+fetch"] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        world.run(processing.process(consumer, transform, limit=1))
    world.run(processing.process(consumer, transform, until=rounds(0)))
    assert [each[1] for each in world.returned] == [False]


def test_an_outcome_that_is_unknown_is_no_attempt_for_who_goes_on():
    world = GroupWorld(b"a")
    consumer = world.consumer()
    world.fails["one-shot"] = [UnknownOutcomeError("lost")]
    with pytest.raises(UnknownOutcomeError):
        world.run(processing.process(consumer, transform, until=rounds(1)))
    world.run(processing.process(consumer, transform, until=rounds(0)))
    assert [each[1] for each in world.returned] == [False]


def test_until_may_be_a_coroutine_function_where_handle_may_be_one():
    world = GroupWorld(b"a")
    asked = iter([False, True])

    async def until() -> bool:
        return next(asked)

    world.run(processing.process(world.consumer(), transform, until=until))
    assert world.texts(world.acknowledged) == ["a"]


def test_a_fenced_member_stops_and_its_work_is_not_sent():
    world = GroupWorld(b"a", b"b")
    consumer = world.consumer()

    def handle(_batch: Batch, _out: Output) -> None:
        world.fence()
        assert world.run(open_consumer.renew(consumer)) is None

    with pytest.raises(MemberFencedError):
        world.run(processing.process(consumer, handle, limit=1))
    assert (world.story, world.acknowledged, world.returned) == (["fetch", "renew"], [], [])


def test_a_fence_that_a_round_is_told_stops_it():
    world = GroupWorld(b"a", b"b")

    def handle(_batch: Batch, _out: Output) -> None:
        world.fence()

    with pytest.raises(MemberFencedError):
        process(world, handle, 99, limit=1)
    assert world.story == ["fetch", "work+fetch"]


def test_a_coroutine_is_awaited_and_its_error_is_one_of_handle():
    world = GroupWorld(b"a", b"bad")

    async def handle(batch: Batch, out: Output) -> None:
        if batch[0].text == "bad":
            raise ValueError("no customer")
        transform(batch, out)

    process(world, handle, 2, limit=1)
    assert world.published == [("invoices", b"A")]
    assert [each[1:] for each in world.returned] == [(True, "ValueError: no customer")]


def test_a_coroutine_where_nothing_can_be_awaited_is_a_fault_of_the_program():
    world = GroupWorld(b"a")
    consumer = world.consumer()

    async def handle(_batch: Batch, _out: Output) -> None: ...

    steps = processing.process(consumer, handle)
    call: Any = next(steps)
    awaited: Any = steps.send(call.parse(world._answer(call)))
    release: Any = steps.throw(awaited.refused())
    with pytest.raises(CoroutineRefusedError, match="only the async client can await"):
        steps.send(release.parse(world._answer(release)))
    assert [each[1] for each in world.returned] == [False]


def test_what_handle_decides_in_a_transaction_of_its_own_is_not_acknowledged_twice():
    world = GroupWorld(b"a")

    def handle(batch: Batch, out: Output) -> None:
        tx = open_transaction.transaction(world.scope)
        world.run(commit_protocol.enter(tx))
        world.run(open_transaction.acknowledge(tx, batch))
        world.run(commit_protocol.leave(tx, None))
        out.publish("log", b"done")

    process(world, handle, 1)
    assert world.story == ["fetch", "begin", "commit", "one-shot"]
    assert (world.texts(world.acknowledged), world.published) == (["a"], [("log", b"done")])


def test_more_than_one_request_carries_is_refused_where_it_is_published():
    world = GroupWorld(b"a")
    consumer = world.consumer()
    (batch,) = world.run(open_consumer.batches(consumer).next_items())
    out = Output(consumer, batch)
    with pytest.raises(TooLargeError, match="does not fit into one request"):
        out.publish("invoices", [bytes(1 << 20)] * 11)
    with pytest.raises(TooLargeError):
        Output(consumer, batch).publish("invoices", [b""] * 65_537)


def test_watermarks_and_ends_travel_with_the_round():
    world = GroupWorld(b"a")

    def handle(_batch: Batch, out: Output) -> None:
        out.watermark("invoices", "task", 5)
        out.end("far", "task", namespace="elsewhere")
        out.publish_json("invoices", {"n": 1}, key="k")

    process(world, handle, 1)
    (work,) = world.works
    assert [(each.namespace, each.topic, each.event_time_ms) for each in work.markers] == [
        ("shop", "invoices", 5),
        ("elsewhere", "far", None),
    ]
    assert [bytes(each.payload) for each in work.publish[0].records] == [b'{"n":1}']


def test_a_round_that_fails_to_claim_behind_its_work_has_done_the_work():
    world = GroupWorld(b"a")
    world.empty = "member_fenced"
    with pytest.raises(MemberFencedError):
        process(world, transform, 99)
    assert (world.published, world.returned) == ([("invoices", b"A")], [])


def test_batches_that_were_not_acknowledged_are_given_back_before_the_first_round():
    world = GroupWorld(b"a", b"b")
    consumer = world.consumer()
    world.run(open_consumer.batches(consumer, limit=1).next_items())
    world.run(processing.process(consumer, transform, until=rounds(1)))
    assert [(world.messages[each[0]], each[1]) for each in world.returned] == [(b"a", True)]


def test_a_one_shot_acknowledges_what_it_answers_to():
    world = GroupWorld(b"a", b"b")
    consumer = world.consumer()
    (batch,) = world.run(open_consumer.batches(consumer, limit=1).next_items())
    world.restart()
    world.run(processing.publish_atomically(world.scope, {"invoices": [b"A"]}, acknowledge=batch))
    assert world.story == ["fetch", "one-shot", "one-shot"]
    assert (world.texts(world.acknowledged), world.published, batch.decided) == (["a"], [("invoices", b"A")], True)


def test_a_one_shot_that_lost_a_conflict_was_no_attempt():
    world = GroupWorld(b"a")
    consumer = world.consumer()
    cursor = open_consumer.batches(consumer, limit=1)
    (batch,) = world.run(cursor.next_items())
    world.fails["one-shot"] = [TransactionConflictError("a cell")]
    with pytest.raises(TransactionConflictError):
        world.run(processing.publish_atomically(world.scope, {"invoices": [b"A"]}, acknowledge=batch))
    world.run(cursor.next_items())
    assert [each[1] for each in world.returned] == [False]


def test_every_round_waits_for_its_server_under_one_request_id():
    """The plan's part of it: `attempts` repeats a patient call without end, with the id that it began with."""
    world = GroupWorld(b"a")
    consumer = world.consumer()
    steps = processing.process(consumer, transform)
    first: Any = next(steps)
    second: Any = steps.send(first.parse(world._answer(first)))
    assert [(call.patient, call.effect.value, call.wait_ms) for call in (first, second)] == [
        (True, "repeatable", processing.ROUND_WAIT_MS)
    ] * 2
    assert isinstance(world._answer(second), Answer)
