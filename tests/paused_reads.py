"""A store whose reads, made for one call, wait until the test lets them through: a call can be met between any two of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextvars import ContextVar, copy_context
from typing import Any

from basalt_engine.metadata import MetadataTable
from basalt_engine.stores.memory import MemoryStore, MemoryTable
from basalt_engine.table import Columns, Row

WAIT_SECONDS_MAX = 60  # for a test that is wrong; nothing waits that long
UNPAUSED = MetadataTable.name  # who reads of a topic here keeps others from changing it meanwhile
READS_MAX = 50  # of one call

_paused: ContextVar[PausedCall | None] = ContextVar("paused", default=None)


class PausedCall:
    """A call that stops before each of its reads. Those that stages of the group commit make are not stopped."""

    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._asked: asyncio.Queue[None] = asyncio.Queue()
        self._let_through = threading.Semaphore(0)
        self._open = False
        context = copy_context()
        context.run(_paused.set, self)
        self.task = self._loop.create_task(call, context=context)

    def read(self) -> None:
        """On the thread that is about to read."""
        if not self._open and threading.get_ident() != self._loop_thread:
            self._loop.call_soon_threadsafe(self._asked.put_nowait, None)
            assert self._let_through.acquire(timeout=WAIT_SECONDS_MAX), "nobody let the read through"

    async def at_read(self, number: int) -> bool:
        """Let reads through until the call stands before this one, counted from 0; False when it ended before."""
        for passed in range(number + 1):
            if passed:
                self._let_through.release()
            asked = asyncio.ensure_future(self._asked.get())
            await asyncio.wait([asked, self.task], return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                asked.cancel()
                return False
        return True

    async def on_by(self, reads: int) -> bool:
        """Let so many more reads through; False when the call ended before."""
        if not reads:
            return True
        self._let_through.release()
        return await self.at_read(reads - 1)

    async def finish(self) -> Any:
        """Let all reads through; what the call returned, or the error that it raised."""
        self._open = True
        self._let_through.release(READS_MAX)  # those that have asked already
        return (await asyncio.gather(self.task, return_exceptions=True))[0]


class PausedReads(MemoryStore):
    """A store far away: what a `PausedCall` reads of it waits."""

    remote = True

    def __init__(self, *, atomic: bool = True, applies_retention: bool = False) -> None:
        super().__init__(atomic)
        self.applies_retention = applies_retention
        self._pausing = {name: _PausedTable(table) for name, table in self._tables.items() if name != UNPAUSED}

    def table(self, name: str) -> Any:
        """The table, whose reads may wait."""
        return self._pausing.get(name) or super().table(name)


class _PausedTable:
    def __init__(self, inner: MemoryTable) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, key: bytes) -> Columns | None:
        _wait()
        return self._inner.get(key)

    def scan(self, *args: Any, **kwargs: Any) -> Iterator[Row]:
        _wait()
        return self._inner.scan(*args, **kwargs)


def _wait() -> None:
    paused = _paused.get()
    if paused is not None:
        paused.read()
