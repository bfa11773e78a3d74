"""The rule of pruning, pure: which invalid writers can have no row anywhere, and what is in the way of the others.

A region's report is its certificate. A file that was filtered by a snapshot which had decided on all writers up to
`decided` can hold rows of an invalid writer w only if decided < w <= newest: up to it the invalid ones were filtered out,
and those after `newest` had not begun. A region refuses what a writer writes after its lifetime; so when no memstore has
an edit from before the end of that, and no file can hold its rows, they are nowhere and never will be.

A store without regions goes by retention's notes. Whatever puts a writer on the invalid list leaves a note for each topic
and each table of its, in the same write. Retention removes a note together with the rows that it is about, and with what
the writer stored and never published; or when it has marked its rows as rolled back. A note about a table goes after a look
at the whole table. Nobody else writes to the store, and a writer that has ended is refused before a write is made; so a
writer without a note has no row left that counts.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from basalt_engine.snapshot import NO_RUNS, POINTERS_PER_MS, PointerRun, PointerRuns
from basalt_engine.stores.hbase.regions import (
    EMPTY_MEMSTORE,
    UNKNOWN_ORIGIN,
    WRITER_TABLES,
    Region,
    RegionReport,
    StoreFile,
)

ASK_AGAIN_MS = 3_600_000  # a large region takes its time, and asking twice would compact it twice
CLOCK_SKEW_MS = 3_600_000  # no two clocks of the cluster, the leader's among them, differ by more


class Cause(enum.Enum):
    """The causes for which a writer cannot be forgotten yet."""

    LIFETIME = "lifetime"  # its lifetime, and what clocks may differ by, is not over
    REPORT = "no report"  # the region has none, or none that can be read
    SERVER = "other server"  # the region's report is by a server that has it no more
    CLOCK = "clock ahead"  # the report is from a time that has not come
    AGE = "old report"  # the report was made before the writer's lifetime was over
    SNAPSHOT = "no snapshot"  # the server does not know which writers are too old, and refuses none
    MEMSTORE = "memstore"  # an unflushed edit may be the writer's
    FILE = "file"  # a file may hold its rows
    EXTERNAL_WRITES = "external_writes"  # it also wrote where nobody looks
    NOTE = "note"  # embedded: retention has not dealt with the writer's rows yet


FREED_BY = {
    Cause.LIFETIME: "time",
    Cause.REPORT: "the region's next report; is the coprocessor installed?",
    Cause.SERVER: "the first report of the server that has the region now",
    Cause.CLOCK: "setting the region server's clock right",
    Cause.AGE: "the region's next report",
    Cause.SNAPSHOT: "the region server's next refresh of the snapshot",
    Cause.MEMSTORE: "the region's next flush",
    Cause.FILE: "a compaction that this file takes part in, after a snapshot that is decided on the writer",
    Cause.EXTERNAL_WRITES: "the setting transactions.prune_external_writers, once what it wrote elsewhere is gone",
    Cause.NOTE: "the next run of the job retention",
}


class Hold(NamedTuple):
    """One thing in the way of one writer. `region` is None for what is not about a region."""

    cause: Cause
    detail: str
    region: Region | None = None
    file: StoreFile | None = None


class Terms(NamedTuple):
    """The numbers that the rule compares with: `lifetime_ms` is the longest that any region may know.

    `restored` is the write pointer from which on snapshots know what was last restored from a copy, 0 for nothing: files
    filtered by an earlier one may have rows of writers that it had forgotten.
    """

    now_ms: int
    lifetime_ms: int
    restored: int = 0
    skew_ms: int = CLOCK_SKEW_MS
    since_ms: int = 0  # when the first snapshot was published: until then no region refused a writer for its age
    external_writers: frozenset[int] = (
        frozenset()
    )  # writers that also wrote outside Basalt, and must not be forgotten for that

    def end_ms(self, pointer: int) -> int:
        """No region takes a write of this writer after this time, by whatever clock."""
        begun_ms = pointer // POINTERS_PER_MS + self.lifetime_ms
        restored_ms = self.restored // POINTERS_PER_MS if pointer <= self.restored else 0
        return max(begun_ms, restored_ms, self.since_ms) + self.skew_ms

    def early_cause(self, pointer: int) -> Cause | None:
        """The first thing in the way of this writer, before anybody looks for its rows."""
        if self.end_ms(pointer) >= self.now_ms:
            return Cause.LIFETIME
        return Cause.EXTERNAL_WRITES if pointer in self.external_writers else None

    def early_holds(self, pointer: int) -> list[Hold]:
        """The same as a hold; none when its rows are to be looked for."""
        cause = self.early_cause(pointer)
        if cause is Cause.LIFETIME:
            return [Hold(cause, f"ends in {self.end_ms(pointer) - self.now_ms + 1} ms")]
        return [] if cause is None else [Hold(cause, "it also wrote outside Basalt, where pruning does not look")]

    def must_be_decided(self, pointer: int) -> int:
        """Up to where a file's snapshot must have been decided, to have filtered out this invalid writer."""
        return max(pointer, self.restored)

    def newest(self, file: StoreFile) -> int:
        """The last writer that can have written to the file; a server's clock may be late."""
        return file.newest + self.skew_ms * POINTERS_PER_MS


