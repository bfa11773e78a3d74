"""Which directories the store opens, and which it refuses and leaves alone."""

from __future__ import annotations

import os
import shutil

import pytest

from basalt_engine.errors import CorruptionError, DataDirectoryError
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.stores.rocks.data_directory import FORMAT_VERSION, others_may, write_format
from basalt_engine.table import TABLE_NAMES, Put


@pytest.fixture
def used(directory):
    """A directory with one row, closed."""
    store = RocksStore.open(directory)
    store.table("system").write([Put(b"k", {b"c": b"1"})])
    store.close()
    return directory


def has_the_row(directory):
    store = RocksStore.open(directory)
    try:
        return store.table("system").get(b"k") == {b"c": b"1"}
    finally:
        store.close()


def test_a_directory_is_created_with_its_parents(tmp_path, open_store):
    directory = tmp_path / "a" / "b" / "data"
    open_store(directory)
    assert {path.name for path in directory.iterdir()} == {"FORMAT", "LOCK", "SYNCED", "rocks"}
    assert directory.stat().st_mode & 0o777 == 0o700


def test_whatever_the_umask_a_directory_and_its_backups_are_the_owners_alone(tmp_path, open_store):
    before = os.umask(0)
    try:
        open_store(tmp_path / "data").checkpoint(tmp_path / "data" / "backups" / "nightly")
    finally:
        os.umask(before)
    made = [tmp_path / "data", tmp_path / "data" / "backups", tmp_path / "data" / "backups" / "nightly"]
    assert [f"{path.stat().st_mode & 0o777:o}" for path in made] == ["700"] * 3
    assert [others_may(path) for path in made] == [""] * 3


@pytest.mark.parametrize(
    ("mode", "allowed"),
    [
        (0o700, ""), (0o500, ""), (0o750, "read, enter"), (0o705, "read, enter"), (0o710, "enter"), (0o701, "enter"),
        (0o740, "read"), (0o720, "write"), (0o702, "write"), (0o777, "read, write, enter"),
    ],
)  # fmt: skip
def test_what_others_may_do_in_a_directory_is_told(tmp_path, mode, allowed):
    tmp_path.chmod(mode)
    assert others_may(tmp_path) == allowed
    tmp_path.chmod(0o700)


def test_an_empty_directory_is_taken_also_as_the_root_of_a_disk(tmp_path, open_store):
    (tmp_path / "lost+found").mkdir()
    open_store(tmp_path)


def test_a_directory_with_files_of_others_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DataDirectoryError, match=r"thesis\.txt"):
        RocksStore.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_refused(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(DataDirectoryError, match="not a directory"):
        RocksStore.open(tmp_path / "data")


def test_a_directory_in_use_is_refused_with_the_process_that_has_it(directory, open_store):
    open_store(directory)
    with pytest.raises(DataDirectoryError, match=f"process {os.getpid()}"):
        RocksStore.open(directory)


def test_a_directory_in_use_by_another_process_is_refused(directory, start_program):
    process = start_program("acknowledging_writer.py", directory, 0)
    process.stdout.readline()
    with pytest.raises(DataDirectoryError, match=f"process {process.pid}"):
        RocksStore.open(directory)


def test_a_closed_directory_can_be_opened_again(used):
    assert has_the_row(used)
    assert has_the_row(used)


def test_a_directory_that_could_not_be_opened_is_not_kept_locked(used):
    shutil.move(used / "rocks" / "CURRENT", used / "kept")
    for _ in range(2):
        with pytest.raises(CorruptionError, match="CURRENT"):
            RocksStore.open(used)
    shutil.move(used / "kept", used / "rocks" / "CURRENT")
    assert has_the_row(used)


def test_a_newer_format_is_refused_with_what_wrote_it_and_left_alone(used):
    newer = f"format: {FORMAT_VERSION + 1}"
    text = (used / "FORMAT").read_text().replace(f"format: {FORMAT_VERSION}", newer)
    text = text.replace("created by: ", "created by: new ")
    (used / "FORMAT").write_text(text)
    before = {path: path.stat().st_mtime_ns for path in used.rglob("*") if path.name != "LOCK"}
    with pytest.raises(DataDirectoryError, match=rf"format {FORMAT_VERSION + 1} \(new basalt-mq"):
        RocksStore.open(used)
    assert {path: path.stat().st_mtime_ns for path in used.rglob("*") if path.name != "LOCK"} == before


@pytest.mark.parametrize("damage", ["", "Basalt", "format: 1\n", "\xff" * 100])
def test_a_damaged_format_file_is_refused(used, damage):
    (used / "FORMAT").write_bytes(damage.encode("latin-1"))
    with pytest.raises(CorruptionError, match="FORMAT"):
        RocksStore.open(used)


def test_an_initialised_directory_is_never_filled_anew(used):
    shutil.rmtree(used / "rocks")
    with pytest.raises(CorruptionError, match="CURRENT"):
        RocksStore.open(used)
    assert not (used / "rocks").exists()


def test_a_database_without_its_format_file_is_never_filled_anew(used):
    (used / "FORMAT").unlink()
    with pytest.raises(CorruptionError, match="FORMAT is missing"):
        RocksStore.open(used)
    assert (used / "rocks" / "CURRENT").exists()


@pytest.mark.parametrize("missing", TABLE_NAMES)
def test_a_database_that_lacks_a_table_is_damaged(directory, monkeypatch, missing):
    with monkeypatch.context() as before:
        for module in ("database", "store"):
            tables = tuple(name for name in TABLE_NAMES if name != missing)
            before.setattr(f"basalt_engine.stores.rocks.{module}.TABLE_NAMES", tables)
        before.setattr("basalt_engine.stores.rocks.database.LARGE_TABLES", tuple({"message", "payload"} - {missing}))
        RocksStore.open(directory).close()
    for _ in range(2):
        with pytest.raises(CorruptionError, match="does not have the tables"):
            RocksStore.open(directory)


def test_creating_is_taken_up_again_where_a_crash_ended_it(directory):
    directory.mkdir()
    write_format(directory, initialised=False)
    RocksStore.open(directory).close()
    RocksStore.open(directory).close()


def test_creating_is_taken_up_again_after_rocksdb_was_created(used):
    (used / "SYNCED").unlink()
    write_format(used, initialised=False)
    assert has_the_row(used)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("name", ["FORMAT", "LOCK", "rocks", "rocks/CURRENT"])
def test_files_of_another_user_are_refused_and_named(used, name):
    os.chown(used / name, 12_345, 12_345)
    with pytest.raises(DataDirectoryError, match=f"{name} belongs to user 12345"):
        RocksStore.open(used)
    os.chown(used / name, 0, 0)
    assert has_the_row(used)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["FORMAT", "LOCK", "SYNCED", "rocks", "rocks/CURRENT"])
def test_unreadable_files_are_refused_and_named(used, name):
    mode = (used / name).stat().st_mode
    (used / name).chmod(0)
    with pytest.raises(DataDirectoryError, match=name):
        RocksStore.open(used)
    (used / name).chmod(mode)
    assert has_the_row(used)
