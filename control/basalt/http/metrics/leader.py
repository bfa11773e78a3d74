"""What a server that shares its store tells Prometheus of who leads; the same as leader and as standby."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from basalt.cluster.leader import Leadership
from basalt.http.metrics.series import counter, gauge


class LeaderFigures(Collector):
    """The series of one server's part in the question who leads."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        known = self._leadership
        yield gauge("basalt_leader", "1 on the server that leads, 0 on a standby", float(known.is_leader))
        yield gauge("basalt_leader_epoch", "Newest epoch that this server knows of", known.epoch)
        yield gauge(
            "basalt_leader_lease_age_seconds",
            "Since when the lease record is as it is: on the leader, since it was last renewed",
            known.unchanged_ms / 1_000,
        )
        yield gauge("basalt_leader_lease_reachable", "1 when the last look at the lease was answered", known.reachable)
        yield counter("basalt_leader_terms", "How often this server has taken the lead since it started", known.terms)
