"""Consumer groups whose topics several servers own: each is dealt by its owner, and what is acknowledged is decided once, wherever that was asked."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

import basalt
from basalt.api.bodies.groups import GroupOptions
from basalt.api.bodies.messages import Work, WorkAcknowledge, WorkPublish
from basalt.catalog.topics import topic_name
from basalt.client import Batch, Output
from basalt.client.consumer import processing
from basalt.commits.groups_elsewhere import GroupsElsewhere
from basalt.errors import (
    ClaimLostError,
    GroupNotFoundError,
    ShardMovingError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.groups.fetches import FetchAsk
from basalt.transactions.followed import FollowedTransactions
from basalt.transactions.rules.transaction import State, Transaction
from basalt_engine.errors import BasaltError
from tests.control.server.sharing_servers import Sharers, SharingServer, Story, sharers
from tests.led_servers import HANG_S

ORDERS = topic_name("shop", "orders")


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processing, "ROUND_WAIT_MS", 100)


def run(story: Story, count: int = 2) -> None:
    async def all_of_it() -> None:
        async with sharers(count) as world:
            await story(world)

    uvloop.run(all_of_it())


async def shop(world: Sharers, client: basalt.AsyncClient, **owners: SharingServer) -> None:
    """Topics of these owners."""
    for topic, owner in owners.items():
        await world.give(topic, owner)
        await client.topics.create(topic)


async def read(client: basalt.AsyncClient, topic: str) -> list[str]:
    return [message.text async for message in client.topic(topic).read()]


async def drained(client: basalt.AsyncClient, topic: str, group: str = "billing", **options: object) -> list[str]:
    """All that is dealt to one member; what was handled is acknowledged with the next fetch."""
    found: list[str] = []

    async def handle(batch: Batch, out: Output) -> None:
        found.extend(message.text for message in batch)

    async with client.consumer(topic, group=group, **options) as consumer:  # type: ignore[arg-type]
        await consumer.process(handle, until=lambda: consumer.waiting_for == "no_messages", limit=2)
    return found


def test_a_group_is_made_dealt_and_acknowledged_at_the_owner_of_its_topic():
    async def story(world: Sharers) -> None:
        leader, (member,) = world.leader, world.members
        for server in world.servers:
            async with basalt.aio.connect(server.url, namespace="shop") as client:
                if server is leader:
                    await shop(world, client, orders=member)
                await client.topic("orders").publish([f"{server.name} {number}" for number in range(5)])
                assert await drained(client, "orders") == [f"{server.name} {number}" for number in range(5)]
                assert await drained(client, "orders") == []
        assert [live.title for live in member.services.groups.live.all()] == [ORDERS]
        assert leader.services.groups.live.all() == []
        (state,) = leader.services.transactions.state.groups.by_number.values()
        assert len(state.acknowledged) == 1
        followed = member.services.transactions.manager
        assert isinstance(followed, FollowedTransactions)
        assert followed.proposing.lost_total == 0
        assert followed.proposing.guess is None

    run(story)


@pytest.mark.parametrize("mode", ["shared", "keyed", "stream"])
def test_what_a_batch_makes_is_published_elsewhere_and_acknowledged_here_in_one_decision(mode: str):
    async def story(world: Sharers) -> None:
        leader, second, third = (world.leader, *world.members)
        async with basalt.aio.connect(third.url, namespace="shop") as client:
            await shop(world, client, orders=second, copies=third, others=leader)
            sent = [str(number) for number in range(10)]
            for text in sent:
                await client.topic("orders").publish([text], key=text[-1])
            for topic in ("copies", "others"):
                name = f"into-{topic}"
                async with client.consumer("orders", group=name, mode=mode, member="ann") as consumer:  # type: ignore[arg-type]

                    async def handle(batch: Batch, out: Output, topic: str = topic) -> None:
                        out.publish(topic, [message.payload for message in batch])

                    await consumer.process(handle, until=lambda: consumer.waiting_for == "no_messages", limit=3)
                assert sorted(await read(client, topic)) == sent
                assert await drained(client, "orders", name, mode=mode, member="bob") == []

    run(story, 3)


def test_a_transaction_acknowledges_with_its_commit_and_gives_back_with_its_abort():
    async def story(world: Sharers) -> None:
        leader, second, third = (world.leader, *world.members)
        async with basalt.aio.connect(leader.url, namespace="shop") as client:
            await shop(world, client, orders=second, copies=third)
            await client.topic("orders").publish([str(number) for number in range(6)])
            async with client.consumer("orders", group="billing", retry_delay_ms=1) as consumer:
                with pytest.raises(KeyError):
                    async with client.transaction() as tx:
                        batch = await anext(aiter(consumer.batches(limit=3)))
                        await tx.publish("copies", ["never"])
                        await tx.acknowledge(batch)
                        raise KeyError
                seen = list[str]()
                async for batch in consumer.batches(limit=4):
                    async with client.transaction() as tx:
                        await tx.publish("copies", [message.payload for message in batch])
                        await tx.acknowledge(batch)
                    seen += [message.text for message in batch]
                    if len(seen) >= 6:
                        break
            assert sorted(seen) == sorted(await read(client, "copies")) == [str(number) for number in range(6)]
            assert await drained(client, "orders") == []

    run(story, 3)


class Copying:
    """Clients that copy orders, each batch with its acknowledgement, and go on through whatever becomes of servers."""

    def __init__(self, world: Sharers, servers: list[SharingServer]) -> None:
        self.urls = ",".join(server.url for server in servers)
        self.world = world
        self.sent: list[str] = []
        self.copied = 0
        self.over, self.drained = asyncio.Event(), asyncio.Event()
        self.tasks = [
            asyncio.ensure_future(each) for each in (self.publish(), self.process(), self.process(), self.transact())
        ]

    async def publish(self) -> None:
        async with basalt.aio.connect(self.urls, namespace="shop") as client:
            while not self.over.is_set():
                text = str(len(self.sent))
                await client.topic("orders").publish([text])
                self.sent.append(text)
                await asyncio.sleep(0.01)

    async def process(self) -> None:
        async with basalt.aio.connect(self.urls, namespace="shop") as client:

            async def handle(batch: Batch, out: Output) -> None:
                self.copied += len(batch)
                out.publish("copies", [message.payload for message in batch])

            async with client.consumer("orders", group="copying", retry_delay_ms=1, attempts_max=0) as consumer:
                await consumer.process(handle, until=self.drained.is_set, limit=3)

    async def transact(self) -> None:
        async with basalt.aio.connect(self.urls, namespace="shop") as client:
            async with client.consumer("orders", group="copying", retry_delay_ms=1, attempts_max=0) as consumer:
                while not self.drained.is_set():
                    async for batch in consumer.batches(limit=2, wait=False):
                        try:
                            async with client.transaction() as tx:
                                await tx.publish("copies", [message.payload for message in batch])
                                await tx.acknowledge(batch)
                            self.copied += len(batch)
                        except (
                            ClaimLostError, TransactionEndedError, TransactionNotFoundError, TransactionConflictError,
                        ):  # fmt: skip
                            pass  # it is dealt again
                    await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Each message is copied, and once."""
        self.over.set()
        await self.tasks[0]
        async with basalt.aio.connect(self.urls, namespace="shop") as client, asyncio.timeout(HANG_S):
            while len(found := await read(client, "copies")) < len(self.sent):
                for task in self.tasks[1:]:
                    if task.done():
                        task.result()
                assert len(found) == len(set(found)), "one was copied twice"
                await asyncio.sleep(0.1)
            self.drained.set()
            await asyncio.gather(*self.tasks)
            found = await read(client, "copies")
            assert sorted(found, key=int) == self.sent


