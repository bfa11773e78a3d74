"""Rows in doubt: their write failed, and may still take effect later, as behind a gateway that was slow.

Whoever is about to pass them has it decided first which of them there will be. What is there stays. What is not there is deleted, and never comes,
for a delete hides what arrives after it: a write carries the time of its sending.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from basalt.runtime.store_calls import StoreCalls
from basalt_engine.table import Delete, Store


class RowsInDoubt:
    """The rows of one table that may be there later. Whoever wrote them knows their keys; here is which of them are being deleted.

    A row is `condemned` once its delete may be under way. From then on nobody looks for it, and the delete is repeated until one
    succeeds: found and shown, the row would be taken away again by the delete that comes late.
    """

    def __init__(self, store: Store, table: str) -> None:
        self._call = StoreCalls(store)
        self._table = store.table(table)
        self.condemned: set[bytes] = set()

    async def decide(self, rows: Sequence[bytes]) -> None:
        """Decide about the rows with these keys: each is there from now on, or never comes."""
        condemned = self.condemned
        condemned.update(await self._call(self._absent, [row for row in rows if row not in condemned]))
        deletes = [Delete(row) for row in rows if row in condemned]
        # A call of its own: who gives up waiting for it leaves no look behind, whose delete nobody knows of.
        if deletes:
            await self._call(self._table.write, deletes)
        self.forget(rows)

    def forget(self, rows: Iterable[bytes]) -> None:
        """Nobody asks for these rows any more: they are decided about, or out of every reader's reach."""
        self.condemned.difference_update(rows)

    def _absent(self, rows: Sequence[bytes]) -> list[bytes]:
        return [row for row in rows if self._table.get(row) is None]
