"""One table of the HBase store. The calls that each operation makes to the gateway: docs/formats/hbase-store.md.

Neighbouring puts are one call, and so are neighbouring deletes; all other mutations are a call each. HBase may write the
rows of one call in any order, so a call holds a row's puts as one, and never a put and a delete.

Each mutation has a stamp (see `stamps`). Its timestamp is taken before the write is sent, and a conditional put is judged when it
arrives. If a plain write of the same row were under way meanwhile, with a higher or lower timestamp, the outcome could be one
that no order of the two explains. So a conditional put runs alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from basalt_engine.errors import FencedError, InputError, RowExistsError, StoreError, UnknownOutcomeError
from basalt_engine.stores.hbase.gateway import Gateway, types
from basalt_engine.stores.hbase.scan import Prefetcher, RowSize, Scan, Span, columns_of, estimated_bytes
from basalt_engine.stores.hbase.stamps import FENCE, Stamp, Stamps
from basalt_engine.table import (
    KEY_BYTES_MAX,
    Columns,
    Delete,
    DeleteRange,
    Insert,
    Mutation,
    Put,
    Row,
    check_column_count,
    check_columns,
    check_key,
    check_mutation,
)

DELETE_ROWS = 1_000  # of a range: keys of one scan, deletes of one call
KEYS_ONLY = b"FirstKeyOnlyFilter() AND KeyOnlyFilter()"
FAMILY = b"m"
SYNC_WAL = types.TDurability.SYNC_WAL  # whatever the table's default is

CELL_BYTES_MAX = 10 << 20  # hbase.client.keyvalue.maxsize and hbase.server.keyvalue.maxsize, as they are by default
CELL_OVERHEAD_BYTES = 64  # HBase counts a cell's key, its family, its timestamp and the lengths of all of them too
ROW_BYTES_MAX = 32 << 20  # a gateway takes calls of 100 MiB, but holds each several times in a heap of 1 GiB
CALL_BYTES_MAX = 4 << 20  # a larger row goes alone; more at once is no faster, and the gateway holds it all
CALL_ROWS_MAX = 1_000


class HBaseTable:
    """One ordered map of rows, which any thread may use."""

    def __init__(
        self,
        name: str,
        hbase_name: str,
        reads: Gateway,
        writes: Gateway,
        stamps: Stamps,
        prefetcher: Prefetcher,
    ) -> None:
        self.name = name
        self.hbase_name = hbase_name
        self._table = hbase_name.encode()
        self._reads = reads
        self._writes = writes  # a write reads through it too, so that readers who hold all their connections do not hold up writers
        self._stamps = stamps
        self._prefetcher = prefetcher
        self._write_lock = SharedWriteLock()
        self._row_size = RowSize()
        self._part_size = RowSize()  # of rows that come with some of their columns

    def get(self, key: bytes) -> Columns | None:
        if not 0 < len(key) <= KEY_BYTES_MAX:
            return None
        return columns_of(self._reads.read("get", self._table, _gateway_get(key))) or None

    def write(self, mutations: Sequence[Mutation]) -> None:
        self.apply(mutations, WriteProgress())

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
        span = Span(start, stop, reverse)
        size = self._row_size if columns is None else self._part_size
        return Scan(self._fetch, self._prefetcher, size, span, rows_max, bytes_max, _gateway_columns(columns))

    def _fetch(self, scan: Any, rows: int) -> list[Any]:
        found: list[Any] = self._reads.read("getScannerResults", self._table, scan, rows)
        return found

    def check_and_write(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        check_key(key)
        check_columns(columns)
        check_put(key, columns)
        with self._write_lock.conditional():
            names = {column, *columns}
            found = {cell.qualifier: cell for cell in self._cells(key, names)}
            # HBase takes an empty value for an absent one in a condition, so it is told apart here.
            if (found[column].value if column in found else None) != expected:
                return False
            return not columns or self._put_if(key, column, expected, columns)

    def _insert(self, mutation: Insert) -> None:
        key, columns = mutation
        with self._write_lock.conditional():
            if self._put_if(key, mutation.first, None, columns):
                return
        raise RowExistsError(f"row {key.hex()} of table {self.name} is there already")

    def _cells(self, key: bytes, names: set[bytes] | None = None) -> list[Any]:
        """The row's cells. Timestamps given from now on are above theirs."""
        found: list[Any] = self._writes.read("get", self._table, _gateway_get(key, names)).columnValues
        for cell in found:
            self._stamps.saw(self.name, key, cell.timestamp)
        return found

    def _put_if(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        """Put the columns if the column has the expected value. HBase takes an empty value for an absent one."""
        stamp = self._stamps.one(self.name, key)
        put = gateway_put(key, columns, stamp)
        condition = (self._table, key, FAMILY, column, expected, put)
        # A double of it finds what it has put, or what came after, and puts nothing. One that expects no row might find none again, once it is deleted.
        may_double = expected is not None and columns.get(column) != expected
        try:
            # The gateway tries again by itself when a region server's answer gets lost, and then finds what it put.
            put_now = self._writes.write_once("checkAndPut", *condition, may_double=may_double)
            return bool(put_now) or self._is_put(key, columns, stamp.timestamp)
        except UnknownOutcomeError:
            if self._is_put(key, columns, stamp.timestamp):
                return True
            raise

    def _is_put(self, key: bytes, columns: Columns, timestamp: int) -> bool:
        try:
            found = {cell.qualifier: cell for cell in self._cells(key, set(columns))}
        except StoreError:
            raise UnknownOutcomeError(
                f"whether row {key.hex()} of table {self.name} was written is not known"
            ) from None
        return all(
            name in found and found[name].timestamp == timestamp and found[name].value == value
            for name, value in columns.items()
        )

    def size_bytes(self, start: bytes, stop: bytes) -> int:
        """An estimate of the range's bytes: exact up to some hundred rows, see `estimated_bytes`."""
        return estimated_bytes(self._fetch, start, stop)

    def apply(self, mutations: Sequence[Mutation], progress: WriteProgress) -> None:
        """Apply the mutations in order, as a part of a write whose progress so far is given."""
        for step in steps(mutations):
            with progress.step():
                self._do(step, progress)

    def _do(self, step: Step, progress: WriteProgress) -> None:
        if isinstance(step, Insert):
            self._insert(step)
        elif isinstance(step, DeleteRange):
            self._delete_rows(step, progress)
        elif isinstance(step, Puts):
            self._put_rows([Put(key, columns) for key, columns in step.rows.items()])
        else:
            self._delete(step)

    def _put_rows(self, puts: Sequence[Put]) -> None:
        with self._write_lock.plain():
            stamps = self._stamps.of(self.name, [put.key for put in puts])
            sent = [gateway_put(*put, stamp) for put, stamp in zip(puts, stamps, strict=True)]
            if len(sent) == 1:
                self._writes.write("put", self._table, sent[0], rows=1)
            else:
                self._writes.write("putMultiple", self._table, sent, rows=len(sent))

    def _delete(self, step: Deletes) -> None:
        with self._write_lock.plain():
            stamps = self._stamps.of(self.name, [mutation.key for mutation in step.deletes])
            sent = [gateway_delete(*each) for each in zip(step.deletes, stamps, strict=True)]
            self._writes.write("deleteMultiple", self._table, sent, rows=len(sent))

    def _delete_rows(self, span: DeleteRange, progress: WriteProgress) -> None:
        left = Span(span.start, span.stop)
        while not left.is_empty():
            scan, rows = left.scan(DELETE_ROWS, filterString=KEYS_ONLY)
            found: list[Any] = self._writes.read("getScannerResults", self._table, scan, rows)
            keys = [result.row for result in found]
            if keys:
                self._delete(Deletes([Delete(key) for key in keys]))
                progress.written = True
            if len(keys) < rows:
                return
            left = left.after(keys[-1])

    def fence(self, key: bytes, fence: bytes) -> None:
        """Delete a column that no row has, with a fence for the region that the key lies in."""
        delete = types.TDelete(
            row=key,
            columns=[types.TColumn(family=FAMILY, qualifier=b"f")],
            deleteType=types.TDeleteType.DELETE_COLUMNS,
            attributes={FENCE: fence},
        )
        self._writes.write("deleteSingle", self._table, delete, rows=1)


def _gateway_get(key: bytes, names: Iterable[bytes] | None = None) -> Any:
    """The gateway's get of a row, or of some of its columns."""
    return types.TGet(row=key, columns=_gateway_columns(names))


def _gateway_columns(names: Iterable[bytes] | None) -> list[Any] | None:
    """The columns as a get or a scan of the gateway names them; None: all."""
    return None if names is None else [types.TColumn(family=FAMILY, qualifier=name) for name in names]


class WriteProgress:
    """Remembers whether a part of a write was made: from then on its failure must not claim that nothing was written."""

    def __init__(self) -> None:
        self.written = False

    def step(self) -> WriteProgress:
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.written = True
        elif self.written and isinstance(error, StoreError) and not isinstance(error, RowExistsError):
            leader = "; another server leads" if isinstance(error, FencedError) else ""
            raise UnknownOutcomeError(f"the first part of a write was made, the rest not{leader}: {error}") from error


@dataclass(frozen=True, slots=True)
class Puts:
    """Rows to put, in any order."""

    rows: dict[bytes, dict[bytes, bytes]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Deletes:
    """Rows or columns to delete, in any order."""

    deletes: list[Delete] = field(default_factory=list)


Step = Puts | Deletes | DeleteRange | Insert


def steps(mutations: Sequence[Mutation]) -> Iterator[Step]:
    """Steps to take one after the other. A mutation that is out of bounds raises `InputError` after those before it."""
    run: Puts | Deletes = Puts()
    run_bytes = 0
    for mutation in mutations:
        try:
            _check(mutation, run)
        except InputError:
            yield from _started(run)
            raise
        size = _row_bytes(mutation.key, mutation.columns) if isinstance(mutation, Put) else 0
        if not _joins(mutation, run) or run_bytes + size > CALL_BYTES_MAX:
            yield from _started(run)
            run, run_bytes = (Deletes() if isinstance(mutation, Delete) else Puts()), 0
        run_bytes += size
        if isinstance(mutation, Put):
            assert isinstance(run, Puts)
            if mutation.columns:
                run.rows.setdefault(mutation.key, {}).update(mutation.columns)
        elif isinstance(mutation, Delete):
            assert isinstance(run, Deletes)
            if mutation.columns != ():
                run.deletes.append(mutation)
        else:
            yield mutation
    yield from _started(run)


def _check(mutation: Mutation, run: Puts | Deletes) -> None:
    check_mutation(mutation)
    if not isinstance(mutation, Put | Insert):
        return
    columns: Columns = mutation.columns
    if isinstance(mutation, Put) and isinstance(run, Puts) and mutation.key in run.rows:
        columns = {**run.rows[mutation.key], **columns}
        check_column_count(len(columns))
    check_put(mutation.key, columns)


def _joins(mutation: Mutation, run: Puts | Deletes) -> bool:
    if isinstance(mutation, Put):
        return isinstance(run, Puts) and len(run.rows) < CALL_ROWS_MAX
    return isinstance(mutation, Delete) and isinstance(run, Deletes) and len(run.deletes) < CALL_ROWS_MAX


def _started(run: Puts | Deletes) -> Iterator[Step]:
    if run.rows if isinstance(run, Puts) else run.deletes:
        yield run


def check_put(key: bytes, columns: Columns) -> None:
    """`InputError` when HBase, as it is by default, would refuse a cell or the row."""
    row_bytes = 0
    for name, value in columns.items():
        cell_bytes = len(key) + len(name) + len(value) + CELL_OVERHEAD_BYTES
        row_bytes += cell_bytes
        if cell_bytes > CELL_BYTES_MAX:
            raise InputError(
                f"column {name!r} has {len(value)} bytes; with its key it must stay within {CELL_BYTES_MAX} bytes",
                hint="HBase refuses larger cells; send less at once",
            )
    if row_bytes > ROW_BYTES_MAX:
        raise InputError(f"a row would have {row_bytes} bytes; the limit is {ROW_BYTES_MAX}")


def _row_bytes(key: bytes, columns: Columns) -> int:
    """The bytes that the row takes in a call, roughly."""
    return sum(len(key) + len(name) + len(value) + CELL_OVERHEAD_BYTES for name, value in columns.items())


def gateway_put(key: bytes, columns: Columns, stamp: Stamp) -> Any:
    """The gateway's put of these columns."""
    cells = [types.TColumnValue(family=FAMILY, qualifier=name, value=value) for name, value in columns.items()]
    return types.TPut(
        row=key, columnValues=cells, timestamp=stamp.timestamp, attributes=stamp.attributes or None, durability=SYNC_WAL
    )


def gateway_delete(mutation: Delete, stamp: Stamp) -> Any:
    """The gateway's delete of the row, or of its named columns: of all versions up to the timestamp."""
    columns = None
    if mutation.columns is not None:
        columns = [types.TColumn(family=FAMILY, qualifier=name, timestamp=stamp.timestamp) for name in mutation.columns]
    return types.TDelete(
        row=mutation.key,
        columns=columns,
        timestamp=stamp.timestamp,
        deleteType=types.TDeleteType.DELETE_COLUMNS,
        attributes=stamp.attributes or None,
        durability=SYNC_WAL,
    )


class SharedWriteLock:
    """Lets any number of plain writes to a table run side by side, or one conditional write alone.

    A waiting conditional write goes before plain writes that come later, so that these cannot keep it out for ever.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._plain = 0
        self._conditional = False
        self._waiting = 0

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Hold the lock together with other plain writes."""
        with self._changed:
            self._changed.wait_for(lambda: not self._conditional and not self._waiting)
            self._plain += 1
        try:
            yield
        finally:
            with self._changed:
                self._plain -= 1
                self._changed.notify_all()

    @contextmanager
    def conditional(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._conditional and not self._plain)
                self._conditional = True
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._conditional = False
                self._changed.notify_all()
