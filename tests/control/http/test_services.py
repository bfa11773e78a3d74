"""The questions that take several services: the store with its tables, and whether each part of a server is in order."""

from __future__ import annotations

from dataclasses import replace

from basalt.server.wiring import BUCKETS_EMBEDDED
from basalt.settings.tree import HBaseSettings, StoreSettings
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import TABLE_NAMES

STORE = "/v1/admin/store"
GATEWAYS = StoreSettings(hbase=HBaseSettings(thrift2="gateway-2:9090", thrift="gateway-1:9090"))


def test_a_store_tells_its_tables_and_its_buckets(client):
    shown = client.call("GET", STORE).json()
    assert [table["name"] for table in shown["tables"]] == list(TABLE_NAMES)
    assert (shown["kind"], shown["buckets"]) == ("memory", BUCKETS_EMBEDDED)


def test_gateways_are_told_of_a_store_that_is_reached_through_them_and_of_no_other(connect, settings, monkeypatch):
    client = connect(replace(settings, store=GATEWAYS))
    assert client.call("GET", STORE).json()["gateways"] == []
    monkeypatch.setattr(MemoryStore, "kind", "hbase")
    assert client.call("GET", STORE).json()["gateways"] == ["gateway-2:9090", "gateway-1:9090"]


def test_a_server_that_is_about_to_stop_is_not_ready(client):
    assert client.call("GET", "/readyz").status == 200
    client.services.stop_waiting()
    reply = client.call("GET", "/readyz")
    assert (reply.status, [part["name"] for part in reply.json()["parts"] if not part["ok"]]) == (503, ["server"])
