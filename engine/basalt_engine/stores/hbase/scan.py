"""Reads of a key range: chunk after chunk, each by one call that leaves nothing open at the gateway.

A chunk is a scan of its own from the key after the last one. So a scan that loses its connection, or whose region moves
or splits, goes on with the next call, and a reader that leaves a scan early has nothing to free. While a reader works on
the rows of one chunk, a thread of the store fetches the next.

A scan by itself is fetched by the thread that reads it. A thread that opens several scans, as over the salt buckets of a
topic, and then reads from one of them, will want the others too: these are fetched side by side.

The size of a range is counted while it is small, and estimated from its keys beyond. The gateway knows nothing of
regions' sizes, so rows are counted without their values being sent: HBase gives each value's length in its place. The
region server still reads the values, so counting ends at `ROWS_COUNTED_MAX` rows or `BYTES_COUNTED_MAX` bytes. The keys
of a topic end in a time; the rest of the range is taken to be as dense, by the share of the way from its first key to
its last one that was counted.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple, TypeVar

from basalt_engine.stores.hbase.gateway import types
from basalt_engine.table import KEY_BYTES_MAX, Row, prefix_stop

# A chunk's number of rows is a guess by the table's rows so far. Larger chunks are no faster, and a reader that wants
# little waits for the whole of one.
CHUNK_BYTES = 4 << 20
CHUNK_ROWS_MIN = 8  # however little is wanted,
CHUNK_BYTES_MIN = 512 << 10  # unless these take more than so much
CHUNK_ROWS_MAX = 2_000
ROW_BYTES_GUESS = 64 << 10  # before any row was seen

BELOW = b"\xff" * 32  # no key of ours lies between this after a decremented byte and what that byte was before

ROWS_COUNTED_MAX = 1_000
BYTES_COUNTED_MAX = 64 << 20
COUNTED_CHUNK_ROWS = 100
LENGTHS = b"KeyOnlyFilter(true)"
SHARE_DIGITS = 16  # bytes of a key, after what first and last have in common, that tell how far apart keys are

T = TypeVar("T")
Fetch = Callable[[Any, int], list[Any]]  # a scan, and how many of its rows


@dataclass(frozen=True, slots=True)
class Span:
    """The keys with start <= key < stop (None: to the table's end) that are still to be read, in either order.

    As HBase scans them: a scan's bounds are rows' keys, of which the first counts and the last does not, both ways.
    `stop_is_row`: a reversed scan would begin with the row at `stop`, which has been read already.
    """

    start: bytes
    stop: bytes | None
    reverse: bool = False
    stop_is_row: bool = False

    def is_empty(self) -> bool:
        """True when no row's key can be in it."""
        return _bound(self.start) is None or (self.stop is not None and self.start >= self.stop)

    def holds(self, key: bytes) -> bool:
        """True when the key is in it: a reversed scan yields rows at or below its bounds too."""
        return self.start <= key and (self.stop is None or key < self.stop)

    def after(self, key: bytes) -> Span:
        """The rest of the span after this row."""
        return Span(self.start, key, True, True) if self.reverse else Span(key + b"\0", self.stop)

    def scan(self, rows_max: int, **options: object) -> tuple[Any, int]:
        """The gateway's scan of the next rows of the span, and the number of rows to ask for."""
        last = b"" if self.stop is None else _bound(self.stop) or b""
        if self.reverse:
            rows_max += self.stop_is_row
            bounds = {"startRow": last, "stopRow": _below(self.start), "reversed": True}
        else:
            bounds = {"startRow": _bound(self.start), "stopRow": last}
        return types.TScan(limit=rows_max, caching=rows_max, **bounds, **options), rows_max


def _bound(key: bytes) -> bytes | None:
    """The key as a bound; HBase takes none that is too long to be a row's. None: it is after every row."""
    return key if len(key) <= KEY_BYTES_MAX else prefix_stop(key[:KEY_BYTES_MAX])


def _below(start: bytes) -> bytes:
    """A key below `start`, with next to nothing between the two."""
    start = start[:KEY_BYTES_MAX]
    if not start or start[-1] == 0:
        return start[:-1]
    return (start[:-1] + bytes([start[-1] - 1]) + BELOW)[:KEY_BYTES_MAX]


@dataclass
class RowSize:
    """The size that rows of a table have had lately. Threads may race here: that costs a worse guess."""

    mean_bytes: float = ROW_BYTES_GUESS

    def saw(self, rows: list[Row]) -> None:
        """Learn from a chunk."""
        if rows:
            self.mean_bytes += (sum(row.size_bytes for row in rows) / len(rows) - self.mean_bytes) / 4

    def rows_in(self, size_bytes: int) -> int:
        """The number of rows that take about so many bytes, within the bounds of a chunk."""
        mean_bytes = max(self.mean_bytes, 1)
        rows_min = min(CHUNK_ROWS_MIN, ceil(CHUNK_BYTES_MIN / mean_bytes))
        return min(max(ceil(size_bytes / mean_bytes), rows_min), CHUNK_ROWS_MAX)


class Prefetcher:
    """The threads that fetch chunks ahead: a bounded number, started when they are needed.

    It also knows which scans each reading thread has opened and not yet read from.
    """

    def __init__(self, threads_max: int) -> None:
        self._executor = ThreadPoolExecutor(threads_max, thread_name_prefix="basalt-hbase")
        self._opened = threading.local()

    def submit(self, fetch: Callable[[], T]) -> Future[T] | None:
        """Fetch soon; None when the store is closing, and it must be fetched (and fail) where it is wanted."""
        try:
            return self._executor.submit(fetch)
        except RuntimeError:
            return None

    def opened(self, scan: Scan) -> None:
        """Note that this thread has a scan that nobody has read from yet."""
        others = [other for other in getattr(self._opened, "scans", ()) if other() is not None]
        self._opened.scans = [*others, weakref.ref(scan)]

    def reading(self, scan: Scan) -> None:
        """Prefetch the other scans that this thread has opened, for it has begun to read from one of them."""
        opened = getattr(self._opened, "scans", ())
        self._opened.scans = []
        for other in (reference() for reference in opened):
            if other is not None and other is not scan:
                other.prefetch()

    def close(self) -> None:
        """End the threads as soon as they have what they are fetching."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class _Chunk(NamedTuple):
    """Some rows, and what is left of the span after them: None when nothing is."""

    rows: list[Row]
    left: Span | None


def _read_chunk(fetch: Fetch, span: Span, rows_max: int, columns: list[Any] | None) -> _Chunk:
    """The first rows of a span that have one of these columns (None: any), `rows_max` of them or all there are."""
    scan, asked = span.scan(rows_max) if columns is None else span.scan(rows_max, columns=columns)
    results = fetch(scan, asked)
    rows = [Row(result.row, columns_of(result)) for result in results if span.holds(result.row)]
    if len(results) < asked or results[-1].row < span.start:
        return _Chunk(rows, None)
    # One row too many is there when the one that a reversed scan was to begin with has been deleted; no row at all when
    # it began with one that nobody knew of.
    rows = rows[:rows_max]
    return _Chunk(rows, span.after(rows[-1].key if rows else results[-1].row))


def columns_of(result: Any) -> dict[bytes, bytes]:
    """The columns of a row as the gateway answered it; empty when there is no such row."""
    return {cell.qualifier: cell.value for cell in result.columnValues}


class Scan(Iterator[Row]):
    """The rows of a span, up to limits."""

    def __init__(
        self,
        fetch: Fetch,
        prefetcher: Prefetcher,
        size: RowSize,
        span: Span,
        rows_max: int | None,
        bytes_max: int | None,
        columns: list[Any] | None = None,
    ) -> None:
        self._fetch = fetch
        self._columns = columns
        self._prefetcher = prefetcher
        self._size = size
        self._left = None if span.is_empty() or rows_max == 0 else span
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._ahead: Future[_Chunk] | None = None
        self._rows: Iterator[Row] = iter(())
        if self._left is not None:
            prefetcher.opened(self)

    def prefetch(self, bytes_in_hand: int = 0) -> None:
        """Fetch the next chunk on another thread, if there may be one and it is not on its way."""
        if self._left is not None and self._ahead is None:
            self._ahead = self._prefetcher.submit(self._reader(self._left, bytes_in_hand))

    def _reader(self, span: Span, bytes_in_hand: int = 0) -> Callable[[], _Chunk]:
        wanted = CHUNK_BYTES if self._bytes_max is None else min(CHUNK_BYTES, self._bytes_max - bytes_in_hand)
        rows = self._size.rows_in(wanted)
        rows = rows if self._rows_max is None else min(rows, self._rows_max)
        return lambda: _read_chunk(self._fetch, span, rows, self._columns)

    def __next__(self) -> Row:
        row = next(self._rows, None)
        while row is None:
            if self._left is None:
                raise StopIteration
            self._rows = iter(self._next_rows(self._left))
            row = next(self._rows, None)
        if self._bytes_max is not None:
            self._bytes_max -= row.size_bytes
            if self._bytes_max <= 0:
                self.close()
        return row

    def _next_rows(self, span: Span) -> list[Row]:
        self._prefetcher.reading(self)
        ahead, self._ahead = self._ahead, None
        # Fetch a chunk here that no other thread has begun to fetch, so that busy ones hold no reader up.
        rows, self._left = self._reader(span)() if ahead is None or ahead.cancel() else ahead.result()
        self._size.saw(rows)
        if self._rows_max is not None:
            self._rows_max -= len(rows)
            if self._rows_max <= 0:
                self._left = None
        in_hand = 0 if self._bytes_max is None else sum(row.size_bytes for row in rows)
        if self._bytes_max is None or in_hand < self._bytes_max:
            self.prefetch(in_hand)
        return rows

    def close(self) -> None:
        """Yield nothing more."""
        self._left = None
        self._rows = iter(())
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None


def estimated_bytes(fetch: Fetch, start: bytes, stop: bytes) -> int:
    """The bytes of keys and columns of all rows with start <= key < stop; exact for small ranges."""
    left = Span(start, stop)
    counted = rows = 0
    first = last = b""
    while not left.is_empty():
        found = _lengths(fetch, left, COUNTED_CHUNK_ROWS)
        rows += len(found)
        counted += sum(map(_counted_bytes, found))
        if len(found) < COUNTED_CHUNK_ROWS:
            return counted
        first, last = first or found[0].row, found[-1].row
        if rows >= ROWS_COUNTED_MAX or counted >= BYTES_COUNTED_MAX:
            ends = _lengths(fetch, Span(last, stop, reverse=True), 2)  # of which the first may be the one at `stop`
            return int(counted / _share(first, last, ends[0].row if ends else last))
        left = left.after(last)
    return counted


def _lengths(fetch: Fetch, span: Span, rows_max: int) -> list[Any]:
    scan, rows = span.scan(rows_max, filterString=LENGTHS, cacheBlocks=False)
    return [result for result in fetch(scan, rows) if span.holds(result.row)][:rows_max]


def _counted_bytes(result: Any) -> int:
    cells = result.columnValues
    return len(result.row) + sum(len(cell.qualifier) + int.from_bytes(cell.value, "big") for cell in cells)


def _share(first: bytes, last: bytes, end: bytes) -> float:
    """The share of the way from the first key to the end that the last one has come: above 0, at most 1."""
    common = next((i for i, (left, right) in enumerate(zip(first, end, strict=False)) if left != right), 0)
    low, at, high = (
        int.from_bytes(key[common:][:SHARE_DIGITS].ljust(SHARE_DIGITS, b"\0")) for key in (first, last, end)
    )
    return min(max((at - low) / max(high - low, 1), 1e-6), 1.0)
