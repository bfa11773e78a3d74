"""The quick start of the README, pasted as it is: into a shell and a Python in an empty folder, by a user who has nothing yet.

Only the port is the test's own: the server's comes from its environment, and the URL in the Python block is replaced.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from tests.ports import reserved_port

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 240.0
URL = "http://127.0.0.1:4780"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def blocks() -> dict[str, str]:
    """The blocks of the quick start, by language."""
    chapter = (ROOT / "README.md").read_text().partition("\n## Quick start\n")[2].partition("\n## ")[0]
    found = dict(BLOCK.findall(chapter))
    assert set(found) == {"sh", "python"}
    return found


@pytest.fixture
def port() -> Iterator[int]:
    """One that is nobody else's, in place of 4780."""
    with reserved_port() as number:
        yield number


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder; no server runs in it afterwards."""
    work = tmp_path / "work"
    work.mkdir()
    yield work
    with suppress(FileNotFoundError, ProcessLookupError, ValueError):
        os.kill(int((work / "data" / "LOCK").read_text()), signal.SIGKILL)


@pytest.fixture
def environment(tmp_path: Path, port: int) -> Mapping[str, str]:
    """Nothing of the test run's but where `basalt` and Python's packages are."""
    home, programs = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    (programs / "basalt").write_text(f'#!/bin/sh\nexec {sys.executable} -m basalt.cli.main "$@"\n')
    (programs / "basalt").chmod(0o755)
    return {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(home),
        "PYTHONPATH": f"{ROOT / 'engine'}:{ROOT / 'control'}",
        "BASALT__SERVER__PORT": str(port),
        "BASALT_URL": f"http://127.0.0.1:{port}",
    }


def paste(command: list[str], text: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Type the text into the program; what it printed. It must have ended well, with all that it started to have let go."""
    done = subprocess.run(
        command,
        input=text,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Error" not in done.stderr, done.stderr
    return done.stdout


def last_words(said: str) -> list[str]:
    """The payloads of two messages on the last lines, behind an id and a time."""
    return [line.split("  ", 2)[2] for line in said.splitlines()[-2:]]


def test_the_quick_start_works_when_it_is_pasted(
    blocks: dict[str, str], folder: Path, environment: Mapping[str, str], port: int
):
    said = paste(["bash", "-e"], blocks["sh"], folder, environment)
    assert said.splitlines()[0] == f"http://127.0.0.1:{port}"
    assert last_words(said) == ["one armchair", "two tables"]
    program = blocks["python"].replace(URL, f"http://127.0.0.1:{port}")
    assert program != blocks["python"]
    lines = paste([sys.executable, "-"], program, folder, environment).splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["one armchair", "two tables", "one lamp"]
    # At a prompt a block ends with an empty line, so there must be none within it.
    typed = paste([sys.executable, "-i", "-q", "-"], program + "\n", folder, environment).splitlines()
    assert typed[-1].endswith("one lamp")


def test_commands_that_follow_a_start_in_the_background_of_the_shell_wait_for_it(
    blocks: dict[str, str], folder: Path, environment: Mapping[str, str]
):
    first, rest = blocks["sh"].split("\n", 1)
    for_the_shell = first.replace("--background", "2> basalt.log &")
    assert for_the_shell != first
    script = f"{for_the_shell}\n{rest}kill $!\nwait $!\n"
    assert last_words(paste(["bash", "-e"], script, folder, environment)) == ["one armchair", "two tables"]
