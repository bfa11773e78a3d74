"""What a server says that stands by: who leads, that it lives, and nothing that its leader would refuse to tell."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from basalt.settings import Settings
from basalt.settings.tree import ConsoleSettings
from tests.control.server.test_failover import ASKED, TOPIC, Server, pair, run


def test_a_standby_says_who_leads_and_does_nothing():
    async def story(leader: Server, standby: Server) -> None:
        for answer, code in (
            (await standby.publish("no"), "not_owner"),
            (await standby.ask("GET", "/v1/admin/jobs"), "not_leader"),
        ):
            assert answer.status == 503
            problem = json.loads(answer.body)
            assert problem["code"] == code
            assert problem["leader"] == answer.headers["basalt-leader"] == leader.url
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["basalt-request-id"] == problem["requestId"]
        assert await leader.read() == []

    run(story)


def test_where_the_console_is_off_a_standby_has_no_page():
    async def story() -> None:
        async with pair(Settings(console=ConsoleSettings(enabled=False))) as (leader, standby):
            answer = await standby.ask("GET", "/console")
            assert json.loads(answer.body)["leader"] == leader.url

    asyncio.run(story())


def test_a_standby_refuses_another_name_and_another_origins_page_as_its_leader_does():
    async def story(leader: Server, standby: Server) -> None:
        for server in (leader, standby):
            for target in ("/livez", "/v1", "/metrics", "/readyz", TOPIC):
                for _ in range(2):
                    answer = await server.ask("GET", target, Host="evil.example")
                    assert (answer.status, json.loads(answer.body)["code"]) == (421, "wrong_host")
                assert (await server.ask("GET", target, Host="a b")).status == 400
            for given in ({"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}):
                answer = await server.ask("POST", f"{TOPIC}/publish", {"messages": ["no"]}, **given)
                assert (answer.status, json.loads(answer.body)["code"]) == (403, "cross_origin")
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert await leader.read() == []

    run(story)


def test_a_standby_lives_and_is_not_ready():
    async def story(leader: Server, standby: Server) -> None:
        assert (await standby.ask("GET", "/livez")).status == 200
        assert (await standby.ask("GET", "/v1")).status == 200
        ready = await standby.ask("GET", "/readyz")
        assert ready.status == 503
        parts = {part["name"]: part for part in json.loads(ready.body)["parts"]}
        assert parts["leader"] == {
            "name": "leader", "ok": False, "latencyMs": 0.0, "detail": f"standby: {leader.url} leads"
        }  # fmt: skip
        assert (await standby.ask("DELETE", "/readyz")).status == 405
        ready = json.loads((await leader.ask("GET", "/readyz")).body)
        assert ready["parts"][-2] == {"name": "leader", "ok": True, "latencyMs": 0.0, "detail": "leads under epoch 1"}

    run(story)


@pytest.mark.parametrize(("public", "status"), [((), 503), (("/metrics",), 200)])
def test_a_standby_that_cannot_ask_who_calls_tells_what_is_for_everybody_alone(public, status):
    async def story() -> None:
        async with pair(replace(ASKED, auth=replace(ASKED.auth, public=public))) as (_, standby):
            assert (await standby.ask("GET", "/metrics")).status == status
            assert (await standby.ask("GET", "/livez")).status == 200
            assert (await standby.ask("GET", TOPIC)).status == 503  # who leads is told before anybody is asked

    asyncio.run(story())
