"""The services that routes and metrics reach, each named once, and the questions that take several of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from basalt.access.authentication import Authentication
from basalt.access.directory import Directory
from basalt.access.quotas import Quotas
from basalt.access.refusals import Refusals
from basalt.api.bodies.cluster import ShardMoveRequest
from basalt.api.bodies.operations import (
    ChangedSettings,
    ManagerSnapshotInfo,
    Readiness,
    RegionInfo,
    ServerPart,
    StoreInfo,
    StoreTable,
)
from basalt.api.bodies.owners import TopicExplanation
from basalt.catalog.tables import TableCatalog
from basalt.catalog.topics import TopicName, topic_name
from basalt.cluster.leader import Leadership
from basalt.cluster.links.beats import LINKED_MS
from basalt.cluster.membership import Membership
from basalt.cluster.owners import Granted
from basalt.cluster.reigns import Phase
from basalt.commits.coordinator import Coordinator
from basalt.errors import BasaltError, ConflictError, InputError, NoRegionsError, TopicNotFoundError
from basalt.groups.groups import Groups
from basalt.http.asgi.connections import Connections, OpenStreams
from basalt.http.asgi.front import Forwarders
from basalt.http.traces import Traces
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers
from basalt.messaging.messages import Messages
from basalt.messaging.peek import Peek
from basalt.messaging.producers import Producers
from basalt.messaging.ranges import Ranges
from basalt.messaging.read.back_reader import BackReader
from basalt.messaging.read.first_unstable import FirstUnstable
from basalt.messaging.read.log_reader import end_of
from basalt.messaging.read.views import Views
from basalt.messaging.topic_stats import TopicStatistics
from basalt.messaging.truncation import Truncation
from basalt.operations.audit import Audit, By
from basalt.operations.backups import Backups
from basalt.operations.cluster_inspection import Alone, ClusterInspection
from basalt.operations.groups.inspection import GroupInspection
from basalt.operations.groups.listing import GroupListing
from basalt.operations.inspection import ForcedEnds, Inspection
from basalt.operations.live_settings import change, put_in_force
from basalt.operations.pipelines.pipeline_inspection import PipelineInspection
from basalt.operations.prune_reports import PruneReports
from basalt.operations.scheduler import Scheduler
from basalt.operations.series.days import SeriesDays
from basalt.operations.series.series import Series
from basalt.operations.shard_holding import ShardHolding
from basalt.operations.shard_moves import ShardMoves
from basalt.operations.topic_inspection import TopicInspection
from basalt.pruning.prune import Pruner
from basalt.runtime.loop_lag import LoopLag
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import TopicLanes
from basalt.settings import Settings
from basalt.tables.tables import Tables
from basalt.transactions.rules.transaction import TransactionIds
from basalt_engine.clock import Clock
from basalt_engine.stores.shards import shard_of
from basalt_engine.system import FACTS, SystemTable
from basalt_engine.table import TABLE_NAMES, Store

if TYPE_CHECKING:
    from basalt_engine.stores.hbase.gateway import Gateway

COORDINATOR = "coordinator"  # the part of a server's readiness that only calls about transactions need
_FIRST_KEY, _BEHIND_KEYS = b"\0", b"\xff" * 64  # no key of ours starts with so many such bytes


def member_part(membership: Membership) -> ServerPart:
    """A server's membership, as its health tells of it: no name and no other member, for everybody may ask a standby."""
    return ServerPart("member", membership.is_on, 0.0, f"its lease {'is on' if membership.is_on else 'is not on'}")


