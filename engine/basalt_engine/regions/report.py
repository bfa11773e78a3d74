"""A region server's report about one region: the age of its memstore, and which files could hold rows of which writers.

Kind `region` of the system table, named by the region's encoded name. Format: docs/formats/region-report.md; the
coprocessor writes it (Java class `RegionReport`), and pruning reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from basalt_engine.errors import CorruptionError

KIND = "region"
FORMAT = 1
EMPTY_MEMSTORE = -1
NO_SNAPSHOT = -1
UNKNOWN_ORIGIN = -1
_NUMBER = struct.Struct(">q")


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

    def encode(self) -> bytes:
        """The body of the row."""
        parts = [bytes([FORMAT]), *map(_sized, (self.table.encode(), self.region_name, self.server.encode()))]
        parts += map(_NUMBER.pack, self[3:8])
        parts += map(_sized, (self.start_key, self.stop_key))
        parts.append(len(self.files).to_bytes(4, "big"))
        for file in self.files:
            parts += (_sized(file.name.encode()), *map(_NUMBER.pack, file[1:]))
        parts.append(len(self.counters).to_bytes(2, "big"))
        for name, value in self.counters.items():
            parts += (_sized(name.encode("ascii")), _NUMBER.pack(value))
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> RegionReport:
        """The report that a body holds; `CorruptionError` for anything else."""
        if not data or data[0] != FORMAT:
            raise CorruptionError(f"a region report of format {data[:1].hex() or 'none'}, expected {FORMAT:02x}")
        reader = _Reader(data, 1)
        head = (reader.text(), reader.sized(), reader.text(), *(reader.number() for _ in range(5)))
        keys = (reader.sized(), reader.sized())
        files = tuple(
            StoreFile(reader.text(), reader.number(), reader.number(), reader.number(), reader.number())
            for _ in range(reader.whole(4))
        )
        counters = [(reader.text("ascii"), reader.number()) for _ in range(reader.whole(2))]
        reader.end()
        report = cls._make((*head, *keys, files, dict(counters)))
        return _checked(report, len(counters))


class _Reader:
    """Takes one field after the other off the bytes."""

    def __init__(self, data: bytes, offset: int) -> None:
        self._data = data
        self._offset = offset

    def take(self, size: int) -> bytes:
        start = self._offset
        if size > len(self._data) - start:
            raise CorruptionError(f"the region report ends at byte {len(self._data)}, within a field at byte {start}")
        self._offset += size
        return self._data[start : self._offset]

    def whole(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def number(self) -> int:
        found: int = _NUMBER.unpack(self.take(_NUMBER.size))[0]
        return found

    def sized(self) -> bytes:
        return self.take(self.whole(2))

    def text(self, encoding: str = "utf-8") -> str:
        data = self.sized()
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            raise CorruptionError(f"the region report has text that is not {encoding}: {data.hex()}") from None

    def end(self) -> None:
        left = len(self._data) - self._offset
        if left:
            raise CorruptionError(f"the region report has {left} bytes after its end")


def _checked(report: RegionReport, counters: int) -> RegionReport:
    """The report, if it can be so: nothing twice, -1 where that has a meaning, and else no number below 0."""
    snapshot = report[5:8]
    if report.report_ms < 0 or report.oldest_edit_ms < EMPTY_MEMSTORE:
        raise CorruptionError("the region report is damaged: a time is negative")
    if min(snapshot) < 0 and set(snapshot) != {NO_SNAPSHOT}:
        raise CorruptionError("the region report is damaged: its snapshot is neither one nor none")
    for file in report.files:
        if file.decided < UNKNOWN_ORIGIN or min(file[2:]) < 0:
            raise CorruptionError(f"the region report is damaged: file {file.name} has a negative number")
    names = {file.name for file in report.files}
    if len(names) != len(report.files) or "" in names or len(report.counters) != counters:
        raise CorruptionError("the region report is damaged: a file or counter is there twice, or has no name")
    return report


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data