Reports = Mapping[str, RegionReport]  # by region id
Obstacle: TypeAlias = "tuple[range, Cause | None]"  # indexes of writers, and the first thing in the way of each of them
ObstacleOfRun: TypeAlias = (
    "tuple[PointerRun, Cause | None]"  # a part of a run, and the first thing in the way of each of its writers
)
Notes = Mapping[int, Sequence[str]]  # names of retention's notes by the writers that they are about


class Certificates:
    """The reports of all regions, put together so that each writer costs a search."""

    def __init__(self, regions: Sequence[Region], reports: Reports, terms: Terms) -> None:
        self.regions = regions
        self.reports = reports
        self.terms = terms
        self.fault = key_space_fault(regions)
        # A writer whose end comes before all regions' certain times is in no memstore.
        certain = (certain_until(region, reports, terms) for region in regions)
        self._certain_ms, self._uncertain = min(certain, key=itemgetter(0), default=(-1, Cause.REPORT))
        files = sorted(
            (terms.newest(file), file.decided)
            for region in regions
            if region.id in reports
            for file in reports[region.id].files
        )
        self._newest = [newest for newest, _ in files]
        # For each file: the least decided of it and all that are newer.
        self._least = list(accumulate((decided for _, decided in reversed(files)), min))[::-1]

    def may_go(self, pointer: int) -> bool:
        """True when no row of this invalid writer can be anywhere."""
        return self.fault is None and self.cause(pointer) is None

    def cause(self, pointer: int) -> Cause | None:
        """The first thing in the way of this writer; costs a search."""
        early = self.terms.early_cause(pointer)
        if early is not None:
            return early
        if self.terms.end_ms(pointer) >= self._certain_ms:
            return self._uncertain
        first = bisect_left(self._newest, pointer)
        held = first < len(self._newest) and self._least[first] < self.terms.must_be_decided(pointer)
        return Cause.FILE if held else None

    def due_obstacles(self, pointers: Sequence[int]) -> list[Obstacle]:
        """Tell of these writers, whose lifetime is over, what `cause` does, but for writes elsewhere."""
        certain = _index_of_end(self, pointers, self._certain_ms)
        found: list[Obstacle] = []
        start = 0
        for newest, least in zip(self._newest, self._least, strict=True):
            stop = min(bisect_right(pointers, newest), certain)
            if stop <= start:
                continue
            free = start if least < self.terms.restored else min(max(bisect_right(pointers, least), start), stop)
            found += (range(start, free), None), (range(free, stop), Cause.FILE)
            start = stop
        return [*found, (range(start, certain), None), (range(certain, len(pointers)), self._uncertain)]

    def borders(self, run: PointerRun) -> Iterator[int]:
        """The pointers within the run from which on something else may be in the way than of the one before."""
        yield from _borders_of_time(run, self.terms, (self.terms.now_ms, self._certain_ms))
        for numbers in (self._newest, self._least):  # both ascend
            yield from (
                number + 1 for number in numbers[bisect_left(numbers, run.first) : bisect_left(numbers, run.last)]
            )

    def holds(self, pointer: int) -> list[Hold]:
        """All that is in the way of this writer."""
        end_ms = self.terms.end_ms(pointer)
        return self.terms.early_holds(pointer) or [
            hold for region in self.regions for hold in holds_of(region, self.reports, self.terms, pointer, end_ms)
        ]


