"""Every named limit of the product is set or crossed by a test: what no test comes near breaks where nobody looks.

A test does so when it names the limit in its module (`patch(..., "PAGES_MAX")`, or imports it to go beyond it), or gives the parameter whose
default the limit is. `tests/docs/exceptions.py` lists those that no test names yet.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath

import pytest

from tests.docs.exceptions import UNNAMED_LIMITS
from tests.docs.syntax import nodes_of

LIMIT = re.compile(r"_?[A-Z][A-Z0-9_]*_(MAX|LIMIT)")
PACKAGES = re.compile(r"(engine|control|pipeline)/")


def module_name(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts
    parts = parts[1:] if PACKAGES.match(path) else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(scope="module")
def named(product: dict[str, ast.Module]) -> dict[str, ast.Module]:
    """The product's modules by the name under which they are imported."""
    return {module_name(path): tree for path, tree in product.items() if PACKAGES.match(path)}


@pytest.fixture(scope="module")
def limits(named: dict[str, ast.Module]) -> set[str]:
    """Each limit, by its module and name."""
    return {f"{module}.{name}" for module, tree in named.items() for name in assigned(tree) if LIMIT.fullmatch(name)}


def assigned(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


@cache
def imported(tree: ast.Module) -> dict[str, str]:
    """What each name that a module imports stands for."""
    found = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: alias.name for alias in node.names}
    return found


def origin(name: str, named: dict[str, ast.Module], limits: set[str]) -> str:
    """The limit that a module's attribute is, which may be another module's that it imports."""
    while name not in limits:
        module, _, attribute = name.rpartition(".")
        known = imported(named[module]).get(attribute) if module in named else None
        if known is None:
            return ""
        name = known
    return name


def mentioned(tree: ast.Module, named: dict[str, ast.Module]) -> Iterator[str]:
    """The attributes of modules that a test names: imports, asks a module for, or patches."""
    names = imported(tree)
    yield from names.values()
    texts = {node.value for node in nodes_of(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    words = {word for text in texts for word in [text, text.rpartition(".")[2]] if LIMIT.fullmatch(word)}
    keywords = {
        node.arg for node in nodes_of(tree) if isinstance(node, ast.keyword) and LIMIT.fullmatch(node.arg or "")
    }
    for module in {*names.values(), *(text.rpartition(".")[0] for text in texts)} & named.keys():
        yield from (f"{module}.{word}" for word in words | keywords)
    for node in nodes_of(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{names.get(node.value.id, '')}.{node.attr}"


def defaults(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Parameters and fields, and the name that is their default."""
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            pairs = [
                *zip(reversed(given.args), reversed(given.defaults), strict=False),
                *zip(given.kwonlyargs, given.kw_defaults, strict=True),
            ]
            yield from ((parameter.arg, value.id) for parameter, value in pairs if isinstance(value, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Name):
            yield node.target.id, node.value.id


@pytest.fixture(scope="module")
def unnamed(modules: dict[str, ast.Module], named: dict[str, ast.Module], limits: set[str]) -> set[str]:
    """The limits that no test names, nor gives the parameter of."""
    tests = [tree for path, tree in modules.items() if path.startswith("tests/") and path != "tests/docs/exceptions.py"]
    mentions = {mention for tree in tests for mention in mentioned(tree, named)}
    found = {origin(mention, named, limits) for mention in mentions if LIMIT.fullmatch(mention.rpartition(".")[2])}
    keywords = {node.arg for tree in tests for node in nodes_of(tree) if isinstance(node, ast.keyword)}
    given = {
        origin(f"{module}.{value}", named, limits)
        for module, tree in named.items()
        for parameter, value in defaults(tree)
        if parameter in keywords
    }
    return limits - found - given


def test_every_limit_is_named_by_a_test(unnamed: set[str]):
    assert sorted(unnamed - UNNAMED_LIMITS) == []


def test_no_limit_is_listed_that_a_test_names(unnamed: set[str]):
    assert sorted(UNNAMED_LIMITS - unnamed) == []
