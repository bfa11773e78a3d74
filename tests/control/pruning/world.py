"""A small cluster in which rows of failed writers get lost, come back late, and hide: what the prune rule is tried on.

It knows the truth that no server knows: which cells there are. Times are small numbers; a lifetime is 100 ms, clocks differ
by up to 10. Each action takes numbers and picks by them what it is about, so that any source of numbers can drive it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from basalt.pruning.rule import Certificates, Terms
from basalt_engine.snapshot import POINTERS_PER_MS
from basalt_engine.stores.hbase.regions import EMPTY_MEMSTORE, UNKNOWN_ORIGIN, Region, RegionReport, StoreFile

LIFETIME_MS, SKEW_MS = 100, 10
OFFSETS_MS = (-5, 0, 5)  # of servers' clocks against the leader's: no two differ by more than SKEW_MS
KEYS = 8
STEPS_MS = (1, 4, 15, 60, 130)


@dataclass(frozen=True)
class Snapshot:
    sequence: int
    decided: int
    invalid: frozenset[int]


NOTHING_KNOWN = Snapshot(-1, UNKNOWN_ORIGIN, frozenset())


@dataclass
class File:
    name: str
    cells: set[tuple[int, int]]  # writer, key
    decided: int
    newest: int


@dataclass
class Server:
    """One process of a region server: a restart makes another."""

    name: str
    offset_ms: int
    snapshot: Snapshot = NOTHING_KNOWN


@dataclass
class Holding:
    """A region where it is now."""

    start: int
    stop: int
    server: Server
    id: str
    memstore: list[tuple[int, int, int]] = field(default_factory=list)  # writer, key, time of the edit
    files: list[File] = field(default_factory=list)
    compacting: list[tuple[list[File], Snapshot]] = field(default_factory=list)

    @property
    def cells(self) -> set[tuple[int, int]]:
        return {(writer, key) for writer, key, _ in self.memstore} | {
            cell for file in self.files for cell in file.cells
        }


class World:
    """The cluster, its leader, and what pruning did."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self._numbers = itertools.count(1)
        self.servers = [self._server(offset_ms) for offset_ms in OFFSETS_MS[:2]]
        self.regions = [Holding(0, KEYS // 2, self.servers[0], "r0"), Holding(KEYS // 2, KEYS, self.servers[1], "r1")]
        self.open: list[int] = []
        self.last_pointer = 0
        self.invalid: set[int] = set()
        self.pruned: set[int] = set()
        self.published = Snapshot(0, 0, frozenset())
        self.reports: dict[str, RegionReport] = {}
        self.zombies: list[RegionReport] = []
        self.copied: tuple[list[Holding], set[int]] | None = None
        self.restored = 0
        for server in self.servers:
            server.snapshot = self.published

    def _server(self, offset_ms: int) -> Server:
        return Server(f"host,16020,{next(self._numbers)}", offset_ms)

    def _clock(self, server: Server) -> int:
        return self.now_ms + server.offset_ms

    # The leader.

    def advance(self, a: int, b: int) -> None:
        self.now_ms += STEPS_MS[a % len(STEPS_MS)]
        late = [writer for writer in self.open if writer // POINTERS_PER_MS + LIFETIME_MS <= self.now_ms]
        self.invalid |= set(late)
        self.open = [writer for writer in self.open if writer not in late]

    def begin(self, a: int, b: int) -> None:
        self.last_pointer = max(self.last_pointer + 1, self.now_ms * POINTERS_PER_MS)
        self.open.append(self.last_pointer)

    def end(self, a: int, b: int) -> None:
        if self.open:
            writer = self.open.pop(a % len(self.open))
            if b % 3:
                self.invalid.add(writer)

    def publish(self, a: int, b: int) -> None:
        decided = min(self.open) - 1 if self.open else self.last_pointer
        self.published = Snapshot(self.published.sequence + 1, decided, frozenset(self.invalid))

    def refresh(self, a: int, b: int) -> None:
        self.servers[a % len(self.servers)].snapshot = self.published

    # Writers, also those that were told to stop.

    def write(self, a: int, b: int) -> None:
        writers = sorted({*self.open, *self.invalid, *self.pruned})
        if not writers:
            return
        region = self.regions[b % len(self.regions)]
        self._put(region, writers[-1 - a % len(writers)], region.start + a % (region.stop - region.start))

    def _put(self, region: Holding, writer: int, key: int) -> None:
        clock_ms = self._clock(region.server)
        age_max_ms = LIFETIME_MS if region.server.snapshot.sequence >= 0 else SKEW_MS // 2
        if writer in region.server.snapshot.invalid or writer // POINTERS_PER_MS + age_max_ms <= clock_ms:
            return  # refused
        region.memstore.append((writer, key, clock_ms))

    def bulk_load(self, a: int, b: int) -> None:
        living = [writer for writer in self.invalid if writer // POINTERS_PER_MS + LIFETIME_MS > self.now_ms]
        if living:
            region = self.regions[b % len(self.regions)]
            cells = {(sorted(living)[a % len(living)], region.start)}
            region.files.append(self._file(cells, UNKNOWN_ORIGIN, self._newest(region.server)))

    # Files.

    def _file(self, cells: set[tuple[int, int]], decided: int, newest: int) -> File:
        return File(f"f{next(self._numbers)}", cells, decided, newest)

    def _newest(self, server: Server) -> int:
        return (self._clock(server) + 1) * POINTERS_PER_MS - 1

    def _flush(self, region: Holding, snapshot: Snapshot) -> None:
        if region.memstore:
            cells = {(writer, key) for writer, key, _ in region.memstore if writer not in snapshot.invalid}
            region.files.append(self._file(cells, snapshot.decided, self._newest(region.server)))
            region.memstore = []

    def flush(self, a: int, b: int) -> None:
        region = self.regions[a % len(self.regions)]
        self._flush(region, region.server.snapshot if b % 4 else NOTHING_KNOWN)

    def start_compaction(self, a: int, b: int) -> None:
        region = self.regions[a % len(self.regions)]
        busy = {file.name for files, _ in region.compacting for file in files}
        idle = [file for file in region.files if file.name not in busy]
        inputs = idle if b % 2 else idle[: 1 + b % 3]
        if inputs:
            region.compacting.append((inputs, region.server.snapshot))

    def finish_compaction(self, a: int, b: int) -> None:
        region = self.regions[a % len(self.regions)]
        if not region.compacting:
            return
        inputs, snapshot = region.compacting.pop(b % len(region.compacting))
        names = {file.name for file in inputs}
        cells = {cell for file in inputs for cell in file.cells if cell[0] not in snapshot.invalid}
        newest = max(file.newest for file in inputs)
        region.files = [file for file in region.files if file.name not in names]
        region.files.append(self._file(cells, snapshot.decided, newest))

    # Regions.

    def split(self, a: int, b: int) -> None:
        region = self.regions[a % len(self.regions)]
        if region.stop - region.start < 2 or len(self.regions) > 3:
            return
        self._flush(region, region.server.snapshot)
        middle = (region.start + region.stop) // 2
        self.regions.remove(region)
        for start, stop in ((region.start, middle), (middle, region.stop)):
            server = self.servers[(b + start) % len(self.servers)]
            self.regions.append(
                Holding(start, stop, server, f"r{next(self._numbers)}", files=_cut(region, start, stop))
            )
        self.regions.sort(key=lambda each: each.start)

    def merge(self, a: int, b: int) -> None:
        if len(self.regions) < 2:
            return
        at = a % (len(self.regions) - 1)
        left, right = self.regions[at : at + 2]
        for region in (left, right):
            self._flush(region, region.server.snapshot)
        merged = Holding(left.start, right.stop, left.server, f"r{next(self._numbers)}", files=left.files + right.files)
        self.regions[at : at + 2] = [merged]

    def move(self, a: int, b: int) -> None:
        region = self.regions[a % len(self.regions)]
        self._flush(region, region.server.snapshot)
        region.compacting = []
        region.server = self.servers[b % len(self.servers)]

    def crash(self, a: int, b: int) -> None:
        """A server dies, or is paused until it is taken for dead; its edits are replayed, and flushed before regions open."""
        dead = self.servers.pop(a % len(self.servers))
        self.servers.append(self._server(OFFSETS_MS[b % len(OFFSETS_MS)]))
        for number, region in enumerate(self.regions):
            if region.server is dead:
                self.zombies.append(self._report_of(region))
                region.server = self.servers[(b + number) % len(self.servers)]
                region.compacting = []
                self._flush(region, region.server.snapshot)

    # Copies of the tables.

    def copy(self, a: int, b: int) -> None:
        """An HBase snapshot of the tables, which flushes them first."""
        for region in self.regions:
            self._flush(region, region.server.snapshot)
        files = [replace(region, files=list(region.files), compacting=[]) for region in self.regions]
        self.copied = files, set(self.pruned)

    def restore(self, a: int, b: int) -> None:
        """The tables are as they were; what was forgotten since is put back on the invalid list."""
        if self.copied is None:
            return
        copies, pruned_before = self.copied
        self.copied = None
        for copied in copies:
            copied.id = f"r{next(self._numbers)}"
            copied.server = self.servers[(a + copied.start) % len(self.servers)]
        self.regions = copies
        self.invalid |= self.pruned - pruned_before
        self.pruned = pruned_before
        self.restored = self.last_pointer + 1

    # Reports.

    def _report_of(self, region: Holding) -> RegionReport:
        server, snapshot = region.server, region.server.snapshot
        files = tuple(StoreFile(file.name, file.decided, file.newest, 0, 0) for file in region.files)
        oldest_ms = min((edit_ms for _, _, edit_ms in region.memstore), default=EMPTY_MEMSTORE)
        known = (1, snapshot.sequence, 0) if snapshot.sequence >= 0 else (-1, -1, -1)
        start, stop = _key(region.start), _key(region.stop)
        table = "basalt.message"
        return RegionReport(
            table, region.id.encode(), server.name, self._clock(server), oldest_ms, *known, start, stop, files
        )

    def report(self, a: int, b: int) -> None:
        region = self.regions[a % len(self.regions)]
        self.reports[region.id] = self._report_of(region)

    def report_all(self, a: int, b: int) -> None:
        for region in self.regions:
            self.reports[region.id] = self._report_of(region)

    def wake(self, a: int, b: int) -> None:
        """A server that was taken for dead goes on, and reports what it thinks that it has."""
        if self.zombies:
            report = self.zombies.pop(a % len(self.zombies))
            self.reports[report.region_name.decode()] = report._replace(report_ms=self.now_ms)

    # Pruning.

    def listed(self, bad_read: int | None = None) -> list[Region]:
        """The regions as meta lists them; in a bad read one is missing."""
        left_out = None if bad_read is None else bad_read % len(self.regions)
        found = [
            Region("message", region.id, region.id.encode(), _key(region.start), _key(region.stop), region.server.name)
            for number, region in enumerate(self.regions)
            if number != left_out
        ]
        others = [Region(table, table, table.encode(), b"", b"", self.servers[0].name) for table in OTHER_TABLES]
        return [*found, *others]

    def all_reports(self) -> dict[str, RegionReport]:
        snapshot, server = (1, 1, 0), self.servers[0].name
        nothing = {
            table: RegionReport(
                f"basalt.{table}", table.encode(), server, self.now_ms, EMPTY_MEMSTORE, *snapshot, b"", b""
            )
            for table in OTHER_TABLES
        }
        return {**self.reports, **nothing}

    def prune(self, a: int, b: int) -> None:
        regions = self.listed(bad_read=a if b % 5 == 0 else None)
        terms = Terms(self.now_ms, LIFETIME_MS, self.restored, SKEW_MS)
        gone = set(self.may_go(regions, self.all_reports(), terms))
        self.invalid -= gone
        self.pruned |= gone
        self.check()

    def may_go(self, regions: list[Region], reports: dict[str, RegionReport], terms: Terms) -> Sequence[int]:
        """The rule; a world in which a part of it is left out has another."""
        certificates = Certificates(regions, reports, terms)
        return [pointer for pointer in sorted(self.invalid) if certificates.may_go(pointer)]

    def check(self) -> None:
        """No cell of a writer that was forgotten is anywhere."""
        for region in self.regions:
            back = {writer for writer, _ in region.cells} & self.pruned
            assert not back, f"pruned writers {sorted(back)} have cells in region {region.id}"


OTHER_TABLES = ("payload", "cell")  # in which nothing happens here
ACTIONS = (
    "advance", "begin", "end", "publish", "refresh", "write", "bulk_load", "flush", "start_compaction",
    "finish_compaction", "split", "merge", "move", "crash", "copy", "restore", "report", "report_all", "wake", "prune",
)  # fmt: skip


def _cut(region: Holding, start: int, stop: int) -> list[File]:
    """A daughter's references to its parent's files: their certificates, and its half of their cells."""
    return [
        File(file.name, {cell for cell in file.cells if start <= cell[1] < stop}, file.decided, file.newest)
        for file in region.files
    ]


def _key(number: int) -> bytes:
    return b"" if number in (0, KEYS) else bytes([number])
