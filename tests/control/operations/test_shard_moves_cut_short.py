"""Moves that something cuts short: the server is killed between their steps, another server takes the shard, or a former leader's write lands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from basalt.cluster.owners import OwnersMap, grant
from basalt.cluster.reigns import Phase
from basalt.operations import shard_moves
from basalt.operations.shard_holding import ShardHolding
from basalt_engine.errors import FencedError, StoreError
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import SHARDS, Epochs, shard_of
from basalt_engine.table import Delete, Put
from tests.control.operations.test_shard_moves import (
    BOTH,
    ME,
    SHARD,
    TOPIC,
    Alone,
    Begun,
    alone,
    held_take,
    run,
    transact,
    until,
)
from tests.led_servers import HANG_S

TOPICS = ("orders", "bills", "copies")
ORDERS, BILLS, _ = SHARD_OF = [shard_of(topic_prefix("shop", topic)) for topic in TOPICS]
MOVED = [ORDERS, BILLS]
TOLD_MIN = 5  # messages of each publisher before the move begins

# A move that stops for good at a step: an event that says that it has come there, and one by which its thread ends after the story.
Stop = tuple[threading.Event, threading.Event]


def before_the_map(server: Alone, monkeypatch: pytest.MonkeyPatch) -> Stop:
    reached, over = threading.Event(), threading.Event()
    server.held.append(over)

    def stops(*_: object) -> OwnersMap:
        reached.set()
        assert over.wait(HANG_S)
        raise StoreError("it is dead")

    monkeypatch.setattr(shard_moves, "deal", stops)
    return reached, over


def before_the_fences(server: Alone, _monkeypatch: pytest.MonkeyPatch) -> Stop:
    return held_take(server)


def after_half_of_the_fences(server: Alone, _monkeypatch: pytest.MonkeyPatch) -> Stop:
    take = server.opened[-1].take
    stop = held_take(server)
    held = server.opened[-1].take

    def half(epochs: Epochs) -> None:
        take({ORDERS: epochs[ORDERS]})
        held(epochs)

    server.opened[-1].take = half  # type: ignore[method-assign,assignment]
    return stop


POINTS: dict[Callable[[Alone, pytest.MonkeyPatch], Stop], int] = {
    before_the_map: 0, before_the_fences: 1, after_half_of_the_fences: 1
}  # fmt: skip  # by how much the move has raised the epochs in the map by then


class Publisher:
    """Publishes one message after the other until it is told otherwise, and keeps what it was told."""

    def __init__(self, server: Alone, topic: str) -> None:
        self._server = server
        self._topic = topic
        self.told: list[str] = []
        self.under_way = ""
        self.running = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        number = 0
        while True:
            self.under_way = f"{self._topic} {number}"
            answer = await publish(self._server, self._topic, self.under_way)
            if answer.status != 200:
                return
            self.told.append(self.under_way)
            number += 1
            await asyncio.sleep(0.001)

    def check(self, found: list[str]) -> None:
        """All that it was told is there, once and in order; of what it was not told, at most the message that was under way."""
        mine = [text for text in found if text.startswith(f"{self._topic} ")]
        assert mine in (self.told, [*self.told, self.under_way])


async def publish(server: Alone, topic: str, text: str) -> Any:
    return await server.ask("POST", f"/v1/namespaces/shop/topics/{topic}/publish", {"messages": [text]})


async def read(server: Alone, topic: str) -> list[str]:
    found = await server.said("POST", f"/v1/namespaces/shop/topics/{topic}/poll", {})
    return [message["payload"] for message in found]


async def kill_in_mid_move(server: Alone, stop: Stop) -> list[Publisher]:
    """Under plain publishes to topics of shards that move and of one that does not."""
    publishers = [Publisher(server, topic) for topic in TOPICS]
    await until(lambda: all(len(each.told) >= TOLD_MIN for each in publishers))
    moving = asyncio.create_task(server.move(namespace=None, topic=None, shards=MOVED))
    await asyncio.to_thread(stop[0].wait)
    served = len(publishers[-1].told)
    await until(lambda: len(publishers[-1].told) >= served + TOLD_MIN)  # its shard does not move
    assert not any(server.moves.gate.is_held(shard) for shard in MOVED)
    await server.die()
    for each in (moving, *(each.running for each in publishers)):
        each.cancel()
        with suppress(asyncio.CancelledError):
            await each
    return publishers


@asynccontextmanager
async def next_leader(dead: Alone) -> AsyncIterator[Alone]:
    server = Alone(dead.time, dead._store, "second")
    server.held = dead.held
    try:
        await server.until_it_serves()
        yield server
    finally:
        await server.stop()


def assert_it_has_every_shard(server: Alone, now: OwnersMap) -> None:
    assert now.counts() == {"second-1": SHARDS}
    reigns = zip(server.moves.gate.reigns, now.epochs, strict=True)
    assert {(reign.phase, epoch - reign.epoch) for reign, epoch in reigns} == {(Phase.HELD, 0)}


async def assert_the_next_leader_goes_on(
    second: Alone, at_death: OwnersMap, publishers: list[Publisher], kept: Begun
) -> None:
    now = second.map()
    assert {epoch - before for before, epoch in zip(at_death.epochs, now.epochs, strict=True)} == {1}
    assert_it_has_every_shard(second, now)
    with pytest.raises(FencedError):  # the dead one's fence, delivered late
        second._store.another().take({BILLS: at_death.epochs[BILLS]})
    await second.said("POST", f"/v1/transactions/{kept.id}/commit")
    for each, topic in zip(publishers, TOPICS, strict=True):
        assert (await publish(second, topic, "on")).status == 200
        found = await read(second, topic)
        each.check(found)
        assert [text for text in found if " " not in text][-1:] == ["on"]
    assert sorted(text for text in await read(second, "orders") if " " not in text) == ["early", "on", "stored"]
    assert (await second.move(to="second-1", namespace=None, topic=None, shards=MOVED)).status == 200
    assert [second.map().epochs[shard] - now.epochs[shard] for shard in MOVED] == [1, 1]


@BOTH
@pytest.mark.parametrize("point", POINTS)
def test_of_a_server_that_is_killed_in_the_middle_of_a_move_nothing_is_lost_or_doubled(
    point: Callable[[Alone, pytest.MonkeyPatch], Stop], atomic: bool, monkeypatch: pytest.MonkeyPatch
):
    async def story(server: Alone) -> None:
        for topic in TOPICS[1:]:
            await server.said("PUT", f"/v1/namespaces/shop/topics/{topic}")
        kept = await transact(server, "stored")
        await server.said("POST", f"{TOPIC}/publish", kept.work("early"))
        before = server.map()
        publishers = await kill_in_mid_move(server, point(server, monkeypatch))
        monkeypatch.undo()
        at_death = server.map()
        raised = {shard for shard in range(SHARDS) if at_death.epochs[shard] > before.epochs[shard]}
        assert raised == ({*MOVED} if POINTS[point] else set())
        async with next_leader(server) as second:
            await assert_the_next_leader_goes_on(second, at_death, publishers, kept)

    async def all_of_it() -> None:
        async with asyncio.timeout(HANG_S), alone(atomic) as server:
            await story(server)

    asyncio.run(all_of_it())


def test_a_shard_that_another_server_has_taken_ends_the_term_and_the_next_term_serves_it():
    """While the leader owns all shards, only a later leader takes one from it."""

    async def story(server: Alone) -> None:
        await server.publish("before")
        first = server.served_epoch
        assert first is not None
        other = server._store.another()
        taken = grant(other, "other-1", [SHARD], first)
        other.take({SHARD: taken.epochs[SHARD]})
        assert (await server.publish("refused")).status == 503
        await server.time.until(lambda: _serves_anew(server, first))
        assert server.map().owner_of(SHARD) == ME
        assert server.map().epochs[SHARD] == taken.epochs[SHARD] + 1
        assert (await server.publish("after")).status == 200
        assert await server.read() == ["before", "after"]

    run(story)


async def _serves_anew(server: Alone, before: int) -> bool:
    return server.served_epoch not in (None, before)


# Fence, then read.


async def _read_then_fence(holding: ShardHolding) -> None:
    """Not the product's order: calls are let in, and read where topics end, before the regions know the new epoch."""
    due = holding._due()
    holding.gate.begin(due)
    holding.gate.take(due)
    await asyncio.to_thread(holding._store.take, due)


