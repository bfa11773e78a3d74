"""Scheduled jobs, one in each module. When they run is the scheduler's business; what each does: docs/reference/jobs.md."""

from __future__ import annotations

from typing import Any

from basalt.group_commit import GroupCommit
from basalt.jobs.expiry import ExpiryJob
from basalt.jobs.job import Job
from basalt.jobs.log_snapshot import LogSnapshotJob
from basalt.jobs.prune import PruneJob
from basalt.jobs.retention.job import RetentionJob
from basalt.jobs.snapshot import SnapshotJob
from basalt.jobs.stats import StatsJob
from basalt.messaging.cell_activity import CellActivity
from basalt.messaging.decisions import Decisions
from basalt.messaging.messaging import Messaging
from basalt.messaging.topic_markers import TopicMarkers
from basalt.messaging.usage import Usage
from basalt.pruning.prune import Pruner
from basalt.settings import Settings
from basalt.topics import Topics
from basalt.transactions.coordinator import Coordinator
from basalt.transactions.log import TransactionLog
from basalt_engine.clock import Clock
from basalt_engine.table import Store


def build_jobs(
    settings: Settings, store: Store, clock: Clock, topics: Topics, messaging: Messaging, usage: Usage,
    markers: TopicMarkers, writer: GroupCommit, transactions: Coordinator[Any], transaction_log: TransactionLog,
    decisions: Decisions, pruner: Pruner, activity: CellActivity,
) -> list[Job]:  # fmt: skip
    """All jobs of a server."""
    lifetime_ms_max = settings.transactions.lifetime_ms_max
    return [
        ExpiryJob(transactions, clock, settings.transactions.expiry_interval_ms),
        LogSnapshotJob(transactions, transaction_log),
        PruneJob(pruner),
        RetentionJob(
            store, clock, topics, messaging, usage, writer, decisions, lifetime_ms_max, transactions, activity
        ),
        *([] if pruner.publisher is None else [SnapshotJob(pruner.publisher)]),
        StatsJob(usage, markers),
    ]


__all__ = ["Job", "build_jobs"]
