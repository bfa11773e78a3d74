"""Reading a key range: chunk after chunk, each by one call that leaves nothing open at the gateway.

A chunk is a scan of its own from the key after the last one, so a scan that loses its connection, or whose region moves
or splits, goes on with the next call; and whoever leaves a scan early has nothing to free. While the rows of a chunk are
handed out, a worker thread of the store fetches the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from basalt_engine.stores.hbase.cells import row_of
from basalt_engine.stores.hbase.spans import Span
from basalt_engine.stores.hbase.workers import Workers
from basalt_engine.table import Row

# Of a chunk; how many rows make it is a guess by the table's rows so far. Larger ones are no faster, and a reader that
# wants little waits for the whole of it.
CHUNK_BYTES = 4 << 20
CHUNK_ROWS_MIN = 8
CHUNK_ROWS_MAX = 2_000
ROW_BYTES_GUESS = 64 << 10  # before any row was seen

Fetch = Callable[[Any, int], list[Any]]  # a scan, and how many of its rows


@dataclass
class RowSize:
    """How large the rows of a table have been lately. Threads may race here: that costs a worse guess."""

    mean_bytes: float = ROW_BYTES_GUESS

    def saw(self, rows: list[Row]) -> None:
        """Learn from a chunk."""
        if rows:
            self.mean_bytes += (sum(map(size_of, rows)) / len(rows) - self.mean_bytes) / 4

    def rows_in(self, size_bytes: int) -> int:
        """How many rows take about so many bytes, within the bounds of a chunk."""
        return int(min(max(size_bytes / max(self.mean_bytes, 1), CHUNK_ROWS_MIN), CHUNK_ROWS_MAX))


def size_of(row: Row) -> int:
    """The bytes of its key and values, as a scan's limit counts them."""
    return len(row.key) + sum(map(len, row.columns.values()))


class Chunk(NamedTuple):
    """Some rows, and what is left of the span after them: None when nothing is."""

    rows: list[Row]
    left: Span | None


def read_chunk(fetch: Fetch, span: Span, rows_max: int) -> Chunk:
    """The first rows of a span, `rows_max` of them or all there are."""
    scan, asked = span.scan(rows_max)
    results = fetch(scan, asked)
    rows = [row_of(result) for result in results if span.holds(result.row)]
    if len(results) < asked or results[-1].row < span.start:
        return Chunk(rows, None)
    # One row too many is there when the one that a reversed scan was to begin with has been deleted; no row at all when
    # it began with one that nobody knew of.
    rows = rows[:rows_max]
    return Chunk(rows, span.after(rows[-1].key if rows else results[-1].row))


class Scan(Iterator[Row]):
    """The rows of a span, up to limits."""

    def __init__(
        self, fetch: Fetch, workers: Workers, size: RowSize, span: Span, rows_max: int | None, bytes_max: int | None
    ) -> None:
        self._fetch = fetch
        self._workers = workers
        self._size = size
        self._left = None if span.is_empty() or rows_max == 0 else span
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._ahead: Future[Chunk] | None = None
        self._rows: Iterator[Row] = iter(())
        if self._left is not None:
            workers.opened(self)

    def begin(self) -> None:
        """Fetch the next chunk on a worker, if there may be one and it is not on its way."""
        if self._left is not None and self._ahead is None:
            self._ahead = self._workers.submit(self._reader(self._left))

    def _reader(self, span: Span) -> Callable[[], Chunk]:
        wanted = CHUNK_BYTES if self._bytes_max is None else min(CHUNK_BYTES, self._bytes_max)
        rows = self._size.rows_in(wanted)
        rows = rows if self._rows_max is None else min(rows, self._rows_max)
        return lambda: read_chunk(self._fetch, span, rows)

    def __next__(self) -> Row:
        row = next(self._rows, None)
        while row is None:
            if self._left is None:
                raise StopIteration
            self._rows = iter(self._next_rows(self._left))
            row = next(self._rows, None)
        if self._bytes_max is not None:
            self._bytes_max -= size_of(row)
            if self._bytes_max <= 0:
                self.close()
        return row

    def _next_rows(self, span: Span) -> list[Row]:
        self._workers.reading(self)
        ahead, self._ahead = self._ahead, None
        # A chunk that no worker has begun to fetch is fetched here, so that busy workers hold nobody up.
        rows, self._left = self._reader(span)() if ahead is None or ahead.cancel() else ahead.result()
        self._size.saw(rows)
        if self._rows_max is not None:
            self._rows_max -= len(rows)
            if self._rows_max <= 0:
                self._left = None
        if self._bytes_max is None or sum(map(size_of, rows)) < self._bytes_max:
            self.begin()
        return rows

    def close(self) -> None:
        """Yield nothing more."""
        self._left = None
        self._rows = iter(())
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None
