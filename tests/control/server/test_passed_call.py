"""One call that is passed on: the lines with which it goes, and what its caller is told, and how much is held, where the leader or an owner goes away, is slow, or says what it should not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from basalt.server import leader_connection, passing_on
from basalt.server.leader_connection import LeaderConnections
from basalt.server.passed_call import CALLERS_OF_HEAD_MAX
from tests.control.server.passing_pair import JSON, TOPIC, PortServer, deal, join, passing_pair, until
from tests.control.server.test_passing_on import run as run_pair
from tests.led_servers import HANG_S, LEASE_MS

PUBLISH = f"{TOPIC}/publish"
ONE = {"messages": ["a"]}
MIB = 1 << 20
Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


parts = pytest.mark.parametrize("part", ["leader", "owner"])


class Scripted:
    """What answers in the place of the leader, or of an owner of topics: `answer` gets each connection."""

    def __init__(self, answer: Answering) -> None:
        self.answer = answer
        self.connections = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self.answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()


@asynccontextmanager
async def scripted(answer: Answering, part: str) -> AsyncIterator[tuple[PortServer, Scripted]]:
    """A standby, and what answers where it believes the leader to be, or the owner of the topic."""
    async with passing_pair() as (leader, standby):
        await leader.ask("PUT", TOPIC)
        found = Scripted(answer)
        if part == "leader":
            await leader.hang_up()
            listener = socket.create_server(("127.0.0.1", leader.port))
        else:
            listener = socket.create_server(("127.0.0.1", 0))
            join(standby, "third-1", f"http://127.0.0.1:{listener.getsockname()[1]}", "third's secret")
            await deal(standby, "third-1")
        # Else the kernel lets the buffer of each connection grow to tens of megabytes.
        for each in (listener, standby.listener):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
        server = await asyncio.start_server(found.connected, sock=listener, limit=MIB)
        try:
            yield standby, found
        finally:
            for task in found.tasks:
                task.cancel()
            server.close()


def way(standby: PortServer, part: str) -> LeaderConnections:
    """The standby's way to the scripted server."""
    passing = standby.passing
    found = passing._leader if part == "leader" else passing._owners["third-1"]
    assert found is not None
    return found


def run(answer: Answering, story: Callable[[PortServer, Scripted], Awaitable[None]], part: str) -> None:
    async def all_of_it() -> None:
        async with scripted(answer, part) as (standby, leader):
            await story(standby, leader)

    uvloop.run(all_of_it())


async def head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def ok(body: bytes = b"{}") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


async def goes_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head(reader)


def test_headers_between_two_servers_are_not_the_callers_and_the_others_go_along():
    async def story(leader: PortServer, standby: PortServer) -> None:
        heads: list[dict[bytes, bytes]] = []
        serving = leader.member._serving
        assert serving is not None
        made = serving.app._request

        def noted(head, exchange, client_id):
            heads.append(head.headers)
            return made(head, exchange, client_id)

        serving.app._request = noted  # type: ignore[method-assign]
        reader, writer = await standby.line()
        writer.write(
            b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, x-forwarded-for\r\nKeep-Alive: 5\r\nTE: trailers\r\n"
            b"Upgrade: h2c\r\nProxy-Authorization: secret\r\nX-Forwarded-For: 6.6.6.6\r\nTraceparent: 00-%s-%s-01\r\nX-Mine: yes\r\n"
            b"\r\n" % (TOPIC.encode(), b"a" * 32, b"b" * 16)
        )
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        (headers,) = heads
        assert {name for name in headers if not name.startswith(b"basalt-")} == {
            b"host", b"x-forwarded-for", b"traceparent", b"x-mine",
        }  # fmt: skip
        assert headers[b"host"] == b"localhost"

    run_pair(story)


def test_callers_whose_calls_begin_alike_are_told_apart_and_few_of_them_are_kept():
    async def story(leader: PortServer, standby: PortServer) -> None:
        serving = leader.member._serving
        assert serving is not None
        seen: list[str | None] = []
        made = serving.app._request

        def noted(head, exchange, client_id):
            seen.append(exchange.client)
            return made(head, exchange, client_id)

        serving.app._request = noted  # type: ignore[method-assign]
        addresses = [f"127.0.0.{number}" for number in range(1, CALLERS_OF_HEAD_MAX + 3)]
        for address in addresses * 2:
            reader, writer = await asyncio.open_connection("127.0.0.1", standby.port, local_addr=(address, 0))
            for _ in range(2):
                writer.write(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % TOPIC.encode())
                answer = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            writer.close()
        assert seen == [address for address in addresses * 2 for _ in range(2)]
        assert max(len(head.passing or ()) for head in standby.member.heads._known.values()) <= CALLERS_OF_HEAD_MAX

    run_pair(story)


