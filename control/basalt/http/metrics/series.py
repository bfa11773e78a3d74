"""Series without labels, as Prometheus' client library wants them."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """A counter; the exposition adds `_total` to its name."""
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """A gauge."""
    return GaugeMetricFamily(name, text, value=value)
