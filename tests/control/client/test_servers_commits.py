"""Commits and one-shots go to the owner of their topics, which prepares them, where the client knows it: to nobody twice, and to the leader in all other cases."""

from __future__ import annotations

import json

import pytest

from basalt.api.bodies.messages import Work, WorkAcknowledge, WorkMarker, WorkPublish
from basalt.client.attempts import Send
from basalt.client.plans import Answer, AnswerLost, NotSent, Reply
from basalt.client.servers import PREPARED_BYTES_MAX, REST_ANSWERED_MS, Redirects, Servers, topics_of
from tests.control.client.scripted import CUT, ScriptedServer, answer, problem
from tests.control.client.test_servers import A, B, C, another, not_leader, not_owner, owned

__all__ = ["another"]  # a fixture

ORDERS, RETURNS, STOCK = (f"shop/topics/{name}" for name in ("orders", "returns", "stock"))
COMMIT = "/v1/transactions/7/commit"
COMMITTED = answer(200, json.dumps({"id": "7", "writePointer": 7, "state": "COMMITTED"}).encode())
PASSED_ON = Answer(200, {"basalt-owner": A.text}, b"")


def publishes(*names: str) -> list[WorkPublish]:
    return [WorkPublish("shop", name, [b"m"]) for name in names]


@pytest.mark.parametrize(
    ("work", "size_bytes", "topics"),
    [
        (Work(publish=publishes("orders", "returns", "orders")), 10, (ORDERS, RETURNS)),
        (Work(markers=[WorkMarker("shop", "orders", "t", 1, "watermark", 5)], segments=(7,)), 10, (ORDERS,)),
        (Work(publish=publishes("orders")), PREPARED_BYTES_MAX, (ORDERS,)),
        (Work(publish=publishes("orders")), PREPARED_BYTES_MAX + 1, ()),
        (Work(publish=publishes("orders"), acknowledge=[WorkAcknowledge("shop", "orders", "g")]), 10, ()),
        (Work(segments=(7,)), 10, ()),
    ],
)
def test_the_topics_whose_owner_is_to_prepare_a_work(work: Work, size_bytes: int, topics: tuple[str, ...]):
    assert topics_of(work, size_bytes) == topics


class Knowing:
    """A client's servers, of which it knows that C owns two topics and B one, at a time of the test's own."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.servers: Servers[None] = Servers((A,), lambda _url: None, lambda: self.now_ms)
        for subject, owner in ((ORDERS, C), (RETURNS, C), (STOCK, B)):
            self.servers.learn(f"/v1/namespaces/{subject}/publish", owned(owner.text))

    def sent(self, *topics: str) -> Redirects:
        return Redirects(self.servers, Send("POST", COMMIT, {}, b"work", 1_000.0, None, topics))


def is_direct(redirects: Redirects) -> bool:
    return "Basalt-Direct" in redirects.request.headers


@pytest.mark.parametrize(
    ("topics", "server"),
    [
        ((ORDERS,), C),
        ((ORDERS, RETURNS), C),
        ((STOCK,), B),
        ((ORDERS, STOCK), A),
        ((ORDERS, "shop/topics/unknown"), A),
        (("shop/topics/unknown", ORDERS), A),
        ((), A),
    ],
)
def test_a_commit_goes_to_who_owns_all_of_its_topics_without_a_word_that_it_is_to_be_refused_there(topics, server):
    sent = Knowing().sent(*topics)
    assert (sent.server, is_direct(sent)) == (server, server is A)


@pytest.mark.parametrize("reply", [PASSED_ON, not_leader(A.text)])
def test_after_one_that_the_owner_did_not_prepare_others_go_to_the_leader_for_a_while(reply: Answer):
    known = Knowing()
    sent = known.sent(ORDERS)
    assert (sent.follow(reply) is reply) == (reply is PASSED_ON), "what was done is not sent again"
    if reply is not PASSED_ON:
        assert (sent.server, is_direct(sent)) == (A, True)
    assert (known.sent(ORDERS).server, known.sent(RETURNS).server) == (A, C)
    known.now_ms += REST_ANSWERED_MS
    assert known.sent(ORDERS).server == C


def test_once_it_is_known_where_a_topic_has_moved_its_commits_go_there_at_once():
    known = Knowing()
    known.sent(ORDERS).follow(PASSED_ON)
    known.servers.learn(f"/v1/namespaces/{ORDERS}/publish", owned(B.text))
    assert known.sent(ORDERS).server == B


def test_those_that_rest_are_forgotten():
    known = Knowing()
    for topic in (ORDERS, STOCK):
        known.sent(topic).follow(PASSED_ON)
        known.now_ms += REST_ANSWERED_MS
    assert list(known.servers._resting) == [STOCK]


def test_past_an_owner_that_takes_no_connection_a_commit_goes_to_the_leader_and_so_do_others():
    known = Knowing()
    sent = known.sent(ORDERS)
    assert sent.follow(NotSent("refused")) is None
    assert (sent.server, is_direct(sent), known.sent(RETURNS).server) == (A, True, A)


@pytest.mark.parametrize("reply", [AnswerLost("cut"), Answer(200, {}, b""), Answer(503, {}, problem(503, "busy"))])
def test_what_is_done_or_may_be_is_not_sent_to_another_server(reply: Reply):
    assert Knowing().sent(ORDERS).follow(reply) is reply


def test_while_calls_are_passed_on_commits_are_too():
    known = Knowing()
    known.servers.have_passed_on()
    sent = known.sent(ORDERS)
    assert (sent.server, is_direct(sent)) == (A, False)


def test_a_credential_goes_along():
    sent = Knowing().sent(ORDERS)
    assert sent.sign("Bearer t")
    assert sent.request.headers == {"Authorization": "Bearer t"}
    assert sent.request.topics == (ORDERS,)


def test_a_commit_whose_answer_the_owner_lost_is_asked_for_at_the_leader(
    side, server: ScriptedServer, another: ScriptedServer
):
    server.script = [not_owner(another.url), COMMITTED]
    another.script = [answer(), CUT]
    client = side.connect(server.url)
    side.do(client.topic("orders").publish(b"a"))  # which tells the owner
    namespace = client.namespace
    outcome = side.do(client.transactions.commit("7", Work(publish=[WorkPublish(namespace, "orders", [b"m"])])))
    assert outcome.state == "COMMITTED"
    lost, found = another.seen[-1], server.seen[-1]
    assert (lost.target, found.target) == (COMMIT, COMMIT)
    assert lost.headers["basalt-request-id"] == found.headers["basalt-request-id"]
    assert lost.body == found.body
    assert ("basalt-direct" in lost.headers, "basalt-direct" in found.headers) == (False, True)
    assert (len(server.seen), len(another.seen)) == (2, 2)


def test_nobody_is_asked_who_owns_a_topic(side, server: ScriptedServer):
    server.script = [COMMITTED]
    client = side.connect(server.url)
    side.do(client.publish_atomically({"orders": ["a"]}))
    side.do(client.transactions.commit("7", Work(publish=publishes("orders"))))
    assert [seen.target for seen in server.seen] == ["/v1/transactions", COMMIT]
    assert {seen.headers["basalt-direct"] for seen in server.seen} == {"1"}
