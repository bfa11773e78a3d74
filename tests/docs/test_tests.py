"""Tests lie where their module does, under its name: CONTRIBUTING.md, "Tests", holds the rule, and this prints what does not keep to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from tests.docs.exceptions import NAMED_OTHERWISE, TESTED_ELSEWHERE, UNNAMED

# The folder of the tests of a package, in which the package's folders are found again.
ROOMS = {
    "engine/basalt_engine": "tests/engine",
    "control/basalt": "tests/control",
    "pipeline/basalt_spark": "tests/pipeline",
}
LOGIC_LINES_MIN = 60  # in functions; what has fewer is seen by the tests of those that use it


@pytest.fixture(scope="module")
def tests(modules: dict[str, ast.Module]) -> list[PurePosixPath]:
    """The files of tests that stand for a module."""
    paths = [PurePosixPath(path) for path in modules]
    return [path for path in paths if path.name.startswith("test_") and any(map(path.is_relative_to, ROOMS.values()))]


@pytest.fixture(scope="module")
def nouns(root: Path, product: dict[str, ast.Module]) -> dict[str, list[tuple[PurePosixPath, str]]]:
    """Where the tests of each module and of each folder lie, and what their names begin with."""
    found: dict[str, list[tuple[PurePosixPath, str]]] = {}
    for path in map(PurePosixPath, product):
        for package, room in ROOMS.items():
            if not path.is_relative_to(package) or str(path) == f"{package}/__init__.py":
                continue
            inside = path.relative_to(package)
            noun = inside.parent.name if path.stem == "__init__" else path.stem
            # In the folder of the same name, or where a folder's tests are few in one above.
            above = (inside.parent, *inside.parent.parents)
            found[str(path)] = [(PurePosixPath(room) / folder, noun) for folder in above]
    return found


def is_of(test: PurePosixPath, place: PurePosixPath, noun: str) -> bool:
    """Whether a file of this place is named after the noun, or after it and a property."""
    name = test.stem.removeprefix("test_")
    return test.parent == place and (name == noun or name.startswith(f"{noun}_"))


def logic_lines(tree: ast.Module) -> int:
    """Lines in functions, without those of functions within them."""
    return sum(node.end_lineno - node.lineno for node in outer_functions(tree))


def outer_functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from outer_functions(child)


@pytest.fixture(scope="module")
def untested(
    product: dict[str, ast.Module], tests: list[PurePosixPath], nouns: dict[str, list[tuple[PurePosixPath, str]]]
) -> set[str]:
    """Modules with logic of which no file has the name."""
    return {
        path
        for path, places in nouns.items()
        if not path.endswith("__init__.py")
        and logic_lines(product[path]) >= LOGIC_LINES_MIN
        and not any(is_of(test, place, noun) for place, noun in places for test in lying_in(place, tests))
    }


@pytest.fixture(scope="module")
def homeless(tests: list[PurePosixPath], nouns: dict[str, list[tuple[PurePosixPath, str]]]) -> set[str]:
    """Files of tests whose name is of no module of their folder, and of no folder there."""
    known = {place for places in nouns.values() for place in places}
    owned = {test for place, noun in known for test in lying_in(place, tests) if is_of(test, place, noun)}
    return {str(test) for test in tests if test not in owned}


def lying_in(place: PurePosixPath, tests: list[PurePosixPath]) -> list[PurePosixPath]:
    return [test for test in tests if test.parent == place]


def test_every_module_with_logic_has_a_file_of_tests(untested: set[str]):
    assert sorted(untested - TESTED_ELSEWHERE.keys() - UNNAMED) == []


def test_every_file_of_tests_is_named_after_a_module(homeless: set[str]):
    assert sorted(homeless - NAMED_OTHERWISE) == []


def test_what_is_tested_elsewhere_is_tested_there(root: Path):
    assert [place for place in TESTED_ELSEWHERE.values() if not (root / place).exists()] == []


def test_no_exception_is_left_that_nothing_needs(untested: set[str], homeless: set[str]):
    assert sorted((TESTED_ELSEWHERE.keys() | UNNAMED) - untested) == []
    assert sorted(NAMED_OTHERWISE - homeless) == []


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("tests/control/messaging/log/test_append.py", True),
        ("tests/control/messaging/log/test_append_in_flight.py", True),
        ("tests/control/messaging/log/test_appending.py", False),
        ("tests/control/messaging/test_append.py", False),
    ],
)
def test_a_name_is_a_module_or_a_module_and_a_property(test: str, expected: bool):
    assert is_of(PurePosixPath(test), PurePosixPath("tests/control/messaging/log"), "append") == expected