def _row_of_late(store: MemoryStore, epoch: int) -> tuple[MemoryStore, Put]:
    """The newest row of the topic, taken away, and a handle that can write it as the shard's owner of this epoch."""
    *_, row = store.table("message").scan(b"", None)
    store.another().table("message").write([Delete(row.key)])
    former = store.another()
    former.take({SHARD: epoch})
    return former, Put(row.key, dict(row.columns))


async def _publish_and_read(server: Alone) -> list[dict[str, str]]:
    assert (await server.publish("after")).status == 200
    found: list[dict[str, str]] = await server.said("POST", f"{TOPIC}/poll", {})
    return found


def _seen_by_a_reader_that_goes_on() -> list[str]:
    """A former owner's message lands between the map and the fence, as early as a publish behind it and a read can be made. What the
    reader has then, and what comes after that."""
    seen: list[str] = []

    async def story(server: Alone) -> None:
        await server.publish("before")
        await server.publish("late")
        former, late = _row_of_late(server._store, server.map().epochs[SHARD])
        taken, go_on = held_take(server)
        moving = asyncio.create_task(server.move())
        await asyncio.to_thread(taken.wait)
        reading = asyncio.create_task(_publish_and_read(server))
        await until(lambda: reading.done() or server.moves.gate.waited_total > 0)
        former.table("message").write([late])
        go_on.set()
        assert (await moving).status == 200
        found = await reading
        found += await server.said("POST", f"{TOPIC}/poll", {"startFrom": found[-1]["id"], "inclusive": False})
        with pytest.raises(FencedError):
            former.table("message").write([late])
        seen.extend(message["payload"] for message in found)

    run(story)
    return seen


def test_what_a_former_owner_wrote_before_the_fence_is_found_for_topics_are_read_after_it():
    assert _seen_by_a_reader_that_goes_on() == ["before", "late", "after"]


def test_who_served_before_the_fence_would_have_readers_miss_it(monkeypatch: pytest.MonkeyPatch):
    """That the test above can fail."""
    monkeypatch.setattr(ShardHolding, "_take", _read_then_fence)
    assert _seen_by_a_reader_that_goes_on() == ["before", "after"]
