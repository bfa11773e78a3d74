"""The series of /metrics that one part of a server has, each in a collector of its own: a server has those of the parts that it has.

`basalt.http.metrics` puts them together with the series of requests, messages, transactions and groups. Every name is listed in
docs/reference/metrics.md.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from basalt.access.authentication import Authentication
from basalt.access.directory import Directory
from basalt.access.refusals import Refusals
from basalt.cluster.leader import Leadership
from basalt.cluster.links.links import Links
from basalt.cluster.members import State
from basalt.cluster.membership import Membership
from basalt.cluster.shard_loads import THOUSANDTHS
from basalt.http.asgi.connections import Connections, OpenStreams
from basalt.http.asgi.handshake import Handshakes
from basalt.messaging.log.tails import Tails
from basalt.messaging.read.views import Views
from basalt.operations.scheduler import Scheduler
from basalt.operations.shard_moves import ShardMoves
from basalt.pruning.prune import Pruner
from basalt.runtime.group_commit import SIZES, GroupCommit
from basalt.runtime.loop_lag import LoopLag
from basalt.runtime.write_lanes import TopicLanes
from basalt.transactions.log_state import LogState
from basalt_engine.clock import Clock
from basalt_engine.stores.hbase.regions import jar_state, version_text

if TYPE_CHECKING:
    from basalt.access.proofs.jwks import Jwks
    from basalt_engine.stores.hbase.gateway import Gateway
    from basalt_engine.stores.rocks import RocksStore

JOB = "name"  # the label of a job's name: `job` is Prometheus' own, and would be shown as `exported_job`


class ConnectionMetrics(Collector):
    """The series of the connections of one server; the same as leader and as standby."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        yield gauge("basalt_connections", "Connections of HTTP clients", self._connections.total)
        yield counters(
            "basalt_connections_refused",
            "Connections that were closed at once: one too many in all, or of their address",
            "limit",
            self._connections.refused,
        )


class StreamMetrics(Collector):
    """The series of answers that go on for as long as somebody looks. A standby has none."""

    def __init__(self, streams: OpenStreams) -> None:
        self._streams = streams

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        yield gauge("basalt_http_open_streams", "Answers that go on for as long as somebody looks", len(self._streams))


class TlsMetrics(Collector):
    """The series of a port that speaks TLS; the same as leader and as standby."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes

    @property
    def certificate_ends_ms(self) -> int:
        """When the certificate ends that new connections are shown."""
        return self._handshakes.context.not_after_ms

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        handshakes = self._handshakes
        ends_s = handshakes.context.not_after_ms / 1_000
        yield gauge(
            "basalt_tls_certificate_not_after_seconds", "When the server's certificate ends, since 1970", ends_s
        )
        yield gauge(
            "basalt_tls_handshakes_going_on", "Connections whose handshake is not complete", handshakes.going_on
        )
        yield counters("basalt_tls_handshakes", "Handshakes by what became of them", "outcome", handshakes.outcomes)
        text = "Changes of certificate, key and CAs that were taken, and looks at one that was not"
        yield counters("basalt_tls_reloads", text, "outcome", handshakes.reloads)


class LeaderMetrics(Collector):
    """The series of one server's part in the question who leads; the same as leader and as standby."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        leadership = self._leadership
        yield gauge("basalt_leader", "1 on the server that leads, 0 on a standby", float(leadership.is_leader))
        yield gauge("basalt_leader_epoch", "Newest epoch that this server knows of", leadership.epoch)
        yield gauge(
            "basalt_leader_lease_age_seconds",
            "Since when the lease record is as it is: on the leader, since it was last renewed",
            leadership.unchanged_ms / 1_000,
        )
        yield gauge(
            "basalt_leader_lease_reachable", "1 when the last look at the lease was answered", leadership.reachable
        )
        yield counter(
            "basalt_leader_terms", "How often this server has taken the lead since it started", leadership.terms
        )


