"""A real server, and an identity provider that is there, away, or silent: who is let in, and that it starts and ends all the same."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import basalt
from tests.control.access.proofs.identity_provider import (
    AUDIENCE,
    ISSUER,
    KeyServer,
    claims,
    key_set,
    private_key,
    public_jwk,
    serving,
    signed,
)
from tests.ports import reserved_port
from tests.system.server_process import ServerProcess

pytestmark = pytest.mark.system

WHOAMI = "/v1/auth/whoami"


def options(keys: str) -> list[str]:
    given = [
        "auth.kinds=jwt", "auth.superusers=jwt:alice@example.org", f"auth.jwt.issuer={ISSUER}", f"auth.jwt.audience={AUDIENCE}",
        f"auth.jwt.jwks={keys}",
    ]  # fmt: skip
    return [each for flag in given for each in ("--set", flag)]


@contextmanager
def provider() -> Iterator[KeyServer]:
    """An identity provider on a thread of its own."""
    ready, found = threading.Event(), []

    async def serve() -> None:
        async with serving(key_set(public_jwk())) as server:
            ends = asyncio.Event()
            found.extend((server, asyncio.get_running_loop(), ends))
            ready.set()
            await ends.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    yield found[0]
    found[1].call_soon_threadsafe(found[2].set)
    thread.join(30)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path)
    yield process
    process.kill()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_client_with_a_token_of_the_provider_works_and_others_are_refused(server: ServerProcess):
    with provider() as idp:
        server.start(*options(idp.url))
        # A start waits for nothing: the client sends what cannot be judged yet again.
        with basalt.connect(server.url, namespace="shop", headers=bearer(signed(claims()))) as client:
            client.topics.create("orders")
            client.topic("orders").publish(["a"])
        for token in (signed(claims(aud="billing")), signed(claims(), key=private_key("RS256", "stranger")), "x.y.z"):
            reply = server.ask("GET", WHOAMI, headers=bearer(token))
            assert (reply.status, reply.headers["www-authenticate"]) == (401, 'Bearer realm="basalt"')
        assert server.ask("GET", WHOAMI).status == 401
        assert server.stop() == 0
        assert idp.asked == 1


def test_a_server_starts_and_ends_while_the_provider_is_away(server: ServerProcess):
    with reserved_port() as port:
        server.start(*options(f"http://127.0.0.1:{port}/keys"))
        reply = server.ask("GET", WHOAMI, headers=bearer(signed(claims())))
        assert (reply.status, reply.json()["code"]) == (503, "authentication_unavailable")
        assert server.ask("GET", "/readyz").status == 200
        assert server.stop() == 0
    assert "could not be read" in server.log.read_text()


def test_a_server_ends_while_the_provider_keeps_it_waiting(server: ServerProcess):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server.start(*options(f"http://127.0.0.1:{silent.getsockname()[1]}/keys"))
        silent.accept()
        assert server.ask("GET", WHOAMI, headers=bearer(signed(claims()))).status == 503
        assert server.stop() == 0


def test_a_provider_that_is_half_given_is_no_start(server: ServerProcess):
    server.launch(*options("off"))
    assert server.exit_code() == 2
    assert "auth.jwt.jwks is not given" in server.log.read_text()
