"""Wiring: the one place that picks a store and builds the services over it; all that runs in one server process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from basalt.access.policy import Caller
from basalt.access.principal import ANONYMOUS, parse_principal
from basalt.catalog.tables import TableCatalog
from basalt.catalog.topics import Topics
from basalt.cluster.led_store import LedStore
from basalt.cluster.links.links import Links
from basalt.cluster.membership import Membership
from basalt.cluster.shard_gate import ShardGate
from basalt.commits.coordinator import Coordinator
from basalt.commits.groups_elsewhere import answer_for_groups
from basalt.commits.linked_decisions import LinkedDecisions
from basalt.commits.of_members.decided_here import CommitsOfMembers
from basalt.commits.owning.owner import Owner
from basalt.commits.owning.owner_calls import answer_for
from basalt.commits.owning.owners import Owners
from basalt.errors import BasaltError, InvalidSettingError, UnavailableError
from basalt.groups.groups import GroupLimits, Groups
from basalt.groups.owned_groups import OwnedGroups
from basalt.groups.places import MessagePlaces
from basalt.http import services
from basalt.http.asgi.connections import Connections
from basalt.http.asgi.front import Forwarders
from basalt.http.collectors import HBaseMetrics, StoreMetrics
from basalt.http.routes.route_table import Operation
from basalt.messaging.log.merged_rows import merge_small_rows
from basalt.messaging.log.noted_writers import NotedWriters
from basalt.messaging.log.roll_back import RollBacks
from basalt.messaging.log.topic_log import LOG_LIMITS, LogLimits
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers
from basalt.messaging.messages import Messages
from basalt.messaging.peek import Peek
from basalt.messaging.producers import ProducerLimits, Producers
from basalt.messaging.ranges import Ranges
from basalt.messaging.read.back_reader import BackReader
from basalt.messaging.read.first_unstable import FirstUnstable, KnownTransactions
from basalt.messaging.read.last_stable import StableEnds
from basalt.messaging.read.log_reader import LogReader, SliceLimits
from basalt.messaging.read.views import Views
from basalt.messaging.topic_stats import TopicStatistics
from basalt.messaging.truncation import Truncation
from basalt.operations.audit import Audit
from basalt.operations.backups import Backups
from basalt.operations.groups.inspection import GroupInspection
from basalt.operations.groups.listing import GroupListing
from basalt.operations.inspection import ForcedEnds, Inspection
from basalt.operations.jobs import build_jobs, save_series
from basalt.operations.pipelines.pipeline_inspection import PipelineInspection
from basalt.operations.prune_reports import PruneReports
from basalt.operations.scheduler import Scheduler
from basalt.operations.series.days import SeriesDays
from basalt.operations.series.series import Series
from basalt.operations.series.table import FIGURES
from basalt.operations.shard_holding import ShardHolding
from basalt.operations.shard_moves import ShardMoves
from basalt.operations.topic_inspection import TopicInspection
from basalt.pruning.prune import Pruner
from basalt.pruning.publisher import SnapshotPublisher
from basalt.runtime.loop_lag import LoopLag
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import TopicLanes, WriteLanes
from basalt.server.authentication import open_access
from basalt.settings import Settings
from basalt.settings.tree import HBaseSettings, MessagingSettings, ProducerSettings, SubscriptionSettings
from basalt.tables.garbage_cells import CellActivity
from basalt.tables.tables import Tables
from basalt.thrift.face import ThriftFace
from basalt.thrift.metrics import ThriftMetrics
from basalt.transactions.followed import FollowedTransactions
from basalt.transactions.log.transaction_log import SHARED_ENTRIES_KEPT, TransactionLog
from basalt.transactions.manager import ExternalTransactions, TransactionManager, Transactions
from basalt.transactions.open_pointers import OpenPointers
from basalt.transactions.rules.transaction import TransactionIds, TransactionLimits
from basalt_engine.clock import Clock, SystemClock
from basalt_engine.errors import FencedError, RowExistsError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.stores.shards import Epochs
from basalt_engine.system import FACTS, InstallationFacts, SystemTable, install
from basalt_engine.table import Store

if TYPE_CHECKING:
    from basalt.thrift.calls import Served
    from basalt_engine.stores.hbase.store import HBaseCluster, HBaseStore

_SERVER_LOG = logging.getLogger("basalt.server")

BUCKETS_EMBEDDED = 16  # as an HBase installation has by default, so that tables move there unchanged


@dataclass(slots=True, kw_only=True)
class RunningServices(services.Services):
    """The running services of one store."""

    system: SystemTable
    owner: Owner
    thrift: ThriftMetrics = field(default_factory=ThriftMetrics)
    settings_at_start: Settings = field(init=False)
    _thrift_calls_as: Caller | None = None

    def __post_init__(self) -> None:
        self.settings_at_start = self.settings
        self.forwarders = Forwarders(self.settings.http.forwarders)
        self.connections = Connections.of(self.settings.http)
        self.loop_lag = LoopLag(self.clock)
        self.collectors.append(self.thrift)
        if isinstance(self.store, RocksStore):
            self.collectors.append(StoreMetrics(self.store))
        elif self.store.kind == "hbase":
            opened = cast("HBaseStore", self.store.inner if isinstance(self.store, LedStore) else self.store)
            self.gateways = opened.gateways
            self.collectors.append(HBaseMetrics(self.gateways))
        self.inspection = Inspection(
            self.store, self.clock, self.transactions, self.ids, self.first_unstable, self.ranges, self.topics, self.audit,
        )  # fmt: skip
        self.group_inspection = GroupInspection(
            self.store,
            self.clock,
            self.groups,
            self.topics,
            self.ranges,
            self.peek,
            self.first_unstable,
            self.transactions,
            self.ids,
        )
        self.group_listing = GroupListing(self.clock, self.groups, self.group_inspection)
        self.pipelines = PipelineInspection(self.store, self.clock, self.markers, self.transactions, self.ids)
        self.topic_inspection = TopicInspection(
            self.clock, self.topics, self.topic_stats, self.first_unstable, self.transactions.manager, self.ids
        )
        self.forced_ends = ForcedEnds(self.clock, self.transactions, self.ids, self.inspection, self.audit)
        self.shard_holding = ShardHolding(
            self.store, self.clock, self.topics.gate, self.topics, self.table_catalog, self.tables.activity, self.groups.live, self.markers,
            self.topic_stats, self.producers, self.transactions.manager, self.tables.pointers, self.owner,
        )  # fmt: skip
        shared = self.settings.cluster
        self.shard_holding.release_ms_max, self.shard_holding.weight = shared.release_ms, shared.weight
        self.shard_moves = ShardMoves(self.store, self.clock, self.shard_holding)
        self.shard_moves.balances, self.shard_moves.leader_share = shared.balance == "auto", shared.leader_share
        forget_blocks = self.topics.memory.forget_all_blocks
        self.series = self.series_days.series
        self.prune_reports = PruneReports(self.store, self.pruner, self.scheduler, self.audit, forget_blocks)

    async def start_thrift(self, address: str) -> ThriftFace:
        """The Thrift face on this address, where the settings ask for one."""
        return await ThriftFace.start(self.settings, self._served_by_thrift, address)

    def _served_by_thrift(self) -> Served:
        from basalt.thrift.calls import Served  # its library may not be here, and is wanted only for this

        return Served(
            self.clock, self.transactions, self.scheduler, self.audit, self.thrift, lambda: self.stopping, self._thrift_caller,
            self.quotas,
        )  # fmt: skip

    def _thrift_caller(self) -> Caller:
        """As whom the clients of the Thrift face are judged, by the policy of the moment."""
        policy = None if self.authentication is None else self.directory.entries.policy
        caller = self._thrift_calls_as
        if caller is None or caller.policy is not policy:
            named = self.settings.thrift.principal
            principal = ANONYMOUS if named is None else parse_principal(named)
            caller = self._thrift_calls_as = Caller(principal, policy, credential="thrift", refusals=self.refusals)
        return caller

    def stop_waiting(self) -> None:
        """The server is about to stop: fetches that wait are answered with what there is."""
        self.stopping = True
        self.markers.stop_waiting()
        self.messaging.stop_waiting()
        self.groups.live.stop_waiting()

    async def close(self) -> None:
        """Answer what was taken, then let go of the store."""
        self.stop_waiting()
        await self.shard_moves.close()
        if self.watching is not None:
            self.watching.cancel()
        if self.leadership is None:  # else it is measured as a standby, too
            self.loop_lag.stop()
        await self.groups.live.close()
        await self.scheduler.stop()
        if self.authentication is not None:
            await self.authentication.close()
        await self.directory.close()
        await self.producers.close()
        self._use(self.settings_at_start)  # the level of the log is the process's, which may lead again
        with contextlib.suppress(
            BasaltError
        ):  # counts that are not saved are counted again; who leads no more writes no more
            if self.is_member or self.leadership is None or self.leadership.is_leader:
                await self.markers.save(everything=True)
                await self.topic_stats.save(everything=True)
                await self.producers.save(everything=True)
            if not self.is_member and (self.leadership is None or self.leadership.is_leader):
                self.series.finish()
                await save_series(self.series_days, StoreCalls(self.store), self.clock.now_ms())
        await self._stop_writing()
        self.store.close()

    def share(self, links: Links, may_borrow: Callable[[str], bool]) -> None:
        """From now on push the log to members and decide for them, as the leader; or follow the leader's, and do an owner's part, as a member. Until `close`."""
        self.topics.gate.loads = links.loads
        self.topic_inspection.share(links)
        if self.is_member:
            cast("FollowedTransactions", self.transactions.manager).start()
            answer_for(self.owner, links.handlers)
            answer_for_groups(self.transactions.groups_here, links.handlers)
        else:
            self.transactions.manager.lead(links)
            self.transactions.decide_for_members(links.handlers, may_borrow)
            if isinstance(self.owner, Owners):
                CommitsOfMembers(self.transactions, self.owner).answer_over(links.handlers)

    async def _stop_writing(self) -> None:
        """Answer what was taken: each lane takes no more, and steps that follow from what it took still go through the other."""
        lanes = self.transactions.manager.lanes
        with contextlib.suppress(BasaltError):  # the next leader ends them, who reads the log in any case
            await self.transactions.give_up_begun()
        await lanes.log.stop()
        await self.transactions.carry_through()
        await lanes.topics.stop()
        with contextlib.suppress(BasaltError):  # the next leader ends them, at the cost of a run on the invalid list
            await self.transactions.give_back_loans()
        await lanes.log.stop()
        if self.is_member:
            await cast("FollowedTransactions", self.transactions.manager).close()
        else:
            self.transactions.manager.close()


class Shared(NamedTuple):
    """The ways of a server to the others that serve topics of the same store. `owned`: the shards that it has fenced, before its services open."""

    links: Links
    membership: Membership
    owned: Epochs


def check_sharing(settings: Settings) -> None:
    """Refuse with `InvalidSettingError` settings by which a call would not come to who serves it."""
    if settings.store.kind == "hbase" and settings.cluster.share and not settings.cluster.pass_on:
        raise InvalidSettingError(
            "cluster.share needs cluster.pass_on: else a call to a topic of another server would not be answered",
            field="cluster.pass_on",
            hint="leave cluster.pass_on at true; or set cluster.share to false, so that one server leads and serves all",
        )


def pages_of(settings: Settings) -> tuple[Operation, ...]:
    """The routes of the console, where the settings want one."""
    if not settings.console.enabled:
        return ()
    from basalt.console.app import PAGES  # its templates take time to load, and memory

    return PAGES


def open_store(settings: Settings, data_directory: Path | None, *, again_ms: float | None = None) -> Store:
    """The store that the settings name. `again_ms`: on HBase, a call that waits is made again, for one that renews a lease."""
    if settings.store.kind == "memory":
        return MemoryStore()
    if settings.store.kind == "hbase":
        return _open_hbase(settings.store.hbase, again_ms)
    if data_directory is None:
        raise InvalidSettingError(
            "store.kind rocks needs a data directory",
            field="server.data",
            hint="name one with --data DIR, or with server.data in the settings file",
        )
    return RocksStore.open(data_directory, sync=settings.store.sync)


def _open_hbase(settings: HBaseSettings, again_ms: float | None) -> Store:
    try:
        from basalt.hbase_admin.gateway import kerberos_login
        from basalt_engine.stores.hbase.gateway import NoTableError
        from basalt_engine.stores.hbase.store import HBaseStore
    except ImportError as error:
        raise InvalidSettingError(
            f"store.kind hbase needs libraries that are not here: {error}",
            field="store.kind",
            hint="install them with `pip install basalt-mq[hbase]`",
        ) from None
    if settings.thrift2 is None:
        raise InvalidSettingError(
            "store.kind hbase needs the address of HBase's Thrift 2 gateway",
            field="store.hbase.thrift2",
            hint="start one with `hbase thrift2 start` and name it as host:port",
        )
    try:
        login = kerberos_login(settings)
        return HBaseStore.open(settings.thrift2, settings.prefix, login=login, again_ms=again_ms)
    except NoTableError as error:
        raise InvalidSettingError(error.message, field="store.hbase.prefix", hint=error.hint) from None


async def open_services(
    settings: Settings, data_directory: Path | None, *, store: Store | None = None, clock: Clock | None = None,
    epoch: int = 0, shared: Shared | None = None, cluster: HBaseCluster | None = None, memory: LogLimits = LOG_LIMITS,
) -> RunningServices:  # fmt: skip
    """All services over the store that the settings name, recovered and ready. Close them with `RunningServices.close`.

    `epoch` is that under which this server leads a store that others have open too; 0 where it has it to itself, or is a member that
    another one leads. `shared`: others serve topics beside it. `cluster` are the region servers that keep the store's tables, where they are not those of the settings. `memory`: how
    much of topics stays in it.
    """
    clock = clock or SystemClock()
    store = store or open_store(settings, data_directory)
    try:
        return await _wire(settings, data_directory, store, clock, epoch, shared, cluster, memory)
    except BaseException:
        store.close()
        raise


def _topic_logs(
    settings: MessagingSettings, store: Store, clock: Clock, catalog: Topics, memory: LogLimits, writer: TopicLanes,
    gate: ShardGate,
) -> TopicLogs:  # fmt: skip
    topics = TopicLogs(
        store, clock, catalog, tail_bytes_max=settings.cache_bytes_max, answers_bytes_max=settings.answers_bytes_max,
        limits=memory, gate=gate,
    )  # fmt: skip
    merge_small_rows(writer, topics.memory)
    return topics


async def _wire(
    settings: Settings, data_directory: Path | None, store: Store, clock: Clock, epoch: int, shared: Shared | None,
    cluster: HBaseCluster | None, memory: LogLimits,
) -> RunningServices:  # fmt: skip
    is_member = shared is not None and not epoch
    leads, follows = (None, shared) if is_member else (shared, None)
    system, facts = await _facts(settings, store, clock, is_member=is_member)
    lanes = _lanes(settings.messaging, store, clock, facts)
    writer, catalog, log = lanes.topics, Topics(store, clock, facts.buckets), _transaction_log(settings, store)
    topics = _topic_logs(settings.messaging, store, clock, catalog, memory, writer, _gate(clock, epoch, shared))
    transaction_manager = _transactions(store, clock, lanes, log, epoch, shared)
    manager, pointers = _managed(settings, transaction_manager)
    roll_backs, audit = _roll_backs(store, topics, writer, shared), Audit(store, clock, is_member=is_member)
    reader, views, known_transactions, first_unstable, ends = _readers(store, clock, topics, manager)
    markers = TopicMarkers(store, clock, topics, reader, writer, ends)
    producers = Producers(store, clock, topics, writer, _producer_limits(settings.producers))
    messaging = Messages(
        clock, topics, reader, roll_backs, writer, manager, views, pointers, markers, producers,
        limits=_look(settings.messaging), lifetime_ms_max=settings.transactions.lifetime_ms_max,
    )  # fmt: skip
    ids, ranges = TransactionIds(facts.instance), Ranges(store, clock, topics, reader, manager, ends, first_unstable)
    places = MessagePlaces(store, clock, reader, transaction_manager, ends, first_unstable, ids)
    groups = (OwnedGroups if is_member else Groups)(
        clock, transaction_manager, manager, topics, messaging, places, ends, ranges, ids, _group_limits(settings.subscriptions)
    )  # fmt: skip
    owner = _owner(settings, store, clock, topics, roll_backs, writer, markers, pointers, leads)
    transactions = await _coordinator(settings, transaction_manager, owner, groups, clock, log, follows)
    activity, statistics = CellActivity(), TopicStatistics(store, clock, topics, reader, writer, first_unstable)
    days = await _series_days(system, store, clock, is_member=is_member)
    table_catalog = TableCatalog(store, clock, facts.buckets, topics.gate)
    pruner = _pruner(settings, store, clock, transactions, cluster, roll_backs.noted)
    truncation = Truncation(
        store, clock, topics, writer, markers, producers, ends, first_unstable, ranges,
        lambda pointer: ids.text(transaction_manager.id_of(pointer)),
    )  # fmt: skip
    jobs = build_jobs(
        settings, store, clock, topics, statistics, markers, producers, writer, transactions, log, known_transactions, pruner, activity,
        truncation, groups, audit, days, is_member=is_member,
    )  # fmt: skip
    directory, refusals, authentication = await open_access(settings, store, clock, is_member=is_member)
    return RunningServices(
        settings=settings, clock=clock, store=store, system=system, writer=writer, topics=topics, messaging=messaging,
        markers=markers, producers=producers, tables=Tables(store, table_catalog, transaction_manager, pointers, activity),
        table_catalog=table_catalog, peek=Peek(topics, reader, known_transactions, views), topic_stats=statistics, ids=ids, pruner=pruner,
        back_reader=BackReader(store, clock, topics, reader), transactions=transactions,
        scheduler=Scheduler(store, clock, jobs, is_member=is_member),
        series_days=days, backups=Backups(store, clock, data_directory), ranges=ranges, groups=groups, truncation=truncation,
        first_unstable=first_unstable, views=views, started_ms=clock.now_ms(), instance=facts.instance, audit=audit,
        directory=directory, refusals=refusals, authentication=authentication, quotas=directory.quotas, is_member=is_member, owner=owner,
    )  # fmt: skip


def _lanes(settings: MessagingSettings, store: Store, clock: Clock, facts: InstallationFacts) -> WriteLanes:
    limit, number = settings.queue_bytes_max, settings.topic_lanes
    return WriteLanes.of(store, clock, facts.buckets, queue_bytes_max=limit, topic_lanes=number)


async def _facts(
    settings: Settings, store: Store, clock: Clock, *, is_member: bool
) -> tuple[SystemTable, InstallationFacts]:
    """The system table, and the facts that it has since Basalt was installed: at the first start of all, by the server that leads or is alone."""
    system = SystemTable(store.table(SystemTable.name))
    if not is_member:
        buckets = settings.store.hbase.buckets if store.kind == "hbase" else BUCKETS_EMBEDDED
        return system, install(system, clock, buckets)
    facts = await StoreCalls(store)(FACTS.get, system)
    if facts is None:
        raise UnavailableError("nothing is installed in this store yet: the server that leads is about to do it")
    return system, facts


def _roll_backs(store: Store, topics: TopicLogs, writer: TopicLanes, shared: Shared | None) -> RollBacks:
    roll_backs = RollBacks(store, topics, writer)
    roll_backs.noted.is_shared = shared is not None
    return roll_backs


def _readers(
    store: Store, clock: Clock, topics: TopicLogs, manager: Transactions
) -> tuple[LogReader, Views, KnownTransactions, FirstUnstable, StableEnds]:
    """The ways to read topics, and to tell up to where that is decided."""
    reader, views, known_transactions = LogReader(store, clock, topics), Views(manager), KnownTransactions(manager)
    first_unstable = FirstUnstable(store, clock, topics, reader, known_transactions, views)
    return reader, views, known_transactions, first_unstable, StableEnds(store, reader, first_unstable, manager, views)


def _gate(clock: Clock, epoch: int, shared: Shared | None) -> ShardGate:
    gate = ShardGate(clock, epoch, shares=shared is not None)
    gate.hold({} if shared is None else shared.owned)
    return gate


def _owner(
    settings: Settings, store: Store, clock: Clock, topics: TopicLogs, roll_backs: RollBacks, writer: TopicLanes, markers: TopicMarkers,
    pointers: OpenPointers, leads: Shared | None,
) -> Owner:  # fmt: skip
    """The owner of this server's topics; where it leads others, the one of all topics, to whoever carries a commit."""
    if leads is None:
        return Owner(topics, roll_backs, writer, markers, pointers, clock, store_drops=store.applies_retention)
    return Owners(
        topics, roll_backs, writer, markers, pointers, clock, store_drops=store.applies_retention,
        links=leads.links, member=leads.membership.candidate.instance, place_ms=settings.cluster.place_ms,
    )  # fmt: skip


