"""The storage SPI: what every store must do, in words that tests/contract proves over each of them.

A store holds named tables. A table is an ordered map of rows; a row has a key (bytes) and named columns (bytes to
bytes), like an HBase table with one family.

Order        Keys sort as unsigned bytes. A scan yields them in that order, or in the reverse of it.
Atomicity    A reader sees a row's columns as one write left them, never half of it. `Table.write` and `Store.write`
             are atomic as a whole when `Store.atomic` is true, else row by row: tables in the order given, and within
             one of them later mutations of a row after earlier ones; rows that are put next to each other in the
             list may be written in any order, for they may lie on different machines.
Durability   When a write returns, a crash of the process or of the machine loses nothing of it (where the store was
             opened to sync). When it raises `StoreError`, nothing was written; when it raises
             `UnknownOutcomeError`, it was written as a whole, in part (only where not atomic) or not at all.
Owners       Several processes may have the same HBase tables open. One of them leads, and each shard has one owner: see `Store.lead`
             and `Store.take`.
Scans        A scan sees each row that was there when it began and was not deleted since; rows written after it began
             may or may not be seen. It never yields a row twice, nor out of order.
Bytes        Keys are 1 to `KEY_BYTES_MAX` bytes; a row holds up to `COLUMNS_MAX` columns, whose names are 1 to 255 bytes.
             A remote store counts the columns of one write only. Values may be empty. Rows that are read are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from basalt_engine.errors import InputError

KEY_BYTES_MAX = 32_767  # HBase stores a row key's length as a signed 16-bit number
COLUMNS_MAX = 255  # the embedded row format counts columns in one byte
COLUMN_NAME_BYTES_MAX = 255  # and keeps a name's length in one byte
VALUE_BYTES_MAX = (1 << 31) - 1  # one row must fit into one write of every store

Columns = Mapping[bytes, bytes]

TABLE_NAMES = ("message", "payload", "cell", "metadata", "transaction_log", "system")


class Row(NamedTuple):
    """One row as a scan yields it."""

    key: bytes
    columns: Columns

    @property
    def size_bytes(self) -> int:
        """The bytes of its key and values, which a scan's limit counts."""
        return len(self.key) + sum(map(len, self.columns.values()))


class Put(NamedTuple):
    """Set these columns of a row; its other columns stay as they are."""

    key: bytes
    columns: Columns


class Delete(NamedTuple):
    """Delete a whole row, or just the named columns of it. Deleting what is not there succeeds.

    A row without columns does not exist.
    """

    key: bytes
    columns: tuple[bytes, ...] | None = None


class DeleteRange(NamedTuple):
    """Delete all rows with start <= key < stop."""

    start: bytes
    stop: bytes


class Insert(NamedTuple):
    """Put columns of a row that must not have the first of them yet; `RowExistsError` when it has.

    Then nothing of the write is made; where the store is not atomic, what it holds before this may have been made all the
    same. The first value is never empty.
    """

    key: bytes
    columns: Columns

    @property
    def first(self) -> bytes:
        """The name of the column that must not be there."""
        return next(iter(self.columns))


Mutation = Put | Delete | DeleteRange | Insert


class TableWrite(NamedTuple):
    """The mutations of one table within a write over several tables."""

    table: str
    mutations: Sequence[Mutation]


