"""Notes of the transactional tables that retention looks through: those with new writes, or with cells of a failed writer.

Only a look at the whole table finds the cells of a failed writer. So a note (kind `hidden-cells`, docs/formats/system-table.md) is
written with the entry of the invalid list, one for each table that the transaction took part in. Retention removes it after a
pass over the whole table that began when the writers were on the list; until then pruning does not forget them. A store that
applies retention itself needs no notes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count

import msgspec

from basalt.messaging.log.noted_writers import NotedWriters
from basalt.runtime.group_commit import Group, Phase
from basalt.transactions.protocol import JoinedTransaction
from basalt_engine.stores.shards import shard_of
from basalt_engine.system import SystemRecord, SystemTable, number_name

TABLES_REMEMBERED_MAX = 100_000

TableKey = tuple[bytes, int]  # prefix and generation


class GarbageCells(msgspec.Struct, frozen=True):
    """Cells of `write_pointers` in one generation of the table with this prefix: as many as they wrote, maybe none."""

    prefix: str
    generation: int
    write_pointers: list[int]

    @property
    def name(self) -> str:
        """The note's name in the system table; the same writers give the same name."""
        return f"{self.prefix}{self.generation}:{number_name(self.write_pointers[0])}"


GARBAGE = SystemRecord("hidden-cells", "", GarbageCells)


def note(group: Group, noted: NotedWriters, transaction: JoinedTransaction) -> None:
    """In a stage that puts the transaction on the invalid list."""
    for table, generation in transaction.tables:
        garbage = GarbageCells(table.decode("ascii"), generation, list(transaction.pointers))
        group.add(SystemTable.name, GARBAGE.put(garbage, garbage.name))
        noted.added(group, garbage.name, garbage.write_pointers)


def notes(system: SystemTable) -> Iterator[GarbageCells]:
    """The notes about all tables, by name."""
    return (garbage for _, garbage in GARBAGE.scan(system))


def remove(group: Group, noted: NotedWriters, done: GarbageCells) -> None:
    """Remove a note with the group, after what was done about it."""
    group.add(SystemTable.name, GARBAGE.delete(done.name), phase=Phase.AFTER)
    noted.removed(group, done.name, done.write_pointers)


class CellActivity:
    """The quiet tables: a look at the whole table left nothing to come back for, and nothing was written since.

    In memory only: of a table that this process has not looked through yet nothing is known, and it is taken for written.
    """

    def __init__(self) -> None:
        self._writes: dict[TableKey, int] = {}
        self._quiet_at: dict[TableKey, int] = {}
        self._count = count(1)  # of all tables, and never reset: no number comes twice
        self._forgotten_at = 0  # what stands for the last write to a table that is not in `_writes`

    def wrote(self, prefix: bytes, generation: int) -> None:
        """Cells were written, or may have been: called once the write is durable, and once it has failed."""
        self._writes[prefix, generation] = next(self._count)
        if len(self._writes) > TABLES_REMEMBERED_MAX:
            self._writes.clear()
            self._quiet_at.clear()
            self._forgotten_at = next(self._count)  # a look that began before may have missed what is forgotten now

    def writes(self, table: TableKey) -> int:
        """The number of the last write to the table: to be asked before what a look goes by is taken."""
        return self._writes.get(table, self._forgotten_at)

    def set_quiet(self, table: TableKey, writes: int) -> None:
        """A look that began after the write of this number left nothing to come back for."""
        if len(self._quiet_at) >= TABLES_REMEMBERED_MAX:
            self._quiet_at.clear()
        self._quiet_at[table] = writes

    def forget(self, shards: Collection[int]) -> None:
        """These shards are another reign's from now on: nothing is known of their tables."""
        for table in [each for each in self._quiet_at if shard_of(each[0]) in shards]:
            del self._quiet_at[table]
        for table in [each for each in self._writes if shard_of(each[0]) in shards]:
            del self._writes[table]
            self._forgotten_at = next(self._count)

    def is_quiet(self, table: TableKey) -> bool:
        """True when nothing was written to the table since a look that found nothing more to do."""
        return self._quiet_at.get(table) == self.writes(table)
