"""What a publish is numbered with, and what it does when answers are lost: its messages are there once, or its caller knows that
nobody knows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from basalt.api.codecs import avro
from basalt.client.attempts import Environment, Pause, RetryPolicy, Send, run_plan
from basalt.client.calls import messages
from basalt.client.calls.payloads import RecordIn
from basalt.client.plans import Answer, AnswerLost, Effect, Reply, Steps, TopicScope
from basalt.client.producers import FIRST_REPEAT_MS_MAX, AutomaticProducers
from basalt.errors import (
    BasaltError,
    BusyError,
    DiskFullError,
    InternalError,
    MalformedBodyError,
    ProducerUnknownError,
    SequenceGapError,
    TopicNotFoundError,
    UnknownOutcomeError,
)
from basalt_engine.clock import ManualClock

UNKNOWN = UnknownOutcomeError("lost")


@pytest.fixture
def topic() -> TopicScope:
    names = iter(f"p{number}" for number in range(1_000))
    return TopicScope("shop", "orders", lambda: 0, AutomaticProducers(lambda: 0.0, lambda: next(names)))


def numbers(played: Any) -> list[tuple[str, str]]:
    return [(call.headers["basalt-producer"], call.headers["basalt-sequence"]) for call in played.calls]


def test_messages_are_numbered_on_from_publish_to_publish(topic, play):
    assert numbers(play(messages.publish(topic, ["a", "b", "c"]))) == [("p0", "0")]
    assert numbers(play(messages.publish_json(topic, {}))) == [("p0", "3")]
    assert numbers(play(messages.publish_records(topic, [RecordIn("a"), RecordIn("b")]))) == [("p0", "4")]
    assert numbers(play(messages.publish(topic, "d", key="k"))) == [("p0", "6")]


def test_each_request_of_a_long_publish_has_the_numbers_of_its_own_messages(topic, play):
    played = play(messages.publish(topic, (b"m" for _ in range(65_536 + 1))))
    assert numbers(played) == [("p0", "0"), ("p0", "65536")]


def test_two_publishes_at_once_do_not_share_a_producer(topic, play):
    first = messages.publish(topic, "a")
    sent = next(first)
    assert numbers(play(messages.publish(topic, "b"))) == [("p1", "0")]
    assert sent.headers["basalt-producer"] == "p0"


@pytest.mark.parametrize(
    "refused",
    [TopicNotFoundError("none"), MalformedBodyError("what")],
    ids=repr,
)
def test_the_numbers_of_what_was_refused_are_given_again(topic, play, refused):
    play(messages.publish(topic, "a"))
    assert play(messages.publish(topic, "b"), refused).raised is refused
    assert numbers(play(messages.publish(topic, "c"))) == [("p0", "1")]


@pytest.mark.parametrize(
    "failed", [UNKNOWN, InternalError("broken"), BusyError("later"), DiskFullError("full")], ids=repr
)
def test_a_producer_in_doubt_is_never_used_again(topic, play, failed):
    play(messages.publish(topic, "a"))
    assert play(messages.publish(topic, "b"), failed).raised is failed
    assert numbers(play(messages.publish(topic, "c"))) == [("p1", "0")]


def test_an_interrupted_publish_leaves_its_producer_in_doubt(topic, play):
    play(messages.publish(topic, "a"))
    steps = messages.publish(topic, "b")
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    abandoned = messages.publish(topic, "c")
    assert next(abandoned).headers["basalt-producer"] == "p1"
    abandoned.close()
    assert numbers(play(messages.publish(topic, "d"))) == [("p2", "0")]


@pytest.mark.parametrize("forgotten", [ProducerUnknownError("-1"), SequenceGapError("7")], ids=repr)
def test_a_producer_that_the_server_has_forgotten_is_followed_by_a_new_one(topic, play, forgotten):
    play(messages.publish(topic, "a"))
    played = play(messages.publish(topic, "b"), forgotten, None)
    assert played.raised is None
    assert numbers(played) == [("p0", "1"), ("p1", "0")]
    assert numbers(play(messages.publish(topic, "c"))) == [("p1", "1")]


def test_a_new_producer_that_is_refused_as_unknown_is_not_followed_by_others_for_ever(topic, play):
    played = play(messages.publish(topic, "a"), ProducerUnknownError("-1"))
    assert isinstance(played.raised, ProducerUnknownError)


def test_a_producers_first_publish_is_not_repeated_once_it_may_be_forgotten(topic, play):
    assert play(messages.publish(topic, "a")).calls[0].repeat_ms_max == FIRST_REPEAT_MS_MAX
    assert play(messages.publish(topic, "b")).calls[0].repeat_ms_max is None


def test_publishes_under_a_write_pointer_are_not_numbered(topic, play):
    for steps in (
        messages.publish(topic, "a", write_pointer=42),
        messages.publish(topic, [], write_pointer=42),
        messages.publish_records(topic, [RecordIn("a")], write_pointer=42),
    ):
        (call,) = play(steps).calls
        assert (call.headers, call.effect) == ({}, Effect.ONCE)


def test_without_dedup_nothing_is_numbered_and_nothing_repeated(topic_scope, play):
    for steps in (messages.publish(topic_scope, "a"), messages.publish_records(topic_scope, [RecordIn("a")])):
        (call,) = play(steps).calls
        assert (call.headers, call.effect) == ({}, Effect.ONCE)


def test_a_store_says_how_many_messages_came_before_it(topic, play):
    played = play(messages.store(topic, (b"m" for _ in range(65_536 + 1)), 42, stored_before=3))
    assert [call.headers for call in played.calls] == [{"basalt-stored-before": "3"}, {"basalt-stored-before": "65539"}]
    assert {call.effect for call in played.calls} == {Effect.NUMBERED}


def test_a_store_that_knows_no_number_is_not_repeated(topic, play):
    (call,) = play(messages.store(topic, ["a"], 42)).calls
    assert (call.headers, call.effect) == ({}, Effect.ONCE)


@dataclass
class Numbering:
    """A server that numbers by the rule of docs/reference/http-api.md, on a line that loses what it likes."""

    chance: random.Random
    published: list[bytes] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)

    def reply(self, request: Send) -> Reply:
        fate = self.chance.random()
        if fate < 0.15:
            return AnswerLost("cut before it came")
        if fate < 0.25:
            return _told(429, "busy")
        if fate < 0.30:
            return _told(507, "disk_full")
        answer = self._taken(request)
        return AnswerLost("cut behind it") if fate < 0.60 else answer

    def forget(self) -> None:
        """As after ten idle minutes."""
        self.last.clear()

    def _taken(self, request: Send) -> Reply:
        batch = [bytes(each) for each in avro.decode_publish_request(request.body).messages]
        name, first = request.headers["basalt-producer"], int(request.headers["basalt-sequence"])
        after, known = int(request.headers.get("basalt-sequence-after", first - 1)), self.last.get(name, -1)
        through = first + len(batch) - 1
        if through <= known:
            return Answer(200, {"basalt-duplicate": "true"}, b"")
        if first > known and after != known:
            return _told(409, "producer_unknown" if known < 0 else "sequence_gap")
        self.published += batch[max(0, known + 1 - first) :]
        self.last[name] = through
        return Answer(200, {}, b"")


def _told(status: int, code: str) -> Answer:
    return Answer(status, {}, msgspec.json.encode({"code": code, "detail": code}))


class Publishing:
    """One publish on its way, a step at a time."""

    def __init__(self, steps: Steps[Any], clock: ManualClock, chance: random.Random) -> None:
        policy = RetryPolicy(timeout_ms=30_000, attempts_max=4, backoff_ms_base=10, backoff_ms_max=100)
        self._running = run_plan(steps, Environment(policy, "http://there", clock.monotonic_ms, chance.random))
        self._clock = clock
        self._reply: Reply | None = None
        self.ended: str | None = None  # how it ended: what its caller knows

    def go_on(self, server: Numbering) -> None:
        try:
            step = self._running.send(self._reply)
        except StopIteration:
            self.ended = "there"
        except UnknownOutcomeError:
            self.ended = "unknown"
        except BasaltError:
            self.ended = "not there"
        else:
            self._reply = None
            if isinstance(step, Pause):
                self._clock.advance(int(step.duration_ms))
            else:
                assert isinstance(step, Send)
                self._reply = server.reply(step)


def published_on_a_bad_line(seed: int) -> list[bytes]:
    """What a server has after sixty publishes of one client, some at a time. Each was told the truth when it ended."""
    chance, clock = random.Random(seed), ManualClock()
    server = Numbering(chance)
    topic = TopicScope("shop", "orders", lambda: 0, AutomaticProducers(clock.monotonic_ms))
    under_way: list[tuple[list[bytes], Publishing]] = []
    for number in range(60):
        batch = [b"%d.%d" % (number, each) for each in range(chance.randrange(1, 4))]
        under_way.append((batch, Publishing(messages.publish(topic, batch), clock, chance)))
        while len(under_way) > chance.randrange(4):
            batch, publishing = under_way[chance.randrange(len(under_way))]
            publishing.go_on(server)
            if publishing.ended is not None:
                under_way.remove((batch, publishing))
                assert_true_of(publishing.ended, [server.published.count(each) for each in batch], seed)
        if chance.random() < 0.1 and not under_way:
            server.forget()
    return server.published


def assert_true_of(ended: str, counts: list[int], seed: int) -> None:
    expected = {"there": [{1}], "not there": [{0}], "unknown": [{0}, {1}]}[ended]
    assert set(counts) in expected, f"seed {seed}: {ended}, and the messages are there {counts} times"


@pytest.mark.parametrize("seed", range(150))
def test_on_any_line_every_message_is_there_as_often_as_its_publisher_was_told(seed):
    published = published_on_a_bad_line(seed)
    assert len(published) == len(set(published)), f"seed {seed}: a message is there twice"
