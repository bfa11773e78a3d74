"""Servers on one store that writes row by row, in one process and with real links, of which each serves the shards that the leader deals to it.

They have the part of services that shards need; what publishes is a row under the server's own epoch of its shard. Time passes only where a story lets it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
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
from basalt.errors import UnavailableError
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.operations.shard_calls import ShardCalls
from basalt.operations.shard_holding import ShardHolding
from basalt.operations.shard_moves import ShardMoves
from basalt.runtime.group_commit import Group
from basalt.runtime.write_lanes import WriteLanes
from basalt.server.wiring import BUCKETS_EMBEDDED
from basalt_engine.errors import StoreError
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import SHARDS, shard_of
from basalt_engine.table import Put, Store
from tests.control.cluster.links.link_pair import HANG_S
from tests.control.cluster.links.linked_servers import SECRET, Server, World

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

    def let_go(self, _: object) -> int:
        return 0


class Services:
    """What holds shards, over one handle of the store."""

    def __init__(self, store: Store, clock: Any) -> None:
        self.store, self.gate = store, ShardGate(clock, shares=True)
        catalog = Topics(store, clock, BUCKETS)
        logs = TopicLogs(store, clock, catalog, tail_bytes_max=1_000, gate=self.gate)
        self.lanes = WriteLanes.of(store, clock, BUCKETS_EMBEDDED)
        self.groups: dict[int, Any] = {}
        nothing: Any = Nothing(self.lanes, self.groups)
        self.holding = ShardHolding(
            store, clock, self.gate, logs, TableCatalog(store, clock, BUCKETS, self.gate), nothing, nothing, nothing, nothing, nothing,
            nothing, nothing, nothing,
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
        await self.lanes.topics.lane_of(prefix).run(stage)

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
        self.is_dead = False
        self.handle_fails = 0  # of the next fences
        self._served: tuple[int, str] | None = None

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
        if self.services is None or not self.is_on:
            return {}
        reigns = self.services.gate.reigns
        return {shard: reigns[shard].epoch for shard in range(SHARDS) if reigns[shard].phase is Phase.HELD}

    @property
    def is_on(self) -> bool:
        """True while the lease lasts by which it serves."""
        return self.terms[-1].is_on() if self.served_epoch else self.membership.is_on

    async def tend(self) -> None:
        """Serve as whatever it is now."""
        leads = bool(self.terms) and self.terms[-1].is_on()
        epoch = self.terms[-1].epoch if leads else 0
        wanted = (epoch, "") if leads else (0, self.membership.instance) if self.membership.is_on else None
        if wanted != self._served:
            if self.served_epoch:
                self.leadership.seek()  # once more, as a server whose term is over
            await self.end()
            self._served = wanted
            if wanted is not None:
                await self.begin(epoch)
        if self.served_epoch:
            await self.moves.look()

    @property
    def gate(self) -> ShardGate:
        """Whoever comes to its shards comes in here."""
        return self.holding.gate

    @property
    def holding(self) -> ShardHolding:
        assert self.services is not None
        return self.services.holding

    async def publish(self, topic: str, text: str) -> None:
        """A row of the topic, if this server has its shard."""
        if self.services is None:
            raise UnavailableError("it serves nothing")
        await self.services.publish(topic, text)

    def hold_takes(self, *, before: bool = True) -> tuple[threading.Event, threading.Event]:
        """The next fence waits before it is sent, or when it was, between these two events."""
        assert self.handle is not None
        take, stuck, go_on = self.handle.take, threading.Event(), threading.Event()
        self._world.held.append(go_on)

        def held(epochs: Mapping[int, int]) -> None:
            if not before:
                take(epochs)
            stuck.set()
            assert go_on.wait(HANG_S)
            if before:
                take(epochs)

        self.handle.take = held  # type: ignore[method-assign]
        return stuck, go_on

    async def begin(self, epoch: int) -> None:
        self.handle, self.handle_fails = self._tables.another(), 0
        self._may_fail(self.handle)
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

    def _may_fail(self, handle: MemoryStore) -> None:
        take = handle.take

        def takes(epochs: Mapping[int, int]) -> None:
            if self.handle_fails:
                self.handle_fails -= 1
                raise StoreError("a region does not answer")
            take(epochs)

        handle.take = takes  # type: ignore[method-assign]

    async def end(self) -> None:
        services, self.services, self.served_epoch, self._served = self.services, None, None, None
        self.calls.end()
        if services is not None:
            await services.close()

    async def stop(self) -> None:
        await self.end()
        await super().stop()

    async def die(self) -> None:
        """As a kill: nothing is told to anybody."""
        self.is_stopped = self.is_dead = True
        await self.end()
        if self.links.to_leader is not None:
            self.links.to_leader._abort("it is dead")
        for link in list(self.links.of_members.values()):
            link._abort("it is dead")
        for task in (self.links._running, self.links._dialing, self.links._beating):
            if task is not None:
                task.cancel()
        if self.links._accepting is not None:
            self.links._accepting.cancel()


class DealtWorld(World):
    """The servers, and what must hold whenever one looks."""

    servers: list[Seat]  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.held: list[threading.Event] = []  # what a story holds up

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
        try:
            await self.until(lambda: self.is_quiet)
        except TimeoutError:
            raise AssertionError(self.told()) from None

    def told(self) -> str:
        """What the servers have, for whoever looks why a shard is not served."""
        owners = self.map
        found = [f"map {owners.version} of leader {owners.leader_epoch}: {owners.counts()}"]
        for seat in self.servers:
            gate = None if seat.services is None else seat.gate
            phases = None if gate is None else Counter(reign.phase.value for reign in gate.reigns)
            found.append(
                f"{seat.name}: dead {seat.is_dead}, epoch {seat.served_epoch}, on {seat.services is not None and seat.is_on}, linked"
                f" {seat.is_linked}, {phases}, map {gate and gate.owners and gate.owners.version}"
            )
            if seat.served_epoch:
                found.append(f"under way {len(seat.moves._under_way)}, serving {seat.moves._dealer()[0].serving()}")
        return "\n".join(found)

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
            lambda: len(first.moves._dealer()[0].serving()) == len(names) and first.moves._targets.drained is not None
        )
        return [first, *others]


def run(story: Callable[[DealtWorld], Awaitable[None]]) -> None:
    """Run a story of servers."""

    async def all_of_it() -> None:
        async with asyncio.timeout(2 * HANG_S), dealt_world() as world:
            await story(world)

    asyncio.run(all_of_it())


@asynccontextmanager
async def dealt_world() -> AsyncIterator[DealtWorld]:
    """A world that is let go of at the end."""
    world = DealtWorld()
    try:
        yield world
    finally:
        for go_on in world.held:
            go_on.set()
        for server in world.servers:
            if not server.is_stopped:
                await server.stop()


TOPIC = "orders"
SHARD = shard_of(topic_prefix("shop", TOPIC))
