"""Callers by their certificates, over a TLS port: grants for them, one credential at a time, and connections that outlive their certificate."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn

from basalt.http.asgi.handshake import Handshake, Handshakes
from basalt.server.tls import load
from basalt.settings import AuthSettings, CertSettings, Settings, TlsSettings
from tests.certificates import Authority, Issued, name
from tests.control.http.conftest import Client

BOOTSTRAP = "b" * 40
ORDERS = "/v1/namespaces/shop/topics/orders"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


class Line:
    """A connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, method: str, target: str, body: object = None, token: str | None = None) -> Answer:
        sent = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost", f"Content-Length: {len(sent)}"]
        lines += [] if body is None else ["Content-Type: application/json"]
        lines += [] if token is None else [f"Authorization: Bearer {token}"]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        answer = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(head[0].split()[1]), headers, json.loads(answer) if answer else None)


class Port:
    """A TLS port of a server that asks who calls."""

    def __init__(self, client: Client, authority: Authority, settings: TlsSettings) -> None:
        self.client = client
        self.authority = authority
        self.handshakes = Handshakes(load(settings)[1])
        self._number = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        protocol: Any = functools.partial(Handshake, self.handshakes)
        server = uvicorn.Server(
            uvicorn.Config(self.client.app, http=protocol, lifespan="off", log_config=None, access_log=False)
        )
        task = asyncio.create_task(server._serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0)
        try:
            yield
        finally:
            server.should_exit = server.force_exit = True
            await task

    async def connect(self, issued: Issued | None = None, version: ssl.TLSVersion | None = None) -> Line:
        context = self.authority.trusting(issued, version)
        return Line(*await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname="localhost"))

    def issue(self, subject: Any, **given: Any) -> Issued:
        self._number += 1
        return self.authority.client(subject, file=f"client{self._number}", **given)


@pytest.fixture
def port(connect: Callable[[Settings], Client], tmp_path: Path) -> Port:
    return opened(connect, tmp_path, ("cert", "token"))


def opened(connect: Callable[[Settings], Client], folder: Path, kinds: tuple[Any, ...], **cert: Any) -> Port:
    authority = Authority(folder)
    own = authority.server()
    tls = TlsSettings(
        certificate=str(own.certificate), key=str(own.key), client="optional", client_ca=str(authority.file)
    )
    auth = AuthSettings(
        kinds=kinds, cert=CertSettings(**cert), bootstrap_token=BOOTSTRAP if "token" in kinds else None,
        superusers=("cert:CN=root",),
    )  # fmt: skip
    client = connect(Settings(auth=auth, tls=tls))
    clock: Any = client.clock
    clock.step(int(time.time() * 1_000))
    return Port(client, authority, tls)


def run(port: Port, story: Callable[[], Any]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), port.open():
            await story()

    port.client.run(main())


def test_a_caller_by_certificate_may_do_what_was_granted_to_its_name_and_nothing_else(port: Port):
    async def story():
        root = await port.connect(port.issue("root"))
        assert (await root.ask("PUT", ORDERS)).status == 200
        etl = await port.connect(port.issue(name_of("etl", "data")))
        me = (await etl.ask("GET", "/v1/auth/whoami")).body
        assert (me["principal"], me["superuser"], me["groups"]) == ("cert:CN=etl,OU=data", False, [])
        assert me["credential"].startswith("cert ")
        assert me["credential"].endswith(" of CN=ca")
        assert me["expiresMs"] is not None
        refused = await etl.ask("POST", f"{ORDERS}/publish", {"messages": ["a"]})
        assert (refused.status, refused.body["code"]) == (403, "forbidden")
        grant = {"subject": "cert:CN=etl,OU=data", "verbs": ["write"], "resource": "topic:shop:orders"}
        assert (await root.ask("POST", "/v1/admin/grants", grant)).status == 200
        assert (await etl.ask("POST", f"{ORDERS}/publish", {"messages": ["a"]})).status == 200
        assert (await etl.ask("POST", f"{ORDERS}/poll", {})).status == 403
        another = await port.connect(port.issue(name_of("etl", "web")))
        assert (await another.ask("POST", f"{ORDERS}/publish", {"messages": ["a"]})).status == 403

    run(port, story)


