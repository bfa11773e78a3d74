"""Cells of failed writers in transactional tables. Noted, because only a look at the whole table finds them.

The note is written with the entry of the invalid list, one for each table that the transaction took part in. Retention
removes it after a pass over the whole table that began when the writers were on the list; until then pruning does not
forget them. A store that applies retention itself needs no notes. Format: docs/formats/system-table.md, kind `hidden-cells`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from basalt.errors import CorruptionError
from basalt.runtime.group_commit import Group, Phase
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.system import SystemTable, number_name

KIND = "hidden-cells"


class HiddenCells(msgspec.Struct, frozen=True):
    """Cells of `write_pointers` in one generation of the table with this prefix: as many as they wrote, maybe none."""

    prefix: str
    generation: int
    write_pointers: list[int]

    @property
    def name(self) -> str:
        """The note's name in the system table; the same writers give the same name."""
        return f"{self.prefix}{self.generation}:{number_name(self.write_pointers[0])}"


def note(group: Group, transaction: Transaction) -> None:
    """In a stage that puts the transaction on the invalid list."""
    for table, generation in transaction.tables:
        hidden = HiddenCells(table.decode("ascii"), generation, list(transaction.pointers))
        group.add(SystemTable.name, SystemTable.put(KIND, hidden.name, msgspec.json.encode(hidden)))


def notes(system: SystemTable, prefix: bytes = b"", notes_max: int | None = None) -> Iterator[HiddenCells]:
    """The notes about the table of this prefix, or about all tables, by name."""
    start = prefix.decode("ascii")
    for name, body in system.scan(KIND, start, rows_max=notes_max):
        if not name.startswith(start):
            return
        try:
            yield msgspec.json.decode(body, type=HiddenCells)
        except msgspec.DecodeError as error:
            raise CorruptionError(f"system entry {KIND}:{name} is not what it should be: {error}") from None


def remove(group: Group, done: HiddenCells) -> None:
    """Remove a note with the group, after what was done about it."""
    group.add(SystemTable.name, SystemTable.delete(KIND, done.name), phase=Phase.OUTCOME)