@parts
def test_of_a_call_that_the_leader_took_and_did_not_answer_nobody_knows_what_became(part: str):
    async def story(standby: PortServer, leader: Scripted) -> None:
        told = await standby.ask("POST", PUBLISH, ONE)
        assert (told.status, told.json()["code"]) == (503, "outcome_unknown")
        assert "retry-after" not in told.headers
        assert leader.connections == 1, "sent once"
        assert standby.passing.outcomes["unknown"] == 1

    run(goes_away, story, part)


@parts
def test_what_changes_nothing_is_told_as_not_done(part: str):
    async def story(standby: PortServer, leader: Scripted) -> None:
        told = await standby.ask("GET", TOPIC)
        assert (told.status, told.json()["code"]) == (503, "unavailable")
        assert leader.connections == 1

    run(goes_away, story, part)


@parts
@pytest.mark.parametrize(("method", "connections", "status"), [("GET", 2, 200), ("POST", 1, 503), ("DELETE", 1, 503)])
def test_only_what_changes_nothing_is_sent_again_when_a_kept_connection_was_closed(
    method, connections, status, part: str
):
    calls = 0

    async def answers_one_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        await head(reader)
        calls += 1
        writer.write(ok())
        await head(reader)

    async def story(standby: PortServer, leader: Scripted) -> None:
        assert (await standby.ask("GET", TOPIC)).status == 200
        told = await standby.ask(method, TOPIC)
        assert told.status == status
        if status == 503:
            assert told.json()["code"] == "outcome_unknown"
        assert leader.connections == connections

    run(answers_one_call, story, part)


@parts
def test_an_answer_that_cannot_be_written_breaks_off_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, part: str
):
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await head(reader)
            writer.write(ok())

    async def story(standby: PortServer, leader: Scripted) -> None:
        reader, writer = await standby.line()
        request = b"POST %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % PUBLISH.encode()
        for _ in range(2):  # the like of a third one is known
            writer.write(request)
            await reader.readuntil(b"{}")
        way(standby, part).owner = (b"basalt-owner", b"two\r\nlines: of it")
        writer.write(request)
        assert await reader.read() == b""
        assert standby.passing.under_way == 0
        assert not way(standby, part).busy
        assert standby.passing.outcomes["broken"] == 1

    run(answers, story, part)


@parts
def test_of_a_call_that_did_not_go_out_as_a_whole_nothing_was_done(part: str):
    async def goes_away_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"aaaa")

    async def story(standby: PortServer, leader: Scripted) -> None:
        reader, writer = await standby.line()
        writer.write(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\naaaa" % PUBLISH.encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        body = await reader.read(2_000)
        assert b"503" in answer.split(b"\r\n")[0]
        assert (b'"not_leader"' if part == "leader" else b'"shard_moving"') in body
        assert b"all of the call" in body
        writer.close()
        assert standby.passing.outcomes["not_done"] == 1

    run(goes_away_at_once, story, part)


@parts
def test_an_answer_that_breaks_off_breaks_off_for_its_caller_too(part: str):
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf!")
        await writer.drain()

    async def story(standby: PortServer, leader: Scripted) -> None:
        answer = await standby.raw(b"POST %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % PUBLISH.encode())
        assert answer.endswith(b"half!")
        assert b"content-length: 10\r\n" in answer
        assert standby.passing.outcomes["broken"] == 1

    run(half, story, part)


@parts
@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 299 Strange\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * (leader_connection.HEAD_BYTES_MAX + 1),
    ],
)
def test_what_is_no_answer_of_a_server_of_ours_is_none(answer: bytes, part: str):
    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(answer)
        await reader.read()

    async def story(standby: PortServer, leader: Scripted) -> None:
        told = await standby.ask("POST", PUBLISH, ONE)
        assert (told.status, told.json()["code"]) == (503, "outcome_unknown")

    run(says, story, part)


