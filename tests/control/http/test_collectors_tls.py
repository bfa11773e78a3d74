"""The series of a port that speaks TLS."""

from __future__ import annotations

import ssl

from basalt.http.asgi.handshake import Handshakes
from basalt.http.asgi.server_context import ServerContext
from basalt.http.collectors import TlsMetrics


def shown(metrics: TlsMetrics) -> dict[str, float]:
    samples = [sample for family in metrics.collect() for sample in family.samples]
    return {sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value for sample in samples}


def test_they_tell_of_the_certificate_in_force_of_reloads_and_of_every_outcome():
    def context(not_after_ms: int) -> ServerContext:
        made = ServerContext(ssl.PROTOCOL_TLS_SERVER)
        made.not_after_ms = not_after_ms
        return made

    handshakes = Handshakes(context(5_000))
    metrics = TlsMetrics(handshakes)
    assert shown(metrics)["basalt_tls_certificate_not_after_seconds"] == 5
    assert {name for name in shown(metrics) if "handshakes_total" in name} == {
        f"basalt_tls_handshakes_total[{outcome}]" for outcome in ("done", "no_tls", "refused", "late", "broken", "dropped")
    }  # fmt: skip
    handshakes.use(context(9_000))
    assert shown(metrics)["basalt_tls_certificate_not_after_seconds"] == 9
    assert shown(metrics)["basalt_tls_reloads_total[done]"] == 1
    assert shown(metrics)["basalt_tls_reloads_total[failed]"] == 0
