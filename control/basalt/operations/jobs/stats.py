"""Job `stats`: saves what topics hold and what their markers say, so that a restart need not read it again."""

from __future__ import annotations

from basalt.messaging.index.topic_stats import Usage
from basalt.messaging.markers.topic_markers import TopicMarkers
from basalt.operations.jobs.job import Report

INTERVAL_MS = 15_000


class StatsJob:
    """Saves counts of topics that changed."""

    name = "stats"
    help = "save the counts of messages and bytes, and the state of markers, of topics that changed"
    interval_ms = INTERVAL_MS

    def __init__(self, usage: Usage, markers: TopicMarkers) -> None:
        self._usage = usage
        self._markers = markers

    async def run(self) -> Report:
        """See `Job.run`."""
        saved, marked = await self._usage.save(), await self._markers.save()
        return {name: count for name, count in (("topics", saved), ("markers", marked)) if count}
