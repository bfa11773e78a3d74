"""The pages about what lies on disk quote the vectors, and nothing else that looks like bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.vector_lines import VECTORS

PAGES = Path(__file__).resolve().parents[2] / "docs" / "formats"


@pytest.mark.parametrize(
    ("page", "files"),
    [
        ("row-keys", ["row-keys", "message-ids"]),
        ("record-batch", ["record-batches"]),
        ("message-table", ["message-rows"]),
        ("metadata", ["metadata"]),
        ("retention", ["retention"]),
        ("cells", ["cells"]),
        ("links", ["links"]),
    ],
)
def test_every_example_of_a_page_is_a_vector(page: str, files: list[str]) -> None:
    quoted = re.findall(r"^    ([0-9a-f]{16,})$", (PAGES / f"{page}.md").read_text(), re.MULTILINE)
    values = {value for name in files for value in re.findall(r"[0-9a-f]{16,}", (VECTORS / f"{name}.tsv").read_text())}
    assert quoted
    assert [example for example in quoted if example not in values] == []


@pytest.mark.parametrize("page", ["row-keys", "record-batch", "metadata", "cells", "links"])
def test_the_parts_of_an_example_make_up_the_example(page: str) -> None:
    text = (PAGES / f"{page}.md").read_text()
    tables = re.findall(
        r"^    ([0-9a-f]{16,})\n\n\| bytes \| field \|\n\|---\|---\|\n((?:\|.*\|\n)+)", text, re.MULTILINE
    )
    assert tables
    for example, rows in tables:
        parts = [row.split("|")[1] for row in rows.splitlines()]
        assert "".join(re.findall(r"`([0-9a-f]+)`", " ".join(parts))) == example