class MemberMetrics(Collector):
    """The series of one server's membership, and of all members as it sees them; the same as leader and as standby."""

    def __init__(self, membership: Membership, clock: Clock, servers_min: int) -> None:
        self._membership = membership
        self._clock = clock
        self._servers_min = servers_min  # how many the settings want

    def collect(self) -> Iterator[Metric]:
        """Every series there is; before the first look, and before the first row, those that can be told."""
        membership, now_ms = self._membership, self._clock.monotonic_ms()
        if membership.looked_ms is not None:
            text = "Servers that share the store, as this one sees them: silent ones have missed renewals, dead ones are shown for a while"
            members = GaugeMetricFamily("basalt_cluster_members", text, labels=("state",))
            counts = Counter(each.state(now_ms) for each in membership.seen.values())
            for state in get_args(State):
                members.add_metric((state,), counts[state])
            yield members
            text = "Servers that are missing: so many fewer are live than cluster.servers_min says"
            yield gauge("basalt_cluster_servers_missing", text, max(self._servers_min - counts["live"], 0))
            ago_s = (now_ms - membership.looked_ms) / 1_000
            yield gauge(
                "basalt_cluster_look_age_seconds", "Since when this server has not read who the members are", ago_s
            )
        if (owners := membership.owners) is not None and (states := membership.shard_states()) is not None:
            text = "Shards by the state of their owner, as this server sees it: of one that is dead nobody serves them"
            shards = GaugeMetricFamily("basalt_cluster_shards", text, labels=("state",))
            for state in get_args(State):
                shards.add_metric((state,), states[state])
            yield shards
            text = "Shards whose owner is no member any more"
            yield gauge("basalt_cluster_shards_unowned", text, states["dead"])
            yield gauge(
                "basalt_cluster_map_version", "Version of the map of owners that this server knows", owners.version
            )
        if (age_ms := membership.lease_age_ms) is not None:
            text = "Since when this server has not renewed its membership"
            yield gauge("basalt_cluster_lease_age_seconds", text, age_ms / 1_000)
        text = "Memberships that this server has begun: each after the first follows one that was ended"
        yield counter("basalt_cluster_memberships", text, membership.begun)


class ShardMetrics(Collector):
    """The series of this server's shards and of their moves."""

    def __init__(self, moves: ShardMoves) -> None:
        self._moves = moves

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        moves, gate = self._moves, self._moves.gate
        text = (
            "Shards that moved, by the reason, and those whose move was called off, so that they are served as before"
        )
        yield counters("basalt_cluster_moves", text, "why", moves.moves)
        text = "The parts of moves: calls wait from the first to the last of them"
        phases = HistogramMetricFamily("basalt_cluster_move_seconds", text, labels=("phase",))
        for phase, durations in {**moves.phases, "whole": moves.gaps}.items():
            phases.add_metric((phase,), durations.buckets(), durations.sum_s)
        yield phases
        text, fences = "Telling all regions the new epochs of shards that move", moves.phases["fence"]
        yield HistogramMetricFamily("basalt_cluster_fence_seconds", text, fences.buckets(), fences.sum_s)
        yield counter("basalt_cluster_calls_waited", "Calls that waited for a shard that moved", gate.waited_total)
        held = sum(last - first + 1 for first, last in moves.holding.held().shards)
        yield gauge("basalt_cluster_own_shards", "Shards that this server serves", held)
        told = moves.holding.loads()
        text = "Calls a second to the shards that this server serves, whose bytes count as calls, too: half a minute's mean"
        yield gauge("basalt_cluster_own_load", text, told.total / THOUSANDTHS)
        text = "The same of the busiest of these shards"
        yield gauge(
            "basalt_cluster_own_load_busiest", text, max((load for _, load in told.busiest), default=0) / THOUSANDTHS
        )
        text = "Shards that this server let go of without having been asked for them"
        yield counter("basalt_cluster_own_shards_lost", text, moves.holding.lost_total)
        text = "Calls that were refused with shard_moving, for the shard did not come in time"
        yield counter("basalt_cluster_calls_refused", text, gate.refused_total)


