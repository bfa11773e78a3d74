"""Metrics of the embedded store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric

from basalt.http.collectors import StoreMetrics
from basalt.http.metrics import Metrics
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.table import Put

pytestmark = pytest.mark.anyio


def values(metrics: list[Metric]) -> dict[tuple[str, ...], float]:
    return {(sample.name, *sample.labels.values()): sample.value for each in metrics for sample in each.samples}


def test_a_store_tells_its_size_and_what_is_left_of_its_disk(tmp_path: Path):
    store = RocksStore.open(tmp_path / "data")
    shown = values(list(StoreMetrics(store).collect()))
    assert shown["basalt_store_bytes", "large_values"] == 0
    store.table("message").write([Put(b"k", {b"p": bytes(100_000)})])
    store.close()
    store = RocksStore.open(tmp_path / "data")
    shown = values(list(StoreMetrics(store).collect()))
    assert shown["basalt_store_bytes", "large_values"] > 100_000
    assert shown["basalt_store_bytes", "rows"] > 0
    assert 0 < shown[("basalt_store_disk_free_bytes",)] <= shown[("basalt_store_disk_bytes",)]
    assert shown[("basalt_store_disk_bytes",)] == shutil.disk_usage(tmp_path).total
    store.close()


def test_writers_that_are_held_up_are_counted(tmp_path: Path):
    store = RocksStore.open(tmp_path / "data", sync=False)
    database = store._durable.database
    assert database is not None
    family = database.rows("system")
    family.set_options({"level0_slowdown_writes_trigger": "2", "level0_file_num_compaction_trigger": "100"})
    for number in range(4):
        store.table("system").write([Put(b"%d" % number, {b"v": b"x"})])
        family.flush()
    shown = values(list(StoreMetrics(store).collect()))
    assert shown["basalt_store_write_stalls_total", "delay"] > 0
    assert shown[("basalt_store_write_stopped",)] == 0
    family.set_options({"level0_stop_writes_trigger": "3"})
    assert values(list(StoreMetrics(store).collect()))[("basalt_store_write_stopped",)] == 1
    family.set_options({"level0_stop_writes_trigger": "36"})
    store.close()
    assert ("basalt_store_write_stopped",) not in values(list(StoreMetrics(store).collect()))


async def test_a_server_shows_them_and_every_one_is_documented(tmp_path: Path):
    services = await open_services(Settings(), tmp_path / "data", clock=ManualClock())
    shown = [each async for each in Metrics(services).families()]
    await services.close()
    names = {f"{each.name}{'_total' if each.type == 'counter' else ''}" for each in shown if "_store_" in each.name}
    page = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()
    assert len(names) > 5
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
