"""Answers to operators about pruning, made of a survey; and prune, restore and publish by hand."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from basalt.api.bodies import operations as bodies
from basalt.errors import InputError, NoRegionsError, NotFoundError, UnavailableError
from basalt.operations.audit import Audit, By
from basalt.operations.scheduler import Scheduler
from basalt.pruning.prune import Pruner, PruneResult, Survey
from basalt.pruning.rule import (
    FREED_BY,
    Cause,
    Certificates,
    Hold,
    HoldingRegion,
    blocked,
    due,
    fault_of,
    first_obstacles,
    held_by_file,
    obstacles_of_runs,
)
from basalt.pruning.state import archived
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.snapshot import POINTERS_PER_MS
from basalt_engine.stores.hbase.regions import (
    UNKNOWN_ORIGIN,
    UNTOLD,
    Region,
    RegionReport,
    RegionSnapshot,
    jar_state,
    version_text,
)
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

POINTERS_SHOWN_MAX = 1_000  # of those that one run pruned; the archive has all
HOLDS_SHOWN_MAX = 100  # things in the way of one writer
COMPACTIONS_MAX = 20  # asked for with one call: each writes all files of a region anew


class PruneReports:
    """Answers operators' questions about pruning, and prunes and restores by hand."""

    def __init__(
        self, store: Store, pruner: Pruner, scheduler: Scheduler, audit: Audit, when_restored: Callable[[], None]
    ) -> None:
        self._store = store
        self._pruner = pruner
        self._scheduler = scheduler
        self._audit = audit
        self._when_restored = when_restored
        self._surveying = asyncio.Lock()
        self._next: asyncio.Task[Survey] | None = None  # the survey that has not begun yet

    async def _survey(self) -> Survey:
        """A survey that begins from now on. Whoever asks before it begins shares it: a survey of long lists takes a while, and many may look."""
        if self._next is None:
            self._next = asyncio.create_task(self._begin_survey())
        return await asyncio.shield(self._next)

    async def _begin_survey(self) -> Survey:
        async with self._surveying:
            self._next = None
            return await self._pruner.survey()

    async def status(self) -> bodies.PruneStatus:
        """The length of the invalid list, and what is in the way of its writers."""
        survey = await self._survey()
        return await asyncio.to_thread(_status, survey, self._pruner.last)

    async def run(self, by: By, *, dry_run: bool) -> bodies.PruneRun:
        """Prune now; or tell what a run would prune."""
        if dry_run:
            return _run(await self._pruner.run(dry_run=True))

        async def do() -> PruneResult:
            done = await self._scheduler.run_now("prune")  # it is in the job's history, and no two run at a time
            result = self._pruner.last
            if done.outcome != "ok" or result is None:
                raise UnavailableError(
                    f"the prune run {done.outcome}: {done.error}", hint="see `basalt job history prune`"
                )
            return result

        result = await self._audit.act(
            "prune", "the invalid list", *by, do, lambda result: f"{result.pruned_count} writers forgotten"
        )
        return _run(result)

    async def explain(self, write_pointer: int | None, limit: int) -> list[bodies.ExplainedWriter]:
        """List what is in the way of one writer, or of the oldest ones that something is in the way of."""
        survey = await self._survey()
        if write_pointer is not None and write_pointer not in survey.moment.view.invalid:
            raise NotFoundError(
                f"write pointer {write_pointer} is not in the invalid list",
                field="writePointer",
                hint="it was pruned, has not failed, or never was: see `basalt prune history` and `basalt tx show`",
            )

        def explained() -> list[bodies.ExplainedWriter]:
            held = (pointer for pointer in survey.stand_ins if not survey.certificate.may_go(pointer))
            wanted = islice(held, limit) if write_pointer is None else [write_pointer]
            return [_explained(survey, pointer) for pointer in wanted]

        return await asyncio.to_thread(explained)

    async def invalid(self, after: int, limit: int, cause: str | None) -> bodies.InvalidList:
        """A page of the invalid list, from behind this pointer on; with a `cause` only those that wait for it first."""
        survey = await self._survey()
        return await asyncio.to_thread(_invalid, survey, after, limit, cause)

    async def regions(self, which: str | None) -> list[bodies.RegionInfo]:
        """The regions with what each holds back: all, those "blocking", or those "idle"."""
        survey = await self._survey()
        shown = await asyncio.to_thread(_regions, _regions_of(survey), survey.stand_ins)
        if which == "blocking":
            return [region for region in shown if region.held_back]
        if which == "idle":
            return [region for region in shown if region.idle is not None]
        return shown

    async def region(self, region_id: str) -> bodies.RegionDetail:
        """One region with its files; `NotFoundError` when no table has it now."""
        survey = await self._survey()
        return _region_detail(_regions_of(survey), survey.stand_ins, region_id)

    async def compact(self, wanted: Sequence[str] | None, by: By, *, dry_run: bool) -> bodies.Compactions:
        """Ask HBase to write all files of these regions anew; of those that hold back the oldest writers, where none are named."""
        survey = await self._survey()
        certificates = _regions_of(survey)
        if wanted is None:
            chosen = await asyncio.to_thread(self._pruner.worth_compacting, survey)
        else:
            chosen = _named(certificates, wanted)
        told = bodies.Compactions(tuple(_compacted(region, certificates) for region in chosen), dry_run)
        if dry_run or not chosen:
            return told

        async def do() -> None:
            for region in chosen:
                await self._pruner.compact(region)

        await self._audit.act("compact", f"regions {', '.join(region.id for region in chosen)}", *by, do)
        return told

    async def history(self, limit: int) -> list[bodies.PrunedWriters]:
        """List what was pruned, newest first."""
        system = SystemTable(self._store.table(SystemTable.name))
        entries = await StoreCalls(self._store)(lambda: list(islice(archived(system, newest_first=True), limit)))
        return [bodies.PrunedWriters(each.pruned_ms, each.count, each.first, each.last) for each in entries]

    async def restore(self, since_ms: int, by: By, *, dry_run: bool) -> bodies.RestoredWriters:
        """Make writers invalid again that were pruned since the time of the copy that a table was restored from."""
        if dry_run:
            return bodies.RestoredWriters(await self._pruner.restore(since_ms, dry_run=True), dry_run=True)
        count = await self._audit.act(
            "restore", f"writers pruned since {since_ms} ms", *by,
            lambda: self._pruner.restore(since_ms), lambda count: f"{count} writers invalid again",
        )  # fmt: skip
        self._when_restored()
        return bodies.RestoredWriters(count, dry_run=False)

    async def publish(self) -> bodies.PublishedSnapshot:
        """Publish the snapshot for the region servers now."""
        publisher = self._pruner.publisher
        if publisher is None:
            raise NoRegionsError(
                f"the store {self._store.kind} has no region servers to publish a snapshot for",
                hint="retention goes by the manager's own snapshot here",
            )
        published = await publisher.publish()
        assert published is not None, "only an unchanged one is left out"
        return _published(published)

    @property
    def region_servers(self) -> tuple[bodies.RegionServerInfo, ...]:
        """The region servers as the last survey found them; none where nobody has made one, and on a store without regions."""
        return tuple(
            bodies.RegionServerInfo(
                name,
                server.oldest_report_ms,
                None if server.jar_version == UNTOLD else version_text(server.jar_version),
                jar_state(server.jar_version),
            )
            for name, server in sorted(self._pruner.region_servers.items())
        )

    @property
    def published(self) -> bodies.PublishedSnapshot | None:
        """The snapshot that the region servers read; None where there are none, or nothing was published yet."""
        publisher = self._pruner.publisher
        latest = None if publisher is None else publisher.latest
        return None if latest is None else _published(latest)


