"""Shards dealt to several servers: moved to another one, back, and what each step that fails leaves behind."""

from __future__ import annotations

from basalt_engine.stores.shards import SHARDS
from tests.control.operations.dealt_shards import SHARD, TOPIC, DealtWorld, run


def test_a_shard_moves_to_a_member_which_serves_it_and_back():
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        assert len(leader.held) == SHARDS
        await leader.services.publish(TOPIC, "a")
        moved = await leader.moves.move(frozenset([SHARD]), member.run)
        assert moved.after == {SHARD: moved.before[SHARD] + 1}
        assert (world.map.owner_of(SHARD), member.held) == (member.run, moved.after)
        world.check()
        await member.services.publish(TOPIC, "b")
        await world.until_all_served()
        await leader.moves.move(frozenset([SHARD]), leader.run)
        assert (member.held, leader.held[SHARD]) == ({}, moved.after[SHARD] + 1)
        await leader.services.publish(TOPIC, "c")
        assert [row.columns[b"c"] for row in world.store.table("message").scan(b"", None)] == [b"a", b"b", b"c"]

    run(story)
