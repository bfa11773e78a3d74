"""Named producers: the numbers that a publish sends, and what its caller may do when an answer is lost."""

from __future__ import annotations

import os
from typing import Any

import pytest

from basalt.api.bodies.topics import OpenedProducer, ProducerInfo, ProducerList
from basalt.client.calls import producers
from basalt.client.calls.producers import ProducerScope
from basalt.client.plans import Effect
from basalt.errors import (
    BusyError,
    InputError,
    InternalError,
    ProducerFencedError,
    SequenceGapError,
    UnknownOutcomeError,
)

HERE = "/v1/namespaces/shop/topics/orders/producers"
UNKNOWN = UnknownOutcomeError("lost")


@pytest.fixture
def file_7(topic_scope) -> ProducerScope:
    """A producer whose last message was number 9."""
    return ProducerScope(topic_scope, "file-7", "today", 3, 9)


def numbers(played: Any) -> list[tuple[int, int]]:
    """The number of each request's first message, and the one that it follows."""
    return [(int(call.headers["basalt-sequence"]), int(call.headers["basalt-sequence-after"])) for call in played.calls]


def test_one_is_opened_by_its_name_for_a_run(scope, play):
    played = play(producers.open_producer(scope, "orders", "file-7", run="today"), OpenedProducer(3, 9))
    (call,) = played.calls
    assert (played.paths, call.body, call.effect) == ([f"POST {HERE}/file-7"], b'{"run":"today"}', Effect.REPEATABLE)
    opened = played.result
    assert (opened.name, opened.run, opened.epoch, opened.last_sequence) == ("file-7", "today", 3, 9)


def test_without_a_run_each_opening_is_one_of_its_own(scope, play):
    def run() -> str:
        opened: ProducerScope = play(producers.open_producer(scope, "orders", "x"), OpenedProducer(1, -1)).result
        return opened.run

    assert run() != run()


def test_a_topic_of_another_namespace_may_have_it(scope, play):
    played = play(producers.open_producer(scope, "orders", "a/b", namespace="far"), OpenedProducer(1, -1))
    assert played.paths == ["POST /v1/namespaces/far/topics/orders/producers/a%2Fb"]


def test_a_publish_goes_on_behind_the_last_number(file_7, play):
    assert numbers(play(producers.publish(file_7, ["a", "b"]))) == [(10, 9)]
    assert file_7.last_sequence == 11
    played = play(producers.publish(file_7, "c", key="k"))
    assert numbers(played) == [(12, 11)]
    (call,) = played.calls
    assert call.effect is Effect.NUMBERED
    assert (call.headers["basalt-producer"], call.headers["basalt-producer-epoch"]) == ("file-7", "3")


def test_each_request_of_a_long_publish_follows_the_one_before(file_7, play):
    played = play(producers.publish(file_7, (b"m" for _ in range(65_536 + 1))))
    assert numbers(played) == [(10, 9), (65_546, 65_545)]
    assert file_7.last_sequence == 65_546


def test_numbers_may_be_left_out_and_the_server_is_told_which_it_had(file_7, play):
    assert numbers(play(producers.publish(file_7, ["a"], sequence=20))) == [(20, 9)]
    assert file_7.last_sequence == 20


def test_what_was_published_before_is_sent_all_the_same_for_the_server_to_leave_out(file_7, play):
    assert numbers(play(producers.publish(file_7, ["a", "b", "c"], sequence=8))) == [(8, 7)]
    assert file_7.last_sequence == 10
    assert numbers(play(producers.publish(file_7, ["a"], sequence=0))) == [(0, -1)]
    assert file_7.last_sequence == 10


@pytest.mark.parametrize("lost", [UNKNOWN, InternalError("broken")], ids=repr)
def test_after_a_lost_answer_nothing_else_gets_the_same_numbers(file_7, play, lost):
    assert play(producers.publish(file_7, ["a", "b"]), lost).raised is lost
    refused = play(producers.publish(file_7, ["other"]))
    assert isinstance(refused.raised, InputError)
    assert refused.calls == []
    assert "sequence=10" in str(refused.raised.hint)
    assert numbers(play(producers.publish(file_7, ["a"], sequence=10))) == [(10, 9)]
    assert isinstance(play(producers.publish(file_7, ["other"])).raised, InputError)  # number 11 may be there still
    assert numbers(play(producers.publish(file_7, ["b", "c"], sequence=11))) == [(11, 10)]
    assert numbers(play(producers.publish(file_7, ["d"]))) == [(13, 12)]


def test_an_interrupted_publish_is_in_doubt_too(file_7, play):
    steps = producers.publish(file_7, ["a"])
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    assert isinstance(play(producers.publish(file_7, ["other"])).raised, InputError)


@pytest.mark.parametrize(
    "refusal", [SequenceGapError("its last is 7"), ProducerFencedError("another run"), BusyError("later")], ids=repr
)
def test_after_a_refusal_nothing_is_in_doubt(file_7, play, refusal):
    assert play(producers.publish(file_7, ["a"]), refusal).raised is refusal
    assert numbers(play(producers.publish(file_7, ["a"]))) == [(10, 9)]


def test_two_publishes_at_once_are_refused_for_their_messages_would_have_the_same_numbers(file_7, play):
    first = producers.publish(file_7, ["a"])
    next(first)
    refused = play(producers.publish(file_7, ["b"]))
    assert isinstance(refused.raised, InputError)
    assert refused.calls == []
    first.close()
    assert numbers(play(producers.publish(file_7, ["a"], sequence=10))) == [(10, 9)]


def test_those_of_a_topic_are_listed_and_deleted(topic_scope, play):
    info = ProducerInfo("file-7", 9, 3, "today", 1)
    listed = play(producers.producers(topic_scope), ProducerList((info,)))
    assert (listed.paths, listed.result) == ([f"GET {HERE}"], [info])
    assert play(producers.delete_producer(topic_scope, "file-7")).paths == [f"DELETE {HERE}/file-7"]


def test_a_forked_child_does_not_go_on_as_its_parents_producer(file_7, play, monkeypatch):
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    played = play(producers.publish(file_7, ["a"]))
    assert (played.calls, type(played.raised)) == ([], InputError)
    assert "was opened in another process" in str(played.raised)
    monkeypatch.setattr(os, "getpid", lambda: parent)
    assert numbers(play(producers.publish(file_7, ["a"]))) == [(10, 9)]
