"""What the pruning calls answer, and how a survey becomes that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from basalt.errors import NotFoundError
from basalt.pruning.certificate import FREED_BY, Cause, Certificates, Hold, fault_of
from basalt.pruning.compactions import Blocked, blocked, due
from basalt.pruning.prune import PruneResult
from basalt.pruning.state import Pruned
from basalt.pruning.survey import Survey
from basalt_engine.regions.report import UNKNOWN_ORIGIN, RegionReport, StoreFile
from basalt_engine.regions.snapshot import RegionSnapshot
from basalt_engine.retention import POINTERS_PER_MS

POINTERS_SHOWN_MAX = 1_000  # of those that one run pruned; the archive has all
HOLDS_SHOWN_MAX = 100  # things in the way of one writer


class PublishedShown(msgspec.Struct, rename="camel"):
    """A snapshot as it was published for the region servers."""

    epoch: int
    sequence: int
    time_ms: int
    decided: int
    visibility_upper_bound: int
    lifetime_ms_max: int
    in_progress: int
    invalid: int


class PruneRunShown(msgspec.Struct, rename="camel"):
    """A prune run. `waiting`: their lifetime is not over; `held`: something else is in the way."""

    dry_run: bool
    invalid: int
    pruned: int
    waiting: int
    held: int
    regions: int
    compactions: list[str]
    pointers: list[int]


class CauseShown(msgspec.Struct, rename="camel"):
    """One kind of thing in the way, of how many writers it is the first, and what frees them."""

    cause: str
    writers: int
    freed_by: str


class HoldShown(msgspec.Struct, rename="camel"):
    """One thing in the way of one writer."""

    cause: str
    detail: str
    freed_by: str
    table: str | None
    region: str | None
    server: str | None
    file: str | None


class ExplainedShown(msgspec.Struct, rename="camel"):
    """An invalid writer: from when on it may go at the earliest, and what is in its way now."""

    write_pointer: int
    began_ms: int
    ends_ms: int
    free: bool
    holds: list[HoldShown]
    holds_left_out: int


class PruneStatusShown(msgspec.Struct, rename="camel"):
    """How pruning stands. `regions` is null where the store has none."""

    invalid: int
    free: int
    causes: list[CauseShown]
    oldest: ExplainedShown | None
    lifetime_ms: int
    skew_ms: int
    restored: int
    fault: str | None
    regions: int | None
    reports: int | None
    last_run: PruneRunShown | None


class RegionShown(msgspec.Struct, rename="camel"):
    """A region. `heldBack`: so many writers whose lifetime is over; `idle`: why its report vouches for nothing."""

    id: str
    table: str
    server: str
    start: str
    stop: str
    report_ms: int | None
    oldest_edit_ms: int | None
    files: int | None
    unknown_files: int | None
    held_back: int
    oldest_held: int | None
    idle: str | None


class FileShown(msgspec.Struct, rename="camel"):
    """A file of a region; it can hold rows of writers above `decided` (-1: of any) up to `newest`."""

    name: str
    decided: int
    newest: int
    size_bytes: int
    modified_ms: int


class RegionDetailShown(RegionShown, rename="camel"):
    """A region with all that its server reported of it."""

    name: str
    snapshot_epoch: int | None
    snapshot_sequence: int | None
    snapshot_time_ms: int | None
    store_files: list[FileShown]
    counters: dict[str, int]


class ArchivedShown(msgspec.Struct, rename="camel"):
    """Writers that were forgotten by one run (or a part of it, where they were very many)."""

    pruned_ms: int
    writers: int
    oldest: int
    newest: int


class RestoreRequest(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """From when the copy is that a table was restored from, ms since 1970."""

    since_ms: int


class RestoredShown(msgspec.Struct, rename="camel"):
    """How many writers are (or would be) invalid again."""

    restored: int
    dry_run: bool


def published_shown(snapshot: RegionSnapshot) -> PublishedShown:
    """A snapshot, its lists as numbers."""
    return PublishedShown(
        snapshot.epoch, snapshot.sequence, snapshot.time_ms, snapshot.decided, snapshot.visibility_upper_bound,
        snapshot.lifetime_ms_max, len(snapshot.in_progress), len(snapshot.invalid),
    )  # fmt: skip


def run_shown(result: PruneResult) -> PruneRunShown:
    """A run."""
    return PruneRunShown(
        dry_run=result.dry_run,
        invalid=result.invalid,
        pruned=len(result.pruned),
        waiting=result.waiting,
        held=result.held,
        regions=result.regions,
        compactions=list(result.compactions),
        pointers=list(result.pruned[:POINTERS_SHOWN_MAX]),
    )


def status_shown(survey: Survey, last: PruneResult | None) -> PruneStatusShown:
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
    return PruneStatusShown(
        invalid=len(survey.invalid),
        free=free,
        causes=[CauseShown(cause.value, causes[cause], FREED_BY[cause]) for cause in Cause if causes[cause]],
        oldest=oldest,
        lifetime_ms=terms.lifetime_ms,
        skew_ms=terms.skew_ms,
        restored=terms.restored,
        fault=certificate.fault,
        regions=None if regions is None else len(regions.regions),
        reports=None if regions is None else sum(region.id in regions.reports for region in regions.regions),
        last_run=None if last is None else run_shown(last),
    )


def explained_shown(survey: Survey, pointer: int) -> ExplainedShown:
    """What is in the way of one writer."""
    holds = survey.certificate.holds(pointer)
    return ExplainedShown(
        write_pointer=pointer,
        began_ms=pointer // POINTERS_PER_MS,
        ends_ms=survey.terms.end_ms(pointer),
        free=not holds and survey.certificate.fault is None,
        holds=[_hold_shown(hold) for hold in holds[:HOLDS_SHOWN_MAX]],
        holds_left_out=max(0, len(holds) - HOLDS_SHOWN_MAX),
    )


def regions_shown(regions: Certificates, invalid: Sequence[int]) -> list[RegionShown]:
    """All regions, those first that hold back the oldest writers."""
    pointers = due(regions, invalid)
    found = blocked(regions, pointers)
    last = len(pointers)
    found.sort(key=lambda each: (last if each.first is None else each.first, each.region.table, each.region.start))
    return [_region_shown(regions, each, pointers) for each in found]


def region_detail_shown(regions: Certificates, invalid: Sequence[int], region_id: str) -> RegionDetailShown:
    """One region with its files; `NotFoundError` when no table has it now."""
    pointers = due(regions, invalid)
    one = [each for each in blocked(regions, pointers) if each.region.id == region_id]
    if not one:
        raise NotFoundError(
            f"no region {region_id[:64]} has rows of writers now", field="region", hint="see `basalt prune regions`"
        )
    shown = _region_shown(regions, one[0], pointers)
    report = regions.reports.get(region_id)
    return RegionDetailShown(
        **msgspec.structs.asdict(shown),
        name=one[0].region.name.decode("latin-1"),
        snapshot_epoch=None if report is None else report.snapshot_epoch,
        snapshot_sequence=None if report is None else report.snapshot_sequence,
        snapshot_time_ms=None if report is None else report.snapshot_time_ms,
        store_files=[] if report is None else [_file_shown(file) for file in report.files],
        counters={} if report is None else dict(report.counters),
    )


def archived_shown(entry: Pruned) -> ArchivedShown:
    """An entry of the archive."""
    return ArchivedShown(entry.pruned_ms, len(entry.pointers), entry.pointers[0], entry.pointers[-1])


def _region_shown(regions: Certificates, found: Blocked, pointers: Sequence[int]) -> RegionShown:
    region = found.region
    report: RegionReport | None = regions.reports.get(region.id)
    fault = fault_of(region, report, regions.terms)
    return RegionShown(
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


def _file_shown(file: StoreFile) -> FileShown:
    return FileShown(*file)


def _hold_shown(hold: Hold) -> HoldShown:
    region = hold.region
    return HoldShown(
        cause=hold.cause.value,
        detail=hold.detail,
        freed_by=FREED_BY[hold.cause],
        table=None if region is None else region.table,
        region=None if region is None else region.id,
        server=None if region is None else region.server or None,
        file=None if hold.file is None else hold.file.name,
    )
