"""The fate of one version of a cell, pure and written twice: here, and in the Java class `Retention`. docs/formats/retention.md.

Versions of a cell come newest first, and what was learnt from one is carried on to the next: once a version is *settled*,
which every reader that there is and that comes sees or has something newer for, nobody needs an older one. So a version
too many is kept where something is unknown, and none is ever dropped that a reader may get.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from basalt_engine.cells.keys import CellKey
from basalt_engine.errors import CorruptionError
from basalt_engine.retention import INVALID, LIVE, NO_SNAPSHOT, OLD_GENERATION, Fate, Verdict, is_old_generation
from basalt_engine.snapshot import InvalidList

UNREADABLE = Verdict(Fate.KEEP, "unreadable")
UNKNOWN_TABLE = Verdict(Fate.KEEP, "unknown table")
SUPERSEDED = Verdict(Fate.DROP, "superseded")
DELETED = Verdict(Fate.DROP, "deleted")

_POINTER_BYTES = 8


class Horizon(NamedTuple):
    """The pointers up to which transactions are decided, durably, at a moment before the first row was read.

    Every writer up to `upper_bound` is visible to all readers that there are and that come, or in `invalid`. Of writers up
    to `purge_bound` a tombstone may go, for all older versions of its cell, also those that are yet to come, are before
    whoever drops it; 0 where that is not so.
    """

    invalid: InvalidList
    upper_bound: int
    purge_bound: int


class Run(NamedTuple):
    """The state of a walk over versions: the current cell's key without a writer, and whether a version is settled."""

    cell: bytes = b""
    settled: bool = False


def judge_cell(
    key: CellKey, tombstone: bool, generation: int | None, horizon: Horizon | None, settled: bool
) -> tuple[Verdict, bool]:
    """The verdict over a version, and whether one of its cell is settled now.

    `generation` is that of the table as the metadata table tells it, negative once it is deleted; None when unknown.
    """
    if generation is None:
        return UNKNOWN_TABLE, settled
    if is_old_generation(key.generation, generation):
        return OLD_GENERATION, settled
    if horizon is None:
        return NO_SNAPSHOT, settled
    if key.write_pointer in horizon.invalid:
        return INVALID, settled
    if key.write_pointer > horizon.upper_bound:
        return LIVE, settled
    if settled:
        return SUPERSEDED, True
    if tombstone and key.write_pointer <= horizon.purge_bound:
        return DELETED, True
    return LIVE, True


def judge_cells(
    rows: Iterable[tuple[bytes, bool | None]],
    generations: Mapping[bytes, int],
    horizon: Horizon | None,
    run: Run,
) -> tuple[list[Verdict], Run]:
    """The verdicts over rows in the order of their keys, and what is to be carried on to the rows behind them.

    A row is its key and whether it is a tombstone (None: neither that nor a value). `generations` are by table prefix.
    """
    verdicts: list[Verdict] = []
    for data, tombstone in rows:
        cell = data[:-_POINTER_BYTES]
        if cell != run.cell:
            run = Run(cell)
        try:
            key = CellKey.decode(data)
        except CorruptionError:
            verdicts.append(UNREADABLE)
            continue
        if tombstone is None:
            verdicts.append(UNREADABLE)
            continue
        verdict, settled = judge_cell(key, tombstone, generations.get(key.prefix), horizon, run.settled)
        verdicts.append(verdict)
        run = Run(cell, settled)
    return verdicts, run