def name_of(cn: str, ou: str) -> Any:
    from cryptography.x509.oid import NameOID

    return name((NameOID.ORGANIZATIONAL_UNIT_NAME, ou), (NameOID.COMMON_NAME, cn))


def test_requests_that_are_the_same_bytes_are_those_of_their_connection(port: Port):
    async def story():
        lines = {
            each: await port.connect(None if each == "nobody" else port.issue(each))
            for each in ("a", "nobody", "b", "root")
        }
        for _ in range(3):
            for each, line in lines.items():
                answer = await line.ask("GET", "/v1/auth/whoami")
                if each == "nobody":
                    assert (answer.status, answer.body["code"]) == (401, "unauthenticated")
                else:
                    assert answer.body["principal"] == f"cert:CN={each}"
                settings = await line.ask("GET", "/v1/admin/settings")
                assert settings.status == {"root": 200, "nobody": 401}.get(each, 403)

    run(port, story)


def test_one_credential_counts_that_of_the_request_before_that_of_the_connection(port: Port):
    async def story():
        root = await port.connect(port.issue("root"))
        for token, expected in ((None, 200), (BOOTSTRAP, 200), ("x", 401), (None, 200)):
            answer = await root.ask("GET", "/v1/auth/whoami", token=token)
            assert answer.status == expected
            if token == BOOTSTRAP:
                assert answer.body["principal"] == "token:bootstrap"
        weak = await root.ask("POST", "/v1/admin/tokens", {"name": "weak"})
        answer = await root.ask("GET", "/v1/admin/settings", token=weak.body["token"])
        assert answer.status == 403  # who sends a weak token does not act by the strong certificate

    run(port, story)


def test_a_certificate_that_ends_while_its_connection_lasts_says_nothing_more(port: Port):
    async def story():
        line = await port.connect(port.issue("root", ends_days=1))
        assert (await line.ask("GET", "/v1/auth/whoami")).status == 200
        clock: Any = port.client.clock
        clock.advance(86_400_000)
        for _ in range(2):
            answer = await line.ask("GET", "/v1/auth/whoami")
            assert (answer.status, answer.body["code"]) == (401, "unauthenticated")
            assert "expired" in answer.body["detail"]
        assert (await line.ask("GET", "/v1/auth/whoami", token=BOOTSTRAP)).status == 200

    run(port, story)


def test_a_grant_that_is_taken_back_stops_a_connection_that_is_open(port: Port):
    async def story():
        root, etl = await port.connect(port.issue("root")), await port.connect(port.issue("etl"))
        assert (await root.ask("PUT", ORDERS)).status == 200
        grant = {"subject": "cert:CN=etl", "verbs": ["read"], "resource": "topic:shop:orders"}
        given = await root.ask("POST", "/v1/admin/grants", grant)
        assert (await etl.ask("POST", f"{ORDERS}/poll", {})).status == 200
        grants = given.body if isinstance(given.body, list) else given.body.get("grants", [given.body])
        assert (await root.ask("DELETE", f"/v1/admin/grants/{grants[0]['id']}")).status in (200, 204)
        assert (await etl.ask("POST", f"{ORDERS}/poll", {})).status == 403

    run(port, story)


def test_where_only_certificates_count_there_is_no_challenge_and_no_token(
    connect: Callable[[Settings], Client], tmp_path: Path
):
    port = opened(connect, tmp_path, ("cert",), name="uri")

    async def story():
        line = await port.connect()
        answer = await line.ask("GET", "/v1/auth/whoami")
        assert answer.status == 401
        assert "www-authenticate" not in answer.headers
        assert (await line.ask("GET", "/v1/auth/whoami", token=BOOTSTRAP)).status == 401
        spiffe = await port.connect(port.issue("x", uris=("spiffe://example.org/etl",)))
        assert (await spiffe.ask("GET", "/v1/auth/whoami")).body["principal"] == "cert:spiffe://example.org/etl"
        two = await port.connect(port.issue("x", uris=("spiffe://example.org/etl", "spiffe://example.org/root")))
        answer = await two.ask("GET", "/v1/auth/whoami")
        assert (answer.status, answer.body["code"]) == (401, "unauthenticated")
        assert "spiffe" not in json.dumps(answer.body)
        assert (await two.ask("GET", "/livez")).status == 401  # a bad one is not passed over

    run(port, story)
