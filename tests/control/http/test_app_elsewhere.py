"""Of calls to `POST /v1/transactions` the body alone tells whose they are: where it is the leader's, the request is begun anew there."""

from __future__ import annotations

import json

import pytest

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.api.codecs import avro, json_bodies
from basalt.commits.linked_decisions import LinkedDecisions
from basalt.commits.of_members.commits import CommitsOverLink
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.shards import shard_of
from tests.control.http.conftest import Client
from tests.control.http.test_app import AVRO_TYPE, Prompt, head_of

PATH = "/v1/transactions"
HERE, AWAY = "orders", "invoices"
JSON_TYPE = {b"content-type": b"application/json"}


@pytest.fixture
def member(client: Client) -> Client:
    """A server that another one leads, and that owns one of two topics."""
    for name in (HERE, AWAY):
        assert client.call("PUT", f"/v1/namespaces/shop/topics/{name}").status in (200, 201)
    transactions = client.services.transactions
    transactions._linked = LinkedDecisions(transactions.manager, lambda: None)
    transactions._over_link = CommitsOverLink(transactions.manager, transactions._owner, "member", lambda: None)
    client.services.topics.gate.close([shard_of(topic_prefix("shop", AWAY))])
    return client


def work(*topics: str) -> bytes:
    return avro.encode_work(Work(publish=[WorkPublish("shop", topic, [b"m"]) for topic in topics]))


def in_json(topic: str) -> bytes:
    made = json_bodies.encode_work(Work(publish=[WorkPublish("shop", topic, [b"m"])]))
    return json.dumps({"work": json.loads(made)}).encode()


def asked(member: Client, headers: dict[bytes, bytes], body: bytes, *, at_once: bool = False) -> tuple[Prompt, int]:
    """The answers of this server, and how often the request was begun elsewhere: by a coroutine where a task waits for the answer."""
    exchange, begun, in_tasks = Prompt(body), list[int](), list[bool]()

    async def passed_on() -> None:
        begun.append(1)

    def elsewhere(*, has_task: bool = False):  # type: ignore[no-untyped-def]
        in_tasks.append(has_task)
        if at_once and not has_task:
            begun.append(1)
            return None
        return passed_on()

    async def story() -> None:
        answering = member.app.begin_whole(head_of(PATH, headers), exchange, None, body, elsewhere)
        is_at_once = bool(in_tasks)
        if answering is not None:
            await answering
        assert in_tasks in ([], [not is_at_once]), "a task that waits for the answer would end without it"
        await member.services.writer.each[0]._idle.wait()

    member.run(story())
    return exchange, len(begun)


@pytest.mark.parametrize("at_once", [False, True], ids=["by a coroutine", "at once"])
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (AVRO_TYPE, work(AWAY)),
        (AVRO_TYPE, work(HERE, AWAY)),
        (AVRO_TYPE, work()),
        (JSON_TYPE, in_json(AWAY)),
        (JSON_TYPE, b"{}"),
        (JSON_TYPE, b'{"kind": "short"}'),
    ],
    ids=["another's", "also another's", "of no topic", "another's in JSON", "a begin", "a begin with a kind"],
)
def test_what_is_the_leaders_is_begun_there_once_and_not_answered_or_counted_here(
    member: Client, headers: dict[bytes, bytes], body: bytes, at_once: bool
):
    exchange, begun = asked(member, headers, body, at_once=at_once)
    assert (exchange.answers, begun) == ([], 1)
    assert not [key for key in member.app.metrics.durations if key[:2] == (PATH, "POST")]


@pytest.mark.parametrize(
    ("headers", "body"), [(AVRO_TYPE, work(HERE)), (JSON_TYPE, in_json(HERE))], ids=["Avro", "JSON"]
)
def test_what_is_of_own_topics_alone_is_done_here(member: Client, headers: dict[bytes, bytes], body: bytes):
    exchange, begun = asked(member, headers, body)
    assert begun == 0
    assert [answer[0] for answer in exchange.answers] == [200]
    assert member.payloads(f"/v1/namespaces/shop/topics/{HERE}") == ["m"]


def test_a_body_that_means_nothing_is_refused_here(member: Client):
    exchange, begun = asked(member, AVRO_TYPE, b"\xff")
    assert (exchange.answers[0][0], begun) == (400, 0)


def test_a_request_that_cannot_be_begun_anew_is_told_who_leads(member: Client):
    reply = member.call("POST", PATH, {})
    assert (reply.status, reply.code) == (503, "not_leader")
