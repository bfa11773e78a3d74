"""What is true of all transactions at one moment, for those who draw conclusions from what is *not* in its lists."""

from __future__ import annotations

from typing import NamedTuple

from basalt_engine.snapshot import TransactionSnapshot


class Moment(NamedTuple):
    """What was true of all transactions at one moment, durably. `write_pointer` is the last one that was given out."""

    epoch: int
    write_pointer: int
    visibility_upper_bound: int
    view: TransactionSnapshot

    @property
    def decided(self) -> int:
        """Every writer up to it has committed, is undone, or is in the invalid list."""
        return self.view.in_progress[0] - 1 if self.view.in_progress else self.write_pointer
