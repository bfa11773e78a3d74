"""The page that names the file for each thing one may look for: the files are there."""

from __future__ import annotations

import re
from pathlib import Path

FOLDERS = (
    "control/basalt",
    "engine/basalt_engine",
    "pipeline/basalt_spark",
    "coprocessor/src/main/java/io/basalt/hbase",
)


def test_every_file_and_folder_that_the_page_names_is_there(root: Path):
    named = re.findall(r"`([\w/]+(?:\.py|\.java|/))`", (root / "docs/where-is.md").read_text())
    assert len(named) > 50
    assert [path for path in named if not any((root / folder / path).exists() for folder in FOLDERS)] == []


def test_every_name_that_the_page_gives_is_in_its_file(root: Path):
    page = (root / "docs/where-is.md").read_text()
    told = re.findall(r"`([\w/]+\.py)`: `(?:(\w+)\.)?(\w+)`", page)
    assert len(told) >= 3
    for path, _, name in told:
        text = next((root / folder / path).read_text() for folder in FOLDERS if (root / folder / path).exists())
        assert re.search(rf"\b(?:def|class) {name}\b", text), (path, name)
