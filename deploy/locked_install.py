"""Installs locked requirements and shows how far it is: `python deploy/locked_install.py requirements/runtime.txt …`.

Options among the paths are pip's own. It needs the standard library alone: it runs in an environment in which nothing is installed yet.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

LINES_KEPT_MAX = 30  # of pip's own words, shown when it fails
STEPS_TOLD = 10  # where nobody watches a terminal, a line for each tenth of the way

_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^]]*\])?==", re.MULTILINE)
# pip's lines of one requirement each; one that a marker leaves out counts, too.
_STEP = re.compile(r"(?:Collecting|Requirement already satisfied:|Ignoring) ([A-Za-z0-9][\w.-]*)")
_SIZE = re.compile(r"\s*Downloading .*\(([\d.]+ [kMG]?B)\)")


def pinned(pages: Iterable[Path]) -> int:
    """The number of requirements in these locks; one that is in two of them counts once."""
    return len({name.lower() for page in pages for name in _PIN.findall(page.read_text())})


def told(lines: Iterable[str], total: int) -> Iterator[tuple[int, str]]:
    """The number of requirements that pip has come to, and words for it, from pip's own lines."""
    seen: set[str] = set()
    name = ""
    for line in lines:
        step, size = _STEP.match(line), _SIZE.match(line)
        if step:
            name = step[1].partition("==")[0]
            seen.add(name.lower())
            yield len(seen), f"{len(seen)} of {total}: {name}"
        elif size:
            yield len(seen), f"{len(seen)} of {total}: {name}, {size[1]}"
        elif line.startswith("Installing collected packages"):
            yield total, f"{total} of {total}: writing them into the environment"


def install(pages: Sequence[Path], command: Sequence[str]) -> int:
    """Run pip for these locks, tell how far it is, and what it said when it fails. The exit code."""
    total = pinned(pages)
    arguments = [*command, "--require-hashes", "--progress-bar", "off"]
    for page in pages:
        arguments += ["--requirement", str(page)]
    kept: deque[str] = deque(maxlen=LINES_KEPT_MAX)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        _show(told(_keeping(pip.stdout, kept), total), total)
    if pip.returncode:
        sys.stderr.write("".join(kept))
    return pip.returncode


def _keeping(lines: Iterable[str], kept: deque[str]) -> Iterator[str]:
    for line in lines:
        kept.append(line)
        yield line


def _show(steps: Iterable[tuple[int, str]], total: int) -> None:
    """One line that changes, in a terminal; elsewhere some lines, one below the other."""
    step_lines = max(total // STEPS_TOLD, 1)
    next_line = step_lines
    for done, text in steps:
        if sys.stdout.isatty():
            sys.stdout.write(f"\r  {text[:76]:<76}")
        elif done >= next_line:
            sys.stdout.write(f"  {text}\n")
            next_line = done + step_lines
        sys.stdout.flush()
    if sys.stdout.isatty():
        sys.stdout.write("\r" + " " * 78 + "\r")


def main(arguments: Sequence[str]) -> int:
    """Install the locks of the command line, with its options for pip; the exit code."""
    options = [each for each in arguments if each.startswith("--")]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options]
    return install([Path(each) for each in arguments if each not in options], command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
