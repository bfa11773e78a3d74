"""What the check of published messages takes for the end of a topic, and what for a loss."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from basalt.api.bodies.messages import Message
from basalt.api.codecs import avro
from tests.control.api.codecs import client_codecs
from tests.hbase import mini_cluster, publishers
from tests.hbase.publishers import Publishers
from tests.system.server_process import Reply

MESSAGES = [Message(bytes([0] * 19 + [place]), b"0-%d" % place) for place in range(6)]
PAGE_MESSAGES = 2
MOVING = Reply(503, {"retry-after": "1"}, b"nobody is known to serve it")
HELD = Reply(200, {"basalt-held-by": "1-2-3"}, client_codecs.encode_avro_messages([]))
FAULT = Reply(500, {}, b"")


class Topic:
    """A server with one topic, and the caller that asks it. It gives these answers first, in the place of what it has."""

    def __init__(self, messages: list[Message], instead: dict[int, list[Reply | None]] | None = None) -> None:
        self._messages = messages
        self._instead = {at: iter(replies) for at, replies in (instead or {}).items()}

    def ask(self, _method: str, _target: str, body: bytes, _content_type: str) -> Reply | None:
        start = avro.decode_consume_request(body).start_from
        behind = [each for each in self._messages if start is None or bytes(each.id) > bytes(start)]  # type: ignore[arg-type]
        replies: Iterator[Reply | None] = self._instead.get(len(self._messages) - len(behind), iter(()))
        whole = Reply(200, {}, client_codecs.encode_avro_messages(behind[:PAGE_MESSAGES]))
        return next(replies, whole)

    def close(self) -> None:
        pass


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Publishers:
    """Who was told that all messages are there; how long anything is waited for is no part of it."""
    monkeypatch.setattr(mini_cluster, "POLL_SECONDS", 0.0)
    made = Publishers(0, "/v1/namespaces/shop/topics/orders")
    made.done = {bytes(each.payload) for each in MESSAGES}
    return made


def check(load: Publishers, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishers, "Caller", lambda _port: topic)
    load.check_all()


@pytest.mark.parametrize("at", [0, 2, 4, 6])
def test_a_refusal_a_lost_answer_and_a_hold_are_not_the_end(
    load: Publishers, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(load, Topic(MESSAGES, {at: [MOVING, None, HELD, MOVING]}), monkeypatch)


@pytest.mark.parametrize("lost", range(len(MESSAGES)))
def test_a_message_that_is_not_there_is_found_wherever_it_was(
    load: Publishers, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [each for place, each in enumerate(MESSAGES) if place != lost]
    with pytest.raises(AssertionError, match=f"0-{lost}"):
        check(load, Topic(left, {4: [MOVING, HELD]}), monkeypatch)


@pytest.mark.parametrize(
    ("payload", "says"), [(b"0-1", "came twice"), (b"9-9", "nobody sent")], ids=["doubled", "of nobody"]
)
def test_a_message_too_many_is_found(
    load: Publishers, payload: bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_more = Message(bytes([0] * 19 + [len(MESSAGES)]), payload)
    with pytest.raises(AssertionError, match=says):
        check(load, Topic([*MESSAGES, one_more]), monkeypatch)


def test_a_message_of_which_nobody_knows_may_be_there_or_not(load: Publishers, monkeypatch: pytest.MonkeyPatch) -> None:
    load.unknown = {b"0-5", b"9-9"}
    load.done -= load.unknown
    check(load, Topic(MESSAGES), monkeypatch)


def test_a_message_that_was_seen_under_another_id_is_found(load: Publishers, monkeypatch: pytest.MonkeyPatch) -> None:
    load.seen = {bytes(MESSAGES[1].id): b"0-2"}
    with pytest.raises(AssertionError, match="0-2"):
        check(load, Topic(MESSAGES), monkeypatch)


@pytest.mark.parametrize("told", [MOVING, HELD])
def test_a_server_that_never_comes_to_the_end_is_found_with_what_it_says(
    load: Publishers, told: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mini_cluster, "WAIT_SECONDS_MAX", 0.0)
    with pytest.raises(AssertionError, match="comes to its end") as failed:
        check(load, Topic(MESSAGES, {4: [told] * 1_000}), monkeypatch)
    (note,) = failed.value.__notes__
    assert ("1-2-3" if told is HELD else "nobody is known to serve it") in note


def test_a_fault_of_a_server_is_found_though_the_next_answer_is_right(
    load: Publishers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match="status=500"):
        check(load, Topic(MESSAGES, {4: [FAULT]}), monkeypatch)