def _published(snapshot: RegionSnapshot) -> bodies.PublishedSnapshot:
    """A snapshot, its lists as numbers."""
    return bodies.PublishedSnapshot(
        snapshot.epoch, snapshot.sequence, snapshot.time_ms, snapshot.decided, snapshot.visibility_upper_bound,
        snapshot.lifetime_ms_max, snapshot.in_progress_count, snapshot.invalid_count,
    )  # fmt: skip


def _run(result: PruneResult) -> bodies.PruneRun:
    return bodies.PruneRun(
        dry_run=result.dry_run,
        invalid=result.invalid,
        pruned=result.pruned_count,
        waiting=result.waiting,
        held=result.held,
        regions=result.regions,
        compactions=tuple(result.compactions),
        pointers=tuple(result.pruned[:POINTERS_SHOWN_MAX]),
    )


def _status(survey: Survey, last: PruneResult | None) -> bodies.PruneStatus:
    """Sum up a survey."""
    certificate, terms = survey.certificate, survey.terms
    causes: Counter[Cause | None] = Counter()
    oldest = None
    for span, cause in first_obstacles(certificate, survey.invalid):
        causes[cause] += len(span)
        if oldest is None and cause is not None:
            oldest = _explained(survey, survey.invalid[span.start])
    for part, cause in obstacles_of_runs(certificate, survey.runs):
        causes[cause] += part.last - part.first + 1
        if cause is not None and (oldest is None or part.first < oldest.write_pointer):
            oldest = _explained(survey, part.first)
    free = causes.pop(None, 0) if certificate.fault is None else 0
    regions = survey.regions
    return bodies.PruneStatus(
        invalid=len(survey.moment.view.invalid),
        free=free,
        causes=tuple(
            bodies.PruneCause(cause.value, causes[cause], FREED_BY[cause]) for cause in Cause if causes[cause]
        ),
        oldest=oldest,
        lifetime_ms=terms.lifetime_ms,
        skew_ms=terms.skew_ms,
        restored=terms.restored,
        fault=certificate.fault,
        regions=None if regions is None else len(regions.regions),
        reports=None if regions is None else sum(region.id in regions.reports for region in regions.regions),
        last_run=None if last is None else _run(last),
    )


