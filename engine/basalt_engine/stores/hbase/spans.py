"""Key ranges as HBase can scan them. Its bounds are rows' keys, of which the first counts and the last does not, both ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from basalt_engine.stores.hbase.connection import types
from basalt_engine.table import KEY_BYTES_MAX, prefix_stop

BELOW = b"\xff" * 32  # no key of ours lies between this after a decremented byte and what that byte was before


@dataclass(frozen=True, slots=True)
class Span:
    """The keys with start <= key < stop (None: to the table's end) that are still to be read, in either order.

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
        """Whether the key is in it: a reversed scan yields rows at or below its bounds too."""
        return self.start <= key and (self.stop is None or key < self.stop)

    def after(self, key: bytes) -> Span:
        """What follows this row."""
        return Span(self.start, key, True, True) if self.reverse else Span(key + b"\0", self.stop)

    def scan(self, rows_max: int, **options: object) -> tuple[Any, int]:
        """The gateway's scan for so many rows of the span, and how many rows to ask for."""
        last = b"" if self.stop is None else _bound(self.stop) or b""
        if self.reverse:
            rows_max += self.stop_is_row
            bounds = {"startRow": last, "stopRow": _below(self.start), "reversed": True}
        else:
            bounds = {"startRow": _bound(self.start), "stopRow": last}
        return types.TScan(limit=rows_max, caching=rows_max, **bounds, **options), rows_max


def _bound(key: bytes) -> bytes | None:
    """A key as a bound; HBase takes none that is too long to be a row's. None: it is after every row."""
    return key if len(key) <= KEY_BYTES_MAX else prefix_stop(key[:KEY_BYTES_MAX])


def _below(start: bytes) -> bytes:
    """A key below `start`, with next to nothing between the two."""
    start = start[:KEY_BYTES_MAX]
    if not start or start[-1] == 0:
        return start[:-1]
    return (start[:-1] + bytes([start[-1] - 1]) + BELOW)[:KEY_BYTES_MAX]
