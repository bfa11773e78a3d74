"""The client and the command line where nothing but their own libraries is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, requires
from pathlib import Path

import pytest

from basalt.errors import SERVER_MODULES
from deploy.hbase.runtime import ROOT
from tests.docs.test_dependencies import normalised
from tests.system.command_line import RUN_SECONDS_MAX
from tests.system.server_process import ORDERS, ServerProcess

pytestmark = pytest.mark.system

INSTALLED_BYTES_MAX = 30_000_000
BYTECODE_FACTOR = 2.2  # of a source file with its bytecode, which pip writes beside it

# What only a server has is as good as absent: to import it says so as Python does.
PREAMBLE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def needed() -> set[str]:
    """The distributions that an installation without extras consists of, besides Basalt itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    left = [normalised(each) for each in project["dependencies"]]
    while left:
        name = left.pop()
        if name in found:
            continue
        try:
            further = requires(name) or []
        except PackageNotFoundError:  # of another system or Python
            continue
        found.add(name)
        left += [normalised(each) for each in further if "extra ==" not in each]
    return found


@pytest.fixture(scope="module")
def preamble() -> str:
    own = needed()
    absent = {
        module
        for module, owners in packages_distributions().items()
        if not module.startswith(("basalt", "_")) and not any(normalised(owner) in own for owner in owners)
    }
    assert absent >= SERVER_MODULES
    return f"ABSENT = {absent!r}\n{PREAMBLE}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server with one topic for all these tests."""
    process = ServerProcess(tmp_path_factory.mktemp("server"))
    process.start("--set", "log.level=warning")
    process.ask_json("PUT", ORDERS)
    yield process
    process.kill()


def ran(preamble: str, code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", preamble + code], text=True, capture_output=True, cwd=folder, timeout=RUN_SECONDS_MAX,
        env={**os.environ, **environment},
    )  # fmt: skip


def command(*arguments: str) -> str:
    return f"from basalt.cli.main import main\nsys.exit(main({list(arguments)!r}))"


def test_both_clients_publish_in_a_transaction_and_read(preamble: str, server: ServerProcess, tmp_path: Path):
    code = f"""
import asyncio, basalt
with basalt.connect({server.url!r}, namespace="shop") as client:
    with client.transaction() as tx:
        tx.publish("orders", "one")
    assert [message.text for message in client.topic("orders").read()] == ["one"]
async def main():
    async with basalt.aio.connect({server.url!r}, namespace="shop") as client:
        await client.topic("orders").publish("two")
        assert [message.text async for message in client.topic("orders").read()] == ["one", "two"]
asyncio.run(main())
"""
    done = ran(preamble, code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "show", "orders"],
        ["publish", "orders", "a chair"],
        ["consume", "orders", "-o", "yaml"],
        ["message", "--help"],
        ["tx", "list"],
        ["tx", "--help"],
        ["job", "list"],
        ["prune", "status"],
        ["backup", "list"],
        ["explain", "--help"],
        ["doctor"],
    ],
)
def test_commands_of_a_client_need_no_library_of_the_server(
    preamble: str, server: ServerProcess, tmp_path: Path, arguments: list[str]
):
    done = ran(preamble, command(*arguments), tmp_path, BASALT_URL=server.url, BASALT_NAMESPACE="shop")
    assert "No module" not in done.stderr
    assert "client alone" not in done.stderr
    assert done.returncode == 0, done.stderr


def test_a_table_in_a_terminal_is_drawn_without_the_library_that_draws_it(
    preamble: str, server: ServerProcess, tmp_path: Path
):
    code = "sys.stdout.isatty = lambda: True\n" + command("topic", "list")
    done = ran(preamble, code, tmp_path, BASALT_URL=server.url, BASALT_NAMESPACE="shop")
    assert (done.returncode, done.stderr) == (0, "")
    heading, row = done.stdout.splitlines()
    assert heading.startswith("NAME")
    assert row.startswith("orders")


def test_a_server_and_an_embedded_store_say_what_to_install(preamble: str, tmp_path: Path):
    done = ran(preamble, command("serve", "--data", "data"), tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(
        r"basalt: this installation of Basalt is the client alone: .*: pip install 'basalt-mq\[server\]'\n", done.stderr
    )
    embedded = f"import basalt\nbasalt.connect('embedded:{tmp_path / 'data'}')"
    done = ran(preamble, embedded, tmp_path)
    assert "basalt.errors.InputError" in done.stderr or "InputError: this installation" in done.stderr
    assert "ModuleNotFoundError" not in done.stderr


def test_the_modules_that_count_as_a_servers_are_those_of_the_extra():
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["server"]
    assert {normalised(each).replace("-", "_") for each in extra} == SERVER_MODULES


def test_what_the_client_needs_takes_less_than_30_megabytes():
    sizes = {}
    for name in needed():
        files = [Path(str(file.locate())) for file in distribution(name).files or ()]
        there = [file for file in files if file.exists() and file.suffix != ".pyc"]
        sizes[name] = sum(file.stat().st_size * (BYTECODE_FACTOR if file.suffix == ".py" else 1) for file in there)
    product = [file for package in ("engine", "control", "pipeline") for file in (ROOT / package).rglob("*.py")]
    sizes["basalt-mq"] = sum(file.stat().st_size * BYTECODE_FACTOR for file in product)
    assert sum(sizes.values()) < INSTALLED_BYTES_MAX, sizes
