"""What the HBase store rests on and only a real HBase can show: its timestamps, sizes, regions, and a missing table."""

from __future__ import annotations

import os

import pytest

from basalt.errors import InvalidSettingError
from basalt.server.wiring import open_store
from basalt.settings import Settings
from basalt.settings.tree import HBaseSettings, StoreSettings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.hbase.regions import find_hole
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.stores.hbase.table import CELL_BYTES_MAX, CELL_OVERHEAD_BYTES
from basalt_engine.stores.hbase.tables import SALTED
from basalt_engine.table import TABLE_NAMES, Delete, Insert, Put
from tests.hbase.tables import BUCKETS

pytestmark = pytest.mark.hbase
HOUR_MS = 3_600_000


@pytest.fixture
def store(hbase_tables):
    opened = hbase_tables.emptied()
    yield opened
    opened.close()


def another(tables, clock):
    return HBaseStore.open(tables.address, tables.prefix, clock=clock)


def test_a_put_after_a_delete_is_seen_though_the_clock_stands(store, hbase_tables):
    frozen = another(hbase_tables, ManualClock())
    key = b"of a time long ago"  # and so deleted by no test before
    table = frozen.table("message")
    for number in range(20):
        table.write([Put(key, {b"a": b"1"}), Delete(key), Insert(key, {b"a": b"%d" % number, b"b": b""})])
        assert table.get(key) == {b"a": b"%d" % number, b"b": b""}
        table.write([Delete(key, (b"a", b"b"))])
        assert table.get(key) is None
    frozen.close()


def test_a_new_leader_whose_clock_is_behind_writes_over_the_former_one(store, hbase_tables):
    clock = ManualClock()
    former, new = another(hbase_tables, clock), another(hbase_tables, clock)
    former.lead(1)
    former.table("system").write([Put(b"over", {b"v": b"former"}), Put(b"gone", {b"v": b"1"}), Delete(b"gone")])
    clock.step(clock.now_ms() - HOUR_MS)
    new.lead(2)
    new.table("system").write([Put(b"over", {b"v": b"new"}), Put(b"gone", {b"v": b"2"})])
    assert store.table("system").get(b"over") == {b"v": b"new"}
    assert store.table("system").get(b"gone") == {b"v": b"2"}
    new.table("system").write([Delete(b"over"), Delete(b"gone")])  # nobody of a lower epoch can
    former.close()
    new.close()


def test_servers_take_turns_at_a_row_whatever_their_clocks_say(store, hbase_tables):
    clock = ManualClock()
    stores = [another(hbase_tables, clock), another(hbase_tables, clock)]
    held = None
    for number in range(10):
        clock.step(clock.now_ms() + (HOUR_MS if number % 2 else -HOUR_MS))
        wanted = b"%d" % number
        assert stores[number % 2].table("system").check_and_write(b"lease", b"v", held, {b"v": wanted, b"w": wanted})
        assert store.table("system").get(b"lease") == {b"v": wanted, b"w": wanted}
        held = wanted
    for opened in stores:
        opened.close()


def test_the_largest_value_and_a_large_row_are_read_as_they_were_written(store):
    table = store.table("payload")
    value = os.urandom(CELL_BYTES_MAX - CELL_OVERHEAD_BYTES - 2)
    table.write([Put(b"k", {b"p": value})])
    assert table.get(b"k") == {b"p": value}
    wide = {b"%d" % number: value[: 9 << 20] for number in range(3)}
    table.write([Put(b"w", wide)])
    assert [row.columns for row in table.scan(b"w", b"x")] == [wide]


def test_the_regions_of_each_table_cover_all_keys(store):
    for name in TABLE_NAMES:
        regions = store.regions(name)
        assert find_hole(regions) is None
        assert len(regions) == (BUCKETS if name in SALTED else 1)
        assert all(region.server for region in regions)


def test_a_table_is_missing_until_it_is_installed(hbase_tables):
    place = HBaseSettings(thrift2=hbase_tables.address, prefix="nowhere")
    with pytest.raises(InvalidSettingError, match=r"no table nowhere\.message") as caught:
        open_store(Settings(store=StoreSettings(kind="hbase", hbase=place)), None)
    assert "basalt hbase install" in caught.value.hint
    with pytest.raises(InvalidSettingError) as caught:
        open_store(Settings(store=StoreSettings(kind="hbase")), None)
    assert caught.value.field == "store.hbase.thrift2"


def test_a_store_without_the_coprocessor_leaves_retention_to_the_server(store):
    assert not store.applies_retention


def test_the_next_test_sees_no_row_of_a_store_that_ran_ahead_of_the_clock(store, hbase_tables):
    table = store.table("message")
    ahead = store._stamps.one("message", b"last").timestamp + 1_000  # as after many writes within a few milliseconds
    store._stamps.saw("message", b"last", ahead)
    table.write([Put(b"last", {b"a": b"1"})])
    after = hbase_tables.emptied()
    assert after.table("message").get(b"last") is None
    assert list(after.table("message").scan(b"", b"\xff" * 8)) == []
    after.close()
