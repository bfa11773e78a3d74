"""Two jobs that read every stored row and judge its writer: the prune audit and the invalid check.

Pruning decides by the reports of regions and reads no row. `prune-audit` proves on the rows themselves that it was
safe. A failed writer is on the invalid list, which hides its rows until pruning forgets the writer; after that its rows
would pass for committed ones. So no forgotten writer may have a row left anywhere, and none may stay on the list for
ever without one. `invalid-check` counts the rows that invalid writers have left, where `basalt prune explain` can only
say which files may hold some. Executors answer with counts and a bounded list of faults. docs/spark/jobs.md has the
rule as a table; docs/formats/system-table.md and docs/formats/region-snapshot.md the lists.

The tables are read without a server: of an HBase, or in a RocksDB checkpoint. Their source is a small value that
travels to the executors; each of them opens the store for itself, reads one range of keys of one table, and closes it.
No row goes through the driver.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, Union

import msgspec

from basalt.api.bodies.operations import ExplainedWriter
from basalt.errors import CorruptionError, InputError, UnavailableError
from basalt_engine.cells.keys import CellKey
from basalt_engine.cells.table import CellTable
from basalt_engine.keys import MessageKey, PayloadKey
from basalt_engine.messages import WRITER, MessageTable
from basalt_engine.metadata import MetadataTable
from basalt_engine.payloads import PayloadTable
from basalt_engine.retention import OnInvalid, is_old_generation
from basalt_engine.snapshot import POINTERS_PER_MS, PointerRuns
from basalt_engine.stores.hbase.kerberos import Kerberos, KerberosLogin
from basalt_engine.stores.hbase.regions import SNAPSHOT_KIND, SNAPSHOT_NAME, RegionSnapshot
from basalt_engine.stores.rocks.read_only import ReadOnlyRocksStore
from basalt_engine.system import SystemTable
from basalt_engine.table import Row
from basalt_spark.jobs.job_run import Advance, JobReport, Runner

if TYPE_CHECKING:  # Thrift comes with the extra `hbase`
    from basalt_engine.stores.hbase.store import HBaseStore

CONNECTIONS = 2  # one range is read at a time; the store reads a little ahead of it

OpenTables: TypeAlias = Union["HBaseStore", ReadOnlyRocksStore]


class TableRange(NamedTuple):
    """Rows of one table with start <= key < stop (None: to its end). `name` is the range's name in reports."""

    table: str
    start: bytes
    stop: bytes | None
    name: str


class _Install(msgspec.Struct):
    """The part of the entry `install:facts` that is needed, docs/formats/system-table.md."""

    buckets: int


class CheckpointRows(NamedTuple):
    """The tables in a data directory that nobody has open: a backup, or the data of a stopped server.

    Executors open it read-only, so each of them must have it under the same path: all on one machine, or a shared disk.
    """

    directory: str

    @property
    def shown(self) -> str:
        return f"checkpoint {self.directory}"

    def open(self) -> ReadOnlyRocksStore:
        return ReadOnlyRocksStore.open(Path(self.directory))

    def spans(self, tables: Sequence[str]) -> list[TableRange]:
        """Ranges that together are exactly these tables: one for each salt bucket."""
        with self.open() as store:
            body = SystemTable(store.table(SystemTable.name)).get("install", "facts")
        if body is None:
            raise CorruptionError(f"{self.directory} has no entry install:facts", hint="take another backup")
        buckets = msgspec.json.decode(body, type=_Install).buckets
        starts = [b"", *(bytes([salt]) for salt in range(1, buckets))]
        ranges = list(zip(starts, [*starts[1:], None], strict=True))
        return [
            TableRange(table, start, stop, f"bucket {salt}")
            for table in tables
            for salt, (start, stop) in enumerate(ranges)
        ]


