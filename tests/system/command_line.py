"""The command line as a user has it: a program `basalt` in the path, run by a shell or directly."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

RUN_SECONDS_MAX = 300.0  # a bound for a hang on a loaded machine


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str


class CommandLine:
    """Commands that run in a folder of their own, against one server."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self.folder = folder
        programs = folder / "programs"
        programs.mkdir()
        program = programs / "basalt"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m basalt.cli.main "$@"\n')
        program.chmod(0o755)
        given = {name: value for name, value in os.environ.items() if not name.startswith("BASALT")}
        self.environment = given | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(folder / "config"),
            "PYTHONUNBUFFERED": "1",
        }
        if url:
            self.environment["BASALT_URL"] = url

    def run(self, *arguments: str, stdin: bytes = b"", **environment: str) -> Ran:
        """Run `basalt` with these arguments."""
        return self._ran(["basalt", *arguments], stdin, environment)

    def shell(self, command: str, stdin: bytes = b"") -> Ran:
        """Run a shell's command; its code is that of the first command of a pipe that failed."""
        return self._ran(["bash", "-c", f"set -o pipefail; {command}"], stdin, {})

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `basalt` and do not wait for it."""
        return subprocess.Popen(
            ["basalt", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.folder,
        )

    def _ran(self, command: list[str], stdin: bytes, environment: dict[str, str]) -> Ran:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            env=self.environment | environment,
            cwd=self.folder,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
