"""Three servers that share one store, of which one leads and another owns a topic: whichever is asked, the owner answers, once; and what callers are told while nobody does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

import aiohttp
import msgspec
import pytest
import uvloop
from uvicorn.server import ServerState

import basalt
from basalt.cluster.links.beats import LINKED_MS
from basalt.cluster.owners import OwnersMap, granted
from basalt.cluster.reigns import MOVING_WAIT_MS_MAX
from basalt.errors import ShardElsewhereError
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request
from basalt.server.leader_connection import LeaderLostError
from basalt.server.standby.standby_frame import FOLLOW_LOOK_MS, FOLLOW_MS_MAX
from basalt.settings import Settings
from basalt.settings.auth import AuthSettings
from basalt_engine.stores.shards import SHARDS
from tests.control.server.passing_pair import JSON, SHARD, TOPIC, PortServer, until
from tests.control.server.sharing_servers import SHARING, STEP_S, Sharers, SharingServer, sharers, told_apart
from tests.led_servers import HANG_S

PUBLISH = f"{TOPIC}/publish"
OTHERS = "/v1/namespaces/shop/topics/returns"  # which the leader owns


class Three(NamedTuple):
    world: Sharers
    leader: SharingServer
    owner: SharingServer
    other: SharingServer

    @property
    def servers(self) -> tuple[SharingServer, ...]:
        return self.leader, self.owner, self.other


async def give(world: Sharers, owner: SharingServer, **given: str) -> None:
    """Let this server own the topic, and all know it."""
    await world.give("orders", owner, **given)
    await world.until(lambda: world.all_know(owner, SHARD), "all know the owner")


def run(story: Callable[[Three], Awaitable[None]], settings: Settings = SHARING, **given: str) -> None:
    async def all_of_it() -> None:
        async with sharers(3, settings) as world:
            leader, owner, other = world.servers
            await give(world, owner, **given)
            await story(Three(world, leader, owner, other))

    uvloop.run(all_of_it())


async def read(server: PortServer) -> list[str]:
    told = await server.ask("POST", f"{TOPIC}/poll", {}, **JSON)
    assert told.status == 200, told.body
    return [each["payload"] for each in told.json()]


def test_whichever_server_is_asked_the_owner_answers():
    async def story(three: Three) -> None:
        assert (await three.leader.ask("PUT", TOPIC)).headers["basalt-owner"] == three.owner.url
        for number in range(9):
            server = three.servers[number % 3]
            told = await server.ask("POST", PUBLISH, {"messages": [f"{number}"]})
            assert told.status == 200, told.body
            assert told.headers.get("basalt-owner") == (None if server is three.owner else three.owner.url)
        for server in three.servers:
            assert await read(server) == [str(number) for number in range(9)]
        assert three.owner.passing.under_way == sum(three.owner.passing.outcomes.values()) == 0

    run(story)


def test_what_is_about_no_topic_of_another_is_the_leaders():
    async def story(three: Three) -> None:
        for method, target in (
            ("PUT", OTHERS),
            ("GET", OTHERS),
            ("GET", "/v1/namespaces"),
            ("GET", f"{OTHERS}/groups"),
            ("GET", "/v1/transactions"),
            ("GET", "/v1/admin/jobs"),
            ("GET", "/v1/namespaces/shop/tables"),
            ("GET", "/console"),
        ):
            for server in (three.owner, three.other):
                told = await server.ask(method, target, Accept="text/html" if target == "/console" else "*/*")
                assert told.headers["basalt-owner"] == three.leader.url, (method, target)
        assert (await three.leader.ask("GET", OTHERS)).headers.get("basalt-owner") is None
        listed = await three.owner.ask("GET", "/v1/namespaces/shop/topics")
        assert (listed.json(), listed.headers["basalt-owner"]) == (["returns"], three.leader.url)

    run(story)


def test_a_server_tells_of_itself():
    async def story(three: Three) -> None:
        await three.leader.ask("PUT", TOPIC)
        for server in three.servers:
            for target in ("/livez", "/readyz", "/v1", "/metrics"):
                told = await server.ask("GET", target)
                assert (told.status, told.headers.get("basalt-owner")) == (200, None), (target, told.body)
        figures = (await three.leader.ask("GET", "/metrics")).body.decode()
        assert 'basalt_cluster_passed_on_total{outcome="answered"} 1.0' in figures
        for server in (three.owner, three.other):
            figures = (await server.ask("GET", "/metrics")).body.decode()
            assert 'basalt_cluster_ranges_permitted_total{outcome="read"} 0.0' in figures
            assert (await server.ask("GET", "/readyz?leader=true")).status == 503
        assert (await three.leader.ask("GET", "/readyz?leader=true")).status == 200

    run(story)


def test_a_poll_waits_at_the_owner_and_ends_when_its_caller_hangs_up():
    async def story(three: Three) -> None:
        for server in (three.leader, three.other):
            assert (await three.owner.ask("PUT", TOPIC)).status == 200
            waiting = asyncio.ensure_future(server.ask("POST", f"{TOPIC}/poll?waitMs=30000", {}, **JSON))
            await until(lambda server=server: server.passing.under_way == 1)  # type: ignore[misc]
            waiting.cancel()
            await until(lambda server=server: server.passing.under_way == 0)  # type: ignore[misc]
            waiting = asyncio.ensure_future(server.ask("POST", f"{TOPIC}/poll?waitMs=30000", {}, **JSON))
            await until(lambda server=server: server.passing.under_way == 1)  # type: ignore[misc]
            assert (await three.owner.ask("POST", PUBLISH, {"messages": ["a"]})).status == 200
            assert [each["payload"] for each in (await waiting).json()] == ["a"]
            assert (await three.owner.ask("DELETE", TOPIC)).status == 200

    run(story)


def test_a_range_of_anothers_topic_is_read_by_the_owners_permit():
    async def story(three: Three) -> None:
        await three.owner.ask("PUT", TOPIC)
        await three.owner.ask("POST", PUBLISH, {"messages": ["a", "b"]})
        end = (await three.other.ask("GET", f"{TOPIC}/stable-end")).json()["id"]
        whole = await three.owner.ask("GET", f"{TOPIC}/range?through={end}")
        assert whole.status == 200
        for server in (three.other, three.leader):
            told = await server.ask("GET", f"{TOPIC}/range?through={end}")
            assert (told.status, told.body, told.headers.get("basalt-owner")) == (200, whole.body, None)
            assert server.member._standby.reading.outcomes["read"] == 1

    run(story)


def test_a_range_that_is_to_be_the_owners_is_refused_by_all_others():
    async def story(three: Three) -> None:
        await three.owner.ask("PUT", TOPIC)
        await three.owner.ask("POST", PUBLISH, {"messages": ["a"]})
        target = f"{TOPIC}/range?through={(await three.owner.ask('GET', f'{TOPIC}/stable-end')).json()['id']}"
        for server in (three.other, three.leader):
            told = await server.ask("GET", target, Basalt_Direct="owner")
            assert (told.status, told.json()["code"], told.json()["owner"]) == (503, "not_owner", three.owner.url)
            assert (await server.ask("GET", target, Basalt_Direct="1")).status == 200
        assert (await three.owner.ask("GET", target, Basalt_Direct="owner")).status == 200

    run(story)


def test_who_asks_for_the_owner_itself_is_told_who_that_is_by_the_leader_too():
    async def story(three: Three) -> None:
        for server in (three.leader, three.other):
            told = await server.ask("GET", TOPIC, Basalt_Direct="1")
            assert (told.status, told.json()["code"]) == (503, "not_owner")
            assert told.json()["owner"] == told.headers["basalt-owner"] == three.owner.url
            assert told.json()["member"] == three.owner.instance
        told = await three.owner.ask("GET", "/v1/transactions", Basalt_Direct="1")
        assert (told.json()["code"], told.json()["leader"]) == ("not_leader", three.leader.url)
        told = await three.owner.ask("GET", OTHERS, Basalt_Direct="1")
        assert (told.json()["code"], told.json()["owner"]) == ("not_owner", three.leader.url)
        assert (await three.owner.ask("PUT", TOPIC, Basalt_Direct="1")).status == 200

    run(story)


def test_a_group_is_made_and_dealt_by_the_owner_of_its_topic():
    async def story(three: Three) -> None:
        await three.owner.ask("PUT", TOPIC)
        group = f"{TOPIC}/groups/billing"
        for server in three.servers:
            told = await server.ask("GET", f"{TOPIC}/groups")
            assert (told.status, told.json()["groups"]) == (200, [])
            told = await server.ask("POST", f"{group}/fetch?member=one", {})
            assert (told.status, told.json()["code"]) == (404, "group_not_found"), told.body
        told = await three.other.ask("PUT", group, {}, Basalt_Direct="1")
        assert (told.status, told.json()["code"], told.json()["owner"]) == (503, "not_owner", three.owner.url)
        async with asyncio.timeout(HANG_S):
            while (told := await three.other.ask("PUT", group, {})).status == 503:
                await asyncio.sleep(STEP_S)
        assert told.status == 200, told.body
        assert SHARD in three.owner.held
        await three.other.ask("POST", PUBLISH, {"messages": ["a"]})
        for server in three.servers:
            assert [each["name"] for each in (await server.ask("GET", f"{TOPIC}/groups")).json()["groups"]] == [
                "billing"
            ]
        told = await three.other.ask("POST", f"{group}/fetch?member=ann", {}, **JSON)
        assert (told.status, told.headers["basalt-owner"]) == (200, three.owner.url), told.body
        assert b'"a"' in told.body

    run(story)


def test_where_nothing_is_passed_on_the_owner_is_named():
    async def story(three: Three) -> None:
        told = await three.leader.ask("GET", TOPIC)
        assert (told.json()["code"], told.json()["owner"]) == ("not_owner", three.owner.url)

    run(story, told_apart(SHARING, pass_on=False))


def test_a_call_that_was_passed_on_to_the_wrong_server_goes_no_further():
    async def story(three: Three) -> None:
        await three.owner.ask("PUT", TOPIC)
        gate = three.owner.services.topics.gate
        assert gate.owners is not None
        # The owner has heard of a newer map than the others, by which the leader has the topic.
        gate.owners = granted(gate.owners, three.leader.instance, [SHARD], 1)
        for server in (three.other, three.leader):
            told = await server.ask("POST", PUBLISH, {"messages": ["a"]})
            assert (told.status, told.json()["code"], told.headers["retry-after"]) == (503, "shard_moving", "1")
            assert told.headers["basalt-owner"] == three.owner.url
            assert server.passing.outcomes["answered"] == 1
        assert three.owner.passing.outcomes["answered"] == 0
        told = await three.owner.ask("POST", PUBLISH, {"messages": ["a"]})
        assert (told.status, told.json()["code"]) == (503, "shard_moving"), "nor does it go round"
        assert three.leader.passing.outcomes["answered"] == 1

    run(story)


def test_a_topic_whose_owner_died_moves_and_all_else_goes_on():
    async def story(three: Three) -> None:
        await three.owner.ask("PUT", TOPIC)
        with three.world.time.standing_still():  # else others have the topic after a quarter of a second
            await three.owner.die()
            for server in (three.leader, three.other):
                told = await server.ask("POST", PUBLISH, {"messages": ["a"]})
                assert (told.status, told.json()["code"], told.headers["retry-after"]) == (503, "shard_moving", "1")
                assert (await server.ask("GET", OTHERS)).status == 404
        for server in (three.leader, three.other):
            async with asyncio.timeout(HANG_S):
                while (told := await server.ask("POST", PUBLISH, {"messages": [server.name]})).status != 200:
                    assert (told.status, told.json()["code"]) == (503, "shard_moving"), told.body
                    await asyncio.sleep(STEP_S)
        assert await read(three.other) == [three.leader.name, three.other.name]

    run(story)


def test_an_owner_whose_renewals_are_late_is_passed_on_to_while_the_leader_hears_that_it_serves(
    monkeypatch: pytest.MonkeyPatch,
):
    async def story(three: Three) -> None:
        await three.owner.ask("PUT", TOPIC)
        time, leader = three.world.time, three.leader.member
        monkeypatch.setattr(three.owner.member.membership, "step", lambda: 0.0)

        def is_silent() -> bool:
            seen = [each.member.membership.owner(three.owner.instance).state for each in (three.leader, three.other)]
            return "live" not in seen and three.other.member.links.hears_of(three.owner.instance, SHARD)

        def stopping_time() -> bool:
            if is_silent():
                monkeypatch.setattr(time, "pass_on", lambda: None)  # its own lease lasts
            return is_silent()

        await three.world.until(stopping_time, "others have not seen it renew its row, and the leader hears it")
        told = await three.leader.ask("POST", PUBLISH, {"messages": ["a"]})
        assert (told.status, told.headers.get("basalt-owner")) == (200, three.owner.url), told.body
        told = await three.leader.ask("GET", TOPIC, Basalt_Direct="1")
        assert (told.json()["code"], told.json().get("owner")) == ("not_owner", three.owner.url)
        told = await three.other.ask("POST", PUBLISH, {"messages": ["b"]})
        assert (told.status, told.headers.get("basalt-owner")) == (200, three.owner.url), "by the leader's word"
        links = three.other.member.links
        monkeypatch.setattr(links, "_serving", frozenset())
        told = await three.other.ask("POST", PUBLISH, {"messages": ["c"]})
        assert (told.status, told.json()["code"]) == (503, "shard_moving"), (
            "else it asks the leader, which passes on nothing that was passed on"
        )

        row = leader.membership.row_of(three.owner.instance)
        assert row is not None
        heard = leader.links.beats.heard[row]
        assert heard.beat is not None
        at_ms, beat = heard.since_ms, heard.beat
        for since_ms, shards in ((at_ms - LINKED_MS, beat.shards), (at_ms, ((SHARD + 1, SHARDS - 1),))):
            heard.since_ms, heard.beat = since_ms, msgspec.structs.replace(beat, shards=shards)
            told = await three.leader.ask("POST", PUBLISH, {"messages": ["b"]})
            assert (told.status, told.json()["code"]) == (503, "shard_moving"), told.body
        assert await read(three.owner) == ["a", "b"]

    run(story)


def test_servers_that_are_cut_off_from_the_store_have_callers_go_to_others():
    """Whom nothing is known to but what was, and who would have callers wait for it, while another server serves the topic."""

    async def story(three: Three) -> None:
        await three.owner.ask("PUT", TOPIC)
        for server in (three.leader, three.owner):
            server.is_stopped = True  # neither reads nor renews a row any more
        await three.world.until(lambda: three.other.leads and SHARD in three.other.held, "the third has the topic")
        for server in (three.leader, three.owner):
            await three.world.until(lambda server=server: server.term is None, "it has seen that its lease is over")  # type: ignore[misc]
            for direct in ({"Basalt-Direct": "1"}, {}):
                told = await server.ask("POST", PUBLISH, {"messages": ["a"]}, **direct)
                assert (told.status, told.json()["code"]) == (503, "not_leader"), told.body
        assert await read(three.other) == []

    run(story)


def test_calls_follow_a_topic_that_moves_from_server_to_server():
    async def story(three: Three) -> None:
        await three.owner.ask("PUT", TOPIC)
        published: list[int] = []
        numbers = iter(range(10_000))
        is_over = False

        async def publish(server: SharingServer) -> None:
            async with basalt.aio.connect(server.url, namespace="shop") as client:
                while not is_over:
                    number = next(numbers)
                    await client.topic("orders").publish([f"{number}"])
                    published.append(number)

        async def publish_without_looking(server: SharingServer) -> None:
            while not is_over:
                number = next(numbers)
                while (told := await server.ask("POST", PUBLISH, {"messages": [f"{number}"]})).status != 200:
                    assert told.json()["code"] == "shard_moving", told.body
                published.append(number)

        publishing = [
            asyncio.ensure_future(each(server))
            for server in three.servers
            for each in (publish, publish_without_looking)
        ]
        for server in (three.other, three.leader, three.owner, three.other):
            await three.world.give("orders", server)
            moved = len(published)
            await three.world.until(lambda moved=moved: len(published) >= moved + 20, "it goes on")  # type: ignore[misc]
        is_over = True
        await asyncio.gather(*publishing)
        read_back = [int(each) for each in await read(three.leader)]
        assert sorted(read_back) == sorted(published), "each is there, and once"

    run(story)


def test_a_client_works_whoever_owns_its_topics():
    async def story(three: Three) -> None:
        async with basalt.aio.connect(three.other.url, namespace="shop") as client:
            for name in ("orders", "returns"):
                await client.topics.create(name)
            asked = three.other.uvicorn.server_state.total_requests
            for number in range(3):
                for name in ("orders", "returns"):
                    await client.topic(name).publish([f"{number}"])
            for name in ("orders", "returns"):
                assert [message.text async for message in client.topic(name).read()] == ["0", "1", "2"]
        assert three.other.uvicorn.server_state.total_requests == asked, "it goes to owners itself"
        assert sum(sum(server.passing.outcomes.values()) for server in three.servers) == 0, "nothing was passed on"

    run(story)


def test_a_page_asks_the_owner_who_judges_the_visitor_by_what_was_sent_for_the_page():
    root, stranger = "Bearer " + "r" * 40, "Bearer " + "s" * 40
    asked = replace(SHARING, auth=AuthSettings(kinds=("token",), bootstrap_token="r" * 40))
    form = {"Accept": "text/html", "Content-Type": "application/x-www-form-urlencoded"}
    topic = "namespace=shop&topic=orders"

    async def story(three: Three) -> None:
        create = "/console/topics/create"
        for server in (three.leader, three.other):
            told = await server.ask("POST", create, topic.encode(), Authorization=stranger, **form)
            assert told.status in (303, 401), told.body
        plan = await three.other.ask("POST", create, topic.encode(), Authorization=root, **form)
        found = re.search(rb'name="digest" value="([^"]+)"', plan.body)
        assert found is not None, plan.body
        fields = f"{topic}&digest={found[1].decode()}&reason=a+test"
        told = await three.other.ask("POST", create, fields.encode(), Authorization=root, **form)
        assert told.status == 200, told.body
        assert (await three.owner.ask("GET", TOPIC, Authorization=root)).status == 200
        assert three.leader.passing.outcomes["answered"] == 3, "the plan twice, and the act"
        for server in three.servers:
            page = await server.ask("GET", "/console/ns/shop/topics/orders", Authorization=root, Accept="text/html")
            assert page.status == 200
            assert b"shard_moving" not in page.body

    run(story, asked, Authorization=root)


def test_a_page_tells_of_an_owner_that_broke_off_in_its_answer(monkeypatch: pytest.MonkeyPatch):
    async def breaks_off(*_of: object) -> None:
        raise LeaderLostError("it went away")

    async def story(three: Three) -> None:
        monkeypatch.setattr(three.leader.member._standby, "begin", breaks_off)
        form = {"Accept": "text/html", "Content-Type": "application/x-www-form-urlencoded"}
        told = await three.leader.ask("POST", "/console/topics/create", b"namespace=shop&topic=orders", **form)
        assert told.status == 503
        assert b"broke off in its answer" in told.body

    run(story)


def goes_by_an_old_map(server: SharingServer, former: SharingServer, old: OwnersMap | None) -> ServerState:
    """Let this server know no newer map until the former owner has been asked once more: the state of whom that is told by."""
    asked, member = former.uvicorn.server_state, server.member
    seen, known = asked.total_requests, member._owners
    member._owners = member._standby._owners = lambda: old if asked.total_requests == seen else known()  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("before", [0, 3], ids=["the first of its kind", "passed on without a coroutine"])
def test_a_call_that_came_to_a_former_owner_is_answered_by_the_next_one(before: int):
    async def story(three: Three) -> None:
        await three.owner.ask("PUT", TOPIC)
        for number in range(before):
            assert (await three.other.ask("POST", PUBLISH, {"messages": [f"{number}"]})).status == 200
        old = three.other.member._owners()
        await give(three.world, three.leader)
        asked = goes_by_an_old_map(three.other, three.owner, old)
        seen = asked.total_requests
        told = await three.other.ask("POST", PUBLISH, {"messages": [f"{before}"]})
        assert (told.status, told.headers["basalt-owner"]) == (200, three.leader.url), told.body
        assert asked.total_requests == seen + 1
        assert three.other.passing.outcomes["not_done"] == 1
        assert three.other.passing.outcomes["answered"] == before + 1
        assert await read(three.leader) == [f"{number}" for number in range(before + 1)]
        assert three.other.passing.under_way == 0

    run(story)


def test_a_call_is_answered_anew_once_and_never_where_servers_do_not_share():
    assert FOLLOW_LOOK_MS < FOLLOW_MS_MAX < MOVING_WAIT_MS_MAX

    async def story(three: Three) -> None:
        await three.owner.ask("PUT", TOPIC)
        gate = three.owner.services.topics.gate
        assert gate.owners is not None
        gate.owners = granted(gate.owners, three.leader.instance, [SHARD], 1)
        before = three.owner.uvicorn.server_state.total_requests
        assert (await three.other.ask("POST", PUBLISH, {"messages": ["a"]})).json()["code"] == "shard_moving"
        assert three.owner.uvicorn.server_state.total_requests == before + 2
        frame = three.other.member._standby
        frame._settings = told_apart(SHARING, share=False)
        assert (await three.other.ask("POST", PUBLISH, {"messages": ["a"]})).json()["code"] == "shard_moving"
        assert three.owner.uvicorn.server_state.total_requests == before + 3

    run(story)


@pytest.mark.parametrize("before", [0, 3], ids=["the first of its kind", "passed on without a coroutine"])
def test_a_call_whose_topic_comes_to_its_own_server_while_it_is_passed_on_is_served_there(before: int):
    async def story(three: Three) -> None:
        await three.owner.ask("PUT", TOPIC)
        for number in range(before):
            assert (await three.other.ask("POST", PUBLISH, {"messages": [f"{number}"]})).status == 200
        old = three.other.member._owners()
        await give(three.world, three.other)
        goes_by_an_old_map(three.other, three.owner, old)
        told = await three.other.ask("POST", PUBLISH, {"messages": [f"{before}"]})
        assert (told.status, told.headers.get("basalt-owner")) == (200, None), told.body
        assert three.other.passing.outcomes["not_done"] == 1
        assert await read(three.other) == [f"{number}" for number in range(before + 1)]

    run(story)


def test_a_call_that_was_passed_on_after_its_body_was_read_is_served_whole_where_its_topic_comes_back(
    monkeypatch: pytest.MonkeyPatch,
):
    async def story(three: Three) -> None:
        await three.owner.ask("PUT", TOPIC)
        old = three.other.member._owners()
        await give(three.world, three.other)
        serving = three.other.member._serving
        assert serving is not None
        app, answer = serving.app, serving.app._answer

        async def leaves_after_the_body(request: Request) -> Response:
            """It waited for a move that ended elsewhere."""
            await request.body()
            monkeypatch.undo()
            goes_by_an_old_map(three.other, three.owner, old)
            raise ShardElsewhereError("another server has it; nothing was done")

        monkeypatch.setattr(app, "_submit", lambda *_of: False)
        monkeypatch.setattr(app, "_answer", leaves_after_the_body)
        told = await three.other.ask("POST", PUBLISH, {"messages": ["whole"]})
        assert app._answer == answer, "it went that way"
        assert (told.status, told.headers.get("basalt-owner")) == (200, None), told.body
        assert three.other.passing.outcomes["not_done"] == 1
        assert await read(three.other) == ["whole"]

    run(story)


def test_a_call_that_breaks_when_it_is_answered_anew_breaks_its_connection():
    async def story(three: Three) -> None:
        await three.owner.ask("PUT", TOPIC)
        for number in range(2):
            assert (await three.other.ask("POST", PUBLISH, {"messages": [f"{number}"]})).status == 200
        old = three.other.member._owners()
        await give(three.world, three.leader)
        goes_by_an_old_map(three.other, three.owner, old)

        async def breaks(*_of: object) -> None:
            raise LeaderLostError("half of its answer is out")

        three.other.member._standby._begin_again = breaks
        with pytest.raises(aiohttp.ClientError):
            await three.other.ask("POST", PUBLISH, {"messages": ["a"]})

    run(story)
