"""How a list of mutations becomes calls: runs of neighbouring puts, or of deletes, are one call each; the rest go alone.

Rows of one call may be written in any order, so a call holds a row's puts as one, and never a put and a delete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from basalt_engine.errors import InputError
from basalt_engine.stores.hbase.limits import check_put, row_bytes
from basalt_engine.stores.limits import check_column_count, check_mutation
from basalt_engine.table import Columns, Delete, DeleteRange, Insert, Mutation, Put

CALL_BYTES_MAX = 4 << 20  # a larger row goes alone; more at once is no faster, and the gateway holds it all
CALL_ROWS_MAX = 1_000


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
    """What to do one after the other. A mutation that is out of bounds raises `InputError` after those before it."""
    run: Puts | Deletes = Puts()
    run_bytes = 0
    for mutation in mutations:
        try:
            _check(mutation, run)
        except InputError:
            yield from _started(run)
            raise
        size = row_bytes(mutation.key, mutation.columns) if isinstance(mutation, Put) else 0
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
