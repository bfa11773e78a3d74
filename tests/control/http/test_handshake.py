"""Over real sockets: who is let in by a certificate and who is not, what changes under connections, and handshakes that come to nothing."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop

from basalt.channel_binding import end_point_hash
from basalt.http.asgi import handshake, protocol, responses
from basalt.http.asgi.connections import Connections
from basalt.http.asgi.handshake import Handshake, Handshakes
from basalt.http.asgi.heads import Heads
from basalt.http.asgi.protocol import HttpConnection
from basalt.http.asgi.requests import BodyBudget, RequestHead
from basalt.server.tls import load
from basalt.settings import TlsSettings
from tests.certificates import Authority, Issued

ANSWER_SECONDS_MAX = 60  # a bound for a hang, not an expectation
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
LARGE_BYTES = 3_000_000


class Telling:
    """An application that answers what it learns of the connection; or, for /large, much; a body it sends back."""

    def __init__(self) -> None:
        self.heads = Heads()
        self.connections = Connections(1_000, 500)

    async def begin(self, head: Any, exchange: Any, client_id: str | None = None) -> None:
        request = RequestHead(head, exchange, 0, BodyBudget(1 << 24), client_id)
        body = await request.body()
        if head.path == "/large":
            await responses.send_response(request, responses.Response(200, [b"x" * 100_000] * (LARGE_BYTES // 100_000)))
        elif body:
            await responses.send_response(request, responses.Response(200, body))
        else:
            told = exchange.end_point_hash
            seen = {
                "scheme": exchange.scheme,
                "certificate": exchange.certificate and exchange.certificate.fields,
                "hash": told and told.hex(),
            }
            await responses.send_response(request, responses.json_response(seen))

    def begin_whole(self, head: Any, exchange: Any, client_id: str | None, _body: bytes) -> Coroutine[Any, Any, None]:
        return self.begin(head, exchange, client_id)


class Line:
    """A connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.headers: dict[str, str] = {}

    async def ask(self, target: str = "/", body: bytes = b"", *headers: str) -> Any:
        lines = [f"POST {target} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers, "", ""]
        self.writer.write("\r\n".join(lines).encode() + body)
        return await self.answer()

    async def answer(self) -> Any:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        answer = await self.reader.readexactly(int(self.headers["content-length"]))
        return json.loads(answer) if "json" in self.headers.get("content-type", "") else answer

    async def rest(self) -> bytes:
        """What comes until the connection ends."""
        try:
            return await self.reader.read()
        except OSError:
            return b""

    def close(self) -> None:
        self.writer.close()


class Server:
    """A TLS port, as long as `serving` lasts, with the files that it is made of."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.other = Authority(folder / "other", "other")
        self.own = self.authority.server()
        self.clients = folder / "clients.pem"
        self.clients.write_bytes(self.authority.pem)
        self.settings = TlsSettings(
            certificate=str(self.own.certificate), key=str(self.own.key), client="optional", client_ca=str(self.clients)
        )
        self.handshakes: Handshakes
        self.uvicorn: uvicorn.Server
        self.app: Telling
        self.port = 0

    @asynccontextmanager
    async def serving(self, **given: Any) -> AsyncIterator[None]:
        self.settings = TlsSettings(**{each: getattr(self.settings, each) for each in TlsSettings.__slots__} | given)
        self.handshakes = Handshakes(load(self.settings)[1])
        async with self._serving(functools.partial(Handshake, self.handshakes)):
            yield

    @asynccontextmanager
    async def serving_plain(self) -> AsyncIterator[None]:
        async with self._serving(HttpConnection):
            yield

    @asynccontextmanager
    async def _serving(self, protocol: Any) -> AsyncIterator[None]:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.app = Telling()
        config = uvicorn.Config(self.app, http=protocol, lifespan="off", log_config=None, access_log=False)
        self.uvicorn = uvicorn.Server(config)
        task = asyncio.create_task(self.uvicorn._serve(sockets=[listener]))
        while not self.uvicorn.started:
            await asyncio.sleep(0)
        try:
            yield
        finally:
            self.uvicorn.should_exit = True
            await task
            await until(lambda: self.app.connections.total == 0)  # whatever became of them, none is counted any more

    def reload(self) -> None:
        self.handshakes.use(load(self.settings)[1])

    def open(self) -> int:
        return len(self.uvicorn.server_state.connections)

    async def connect(self, context: ssl.SSLContext) -> Line:
        return Line(
            *await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=context, server_hostname="localhost", limit=1 << 24
            )
        )

    async def plain(self, data: bytes = b"") -> Line:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        return Line(reader, writer)

    async def is_refused(self, context: ssl.SSLContext) -> bool:
        """Tell whether a client with this context gets no answer; by TLS 1.3 it learns of it only then."""
        try:
            line = await self.connect(context)
            await line.ask()
        except (OSError, asyncio.IncompleteReadError):
            return True
        line.close()
        return False


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[], Coroutine[Any, Any, None]]], None]]:
    """Run a story on each event loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:

        def run_story(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
            async def bounded() -> None:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    await story()

            runner.run(bounded())

        yield run_story


def subject(seen: Any) -> str:
    return ",".join("=".join(pair) for part in seen["certificate"]["subject"] for pair in part)


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_application_learns_of_the_client_s_certificate_and_of_the_server_s(server, run, version):
    client = server.authority.client("etl")

    async def story():
        async with server.serving():
            line = await server.connect(server.authority.trusting(client, version))
            for _ in range(3):
                seen = await line.ask()
                assert subject(seen) == "commonName=etl"
                assert seen["scheme"] == "https"
                assert seen["hash"] == end_point_hash(server.own.der).hex()
            line.close()

    run(story)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_one_there_is_none_to_tell(server, run, version):
    async def story():
        for client in ("off", "optional"):
            ca = {"client_ca": None} if client == "off" else {"client_ca": str(server.clients)}
            async with server.serving(client=client, **ca):
                line = await server.connect(
                    server.authority.trusting(server.authority.client("etl") if client == "off" else None, version)
                )
                assert (await line.ask())["certificate"] is None
                line.close()
        async with server.serving_plain():
            assert await (await server.plain()).ask() == {"scheme": "http", "certificate": None, "hash": None}

    run(story)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_name_that_the_client_asks_for_makes_no_difference(server, run, version):
    async def story():
        async with server.serving():
            context = server.authority.trusting(server.authority.client("etl"), version)
            context.check_hostname = False
            for asked in ("localhost", "elsewhere.example", None):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", server.port, ssl=context, server_hostname=asked or ""
                )
                assert subject(await Line(reader, writer).ask()) == "commonName=etl"
                writer.close()

    run(story)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("client", ["optional", "required"])
def test_certificates_that_do_not_count_are_refused(server, run, version, client, caplog):
    trusting = server.authority.trusting

    async def story():
        async with server.serving(client=client):
            for foreign, reason in (
                (server.other.client(), "unable to get local issuer certificate"),
                (server.authority.client(file="old", starts_days=-9, ends_days=-1), "certificate has expired"),
                (server.authority.client(file="new", starts_days=1), "certificate is not yet valid"),
                (server.authority.server(file="no-client"), "unsuitable certificate purpose"),
            ):
                server.handshakes._told_s = -1_000.0
                assert await server.is_refused(trusting(foreign, version))
                assert reason in caplog.text
            assert not await server.is_refused(trusting(server.authority.client("etl"), version))
            assert await server.is_refused(trusting(None, version)) == (client == "required")
            assert server.handshakes.outcomes["refused"] == 4 + (client == "required")

    run(story)


def test_refusals_do_not_fill_the_log(server, run, caplog):
    async def story():
        async with server.serving():
            context = server.authority.trusting(server.other.client("etl"))
            for _ in range(5):
                assert await server.is_refused(context)
            lines = [record for record in caplog.records if "refused a client" in record.getMessage()]
            assert len(lines) == 1
            assert lines[0].levelno == logging.WARNING
            assert "at 127.0.0.1 for its certificate" in lines[0].getMessage()
            server.handshakes._told_s = -1_000.0
            assert await server.is_refused(context)
            assert "(4 more since the last such line)" in caplog.records[-1].getMessage()

    run(story)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_revoked_certificate_is_refused_from_the_next_list_on(server, run, version):
    good, bad = server.authority.client("good", file="good"), server.authority.client("bad", file="bad")
    crl = server.authority.revoke()

    async def story():
        async with server.serving(client_crl=str(crl)):
            line = await server.connect(server.authority.trusting(bad, version))
            assert subject(await line.ask()) == "commonName=bad"
            server.authority.revoke(bad)
            server.reload()
            assert await server.is_refused(server.authority.trusting(bad, version))
            assert not await server.is_refused(server.authority.trusting(good, version))
            await line.ask()
            assert line.headers["connection"] == "close"
            assert await line.rest() == b""
            server.authority.revoke(ends_days=-1)  # a list that is too old says nothing of who was revoked since
            server.reload()
            assert await server.is_refused(server.authority.trusting(good, version))

    run(story)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_ca_between_is_sent_along_or_is_known_and_each_ca_needs_a_list_where_there_are_lists(
    server, run, version, tmp_path
):
    root = server.authority
    between = Authority(tmp_path / "between", "between", above=root)
    client = between.client()
    alone = client.certificate.read_bytes()
    lists = tmp_path / "lists.pem"

    async def is_refused(*, sent_along: bool) -> bool:
        client.certificate.write_bytes(alone + (between.pem if sent_along else b""))
        return await server.is_refused(root.trusting(client, version))

    async def story():
        async with server.serving():
            assert await is_refused(sent_along=False)
            assert not await is_refused(sent_along=True)
            server.clients.write_bytes(root.pem + between.pem)
            server.reload()
            assert not await is_refused(sent_along=False)
        lists.write_bytes(root.revoke().read_bytes())
        async with server.serving(client_crl=str(lists)):
            assert await is_refused(sent_along=True)  # nobody knows whom the CA between has revoked
            lists.write_bytes(root.revoke().read_bytes() + between.revoke().read_bytes())
            server.reload()
            assert not await is_refused(sent_along=True)
            lists.write_bytes(root.revoke(between).read_bytes() + between.revoke().read_bytes())
            server.reload()
            assert await is_refused(sent_along=True)

    run(story)


@pytest.mark.parametrize("version", VERSIONS)
def test_who_came_in_by_a_certificate_has_one_more_answer_after_a_change_and_others_go_on(server, run, version):
    async def story():
        async with server.serving():
            known = await server.connect(server.authority.trusting(server.authority.client("etl"), version))
            unknown = await server.connect(server.authority.trusting(None, version))
            await known.ask()
            await unknown.ask()
            server.clients.write_bytes(server.other.pem)
            server.reload()
            assert subject(await known.ask()) == "commonName=etl"
            assert known.headers["connection"] == "close"
            assert await known.rest() == b""
            for _ in range(2):
                await unknown.ask()
                assert "connection" not in unknown.headers
            assert await server.is_refused(server.authority.trusting(server.authority.client("etl"), version))
            newcomer = await server.connect(server.authority.trusting(server.other.client("new"), version))
            assert subject(await newcomer.ask()) == "commonName=new"
            for line in (known, unknown, newcomer):
                line.close()

    run(story)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_next_handshake_has_the_new_certificate(server, run, version):
    async def story():
        async with server.serving():
            before = await server.connect(server.authority.trusting(None, version))
            new = server.authority.server("server", starts_days=-2)
            assert new.certificate == server.own.certificate
            server.reload()
            line = await server.connect(server.authority.trusting(None, version))
            assert (await line.ask())["hash"] == end_point_hash(new.der).hex()
            assert line.writer.get_extra_info("ssl_object").getpeercert(True) == new.der
            assert (await before.ask())["hash"] == end_point_hash(server.own.der).hex()  # that of its own handshake
            line.close()
            before.close()

    run(story)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_whose_ca_was_withdrawn_cannot_come_back_by_a_session_that_it_kept(server, run, version):
    """No tickets are given. Sessions of TLS 1.2 that OpenSSL keeps by itself are those of the context, and go with it."""
    context = server.authority.trusting(server.authority.client("etl"), version)

    def once(session: ssl.SSLSession | None) -> ssl.SSLSession:
        """One request, and a proper goodbye, without which the server would forget the session; the one to resume next."""
        with socket.create_connection(("127.0.0.1", server.port)) as plain:
            with context.wrap_socket(plain, server_hostname="localhost", session=session) as line:
                line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                if not line.recv(65_536):  # how a refusal looks by TLS 1.3, where a client is done before the server is
                    raise ConnectionResetError
                while line.recv(65_536):
                    pass
                if version == ssl.TLSVersion.TLSv1_3:
                    assert not line.session_reused
                found = line.session
                assert found is not None
                assert not found.has_ticket
                with suppress(OSError):
                    line.unwrap()
                return found

    async def story():
        async with server.serving():
            session = await asyncio.to_thread(once, None)
            session = await asyncio.to_thread(once, session)
            await until(lambda: server.open() == 0)
            server.clients.write_bytes(server.other.pem)
            server.reload()
            with pytest.raises(OSError):
                await asyncio.to_thread(once, session)
            assert server.handshakes.outcomes["refused"] == 1

    run(story)


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_is_swapped_under_load_and_no_good_client_sees_a_request_fail(server, run, version):
    """Two CAs, one server certificate after the other, and clients that keep connections or open one for each request."""
    clients = [server.authority.client(f"c{number}", file=f"c{number}") for number in range(3)] + [None]
    rounds = 6

    async def keep(client: Issued | None, over: asyncio.Event, asked: list[int]) -> None:
        context = server.authority.trusting(client, version)
        while not over.is_set():
            line = await server.connect(context)
            for _ in range(5):
                seen = await line.ask()
                assert (seen["certificate"] is None) == (client is None)
                asked[0] += 1
                if line.headers.get("connection") == "close":
                    break
            line.close()

    async def story():
        async with server.serving():
            over, asked = asyncio.Event(), [0]
            tasks = [asyncio.create_task(keep(client, over, asked)) for client in clients * 2]
            for number in range(rounds):
                before = asked[0]
                await until(lambda before=before: asked[0] > before + 20 or any(task.done() for task in tasks))
                server.authority.server("server", starts_days=-2 - number)
                server.clients.write_bytes(server.authority.pem + (server.other.pem if number % 2 else b""))
                server.reload()
            over.set()
            await asyncio.gather(*tasks)
            assert server.handshakes.outcomes["done"] >= rounds
            assert sum(count for outcome, count in server.handshakes.outcomes.items() if outcome != "done") == 0

    run(story)


def test_large_bodies_go_both_ways_and_a_last_answer_comes_whole(server, run):
    body = bytes(range(256)) * 4_000

    async def story():
        async with server.serving():
            line = await server.connect(server.authority.trusting())
            assert await line.ask("/", body) == body
            assert len(await line.ask("/large")) == LARGE_BYTES
            assert len(await line.ask("/large", b"", "Connection: close")) == LARGE_BYTES
            assert await line.rest() == b""

    run(story)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 60000\r\n\r\n" + b"x" * (handshake.PLAIN_BYTES_MAX - 6_000),
    ],
    ids=["without a body", "with a body"],
)
def test_a_plain_request_is_told_that_the_port_speaks_tls(server, run, request_bytes):
    async def story():
        async with server.serving():
            line = await server.plain(request_bytes)
            problem = await line.answer()
            assert (problem["code"], problem["status"]) == ("malformed_request", 400)
            assert problem["hint"] == "Use https:// in the URL."
            assert await line.rest() == b""
            assert server.handshakes.outcomes["no_tls"] == 1
            await until(lambda: server.open() == 0)

    run(story)