def _transactions(
    store: Store, clock: Clock, lanes: WriteLanes, log: TransactionLog, epoch: int, shared: Shared | None
) -> TransactionManager:
    """The transactions of the store: this server's own to decide; or, as a member knows them, with the same face: it refuses what decides."""
    if shared is None or epoch:
        return TransactionManager(store, clock, lanes, log, epoch=epoch)
    return cast("TransactionManager", FollowedTransactions(store, clock, lanes, log, shared.links))


def _managed(settings: Settings, manager: TransactionManager) -> tuple[Transactions, OpenPointers]:
    """The transactions that messages know, and the write pointers that they may be written under."""
    builtin = settings.transactions.manager == "builtin"
    return manager if builtin else ExternalTransactions(), OpenPointers(manager, external=not builtin)


async def _series_days(system: SystemTable, store: Store, clock: Clock, *, is_member: bool) -> SeriesDays:
    """The history of figures, with the minutes that were kept: those are of the leader, and so a member has none."""
    days = SeriesDays(system, Series(FIGURES))
    if is_member:
        return days
    await StoreCalls(store)(days.load, clock.now_ms())
    return days


def _transaction_log(settings: Settings, store: Store) -> TransactionLog:
    kept = 0 if store.atomic else SHARED_ENTRIES_KEPT
    return TransactionLog(store.table("transaction_log"), transaction_limits(settings), entries_kept=kept)


