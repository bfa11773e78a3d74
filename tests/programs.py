"""Programs of the machine that a test calls: without one the test is skipped, and where CI is set it fails, so that nobody takes a skipped test
for a passed one. Debian's packages with them are in requirements/system.txt.
"""

from __future__ import annotations

import os
import shutil

import pytest


def needed_program(name: str) -> str:
    """The path of a program; skip, or in CI fail, where it is missing."""
    found = shutil.which(name)
    if found is None:
        reason = f"there is no {name}: run `make system-packages` as root"
        if os.environ.get("CI"):
            pytest.fail(f"CI is set, and so this test must run: {reason}", pytrace=False)
        pytest.skip(f"needs a program: {reason}")
    return found
