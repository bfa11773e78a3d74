"""What Prometheus is told of the Thrift face, which has no port of its own for that."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from basalt.http.metrics.series import counter, gauge
from basalt.services import ThriftFigures


def thrift_series(figures: ThriftFigures) -> Iterator[Metric]:
    """Every series there is of it."""
    calls = CounterMetricFamily("basalt_thrift_calls", "Calls of the Thrift face", labels=("method", "outcome"))
    for labels, count in figures.calls.items():
        calls.add_metric(labels, count)
    yield calls
    yield gauge("basalt_thrift_connections", "Clients of the Thrift face", figures.connections)
    yield counter("basalt_thrift_refused_clients", "Clients that did not speak its protocol", figures.refused)
    if figures.registered is not None:
        yield gauge("basalt_thrift_registered", "1 while it is registered in ZooKeeper", int(figures.registered))
