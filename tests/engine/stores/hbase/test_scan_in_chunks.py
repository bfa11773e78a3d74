"""How a scan is made of calls: what it asks for, how it goes on after a loss, and what is fetched side by side."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import wait

import pytest

import basalt_engine.stores.hbase.scan as scan_module
from basalt_engine.errors import StoreError
from basalt_engine.table import KEY_BYTES_MAX, DeleteRange, Put
from tests.engine.stores.hbase.fake_gateway import HANG_S

KEYS = [b"%03d" % number for number in range(100)]


@pytest.fixture
def table(store, monkeypatch):
    monkeypatch.setattr(scan_module, "CHUNK_ROWS_MAX", 8)
    found = store.table("message")
    found.write([Put(key, {b"c": key}) for key in KEYS])
    return found


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cut", ["cut-request", "cut-answer", "cut-inside"])
def test_a_scan_goes_on_after_its_last_row_when_its_connection_is_cut(fake, table, cut, reverse):
    scan = table.scan(b"", None, reverse=reverse)
    found = [next(scan) for _ in range(3)]
    fake.fail("getScannerResults", cut, cut)
    found += scan
    assert [row.key for row in found] == (KEYS[::-1] if reverse else KEYS)


def test_a_scan_fails_when_the_gateway_stays_away_in_its_middle(fake, table):
    scan = table.scan(b"", None)
    next(scan)
    fake.stop()
    with pytest.raises(StoreError, match="does not answer"):
        list(scan)


def test_a_small_range_takes_one_call(fake, table):
    assert len(list(table.scan(b"00", b"003"))) == 3
    assert [row.key for row in table.scan(b"", None, reverse=True, rows_max=1)] == KEYS[-1:]
    assert [row.key for row in table.scan(b"", b"0501", reverse=True, rows_max=2)] == [b"050", b"049"]
    assert fake.calls["getScannerResults"] == 3


def test_a_reversed_scan_begins_below_its_stop_whether_a_row_is_there_or_not(table):
    for stop, last in [(b"050", b"049"), (b"0501", b"050")]:
        for rows_max in (1, 2, 20, None):
            found = [row.key for row in table.scan(b"", stop, reverse=True, rows_max=rows_max)]
            assert found == [key for key in KEYS[::-1] if key <= last][:rows_max]


@pytest.mark.parametrize("start", [b"", b"\x00", b"050", b"050\x00", b"05", b"\xff" * (KEY_BYTES_MAX + 1)])
def test_a_reversed_scan_ends_with_its_start(table, start):
    assert [row.key for row in table.scan(start, None, reverse=True)] == [key for key in KEYS[::-1] if key >= start]


def test_a_reversed_scan_yields_no_row_too_many_when_its_last_one_is_deleted_meanwhile(table, monkeypatch):
    monkeypatch.setattr(scan_module.Scan, "prefetch", lambda *_: None)  # nothing is fetched ahead
    scan = table.scan(b"", None, reverse=True, rows_max=10)
    found = [next(scan) for _ in range(8)]
    table.write([DeleteRange(found[-1].key, found[-1].key + b"\0")])
    assert [row.key for row in [*found, *scan]] == KEYS[::-1][:10]


def test_scans_that_were_opened_together_are_fetched_side_by_side(fake, table):
    all_four = threading.Barrier(4, timeout=HANG_S)  # none is answered before all are under way
    fake.fail("getScannerResults", *[all_four.wait] * 4)
    scans = [table.scan(b"%d" % number, b"%d" % (number + 1), rows_max=1) for number in range(4)]
    assert [next(scan).key for scan in scans[:1]] == [b"000"]
    assert all(list(scan) == [] for scan in scans[1:])
    assert fake.calls["getScannerResults"] == 4


def test_a_scan_that_was_left_is_not_fetched_and_yields_nothing(fake, table):
    dropped, closed = table.scan(b"", None), table.scan(b"", None)
    del dropped
    gc.collect()
    closed.close()
    list(table.scan(b"", b"001"))
    assert list(closed) == []
    assert fake.calls["getScannerResults"] == 1


def test_the_next_chunk_is_fetched_while_the_last_one_is_read(fake, table):
    scan = table.scan(b"", None)
    next(scan)
    deadline_s = time.monotonic() + HANG_S
    while fake.calls["getScannerResults"] < 2:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    scan.close()


def test_no_chunk_is_fetched_ahead_beyond_a_limit(fake, table):
    assert len(list(table.scan(b"", None, rows_max=8))) == 8
    assert len(list(table.scan(b"", None, bytes_max=6 * 8))) == 8
    time.sleep(0.05)
    assert fake.calls["getScannerResults"] == 2


def test_large_rows_are_fetched_as_far_as_the_limit_goes_and_not_by_whole_chunks(store, monkeypatch):
    monkeypatch.setattr(scan_module, "CHUNK_BYTES", 400_000)
    monkeypatch.setattr(scan_module, "CHUNK_BYTES_MIN", 50_000)
    table = store.table("payload")
    table.write([Put(key, {b"c": bytes(100_000)}) for key in KEYS])
    table._row_size.saw(list(table.scan(b"", b"020")))
    table._row_size.mean_bytes = 100_000
    asked, fetch = [], table._fetch
    monkeypatch.setattr(table, "_fetch", lambda scan, rows: asked.append(rows) or fetch(scan, rows))
    scan, found = table.scan(b"", None, bytes_max=950_000), []
    for row in scan:
        found.append(row.key)
        wait([] if scan._ahead is None else [scan._ahead])  # else it may be asked for here, when more has been read
    assert (found, asked) == (KEYS[:10], [4, 4, 2])


def test_busy_workers_hold_no_scan_up(table, store):
    free = threading.Event()
    timed_out = []
    for _ in range(20):
        store._prefetcher.submit(lambda: free.wait(HANG_S) or timed_out.append(True))
    assert len(list(table.scan(b"", None))) == 100
    free.set()
    assert timed_out == [], "the scan waited for them"


def test_chunks_follow_the_size_of_the_rows(store, monkeypatch):
    monkeypatch.setattr(scan_module, "CHUNK_BYTES", 100_000)
    table = store.table("payload")
    table.write([Put(key, {b"c": bytes(5_000)}) for key in KEYS])
    for _ in range(3):
        assert len(list(table.scan(b"", None))) == 100
    assert 15 < table._row_size.rows_in(100_000) < 25


def test_a_range_is_deleted_in_parts(fake, table, monkeypatch):
    import basalt_engine.stores.hbase.table as table_module

    monkeypatch.setattr(table_module, "DELETE_ROWS", 30)
    table.write([DeleteRange(KEYS[10], KEYS[90])])
    assert [row.key for row in table.scan(b"", None)] == KEYS[:10] + KEYS[90:]
    assert fake.calls["deleteMultiple"] == 3


@pytest.mark.parametrize(("limit", "value"), [("ROWS_COUNTED_MAX", 100), ("BYTES_COUNTED_MAX", 2)])
def test_a_large_range_is_estimated_from_its_beginning(store, monkeypatch, limit, value):
    monkeypatch.setattr(scan_module, limit, value)
    monkeypatch.setattr(scan_module, "COUNTED_CHUNK_ROWS", 50)
    table = store.table("payload")
    table.write([Put(b"topic" + number.to_bytes(8), {b"c": bytes(100)}) for number in range(1_000)])
    exact = 1_000 * (13 + 1 + 100)
    assert exact * 0.9 < table.size_bytes(b"topic", b"topid") < exact * 1.1
