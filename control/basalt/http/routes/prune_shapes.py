"""What the pruning calls answer, and how a survey becomes that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from basalt.api.bodies.pruning import (
    ExplainedWriter,
    PruneCause,
    PrunedWriters,
    PruneHold,
    PruneRun,
    PruneStatus,
    PublishedSnapshot,
    RegionDetail,
    RegionFile,
    RegionInfo,
)
from basalt.errors import NotFoundError
from basalt.pruning.prune import PruneResult
from basalt.pruning.rule import FREED_BY, Blocked, Cause, Certificates, Hold, blocked, due, fault_of
from basalt.pruning.state import Pruned
from basalt.pruning.survey import Survey
from basalt_engine.regions.report import UNKNOWN_ORIGIN, RegionReport, StoreFile
from basalt_engine.regions.snapshot import RegionSnapshot
from basalt_engine.retention import POINTERS_PER_MS

POINTERS_SHOWN_MAX = 1_000  # of those that one run pruned; the archive has all
HOLDS_SHOWN_MAX = 100  # things in the way of one writer


def published_shown(snapshot: RegionSnapshot) -> PublishedSnapshot:
    """A snapshot, its lists as numbers."""
    return PublishedSnapshot(
        snapshot.epoch, snapshot.sequence, snapshot.time_ms, snapshot.decided, snapshot.visibility_upper_bound,
        snapshot.lifetime_ms_max, len(snapshot.in_progress), len(snapshot.invalid),
    )  # fmt: skip


def run_shown(result: PruneResult) -> PruneRun:
    """A run."""
    return PruneRun(
        dry_run=result.dry_run,
        invalid=result.invalid,
        pruned=len(result.pruned),
        waiting=result.waiting,
        held=result.held,
        regions=result.regions,
        compactions=tuple(result.compactions),
        pointers=tuple(result.pruned[:POINTERS_SHOWN_MAX]),
    )


def status_shown(survey: Survey, last: PruneResult | None) -> PruneStatus:
    """How pruning stands; costs a search for each invalid writer."""
    certificate, terms = survey.certificate, survey.terms
    causes: Counter[Cause | None] = Counter()
    oldest = None
    for pointer in survey.invalid:
        cause = certificate.cause(pointer)
        causes[cause] += 1
        if oldest is None and cause is not None:
            oldest = explained_shown(survey, pointer)
    free = causes.pop(None, 0) if certificate.fault is None else 0
    regions = survey.regions
    return PruneStatus(
        invalid=len(survey.invalid),
        free=free,
        causes=tuple(PruneCause(cause.value, causes[cause], FREED_BY[cause]) for cause in Cause if causes[cause]),
        oldest=oldest,
        lifetime_ms=terms.lifetime_ms,
        skew_ms=terms.skew_ms,
        restored=terms.restored,
        fault=certificate.fault,
        regions=None if regions is None else len(regions.regions),
        reports=None if regions is None else sum(region.id in regions.reports for region in regions.regions),
        last_run=None if last is None else run_shown(last),
    )


def explained_shown(survey: Survey, pointer: int) -> ExplainedWriter:
    """What is in the way of one writer."""
    holds = survey.certificate.holds(pointer)
    return ExplainedWriter(
        write_pointer=pointer,
        began_ms=pointer // POINTERS_PER_MS,
        ends_ms=survey.terms.end_ms(pointer),
        free=not holds and survey.certificate.fault is None,
        holds=tuple(map(_hold_shown, holds[:HOLDS_SHOWN_MAX])),
        holds_left_out=max(0, len(holds) - HOLDS_SHOWN_MAX),
    )


def regions_shown(regions: Certificates, invalid: Sequence[int]) -> list[RegionInfo]:
    """All regions, those first that hold back the oldest writers."""
    pointers = due(regions, invalid)
    found = blocked(regions, pointers)
    last = len(pointers)
    found.sort(key=lambda each: (last if each.first is None else each.first, each.region.table, each.region.start))
    return [_region_shown(regions, each, pointers) for each in found]


def region_detail_shown(regions: Certificates, invalid: Sequence[int], region_id: str) -> RegionDetail:
    """One region with its files; `NotFoundError` when no table has it now."""
    pointers = due(regions, invalid)
    one = [each for each in blocked(regions, pointers) if each.region.id == region_id]
    if not one:
        raise NotFoundError(
            f"no region {region_id[:64]} has rows of writers now", field="region", hint="see `basalt prune regions`"
        )
    shown = _region_shown(regions, one[0], pointers)
    report = regions.reports.get(region_id)
    return RegionDetail(
        **msgspec.structs.asdict(shown),
        name=one[0].region.name.decode("latin-1"),
        snapshot_epoch=None if report is None else report.snapshot_epoch,
        snapshot_sequence=None if report is None else report.snapshot_sequence,
        snapshot_time_ms=None if report is None else report.snapshot_time_ms,
        store_files=() if report is None else tuple(map(_file_shown, report.files)),
        counters={} if report is None else dict(report.counters),
    )


def archived_shown(entry: Pruned) -> PrunedWriters:
    """An entry of the archive."""
    return PrunedWriters(entry.pruned_ms, len(entry.pointers), entry.pointers[0], entry.pointers[-1])


def _region_shown(regions: Certificates, found: Blocked, pointers: Sequence[int]) -> RegionInfo:
    region = found.region
    report: RegionReport | None = regions.reports.get(region.id)
    fault = fault_of(region, report, regions.terms)
    return RegionInfo(
        id=region.id,
        table=region.table,
        server=region.server,
        start=region.start.hex(),
        stop=region.stop.hex(),
        report_ms=None if report is None else report.report_ms,
        oldest_edit_ms=None if report is None or report.oldest_edit_ms < 0 else report.oldest_edit_ms,
        files=None if report is None else len(report.files),
        unknown_files=None if report is None else sum(file.decided == UNKNOWN_ORIGIN for file in report.files),
        held_back=found.writers,
        oldest_held=None if found.first is None else pointers[found.first],
        idle=None if fault is None else f"{fault.cause.value}: {fault.detail}",
    )


def _file_shown(file: StoreFile) -> RegionFile:
    return RegionFile(*file)


def _hold_shown(hold: Hold) -> PruneHold:
    region = hold.region
    return PruneHold(
        cause=hold.cause.value,
        detail=hold.detail,
        freed_by=FREED_BY[hold.cause],
        table=None if region is None else region.table,
        region=None if region is None else region.id,
        server=None if region is None else region.server or None,
        file=None if hold.file is None else hold.file.name,
    )
