"""Job `stats`: saves what topics hold, so that a restart need not count it again."""

from __future__ import annotations

from basalt.jobs.job import Report
from basalt.messaging.usage import Usage

INTERVAL_MS = 15_000


class StatsJob:
    """Saves counts of topics that changed."""

    name = "stats"
    help = "save the counts of messages and bytes of topics that changed"
    interval_ms = INTERVAL_MS

    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    async def run(self) -> Report:
        """See `Job.run`."""
        saved = await self._usage.save()
        return {"topics": saved} if saved else {}
