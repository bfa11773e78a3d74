"""docs/operations/promises.md names a test for each promise, and there are these tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations" / "promises.md").read_text()
NUMBERS = range(1, 40)


def test_every_test_that_the_page_names_is_there():
    missing = []
    for path, _, name in (named.partition("::") for named in re.findall(r"`(tests/[^`*]+)`", PAGE)):
        file = ROOT / path
        if not file.exists() or (name and not re.search(rf"^(async )?def {name}\(", file.read_text(), re.MULTILINE)):
            missing.append(path + name)
    assert missing == []


def test_every_promise_is_shown_by_a_test_or_told_to_come_later():
    kept, later = PAGE.split("## Not yet")
    shown = {
        int(number) for number, tests in re.findall(r"\*\*P(\d+)\.(.*?)(?=\n\n)", kept, re.DOTALL) if "`tests/" in tests
    }
    told = {int(number) for number in re.findall(r"^\| P(\d+) \|", later, re.MULTILINE)}
    assert sorted(shown | told) == list(NUMBERS)
