"""Job `snapshot`: tells the region servers which writers have failed. Only where there are region servers."""

from __future__ import annotations

from basalt.operations.jobs.job import Report
from basalt.pruning.publisher import SnapshotPublisher

INTERVAL_MS = 10_000


class SnapshotJob:
    """Publishes what has changed, and at least every minute that nothing has."""

    name = "snapshot"
    help = "publish the transaction snapshot for the region servers"
    interval_ms = INTERVAL_MS

    def __init__(self, publisher: SnapshotPublisher) -> None:
        self._publisher = publisher

    async def run(self) -> Report:
        """See `Job.run`. Runs that publish are many, and nobody's history."""
        await self._publisher.publish(only_changes=True)
        return {}
