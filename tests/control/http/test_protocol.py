"""Over a real socket: chunked bodies, half bodies, lengths that lie, heads without end, readers that stop."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager

import pytest
import uvicorn

from basalt.http.asgi import protocol
from basalt.http.asgi.protocol import GuardedProtocol

ORDERS = "/v1/namespaces/shop/topics/orders"
ANSWER_SECONDS_MAX = 60  # a bound for a hang, not an expectation


class Server:
    """The application under uvicorn on a free port, for as long as `serving` lasts."""

    def __init__(self, client):
        self.client = client
        self.port = 0
        self.uvicorn: uvicorn.Server | None = None

    def connections(self) -> int:
        """How many connections the server has."""
        assert self.uvicorn is not None
        return len(self.uvicorn.server_state.connections)

    @asynccontextmanager
    async def serving(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self.client.app, http=GuardedProtocol, lifespan="off", log_config=None, access_log=False
        )
        server = self.uvicorn = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0)
        try:
            yield
        finally:
            server.should_exit = server.force_exit = True
            await task

    async def send(self, *parts: bytes, end: bool = False) -> tuple[int, dict[str, str], bytes]:
        """Send these parts and read one answer; with `end` close our side after them."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            if end:
                writer.close()
                await writer.wait_closed()
                return 0, {}, b""
            return await read_answer(reader)
        finally:
            writer.close()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(ANSWER_SECONDS_MAX):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int((await reader.readline()).strip(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, body


@pytest.fixture
def server(client) -> Server:
    client.topic()
    return Server(client)


def run(server, story):
    async def main():
        async with server.serving():
            await story()

    server.client.run(main())


def publish(body: bytes, *headers: str) -> bytes:
    lines = [f"POST {ORDERS}/publish HTTP/1.1", "Host: h", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def polled(server) -> list[str]:
    body = b"{}"
    head = f"POST {ORDERS}/poll HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    status, _, answer = await server.send(head.encode() + body)
    assert status == 200
    return [message["payload"] for message in json.loads(answer)]


def test_a_chunked_body_is_read_to_its_end(server):
    async def story():
        head = publish(b"", "Transfer-Encoding: chunked")
        status, headers, _ = await server.send(head, chunk(b'{"mess'), chunk(b'ages": ["a"]}'), b"0\r\n\r\n")
        assert (status, headers["content-length"]) == (200, "0")
        assert await polled(server) == ["a"]

    run(server, story)


@pytest.mark.parametrize("name", ["Upgrade", "upgrade"])
def test_a_request_that_offers_another_protocol_is_read_with_its_body(server, name):
    async def story():
        body = b'{"messages": ["a"]}'
        offer = (f"{name}: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAEAAEAAAAIAAAAB")
        status, headers, _ = await server.send(publish(body, *offer, f"Content-Length: {len(body)}"))
        assert status == 200
        assert "upgrade" not in headers
        assert await polled(server) == ["a"]

    run(server, story)


def test_a_body_that_stops_half_way_changes_nothing(server):
    body = b'{"messages": ["a"]}'

    async def story():
        for parts in (
            [publish(body, "Content-Length: 1000")],
            [publish(b"", "Content-Length: 1000"), body],
            [publish(b"", "Transfer-Encoding: chunked"), chunk(body)],
            [publish(b"", "Transfer-Encoding: chunked"), b"ff\r\n" + body],
            [publish(body, f"Content-Length: {len(body)}")[:-1]],
        ):
            await server.send(*parts, end=True)
        assert await polled(server) == []

    run(server, story)


def test_a_length_that_is_too_short_makes_the_rest_another_request(server):
    body = b'{"messages": ["a"]}'

    async def story():
        status, headers, answer = await server.send(publish(body, f"Content-Length: {len(body) - 2}"))
        assert (status, json.loads(answer)["code"]) == (400, "malformed_body")
        assert headers["connection"] == "close"
        assert await polled(server) == []

    run(server, story)


def test_a_whole_request_gets_its_own_answer_whatever_follows_it(server):
    body = b'{"messages": ["a"]}'

    async def story():
        status, headers, _ = await server.send(
            publish(body, f"Content-Length: {len(body)}") + b"\x00\x01 nonsense\r\n\r\n"
        )
        assert (status, headers["connection"]) == (200, "close")
        assert await polled(server) == ["a"]

    run(server, story)


def test_a_declared_flood_is_refused_at_once_and_the_server_lives(server):
    async def story():
        status, _, answer = await server.send(publish(b"", "Content-Length: 10485761"))
        assert (status, json.loads(answer)["code"]) == (413, "too_large")
        assert await polled(server) == []

    run(server, story)


def test_a_chunked_flood_is_refused_when_it_passes_the_limit(server):
    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(publish(b"", "Transfer-Encoding: chunked"))
        sent = 0
        piece = chunk(b" " * 65_536)
        answer = asyncio.create_task(read_answer(reader))
        while not answer.done() and sent < 400:
            writer.write(piece)
            await writer.drain()
            sent += 1
        status, _, body = await answer
        writer.close()
        assert (status, json.loads(body)["code"]) == (413, "too_large")
        assert await polled(server) == []

    run(server, story)


def test_a_client_that_sends_all_of_a_flood_first_still_gets_its_answer(server):
    async def story():
        body = b" " * 12_000_000
        status, _, answer = await server.send(publish(body, f"Content-Length: {len(body)}"))
        assert (status, json.loads(answer)["code"]) == (413, "too_large")

    run(server, story)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET /v1 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /v1 HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        b"GET /v1 HTTP/1.1\r\nHost: h\r\nBad Header: x\r\n\r\n",
        b"GET /v1 HTTP/1.1\r\nHost: h\r\nX: a\x00b\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /v1 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_refused_and_the_server_lives(server, request_bytes):
    async def story():
        status, _, answer = await server.send(request_bytes)
        assert status in (400, 404, 405)
        assert json.loads(answer)["status"] == status
        assert await polled(server) == []

    run(server, story)


def test_a_head_without_end_is_refused(server):
    async def story():
        lines = b"X-Long: " + b"x" * 100_000
        status, _, answer = await server.send(b"GET /v1 HTTP/1.1\r\nHost: h\r\n", lines, b"y" * 100_000)
        assert (status, json.loads(answer)["code"]) == (431, "head_too_large")
        status, _, answer = await server.send(b"GET /" + b"x" * 100_000, b"y" * 100_000)
        assert (status, json.loads(answer)["code"]) == (431, "head_too_large")

    run(server, story)


def test_a_head_is_read_on_up_to_the_limit_and_refused_a_byte_later(server, monkeypatch):
    begun = b"GET /v1 HTTP/1.1\r\nX: "
    monkeypatch.setattr(protocol, "HEAD_BYTES_MAX", len(begun) + 2)

    async def story():
        status, _, _ = await server.send(begun + b"12", b"\r\nHost: h\r\n\r\n")  # the head ends with what goes beyond
        assert status == 200
        status, _, answer = await server.send(begun + b"123")
        assert (status, json.loads(answer)["code"]) == (431, "head_too_large")

    run(server, story)


def test_a_head_that_does_not_come_to_its_end_is_cut_off(server, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 3)  # what is sent at once has come by then

    async def story():
        status, _, answer = await server.send(b"GET /v1 HTTP/1.1\r\nHost:")
        assert (status, json.loads(answer)["code"]) == (408, "request_timeout")

    run(server, story)


def test_a_connection_on_which_nothing_comes_is_closed_without_a_word(server, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.01)

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b""
        writer.close()

    run(server, story)


def test_a_body_that_does_not_come_to_its_end_is_told_so(server, monkeypatch):
    from basalt.http.asgi import requests as bodies

    monkeypatch.setattr(bodies, "BODY_SECONDS_MAX", 0.05)

    async def story():
        status, _, answer = await server.send(publish(b"{", "Content-Length: 1000"))
        assert (status, json.loads(answer)["code"]) == (408, "request_timeout")
        assert await polled(server) == []

    run(server, story)


def test_a_reader_that_takes_nothing_is_cut_off(server, monkeypatch):
    monkeypatch.setattr(protocol, "STALL_SECONDS_MAX", 0.1)

    async def story():
        for _ in range(8):
            body = b'{"messages": ["' + b"x" * 1_000_000 + b'"]}'
            assert (await server.send(publish(body, f"Content-Length: {len(body)}")))[0] == 200
        stuck = socket.create_connection(("127.0.0.1", server.port))
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        stuck.setblocking(False)
        head = (
            f"POST {ORDERS}/poll HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
        )
        await asyncio.get_running_loop().sock_sendall(stuck, head.encode())
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            while not server.connections():
                await asyncio.sleep(0.001)
            while server.connections():
                await asyncio.sleep(0.001)
        stuck.close()

    run(server, story)


def test_a_connection_is_kept_for_the_next_request(server):
    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(3):
            writer.write(b"GET /v1 HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await read_answer(reader))[0] == 200
        writer.write(b"GET /v1 HTTP/1.1\r\nHost: h\r\n\r\n" * 3)  # pipelined
        for _ in range(3):
            assert (await read_answer(reader))[0] == 200
        writer.close()

    run(server, story)


def test_a_refused_body_does_not_spoil_its_connection(server):
    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = b"x" * 100
        writer.write(publish(body, "Content-Length: 100", "Content-Encoding: br"))
        assert (await read_answer(reader))[0] == 415
        writer.write(b"GET /v1 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await read_answer(reader))[0] == 200
        writer.close()

    run(server, story)


def test_a_waiting_poll_ends_when_its_connection_is_closed(server):
    async def story():
        head = f"POST {ORDERS}/poll?waitMs=60000 HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head.encode() + b"{}")
        arrivals = server.client.services.topics.memory
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            while not arrivals.waiting:
                await asyncio.sleep(0.001)
            writer.close()
            while arrivals.waiting:
                await asyncio.sleep(0.001)

    run(server, story)
