"""The commands of docs/operations/security.md: from nothing to a server that asks everybody, and to callers by certificate, run as they are written."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.ports import reserved_port
from tests.system.command_line import CommandLine

pytestmark = pytest.mark.system

PAGE = Path(__file__).parents[2] / "docs/operations/security.md"


def blocks(heading: str) -> list[str]:
    """The shell's blocks below a heading."""
    section = PAGE.read_text().partition(f"\n### {heading}\n")[2]
    return re.findall(
        r"^```sh\n(.*?)^```$", re.split(r"^##", section, maxsplit=1, flags=re.MULTILINE)[0], re.MULTILINE | re.DOTALL
    )


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as number:
        yield number


def stop(directory: Path) -> None:
    """End the server of this data directory, which its commands left running."""
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((directory / "LOCK").read_text()), signal.SIGKILL)


def test_from_nothing_to_a_server_that_asks_everybody(tmp_path: Path, port: int):
    commands = CommandLine(tmp_path)
    page = PAGE.read_text().partition("\n## From nothing to enforced\n")[2]
    block = page.partition("```sh\n")[2].partition("```")[0].replace("--data data", f"--data data --port {port}")
    try:
        done = commands.shell(f"set -e; export BASALT_URL=http://127.0.0.1:{port}; {block}")
        assert done.code == 0, done.err
        assert "one armchair" in done.out
        wrong = "BASALT_TOKEN_FILE={}-token basalt --url http://127.0.0.1:" + str(port)
        for who, what in (("shop", "consume orders"), ("billing", "publish orders x"), ("shop", "tx list")):
            refused = commands.shell(f"{wrong.format(who)} {what}")
            assert (refused.code, f"token:{who} may not" in refused.err) == (5, True), refused.err
        assert {each.stat().st_mode & 0o777 for each in tmp_path.glob("*-token")} == {0o600}
    finally:
        stop(tmp_path / "data")


def test_from_openssl_to_callers_by_certificate(tmp_path: Path, port: int):
    commands = CommandLine(tmp_path)
    make, ask, by_command_line = (
        block.replace("localhost:4780", f"localhost:{port}").replace('data = "data"', f'data = "data"\nport = {port}')
        for block in blocks("Client certificates")
    )
    try:
        made = commands.shell(f"set -e; {make}")
        assert made.code == 0, made.err
        assert f"https://127.0.0.1:{port}" in made.out
        asked = commands.shell(f"set -e; {ask}")
        assert asked.code == 0, asked.err
        assert '"principal":"cert:CN=admin"' in asked.out
        assert '"code"' not in asked.out, asked.out
        refused = commands.shell(re.sub(r" --cert \S+ --key \S+", "", ask))
        assert refused.out.count('"code":"unauthenticated"') == 4
        called = commands.shell(f"set -e; {by_command_line}")
        assert called.code == 0, called.err
        assert "cert:CN=admin" in called.out
        assert "one armchair" in called.out
    finally:
        stop(tmp_path / "data")
