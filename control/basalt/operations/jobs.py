"""The scheduled jobs: what each does in one run. When they run is the scheduler's business. See docs/reference/jobs.md.

The job `retention` is `basalt.retention.job`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from basalt.commits.coordinator import Coordinator
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers
from basalt.messaging.read.first_unstable import Decisions
from basalt.messaging.topic_stats import TopicStatistics
from basalt.pruning.prune import Pruner
from basalt.pruning.publisher import SnapshotPublisher
from basalt.retention.job import RetentionJob
from basalt.runtime.group_commit import GroupCommit
from basalt.settings import Settings
from basalt.tables.garbage_cells import CellActivity
from basalt.transactions.log.transaction_log import TransactionLog
from basalt_engine.clock import Clock
from basalt_engine.errors import RetryError
from basalt_engine.table import Store

# A log snapshot is written after so many entries or bytes; a restart replays as many in about a tenth of a second.
SNAPSHOT_ENTRIES_MIN = 10_000
SNAPSHOT_BYTES_MIN = 8 << 20

Report: TypeAlias = Mapping[str, int | str]


class Job(Protocol):
    """Work that is done every now and then. Each run is bounded, lets others have their turn, and may be repeated."""

    @property
    def name(self) -> str:
        """Lower case and hyphens; as in the settings, the API and the command line."""
        ...

    @property
    def help(self) -> str:
        """One line for people."""
        ...

    @property
    def interval_ms(self) -> int:
        """From one start to the next, where the settings do not say it."""
        ...

    async def run(self) -> Report:
        """Do it, and tell what was done, in few words; an empty report says that there was nothing to do."""
        ...


class ExpiryJob:
    """Job `expiry`. Most runs find nothing and write nothing."""

    name = "expiry"
    help = "end transactions past their deadline"

    def __init__(self, transactions: Coordinator, clock: Clock, interval_ms: int) -> None:
        self._transactions = transactions
        self._clock = clock
        self.interval_ms = interval_ms

    async def run(self) -> Report:
        """End the transactions whose time is up, and go on with ends that were interrupted."""
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


class LogSnapshotJob:
    """Job `log-snapshot`: bounds how much of the log a restart reads."""

    name = "log-snapshot"
    help = "write a snapshot of the transaction log"
    interval_ms = 5 * 60_000

    def __init__(self, transactions: Coordinator, transaction_log: TransactionLog) -> None:
        self._transactions = transactions
        self._log = transaction_log

    async def run(self) -> Report:
        """Write the whole state of the transaction manager, so that a restart replays only what follows."""
        entries = self._log.entries_since_snapshot
        if entries < SNAPSHOT_ENTRIES_MIN and self._log.bytes_since_snapshot < SNAPSHOT_BYTES_MIN:
            return {}
        return {"entries": entries, "snapshot_bytes": await self._transactions.write_log_snapshot()}


class PruneJob:
    """Job `prune`: shrinks the invalid list, which every snapshot carries. How: docs/operations/pruning.md."""

    name = "prune"
    help = "take failed writers off the invalid list once no row of theirs is left"
    interval_ms = 10 * 60_000

    def __init__(self, pruner: Pruner) -> None:
        self._pruner = pruner

    async def run(self) -> Report:
        """Forget invalid writers of which no row is left anywhere."""
        result = await self._pruner.run()
        if not result.pruned and not result.compactions:
            return {}
        report = {"pruned": len(result.pruned), "held": result.held, "waiting": result.waiting}
        return report | ({"compactions": len(result.compactions)} if result.compactions else {})


class SnapshotJob:
    """Job `snapshot`, only where there are region servers: tells them which writers have failed."""

    name = "snapshot"
    help = "publish the transaction snapshot for the region servers"
    interval_ms = 10_000

    def __init__(self, publisher: SnapshotPublisher) -> None:
        self._publisher = publisher

    async def run(self) -> Report:
        """Publish what has changed, and at least every minute that nothing has. Such runs fill nobody's history."""
        await self._publisher.publish(only_changes=True)
        return {}


class StatsJob:
    """Job `stats`: saves what topics hold and what their markers say, so that a restart need not read it again."""

    name = "stats"
    help = "save the counts of messages and bytes, and the state of markers, of topics that changed"
    interval_ms = 15_000

    def __init__(self, statistics: TopicStatistics, markers: TopicMarkers) -> None:
        self._statistics = statistics
        self._markers = markers

    async def run(self) -> Report:
        """Save the counts and markers of topics that changed."""
        saved, marked = await self._statistics.save(), await self._markers.save()
        return {name: count for name, count in (("topics", saved), ("markers", marked)) if count}


def build_jobs(
    settings: Settings, store: Store, clock: Clock, logs: TopicLogs, statistics: TopicStatistics,
    markers: TopicMarkers, writer: GroupCommit, transactions: Coordinator, transaction_log: TransactionLog,
    decisions: Decisions, pruner: Pruner, activity: CellActivity,
) -> list[Job]:  # fmt: skip
    """All jobs of a server."""
    lifetime_ms_max = settings.transactions.lifetime_ms_max
    return [
        ExpiryJob(transactions, clock, settings.transactions.expiry_interval_ms),
        LogSnapshotJob(transactions, transaction_log),
        PruneJob(pruner),
        RetentionJob(store, clock, logs, statistics, writer, decisions, lifetime_ms_max, transactions, activity),
        *([] if pruner.publisher is None else [SnapshotJob(pruner.publisher)]),
        StatsJob(statistics, markers),
    ]
