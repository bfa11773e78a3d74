"""A data directory that is read only: by several at a time, unchanged, and only where nobody has it open."""

from __future__ import annotations

from pathlib import Path

import pytest

from basalt_engine.errors import CorruptionError, DataDirectoryError, InputError
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.stores.rocks.read_only import ReadOnlyRocksStore
from basalt_engine.table import Put, Row

ROWS = [Row(b"row %d" % number, {b"p": b"x" * (10 if number % 2 else 100_000)}) for number in range(6)]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkpoint with rows in table files and in the log."""
    store = RocksStore.open(tmp_path / "data")
    store.table("message").write([Put(*row) for row in ROWS[:3]])
    store.close()
    store = RocksStore.open(tmp_path / "data")
    store.table("message").write([Put(*row) for row in ROWS[3:]])
    store.checkpoint(tmp_path / "copy")
    store.close()
    return tmp_path / "copy"


def files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_two_read_the_same_directory_and_change_no_file(copy: Path):
    before = files(copy)
    with ReadOnlyRocksStore.open(copy) as one, ReadOnlyRocksStore.open(copy) as other:
        assert list(one.table("message").scan(b"", None)) == list(other.table("message").scan(b"", None)) == ROWS
        assert one.table("message").get(b"row 4") == ROWS[4].columns
    assert files(copy) == before


def test_writes_are_refused(copy: Path):
    with ReadOnlyRocksStore.open(copy) as store:
        with pytest.raises(InputError, match="to be read only"):
            store.table("message").write([Put(b"k", {b"c": b"v"})])
        with pytest.raises(InputError, match="to be read only"):
            store.table("message").check_and_write(b"k", b"c", None, {b"c": b"v"})


def test_a_directory_that_is_open_or_not_whole_is_refused(copy: Path, tmp_path: Path):
    store = RocksStore.open(copy)
    with pytest.raises(DataDirectoryError, match="a server has"):
        ReadOnlyRocksStore.open(copy)
    store.close()
    ReadOnlyRocksStore.open(copy).close()
    with pytest.raises(DataDirectoryError, match="no file FORMAT"):
        ReadOnlyRocksStore.open(tmp_path)
    format_file = copy / "FORMAT"
    format_file.write_bytes(format_file.read_bytes()[:-2])
    with pytest.raises(CorruptionError):
        ReadOnlyRocksStore.open(copy)
