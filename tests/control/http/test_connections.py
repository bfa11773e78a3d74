"""Connections: no more of one address than the limit, nor in all; what is refused is closed, counted, and fills no log."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import ExitStack, asynccontextmanager

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.errors import ThrottledError
from basalt.http.asgi.connections import RETRY_MS, STREAMS_MAX, STREAMS_OF_LOGIN_MAX, TOLD_S, Connections, OpenStreams
from basalt.http.asgi.protocol import HttpConnection

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
ANSWER_SECONDS_MAX = 60  # a bound for a hang, not an expectation


def test_one_address_that_has_its_share_leaves_room_for_others_until_all_have_theirs() -> None:
    connections = Connections(4, 2)
    assert [connections.open("10.0.0.1", 0.0) for _ in range(3)] == [True, True, False]
    assert [connections.open("10.0.0.2", 0.0) for _ in range(3)] == [True, True, False]
    assert not connections.open("10.0.0.3", 0.0)
    assert (connections.total, connections.refused) == (4, {"address": 1, "total": 2})
    connections.close("10.0.0.1")
    assert connections.open("10.0.0.3", 0.0)


def test_all_addresses_of_one_network_of_ipv6_have_one_share() -> None:
    connections = Connections(10, 2)
    assert [connections.open(f"2001:db8::{number}", 0.0) for number in range(3)] == [True, True, False]
    assert connections.open("2001:db8:0:1::1", 0.0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["10.0.0.1", "10.0.0.2", "2001:db8::1", None]))))
def test_what_is_counted_is_what_is_open(acts: list[tuple[bool, str | None]]) -> None:
    connections, held = Connections(5, 3), []
    for opens, address in acts:
        if opens:
            may = len(held) < 5 and held.count(address) < 3
            assert connections.open(address, 0.0) is may
            if may:
                held.append(address)
        elif address in held:
            held.remove(address)
            connections.close(address)
        assert connections.total == len(held)
    for address in held:
        connections.close(address)
    assert (connections.total, connections._by_network) == (0, {})


def test_the_log_has_a_line_a_minute_for_all_that_were_refused(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(1, 1)
    with caplog.at_level(logging.WARNING, "basalt.http"):
        connections.open("10.0.0.1", 0.0)
        for second in range(3 * TOLD_S + 1):
            connections.open("10.0.0.2", float(second))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[1] for line in lines] == ["1", "60", "60", "60"]
    assert "http.connections_max" in lines[0]


@asynccontextmanager
async def serving(app, connections: Connections):
    app.connections = connections
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=HttpConnection, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await task


async def asked(port: int) -> tuple[asyncio.StreamWriter, bytes]:
    """A connection, and the first line that it was answered; empty where it was closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(LIVEZ)
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return writer, await reader.readline()
    except ConnectionError:
        return writer, b""


def test_a_connection_too_many_is_closed_unread_and_one_that_ends_makes_room(client) -> None:
    connections = Connections(10, 3)

    async def story() -> None:
        async with serving(client.app, connections) as port:
            held = [await asked(port) for _ in range(5)]
            assert [line[:12] for _, line in held] == [b"HTTP/1.1 200"] * 3 + [b""] * 2
            assert (connections.total, connections.refused["address"]) == (3, 2)
            held[0][0].close()
            while connections.total == 3:
                await asyncio.sleep(0)
            writer, line = await asked(port)
            assert line.startswith(b"HTTP/1.1 200")
            for each in (writer, *(one for one, _ in held)):
                each.close()
            while connections.total:
                await asyncio.sleep(0)

    client.run(story())


def test_the_metrics_tell_connections_and_those_that_were_refused(client) -> None:
    connections = client.services.connections
    connections._total_max = 1
    assert [connections.open("10.0.0.1", 0.0), connections.open("10.0.0.1", 0.0)] == [True, False]
    shown = client.call("GET", "/metrics").body.decode()
    assert "basalt_connections 1.0" in shown
    assert 'basalt_connections_refused_total{limit="total"} 1.0' in shown
    assert 'basalt_connections_refused_total{limit="address"} 0.0' in shown


def test_a_login_has_so_many_streams_and_others_have_theirs():
    streams = OpenStreams()
    with ExitStack() as open_ones:
        for _ in range(STREAMS_OF_LOGIN_MAX):
            open_ones.enter_context(streams.one_more("ada"))
        with pytest.raises(ThrottledError, match="4 open streams of yours") as refused:
            open_ones.enter_context(streams.one_more("ada"))
        assert refused.value.retry_after_ms == RETRY_MS
        open_ones.enter_context(streams.one_more("bob"))
        assert len(streams) == STREAMS_OF_LOGIN_MAX + 1
    assert len(streams) == 0
    with streams.one_more("ada"):
        assert len(streams) == 1


def test_a_server_has_so_many_streams():
    streams = OpenStreams()
    with ExitStack() as open_ones:
        for number in range(STREAMS_MAX):
            open_ones.enter_context(streams.one_more(f"user {number}"))
        with pytest.raises(ThrottledError):
            open_ones.enter_context(streams.one_more("one more"))
    with streams.one_more("one more"):
        pass
