"""In which transactional tables something was written, so that retention passes over those in which nothing was.

In memory only: of a table that this process has not looked through yet nothing is known, and it is taken for written.
"""

from __future__ import annotations

TABLES_REMEMBERED_MAX = 100_000

TableKey = tuple[bytes, int]  # prefix and generation


class CellActivity:
    """Which tables are quiet: nothing was written since a look at the whole of each left nothing to come back for."""

    def __init__(self) -> None:
        self._writes: dict[TableKey, int] = {}
        self._quiet_at: dict[TableKey, int] = {}

    def wrote(self, prefix: bytes, generation: int) -> None:
        """In a stage that adds cells to the table."""
        self._writes[prefix, generation] = self.writes((prefix, generation)) + 1
        if len(self._writes) > TABLES_REMEMBERED_MAX:
            self._writes.clear()
            self._quiet_at.clear()

    def writes(self, table: TableKey) -> int:
        """How often the table was written: to be asked before what a look goes by is taken."""
        return self._writes.get(table, 0)

    def set_quiet(self, table: TableKey, writes: int) -> None:
        """A look that began after so many writes left nothing to come back for."""
        if len(self._quiet_at) >= TABLES_REMEMBERED_MAX:
            self._quiet_at.clear()
        self._quiet_at[table] = writes

    def is_quiet(self, table: TableKey) -> bool:
        """Whether there is nothing to look for in the table."""
        return self._quiet_at.get(table) == self.writes(table)
