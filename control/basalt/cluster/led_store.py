"""A store that is written only while the term lasts.

Each write asks just before it is sent, so that a process which was stopped for longer than its lease writes nothing when
it wakes. What it had sent before is refused by the store itself: see `Store.lead`.

Cells are also read only while the term lasts: compactions drop versions that no reader needs, and the next leader knows
nothing of this one's readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from basalt.cluster.term import Term
from basalt_engine.errors import FencedError
from basalt_engine.table import Columns, Mutation, Row, Store, Table, TableWrite

CELLS = "cell"

T = TypeVar("T")


class LedTable:
    """One table of a `LedStore`."""

    def __init__(self, inner: Table, term: Term) -> None:
        self._inner = inner
        self._term = term

    @property
    def name(self) -> str:
        """See the SPI."""
        return self._inner.name

    def get(self, key: bytes) -> Columns | None:
        """See the SPI."""
        return self._inner.get(key)

    def scan(
        self,
        start: bytes,
        stop: bytes | None,
        *,
        reverse: bool = False,
        rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> Iterator[Row]:
        """See the SPI."""
        return self._inner.scan(start, stop, reverse=reverse, rows_max=rows_max, bytes_max=bytes_max)

    def size_bytes(self, start: bytes, stop: bytes) -> int:
        """See the SPI."""
        return self._inner.size_bytes(start, stop)

    def write(self, mutations: Sequence[Mutation]) -> None:
        """See the SPI; `FencedError` when the term is over."""
        _within(self._term, lambda: self._inner.write(mutations))

    def check_and_write(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        """See the SPI; `FencedError` when the term is over."""
        return _within(self._term, lambda: self._inner.check_and_write(key, column, expected, columns))

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """See the SPI; `FencedError` when the term is over."""
        _within(self._term, lambda: self._inner.delete_range(start, stop))


class LedCells(LedTable):
    """The table of cells: a row counts only if the term still lasted when it had been read, and so does their end."""

    def get(self, key: bytes) -> Columns | None:
        """See the SPI; `FencedError` when the term is over."""
        found = self._inner.get(key)
        self._term.check()
        return found

    def scan(
        self,
        start: bytes,
        stop: bytes | None,
        *,
        reverse: bool = False,
        rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> Iterator[Row]:
        """See the SPI; `FencedError` when the term is over."""
        for row in self._inner.scan(start, stop, reverse=reverse, rows_max=rows_max, bytes_max=bytes_max):
            self._term.check()
            yield row
        self._term.check()


class LedStore:
    """A handle that belongs to one term."""

    def __init__(self, inner: Store, term: Term) -> None:
        self._inner = inner
        self._term = term
        self.kind = inner.kind
        self.atomic = inner.atomic
        self.remote = inner.remote
        self.applies_retention = inner.applies_retention

    @property
    def busy(self) -> bool:
        """See the SPI."""
        return self._inner.busy

    def table(self, name: str) -> LedTable:
        """See the SPI."""
        led = LedCells if name == CELLS else LedTable
        return led(self._inner.table(name), self._term)

    def write(self, writes: Sequence[TableWrite]) -> None:
        """See the SPI; `FencedError` when the term is over."""
        _within(self._term, lambda: self._inner.write(writes))

    def lead(self, epoch: int) -> None:
        """See the SPI; `FencedError` when the term is over."""
        _within(self._term, lambda: self._inner.lead(epoch))

    def checkpoint(self, directory: Path) -> None:
        """See the SPI."""
        self._inner.checkpoint(directory)

    def close(self) -> None:
        """See the SPI."""
        self._inner.close()


def _within(term: Term, write: Callable[[], T]) -> T:
    term.check()
    try:
        return write()
    except FencedError as error:
        term.end(f"the store refused a write: {error.message}")
        raise
