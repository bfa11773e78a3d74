"""How many bytes a key range takes: counted while it is small, estimated from its keys beyond.

The gateway knows nothing of regions' sizes, so rows are counted without their values being sent: HBase gives each
value's length in its place. That still makes the region server read them, so counting ends at `ROWS_COUNTED_MAX` rows or
`BYTES_COUNTED_MAX` bytes. The keys of a topic end in a time; the rest of the range is taken to be as dense, by the share
of the way from its first key to its last one that was counted.
"""

from __future__ import annotations

from typing import Any

from basalt_engine.stores.hbase.scanning import Fetch
from basalt_engine.stores.hbase.spans import Span

ROWS_COUNTED_MAX = 1_000
BYTES_COUNTED_MAX = 64 << 20
CHUNK_ROWS = 100
LENGTHS = b"KeyOnlyFilter(true)"
SHARE_DIGITS = 16  # bytes of a key, after what first and last have in common, that tell how far apart keys are


def estimated_bytes(fetch: Fetch, start: bytes, stop: bytes) -> int:
    """The bytes of keys and columns of all rows with start <= key < stop; exact for small ranges."""
    left = Span(start, stop)
    counted = rows = 0
    first = last = b""
    while not left.is_empty():
        found = _lengths(fetch, left, CHUNK_ROWS)
        rows += len(found)
        counted += sum(map(_row_bytes, found))
        if len(found) < CHUNK_ROWS:
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


def _row_bytes(result: Any) -> int:
    cells = result.columnValues
    return len(result.row) + sum(len(cell.qualifier) + int.from_bytes(cell.value, "big") for cell in cells)


def _share(first: bytes, last: bytes, end: bytes) -> float:
    """How much of the way from the first key to the end the last one has come: above 0, at most 1."""
    common = next((i for i, (left, right) in enumerate(zip(first, end, strict=False)) if left != right), 0)
    low, at, high = (
        int.from_bytes(key[common:][:SHARE_DIGITS].ljust(SHARE_DIGITS, b"\0")) for key in (first, last, end)
    )
    return min(max((at - low) / max(high - low, 1), 1e-6), 1.0)
