"""Tests that pages name as what shows a promise are there, by these names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.syntax import nodes_of

MENTION = re.compile(r"`(?P<path>tests/[\w./-]+\.(?:py|story))(?:::(?P<test>\w+)(?:\[(?P<case>[^\]`]+)\])?)?`")
BARE = re.compile(r"`(?P<test>test_\w+)(?:\[[^\]`]*\])?`")  # of the file named last before it
SHOWN = Path("docs/operations/groups-shown.md")
RULE = "tests/control/http/test_groups_rule.py"


def named_in(tree: ast.Module) -> set[str]:
    return {
        node.name
        for node in nodes_of(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize("page", ["docs/operations/promises.md", str(SHOWN)])
def test_every_test_that_a_page_names_is_there(root: Path, modules: dict[str, ast.Module], page: str):
    missing = []
    for path, test, _ in MENTION.findall((root / page).read_text()):
        found = modules.get(path)
        if not (root / path).exists() or (test and (found is None or test not in named_in(found))):
            missing.append(f"{path}::{test}")
    assert missing == []


def test_tests_that_are_named_without_a_file_are_in_one_of_the_page(root: Path, modules: dict[str, ast.Module]):
    page = (root / SHOWN).read_text()
    known = {test for path, *_ in MENTION.findall(page) if path in modules for test in named_in(modules[path])}
    assert sorted({match["test"] for match in BARE.finditer(page)} - known) == []


def test_the_states_of_the_rule_are_those_of_its_tests(root: Path, modules: dict[str, ast.Module]):
    """So each cell of the table is a case of its row's tests."""
    (states,) = (
        ast.literal_eval(node.value)
        for node in modules[RULE].body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "STATES"
    )
    header = next(line for line in (root / SHOWN).read_text().splitlines() if line.startswith("| event"))
    assert header.split("|")[2:-2] == [f" {state} " for state in states]