def certain_until(region: Region, reports: Reports, terms: Terms) -> tuple[int, Cause]:
    """The time before which every edit of the region is in its files (-1: no time is certain), and the cause that limits it."""
    report = reports.get(region.id)
    fault = fault_of(region, report, terms)
    if fault is not None or report is None:
        return -1, Cause.REPORT if fault is None else fault.cause
    if report.oldest_edit_ms == EMPTY_MEMSTORE or report.report_ms <= report.oldest_edit_ms:
        return report.report_ms, Cause.AGE
    return report.oldest_edit_ms, Cause.MEMSTORE


def fault_of(region: Region, report: RegionReport | None, terms: Terms) -> Hold | None:
    """The reason why a report vouches for nothing at all; None when it vouches."""
    if report is None:
        return Hold(Cause.REPORT, "there is no report", region)
    if not region.server or report.server != region.server:
        return Hold(Cause.SERVER, f"reported by {report.server}, but now at {region.server or 'no server'}", region)
    if (report.table.rpartition(".")[2], report.start_key, report.stop_key) != (
        region.table,
        region.start,
        region.stop,
    ):
        return Hold(Cause.REPORT, "its report is about another range of keys", region)
    if report.report_ms > terms.now_ms + terms.skew_ms:
        return Hold(Cause.CLOCK, f"reported at {report.report_ms}, which is to come", region)
    if report.snapshot_epoch < 0:
        return Hold(Cause.SNAPSHOT, "its server knows no snapshot", region)
    return None


def holds_of(region: Region, reports: Reports, terms: Terms, pointer: int, end_ms: int) -> list[Hold]:
    report = reports.get(region.id)
    fault = fault_of(region, report, terms)
    if fault is not None or report is None:
        return [] if fault is None else [fault]
    holds = []
    if report.report_ms <= end_ms:
        holds.append(Hold(Cause.AGE, f"reported at {report.report_ms}, must be after {end_ms}", region))
    if report.oldest_edit_ms != EMPTY_MEMSTORE and report.oldest_edit_ms <= end_ms:
        holds.append(Hold(Cause.MEMSTORE, f"an edit of {report.oldest_edit_ms} is not flushed", region))
    needed = terms.must_be_decided(pointer)
    for file in report.files:
        if file.decided < needed and pointer <= terms.newest(file):
            origin = "of unknown origin" if file.decided == UNKNOWN_ORIGIN else f"filtered up to {file.decided}"
            holds.append(Hold(Cause.FILE, f"file {file.name} is {origin}", region, file))
    return holds


def held_by_file(file: StoreFile, terms: Terms, pointers: Sequence[int]) -> range:
    """The indexes of the ascending writers that the file may hold."""
    # A restored table needs a later snapshot; without one, writers up to `decided` were filtered out.
    start = 0 if file.decided < terms.restored else bisect_right(pointers, file.decided)
    return range(start, max(start, bisect_right(pointers, terms.newest(file))))


