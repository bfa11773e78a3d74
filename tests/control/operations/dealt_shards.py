"""Servers on one store that writes row by row, in one process and with real links, of which each serves the shards that the leader deals to it.

They have the part of services that shards need; what publishes is a row under the server's own epoch of its shard. Time passes only where a story lets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from basalt.catalog.tables import TableCatalog
from basalt.catalog.topics import Topics
from basalt.cluster.led_store import LedStore
from basalt.cluster.owners import OwnersMap, read_map, take_up
from basalt.cluster.reigns import Phase
from basalt.cluster.shard_gate import ShardGate
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.operations.shard_calls import ShardCalls
from basalt.operations.shard_holding import ShardHolding
from basalt.operations.shard_moves import ShardMoves
from basalt.runtime.group_commit import Group, WriteLanes
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import SHARDS, shard_of
from basalt_engine.table import Put, Store
from tests.control.cluster.links.link_pair import HANG_S
from tests.control.cluster.links.test_links import SECRET, Server, World

BUCKETS = 2


class Nothing:
    """A part of services that knows nothing of shards, and so has nothing to save or to forget."""

    def __init__(self, lanes: WriteLanes, groups: dict[int, Any]) -> None:
        self.lanes = lanes
        self.is_known = True  # what a manager of transactions has read in its log: groups, and no transaction
        self.state = SimpleNamespace(last_pointer=0, groups=SimpleNamespace(by_number=groups))

    async def save(self, **_: object) -> None:
        pass

    async def ask(self) -> None:
        pass

    def leave(self, _: object) -> None:
        pass

    forget = leave


class Services:
    """What holds shards, over one handle of the store."""

    def __init__(self, store: Store, clock: Any) -> None:
        self.store, self.gate = store, ShardGate(clock, shares=True)
        catalog = Topics(store, clock, BUCKETS)
        logs = TopicLogs(store, clock, catalog, tail_bytes_max=1_000, gate=self.gate)
        self.lanes = WriteLanes.of(store, clock)
        self.groups: dict[int, Any] = {}
        nothing: Any = Nothing(self.lanes, self.groups)
        self.holding = ShardHolding(
            store, clock, self.gate, logs, TableCatalog(store, clock, BUCKETS, self.gate), nothing, nothing, nothing, nothing, nothing,
            nothing, nothing,
        )  # fmt: skip
        self.moves = ShardMoves(store, clock, self.holding)
        self.moves.balances = False  # but where a story is about that

    async def publish(self, topic: str, text: str) -> None:
        """A row of the topic's shard, through the gate and the lane as a message."""
        prefix = topic_prefix("shop", topic)

        def stage(group: Group) -> None:
            self.gate.require([prefix])
            group.add("message", Put(b"\0" + prefix + text.encode(), {b"c": text.encode()}))

        async with self.gate.visit(prefix):
            pass
        await self.lanes.topics.run(stage)

    async def close(self) -> None:
        await self.moves.close()
        for lane in self.lanes.each:
            await lane.stop()