class LinkMetrics(Collector):
    """The series of one server's links to others; the same as leader and as standby."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def collect(self) -> Iterator[Metric]:
        """Every series there is; how long a beat takes once one was answered."""
        links = self._links
        linked = links.linked()
        open_links = len(linked) if links.beats.epoch else int(links.to_leader is not None)
        yield gauge(
            "basalt_cluster_links",
            "Links that are open: on the leader to members that beat, on a standby to the leader",
            open_links,
        )
        times_us = [beat.rtt_us for each in linked if (beat := links.beats.heard[each].beat) is not None] or [
            links.rtt_us
        ]
        if max(times_us):
            text = "How long the last beat was under way, there and back; on the leader the longest of all members"
            yield gauge("basalt_cluster_link_rtt_seconds", text, max(times_us) / 1_000_000)
        text = "Links that ended without a word: the network, a kill, or a side that did not beat"
        yield counter("basalt_cluster_links_broken", text, links.broken)
        text = "Hellos of links that came to nothing here, by the reason"
        yield counters("basalt_cluster_link_refusals", text, "why", links.refusals)


class JwksMetrics(Collector):
    """The series of an identity provider's keys."""

    def __init__(self, keys: Jwks) -> None:
        self._keys = keys

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        text = "Time since the identity provider's keys were read, or since the start where they never were"
        yield gauge("basalt_jwks_age_seconds", text, self._keys.age_ms / 1_000)


class AccessMetrics(Collector):
    """The series of one server's authentication."""

    def __init__(self, authentication: Authentication, directory: Directory, refusals: Refusals) -> None:
        self._authentication = authentication
        self._directory = directory
        self._refusals = refusals

    def collect(self) -> Iterator[Metric]:
        """Every series there is now."""
        verified = CounterMetricFamily(
            "basalt_authentications", "Credentials that were verified; one that is known is not verified again",
            labels=("kind", "outcome"),
        )  # fmt: skip
        for labels, count in self._authentication.counts.items():
            verified.add_metric(labels, count)
        yield verified
        refused = CounterMetricFamily(
            "basalt_refused", "Calls that were refused for want of a right, or would be", labels=("verb", "kind")
        )
        for labels, count in self._refusals.counts.items():
            refused.add_metric(labels, count)
        yield refused
        age = GaugeMetricFamily(
            "basalt_policy_age_seconds", "Since when nobody has seen whether there are newer tokens and grants",
            value=self._directory.age_ms / 1_000,
        )  # fmt: skip
        yield age


