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


# Pages that start a server themselves.
WITH_A_SERVER = {"credentials", "production"}


@pytest.fixture
def addresses(name: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The ports of the server that the reader of a guide has started, or starts in it, by those that the page names."""
    process = ServerProcess(tmp_path)
    with reserved_port() as port, reserved_port() as thrift_port:
        if name in WITH_A_SERVER:
            yield {PORT: str(port), THRIFT_PORT: str(thrift_port)}
            return
        process.start("--set", f"thrift.port={thrift_port}")
        try:
            yield {PORT: str(process.port), THRIFT_PORT: str(thrift_port)}
        finally:
            process.stop()


@pytest.mark.parametrize("name", sorted(path.stem for path in GUIDES.glob("*.md")))
def test_a_guide_does_what_it_says(name: str, addresses: dict[str, str], tmp_path: Path):
    guide = read_guide((GUIDES / f"{name}.md").read_text())
    if missing := missing_programs(guide):
        assert not os.environ.get("CI"), f"CI is set, and so this guide must run: it needs {', '.join(missing)}"
        pytest.skip(f"needs {', '.join(missing)}")
    run_guide(guide, tmp_path / "guide", addresses, {"BASALT_URL": f"http://127.0.0.1:{addresses[PORT]}"})
