"""Restoring a backup: all of it in its place or nothing, and what was there is put aside."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from basalt_engine.clock import ManualClock
from basalt_engine.errors import CorruptionError, DataDirectoryError, DiskFullError
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.stores.rocks.replacement import UNFINISHED
from basalt_engine.stores.rocks.restore import Restore
from basalt_engine.system import FACTS, SystemTable, install
from basalt_engine.table import Put
from tests.engine.stores.acknowledging_writer import key, row

OLD, NEW = 30, 40  # rows in the backup, and in the place later
LAST_CALLS = 14  # to the operating system: those that put the copy in its place, and some before them


@pytest.fixture(scope="module")
def made(place: Path) -> Path:
    """A stopped server's directory with a backup in it, and ten rows more than the backup has."""
    store = RocksStore.open(place / "made")
    install(SystemTable(store.table("system")), ManualClock(), 4)
    for number in range(NEW):
        if number == OLD:
            store.checkpoint(place / "made" / "backups" / "nightly")
        store.table("message").write([Put(key(number), row(number))])
    store.close()
    return place / "made"


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "data")


def rows(directory: Path) -> int:
    """How many rows there are, which must be the first ones."""
    store = RocksStore.open(directory)
    try:
        found = {one.key: one.columns for one in store.table("message").scan(b"", None)}
    finally:
        store.close()
    assert found == {key(number): row(number) for number in range(len(found))}
    return len(found)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_backup_takes_the_place_of_a_directory_that_is_put_aside(data: Path):
    restored = Restore(data / "backups" / "nightly", data).run(ManualClock(), put_aside=True)
    assert rows(data) == OLD
    assert restored.aside is not None
    assert rows(restored.aside) == NEW
    assert names(data / "backups") == ["nightly"]
    again = Restore(data / "backups" / "nightly", data).run(ManualClock(), put_aside=True)
    assert again.aside not in (None, restored.aside)


def test_a_backup_is_restored_where_there_is_nothing(data: Path, tmp_path: Path):
    told = []
    restore = Restore(data / "backups" / "nightly", tmp_path / "deep" / "elsewhere")
    restored = restore.run(ManualClock(), put_aside=False, advance=told.append)
    assert restored.aside is None
    assert sum(told) >= restore.total_bytes
    assert rows(tmp_path / "deep" / "elsewhere") == OLD
    assert names(tmp_path / "deep") == ["elsewhere"]


def test_a_directory_that_is_not_empty_is_left_as_it_is(data: Path, tmp_path: Path):
    with pytest.raises(DataDirectoryError, match="is not empty") as refused:
        Restore(data / "backups" / "nightly", data).run(ManualClock(), put_aside=False)
    assert "--put-aside" in str(refused.value.hint)
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "sea.jpg").touch()
    with pytest.raises(DataDirectoryError, match=r"not Basalt's, such as 'sea\.jpg'"):
        Restore(data / "backups" / "nightly", foreign).run(ManualClock(), put_aside=True)
    assert rows(data) == NEW
    assert names(tmp_path) == ["data", "photos"]


def test_a_directory_that_a_server_has_open_is_refused(data: Path, tmp_path: Path):
    backup = shutil.copytree(data / "backups" / "nightly", tmp_path / "copy")
    store = RocksStore.open(data)
    with pytest.raises(DataDirectoryError, match="in use by process"):
        Restore(backup, data).run(ManualClock(), put_aside=True)
    store.close()
    assert rows(data) == NEW


def test_a_backup_of_a_running_server_needs_an_id_of_its_own(data: Path, tmp_path: Path):
    def instance(directory: Path) -> str:
        store = RocksStore.open(directory)
        facts = FACTS.get(SystemTable(store.table("system")))
        store.close()
        assert facts is not None
        return facts.instance

    mine = instance(data)
    store = RocksStore.open(data)
    with pytest.raises(DataDirectoryError, match="installation id"):
        Restore(data / "backups" / "nightly", tmp_path / "twin")
    Restore(data / "backups" / "nightly", tmp_path / "twin", new_installation=True).run(ManualClock(), put_aside=False)
    store.close()
    assert instance(tmp_path / "twin") != mine
    assert rows(tmp_path / "twin") == OLD


def test_a_damaged_backup_is_refused_before_anything_is_written(data: Path, tmp_path: Path):
    table = next((data / "backups" / "nightly" / "rocks").glob("*.sst"))
    content = bytearray(table.read_bytes())
    content[10] ^= 4
    table.write_bytes(content)
    with pytest.raises(CorruptionError, match=table.name):
        Restore(data / "backups" / "nightly", data).run(ManualClock(), put_aside=True)
    assert rows(data) == NEW
    assert names(tmp_path) == ["data"]


def test_a_backup_that_is_deleted_during_the_copy_is_told_and_changes_nothing(data: Path, tmp_path: Path, monkeypatch):
    backup = data / "backups" / "nightly"

    def delete_then_copy(source: Path, target: Path) -> None:
        shutil.rmtree(backup, ignore_errors=True)
        copyfile(source, target)

    copyfile = shutil.copyfile
    restore = Restore(backup, data)
    monkeypatch.setattr(shutil, "copyfile", delete_then_copy)
    with pytest.raises(CorruptionError, match="is missing"):
        restore.run(ManualClock(), put_aside=True)
    assert rows(data) == NEW
    assert names(tmp_path) == ["data"]


def test_a_full_disk_is_told_and_changes_nothing(data: Path, tmp_path: Path, monkeypatch):
    restore = Restore(data / "backups" / "nightly", data)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(10**9, 10**9, 1_000))
        with pytest.raises(DiskFullError, match="1000 left"):
            restore.run(ManualClock(), put_aside=True)

    def fail(_source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(shutil, "copyfile", fail)
    with pytest.raises(DiskFullError):
        restore.run(ManualClock(), put_aside=True)
    assert rows(data) == NEW
    assert names(tmp_path) == ["data"]


def test_a_crash_between_any_two_steps_leaves_one_whole_directory_in_the_place(
    made: Path, place: Path, tmp_path: Path, start_program
):
    backup = shutil.copytree(made / "backups" / "nightly", tmp_path / "backup")
    shutil.copytree(made, place / "counted")
    calls = int(start_program("dying_restore.py", backup, place / "counted", 0).stdout.read())
    seen = set()
    for number in [1, 2, 3, calls // 3, calls // 2, *range(calls - LAST_CALLS, calls + 1)]:
        data = place / f"data{number}"
        shutil.copytree(made, data)
        assert start_program("dying_restore.py", backup, data, number).wait() == 9
        seen.add(rows(data))
        whole = [path for path in place.glob(f"data{number}*") if not (path / UNFINISHED).exists()]
        assert NEW in map(rows, whole), "what was there is kept"
        Restore(backup, data).run(ManualClock(), put_aside=True)
        assert rows(data) == OLD
        assert not (place / f"data{number}.new").exists()
        for path in place.glob(f"data{number}*"):
            shutil.rmtree(path)
    assert seen == {OLD, NEW}