class StoreMetrics(Collector):
    """The series of the embedded store; those of its database are left out while it is opened again after a failed write."""

    def __init__(self, store: RocksStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """Every series there is now."""
        with suppress(OSError):  # of a disk that has gone: the store's own errors tell more
            disk = shutil.disk_usage(self._store.path)
            yield gauge("basalt_store_disk_bytes", "Size of the data directory's disk", disk.total)
            yield gauge("basalt_store_disk_free_bytes", "Free of it", disk.free)
        figures = self._store.figures()
        if figures is None:
            return
        size = GaugeMetricFamily("basalt_store_bytes", "Size of the store's files without its logs", labels=("kind",))
        size.add_metric(("rows",), figures.table_bytes)
        size.add_metric(("large_values",), figures.blob_bytes)
        yield size
        pending, stopped = figures.pending_compaction_bytes, figures.write_stopped
        yield gauge("basalt_store_pending_compaction_bytes", "Bytes that wait to be compacted", pending)
        yield gauge("basalt_store_write_stopped", "1 while RocksDB lets nobody write", stopped)
        stalls = {"delay": figures.write_delays, "stop": figures.write_stops}
        yield counters("basalt_store_write_stalls", "Times that it began to hold writers up", "kind", stalls)


class LoopMetrics(Collector):
    """The series of the event loop; the same as leader and as standby."""

    def __init__(self, lag: LoopLag) -> None:
        self._lag = lag

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        text = "By how much timers of the event loop were late, one look every quarter of a second"
        lags = HistogramMetricFamily("basalt_event_loop_lag_seconds", text)
        lags.add_metric((), self._lag.looks.buckets(), self._lag.looks.sum_s)
        yield lags
        yield gauge("basalt_event_loop_lag_max_seconds", "The worst of the last minute", self._lag.max_s)


class JobMetrics(Collector):
    """The series of the scheduled jobs."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterator[Metric]:
        """Every series there is now; of a job that has not run, those that can be told."""
        runs = CounterMetricFamily("basalt_job_runs", "Runs of scheduled jobs by outcome", labels=(JOB, "outcome"))
        for name, outcomes in self._scheduler.run_totals().items():
            for outcome, count in outcomes.items():
                runs.add_metric((name, outcome), count)
        yield runs
        texts = (
            ("last_success_timestamp_seconds", "When a run last ended well, since 1970"),
            ("last_duration_seconds", "Time that the last run took"),
            ("failures", "Runs that have failed in a row, up to now"),
        )
        families = [GaugeMetricFamily(f"basalt_job_{name}", text, labels=(JOB,)) for name, text in texts]
        for name, figures in self._scheduler.figures().items():
            for family, value_ms in zip(families, (figures.success_ms, figures.duration_ms), strict=False):
                if value_ms is not None:
                    family.add_metric((name,), value_ms / 1_000)
            families[2].add_metric((name,), figures.failures)
        yield from families


class WriterMetrics(Collector):
    """The series of the group commit and of what is kept in memory for readers."""

    def __init__(self, manager: LogState, tails: Tails) -> None:
        self._manager = manager
        self._tails = tails

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        manager, tails = self._manager, self._tails
        writer = manager.lanes.topics
        lanes: dict[str, TopicLanes | GroupCommit] = {"topics": writer, "log": manager.lanes.log}
        if manager.atomic:
            lanes = {"all": writer}
        text = "Time in writes of the store, one for each group"
        writes = SummaryMetricFamily("basalt_store_write_seconds", text, labels=("lane",))
        text = "Bytes of calls that wait to be written"
        queues = GaugeMetricFamily("basalt_write_queue_bytes", text, labels=("lane",))
        for name, lane in lanes.items():
            writes.add_metric((name,), lane.groups, lane.write_ms / 1_000)
            queues.add_metric((name,), lane.queue_bytes)
        yield writes
        yield queues
        text = "Lanes of topics whose write takes longer than a second: their topics are held up"
        yield gauge("basalt_write_lanes_held_up", text, writer.held_up)
        text = "1 while the log of transactions can be read and written, as far as the server knows; else 0"
        yield gauge("basalt_coordinator_available", text, int(manager.is_known and not manager.lanes.log.is_late))
        sizes = HistogramMetricFamily("basalt_group_commit_calls", "Calls that share one write")
        bounds = [*(str(float(1 << power)) for power in range(SIZES)), "+Inf"]
        sizes.add_metric((), list(zip(bounds, map(float, accumulate(writer.sizes)), strict=True)), writer.calls)
        yield sizes
        text = "Time that the first call of a group waited until the group began"
        waits = HistogramMetricFamily("basalt_group_commit_wait_seconds", text)
        waits.add_metric((), writer.waits.buckets(), writer.waits.sum_s)
        yield waits
        yield gauge("basalt_tail_cache_bytes", "Bytes of the newest rows, kept in memory for readers", tails.bytes)
        looks = {"hit": tails.hits, "miss": tails.misses}
        yield counters("basalt_tail_cache_reads", "Reads of topics, by whether memory had the rows", "outcome", looks)
        yield gauge("basalt_answers_bytes", "Bytes of messages kept as they were answered", tails.answers.bytes)
        stretches = {"encoded": tails.answers.made, "reused": tails.answers.hits}
        yield counters("basalt_answers_stretches", "Stretches of messages encoded, and reused", "how", stretches)


class ViewMetrics(Collector):
    """The series of the view of transactions by which readers go."""

    def __init__(self, views: Views) -> None:
        self._views = views

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        views = self._views
        text = "Time since when the coordinator may have decided what readers here do not know; 0 at the coordinator"
        yield gauge("basalt_view_age_seconds", text, views.age_ms / 1_000)
        asked = {"answered": views.asked_total - views.unanswered_total, "unanswered": views.unanswered_total}
        yield counters("basalt_holds_asked", "Questions to the coordinator for a newer view", "outcome", asked)


class HBaseMetrics(Collector):
    """The series of the gateways to HBase: connections and calls of each pool."""

    def __init__(self, gateways: Mapping[str, Gateway]) -> None:
        self._gateways = gateways

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        labels = ("gateway", "pool")
        text = "Connections to HBase's gateway"
        connections = GaugeMetricFamily("basalt_hbase_connections", text, labels=(*labels, "state"))
        text = "Connections that the pool may have at most"
        most = GaugeMetricFamily("basalt_hbase_connections_max", text, labels=labels)
        text = "Calls that had to wait for a connection, for all were lent"
        waits = CounterMetricFamily("basalt_hbase_connection_waits", text, labels=labels)
        text = "Time of a call of HBase's gateway, of each try its own"
        durations = HistogramMetricFamily("basalt_hbase_call_seconds", text, labels=labels)
        text = "Calls of HBase's gateway, each try counts"
        calls = CounterMetricFamily("basalt_hbase_calls", text, labels=(*labels, "method", "outcome"))
        for pool, gateway in self._gateways.items():
            who, figures = (gateway.address, pool), gateway.pool
            connections.add_metric((*who, "lent"), figures.lent)
            connections.add_metric((*who, "idle"), figures.idle)
            most.add_metric(who, figures.connections_max)
            waits.add_metric(who, figures.waits)
            durations.add_metric(who, gateway.calls.durations.buckets(), gateway.calls.durations.sum_s)
            for ended, count in list(gateway.calls.ended.items()):  # threads add to it
                calls.add_metric((*who, *ended), count)
        yield from (connections, most, waits, durations, calls)


class RegionServerMetrics(Collector):
    """The series of region servers, as the last survey of pruning found them in the reports of their regions."""

    def __init__(self, pruner: Pruner, clock: Clock) -> None:
        self._pruner = pruner
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Every series there is now."""
        text = "Counts of a region server's coprocessors since it started, as its last reports have them"
        counts = CounterMetricFamily("basalt_coprocessor_counts", text, labels=("region_server", "count"))
        text = "Age of the oldest report of a region that the server has"
        ages = GaugeMetricFamily("basalt_region_report_age_seconds", text, labels=("region_server",))
        text = "Always 1: the oldest coprocessor at a region server, and how its version compares with this server's"
        jars = GaugeMetricFamily("basalt_coprocessor_jar", text, labels=("region_server", "version", "state"))
        now_ms = self._clock.now_ms()
        for name, server in self._pruner.region_servers.items():
            ages.add_metric((name,), max(now_ms - server.oldest_report_ms, 0) / 1_000)
            for count, value in server.counts.items():
                counts.add_metric((name, count), value)
            jars.add_metric((name, version_text(server.jar_version), jar_state(server.jar_version)), 1)
        yield from (counts, ages, jars)


def process_collectors() -> CollectorRegistry:
    """The series of the process and of Python."""
    registry = CollectorRegistry()
    for collector in _collectors_of_the_process():
        registry.register(collector)
    return registry


@cache
def _collectors_of_the_process() -> tuple[Collector, ...]:
    """The same for all services that it has, one after the other: each reads files of the system when it is made."""
    return ProcessCollector(registry=None), PlatformCollector(registry=None), GCCollector(CollectorRegistry())


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """A counter without labels; the exposition adds `_total` to its name."""
    return CounterMetricFamily(name, text, value=value)


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, count in values.items():
        family.add_metric((value,), count)
    return family


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
