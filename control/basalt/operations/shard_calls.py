"""A server's answers to calls about shards, whichever services it has at the moment; and the maps that it is told of or reads.

Links last longer than services: a member that becomes the leader, or whose store refused a write, ends its services and begins others. What this process
has given up is kept over that, so no later services take it back under an epoch that another server may follow.
"""

from __future__ import annotations

import asyncio
import logging

from basalt.cluster.links.beats import Held
from basalt.cluster.links.fellows import Fellows
from basalt.cluster.links.links import Links
from basalt.cluster.links.shard_calls import LEAVING, MAP, RELEASE, Leaving, Left, NewMap, Release, Released, Taken
from basalt.cluster.membership import Membership
from basalt.cluster.owners import OwnersMap
from basalt.errors import BasaltError, ConflictError, UnavailableError
from basalt.operations.shard_holding import ShardHolding
from basalt.operations.shard_moves import ShardMoves
from basalt_engine.clock import Clock

log = logging.getLogger("basalt.shards")


class ShardCalls:
    """One process's part in the dealing of shards. Used from the event loop, and made in it."""

    def __init__(self, clock: Clock, links: Links, membership: Membership) -> None:
        self._clock = clock
        self._links = links
        self._membership = membership
        self._loop = asyncio.get_running_loop()
        self._holding: ShardHolding | None = None
        self._moves: ShardMoves | None = None
        self._given_up: dict[int, int] = {}
        links.handlers.add(RELEASE, self._release)
        links.handlers.add(MAP, self._take)
        links.handlers.add(LEAVING, self._leave)
        links.holds = self._holds
        membership.when_dealt = self._dealt

    def serve(self, holding: ShardHolding) -> None:
        """These services hold shards from now on: those that the map gives this member."""
        self._holding = holding
        holding.begin(self._membership.candidate.instance, None, self._given_up)
        if self._membership.owners is not None:
            holding.follow(self._membership.owners)

    def lead(self, moves: ShardMoves, owners: OwnersMap, epoch: int) -> None:
        """These services lead from now on, by the map with which their term began, whose shards are fenced; they deal them."""
        self._holding, self._moves = moves.holding, moves
        fellows = Fellows(self._clock, self._links, self._membership)
        moves.lead(owners, self._membership.candidate.instance, epoch, fellows, self._given_up)

    def end(self) -> None:
        """The services are about to end: this process serves no shard from now on, and takes none again under an epoch that they had."""
        if self._holding is not None:
            for shard, reign in enumerate(self._holding.gate.reigns):
                self._given_up[shard] = max(reign.epoch, self._given_up.get(shard, 0))
        self._holding = self._moves = None

    async def leave(self) -> int:
        """This server is about to stop: have others take its shards; how many they took. It waits no longer than a release may take, and raises nothing."""
        holding, name = self._holding, self._membership.candidate.instance
        if holding is None or not holding.held().shards:
            return 0
        try:
            async with asyncio.timeout(holding.release_ms_max / 1_000):
                return (await self._let_go(name, holding.release_ms_max)).moved
        except (BasaltError, TimeoutError) as error:
            why = error.message if isinstance(error, BasaltError) else "no time is left"
            log.warning("stops with its shards, which others get once its membership is over: %s", why)
            return 0

    async def _let_go(self, name: str, timeout_ms: float) -> Left:
        if self._moves is not None:
            return await self._moves.let_go(name)
        if self._links.to_leader is None:
            raise UnavailableError("it has no link to the leader")
        return await self._links.to_leader.call(LEAVING, Leaving(name), timeout_ms)

    def _holds(self) -> Held:
        return Held() if self._holding is None else self._holding.held()

    def _dealt(self, owners: OwnersMap) -> None:
        """Called by the membership's thread."""
        self._loop.call_soon_threadsafe(self._follow, owners)

    def _follow(self, owners: OwnersMap) -> None:
        if self._holding is not None:
            self._holding.follow(owners)

    # Of the leader.

    async def _release(self, leader: str, asked: Release) -> Released:
        self._check_leader(leader)
        epochs = dict(asked.shards)
        if asked.at_once:
            if self._holding is not None:
                self._holding.withdraw(epochs)
            else:
                for shard, epoch in epochs.items():
                    self._given_up[shard] = max(epoch, self._given_up.get(shard, 0))
            return Released(asked.shards)
        if self._holding is None:
            raise ConflictError("this member serves no shards now", hint="send the same call again later")
        reigns = self._holding.gate.reigns
        other = [shard for shard, epoch in asked.shards if reigns[shard].epoch != epoch]
        if other:
            raise ConflictError(f"this member has shard {other[0]} under epoch {reigns[other[0]].epoch}")
        return Released(tuple((await self._holding.release(epochs)).items()))

    async def _take(self, leader: str, told: NewMap) -> Taken:
        self._check_leader(leader)
        holding = self._holding
        if holding is None:
            raise UnavailableError("this member serves no shards now")
        holding.follow(OwnersMap.decode(told.owners))
        await holding.taken()
        held = holding.held()
        return Taken(held.map_version, held.shards)

    def _check_leader(self, instance: str) -> None:
        link = self._links.to_leader
        if link is None or link.peer != instance:
            raise ConflictError(f"{instance} does not lead this member: it takes no shards from it, and gives it none")

    # Of members, as the leader.

    async def _leave(self, _instance: str, asked: Leaving) -> Left:
        if self._moves is None:
            raise UnavailableError("this server leads no more")
        return await self._moves.let_go(asked.member)
