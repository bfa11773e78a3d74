"""Rows that count no more, as observers are told of them: who keeps what a row said would else go by its old writer."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple


class RolledBack(NamedTuple):
    """All rows of these writers with start <= position < stop: in the store, none of them is theirs any more."""

    write_pointers: Set[int]
    start: bytes
    stop: bytes

    def has(self, written_by: int | None, position: bytes) -> bool:
        """Whether a row that this writer wrote at this position is one of them."""
        return written_by in self.write_pointers and self.start <= position < self.stop
