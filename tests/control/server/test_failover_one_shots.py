"""One-shot transactions at servers that share topics: who carries them out, and what clients were told when a server dies."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress

import aiohttp

import basalt
from basalt.api.bodies.messages import Work, WorkPublish
from basalt.api.codecs import avro
from tests.control.server.sharing_servers import Sharers, SharingServer, read_with
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


class Load:
    """Clients that send one-shots, each one under its request id until it is done; `told` are the texts of which that was said."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        self._is_over = False
        self._clients: list[asyncio.Task[None]] = []

    def start(self, number: int, server: Callable[[], SharingServer], *, may_die: bool = False) -> None:
        """One more client, which sends each call to whichever server that is then. `may_die`: its answer may be lost."""
        self._clients.append(asyncio.create_task(self._publish(number, server, may_die)))

    async def goes_on(self, world: Sharers, calls: int) -> None:
        """Return once more calls than these have been done."""
        before = len(self.told)
        await world.until(lambda: len(self.told) > before + calls, "calls go on")

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._clients)

    async def _publish(self, number: int, server: Callable[[], SharingServer], may_die: bool) -> None:
        for call in itertools.count():
            text = f"{number}.{call}"
            given = {"Content-Type": AVRO, "Basalt-Request-Id": text}
            while text not in self.told:
                with suppress(*((aiohttp.ClientError, OSError, TimeoutError) if may_die else ())):
                    answer = await server().ask("POST", "/v1/transactions", work(OWN, text=text), **given)
                    assert may_die or answer.status in (200, 503), answer.body
                    if answer.status == 200:
                        self.told.add(text)
                if self._is_over:
                    return


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
        load = Load()
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            member = await with_topics(world, client)
        for number in range(6):
            load.start(number, lambda number=number: world.living[number % len(world.living)], may_die=True)  # type: ignore[misc]
        for victim in (world.leader, member):
            await load.goes_on(world, 30)
            await victim.die()
            await load.goes_on(world, 30)
        await load.stop()
        (last,) = world.living
        async with basalt.aio.connect(last.url, namespace="shop") as client:
            await read_with(client, OWN, load.told)

    run(story, 3)


def test_links_that_break_all_the_time_lose_and_double_nothing():
    async def story(world: Sharers) -> None:
        load = Load()
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            member = await with_topics(world, client)
            for number in range(8):
                load.start(number, lambda: member)
            linked = member.services.transactions._linked
            assert linked is not None
            for broken in itertools.count():
                if broken >= 12 and linked.lost_total:  # it broke under a decision, too
                    break
                await load.goes_on(world, 10)
                links = member.member.links
                if links.to_leader is not None:
                    links.to_leader.close("the story breaks it")
            await load.stop()
            await read_with(client, OWN, load.told)

    run(story)
