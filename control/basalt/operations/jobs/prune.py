"""Job `prune`: forgets invalid writers of which no row is left anywhere. How: docs/operations/pruning.md."""

from __future__ import annotations

from basalt.operations.jobs.job import Report
from basalt.pruning.prune import Pruner

INTERVAL_MS = 10 * 60_000


class PruneJob:
    """Shrinks the invalid list, which every snapshot carries."""

    name = "prune"
    help = "take failed writers off the invalid list once no row of theirs is left"
    interval_ms = INTERVAL_MS

    def __init__(self, pruner: Pruner) -> None:
        self._pruner = pruner

    async def run(self) -> Report:
        """See `Job.run`."""
        result = await self._pruner.run()
        if not result.pruned and not result.compactions:
            return {}
        report: Report = {"pruned": len(result.pruned), "held": result.held, "waiting": result.waiting}
        return report | ({"compactions": len(result.compactions)} if result.compactions else {})
