"""A server that does not lead passes calls on: what comes back is what the leader would have said, and nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import uvloop

from basalt.console.assets import ASSETS
from basalt.http.app import OPERATIONS
from basalt.http.asgi.requests import BodyBudget, Head, RequestHead
from basalt.server import passing_on
from basalt.settings import Settings
from basalt.settings.auth import AuthSettings, TlsSettings
from basalt.settings.cluster import ClusterSettings
from basalt.settings.tree import HttpSettings, LogSettings
from tests.control.server.passing_pair import JSON, TOPIC, PortServer, Told, passing_pair, until
from tests.led_servers import HANG_S, ONE_LEADS

OWN = ("/livez", "/readyz", "/v1", "/metrics")
NOT_EQUAL = ("basalt-owner", "date")


def run(story: Callable[[PortServer, PortServer], Awaitable[None]], *settings: Settings) -> None:
    async def all_of_it() -> None:
        async with passing_pair(*settings) as (leader, standby):
            assert (await leader.ask("PUT", TOPIC)).status == 200
            await story(leader, standby)

    uvloop.run(all_of_it())


def held(scheme: str) -> RequestHead:
    """A request that came by this scheme, and whose answer nobody waits for."""
    exchange = SimpleNamespace(internal=False, client="127.0.0.1", scheme=scheme, id_is_clients=True, certificate=None)
    return RequestHead(Head("GET", TOPIC, TOPIC.encode(), b"", {b"host": b"localhost"}), exchange, 0.0, BodyBudget(0))  # type: ignore[arg-type]


def headers_of(told: Told) -> dict[str, str]:
    return {name: value for name, value in told.headers.items() if name not in NOT_EQUAL}


async def same(leader: PortServer, standby: PortServer, method: str, target: str, *body: object, **given: str) -> Told:
    """The answer to one call, that may be made twice, from both; they differ in who has answered."""
    given = {"Basalt_Request_Id": "the-same", **given}
    direct = await leader.ask(method, target, *body, **given)
    passed = await standby.ask(method, target, *body, **given)
    assert (passed.status, headers_of(passed), passed.body) == (direct.status, headers_of(direct), direct.body)
    assert passed.headers["basalt-owner"] == leader.url
    assert "basalt-owner" not in direct.headers
    return passed


def test_what_is_read_through_a_standby_is_what_the_leader_answers():
    async def story(leader: PortServer, standby: PortServer) -> None:
        assert (await standby.ask("POST", f"{TOPIC}/publish", {"messages": ["a", "b" * 3_000]})).status == 200
        for method, target, *body in (
            ("GET", TOPIC),
            ("HEAD", TOPIC),
            ("GET", "/v1/namespaces"),
            ("GET", "/v1/namespaces/shop/topics"),
            ("GET", "/openapi.json"),
            ("HEAD", "/openapi.json"),
            ("OPTIONS", TOPIC),
            ("GET", f"{TOPIC}/records?limit=1"),
            ("POST", f"{TOPIC}/poll", {}),
            ("POST", f"{TOPIC}/poll", {"limit": 1}),
            ("GET", ASSETS["console.js"].path),
            ("GET", f"{TOPIC}?wrong=1"),
            ("GET", "/v1/no/such/call?a=b&c=%20"),
            ("POST", TOPIC, {"a": 1}),
            ("POST", f"{TOPIC}/publish", b"{not json"),
            ("GET", "/v1/namespaces/shop/topics/nothing"),
        ):
            told = await same(leader, standby, method, target, *body, Accept="application/json")
            if method == "HEAD":
                assert told.body == b""
        for accept in ("application/json", "avro/binary", "application/vnd.basalt.batches"):
            await same(leader, standby, "POST", f"{TOPIC}/poll", {}, Accept=accept)
        coded = await same(leader, standby, "POST", f"{TOPIC}/poll", {}, Accept_Encoding="gzip")
        assert coded.headers["content-encoding"] == "gzip"

    run(story)


def test_every_call_of_the_api_is_passed_on():
    async def story(leader: PortServer, standby: PortServer) -> None:
        for operation in OPERATIONS:
            target = "/".join("9" if part.startswith("{") else part for part in operation.path.split("/"))
            if operation.path in OWN or operation.path.endswith(("/backups", "/run", "/prune")):
                continue  # its own; or it would do something that takes time
            direct = await leader.ask(operation.method, target, Basalt_Request_Id="the-same")
            passed = await standby.ask(operation.method, target, Basalt_Request_Id="the-same")
            assert passed.headers["basalt-owner"] == leader.url, operation
            if direct.status >= 400:
                assert sorted(headers_of(passed)) == sorted(headers_of(direct)), operation
                assert (passed.status, passed.json()["code"]) == (direct.status, direct.json()["code"]), operation

    run(story)


def test_what_is_written_through_a_standby_is_there_once():
    async def story(leader: PortServer, standby: PortServer) -> None:
        for number in range(20):
            server = (leader, standby)[number % 2]
            assert (await server.ask("POST", f"{TOPIC}/publish", {"messages": [f"{number}"]})).status == 200
        begun = await standby.ask("POST", "/v1/transactions", {})
        assert begun.status == 200, begun.body
        pointer = begun.json()["writePointer"]
        stored = await standby.ask("POST", f"{TOPIC}/store", {"messages": ["20"], "transactionWritePointer": pointer})
        assert stored.status == 200, stored.body
        assert (await standby.ask("POST", f"/v1/transactions/{pointer}/commit", {})).status == 200
        read = await standby.ask("POST", f"{TOPIC}/poll", {}, **JSON)
        assert [each["payload"] for each in read.json()] == [str(number) for number in range(21)]
        assert standby.passing.outcomes["answered"] == 14

    run(story)


def test_a_poll_waits_at_the_leader_and_ends_when_its_caller_hangs_up():
    async def story(leader: PortServer, standby: PortServer) -> None:
        waiting = asyncio.ensure_future(standby.ask("POST", f"{TOPIC}/poll?waitMs=30000", {}, **JSON))
        await until(lambda: standby.passing.under_way == 1)
        assert (await leader.ask("POST", f"{TOPIC}/publish", {"messages": ["a"]})).status == 200
        assert [each["payload"] for each in (await waiting).json()] == ["a"]
        await leader.ask("PUT", f"{TOPIC}2")
        gone = asyncio.ensure_future(standby.ask("POST", f"{TOPIC}2/poll?waitMs=30000", {}, **JSON))
        await until(lambda: standby.passing.under_way >= 1)
        gone.cancel()
        await until(lambda: standby.passing.under_way == 0)

    run(story)


def test_calls_are_passed_on_once():
    async def story(leader: PortServer, standby: PortServer) -> None:
        for word in ("1", "0" * 64 + " http client 10.0.0.1", ""):
            told = await standby.ask("GET", TOPIC, Basalt_Forwarded=word)
            assert (told.status, told.json()["code"], told.json()["leader"]) == (503, "not_leader", leader.url)
            assert "passed on once" in told.json()["detail"]

    run(story)


def test_a_client_that_goes_to_the_leader_itself_is_told_who_leads():
    async def story(leader: PortServer, standby: PortServer) -> None:
        told = await standby.ask("GET", "/v1/transactions", Basalt_Direct="1")
        assert (told.status, told.json()["code"], told.json()["leader"]) == (503, "not_leader", leader.url)
        assert (await leader.ask("GET", TOPIC, Basalt_Direct="1")).status == 200

    run(story)


def test_passing_on_can_be_switched_off():
    async def story(leader: PortServer, standby: PortServer) -> None:
        told = await standby.ask("GET", TOPIC)
        assert (told.status, told.json()["code"]) == (503, "not_leader")
        assert (await standby.ask("GET", "/readyz")).status == 503

    run(story, ONE_LEADS, Settings(cluster=ClusterSettings(share=False, pass_on=False)))


def test_both_servers_log_a_call_under_one_request_id(caplog: pytest.LogCaptureFixture):
    async def story(leader: PortServer, standby: PortServer) -> None:
        caplog.set_level("INFO", "basalt.access")
        for given in ({"Basalt_Request_Id": "mine"}, {}):
            caplog.clear()
            told = await standby.ask("GET", TOPIC, **given)
            ids = [record.fields["requestId"] for record in caplog.records]  # type: ignore[attr-defined]
            assert ids == [told.headers["basalt-request-id"]] * 2
            assert [record.fields["client"] for record in caplog.records] == ["127.0.0.1"] * 2  # type: ignore[attr-defined]

    run(story, replace(ONE_LEADS, log=LogSettings(access="all")))


def test_an_id_that_a_standby_made_is_none_by_which_a_repetition_is_known():
    async def story(leader: PortServer, standby: PortServer) -> None:
        serving = leader.member._serving
        assert serving is not None
        seen: list[tuple[str, str | None]] = []
        made = serving.app._request

        def noted(head, exchange, client_id):
            request = made(head, exchange, client_id)
            request.check()
            seen.append((request.id, request.client_id))
            return request

        serving.app._request = noted  # type: ignore[method-assign]
        for _ in range(2):  # parsed, and known by its bytes
            told = await standby.ask("GET", TOPIC)
            assert seen.pop() == (told.headers["basalt-request-id"], None)
            await standby.ask("GET", TOPIC, Basalt_Request_Id="mine")
            assert seen.pop() == ("mine", "mine")

    run(story)


def test_a_standby_is_ready_while_a_leader_answers():
    async def story(leader: PortServer, standby: PortServer) -> None:
        ready = await standby.ask("GET", "/readyz")
        assert ready.status == 200
        details = {part["name"]: part["detail"] for part in ready.json()["parts"]}
        assert details["leader"] == f"standby: {leader.url} leads, and answers"
        assert (await standby.ask("GET", "/readyz?leader=true")).status == 503
        assert (await standby.ask("GET", "/readyz?leader")).status == 503
        assert (await leader.ask("GET", "/readyz?leader=true")).status == 200
        await leader.hang_up()
        standby.passing._ready = None  # what was heard a moment ago
        assert (await standby.ask("GET", "/readyz")).status == 503
        assert (await standby.ask("GET", "/livez")).status == 200

    run(story)


def test_what_the_leader_said_of_itself_holds_for_a_second(monkeypatch: pytest.MonkeyPatch):
    assert passing_on.READY_AGAIN_SECONDS == 1.0

    async def story(leader: PortServer, standby: PortServer) -> None:
        for holds_s, asked in ((HANG_S, 1), (0.0, 5)):  # this machine may take longer than a second for five answers
            monkeypatch.setattr(passing_on, "READY_AGAIN_SECONDS", holds_s)
            standby.passing._ready = None
            before = leader.uvicorn.server_state.total_requests
            assert [(await standby.ask("GET", "/readyz")).status for _ in range(5)] == [200] * 5
            assert leader.uvicorn.server_state.total_requests == before + asked

    run(story)


def test_a_leader_that_cannot_be_reached_is_told():
    async def story(leader: PortServer, standby: PortServer) -> None:
        await leader.hang_up()
        told = await standby.ask("POST", f"{TOPIC}/publish", {"messages": ["a"]})
        assert (told.status, told.json()["code"], told.json()["leader"]) == (503, "not_leader", leader.url)
        assert "cannot be reached" in told.json()["detail"]
        for _ in range(2):
            page = await standby.ask("GET", "/console", Accept="text/html")
            assert page.status == 503
        assert b"cannot be reached" in page.body
        assert (await standby.ask("GET", ASSETS["console.js"].path)).status == 200
        assert standby.passing.outcomes["not_done"] == 4

    run(story)


def test_no_more_calls_are_passed_on_at_a_time_than_the_setting_says():
    async def story(leader: PortServer, standby: PortServer) -> None:
        waiting = [
            asyncio.ensure_future(standby.ask("POST", f"{TOPIC}/poll?waitMs=30000", {}, **JSON)) for _ in range(2)
        ]
        await until(lambda: standby.passing.under_way == 2)
        told = await standby.ask("GET", TOPIC)
        assert (told.status, told.json()["code"]) == (503, "not_leader")
        assert "cluster.passed_on_max" in told.json()["detail"]
        await leader.ask("POST", f"{TOPIC}/publish", {"messages": ["a"]})
        assert [(await each).status for each in waiting] == [200, 200]
        assert (await standby.ask("GET", TOPIC)).status == 200

    run(story, ONE_LEADS, Settings(cluster=ClusterSettings(share=False, passed_on_max=2)))


def test_metrics_of_a_standby_are_its_own_and_count_what_it_passed_on():
    async def story(leader: PortServer, standby: PortServer) -> None:
        await standby.ask("GET", TOPIC)
        figures = (await standby.ask("GET", "/metrics")).body.decode()
        assert 'basalt_cluster_passed_on_total{outcome="answered"} 1.0' in figures
        assert "basalt_cluster_passed_on_seconds_count 1.0" in figures
        assert "basalt_leader 0.0" in figures
        figures = (await leader.ask("GET", "/metrics")).body.decode()
        assert 'basalt_cluster_passed_on_total{outcome="answered"} 0.0' in figures

    run(story)


ROOT = "Bearer " + "r" * 40
ASKED = replace(ONE_LEADS, auth=AuthSettings(kinds=("token",), bootstrap_token="r" * 40))


def test_the_leader_judges_who_calls_by_what_the_caller_has_sent():
    async def story() -> None:
        async with passing_pair(ASKED) as (leader, standby):
            assert (await standby.ask("PUT", TOPIC, Authorization=ROOT)).status == 200
            for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": ROOT}):
                await same(leader, standby, "GET", TOPIC, **given)
            assert (await standby.ask("GET", "/metrics", Authorization=ROOT)).json()["code"] == "not_leader"

    uvloop.run(story())


def test_refusals_by_address_and_the_audit_go_by_the_callers_own_address():
    async def story() -> None:
        async with passing_pair(ASKED) as (leader, standby):
            serving = leader.member._serving
            assert serving is not None
            seen: list[tuple[str | None, str]] = []
            made = serving.app._request

            def noted(head, exchange, client_id):
                seen.append((exchange.client, exchange.scheme))
                return made(head, exchange, client_id)

            serving.app._request = noted  # type: ignore[method-assign]
            reader, writer = await asyncio.open_connection("127.0.0.1", standby.port, local_addr=("127.0.0.9", 0))
            writer.write(b"GET /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
            assert seen == [("127.0.0.9", "http")]

    uvloop.run(story())


@pytest.mark.parametrize(
    "forged", ["1", "", "x http client 10.0.0.1", "0" * 64 + " http client 10.0.0.1", "0" * 64 + " https server -"]
)
def test_whoever_forges_the_word_of_another_server_gains_nothing(forged: str):
    async def story(leader: PortServer, standby: PortServer) -> None:
        for _ in range(2):
            told = await leader.ask("POST", f"{TOPIC}/publish", {"messages": ["a"]}, Basalt_Forwarded=forged)
            assert (told.status, told.json()["code"], told.json()["field"]) == (503, "unavailable", "Basalt-Forwarded")
        assert (await leader.ask("POST", f"{TOPIC}/poll", {}, **JSON)).json() == []

    run(story)


def test_what_was_said_of_one_call_is_not_believed_of_another():
    async def story(leader: PortServer, standby: PortServer) -> None:
        heads: list[bytes] = []
        serving = leader.member._serving
        assert serving is not None
        made = serving.app._request

        def noted(head, exchange, client_id):
            heads.append(head.headers[b"basalt-forwarded"])
            return made(head, exchange, client_id)

        serving.app._request = noted  # type: ignore[method-assign]
        await standby.ask("GET", TOPIC, Authorization=ROOT, Host="localhost")
        serving.app._request = made  # type: ignore[method-assign]
        word = heads.pop().decode()
        good = {"Authorization": ROOT, "Host": "localhost", "Basalt_Forwarded": word}
        assert (await leader.ask("GET", TOPIC, **good)).status == 200
        for change in ({"Authorization": "Bearer other"}, {"Host": "127.0.0.1"}, {"Cookie": "basalt=x"},
                       {"Basalt_Forwarded": word.replace("127.0.0.1", "127.0.0.2")},
                       {"Basalt_Forwarded": word.replace(" http ", " https ")}):  # fmt: skip
            assert (await leader.ask("GET", TOPIC, **{**good, **change})).status == 503, change
        assert (await leader.ask("DELETE", TOPIC, **good)).status == 503
        assert (await leader.ask("GET", f"{TOPIC}?a=b", **good)).status == 503

    run(story)


def test_a_name_that_only_the_standby_has_is_let_in_there_and_so_by_the_leader():
    async def story(leader: PortServer, standby: PortServer) -> None:
        for server, status in ((leader, 421), (standby, 200)):
            for _ in range(2):
                assert (await server.ask("GET", TOPIC, Host="balancer.example")).status == status
        assert (await standby.ask("GET", TOPIC, Host="evil.example")).status == 421
        for origin, status in (("http://balancer.example", 200), ("http://evil.example", 403), ("null", 403)):
            told = await standby.ask(
                "POST", f"{TOPIC}/publish", {"messages": ["a"]}, Host="balancer.example", Origin=origin
            )
            assert told.status == status, told.body

    run(story, ONE_LEADS, replace(ONE_LEADS, http=HttpSettings(hosts=("balancer.example",))))


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST %s/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x",
        b"POST %s/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"POST %s/publish HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\nhello",
        b"GET %s HTTP/1.1\r\nHost: localhost\r\nBasalt-Request-Id: a\r\nBasalt-Request-Id: b\r\n\r\n",
        b"GET %s HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n",
        b"GET %s HTTP/1.1\r\nHost: localhost\r\nX: a\n b\r\n\r\n",
    ],
)
def test_what_two_readers_could_read_differently_is_not_passed_on(request_bytes: bytes):
    async def story(leader: PortServer, standby: PortServer) -> None:
        asked = leader.uvicorn.server_state.total_requests
        line = request_bytes % TOPIC.encode()
        reader, writer = await standby.line()
        writer.write(line)
        assert (await reader.readuntil(b"\r\n")).split()[1] == b"400"
        writer.close()
        assert leader.uvicorn.server_state.total_requests == asked

    run(story)


def test_the_log_says_once_that_the_leader_cannot_be_reached(caplog: pytest.LogCaptureFixture):
    async def story(leader: PortServer, standby: PortServer) -> None:
        await leader.hang_up()
        for _ in range(3):
            assert (await standby.ask("GET", TOPIC)).status == 503
        assert [
            record.getMessage().partition(": ")[0] for record in caplog.records if record.name == "basalt.passing"
        ] == [f"the leader at {leader.url} cannot be reached"]

    run(story)


@pytest.mark.parametrize(
    ("settings", "given", "why"),
    [
        (replace(ONE_LEADS, tls=TlsSettings(client="required")), {}, "certificate"),
        (ONE_LEADS, {"Authorization": "Negotiate YIIabc"}, "Kerberos"),
        (ONE_LEADS, {"Authorization": "negotiate YIIabc"}, "Kerberos"),
    ],
)
def test_who_proves_it_by_what_cannot_be_passed_on_is_told_why(settings: Settings, given: dict[str, str], why: str):
    async def story() -> None:
        async with passing_pair(ONE_LEADS, settings) as (leader, standby):
            told = await standby.ask("GET", "/v1/namespaces", **given)
            assert (told.status, told.json()["code"], told.json()["leader"]) == (503, "not_leader", leader.url)
            assert why in told.json()["detail"]

    uvloop.run(story())
