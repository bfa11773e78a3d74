"""Counts of the tree itself: files and lines, and what CONTRIBUTING.md asks of files, folders and functions.

    python -m bench.house [--root DIR] [--json]

The product is what users get: the Python packages, and the Java of the coprocessor.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ("engine", "control", "pipeline")
JAVA = "coprocessor/src/main/java"
SMALL_LINES = 60  # a file below it is a value that several places use, or belongs into its one importer
FILE_LINES = (500, 700)  # longer than usual; longer than can be read
FUNCTION_LINES_MAX = 50
FOLDER_FILES_MAX = 12


@dataclass(frozen=True, slots=True)
class House:
    """The counts. Lists hold what is worth a look, each as a line of text."""

    python_files: int
    python_lines: int
    java_files: int
    java_lines: int
    imported_once: list[str]
    imported_once_and_small: list[str]
    long_files: list[str]
    very_long_files: list[str]
    full_folders: list[str]
    long_functions: list[str]


def examined(root: Path) -> House:
    """The counts of the tree at this root."""
    python = {path: path.read_text() for path in _files(root, PYTHON, ".py")}
    java = {path: path.read_text() for path in _files(root, (JAVA,), ".java")}
    lines = {str(path.relative_to(root)): len(text.splitlines()) for path, text in (python | java).items()}
    modules = {module_name(path.relative_to(root)): text for path, text in python.items()}
    places = {module_name(path.relative_to(root)): str(path.relative_to(root)) for path in python}
    once = {places[module]: importer for module, importer in imported_once(modules).items()}
    long, very_long = FILE_LINES
    return House(
        python_files=len(python),
        python_lines=sum(len(text.splitlines()) for text in python.values()),
        java_files=len(java),
        java_lines=sum(len(text.splitlines()) for text in java.values()),
        imported_once=[f"{path} <- {importer}" for path, importer in sorted(once.items())],
        imported_once_and_small=[
            f"{path} ({lines[path]}) <- {importer}"
            for path, importer in sorted(once.items())
            if lines[path] < SMALL_LINES
        ],
        long_files=[f"{path} {count}" for path, count in sorted(lines.items()) if count > long],
        very_long_files=[f"{path} {count}" for path, count in sorted(lines.items()) if count > very_long],
        full_folders=full_folders(lines),
        long_functions=[
            f"{places[module]}:{function}"
            for module, text in sorted(modules.items())
            for function in long_functions(text)
        ],
    )


def _files(root: Path, folders: tuple[str, ...], suffix: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((root / folder).rglob(f"*{suffix}"))


def module_name(path: Path) -> str:
    """The name by which a file is imported, from its path in the tree."""
    parts = path.with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_once(modules: Mapping[str, str]) -> dict[str, str]:
    """The modules that exactly one other module imports, and that one. Packages' own files are left out as importees."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module, text in modules.items():
        for name in imports(text):
            # `from package import name` names a module of the package, or something in the package's own file.
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target != module:
                importers[target].add(module)
    packages = {name.rpartition(".")[0] for name in modules}
    return {
        module: next(iter(found)) for module, found in importers.items() if len(found) == 1 and module not in packages
    }


def imports(text: str) -> Iterator[str]:
    """Each dotted name that a module imports, wherever it does so."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{name.name}" for name in node.names)


def full_folders(paths: Mapping[str, object]) -> list[str]:
    """Folders with more files in them than one takes in at a look; a package's own file is not counted."""
    counts = Counter(str(Path(path).parent) for path in paths if Path(path).name != "__init__.py")
    return [f"{folder} {count}" for folder, count in sorted(counts.items()) if count > FOLDER_FILES_MAX]


def long_functions(text: str) -> list[str]:
    """Functions that are longer than a screen, as `LINE NAME LINES`."""
    return [
        f"{node.lineno} {node.name} {lines}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]


def report(house: House) -> str:
    """The counts for people; a list's length first, then its lines."""
    parts = [
        f"Python: {house.python_files} files, {house.python_lines:,} lines",
        f"Java: {house.java_files} files, {house.java_lines:,} lines",
        f"modules that one other imports: {len(house.imported_once)}",
    ]
    long, very_long = FILE_LINES
    for title, items in (
        (f"of those, under {SMALL_LINES} lines", house.imported_once_and_small),
        (f"files over {long} lines", house.long_files),
        (f"files over {very_long} lines", house.very_long_files),
        (f"folders with more than {FOLDER_FILES_MAX} files", house.full_folders),
        (f"functions over {FUNCTION_LINES_MAX} lines", house.long_functions),
    ):
        parts += [f"{title}: {len(items)}", *(f"    {item}" for item in items)]
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.house", description=__doc__.partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to count (default: this one)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    house = examined(arguments.root)
    print(json.dumps(asdict(house), indent=2) if arguments.json else report(house))
    return 0


if __name__ == "__main__":
    sys.exit(main())
