"""A directory that takes another one's place. That no crash cuts it: tests/engine/stores/test_restore.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from basalt_engine.errors import DataDirectoryError, StoreError
from basalt_engine.stores.rocks.replacement import UNFINISHED, Replacement

NOW_MS = 1_700_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory, as far as its names tell, with a backup in it."""
    for name in ("rocks", "backups"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "old").touch()
    return tmp_path / "data"


def replace(place: Path, *, put_aside: bool = True) -> Path | None:
    with Replacement.begin(place, place.parent, put_aside=put_aside) as replacement:
        (replacement.new / "rocks").mkdir()
        (replacement.new / "rocks" / "new").touch()
        return replacement.finish(NOW_MS)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_old_directory_is_put_aside_and_its_backups_stay(data: Path):
    aside = replace(data)
    assert aside == data.with_name("data.aside-20231114T221320Z")
    assert (names(data / "rocks"), names(data / "backups"), names(aside / "rocks")) == (["new"], ["old"], ["old"])
    assert replace(data) == data.with_name("data.aside-20231114T221320Z-2")
    assert not any((path / UNFINISHED).exists() for path in data.parent.iterdir())


def test_what_is_not_finished_changes_nothing(data: Path):
    with pytest.raises(KeyboardInterrupt), Replacement.begin(data, data, put_aside=True) as replacement:
        (replacement.new / "half").touch()
        raise KeyboardInterrupt
    assert names(data.parent) == ["data"]
    assert names(data / "rocks") == ["old"]


def test_what_a_crash_left_is_begun_anew_and_anything_else_is_in_the_way(data: Path):
    left = data.with_name("data.new")
    (left / "rocks").mkdir(parents=True)
    with pytest.raises(DataDirectoryError, match="in the way"):
        replace(data)
    assert names(left) == ["rocks"]
    (left / UNFINISHED).touch()
    (left / "rocks" / "half").touch()
    replace(data)
    assert names(data / "rocks") == ["new"]


def test_two_at_once_do_not_mix(data: Path, tmp_path: Path):
    place = tmp_path / "place"
    with Replacement.begin(place, data, put_aside=False), pytest.raises(DataDirectoryError, match="another process"):
        replace(place)
    replace(place)
    with (
        Replacement.begin(data, data, put_aside=True),
        pytest.raises(DataDirectoryError, match="in use by process"),
    ):
        replace(data)


def test_a_link_to_a_data_directory_stays_one(data: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(data)
    replace(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert names(data / "rocks") == ["new"]


def test_a_file_system_of_its_own_cannot_be_replaced(data: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.path.ismount", lambda path: path == data)
    with pytest.raises(DataDirectoryError, match="a file system of its own"):
        replace(data)


def test_a_file_system_that_cannot_exchange_keeps_both_directories(data: Path, monkeypatch: pytest.MonkeyPatch):
    class Nothing:
        """A C library without the call."""

    monkeypatch.setattr("ctypes.CDLL", lambda *_arguments, **_keywords: Nothing())
    with pytest.raises(StoreError, match="which is finished") as failed:
        replace(data)
    assert "move" in str(failed.value.hint)
    (aside,) = data.parent.glob("data.aside-*")
    assert (names(data / "rocks"), names(aside / "rocks")) == (["old"], ["new"])
