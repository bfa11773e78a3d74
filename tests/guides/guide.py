"""A guide of docs/guides as a program: the files that it shows, and the commands with what they print, run as they are written.

A fenced block with a second word in its first line (```` ```python worker.py ````) is a file of that name. A block of `console` is a session:
a line that begins with `$ ` is a command (it goes on in the next line behind a backslash, and within quotes), the lines behind it are all that it
prints. In those `…` stands for any text of a line, and a line of `…` alone for any lines. Every command must succeed. Other blocks are to be read.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PAGE_SECONDS_MAX = 420  # a bound for a hang on a loaded machine, not an expectation
END_OF_COMMAND = "\x1e"  # no output of a guide has one

_BLOCK = re.compile(r"^```(?P<kind>\w+)(?: (?P<name>[\w.-]+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NOTICE = re.compile(
    r"^\S+: line \d+: +\d+ (Killed|Terminated)\b.*$", re.MULTILINE
)  # a shell with a person before it says but that


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and the lines that the page says it prints."""

    command: str
    printed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Guide:
    """What a page has to be run."""

    files: dict[str, str]
    steps: list[Step]

    @property
    def programs(self) -> set[str]:
        """The first words of its commands, of pipes and of substitutions as well."""
        return {word for step in self.steps for word in re.findall(r"(?:^|[|(;&]\s*)(\w[\w-]*)\b(?!=)", step.command)}


def read_guide(page: str) -> Guide:
    """The guide on a page. A file that is shown twice is an error: which of them counts?"""
    files: dict[str, str] = {}
    steps: list[Step] = []
    for block in _BLOCK.finditer(page):
        if block["name"]:
            assert block["name"] not in files, f"{block['name']} is shown twice"
            files[block["name"]] = block["text"]
        elif block["kind"] == "console":
            steps += _steps(block["text"])
    return Guide(files, steps)


def _steps(session: str) -> list[Step]:
    steps: list[Step] = []
    lines = iter(session.splitlines())
    for line in lines:
        if not line.startswith("$ "):
            assert steps, f"a session begins with a command, not with {line!r}"
            steps[-1] = Step(steps[-1].command, (*steps[-1].printed, line))
            continue
        command = line.removeprefix("$ ")
        while command.endswith("\\") or _in_quotes(command):
            command += "\n" + next(lines)
        steps.append(Step(command, ()))
    return steps


def _in_quotes(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:
        return True
    return False


def run_guide(guide: Guide, folder: Path, instead: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Run it in a folder that is its own. `instead` are words of the page that are others here, such as a port."""
    folder.mkdir()
    for name, text in guide.files.items():
        (folder / name).write_text(_replaced(text, instead))
    script = folder.with_suffix(".sh")
    script.write_text(
        "".join(f"{_replaced(each.command, instead)}\nprintf '\\n\\036%d\\n' $?\n" for each in guide.steps)
    )
    output = folder.with_suffix(".out")
    with output.open("wb") as written:
        process = subprocess.Popen(
            ["bash", str(script)], cwd=folder, env=_environment(folder) | dict(environment),
            stdin=subprocess.DEVNULL, stdout=written, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(PAGE_SECONDS_MAX)
        finally:  # what the page has left in the background, too
            subprocess.run(["kill", "-9", "--", f"-{process.pid}"], capture_output=True, check=False)
            process.wait()
    answers = _COLOUR.sub("", output.read_text(errors="replace")).split(END_OF_COMMAND)
    texts = [answers[0], *(answer.partition("\n")[2] for answer in answers[1:])]
    texts = [_NOTICE.sub(r"\1", text) for text in texts]
    codes = [answer.partition("\n")[0] for answer in answers[1:]]
    for step, text, code in zip(guide.steps, texts, codes, strict=False):
        _check(step, _replaced(text, {there: here for here, there in instead.items()}), code)
    assert len(codes) == len(guide.steps), f"the session ended early: {texts[-1]}"


def _check(step: Step, text: str, code: str) -> None:
    lines = text.strip("\n").splitlines() if text.strip() else []
    assert code == "0", f"$ {step.command}\nended with {code}:\n{text}"
    if not matches(step.printed, lines):
        difference = "\n".join(difflib.unified_diff(step.printed, lines, "the page", "the run", lineterm=""))
        raise AssertionError(f"$ {step.command}\n{difference}")


def matches(wanted: tuple[str, ...], lines: list[str]) -> bool:
    """Whether these lines are those that a page shows."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else re.escape(line.rstrip()).replace("…", ".*") + "\n" for line in wanted
    )
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in lines)) is not None


def missing_programs(guide: Guide) -> list[str]:
    """The programs that a guide calls and that are not here. A program of Python's comes with the package."""
    return sorted(
        name for name in guide.programs & {"curl", "java", "javac", "mvn", "jq"} if shutil.which(name) is None
    )


def _replaced(text: str, instead: Mapping[str, str]) -> str:
    for written, here in instead.items():
        text = text.replace(written, here)
    return text


def _environment(folder: Path) -> dict[str, str]:
    """A user's who has installed Basalt and set nothing."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("BASALT")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{given['PATH']}"
    return given | {"PATH": path, "XDG_CONFIG_HOME": str(folder.with_suffix(".config")), "LC_ALL": "C.UTF-8"}
