"""The series of /metrics, put together a slice at a time."""

from __future__ import annotations

from basalt.http import metrics


def test_metrics_look_at_every_transaction_whatever_the_size_of_a_slice(client, monkeypatch):
    monkeypatch.setattr(metrics, "SLICE_TRANSACTIONS", 2)
    for _ in range(5):
        client.begin()
    assert 'basalt_transactions_live{state="open"} 5.0' in client.call("GET", "/metrics").body.decode()
