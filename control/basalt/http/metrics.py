"""The series of /metrics, for Prometheus. Every name is listed in docs/reference/metrics.md; alerts in docs/operations.

Counting costs a few additions per request. The series are put together when they are asked for, one family at a time, so
that nobody else waits for all of them. Series by topic are bounded: the busiest topics have some each, all the others share
one named `_other`. A topic that comes to be busier than one that is shown takes its place at a scrape. Its series then
starts at 0, as after a restart, so every series only ever rises.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from basalt.access.authentication import Authentication
from basalt.access.directory import Directory
from basalt.access.quotas import QUOTAS
from basalt.access.refusals import Refusals
from basalt.catalog.topics import TopicName
from basalt.cluster.leader import Leadership
from basalt.errors import BasaltError
from basalt.http.asgi.connections import Connections
from basalt.http.asgi.handshake import Handshakes
from basalt.http.asgi.requests import RequestHead
from basalt.http.group_metrics import GroupMetrics
from basalt.http.services import Services
from basalt.transactions.rules.transaction import State
from basalt_engine import __version__
from basalt_engine.clock import Durations

if TYPE_CHECKING:
    from basalt.access.proofs.jwks import Jwks
    from basalt_engine.stores.rocks import RocksStore

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))  # others are counted as "_other"
NO_ROUTE = "_none"
SLICE_TRANSACTIONS = 1_000  # looked at without a pause: about a millisecond
TOPICS_SHOWN_MAX = 100  # series are what a metrics store pays for: four of each topic
CANDIDATES_MAX = 10_000  # topics not shown whose messages of late are counted, to see which of them are busy
BUSIER = 2  # times as busy as the quietest that is shown: so that two like topics do not take turns
OTHER = TopicName("_other", "_other")

_LABELS = ("route", "method", "status")
_LIVE = (State.OPEN, State.COMMITTING, State.ABORTING)
_END_OF_OPENMETRICS = b"# EOF\n"


@dataclass(slots=True)
class TopicCounts:
    """Counts of a topic's series. `recent` are messages of late: each scrape halves it."""

    published_messages: int = 0
    published_bytes: int = 0
    fetched_messages: int = 0
    fetched_bytes: int = 0
    recent: int = 0


