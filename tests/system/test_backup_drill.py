"""The drill of docs/operations/backup.md, run as it would be pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import reserved_port

pytestmark = pytest.mark.system

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "backup.md"
DRILL_SECONDS_MAX = 240  # a bound for a hang on a loaded machine


def drill(port: int) -> str:
    """The block under the heading, as it is pasted but for the port, which may be taken here."""
    section = PAGE.read_text().split("## The drill")[1].split("\n## ")[0]
    lines = re.findall(r"^(?:    (.*))?$", section, re.MULTILINE)
    return "\n".join(lines).replace("4790", str(port))


def test_the_drill_puts_back_what_was_lost(tmp_path: Path):
    """Make a backup, verify it, lose what came later, restore, and keep what was there."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "basalt").write_text(f'#!/bin/sh\nexec {sys.executable} -m basalt.cli.main "$@"\n')
    (programs / "basalt").chmod(0o755)
    folder = tmp_path / "drill"
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BASALT")}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    with reserved_port() as port:
        ran = subprocess.run(
            ["bash", "-eu", "-c", drill(port)], cwd=folder, env=environment, text=True, capture_output=True,
            timeout=DRILL_SECONDS_MAX, check=False,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "nightly is whole" in ran.stdout
    assert "elsewhere is whole" in ran.stdout
    assert [line.split()[-1] for line in (folder / "consumed").read_text().splitlines()] == ["one", "two"]
    (aside,) = folder.glob("data.aside-*")
    assert (aside / "rocks" / "CURRENT").exists()
    assert list((folder / "data" / "backups").iterdir()) == []
