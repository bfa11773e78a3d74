"""Tables that a job reads itself, without a server: of an HBase, or in a RocksDB checkpoint.

A source is a small value that travels to the executors; each of them opens the store for itself, reads one range of
keys of one table, and closes it. No row goes through the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, Union

import msgspec

from basalt.errors import CorruptionError, UnavailableError
from basalt_engine.stores.rocks.read_only import ReadOnlyRocksStore
from basalt_engine.system import SystemTable
from basalt_engine.table import Row

if TYPE_CHECKING:  # Thrift comes with the extra `hbase`
    from basalt_engine.stores.hbase.store import HBaseStore

CONNECTIONS = 2  # one range is read at a time; the store reads a little ahead of it

OpenTables: TypeAlias = Union["HBaseStore", ReadOnlyRocksStore]


class Span(NamedTuple):
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
        """The name in reports."""
        return f"checkpoint {self.directory}"

    def open(self) -> ReadOnlyRocksStore:
        """Open the store, to be read only."""
        return ReadOnlyRocksStore.open(Path(self.directory))

    def spans(self, tables: Sequence[str]) -> list[Span]:
        """Ranges that together are exactly these tables: one for each salt bucket."""
        with self.open() as store:
            body = SystemTable(store.table(SystemTable.name)).get("install", "facts")
        if body is None:
            raise CorruptionError(f"{self.directory} has no entry install:facts", hint="take another backup")
        buckets = msgspec.json.decode(body, type=_Install).buckets
        return [
            Span(
                table,
                bytes([salt]) if salt else b"",
                bytes([salt + 1]) if salt + 1 < buckets else None,
                f"bucket {salt}",
            )
            for table in tables
            for salt in range(buckets)
        ]


class HBaseRows(NamedTuple):
    """The tables of an HBase whose names start with `prefix.`, through its second Thrift gateway at host:port."""

    address: str
    prefix: str = "basalt"

    @property
    def shown(self) -> str:
        """The name in reports."""
        return f"hbase {self.address} {self.prefix}"

    def open(self) -> HBaseStore:
        """Open the store; it takes part in no leadership, and nothing is written through it."""
        from basalt_engine.stores.hbase.store import HBaseStore

        return HBaseStore.open(self.address, self.prefix, read_connections_max=CONNECTIONS)

    def spans(self, tables: Sequence[str]) -> list[Span]:
        """Ranges that together are exactly these tables: one for each region.

        `UnavailableError` when regions leave a hole, as while one is being moved.
        """
        from basalt_engine.regions import find_hole

        store = self.open()
        try:
            found = []
            for table in tables:
                regions = store.regions(table)
                hole = find_hole(regions)
                if hole is not None:
                    raise UnavailableError(
                        f"the regions of table {table} do not meet at key {hole.hex() or 'empty'}",
                        hint="a region may be moving: try again; if it stays so, look at hbase:meta with HBase's hbck2",
                    )
                found += [Span(table, region.start, region.stop or None, region.id) for region in regions]
            return found
        finally:
            store.close()


TableSource: TypeAlias = CheckpointRows | HBaseRows


@contextmanager
def opened(source: TableSource) -> Iterator[OpenTables]:
    """Open the source's store for the block."""
    store = source.open()
    try:
        yield store
    finally:
        store.close()


def rows_of(source: TableSource, span: Span) -> Iterator[Row]:
    """The rows of a range, one after the other; memory holds no more of them than the store reads ahead."""
    with opened(source) as store:
        yield from store.table(span.table).scan(span.start, span.stop)
