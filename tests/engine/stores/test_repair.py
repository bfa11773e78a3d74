"""Repair: what it shows is what is lost, what is left has no hole, and what is whole is not touched."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from basalt_engine.clock import ManualClock
from basalt_engine.errors import CorruptionError, DataDirectoryError, InputError
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.stores.rocks.repair import NOTHING, Diagnosis, Repair
from basalt_engine.system import SystemTable
from basalt_engine.table import Put, TableWrite
from tests.engine.stores.acknowledging_writer import key, row

ROWS = 60
LARGE_BYTES = 4_096
READ_BY_NOBODY = re.compile(r"LOCK|IDENTITY|LOG|LOG\.old\..*|OPTIONS-\d+|rocksdict-config\.json")
Damage = Callable[[Path], object]


def killed_copy(place: Path, name: str, flush_at: int | None = None) -> Path:
    """A directory as a killed process leaves it. Each change is one of a message and of an entry that says how many there are."""
    live, killed = place / f"{name}-live", place / name
    store = RocksStore.open(live)
    for number in range(ROWS):
        if number == ROWS // 2:
            store.close()
            store = RocksStore.open(live)
        if number == flush_at:
            store._durable.database.rows("message").flush()  # a second log, while the first one is needed still
        store.write([
            TableWrite("message", [Put(key(number), row(number))]),
            TableWrite("system", [SystemTable.put("test", "count", b"%d" % (number + 1))]),
        ])  # fmt: skip
    shutil.copytree(live, killed)
    store.close()
    return killed


@pytest.fixture(scope="module")
def killed(place: Path) -> Path:
    return killed_copy(place, "killed")


@pytest.fixture(scope="module")
def killed_with_two_logs(place: Path) -> Path:
    return killed_copy(place, "killed2", flush_at=ROWS * 3 // 4)


@pytest.fixture
def data(killed: Path, place: Path) -> Iterator[Path]:
    (place / "work").mkdir()
    yield shutil.copytree(killed, place / "work" / "data")
    shutil.rmtree(place / "work")


def count(directory: Path) -> int:
    """How many changes there are: the first ones, each of them whole."""
    store = RocksStore.open(directory)
    try:
        found = {one.key: one.columns for one in store.table("message").scan(b"", None)}
        counted = SystemTable(store.table("system")).get("test", "count")
        assert found == {key(number): row(number) for number in range(len(found))}
        assert counted == b"%d" % len(found)
        store.table("message").write([Put(b"later", {b"p": b"x"})])
        return len(found)
    finally:
        store.close()


def changes(rows: range) -> int:
    """How many changes of RocksDB these are: a large value is one of its own."""
    return sum(2 + any(len(value) >= LARGE_BYTES for value in row(number).values()) for number in rows)


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def newest(directory: Path, pattern: str) -> Path:
    return max(path for path in (directory / "rocks").glob(pattern) if path.stat().st_size)


def flip(path: Path, part: float = 0.5) -> None:
    changed = bytearray(path.read_bytes())
    changed[int(len(changed) * part)] ^= 0x10
    path.write_bytes(changed)


def mended(directory: Path) -> tuple[Diagnosis, int]:
    """Repair it, accepting what is shown: the diagnosis, and how many changes are left."""
    before = content(directory)
    shown = Repair(directory).diagnose()
    assert content(directory) == before
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    assert shown.loss is not None, shown.faults
    aside = Repair(directory).mend(shown.loss, ManualClock())
    assert content(aside) == before
    return shown, count(directory)


def test_a_whole_directory_has_nothing_to_repair(data: Path):
    assert Repair(data).diagnose() == Diagnosis((), NOTHING)
    with pytest.raises(InputError, match="is whole"):
        Repair(data).mend(NOTHING, ManualClock())
    assert count(data) == ROWS


@pytest.mark.parametrize("name", ["FORMAT", "rocks/CURRENT"])
@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_what_is_known_elsewhere_is_written_anew_and_nothing_is_lost(data: Path, name: str, damage: Damage):
    damage(data / name)
    shown, left = mended(data)
    assert (shown.loss, left, len(shown.faults)) == (NOTHING, ROWS, 1)
    assert str(data / name) in shown.faults[0]


def test_without_its_marks_the_proof_is_lost(data: Path):
    (data / "SYNCED").unlink()
    shown, left = mended(data)
    assert (shown.loss, left) == ("the proof that the newest writes are there", ROWS)


def test_a_log_that_is_cut_loses_what_was_behind_and_says_how_much(data: Path):
    log = newest(data, "*.log")
    size = log.stat().st_size
    os.truncate(log, size - 20)
    shown, left = mended(data)
    assert left == ROWS - 1
    found = re.fullmatch(r"the last 2 changes from byte ([\d,]+) of (\S+) on \(([\d,]+) bytes\)", shown.loss or "")
    assert found, shown.loss
    assert found[2] == log.name
    assert int(found[1].replace(",", "")) + int(found[3].replace(",", "")) == size


def test_a_damaged_log_loses_all_from_the_damage_on(data: Path):
    flip(newest(data, "*.log"))
    shown, left = mended(data)
    assert ROWS // 2 < left < ROWS
    assert f"the last {changes(range(left, ROWS))} changes" in str(shown.loss)


def test_a_log_that_is_gone_is_lost_as_a_whole(data: Path):
    newest(data, "*.log").unlink()
    shown, left = mended(data)
    assert left == ROWS // 2
    assert f"the last {changes(range(left, ROWS))} changes from byte 0" in str(shown.loss)


def test_other_words_repair_nothing(data: Path):
    os.truncate(newest(data, "*.log"), 100)
    before = content(data)
    for words in ("", "yes", NOTHING):
        with pytest.raises(InputError, match="what would be lost is 'the last"):
            Repair(data).mend(words, ManualClock())
    assert content(data) == before
    assert [path.name for path in data.parent.iterdir()] == ["data"]


@pytest.mark.parametrize("pattern", ["*.sst", "*.blob", "MANIFEST-*"])
@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_what_only_a_backup_has_is_beyond_repair(data: Path, pattern: str, damage: Damage):
    path = newest(data, pattern)
    damage(path)
    before = content(data)
    shown = Repair(data).diagnose()
    assert shown.loss is None
    assert path.name in shown.faults[0]
    with pytest.raises(CorruptionError, match=re.escape(path.name)) as refused:
        Repair(data).mend(NOTHING, ManualClock())
    assert "backup" in str(refused.value.hint)
    assert content(data) == before


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_an_older_log_that_table_files_are_newer_than_is_beyond_repair(
    killed_with_two_logs: Path, place: Path, damage: Damage
):
    """What is left would be messages without the entries that were written with them."""
    data = shutil.copytree(killed_with_two_logs, place / "hole")
    older, _newer = sorted(path for path in (data / "rocks").glob("*.log") if path.stat().st_size)
    damage(older)
    shown = Repair(data).diagnose()
    shutil.rmtree(data)
    assert shown.loss is None
    assert older.name in shown.faults[0]
    assert "would have a hole" in shown.faults[-1]


def test_large_files_are_not_copied(data: Path, monkeypatch: pytest.MonkeyPatch):
    copied = []
    copyfile = shutil.copyfile
    monkeypatch.setattr(
        shutil, "copyfile", lambda source, target: copied.append(source.suffix) or copyfile(source, target)
    )
    (data / "FORMAT").unlink()
    blobs = {path.stat().st_ino for path in (data / "rocks").glob("*.blob")}
    mended(data)
    assert {".sst", ".blob"}.isdisjoint(copied)
    assert blobs <= {path.stat().st_ino for path in (data / "rocks").glob("*.blob")}


def test_where_there_are_no_hard_links_files_are_copied(data: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(_source: Path, _target: Path) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    (data / "FORMAT").unlink()
    assert mended(data)[1] == ROWS


def test_a_directory_that_a_server_has_open_is_refused(place: Path):
    store = RocksStore.open(place / "open")
    with pytest.raises(DataDirectoryError, match="in use"):
        Repair(place / "open").diagnose()
    store.close()
    with pytest.raises(DataDirectoryError, match="not a directory"):
        Repair(place / "nowhere")


def damages(size: int) -> Iterator[Damage]:
    yield Path.unlink
    yield lambda path: os.truncate(path, 0)
    yield lambda path: os.truncate(path, size // 2)
    for part in range(0, 100, 12):
        yield lambda path, part=part: flip(path, part / 100)


def test_no_repair_of_any_file_makes_a_hole_or_loses_more_than_it_says(killed_with_two_logs: Path, place: Path):
    outcomes = set()
    for name in sorted(content(killed_with_two_logs)):
        if READ_BY_NOBODY.fullmatch(Path(name).name):
            continue
        for damage in damages((killed_with_two_logs / name).stat().st_size):
            (place / "any").mkdir()
            data = shutil.copytree(killed_with_two_logs, place / "any" / "data")
            if (data / name).stat().st_size:
                damage(data / name)
                shown = Repair(data).diagnose()
                if shown.loss is None:
                    outcomes.add("beyond")
                elif shown.faults:
                    _, left = mended(data)
                    told = re.search(r"the last ([\d,]+ )?change", shown.loss)
                    lost = int((told[1] or "1").replace(",", "")) if told else 0
                    assert changes(range(left, ROWS)) == lost, (name, shown)
                    outcomes.add("mended")
                else:
                    assert count(data) == ROWS
                    outcomes.add("whole")
            shutil.rmtree(place / "any")
    assert outcomes == {"beyond", "mended", "whole"}
