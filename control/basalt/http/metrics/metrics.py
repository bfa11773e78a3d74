"""GET /metrics, for Prometheus. Every name is listed in docs/reference/metrics.md.

Counting costs a few additions per request; the series are only put together when somebody asks for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import basalt
from basalt.errors import BasaltError
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import Answer
from basalt.http.metrics.leader import LeaderFigures
from basalt.http.metrics.series import counter, gauge
from basalt.http.metrics.thrift import thrift_series
from basalt.http.metrics.topics import TopicCounts, TopicSeries
from basalt.http.metrics.transactions import transaction_series
from basalt.http.routes.operations import Operation
from basalt.runtime.durations import Durations
from basalt.services import Services

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"))  # what else a client makes up is "_other"
NO_ROUTE = "_none"

_LABELS = ("route", "method", "status")


class Figures(Collector):
    """What this process has counted, and what it asks the services when it is scraped."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._durations: dict[tuple[str, str, int], Durations] = {}
        self._problems: Counter[str] = Counter()
        self.sent_bytes = 0
        self.topics = TopicSeries()
        self.registry = CollectorRegistry()
        for collector in (self, ProcessCollector(registry=None), PlatformCollector(registry=None)):
            self.registry.register(collector)
        GCCollector(registry=self.registry)
        services.topics.memory.meter = self.topics.published
        if services.leadership is not None:
            self.registry.register(LeaderFigures(services.leadership))

    def answered(self, request: Request, duration_ms: float) -> None:
        """Count one request."""
        key = (request.route, request.scope["method"], request.status // 100)
        durations = self._durations.get(key)
        if durations is None:
            method = key[1] if key[1] in METHODS else "_other"
            durations = self._durations.setdefault((key[0], method, key[2]), Durations())
        durations.add(duration_ms / 1_000)
        self.sent_bytes += request.sent_bytes

    def refused(self, error: BasaltError) -> None:
        """Count one problem document; their codes are few."""
        self._problems[error.code] += 1

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        yield from self._requests()
        yield from self._messages()
        yield from self._by_topic()
        yield from transaction_series(self._services)
        yield from self._pruning()
        yield from thrift_series(self._services.thrift)
        yield from self._store()
        yield from self._server()

    def _requests(self) -> Iterator[Metric]:
        durations = HistogramMetricFamily(
            "basalt_http_request_duration_seconds", "Time from a request's head to its answer's end", labels=_LABELS
        )
        for (route, method, status), counted in self._durations.items():
            labels = (route or NO_ROUTE, method, f"{status}xx")
            durations.add_metric(labels, counted.buckets(), counted.sum_s)
        yield durations
        problems = CounterMetricFamily("basalt_http_problems", "Calls that were refused or failed", labels=("code",))
        for code, count in self._problems.items():
            problems.add_metric((code,), count)
        yield problems
        yield counter("basalt_http_answer_bytes", "Bytes of answers' bodies, as sent", self.sent_bytes)

    def _messages(self) -> Iterator[Metric]:
        messaging, memory = self._services.messaging, self._services.topics.memory
        yield counter("basalt_published_messages", "Messages appended to topics", memory.messages_total)
        yield counter("basalt_published_bytes", "Bytes of their payloads", memory.payload_bytes_total)
        yield counter("basalt_fetched_messages", "Messages that readers got", messaging.fetched_messages_total)
        yield counter("basalt_fetched_bytes", "Bytes of their payloads", messaging.fetched_bytes_total)
        yield gauge("basalt_waiting_fetches", "Long polls that wait for a message", memory.waiting)

    def _by_topic(self) -> Iterator[Metric]:
        series: Sequence[tuple[tuple[str, str], TopicCounts]] = list(self.topics.series())
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

    def _pruning(self) -> Iterator[Metric]:
        pruner = self._services.pruner
        yield counter("basalt_pruned_writers", "Failed writers that were forgotten", pruner.pruned_total)
        held = 0 if pruner.last is None else pruner.last.held
        yield gauge("basalt_prune_held_writers", "Failed writers that the last prune run could not forget", held)
        if pruner.publisher is not None:
            age_s = pruner.publisher.age_ms / 1_000
            yield gauge("basalt_region_snapshot_age_seconds", "Age of the snapshot that region servers read", age_s)

    def _store(self) -> Iterator[Metric]:
        writer = self._services.writer
        writes = SummaryMetricFamily("basalt_store_write_seconds", "Time in writes of the store, one for each group")
        writes.add_metric((), writer.groups, writer.write_ms / 1_000)
        yield writes
        yield gauge("basalt_write_queue_bytes", "Bytes of calls that wait to be written", writer.queue_bytes)

    def _server(self) -> Iterator[Metric]:
        runs = CounterMetricFamily("basalt_job_runs", "Runs of scheduled jobs by outcome", labels=("job", "outcome"))
        for name, outcomes in self._services.scheduler.run_totals().items():
            for outcome, count in outcomes.items():
                runs.add_metric((name, outcome), count)
        yield runs
        yield gauge("basalt_start_time_seconds", "When this server started", self._services.started_ms / 1_000)
        about = {"version": basalt.__version__, "store": self._services.store.kind}
        yield InfoMetricFamily("basalt_server", "What runs", value=about)


async def scrape(request: Request) -> Answer:
    """All series, in the format that the scraper asks for."""
    accept = request.headers.get(b"accept", b"").decode("latin-1")
    encode, content_type = choose_encoder(accept)
    body: bytes = encode(request.figures.registry)
    return Answer(200, body, content_type.encode("ascii"))


OPERATIONS = (
    Operation(
        method="GET",
        path="/metrics",
        handler=scrape,
        summary="Figures for Prometheus",
        tag="server",
        answers={200: {b"text/plain": {"type": "string"}, b"application/openmetrics-text": {"type": "string"}}},
    ),
)
