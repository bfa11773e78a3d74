"""The lines of tests/vectors: a name, bytes in hex, and what they mean as JSON. JUnit reads the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

VECTORS = Path(__file__).resolve().parent / "vectors"


def lines(name: str) -> list[tuple[str, bytes, Any]]:
    """(name, bytes, meaning) of each line of a file."""
    rows = [line.split("\t") for line in (VECTORS / f"{name}.tsv").read_text().splitlines()]
    return [(title, bytes.fromhex(data), json.loads(meaning)) for title, data, meaning in rows]


def cases(name: str) -> list[Any]:
    """Each line's bytes and meaning, as parameters that are called by its name."""
    return [pytest.param(data, meaning, id=title) for title, data, meaning in lines(name)]


def unhex(columns: dict[str, str]) -> dict[bytes, bytes]:
    """Columns of a row, as the vectors write them."""
    return {column.encode(): bytes.fromhex(value) for column, value in columns.items()}
