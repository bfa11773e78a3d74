"""Job `expiry`: ends the transactions whose time is up, and goes on with ends that were interrupted."""

from __future__ import annotations

from typing import Protocol

from basalt.operations.jobs.job import Report
from basalt.transactions.rules.transaction_state import TransactionState
from basalt_engine.clock import Clock
from basalt_engine.errors import RetryError


class Transactions(Protocol):
    """What the job needs of the transaction manager."""

    @property
    def state(self) -> TransactionState:
        """The working state; `RetryError` while it is not known."""
        ...

    async def expire(self) -> int:
        """End what is due and finish what is undone, reading the log first if need be; how many were ended."""
        ...


class ExpiryJob:
    """Most runs find nothing and write nothing."""

    name = "expiry"
    help = "end transactions past their deadline"

    def __init__(self, transactions: Transactions, clock: Clock, interval_ms: int) -> None:
        self._transactions = transactions
        self._clock = clock
        self.interval_ms = interval_ms

    async def run(self) -> Report:
        """See `Job.run`."""
        if not self._due():
            return {}
        expired = await self._transactions.expire()
        return {"expired": expired} if expired else {}

    def _due(self) -> bool:
        try:
            state = self._transactions.state
        except RetryError:  # after a write that failed; `expire` reads the log again, nobody else may come to do it
            return True
        deadline_ms, now_ms = state.next_deadline_ms(), self._clock.now_ms()
        late = deadline_ms is not None and deadline_ms <= now_ms
        return late or bool(state.unfinished()) or bool(state.one_shots.end_idle(state.last_pointer, now_ms).edits)
