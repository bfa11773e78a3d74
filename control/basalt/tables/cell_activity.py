"""In which transactional tables something was written, so that retention passes over those in which nothing was.

In memory only: of a table that this process has not looked through yet nothing is known, and it is taken for written.
"""

from __future__ import annotations

from itertools import count

TABLES_REMEMBERED_MAX = 100_000

TableKey = tuple[bytes, int]  # prefix and generation


class CellActivity:
    """Which tables are quiet: nothing was written since a look at the whole of each left nothing to come back for."""

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

    def is_quiet(self, table: TableKey) -> bool:
        """True when nothing was written to the table since a look that found nothing more to do."""
        return self._quiet_at.get(table) == self.writes(table)
