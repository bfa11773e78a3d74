"""Three servers on one store, of which one leads and another owns a topic: whichever is asked, the owner answers, once; and what callers are told while nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import uvloop

import basalt
from basalt.cluster.owners import granted
from basalt.http.app import build_app
from basalt.server.failover import _Serving
from basalt.server.wiring import open_services, pages_of
from basalt.settings import Settings
from basalt.settings.tree import ClusterSettings
from basalt.thrift.face import ThriftFace
from basalt_engine.stores.memory import MemoryStore
from tests.control.server.passing_pair import JSON, SHARD, TOPIC, PortServer, deal, give, passing_pair, until

SHARES = Settings(cluster=ClusterSettings(share=True))
ALONE = Settings(cluster=ClusterSettings(share=True, pass_on=False))
PUBLISH = f"{TOPIC}/publish"
OTHERS = "/v1/namespaces/shop/topics/returns"  # which the leader owns


class Three(NamedTuple):
    leader: PortServer
    owner: PortServer
    standby: PortServer


async def serve_topics(owner: PortServer) -> None:
    """The server serves topics, though it does not lead: over a store of its own, so that what it answers is nobody else's."""
    services = await open_services(owner.settings, None, store=MemoryStore(), clock=owner.clock)
    services.leadership, services.membership = owner.member.leadership, owner.member.membership
    term = cast("Any", SimpleNamespace(is_on=lambda: not owner.is_stopped, member=None))
    app = build_app(services, further_routes=pages_of(owner.settings))
    owner.member._serving = _Serving(term, services, app, ThriftFace(None), leads=False)


async def has_seen(server: PortServer, member: str) -> bool:
    owners = server.member._owners()
    return owners is not None and member in owners.members and server.member.membership.owner(member).state == "live"


@asynccontextmanager
async def three(settings: Settings = SHARES) -> AsyncIterator[Three]:
    async with passing_pair(settings) as (leader, standby):
        owner = PortServer(leader.time, leader._store, "owner", settings)
        try:
            await until(lambda: owner.uvicorn.started)
            await serve_topics(owner)
            give(leader, "owner-1")
            for server in (leader, owner, standby):
                await leader.time.until(lambda server=server: has_seen(server, "owner-1"))  # type: ignore[misc]
            yield Three(leader, owner, standby)
        finally:
            await owner.end()


def run(story: Callable[[Three], Awaitable[None]], settings: Settings = SHARES) -> None:
    async def all_of_it() -> None:
        async with three(settings) as servers:
            await story(servers)

    uvloop.run(all_of_it())


async def read(server: PortServer) -> list[str]:
    told = await server.ask("POST", f"{TOPIC}/poll", {}, **JSON)
    assert told.status == 200, told.body
    return [each["payload"] for each in told.json()]


def test_whichever_server_is_asked_the_owner_answers():
    async def story(servers: Three) -> None:
        assert (await servers.leader.ask("PUT", TOPIC)).headers["basalt-owner"] == servers.owner.url
        for number in range(9):
            told = await servers[number % 3].ask("POST", PUBLISH, {"messages": [f"{number}"]})
            assert told.status == 200, told.body
            passed = None if servers[number % 3] is servers.owner else servers.owner.url
            assert told.headers.get("basalt-owner") == passed
        for server in servers:
            assert await read(server) == [str(number) for number in range(9)]
        assert servers.owner.passing.under_way == sum(servers.owner.passing.outcomes.values()) == 0

    run(story)


def test_what_is_about_no_topic_of_another_is_the_leaders():
    async def story(servers: Three) -> None:
        for method, target in (
            ("PUT", OTHERS),
            ("GET", OTHERS),
            ("GET", "/v1/namespaces"),
            ("GET", f"{OTHERS}/groups"),
            ("GET", f"{TOPIC}/groups"),
            ("POST", "/v1/transactions"),
            ("GET", "/v1/admin/jobs"),
            ("GET", "/v1/namespaces/shop/tables/orders"),
            ("GET", "/console"),
        ):
            for server in (servers.owner, servers.standby):
                told = await server.ask(method, target, Accept="text/html" if target == "/console" else "*/*")
                assert told.headers["basalt-owner"] == servers.leader.url, (method, target)
        assert (await servers.leader.ask("GET", OTHERS)).headers.get("basalt-owner") is None
        listed = await servers.owner.ask("GET", "/v1/namespaces/shop/topics")
        assert (listed.json(), listed.headers["basalt-owner"]) == (["returns"], servers.leader.url)

    run(story)


def test_a_server_tells_of_itself():
    async def story(servers: Three) -> None:
        await servers.leader.ask("PUT", TOPIC)
        for server in servers:
            for target in ("/livez", "/v1", "/metrics"):
                told = await server.ask("GET", target)
                assert (told.status, told.headers.get("basalt-owner")) == (200, None)
        figures = (await servers.leader.ask("GET", "/metrics")).body.decode()
        assert 'basalt_cluster_passed_on_total{outcome="answered"} 1.0' in figures

    run(story)


