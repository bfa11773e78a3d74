"""What is known of writers here and now, for those who look rather than read: peek, holds, retention.

Nothing is known while the transaction manager reads its log, nor where transactions are managed elsewhere; who asks then
must not take that for a decision.
"""

from __future__ import annotations

from typing import Protocol

from basalt.transactions.rules.states import Transaction
from basalt.transactions.rules.transaction_state import TransactionState
from basalt_engine.errors import RetryError
from basalt_engine.snapshot import TransactionSnapshot


class Manager(Protocol):
    """The transaction manager."""

    @property
    def state(self) -> TransactionState:
        """The working state; `RetryError` while it is not known."""
        ...

    def current(self) -> TransactionSnapshot:
        """The newest durable snapshot."""
        ...


class Decisions:
    """The manager's decisions; without a manager there are none."""

    def __init__(self, manager: Manager | None) -> None:
        self._manager = manager

    def snapshot(self) -> TransactionSnapshot | None:
        """Who is visible, open and invalid, durably; None when that is not known."""
        if self._manager is None or self._state() is None:
            return None
        return self._manager.current()

    def in_progress(self) -> list[Transaction]:
        """The transactions that have not ended, oldest first."""
        state = self._state()
        return [] if state is None else state.transactions()

    def _state(self) -> TransactionState | None:
        try:
            return None if self._manager is None else self._manager.state
        except RetryError:
            return None
