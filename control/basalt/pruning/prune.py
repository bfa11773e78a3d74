"""Forgets invalid writers that have no row left anywhere: what the job `prune` and the commands do.

Each run surveys the store: the invalid list, the terms, and the certificates of the store. The invalid list is read
first. A writer on it writes nothing any more, so all that is found out about it afterwards stays true. Then the run
keeps the writers that may go in the archive, logs that they are gone, publishes the snapshot, and asks for a few major
compactions where files hold back writers that have waited longest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from basalt.commits.coordinator import Coordinator
from basalt.errors import ConflictError, CorruptionError, UnavailableError
from basalt.messaging.log.garbage_notes import GARBAGE
from basalt.messaging.log.noted_writers import NotedWriters
from basalt.pruning import state as kept
from basalt.pruning.publisher import SnapshotPublisher
from basalt.pruning.rule import (
    ASK_AGAIN_MS,
    CLOCK_SKEW_MS,
    Cause,
    Certificates,
    EmbeddedCertificate,
    Notes,
    Terms,
    due,
    free_runs,
    obstacles_of_runs,
    worth_compacting,
)
from basalt.pruning.state import STATE, PruneState
from basalt.runtime.store_calls import StoreCalls
from basalt.settings import DayWindow
from basalt.tables import garbage_cells
from basalt.transactions.log_state import ManagerSnapshot
from basalt.transactions.manager import EXTERNAL_WRITERS, external_writers
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.snapshot import NO_RUNS, POINTER_MAX, PointerRuns
from basalt_engine.stores.hbase.regions import REPORT_KIND, Region, RegionReport
from basalt_engine.system import SystemTable, number_name
from basalt_engine.table import Store

if TYPE_CHECKING:
    from basalt_engine.stores.hbase.store import HBaseCluster  # needs a library that only users of HBase have

EDIT_POINTERS_MAX = 10_000  # in one log entry: some 80 KiB
GONE_REGION_MS = 7 * 86_400_000  # a region that was split or merged away has been read by its daughters long before
NOTES_MAX = 1_000  # notes about writers that are gone, removed by one run
GONE_REPORTS_MAX = 1_000  # removed by one run
COMPACTIONS_BY_HAND = 2  # asked for where nobody says which, and the settings say that a run asks for none

log = logging.getLogger("basalt.pruning")


class PruneResult(msgspec.Struct, frozen=True):
    """The findings and acts of a run; of a dry run, the acts that it left out. `waiting`: writers whose lifetime is not over."""

    dry_run: bool
    at_ms: int
    invalid: int
    waiting: int
    pruned: tuple[int, ...]
    regions: int
    compactions: tuple[str, ...]
    pruned_runs: PointerRuns = NO_RUNS

    @property
    def pruned_count(self) -> int:
        """The number of writers that are forgotten, those in runs among them."""
        return len(self.pruned) + self.pruned_runs.pointers

    @property
    def held(self) -> int:
        """The number of writers that are held by something other than time."""
        return self.invalid - self.waiting - self.pruned_count


class Pruner:
    """Pruning of one store. `cluster` and `publisher` are None where there are no region servers."""

    def __init__(
        self, store: Store, clock: Clock, transactions: Coordinator, noted: NotedWriters, *, lifetime_ms_max: int,
        cluster: HBaseCluster | None = None, publisher: SnapshotPublisher | None = None,
        compactions_max: int = 0, window: DayWindow | None = None, forget_external_writers: bool = False,
    ) -> None:  # fmt: skip
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._clock = clock
        self._transactions = transactions
        self._cluster = cluster
        self.noted = noted
        self.publisher = publisher
        self._compactions_max = compactions_max
        self.window = window  # of compactions; it may change while the server runs
        self._lifetime_ms = lifetime_ms_max
        self._forget_external_writers = forget_external_writers
        self._asked_ms: dict[str, int] = {}
        self._running = asyncio.Lock()
        self.last: PruneResult | None = None
        self.pruned_total = 0
        self.region_servers: Mapping[str, RegionServer] = {}  # by host and port, as the last survey found them

    async def survey(self) -> Survey:
        """Survey the writers in the present invalid list, for who wants to know: notes are those that are remembered."""
        return await self._survey(lambda: self.noted.notes(self._read_notes))

    async def _survey(self, notes: Callable[[], Awaitable[Notes]]) -> Survey:
        moment = await self._transactions.manager_snapshot()
        if self._cluster is None:
            return await self._call.long(self._survey_notes, moment, await notes())
        return await self._call.long(self._survey_cluster, moment, self._cluster)

    async def _read_notes(self) -> Notes:
        return await self._call.long(read_notes, self._system)

    def _survey_notes(self, moment: ManagerSnapshot, notes: Notes) -> Survey:
        state = STATE.get(self._system) or PruneState()
        return Survey(moment, state, EmbeddedCertificate(notes, self._terms(state)), None)

    def _survey_cluster(self, moment: ManagerSnapshot, cluster: HBaseCluster) -> Survey:
        before = cluster.regions()
        reports = self._reports()
        regions = still_there(before, cluster.regions())
        self.region_servers = region_servers(regions, reports)
        state = (STATE.get(self._system) or PruneState()).when_all_know(oldest_known(regions, reports))
        certificates = Certificates(regions, reports, self._terms(state))
        return Survey(moment, state, certificates, certificates)

    def _reports(self) -> dict[str, RegionReport]:
        """All reports that can be read, by region; one that cannot is as good as none."""
        found = {}
        for name, body in self._system.scan(REPORT_KIND):
            try:
                found[name] = RegionReport.decode(body)
            except CorruptionError as error:
                log.warning("the report of region %s is not read: %s", name, error.message)
        return found

    def _terms(self, state: PruneState) -> Terms:
        lifetime_ms = max(state.lifetime_ms, self._lifetime_ms)
        held = frozenset[int]() if self._forget_external_writers else external_writers(self._system)
        return Terms(self._clock.now_ms(), lifetime_ms, state.restored, CLOCK_SKEW_MS, state.first_published_ms, held)

    async def run(self, *, dry_run: bool = False) -> PruneResult:
        """Forget what may be forgotten. `UnavailableError` when the list of regions has a hole or an overlap."""
        async with self._running:
            # By the notes as they are stored: a writer that is forgotten in error stays forgotten.
            survey = await self._survey(self._read_notes)
            if survey.certificate.fault is not None:
                raise UnavailableError(
                    f"nothing is pruned: {survey.certificate.fault}",
                    hint="a region may be moving: try again; if it stays so, look at hbase:meta with HBase's hbck2",
                )
            result = await self._decide(survey, dry_run)
            if dry_run:
                return result
            if result.pruned_count:
                await self._forget(result)
            await self._compact(survey, result)
            await self._remove_old_reports(survey)
            await self._remove_old_notes(survey, result)
            self.last = result
            return result

    async def restore(self, pruned_since_ms: int, *, dry_run: bool = False) -> int:
        """Make writers invalid again that were forgotten since a time: a table was restored from a copy of that time.

        From now on no file counts as filtered that was written before. Returns how many were not on the list.
        """
        async with self._running:
            pointers, runs = await self._call.long(self._pruned_since, pruned_since_ms)
            moment = await self._transactions.manager_snapshot()
            newest = max((*pointers[-1:], *(run.last for run in runs)), default=0)
            if newest > moment.write_pointer:
                raise ConflictError(
                    f"writer {newest} was pruned, and the transaction log knows no writer above {moment.write_pointer}",
                    hint="the tables transaction_log and system must be restored from the same copy, or neither of them",
                )
            if dry_run:
                invalid = moment.view.invalid
                return len(invalid.with_added(pointers, runs)) - len(invalid)
            await self._set_restored(POINTER_MAX)  # if this is interrupted, nothing is pruned until it is repeated
            restored = 0
            for part in kept.in_parts(pointers, runs, EDIT_POINTERS_MAX):
                restored += await self._transactions.restore(*part)
            # A snapshot that is decided on a pointer which is yet to be given out will have all of these.
            await self._set_restored((await self._transactions.manager_snapshot()).write_pointer + 1)
            await self._publish()
            log.info("%d pruned writers are invalid again", restored)
            return restored

    def worth_compacting(self, survey: Survey) -> list[Region]:
        """The regions whose files hold back the oldest writers, whether or not they were asked to compact them, or are to be asked now."""
        assert survey.regions is not None, "regions are asked for where there are some"
        pointers = due(survey.regions, survey.stand_ins)
        count = self._compactions_max or COMPACTIONS_BY_HAND
        return worth_compacting(survey.regions, pointers, survey.moment.decided, (), count)

    async def compact(self, region: Region) -> None:
        """Have all files of a region written anew, soon. No run asks for it again within an hour."""
        assert self._cluster is not None, "the region is one of a cluster"
        await self._call(self._cluster.major_compact, region)
        self._asked_ms[region.id] = self._clock.now_ms()

    async def _set_restored(self, pointer: int) -> None:
        change = msgspec.structs.replace
        await self._call.write(kept.change_state, self._system, lambda old: change(old, restored=pointer))

    async def _decide(self, survey: Survey, dry_run: bool) -> PruneResult:
        pruned, runs, waiting, compactions = await asyncio.to_thread(self._judge, survey)
        regions = 0 if survey.regions is None else len(survey.regions.regions)
        names = tuple(region.id for region in compactions)
        invalid = len(survey.moment.view.invalid)
        return PruneResult(dry_run, self._clock.now_ms(), invalid, waiting, pruned, regions, names, runs)

    def _judge(self, survey: Survey) -> tuple[tuple[int, ...], PointerRuns, int, list[Region]]:
        certificate, invalid = survey.certificate, survey.invalid
        pruned = tuple(pointer for pointer in invalid if certificate.may_go(pointer))
        now_ms = certificate.terms.now_ms
        runs = free_runs(certificate, survey.runs)
        waiting = sum(certificate.terms.end_ms(pointer) >= now_ms for pointer in invalid)
        for part, cause in obstacles_of_runs(certificate, survey.runs):
            waiting += (part.last - part.first + 1) * (cause is Cause.LIFETIME)
        if survey.regions is None or not self._may_compact(now_ms):
            return pruned, runs, waiting, []
        asked = {name for name, at_ms in self._asked_ms.items() if 0 <= now_ms - at_ms < ASK_AGAIN_MS}
        gone = frozenset(pruned)
        left = [
            pointer for pointer in due(survey.regions, survey.stand_ins) if pointer not in gone and pointer not in runs
        ]
        found = worth_compacting(survey.regions, left, survey.moment.decided, asked, self._compactions_max)
        return pruned, runs, waiting, found

    def _may_compact(self, now_ms: int) -> bool:
        return self._compactions_max > 0 and (self.window is None or self.window.contains(now_ms))

    async def _forget(self, result: PruneResult) -> None:
        """Each step before the next: a crash in between leaves too much known, never too little."""
        newest = max((*result.pruned[-1:], *(run.last for run in result.pruned_runs)))
        await self._call.write(
            kept.change_state,
            self._system,
            lambda old: msgspec.structs.replace(old, newest_pruned=max(old.newest_pruned, newest)),
        )
        await self._call.write(kept.archive, self._system, result.at_ms, result.pruned, result.pruned_runs)
        for part in kept.in_parts(result.pruned, result.pruned_runs, EDIT_POINTERS_MAX):
            self.pruned_total += await self._transactions.prune(*part)
        await self._publish()

    async def _publish(self) -> None:
        if self.publisher is not None:
            await self.publisher.publish()

    async def _compact(self, survey: Survey, result: PruneResult) -> None:
        if self._cluster is None or survey.regions is None:
            return
        wanted = frozenset(result.compactions)
        for region in survey.regions.regions:
            if region.id in wanted:
                try:
                    await self.compact(region)
                except BasaltError as error:  # another run asks again; what was pruned is pruned
                    log.warning("region %s is not compacted: %s", region.id, error.message)
        self._asked_ms = {
            name: at_ms for name, at_ms in self._asked_ms.items() if 0 <= result.at_ms - at_ms < ASK_AGAIN_MS
        }

    async def _remove_old_reports(self, survey: Survey) -> None:
        if survey.regions is None:
            return
        listed = {region.id for region in survey.regions.regions}
        before_ms = survey.terms.now_ms - GONE_REGION_MS
        reports = survey.regions.reports.items()
        gone = [name for name, report in reports if name not in listed and report.report_ms < before_ms]
        for name in gone[:GONE_REPORTS_MAX]:
            await self._call.write(self._system.remove, REPORT_KIND, name)

    async def _remove_old_notes(self, survey: Survey, result: PruneResult) -> None:
        """Of writers that are on the invalid list no more: pruned, truncated, or aborted late."""
        left = frozenset(survey.invalid) - frozenset(result.pruned)
        noted = await self._call(external_writers, self._system)
        ended = [writer for writer in noted - left if survey.terms.end_ms(writer) < survey.terms.now_ms]
        for writer in ended[:NOTES_MAX]:
            await self._call.write(EXTERNAL_WRITERS.remove, self._system, number_name(writer))

    def _pruned_since(self, since_ms: int) -> tuple[Sequence[int], PointerRuns]:
        found = list(kept.archived(self._system, max(since_ms - CLOCK_SKEW_MS, 0)))
        pointers = sorted({pointer for entry in found for pointer in entry.pointers})
        return pointers, PointerRuns(run for entry in found for run in entry.runs)


class RegionServer(NamedTuple):
    """A region server by the reports of its regions: the time of the oldest, and what its coprocessors have counted since it started.

    `jar_version` is the lowest of the jars that its regions run: an upgrade reaches one table after the other.
    """

    oldest_report_ms: int
    counts: Mapping[str, int]
    jar_version: int


class Survey(NamedTuple):
    """The findings of one look. `regions` is None where the store has none."""

    moment: ManagerSnapshot
    state: PruneState
    certificate: Certificates | EmbeddedCertificate
    regions: Certificates | None

    @property
    def invalid(self) -> tuple[int, ...]:
        return self.moment.view.invalid.pointers

    @property
    def runs(self) -> PointerRuns:
        return self.moment.view.invalid.runs

    @property
    def stand_ins(self) -> Sequence[int]:
        """The writers on the list, with one for each run, its oldest."""
        return sorted((*self.invalid, *(run.first for run in self.runs))) if self.runs else self.invalid

    @property
    def terms(self) -> Terms:
        """The numbers that the rule compares with."""
        return self.certificate.terms


def read_notes(system: SystemTable) -> Notes:
    """All notes that there are; to be read after the invalid list that is asked about."""
    found: dict[int, list[str]] = {}
    for name, garbage in GARBAGE.scan(system):
        for pointer in garbage.write_pointers:
            found.setdefault(pointer, []).append(name)
    for note in garbage_cells.notes(system):
        for pointer in note.write_pointers:
            found.setdefault(pointer, []).append(note.name)
    return found


def region_servers(regions: Sequence[Region], reports: Mapping[str, RegionReport]) -> dict[str, RegionServer]:
    """The servers of these regions. Each of a server's reports has the counts of all of it, as they were then: the highest are the newest."""
    found: dict[str, RegionServer] = {}
    for region in regions:
        report = reports.get(region.id)
        if report is None or report.server != region.server:  # of a server that has the region no more
            continue
        host_and_port = ":".join(region.server.split(",")[:2])
        before = found.get(host_and_port, RegionServer(report.report_ms, {}, report.jar_version))
        counts = {
            name: max(count, before.counts.get(name, 0)) for name, count in report.counters.items() if "." not in name
        }
        found[host_and_port] = RegionServer(
            min(before.oldest_report_ms, report.report_ms),
            {**before.counts, **counts},
            min(before.jar_version, report.jar_version),
        )
    return found


def still_there(before: Sequence[Region], after: Sequence[Region]) -> list[Region]:
    """The regions as they are now; one that was elsewhere a moment ago has no server that could vouch for it."""
    known = {region.id: region for region in before}
    return [region if known.get(region.id) == region else region._replace(server="") for region in after]


def oldest_known(regions: Sequence[Region], reports: dict[str, RegionReport]) -> tuple[int, int]:
    """The oldest snapshot that a region server still goes by; (-1, -1) when that is not known of each."""

    def snapshot_of(region: Region) -> tuple[int, int]:
        report = reports.get(region.id)
        if report is None or not region.server or report.server != region.server:
            return -1, -1
        return report.snapshot_epoch, report.snapshot_sequence

    return min(map(snapshot_of, regions), default=(-1, -1))
