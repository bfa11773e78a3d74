"""Blob files are rewritten for the garbage in them, and left alone where there is none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from basalt_engine.errors import DiskFullError
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.stores.rocks import store as rocks_store
from basalt_engine.stores.rocks.database import Database, collects_garbage
from basalt_engine.table import Delete, Put

VALUE_BYTES = 100_000
FILES = 8


@pytest.fixture
def opened(tmp_path, monkeypatch):
    monkeypatch.setattr(rocks_store, "GARBAGE_PAUSE_MS", 0)
    stores = []

    def open_(open_database=Database):
        stores.append(RocksStore.open(tmp_path / "data", open_database=open_database))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


def key(file: int, place: int) -> bytes:
    return b"k%02d-%02d" % (place, file)


def fill(store: RocksStore, places: int = 2) -> None:
    """Make as many blob files as there are FILES, of some values each."""
    for file in range(FILES):
        put = [Put(key(file, place), {b"p": os.urandom(VALUE_BYTES)}) for place in range(places)]
        store.table("message").write(put)
        large(store).flush()


def large(store: RocksStore):
    return store._durable.database.large("message")


def compact(store: RocksStore) -> None:
    """Compact the whole family: a file that is alone at its level would be left as it is."""
    store.table("message").write([Put(b"a", {b"p": os.urandom(VALUE_BYTES)})])
    large(store).flush()
    large(store).compact_range(None, None)


def look(store: RocksStore) -> None:
    """Write something small, which looks at the garbage afterwards."""
    store.table("message").write([Put(b"small", {b"t": b""})])


def eventually(holds: Callable[[], bool]) -> bool:
    """Wait for what RocksDB does by itself."""
    deadline_s = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return holds()


def blob_files(store: RocksStore) -> set[str]:
    return {file.path.name for file in store._durable.database._blob_files("message")}


def test_compactions_leave_blob_files_alone_in_which_nothing_is_deleted(opened):
    store = opened()
    fill(store)
    before = blob_files(store)
    assert len(before) == FILES
    compact(store)
    assert before < blob_files(store)


def test_blob_files_are_rewritten_once_compactions_have_found_garbage_in_them(opened):
    store = opened()
    fill(store)
    before = sorted(blob_files(store))
    older = set(before[: FILES // 2])
    store.table("message").write([Delete(key(file, 0)) for file in range(FILES // 2 + 1)])
    compact(store)
    assert set(before) < blob_files(store)
    look(store)
    compact(store)
    assert not older & blob_files(store)
    assert {row.key for row in store.table("message").scan(b"k", b"l")} == {
        key(file, place) for file in range(FILES) for place in (0, 1) if place or file > FILES // 2
    }
    assert all(len(row.columns[b"p"]) == VALUE_BYTES for row in store.table("message").scan(b"k", b"l"))


def test_much_garbage_is_collected_although_nothing_else_is_to_be_compacted(opened):
    store = opened()
    fill(store, 3)
    before = sorted(blob_files(store))
    store.table("message").write([Delete(key(file, place)) for file in range(FILES) for place in (0, 1)])
    compact(store)
    look(store)
    assert eventually(lambda: not set(before[: FILES // 2]) & blob_files(store))


def test_blob_files_are_left_alone_again_when_little_garbage_is_left(opened):
    store = opened()
    fill(store)
    store.table("message").write([Delete(key(file, 0)) for file in range(FILES // 2 + 1)])
    compact(store)
    look(store)  # begins: over a fourth is garbage
    compact(store)
    look(store)  # ends: nearly all of that was in the older half
    before = blob_files(store)
    compact(store)
    assert len(before - blob_files(store)) <= 1  # the one whose only value was put anew


def test_a_store_that_is_opened_again_goes_on_collecting(opened):
    store = opened()
    fill(store)
    before = sorted(blob_files(store))
    store.table("message").write([Delete(key(file, 0)) for file in range(FILES // 2 + 1)])
    compact(store)
    store.close()
    store = opened()
    look(store)
    compact(store)
    assert not set(before[: FILES // 2]) & blob_files(store)


def test_a_write_counts_although_the_look_at_the_garbage_fails(opened, caplog):
    class FullDisk(Database):
        def tend_garbage(self) -> None:
            raise DiskFullError("no space for the options")

    store = opened(FullDisk)
    for number in range(2):
        store.table("message").write([Put(b"k%d" % number, {b"t": b"1"})])
    assert [row.key for row in store.table("message").scan(b"", None)] == [b"k0", b"k1"]
    assert "how garbage is collected stays as it was: no space for the options" in caplog.text


@pytest.mark.parametrize(
    ("collecting", "blob_bytes", "garbage_bytes", "expected"),
    [
        (False, 0, 0, False),
        (True, 0, 0, False),
        (False, 800, 199, False),
        (False, 800, 200, True),
        (True, 800, 100, True),
        (True, 800, 99, False),
    ],
)
def test_collecting_begins_at_a_fourth_and_ends_below_an_eighth(collecting, blob_bytes, garbage_bytes, expected):
    assert collects_garbage(collecting, blob_bytes, garbage_bytes) is expected
