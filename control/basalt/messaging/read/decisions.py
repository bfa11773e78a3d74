"""The state of writers here and now, for those who look rather than read: peek, holds, retention.

Nothing is known while the transaction manager reads its log, nor where transactions are managed elsewhere; who asks then
must not take that for a decision.
"""

from __future__ import annotations

from basalt.transactions.manager import Transactions
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.errors import RetryError
from basalt_engine.snapshot import TransactionSnapshot


class Decisions:
    """The manager's decisions; where transactions are managed elsewhere there are none."""

    def __init__(self, manager: Transactions) -> None:
        self._manager = manager

    def snapshot(self) -> TransactionSnapshot | None:
        """Who is visible, open and invalid, durably; None when that is not known."""
        try:
            durable, _ = self._manager.snapshots()
        except RetryError:
            return None
        return durable

    def in_progress(self) -> list[Transaction]:
        """The transactions that have not ended, oldest first."""
        try:
            return self._manager.state.transactions()
        except RetryError:
            return []
