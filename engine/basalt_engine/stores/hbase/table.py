"""One table of the HBase store. How each call is made of the gateway's: docs/formats/hbase-store.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from basalt_engine.errors import FencedError, RowExistsError, StoreError, UnknownOutcomeError
from basalt_engine.stores.hbase import cells
from basalt_engine.stores.hbase.cells import Attributes
from basalt_engine.stores.hbase.connection import types
from basalt_engine.stores.hbase.gateway import Gateway
from basalt_engine.stores.hbase.limits import check_put
from basalt_engine.stores.hbase.scanning import RowSize, Scan
from basalt_engine.stores.hbase.size_estimate import estimated_bytes
from basalt_engine.stores.hbase.spans import Span
from basalt_engine.stores.hbase.timestamps import Timestamps
from basalt_engine.stores.hbase.turns import Turns
from basalt_engine.stores.hbase.workers import Workers
from basalt_engine.stores.hbase.writing import Deletes, Puts, Step, steps
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
        gateway: Gateway,
        timestamps: Timestamps,
        workers: Workers,
        attributes: Callable[[], Attributes],
    ) -> None:
        self.name = name
        self.hbase_name = hbase_name
        self._table = hbase_name.encode()
        self._gateway = gateway
        self._timestamps = timestamps
        self._workers = workers
        self._attributes = attributes  # that each mutation carries
        self._turns = Turns()
        self._row_size = RowSize()

    def get(self, key: bytes) -> Columns | None:
        """The row's columns, or None when there is no such row."""
        if not 0 < len(key) <= KEY_BYTES_MAX:
            return None
        return cells.columns_of(self._gateway.read("get", self._table, cells.get(key))) or None

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
        return Scan(self._fetch, self._workers, self._row_size, span, rows_max, bytes_max)

    def _fetch(self, scan: Any, rows: int) -> list[Any]:
        found: list[Any] = self._gateway.read("getScannerResults", self._table, scan, rows)
        return found

    def check_and_write(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        """Put `columns` into the row iff its `column` now equals `expected`."""
        check_key(key)
        check_columns(columns)
        check_put(key, columns)
        with self._turns.conditional():
            names = {column, *columns}
            found = {cell.qualifier: cell for cell in self._cells(key, names)}
            # HBase takes an empty value for an absent one in a condition, so it is told apart here.
            if (found[column].value if column in found else None) != expected:
                return False
            return not columns or self._put_if(key, column, expected, columns)

    def _insert(self, mutation: Insert) -> None:
        key, columns = mutation
        with self._turns.conditional():
            if self._put_if(key, mutation.first, None, columns):
                return
        raise RowExistsError(f"row {key.hex()} of table {self.name} is there already")

    def _cells(self, key: bytes, names: set[bytes] | None = None) -> list[Any]:
        """The row's cells; what is written next is above them."""
        found: list[Any] = self._gateway.read("get", self._table, cells.get(key, names)).columnValues
        for cell in found:
            self._timestamps.saw(cell.timestamp)
        return found

    def _put_if(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        """Put the columns if HBase finds the column so. An empty value is as good as none to it."""
        timestamp = self._timestamps.next()
        put = cells.put(key, columns, timestamp, self._attributes())
        condition = (self._table, key, cells.FAMILY, column, expected, put)
        try:
            # The gateway tries again by itself when a region server's answer gets lost, and then finds what it put.
            return bool(self._gateway.write_once("checkAndPut", *condition)) or self._is_put(key, columns, timestamp)
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
        """An estimate of the range's bytes: exact up to some hundred rows, see size_estimate.py."""
        return estimated_bytes(self._fetch, start, stop)

    def apply(self, mutations: Sequence[Mutation], progress: Progress) -> None:
        """Apply the mutations in order, as a part of a write that has come so far."""
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
        with self._turns.plain():
            timestamp, attributes = self._timestamps.next(), self._attributes()
            sent = [cells.put(key, columns, timestamp, attributes) for key, columns in puts]
            if len(sent) == 1:
                self._gateway.write("put", self._table, sent[0], rows=1)
            else:
                self._gateway.write("putMultiple", self._table, sent, rows=len(sent))

    def _delete(self, step: Deletes) -> None:
        with self._turns.plain():
            timestamp, attributes = self._timestamps.next(), self._attributes()
            sent = [cells.delete(mutation, timestamp, attributes) for mutation in step.deletes]
            self._gateway.write("deleteMultiple", self._table, sent, rows=len(sent))

    def _delete_rows(self, span: DeleteRange, progress: Progress) -> None:
        left = Span(span.start, span.stop)
        while not left.is_empty():
            scan, rows = left.scan(DELETE_ROWS, filterString=KEYS_ONLY)
            keys = [result.row for result in self._fetch(scan, rows)]
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
            columns=[types.TColumn(family=cells.FAMILY, qualifier=b"f")],
            deleteType=types.TDeleteType.DELETE_COLUMNS,
            attributes=attributes,
        )
        self._gateway.write("deleteSingle", self._table, fence, rows=1)


class Progress:
    """How far a write has come, for what its failure may claim: once something was written, not that nothing was."""

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
