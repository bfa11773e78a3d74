"""Shards dealt under faults of all kinds, in any order: no shard is ever served by two, what was answered is there, and each is served once all is quiet."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from basalt.cluster.links.fellows import Fellows
from basalt.errors import BasaltError, UnknownOutcomeError
from basalt.operations import shard_holding, shard_moves
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.shards import shard_of
from tests.budgets import SOAK
from tests.control.operations.dealt_shards import DealtWorld, Seat, run

RUNS = 400 if SOAK else 12
FAULTS_OF_A_RUN = 40
SERVERS_MAX = 4
LOSS = 0.15  # of calls to members, their questions and their answers
TOPICS = ("orders", "bills", "copies", "stock")
SHARDS_OF = [shard_of(topic_prefix("shop", topic)) for topic in TOPICS]


class Hostile:
    """One run: what a seed makes of servers, their links and their store."""

    def __init__(self, world: DealtWorld, seed: int) -> None:
        self.world, self.chances = world, random.Random(seed)
        self.told: list[str] = []
        self.number = self.names = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_quiet = False

    async def run(self) -> None:
        for _ in range(3):
            await self._join()
        for _ in range(FAULTS_OF_A_RUN):
            kinds = {
                self._move: 8, self._publish: 12, self._pass: 6, self._pause: 2, self._resume: 3, self._cut: 2, self._kill: 1, self._join: 1,
                self._restart: 1, self._balance: 1, self._write_fails: 2,
            }  # fmt: skip
            await self.chances.choices([*kinds], [*kinds.values()])[0]()
        self.is_quiet = True
        for seat in self.world.servers:
            seat.is_stopped = seat.is_stopped and seat.is_dead
        if not self._alive():
            await self._join()
        await self.world.until(lambda: all(task.done() for task in self.tasks))
        await asyncio.gather(*self.tasks)
        await self.world.until_all_served()
        found = [row.columns[b"c"].decode() for row in self.world.store.table("message").scan(b"", None)]
        assert set(self.told) <= set(found)
        for topic in TOPICS:
            (owner,) = [each for each in self._alive() if shard_of(topic_prefix("shop", topic)) in each.held]
            await owner.publish(topic, "at the end")

    def _alive(self) -> list[Seat]:
        return [each for each in self.world.servers if not each.is_dead]

    def _any(self) -> Seat | None:
        return self.chances.choice(self._alive()) if self._alive() else None

    def _do(self, work: asyncio.Task[None]) -> None:
        self.tasks.add(work)

    async def lose(self) -> None:
        if not self.is_quiet and self.chances.random() < LOSS:
            raise UnknownOutcomeError("it was lost on its way")

    async def _join(self) -> None:
        if len(self._alive()) < SERVERS_MAX:
            self.names += 1
            await self.world.seat(f"s{self.names}")
            await self._pass()

    async def _pass(self) -> None:
        await self.world.pass_ms(self.chances.choice([250, 500, 2_500, 7_000]))

    async def _move(self) -> None:
        leader, to = self._leader(), self._any()
        if leader is not None and to is not None:
            some = frozenset(self.chances.sample(SHARDS_OF, self.chances.randint(1, 3)))
            self._do(asyncio.create_task(self._suppressed(leader.moves.move(some, to.run))))
            await asyncio.sleep(0.001 * self.chances.randint(0, 3))

    async def _suppressed(self, work: object) -> None:
        with suppress(BasaltError):
            await work  # type: ignore[misc]

    async def _publish(self) -> None:
        seat = self._any()
        if seat is not None and seat.services is not None and seat.is_on:
            self.number += 1
            topic = self.chances.choice(TOPICS)
            if shard_of(topic_prefix("shop", topic)) in seat.held:
                self._do(asyncio.create_task(self._told(seat, topic, f"{self.number}")))

    async def _told(self, seat: Seat, topic: str, text: str) -> None:
        with suppress(BasaltError):
            await seat.publish(topic, text)
            self.told.append(text)

    async def _pause(self) -> None:
        seat = self._any()
        if seat is not None:
            seat.is_stopped = True

    async def _resume(self) -> None:
        for seat in self._alive():
            seat.is_stopped = False

    async def _cut(self) -> None:
        seat = self._any()
        if seat is not None and seat.links.to_leader is not None:
            seat.links.to_leader._abort("it was cut")

    async def _kill(self) -> None:
        seat = self._any()
        if seat is not None and len(self._alive()) > 1:
            await seat.die()

    async def _restart(self) -> None:
        seat = self._any()
        if seat is not None and not seat.served_epoch:
            await seat.end()

    async def _balance(self) -> None:
        if (leader := self._leader()) is not None:
            self._do(asyncio.create_task(self._suppressed(_balanced(leader))))

    async def _write_fails(self) -> None:
        """The next fences of a server do not get through."""
        seat = self._any()
        if seat is not None and seat.handle is not None:
            seat.handle_fails = self.chances.randint(1, 3)

    def _leader(self) -> Seat | None:
        found = [each for each in self._alive() if each.served_epoch]
        return found[0] if found else None


@pytest.mark.parametrize("seed", range(RUNS))
def test_shards_find_their_way_through_faults_of_all_kinds(monkeypatch: pytest.MonkeyPatch, seed: int):
    for module in (shard_holding, shard_moves):
        monkeypatch.setattr(module, "TRY_AGAIN_S_MIN", 0.001)
        monkeypatch.setattr(module, "TRY_AGAIN_S_MAX", 0.002)

    async def story(world: DealtWorld) -> None:
        hostile = Hostile(world, seed)
        for name in ("release", "tell"):
            call = getattr(Fellows, name)

            async def lost(fellows: Fellows, *args: object, call: object = call) -> object:
                await hostile.lose()
                answer = await call(fellows, *args)  # type: ignore[operator]
                await hostile.lose()
                return answer

            monkeypatch.setattr(Fellows, name, lost)
        await hostile.run()

    run(story)


async def _balanced(leader: Seat) -> None:
    planned = leader.moves.planned_balance()
    if planned:
        await leader.moves.balance(planned)
