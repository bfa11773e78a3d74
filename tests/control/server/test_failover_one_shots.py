"""One-shot transactions at servers that share topics: who carries them out, and what clients were told when a server dies."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress

import aiohttp

import basalt
from basalt.api.bodies.messages import Work, WorkPublish
from basalt.api.codecs import avro
from tests.control.server.sharing_servers import Sharers, SharingServer
from tests.control.server.test_failover_sharing import read, run

AVRO = "avro/binary"
OWN, LEADERS = "orders", "invoices"


async def with_topics(world: Sharers, client: basalt.AsyncClient) -> SharingServer:
    """A topic of the leader's and one of a member, which is returned."""
    (member, *_) = world.members
    await world.give(OWN, member)
    await world.give(LEADERS, world.leader)
    for topic in (OWN, LEADERS):
        await client.topics.create(topic)
    return member


def loans_of(world: Sharers, member: SharingServer) -> int:
    """The number of loans that the member has."""
    return len(world.leader.services.transactions.state.loans.of(member.member.membership.instance))


def work(*topics: str, text: str = "m") -> bytes:
    return avro.encode_work(Work(publish=[WorkPublish("shop", topic, [text.encode()]) for topic in topics]))


def test_a_member_carries_out_those_of_its_own_topics_and_passes_on_all_else():
    async def story(world: Sharers) -> None:
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            member = await with_topics(world, client)
            passed = member.member._standby.passing.outcomes
            before, away = passed["answered"], {"Content-Type": AVRO}
            assert (await member.ask("POST", "/v1/transactions", work(OWN), **away)).status == 200
            assert (loans_of(world, member), passed["answered"]) == (1, before)
            for topics in ((LEADERS,), (OWN, LEADERS), ()):
                assert (await member.ask("POST", "/v1/transactions", work(*topics), **away)).status == 200
            assert (await member.ask("POST", "/v1/transactions", {})).status == 200, (
                "a begin, which is one call over the link"
            )
            assert passed["answered"] == before + 3
            assert len(await read(client, OWN)) == len(await read(client, LEADERS)) == 2

    run(story)


def test_one_request_sent_to_all_servers_at_a_time_is_carried_out_once():
    async def story(world: Sharers) -> None:
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            await with_topics(world, client)
            for number in range(5):
                given = {"Content-Type": AVRO, "Basalt-Request-Id": f"r{number}"}
                calls = [server.ask("POST", "/v1/transactions", work(OWN), **given) for server in world.servers * 2]
                told = await asyncio.gather(*calls)
                assert {each.status for each in told} == {200}
                assert len({each.body for each in told}) == 1
            assert len(await read(client, OWN)) == 5

    run(story, 3)


def test_what_was_told_to_be_committed_shows_once_when_the_leader_dies_and_when_a_member_does():
    async def story(world: Sharers) -> None:
        told, over = set[str](), asyncio.Event()

        async def publish(number: int) -> None:
            for call in itertools.count():
                text = f"{number}.{call}"
                given = {"Content-Type": AVRO, "Basalt-Request-Id": text}
                while text not in told:
                    server = world.living[number % len(world.living)]
                    with suppress(aiohttp.ClientError, OSError, TimeoutError):
                        answer = await server.ask("POST", "/v1/transactions", work(OWN, text=text), **given)
                        if answer.status == 200:
                            told.add(text)
                    if over.is_set():
                        return

        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            member = await with_topics(world, client)
        load = [asyncio.ensure_future(publish(number)) for number in range(6)]
        for victim in (world.leader, member):
            before = len(told)
            await world.until(lambda: len(told) > before + 30, "calls go on")  # noqa: B023
            await victim.die()
            before = len(told)
            await world.until(lambda: len(told) > before + 30, "calls go on without it")  # noqa: B023
        over.set()
        await asyncio.gather(*load)
        (last,) = world.living
        async with basalt.aio.connect(last.url, namespace="shop") as client:
            shown = await read(client, OWN)
        assert len(shown) == len(set(shown)), "something shows twice"
        assert told <= set(shown)

    run(story, 3)


def test_links_that_break_all_the_time_lose_and_double_nothing():
    async def story(world: Sharers) -> None:
        told, over = set[str](), asyncio.Event()

        async def publish(number: int) -> None:
            for call in itertools.count():
                text = f"{number}.{call}"
                given = {"Content-Type": AVRO, "Basalt-Request-Id": text}
                while text not in told:
                    answer = await member.ask("POST", "/v1/transactions", work(OWN, text=text), **given)
                    assert answer.status in (200, 503), answer.body
                    if answer.status == 200:
                        told.add(text)
                    if over.is_set():
                        return

        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            member = await with_topics(world, client)
            load = [asyncio.ensure_future(publish(number)) for number in range(8)]
            linked = member.services.transactions._linked
            assert linked is not None
            for broken in itertools.count():
                if broken >= 12 and linked.lost_total:  # it broke under a decision, too
                    break
                before = len(told)
                await world.until(lambda: len(told) > before + 10, "calls go on")  # noqa: B023
                links = member.member.links
                if links.to_leader is not None:
                    links.to_leader.close("the story breaks it")
            over.set()
            await asyncio.gather(*load)
            shown = await read(client, OWN)
        assert len(shown) == len(set(shown)), "something shows twice"
        assert told <= set(shown)

    run(story)
