"""What `make venv` shows while pip works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.hbase.runtime import ROOT
from deploy.locked_install import install, pinned, told

PIP = """\
Ignoring colorama: markers 'sys_platform == "win32"' don't match your environment
Collecting aiohttp==3.14.5 (from -r requirements/runtime.txt (line 1))
  Downloading aiohttp-3.14.5-cp311-manylinux.whl (1.7 MB)
Requirement already satisfied: click==8.5.1 in ./lib (from -r requirements/runtime.txt (line 9))
Installing collected packages: aiohttp
Successfully installed aiohttp-3.14.5
"""


def test_each_package_is_told_with_its_number_and_size():
    assert [text for _, text in told(PIP.splitlines(keepends=True), 3)] == [
        "1 of 3: colorama",
        "2 of 3: aiohttp",
        "2 of 3: aiohttp, 1.7 MB",
        "3 of 3: click",
        "3 of 3: writing them into the environment",
    ]


def test_a_requirement_of_two_locks_counts_once(tmp_path: Path):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("click==8.5.1 \\\n    --hash=sha256:00\nAioHTTP==3.14.5 ; marker\n")
    two.write_text("aiohttp==3.14.5 \\\n    --hash=sha256:00\nuvicorn[standard]==1\n")
    assert pinned([one, two]) == 3


def pretended(tmp_path: Path, code: int) -> list[str]:
    program = tmp_path / "pip.py"
    program.write_text(f"import sys\nsys.stdout.write({PIP!r})\nprint('because', sys.argv[1:])\nsys.exit({code})\n")
    return [sys.executable, str(program)]


def test_what_pip_said_is_shown_when_it_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    lock = tmp_path / "lock.txt"
    lock.write_text("aiohttp==3.14.5\n")
    assert install([lock], pretended(tmp_path, 0)) == 0
    shown = capfd.readouterr()
    assert "aiohttp" in shown.out
    assert shown.err == ""
    assert install([lock], pretended(tmp_path, 3)) == 3
    shown = capfd.readouterr()
    assert "because ['--require-hashes'" in shown.err


@pytest.mark.parametrize("target", ["venv", "demo", "dist"])
def test_running_needs_neither_pyspark_nor_the_tools(target: str, tmp_path: Path):
    """What make would do where there is no environment yet."""
    asked = ["make", "--dry-run", f"VENV={tmp_path / 'venv'}", target]
    plan = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "requirements/runtime.txt" in plan
    assert "requirements/dev.txt" not in plan
