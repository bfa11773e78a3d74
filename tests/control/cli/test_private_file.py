"""A file with a secret in it: for its owner alone from the beginning, and there whole or not at all."""

from __future__ import annotations

import os

import pytest

from basalt.cli.private_file import PrivateFile


@pytest.fixture(autouse=True)
def _open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_new_file_is_its_owners_alone_from_the_beginning(tmp_path):
    path = tmp_path / "token"
    with PrivateFile(path) as file:
        assert path.stat().st_mode & 0o777 == 0o600
        file.fill("one\n")
    assert path.read_text() == "one\n"


@pytest.mark.parametrize("replace", [False, True])
def test_a_block_that_fills_nothing_leaves_things_as_they_were(tmp_path, replace):
    path = tmp_path / "token"
    if replace:
        path.write_text("old")
    with pytest.raises(KeyError), PrivateFile(path, replace=replace):
        raise KeyError
    assert [each.name for each in tmp_path.iterdir()] == (["token"] if replace else [])


def test_a_file_that_is_there_is_left_alone(tmp_path):
    path = tmp_path / "token"
    path.write_text("old")
    with pytest.raises(FileExistsError), PrivateFile(path):
        pass
    assert path.read_text() == "old"
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError), PrivateFile(tmp_path / "link"):
        pass
    assert not (tmp_path / "target").exists()


def test_a_file_that_is_replaced_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "token"
    path.write_text("old")
    path.chmod(0o644)
    with PrivateFile(path, replace=True) as file:
        assert path.read_text() == "old"
        file.fill("new")
    assert (path.read_text(), path.stat().st_mode & 0o777, len(list(tmp_path.iterdir()))) == ("new", 0o600, 1)