def test_each_message_is_handled_once_while_its_topic_moves_between_servers():
    async def story(world: Sharers) -> None:
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            await shop(world, client, orders=world.members[0], copies=world.leader)
        copying = Copying(world, world.servers)
        for number in range(6):
            before = copying.copied
            await world.until(lambda: copying.copied > before + 10, "messages are copied")  # noqa: B023
            await world.give("orders", world.servers[number % 3])
        await copying.end()

    run(story, 3)


def test_each_message_is_handled_once_though_the_leader_or_the_owner_dies():
    async def story(world: Sharers) -> None:
        leader, second, third = (world.leader, *world.members)
        async with basalt.aio.connect(leader.url, namespace="shop") as client:
            await shop(world, client, orders=second, copies=third)
        copying = Copying(world, world.servers)
        for victim in (leader, second):
            before = copying.copied
            await world.until(lambda: copying.copied > before + 10, "messages are copied")  # noqa: B023
            await victim.die()
            await world.until(
                lambda: any(server.leads for server in world.living) and world.all_is_dealt(), "all is dealt"
            )
            before = copying.copied
            await world.until(lambda: copying.copied > before + 10, "messages are copied again")  # noqa: B023
        await copying.end()

    run(story, 3)


@pytest.mark.parametrize("how", ["stops", "dies"])
def test_a_one_shot_that_a_leader_leaves_open_holds_no_message_once_another_one_leads(
    how: str, monkeypatch: pytest.MonkeyPatch
):
    """It had been acknowledged at the owner, and its commit was not asked for yet. Its time would be up much later."""
    acknowledged, held = GroupsElsewhere.acknowledged, list[Transaction]()

    async def and_no_further(self: GroupsElsewhere, work: Work | None, found: Transaction | None) -> Work | None:
        left = await acknowledged(self, work, found)
        if found is not None and not held:
            held.append(found)
            await asyncio.Event().wait()
        return left

    async def story(world: Sharers) -> None:
        leader, second, third = (world.leader, *world.members)
        async with basalt.aio.connect(second.url, namespace="shop") as client:
            await shop(world, client, orders=second, copies=third)
            for text in ("a", "b"):
                await client.topic("orders").publish([text], key="same")
        groups = second.services.groups
        options = GroupOptions("keyed", attempts_max=1, retry_delay_ms=1, dead_letter_topic="dead", claim_ms=600_000)
        await groups.make(ORDERS, "billing", options)
        page = await groups.fetch(ORDERS, "billing", FetchAsk("ann", limit=1))
        assert page.claim is not None
        entry = WorkAcknowledge(*ORDERS, "billing", claims=(page.claim,), member="ann", epoch=page.member_epoch)
        work = Work([WorkPublish("shop", "copies", [b"a"])], acknowledge=[entry])
        monkeypatch.setattr(GroupsElsewhere, "acknowledged", and_no_further)
        shot = asyncio.ensure_future(second.services.transactions.one_shot_anywhere(work, request_id="one"))
        await world.until(lambda: bool(held), "it is acknowledged")
        await (leader.stop() if how == "stops" else leader.die())
        await world.until(lambda: any(each.leads for each in world.living) and world.all_is_dealt(), "another leads")
        with pytest.raises(BasaltError):
            await shot
        state = world.leader.services.transactions.state
        assert state.begun_for_one_shots() == []
        outcome = state.outcome(held[0].id)
        assert (outcome.state, outcome.timed_out) == (State.ABORTED, False)
        async with basalt.aio.connect(third.url, namespace="shop") as client:
            assert await drained(client, "orders", mode="keyed", member="ann") == ["a", "b"]
            assert await read(client, "copies") == []
        (group,) = world.leader.services.transactions.state.groups.by_number.values()
        assert (len(group.acknowledged), len(group.returns)) == (1, 0)

    run(story, 3)


