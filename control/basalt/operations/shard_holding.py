"""The shards of this server: it releases what it is asked for, takes what the map gives it, and lets go at once of what the map gives to another.

A release lets what was taken end, and takes no more: calls wait at the gate, long polls are answered, visits end, both lanes are
drained, and what only memory has is saved. Then the same stage of the lane of topics looks whether rows are in doubt, and forgets all
that is known: no other stage comes in between. A release that cannot end is called off, and the shards are served on.
It waits for rows that are being written, and not for what becomes of them, which only the log of transactions says: undecided rows the
next owner reads as after a restart. So what is kept for commits of which that log has no intent is let go after a while, and they are given up.

To take is to fence, then to learn up to where transactions of others may have rows in it, then to read the map once more, then to serve. What the map says is tried until it is done, or the map says another thing.
A shard that was given up is taken again only under a higher epoch: who asked for it may have given it to another server, whose map is not here yet.
Nothing of a shard that was lost is known when it is taken again. Decision 0072.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from basalt.catalog.tables import TableCatalog
from basalt.cluster.links.beats import Held, ToldLoads
from basalt.cluster.owners import OwnersMap, read_map
from basalt.cluster.reigns import Phase
from basalt.cluster.shard_gate import ShardGate
from basalt.commits.owning.owner import Owner
from basalt.errors import BasaltError, ConflictError, CoordinatorUnavailableError
from basalt.groups.live_groups import LiveGroups
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers
from basalt.messaging.producers import Producers
from basalt.messaging.topic_stats import TopicStatistics
from basalt.runtime.write_lanes import passed
from basalt.tables.garbage_cells import CellActivity
from basalt.transactions.log_state import LogState
from basalt.transactions.open_pointers import OpenPointers
from basalt_engine.clock import Clock, Durations
from basalt_engine.snapshot import POINTER_MAX
from basalt_engine.stores.shards import SHARDS, Epochs
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

RELEASE_MS_MAX = (
    5_000  # as long as calls are patient with a server that stops; most releases take some hundredths of a second
)
# That part of it is for commits to end that were prepared; a usual one takes some hundredths of a second. Then what is kept for them goes.
COMMITS_PART_MAX = 0.4
# Between tries to fence, or to forget: a region server that has died is away for some seconds.
TRY_AGAIN_S_MIN, TRY_AGAIN_S_MAX = 0.1, 2.0

PHASES = ("drain", "save", "forget", "fence")

log = logging.getLogger("basalt.shards")


class ShardHolding:
    """The shards of one server. Used from the event loop."""

    def __init__(
        self, store: Store, clock: Clock, gate: ShardGate, logs: TopicLogs, tables: TableCatalog, activity: CellActivity,
        groups: LiveGroups, markers: TopicMarkers, statistics: TopicStatistics, producers: Producers, manager: LogState,
        pointers: OpenPointers, owner: Owner,
    ) -> None:  # fmt: skip
        self._store = store
        self._system = SystemTable(store.table(SystemTable.name))
        self._clock = clock
        self.gate = gate
        self._logs = logs
        self._tables = tables
        self._activity = activity
        self._groups = groups
        self._saving = (statistics, markers, producers)
        self._manager = manager
        self._pointers = pointers
        self._owner = owner
        self.release_ms_max = RELEASE_MS_MAX
        self.weight = 100  # in hundredths
        self.member: str | None = None  # this server's name in the map; None: it has its store to itself
        self.given_up: dict[
            int, int
        ] = {}  # shards, and the highest epochs under which this process may not take them any more
        self.lost_total = 0  # shards that the map gave to another server, or anew, without having asked for them
        self.phases = {phase: Durations() for phase in PHASES}
        self._releases: set[_Release] = set()  # those under way; a stage of one that was called off forgets nothing
        self._forgetting: dict[int, asyncio.Task[None]] = {}  # by shard
        self._taking: asyncio.Task[None] | None = None
        self._held: tuple[int, Held] = (-1, Held())

    # What it has.

    def begin(self, member: str, owners: OwnersMap | None, given_up: dict[int, int] | None = None) -> None:
        """Hold by the map from now on, under this name. The shards that `owners` gives it are fenced already.

        `given_up`: what this process gave up before these services began; this adds to it.
        """
        if given_up is not None:
            self.given_up = given_up
        self.member = self.gate.member = member
        mine = {} if owners is None else owners.shards_of(member)
        self.gate.lose([shard for shard in range(SHARDS) if shard not in mine and self._has(shard)])
        self.gate.give_up({shard: epoch for shard, epoch in self.given_up.items() if shard not in mine})
        self.gate.hold(mine)
        if owners is not None:
            self.gate.learn(owners)

    def held(self) -> Held:
        """The shards that it serves, for beats."""
        owners = self.gate.owners
        if self.member is None or owners is None:
            return Held()
        if self._held[0] != self.gate.changes:
            held = [shard for shard in range(SHARDS) if self.gate.is_held(shard)]
            self._held = self.gate.changes, Held(tuple(_ranges(held)), owners.version, self.weight)
        return self._held[1]

    def loads(self) -> ToldLoads:
        """The loads of its shards, as its beats tell."""
        loads = self.gate.loads
        return ToldLoads() if loads is None else loads.told(self.held().shards, self._clock.monotonic_ms())

    async def close(self) -> None:
        """Take nothing more; what is held is let go of with the services."""
        tasks = {task for task in (self._taking, *self._forgetting.values()) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _has(self, shard: int) -> bool:
        return self.gate.reigns[shard].phase is not Phase.ABSENT

    # Release.

    async def release(self, shards: Collection[int]) -> Epochs:
        """Give these shards up; the epochs under which this server had them.

        `ConflictError`: it is called off, and they are served as before. Cancelled, it is called off, too.
        """
        shards = frozenset(shards)
        for shard in sorted(shards):
            if not self.gate.is_held(shard):
                phase = self.gate.reigns[shard].phase.value
                raise ConflictError(
                    f"this server does not serve shard {shard} now, it is {phase}",
                    hint="send the same call again later",
                )
        epochs = {shard: self.gate.reigns[shard].epoch for shard in sorted(shards)}
        self.gate.close(shards)
        release = _Release()
        self._releases.add(release)
        try:
            async with asyncio.timeout(self.release_ms_max / 1_000):
                await self._release(shards, release)
        except (BasaltError, TimeoutError) as error:
            self.gate.call_off(self._still_releasing(shards))
            why = f"{release.waits_for} did not end within {self.release_ms_max:.0f} ms"
            why = error.message if isinstance(error, BasaltError) else why
            log.warning("a move of %s was called off, and they are served as before: %s", named(shards), why)
            raise ConflictError(
                f"the move was called off, and the shards are served as before: {why}",
                hint="send the same call again later",
            ) from error
        except asyncio.CancelledError:
            self.gate.call_off(self._still_releasing(shards))
            raise
        finally:
            self._releases.remove(release)
        self.gate.lose(self._still_releasing(shards))
        self.given_up.update(epochs)
        return epochs

    def withdraw(self, epochs: Epochs) -> None:
        """Do not have these shards under these epochs any more, nor take them: at once, whatever is under way."""
        self.drop(
            [shard for shard, epoch in epochs.items() if self._has(shard) and self.gate.reigns[shard].epoch <= epoch]
        )
        gone = {shard: epoch for shard, epoch in epochs.items() if not self._has(shard)}
        self.gate.give_up(gone)
        self.given_up.update(gone)

    def _still_releasing(self, shards: Collection[int]) -> list[int]:
        """All but those that the map gave to others meanwhile."""
        return [shard for shard in shards if self.gate.reigns[shard].phase is Phase.RELEASING]

    async def _release(self, shards: frozenset[int], release: _Release) -> None:
        lanes = self._manager.lanes
        with measured(self._clock, self.phases["drain"]):
            await self._left(shards)
            logs = self._logs.suspend(shards)
            self._tables.forget(shards)
            # What came before is durable then; what comes later looks for its log, and waits.
            release.waits_for = "writes of their topics and tables"
            await passed(lanes.topics.of_shards(shards))
            release.waits_for = "writes of this server's log of transactions"
            await lanes.log.passed()
        release.waits_for = "saving what only memory has"
        with measured(self._clock, self.phases["save"]):
            await self._logs.confirm_or_delete(shards)
            await asyncio.gather(*(service.save(everything=True, among=logs) for service in self._saving))
        with measured(self._clock, self.phases["forget"]):
            await lanes.topics.alone(lanes.topics.of_shards(shards), lambda: self._forget_released(shards, release))

    async def _left(self, shards: frozenset[int]) -> None:
        """Wait until all are out that came in. A commit whose intent the log of transactions does not take would stay for a minute."""
        try:
            async with asyncio.timeout(COMMITS_PART_MAX * self.release_ms_max / 1_000):
                await self.gate.left(shards)
        except TimeoutError:
            if given_up := self._owner.let_go(shards):
                log.warning("%d commits are given up that were about to bring something to %s", given_up, named(shards))
            await self.gate.left(shards)

    def _forget_released(self, shards: frozenset[int], release: _Release) -> None:
        """In a stage: nothing is known of the shards from now on. Refused while rows are in doubt, which only this server knows of."""
        if release not in self._releases:  # it was called off while this waited, and the shards are served
            raise ConflictError("the release was called off")
        if self._logs.in_doubt(shards):
            raise ConflictError("rows of these shards are in doubt: the store has not said what became of them")
        self._forget(shards)

    def _forget(self, shards: Collection[int]) -> None:
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

    # The map.

    def follow(self, owners: OwnersMap) -> None:
        """Do what this map says, if it is the newest that this server knows: let go at once of what is another's, and take what is its own."""
        if self.member is None or not self.gate.learn(owners):
            return
        mine = owners.shards_of(self.member)
        reigns = self.gate.reigns
        self.drop([shard for shard in range(SHARDS) if self._has(shard) and mine.get(shard) != reigns[shard].epoch])
        self._take_what_is_due()

    async def taken(self) -> None:
        """Return once this server holds all that the newest map gives it and it may take."""
        while self._taking is not None or self._forgetting:
            await self.gate.changed()

    def drop(self, shards: Collection[int]) -> None:
        """These shards are another's: serve nothing of them from now on. What is known of them is forgotten in the background."""
        known = frozenset(shard for shard in shards if self.gate.reigns[shard].phase is not Phase.TAKING)
        self.gate.lose(shards)
        if not known:
            return
        self.lost_total += len(known)
        log.warning("let go of %s: the map gives them to another server, or anew", named(known))
        task = asyncio.create_task(self._forget_lost(known))
        self._forgetting.update(dict.fromkeys(known, task))
        task.add_done_callback(lambda done: self._has_forgotten(known, done))

    async def _forget_lost(self, shards: frozenset[int]) -> None:
        """Forget all that is known of shards that this server did not release. It writes no rows of them any more, and asks not whether some are in doubt: whoever
        has the shards now has fenced them, and reads what is there."""
        self._logs.suspend(shards)
        self._tables.forget(shards)
        self._owner.let_go(shards)
        await self.gate.left(shards)
        pause_s = TRY_AGAIN_S_MIN
        while True:
            try:
                lanes = self._manager.lanes
                await passed(lanes.topics.of_shards(shards))
                await lanes.log.passed()
                return await lanes.topics.alone(
                    lanes.topics.of_shards(shards), lambda: self._forget_without_doubts(shards)
                )
            except BasaltError as error:
                log.warning("cannot forget %s, and does not take them before: %s", named(shards), error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, TRY_AGAIN_S_MAX)

    def _forget_without_doubts(self, shards: frozenset[int]) -> None:
        self._logs.staged.forget_doubts(shards)
        self._forget(shards)

    def _has_forgotten(self, shards: frozenset[int], done: asyncio.Task[None]) -> None:
        for shard in shards:
            self._forgetting.pop(shard, None)
        if not done.cancelled():
            if (error := done.exception()) is not None:
                log.error("shards could not be forgotten", exc_info=error)
            self._take_what_is_due()
        self.gate.wake()

    # Take.

    def _due(self) -> Epochs:
        """The shards that the map gives this server, and that it can take now."""
        owners, reigns = self.gate.owners, self.gate.reigns
        if owners is None or self.member is None:
            return {}
        due = {}
        for shard, epoch in owners.shards_of(self.member).items():
            reign = reigns[shard]
            is_new = reign.phase is Phase.ABSENT and epoch > reign.epoch and shard not in self._forgetting
            if is_new or reign.phase is Phase.TAKING:
                due[shard] = epoch
        return due

    def _take_what_is_due(self) -> None:
        if self._taking is None and self._due():
            self._taking = asyncio.create_task(self._take())
            self._taking.add_done_callback(self._has_taken)

    def _has_taken(self, task: asyncio.Task[None]) -> None:
        self._taking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("shards could not be taken", exc_info=error)
        self.gate.wake()

    async def _take(self) -> None:
        pause_s = TRY_AGAIN_S_MIN
        while due := self._due():
            self.gate.begin({shard: epoch for shard, epoch in due.items() if not self._has(shard)})
            try:
                with measured(self._clock, self.phases["fence"]):
                    await asyncio.to_thread(self._store.take, due)
                newest = await self._newest_of_former_owners()
                owners = await asyncio.to_thread(read_map, self._system)  # another may have been given them meanwhile
            except BasaltError as error:
                log.warning("cannot fence %s, and nobody serves them until it succeeds: %s", named(due), error)
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, TRY_AGAIN_S_MAX)
                continue
            if owners is not None:
                self.follow(owners)
            reigns = self.gate.reigns
            taken = [s for s, epoch in due.items() if reigns[s].phase is Phase.TAKING and reigns[s].epoch == epoch]
            self.gate.forgot(taken, newest)
            self.gate.take(taken)
            pause_s = TRY_AGAIN_S_MIN

    async def _newest_of_former_owners(self) -> int:
        """A write pointer above which whoever had the shards has written nothing. They are fenced, so it is one that the coordinator has given out by now.

        Where that cannot be found out, none is high enough: nothing is taken for known of any transaction, and the shards are served all the same.
        """
        try:
            await self._manager.ask()
        except CoordinatorUnavailableError:
            return POINTER_MAX
        return self._last_pointer() if self._manager.is_known else POINTER_MAX

    async def _pause(self, pause_s: float) -> None:
        """Wait, and look what the map says then: it may be refused because another server has been given the shards."""
        await asyncio.sleep(pause_s)
        try:
            owners = await asyncio.to_thread(read_map, self._system)
        except BasaltError:
            return
        if owners is not None:
            self.follow(owners)


class _Release:
    """A release that is under way, and the thing for which it waits, in words."""

    def __init__(self) -> None:
        self.waits_for = "calls that came before"


@contextmanager
def measured(clock: Clock, durations: Durations) -> Iterator[None]:
    """Add how long this takes, where it comes to an end."""
    began_ms = clock.monotonic_ms()
    yield
    durations.add((clock.monotonic_ms() - began_ms) / 1_000)


def named(shards: Collection[int]) -> str:
    """Shards in words: the one, or how many."""
    return f"shard {min(shards)}" if len(shards) == 1 else f"{len(shards)} shards"


def _ranges(shards: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ranges of shards in order, first and last."""
    first = last = -2
    for shard in shards:
        if shard != last + 1:
            if last >= 0:
                yield first, last
            first = shard
        last = shard
    if last >= 0:
        yield first, last