@pytest.mark.parametrize(
    "data",
    [b"\0\0\0\0", b"\x16\x03\x01", b"\x16\x03\x01\x00\x05hello", b"\x15\x03\x03\x00\x02\x02\x30", b"\x80\x2e\x01"],
)
def test_bytes_that_are_no_handshake_end_the_connection(server, run, data):
    async def story():
        async with server.serving():
            line = await server.plain(data)
            line.writer.write_eof()
            await line.rest()
            await until(lambda: server.open() == 0)
            assert server.handshakes.outcomes["broken"] == 1

    run(story)


def test_a_handshake_to_a_plain_port_ends_in_an_error_of_tls(server, run):
    async def story():
        async with server.serving_plain():
            with pytest.raises(ssl.SSLError):
                await server.connect(server.authority.trusting())
            assert await (await server.plain()).ask()

    run(story)


@pytest.mark.parametrize("data", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01"])
def test_a_handshake_that_is_not_complete_in_time_is_ended(server, run, monkeypatch, data):
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS_MAX", 0.05)

    async def story():
        async with server.serving():
            line = await server.plain(data)
            assert await line.rest() == b""
            await until(lambda: server.handshakes.outcomes["late"] == 1)
            assert server.open() == 0

    run(story)


def test_too_many_handshakes_end_the_oldest_and_who_finishes_his_is_let_in(server, run, monkeypatch):
    monkeypatch.setattr(handshake, "HANDSHAKES_MAX", 3)

    async def story():
        async with server.serving():
            lines = []
            for number in range(8):
                lines.append(await server.plain(b"\x16\x03" if number % 2 else b""))
                await until(lambda number=number: server.handshakes.outcomes["dropped"] == max(0, number - 2))
            good = await server.connect(server.authority.trusting(server.authority.client("etl")))
            assert subject(await good.ask()) == "commonName=etl"
            for line in lines[:5]:
                assert await line.rest() == b""
            assert server.open() == 3
            for line in [*lines, good]:
                line.close()

    run(story)


def test_the_connections_of_one_address_end_none_of_another_one(server, run, monkeypatch):
    monkeypatch.setattr(handshake, "HANDSHAKES_PER_ADDRESS_MAX", 2)
    monkeypatch.setattr(handshake, "HANDSHAKES_MAX", 3)

    async def story():
        async with server.serving():
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))
            patient = Line(reader, writer)
            await until(lambda: server.handshakes.going_on == 1)
            flood = []
            for number in range(6):
                flood.append(await server.plain(b"\x16"))
                await until(lambda number=number: server.handshakes.outcomes["dropped"] == max(0, number - 1))
            assert server.handshakes.going_on == 3
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert (await patient.answer())["status"] == 400  # it is still there, and heard
            for line in [*flood, patient]:
                line.close()

    run(story)


