"""The tree as the checks of its documents and house rules see it: what is ours, without what make builds."""

from __future__ import annotations

import ast
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILT = {".git", "build", "dist", "data", "target", "__pycache__"}


def _files() -> Iterator[Path]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in BUILT and (name == ".ci" or not name.startswith("."))]
        yield from (Path(folder, name) for name in names if not name.endswith(".pyc"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the tree."""
    return ROOT


@pytest.fixture(scope="session")
def files() -> list[Path]:
    """Every file that belongs to the project."""
    return sorted(_files())


@pytest.fixture(scope="session")
def pages(files: list[Path]) -> dict[Path, str]:
    """Every Markdown page and its text."""
    return {path: path.read_text() for path in files if path.suffix == ".md"}


@pytest.fixture(scope="session")
def documentation(pages: dict[Path, str]) -> str:
    """All that a user may read: README and docs/, as one text."""
    return "\n".join(
        text for path, text in pages.items() if path == ROOT / "README.md" or ROOT / "docs" in path.parents
    )


@pytest.fixture(scope="session")
def modules(files: list[Path]) -> dict[str, ast.Module]:
    """The syntax tree of every Python file, by its path from the root."""
    gc.disable()  # millions of nodes, none of them garbage: to look at them again and again takes longer than to parse them
    try:
        return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files if path.suffix == ".py"}
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def product(modules: dict[str, ast.Module]) -> dict[str, ast.Module]:
    """Those of them that users get: the packages, without tests, benches and the demo."""
    return {path: tree for path, tree in modules.items() if path.split("/")[0] in {"engine", "control", "pipeline"}}
