"""A real Chromium for tests, driven by Playwright: the one of the machine, never one that is downloaded.

Without Chromium or Playwright these tests are skipped; where CI is set they fail, so that nobody takes a skipped test for a passed one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PROGRAM = "chromium"
# It runs as root in containers, has no screen, and calls nobody by itself.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--renderer-process-limit=1",  # each page would have a process of its own, which takes longer to start than the page
)


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """A browser without windows, and what drives it. The thread has an event loop of Playwright's as long as it runs."""
    program = shutil.which(PROGRAM)
    if program is None:
        _cannot("there is no chromium on the path (on Debian: apt install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        _cannot(f"{error}: run `make dev`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*FLAGS])
        try:
            yield browser
        finally:
            browser.close()


def _cannot(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"CI is set, and so the tests with a browser must run: {reason}", pytrace=False)
    pytest.skip(f"needs a browser: {reason}")
