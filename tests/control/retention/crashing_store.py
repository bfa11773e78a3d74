"""A store whose process is gone at a mutation that the test names."""

from __future__ import annotations

from collections.abc import Sequence

from basalt_engine.errors import UnknownOutcomeError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import TableWrite


class CrashingStore(MemoryStore):
    """Crashes at a mutation; whatever was to come after it is lost, and with `atomic` the whole write before it too."""

    def __init__(self, atomic: bool) -> None:
        super().__init__(atomic)
        self.mutations_left: int | None = None

    def write(self, writes: Sequence[TableWrite]) -> None:
        for write in writes:
            for mutation in write.mutations:
                if self.mutations_left == 0:
                    raise UnknownOutcomeError("the process is gone")
                if self.mutations_left is not None:
                    self.mutations_left -= 1
                if not self.atomic:
                    super().write([TableWrite(write.table, [mutation])])
        if self.atomic:
            super().write(writes)
