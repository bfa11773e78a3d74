"""Which server reads a range: all that are known as often as each other, and none that could not lately."""

from __future__ import annotations

from collections import Counter

import pytest

from basalt.client.attempts import Send
from basalt.client.plans import Answer, AnswerLost, NotSent, Reply
from basalt.client.servers import (
    DIRECT_HEADER,
    MET_MAX,
    REST_ANSWERED_MS,
    REST_MS,
    SPREAD_BYTES_MIN,
    TO_OWNER,
    RangeServers,
    Redirects,
    Servers,
    ServerUrl,
    parse_url,
    place_of_range,
)
from tests.control.client.scripted import CUT, ScriptedServer, answer, problem
from tests.ports import reserved_port

A, B, C = (parse_url(f"http://{name}:4780") for name in "abc")
RANGE = "/v1/namespaces/shop/topics/orders/range?through=00"
POLL = "/v1/namespaces/shop/topics/orders/poll"
DONE = Answer(200, {}, b"")
ARROW = {"content_type": "application/vnd.apache.arrow.stream", "basalt_generation": "1"}


class Clock:
    now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


def counts(ranges: RangeServers, places: int = 30) -> Counter[ServerUrl | None]:
    return Counter(ranges.choose(place) for place in range(places))


def test_neighbours_are_read_by_different_servers_and_all_by_as_many():
    ranges = RangeServers((C, A, B), Clock())
    assert len({ranges.choose(place) for place in (7, 8, 9)}) == 3
    assert counts(ranges) == {A: 10, B: 10, C: 10}


def test_processes_that_know_the_same_servers_choose_alike_in_whatever_order_they_know_them():
    one, other = RangeServers((A, B, C), Clock()), RangeServers((C,), Clock())
    other.meet(B)
    other.meet(A)
    assert [one.choose(place) for place in range(9)] == [other.choose(place) for place in range(9)]


def test_who_knows_one_server_has_no_choice():
    assert RangeServers((A,), Clock()).choose(5) is None


@pytest.mark.parametrize(
    "reply",
    [
        NotSent("refused"),
        AnswerLost("cut"),
        Answer(503, {}, b""),
        Answer(500, {}, b""),
        Answer(200, {"basalt-owner": A.text}, b""),  # it had another server read
    ],
)
def test_a_server_that_could_not_read_rests_and_only_its_share_goes_to_all_others_alike(reply: Reply):
    clock = Clock()
    ranges = RangeServers((A, B, C), clock)
    before = [ranges.choose(place) for place in range(36)]
    ranges.judge(B, reply)
    after = [ranges.choose(place) for place in range(36)]
    assert [now for now, then in zip(after, before, strict=True) if then != B] == [each for each in before if each != B]
    assert Counter(after) == {A: 18, C: 18}
    clock.now_ms += REST_ANSWERED_MS if isinstance(reply, Answer) else REST_MS
    assert [ranges.choose(place) for place in range(36)] == before


@pytest.mark.parametrize("status", [200, 400, 404, 429])
def test_what_the_caller_is_told_is_no_fault_of_the_server(status: int):
    ranges = RangeServers((A, B), Clock())
    ranges.judge(A, Answer(status, {"basalt-owner": B.text} if status != 200 else {}, b""))
    assert counts(ranges) == {A: 15, B: 15}


def test_when_all_rest_there_is_no_choice():
    ranges = RangeServers((A, B), Clock())
    for server in (A, B):
        ranges.judge(server, NotSent("refused"))
    assert counts(ranges) == {None: 30}


def test_servers_that_others_name_read_too_until_they_are_gone_and_those_of_the_caller_stay():
    ranges = RangeServers((A,), Clock())
    ranges.meet(A)
    ranges.meet(B)
    ranges.meet(C)
    assert counts(ranges) == {A: 10, B: 10, C: 10}
    for server in (A, C):
        ranges.forget(server)
    assert counts(ranges) == {A: 15, B: 15}


def test_no_more_servers_are_known_than_the_limit_and_those_met_first_go():
    ranges = RangeServers((A,), Clock())
    met = [parse_url(f"http://m{number}:4780") for number in range(MET_MAX + 1)]
    for server in met:
        ranges.meet(server)
    assert set(counts(ranges, MET_MAX + 1)) == {A, *met[1:]}


def test_small_answers_are_the_owners():
    assert place_of_range("/orders", None, 3, SPREAD_BYTES_MIN - 1) is None
    for size_bytes in (None, SPREAD_BYTES_MIN):
        assert place_of_range("/orders", None, 3, size_bytes) is not None


def test_turns_follow_each_other_and_without_one_a_range_has_a_place_of_its_own_each_time_it_is_read():
    first = place_of_range("/orders", b"a", 0, None)
    assert first is not None
    assert place_of_range("/orders", b"b", 1, None) == first + 1
    places = [place_of_range("/orders", b"%d" % number, None, None) for number in range(3_000)]
    assert places == [place_of_range("/orders", b"%d" % number, None, None) for number in range(3_000)]
    shares = Counter(place % 3 for place in places if place is not None)
    assert all(900 < share < 1_100 for share in shares.values())


def test_a_range_goes_to_the_chosen_server_and_all_else_to_the_owner():
    servers = Servers((A, B, C), lambda _url: None, Clock())
    servers.learn(POLL, Answer(503, {"basalt-owner": C.text}, b""))
    redirects = [Redirects(servers, Send("GET", RANGE, {}, b"", 1_000.0, spread)) for spread in range(6)]
    assert Counter(each.server for each in redirects) == {A: 2, B: 2, C: 2}
    assert all(DIRECT_HEADER in each.request.headers for each in redirects)
    for target in (RANGE, POLL):  # a small range, and the tail
        assert Redirects(servers, Send("GET", target, {}, b"", 1_000.0)).server == C