class Seat(Server):
    """One member that serves shards; as the leader it deals them."""

    def __init__(self, world: DealtWorld, name: str, secret: str | None, store: MemoryStore) -> None:
        super().__init__(world, name, secret, store)
        self.calls = ShardCalls(world.clock, self.links, self.membership)
        self._tables, self._world = store, world
        self.services: Services | None = None
        self.served_epoch: int | None = None  # of the term; 0 as a member; None: it serves nothing
        self.handle: MemoryStore | None = None
        self.shares = True

    @property
    def run(self) -> str:
        """Its name in the map."""
        return self.leadership.candidate.instance

    @property
    def moves(self) -> ShardMoves:
        assert self.services is not None
        return self.services.moves

    @property
    def held(self) -> dict[int, int]:
        """The shards that it serves, and under which epochs; none once its lease is over."""
        if self.services is None or not (self.membership.is_on or self.leadership.is_leader):
            return {}
        reigns = self.services.gate.reigns
        return {shard: reigns[shard].epoch for shard in range(SHARDS) if reigns[shard].phase is Phase.HELD}

    async def tend(self) -> None:
        """Serve as whatever it is now."""
        epoch = self.leadership.epoch if self.leadership.is_leader and self.terms else 0
        wanted = epoch if epoch or (self.shares and self.membership.is_on) else None
        if wanted != self.served_epoch:
            await self.end()
            if wanted is not None:
                await self.begin(wanted)
        if self.served_epoch:
            await self.moves.look()

    async def begin(self, epoch: int) -> None:
        self.handle = self._tables.another()
        store: Store = LedStore(self.handle, self.terms[-1]) if epoch else self.handle
        owners = None
        if epoch:
            store.lead(epoch)
            owners = take_up(store, self.run, epoch)
        self.services, self.served_epoch = Services(store, self._world.clock), epoch
        if owners is None:
            self.calls.serve(self.services.holding)
        else:
            self.calls.lead(self.services.moves, owners, epoch)

    async def end(self) -> None:
        services, self.services, self.served_epoch = self.services, None, None
        self.calls.end()
        if services is not None:
            await services.close()

    async def stop(self) -> None:
        await self.end()
        await super().stop()

    async def die(self) -> None:
        """As a kill: nothing is told to anybody."""
        self.is_stopped = True
        await self.end()
        if self.links.to_leader is not None:
            self.links.to_leader._abort("it is dead")
        for link in list(self.links.of_members.values()):
            link._abort("it is dead")
        for task in (self.links._running, self.links._dialing, self.links._beating):
            if task is not None:
                task.cancel()
        if self.links._server is not None:
            self.links._server.close()


class DealtWorld(World):
    """The servers, and what must hold whenever one looks."""

    servers: list[Seat]  # type: ignore[assignment]

    async def seat(self, name: str) -> Seat:
        server = Seat(self, name, SECRET, self.store)
        self.servers.append(server)
        await server.links.start(server.listener)
        server.leadership.seek()
        return server

    @property
    def map(self) -> OwnersMap:
        owners = read_map(self.system)
        assert owners is not None
        return owners

    @property
    def leader(self) -> Seat:
        (found,) = [each for each in self.servers if not each.is_stopped and each.served_epoch]
        return found

    async def step(self) -> None:
        await super().step()
        for server in self.servers:
            if not server.is_stopped:
                await server.tend()
        self.check()

    def check(self) -> None:
        """No shard is served by two, and none under an epoch that the map has not granted to its server."""
        by_shard: dict[int, str] = {}
        for server in self.servers:
            if server.is_stopped:
                continue
            for shard in server.held:
                assert by_shard.setdefault(shard, server.name) == server.name, f"shard {shard} is served twice"

    async def until_all_served(self) -> None:
        """Let time pass until every shard is served by whom the map names, under the map's epoch."""
        await self.until(lambda: self.is_quiet)

    @property
    def is_quiet(self) -> bool:
        owners = read_map(self.system)
        if owners is None:
            return False
        held = dict(self._held_by_run())
        return all(held.get(owners.owner_of(shard), {}).get(shard) == owners.epochs[shard] for shard in range(SHARDS))

    def _held_by_run(self) -> Iterator[tuple[str, Mapping[int, int]]]:
        return ((each.run, each.held) for each in self.servers if not each.is_stopped)

    async def served(self, *names: str) -> list[Seat]:
        """A leader with this name first, and members; all linked, and following the map."""
        first = await self.seat(names[0])
        await self.until(lambda: first.served_epoch)  # type: ignore[arg-type,return-value]
        others = [await self.seat(name) for name in names[1:]]
        await self.until_linked(first, *others)
        await self.until(
            lambda: len(first.moves._dealer()[0].serving()) == len(names) and first.moves._fixed is not None
        )
        return [first, *others]


def run(story: Callable[[DealtWorld], Awaitable[None]]) -> None:
    """Run a story of servers."""

    async def all_of_it() -> None:
        async with asyncio.timeout(HANG_S), dealt_world() as world:
            await story(world)

    asyncio.run(all_of_it())


@asynccontextmanager
async def dealt_world() -> AsyncIterator[DealtWorld]:
    """A world that is let go of at the end."""
    world = DealtWorld()
    try:
        yield world
    finally:
        for server in world.servers:
            if not server.is_stopped:
                await server.stop()


TOPIC = "orders"
SHARD = shard_of(topic_prefix("shop", TOPIC))
