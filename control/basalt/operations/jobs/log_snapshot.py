"""Job `log-snapshot`: writes the whole state of the transaction manager, so that a restart replays only what follows."""

from __future__ import annotations

from typing import Protocol

from basalt.operations.jobs.job import Report
from basalt.transactions.log.transaction_log import TransactionLog

INTERVAL_MS = 5 * 60_000
ENTRIES_MIN = 10_000  # replayed in about a tenth of a second
BYTES_MIN = 8 << 20


class Transactions(Protocol):
    """What the job needs of the transaction manager."""

    async def write_log_snapshot(self) -> int:
        """Write a snapshot of the state into the log; its bytes."""
        ...


class LogSnapshotJob:
    """Bounds how much of the log a restart reads."""

    name = "log-snapshot"
    help = "write a snapshot of the transaction log"
    interval_ms = INTERVAL_MS

    def __init__(self, transactions: Transactions, transaction_log: TransactionLog) -> None:
        self._transactions = transactions
        self._log = transaction_log

    async def run(self) -> Report:
        """See `Job.run`."""
        entries = self._log.entries_since_snapshot
        if entries < ENTRIES_MIN and self._log.bytes_since_snapshot < BYTES_MIN:
            return {}
        return {"entries": entries, "snapshot_bytes": await self._transactions.write_log_snapshot()}
