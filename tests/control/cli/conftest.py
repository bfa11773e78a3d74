"""Running the command line in this process, as a shell would see it: exit code, standard output, standard error."""

from __future__ import annotations

import asyncio
import io
import os
import secrets
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn

from basalt.access.policy import Caller
from basalt.cli.main import main
from basalt.http.app import ANYBODY, build_app
from basalt.server.wiring import RunningServices, open_services
from basalt.settings import load_settings


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`run("topic", "list", stdin=b"")`: with a configuration folder of its own and no BASALT variables."""
    for name in [name for name in os.environ if name.startswith(("BASALT", "_BASALT"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def ran(*arguments: str, stdin: bytes = b"") -> Ran:
        out, err = io.BytesIO(), io.BytesIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
            patch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="utf-8", write_through=True))
            patch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding="utf-8", write_through=True))
            code = main(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            # Collected later, the wrappers would close the buffers under our hands.
            sys.stdout.detach()
            sys.stderr.detach()
        return Ran(code, out.getvalue(), err.getvalue().decode())

    return ran


@contextmanager
def served(open_them: Callable[[], Awaitable[RunningServices]], caller: Caller = ANYBODY) -> Iterator[str]:
    """The URL of a real server over these services, in a thread of this process, as long as the block lasts."""
    listener = socket.create_server(("127.0.0.1", 0))
    # asyncio does it to no connection of such a listener, and an answer in two pieces takes 40 ms then.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    started = threading.Event()
    running: list[tuple[asyncio.AbstractEventLoop, uvicorn.Server]] = []

    async def serve() -> None:
        services = await open_them()
        config = uvicorn.Config(build_app(services, caller), lifespan="off", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        running.append((asyncio.get_running_loop(), server))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        started.set()  # the socket listens already: who connects waits in its queue
        await serving
        await services.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(60)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    loop, server = running[0]
    loop.call_soon_threadsafe(setattr, server, "should_exit", True)
    thread.join(60)


async def services_with_jobs() -> RunningServices:
    """A server's services on a memory store, its jobs running."""
    services = await open_services(load_settings(["store.kind=memory"]), None)
    await services.scheduler.start()
    return services


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """A real server on a memory store; its topics are shared by all tests."""
    with served(services_with_jobs) as url:
        yield url


@pytest.fixture
def cli(run: Run, server_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run`, against the server, in a namespace of this test's own."""
    monkeypatch.setenv("BASALT_URL", server_url)
    monkeypatch.setenv("BASALT_NAMESPACE", f"test-{secrets.token_hex(6)}")
    return run