def test_a_poll_waits_at_the_owner_and_ends_when_its_caller_hangs_up():
    async def story(servers: Three) -> None:
        for server in (servers.leader, servers.standby):
            assert (await servers.owner.ask("PUT", TOPIC)).status == 200
            waiting = asyncio.ensure_future(server.ask("POST", f"{TOPIC}/poll?waitMs=30000", {}, **JSON))
            await until(lambda server=server: server.passing.under_way == 1)  # type: ignore[misc]
            waiting.cancel()
            await until(lambda server=server: server.passing.under_way == 0)  # type: ignore[misc]
            waiting = asyncio.ensure_future(server.ask("POST", f"{TOPIC}/poll?waitMs=30000", {}, **JSON))
            await until(lambda server=server: server.passing.under_way == 1)  # type: ignore[misc]
            assert (await servers.owner.ask("POST", PUBLISH, {"messages": ["a"]})).status == 200
            assert [each["payload"] for each in (await waiting).json()] == ["a"]
            assert (await servers.owner.ask("DELETE", TOPIC)).status == 200

    run(story)


def test_who_asks_for_the_owner_itself_is_told_who_that_is_by_the_leader_too():
    async def story(servers: Three) -> None:
        for server in (servers.leader, servers.standby):
            told = await server.ask("GET", TOPIC, Basalt_Direct="1")
            assert (told.status, told.json()["code"]) == (503, "not_owner")
            assert told.json()["owner"] == told.headers["basalt-owner"] == servers.owner.url
            assert told.json()["member"] == "owner-1"
        told = await servers.owner.ask("GET", f"{TOPIC}/groups", Basalt_Direct="1")
        assert (told.json()["code"], told.json()["leader"]) == ("not_leader", servers.leader.url)
        told = await servers.owner.ask("GET", OTHERS, Basalt_Direct="1")
        assert (told.json()["code"], told.json()["owner"]) == ("not_owner", servers.leader.url)
        assert (await servers.owner.ask("PUT", TOPIC, Basalt_Direct="1")).status == 200

    run(story)


def test_where_nothing_is_passed_on_the_owner_is_named():
    async def story(servers: Three) -> None:
        told = await servers.leader.ask("GET", TOPIC)
        assert (told.json()["code"], told.json()["owner"]) == ("not_owner", servers.owner.url)

    run(story, ALONE)


def test_a_call_that_was_passed_on_to_the_wrong_server_goes_no_further():
    async def story(servers: Three) -> None:
        await servers.owner.ask("PUT", TOPIC)
        membership = servers.owner.member.membership
        assert membership.owners is not None
        # The owner has heard of a newer map than the others, by which the leader has the topic; that one has yet to hear of it.
        membership.owners = granted(membership.owners, "first-1", [SHARD], 1)
        for server in (servers.standby, servers.leader):
            told = await server.ask("POST", PUBLISH, {"messages": ["a"]})
            assert (told.status, told.json()["code"], told.headers["retry-after"]) == (503, "shard_moving", "1")
            assert told.headers["basalt-owner"] == servers.owner.url
            assert server.passing.outcomes["answered"] == 1
        assert servers.owner.passing.outcomes["answered"] == 0
        told = await servers.owner.ask("POST", PUBLISH, {"messages": ["a"]})
        assert (told.status, told.json()["code"]) == (503, "shard_moving"), "nor does it go round"
        assert servers.leader.passing.outcomes["answered"] == 1

    run(story)


def test_a_topic_whose_owner_died_is_told_to_move():
    async def story(servers: Three) -> None:
        await servers.owner.ask("PUT", TOPIC)
        servers.owner.is_stopped = True
        await servers.owner.hang_up()
        for server in (servers.leader, servers.standby):
            told = await server.ask("POST", PUBLISH, {"messages": ["a"]})
            assert (told.status, told.json()["code"], told.headers["retry-after"]) == (503, "shard_moving", "1")
            assert servers.owner.url in told.json()["hint"]

        async def is_dead() -> bool:
            return all(
                server.member.membership.owner("owner-1").state == "dead"
                for server in (servers.leader, servers.standby)
            )

        await servers.leader.time.until(is_dead)
        for server in (servers.leader, servers.standby):
            for given in ({}, {"Basalt_Direct": "1"}):
                told = await server.ask("POST", PUBLISH, {"messages": ["a"]}, **given)
                code = "not_leader" if given and server is servers.standby else "shard_moving"
                assert (told.status, told.json()["code"], told.headers["retry-after"]) == (503, code, "1")
        assert (await servers.standby.ask("PUT", OTHERS)).status == 200, "all else goes on"

    run(story)


def test_an_owner_that_is_given_another_shard_back_is_passed_over_at_once():
    async def story(servers: Three) -> None:
        await servers.owner.ask("PUT", TOPIC)
        await deal(servers.standby, "first-1")
        await servers.leader.time.until(lambda: has_no_more(servers.leader, "owner-1"))
        assert (await servers.standby.ask("GET", TOPIC)).status == 404, "the leader knows no such topic"
        assert (await servers.leader.ask("GET", TOPIC)).headers.get("basalt-owner") is None

    run(story)


async def has_no_more(server: PortServer, member: str) -> bool:
    owners = server.member._owners()
    return owners is not None and member not in owners.members


def test_a_client_works_whoever_owns_its_topics():
    async def story(servers: Three) -> None:
        async with basalt.aio.connect(servers.standby.url, namespace="shop") as client:
            for name in ("orders", "returns"):
                await client.topics.create(name)
            asked = servers.standby.uvicorn.server_state.total_requests
            for number in range(3):
                for name in ("orders", "returns"):
                    await client.topic(name).publish([f"{number}"])
            for name in ("orders", "returns"):
                assert [message.text async for message in client.topic(name).read()] == ["0", "1", "2"]
        assert servers.standby.uvicorn.server_state.total_requests == asked, "it goes to owners itself"
        assert sum(sum(server.passing.outcomes.values()) for server in servers) == 0, "nothing was passed on"

    run(story)
