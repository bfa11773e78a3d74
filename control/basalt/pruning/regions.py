"""The regions of a store that region servers keep: as hbase:meta lists them, and the one thing that may be asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from basalt_engine.cells.table import CellTable
from basalt_engine.errors import StoreError
from basalt_engine.messages import MessageTable
from basalt_engine.payloads import PayloadTable

TABLES = (MessageTable.name, PayloadTable.name, CellTable.name)  # those whose rows have writers


class Region(NamedTuple):
    """A region: `name` is its whole name, `id` the encoded part by which everyone speaks of it.

    `start` <= row < `stop`, empty for the ends of the table; `server` is "host,port,startcode", empty when none has it.
    """

    table: str
    id: str
    name: bytes
    start: bytes
    stop: bytes
    server: str


class Cluster(Protocol):
    """The part that pruning needs of a store whose tables are split over region servers."""

    def regions(self) -> list[Region]:
        """The regions of the tables that rows with writers are in, without those that were split or merged away."""
        ...

    def major_compact(self, region: Region) -> None:
        """Have all files of the region written anew, soon; returns at once."""
        ...


class ListedRegion(Protocol):
    """A region as the store lists it."""

    @property
    def name(self) -> bytes:
        """Its whole name."""
        ...

    @property
    def encoded_name(self) -> str:
        """The part of its name that is unique by itself."""
        ...

    @property
    def start(self) -> bytes:
        """Its first key."""
        ...

    @property
    def stop(self) -> bytes | None:
        """The first key behind it; None for the last region."""
        ...

    @property
    def server(self) -> str | None:
        """host,port,start code; None while no server has it."""
        ...


class RegionStore(Protocol):
    """The part of the store that lists a table's regions."""

    def regions(self, name: str) -> Sequence[ListedRegion]:
        """The regions of a table, in order."""
        ...


class Compactor(Protocol):
    """The connection through which compactions are asked for."""

    def major_compact(self, region_name: bytes) -> None:
        """Have the region of this whole name compacted soon."""
        ...


class HBaseCluster:
    """Lists the regions of the tables that rows with writers are in, and has them compacted."""

    def __init__(self, store: RegionStore, compactor: Compactor | None) -> None:
        self._store = store
        self._compactor = compactor

    def regions(self) -> list[Region]:
        """See `Cluster.regions`."""
        return [
            Region(table, region.encoded_name, region.name, region.start, region.stop or b"", region.server or "")
            for table in TABLES
            for region in self._store.regions(table)
        ]

    def major_compact(self, region: Region) -> None:
        """See `Cluster.major_compact`."""
        if self._compactor is None:
            raise StoreError(
                "store.hbase.thrift is not set: HBase's second Thrift gateway cannot ask for a compaction",
                hint="name the first gateway, or set store.hbase.prune_compactions to 0",
            )
        self._compactor.major_compact(region.name)
