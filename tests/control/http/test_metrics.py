"""The series of /metrics, put together a slice at a time."""

from __future__ import annotations

from basalt.http import metrics


def test_metrics_look_at_every_transaction_whatever_the_size_of_a_slice(client, monkeypatch):
    monkeypatch.setattr(metrics, "SLICE_TRANSACTIONS", 2)
    for _ in range(5):
        client.begin()
    assert 'basalt_transactions_live{state="open"} 5.0' in client.call("GET", "/metrics").body.decode()


def test_the_oldest_transaction_is_told_as_a_share_of_the_longest_time_out_of_its_kind(client):
    def ratio() -> float:
        lines = client.call("GET", "/metrics").body.decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("basalt_transactions_oldest_ratio ")))

    assert ratio() == 0.0
    client.begin(kind="long")
    client.clock.advance(client.services.settings.transactions.long_timeout_ms // 4)
    assert ratio() == 0.25
    client.begin(timeoutMs=600_000)
    client.clock.advance(client.services.settings.transactions.timeout_ms_max // 2)
    assert ratio() == 0.5
