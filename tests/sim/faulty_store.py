"""A memory store that fails as disks, networks and processes do, when a seeded random generator says so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from basalt_engine.errors import StoreError, UnknownOutcomeError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Put, Table, TableWrite

LOG = "transaction_log"


class ProcessDied(BaseException):
    """The process ended in the middle of a write; nothing after it runs."""


class LogTable:
    """The table of the transaction log, which is away while its store says so."""

    def __init__(self, store: FaultyStore, inner: Table) -> None:
        self._store = store
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if self._store.log_away and name != "name":
            raise StoreError("the region of the log is away")
        return getattr(self._inner, name)


class FaultyStore:
    """Writes fail before they are made, after they are made, or half-way, or the process dies at any of these points.

    Where the store is not atomic the log may be away for a while, and half of the writes take a while: other lanes go on meanwhile.
    """

    kind = "memory"
    remote = False
    applies_retention = False

    def __init__(self, inner: MemoryStore, chances: random.Random, fault_rate: float) -> None:
        self._inner = inner
        self._chances = chances
        self._fault_rate = fault_rate
        self.atomic = inner.atomic
        self.log_away = False
        self.death = asyncio.Event()

    @property
    def dead(self) -> bool:
        return self.death.is_set()

    @property
    def busy(self) -> bool:
        """True when the next write is to be made on a thread."""
        return not self.atomic and self._chances.random() < 0.5

    def table(self, name: str) -> Table:
        inner: Any = self._inner.table(name)
        return LogTable(self, inner) if name == LOG else inner

    def write(self, writes: Sequence[TableWrite]) -> None:
        if self.dead:
            raise ProcessDied
        if self.log_away and any(write.table == LOG for write in writes):
            raise StoreError("the region of the log is away")
        if self._chances.random() >= self._fault_rate:
            self._inner.write(writes)
            return
        fault = self._chances.choice(
            ["refused", "made, answer lost", "died before", "died after", "half-way", "died half-way"]
        )
        if fault == "refused":
            raise StoreError("the disk is full")
        if fault == "died before":
            self._die()
        if fault in ("half-way", "died half-way") and not self.atomic:
            self._write_some(writes)
        elif fault in ("made, answer lost", "died after") or self._chances.random() < 0.5:
            self._inner.write(writes)
        if fault.startswith("died"):
            self._die()
        raise UnknownOutcomeError("the connection broke")

    def _write_some(self, writes: Sequence[TableWrite]) -> None:
        """Some of the batch: of neighbouring puts any, for they may go to different machines; else the first ones."""
        runs = [
            (write.table, list(run))
            for write in writes
            for _, run in groupby(write.mutations, key=lambda mutation: isinstance(mutation, Put) or object())
        ]
        whole = self._chances.randint(0, len(runs))
        for table, run in runs[:whole]:
            self._inner.table(table).write(run)
        if whole < len(runs):
            table, run = runs[whole]
            for mutation in run:
                if self._chances.random() < 0.5:
                    self._inner.table(table).write([mutation])

    def _die(self) -> None:
        self.death.set()
        raise ProcessDied

    def lead(self, epoch: int) -> None:
        self._inner.lead(epoch)

    def take(self, epochs: Mapping[int, int]) -> None:
        self._inner.take(epochs)

    def checkpoint(self, directory: Path) -> None:
        self._inner.checkpoint(directory)

    def close(self) -> None:
        """The inner store outlives the process, as files do."""