def test_past_a_server_that_is_not_reached_a_range_goes_to_the_next_and_the_leader_stays_who_it_is():
    servers = Servers((A, B, C), lambda _url: None, Clock())
    spread = next(place for place in range(3) if servers.ranges.choose(place) == B)
    redirects = Redirects(servers, Send("GET", RANGE, {}, b"", 1_000.0, spread))
    assert redirects.follow(NotSent("refused")) is None
    following = servers.ranges.choose(spread)
    assert following in (A, C)
    assert redirects.server == following
    assert redirects.follow(DONE) == DONE
    assert servers.current == A


def test_an_owner_that_may_not_get_what_is_sent_reads_no_ranges():
    servers = Servers((A,), lambda _url: None, Clock(), guarded=True)
    servers.learn(POLL, Answer(503, {"basalt-owner": C.text}, b""))
    assert servers.ranges.choose(0) is None


def test_while_calls_are_passed_on_ranges_go_to_servers_of_the_url_alone():
    """Addresses that servers name are not reached from everywhere."""
    servers = Servers((A, B), lambda _url: None, Clock())
    servers.learn(POLL, Answer(503, {"basalt-owner": C.text}, b""))
    servers.have_passed_on()
    redirects = [Redirects(servers, Send("GET", RANGE, {}, b"", 1_000.0, spread)) for spread in range(6)]
    assert Counter(each.server for each in redirects) == {A: 3, B: 3}
    assert not any(DIRECT_HEADER in each.request.headers for each in redirects)


def range_of(topic, turn: int):
    return topic.range(None, bytes(20), turn=turn)


@pytest.fixture
def three():
    servers = [ScriptedServer() for _ in range(3)]
    for server in servers:
        server.script = [answer(**ARROW)]
    yield servers
    for server in servers:
        server.close()


def test_a_client_of_several_servers_reads_from_all_and_asks_nothing_more(side, three):
    topic = side.connect(",".join(server.url for server in three)).topic("orders")
    for turn in range(9):
        side.do(range_of(topic, turn))
    assert [len(server.seen) for server in three] == [3, 3, 3]


def test_a_client_of_one_server_asks_what_it_asked_before(side, three):
    topic = side.connect(three[0].url).topic("orders")
    for turn in range(3):
        side.do(range_of(topic, turn))
    assert [len(server.seen) for server in three] == [3, 0, 0]
    assert {each.target for each in three[0].seen} == {
        f"{RANGE.partition('?')[0]}?through={bytes(20).hex()}&isolation=committed"
    }


@pytest.mark.parametrize("wrong", [CUT, problem(503, "stopping"), problem(503, "shard_moving"), problem(503, "busy")])
def test_what_one_server_cannot_read_another_one_reads_and_the_first_is_left_alone(side, three, wrong):
    three[1].script = [wrong]
    topic = side.connect(",".join(server.url for server in three), attempts_max=2).topic("orders")
    for turn in range(9):
        side.do(range_of(topic, turn))
    assert len(three[1].seen) == 1
    assert len(three[0].seen) + len(three[2].seen) == 9


def test_a_server_that_is_down_costs_no_attempt(side, three):
    with reserved_port() as port:
        urls = f"{three[0].url},http://127.0.0.1:{port},{three[2].url}"
        topic = side.connect(urls, attempts_max=1).topic("orders")
        for turn in range(9):
            side.do(range_of(topic, turn))
    assert len(three[0].seen) + len(three[2].seen) == 9


@pytest.mark.parametrize("code", ["not_owner", "not_leader"])
def test_who_reads_no_ranges_itself_names_the_owner_who_reads_this_one(side, three, code):
    owner = three[2]
    three[1].script = [problem(503, code, owner=owner.url, leader=owner.url)]
    topic = side.connect(",".join(server.url for server in three), attempts_max=1).topic("orders")
    for turn in range(9):
        side.do(range_of(topic, turn))
    assert len(three[1].seen) == 1
    assert len(three[0].seen) + len(owner.seen) == 9


def test_a_process_that_reads_small_ranges_alone_learns_who_owns_the_topic_and_asks_that_one(side, three):
    """Any server would read them all the same, for more than the owner asks: so they say whose they are."""
    owner = three[2]
    three[0].script = [problem(503, "not_owner", {"basalt-owner": owner.url}, owner=owner.url, leader=three[0].url)]
    topic = side.connect(",".join(server.url for server in three), attempts_max=1).topic("orders")
    for turn in range(9):
        side.do(topic.range(None, bytes(20), turn=turn, size_bytes=1_000))
    assert [len(server.seen) for server in three] == [1, 0, 9]
    assert {each.headers["basalt-direct"] for server in three for each in server.seen} == {"owner"}


def test_a_large_range_is_whoevers_it_is_sent_to(side, three):
    side.do(range_of(side.connect(three[0].url).topic("orders"), 0))
    assert three[0].seen[0].headers["basalt-direct"] == "1"


def test_a_small_range_is_read_by_whom_it_is_sent_to_where_its_owner_cannot_be_gone_to():
    servers = Servers((A,), lambda _url: None, Clock(), guarded=True)
    redirects = Redirects(servers, Send("GET", RANGE, dict(TO_OWNER), b"", 1_000.0))
    reply = Answer(503, {}, problem(503, "not_owner", owner=C.text).partition(b"\r\n\r\n")[2])
    assert redirects.follow(reply) is None
    assert (redirects.server, redirects.request.headers) == (A, {})
    following = Redirects(servers, Send("GET", RANGE, dict(TO_OWNER), b"", 1_000.0))
    assert (following.server, following.request.headers) == (A, {})
