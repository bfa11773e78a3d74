"""Every guide of docs/guides is run as it is written: its files, its commands and what they print, in a clean folder, against a real server.

The port of the page is another one here. Without the JDK, curl or Maven that a guide calls it is skipped, and where CI is set it fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guides.guide import missing_programs, read_guide, run_guide
from tests.ports import reserved_port
from tests.system.server_process import ServerProcess

pytestmark = pytest.mark.system

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
PORT, THRIFT_PORT = "4780", "15165"  # as the pages have them


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[ServerProcess, int]]:
    """The server that the reader of a guide has started, and the port of its Thrift face."""
    process = ServerProcess(tmp_path)
    with reserved_port() as thrift_port:
        process.start("--set", f"thrift.port={thrift_port}")
        try:
            yield process, thrift_port
        finally:
            process.stop()


@pytest.mark.parametrize("name", sorted(path.stem for path in GUIDES.glob("*.md")))
def test_a_guide_does_what_it_says(name: str, server: tuple[ServerProcess, int], tmp_path: Path):
    guide = read_guide((GUIDES / f"{name}.md").read_text())
    if missing := missing_programs(guide):
        assert not os.environ.get("CI"), f"CI is set, and so this guide must run: it needs {', '.join(missing)}"
        pytest.skip(f"needs {', '.join(missing)}")
    process, thrift_port = server
    instead = {PORT: str(process.port), THRIFT_PORT: str(thrift_port)}
    run_guide(guide, tmp_path / "guide", instead, {"BASALT_URL": process.url})
