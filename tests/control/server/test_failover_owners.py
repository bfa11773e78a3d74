"""A call that is sent to a topic's owner itself, at a server that is not the owner: who is named; and a client that goes there, through an owner's death, too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

import basalt
from basalt.server.routing import place_of_call
from basalt_engine.keys import table_prefix, topic_prefix
from basalt_engine.stores.shards import shard_of
from tests.control.server.passing_pair import TOPIC, PortServer, Told, deal, join, passing_pair, until

TABLE = "/v1/namespaces/shop/tables/orders"
CALLS, AT_A_TIME, KILLED_AFTER = 1_000, 16, 300


def run(story: Callable[[PortServer, PortServer], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with passing_pair() as (leader, standby):
            assert (await leader.ask("PUT", TOPIC)).status == 200
            await story(leader, standby)

    uvloop.run(all_of_it())


async def directly(server: PortServer, target: str = TOPIC) -> Told:
    return await server.ask("GET", target, Basalt_Direct="1")


def test_who_is_asked_directly_for_anothers_topic_names_its_owner():
    async def story(leader: PortServer, standby: PortServer) -> None:
        for target in (TOPIC, f"{TOPIC}/stats", f"{TOPIC}-that-there-is-not", TABLE):
            told = await directly(standby, target)
            problem = told.json()
            assert (told.status, problem["code"]) == (503, "not_owner")
            assert problem["owner"] == problem["leader"] == leader.url
            assert problem["member"] == "first-1"
            assert "first-1 does; nothing was done" in problem["detail"]
            assert told.headers["basalt-owner"] == told.headers["basalt-leader"] == leader.url
            assert told.headers["retry-after"] == "1"
        assert (await directly(leader)).status == 200

    run(story)


@pytest.mark.parametrize("target", ["/v1/admin/jobs", "/v1/namespaces/shop/topics", "/v1/namespaces/shop/topics/a~b"])
def test_all_that_is_about_no_topic_is_the_leaders(target: str):
    async def story(leader: PortServer, standby: PortServer) -> None:
        told = await directly(standby, target)
        assert (told.json()["code"], told.json()["leader"], told.json().get("owner")) == (
            "not_leader",
            leader.url,
            None,
        )

    run(story)


def test_a_call_that_is_not_sent_to_the_owner_itself_is_passed_on():
    async def story(leader: PortServer, standby: PortServer) -> None:
        told = await standby.ask("GET", TOPIC)
        assert (told.status, told.headers["basalt-owner"]) == (200, leader.url)

    run(story)


def test_an_owner_that_does_not_lead_is_named_while_it_is_live():
    async def story(leader: PortServer, standby: PortServer) -> None:
        join(standby, "third-1")
        await deal(standby, "third-1")
        told = (await directly(standby)).json()
        assert (told["code"], told["owner"], told["member"]) == ("not_owner", "http://third:4780", "third-1")
        assert told["leader"] == leader.url
        other = (await directly(standby, TABLE)).json()
        assert (other["owner"], other["member"]) == (leader.url, "first-1")

        async def is_silent() -> bool:
            return standby.member.membership.owner("third-1").state != "live"

        await standby.time.until(is_silent)
        told = (await directly(standby)).json()
        assert (told["code"], told.get("owner")) == ("not_leader", None)

    run(story)


@pytest.mark.parametrize("member", ["nobody-1", "second-1"])
def test_no_owner_is_named_that_is_gone_or_the_server_itself(member: str):
    async def story(leader: PortServer, standby: PortServer) -> None:
        await deal(standby, member)
        told = (await directly(standby)).json()
        assert (told["code"], told["leader"], told.get("owner")) == ("not_leader", leader.url, None)

    run(story)


@pytest.mark.parametrize(
    ("path", "prefix"),
    [
        ("/v1/namespaces/shop/topics/orders", topic_prefix("shop", "orders")),
        ("/v1/namespaces/shop/topics/orders/", topic_prefix("shop", "orders")),
        ("/v1/namespaces/shop/topics/orders/groups/g/fetch", topic_prefix("shop", "orders")),
        ("/v1/namespaces/shop/tables/orders/read", table_prefix("shop", "orders")),
        ("/v1/namespaces/shop/topics", None),
        ("/v1/namespaces/shop/topics/", None),
        ("/v1/namespaces/shop/topics/a\nb", None),
        ("/v1/namespaces/shop/topics/orders\n", None),
        ("/v2/namespaces/shop/topics/orders", None),
        ("/x/v1/namespaces/shop/topics/orders", None),
        ("/v1/namespaces/shop/topics/\u00e9", None),
    ],
)
def test_the_shard_that_a_path_is_about(path: str, prefix: bytes | None):
    assert place_of_call("GET", path).shard == (None if prefix is None else shard_of(prefix))


def test_a_client_that_begins_at_a_standby_asks_it_once_for_any_number_of_topics():
    async def story(leader: PortServer, standby: PortServer) -> None:
        async with basalt.aio.connect(standby.url, namespace="shop") as client:
            for name in ("orders", "orders", "returns", "stock"):
                if name != "orders":
                    await client.topics.create(name)
                await client.topic(name).publish(["a"])
        assert sum(standby.passing.outcomes.values()) == 0, "nothing was passed on"
        assert standby.uvicorn.server_state.total_requests == 1

    run(story)


def test_an_owner_that_dies_under_a_thousand_calls_loses_none_and_doubles_none():
    async def story(leader: PortServer, standby: PortServer) -> None:
        done: list[int] = []
        numbers = iter(range(CALLS))

        async def publish(client: basalt.AsyncClient) -> None:
            for number in numbers:
                await client.topic("orders").publish([f"{number}"])
                done.append(number)

        async with basalt.aio.connect(f"{standby.url},{leader.url}", namespace="shop") as client:
            publishing = [asyncio.ensure_future(publish(client)) for _ in range(AT_A_TIME)]
            await until(lambda: len(done) > KILLED_AFTER)
            await leader.hang_up()
            await leader.die()
            await standby.time.until(standby.serves)
            await asyncio.gather(*publishing)
            read = [int(message.text) async for message in client.topic("orders").read()]
        assert sorted(done) == list(range(CALLS))
        assert sorted(read) == list(range(CALLS)), "each is there, and once"

    run(story)
