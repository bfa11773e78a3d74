"""What the comparison and the page for users of Kafka say of Basalt's own commands: that they are there, with these options."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from basalt.cli.reference import commands
from basalt.cli.root import root as command_root

CODE = re.compile(r"`([^`]+)`")


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """Every command, and every group, with the options that it takes."""
    found = commands(command_root, click.Context(command_root, info_name="basalt"))
    options = {path: {option for each in command.params for option in each.opts} for path, command, _ in found}
    for path in list(options):
        while path := path.rpartition(" ")[0]:
            options.setdefault(path, set())
    return options


def told(page: str, column: str) -> list[str]:
    """The command lines in the cells of the tables' column of this heading."""
    lines: list[str] = []
    place = 0
    for line in page.splitlines():
        cells = re.split(r"(?<!\\\\)\|", line)
        if f" {column} " in cells:
            place = cells.index(f" {column} ")
        elif not line.startswith("|"):
            place = 0
        elif place:
            lines += CODE.findall(cells[place])
    return lines


def unknown(lines: list[str], known: dict[str, set[str]]) -> list[str]:
    """Those whose command or option is not there. What begins with an option belongs to the line before it."""
    wrong: list[str] = []
    command = ""
    for line in lines:
        words = line.removeprefix("basalt ").split()
        path = [word for word in words if re.fullmatch("[a-z-]+", word) and word[0] != "-"]
        while path and " ".join(["basalt", *path]) not in known:
            path.pop()
        command = " ".join(["basalt", *path]) if path else command
        if (not path and words[0][0] not in "-/") or any(
            word[:2] == "--" and word not in known[command] for word in words
        ):
            wrong.append(line)
    return wrong


@pytest.mark.parametrize(
    ("page", "column", "least"), [("docs/comparison.md", "`basalt`", 40), ("docs/guides/kafka.md", "Basalt", 10)]
)
def test_each_command_of_basalts_column_is_there(
    root: Path, known: dict[str, set[str]], page: str, column: str, least: int
):
    lines = told((root / page).read_text(), column)
    if column == "Basalt":  # the page has tables of words as well
        lines = [line for line in lines if line.startswith("basalt ")]
    assert len(lines) >= least
    assert unknown(lines, known) == []


def test_a_command_or_option_that_is_not_there_is_found(known: dict[str, set[str]]):
    assert unknown(["topic fold", "topic list --far", "queue list"], known) == ["topic list --far", "queue list"]
