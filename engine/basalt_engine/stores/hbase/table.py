"""One table of the HBase store. The calls that each operation makes to the gateway: docs/formats/hbase-store.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from basalt_engine.errors import FencedError, RowExistsError, StoreError, UnknownOutcomeError
from basalt_engine.stores.hbase.connections import types
from basalt_engine.stores.hbase.gateway import Gateway
from basalt_engine.stores.hbase.mutations import (
    FAMILY,
    Attributes,
    Deletes,
    Puts,
    Step,
    check_put,
    gateway_delete,
    gateway_put,
    steps,
)
from basalt_engine.stores.hbase.scan import Prefetcher, RowSize, Scan, Span, columns_of, estimated_bytes
from basalt_engine.stores.hbase.write_order import SharedWriteLock, Timestamps
from basalt_engine.stores.limits import check_columns, check_key
from basalt_engine.table import KEY_BYTES_MAX, Columns, Delete, DeleteRange, Insert, Mutation, Put, Row

DELETE_ROWS = 1_000  # of a range: keys of one scan, deletes of one call
KEYS_ONLY = b"FirstKeyOnlyFilter() AND KeyOnlyFilter()"


class HBaseTable:
    """One ordered map of rows, which any thread may use."""

    def __init__(
        self,
        name: str,
        hbase_name: str,
        reads: Gateway,
        writes: Gateway,
        timestamps: Timestamps,
        prefetcher: Prefetcher,
        attributes: Callable[[], Attributes],
    ) -> None:
        self.name = name
        self.hbase_name = hbase_name
        self._table = hbase_name.encode()
        self._reads = reads
        self._writes = writes  # a write reads through it too, so that readers who hold all their connections do not hold up writers
        self._timestamps = timestamps
        self._prefetcher = prefetcher
        self._attributes = attributes  # that each mutation carries
        self._write_lock = SharedWriteLock()
        self._row_size = RowSize()

    def get(self, key: bytes) -> Columns | None:
        """The row's columns, or None when there is no such row."""
        if not 0 < len(key) <= KEY_BYTES_MAX:
            return None
        return columns_of(self._reads.read("get", self._table, _gateway_get(key))) or None

    def write(self, mutations: Sequence[Mutation]) -> None:
        """Apply the mutations in order."""
        self.apply(mutations, Progress())

    def scan(
        self,
        start: bytes,
        stop: bytes | None,
        *,
        reverse: bool = False,
        rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> Iterator[Row]:
        """Rows with start <= key < stop; limits as the SPI says."""
        span = Span(start, stop, reverse)
        return Scan(self._fetch, self._prefetcher, self._row_size, span, rows_max, bytes_max)

    def _fetch(self, scan: Any, rows: int) -> list[Any]:
        found: list[Any] = self._reads.read("getScannerResults", self._table, scan, rows)
        return found

    def check_and_write(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        """Put `columns` into the row iff its `column` now equals `expected`."""
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
            self._timestamps.saw(cell.timestamp)
        return found

    def _put_if(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        """Put the columns if the column has the expected value. HBase takes an empty value for an absent one."""
        timestamp = self._timestamps.next()
        put = gateway_put(key, columns, timestamp, self._attributes())
        condition = (self._table, key, FAMILY, column, expected, put)
        try:
            # The gateway tries again by itself when a region server's answer gets lost, and then finds what it put.
            return bool(self._writes.write_once("checkAndPut", *condition)) or self._is_put(key, columns, timestamp)
        except UnknownOutcomeError:
            if self._is_put(key, columns, timestamp):
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

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Delete all rows with start <= key < stop, durably."""
        self.write([DeleteRange(start, stop)])

    def size_bytes(self, start: bytes, stop: bytes) -> int:
        """An estimate of the range's bytes: exact up to some hundred rows, see `estimated_bytes`."""
        return estimated_bytes(self._fetch, start, stop)

    def apply(self, mutations: Sequence[Mutation], progress: Progress) -> None:
        """Apply the mutations in order, as a part of a write whose progress so far is given."""
        for step in steps(mutations):
            with progress.step():
                self._do(step, progress)

    def _do(self, step: Step, progress: Progress) -> None:
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
            timestamp, attributes = self._timestamps.next(), self._attributes()
            sent = [gateway_put(key, columns, timestamp, attributes) for key, columns in puts]
            if len(sent) == 1:
                self._writes.write("put", self._table, sent[0], rows=1)
            else:
                self._writes.write("putMultiple", self._table, sent, rows=len(sent))

    def _delete(self, step: Deletes) -> None:
        with self._write_lock.plain():
            timestamp, attributes = self._timestamps.next(), self._attributes()
            sent = [gateway_delete(mutation, timestamp, attributes) for mutation in step.deletes]
            self._writes.write("deleteMultiple", self._table, sent, rows=len(sent))

    def _delete_rows(self, span: DeleteRange, progress: Progress) -> None:
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

    def fence(self, key: bytes, attributes: Attributes) -> None:
        """Delete a column that no row has, with attributes for the region that the key lies in."""
        fence = types.TDelete(
            row=key,
            columns=[types.TColumn(family=FAMILY, qualifier=b"f")],
            deleteType=types.TDeleteType.DELETE_COLUMNS,
            attributes=attributes,
        )
        self._writes.write("deleteSingle", self._table, fence, rows=1)


def _gateway_get(key: bytes, names: Iterable[bytes] | None = None) -> Any:
    """The gateway's get of a row, or of some of its columns."""
    columns = None if names is None else [types.TColumn(family=FAMILY, qualifier=name) for name in names]
    return types.TGet(row=key, columns=columns)


class Progress:
    """Remembers whether a part of a write was made: from then on its failure must not claim that nothing was written."""

    def __init__(self) -> None:
        self.written = False

    def step(self) -> Progress:
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.written = True
        elif self.written and isinstance(error, StoreError) and not isinstance(error, RowExistsError):
            leader = "; another server leads" if isinstance(error, FencedError) else ""
            raise UnknownOutcomeError(f"the first part of a write was made, the rest not{leader}: {error}") from error
