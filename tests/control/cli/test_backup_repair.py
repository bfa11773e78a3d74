"""`basalt repair`: shows first, and mends in the words that it has shown. What can be mended: tests/engine/stores/test_repair.py."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from basalt_engine.stores.rocks import RocksStore
from basalt_engine.table import Put
from tests.control.cli.conftest import Run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A killed server's directory in a folder whose name a shell must quote."""
    store = RocksStore.open(tmp_path / "live")
    for number in range(20):
        store.table("message").write([Put(b"%d" % number, {b"p": b"x" * 100})])
    (tmp_path / "my data").mkdir()
    killed = shutil.copytree(tmp_path / "live", tmp_path / "my data" / "killed")
    store.close()
    return killed


def cut(data: Path) -> None:
    log = max(path for path in (data / "rocks").glob("*.log") if path.stat().st_size)
    os.truncate(log, log.stat().st_size - 10)


def test_a_whole_directory_is_told_to_be_whole(run: Run, data: Path):
    ran = run("repair", str(data))
    assert (ran.code, ran.out) == (0, f"{data} is whole\n")
    ran = run("repair", str(data), "--accept-loss", "nothing")
    assert (ran.code, "is whole" in ran.err) == (1, True)


def test_it_shows_the_command_that_mends_and_this_mends(run: Run, data: Path):
    cut(data)
    shown = run("repair", str(data))
    assert shown.code == 7
    damaged, lost, way = shown.out.splitlines()
    assert damaged.startswith("damaged: ")
    assert "the last change from byte" in lost
    refused = run("repair", str(data), "--accept-loss", "all of it")
    assert (refused.code, "what would be lost is" in refused.err) == (1, True)
    program, *arguments = shlex.split(way.removeprefix("nothing was changed; to mend it: "))
    assert program == "basalt"
    assert run(*arguments, "--dry-run").out == shown.out
    done = run(*arguments)
    assert done.code == 0
    assert "the damaged directory is" in done.out
    assert run("repair", str(data)).code == 0
    assert len(list(data.parent.iterdir())) == 2


def test_what_cannot_be_mended_says_what_helps(run: Run, data: Path):
    next((data / "rocks").glob("MANIFEST-*")).unlink()
    shown = run("repair", str(data))
    assert (shown.code, "basalt backup restore SOURCE" in shown.out) == (7, True)
    told = json.loads(run("repair", str(data), "-o", "json").out)
    assert (told["loss"], len(told["faults"]) > 0) == (None, True)
    refused = run("repair", str(data), "--accept-loss", "nothing")
    assert (refused.code, refused.err.count("\n")) == (1, 1)


def test_what_is_no_data_directory_is_refused(run: Run, tmp_path: Path):
    assert run("repair", str(tmp_path / "nowhere")).code == 1
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "sea.jpg").touch()
    ran = run("repair", str(tmp_path / "photos"))
    assert (ran.code, "not Basalt's" in ran.err) == (1, True)