def held_by_files(report: RegionReport, terms: Terms, pointers: Sequence[int]) -> list[range]:
    """The ascending writers that some file of the region may hold: ranges of their indexes, ascending and apart."""
    spans = [held_by_file(file, terms, pointers) for file in report.files]
    merged: list[range] = []
    for start, stop in sorted((span.start, span.stop) for span in spans):
        if start >= stop:
            continue
        if merged and start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(stop, merged[-1].stop))
        else:
            merged.append(range(start, stop))
    return merged


def key_space_fault(regions: Sequence[Region]) -> str | None:
    """Find the fault of the list: a table without regions, a hole or an overlap. None when each key has one region.

    While a region is split or moved the list may be read at a bad moment; it is right again soon after.
    """
    for table in WRITER_TABLES:
        behind: bytes | None = b""  # where the next region must begin; None behind the last one
        for start, stop, name in sorted((each.start, each.stop, each.id) for each in regions if each.table == table):
            if start != behind:
                kind = "a hole" if behind is not None and start > behind else "an overlap"
                return f"table {table} has {kind} before region {name}, which begins at key {start.hex() or 'empty'}"
            behind = stop or None
        if behind is not None:
            return f"table {table} has no region from key {behind.hex() or 'empty'} on"
    return None


class EmbeddedCertificate:
    """Judges the writers of a store without regions, by the notes about them."""

    fault: str | None = None

    def __init__(self, notes: Notes, terms: Terms) -> None:
        self._notes = notes
        self.terms = terms

    def may_go(self, pointer: int) -> bool:
        """True when no row of this invalid writer is left that counts."""
        return self.cause(pointer) is None

    def cause(self, pointer: int) -> Cause | None:
        """The first thing in the way of this writer."""
        return self.terms.early_cause(pointer) or (Cause.NOTE if pointer in self._notes else None)

    def borders(self, run: PointerRun) -> Iterator[int]:
        """The pointers within the run from which on something else is in the way than of the one before."""
        yield from _borders_of_time(run, self.terms, (self.terms.now_ms,))

    def due_obstacles(self, pointers: Sequence[int]) -> list[Obstacle]:
        """Tell of these writers, whose lifetime is over, what `cause` does, but for writes elsewhere."""
        found: list[Obstacle] = []
        noted = bytes(map(self._notes.__contains__, pointers))  # 1 or 0 for each
        start = 0
        while start < len(noted):
            stop = noted.find(1 - noted[start], start)
            stop = len(noted) if stop < 0 else stop
            found.append((range(start, stop), Cause.NOTE if noted[start] else None))
            start = stop
        return found

    def holds(self, pointer: int) -> list[Hold]:
        """All that is in the way of this writer."""
        notes = self._notes.get(pointer, ())
        return self.terms.early_holds(pointer) or [
            Hold(Cause.NOTE, f"retention has not dealt with note {name}") for name in notes
        ]


def first_obstacles(certificate: Certificates | EmbeddedCertificate, pointers: Sequence[int]) -> list[Obstacle]:
    """The first thing in the way of each of these ascending writers: ranges of their indexes, which follow each other.

    The same as `cause` tells of each, for a hundred thousand of them at the price of some searches.
    """
    stop, terms = _index_of_end(certificate, pointers, certificate.terms.now_ms), certificate.terms
    found = certificate.due_obstacles(pointers[:stop])
    for pointer in sorted(terms.external_writers):
        at = bisect_left(pointers, pointer, hi=stop)
        if at < stop and pointers[at] == pointer:
            found = [part for each in found for part in _with(each, at, Cause.EXTERNAL_WRITES)]
    found.append((range(stop, len(pointers)), Cause.LIFETIME))
    return [(span, cause) for span, cause in found if span]


