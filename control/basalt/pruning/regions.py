"""The cluster as pruning sees it: regions as hbase:meta lists them, and the one thing that it may ask of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from basalt_engine.cells.table import CellTable
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
    """What pruning needs of a store whose tables are split over region servers."""

    def regions(self) -> list[Region]:
        """The regions of the tables that rows with writers are in, without those that were split or merged away."""
        ...

    def major_compact(self, region: Region) -> None:
        """Have all files of the region written anew, soon; returns at once."""
        ...


def key_space_fault(regions: Sequence[Region]) -> str | None:
    """What is wrong with the list: a table without regions, a hole or an overlap. None when each key has one region.

    While a region is split or moved the list may be read at a bad moment; it is right again soon after.
    """
    for table in TABLES:
        behind: bytes | None = b""  # where the next region must begin; None behind the last one
        for start, stop, name in sorted((each.start, each.stop, each.id) for each in regions if each.table == table):
            if start != behind:
                kind = "a hole" if behind is not None and start > behind else "an overlap"
                return f"table {table} has {kind} before region {name}, which begins at key {start.hex() or 'empty'}"
            behind = stop or None
        if behind is not None:
            return f"table {table} has no region from key {behind.hex() or 'empty'} on"
    return None
