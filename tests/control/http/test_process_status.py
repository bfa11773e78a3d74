"""GET /v1/admin/process: what waits, what is kept in memory, what runs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from basalt.http import process_status
from basalt.http.metrics import METHODS
from basalt_engine.stores.hbase.gateway import ConnectionPool, Gateway

PROCESS = "/v1/admin/process"


def process(client) -> dict:
    reply = client.call("GET", PROCESS)
    assert reply.status == 200, reply.body
    return reply.json()


def named(entries: list[dict], name: str) -> dict:
    return next(each for each in entries if each["name"] == name)


def test_a_process_tells_who_it_is_and_what_it_takes(client):
    shown = process(client)
    assert (shown["pid"], shown["atMs"], shown["startedMs"]) == (
        os.getpid(),
        client.clock.now_ms(),
        client.clock.now_ms(),
    )
    assert shown["cpuSeconds"] > 0
    assert shown["residentBytes"] > 1 << 20
    assert shown["openFiles"] > 2
    assert shown["tasks"] >= 1
    assert (shown["connections"], shown["connectionsMax"]) == (0, client.services.settings.http.connections_max)
    assert shown["gateways"] == []


def test_the_lag_of_the_loop_is_told_in_milliseconds(client):
    client.services.loop_lag.look(120.0)
    client.services.loop_lag.look(20.0)
    shown = process(client)
    assert (shown["loopLagMs"], shown["loopLagMsMax"]) == (20.0, 120.0)


def test_queues_and_caches_tell_what_is_in_them_and_their_bounds(client):
    path = client.topic()
    client.publish(path, "a", "b")
    client.payloads(path)
    shown = process(client)
    writes = named(shown["queues"], "calls that wait for a group commit")
    assert (writes["length"], writes["bytes"]) == (0, 0)
    assert writes["bytesMax"] == client.services.settings.messaging.queue_bytes_max
    rows = named(shown["caches"], "newest rows of topics")
    assert rows["bytes"] > 0
    assert (rows["bytesMax"], rows["hits"]) == (client.services.settings.messaging.cache_bytes_max, 1)
    assert named(shown["caches"], "topics")["entries"] == 1


def test_threads_that_do_the_same_are_counted_together(client):
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait, name=f"some-reader_{number}") for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert named(process(client)["threads"], "some-reader")["threads"] == 3
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_the_gateways_to_hbase_are_told_with_their_connections_and_calls(client):
    gateway = Gateway(ConnectionPool(("127.0.0.1", 1), connections_max=8), "hbase:9091")
    gateway.calls.add("get", "answered", 10.0)
    gateway.calls.add("get", "lost", 20.0)
    gateway.calls.add("put", "refused", 30.0)
    client.services.gateways = {"reads": gateway}
    (shown,) = process(client)["gateways"]
    assert shown == {
        "gateway": "hbase:9091", "pool": "reads", "lent": 0, "idle": 0, "connectionsMax": 8, "waits": 0, "calls": 3, "refused": 1,
        "lost": 1, "meanMs": 20.0,
    }  # fmt: skip


def test_where_the_system_tells_nothing_of_memory_and_files_the_answer_is_null(client, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(process_status, "_PROC", tmp_path)
    shown = process(client)
    assert (shown["residentBytes"], shown["openFiles"]) == (None, None)


@pytest.mark.parametrize("method", sorted(METHODS - {"GET", "HEAD", "OPTIONS"}))
def test_a_process_is_only_looked_at(client, method: str):
    assert client.call(method, PROCESS).status == 405
