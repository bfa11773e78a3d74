"""A term, the time in which one server leads under one epoch, or is a member; and a store that is written only while it lasts.

A term is asked from the event loop and from the threads that write; it is extended by the thread that renews the lease.
Once over, it stays over.

Each write asks just before it is sent, so that a process which was stopped for longer than its lease writes nothing when
it wakes. The store itself refuses a write that was sent before: see `Store.lead`.

Cells are also read only while the term lasts: compactions drop versions that no reader needs, and the next leader knows
nothing of this one's readers.

A member writes rows of topics and tables, and lines of the audit under names of its own. All others are the leader's: a member's would have
timestamps below all of the leader's, and the store would hide them without a word.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from basalt_engine.clock import Clock
from basalt_engine.errors import FencedError, StoreError
from basalt_engine.stores.shards import row_shard
from basalt_engine.system import SystemTable
from basalt_engine.table import Columns, DeleteRange, Mutation, Row, Store, Table, TableWrite

CELLS = "cell"
AUDIT = b"audit:"  # the rows of lines, each written by one server alone

T = TypeVar("T")


class Term:
    """The time in which this server leads under `epoch`; or is `member`, where that is given: then it leads nobody, and the epoch is 0."""

    def __init__(self, clock: Clock, epoch: int, until_ms: float, member: str | None = None) -> None:
        self.epoch = epoch
        self.member = member
        self._clock = clock
        self._until_ms = until_ms
        self._over: str | None = None
        self._calls: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def is_on(self) -> bool:
        """True while the lease holds. Cheap: it is asked before every request and every write."""
        return self._over is None and self._clock.monotonic_ms() < self._until_ms

    def check(self) -> None:
        """`FencedError` unless the lease holds at this moment; one that has run out ends the term."""
        if not self.is_on():
            self.end("its lease ran out")
            was = f"led under epoch {self.epoch}" if self.member is None else f"was member {self.member}"
            raise FencedError(
                f"this server {was} until {self._over}",
                hint="send the call again: it is answered by the server that has taken over",
            )

    def check_rows(self, table: str, keys: Iterable[bytes]) -> None:
        """`StoreError` where a member is about to write a row of no topic or table."""
        if self.member is None:
            return
        for key in keys:
            if row_shard(table, key) is None and not (table == SystemTable.name and key.startswith(AUDIT)):
                raise StoreError(f"row {key.hex()} of table {table} is the leader's, and this server is a member")

    def extend(self, until_ms: float) -> None:
        """The lease was renewed. A term that is over takes no notice."""
        with self._lock:
            if self._over is None and self._clock.monotonic_ms() < self._until_ms:
                self._until_ms = until_ms

    def end(self, why: str) -> None:
        """It is over, for this reason; a second reason counts for nothing."""
        with self._lock:
            if self._over is not None:
                return
            self._over = why
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    @property
    def over(self) -> str | None:
        """The reason why the term is over; None while it is not known to be."""
        return self._over

    def when_over(self, call: Callable[[], None]) -> None:
        """Call once it is over, from whichever thread ends it; at once when it is over already."""
        with self._lock:
            if self._over is None:
                self._calls.append(call)
                return
        call()


class LedTable:
    """One table of a `LedStore`: a write raises `FencedError` when the term is over."""

    def __init__(self, inner: Table, term: Term) -> None:
        self._inner = inner
        self._term = term

    @property
    def name(self) -> str:
        return self._inner.name

    def get(self, key: bytes) -> Columns | None:
        return self._inner.get(key)

    def scan(
        self,
        start: bytes,
        stop: bytes | None,
        *,
        reverse: bool = False,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        columns: Sequence[bytes] | None = None,
    ) -> Iterator[Row]:
        limits = {"rows_max": rows_max, "bytes_max": bytes_max}
        return self._read(self._inner.scan(start, stop, reverse=reverse, columns=columns, **limits))

    def size_bytes(self, start: bytes, stop: bytes) -> int:
        return self._inner.size_bytes(start, stop)

    def write(self, mutations: Sequence[Mutation]) -> None:
        self._term.check_rows(self.name, _keys(mutations))
        _within(self._term, lambda: self._inner.write(mutations))

    def check_and_write(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        self._term.check_rows(self.name, [key])
        return _within(self._term, lambda: self._inner.check_and_write(key, column, expected, columns))

    def _read(self, rows: Iterator[Row]) -> Iterator[Row]:
        return rows


class LedCells(LedTable):
    """The table of cells: the term is checked after each row and at the end of a scan. `FencedError` when it is over."""

    def get(self, key: bytes) -> Columns | None:
        found = self._inner.get(key)
        self._term.check()
        return found

    def _read(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            self._term.check()
            yield row
        self._term.check()


class LedStore:
    """A handle that belongs to one term: a write raises `FencedError` when it is over."""

    def __init__(self, inner: Store, term: Term) -> None:
        self._inner = inner
        self._term = term
        self.kind = inner.kind
        self.atomic = inner.atomic
        self.remote = inner.remote
        self.applies_retention = inner.applies_retention

    @property
    def inner(self) -> Store:
        """The store itself: for figures of it, which no term is in the way of."""
        return self._inner

    @property
    def busy(self) -> bool:
        return self._inner.busy

    def table(self, name: str) -> LedTable:
        led = LedCells if name == CELLS else LedTable
        return led(self._inner.table(name), self._term)

    def write(self, writes: Sequence[TableWrite]) -> None:
        for name, mutations in writes:
            self._term.check_rows(name, _keys(mutations))
        _within(self._term, lambda: self._inner.write(writes))

    def lead(self, epoch: int) -> None:
        _within(self._term, lambda: self._inner.lead(epoch))

    def take(self, epochs: Mapping[int, int]) -> None:
        """A refusal says that another server has these shards, and nothing about the term."""
        self._term.check()
        self._inner.take(epochs)

    def checkpoint(self, directory: Path) -> None:
        self._inner.checkpoint(directory)

    def close(self) -> None:
        self._inner.close()


def _keys(mutations: Sequence[Mutation]) -> Iterator[bytes]:
    """A key of each: of a range, its first."""
    return (each.start if isinstance(each, DeleteRange) else each.key for each in mutations)


def _within(term: Term, write: Callable[[], T]) -> T:
    term.check()
    try:
        return write()
    except FencedError as error:
        term.end(f"the store refused a write: {error.message}")
        raise
