"""Tables that a job reads itself, without a server: of an HBase, or in a RocksDB checkpoint.

A source is a small value that travels to the executors; each of them opens the store for itself, reads one range of keys
of one table, and closes it. No row goes through the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from basalt_engine.table import Row, Table


class Span(NamedTuple):
    """Rows of one table with start <= key < stop (None: to its end). `name` is how people speak of the range."""

    table: str
    start: bytes
    stop: bytes | None
    name: str


class OpenTables(Protocol):
    """A store, as far as a job needs it."""

    def table(self, name: str) -> Table:
        """The table of this name."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class TableSource(Protocol):
    """Where tables are."""

    @property
    def shown(self) -> str:
        """What a report calls it."""
        ...

    def open(self) -> OpenTables:
        """The store; each process for itself."""
        ...

    def spans(self, tables: Sequence[str]) -> list[Span]:
        """Ranges that together are exactly these tables."""
        ...


@contextmanager
def opened(source: TableSource) -> Iterator[OpenTables]:
    """The source's store, as long as the block lasts."""
    store = source.open()
    try:
        yield store
    finally:
        store.close()


def rows_of(source: TableSource, span: Span) -> Iterator[Row]:
    """The rows of a range, one after the other; never more of them in memory than the store reads ahead."""
    with opened(source) as store:
        yield from store.table(span.table).scan(span.start, span.stop)
