"""What the RocksDB store has beyond the contract: it outlives its process, can be copied, and keeps its measure."""

from __future__ import annotations

import os
import resource
import shutil

import pytest

from basalt_engine.errors import DataDirectoryError, InputError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.rocks import table as rocks_table
from basalt_engine.stores.rocks.database import OPEN_FILES_MAX, OPEN_FILES_MIN, Database, open_files_max
from basalt_engine.stores.rocks.table import ROWS_COUNTED_MAX
from basalt_engine.table import TABLE_NAMES, Delete, DeleteRange, Put, TableWrite

LARGE = os.urandom(30_000)


def test_everything_is_there_after_closing_and_opening(directory, open_store):
    store = open_store(directory)
    for name in TABLE_NAMES:
        store.table(name).write([Put(b"k%d" % number, {b"a": LARGE, b"b": b""}) for number in range(10)])
        store.table(name).write([Delete(b"k3"), Put(b"k4", {b"b": LARGE[::-1]})])
        store.table(name).write([DeleteRange(b"k6", b"k9")])
    before = {name: [*store.table(name).scan(b"", None)] for name in TABLE_NAMES}
    store.close()
    store = open_store(directory)
    assert {name: [*store.table(name).scan(b"", None)] for name in TABLE_NAMES} == before
    assert [row.key for row in before["message"]] == [b"k0", b"k1", b"k2", b"k4", b"k5", b"k9"]


@pytest.mark.parametrize(
    "limits", [{"CHUNK_ROWS_MAX": 3}, {"CHUNK_BYTES_MAX": 1}, {"CHUNK_ROWS_MAX": 2, "CHUNK_BYTES_MAX": 250}]
)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_goes_on_from_chunk_to_chunk(directory, open_store, monkeypatch, limits, reverse):
    table = open_store(directory).table("message")
    table.write([Put(b"k%02d" % number, {b"a": bytes([number]) * 100, b"p": LARGE}) for number in range(20)])
    whole = [*table.scan(b"k03", b"k17", reverse=reverse)]
    assert len(whole) == 14
    for name, value in {"CHUNK_ROWS_FIRST": 2, **limits}.items():
        monkeypatch.setattr(rocks_table, name, value)
    assert [*table.scan(b"k03", b"k17", reverse=reverse)] == whole
    for rows_max in (1, 2, 3, 5, 14, 15):
        assert [*table.scan(b"k03", b"k17", reverse=reverse, rows_max=rows_max)] == whole[:rows_max]
    assert len([*table.scan(b"k03", b"k17", reverse=reverse, bytes_max=3 * 30_103)]) == 3


def test_a_small_change_of_a_row_does_not_write_its_large_values_again(directory, open_store):
    store = open_store(directory)
    table = store.table("message")
    table.write([Put(b"k", {b"p": LARGE, b"t": b"1"})])
    log = max((directory / "rocks").glob("*.log"))
    before = log.stat().st_size
    table.write([Put(b"k", {b"t": b"2"})])
    assert log.stat().st_size - before < 200
    assert table.get(b"k") == {b"p": LARGE, b"t": b"2"}


def test_a_large_value_is_handed_out_without_a_copy_of_its_own(directory, open_store):
    table = open_store(directory).table("message")
    table.write([Put(b"k", {b"p": LARGE, b"t": b"1"})])
    assert type(table.get(b"k")[b"p"]) is bytes


def test_large_values_that_no_row_has_any_more_are_deleted(directory, open_store):
    store = open_store(directory)
    table = store.table("message")
    table.write([Put(b"k%d" % number, {b"p": LARGE, b"t": b"1"}) for number in range(6)])
    table.write([Delete(b"k0"), Delete(b"k1", (b"p",)), Put(b"k2", {b"p": b"small"})])
    table.write([DeleteRange(b"k3", b"k5")])
    database = store._durable.database
    kept, _ = database.read(database.large("message"), b"", None, rows_max=10, bytes_max=1 << 20)
    assert kept == [(b"k5", LARGE)]


