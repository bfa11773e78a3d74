"""Servers that share topics whose transactions are managed elsewhere: pointers are taken as given, by each topic's owner, and nobody asks the leader."""

from __future__ import annotations

import json
from dataclasses import replace

import uvloop

from basalt.settings.tree import TransactionSettings
from tests.control.server.passing_pair import Told
from tests.control.server.sharing_servers import SHARING, Sharers, SharingServer, sharers

EXTERNAL = replace(SHARING, transactions=TransactionSettings(manager="external"))
TOPIC = "/v1/namespaces/shop/topics/orders"


async def read(server: SharingServer) -> list[str]:
    told = await server.ask("POST", f"{TOPIC}/poll", {})
    assert told.status == 200, told.body
    return [each["payload"] for each in told.json()]


async def publish(server: SharingServer, text: str, **more: object) -> Told:
    return await server.ask("POST", f"{TOPIC}/publish", {"messages": [text], **more})


def test_an_owner_that_does_not_lead_takes_pointers_as_given_through_any_server_and_while_nobody_leads():
    async def story(world: Sharers) -> None:
        leader, (member,) = world.leader, world.members
        await world.give("orders", member)
        pointer = member.clock.now_ms() * 1_000_000 + 7
        assert (await leader.ask("PUT", TOPIC)).status == 200
        assert (await publish(leader, "plain")).status == 200
        under = await publish(leader, "under a pointer", transactionWritePointer=pointer)
        assert under.status == 200, under.body
        assert await read(leader) == await read(member) == ["plain", "under a pointer"]
        rolled_back = await leader.ask("POST", f"{TOPIC}/rollback", json.loads(under.body))
        assert rolled_back.status == 200, rolled_back.body
        refused = await member.ask("POST", f"{TOPIC}/poll?isolation=committed", {})
        assert "transactions.manager is external" in refused.json()["detail"]
        await leader.die()
        assert (await publish(member, "alone", transactionWritePointer=pointer + 1)).status == 200
        assert await read(member) == ["plain", "under a pointer", "alone"]

    async def all_of_it() -> None:
        async with sharers(2, EXTERNAL) as world:
            await story(world)

    uvloop.run(all_of_it())
