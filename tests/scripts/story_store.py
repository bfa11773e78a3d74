"""A store whose next write can be made to fail in one of the ways in which writes fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from basalt_engine.errors import StoreError, UnknownOutcomeError
from basalt_engine.table import Store, Table, TableWrite


class ProcessDied(BaseException):
    """The process ended; nothing after it runs."""


class StoryStore:
    """`open_store` opens it anew after each restart; what was written is still there."""

    remote = False
    applies_retention = False
    busy = False

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open = open_store
        self._inner = open_store()
        self.fault = ""
        self.writes_before_fault = 0
        self.dead = False

    @property
    def kind(self) -> str:
        return self._inner.kind

    @property
    def atomic(self) -> bool:
        return self._inner.atomic

    def __getattr__(self, name: str) -> Any:
        """What else the store tells: where a store of HBase's is."""
        return getattr(self._inner, name)

    def table(self, name: str) -> Table:
        return self._inner.table(name)

    def write(self, writes: Sequence[TableWrite]) -> None:
        fault = ""
        if self.fault and self.writes_before_fault == 0:
            fault, self.fault = self.fault, ""
        self.writes_before_fault -= 1
        if fault == "refuse":
            raise StoreError("the disk is full")
        if fault in ("", "lose-answer", "die-after"):
            self._inner.write(writes)
        if fault.startswith("die"):
            self.dead = True
            raise ProcessDied
        if fault:
            raise UnknownOutcomeError("the connection broke")

    def lead(self, epoch: int) -> None:
        self._inner.lead(epoch)

    def take(self, epochs: Mapping[int, int]) -> None:
        self._inner.take(epochs)

    def checkpoint(self, directory: Path) -> None:
        self._inner.checkpoint(directory)

    def close(self) -> None:
        """A process that ends closes nothing."""

    def reopen(self) -> None:
        """As the next process does."""
        self._inner.close()
        self._inner = self._open()
        self.dead = False
