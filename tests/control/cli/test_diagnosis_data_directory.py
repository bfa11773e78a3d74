"""What doctor sees of a data directory, from outside."""

from __future__ import annotations

import fcntl

import pytest

from basalt.cli.commands.diagnosis import check_data_directory

FORMAT = "Basalt data directory\nformat: {}\nstore: rocks\ncreated by: basalt-mq 0.1\nstate: initialised\ncrc32c: 0\n"


def checked(path) -> dict[str, tuple[bool, str]]:
    return {check.name: (check.ok, check.detail) for check in check_data_directory(path)}


def test_a_directory_that_is_not_there_or_none_ends_the_checks(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for path, reason in ((tmp_path / "none", "does not exist"), (file, "is not a directory")):
        assert list(checked(path)) == ["data directory"]
        assert reason in checked(path)["data directory"][1]


def test_an_empty_directory_is_fine_and_said_to_be_empty(tmp_path):
    found = checked(tmp_path)
    assert found["format"] == (True, "empty: a server would make a store here")
    assert found["lock"] == (True, "no store has been opened here yet")
    assert "are free" in found["disk space"][1]


def test_a_directory_that_others_may_look_into_is_not_well(tmp_path):
    tmp_path.chmod(0o700)
    assert checked(tmp_path)["rights"] == (True, "its owner's alone")
    tmp_path.chmod(0o755)
    (rights,) = [check for check in check_data_directory(tmp_path) if check.name == "rights"]
    assert (rights.ok, rights.detail) == (False, "other users of this machine may read, enter it (mode 0755)")
    assert rights.hint.startswith(f"chmod 700 {tmp_path}")


@pytest.mark.parametrize(
    ("content", "ok", "said"),
    [
        (FORMAT.format(1), True, "format 1, created by basalt-mq 0.1, initialised"),
        (FORMAT.format(2), False, "format 2, created by basalt-mq 0.1, initialised; this program reads 1"),
        (FORMAT.format(3), False, "format 3, created by basalt-mq 0.1, initialised; this program reads 1"),
        (FORMAT.format("x"), False, "this program reads 1"),
        ("", False, "format unknown"),
        ("\x00\x01\x02", False, "format unknown"),
    ],
)
def test_the_format_is_told(tmp_path, content, ok, said):
    (tmp_path / "FORMAT").write_text(content)
    found = checked(tmp_path)["format"]
    assert found[0] is ok
    assert said in found[1]


def test_a_directory_of_something_else_is_not_ours(tmp_path):
    (tmp_path / "thesis.tex").touch()
    assert checked(tmp_path)["format"][0] is False


def test_the_holder_of_the_lock_is_named_and_keeps_it(tmp_path):
    path = tmp_path / "LOCK"
    path.write_text("4711\n")
    assert checked(tmp_path)["lock"] == (True, "no process has the store open")
    with path.open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "process 4711 has the store open" in checked(tmp_path)["lock"][1]
        assert "process 4711 has the store open" in checked(tmp_path)["lock"][1]
    with path.open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
