"""Planned moves of shards: release, a row of the map, take. Nobody loses anything and nobody is refused, where a move takes under a second.

A release lets what was taken end, and takes no more: calls wait at the gate, long polls are answered, visits end, both lanes are
drained, and what only memory has is saved. Then the same stage of the lane of topics looks whether rows are in doubt, and forgets all
that is known: no other stage comes in between. A release that cannot end is called off, and the shards are served on. From then on
there is no way back, for the map may have been written by a write whose answer was lost: writing it, and fencing, are tried until they
have succeeded or the term is over.

For now the leader alone owns shards, so a shard moves from it to itself, and all of this happens as it would to another server.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from basalt.catalog.tables import TableCatalog
from basalt.cluster.owners import OwnersMap, grant
from basalt.cluster.shard_gate import ShardGate
from basalt.errors import BasaltError, BusyError, ConflictError, InputError, StoppingError, UnknownOutcomeError
from basalt.groups.groups import Groups
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers
from basalt.messaging.producers import Producers
from basalt.messaging.topic_stats import TopicStatistics
from basalt.tables.garbage_cells import CellActivity
from basalt.transactions.log_state import LogState
from basalt.transactions.open_pointers import OpenPointers
from basalt_engine.clock import Clock, Durations
from basalt_engine.stores.shards import SHARDS, Epochs
from basalt_engine.table import Store

RELEASE_MS_MAX = (
    5_000  # as long as calls are patient with a server that stops; most releases take some hundredths of a second
)
ANSWER_MS_MAX = (
    20_000  # a fence to a region that does not answer takes 15 s to fail; whoever asked for the move hears of it then
)
# Between tries to write the map or to fence: a region server that has died is away for some seconds.
TRY_AGAIN_S_MIN, TRY_AGAIN_S_MAX = 0.1, 2.0

T = TypeVar("T")

PLANNED, CALLED_OFF = "planned", "called_off"
PHASES = ("drain", "save", "forget", "map", "fence")

log = logging.getLogger("basalt.shards")


class Lead(NamedTuple):
    """The term in which this server deals the shards, and its name in the map."""

    member: str
    epoch: int


class Moved(NamedTuple):
    """The epochs of shards before and after a move, and for how long nobody served them."""

    before: Epochs
    after: Epochs
    took_ms: float


class ShardMoves:
    """The shards of this server, and their moves: one at a time, of any number of shards."""

    def __init__(
        self, store: Store, clock: Clock, gate: ShardGate, logs: TopicLogs, tables: TableCatalog, activity: CellActivity,
        groups: Groups, markers: TopicMarkers, statistics: TopicStatistics, producers: Producers, manager: LogState,
        pointers: OpenPointers,
    ) -> None:  # fmt: skip
        self._store = store
        self._clock = clock
        self.gate = gate
        self._logs = logs
        self._tables = tables
        self._activity = activity
        self._groups = groups
        self._saving = (statistics, markers, producers)
        self._manager = manager
        self._pointers = pointers
        self._lead: Lead | None = None
        self._moving: asyncio.Task[Moved] | None = None
        self._stopping = False
        self.moves: Counter[str] = Counter({PLANNED: 0, CALLED_OFF: 0})  # shards, by why
        self.phases = {phase: Durations() for phase in PHASES}
        self.gaps = Durations()  # of whole moves: for how long calls waited

    def lead(self, shards: OwnersMap, member: str, epoch: int) -> None:
        """This server has been granted these shards in its term; it deals them from now on."""
        self.gate.hold(shards.shards_of(member))
        self._lead = Lead(member, epoch)

    def plan(self, shards: frozenset[int], to: str) -> Epochs:
        """The epochs that these shards have; refuses what `move` would refuse at once."""
        if self._lead is None:
            raise ConflictError(
                "the store is open in this server alone: it has every shard, and none can move", field="to"
            )
        if to != self._lead.member:
            raise ConflictError(
                f"shards cannot move to member {to[:80]!r}: for now the leader has them all",
                field="to",
                hint=f"name the leader, {self._lead.member}: its shards get new epochs, as in any move",
            )
        unknown = sorted(shard for shard in shards if not 0 <= shard < SHARDS)
        if unknown or not shards:
            what = f"there is no shard {unknown[0]}" if unknown else "no shard is named"
            raise InputError(f"{what}; they are numbered from 0 to {SHARDS - 1}", field="shards")
        return {shard: self.gate.reigns[shard].epoch for shard in sorted(shards)}

    async def move(self, shards: frozenset[int], to: str) -> Moved:
        """Move shards; on return they are served again. `ConflictError`: called off, and they are served as before.

        `UnknownOutcomeError` when the store does not let it end for long: it goes on.
        """
        self.plan(shards, to)
        if self._stopping:
            raise StoppingError("the server is shutting down", hint="send the call again to the next server")
        if self._moving is not None:
            raise BusyError("another move is under way", hint="send the same call again after Retry-After")
        task = self._moving = asyncio.create_task(self._move(shards))
        task.add_done_callback(self._ended)
        done, _ = await asyncio.wait([task], timeout=ANSWER_MS_MAX / 1_000)  # who gives up waiting stops no move
        if not done:
            raise UnknownOutcomeError(
                f"the move has not ended within {ANSWER_MS_MAX} ms; it goes on until the store lets it end",
                hint="look at the metric basalt_cluster_moves_total, and whether all region servers answer",
            )
        if task.cancelled():
            raise UnknownOutcomeError(
                "this server stops serving: the next leader takes the shards", hint="look who leads"
            )
        return task.result()

    async def close(self) -> None:
        """Let a move that is under way go: the next leader takes the shards."""
        self._stopping = True
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.wait([self._moving])

    def _ended(self, task: asyncio.Task[Moved]) -> None:
        self._moving = None
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, BasaltError):
            log.error("a move of shards failed", exc_info=error)

    async def _move(self, shards: frozenset[int]) -> Moved:
        before = {shard: self.gate.reigns[shard].epoch for shard in sorted(shards)}
        began_ms = self._clock.monotonic_ms()
        self.gate.close(shards)
        try:
            async with asyncio.timeout(RELEASE_MS_MAX / 1_000):
                await self._release(shards)
        except (BasaltError, TimeoutError) as error:
            self.gate.call_off(shards)
            self.moves[CALLED_OFF] += len(shards)
            why = f"what was taken did not end within {RELEASE_MS_MAX} ms"
            why = error.message if isinstance(error, BasaltError) else why
            log.warning("a move of %s was called off, and they are served as before: %s", _named(shards), why)
            raise ConflictError(
                f"the move was called off, and the shards are served as before: {why}",
                hint="send the same call again later",
            ) from error
        self.gate.release(shards)
        after = await self._take(shards)
        took_ms = self._clock.monotonic_ms() - began_ms
        self.gaps.add(took_ms / 1_000)
        self.moves[PLANNED] += len(shards)
        log.info("moved %s within %.0f ms", _named(shards), took_ms)
        return Moved(before, after, took_ms)

    # Release.

    async def _release(self, shards: frozenset[int]) -> None:
        lanes = self._manager.lanes
        with self._measured("drain"):
            await self.gate.left(shards)
            logs = self._logs.suspend(shards)
            self._tables.forget(shards)
            for lane in lanes.each:  # what came before is durable then; what comes later looks for its log, and waits
                await lane.passed()
        with self._measured("save"):
            await self._logs.confirm_or_delete(shards)
            await asyncio.gather(*(service.save(everything=True, among=logs) for service in self._saving))
        with self._measured("forget"):
            await lanes.topics.run(lambda _: self._forget(shards))

    def _forget(self, shards: frozenset[int]) -> None:
        """In a stage: nothing is known of the shards from now on. Refused while rows are in doubt, which only this server knows of."""
        if self._logs.in_doubt(shards):
            raise ConflictError("rows of these shards are in doubt: the store has not said what became of them")
        for topic_log in self._logs.of_shards(shards):
            topic_log.forget()
        for catalog in (self._logs.catalog, self._tables):
            catalog.forget_doubts(shards)
        self._groups.leave(shards)
        self._activity.forget(shards)
        self._pointers.leave(shards)
        self.gate.forgot(shards, self._last_pointer())

    def _last_pointer(self) -> int:
        """The newest write pointer there is, lent ones among them. Before the log was read none is known to memory anyway."""
        return self._manager.state.last_pointer if self._manager.is_known else 0

    # Take.

    async def _take(self, shards: frozenset[int]) -> Epochs:
        """Write the map, then fence: each is tried until it has succeeded. `close` ends it."""
        assert self._lead is not None, "a plan was made"
        member, epoch = self._lead
        with self._measured("map"):
            owners = await self._until_done(
                "write the map of owners", lambda: grant(self._store, member, shards, epoch)
            )
        epochs = {shard: owners.epochs[shard] for shard in sorted(shards)}
        with self._measured("fence"):
            await self._until_done("fence the shards", lambda: self._store.take(epochs))
        self.gate.take(epochs)
        return epochs

    async def _until_done(self, what: str, call: Callable[[], T]) -> T:
        pause_s = TRY_AGAIN_S_MIN
        while True:
            try:
                return await asyncio.to_thread(call)
            except BasaltError as error:
                log.warning("cannot %s, and nobody serves them until it succeeds: %s", what, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, TRY_AGAIN_S_MAX)

    @contextmanager
    def _measured(self, phase: str) -> Iterator[None]:
        began_ms = self._clock.monotonic_ms()
        yield
        self.phases[phase].add((self._clock.monotonic_ms() - began_ms) / 1_000)


def _named(shards: frozenset[int]) -> str:
    return f"shard {min(shards)}" if len(shards) == 1 else f"{len(shards)} shards"