def _look(settings: MessagingSettings) -> SliceLimits:
    return SliceLimits(settings.fetch_messages_max, settings.fetch_bytes_max)


def _producer_limits(settings: ProducerSettings) -> ProducerLimits:
    return ProducerLimits(settings.per_topic_max, settings.idle_ms, settings.named_idle_ms, settings.memory_max)


def _group_limits(settings: SubscriptionSettings) -> GroupLimits:
    return GroupLimits(
        settings.groups_max,
        settings.members_max,
        settings.unacked_max,
        settings.claim_ms_max,
        settings.window_bytes_max,
    )


async def _coordinator(
    settings: Settings, manager: TransactionManager, owner: Owner, groups: Groups, clock: Clock, transaction_log: TransactionLog,
    follows: Shared | None,
) -> Coordinator:  # fmt: skip
    """Have the log read. Where it has a lane of its own the services open without it: it is read when somebody needs it.

    A member, who `follows`, reads it in the background, as often as it takes.
    """
    if follows is not None:
        links, followed = follows.links, cast("FollowedTransactions", manager)
        linked = LinkedDecisions(manager, lambda: links.to_leader)
        followed.tells(owner.hear)
        cast("OwnedGroups", groups).follow(followed)
        member = follows.membership.candidate.instance
        return Coordinator(
            manager, owner, groups, clock, place_ms=settings.cluster.place_ms, linked=linked, member=member
        )
    transactions = Coordinator(manager, owner, groups, clock, place_ms=settings.cluster.place_ms)
    began_ms = clock.monotonic_ms()
    try:
        await transactions.recover()
    except (FencedError, RowExistsError):
        raise  # another server leads
    except BasaltError as error:
        if transactions.manager.atomic:
            raise
        _SERVER_LOG.warning(
            "opens without the log of transactions: until it can be read, calls about transactions are refused: %s",
            error,
        )
        return transactions
    state = transactions.state
    _SERVER_LOG.info(
        "recovered transactions in %d ms: %d log entries were read; %d transactions go on, %d are on the invalid list",
        clock.monotonic_ms() - began_ms, transaction_log.entries_since_snapshot, len(state.view().in_progress),
        state.invalid.entries,
    )  # fmt: skip
    return transactions