class HBaseRows(NamedTuple):
    """The tables of an HBase whose names start with `prefix.`, through its second Thrift gateway at host:port.

    Where that asks for Kerberos, each executor gets tickets for itself: it needs the keytab at the same path, or a ticket cache.
    """

    address: str
    prefix: str = "basalt"
    kerberos: Kerberos | None = None

    @property
    def shown(self) -> str:
        return f"hbase {self.address} {self.prefix}"

    def open(self) -> HBaseStore:
        """Open the store; it takes part in no leadership, and nothing is written through it."""
        from basalt_engine.stores.hbase.store import HBaseStore

        login = None if self.kerberos is None else KerberosLogin(self.kerberos)
        return HBaseStore.open(self.address, self.prefix, read_connections_max=CONNECTIONS, login=login)

    def spans(self, tables: Sequence[str]) -> list[TableRange]:
        """Ranges that together are exactly these tables: one for each region.

        `UnavailableError` when regions leave a hole, as while one is being moved.
        """
        from basalt_engine.stores.hbase.regions import find_hole

        ranges: list[TableRange] = []
        with closing(self.open()) as store:
            for table in tables:
                regions = store.regions(table)
                hole = find_hole(regions)
                if hole is not None:
                    raise UnavailableError(
                        f"the regions of table {table} do not meet at key {hole.hex() or 'empty'}",
                        hint="a region may be moving: try again; if it stays so, look at hbase:meta with HBase's hbck2",
                    )
                ranges += [TableRange(table, region.start, region.stop or None, region.id) for region in regions]
        return ranges


TableSource: TypeAlias = CheckpointRows | HBaseRows


def rows_of(source: TableSource, span: TableRange) -> Iterator[Row]:
    """The rows of a range, one after the other; memory holds no more of them than the store reads ahead."""
    with closing(source.open()) as store:
        yield from store.table(span.table).scan(span.start, span.stop)


WRITER_BYTES = 8
CLOCK_SKEW_MS = 3_600_000  # that pruning adds to a writer's lifetime, for clocks that differ
# HBase compacts each region within a week by itself; after that no file holds a writer back.
KEPT_MS_MAX = 7 * 86_400_000

TABLES = (MessageTable.name, PayloadTable.name, CellTable.name)  # the tables whose rows have writers
PRUNED_KIND = "pruned"
EXTERNAL_WRITER_KIND = "external_writer"
PRUNE_STATE = ("prune", "state")  # kind and name
EXPLAINED_MAX = 1_000  # writers that a server explains in one call
UNDER_WAY = frozenset({"lifetime"})  # causes that only time ends: such a writer is not kept too long


class WriterFinding(enum.Enum):
    NONE = "no transaction"
    MARKED = "rolled back"  # the row itself is marked: no list is needed
    OPEN = "in progress"
    LATER = "began later"  # after the lists were read
    LISTED = "invalid"  # on the invalid list, which hides the row
    COMMITTED = "committed"
    RETAINED = "payload of a retained message"  # reached only through a message row that is marked
    UNREACHABLE = "old generation"  # of a topic that was deleted
    FORGOTTEN = "forgotten too early"
    UNREADABLE = "unreadable"


FAULTS = (WriterFinding.FORGOTTEN, WriterFinding.UNREADABLE)


class Held(NamedTuple):
    """The part of a topic's or table's metadata that the audit needs; `generation` is negative once it is deleted."""

    generation: int
    retains: bool = False


