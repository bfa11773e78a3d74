"""The series of /metrics, for Prometheus. Every name is listed in docs/reference/metrics.md; alerts in docs/operations.

Counting costs a few additions per request. The series are put together when they are asked for, one family at a time, so
that nobody else waits for all of them. Series by topic are bounded: the busiest topics have some each, all the others share
one named `_other`. A topic that comes to be busier than one that is shown takes its place at a scrape. Its series then
starts at 0, as after a restart, so every series only ever rises.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import chain
from types import SimpleNamespace
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from basalt.access.quotas import QUOTAS
from basalt.api.bodies.operations import AlertList
from basalt.catalog.topics import TopicName
from basalt.errors import BasaltError, SessionFencedError
from basalt.http.asgi.requests import RequestHead
from basalt.http.collectors import (
    AccessMetrics,
    ConnectionMetrics,
    JobMetrics,
    JwksMetrics,
    LeaderMetrics,
    LoopMetrics,
    MemberMetrics,
    RegionServerMetrics,
    ShardMetrics,
    StreamMetrics,
    ViewMetrics,
    WriterMetrics,
    counter,
    counters,
    gauge,
    process_collectors,
)
from basalt.http.group_metrics import GroupMetrics
from basalt.http.services import Services
from basalt.operations.alerts.rules import FAULTS
from basalt.operations.alerts.watch import AlertWatch
from basalt.operations.series.series import TOPICS_SHOWN_MAX
from basalt.transactions.rules.transaction import Kind, State
from basalt_engine import __version__
from basalt_engine.clock import Durations

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))  # others are counted as "_other"
NO_ROUTE = "_none"
SLICE_TRANSACTIONS = 1_000  # looked at without a pause: about a millisecond
CANDIDATES_MAX = 10_000  # topics not shown whose messages of late are counted, to see which of them are busy
BUSIER = 2  # times as busy as the quietest that is shown: so that two like topics do not take turns
LOOK_EVERY_S = 15  # as often as Prometheus scrapes by the shipped example
OTHER = TopicName("_other", "_other")

_LABELS = ("route", "method", "status")
_LIVE = (State.OPEN, State.COMMITTING, State.ABORTING)
log = logging.getLogger("basalt.http")

_END_OF_OPENMETRICS = b"# EOF\n"


@dataclass(slots=True)
class TopicCounts:
    """Counts of a topic's series. `recent` are messages of late: each scrape halves it, and so does each minute."""

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

    def shown(self) -> Iterator[tuple[TopicName, TopicCounts]]:
        """The topics that have counts of their own, as they are now."""
        yield from self._shown.items()

    def series(self) -> Iterator[tuple[TopicName, TopicCounts]]:
        """Every series, after busier topics have taken the places of quiet ones."""
        self.promote_busy()
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

    def promote_busy(self) -> None:
        """Give busier topics the places of quiet ones; what is of late is half of it from then on."""
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
        self.durations: dict[tuple[str, str, int], Durations] = {}  # by route, method and hundreds of the status
        # A counter that begins at 1 has not risen, for whoever compares two scrapes: the first of what an alert is for would not be seen.
        self._problems: Counter[str] = Counter(dict.fromkeys((*FAULTS, SessionFencedError.code), 0))
        self.sent_bytes = self.requests_total = self.problems_total = 0
        self.topics = TopicSeries()
        self._groups = GroupMetrics(services.group_inspection, services.clock)
        self._process = process_collectors()
        self._alerts = AlertWatch(services.clock)
        self._last_alerts: AlertList | None = None
        services.topics.memory.meter = self.topics.published

    def answered(self, request: RequestHead, duration_ms: float) -> None:
        key = (request.route, request.head.method, request.status // 100)
        durations = self.durations.get(key)
        if durations is None:
            method = key[1] if key[1] in METHODS else "_other"
            durations = self.durations.setdefault((key[0], method, key[2]), Durations())
        durations.add(duration_ms / 1_000)
        self.sent_bytes += request.sent_bytes
        self.requests_total += 1

    def refused(self, error: BasaltError) -> None:
        """Count one problem document; their codes are few."""
        self._problems[error.code] += 1
        self.problems_total += 1

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

    def watch(self) -> None:
        """Look at what alerts go by from now on, until the services are closed."""
        self._services.loop_lag.start()
        self._services.watching = asyncio.get_running_loop().create_task(self._watch())

    async def alerts(self, *, everything: bool = False, age_ms_max: int = 0) -> AlertList:
        """The alerts that would fire now, or soon; with `everything` the others, too.

        Where the last look is no older than `age_ms_max` it is answered again: a look costs some 20 ms where there are a thousand groups.
        """
        last = self._last_alerts
        if last is not None and not everything and 0 <= self._services.clock.now_ms() - last.at_ms < age_ms_max:
            return last
        found = self._alerts.look([family async for family in self.judged()], everything=everything)
        if not everything:
            self._last_alerts = found
        return found

    async def _watch(self) -> None:
        while True:
            try:
                await self.alerts()
            except Exception:
                log.exception("the series that alerts go by could not be read")
            await asyncio.sleep(LOOK_EVERY_S)

    async def families(self) -> AsyncIterator[Metric]:
        """Every series but those of the process."""
        for family in chain(self._requests(), self._messages(), self._by_topic()):
            yield family
        async for family in self.judged():
            yield family

    async def judged(self) -> AsyncIterator[Metric]:
        """The series that alerts go by: all but those of requests, messages and topics, which are many."""
        yield counters("basalt_http_problems", "Calls that were refused or failed", "code", self._problems)
        services = self._services
        if (
            not services.is_member
        ):  # else another server tells of them, and whoever adds servers up would count them twice
            async for family in self._transactions():
                yield family
        async for family in self._groups.families():  # those that are dealt here
            yield family
        others: list[Collector] = [
            *services.collectors,
            ConnectionMetrics(services.connections),
            StreamMetrics(services.streams),
            WriterMetrics(services.transactions.manager, services.topics.tails),
            ViewMetrics(services.views),
            JobMetrics(services.scheduler),
            LoopMetrics(services.loop_lag),
        ]
        if services.pruner.publisher is not None:
            others.append(RegionServerMetrics(services.pruner, services.clock))
        if services.leadership is not None:
            others.append(LeaderMetrics(services.leadership))
        if services.membership is not None:
            others.append(MemberMetrics(services.membership, services.clock, services.settings.cluster.servers_min))
            others.append(ShardMetrics(services.shard_moves))
        if services.authentication is not None:
            others.append(AccessMetrics(services.authentication, services.directory, services.refusals))
            if services.authentication.jwts is not None:
                others.append(JwksMetrics(services.authentication.jwts.jwks))
        if not services.is_member:
            for family in self._pruning():
                yield family
        for family in chain(self._server(), self._throttled(), *(each.collect() for each in others)):
            yield family

    def _requests(self) -> Iterator[Metric]:
        durations = HistogramMetricFamily(
            "basalt_http_request_duration_seconds", "Time from a request's head to its answer's end", labels=_LABELS
        )
        for (route, method, status), counted in self.durations.items():
            labels = (route or NO_ROUTE, method, f"{status}xx")
            durations.add_metric(labels, counted.buckets(), counted.sum_s)
        yield durations
        yield counter("basalt_http_answer_bytes", "Bytes of answers' bodies, as sent", self.sent_bytes)

    def _messages(self) -> Iterator[Metric]:
        messaging, memory = self._services.messaging, self._services.topics.memory
        yield counter("basalt_published_messages", "Messages appended to topics", memory.messages_total)
        yield counter("basalt_published_bytes", "Bytes of their payloads", memory.payload_bytes_total)
        yield counter("basalt_fetched_messages", "Messages that readers got", messaging.fetched_messages_total)
        yield counter("basalt_fetched_bytes", "Bytes of their payloads", messaging.fetched_bytes_total)
        yield counter("basalt_merged_rows", "Small rows that became part of a larger one", memory.merged_rows_total)
        yield counter("basalt_merged_bytes", "Bytes of the rows that they became", memory.merged_bytes_total)
        producers = self._services.producers
        yield gauge("basalt_producers", "Producers whose last numbers are in memory", producers.known)
        yield counter("basalt_duplicates", "Publishes of producers that were there already", producers.duplicates_total)
        yield gauge("basalt_waiting_fetches", "Long polls that wait for a message", memory.waiting)

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
        yield counters("basalt_transactions", "Transactions by what happened to them", "event", totals.events)
        text = "Time from a commit's call to its durability"
        commits = HistogramMetricFamily("basalt_transaction_commit_seconds", text)
        commits.add_metric((), totals.commits.buckets(), totals.commits.sum_s)
        yield commits
        entries, entry_bytes = transactions.manager.log_length
        yield gauge("basalt_transaction_log_entries", "Entries behind the log's newest snapshot", entries)
        yield gauge("basalt_transaction_log_bytes", "Bytes of those entries", entry_bytes)
        yield gauge("basalt_transaction_journal_edits", "Edits kept for timelines", transactions.journal.weight)
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
        limits, oldest_share = self._services.settings.transactions, 0.0
        in_progress, invalid, sessions = state.in_progress_count, state.invalid.entries, len(state.sessions.all())
        for number, transaction in enumerate(state.transactions(), 1):
            if number % SLICE_TRANSACTIONS == 0:
                await asyncio.sleep(0)
            counts[transaction.state] += 1
            if not transaction.was_invalid:
                oldest_ms = min(oldest_ms, transaction.began_ms)
                longest_ms = limits.long_timeout_ms if transaction.kind is Kind.LONG else limits.timeout_ms_max
                oldest_share = max(oldest_share, (now_ms - transaction.began_ms) / longest_ms)
                if transaction.began_ms < oldest_blocking_ms and self._services.first_unstable.surely(transaction):
                    oldest_blocking_ms = transaction.began_ms
        by_state = GaugeMetricFamily("basalt_transactions_live", "Transactions that have not ended", labels=("state",))
        for each in _LIVE:
            by_state.add_metric((each.name.lower(),), counts[each])
        yield by_state
        yield gauge("basalt_transactions_in_progress", "Write pointers in progress", in_progress)
        yield gauge("basalt_transactions_invalid", "Entries of the invalid list", invalid)
        yield gauge("basalt_sessions", "Named sessions that are remembered", sessions)
        age_s = (now_ms - oldest_ms) / 1_000
        yield gauge("basalt_transactions_oldest_seconds", "Age of the oldest that has not ended", age_s)
        text = "Greatest age of one, as a share of transactions.timeout_ms_max, or of long_timeout_ms where it is a long one"
        yield gauge("basalt_transactions_oldest_ratio", text, oldest_share)
        text = "Age of the oldest at whose rows readers of committed messages wait"
        yield gauge("basalt_transactions_oldest_blocking_seconds", text, (now_ms - oldest_blocking_ms) / 1_000)

    def _pruning(self) -> Iterator[Metric]:
        pruner = self._services.pruner
        yield counter("basalt_pruned_writers", "Failed writers that were forgotten", pruner.pruned_total)
        held = 0 if pruner.last is None else pruner.last.held
        yield gauge("basalt_prune_held_writers", "Failed writers that the last prune run could not forget", held)
        if pruner.publisher is not None:
            age_s = pruner.publisher.age_ms / 1_000
            yield gauge("basalt_region_snapshot_age_seconds", "Age of the snapshot that region servers read", age_s)

    def _throttled(self) -> Iterator[Metric]:
        quotas, authentication = self._services.quotas, self._services.authentication
        counts = {quota.name: quotas.throttled[quota.name] for quota in QUOTAS}
        if authentication is not None:
            counts["bad_credentials"] = authentication.failed.throttled_total
        yield counters("basalt_throttled", "Calls that were refused for a quota", "quota", counts)
        yield gauge("basalt_quota_accounts", "Principals whose use is in memory", len(quotas))

    def _server(self) -> Iterator[Metric]:
        yield gauge("basalt_start_time_seconds", "When this server started", self._services.started_ms / 1_000)
        about = {"version": __version__, "store": self._services.store.kind}
        yield InfoMetricFamily("basalt_server", "What runs", value=about)


def _encoded(collector: Any, accept: str) -> bytes:
    """All that a collector (a registry is one) has; the encoders look at nothing else of a registry."""
    encode, _ = choose_encoder(accept)
    encoded: bytes = encode(collector)
    return encoded.removesuffix(_END_OF_OPENMETRICS)
