"""One simulated run of transactions, most of them one-shot, some of which emit markers, and of readers who ask what those say.

Every answer is kept. In the end the log tells which markers were committed: each answer must be what those up to its
place say together, in the order of the log, whatever the server believed of a transaction that was given up later.

The clock goes on here. A new process may give a place again whose row never came to be, when its clock is behind; then a
marker comes before an answer's place after all.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple

from basalt.api.bodies.messages import Work, WorkMarker, WorkPublish
from basalt.api.markers import NOTHING_KNOWN, Marker, MarkerState, apply, decode_marker
from basalt.catalog.topics import topic_name
from basalt.messaging.markers import MarkerFacts
from basalt_engine.errors import BasaltError
from basalt_engine.keys import position_fields
from basalt_engine.messages import POSITION_BYTES
from basalt_engine.records import RecordKind
from tests.sim.history import Ending, Told
from tests.sim.one_shot_world import OneShotWorld
from tests.sim.world import TIMEOUT_MS

MARKED = topic_name("sim", "marked")
TASKS = ("x", "y", "z")


class Committed(NamedTuple):
    """A marker that readers of committed messages see."""

    id: bytes
    marker: Marker


class MarkedWorld(OneShotWorld):
    """The run of one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.renewed = (*self.renewed, MARKED)
        self.answers: list[MarkerFacts] = []
        self.told: dict[tuple[int, int], Told] = {}  # of each watermark, by generation and event time
        self.event_time_ms = 0

    async def _prepare(self) -> None:
        await super()._prepare()
        await self._create(MARKED)

    async def _start(self, fault_rate: float) -> None:
        self.clock.advance(1)
        await super()._start(fault_rate)

    async def _jump(self) -> None:
        self.clock.advance(self.chances.choice([1, 10, 500, 2_500, 11_000, 60_000]))

    async def _step(self) -> None:
        if self.chances.random() < 0.4:
            await super()._step()
            return
        steps = {self._marked: 8, self._emit: 2, self._ask: 8, self._end_and_ask: 4, self._save: 2, self._renew: 0.2}
        await self.chances.choices(list(steps), list(steps.values()))[0]()

    def _marker(self) -> Marker:
        self.event_time_ms += 1
        ends = self.chances.random() < 0.08
        return Marker(self.chances.choice(TASKS), len(TASKS), None if ends else self.event_time_ms)

    async def _marked(self) -> None:
        """A transaction, one-shot or not, of messages, and of markers behind them."""
        fake = -len(self.history.transactions) - 1
        ending = self.history.transactions[fake] = Ending("commit")
        message = self.message(MARKED, fake)
        markers = [self._marker() for _ in range(self.chances.randint(1, 2))]
        generation = self.history.generations[MARKED]
        work = Work(
            publish=[WorkPublish(*MARKED, [message.text.encode()])],
            markers=[
                WorkMarker(*MARKED, each.task, each.task_count, each.kind, each.event_time_ms) for each in markers
            ],
        )
        begun: list[int] | None = [] if self.chances.random() < 0.4 else None
        for _ in range(2):
            ending.told = Told.NOTHING
            ending.told = await self.tell([message], self._carried_out(work, f"one{fake}", begun))
            self._note(generation, markers, ending.told)
            if self.chances.random() < 0.5:
                await self._ask()

    async def _carried_out(self, work: Work, request_id: str, begun: list[int] | None) -> None:
        """Commit the work, as a one-shot transaction or the one that is, or will be, begun."""
        if begun is None:
            await self.wired.transactions.one_shot(work, "sim", request_id)
            return
        if not begun:
            begun.append((await self.wired.transactions.begin(timeout_ms=TIMEOUT_MS)).id)
        await self.wired.transactions.commit(begun[0], work)

    async def _emit(self) -> None:
        marker, generation = self._marker(), self.history.generations[MARKED]
        self._note(generation, [marker], await self.tell([], self.wired.services.markers.publish(MARKED, marker)))

    def _note(self, generation: int, markers: list[Marker], told: Told) -> None:
        for marker in markers:
            if marker.event_time_ms is not None and generation == self.history.generations[MARKED]:
                self.told[generation, marker.event_time_ms] = told

    async def _ask(self) -> None:
        with suppress(BasaltError):
            self.answers.append(await self.wired.services.markers.facts(MARKED))

    async def _end_and_ask(self) -> None:
        """What was given up is rolled back, while others ask what the markers say."""
        await asyncio.gather(self._expire(), self._ask())
        await self._one_shot()
        await self._ask()

    async def _save(self) -> None:
        with suppress(BasaltError):
            await self.wired.services.markers.save(everything=True)

    async def _renew(self) -> None:
        await self._renewed(MARKED)

    async def _check(self) -> None:
        await super()._check()
        await self._ask()
        committed = await self._committed()
        generation = self.history.generations[MARKED]
        for answer in self.answers:
            if answer.generation == generation:
                said = _together([each for each in committed if answer.at is not None and each.id <= answer.at])
                assert answer.state == said, f"markers say {answer.state} where those committed say {said}"
        assert self.answers[-1].state == _together(committed), "markers at the end of the log do not count"
        shown = {each.marker.event_time_ms for each in committed}
        for (of, event_time_ms), told in self.told.items():
            if of == generation and told is not Told.NOTHING:
                assert (event_time_ms in shown) is (told is Told.DONE), f"marker {event_time_ms} was told {told.value}"

    async def _committed(self) -> list[Committed]:
        found: list[Committed] = []
        start: bytes | None = None
        while True:
            page = await self.wired.messaging.fetch(MARKED, start, start is None, committed=True, markers=True)
            if not page.slices:
                return found
            for piece in page.slices:
                if piece.batch.kind is not RecordKind.USER:
                    marker = decode_marker(piece.batch.kind.name.lower(), next(iter(piece.payloads())))
                    found.append(Committed(piece.last_id(), marker))
            start = page.slices[-1].last_id()


def _together(committed: list[Committed]) -> MarkerState:
    state = NOTHING_KNOWN
    for each in committed:
        state = apply(state, each.marker, position_fields(each.id[:POSITION_BYTES])[0])
    return state