class Writers(NamedTuple):
    """The lists, as they were before the first row was read.

    `forgotten`: pruning took these writers off the invalid list, and nobody put them back. `newest`: the last pointer
    given out; 0 if it is not known. `external_writers`: these writers also wrote where the audit does not look. `young`: these
    wait for time alone. `restored`: the last pointer given out when forgotten writers were last put back on the list.
    `topics` are by prefix.
    """

    invalid: frozenset[int]
    forgotten: frozenset[int]
    in_progress: frozenset[int] = frozenset()
    newest: int = 0
    lifetime_ms: int = 0
    external_writers: frozenset[int] = frozenset()
    topics: Mapping[bytes, Held] = {}
    invalid_known: bool = True
    invalid_total: int = 0  # on the list, where it has more than `invalid` does
    young: frozenset[int] = frozenset()
    restored: int = 0

    def judge(self, writer: int) -> WriterFinding:
        """The state of a writer, whatever its row."""
        if writer in self.invalid:
            return WriterFinding.LISTED
        if writer in self.forgotten:
            return WriterFinding.FORGOTTEN
        if writer in self.in_progress:
            return WriterFinding.OPEN
        return WriterFinding.LATER if self.newest and writer > self.newest else WriterFinding.COMMITTED

    def kept_too_long(self, seen: Iterable[int], now_ms: int, kept_ms_max: int = KEPT_MS_MAX) -> list[int]:
        """Writers without a row that could have been forgotten more than `kept_ms_max` ago, ascending."""
        left = self.invalid.difference(seen, self.external_writers, self.young)
        life_ms = self.lifetime_ms + CLOCK_SKEW_MS  # after it pruning may forget a writer
        ends_ms = {writer: max(writer, self.restored) // POINTERS_PER_MS + life_ms for writer in left}
        return sorted(writer for writer, end_ms in ends_ms.items() if end_ms + kept_ms_max < now_ms)


class Judged(NamedTuple):
    """A row's finding; the writer is 0 if there is none."""

    finding: WriterFinding
    writer: int = 0


def judge_row(table: str, row: Row, writers: Writers) -> Judged:
    try:
        prefix, generation, writer = _owner(table, row)
    except CorruptionError:
        return Judged(WriterFinding.UNREADABLE)
    if writer is None:
        return Judged(WriterFinding.NONE)
    if writer < 0:
        return Judged(WriterFinding.MARKED, -writer)
    finding = writers.judge(writer)
    held = writers.topics.get(prefix)
    if finding is WriterFinding.FORGOTTEN and held is not None:
        if is_old_generation(generation, held.generation):
            return Judged(WriterFinding.UNREACHABLE, writer)
        if table == PayloadTable.name and held.retains:
            return Judged(WriterFinding.RETAINED, writer)
    return Judged(finding, writer)


def _owner(table: str, row: Row) -> tuple[bytes, int, int | None]:
    """The owner of a row: prefix, generation, and writer (negative when rolled back)."""
    if table != MessageTable.name:
        key = CellKey.decode(row.key) if table == CellTable.name else PayloadKey.decode(row.key)
        return key.prefix, key.generation, key.write_pointer
    message = MessageKey.decode(row.key)
    column = row.columns.get(WRITER)
    if column is None:
        return message.prefix, message.generation, None
    writer = int.from_bytes(column, "big", signed=True)
    if len(column) != WRITER_BYTES or writer == 0:
        raise CorruptionError(f"message row {row.key.hex()} has an impossible write pointer")
    return message.prefix, message.generation, writer


class _Pruned(msgspec.Struct):
    """The part of an entry of kind `pruned` that is needed."""

    pointers: list[int]
    runs: list[tuple[int, int]] = []

    def writers(self) -> Iterator[int]:
        return chain(self.pointers, PointerRuns(self.runs).one_by_one())


class _State(msgspec.Struct):
    """The part of pruning's own state that is needed."""

    restored: int = 0


def read_writers(store: OpenTables) -> Writers:
    """Read the lists in a store. Without a published snapshot, as in RocksDB, the invalid list is not known.

    Call it before reading rows. It reads the snapshot before the forgotten writers: one that is forgotten in between is
    still on the list, and its rows are no fault.
    """
    system = SystemTable(store.table(SystemTable.name))
    body = system.get(SNAPSHOT_KIND, SNAPSHOT_NAME)
    snapshot = None if body is None else RegionSnapshot.decode(body)
    forgotten = {
        pointer
        for _, entry in system.scan(PRUNED_KIND)
        for pointer in msgspec.json.decode(entry, type=_Pruned).writers()
    }
    external_writers = frozenset(int(name) for name, _ in system.scan(EXTERNAL_WRITER_KIND))
    state = system.get(*PRUNE_STATE)
    metadata = MetadataTable(store.table(MetadataTable.name)).scan_all()
    lists = Writers(
        frozenset(),
        frozenset(forgotten),
        external_writers=external_writers,
        topics={prefix: Held(held.generation, held.on_invalid is OnInvalid.RETAIN) for prefix, held in metadata},
        invalid_known=False,
        restored=0 if state is None else msgspec.json.decode(state, type=_State).restored,
    )
    if snapshot is None:
        return lists
    return lists._replace(
        invalid=frozenset(chain(snapshot.invalid, snapshot.invalid_runs.one_by_one())),
        in_progress=frozenset(chain(snapshot.in_progress, snapshot.in_progress_runs.one_by_one())),
        newest=snapshot.write_pointer,
        lifetime_ms=snapshot.lifetime_ms_max,
        invalid_known=True,
    )


def with_explained(
    writers: Writers, explained: Iterable[ExplainedWriter], lifetime_ms: int, *, invalid: int
) -> Writers:
    """Complete the lists of a store that publishes no snapshot by the writers that a server explains, of so many on its list.

    It explains the oldest ones that something holds. The others stay unknown, but they are not kept long yet.
    """
    holds = {each.write_pointer: {hold.cause for hold in each.holds} for each in explained}
    young = frozenset(writer for writer, causes in holds.items() if causes <= UNDER_WAY)
    listed = writers._replace(invalid=frozenset(holds), young=young, lifetime_ms=lifetime_ms, invalid_known=True)
    return listed._replace(invalid_total=invalid if invalid > len(holds) else 0)


def only(writers: Writers, wanted: Iterable[int]) -> frozenset[int]:
    """The part of the invalid list that was asked for; all if none were named. `InputError` for a writer not on it."""
    asked = frozenset(wanted)
    if not asked:
        return writers.invalid
    missing = asked - writers.invalid
    if missing and writers.invalid_known and not writers.invalid_total:
        raise InputError(
            f"write pointer {min(missing)} is not on the invalid list",
            hint="`basalt prune status` tells how long it is",
        )
    return asked


FAULTS_MAX = 100  # that one range reports; the counts have all
SHOWN_MAX = 20  # sentences of each sort in the report


class WriterRows(NamedTuple):
    """The rows of one writer in one range that are of one finding: their number, and the place of the first one."""

    finding: str
    writer: int
    table: str
    span: str
    key: str
    rows: int


class Tally(NamedTuple):
    """The result of one range. `listed` are the writers on the invalid list of which it has a row."""

    table: str
    span: str
    counts: Mapping[str, int]
    listed: frozenset[int]
    faults: tuple[WriterRows, ...]


def tally(span: TableRange, rows: Iterable[Row], writers: Writers) -> Tally:
    """Judge every row of a range, and keep none."""
    counts: Counter[str] = Counter()
    listed: set[int] = set()
    faults: dict[tuple[WriterFinding, int], WriterRows] = {}
    for row in rows:
        finding, writer = judge_row(span.table, row, writers)
        counts[finding.value] += 1
        if finding is WriterFinding.LISTED:
            listed.add(writer)
        elif finding in FAULTS:
            known = faults.get((finding, writer))
            if known is not None:
                faults[finding, writer] = known._replace(rows=known.rows + 1)
            elif len(faults) < FAULTS_MAX:
                faults[finding, writer] = WriterRows(finding.value, writer, span.table, span.name, row.key.hex(), 1)
    return Tally(span.table, span.name, dict(counts), frozenset(listed), tuple(faults.values()))


def audit(
    source: TableSource,
    writers: Writers,
    run: Runner,
    advance: Advance,
    *,
    spans: Sequence[TableRange],
    job_id: str,
    now_ms: int,
    kept_ms_max: int = KEPT_MS_MAX,
) -> JobReport:
    """Judge every row of the spans; `writers` must have been read before."""
    tallies = run(spans, lambda span: tally(span, rows_of(source, span), writers), advance)
    seen = frozenset[int]().union(*(each.listed for each in tallies))
    kept = writers.kept_too_long(seen, now_ms, kept_ms_max) if writers.invalid_known else []
    faults = [fault for each in tallies for fault in each.faults]
    sentences = [_sentence(fault) for fault in faults[:SHOWN_MAX]]
    sentences += [
        f"writer {writer} is kept too long: it is on the invalid list, and no row of it is anywhere"
        for writer in kept[:SHOWN_MAX]
    ]
    left_out = len(faults) + len(kept) - len(sentences)
    if left_out:
        sentences.append(f"and {left_out:,} more")
    counts: Counter[str] = Counter()
    for each in tallies:
        counts.update(each.counts)
    facts = {
        "source": source.shown,
        "ranges": len(tallies),
        "rows": sum(counts.values()),
        "invalid": (writers.invalid_total or len(writers.invalid)) if writers.invalid_known else None,
        "invalid_with_rows": len(seen),
        "forgotten": len(writers.forgotten),
        "forgotten_too_early": len(
            {fault.writer for fault in faults if fault.finding == WriterFinding.FORGOTTEN.value}
        ),
        "kept_too_long": len(kept) if writers.invalid_known else None,
        "unreadable": counts[WriterFinding.UNREADABLE.value],
    }
    tables = {
        "findings": _findings(tallies),
        "writers": [fault._asdict() for fault in faults],
        "kept": [{"writer": writer, "began_ms": writer // POINTERS_PER_MS} for writer in kept],
    }
    return JobReport("prune-audit", job_id, facts, sentences, tables)


def _findings(tallies: Sequence[Tally]) -> list[dict[str, object]]:
    by_table: dict[str, Counter[str]] = {table: Counter() for table in TABLES}
    for each in tallies:
        by_table[each.table].update(each.counts)
    return [
        {"table": table, "finding": finding.value, "rows": counts[finding.value]}
        for table, counts in by_table.items()
        for finding in WriterFinding
        if counts[finding.value]
    ]


def _sentence(fault: WriterRows) -> str:
    where = f"table {fault.table}, {fault.span}, key {fault.key}"
    if fault.finding == WriterFinding.UNREADABLE.value:
        return f"{fault.rows:,} rows cannot be read, so their writers are unknown; the first: {where}"
    return f"writer {fault.writer} was forgotten too early: it has {fault.rows:,} rows left; the first: {where}"


def check(
    source: TableSource,
    writers: Writers,
    wanted: frozenset[int],
    run: Runner,
    advance: Advance,
    *,
    spans: Sequence[TableRange],
    job_id: str,
) -> JobReport:
    """Look for rows of the wanted writers in the spans: a line for each writer, the oldest on top."""
    found = run(spans, lambda span: rows_by_writer(span, rows_of(source, span), writers, wanted), advance)
    by_writer: dict[int, Counter[str]] = {writer: Counter() for writer in wanted}
    ranges: dict[int, list[str]] = {writer: [] for writer in wanted}
    for span, counts in zip(spans, found, strict=True):
        for writer, rows in counts.items():
            by_writer[writer][span.table] += rows
            ranges[writer].append(f"{span.table} {span.name}")
    lines = [
        {
            "writer": writer,
            "began_ms": writer // POINTERS_PER_MS,
            **{f"{table}_rows": counts[table] for table in TABLES},
            "ranges": len(ranges[writer]),
            "first_range": min(ranges[writer], default=None),
        }
        for writer, counts in sorted(by_writer.items())
    ]
    facts = {
        "source": source.shown,
        "ranges": len(spans),
        "writers": len(wanted),
        "with_rows": sum(bool(counts) for counts in by_writer.values()),
        "rows": sum(counts.total() for counts in by_writer.values()),
    }
    return JobReport("invalid-check", job_id, facts, (), {"writers_checked": lines})


def rows_by_writer(span: TableRange, rows: Iterable[Row], writers: Writers, wanted: frozenset[int]) -> dict[int, int]:
    """Count the rows of the wanted writers in a range that are not marked as rolled back."""
    judged = (judge_row(span.table, row, writers) for row in rows)
    return dict(
        Counter(each.writer for each in judged if each.writer in wanted and each.finding is not WriterFinding.MARKED)
    )