def obstacles_of_runs(certificate: Certificates | EmbeddedCertificate, runs: PointerRuns) -> Iterator[ObstacleOfRun]:
    """The first thing in the way of the writers of each run; a run is cut where it is not the same for all of them."""
    for run in runs:
        borders = sorted(
            {run.first, *(border for border in certificate.borders(run) if run.first < border <= run.last)}
        )
        for first, behind in pairwise((*borders, run.last + 1)):
            cause = certificate.cause(first)
            if cause is None and isinstance(certificate, EmbeddedCertificate):
                cause = (
                    Cause.NOTE
                )  # notes are about transactions: nobody notes what was written under a pointer of a run
            yield PointerRun(first, behind - 1), cause


def free_runs(certificate: Certificates | EmbeddedCertificate, runs: PointerRuns) -> PointerRuns:
    """The runs that may be forgotten, and parts of runs."""
    if certificate.fault is not None:
        return NO_RUNS
    return PointerRuns(part for part, cause in obstacles_of_runs(certificate, runs) if cause is None)


def _borders_of_time(run: PointerRun, terms: Terms, times_ms: Iterable[int]) -> Iterator[int]:
    """The first pointers that end at these times or later; of the others none ends later than one behind it."""
    pointers = range(run.first, run.last + 1)
    yield from (run.first + bisect_left(pointers, time_ms, key=terms.end_ms) for time_ms in times_ms)


def _with(obstacle: Obstacle, at: int, cause: Cause) -> list[Obstacle]:
    """The ranges that become of one when the writer of an index has another cause."""
    span, before = obstacle
    if at not in span:
        return [obstacle]
    return [(range(span.start, at), before), (range(at, at + 1), cause), (range(at + 1, span.stop), before)]


class HoldingRegion(NamedTuple):
    """A region, and which of the due writers it holds back: ranges of their indexes, ascending and apart."""

    region: Region
    by_files: list[range]
    uncertain: range  # those that may be in its memstore, or about which it has not reported

    @property
    def first(self) -> int | None:
        """The index of the oldest writer that it holds back."""
        firsts = [span.start for span in (*self.by_files[:1], self.uncertain) if span]
        return min(firsts, default=None)

    @property
    def writers(self) -> int:
        """The number of writers that it holds back."""
        before = sum(max(0, min(span.stop, self.uncertain.start) - span.start) for span in self.by_files)
        return before + len(self.uncertain)


def due(certificates: Certificates, invalid: Sequence[int]) -> Sequence[int]:
    """The writers whose lifetime is over: the rest waits for nothing but time."""
    return invalid[: _index_of_end(certificates, invalid, certificates.terms.now_ms)]


def blocked(certificates: Certificates, pointers: Sequence[int]) -> list[HoldingRegion]:
    """Each region with what it holds back of the ascending, due writers."""
    found = []
    for region in certificates.regions:
        certain_ms, _ = certain_until(region, certificates.reports, certificates.terms)
        uncertain = range(_index_of_end(certificates, pointers, certain_ms), len(pointers))
        report = certificates.reports.get(region.id)
        spans = [] if certain_ms < 0 or report is None else held_by_files(report, certificates.terms, pointers)
        found.append(HoldingRegion(region, spans, uncertain))
    return found


def worth_compacting(
    certificates: Certificates, pointers: Sequence[int], decided: int, asked: Collection[str], count_max: int
) -> list[Region]:
    """The regions, at most `count_max`, whose files hold back the oldest of the due writers; not those that were asked
    already.

    A compaction frees the writers that the newest snapshot is decided on, and no others.
    """
    if decided < certificates.terms.restored:
        return []
    freed = pointers[: bisect_right(pointers, decided)]
    held = [
        (each.by_files[0].start, -sum(map(len, each.by_files)), each.region.id, each.region)
        for each in blocked(certificates, freed)
        if each.by_files and each.region.id not in asked
    ]
    return [region for *_, region in sorted(held)[:count_max]]


def _index_of_end(certificates: Certificates | EmbeddedCertificate, pointers: Sequence[int], time_ms: int) -> int:
    """Count the ascending writers that have ended before a time; later ones end later."""
    return bisect_left(pointers, time_ms, key=certificates.terms.end_ms)