@parts
def test_a_connection_that_says_something_unasked_carries_no_other_call(part: str):
    async def says_too_much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(ok() + ok(b"of nobody"))
        await reader.read()

    async def story(standby: PortServer, leader: Scripted) -> None:
        for number in range(1, 3):
            told = await standby.ask("POST", PUBLISH)
            assert told.body != b"of nobody"
            await until(lambda number=number: leader.connections == number)

    run(says_too_much, story, part)


@parts
def test_a_refusal_that_comes_before_all_of_the_body_is_given_back_at_once(part: str):
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 413 Large\r\ncontent-length: 5\r\n\r\nlarge")
        await reader.read()

    async def story(standby: PortServer, leader: Scripted) -> None:
        reader, writer = await standby.line()
        writer.write(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n1234" % PUBLISH.encode())
        assert b" 413 " in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(5) == b"large"
        writer.close()

    run(refuses, story, part)


@parts
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_large_body_goes_up_as_fast_as_the_leader_takes_it_and_little_of_it_is_held(is_chunked, part: str):
    size, go_on, taken = 64 * MIB, asyncio.Event(), 0

    async def takes_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        told = await head(reader)
        assert (b"transfer-encoding: chunked" in told) == is_chunked
        await go_on.wait()
        while taken < size:
            taken += len(await reader.read(MIB))
        writer.write(ok(b"all"))
        await reader.read()

    async def story(standby: PortServer, leader: Scripted) -> None:
        reader, writer = await standby.line()
        framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % size
        writer.write(b"POST %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n" % (PUBLISH.encode(), framing))
        sent = 0

        async def send() -> None:
            nonlocal sent
            while sent < size:
                part = b"x" * MIB
                writer.write(b"%x\r\n%s\r\n" % (MIB, part) if is_chunked else part)
                sent += MIB
                await writer.drain()
            if is_chunked:
                writer.write(b"0\r\n\r\n")

        sending = asyncio.ensure_future(send())
        before = -1
        while before != sent:  # until nothing more goes out: what is held on the way is held
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 24 * MIB, "the sockets' own buffers, and a part in each server"
        go_on.set()
        await sending
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.close()

    run(takes_slowly, story, part)


@parts
def test_a_large_answer_comes_as_fast_as_its_caller_takes_it_and_little_of_it_is_held(part: str):
    size, given = 64 * MIB, 0

    async def gives(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal given
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while given < size:
            writer.write(b"x" * MIB)
            given += MIB
            await writer.drain()
        await reader.read()

    async def story(standby: PortServer, leader: Scripted) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", standby.port, limit=65_536)
        writer.write(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % TOPIC.encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b"content-length: %d\r\n" % size in answer
        before = -1
        while before != given:
            before = given
            await asyncio.sleep(0.2)
        assert given < 24 * MIB, "the sockets' own buffers, and READ_AHEAD_BYTES_MAX"
        left = size
        while left:
            left -= len(await reader.read(MIB))
        writer.close()

    run(gives, story, part)


@parts
def test_an_answer_that_comes_in_parts_is_seen_part_by_part_and_ends_when_its_caller_hangs_up(part: str):
    ended = asyncio.Event()

    async def streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await reader.read()
        ended.set()

    async def story(standby: PortServer, leader: Scripted) -> None:
        reader, writer = await standby.line()
        writer.write(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % TOPIC.encode())
        await reader.readuntil(b"3\r\none\r\n")
        writer.transport.abort()
        async with asyncio.timeout(HANG_S):
            await ended.wait()
        await until(lambda: standby.passing.under_way == 0)

    run(streams, story, part)


@parts
def test_a_caller_that_hangs_up_in_its_body_ends_the_call_at_the_leader(part: str):
    ended = asyncio.Event()

    async def reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        await reader.read()
        ended.set()

    async def story(standby: PortServer, leader: Scripted) -> None:
        _, writer = await standby.line()
        writer.write(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf" % PUBLISH.encode())
        await until(lambda: leader.connections == 1)
        writer.transport.abort()
        async with asyncio.timeout(HANG_S):
            await ended.wait()
        await until(lambda: standby.passing.outcomes["gone"] == 1)

    run(reads, story, part)


@parts
def test_a_leader_that_does_not_answer_and_leads_no_more_is_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch, part: str
):
    monkeypatch.setattr(passing_on, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(leader_connection, "FORMER_SECONDS_MAX", 0.05)

    has_come = asyncio.Event()

    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        has_come.set()
        await reader.read()

    async def story(standby: PortServer, leader: Scripted) -> None:
        asked = asyncio.ensure_future(standby.ask("POST", PUBLISH, ONE))
        await until(has_come.is_set)
        standby.time.servers[0].is_stopped = True
        standby.time.now_ms += LEASE_MS
        await standby.time.until(standby.serves)
        told = await asked
        assert (told.status, told.json()["code"]) == (503, "outcome_unknown")
        assert (await standby.ask("POST", PUBLISH, ONE)).status == 200, "it leads"

    run(hangs, story, part)


def test_a_connection_that_is_made_to_a_server_that_has_lost_its_part_meanwhile_carries_no_call():
    """A server that leads no more and says nothing would be waited for without end."""

    async def story(leader: PortServer, standby: PortServer) -> None:
        lease = standby.member.leadership.leader
        assert lease is not None
        way = LeaderConnections(lease, None)
        connecting = asyncio.ensure_future(way.connect())
        await asyncio.sleep(0)
        assert not connecting.done()
        way.retire()
        with pytest.raises(ConnectionAbortedError, match="has another part"):
            await connecting
        assert not way.busy

    run_pair(story)


@parts
def test_connections_are_kept_for_the_next_calls_and_no_more_of_them_than_are_worth_it(
    monkeypatch: pytest.MonkeyPatch, part: str
):
    monkeypatch.setattr(leader_connection, "IDLE_CONNECTIONS_MAX", 2)
    gate = asyncio.Event()

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await head(reader)
            await gate.wait()
            writer.write(ok())

    async def story(standby: PortServer, leader: Scripted) -> None:
        together = [asyncio.ensure_future(standby.ask("POST", PUBLISH)) for _ in range(5)]
        await until(lambda: leader.connections == 5)
        gate.set()
        assert [(await each).status for each in together] == [200] * 5
        for _ in range(5):
            assert (await standby.ask("POST", PUBLISH)).status == 200
        assert leader.connections == 5
        assert len(way(standby, part)._idle) == 2
        monkeypatch.setattr(leader_connection, "IDLE_SECONDS_MAX", -1.0)
        assert (await standby.ask("POST", PUBLISH)).status == 200
        assert leader.connections == 6, "one that was idle for long is not used"

    run(answers, story, part)


@pytest.mark.parametrize("round_number", range(2))
def test_of_a_thousand_calls_while_the_leader_is_killed_none_is_lost_and_none_is_done_twice(round_number: int):
    calls, at_a_time = 1_000, 8

    async def story() -> None:
        async with passing_pair() as (leader, standby):
            await leader.ask("PUT", TOPIC)
            outcomes: dict[int, str] = {}
            numbers, is_led_again = iter(range(calls)), asyncio.Event()

            async def publish() -> None:
                for number in numbers:
                    if number >= calls - at_a_time:  # however long the next one takes to lead, these come to it
                        await is_led_again.wait()
                    told = await standby.ask("POST", PUBLISH, {"messages": [f"{number}"]})
                    outcomes[number] = "ok" if told.status == 200 else told.json()["code"]
                    if outcomes[number] != "ok":
                        await asyncio.sleep(0.02)

            publishing = [asyncio.ensure_future(publish()) for _ in range(at_a_time)]
            await until(lambda: len(outcomes) > 300 + 50 * round_number)
            await leader.hang_up()
            await leader.die()
            await standby.time.until(standby.serves)
            is_led_again.set()
            await asyncio.gather(*publishing)
            assert len(outcomes) == calls
            assert set(outcomes.values()) <= {"ok", "not_leader", "outcome_unknown"}
            read = [each["payload"] for each in (await standby.ask("POST", f"{TOPIC}/poll", {}, **JSON)).json()]
            assert len(read) == len(set(read)), "done twice"
            done = {int(each) for each in read}
            for number, outcome in outcomes.items():
                if outcome != "outcome_unknown":
                    assert (number in done) == (outcome == "ok"), (number, outcome)
            assert sum(outcome == "outcome_unknown" for outcome in outcomes.values()) <= at_a_time
            assert outcomes[calls - 1] == "ok"

    uvloop.run(story())
