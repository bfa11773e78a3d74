"""What tests with a real browser share: the browser, and servers with an operator's installation, with nothing, and for reading only."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import running_chromium
from tests.browser.visitor import Visitor
from tests.operator_data import Installation, fill, fill_access
from tests.system.server_process import ServerProcess

BOOTSTRAP = "b" * 40
ASKS = ("--set", "auth.kinds=token")
STILL = ("--set", "console.refresh_ms=0")  # pages do not change while they are looked at
QUIET = ("--set", "log.level=warning", "--set", "log.access=off")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/browser/"):  # a comparison of paths takes half a second, for so many
            item.add_marker("browser")


class Shop:
    """A server with an operator's installation, that asks who is there."""

    def __init__(self, server: ServerProcess, installation: Installation) -> None:
        self.server = server
        self.installation = installation
        self.root = login(server, BOOTSTRAP)

    def visitor_token(self, name: str) -> str:
        """A login of somebody who has no right at all."""
        token = ask_as(self.server, BOOTSTRAP)("POST", "/v1/admin/tokens", {"name": name})["token"]
        return login(self.server, token)


def ask_as(server: ServerProcess, token: str) -> Callable[..., Any]:
    """Calls of the API with this token."""

    def ask(method: str, path: str, body: Any = None, status: int = 200) -> Any:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        reply = server.ask(method, path, b"" if body is None else json.dumps(body).encode(), headers)
        assert reply.status == status, (method, path, reply)
        return reply.json() if reply.body else None

    return ask


def login(server: ServerProcess, token: str) -> str:
    """A login's token, as the console puts it into its cookie."""
    return str(ask_as(server, token)("POST", "/v1/auth/logins", {"ttlMs": 3_600_000})["token"])


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def servers(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ServerProcess]]:
    """Start servers, each with these options, on a copy of a data directory where one is named."""
    with ExitStack() as stack:

        def start(name: str, *options: str, data: Path | None = None, port: int = 0) -> ServerProcess:
            folder = tmp_path_factory.mktemp(name)
            if data is not None:
                shutil.copytree(data, folder / "data")
            secret = folder / "bootstrap"
            secret.touch(0o600)
            secret.write_text(BOOTSTRAP)
            process = ServerProcess(folder)
            named = ("--set", f"auth.bootstrap_token_file={secret}") if ASKS[1] in options else ()
            process.launch(*QUIET, *named, *options, port=port)
            process.wait_until_ready()
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture(scope="package")
def stored(
    servers: Callable[..., ServerProcess], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Installation]:
    """The data directory of an operator's installation, which no server has open."""
    server = servers("fill", *ASKS)
    root = ask_as(server, BOOTSTRAP)
    installation = fill(root)
    fill_access(root)
    server.stop()
    return server.data, installation


@pytest.fixture(scope="package")
def shop(servers: Callable[..., ServerProcess], stored: tuple[Path, Installation]) -> Shop:
    """A server with an operator's installation. Tests leave it as it is."""
    data, installation = stored
    return Shop(servers("shop", *ASKS, *STILL, data=data), installation)


@pytest.fixture(scope="package")
def no_rights(shop: Shop) -> str:
    """The login of somebody without any right."""
    return shop.visitor_token("nobody")


@pytest.fixture(scope="package")
def read_only(servers: Callable[..., ServerProcess], stored: tuple[Path, Installation]) -> ServerProcess:
    return servers("read-only", *STILL, "--set", "console.read_only=true", data=stored[0])


@pytest.fixture(scope="package")
def empty(servers: Callable[..., ServerProcess]) -> ServerProcess:
    return servers("empty", *STILL)


@pytest.fixture(scope="package")
def region_url(chromium: Any) -> Iterator[str]:
    """The URL of a server whose store has regions."""
    command = [sys.executable, "-m", "tests.browser.region_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Visitor]]:
    """Open a window at a server, with a login or none; options are Playwright's of a context."""
    with ExitStack() as stack:

        def open_one(server: ServerProcess, token: str | None = None, **options: Any) -> Visitor:
            return stack.enter_context(Visitor.at(chromium, server.url, token, **options))

        yield open_one
