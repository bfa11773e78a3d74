"""Every file that the store writes, damaged in every way: refused with the file's name, or everything is still there.

Never does a damaged store serve a shorter history.
"""

from __future__ import annotations

import os
import re
import shutil

import pytest

from basalt_engine.errors import CorruptionError, DataDirectoryError
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.stores.rocks.damage import BlobFile
from basalt_engine.stores.rocks.database import Database
from basalt_engine.stores.rocks.store import SyncedFile
from basalt_engine.table import Put
from tests.engine.stores.acknowledging_writer import key, row, write

ROWS = 120
EXPECTED = {key(number): row(number) for number in range(ROWS)}
FLIPS = 12  # positions per file
UNIMPORTANT = re.compile(r"LOCK|IDENTITY|LOG|LOG\.old\..*|OPTIONS-\d+|rocksdict-config\.json")


@pytest.fixture(scope="module")
def intact(place):
    """A directory as a killed process leaves it: rows in table files, in blob files, and in two logs."""
    live, killed = place / "live", place / "killed"
    store = RocksStore.open(live)
    for number in range(ROWS // 2):
        write(store, number)
    store.close()
    store = RocksStore.open(live)
    for number in range(ROWS // 2, ROWS):
        if number == ROWS * 3 // 4:
            store._durable.database.rows("message").flush()  # so that there is a second log
        write(store, number)
    shutil.copytree(live, killed)
    store.close()
    return killed


@pytest.fixture
def copy(intact, place):
    """A copy of the directory, to be damaged."""
    damaged = place / "copy"
    shutil.copytree(intact, damaged)
    yield damaged
    shutil.rmtree(damaged)


def names(directory, pattern):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob(pattern) if path.is_file())


def read_everything(directory):
    """Open the store and read all rows in every way; `CorruptionError` or `DataDirectoryError` when it cannot be."""
    store = RocksStore.open(directory)
    try:
        table = store.table("message")
        assert {item.key: item.columns for item in table.scan(b"", None)} == EXPECTED
        assert {item.key: item.columns for item in table.scan(b"", None, reverse=True)} == EXPECTED
        assert all(table.get(name) == columns for name, columns in EXPECTED.items())
        assert store.table("system").get(b"last") == {b"v": b"%d" % (ROWS - 1)}
    finally:
        store.close()


def refusal(directory):
    """Why the directory is refused, at start or when it is read; empty when everything is there."""
    try:
        read_everything(directory)
    except (CorruptionError, DataDirectoryError) as error:
        return error.message
    return ""


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << at % 8
    path.write_bytes(content)


def damages(size):
    """Ways to damage a file of this size."""
    yield "remove", lambda path: path.unlink()
    yield "empty", lambda path: os.truncate(path, 0)
    yield "append", lambda path: path.open("ab").write(b"foreign bytes")
    for cut in (1, 64, size // 2):
        if cut < size:
            yield f"cut {cut}", lambda path, cut=cut: os.truncate(path, size - cut)
    for number in range(FLIPS if size else 0):
        yield f"flip {number}/{FLIPS}", lambda path, number=number: flip(path, size * number // FLIPS)


def test_the_directory_has_files_of_every_kind(intact):
    kinds = {re.sub(r"[\d.]+", "#", name) for name in names(intact, "*")}
    assert {"FORMAT", "LOCK", "SYNCED", "rocks/CURRENT", "rocks/MANIFEST-#"} <= kinds
    assert {"rocks/#sst", "rocks/#blob", "rocks/#log"} <= kinds
    assert len(names(intact, "*.log")) == 2
    read_everything_of_a_copy = intact.with_name("untouched")
    shutil.copytree(intact, read_everything_of_a_copy)
    read_everything(read_everything_of_a_copy)


def test_no_damage_to_any_file_shortens_what_is_read(intact, place):
    survived = []
    for name in names(intact, "*"):
        path = place / "copy" / name
        unimportant = UNIMPORTANT.fullmatch(path.name)
        for damage, apply in damages((intact / name).stat().st_size):
            if unimportant and damage.startswith(("flip", "cut")) and damage != "cut 64":
                continue
            shutil.copytree(intact, place / "copy")
            apply(path)
            refused = refusal(place / "copy")  # and compares every row when it is not
            shutil.rmtree(place / "copy")
            if not refused:
                survived.append((name, damage))
            elif unimportant:
                pytest.fail(f"{name}, on which nothing depends, was refused after: {damage}: {refused}")
            elif path.name not in refused and not (path.suffix == ".sst" and f"{path.parent} is damaged" in refused):
                pytest.fail(f"{name} after {damage} was refused without its name: {refused}")
    # What may survive: bytes that no reader looks at, and what stands behind the end of what was synced.
    unharmed = {name for name, _ in survived if not UNIMPORTANT.fullmatch(name.rpartition("/")[2])}
    assert all(name.endswith((".sst", ".blob", ".log")) or "MANIFEST" in name or name == "SYNCED" for name in unharmed)
    assert not any(damage in ("remove", "empty") for name, damage in survived if name in unharmed)
    assert not any(damage.startswith("flip") for name, damage in survived if name.endswith(".log") or "MANI" in name)


@pytest.mark.parametrize("file", ["FORMAT", "SYNCED", "rocks/CURRENT", "MANIFEST-*", "*.sst", "*.blob", "*.log"])
def test_a_missing_file_is_refused_at_start_and_named(copy, file):
    for name in names(copy, file.rpartition("/")[2]):
        content = (copy / name).read_bytes()
        (copy / name).unlink()
        before = names(copy, "*.sst") + names(copy, "*.blob")
        with pytest.raises(CorruptionError, match=re.escape(str(copy / name))) as refused:
            RocksStore.open(copy)
        assert "is missing" in refused.value.message
        assert set(before) <= set(names(copy, "*"))  # nothing more was lost by trying
        (copy / name).write_bytes(content)
    read_everything(copy)


def test_the_whole_database_missing_is_refused(copy):
    shutil.rmtree(copy / "rocks")
    with pytest.raises(CorruptionError, match="rocks/CURRENT is missing"):
        RocksStore.open(copy)
    assert not (copy / "rocks").exists()


def test_an_older_manifest_is_refused(copy):
    (current,) = names(copy, "MANIFEST-*")
    older = copy / "rocks" / "MANIFEST-000001"
    shutil.copy(copy / current, older)
    (copy / "rocks" / "CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(CorruptionError, match="MANIFEST-000001"):
        RocksStore.open(copy)


def test_one_damaged_slot_of_the_marks_is_made_up_for_by_the_other(copy):
    for slot in (0, 1):
        content = bytearray((copy / "SYNCED").read_bytes())
        content[slot * 4096 + 20] ^= 1
        (copy / "SYNCED").write_bytes(content)
        if slot == 1:
            with pytest.raises(CorruptionError, match="SYNCED"):
                RocksStore.open(copy)
        else:
            shutil.copytree(copy, copy.with_name("one-slot"))
            read_everything(copy.with_name("one-slot"))


def test_a_damaged_payload_is_refused_with_its_file_and_offset_and_the_other_rows_are_read(copy):
    blob = copy / names(copy, "*.blob")[0]
    at = blob.read_bytes().index(row(3)[b"p"]) + 100
    flip(blob, at)
    store = RocksStore.open(copy)
    try:
        table = store.table("message")
        with pytest.raises(CorruptionError, match=re.escape(str(blob))) as refused:
            table.get(key(3))
        assert 0 < at - int(re.search(r"at byte (\d+)", refused.value.message)[1]) < 200
        with pytest.raises(CorruptionError):
            list(table.scan(b"", None))
        assert table.get(key(6)) == row(6)
    finally:
        store.close()


def test_a_row_whose_large_values_are_gone_is_refused(copy, open_store):
    store = open_store(copy)
    table = store.table("message")
    store._durable.database.large("message").delete(key(0))
    with pytest.raises(CorruptionError, match=f"row {key(0).hex()} of table message"):
        table.get(key(0))
    with pytest.raises(CorruptionError):
        table.write([Put(key(0), {b"another": bytes(5_000)})])
    assert table.get(key(1)) == row(1)
    table.write([Put(key(0), {b"t": b"2"})])  # touches no large value


def test_a_blob_file_that_garbage_collection_removes_during_the_check_is_not_missed(intact, copy, monkeypatch):
    """RocksDB collects garbage as soon as it is open: what it listed a moment ago may be gone, and rightly."""
    listed = Database._blob_files
    stale = BlobFile(copy / "rocks" / "999999.blob", 1, frozenset())
    calls = []

    def one_more_at_first(database, table):
        calls.append(table)
        return [*listed(database, table), *([stale] if len(calls) == 1 else [])]

    monkeypatch.setattr(Database, "_blob_files", one_more_at_first)
    assert refusal(copy) == ""
    assert calls.count(calls[0]) == 2


@pytest.mark.parametrize(("changes", "found"), [(2, True), (3, False)])
def test_blob_files_that_change_at_every_look_are_looked_at_so_often(intact, copy, monkeypatch, changes, found):
    monkeypatch.setattr("basalt_engine.stores.rocks.database.BLOB_LISTS_MAX", 2)
    listed = Database._blob_files
    left = list(range(changes))

    def another_each_time(database, table):
        stale = [BlobFile(copy / "rocks" / f"99999{left.pop()}.blob", 1, frozenset())] if left else []
        return [*listed(database, table), *stale]

    monkeypatch.setattr(Database, "_blob_files", another_each_time)
    assert (refusal(copy) == "") is found


def test_a_log_that_is_not_among_those_whose_ends_are_noted_is_missed_by_rocksdb(place, monkeypatch):
    monkeypatch.setattr("basalt_engine.stores.rocks.store.LOGS_MAX", 2)
    live, killed = place / "many logs", place / "many logs, killed"
    store = RocksStore.open(live)
    for number in range(ROWS):
        write(store, number)
        if number % 25 == 24:
            store._durable.database.rows("message").flush()
    shutil.copytree(live, killed)
    store.close()
    logs = names(killed, "*.log")
    marks = SyncedFile.load(killed / "SYNCED", killed / "rocks").marks
    assert len(marks.logs) == 2 < len(logs)
    for number, log in enumerate(logs):
        for left_bytes in (None, 100):
            damaged = place / f"many logs, {number} {left_bytes}"
            shutil.copytree(killed, damaged)
            if left_bytes is None:
                (damaged / log).unlink()
            else:
                os.truncate(damaged / log, left_bytes)
            assert refusal(damaged), (log, left_bytes)
    read_everything(killed)


def test_a_blob_file_that_stays_listed_is_missed(intact, copy, monkeypatch):
    listed = Database._blob_files
    stale = BlobFile(copy / "rocks" / "999999.blob", 1, frozenset())
    monkeypatch.setattr(Database, "_blob_files", lambda database, table: [*listed(database, table), stale])
    with pytest.raises(CorruptionError, match=r"999999\.blob is missing"):
        read_everything(copy)
