"""Several servers that share a store: which one a call goes to, and that it goes to another only if nothing was done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from basalt.client.attempts import Send
from basalt.client.plans import Answer, AnswerLost, LeaderRefused, NotHttp, NotSent, Reply
from basalt.client.servers import (
    DIRECT_AGAIN_MS,
    MOVES_MAX,
    OWNERS_MAX,
    Redirects,
    Servers,
    ServerUrl,
    in_the_open,
    parse_url,
    parse_urls,
    subject_of,
)
from basalt.errors import InputError, NotLeaderError, NotOwnerError, UnavailableError, UnknownOutcomeError
from tests.control.client.scripted import CUT, ScriptedServer, answer, problem
from tests.ports import reserved_port

A, B, C = (parse_url(f"http://{name}:4780") for name in "abc")


def not_leader(leader: str | None, status: int = 503, code: str = "not_leader") -> Answer:
    body = problem(status, code, **({} if leader is None else {"leader": leader})).partition(b"\r\n\r\n")[2]
    return Answer(status, {}, body)


def servers(*named: ServerUrl) -> Servers[None]:
    return Servers(named, lambda _url: None, lambda: 0.0)


@pytest.mark.parametrize(
    ("reply", "then"),
    [
        (NotSent("refused"), B),
        (AnswerLost("cut"), None),  # it may have taken effect
        (NotHttp("what is this"), None),
        (Answer(200, {}, b""), None),
        (Answer(503, {}, b"<html>"), None),
        (not_leader("http://c:4780"), C),
        (not_leader(None), B),
        (not_leader("gopher://c"), B),
        (not_leader("https://c:4780"), B),
        (not_leader("http://c:4780", code="busy"), None),
        (not_leader("http://c:4780", status=500), None),
    ],
)
def test_where_a_request_goes_next(reply: Reply, then: object):
    assert servers(A, B).instead(A, reply) == then


SECURE_A, SECURE_C = parse_url("https://a:4780"), parse_url("https://c:4780")


@pytest.mark.parametrize(
    ("named", "leader", "then"),
    [
        ((A, B), "http://b:4780", B),  # it was given
        ((A, B), "http://c:4780", B),  # a stranger, so the next one that was given
        ((A,), "http://c:4780", None),
        ((A,), "https://a:4780", None),
        ((SECURE_A,), "https://c:4780", SECURE_C),  # whoever answers there has proved its name
        ((SECURE_A,), "http://a:4780", None),
    ],
)
def test_where_a_request_goes_that_proves_who_calls(named, leader, then):
    guarded = Servers(named, lambda _url: None, lambda: 0.0, guarded=True)
    assert guarded.instead(named[0], not_leader(leader)) == then
    stands = guarded.standing(not_leader(leader))
    assert (stands == LeaderRefused(leader)) == (then != parse_url(leader)), stands


@pytest.mark.parametrize(
    "reply", [not_leader(None), not_leader("gopher://c"), NotSent("refused"), Answer(503, {}, b"")]
)
def test_another_reply_that_leads_nowhere_stands_as_it_is(reply):
    assert Servers((A,), lambda _url: None, lambda: 0.0, guarded=True).standing(reply) is reply


def test_the_first_server_to_which_all_can_be_read_on_the_way():
    local = parse_urls("http://localhost:1,http://127.9.9.9:2,http://[::1]:3")
    assert in_the_open(local) is None
    assert in_the_open((SECURE_A,)) is None
    assert in_the_open((*local, A, B)) == A.text


def test_a_server_that_was_not_named_leads_back_to_those_that_were():
    assert servers(A, B).instead(C, NotSent("refused")) == A
    assert servers(A).instead(A, NotSent("refused")) is None


@pytest.mark.parametrize("urls", ["", "http://a:1,", "http://a:1,https://b:2", "http://a:1;http://b:2,x"])
def test_urls_that_are_none(urls: str):
    with pytest.raises(InputError):
        parse_urls(urls)


def test_urls_with_spaces_and_twice_the_same():
    assert parse_urls("http://a:4780, http://b:4780,http://a:4780") == (A, B)


@pytest.fixture
def another() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


def test_a_call_follows_the_leader_and_stays_with_it(side, server, another):
    server.script = [problem(503, "not_leader", leader=another.url)]
    topic = side.connect(server.url).topic("orders")
    side.do(topic.publish(b"a"))
    side.do(topic.publish(b"b"))
    assert (len(server.seen), len(another.seen)) == (1, 2)
    assert server.seen[0].headers["basalt-request-id"] == another.seen[0].headers["basalt-request-id"]
    assert server.seen[0].body == another.seen[0].body


def test_a_server_that_is_down_is_passed_by(side, another):
    with reserved_port() as port:
        side.do(side.connect(f"http://127.0.0.1:{port},{another.url}").topic("orders").publish(b"a"))
    assert len(another.seen) == 1


def test_a_publish_without_numbers_whose_answer_is_lost_goes_to_no_other_server(side, server, another):
    server.script = [CUT]
    client = side.connect(f"{server.url},{another.url}", dedup=False)
    with pytest.raises(UnknownOutcomeError):
        side.do(client.topic("orders").publish(b"a"))
    assert (len(server.seen), len(another.seen)) == (1, 0)


def test_a_call_whose_answer_was_lost_is_repeated_at_the_next_server(side, server, another):
    """A proxy before a dead server takes connections for ever, and so does a process that stands still."""
    server.script = [CUT]
    topic = side.connect(f"{server.url},{another.url}").topic("orders")
    side.do(topic.publish(b"a"))
    assert (len(server.seen), len(another.seen)) == (1, 1)
    assert server.seen[0].headers["basalt-request-id"] == another.seen[0].headers["basalt-request-id"]


def test_a_call_whose_answer_was_lost_on_a_bad_line_comes_back_to_the_leader(side, server, another):
    server.script = [CUT, answer()]
    another.script = [problem(503, "not_leader", leader=server.url)]
    side.do(side.connect(f"{server.url},{another.url}").topic("orders").publish(b"a"))
    assert (len(server.seen), len(another.seen)) == (2, 1)


def test_two_standbys_that_name_each_other_do_not_send_a_call_round_for_ever(side, server, another):
    server.script = [problem(503, "not_leader", leader=another.url)]
    another.script = [problem(503, "not_leader", leader=server.url)]
    with pytest.raises(NotLeaderError) as raised:
        side.do(side.connect(server.url, attempts_max=2).topic("orders").publish(b"a"))
    assert raised.value.leader_url in (server.url, another.url)
    assert len(server.seen) + len(another.seen) <= 2 * (MOVES_MAX + 1)


def test_where_servers_that_are_cut_off_name_each_other_a_third_one_is_asked_and_stayed_with(side, server, another):
    server.script = [problem(503, "not_leader", leader=another.url)]
    another.script = [problem(503, "not_leader", leader=server.url)]
    third = ScriptedServer()
    try:
        topic = side.connect(f"{server.url},{another.url},{third.url}", attempts_max=1).topic("orders")
        side.do(topic.publish(b"a"))
        side.do(topic.publish(b"b"))
        assert (len(server.seen), len(another.seen), len(third.seen)) == (1, 1, 2)
    finally:
        third.close()


def test_a_standby_that_knows_no_leader_is_asked_again(side, server):
    server.script = [problem(503, "not_leader"), answer()]
    side.do(side.connect(server.url).topic("orders").publish(b"a"))
    assert len(server.seen) == 2


def test_nobody_there_names_all_that_were_asked(side):
    with reserved_port() as one, reserved_port() as two:
        urls = f"http://127.0.0.1:{one},http://127.0.0.1:{two}"
        with pytest.raises(UnavailableError, match=urls):
            side.do(side.connect(urls, attempts_max=1).topic("orders").publish(b"a"))


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:4780", "http://localhost:4780"),
        ("127.0.0.1:4780", "http://127.0.0.1:4780"),
        ("[::1]:4780", "http://[::1]:4780"),
        ("basalt.example:4780/below/a/path", "http://basalt.example:4780/below/a/path"),
    ],
)
def test_a_host_and_a_port_are_the_url_of_an_http_server(text, url):
    assert parse_urls(text) == (parse_url(url),)
    assert parse_urls(f"{text},http://b:4780") == (parse_url(url), B)


@pytest.mark.parametrize(
    "text", ["localhost", "localhost:", "localhost:http", "a b:4780", "::1:4780", "localhost:65536"]
)
def test_what_is_no_host_with_a_port_is_still_no_url(text):
    with pytest.raises(InputError):
        parse_urls(text)


def test_a_client_says_that_it_goes_to_the_leader_itself(side, server, another):
    server.script = [problem(503, "not_leader", leader=another.url)]
    side.do(side.connect(server.url).topic("orders").publish(b"a"))
    assert [each.seen[0].headers["basalt-direct"] for each in (server, another)] == ["1", "1"]


def test_where_a_client_does_not_reach_the_leader_its_calls_are_passed_on(side, server):
    with reserved_port() as port:
        server.script = [problem(503, "not_leader", leader=f"http://127.0.0.1:{port}"), answer()]
        topic = side.connect(server.url).topic("orders")
        side.do(topic.publish(b"a"))
        side.do(topic.publish(b"b"))
    assert [seen.headers.get("basalt-direct") for seen in server.seen] == ["1", None, None]


def test_a_client_tries_again_to_go_to_the_leader_itself():
    now_ms = 0.0
    found = Servers((A,), lambda _url: None, lambda: now_ms)
    assert found.goes_direct
    found.have_passed_on()
    assert not found.goes_direct
    now_ms = DIRECT_AGAIN_MS
    assert found.goes_direct


@pytest.mark.parametrize(
    ("target", "subject"),
    [
        ("/v1/namespaces/shop/topics/orders", "shop/topics/orders"),
        ("/v1/namespaces/shop/topics/orders?a=/b", "shop/topics/orders"),
        ("/v1/namespaces/shop/topics/a%2Fb/groups/g/fetch?waitMs=1", "shop/topics/a%2Fb"),
        ("/v1/namespaces/shop/tables/orders/read", "shop/tables/orders"),
        ("/v1/namespaces/shop/topics", None),
        ("/v1/namespaces/shop/others/orders", None),
        ("/v1/namespaces", None),
        ("/v1/transactions/7/commit", None),
        ("/v1/cluster/owners/shop/orders", None),
    ],
)
def test_what_a_request_is_about(target: str, subject: str | None):
    assert subject_of(target) == subject


ORDERS, RETURNS = (f"/v1/namespaces/shop/topics/{name}/publish" for name in ("orders", "returns"))


def owned(by: str) -> Answer:
    return Answer(200, {"basalt-owner": by}, b"")


def test_the_owner_of_a_topic_is_kept_where_it_is_another_server():
    found = servers(A, B)
    found.learn(ORDERS, owned("http://c:4780"))
    found.learn(RETURNS, owned("http://a:4780"))
    assert [found.server_for(target) for target in (ORDERS, RETURNS, "/v1/transactions")] == [C, A, A]
    assert len(found._owners) == 1
    found.learn(ORDERS, owned("http://a:4780"))
    assert (found.server_for(ORDERS), found._owners) == (A, {})


def test_nothing_is_learned_of_who_may_not_be_gone_to_or_is_no_url():
    guarded = Servers((A,), lambda _url: None, lambda: 0.0, guarded=True)
    for found, owner in ((guarded, "http://c:4780"), (servers(A), "https://c:4780"), (servers(A), "gopher://c")):
        found.learn(ORDERS, owned(owner))
        assert found.server_for(ORDERS) == A
    servers(A).learn("/v1/transactions", owned("http://c:4780"))


def test_a_server_that_is_gone_owns_nothing_any_more():
    found = servers(A)
    found.learn(ORDERS, owned("http://c:4780"))
    found.learn(RETURNS, owned("http://b:4780"))
    found.forget(C)
    assert (found.server_for(ORDERS), found.server_for(RETURNS)) == (A, B)


def test_no_more_owners_are_kept_than_the_limit_and_those_learned_of_first_go():
    found = servers(A)
    for number in range(OWNERS_MAX + 1):
        found.learn(f"/v1/namespaces/shop/topics/t{number}", owned("http://c:4780"))
    assert len(found._owners) == OWNERS_MAX
    assert found.server_for("/v1/namespaces/shop/topics/t0") == A
    assert found.server_for(f"/v1/namespaces/shop/topics/t{OWNERS_MAX}") == C


def not_owner(owner: str | None, **more: str) -> bytes:
    named = {} if owner is None else {"owner": owner}
    return problem(503, "not_owner", {} if owner is None else {"basalt_owner": owner}, **named, **more)


def test_a_call_goes_to_the_owner_that_is_named_and_so_do_those_about_the_same_topic_and_no_others(
    side, server, another
):
    server.script = [not_owner(another.url), answer()]
    client = side.connect(server.url)
    orders, returns = client.topic("orders"), client.topic("returns")
    for topic in (orders, orders, returns, orders):
        side.do(topic.publish(b"a"))
    assert (len(server.seen), len(another.seen)) == (2, 3)
    assert server.seen[0].headers["basalt-request-id"] == another.seen[0].headers["basalt-request-id"]
    assert {seen.headers["basalt-direct"] for seen in (*server.seen, *another.seen)} == {"1"}


def test_with_one_leader_the_first_refusal_tells_where_all_calls_go(side, server, another):
    server.script = [not_owner(another.url, leader=another.url)]
    client = side.connect(server.url)
    for name in ("orders", "returns", "orders"):
        side.do(client.topic(name).publish(b"a"))
    assert (len(server.seen), len(another.seen)) == (1, 3)


def test_an_owner_that_moved_is_asked_once_more_and_then_the_next_one(side, server, another):
    server.script = [not_owner(another.url), answer()]
    another.script = [answer(), not_owner(server.url), answer()]
    topic = side.connect(server.url).topic("orders")
    for _ in range(3):
        side.do(topic.publish(b"a"))
    assert (len(server.seen), len(another.seen)) == (3, 2)


def test_two_servers_that_name_each_other_as_the_owner_have_the_call_passed_on(side, server, another):
    server.script = [not_owner(another.url), answer()]
    another.script = [not_owner(server.url)]
    topic = side.connect(server.url).topic("orders")
    side.do(topic.publish(b"a"))
    assert [seen.headers.get("basalt-direct") for seen in server.seen] == ["1", None]
    assert [seen.headers.get("basalt-direct") for seen in another.seen] == ["1"]
    side.do(topic.publish(b"b"))
    assert server.seen[-1].headers.get("basalt-direct") == "1", "maps agree soon: the next call goes there itself"


def test_servers_that_name_each_other_for_ever_get_a_call_a_few_times_only(side, server, another):
    server.script, another.script = [not_owner(another.url)], [not_owner(server.url)]
    with pytest.raises(NotOwnerError) as raised:
        side.do(side.connect(server.url, attempts_max=2).topic("orders").publish(b"a"))
    assert raised.value.owner_url in (server.url, another.url)
    assert len(server.seen) + len(another.seen) <= 2 * (MOVES_MAX + 2)


def test_a_server_that_knows_no_owner_is_asked_again_and_then_passes_on(side, server):
    server.script = [not_owner(None), answer()]
    side.do(side.connect(server.url).topic("orders").publish(b"a"))
    assert [seen.headers.get("basalt-direct") for seen in server.seen] == ["1", None]


def test_an_owner_that_went_away_is_forgotten_and_the_servers_of_the_url_are_asked(side, server, another):
    server.script = [not_owner(another.url), answer()]
    client = side.connect(f"{server.url},{another.url}")
    topic = client.topic("orders")
    side.do(topic.publish(b"a"))
    another.close()
    side.do(topic.publish(b"b"))
    side.do(topic.publish(b"c"))
    assert [seen.headers.get("basalt-direct") for seen in server.seen] == ["1"] * 3


def test_the_answer_of_an_owner_that_was_lost_is_asked_for_at_another_server(side, server, another):
    server.script = [not_owner(another.url), answer()]
    another.script = [answer(), CUT]
    topic = side.connect(server.url).topic("orders")
    side.do(topic.publish(b"a"))
    side.do(topic.publish(b"b"))
    assert (len(server.seen), len(another.seen)) == (2, 2)
    assert server.seen[1].headers["basalt-request-id"] == another.seen[1].headers["basalt-request-id"]


@pytest.mark.parametrize("last", [answer(), CUT])
def test_what_was_done_or_may_be_is_not_sent_again_for_an_owner_that_is_out_of_reach(
    side, server, another, last: bytes
):
    server.script, another.script = [not_owner(another.url), last], [answer(connection="close")]
    client = side.connect(server.url, dedup=False, attempts_max=1)
    side.do(client.topic("orders").publish(b"a"))
    another.close()
    with suppress(UnknownOutcomeError):
        side.do(client.topic("orders").publish(b"b"))
    assert [seen.headers.get("basalt-direct") for seen in server.seen] == ["1", "1"]
    assert client._driver._transport._servers._owners == {}


def test_who_cannot_be_reached_as_an_owner_leads_back_to_the_server_for_all_else():
    found = servers(A, B)
    found.current = B
    assert found.instead(C, NotSent("refused")) == B


def test_an_owner_that_may_not_get_what_is_sent_has_the_call_passed_on():
    guarded = Servers((A,), lambda _url: None, lambda: 0.0, guarded=True)
    redirects = Redirects(guarded, Send("POST", ORDERS, {}, b"", 1_000.0))
    reply = Answer(503, {"basalt-owner": C.text}, not_owner(C.text).partition(b"\r\n\r\n")[2])
    assert (redirects.server, "Basalt-Direct" in redirects.request.headers) == (A, True)
    assert guarded.standing(reply) == LeaderRefused(C.text)
    assert redirects.follow(reply) is None
    assert (redirects.server, "Basalt-Direct" in redirects.request.headers) == (A, False)
    assert not guarded.goes_direct


def test_an_owner_is_learned_where_a_call_was_passed_on(side, server, another):
    with reserved_port() as port:
        server.script = [
            problem(503, "not_leader", leader=f"http://127.0.0.1:{port}"), answer(basalt_owner=another.url), answer(),
        ]  # fmt: skip
        client = side.connect(server.url)
        side.do(client.topic("orders").publish(b"a"))
    assert client._driver._transport._servers.server_for(ORDERS).text == another.url
    side.do(client.topic("orders").publish(b"b"))
    assert another.seen == [], "for a minute calls are passed on"