def test_one_connection_too_many_is_closed_before_its_handshake_and_each_is_counted_once(server, run):
    async def story():
        async with server.serving():
            server.app.connections = Connections(1_000, 3)
            kept = [await server.connect(server.authority.trusting()) for _ in range(2)]
            waiting = await server.plain(b"\x16")
            await until(lambda: server.app.connections.total == 3)
            await until(lambda: server.handshakes.outcomes["done"] == 2)  # a client is done before the server is
            began = dict(server.handshakes.outcomes)
            assert await (await server.plain(b"\x16")).rest() == b""
            assert await server.is_refused(server.authority.trusting())
            assert server.handshakes.outcomes == began
            assert server.app.connections.refused["address"] == 2
            waiting.close()
            await until(lambda: server.app.connections.total == 2)
            kept.append(await server.connect(server.authority.trusting()))
            for line in kept:
                await line.ask()
                line.close()

    run(story)


def no_more_files(_: int) -> int:
    raise OSError(24, "Too many open files")


def test_where_no_file_can_be_opened_a_client_may_come_again(server, run, monkeypatch):
    async def story():
        async with server.serving():
            with monkeypatch.context() as patch:
                patch.setattr(os, "dup", no_more_files)
                assert await (await server.plain()).rest() == b""
            assert not await server.is_refused(server.authority.trusting())

    run(story)


def test_a_server_that_stops_waits_for_no_handshake_and_for_no_goodbye(server, run, monkeypatch):
    monkeypatch.setattr(handshake, "GOODBYE_SECONDS_MAX", 10 * ANSWER_SECONDS_MAX)
    monkeypatch.setattr(protocol, "CLOSING_SECONDS_MAX", 0.05)

    async def story():
        lines = []
        async with server.serving():
            for data in (b"", b"\x16\x03\x01"):
                lines.append(await server.plain(data))
            idle = await server.connect(server.authority.trusting())
            await idle.ask()
            idle.writer.transport.pause_reading()  # it will not see that the server says goodbye
            await until(lambda: server.open() == 3)
        assert server.open() == 0
        assert server.handshakes.outcomes["dropped"] == 2
        for line in [*lines, idle]:
            with suppress(OSError):
                line.close()

    run(story)
