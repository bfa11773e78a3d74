"""Metrics of the Thrift face, which has no /metrics of its own. They import none of its libraries, which may not be here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class ThriftMetrics(Collector):
    """Counts calls by method and outcome, and clients; `refused` are connections that did not speak the protocol.

    `registered`: whether the face is to be found in ZooKeeper; None where it need not be.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.refused = 0
        self.registered: bool | None = None
        self.calls: Counter[tuple[str, str]] = Counter()

    def collect(self) -> Iterator[Metric]:
        calls = CounterMetricFamily("basalt_thrift_calls", "Calls of the Thrift face", labels=("method", "outcome"))
        for labels, count in self.calls.items():
            calls.add_metric(labels, count)
        yield calls
        yield GaugeMetricFamily("basalt_thrift_connections", "Clients of the Thrift face", value=self.connections)
        yield CounterMetricFamily(
            "basalt_thrift_refused_clients", "Clients that did not speak its protocol", value=self.refused
        )
        if self.registered is not None:
            text = "1 while it is registered in ZooKeeper"
            yield GaugeMetricFamily("basalt_thrift_registered", text, value=int(self.registered))
