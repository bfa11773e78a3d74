"""Several servers that serve the topics of one store beside each other: what a client gets from any of them, and what becomes of it when one of them goes."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Literal

import pytest
import uvloop

import basalt
from basalt.catalog.topics import topic_name
from basalt.client import Batch, Output
from basalt.client.consumer import processing
from basalt.errors import CoordinatorUnavailableError, ShardMovingError, TransactionEndedError, TransactionNotFoundError
from tests.control.server.sharing_servers import Sharers, SharingServer, Story, sharers
from tests.led_servers import HANG_S

ORDERS = topic_name("shop", "orders")
Isolation = Literal["committed", "uncommitted"]


def run(story: Story, count: int = 2) -> None:
    async def all_of_it() -> None:
        async with sharers(count) as world:
            await story(world)

    uvloop.run(all_of_it())


def test_a_server_that_does_not_lead_opens_services_of_its_own():
    async def story(world: Sharers) -> None:
        (member,) = world.members
        await world.until(lambda: member.services.transactions.manager.is_known, "it follows the log")
        assert member.services.scheduler.figures().keys() == {"dead-letters", "retention", "stats"}

    run(story)


def test_a_shard_that_moves_is_served_by_the_member_and_no_more_by_the_leader():
    async def story(world: Sharers) -> None:
        leader, (member,) = world.leader, world.members
        await world.give("orders", member)
        assert len(member.held) == 1
        assert world.all_is_dealt()
        await member.services.topics.create(ORDERS, {})
        await member.services.messaging.publish(ORDERS, [b"a"], None)
        with pytest.raises(ShardMovingError):
            await leader.services.messaging.publish(ORDERS, [b"b"], None)

    run(story)


async def read(client: basalt.AsyncClient, topic: str, isolation: Isolation = "committed") -> list[str]:
    return [message.text async for message in client.topic(topic).read(isolation=isolation)]


def test_any_server_takes_calls_about_any_topic():
    async def story(world: Sharers) -> None:
        for topic, owner in zip(("orders", "invoices", "returns"), world.servers, strict=True):
            await world.give(topic, owner)
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            for topic in ("orders", "invoices", "returns"):
                await client.topics.create(topic)
        for server in world.servers:
            async with basalt.aio.connect(server.url, namespace="shop") as client:
                assert sorted(await client.topics.list()) == ["invoices", "orders", "returns"]
                for topic in ("orders", "invoices", "returns"):
                    await client.topic(topic).publish([f"by {server.name}"])
        expected = [f"by {server.name}" for server in world.servers]
        for server in world.servers:
            async with basalt.aio.connect(server.url, namespace="shop") as client:
                for topic in ("orders", "invoices", "returns"):
                    assert await read(client, topic) == expected
                    assert await read(client, topic, "uncommitted") == expected

    run(story, 3)


def test_a_transaction_over_topics_of_two_owners_shows_in_both_at_once():
    async def story(world: Sharers) -> None:
        leader, (member,) = world.leader, world.members
        await world.give("orders", member)
        await world.give("invoices", leader)
        for server in world.servers:
            async with basalt.aio.connect(server.url, namespace="shop") as client:
                if server is leader:
                    for topic in ("orders", "invoices"):
                        await client.topics.create(topic)
                async with client.transaction() as tx:
                    for topic in ("orders", "invoices"):
                        before = await read(client, topic)
                        await tx.publish(topic, [f"published by {server.name}"])
                        await tx.store(topic, [f"stored by {server.name}"])
                        assert await read(client, topic) == before
                with pytest.raises(KeyError):
                    async with client.transaction() as tx:
                        await tx.store("orders", ["rolled back"])
                        await tx.store("invoices", ["rolled back"])
                        raise KeyError
        expected = [f"{what} by {server.name}" for server in world.servers for what in ("published", "stored")]
        for server in world.servers:
            async with basalt.aio.connect(server.url, namespace="shop") as client:
                for topic in ("orders", "invoices"):
                    assert await read(client, topic) == expected

    run(story)


def test_what_was_published_early_under_another_owner_is_rolled_back_by_whoever_has_the_topic_then():
    """The next owner had the topic before, or never; and it is asked for a roll back by whom it follows."""

    async def story(world: Sharers) -> None:
        leader, (second, third) = world.leader, world.members
        async with basalt.aio.connect(leader.url, namespace="shop") as client:
            await world.give("orders", leader)
            await client.topics.create("orders")
            for former, following in ((second, leader), (leader, third), (third, second)):
                await world.give("orders", former)
                tx = await client.transactions.begin()
                await client.topic("orders").publish("aborted", write_pointer=tx.write_pointer)
                await world.give("orders", following)
                await client.transactions.abort(tx)
                await client.publish_atomically({"orders": ["committed"]})  # by it views pass the aborted one
                assert set(await read(client, "orders")) == {"committed"}

    run(story, 3)


def test_a_call_that_only_its_handler_finds_to_be_the_leaders_is_passed_on_however_often_it_comes():
    async def story(world: Sharers) -> None:
        (member,) = world.members
        async with basalt.aio.connect(member.url, namespace="shop", attempts_max=1) as client:
            for version in range(1, 6):
                tx = await client.named_transaction("job", "run", version)
                await client.transactions.commit_segments(tx.id, [])

    run(story)


def test_who_takes_a_topic_and_cannot_ask_the_coordinator_serves_it_and_takes_no_transaction_for_known():
    async def story(world: Sharers) -> None:
        (member,) = world.members
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            await world.give("orders", world.leader)
            await client.topics.create("orders")
            tx = await client.transactions.begin()
            await client.topic("orders").publish("aborted", write_pointer=tx.write_pointer)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(member.services.transactions.manager, "ask", _unanswered)
                await world.give("orders", member)
                await client.topic("orders").publish("plain")
            await client.transactions.abort(tx)
            await client.publish_atomically({"orders": ["committed"]})
            assert await read(client, "orders") == ["plain", "committed"]

    run(story)


async def _unanswered() -> None:
    raise CoordinatorUnavailableError("nobody answers")


def test_one_shot_transactions_at_a_member_and_over_two_owners():
    async def story(world: Sharers) -> None:
        leader, (member,) = world.leader, world.members
        await world.give("orders", member)
        await world.give("invoices", leader)
        for server in world.servers:
            async with basalt.aio.connect(server.url, namespace="shop") as client:
                if server is leader:
                    for topic in ("orders", "invoices"):
                        await client.topics.create(topic)
                await client.publish_atomically({"orders": [f"alone by {server.name}"]})
                await client.publish_atomically({"invoices": [f"alone by {server.name}"]})
                await client.publish_atomically({topic: [f"both by {server.name}"] for topic in ("orders", "invoices")})
        expected = [f"{what} by {server.name}" for server in world.servers for what in ("alone", "both")]
        for server in world.servers:
            async with basalt.aio.connect(server.url, namespace="shop") as client:
                for topic in ("orders", "invoices"):
                    assert await read(client, topic) == expected

    run(story)


def test_a_group_stays_where_its_topic_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processing, "ROUND_WAIT_MS", 100)

    async def story(world: Sharers) -> None:
        (member,) = world.members
        await world.give("orders", member)
        async with basalt.aio.connect(member.url, namespace="shop") as client:
            await client.topics.create("orders")
            await client.topic("orders").publish([str(number) for number in range(10)])
            handled: list[str] = []

            async def handle(batch: Batch, out: Output) -> None:
                handled.extend(message.text for message in batch)
                out.publish("copies", [message.payload for message in batch])

            await client.topics.create("copies")
            async with client.consumer("orders", group="readers", member="ann") as orders:
                await orders.process(handle, until=lambda: orders.waiting_for == "no_messages", limit=3)
            assert handled == [str(number) for number in range(10)]
            assert await read(client, "copies") == handled
        assert world.owner_of("orders") is member

    run(story)


def test_calls_go_on_while_a_shard_moves_to_and_fro():
    async def story(world: Sharers) -> None:
        sent: list[str] = []
        over = asyncio.Event()

        async def publish(server: SharingServer) -> None:
            async with basalt.aio.connect(server.url, namespace="shop") as client:
                while not over.is_set():
                    text = f"{server.name} {len(sent)}"
                    sent.append(text)
                    await client.topic("orders").publish([text])

        async def commit(server: SharingServer) -> None:
            async with basalt.aio.connect(server.url, namespace="shop") as client:
                while not over.is_set():
                    text = f"{server.name} {len(sent)}"
                    sent.append(text)
                    async with client.transaction() as tx:
                        await tx.publish("orders", [text])
                        await tx.publish("invoices", [text])

        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            for topic in ("orders", "invoices"):
                await client.topics.create(topic)
            load = [asyncio.ensure_future(work(server)) for server in world.servers for work in (publish, commit)]
            for number in range(12):
                await world.give("orders", world.servers[number % len(world.servers)])
                before = len(sent)
                await world.until(lambda: len(sent) > before + 20, "calls go on")  # noqa: B023
            over.set()
            await asyncio.gather(*load)
            assert sorted(await read(client, "orders")) == sorted(sent)
            assert set(await read(client, "invoices")) < set(sent)

    run(story, 3)


class Load:
    """Clients that publish and commit at all servers of a list, and go on through whatever becomes of one of them."""

    def __init__(self, *servers: SharingServer) -> None:
        self.urls = ",".join(server.url for server in servers)
        self.sent: list[str] = []  # of which each is answered
        self.over = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for work in (self.publish, self.commit, self.one_shot):
            for number in range(2):
                self.tasks.append(asyncio.ensure_future(work(f"{work.__name__} {number}")))

    async def publish(self, name: str) -> None:
        async with basalt.aio.connect(self.urls, namespace="shop") as client:
            for number in itertools.count():
                if self.over.is_set():
                    return
                await client.topic("orders").publish([f"{name} {number}"])
                self.sent.append(f"{name} {number}")

    async def commit(self, name: str) -> None:
        async with basalt.aio.connect(self.urls, namespace="shop") as client:
            for number in itertools.count():
                if self.over.is_set():
                    return
                text = f"{name} {number}"
                while True:
                    try:
                        async with client.transaction() as tx:
                            await tx.store("orders", [text])
                            await tx.publish("invoices", [text])
                        break
                    except (TransactionEndedError, TransactionNotFoundError):
                        continue  # it was rolled back: it is run again
                self.sent.append(text)

    async def one_shot(self, name: str) -> None:
        async with basalt.aio.connect(self.urls, namespace="shop") as client:
            for number in itertools.count():
                if self.over.is_set():
                    return
                await client.publish_atomically({topic: [f"{name} {number}"] for topic in ("orders", "invoices")})
                self.sent.append(f"{name} {number}")

    async def end(self) -> None:
        self.over.set()
        await asyncio.gather(*self.tasks)


async def under_load(world: Sharers, happens: Callable[[], Awaitable[None]], servers: list[SharingServer]) -> None:
    """Nothing that was answered is lost or doubled, whatever happens meanwhile."""
    async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
        for topic in ("orders", "invoices"):
            await client.topics.create(topic)
    load = Load(*servers)
    load.start()
    await world.until(lambda: len(load.sent) > 100, "calls are answered")
    await happens()
    before = len(load.sent)
    await world.until(lambda: len(load.sent) > before + 100, "calls are answered again")
    await load.end()
    invoiced = [text for text in load.sent if not text.startswith("publish")]
    async with basalt.aio.connect(load.urls, namespace="shop") as client:
        await is_read(client, "orders", load.sent)
        await is_read(client, "invoices", invoiced)


async def is_read(client: basalt.AsyncClient, topic: str, sent: list[str]) -> None:
    """Each is there, and once; after some time where a reader waits for what is being rolled back."""
    async with asyncio.timeout(HANG_S):
        while True:
            found = Counter(await read(client, topic))
            assert not [text for text, count in found.items() if count > 1 or text not in sent]
            if len(found) == len(sent):
                return
            await asyncio.sleep(0.05)


def test_a_member_that_stops_has_its_shards_taken_before_and_nobody_notices():
    async def story(world: Sharers) -> None:
        first, second = world.members
        await world.give("orders", first)
        await world.give("invoices", second)

        async def stops() -> None:
            await first.end()
            assert world.all_is_dealt(), "nobody waits for the end of a lease"

        await under_load(world, stops, [world.leader, second])

    run(story, 3)


def test_a_member_that_dies_loses_nothing():
    async def story(world: Sharers) -> None:
        first, second = world.members
        await world.give("orders", first)
        await world.give("invoices", second)

        async def dies() -> None:
            await first.die()
            await world.until(world.all_is_dealt, "others have its shards")

        await under_load(world, dies, [world.leader, second])

    run(story, 3)


def leader_goes(how: Callable[[SharingServer], Awaitable[None]]) -> None:
    """Two members have to go on without the leader, under load."""

    async def story(world: Sharers) -> None:
        leader, (first, second) = world.leader, world.members
        await world.give("orders", first)

        async def goes() -> None:
            await how(leader)
            await world.until(
                lambda: any(each.leads for each in world.living) and world.all_is_dealt(), "another leads"
            )

        await under_load(world, goes, [first, second])

    run(story, 3)


def test_a_leader_that_dies_loses_nothing():
    leader_goes(SharingServer.die)


def test_a_leader_that_stops_loses_nothing():
    leader_goes(SharingServer.end)


def test_a_member_is_ready_while_its_lease_is_on_and_tells_how_many_shards_it_serves():
    async def story(world: Sharers) -> None:
        (member,) = world.members
        await world.give("orders", member)
        await world.until(lambda: member.services.transactions.manager.is_known, "it follows the log")
        told = await member.ask("GET", "/readyz")
        parts = {part["name"]: part for part in told.json()["parts"]}
        assert (told.status, parts["member"]["ok"], parts["coordinator"]["ok"]) == (200, True, True)
        assert parts["shards"]["detail"] == "1 of 1024 shards are served here"
        leads = {"name": "leader", "ok": True, "latencyMs": 0.0, "detail": f"standby: {world.leader.url} leads"}
        assert parts["leader"] == leads
        told = await member.ask("GET", "/readyz?leader=true")
        assert (told.status, told.json()["ready"]) == (503, False)
        assert {**leads, "ok": False} in told.json()["parts"]
        assert (await member.ask("GET", "/metrics")).status == 200
        await world.leader.die()  # the part is not what keeps requests away
        await world.until(lambda: member.leads, "it leads")

    run(story)


def test_what_is_done_at_a_member_leaves_a_line_of_the_audit():
    async def story(world: Sharers) -> None:
        (member,) = world.members
        await world.give("orders", member)
        async with basalt.aio.connect(member.url, namespace="shop") as client:
            await client.topics.create("orders")
            await client.topics.delete("orders")
        told = await world.leader.ask("GET", "/v1/admin/audit")
        lines = [(line["act"], line["what"], line["outcome"]) for line in told.json()]
        assert ("delete topic", "topic shop:orders") in [line[:2] for line in lines], lines

    run(story)
