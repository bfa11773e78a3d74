"""Basalt's tables in an HBase, read region by region through its second Thrift gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from basalt.errors import UnavailableError
from basalt_engine.stores.hbase.regions import find_hole
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_spark.jobs.stored_tables import Span

CONNECTIONS = 2  # one range is read at a time; the store reads a little ahead of it


class HBaseRows(NamedTuple):
    """The tables whose names start with `prefix.`, through the gateway at host:port."""

    address: str
    prefix: str = "basalt"

    @property
    def shown(self) -> str:
        """What a report calls it."""
        return f"hbase {self.address} {self.prefix}"

    def open(self) -> HBaseStore:
        """The store; it takes part in no leadership, and nothing is written through it."""
        return HBaseStore.open(self.address, self.prefix, read_connections_max=CONNECTIONS)

    def spans(self, tables: Sequence[str]) -> list[Span]:
        """One range for each region. `UnavailableError` when regions leave a hole, as while one is being moved."""
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
                found += [Span(table, region.start, region.stop, region.encoded_name) for region in regions]
            return found
        finally:
            store.close()
