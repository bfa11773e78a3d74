"""The series of the port that HTTP is spoken on."""

from __future__ import annotations

import ssl

from basalt.http.asgi.handshake import Handshakes
from basalt.http.asgi.server_context import ServerContext
from basalt.http.metrics import ConnectionMetrics


def shown(metrics: ConnectionMetrics) -> dict[str, float]:
    samples = [sample for family in metrics.collect() for sample in family.samples]
    return {sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value for sample in samples}


def test_without_tls_there_are_only_connections():
    connections: set[object] = set()
    metrics = ConnectionMetrics(connections, None)
    assert shown(metrics) == {"basalt_connections": 0}
    connections.add(1)
    assert shown(metrics) == {"basalt_connections": 1}


def test_with_tls_they_tell_of_the_certificate_in_force_of_reloads_and_of_every_outcome():
    def context(not_after_ms: int) -> ServerContext:
        made = ServerContext(ssl.PROTOCOL_TLS_SERVER)
        made.not_after_ms = not_after_ms
        return made

    handshakes = Handshakes(context(5_000))
    metrics = ConnectionMetrics((), handshakes)
    assert shown(metrics)["basalt_tls_certificate_not_after_seconds"] == 5
    assert {name for name in shown(metrics) if "handshakes" in name} == {
        f"basalt_tls_handshakes_total[{outcome}]" for outcome in ("done", "no_tls", "refused", "late", "broken", "dropped")
    }  # fmt: skip
    handshakes.use(context(9_000))
    assert shown(metrics)["basalt_tls_certificate_not_after_seconds"] == 9
    assert shown(metrics)["basalt_tls_reloads_total[done]"] == 1
    assert shown(metrics)["basalt_tls_reloads_total[failed]"] == 0
