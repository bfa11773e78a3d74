"""Servers that share topics, while a write of the leader's log of transactions does not end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

import basalt
from basalt.runtime.group_commit import GroupCommit
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.shards import shard_of
from basalt_engine.table import Store, TableWrite
from tests.control.server.passing_pair import Told
from tests.control.server.sharing_servers import STEP_S, Sharers, SharingServer
from tests.control.server.test_failover_commits import begun, commit
from tests.control.server.test_failover_one_shots import AVRO, LEADERS, OWN, with_topics, work
from tests.control.server.test_failover_sharing import is_read, read, run
from tests.led_servers import HANG_S

LATE_MS = 50  # instead of four seconds, after which callers hear that nobody knows


class LogAway:
    """The store as the lane of the log has it: what it writes hangs until it is let go, on a thread as where the store is far away."""

    remote = True
    busy = False

    def __init__(self, lane: GroupCommit) -> None:
        self.atomic = lane._store.atomic
        self.hanging = 0
        self._store: Store = lane._store
        self._back = threading.Event()
        self._lane, self._late_ms = lane, lane._late_ms
        lane._store, lane._late_ms = self, LATE_MS  # type: ignore[assignment]

    def write(self, writes: Sequence[TableWrite]) -> None:
        self.hanging += 1
        assert self._back.wait(HANG_S)
        self._store.write(writes)

    def come_back(self) -> None:
        self._lane._late_ms = self._late_ms  # what takes a moment from here on is not late
        self._back.set()


async def moved(world: Sharers, topic: str, to: SharingServer) -> Told:
    """The answer to a move of the topic's shard."""
    move = {"shards": [shard_of(topic_prefix("shop", topic))], "to": to.instance}
    return await world.leader.ask("POST", "/v1/admin/cluster/moves", move)


@pytest.mark.parametrize("topics", [(OWN,), (OWN, LEADERS)], ids=["of one owner", "of two owners"])
def test_a_shard_with_one_shots_of_which_the_log_does_not_say_what_became_is_moved(topics: tuple[str, ...]):
    async def story(world: Sharers) -> None:
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            member = await with_topics(world, client)
            (other,) = [each for each in world.members if each is not member]

            async def one_shot(text: str) -> Told:
                given = {"Content-Type": AVRO, "Basalt-Request-Id": text}
                return await member.ask("POST", "/v1/transactions", work(*topics, text=text), **given)

            assert (await one_shot("before")).status == 200
            log = LogAway(world.leader.services.transactions.manager.lanes.log)
            try:
                calls = [asyncio.create_task(one_shot(f"away.{number}")) for number in range(5)]
                await world.until(lambda: log.hanging > 0, "the log hangs")
                await asyncio.wait(calls)
                told = await moved(world, OWN, other)
                assert told.status == 200, told.body
                raw = await other.ask("POST", f"/v1/namespaces/shop/topics/{OWN}/publish", {"messages": ["raw"]})
                assert raw.status == 200, raw.body
                if topics == (OWN,):  # rows of which nobody knows what becomes lie before it
                    assert await read(client, OWN) == ["before"]
            finally:
                log.come_back()
            for number in range(5):
                while (again := await one_shot(f"away.{number}")).status != 200:
                    assert again.status in (409, 503), again.body
                    await asyncio.sleep(STEP_S)
            for topic in topics:
                texts = [f"away.{number}" for number in range(5)] + ["before"] + ["raw"] * (topic == OWN)
                await is_read(client, topic, texts)

    run(story, 3)


def test_a_shard_with_a_commit_that_a_member_has_prepared_is_moved_and_the_commit_is_whole_or_given_up():
    async def story(world: Sharers) -> None:
        async with basalt.aio.connect(world.leader.url, namespace="shop") as client:
            member = await with_topics(world, client)
            (other,) = [each for each in world.members if each is not member]
            transaction = await begun(member)
            log = LogAway(world.leader.services.transactions.manager.lanes.log)
            try:
                told = await commit(member, transaction, work(OWN, text="brought"))
                assert (told.status, told.json()["code"]) == (503, "outcome_unknown"), told.body
                assert (told := await moved(world, OWN, other)).status == 200, told.body
            finally:
                log.come_back()
            while (told := await commit(member, transaction, work(OWN, text="brought"))).status == 503:
                await asyncio.sleep(STEP_S)
            assert told.status == 409, "what it brought was kept by an owner that has given the topic up"
            assert await read(client, OWN) == []
            again = await commit(other, await begun(other), work(OWN, text="brought"))
            assert again.status == 200, again.body
            assert await read(client, OWN) == ["brought"]

    run(story, 3)
