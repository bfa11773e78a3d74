"""The cells that a reader gets of versions in the order of their keys, by the same judge as `CellTable`'s reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from basalt_engine.cells.table import CellVersion, VisibleCells
from basalt_engine.snapshot import TransactionSnapshot


def visible(
    versions: Iterable[CellVersion], snapshot: TransactionSnapshot, *, all_own: bool = False
) -> Iterator[CellVersion]:
    return filter(VisibleCells(snapshot, all_own=all_own).shows, versions)
