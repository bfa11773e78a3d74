"""The scheduled jobs: what each does in one run. When they run is the scheduler's business. See docs/reference/jobs.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeAlias

from basalt.catalog.topics import title_of
from basalt.commits.coordinator import Coordinator
from basalt.groups.groups import Groups
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers
from basalt.messaging.producers import Producers
from basalt.messaging.read.first_unstable import KnownTransactions
from basalt.messaging.topic_stats import TopicStatistics
from basalt.messaging.truncation import Truncation
from basalt.operations.audit import Audit, Author
from basalt.operations.series.days import SeriesDays
from basalt.pruning.prune import Pruner
from basalt.pruning.publisher import SnapshotPublisher
from basalt.retention.job import RetentionJob
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import TopicLanes
from basalt.settings import JobSettings, Settings
from basalt.tables.garbage_cells import CellActivity
from basalt.transactions.log.transaction_log import TransactionLog
from basalt_engine.clock import Clock
from basalt_engine.errors import RetryError
from basalt_engine.table import Store

# A log snapshot is written after so many entries or bytes; a restart replays as many in about a tenth of a second.
SNAPSHOT_ENTRIES_MIN = 10_000
SNAPSHOT_BYTES_MIN = 8 << 20

NAMED_MAX = 20  # expired groups that a run's report names; the audit has all
BY_JOB = Author("", "job stats")

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
    """End the transactions whose time is up, go on with ends that were interrupted, and move dead letters.

    Most runs find and write nothing.
    """
    try:
        expired = await _expire(transactions, clock)
    finally:  # one that cannot be rolled back, now or ever, keeps no dead letter where it is
        moved = await transactions.move_dead_letters()
    return {name: count for name, count in (("expired", expired), ("dead_letters", moved)) if count}


async def _expire(transactions: Coordinator, clock: Clock) -> int:
    try:
        state = transactions.state
    except RetryError:  # after a write that failed; `expire` reads the log again, nobody else may come to do it
        pass
    else:
        deadline_ms, now_ms = state.next_deadline_ms(), clock.now_ms()
        late = deadline_ms is not None and deadline_ms <= now_ms
        if not late and not state.unfinished() and not transactions.has_left_over():
            return 0
    return await transactions.expire()


async def write_log_snapshot(transactions: Coordinator, transaction_log: TransactionLog) -> Report:
    """Write the whole state of the transaction manager, so that a restart replays only what follows."""
    entries = transaction_log.entries_since_snapshot
    if entries < SNAPSHOT_ENTRIES_MIN and transaction_log.bytes_since_snapshot < SNAPSHOT_BYTES_MIN:
        return {}
    return {"entries": entries, "snapshot_bytes": await transactions.write_log_snapshot()}


async def prune(pruner: Pruner) -> Report:
    """Forget invalid writers of which no row is left anywhere: every snapshot carries them. How: docs/operations/pruning.md."""
    result = await pruner.run()
    if not result.pruned_count and not result.compactions:
        return {}
    report = {"pruned": result.pruned_count, "held": result.held, "waiting": result.waiting}
    return report | ({"compactions": len(result.compactions)} if result.compactions else {})


async def publish_snapshot(publisher: SnapshotPublisher) -> Report:
    """Tell region servers which writers have failed: what has changed, and at least every minute that nothing has.

    Such runs fill nobody's history.
    """
    await publisher.publish(only_changes=True)
    return {}


async def save_stats(
    statistics: TopicStatistics, markers: TopicMarkers, producers: Producers, groups: Groups, audit: Audit, days: SeriesDays,
    call: StoreCalls, clock: Clock,
) -> Report:  # fmt: skip
    """Save the counts, markers and producers of topics that changed, so that a restart need not read them again; the history of
    figures; and tidy up groups.
    """
    report = dict(await save_owned(statistics, markers, producers)) | dict(await tidy_groups(groups, audit))
    now_ms = clock.now_ms()
    if days.due(now_ms):
        await save_series(days, call, now_ms)  # which fills nobody's history of runs
    return report


async def save_owned(statistics: TopicStatistics, markers: TopicMarkers, producers: Producers) -> Report:
    """Save what an owner knows of its topics."""
    saved = {"topics": await statistics.save(), "markers": await markers.save(), "producers": await producers.save()}
    return {name: count for name, count in saved.items() if count}


async def save_and_tidy(
    statistics: TopicStatistics, markers: TopicMarkers, producers: Producers, groups: Groups, audit: Audit
) -> Report:
    """Save what an owner knows of its topics, and tidy up their groups."""
    return dict(await save_owned(statistics, markers, producers)) | dict(await tidy_groups(groups, audit))


async def move_dead_letters(transactions: Coordinator) -> Report:
    """Move what failed too often in the groups of this owner."""
    moved = await transactions.move_dead_letters()
    return {"dead_letters": moved} if moved else {}


async def save_series(days: SeriesDays, call: StoreCalls, now_ms: int) -> int:
    """Save the minutes of figures that no row has yet; how many bytes were written."""
    taken = days.taken(now_ms)
    try:
        try:
            return await call.write(days.write, taken)
        except RuntimeError:  # the interpreter is about to end and starts no thread any more; nothing was tried
            return days.write(taken)
    except BaseException:
        days.forget_saved()
        raise


async def tidy_groups(groups: Groups, audit: Audit) -> Report:
    """Close gaps of groups, and forget those that nobody uses or whose topic is gone: each of them, or each topic, with an audit line."""
    found = await groups.upkeep.run()
    expired, gone = list[str](), 0
    for state in found.unused:
        name = f"{title_of(state.prefix)}/{state.name}"
        reason = "nobody used it for as long as its expireMs says"
        forget = partial(groups.upkeep.forget, [state], unused=True)
        if await audit.act("expire group", f"group {name}", BY_JOB, reason, "", forget, _forgotten):
            expired.append(name)
    for prefix, of_topic in groupby(sorted(found.gone, key=lambda state: state.prefix), lambda state: state.prefix):
        states = list(of_topic)
        reason = "it was deleted: groups " + ", ".join(state.name for state in states)
        forget = partial(groups.upkeep.forget, states, unused=False)
        what = f"topic {title_of(prefix)}"
        gone += await audit.act("forget groups", what, BY_JOB, reason, "", forget, _forgotten)
    report: dict[str, int | str] = {
        name: count for name, count in (("groups_gone", gone), ("gaps_closed", found.closed)) if count
    }
    return report | ({"groups_expired": ", ".join(expired[:NAMED_MAX])} if expired else {})


def _forgotten(number: int) -> str:
    return f"{number} forgotten" if number else "in use again: kept"


def build_jobs(
    settings: Settings, store: Store, clock: Clock, logs: TopicLogs, statistics: TopicStatistics,
    markers: TopicMarkers, producers: Producers, writer: TopicLanes, transactions: Coordinator, transaction_log: TransactionLog,
    known_transactions: KnownTransactions, pruner: Pruner, activity: CellActivity,
    truncation: Truncation, groups: Groups, audit: Audit, days: SeriesDays, *, is_member: bool = False,
) -> list[Job]:  # fmt: skip
    """All jobs of a server; those about its own topics alone where it is a member that another one leads.

    The job `snapshot` is only where there are region servers.
    """
    publisher, expiry = pruner.publisher, JobSettings(interval_ms=settings.transactions.expiry_interval_ms)
    retention = RetentionJob(
        store, clock, logs, statistics, producers, writer, known_transactions, settings.transactions.lifetime_ms_max, transactions,
        activity, truncation, pruner.noted,
    )  # fmt: skip
    retaining = Job(
        "retention", "remove expired, rolled back and old-generation messages, and cells that nobody can read",
        settings.jobs.retention, retention.run,
    )  # fmt: skip
    if is_member:
        owned = partial(save_and_tidy, statistics, markers, producers, groups, audit)
        text = "save the counts, markers and producers of topics that changed; tidy up consumer groups"
        letters = Job("dead-letters", "move dead letters", expiry, partial(move_dead_letters, transactions))
        return [retaining, Job("stats", text, settings.jobs.stats, owned), letters]
    jobs = [
        Job("expiry", "end transactions past their deadline; move dead letters", expiry, partial(end_late, transactions, clock)),
        Job(
            "log-snapshot", "write a snapshot of the transaction log", settings.jobs.log_snapshot,
            partial(write_log_snapshot, transactions, transaction_log),
        ),
        Job(
            "prune", "take failed writers off the invalid list once no row of theirs is left", settings.jobs.prune,
            partial(prune, pruner),
        ),
        retaining,
        Job(
            "stats", "save the counts, markers and producers of topics that changed, and the history of figures; tidy up consumer groups",
            settings.jobs.stats, partial(save_stats, statistics, markers, producers, groups, audit, days, StoreCalls(store), clock),
        ),
    ]  # fmt: skip
    if publisher is not None:
        text = "publish the transaction snapshot for the region servers"
        jobs.append(Job("snapshot", text, settings.jobs.snapshot, partial(publish_snapshot, publisher)))
    return jobs
