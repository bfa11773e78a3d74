"""Three servers that share one store: what calls cost the owner of their topic is measured there, told to the leader, shown by it, and decides what moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

import basalt
from tests.control.server.passing_pair import SHARD, TOPIC
from tests.control.server.sharing_servers import Sharers, SharingServer, sharers

ADMIN = "/v1/admin/cluster"


async def told(server: SharingServer, method: str, path: str) -> Any:
    answer = await server.ask(method, path)
    assert answer.status == 200, answer.body
    return answer.json()


def run(story: Callable[[Sharers, SharingServer, SharingServer], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with sharers(3) as world:
            leader, owner, _ = world.servers
            await world.give("orders", owner)
            assert (await leader.ask("PUT", TOPIC)).status == 200
            # Before time stands still, for no server reads a newer map meanwhile.
            await world.until(lambda: world.all_know(owner, SHARD), "all know the owner")
            await story(world, leader, owner)

    uvloop.run(all_of_it())


def known_load(leader: SharingServer, shard: int = SHARD) -> float:
    """As the leader has heard of it."""
    weighed = leader.services.shard_moves.weighed()
    assert weighed is not None
    return weighed.loads[shard]


def test_calls_count_where_their_topic_is_whoever_passed_them_on_and_the_leader_shows_them():
    async def story(world: Sharers, leader: SharingServer, owner: SharingServer) -> None:
        with world.time.standing_still():  # else half of it is forgotten after half a minute
            for server in world.servers:
                for _ in range(20):
                    answer = await server.ask("POST", f"{TOPIC}/publish", {"messages": ["x" * 9_000]})
                    assert answer.status == 200, answer.body
        await world.until(lambda: known_load(leader) > 1, "the leader has heard of it")
        shown = await told(leader, "GET", f"{ADMIN}/shards")
        assert (shown["busiest"][0]["shard"], shown["busiest"][0]["instance"]) == (SHARD, owner.instance)
        loads = {each["instance"]: each["load"] for each in shown["members"]}
        assert loads[owner.instance] == max(loads.values()) > 0
        members = {each["url"]: each for each in (await told(leader, "GET", "/v1/cluster"))["members"]}
        assert members[owner.url]["load"] > 0
        assert (members[owner.url]["shards"], members[owner.url]["ofShare"] > 0) == (1, True)
        metrics = (await owner.ask("GET", "/metrics")).body.decode()
        (line,) = [line for line in metrics.splitlines() if line.startswith("basalt_cluster_own_load_busiest ")]
        assert float(line.split()[1]) > 0

    run(story)


def test_what_a_one_shot_transaction_brings_counts_where_its_topic_is_though_no_path_names_it():
    async def story(world: Sharers, leader: SharingServer, owner: SharingServer) -> None:
        with world.time.standing_still():
            for server in (leader, owner):
                async with basalt.aio.connect(server.url, namespace="shop") as client:
                    await client.publish_atomically({"orders": ["x" * 300_000]})
        await world.until(lambda: known_load(leader) > 0.2, "the leader has heard of it")

    run(story)


def test_a_dry_run_of_balance_tells_why():
    async def story(world: Sharers, leader: SharingServer, owner: SharingServer) -> None:
        targets = leader.services.shard_moves._targets
        assert targets is not None
        await world.until(lambda: targets.drained is not None, "the leader knows who is drained")
        plan = await told(leader, "POST", f"{ADMIN}/balance?dryRun=true")
        assert plan["moves"]
        assert {move["origin"] for move in plan["moves"]} == {leader.instance}
        assert leader.instance in plan["why"]
        assert "% of its share" in plan["why"]
        stand = {each["member"]: each["ofShare"] for each in plan["members"]}
        assert stand[leader.instance] == pytest.approx(5, abs=0.1)  # half a share of 2.5
        assert stand[owner.instance] < 0.1

    run(story)
