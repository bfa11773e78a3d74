"""Mutations as calls to the gateway: what one call holds, within which limits, and in which form.

Neighbouring puts are one call, and so are neighbouring deletes; all other mutations are a call each. HBase may write the
rows of one call in any order, so a call holds a row's puts as one, and never a put and a delete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from basalt_engine.errors import InputError
from basalt_engine.stores.hbase.connections import types
from basalt_engine.stores.limits import check_column_count, check_mutation
from basalt_engine.table import Columns, Delete, DeleteRange, Insert, Mutation, Put

FAMILY = b"m"
SYNC_WAL = types.TDurability.SYNC_WAL  # whatever the table's default is

CELL_BYTES_MAX = 10 << 20  # hbase.client.keyvalue.maxsize and hbase.server.keyvalue.maxsize, as they are by default
CELL_OVERHEAD_BYTES = 64  # HBase counts a cell's key, its family, its timestamp and the lengths of all of them too
ROW_BYTES_MAX = 32 << 20  # a gateway takes calls of 100 MiB, but holds each several times in a heap of 1 GiB
CALL_BYTES_MAX = 4 << 20  # a larger row goes alone; more at once is no faster, and the gateway holds it all
CALL_ROWS_MAX = 1_000

Attributes = Mapping[bytes, bytes]


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


def gateway_put(key: bytes, columns: Columns, timestamp: int, attributes: Attributes) -> Any:
    """The gateway's put of these columns."""
    cells = [types.TColumnValue(family=FAMILY, qualifier=name, value=value) for name, value in columns.items()]
    return types.TPut(
        row=key, columnValues=cells, timestamp=timestamp, attributes=attributes or None, durability=SYNC_WAL
    )


def gateway_delete(mutation: Delete, timestamp: int, attributes: Attributes) -> Any:
    """The gateway's delete of the row, or of its named columns: of all versions up to the timestamp."""
    columns = None
    if mutation.columns is not None:
        columns = [types.TColumn(family=FAMILY, qualifier=name, timestamp=timestamp) for name in mutation.columns]
    return types.TDelete(
        row=mutation.key,
        columns=columns,
        timestamp=timestamp,
        deleteType=types.TDeleteType.DELETE_COLUMNS,
        attributes=attributes or None,
        durability=SYNC_WAL,
    )
