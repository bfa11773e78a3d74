"""A local store that tells how many bytes are read of it before others get their turn, and how many are kept in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from basalt_engine.stores.memory import MemoryStore, MemoryTable
from basalt_engine.table import Row

COUNTED = ("message", "payload")


class CountedReads(MemoryStore):
    """Counts the values that scans of messages and payloads hand out."""

    def __init__(self, *, atomic: bool = True) -> None:
        super().__init__(atomic)
        self.since_turn_bytes = 0  # since others had their turn last
        self.most_bytes = 0  # between two turns of the others
        self.read_bytes = 0  # in all
        self.held_bytes = 0  # that somebody still refers to
        self.most_held_bytes = 0

    def table(self, name: str) -> Any:
        """The table, whose scans are counted."""
        table = super().table(name)
        return _CountedTable(table, self) if name in COUNTED else table

    def hand_out(self, value: bytes) -> bytes:
        """The value, counted."""
        size_bytes = len(value)
        self.held_bytes += size_bytes
        self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)
        self.read_bytes += size_bytes
        self.since_turn_bytes += size_bytes
        self.most_bytes = max(self.most_bytes, self.since_turn_bytes)
        handed_out = _HandedOut(value)
        handed_out.store = self
        return handed_out

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Begin to count, with others that want their turn as often as they can get it."""
        self.since_turn_bytes = self.most_bytes = self.read_bytes = self.most_held_bytes = 0
        others = asyncio.create_task(self._others())
        try:
            yield
        finally:
            others.cancel()

    async def _others(self) -> None:
        while True:
            self.since_turn_bytes = 0
            await asyncio.sleep(0)


class _HandedOut(bytes):
    """Bytes that tell when nobody refers to them any more."""

    store: CountedReads

    def __del__(self) -> None:
        self.store.held_bytes -= len(self)


class _CountedTable:
    def __init__(self, inner: MemoryTable, store: CountedReads) -> None:
        self._inner = inner
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def scan(self, *args: Any, **kwargs: Any) -> Iterator[Row]:
        for row in self._inner.scan(*args, **kwargs):
            yield Row(row.key, {column: self._store.hand_out(value) for column, value in row.columns.items()})
