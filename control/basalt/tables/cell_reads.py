"""Runs reads of cells: short ones on the event loop, all others on a thread.

How much a read will look at is known only once it has: a row may have one cell or a hundred thousand, and each of them
many versions. So a read that may be short is tried on the loop, over a table that gives up after a bounded amount of work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

from basalt.runtime.store_calls import Keys, StoreCalls
from basalt_engine.cells.table import CHUNK_ROWS, CellRows, CellTable
from basalt_engine.table import Row, Store

SHORT_SCANS_MAX = 16  # of a look on the event loop: it is over within some milliseconds
SHORT_ROWS_MAX = CHUNK_ROWS
SHORT_BYTES_MAX = 4 << 20
LONG_LOOKS_MAX = 2  # at once on a local store: they keep processors busy, and writes need threads too

T = TypeVar("T")
Look = Callable[[CellTable], T]


class _LongLook(Exception):  # noqa: N818  # no error: the look goes on elsewhere
    """More is to be looked at than the event loop has time for."""


class Looks:
    """Runs looks at the cells of one store. A look may be run twice, and changes nothing."""

    def __init__(self, store: Store) -> None:
        self._table = store.table(CellTable.name)
        self._remote = store.remote
        self._call = StoreCalls(store)
        self._turns = asyncio.Semaphore(LONG_LOOKS_MAX)

    async def __call__(self, keys: Keys, look: Look[T], *, short: bool) -> T:
        """The look's result; `keys` are those of its table, `short`: it may well be over soon."""
        if self._remote:
            return await self._call.about(keys, look, CellTable(self._table))
        if short:
            try:
                return look(CellTable(_ShortTable(self._table)))
            except _LongLook:
                pass
        async with self._turns:
            return await asyncio.to_thread(look, CellTable(self._table))


class _ShortTable:
    """The cell table for one short look."""

    def __init__(self, table: CellRows) -> None:
        self._table = table
        self._scans = self._rows = self._bytes = 0

    def scan(self, start: bytes, stop: bytes | None, *, rows_max: int, bytes_max: int | None = None) -> Iterator[Row]:
        """As the table's, until the look has become long."""
        self._scans += 1
        if self._scans > SHORT_SCANS_MAX:
            raise _LongLook
        for row in self._table.scan(start, stop, rows_max=rows_max, bytes_max=bytes_max):
            self._rows += 1
            self._bytes += sum(map(len, row.columns.values()))
            if self._rows > SHORT_ROWS_MAX or self._bytes > SHORT_BYTES_MAX:
                raise _LongLook
            yield row