class TopicSeries:
    """Counts of the topics that are shown, and of all others together."""

    def __init__(self, shown_max: int = TOPICS_SHOWN_MAX) -> None:
        self._shown_max = shown_max
        self._shown: dict[TopicName, TopicCounts] = {}
        self._other = TopicCounts()
        self._candidates: dict[TopicName, int] = {}

    def published(self, title: TopicName, messages: int, payload_bytes: int) -> None:
        """Count messages that were appended to a topic."""
        counts = self._counts(title, messages)
        counts.published_messages += messages
        counts.published_bytes += payload_bytes

    def fetched(self, title: TopicName, messages: int, payload_bytes: int) -> None:
        """Count messages that a reader got."""
        counts = self._counts(title, messages)
        counts.fetched_messages += messages
        counts.fetched_bytes += payload_bytes

    def forget(self, title: TopicName) -> None:
        """The topic was deleted: its series ends."""
        self._shown.pop(title, None)
        self._candidates.pop(title, None)

    def series(self) -> Iterator[tuple[TopicName, TopicCounts]]:
        """Every series, after busier topics have taken the places of quiet ones."""
        self._promote_busy()
        yield from self._shown.items()
        if self._other != TopicCounts():
            yield OTHER, self._other

    def _counts(self, title: TopicName, messages: int) -> TopicCounts:
        counts = self._shown.get(title)
        if counts is None:
            if len(self._shown) < self._shown_max:
                counts = self._shown[title] = TopicCounts()
            else:
                self._nominate(title, messages)
                return self._other
        counts.recent += messages
        return counts

    def _nominate(self, title: TopicName, messages: int) -> None:
        known = self._candidates.get(title)
        if known is not None or len(self._candidates) < CANDIDATES_MAX:
            self._candidates[title] = (known or 0) + messages

    def _promote_busy(self) -> None:
        quiet = sorted(self._shown, key=lambda title: self._shown[title].recent)
        busy = sorted(self._candidates, key=self._candidates.__getitem__, reverse=True)
        for leaving, coming in zip(quiet, busy, strict=False):
            if self._candidates[coming] <= BUSIER * self._shown[leaving].recent:
                break
            self._shown[coming] = TopicCounts(recent=self._candidates.pop(coming))
            self._candidates[leaving] = self._shown.pop(leaving).recent
        self._candidates = {title: recent // 2 for title, recent in self._candidates.items() if recent > 1}
        for counts in self._shown.values():
            counts.recent //= 2
        self._other.recent = 0


class Metrics:
    """Counts the requests of this process, and asks the services for the rest when it is scraped."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._durations: dict[tuple[str, str, int], Durations] = {}
        self._problems: Counter[str] = Counter()
        self.sent_bytes = 0
        self.topics = TopicSeries()
        self._groups = GroupMetrics(services.group_inspection)
        self._process = process_collectors()
        services.topics.memory.meter = self.topics.published

    def answered(self, request: RequestHead, duration_ms: float) -> None:
        key = (request.route, request.head.method, request.status // 100)
        durations = self._durations.get(key)
        if durations is None:
            method = key[1] if key[1] in METHODS else "_other"
            durations = self._durations.setdefault((key[0], method, key[2]), Durations())
        durations.add(duration_ms / 1_000)
        self.sent_bytes += request.sent_bytes

    def refused(self, error: BasaltError) -> None:
        """Count one problem document; their codes are few."""
        self._problems[error.code] += 1

    async def scrape(self, accept: str) -> tuple[list[bytes], str]:
        """Every series in the format that the scraper asks for, and its content type."""
        parts = []
        async for family in self.families():
            parts.append(_encoded(SimpleNamespace(collect=lambda family=family: [family]), accept))
            await asyncio.sleep(0)  # encoding a family takes up to some milliseconds: others go in between
        parts.append(_encoded(self._process, accept))
        content_type = choose_encoder(accept)[1]
        if content_type.startswith("application/openmetrics-text"):
            parts.append(_END_OF_OPENMETRICS)
        return parts, content_type

    async def families(self) -> AsyncIterator[Metric]:
        """Every series but those of the process."""
        for family in chain(self._requests(), self._messages(), self._by_topic()):
            yield family
        async for family in self._transactions():
            yield family
        async for family in self._groups.families():
            yield family
        services = self._services
        others = [*services.collectors, ConnectionMetrics(services.connections)]
        if services.leadership is not None:
            others.append(LeaderMetrics(services.leadership))
        if services.authentication is not None:
            others.append(AccessMetrics(services.authentication, services.directory, services.refusals))
            if services.authentication.jwts is not None:
                others.append(JwksMetrics(services.authentication.jwts.jwks))
        for family in chain(self._pruning(), self._server(), self._throttled(), *(each.collect() for each in others)):
            yield family

    def _requests(self) -> Iterator[Metric]:
        durations = HistogramMetricFamily(
            "basalt_http_request_duration_seconds", "Time from a request's head to its answer's end", labels=_LABELS
        )
        for (route, method, status), counted in self._durations.items():
            labels = (route or NO_ROUTE, method, f"{status}xx")
            durations.add_metric(labels, counted.buckets(), counted.sum_s)
        yield durations
        yield _counters("basalt_http_problems", "Calls that were refused or failed", "code", self._problems)
        yield _counter("basalt_http_answer_bytes", "Bytes of answers' bodies, as sent", self.sent_bytes)

    def _messages(self) -> Iterator[Metric]:
        messaging, memory = self._services.messaging, self._services.topics.memory
        yield _counter("basalt_published_messages", "Messages appended to topics", memory.messages_total)
        yield _counter("basalt_published_bytes", "Bytes of their payloads", memory.payload_bytes_total)
        yield _counter("basalt_fetched_messages", "Messages that readers got", messaging.fetched_messages_total)
        yield _counter("basalt_fetched_bytes", "Bytes of their payloads", messaging.fetched_bytes_total)
        yield _counter("basalt_merged_rows", "Small rows that became part of a larger one", memory.merged_rows_total)
        yield _counter("basalt_merged_bytes", "Bytes of the rows that they became", memory.merged_bytes_total)
        producers = self._services.producers
        yield _gauge("basalt_producers", "Producers whose last numbers are in memory", producers.known)
        yield _counter(
            "basalt_duplicates", "Publishes of producers that were there already", producers.duplicates_total
        )
        yield _gauge("basalt_waiting_fetches", "Long polls that wait for a message", memory.waiting)

    def _by_topic(self) -> Iterator[Metric]:
        series = list(self.topics.series())
        names = (
            ("published_messages", "Messages appended to the topic"),
            ("published_bytes", "Bytes of their payloads"),
            ("fetched_messages", "Messages that readers got from the topic over HTTP"),
            ("fetched_bytes", "Bytes of their payloads"),
        )
        for name, text in names:
            family = CounterMetricFamily(f"basalt_topic_{name}", text, labels=("namespace", "topic"))
            for title, counts in series:
                family.add_metric(title, getattr(counts, name))
            yield family

    async def _transactions(self) -> AsyncIterator[Metric]:
        """Every series of transactions. The gauges are left out while the manager reads its log."""
        transactions = self._services.transactions
        totals = transactions.totals
        yield _counters("basalt_transactions", "Transactions by what happened to them", "event", totals.events)
        text = "Time from a commit's call to its durability"
        commits = HistogramMetricFamily("basalt_transaction_commit_seconds", text)
        commits.add_metric((), totals.commits.buckets(), totals.commits.sum_s)
        yield commits
        entries, entry_bytes = transactions.manager.log_length
        yield _gauge("basalt_transaction_log_entries", "Entries behind the log's newest snapshot", entries)
        yield _gauge("basalt_transaction_log_bytes", "Bytes of those entries", entry_bytes)
        yield _gauge("basalt_transaction_journal_edits", "Edits kept for timelines", transactions.journal.weight)
        try:
            transactions.state  # noqa: B018  # raises while the manager reads its log
        except BasaltError:
            return
        async for family in self._open_transactions():
            yield family

    async def _open_transactions(self) -> AsyncIterator[Metric]:
        state = self._services.transactions.state
        now_ms = self._services.clock.now_ms()
        counts: Counter[State] = Counter()
        oldest_ms = oldest_blocking_ms = now_ms
        in_progress, invalid, sessions = state.in_progress_count, len(state.invalid), len(state.sessions.all())
        for number, transaction in enumerate(state.transactions(), 1):
            if number % SLICE_TRANSACTIONS == 0:
                await asyncio.sleep(0)
            counts[transaction.state] += 1
            if not transaction.was_invalid:
                oldest_ms = min(oldest_ms, transaction.began_ms)
                if transaction.began_ms < oldest_blocking_ms and self._services.first_unstable.surely(transaction):
                    oldest_blocking_ms = transaction.began_ms
        by_state = GaugeMetricFamily("basalt_transactions_live", "Transactions that have not ended", labels=("state",))
        for each in _LIVE:
            by_state.add_metric((each.name.lower(),), counts[each])
        yield by_state
        yield _gauge("basalt_transactions_in_progress", "Write pointers in progress", in_progress)
        yield _gauge("basalt_transactions_invalid", "Entries of the invalid list", invalid)
        yield _gauge("basalt_sessions", "Named sessions that are remembered", sessions)
        age_s = (now_ms - oldest_ms) / 1_000
        yield _gauge("basalt_transactions_oldest_seconds", "Age of the oldest that has not ended", age_s)
        text = "Age of the oldest at whose rows readers of committed messages wait"
        yield _gauge("basalt_transactions_oldest_blocking_seconds", text, (now_ms - oldest_blocking_ms) / 1_000)

    def _pruning(self) -> Iterator[Metric]:
        pruner = self._services.pruner
        yield _counter("basalt_pruned_writers", "Failed writers that were forgotten", pruner.pruned_total)
        held = 0 if pruner.last is None else pruner.last.held
        yield _gauge("basalt_prune_held_writers", "Failed writers that the last prune run could not forget", held)
        if pruner.publisher is not None:
            age_s = pruner.publisher.age_ms / 1_000
            yield _gauge("basalt_region_snapshot_age_seconds", "Age of the snapshot that region servers read", age_s)

    def _throttled(self) -> Iterator[Metric]:
        quotas, authentication = self._services.quotas, self._services.authentication
        counts = {quota.name: quotas.throttled[quota.name] for quota in QUOTAS}
        if authentication is not None:
            counts["bad_credentials"] = authentication.failed.throttled_total
        yield _counters("basalt_throttled", "Calls that were refused for a quota", "quota", counts)
        yield _gauge("basalt_quota_accounts", "Principals whose use is in memory", len(quotas))

    def _server(self) -> Iterator[Metric]:
        manager = self._services.transactions.manager
        lanes = {"all": manager.lanes.topics} if manager.atomic else manager.lanes._asdict()
        writes = SummaryMetricFamily(
            "basalt_store_write_seconds", "Time in writes of the store, one for each group", labels=("lane",)
        )
        queues = GaugeMetricFamily(
            "basalt_write_queue_bytes", "Bytes of calls that wait to be written", labels=("lane",)
        )
        for name, lane in lanes.items():
            writes.add_metric((name,), lane.groups, lane.write_ms / 1_000)
            queues.add_metric((name,), lane.queue_bytes)
        yield writes
        yield queues
        text = "1 while the log of transactions can be read and written, as far as the server knows; else 0"
        yield _gauge("basalt_coordinator_available", text, int(manager.is_known and not manager.lanes.log.is_late))
        answers = self._services.topics.tails.answers
        yield _gauge("basalt_answers_bytes", "Bytes of messages kept as they were answered", answers.bytes)
        stretches = CounterMetricFamily(
            "basalt_answers_stretches", "Stretches of messages encoded, and reused", labels=("how",)
        )
        stretches.add_metric(("encoded",), answers.made)
        stretches.add_metric(("reused",), answers.hits)
        yield stretches
        runs = CounterMetricFamily("basalt_job_runs", "Runs of scheduled jobs by outcome", labels=("job", "outcome"))
        for name, outcomes in self._services.scheduler.run_totals().items():
            for outcome, count in outcomes.items():
                runs.add_metric((name, outcome), count)
        yield runs
        yield _gauge("basalt_start_time_seconds", "When this server started", self._services.started_ms / 1_000)
        about = {"version": __version__, "store": self._services.store.kind}
        yield InfoMetricFamily("basalt_server", "What runs", value=about)


class ConnectionMetrics(Collector):
    """The series of the connections of one server; the same as leader and as standby."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        yield _gauge("basalt_connections", "Connections of HTTP clients", self._connections.total)
        yield _counters(
            "basalt_connections_refused",
            "Connections that were closed at once: one too many in all, or of their address",
            "limit",
            self._connections.refused,
        )


class TlsMetrics(Collector):
    """The series of a port that speaks TLS; the same as leader and as standby."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        handshakes = self._handshakes
        ends_s = handshakes.context.not_after_ms / 1_000
        yield _gauge(
            "basalt_tls_certificate_not_after_seconds", "When the server's certificate ends, since 1970", ends_s
        )
        yield _gauge(
            "basalt_tls_handshakes_going_on", "Connections whose handshake is not complete", handshakes.going_on
        )
        yield _counters("basalt_tls_handshakes", "Handshakes by what became of them", "outcome", handshakes.outcomes)
        text = "Changes of certificate, key and CAs that were taken, and looks at one that was not"
        yield _counters("basalt_tls_reloads", text, "outcome", handshakes.reloads)


class LeaderMetrics(Collector):
    """The series of one server's part in the question who leads; the same as leader and as standby."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        leadership = self._leadership
        yield _gauge("basalt_leader", "1 on the server that leads, 0 on a standby", float(leadership.is_leader))
        yield _gauge("basalt_leader_epoch", "Newest epoch that this server knows of", leadership.epoch)
        yield _gauge(
            "basalt_leader_lease_age_seconds",
            "Since when the lease record is as it is: on the leader, since it was last renewed",
            leadership.unchanged_ms / 1_000,
        )
        yield _gauge(
            "basalt_leader_lease_reachable", "1 when the last look at the lease was answered", leadership.reachable
        )
        yield _counter(
            "basalt_leader_terms", "How often this server has taken the lead since it started", leadership.terms
        )


class JwksMetrics(Collector):
    """The series of an identity provider's keys."""

    def __init__(self, keys: Jwks) -> None:
        self._keys = keys

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        text = "Time since the identity provider's keys were read, or since the start where they never were"
        yield _gauge("basalt_jwks_age_seconds", text, self._keys.age_ms / 1_000)


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
            yield _gauge("basalt_store_disk_bytes", "Size of the data directory's disk", disk.total)
            yield _gauge("basalt_store_disk_free_bytes", "Free of it", disk.free)
        figures = self._store.figures()
        if figures is None:
            return
        size = GaugeMetricFamily("basalt_store_bytes", "Size of the store's files without its logs", labels=("kind",))
        size.add_metric(("rows",), figures.table_bytes)
        size.add_metric(("large_values",), figures.blob_bytes)
        yield size
        pending, stopped = figures.pending_compaction_bytes, figures.write_stopped
        yield _gauge("basalt_store_pending_compaction_bytes", "Bytes that wait to be compacted", pending)
        yield _gauge("basalt_store_write_stopped", "1 while RocksDB lets nobody write", stopped)
        stalls = {"delay": figures.write_delays, "stop": figures.write_stops}
        yield _counters("basalt_store_write_stalls", "Times that it began to hold writers up", "kind", stalls)


def process_collectors() -> CollectorRegistry:
    """The series of the process and of Python."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector(registry=None), PlatformCollector(registry=None)):
        registry.register(collector)
    GCCollector(registry=registry)
    return registry


def _encoded(collector: Any, accept: str) -> bytes:
    """All that a collector (a registry is one) has; the encoders look at nothing else of a registry."""
    encode, _ = choose_encoder(accept)
    encoded: bytes = encode(collector)
    return encoded.removesuffix(_END_OF_OPENMETRICS)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """A counter without labels; the exposition adds `_total` to its name."""
    return CounterMetricFamily(name, text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, count in values.items():
        family.add_metric((value,), count)
    return family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
