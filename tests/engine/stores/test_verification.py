"""Verification: every byte of a data directory counts, and whoever verifies sees how far it is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from basalt_engine.errors import BasaltError, CorruptionError, DataDirectoryError
from basalt_engine.metadata import METADATA
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.stores.rocks.verification import FAULTS_MAX, ROWS, Verification
from basalt_engine.system import SystemTable
from basalt_engine.table import Delete, Put
from tests.engine.stores.acknowledging_writer import write

FLIPS = 25  # positions per file
READ_BY_NOBODY = re.compile(r"LOCK|IDENTITY|LOG|LOG\.old\..*|OPTIONS-\d+|rocksdict-config\.json")


@pytest.fixture(scope="module")
def backup(place: Path) -> Path:
    """A backup of rows in table files and in blob files, some of them overwritten."""
    store = RocksStore.open(place / "data")
    for _ in range(2):
        for number in range(60):
            write(store, number)
        store._durable.database.rows("message").flush()
    store.table("system").write([Delete(b"last"), SystemTable.put("install", "facts", b"{}")])
    store.checkpoint(place / "backup")
    store.close()
    return place / "backup"


@pytest.fixture
def copy(backup: Path, tmp_path: Path) -> Path:
    return shutil.copytree(backup, tmp_path / "copy")


def faults(directory: Path) -> list[str]:
    try:
        return [fault for page in Verification(directory).pages() for fault in page.faults]
    except BasaltError as error:
        return [error.message]


def files(directory: Path) -> list[str]:
    """The names of the files that matter, that are not empty."""
    paths = [path for path in directory.rglob("*") if path.is_file() and path.stat().st_size]
    return sorted(str(path.relative_to(directory)) for path in paths if not READ_BY_NOBODY.fullmatch(path.name))


def test_a_whole_backup_has_no_faults_and_is_not_changed(copy: Path):
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert faults(copy) == []
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_a_flipped_byte_is_found_wherever_it_is(copy: Path):
    kinds = {re.sub(r"[\d.]+", "#", name) for name in files(copy)}
    assert {"FORMAT", "SYNCED", "rocks/CURRENT", "rocks/MANIFEST-#", "rocks/#sst", "rocks/#blob"} <= kinds
    missed = []
    for name in files(copy):
        path = copy / name
        whole = path.read_bytes()
        for number in range(FLIPS):
            at = len(whole) * number // FLIPS
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
            if not faults(copy):
                missed.append((name, at))
        path.write_bytes(whole)
    # SYNCED has two slots, and one is enough; behind a slot's line nothing has a meaning.
    assert [one for one in missed if one[0] != "SYNCED"] == []


def test_a_missing_or_cut_file_is_found_and_named(copy: Path):
    for name in files(copy):
        path = copy / name
        whole = path.read_bytes()
        path.unlink()
        assert path.name in faults(copy)[0]
        path.write_bytes(whole[:-1])
        assert name == "SYNCED" or path.name in faults(copy)[0]  # its end has no meaning
        path.write_bytes(whole)
    assert faults(copy) == []


def test_a_damaged_file_among_others_is_the_only_fault(copy: Path):
    tables = sorted((copy / "rocks").glob("*.sst"))
    content = bytearray(tables[1].read_bytes())
    content[20] ^= 1
    tables[1].write_bytes(content)
    assert faults(copy) == [f"{tables[1]} is damaged: it is not as it was written"]


def test_pages_are_whole_files_and_can_be_gone_on_with_by_another(copy: Path):
    checked, start, names = 0, None, []
    while True:
        page = Verification(copy).page(start, page_bytes=1)
        assert page.faults == ()
        checked += page.checked_bytes
        start = page.next
        names.append(start)
        if start is None:
            break
    verification = Verification(copy)
    assert names == [*[file.name for file in verification.files[1:]], ROWS, None]
    assert checked == verification.total_bytes
    with pytest.raises(CorruptionError, match=r"does not need a file '\.\./x'"):
        verification.page("../x")


def test_rows_on_which_all_depends_are_decoded(place: Path):
    store = RocksStore.open(place / "wrong")
    store.table("metadata").write([Put(b"shop:orders:", {METADATA: b"no metadata"})])
    store.table("system").write([Put(b"job:retention", {b"v": b"\1{}cut"})])
    store.checkpoint(place / "wrong-backup")
    store.close()
    found = faults(place / "wrong-backup")
    assert [("shop:orders" in found[0]), ("job:retention" in found[1]), len(found)] == [True, True, 2]


def test_no_more_faults_are_told_of_one_page_than_anybody_reads(place: Path):
    store = RocksStore.open(place / "many")
    store.table("system").write([Put(b"job:%d" % number, {b"v": b"cut"}) for number in range(FAULTS_MAX + 1)])
    store.close()
    (*_, rows) = Verification(place / "many").pages()
    assert len(rows.faults) == FAULTS_MAX


def test_a_directory_that_a_server_has_open_is_refused(place: Path):
    store = RocksStore.open(place / "open")
    with pytest.raises(DataDirectoryError, match=r"has .* open"):
        Verification(place / "open")
    store.close()