def test_dead_letters_of_a_group_go_to_a_topic_of_another_owner():
    async def story(world: Sharers) -> None:
        leader, second, third = (world.leader, *world.members)
        async with basalt.aio.connect(leader.url, namespace="shop") as client:
            await shop(world, client, orders=second)
            await world.give("dead", third)
            await client.topic("orders").publish(["a", "b", "c", "d"])
            async with client.consumer(
                "orders", group="billing", dead_letter_topic="dead", attempts_max=1, retry_delay_ms=1
            ) as consumer:
                batch = await anext(aiter(consumer.batches(limit=1)))
                await consumer.release(batch)  # its only attempt
                batch = await anext(aiter(consumer.batches(limit=1)))
                async with client.transaction() as tx:  # at the leader, which asks the owner for the message
                    await tx.reject(batch[0], "of no use")

                async def handle(batch: Batch, out: Output) -> None:
                    if batch[0].text == "c":
                        out.reject(batch[0], "of no use either")

                await consumer.process(
                    handle, until=lambda: consumer.waiting_for in ("no_messages", "claimed"), limit=1
                )
            async with asyncio.timeout(HANG_S):
                while sorted(await read(client, "dead")) != ["a", "b", "c"]:
                    await asyncio.sleep(0.05)
            assert await drained(client, "orders") == []

    run(story, 3)


def test_operators_move_a_group_from_any_server():
    async def story(world: Sharers) -> None:
        leader, (member,) = world.leader, world.members
        async with basalt.aio.connect(leader.url, namespace="shop") as client:
            await shop(world, client, orders=member)
            await client.topic("orders").publish(["a", "b"])
            group = client.topic("orders").group("billing")
            await group.create()
            assert (await group.create()).round == (await group.get()).round
            await group.pause()
            assert (await group.get()).paused
            await group.resume()
            assert await drained(client, "orders") == ["a", "b"]
            sought = await group.seek("start")
            assert sought.repeated == 2
            assert await drained(client, "orders") == ["a", "b"]
            assert [each.name for each in await client.topic("orders").groups()] == ["billing"]
            await group.delete()
            with pytest.raises(GroupNotFoundError):
                await group.get()
            assert await client.topic("orders").groups() == []
            await world.give("orders", leader)
            with pytest.raises(ShardMovingError):
                await member.services.groups.make(ORDERS, "billing", GroupOptions())

    run(story)
