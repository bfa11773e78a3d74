"""Regions of HBase, and the rows of the system table by which Basalt and region servers talk to each other.

A *report* is what a region server says of one region: the age of its memstore, and which files could hold rows of which
writers. Format: docs/formats/region-report.md; the coprocessor writes it (Java class `RegionReport`), pruning reads it. The
*snapshot* of transactions is what region servers go by, the newest durable one. Format: docs/formats/region-snapshot.md; the
Java class is `Snapshot`. A reader refuses whatever is not exactly as written here: it then keeps every row, while a list
misread would drop the wrong ones.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from basalt_engine import __version__
from basalt_engine.errors import CorruptionError
from basalt_engine.snapshot import NO_RUNS, PointerRun, PointerRuns
from basalt_engine.varints import VALUE_MAX, decode_rising, decode_varint, encode_rising, encode_varint

WRITER_TABLES = ("message", "payload", "cell")  # those whose rows have writers
REPORT_KIND = "region"  # of the system table, named by the region's encoded name
SNAPSHOT_KIND, SNAPSHOT_NAME = "snapshot", "latest"
REPORT_FORMAT, SNAPSHOT_FORMAT = 1, 2
EMPTY_MEMSTORE = -1
NO_SNAPSHOT = -1
UNKNOWN_ORIGIN = -1

# Counters of a report that say what runs there; UNTOLD where the region server cannot tell.
JAR_CRC32C = "jar.crc32c"
JAR_VERSION = "jar.version"
HBASE_VERSION = "hbase.version"
METADATA_TIME_MS = "metadata.time_ms"
UNTOLD = -1

JarState: TypeAlias = Literal["current", "older", "newer", "untold"]  # a coprocessor's jar beside this program
_VERSION_PARTS, _PART_SIZE = 3, 1_000
_VERSION_PART = re.compile("[0-9]{1,3}")
_NUMBER = struct.Struct(">q")
_SNAPSHOT_HEAD = struct.Struct(">B8q")


class Region(NamedTuple):
    """A region as hbase:meta lists it: `name` is its whole name, `id` the encoded part by which everyone speaks of it.

    `start` <= row < `stop`, empty for the ends of the table; `server` is "host,port,startcode", empty when none has it.
    """

    table: str
    id: str
    name: bytes
    start: bytes
    stop: bytes
    server: str
    state: str = ""


class StoreFile(NamedTuple):
    """A file of the region. It can hold rows of an invalid writer w only if decided < w <= newest."""

    name: str
    decided: int
    newest: int
    size_bytes: int
    modified_ms: int


class RegionReport(NamedTuple):
    """One report. Times are the server's clock; `server` is "host,port,startcode", `stop_key` empty for the last region.

    `oldest_edit_ms` is `EMPTY_MEMSTORE` when nothing is unflushed. The snapshot is the one that the server knew, its
    numbers `NO_SNAPSHOT` when it knew none.
    """

    table: str
    region_name: bytes
    server: str
    report_ms: int
    oldest_edit_ms: int
    snapshot_epoch: int
    snapshot_sequence: int
    snapshot_time_ms: int
    start_key: bytes
    stop_key: bytes
    files: tuple[StoreFile, ...] = ()
    counters: Mapping[str, int] = {}

    @classmethod
    def decode(cls, data: bytes) -> RegionReport:
        """The report that a body holds; `CorruptionError` for anything else."""
        reader = _Reader("region report", data, REPORT_FORMAT)
        head = (reader.text(), reader.sized(), reader.text(), *reader.numbers(5))
        keys = (reader.sized(), reader.sized())
        files = tuple(StoreFile(reader.text(), *reader.numbers(4)) for _ in range(reader.whole(4)))
        counters = [(reader.text("ascii"), reader.numbers(1)[0]) for _ in range(reader.whole(2))]
        reader.end()
        report = cls._make((*head, *keys, files, dict(counters)))
        reader.refuse(_report_fault(report, len(counters)))
        return report

    @property
    def jar_crc32c(self) -> int:
        """Checksum of the jar that the region runs."""
        return self.counters.get(JAR_CRC32C, UNTOLD)

    @property
    def jar_version(self) -> int:
        """Version of the jar that the region runs, as a number."""
        return self.counters.get(JAR_VERSION, UNTOLD)


class RegionSnapshot(NamedTuple):
    """The writers that have failed and those that are undecided, as of (`epoch`, `sequence`): of two copies the higher counts.

    `decided`: every writer up to it has committed, is undone, or has failed. Below `visibility_upper_bound` no
    reader needs an older version of anything. Both lists rise strictly; `in_progress` has checkpoints, too. A writer
    in a run is as if it were in the list.
    """

    epoch: int
    sequence: int
    time_ms: int
    read_pointer: int
    write_pointer: int
    decided: int
    visibility_upper_bound: int
    lifetime_ms_max: int
    in_progress: tuple[int, ...] = ()
    invalid: tuple[int, ...] = ()
    in_progress_runs: PointerRuns = NO_RUNS
    invalid_runs: PointerRuns = NO_RUNS

    @property
    def in_progress_count(self) -> int:
        """The number of write pointers that are undecided."""
        return len(self.in_progress) + self.in_progress_runs.pointers

    @property
    def invalid_count(self) -> int:
        """The number of write pointers that have failed."""
        return len(self.invalid) + self.invalid_runs.pointers

    @property
    def order(self) -> tuple[int, int]:
        """By which of two copies the newer is known."""
        return self.epoch, self.sequence

    def encode(self) -> bytes:
        """The body of the row; `ValueError` when a list does not rise, or `decided` cannot be so."""
        fault = _snapshot_fault(self)
        if fault is not None:
            raise ValueError(fault)
        count, runs = len(self.in_progress), [pointer for run in self.in_progress_runs for pointer in run]
        return b"".join(
            (
                _SNAPSHOT_HEAD.pack(SNAPSHOT_FORMAT, *self[:8]),
                struct.pack(f">I{count}q", count, *self.in_progress),
                struct.pack(f">I{len(runs)}q", len(self.in_progress_runs), *runs),
                len(self.invalid).to_bytes(4, "big"),
                encode_rising(self.invalid),
                len(self.invalid_runs).to_bytes(4, "big"),
                _encode_runs(self.invalid_runs),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> RegionSnapshot:
        """The snapshot that a body holds; `CorruptionError` for anything else."""
        reader = _Reader("region snapshot", data, SNAPSHOT_FORMAT)
        head = reader.numbers(8)
        in_progress = reader.numbers(reader.whole(4))
        edges = reader.numbers(2 * reader.whole(4))
        undecided = reader.runs([PointerRun(*pair) for pair in zip(edges[::2], edges[1::2], strict=True)])
        invalid = reader.rising(reader.whole(4))
        snapshot = cls._make((*head, in_progress, invalid, undecided, reader.rising_runs(reader.whole(4))))
        reader.end()
        reader.refuse(_snapshot_fault(snapshot))
        return snapshot


def version_number(text: str) -> int:
    """A version as one number, as counters hold it: 2.6.1-hadoop3 is 2_006_001. `UNTOLD` when it has another form."""
    parts = text.split("-", 1)[0].split(".")[:_VERSION_PARTS]
    number = 0
    for part in (*parts, *["0"] * (_VERSION_PARTS - len(parts))):
        if not _VERSION_PART.fullmatch(part):
            return UNTOLD
        number = number * _PART_SIZE + int(part)
    return number


def version_text(number: int) -> str:
    """A version that a counter holds as one number: 2_006_001 is 2.6.1."""
    if number < 0:
        return "unknown"
    return f"{number // 1_000_000}.{number // 1_000 % 1_000}.{number % 1_000}"


OWN_VERSION = version_number(__version__)


def jar_state(version: int, own: int = OWN_VERSION) -> JarState:
    """Compare a coprocessor of this version with the server that uses it."""
    if version < 0:
        return "untold"
    return "current" if version == own else "older" if version < own else "newer"


class _Reader:
    """Takes one field after the other off a body, behind its format."""

    def __init__(self, what: str, data: bytes, version: int) -> None:
        self._what = what
        self._data = data
        self._offset = 1
        if not data or data[0] != version:
            raise CorruptionError(f"a {what} of format {data[:1].hex() or 'none'}, expected {version:02x}")

    def take(self, size: int) -> bytes:
        start = self._offset
        if size > len(self._data) - start:
            raise CorruptionError(f"the {self._what} ends at byte {len(self._data)}, within a field at byte {start}")
        self._offset += size
        return self._data[start : self._offset]

    def whole(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def numbers(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f">{count}q", self.take(_NUMBER.size * count))

    def rising(self, count: int) -> tuple[int, ...]:
        try:
            numbers, self._offset = decode_rising(self._data, self._offset, count)
        except CorruptionError as error:
            raise CorruptionError(f"the {self._what}'s invalid list: {error.message}") from None
        return numbers

    def rising_runs(self, count: int) -> PointerRuns:
        """So many runs, each as the distance to the one before it, and what its last pointer is above its first one."""
        if count > len(self._data) - self._offset:
            raise CorruptionError(f"the {self._what}: {count} runs cannot be in {len(self._data) - self._offset} bytes")
        found: list[PointerRun] = []
        last = 0
        for _ in range(count):
            try:
                gap, self._offset = decode_varint(self._data, self._offset)
                more, self._offset = decode_varint(self._data, self._offset)
            except CorruptionError as error:
                raise CorruptionError(f"the {self._what}'s invalid runs: {error.message}") from None
            found.append(PointerRun(last + gap, last + gap + more))
            last += gap + more
        return self.runs(found)

    def runs(self, found: Sequence[PointerRun]) -> PointerRuns:
        """These runs; they must ascend, with a gap before each but the first, for only then are they told in one way."""
        last = -1
        for run in found:
            if not last + 1 < run.first <= run.last <= VALUE_MAX:
                raise CorruptionError(
                    f"the {self._what} has a run from {run.first} to {run.last} behind one that ends with {last}"
                )
            last = run.last
        return PointerRuns(found) if found else NO_RUNS

    def sized(self) -> bytes:
        return self.take(self.whole(2))

    def text(self, encoding: str = "utf-8") -> str:
        data = self.sized()
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            raise CorruptionError(f"the {self._what} has text that is not {encoding}: {data.hex()}") from None

    def end(self) -> None:
        left = len(self._data) - self._offset
        if left:
            raise CorruptionError(f"the {self._what} has {left} bytes after its end")

    def refuse(self, fault: str | None) -> None:
        if fault is not None:
            raise CorruptionError(f"the {self._what} is damaged: {fault}")


def _report_fault(report: RegionReport, counters: int) -> str | None:
    """The reason why these values are no report: something is there twice, or a number is below 0 where that has no meaning."""
    snapshot = report[5:8]
    if report.report_ms < 0 or report.oldest_edit_ms < EMPTY_MEMSTORE:
        return "a time is negative"
    if min(snapshot) < 0 and set(snapshot) != {NO_SNAPSHOT}:
        return "its snapshot is neither one nor none"
    for file in report.files:
        if file.decided < UNKNOWN_ORIGIN or min(file[2:]) < 0:
            return f"file {file.name} has a negative number"
    names = {file.name for file in report.files}
    if len(names) != len(report.files) or "" in names or len(report.counters) != counters:
        return "a file or counter is there twice, or has no name"
    return None


def _snapshot_fault(snapshot: RegionSnapshot) -> str | None:
    """The reason why these values are no snapshot; None when they are one. The invalid list is checked by its encoding."""
    if min(snapshot[:8]) < 0:
        return "a number is negative"
    rising = (0, *snapshot.in_progress)
    if any(left >= right for left, right in itertools.pairwise(rising)):
        return "the transactions in progress do not rise strictly from 1"
    if snapshot.decided > snapshot.write_pointer:
        return "it is decided on writers that do not exist yet"
    first = min((*snapshot.in_progress[:1], *snapshot.in_progress_runs.edges[:1]), default=None)
    if first is not None and snapshot.decided >= first:
        return "it is decided on a writer that is in progress"
    for runs in (snapshot.in_progress_runs, snapshot.invalid_runs):
        if runs and not (runs.edges[0] > 0 and runs.edges[-1] - 1 <= VALUE_MAX):
            return "a run is not within 1 to 2^63 - 1"
    return None


def _encode_runs(runs: PointerRuns) -> bytes:
    out, last = bytearray(), 0
    for run in runs:
        out += encode_varint(run.first - last) + encode_varint(run.last - run.first)
        last = run.last
    return bytes(out)


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def find_hole(regions: Sequence[Region]) -> bytes | None:
    """The first key that no region of a table has, or more than one; None when they cover all keys, each once."""
    start: bytes | None = b""
    for region in regions:
        if region.start != start:
            return start
        start = region.stop or None
    return start