def _pruner(
    settings: Settings,
    store: Store,
    clock: Clock,
    transactions: Coordinator,
    cluster: HBaseCluster | None,
    noted: NotedWriters,
) -> Pruner:
    """Pruning by regions where the store has some; by retention's notes elsewhere."""
    lifetime_ms_max = settings.transactions.lifetime_ms_max
    if store.kind == "hbase" and cluster is None:
        cluster = _hbase_cluster(settings.store.hbase)
    publisher = None if cluster is None else SnapshotPublisher(store, clock, transactions, lifetime_ms_max)
    return Pruner(
        store, clock, transactions, noted, lifetime_ms_max=lifetime_ms_max, cluster=cluster, publisher=publisher,
        compactions_max=settings.store.hbase.prune_compactions, window=settings.jobs.prune.window,
        forget_external_writers=settings.transactions.prune_external_writers,
    )  # fmt: skip


def _hbase_cluster(settings: HBaseSettings) -> HBaseCluster:
    from basalt.hbase_admin.gateway import kerberos_login
    from basalt_engine.stores.hbase.store import HBaseCluster

    assert settings.thrift2 is not None, "the store was opened through it"
    return HBaseCluster(settings.thrift2, settings.prefix, settings.thrift, kerberos_login(settings))


def transaction_limits(settings: Settings) -> TransactionLimits:
    """The manager's limits: what has a key in the settings is as they say."""
    given = settings.transactions
    return TransactionLimits(
        **{each.name: getattr(given, each.name) for each in fields(TransactionLimits) if hasattr(given, each.name)},
        group_spans_max=settings.subscriptions.spans_max,
    )
