"""The scheduled jobs: what each does in one run. When they run is the scheduler's business. See docs/reference/jobs.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from basalt.commits.coordinator import Coordinator
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers
from basalt.messaging.read.first_unstable import KnownTransactions
from basalt.messaging.topic_stats import TopicStatistics
from basalt.messaging.truncation import Truncation
from basalt.pruning.prune import Pruner
from basalt.pruning.publisher import SnapshotPublisher
from basalt.retention.job import RetentionJob
from basalt.runtime.group_commit import GroupCommit
from basalt.settings import JobSettings, Settings
from basalt.tables.garbage_cells import CellActivity
from basalt.transactions.log.transaction_log import TransactionLog
from basalt_engine.clock import Clock
from basalt_engine.errors import RetryError
from basalt_engine.table import Store

# A log snapshot is written after so many entries or bytes; a restart replays as many in about a tenth of a second.
SNAPSHOT_ENTRIES_MIN = 10_000
SNAPSHOT_BYTES_MIN = 8 << 20

Report: TypeAlias = Mapping[str, int | str]


@dataclass(frozen=True, slots=True)
class Job:
    """Work that is done every now and then. Each run is bounded, lets others have their turn, and may be repeated.

    The name is lower case and hyphens, as in the settings, the API and the command line. `run` tells what was done, in few
    words; an empty report says that there was nothing to do.
    """

    name: str
    help: str
    settings: JobSettings
    run: Callable[[], Awaitable[Report]]


async def end_late(transactions: Coordinator, clock: Clock) -> Report:
    """End the transactions whose time is up, and go on with ends that were interrupted. Most runs find and write nothing."""
    try:
        state = transactions.state
    except RetryError:  # after a write that failed; `expire` reads the log again, nobody else may come to do it
        pass
    else:
        deadline_ms, now_ms = state.next_deadline_ms(), clock.now_ms()
        late = deadline_ms is not None and deadline_ms <= now_ms
        if not late and not state.unfinished() and not state.one_shots.end_idle(state.last_pointer, now_ms).edits:
            return {}
    expired = await transactions.expire()
    return {"expired": expired} if expired else {}


async def write_log_snapshot(transactions: Coordinator, transaction_log: TransactionLog) -> Report:
    """Write the whole state of the transaction manager, so that a restart replays only what follows."""
    entries = transaction_log.entries_since_snapshot
    if entries < SNAPSHOT_ENTRIES_MIN and transaction_log.bytes_since_snapshot < SNAPSHOT_BYTES_MIN:
        return {}
    return {"entries": entries, "snapshot_bytes": await transactions.write_log_snapshot()}


async def prune(pruner: Pruner) -> Report:
    """Forget invalid writers of which no row is left anywhere: every snapshot carries them. How: docs/operations/pruning.md."""
    result = await pruner.run()
    if not result.pruned and not result.compactions:
        return {}
    report = {"pruned": len(result.pruned), "held": result.held, "waiting": result.waiting}
    return report | ({"compactions": len(result.compactions)} if result.compactions else {})


async def publish_snapshot(publisher: SnapshotPublisher) -> Report:
    """Tell region servers which writers have failed: what has changed, and at least every minute that nothing has.

    Such runs fill nobody's history.
    """
    await publisher.publish(only_changes=True)
    return {}


async def save_stats(statistics: TopicStatistics, markers: TopicMarkers) -> Report:
    """Save the counts and markers of topics that changed, so that a restart need not read them again."""
    saved, marked = await statistics.save(), await markers.save()
    return {name: count for name, count in (("topics", saved), ("markers", marked)) if count}


def build_jobs(
    settings: Settings, store: Store, clock: Clock, logs: TopicLogs, statistics: TopicStatistics,
    markers: TopicMarkers, writer: GroupCommit, transactions: Coordinator, transaction_log: TransactionLog,
    known_transactions: KnownTransactions, pruner: Pruner, activity: CellActivity,
    truncation: Truncation,
) -> list[Job]:  # fmt: skip
    """All jobs of a server. The job `snapshot` is only where there are region servers."""
    lifetime_ms_max, publisher = settings.transactions.lifetime_ms_max, pruner.publisher
    expiry = JobSettings(interval_ms=settings.transactions.expiry_interval_ms)
    retention = RetentionJob(
        store, clock, logs, statistics, writer, known_transactions, lifetime_ms_max, transactions, activity, truncation
    )
    jobs = [
        Job("expiry", "end transactions past their deadline", expiry, partial(end_late, transactions, clock)),
        Job(
            "log-snapshot", "write a snapshot of the transaction log", settings.jobs.log_snapshot,
            partial(write_log_snapshot, transactions, transaction_log),
        ),
        Job(
            "prune", "take failed writers off the invalid list once no row of theirs is left", settings.jobs.prune,
            partial(prune, pruner),
        ),
        Job(
            "retention", "remove expired, rolled back and old-generation messages, and cells that nobody can read",
            settings.jobs.retention, retention.run,
        ),
        Job(
            "stats", "save the counts of messages and bytes, and the state of markers, of topics that changed",
            settings.jobs.stats, partial(save_stats, statistics, markers),
        ),
    ]  # fmt: skip
    if publisher is not None:
        text = "publish the transaction snapshot for the region servers"
        jobs.append(Job("snapshot", text, settings.jobs.snapshot, partial(publish_snapshot, publisher)))
    return jobs
