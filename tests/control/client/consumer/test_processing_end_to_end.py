"""Both clients as consumers of a whole server, embedded in this process: what a group promises, seen from outside."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from basalt.client.consumer import open_consumer, processing
from basalt.client.plans import AnswerLost
from basalt.errors import (
    ClaimLostError,
    ConflictError,
    GroupExistsError,
    MemberFencedError,
    TransactionConflictError,
)
from tests.control.cli.conftest import served, services_with_jobs
from tests.control.client.test_client_end_to_end import everything, transaction

QUICKLY_MS = 100  # a round's wait for messages, so that a test ends soon behind the last one


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processing, "ROUND_WAIT_MS", QUICKLY_MS)


@contextmanager
def consuming(side: Any, client: Any, group: str = "billing", **options: Any) -> Iterator[Any]:
    """`with client.consumer()` or `async with`, whichever it is."""
    consumer = client.consumer("orders", group=group, **options)
    if side.name == "blocking":
        with consumer:
            yield consumer
        return
    side.do(consumer.__aenter__())
    try:
        yield consumer
    except BaseException as error:
        side.do(consumer.__aexit__(type(error), error, None))
        raise
    side.do(consumer.__aexit__(None, None, None))


def publish(side: Any, client: Any, count: int, start: int = 0) -> list[bytes]:
    payloads = [b"%d" % number for number in range(start, start + count)]
    side.do(client.topic("orders").publish(payloads, key="k"))
    return payloads


def invoices(side: Any, client: Any) -> list[bytes]:
    return everything(side, client.topic("invoices").read())


def drain(side: Any, consumer: Any, handle: Callable[..., Any], **options: Any) -> None:
    """Process until nothing more comes."""
    side.do(consumer.process(handle, until=lambda: consumer.waiting_for == "no_messages", **options))


def again(batch: Any, out: Any) -> None:
    out.publish("invoices", [message.payload for message in batch])


def next_batch(side: Any, batches: Any) -> Any:
    return next(batches) if side.name == "blocking" else side.do(batches.__anext__())


@pytest.mark.parametrize("mode", ["shared", "keyed", "stream"])
def test_every_message_is_handled_once_and_a_second_run_finds_nothing(side, connected, mode):
    payloads = publish(side, connected, 50)
    with consuming(side, connected, mode=mode) as orders:
        drain(side, orders, again, limit=7)
    assert invoices(side, connected) == payloads
    more = publish(side, connected, 3, 50)
    with consuming(side, connected) as orders:
        drain(side, orders, again)
    assert invoices(side, connected) == payloads + more


def test_answers_that_are_lost_double_nothing(side, connected):
    payloads = publish(side, connected, 30)
    send, count = connected.losing.inner.send, 0

    def losing(request: Any) -> Any:
        nonlocal count
        if "/fetch?" not in request.target:
            return send(request)
        count += 1
        lost, reply = count % 3 != 0, send(request)
        if not inspect.isawaitable(reply):
            return AnswerLost("cut by the test") if lost else reply

        async def later() -> Any:
            got = await reply
            return AnswerLost("cut by the test") if lost else got

        return later()

    connected.losing.inner.send = losing
    with consuming(side, connected) as orders:
        drain(side, orders, again, limit=4)
    assert count > 15
    assert invoices(side, connected) == payloads


def test_a_batch_whose_handling_failed_comes_again_and_says_which_attempt_it_is(side, connected):
    publish(side, connected, 2)
    attempts: list[int] = []

    def handle(batch: Any, out: Any) -> None:
        attempts.append(batch.attempt)
        again(batch, out)
        if batch.attempt < 3:
            raise ValueError("not yet")

    with consuming(side, connected, retry_delay_ms=1) as orders:
        side.do(orders.process(handle, until=lambda: attempts.count(3) == 2, limit=1))
    assert sorted(attempts) == [1, 1, 2, 2, 3, 3]
    assert sorted(invoices(side, connected)) == [b"0", b"1"]


def test_what_is_rejected_without_a_topic_for_dead_letters_is_an_error_and_not_dropped_for_ever(side, connected):
    publish(side, connected, 1)
    asked = iter(range(50))
    with consuming(side, connected, retry_delay_ms=1) as orders:

        def handle(batch: Any, out: Any) -> None:
            out.reject(batch[0], "no customer")

        with pytest.raises(ConflictError, match="has no topic for dead letters"):
            side.do(orders.process(handle, until=lambda: next(asked, None) is None, errors_max=3))
    assert side.do(connected.topic("orders").group("billing").get()).figures.lag_messages == 1


def test_what_is_rejected_and_what_fails_too_often_are_dead_letters_once(side, connected):
    payloads = publish(side, connected, 6)

    def handle(batch: Any, out: Any) -> None:
        for message in batch:
            if message.payload == b"2":
                out.reject(message, "no customer")
            elif message.payload == b"4":
                raise ValueError("poison")
            else:
                out.publish("invoices", message.payload)

    options = {"dead_letter_topic": "dead", "attempts_max": 3, "retry_delay_ms": 1}
    with consuming(side, connected, **options) as orders:

        def until() -> bool:
            return orders.waiting_for == "no_messages"

        side.do(orders.process(handle, until=until, limit=3, errors_max=99))
    page = side.do(connected.topic("dead").poll())
    while len(page) < 2:  # the server moves what failed too often by itself, at once or soon
        side.do(connected.topic("dead").poll(page.next_id, inclusive=False, wait_ms=10_000))
        page = side.do(connected.topic("dead").poll())
    dead = [(message.payload, dict(message.headers)) for message in page]
    assert sorted(payload for payload, _ in dead) == [b"2", b"4"]
    told = dict(dead)
    assert told[b"2"]["basalt-dead-reason"] == b"no customer"
    assert told[b"4"]["basalt-dead-group"] == b"billing"
    assert sorted(invoices(side, connected)) == sorted(set(payloads) - {b"2", b"4"})


def test_a_transaction_acknowledges_and_publishes_or_neither(side, connected):
    publish(side, connected, 2)
    with consuming(side, connected, retry_delay_ms=1) as orders:
        batches = orders.batches(limit=1)
        first = next_batch(side, batches)
        with pytest.raises(ValueError, match="no"), transaction(side, connected) as tx:
            side.do(tx.publish("invoices", "never"))
            side.do(tx.acknowledge(first))
            raise ValueError("no")
        handled: list[tuple[bytes, int]] = []
        while len(handled) < 2:
            batch = next_batch(side, batches)
            with transaction(side, connected) as tx:
                side.do(tx.publish("invoices", batch[0].payload))
                side.do(tx.acknowledge(batch))
            handled.append((batch[0].payload, batch.attempt))
    assert sorted(handled) == [(b"0", 2), (b"1", 1)]
    assert sorted(invoices(side, connected)) == [b"0", b"1"]


def test_of_two_transactions_that_acknowledge_one_message_the_second_to_commit_loses(side, connected):
    publish(side, connected, 1)
    with consuming(side, connected) as orders:
        batch = next_batch(side, orders.batches())
        with transaction(side, connected) as first:
            side.do(first.publish("invoices", "first"))
            side.do(first.acknowledge(batch))
        with pytest.raises(TransactionConflictError), transaction(side, connected) as second:
            side.do(second.publish("invoices", "second"))
            side.do(second.acknowledge(batch[:]))
    assert invoices(side, connected) == [b"first"]


def test_a_one_shot_acknowledges_what_it_answers_to(side, connected):
    publish(side, connected, 1)
    with consuming(side, connected) as orders:
        batch = next_batch(side, orders.batches())
        outcome = side.do(connected.publish_atomically({"invoices": ["one"]}, acknowledge=batch))
        assert outcome.state == "COMMITTED"
        with pytest.raises(TransactionConflictError):
            side.do(connected.publish_atomically({"invoices": ["two"]}, acknowledge=batch[:]))
    assert invoices(side, connected) == [b"one"]


def test_plain_acknowledgements_may_be_repeated(side, connected):
    publish(side, connected, 3)
    with consuming(side, connected) as orders:
        batch = next_batch(side, orders.batches())
        side.do(orders.acknowledge(batch[0]))
        side.do(orders.acknowledge(batch))
        side.do(orders.acknowledge(batch[1:]))
        drain(side, orders, again)
    assert invoices(side, connected) == []


def test_two_members_never_have_the_same_message(side, connected):
    publish(side, connected, 20)
    with consuming(side, connected, member="ann") as ann, consuming(side, connected, member="bob") as bob:
        of_ann, of_bob = (next_batch(side, each.batches(limit=5)) for each in (ann, bob))
        assert len({*of_ann.ids(), *of_bob.ids()}) == 10
        group = connected.topic("orders").group("billing")
        assert {each.name for each in side.do(group.members())} == {"ann", "bob"}
        stolen = of_bob[:]
        side.do(bob.acknowledge(of_bob[0]))
        with pytest.raises(ClaimLostError):
            side.do(
                ann.acknowledge(
                    [message.__class__(message.id, message.payload, batch=of_ann) for message in stolen[1:]]
                )
            )


def test_what_a_consumer_leaves_comes_back_uncounted(side, connected):
    publish(side, connected, 2)
    with consuming(side, connected, member="ann") as ann:
        next_batch(side, ann.batches(limit=1))
    group = connected.topic("orders").group("billing")
    assert side.do(group.members()) == []
    assert side.do(group.claims()) == []
    with consuming(side, connected, member="bob") as bob:
        batch = next_batch(side, bob.batches())
        assert ([message.payload for message in batch], batch.attempt) == ([b"0", b"1"], 1)
        side.do(bob.acknowledge(batch))


def test_whoever_joins_under_a_name_fences_the_one_who_had_it(side, connected):
    publish(side, connected, 2)
    with consuming(side, connected, member="ann") as zombie:
        batch = next_batch(side, zombie.batches(limit=1))
        with consuming(side, connected, member="ann") as ann:
            with pytest.raises(MemberFencedError):
                side.do(zombie.acknowledge(batch))
            with pytest.raises(MemberFencedError):
                side.do(zombie.process(again))
            drain(side, ann, again)
    assert sorted(invoices(side, connected)) == [b"0", b"1"]


def test_lease_and_claim_are_renewed_while_a_batch_is_handled(side, connected):
    publish(side, connected, 1)
    group = connected.topic("orders").group("billing")
    with consuming(side, connected, member_ms=1_000, claim_ms=1_000) as orders:
        batch = next_batch(side, orders.batches())
        (claim,) = side.do(group.claims())
        while side.do(group.claims())[0].until_ms < claim.until_ms + 2_000:
            pass  # each look is a call; its own time-out ends a hang
        assert side.do(orders.acknowledge(batch)).acknowledged == 1


def test_a_seek_revokes_what_is_claimed_and_lets_all_come_again(side, connected):
    payloads = publish(side, connected, 4)
    with consuming(side, connected) as orders:
        drain(side, orders, again)
        late = publish(side, connected, 1, 4)
        batch = next_batch(side, orders.batches())
        sought = side.do(orders.seek("start"))
        assert sought.claims_revoked == 1
        with pytest.raises(ClaimLostError):
            side.do(orders.acknowledge(batch))
        drain(side, orders, again)
    assert invoices(side, connected) == payloads + payloads + late


def test_a_paused_group_deals_nothing_until_it_is_resumed(side, connected):
    payloads = publish(side, connected, 2)
    with consuming(side, connected) as orders:
        side.do(orders.pause())
        side.do(orders.process(again, until=lambda: orders.waiting_for == "paused"))
        assert invoices(side, connected) == []
        side.do(orders.resume())
        drain(side, orders, again)
    assert invoices(side, connected) == payloads


def test_batches_that_are_waited_for_end_when_the_consumer_is_closed_and_nobody_is_left_behind(
    side, connected, monkeypatch
):
    monkeypatch.setattr(open_consumer, "FOLLOW_WAIT_MS", QUICKLY_MS)
    consumer = connected.consumer("orders", group="billing")
    side.do(consumer.__enter__() if side.name == "blocking" else consumer.__aenter__())
    batches = consumer.batches()
    if side.name == "blocking":
        closing = threading.Timer(QUICKLY_MS / 1_000, consumer.close)
        closing.start()
        assert list(batches) == []
        closing.join()
    else:

        async def all_of_them() -> list[Any]:
            closing = asyncio.create_task(consumer.close())
            found = [batch async for batch in batches]
            await closing
            return found

        assert side.do(all_of_them()) == []
    assert side.do(connected.topic("orders").group("billing").members()) == []


def test_a_batch_that_was_waited_for_in_vain_keeps_its_messages_from_nobody(side, connected):
    if side.name == "blocking":
        pytest.skip("threads are not cancelled")
    with consuming(side, connected, mode="stream") as orders:
        batches = orders.batches()

        async def in_vain() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(batches.__anext__(), QUICKLY_MS / 1_000)

        side.do(in_vain())
        publish(side, connected, 1)
        batch = next_batch(side, batches)
        assert len(side.do(connected.topic("orders").group("billing").claims())) == 1
        side.do(orders.acknowledge(batch))


def test_options_that_differ_are_told(side, connected):
    with consuming(side, connected, mode="keyed", claim_ms=60_000) as orders:
        assert (orders.options.mode, orders.options.claim_ms, orders.group, orders.topic) == (
            "keyed", 60_000, "billing", "orders",
        )  # fmt: skip
    with pytest.raises(GroupExistsError, match="mode"), consuming(side, connected, mode="shared"):
        pass


def test_a_group_begins_where_it_is_told_to(side, connected):
    publish(side, connected, 3)
    with consuming(side, connected, start="end") as orders:
        drain(side, orders, again)
        late = publish(side, connected, 2, 3)
        drain(side, orders, again)
    assert invoices(side, connected) == late


def test_a_tracked_group_is_told_a_position(side, connected):
    publish(side, connected, 3)
    page = side.do(connected.topic("orders").poll())
    group = connected.topic("orders").group("search")
    side.do(group.create(mode="tracked"))
    side.do(group.report_position(page[1].id, by="a test"))
    assert side.do(group.get()).floor == page[1].id
    other = connected.topic("orders").group("billing")
    side.do(other.create())
    with pytest.raises(ConflictError):
        side.do(other.report_position(page[1].id))
    assert [info.name for info in side.do(connected.topic("orders").groups())] == ["billing", "search"]
    side.do(other.delete())
    assert [info.name for info in side.do(connected.topic("orders").groups())] == ["search"]


def test_the_lag_is_what_is_not_acknowledged(side, connected):
    publish(side, connected, 5)
    with consuming(side, connected) as orders:
        side.do(orders.acknowledge(next_batch(side, orders.batches(limit=2))))
        figures = side.do(orders.lag())
        assert figures is not None
        assert figures.lag_messages == 3


def test_a_coroutine_of_the_blocking_client_is_a_type_error(side, connected):
    publish(side, connected, 1)

    async def handle(batch: Any, out: Any) -> None:
        again(batch, out)

    with consuming(side, connected) as orders:
        if side.name == "blocking":
            with pytest.raises(TypeError, match="only the async client can await"):
                orders.process(handle)
        else:
            drain(side, orders, handle)
    assert len(invoices(side, connected)) == (side.name == "async")


@pytest.fixture
def over_http(side) -> Iterator[Any]:
    """A client of an empty server over HTTP: what stands between is real, too."""
    with served(services_with_jobs) as url:
        client = side.connect(url)
        for topic in ("orders", "invoices"):
            side.do(client.topics.create(topic))
        yield client


@pytest.mark.parametrize("mode", ["shared", "keyed", "stream"])
def test_over_http_it_is_as_in_one_process(side, over_http, mode):
    payloads = publish(side, over_http, 30)
    with consuming(side, over_http, mode=mode, retry_delay_ms=1) as orders:
        batch = next_batch(side, orders.batches(limit=10))
        side.do(orders.release(batch, counts=False))
        batch = next_batch(side, orders.batches(limit=10))
        with transaction(side, over_http) as tx:
            side.do(tx.publish("invoices", [message.payload for message in batch]))
            side.do(tx.acknowledge(batch))
        drain(side, orders, again, limit=7)
    assert sorted(invoices(side, over_http)) == sorted(payloads)
    group = over_http.topic("orders").group("billing")
    assert (side.do(group.members()), side.do(group.claims())) == ([], [])


def test_whenever_a_task_is_cancelled_all_is_handled_once_and_no_claim_stays(side, over_http):
    if side.name == "blocking":
        pytest.skip("threads are not cancelled")
    payloads = publish(side, over_http, 100)

    async def handle(batch: Any, out: Any) -> None:
        await asyncio.sleep(0)
        again(batch, out)

    with consuming(side, over_http, mode="keyed") as orders:

        async def cancelled_after(turns: int) -> None:
            task = asyncio.create_task(orders.process(handle, limit=3))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        for turns in range(100):
            side.do(cancelled_after(turns))
        drain(side, orders, handle)
        assert side.do(over_http.topic("orders").group("billing").claims()) == []
    assert invoices(side, over_http) == payloads
