"""Writes the transaction snapshot that region servers read: kind `snapshot` of the system table.

Only a newer copy replaces what is there, by comparing; so of two servers that both believe to lead, the one of the lower
epoch never has the last word. A copy that is late is safe: region servers drop less for it, and pruning waits.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TypeAlias

from basalt.commits.coordinator import Coordinator
from basalt.errors import ConflictError, CorruptionError
from basalt.pruning.rule import CLOCK_SKEW_MS
from basalt.pruning.state import change_state
from basalt.runtime.store_calls import StoreCalls
from basalt.transactions.log_state import ManagerSnapshot
from basalt_engine.clock import Clock
from basalt_engine.errors import FencedError
from basalt_engine.snapshot import POINTERS_PER_MS, PointerRun, PointerRuns, TransactionSnapshot, pack_runs
from basalt_engine.stores.hbase.regions import SNAPSHOT_KIND, SNAPSHOT_NAME, RegionSnapshot
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

AT_LEAST_EVERY_MS = 60_000  # so that its age says whether it is still being written
TRIES = 3  # against another server that publishes at the same time, which lasts until it is fenced

# Region servers drop the rows of a failed writer. Who owns a topic goes on behind the last row that is there; if that were dropped, an
# owner whose clock is late would give its place out again. An hour later no clock gives out that place (`CLOCK_SKEW_MS`).
RUN_TOLD_AFTER_MS = (
    CLOCK_SKEW_MS + 60_000
)  # and a minute, for rows are written for some seconds under a pointer of a run

Order: TypeAlias = tuple[int, int]  # epoch and sequence
Told: TypeAlias = tuple[int, TransactionSnapshot]  # the newest write pointer, and what a reader sees
NEVER: Order = (-1, 0)

log = logging.getLogger("basalt.pruning")


class SnapshotPublisher:
    """Publishes for one server."""

    def __init__(self, store: Store, clock: Clock, transactions: Coordinator, lifetime_ms_max: int) -> None:
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._clock = clock
        self._transactions = transactions
        self._lifetime_ms = lifetime_ms_max
        self._publishing = asyncio.Lock()
        self._started_ms = clock.now_ms()
        self._written: tuple[bytes, RegionSnapshot] | None = None  # as this process wrote it last
        self._told: Told | None = None  # of what

    @property
    def latest(self) -> RegionSnapshot | None:
        """The snapshot that this process published last."""
        return None if self._written is None else self._written[1]

    @property
    def age_ms(self) -> int:
        """The age of that snapshot; the time since the start when there is none yet."""
        since_ms = self._started_ms if self.latest is None else self.latest.time_ms
        return max(0, self._clock.now_ms() - since_ms)

    async def publish(self, *, only_changes: bool = False) -> RegionSnapshot | None:
        """Publish what is true now. With `only_changes`: None, when the same was published a short while ago."""
        async with self._publishing:
            moment = await self._transactions.manager_snapshot()
            if only_changes and self._is_told(moment):
                return None
            for _ in range(TRIES):
                published = await self._write(moment)
                if published is not None:
                    return published
                self._written = None
            raise ConflictError("another server publishes snapshots, too", hint="see which server leads")

    def _is_told(self, moment: ManagerSnapshot) -> bool:
        last = self.latest
        if last is None or not 0 <= self._clock.now_ms() - last.time_ms < AT_LEAST_EVERY_MS:
            return False
        return self._told == (moment.write_pointer, moment.view)

    async def _write(self, moment: ManagerSnapshot) -> RegionSnapshot | None:
        """Write a copy that is newer than the one there; None when somebody else wrote one in between."""
        last = self._written
        before, order = await self._call(self._read) if last is None else (last[0], last[1].order)
        sequence = _sequence_after(order, moment.epoch)
        now_ms = self._clock.now_ms()
        # Before any region server can know it: a run that prunes reckons with the longest that one may know.
        state = await self._call.write(
            change_state, self._system, lambda old: old.publishing(self._lifetime_ms, (moment.epoch, sequence), now_ms)
        )
        lifetime_ms = state.lifetime_to_publish_ms(self._lifetime_ms, now_ms, CLOCK_SKEW_MS)
        snapshot, body = await self._call(_made, moment, sequence, now_ms, lifetime_ms)
        if not await self._call.write(self._system.replace, SNAPSHOT_KIND, SNAPSHOT_NAME, before, body):
            return None
        self._written, self._told = (body, snapshot), (moment.write_pointer, moment.view)
        return snapshot

    def _read(self) -> tuple[bytes | None, Order]:
        """The copy that is there, and its order; one that no region server can read is as good as none."""
        try:
            body = self._system.get(SNAPSHOT_KIND, SNAPSHOT_NAME)
        except CorruptionError as error:
            log.error("the published snapshot is written anew: %s", error.message)
            self._system.remove(SNAPSHOT_KIND, SNAPSHOT_NAME)
            return None, NEVER
        try:
            return body, NEVER if body is None else RegionSnapshot.decode(body).order
        except CorruptionError as error:
            log.error("the published snapshot is written over: %s", error.message)
            return body, NEVER


def _made(moment: ManagerSnapshot, sequence: int, now_ms: int, lifetime_ms_max: int) -> tuple[RegionSnapshot, bytes]:
    """The copy of this moment, and its bytes. Many pointers that follow each other without a gap are told as runs.

    A run that has failed is told as undecided until its last pointer is `RUN_TOLD_AFTER_MS` old, and nothing behind it is decided.
    """
    view = moment.view
    alone, packed = pack_runs(view.invalid.pointers)
    young = PointerRuns(run for run in view.invalid.runs if _is_young(run, now_ms))
    undecided = view.in_progress_runs.with_added(young)
    snapshot = RegionSnapshot(
        epoch=moment.epoch,
        sequence=sequence,
        time_ms=now_ms,
        read_pointer=view.read_pointer,
        write_pointer=moment.write_pointer,
        decided=min((moment.decided, *(run.first - 1 for run in young))),
        visibility_upper_bound=moment.visibility_upper_bound,
        lifetime_ms_max=lifetime_ms_max,
        in_progress=view.in_progress,
        invalid=alone,
        in_progress_runs=undecided,
        invalid_runs=view.invalid.runs.without(young).with_added(packed),
    )
    return snapshot, snapshot.encode()


def _is_young(run: PointerRun, now_ms: int) -> bool:
    return run.last // POINTERS_PER_MS + RUN_TOLD_AFTER_MS > now_ms


def _sequence_after(order: Order, epoch: int) -> int:
    """The sequence number of the copy that follows one of this order, in this epoch."""
    if order[0] > epoch:
        raise FencedError(
            f"a server of epoch {order[0]} has published a snapshot: the one of epoch {epoch} leads no more",
            hint="ask the present leader",
        )
    return order[1] + 1 if order[0] == epoch else 1