def _explained(survey: Survey, pointer: int) -> bodies.ExplainedWriter:
    """Everything that is in the way of one writer."""
    holds = survey.certificate.holds(pointer)
    return bodies.ExplainedWriter(
        write_pointer=pointer,
        began_ms=pointer // POINTERS_PER_MS,
        ends_ms=survey.terms.end_ms(pointer),
        free=not holds and survey.certificate.fault is None,
        holds=tuple(map(_hold, holds[:HOLDS_SHOWN_MAX])),
        holds_left_out=max(0, len(holds) - HOLDS_SHOWN_MAX),
    )


def _invalid(survey: Survey, after: int, limit: int, cause: str | None) -> bodies.InvalidList:
    """A page of the list."""
    pointers = survey.invalid
    start = bisect_right(pointers, after)
    found: list[tuple[int, Cause | None]] = []
    for span, first in first_obstacles(survey.certificate, pointers):
        if cause is None or (first is not None and first.value == cause):
            stop = min(span.stop, max(span.start, start) + limit + 1 - len(found))
            found += ((pointer, first) for pointer in pointers[max(span.start, start) : stop])
    following = found[limit - 1][0] if len(found) > limit else None
    return bodies.InvalidList(
        tuple(_writer(survey, *each) for each in found[:limit]), len(survey.moment.view.invalid), following
    )


