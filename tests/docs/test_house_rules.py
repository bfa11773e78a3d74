"""What CONTRIBUTING.md asks of every file, and a machine can see."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

from tests.docs.exceptions import FULL_FOLDERS, QUESTIONING_DOCSTRINGS, SMALL_MODULES
from tests.docs.syntax import nodes_of

MODULE_LINES_MAX = 700
MODULE_LINES_MIN = 60  # of one that a single module imports
FOLDER_FILES_MAX = 13  # but for __init__.py
FUNCTION_LINES_MAX = 50
QUESTIONS = ("What ", "How ", "Whether ", "Where ")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yml", ".txt", ".cfg", ".java", ".xml", ".sh", ".tsv", ".story", ""}
BAGS = re.compile(r"(^|/)(utils?|helpers?|common|misc)\.py$")

# Where the tree came from and who worked on it is no part of it, and it names no path outside itself. The words are
# written in pieces so that this file does not hold them.
EXTERNAL_WRITES = re.compile(
    "|".join(
        (
            r"(?<![\w.])/" + "work/",
            r"\.\./" + r"(shared|\.library)",
            r"/tmp/" + r"\w",
            "pypi" + r"\.org",
            "python" + "hosted",
            "crates" + r"\.io",
            "registry" + r"\.npmjs",
            r"(repo1?|central)\." + "(maven|sonatype)",
            r"\b" + r"archi" + r"tect\b",
            r"\bsub-?" + "agents?",
            r"\bissue " + r"#?\d",
        )
    )
)
OUTSIDE_IN_PROSE = re.compile(
    r"\b(?:[Tt]his|[Aa]n earlier|[Ll]ast|[Nn]ext) sess" + r"ions?\b"
)  # a named one is the product's

CLOCK_READS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "monotonic"),
    ("time", "monotonic_ns"),
    ("time", "perf_counter"),
    ("time", "perf_counter_ns"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
}
# Where the time may be read, and why there.
CLOCK_READERS = {
    "engine/basalt_engine/clock.py": "the clock itself",
}


def test_every_module_says_why_it_exists(modules: dict[str, ast.Module]):
    assert [path for path, tree in modules.items() if not ast.get_docstring(tree)] == []


def test_no_module_is_longer_than_can_be_read(root: Path, product: dict[str, ast.Module]):
    lengths = {path: len((root / path).read_text().splitlines()) for path in product}
    assert {path: lines for path, lines in lengths.items() if lines > MODULE_LINES_MAX} == {}


@pytest.fixture(scope="module")
def imports(product: dict[str, ast.Module]) -> dict[str, set[str]]:
    """The modules of the product that each of them imports: anywhere in it, within a function or for types only as well."""
    paths = {dotted(path): path for path in product}
    # Of `from a.b import c`, c is a module or a name in b.
    return {
        path: {paths.get(name) or paths.get(name.rpartition(".")[0]) or path for name in imported(tree)} - {path}
        for path, tree in product.items()
    }


def test_no_imports_go_in_a_circle(imports: dict[str, set[str]]):
    TopologicalSorter(imports).prepare()  # `CycleError` names the modules of one


@pytest.fixture(scope="module")
def small(root: Path, imports: dict[str, set[str]]) -> dict[str, str]:
    """Modules of a few lines that one other imports, and that one."""
    importers: dict[str, set[str]] = {path: set() for path in imports}
    for importer, theirs in imports.items():
        for found in theirs:
            importers[found].add(importer)
    return {
        path: next(iter(known))
        for path, known in importers.items()
        if len(known) == 1
        and not path.endswith("__init__.py")
        and len((root / path).read_text().splitlines()) < MODULE_LINES_MIN
    }


def dotted(path: str) -> str:
    """The name by which a module is imported."""
    return ".".join(PurePosixPath(path.removesuffix("/__init__.py").removesuffix(".py")).parts[1:])


def imported(tree: ast.Module) -> Iterator[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.fixture(scope="module")
def folders(product: dict[str, ast.Module]) -> Counter[str]:
    """How many modules each folder has."""
    return Counter(str(PurePosixPath(path).parent) for path in product if not path.endswith("__init__.py"))


@pytest.fixture(scope="module")
def questions(product: dict[str, ast.Module]) -> Counter[str]:
    """How many docstrings of each package begin as a question does."""
    return Counter(
        "/".join(path.split("/")[:3])
        for path, tree in product.items()
        for node in nodes_of(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (ast.get_docstring(node) or "").startswith(QUESTIONS)
    )


def test_no_module_of_a_few_lines_has_a_single_user(small: dict[str, str]):
    assert {path: user for path, user in small.items() if path not in SMALL_MODULES} == {}


def test_no_folder_has_more_modules_than_can_be_looked_through(folders: Counter[str]):
    assert {path: number for path, number in folders.items() if number > FULL_FOLDERS.get(path, FOLDER_FILES_MAX)} == {}


def test_docstrings_begin_with_a_verb_or_a_noun(questions: Counter[str]):
    assert {path: number for path, number in questions.items() if number > QUESTIONING_DOCSTRINGS.get(path, 0)} == {}


def test_no_exception_is_left_that_nothing_needs(small: dict[str, str], folders: Counter[str], questions: Counter[str]):
    assert sorted(SMALL_MODULES - small.keys()) == []
    assert {path: folders[path] for path, bound in FULL_FOLDERS.items() if folders[path] < bound} == {}
    assert {path: questions[path] for path, bound in QUESTIONING_DOCSTRINGS.items() if questions[path] < bound} == {}


def test_no_function_is_longer_than_a_screen(product: dict[str, ast.Module]):
    too_long = [
        f"{path}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path, tree in product.items()
        for node in nodes_of(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert too_long == []


def test_no_file_is_a_bag_of_this_and_that(modules: dict[str, ast.Module]):
    assert [path for path in modules if BAGS.search(path)] == []


def test_only_the_clock_reads_the_time(product: dict[str, ast.Module]):
    reads = [
        f"{path}:{node.lineno} {node.value.id}.{node.attr}"
        for path, tree in product.items()
        if path not in CLOCK_READERS
        for node in nodes_of(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in CLOCK_READS
    ]
    reads += [
        f"{path}:{node.lineno} from time import {name.name}"
        for path, tree in product.items()
        if path not in CLOCK_READERS
        for node in nodes_of(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
        for name in node.names
        if ("time", name.name) in CLOCK_READS
    ]
    assert reads == []


def test_every_place_that_may_read_the_time_still_does(root: Path):
    reading = re.compile("|".join(rf"\b{module}\.{name}\b" for module, name in CLOCK_READS))
    assert [path for path in CLOCK_READERS if not reading.search((root / path).read_text())] == []


def test_the_tree_names_nothing_outside_itself(root: Path, files: list[Path]):
    found = [
        f"{path.relative_to(root)}:{number}: {match[0]}"
        for path in files
        if path.suffix in TEXT_SUFFIXES and path.name not in {"LICENSE", "test_house_rules.py"}
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := EXTERNAL_WRITES.search(line) or (path.suffix == ".md" and OUTSIDE_IN_PROSE.search(line)))
    ]
    assert found == []


def test_no_line_of_a_merge_is_left(root: Path, files: list[Path]):
    marks = ("<" * 7 + " ", ">" * 7 + " ")
    found = [
        f"{path.relative_to(root)}:{number}"
        for path in files
        if path.suffix in {*TEXT_SUFFIXES, ".css", ".js", ".html"}
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.startswith(marks)
    ]
    assert found == []