class Table(Protocol):
    """One ordered map of rows."""

    @property
    def name(self) -> str: ...

    def get(self, key: bytes) -> Columns | None:
        """The row's columns, or None when there is no such row."""
        ...

    def write(self, mutations: Sequence[Mutation]) -> None:
        """Apply the mutations in order, as one durable batch."""
        ...

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
        """Rows with start <= key < stop (None: to the table's end), ascending, or descending with `reverse`.

        Ends after `rows_max` rows, or after the row with which keys and values reach `bytes_max` bytes. With `columns` a row
        comes with those of them that it has, the others are not read, and one that has none of them is passed over. Close
        the iterator (or exhaust it) to free what it holds.
        """
        ...

    def check_and_write(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        """Put `columns` into the row iff its `column` now equals `expected` (None: the column is absent).

        One row, atomic against every other writer of it, durable when it returns True.
        """
        ...

    def size_bytes(self, start: bytes, stop: bytes) -> int:
        """An estimate of the bytes that rows with start <= key < stop take; may lag behind recent writes."""
        ...


class Store(Protocol):
    """A set of tables that one process has open."""

    @property
    def kind(self) -> str:
        """`memory`, `rocks` or `hbase`."""
        ...

    @property
    def atomic(self) -> bool:
        """True when one `write` over several rows and tables is all or nothing."""
        ...

    @property
    def remote(self) -> bool:
        """True when calls wait for a network, so that an event loop must make them on a thread."""
        ...

    @property
    def applies_retention(self) -> bool:
        """True when the store drops expired, old-generation and failed writers' rows itself, as it compacts."""
        ...

    @property
    def busy(self) -> bool:
        """True while a write would wait for something else that this process does, such as a checkpoint."""
        ...

    def table(self, name: str) -> Table:
        """The table of this name; one of `TABLE_NAMES`."""
        ...

    def write(self, writes: Sequence[TableWrite]) -> None:
        """Apply the writes in order as one durable batch."""
        ...

    def lead(self, epoch: int) -> None:
        """Write rows of no shard as the leader of this epoch, which is higher than any before, from now on.

        Once it returns, no leader's write of a lower epoch can take effect, not even one that was under way: it fails with
        `FencedError`. The log of transactions may be left out, for a place in it is taken once. A store that only one process can
        have open has nobody to refuse.
        """
        ...

    def take(self, epochs: Mapping[int, int]) -> None:
        """Write rows of these shards under these epochs, each higher than any before of its shard, from now on.

        Once it returns, no write under a lower epoch of its shard can take effect, as with `lead`; other shards notice
        nothing. The key says which shard a row is of (`basalt_engine.stores.shards`). A process that leads, or has taken a shard, gets
        `FencedError` for a row of a shard that it has not taken; one that has done neither (a tool) may write any row.
        """
        ...

    def checkpoint(self, directory: Path) -> None:
        """Write a consistent copy of all tables into a new directory, for a backup."""
        ...

    def close(self) -> None:
        """Let go of files, locks and connections; closing twice is fine."""
        ...


def prefix_stop(prefix: bytes) -> bytes | None:
    """The first key after all keys that start with `prefix`; None when there is none (all bytes are 0xff)."""
    trimmed = prefix.rstrip(b"\xff")
    if not trimmed:
        return None
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


def limited(rows: Iterable[Row], rows_max: int | None, bytes_max: int | None) -> Iterator[Row]:
    """The first of these rows, up to a scan's limits."""
    read_bytes = 0
    for row in islice(rows, rows_max):
        yield row
        if bytes_max is not None:
            read_bytes += row.size_bytes
            if read_bytes >= bytes_max:
                return


def check_table(name: str) -> None:
    """`InputError` unless the SPI names such a table."""
    if name not in TABLE_NAMES:
        raise InputError(f"there is no table {name!r}", hint=f"the tables are {', '.join(TABLE_NAMES)}")


def check_mutation(mutation: Mutation) -> None:
    """`InputError` when the mutation's key, a column's name or a value is out of bounds."""
    if isinstance(mutation, DeleteRange):
        return
    check_key(mutation.key)
    if isinstance(mutation, Delete):
        return
    check_columns(mutation.columns)
    if isinstance(mutation, Insert) and not (mutation.columns and mutation.columns[mutation.first]):
        raise InputError(f"row {mutation.key.hex()} is to be inserted with nothing, or nothing in its first column")


def check_key(key: bytes) -> None:
    """`InputError` unless the key has 1 to `KEY_BYTES_MAX` bytes."""
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise InputError(f"a row key has {len(key)} bytes; it must have 1 to {KEY_BYTES_MAX}")


def check_columns(columns: Columns) -> None:
    """`InputError` when there are too many columns, or a name or a value is too long, or a name is empty."""
    check_column_count(len(columns))
    for name, value in columns.items():
        if not 0 < len(name) <= COLUMN_NAME_BYTES_MAX:
            raise InputError(f"a column name has {len(name)} bytes; it must have 1 to {COLUMN_NAME_BYTES_MAX}")
        if len(value) > VALUE_BYTES_MAX:
            raise InputError(f"column {name!r} has {len(value)} bytes; the limit is {VALUE_BYTES_MAX}")


def check_column_count(columns: int) -> None:
    """`InputError` when one row would have more than `COLUMNS_MAX` columns."""
    if columns > COLUMNS_MAX:
        raise InputError(f"a row would have {columns} columns; the limit is {COLUMNS_MAX}")
