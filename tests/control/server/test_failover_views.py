"""Readers at an owner that does not lead, whose view of transactions is behind the leader's."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
import uvloop

import basalt
from basalt.catalog.topics import topic_name
from basalt.errors import CoordinatorUnavailableError
from basalt.transactions.follow_calls import ENTRIES, Entries, Taken
from tests.control.server.sharing_servers import Sharers, SharingServer, Story, sharers

ORDERS = topic_name("shop", "orders")
TRANSACTIONS, TOPIC = "/v1/transactions", "/v1/namespaces/shop/topics/orders"


def run(story: Story) -> None:
    async def all_of_it() -> None:
        async with sharers(2) as world:
            await story(world)

    uvloop.run(all_of_it())


async def read(client: basalt.AsyncClient, isolation: Literal["committed", "uncommitted"] = "committed") -> list[str]:
    return [message.text async for message in client.topic("orders").read(isolation=isolation)]


async def with_orders(world: Sharers) -> SharingServer:
    """The member, which has the topic orders."""
    (member,) = world.members
    await world.give("orders", member)
    assert (await member.ask("PUT", TOPIC, {})).status == 200
    return member


def hear_nothing(member: SharingServer) -> None:
    """From now on the leader's entries come to the member only when it asks for them."""
    handlers, manager = member.member.links.handlers, member.services.transactions.manager

    def missed(_instance: str, _pushed: Entries) -> Taken:
        return Taken(manager.applied)  # type: ignore[attr-defined]

    handlers.remove(ENTRIES)
    handlers.add(ENTRIES, missed)


async def published_early(server: SharingServer, message: str) -> str:
    """The id of a transaction that has published a message and is open."""
    begun = (await server.ask("POST", TRANSACTIONS, {})).json()
    body = {"transactionWritePointer": begun["writePointer"], "messages": [message]}
    assert (await server.ask("POST", f"{TOPIC}/publish", body)).status == 200
    return str(begun["id"])


def test_what_was_committed_before_a_read_is_there_whoever_is_asked():
    async def story(world: Sharers) -> None:
        member = await with_orders(world)
        expected = []
        for number in range(3):
            for server in (world.leader, member):
                text = f"{number} by {server.name}"
                ident = await published_early(server, text)
                assert (await server.ask("POST", f"{TRANSACTIONS}/{ident}/commit")).status == 200
                expected.append(text)
                async with basalt.aio.connect(server.url, namespace="shop") as client:
                    await client.publish_atomically({"orders": [f"at once {text}"]})
                    expected.append(f"at once {text}")
                    assert await read(client) == expected
                    assert await read(client, "uncommitted") == expected
                found = await member.services.ranges.advance(ORDERS, None)
                assert (found.messages, found.at_end) == (len(expected), True)

    run(story)


def test_an_answer_that_overtakes_the_entry_of_the_log_leaves_the_rows_open_until_the_view_has_it():
    async def story(world: Sharers) -> None:
        member = await with_orders(world)
        await member.services.ranges.stable_end(ORDERS)  # the first one of the reign, for which it asks anyhow
        hear_nothing(member)
        async with basalt.aio.connect(member.url, namespace="shop") as client:
            for number in range(3):
                await client.publish_atomically({"orders": [str(number)]})
                found = await member.services.ranges.advance(ORDERS, None)
                assert found.messages == number + 1

    run(story)


def test_a_read_without_an_answer_of_the_leader_tells_the_age_of_the_view_whoever_was_asked(
    monkeypatch: pytest.MonkeyPatch,
):
    async def story(world: Sharers) -> None:
        member = await with_orders(world)
        assert (await member.ask("POST", f"{TOPIC}/publish", {"messages": ["one"]})).status == 200
        ident = await published_early(world.leader, "two")

        async def unanswered() -> None:
            raise CoordinatorUnavailableError("there is no link")

        with monkeypatch.context() as cut:
            cut.setattr(member.services.transactions.manager, "ask", unanswered)
            for server in (member, world.leader):
                told = await server.ask("POST", f"{TOPIC}/poll", {"inclusive": True})
                assert [message["payload"] for message in told.json()] == ["one"]
                assert told.headers["basalt-held-by"] == ident
                assert int(told.headers["basalt-view-age"]) >= 0
                told = await server.ask("POST", f"{TOPIC}/poll?isolation=uncommitted", {"inclusive": True})
                assert [message["payload"] for message in told.json()] == ["one", "two"]
                told = await server.ask("POST", f"{TOPIC}/poll?transaction={ident}", {"inclusive": True})
                assert (told.status, told.json()["code"]) == (503, "coordinator_unavailable")
        for server in (member, world.leader):
            told = await server.ask("POST", f"{TOPIC}/poll?transaction={ident}", {"inclusive": True})
            assert [message["payload"] for message in told.json()] == ["one", "two"]
            told = await server.ask("POST", f"{TOPIC}/poll", {"inclusive": True})
            assert "basalt-view-age" not in told.headers

    run(story)


def test_a_long_poll_at_a_member_goes_on_when_the_transaction_ends_at_the_leader():
    async def story(world: Sharers) -> None:
        member = await with_orders(world)
        ident = await published_early(world.leader, "held")
        poll = asyncio.ensure_future(world.leader.ask("POST", f"{TOPIC}/poll?waitMs=60000", {"inclusive": True}))
        log = await member.services.topics.open(ORDERS)
        await world.until(lambda: bool(log.waiting), "a poll waits")
        assert (await member.ask("POST", f"{TRANSACTIONS}/{ident}/commit")).status == 200
        assert [message["payload"] for message in (await poll).json()] == ["held"]

    run(story)


def test_a_stable_end_never_goes_back_while_a_topic_goes_to_and_fro():
    async def story(world: Sharers) -> None:
        member = await with_orders(world)
        last = b""
        for number in range(6):
            owner = member if number % 2 else world.leader
            ident = await published_early(world.leader, f"{number}")
            await world.give("orders", owner)
            end = bytes((await owner.services.ranges.stable_end(ORDERS)).id or b"")
            assert end >= last
            assert (
                await owner.ask("POST", f"{TRANSACTIONS}/{ident}/{'commit' if number % 3 else 'abort'}")
            ).status == 200
            last = bytes((await owner.services.ranges.stable_end(ORDERS)).id or b"")
            assert last >= end
        async with basalt.aio.connect(member.url, namespace="shop") as client:
            assert await read(client) == ["1", "2", "4", "5"]

    run(story)
