"""The way of a simulated server to rows that it shares with others: a call is refused, its answer is lost or late, or it lands when nobody waits any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st

from basalt_engine.errors import StoreError, UnknownOutcomeError
from basalt_engine.table import Columns, Table

T = TypeVar("T")

FAULTS = ("none", "none", "none", "refused", "answer lost", "late", "slow before", "slow after")
RATES = st.sampled_from([0.92, 0.97, 1.0, 1.04, 1.1])  # of clocks: any two differ by less than the margin allows


class UnreliableServer:
    """A store with one table, which fails when told to. `late` takes the calls that land later; `go_on` lets time pass for all others."""

    kind, atomic, remote, applies_retention, busy = "memory", False, False, False, False
    system: Table

    def __init__(self, late: list[Callable[[], object]], go_on: Callable[[float], None]) -> None:
        self.fault = "none"
        self.good_calls = 0
        self.slow_ms = 0.0
        self.waiting = False  # it has sent something, and got no answer yet
        self._late = late
        self._go_on = go_on

    def get(self, key: bytes) -> Columns | None:
        return self.sent(lambda: self.system.get(key))

    def check_and_write(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        return self.sent(lambda: self.system.check_and_write(key, column, expected, columns))

    def close(self) -> None:
        pass

    def sent(self, call: Callable[[], T]) -> T:
        """The answer of a call, or the fault that it meets."""
        self.waiting = True
        try:
            return self._answer(call)
        finally:
            self.waiting = False

    def _answer(self, call: Callable[[], T]) -> T:
        if self.good_calls:
            self.good_calls -= 1
            return call()
        fault, self.fault = self.fault, "none"
        if fault == "refused":
            raise StoreError("the network is down")
        if fault == "late":
            self._late.append(call)
            raise UnknownOutcomeError("no answer in time")
        if fault == "slow before":
            self._go_on(self.slow_ms)
        result = call()
        if fault == "slow after":
            self._go_on(self.slow_ms)
        if fault == "answer lost":
            raise UnknownOutcomeError("the answer was lost")
        return result
