"""Over a real socket: chunked bodies, half bodies, lengths that lie, heads without end, readers that stop."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn

from basalt.access.quotas import QuotaLimits
from basalt.api.bodies.messages import PublishRequest
from basalt.api.codecs import avro
from basalt.errors import TooLargeError
from basalt.http.asgi import protocol
from basalt.http.asgi.connections import Connections
from basalt.http.asgi.heads import Heads
from basalt.http.asgi.protocol import HttpConnection
from basalt.http.asgi.requests import BodyBudget, RequestHead
from basalt.http.asgi.responses import Response
from basalt.http.routes import messages

ORDERS = "/v1/namespaces/shop/topics/orders"
ANSWER_SECONDS_MAX = 60  # a bound for a hang, not an expectation


class Server:
    """The application under uvicorn on a free port, for as long as `serving` lasts."""

    def __init__(self, client):
        self.client = client
        self.port = 0
        self.uvicorn: uvicorn.Server | None = None
        self.options = {}

    def connections(self) -> int:
        """How many connections the server has."""
        assert self.uvicorn is not None
        return len(self.uvicorn.server_state.connections)

    @asynccontextmanager
    async def serving(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self.client.app, http=HttpConnection, lifespan="off", log_config=None, access_log=False, **self.options
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
    lines = [f"POST {ORDERS}/publish HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def polled(server) -> list[str]:
    body = b"{}"
    head = f"POST {ORDERS}/poll HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
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
        b"GET /v1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /v1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET /v1 HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n",
        b"GET /v1 HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
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
        status, _, answer = await server.send(b"GET /v1 HTTP/1.1\r\nHost: localhost\r\n", lines, b"y" * 100_000)
        assert (status, json.loads(answer)["code"]) == (431, "head_too_large")
        status, _, answer = await server.send(b"GET /" + b"x" * 100_000, b"y" * 100_000)
        assert (status, json.loads(answer)["code"]) == (431, "head_too_large")

    run(server, story)


def test_a_head_is_read_on_up_to_the_limit_and_refused_a_byte_later(server, monkeypatch):
    begun = b"GET /v1 HTTP/1.1\r\nX: "
    monkeypatch.setattr(protocol, "HEAD_BYTES_MAX", len(begun) + 2)

    async def story():
        status, _, _ = await server.send(
            begun + b"12", b"\r\nHost: localhost\r\n\r\n"
        )  # the head ends with what goes beyond
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
        head = f"POST {ORDERS}/poll HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
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
            writer.write(b"GET /v1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await read_answer(reader))[0] == 200
        writer.write(b"GET /v1 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)  # pipelined
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
        writer.write(b"GET /v1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await read_answer(reader))[0] == 200
        writer.close()

    run(server, story)


def test_a_waiting_poll_ends_when_its_connection_is_closed(server):
    async def story():
        head = f"POST {ORDERS}/poll?waitMs=60000 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
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


class Scripted:
    """An application that answers every request as a coroutine of the test says."""

    def __init__(self, answer) -> None:
        self.answer = answer
        self.heads = Heads()
        self.connections = Connections(1_000, 1_000)
        self.exchanges = []

    def begin(self, head, exchange, client_id=None):
        self.exchanges.append(exchange)
        request = RequestHead(head, exchange, 0.0, BodyBudget(1 << 20), client_id)
        return self.answer(request)

    def begin_whole(self, head, exchange, client_id, body):
        return self.begin(head, exchange, client_id)

    async def __call__(self, scope, receive, send):
        raise AssertionError("our own protocol needs no ASGI")


def scripted(client, answer) -> Server:
    client.app = Scripted(answer)
    return Server(client)


GET = b"GET /v1 HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_request_whose_head_is_known_may_come_in_pieces_all_the_same(server):
    async def story():
        body = b'{"messages": ["a"]}'
        whole = publish(body, f"Content-Length: {len(body)}")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for place in (len(whole), 10, len(whole) - len(body), len(whole) - 3, len(whole)):
            writer.write(whole[:place])
            await writer.drain()
            await asyncio.sleep(0.001)
            writer.write(whole[place:])
            assert (await read_answer(reader))[0] == 200
        writer.close()
        assert await polled(server) == ["a"] * 5

    run(server, story)


def test_requests_before_a_broken_one_get_their_answers(server):
    async def story():
        for broken in (b"\x00", publish(b"", "Transfer-Encoding: chunked") + b"zz\r\n", b"GET /" + b"x" * 70_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(GET * 3 + broken)
            statuses = [(await read_answer(reader))[:2] for _ in range(3)]
            assert [status for status, _ in statuses] == [200] * 3
            assert ["connection" in headers for _, headers in statuses] == [False, False, True]
            assert await reader.read() == b""
            writer.close()

    run(server, story)


def look_whether_it_is_idle(server, after_s: float) -> None:
    """Have the server look now whether its one connection is idle: from here on it may be for so long."""
    (connection,) = server.uvicorn.server_state.connections
    connection._idle_timer.cancel()
    connection.keep_alive_s = after_s
    connection._check_idle()


def test_a_connection_on_which_nothing_more_comes_is_closed_after_a_while(server):
    server.options = {
        "timeout_keep_alive": ANSWER_SECONDS_MAX
    }  # however long this machine stands still between two requests

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(3):
            writer.write(GET)
            assert (await read_answer(reader))[0] == 200
        look_whether_it_is_idle(server, 0.05)
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            assert await reader.read() == b""
        writer.close()

    run(server, story)


def test_a_call_that_waits_longer_than_an_idle_connection_may_is_answered(client):
    may_answer = asyncio.Event()

    async def answer(request):
        await may_answer.wait()
        await request.exchange.send(request, 200, [(b"content-length", b"2")], [b"ok"])

    server = scripted(client, answer)
    server.options = {"timeout_keep_alive": ANSWER_SECONDS_MAX}

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for calls in (1, 2):
            writer.write(GET)
            while len(client.app.exchanges) < calls:
                await asyncio.sleep(0.001)
            if calls == 2:  # the first answer has begun the time of which a connection may be idle
                look_whether_it_is_idle(server, 0.0)
            may_answer.set()
            assert (await read_answer(reader))[2] == b"ok"
            may_answer.clear()
        writer.close()

    run(server, story)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), asyncio.CancelledError()])
def test_a_call_that_ends_without_an_answer_is_told_so_and_the_connection_closed(client, error):
    async def answer(request):
        raise error

    server = scripted(client, answer)

    async def story():
        status, headers, body = await server.send(GET)
        assert (status, headers["connection"], body) == (500, "close", b"Internal Server Error")

    run(server, story)


def test_an_answer_that_breaks_off_is_not_ended_as_if_it_were_whole(client):
    def parts():
        yield b"some"
        raise RuntimeError("a bug")

    async def answer(request):
        await request.exchange.send(request, 200, [], parts())

    server = scripted(client, answer)

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET)
        answered = await reader.read()
        assert answered.endswith(b"\r\n\r\n4\r\nsome\r\n")
        writer.close()

    run(server, story)


def test_no_more_of_a_body_is_read_than_the_call_takes(client):
    taken = asyncio.Event()

    async def answer(request):
        await taken.wait()
        size = 0
        with suppress(TooLargeError):
            size = len(await request.body())
        await request.exchange.send(request, 200, [(b"content-length", b"7")], [b"%7d" % size])

    server = scripted(client, answer)

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        size = 1 << 20
        writer.write(publish(b" " * size, f"Content-Length: {size}"))
        while not client.app.exchanges or client.app.exchanges[0].unread_bytes <= protocol.UNREAD_BYTES_MAX:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)  # what would be read on is read by then
        assert client.app.exchanges[0].unread_bytes < size
        taken.set()
        assert (await read_answer(reader))[2] == b"1048576"
        writer.close()

    run(server, story)


def test_an_answer_is_the_same_whether_it_is_joined_or_sent_in_parts(client):
    parts = [b"a" * 10, memoryview(b"b" * 20), bytearray(b"c")]

    async def answer(request):
        await request.exchange.send(request, 200, [(b"content-length", b"31")], list(parts))

    server = scripted(client, answer)

    async def story():
        answers = []
        for joined in (31, 30, 0):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(protocol, "JOINED_BYTES_MAX", joined)
                answers.append((await server.send(GET))[2])
        assert answers == [b"".join(parts)] * 3

    run(server, story)


def test_a_header_that_holds_the_end_of_a_line_is_never_sent(client):
    async def answer(request):
        await request.exchange.send(request, 200, [(b"x", b"a\r\nb: c"), (b"content-length", b"0")], [b""])

    server = scripted(client, answer)

    async def story():
        status, headers, _ = await server.send(GET)
        assert (status, "b" in headers) == (500, False)

    run(server, story)


def test_a_server_that_stops_answers_what_has_come_and_hangs_up(client):
    going = asyncio.Event()

    async def answer(request):
        await going.wait()
        await request.exchange.send(request, 200, [(b"content-length", b"2")], [b"ok"])

    server = scripted(client, answer)

    async def story():
        idle_reader, idle = await asyncio.open_connection("127.0.0.1", server.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET)
        while len(client.app.exchanges) < 1 or server.connections() < 2:
            await asyncio.sleep(0.001)
        for connection in list(server.uvicorn.server_state.connections):
            connection.shutdown()
        assert await idle_reader.read() == b""
        going.set()
        status, headers, _ = await read_answer(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert await reader.read() == b""
        writer.close()
        idle.close()

    run(server, story)


def test_a_body_that_looks_like_a_known_request_is_a_body(client):
    async def answer(request):
        body = await request.body()
        await request.exchange.send(request, 200, [(b"content-length", b"%d" % len(body))], [body])

    server = scripted(client, answer)

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for data in (GET, publish(b"", f"Content-Length: {len(GET)}")):
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0.01)  # so that they come one by one
        writer.write(GET)
        assert [(await read_answer(reader))[2] for _ in range(2)] == [b"", GET]
        assert len(client.app.exchanges) == 2
        writer.close()

    run(server, story)


def test_known_requests_are_answered_in_their_order(client):
    going = asyncio.Event()

    async def answer(request):
        number = b"%d" % len(client.app.exchanges)
        if number == b"2":
            await going.wait()
        await request.exchange.send(request, 200, [(b"content-length", b"1")], [number])

    server = scripted(client, answer)

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(4):
            writer.write(GET)
            await writer.drain()
            await asyncio.sleep(0.01)
        going.set()
        assert [(await read_answer(reader))[2] for _ in range(4)] == [b"1", b"2", b"3", b"4"]
        writer.close()

    run(server, story)


@pytest.mark.parametrize("rest", [b"", b"a part"])
def test_a_body_that_stops_behind_an_early_answer_does_not_hold_its_connection(server, rest):
    server.options["timeout_keep_alive"] = 0.05

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
        status, _, _ = await read_answer(reader)
        assert status == 404
        writer.write(rest)
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            assert await reader.read() == b""
        writer.close()

    run(server, story)


def test_requests_that_are_sent_without_end_are_read_only_as_they_are_answered(server, monkeypatch):
    request, count = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 24_000
    most, answered = 0, HttpConnection.answered

    def note(connection: HttpConnection, call: protocol.Call) -> None:
        nonlocal most
        answered(connection, call)
        most = max(most, len(connection._waiting))

    monkeypatch.setattr(HttpConnection, "answered", note)

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request * count)
        for _ in range(count):
            status, _, _ = await read_answer(reader)
            assert status == 200
        writer.close()

    run(server, story)
    assert 0 < most <= 2 * (256 << 10) // len(request)  # two reads: the second one finds the first call begun


def test_requests_with_bodies_may_come_in_long_rows_and_end_anywhere(server):
    body = b'{"messages": ["%s"]}' % (b"a" * 1_000)
    request, count = publish(body, f"Content-Length: {len(body)}"), 300

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request * (count - 1) + request[:40])
        await writer.drain()
        writer.write(request[40:])
        statuses = [(await read_answer(reader))[0] for _ in range(count)]
        assert statuses == [200] * count

        writer.close()

    run(server, story)


def test_a_body_that_nobody_reads_is_no_request_though_it_looks_like_a_known_one(client):
    async def answer(request):
        await request.exchange.send(request, 200, [(b"content-length", b"1")], [b"%d" % len(client.app.exchanges)])

    server = scripted(client, answer)

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for number, data in enumerate([GET, publish(b"", f"Content-Length: {len(GET)}"), GET + GET], 1):
            writer.write(data)
            await writer.drain()
            assert (await read_answer(reader))[2] == b"%d" % number
        writer.write(GET)
        assert (await read_answer(reader))[2] == b"4"
        writer.write(publish(b"", f"Content-Length: {len(GET)}"))
        assert (await read_answer(reader))[2] == b"5"
        writer.write(GET)  # the body, and nothing but that
        await writer.drain()
        await asyncio.sleep(0.01)
        assert len(client.app.exchanges) == 5
        writer.write(GET.replace(b"localhost", b"localhost\r\nConnection: close"))
        assert (await reader.read()).count(b"HTTP/1.1 200") == 1
        assert len(client.app.exchanges) == 6
        writer.close()

    run(server, story)


def test_a_prompt_answer_that_cannot_be_sent_ends_its_connection(server, monkeypatch):
    monkeypatch.setattr(messages, "_published", lambda placed: Response(200, b"", b"a\r\nb: c"))
    body = avro.encode_publish_request(PublishRequest(None, [b"a"]))

    async def story():
        await polled(server)  # the topic is in memory
        head = publish(b"", f"Content-Length: {len(body)}").replace(b"application/json", b"avro/binary")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head + body)
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            assert await reader.read() == b""
        writer.close()

    run(server, story)


def test_a_call_beyond_a_quota_is_told_so_before_any_of_a_huge_body_is_asked_for(server):
    server.client.services.quotas.use({"anonymous": QuotaLimits(publish_bytes_per_s=1)})

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = b'{"messages":["a"]}'
        writer.write(publish(body, f"Content-Length: {len(body)}"))
        assert (await read_answer(reader))[0] == 200
        writer.write(publish(b"", "Content-Length: 10000000", "Expect: 100-continue"))
        status, headers, _ = await read_answer(reader)  # which no "100 Continue" comes before
        assert (status, int(headers["retry-after"]) >= 1) == (429, True)
        writer.close()

    run(server, story)
