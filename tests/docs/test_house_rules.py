"""What CONTRIBUTING.md asks of every file, and a machine can see."""

from __future__ import annotations

import ast
import re
from pathlib import Path

MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 50
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yml", ".txt", ".cfg", ".java", ".xml", ".sh", ".tsv", ".story", ""}
BAGS = re.compile(r"(^|/)(utils?|helpers?|common|misc)\.py$")

# Where the tree came from and who worked on it is no part of it, and it names no path outside itself. The words are
# written in pieces so that this file does not hold them.
OUTSIDE = re.compile(
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


def test_no_function_is_longer_than_a_screen(product: dict[str, ast.Module]):
    too_long = [
        f"{path}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path, tree in product.items()
        for node in ast.walk(tree)
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
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in CLOCK_READS
    ]
    reads += [
        f"{path}:{node.lineno} from time import {name.name}"
        for path, tree in product.items()
        if path not in CLOCK_READERS
        for node in ast.walk(tree)
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
        if (match := OUTSIDE.search(line) or (path.suffix == ".md" and OUTSIDE_IN_PROSE.search(line)))
    ]
    assert found == []