@dataclass(slots=True, kw_only=True)
class Services:
    """The services of one store, as routes and metrics are given them. Wired in `basalt.server.wiring`."""

    settings: Settings
    clock: Clock
    store: Store
    writer: TopicLanes
    topics: TopicLogs
    messaging: Messages
    markers: TopicMarkers
    producers: Producers
    tables: Tables
    table_catalog: TableCatalog
    peek: Peek
    back_reader: BackReader
    topic_stats: TopicStatistics
    first_unstable: FirstUnstable
    views: Views
    ranges: Ranges
    groups: Groups
    truncation: Truncation
    transactions: Coordinator
    ids: TransactionIds
    pruner: Pruner
    scheduler: Scheduler
    backups: Backups
    started_ms: int
    instance: str
    audit: Audit
    directory: Directory
    refusals: Refusals
    authentication: Authentication | None  # None: nobody is asked who they are
    quotas: Quotas
    series_days: SeriesDays
    connections: Connections = field(init=False)  # of this process, which may have had others over the store before
    streams: OpenStreams = field(default_factory=OpenStreams)
    forwarders: Forwarders = field(init=False)
    inspection: Inspection = field(init=False)
    group_inspection: GroupInspection = field(init=False)
    group_listing: GroupListing = field(init=False)
    pipelines: PipelineInspection = field(init=False)
    topic_inspection: TopicInspection = field(init=False)
    forced_ends: ForcedEnds = field(init=False)
    shard_holding: ShardHolding = field(init=False)
    shard_moves: ShardMoves = field(init=False)
    series: Series = field(init=False)  # filled by `basalt.http.sampler`
    prune_reports: PruneReports = field(init=False)
    collectors: list[Collector] = field(default_factory=list)  # of other faces, which have no /metrics of their own
    gateways: Mapping[str, Gateway] = field(default_factory=dict)  # to HBase, by what they are for
    traces: Traces | None = None  # of a process that sends them
    leadership: Leadership | None = None  # of a server that shares its store with others
    membership: Membership | None = None  # of the same server
    is_member: bool = False  # it serves topics of its own while another server leads
    granted: Granted | None = None  # the map that this term began with
    loop_lag: LoopLag = field(init=False)  # of this process, too
    watching: asyncio.Task[None] | None = None  # what the alerts go by
    stopping: bool = False
    setting: asyncio.Lock = field(default_factory=asyncio.Lock)  # one change of settings at a time

    async def readiness(self) -> Readiness:
        """Try each part that a request may need."""
        server = ServerPart("server", not self.stopping, 0.0, "stopping" if self.stopping else "running")
        parts = [await self._store_part(), self._coordinator_part(), server]
        if self.authentication is not None:
            age_s = self.directory.age_ms / 1_000
            detail = f"tokens and grants were read {age_s:.0f} s ago, version {self.directory.entries.version}"
            parts.append(ServerPart("policy", not self.directory.is_stale, 0.0, detail))
        if self.is_member:
            reigns = self.shard_moves.gate.reigns
            held = sum(reign.phase is Phase.HELD for reign in reigns)
            parts.append(ServerPart("shards", True, 0.0, f"{held} of {len(reigns)} shards are served here"))
            url = None if self.leadership is None else self.leadership.leader_url
            detail = f"standby: {url} leads" if url else "standby: no server leads at the moment"
            parts.append(ServerPart("leader", True, 0.0, detail))  # its own topics are served in either case
        elif self.leadership is not None:
            leads = self.leadership.is_leader
            detail = f"{'leads' if leads else 'led'} under epoch {self.leadership.epoch}"
            parts.append(ServerPart("leader", leads, 0.0, detail))
        # Without the coordinator all calls but those about transactions are served, so requests may come.
        ready = all(part.ok for part in parts if part.name != COORDINATOR)
        if self.membership is not None:
            parts.append(member_part(self.membership))
            # The leader serves without, though nobody is told of it.
            ready = ready and (not self.is_member or self.membership.is_on)
        return Readiness(ready, tuple(parts))

    async def store_info(self) -> StoreInfo:
        """The store and about how many bytes its tables take."""
        call = StoreCalls(self.store)
        tables = [
            StoreTable(name, await call(self.store.table(name).size_bytes, _FIRST_KEY, _BEHIND_KEYS))
            for name in TABLE_NAMES
        ]
        facts = await call(FACTS.get, SystemTable(self.store.table(SystemTable.name)))
        assert facts is not None, "an installation has its facts"
        hbase = self.settings.store.hbase
        gateways = (hbase.thrift2, hbase.thrift) if self.store.kind == "hbase" else ()
        return StoreInfo(
            self.store.kind, self.store.atomic, self.instance, self.started_ms, tuple(tables), facts.buckets,
            tuple(filter(None, gateways)), self.prune_reports.region_servers,
        )  # fmt: skip

    async def change_settings(self, asked: Mapping[str, object], by: By, *, dry_run: bool) -> ChangedSettings:
        """Change settings until the server stops: all that are asked for, or none."""
        async with self.setting:
            return await change(self.settings, asked, by, audit=self.audit, use=self._use, dry_run=dry_run)

    @property
    def cluster(self) -> ClusterInspection:
        """The servers that share the store, and what each of them owns. This one leads."""
        return ClusterInspection(
            self.store,
            self.clock,
            Alone(self.instance, self.started_ms),
            self.leadership,
            self.membership,
            self.granted,
            self.shard_moves.gate.reigns,
            self.shard_moves.weighed,
        )

    async def explain_topic(self, title: TopicName) -> TopicExplanation:
        """Everything about where a topic is, and what would be in the way of calls to it; also of one that there is not."""
        try:
            stored = await self.topics.catalog.describe(title)
            spread = stored.spread_scanned if stored.generation > 0 else None
        except TopicNotFoundError:
            spread = None
        regions: list[RegionInfo] = []
        fault = None
        try:
            regions = await self.prune_reports.regions(None)
        except NoRegionsError:
            pass  # an embedded store has none
        except BasaltError as error:  # the rest can be told all the same
            fault = ServerPart("regions", False, 0.0, error.message)
        readiness = await self.readiness()
        if fault is not None:
            readiness = Readiness(False, (*readiness.parts, fault))
        return await self.cluster.explain(title, spread, self.topics.catalog.buckets, readiness, regions)

    def in_map(self, member: str) -> str:
        """The name by which the map knows a member, which may be told by its name for people or by its membership's instance, too. A run of a server has
        one name in the map, and a membership may have ended since, and another one begun."""
        own = self.membership
        if own is None or member == own.candidate.instance:
            return member
        found = {own.candidate.instance} if member in (own.instance, own.candidate.holder) else set()
        for instance, seen in own.seen.items():
            if not seen.record.is_over and member in (instance, seen.record.holder, seen.record.run):
                found.add(seen.record.run)
        if len(found) > 1:
            raise ConflictError(
                f"{len(found)} servers are named {member[:80]!r}",
                field="to",
                hint="name one by its instance, as `basalt -o json cluster members` tells",
            )
        return found.pop() if found else member

    async def shards_asked_for(self, asked: ShardMoveRequest) -> frozenset[int]:
        """The shards that a move is asked for; a topic that is named has to be there."""
        if (asked.topic is None) == (not asked.shards):
            raise InputError("a move is of shards, or of the one of a topic", field="shards", hint="name either")
        if asked.topic is None:
            return frozenset(asked.shards)
        topic = await self.topics.catalog.read(topic_name(asked.namespace or "", asked.topic))
        return frozenset([shard_of(topic.keys.prefix)])

    def manager_snapshot(self) -> ManagerSnapshotInfo:
        """The transaction manager's pointers and the lengths of its lists. Refuses while the manager reads its log."""
        state, current = self.transactions.state, self.transactions.manager.current()
        oldest = state.oldest
        return ManagerSnapshotInfo(
            read_pointer=current.read_pointer,
            write_pointer=state.last_pointer,
            in_progress=len(current.in_progress),
            invalid=current.invalid.entries,
            oldest_in_progress=None if oldest is None else self.ids.text(oldest.id),
            oldest_began_ms=None if oldest is None else oldest.began_ms,
            published=self.prune_reports.published,
        )

    async def join_topic(self, transaction_id: int, title: TopicName) -> None:
        """The topic takes part in the transaction from now on."""
        await self.transactions.join_topic(transaction_id, title)

    async def end_of_topic(self, title: TopicName) -> bytes | None:
        """The id behind the newest message of a topic; None where there is none."""
        newest = (await self.topics.open(title)).newest
        return end_of(newest) if newest else None

    def holder(self, write_pointer: int) -> str:
        """The id, as it is shown, of the transaction that makes a reader wait at a row of this writer."""
        return self.ids.text(self.transactions.manager.id_of(write_pointer))

    def _use(self, settings: Settings) -> None:
        put_in_force(self.settings, settings, self.messaging, self.scheduler, self.pruner)
        self.settings = settings

    async def _store_part(self) -> ServerPart:
        start_ms, system = self.clock.monotonic_ms(), SystemTable(self.store.table(SystemTable.name))
        ok, detail = True, self.store.kind
        try:
            await StoreCalls(self.store)(FACTS.get, system)
        except BasaltError as error:
            ok, detail = False, error.message
        return ServerPart("store", ok, self.clock.monotonic_ms() - start_ms, detail)

    def _coordinator_part(self) -> ServerPart:
        try:
            ok, detail = True, f"{self.transactions.state.in_progress_count} transactions in progress"
        except BasaltError as error:
            ok, detail = False, error.message
        manager = self.transactions.manager
        if manager.lanes.log.is_late:
            ok, detail = False, "the log of transactions does not answer"
        if ok and manager.view_age_ms >= LINKED_MS:
            ok, detail = False, f"the leader, which decides, was heard {manager.view_age_ms / 1_000:.0f} s ago"
        return ServerPart(COORDINATOR, ok, 0.0, detail)
