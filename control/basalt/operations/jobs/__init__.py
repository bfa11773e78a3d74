"""Scheduled jobs, one in each module. When they run is the scheduler's business; what each does: docs/reference/jobs.md."""

from __future__ import annotations

from basalt.commits.coordinator import Coordinator
from basalt.messaging.index.topic_stats import Usage
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers.topic_markers import TopicMarkers
from basalt.messaging.read.decisions import Decisions
from basalt.operations.jobs.expiry import ExpiryJob
from basalt.operations.jobs.job import Job
from basalt.operations.jobs.log_snapshot import LogSnapshotJob
from basalt.operations.jobs.prune import PruneJob
from basalt.operations.jobs.snapshot import SnapshotJob
from basalt.operations.jobs.stats import StatsJob
from basalt.pruning.prune import Pruner
from basalt.retention.retention import RetentionJob
from basalt.runtime.group_commit import GroupCommit
from basalt.settings import Settings
from basalt.tables.cell_activity import CellActivity
from basalt.transactions.log.transaction_log import TransactionLog
from basalt_engine.clock import Clock
from basalt_engine.table import Store


def build_jobs(
    settings: Settings, store: Store, clock: Clock, logs: TopicLogs, usage: Usage,
    markers: TopicMarkers, writer: GroupCommit, transactions: Coordinator, transaction_log: TransactionLog,
    decisions: Decisions, pruner: Pruner, activity: CellActivity,
) -> list[Job]:  # fmt: skip
    """All jobs of a server."""
    lifetime_ms_max = settings.transactions.lifetime_ms_max
    return [
        ExpiryJob(transactions, clock, settings.transactions.expiry_interval_ms),
        LogSnapshotJob(transactions, transaction_log),
        PruneJob(pruner),
        RetentionJob(store, clock, logs, usage, writer, decisions, lifetime_ms_max, transactions, activity),
        *([] if pruner.publisher is None else [SnapshotJob(pruner.publisher)]),
        StatsJob(usage, markers),
    ]


__all__ = ["Job", "build_jobs"]