def test_a_copy_is_a_data_directory_of_that_moment(directory, tmp_path, open_store):
    store = open_store(directory)
    store.write([TableWrite("message", [Put(b"k", {b"p": LARGE})]), TableWrite("system", [Put(b"k", {b"v": b"1"})])])
    store.checkpoint(tmp_path / "backups" / "copy")
    store.table("message").write([Put(b"later", {b"p": LARGE})])
    store.table("message").write([DeleteRange(b"k", b"l")])

    copy = open_store(tmp_path / "backups" / "copy")
    assert [row.key for row in copy.table("message").scan(b"", None)] == [b"k"]
    assert copy.table("message").get(b"k") == {b"p": LARGE}
    assert copy.table("system").get(b"k") == {b"v": b"1"}
    copy.table("message").write([Put(b"own", {b"p": LARGE})])
    assert [row.key for row in store.table("message").scan(b"", None)] == [b"later"]
    assert [path.name for path in (tmp_path / "backups").iterdir()] == ["copy"]


def test_a_store_is_busy_while_it_is_copied_and_not_before_or_after(directory, tmp_path, open_store, monkeypatch):
    """So that nobody waits on the event loop for the lock that the copy holds."""
    store = open_store(directory)
    seen = []
    checkpoint = Database.checkpoint

    def watched(database, path):
        seen.append(store.busy)
        checkpoint(database, path)

    monkeypatch.setattr(Database, "checkpoint", watched)
    assert not store.busy
    store.checkpoint(tmp_path / "copy")
    assert seen == [True]
    assert not store.busy


def test_a_copy_to_another_file_system_lets_others_write_meanwhile(place, tmp_path, open_store, monkeypatch):
    if place.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system here")
    store = open_store(place / "near")
    store.table("message").write([Put(b"k", {b"p": LARGE})])
    copyfile, written = shutil.copyfile, []

    def copy_while_others_write(source, target):
        store.table("message").write([Put(b"later", {b"p": LARGE})])
        written.append(source)
        copyfile(source, target)

    monkeypatch.setattr(shutil, "copyfile", copy_while_others_write)
    store.checkpoint(tmp_path / "far" / "copy")
    assert len(written) > 5
    copy = open_store(tmp_path / "far" / "copy")
    assert [row.key for row in copy.table("message").scan(b"", None)] == [b"k"]
    assert not list((place / "near").glob(".partial-*"))
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["copy"]


def test_a_copy_goes_into_a_new_or_empty_directory_only(directory, tmp_path, open_store):
    store = open_store(directory)
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("mine")
    for place in (full, full / "file"):
        with pytest.raises(DataDirectoryError, match="exists already"):
            store.checkpoint(place)
    (tmp_path / "empty").mkdir()
    store.checkpoint(tmp_path / "empty")
    assert [path.name for path in full.iterdir()] == ["file"]


def test_a_memory_store_cannot_be_copied(tmp_path):
    with pytest.raises(InputError):
        MemoryStore().checkpoint(tmp_path / "copy")


def test_the_size_of_many_rows_is_estimated_from_files(directory, open_store):
    rows = 3 * ROWS_COUNTED_MAX
    store = open_store(directory, sync=False)
    table = store.table("payload")
    for start in range(0, rows, 10_000):
        table.write([Put(b"a" + number.to_bytes(8), {b"c": bytes(100)}) for number in range(start, start + 10_000)])
    store.close()
    table = open_store(directory, sync=False).table("payload")
    exact = rows * (9 + 1 + 100)
    assert 0.6 * exact < table.size_bytes(b"a", b"b") < 1.7 * exact
    few = table.size_bytes(b"a" + (100).to_bytes(8), b"a" + (1_100).to_bytes(8))
    assert 1_000 * 110 <= few < 1_000 * 125
    assert table.size_bytes(b"b", b"c") == 0


def test_the_size_of_a_range_counts_large_values_without_reading_them(directory, open_store):
    store = open_store(directory)
    table = store.table("message")
    table.write([Put(b"k%d" % number, {b"p": LARGE, b"t": b"1"}) for number in range(10)])
    store._durable.database.large("message").delete(b"k5")  # reading it would fail
    assert 10 * len(LARGE) < table.size_bytes(b"k", b"l") < 10 * len(LARGE) + 1_000


def test_the_store_takes_its_share_of_open_files():
    assert open_files_max(64) == OPEN_FILES_MIN
    assert open_files_max(1_024) == 256
    assert open_files_max(10**6) == open_files_max(resource.RLIM_INFINITY) == OPEN_FILES_MAX
