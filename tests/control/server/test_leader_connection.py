"""One connection to the leader: answers as they come, what is held of them, and what makes it carry no other call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from basalt.server import leader_connection
from basalt.server.leader_connection import READ_AHEAD_BYTES_MAX, LeaderConnection, LeaderLostError

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Line(asyncio.Transport):
    """What a connection writes, and whether it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.reads = True
        self.is_open = True

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.sent += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.is_open = False


def run(story: Callable[[LeaderConnection, Line], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        connection, line = LeaderConnection(), Line()
        connection.connection_made(line)
        await story(connection, line)

    asyncio.run(all_of_it())


async def body(connection: LeaderConnection) -> bytes:
    return b"".join([bytes(part) async for part in connection.parts()])


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_answers_follow_each_other_however_they_are_cut(step: int):
    answers = [
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok"),
        (b"HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", 404, b"abcd"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (OK, 200, b"ok"),
    ]

    async def story(connection: LeaderConnection, line: Line) -> None:
        for data, status, content in answers:
            connection.ask(b"GET / HTTP/1.1\r\n\r\n", is_head=False)
            connection.is_sent = True
            assert not connection.is_free
            for start in range(0, len(data), step):
                connection.data_received(data[start : start + step])
            await connection.answered
            assert (connection.status, await body(connection)) == (status, content)
            assert connection.is_free

    run(story)


def test_the_answer_to_head_has_no_body_whatever_its_length():
    async def story(connection: LeaderConnection, line: Line) -> None:
        for _ in range(2):
            connection.ask(b"HEAD / HTTP/1.1\r\n\r\n", is_head=True)
            connection.is_sent = True
            connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
            await connection.answered
            assert connection.whole() == [b""]
            assert connection.is_free

    run(story)


def test_no_more_is_read_than_is_taken():
    async def story(connection: LeaderConnection, line: Line) -> None:
        connection.ask(b"GET / HTTP/1.1\r\n\r\n", is_head=False)
        size = 2 * READ_AHEAD_BYTES_MAX
        connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        connection.data_received(b"x" * READ_AHEAD_BYTES_MAX)
        assert line.reads
        connection.data_received(b"x")
        assert not line.reads
        parts = connection.parts()
        assert len(await anext(parts)) == READ_AHEAD_BYTES_MAX
        assert line.reads
        connection.data_received(b"x" * (READ_AHEAD_BYTES_MAX - 1))
        assert connection.is_whole
        await parts.aclose()

    run(story)


@pytest.mark.parametrize("rest", [[b"cdefgh"], [b"c", b"defg", b"h"]])
def test_the_rest_of_a_long_answer_comes_as_it_was_sent_and_another_call_follows(rest: list[bytes]):
    async def story(connection: LeaderConnection, line: Line) -> None:
        for _ in range(2):
            connection.ask(b"GET / HTTP/1.1\r\n\r\n", is_head=False)
            connection.is_sent = True
            connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nab")
            for part in rest:
                assert not connection.is_whole
                connection.data_received(part)
            await connection.answered
            assert [bytes(part) async for part in connection.parts()] == [b"ab", *rest]
            assert connection.is_free

    run(story)


def test_of_more_than_the_length_of_an_answer_nothing_is_given_and_no_other_call_follows():
    async def story(connection: LeaderConnection, line: Line) -> None:
        connection.ask(b"GET / HTTP/1.1\r\n\r\n", is_head=False)
        connection.is_sent = True
        connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
        connection.data_received(b"cdHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await connection.answered
        assert await body(connection) == b"abcd"
        assert not connection.is_free
        assert not line.is_open

    run(story)


def test_a_long_answer_after_which_the_leader_closes_is_followed_by_no_other_call():
    async def story(connection: LeaderConnection, line: Line) -> None:
        connection.ask(b"GET / HTTP/1.1\r\n\r\n", is_head=False)
        connection.is_sent = True
        connection.data_received(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\nab")
        connection.data_received(b"cd")
        assert await body(connection) == b"abcd"
        assert not connection.is_free

    run(story)


def test_who_is_to_be_told_is_told_of_an_answer_at_once_and_of_its_absence_later():
    async def story(connection: LeaderConnection, line: Line) -> None:
        told: list[int] = []
        connection.ask(b"GET / HTTP/1.1\r\n\r\n", is_head=False, tell=lambda: told.append(connection.status))
        connection.is_sent = True
        connection.data_received(OK)
        assert told == [200]
        connection.ask(b"GET / HTTP/1.1\r\n\r\n", is_head=False, tell=lambda: told.append(connection.status))
        connection.end(LeaderLostError("it is over"))
        assert told == [200]
        await asyncio.sleep(0)
        assert told == [200, 0]

    run(story)


@pytest.mark.parametrize(
    "data",
    [
        b"not HTTP\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * leader_connection.HEAD_BYTES_MAX,
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    ],
)
def test_what_is_no_answer_ends_the_connection(data: bytes):
    async def story(connection: LeaderConnection, line: Line) -> None:
        connection.ask(b"GET / HTTP/1.1\r\n\r\n", is_head=False)
        connection.data_received(data)
        with pytest.raises(LeaderLostError):
            await connection.answered
        assert not line.is_open

    run(story)


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"x"])
def test_what_comes_unasked_ends_the_connection(extra: bytes):
    async def story(connection: LeaderConnection, line: Line) -> None:
        connection.ask(b"GET / HTTP/1.1\r\n\r\n", is_head=False)
        connection.is_sent = True
        connection.data_received(OK)
        assert connection.is_free
        connection.data_received(extra)
        assert not connection.is_free
        assert not line.is_open

    run(story)


def test_a_leader_that_closes_after_its_answer_gets_no_other_call():
    async def story(connection: LeaderConnection, line: Line) -> None:
        connection.ask(b"GET / HTTP/1.1\r\n\r\n", is_head=False)
        connection.is_sent = True
        connection.data_received(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")
        await connection.answered
        assert await body(connection) == b"ok"
        assert not connection.is_free

    run(story)


def test_who_waits_for_the_leader_hears_that_it_is_gone():
    async def story(connection: LeaderConnection, line: Line) -> None:
        connection.ask(b"POST / HTTP/1.1\r\n\r\n", is_head=False)
        connection.pause_writing()
        writing = asyncio.ensure_future(connection.drained())
        connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n")
        reading = asyncio.ensure_future(body(connection))
        await asyncio.sleep(0)
        connection.connection_lost(None)
        for waiting in (writing, reading):
            with pytest.raises(LeaderLostError, match="closed"):
                await waiting
        assert not connection.is_free

    run(story)


def test_who_writes_goes_on_when_the_leader_takes_more():
    async def story(connection: LeaderConnection, line: Line) -> None:
        connection.ask(b"POST / HTTP/1.1\r\n\r\n", is_head=False)
        connection.pause_writing()
        writing = asyncio.ensure_future(connection.drained())
        await asyncio.sleep(0)
        assert not writing.done()
        connection.resume_writing()
        await writing

    run(story)
