"""Answers that go on over a real socket: each part is sent when it comes, and a stream ends with its client, fast or slow."""

from __future__ import annotations

import asyncio
import json

from basalt.console.app import PAGES
from basalt.http.app import build_app
from basalt.http.asgi.requests import ClientGoneError
from tests.control.http.test_protocol import ANSWER_SECONDS_MAX, GET, Server, read_answer, run, scripted

LIVE = (
    b"GET /console/live/ns/shop/topics/orders?from=start HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n"
)


def test_each_part_of_a_stream_is_sent_when_it_comes(client):
    more = asyncio.Event()

    async def parts():
        yield b"first"
        yield b""
        await more.wait()
        yield b"second"

    async def answer(request):
        await request.exchange.send(request, 200, [], parts())

    server = scripted(client, answer)

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET)
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            assert (await reader.readuntil(b"first\r\n")).endswith(b"5\r\nfirst\r\n")
            more.set()
            assert await reader.readuntil(b"0\r\n\r\n") == b"6\r\nsecond\r\n0\r\n\r\n"
        writer.write(GET)  # the connection goes on
        assert (await read_answer(reader))[2] == b"firstsecond"
        writer.close()

    run(server, story)


def test_a_stream_whose_client_has_gone_is_told_so_at_its_next_part(client):
    told = asyncio.Event()
    gone = asyncio.Event()

    async def parts():
        yield b"first"
        await gone.wait()
        while True:
            yield b"more"
            await asyncio.sleep(0)

    async def answer(request):
        try:
            await request.exchange.send(request, 200, [], parts())
        except ClientGoneError:
            told.set()

    server = scripted(client, answer)

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET)
        await reader.readuntil(b"first\r\n")
        writer.close()
        gone.set()
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            await told.wait()

    run(server, story)


def live_server(client) -> Server:
    client.topic()
    client.app = build_app(client.services, further_routes=PAGES)
    return Server(client)


def test_a_topic_is_followed_over_a_socket_and_leaves_nothing_when_its_reader_goes(client):
    server = live_server(client)
    services = client.services

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(LIVE)
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"text/event-stream" in head
            assert b"content-encoding" not in head
            while not services.topics.memory.waiting:
                await asyncio.sleep(0.001)
            await client.ask("POST", "/v1/namespaces/shop/topics/orders/publish", {"messages": ["hello"]})
            assert b'"text":"hello"' in await reader.readuntil(b"\n\n\r\n") + await reader.readuntil(b"\n\n\r\n")
            writer.close()
            while services.topics.memory.waiting or len(services.streams) or server.connections():
                await asyncio.sleep(0.001)

    run(server, story)


def test_a_reader_that_takes_nothing_holds_no_memory_while_a_topic_fills(client):
    """The stream stands still with its reader: what it could not send is counted later, and is nowhere meanwhile."""
    server = live_server(client)

    async def story():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 12)
        writer.write(LIVE)
        await reader.readuntil(b"\n\n\r\n")
        payload = "x" * 400
        for _ in range(40):
            await client.ask("POST", "/v1/namespaces/shop/topics/orders/publish", {"messages": [payload] * 500})
        assert server.uvicorn is not None
        (connection,) = server.uvicorn.server_state.connections
        assert connection.transport.get_write_buffer_size() < 1 << 20  # type: ignore[attr-defined]
        shown = left = 0
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            while shown + left < 20_000:
                line = await reader.readline()
                if line.startswith(b"event: "):
                    name = line[7:].strip()
                    data = json.loads((await _line(reader)).removeprefix(b"data: "))
                    shown, left = (shown + len(data), left) if name == b"rows" else (shown, left + data["count"])
        assert shown + left == 20_000
        assert left > shown
        writer.close()

    run(server, story)


async def _line(reader: asyncio.StreamReader) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        try:
            found += await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            found += await reader.readexactly(error.consumed)
    return found