def _writer(survey: Survey, pointer: int, cause: Cause | None) -> bodies.InvalidWriter:
    named = (None, None) if cause is None else (cause.value, FREED_BY[cause])
    return bodies.InvalidWriter(pointer, pointer // POINTERS_PER_MS, survey.terms.end_ms(pointer), *named)


def _named(certificates: Certificates, wanted: Sequence[str]) -> list[Region]:
    """The regions of these ids, each once; `NotFoundError` when there is no such one now."""
    if not 0 < len(wanted) <= COMPACTIONS_MAX:
        raise InputError(
            f"{len(wanted)} regions are named: name 1 to {COMPACTIONS_MAX}, or leave them out", field="regions"
        )
    known = {region.id: region for region in certificates.regions}
    missing = next((name for name in wanted if name not in known), None)
    if missing is not None:
        raise NotFoundError(
            f"no region {missing[:64]} has rows of writers now", field="regions", hint="see `basalt prune regions`"
        )
    return [known[name] for name in dict.fromkeys(wanted)]


def _compacted(region: Region, certificates: Certificates) -> bodies.CompactedRegion:
    report = certificates.reports.get(region.id)
    files = () if report is None else report.files
    return bodies.CompactedRegion(
        region.id, region.table, region.server, len(files), sum(file.size_bytes for file in files)
    )


def _regions(regions: Certificates, invalid: Sequence[int]) -> list[bodies.RegionInfo]:
    """All regions, those first that hold back the oldest writers."""
    pointers = due(regions, invalid)
    found = blocked(regions, pointers)
    last = len(pointers)
    found.sort(key=lambda each: (last if each.first is None else each.first, each.region.table, each.region.start))
    return [_region(regions, each, pointers) for each in found]


def _region_detail(regions: Certificates, invalid: Sequence[int], region_id: str) -> bodies.RegionDetail:
    """One region with its files; `NotFoundError` when no table has it now."""
    pointers = due(regions, invalid)
    one = [each for each in blocked(regions, pointers) if each.region.id == region_id]
    if not one:
        raise NotFoundError(
            f"no region {region_id[:64]} has rows of writers now", field="region", hint="see `basalt prune regions`"
        )
    shown = _region(regions, one[0], pointers)
    report = regions.reports.get(region_id)
    return bodies.RegionDetail(
        **msgspec.structs.asdict(shown),
        name=one[0].region.name.decode("latin-1"),
        snapshot_epoch=None if report is None else report.snapshot_epoch,
        snapshot_sequence=None if report is None else report.snapshot_sequence,
        snapshot_time_ms=None if report is None else report.snapshot_time_ms,
        store_files=()
        if report is None
        else tuple(
            bodies.RegionFile(*file, held_back=len(held_by_file(file, regions.terms, pointers)))
            for file in report.files
        ),
        counters={} if report is None else dict(report.counters),
    )


def _region(regions: Certificates, holding: HoldingRegion, pointers: Sequence[int]) -> bodies.RegionInfo:
    region = holding.region
    report: RegionReport | None = regions.reports.get(region.id)
    fault = fault_of(region, report, regions.terms)
    jar = UNTOLD if report is None else report.jar_version
    return bodies.RegionInfo(
        id=region.id,
        table=region.table,
        server=region.server,
        start=region.start.hex(),
        stop=region.stop.hex(),
        report_ms=None if report is None else report.report_ms,
        oldest_edit_ms=None if report is None or report.oldest_edit_ms < 0 else report.oldest_edit_ms,
        files=None if report is None else len(report.files),
        unknown_files=None if report is None else sum(file.decided == UNKNOWN_ORIGIN for file in report.files),
        held_back=holding.writers,
        oldest_held=None if holding.first is None else pointers[holding.first],
        idle=None if fault is None else f"{fault.cause.value}: {fault.detail}",
        coprocessor=None if jar == UNTOLD else version_text(jar),
        coprocessor_state=jar_state(jar),
    )


def _hold(hold: Hold) -> bodies.PruneHold:
    region = hold.region
    return bodies.PruneHold(
        cause=hold.cause.value,
        detail=hold.detail,
        freed_by=FREED_BY[hold.cause],
        table=None if region is None else region.table,
        region=None if region is None else region.id,
        server=None if region is None else region.server or None,
        file=None if hold.file is None else hold.file.name,
    )


def _regions_of(survey: Survey) -> Certificates:
    if survey.regions is None:
        raise NoRegionsError("this store has no regions", hint="`basalt prune explain` tells what is in the way here")
    return survey.regions
