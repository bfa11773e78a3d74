"""Small calls that write are passed on as frames of the link: answered as over HTTP, done once, and by HTTP where the link does not do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest
import uvloop

from basalt.cluster.links.link import Handlers
from basalt.errors import MalformedBodyError
from basalt.http import passing_by_link as module
from basalt.http.asgi.requests import Head
from basalt.http.passing_by_link import (
    ANSWER_BYTES_MAX,
    BODY_BYTES_MAX,
    HEADS_MAX,
    LINES_BYTES_MAX,
    PASS,
    PASS_MS_MAX,
    Given,
    Pass,
    PassedByLink,
    goes_by_link,
)
from tests.control.server.sharing_servers import SharingServer, sharers
from tests.led_servers import HANG_S

SHOP = "/v1/namespaces/shop/topics"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Line:
    """A connection of a client that says nearly the same again and again."""

    def __init__(self, server: SharingServer) -> None:
        self._server = server

    async def publish(self, topic: str, *messages: str, **given: str) -> Answer:
        """One call, whose bytes come together."""
        body = json.dumps({"messages": messages}).encode()
        lines = {"host": "localhost", **given, "content-type": "application/json", "content-length": str(len(body))}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        reader, writer = await self._server.line()
        async with asyncio.timeout(HANG_S):
            writer.write(f"POST {SHOP}/{topic}/publish HTTP/1.1\r\n{head}\r\n".encode() + body)
            first, *found = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in found)}
            answer = Answer(int(first.split()[1]), headers, await reader.readexactly(int(headers["content-length"])))
        writer.close()
        return answer


Story = Callable[[SharingServer, SharingServer, str], Awaitable[None]]


def run(story: Story, *, leader_owns: bool) -> None:
    """With the server that is asked, the owner of a topic, and the topic; the one that is asked has passed on a call like those that follow."""

    async def all_of_it() -> None:
        async with sharers(2) as world:
            leader, member = world.servers
            owner, asked = (leader, member) if leader_owns else (member, leader)
            topic = "orders"
            await world.give(topic, owner)
            await world.until(lambda: asked.member._owners().owner_of(_shard(topic)) == owner.instance)  # type: ignore[union-attr]
            await world.until(lambda: member.member.links.to_leader is not None)
            assert (await leader.ask("PUT", f"{SHOP}/{topic}")).status == 200
            for _ in range(2):  # the head is parsed, then known; and then its lines are
                assert (await Line(asked).publish(topic, "like those")).status == 200
            await story(asked, owner, topic)

    uvloop.run(all_of_it())


def _shard(topic: str) -> int:
    from basalt_engine.keys import topic_prefix
    from basalt_engine.stores.shards import shard_of

    return shard_of(topic_prefix("shop", topic))


def came_by_link(owner: SharingServer) -> list[str]:
    """Note from now on which calls come over a link: their request ids."""
    seen: list[str] = []
    found = owner.member._passed_by_link
    begin = found._begin

    def noted(head: Head, exchange: object, request_id: str | None, body: bytes) -> object:
        seen.append(request_id or "")
        return begin(head, exchange, request_id, body)  # type: ignore[arg-type]

    found._begin = noted  # type: ignore[assignment]
    return seen


async def payloads(server: SharingServer, topic: str) -> list[str]:
    told = await server.ask("POST", f"{SHOP}/{topic}/poll", {}, Accept="application/json")
    return [each["payload"] for each in told.json()]


@pytest.mark.parametrize("leader_owns", [True, False])
def test_calls_are_answered_as_by_the_owner_itself_and_done_once(leader_owns: bool):
    async def story(asked: SharingServer, owner: SharingServer, topic: str) -> None:
        seen = came_by_link(owner)
        for number in range(20):
            told = await Line(asked).publish(topic, f"{number}", basalt_request_id=f"call-{number}")
            direct = await Line(owner).publish(topic, f"direct {number}")
            assert told.status == direct.status == 200
            assert told.headers["basalt-owner"] == owner.url
            assert told.headers["basalt-request-id"] == f"call-{number}"
            mine, theirs = dict(told.headers), dict(direct.headers)
            for headers in (mine, theirs):
                for name in ("basalt-owner", "basalt-request-id", "date", "content-length"):
                    headers.pop(name, None)
            assert mine == theirs
            assert told.body == direct.body
        assert "call-19" in seen
        found = await payloads(owner, topic)
        assert [each for each in found if each.isdigit()] == [str(number) for number in range(20)]
        assert asked.passing.under_way == 0

    run(story, leader_owns=leader_owns)


def test_what_the_owner_refuses_is_refused_in_its_words():
    async def story(asked: SharingServer, owner: SharingServer, topic: str) -> None:
        assert (await owner.ask("DELETE", f"{SHOP}/{topic}")).status == 200
        seen = came_by_link(owner)
        told, direct = await Line(asked).publish(topic, "late"), await Line(owner).publish(topic, "late")
        assert len(seen) == 1
        assert told.status == direct.status == 404
        assert json.loads(told.body)["code"] == json.loads(direct.body)["code"]

    run(story, leader_owns=True)


def test_large_calls_and_those_without_a_link_go_by_http():
    async def story(asked: SharingServer, owner: SharingServer, topic: str) -> None:
        seen = came_by_link(owner)
        assert (await Line(asked).publish(topic, "x" * (BODY_BYTES_MAX + 1))).status == 200
        owner.member.links.handlers.remove(PASS)
        assert (await Line(asked).publish(topic, "asked in vain")).status == 200
        assert seen == []
        assert (await payloads(owner, topic)).count("asked in vain") == 1
        assert asked.passing.under_way == 0

    run(story, leader_owns=True)


def test_a_link_that_breaks_before_the_answer_leaves_the_outcome_unknown():
    async def story(asked: SharingServer, owner: SharingServer, topic: str) -> None:
        begun: list[asyncio.Future[Given]] = []

        def never(_: str, call: Pass) -> asyncio.Future[Given]:
            begun.append(asyncio.get_running_loop().create_future())
            return begun[-1]

        owner.member.links.handlers.remove(PASS)
        owner.member.links.handlers.add(PASS, never)
        asking = asyncio.ensure_future(Line(asked).publish(topic, "m"))
        async with asyncio.timeout(HANG_S):
            while not begun:
                await asyncio.sleep(0.001)
        link = asked.member.links.to_leader
        assert link is not None
        link.close("a story wants it")
        told = await asking
        assert json.loads(told.body)["code"] == "outcome_unknown"
        assert asked.passing.outcomes["unknown"] == 1
        assert asked.passing.under_way == 0

    run(story, leader_owns=True)


def test_a_call_whose_topic_has_moved_is_answered_anew():
    async def story(asked: SharingServer, owner: SharingServer, topic: str) -> None:
        moved: list[Pass] = []

        def not_here(_: str, call: Pass) -> Given:
            moved.append(call)
            return Given(503, (), b'{"code":"shard_moving"}')

        owner.member.links.handlers.remove(PASS)
        owner.member.links.handlers.add(PASS, not_here)
        assert (await Line(asked).publish(topic, "followed")).status == 200
        assert moved
        assert (await payloads(owner, topic)).count("followed") == 1
        assert asked.passing.outcomes["not_done"] == 1

    run(story, leader_owns=True)


def test_the_word_of_a_server_is_proved_over_a_link_too():
    async def story(_: SharingServer, owner: SharingServer, topic: str) -> None:
        forged = b"POST %s/%s/publish HTTP/1.1\r\nhost: localhost\r\nbasalt-forwarded: %s http client 10.0.0.1\r\n" % (
            SHOP.encode(), topic.encode(), b"0" * 64,
        )  # fmt: skip
        told = await owner.member._passed_by_link._answer("member", Pass(forged, "r-1", None, b'{"messages":["m"]}'))
        assert told.status == 503
        assert "m" not in await payloads(owner, topic)

    run(story, leader_owns=True)


@pytest.mark.parametrize(
    "lines",
    [b"", b"POST /x HTTP/1.1\r\nhost: a\r\n", b"POST x HTTP/1.1\r\nbasalt-forwarded: a\r\n", b"POST /x HTTP/1.1\r\nbasalt-forwarded: a\r\nbasalt-forwarded: b\r\n"],
)  # fmt: skip
def test_what_no_server_passes_on_is_refused(lines: bytes):
    async def story() -> None:
        passed = PassedByLink(Handlers(), lambda *_: pytest.fail("it was begun"))
        with pytest.raises(MalformedBodyError):
            passed._answer("member", Pass(lines, "r-1", None, b""))

    asyncio.run(story())


def test_few_heads_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "HEADS_MAX", 3)
    assert HEADS_MAX >= 3

    async def story() -> None:
        passed = PassedByLink(Handlers(), lambda *_: None)
        for number in range(10):
            lines = b"POST /%d HTTP/1.1\r\nbasalt-forwarded: a\r\n" % number
            passed._answer("member", Pass(lines, "r-1", None, b"")).cancel()
            assert len(passed._heads) <= 3

    asyncio.run(story())


@pytest.mark.parametrize(
    ("method", "path", "body_bytes", "expected"),
    [
        ("POST", f"{SHOP}/a/publish", 100, True),
        ("POST", f"{SHOP}/a/store", 100, True),
        ("POST", f"{SHOP}/a/records", BODY_BYTES_MAX, True),
        ("POST", f"{SHOP}/a/publish", BODY_BYTES_MAX + 1, False),
        ("GET", f"{SHOP}/a/records", 0, False),
        ("POST", f"{SHOP}/a/poll", 100, False),
        ("POST", "/console/ns/shop/topics/a/publish", 100, False),
    ],
)
def test_small_writes_alone_go_by_link(method: str, path: str, body_bytes: int, expected: bool):
    assert goes_by_link(Head(method, path, path.encode(), b"", {}), bytes(body_bytes)) is expected


def test_limits_keep_their_distance():
    assert BODY_BYTES_MAX + LINES_BYTES_MAX < ANSWER_BYTES_MAX
    assert PASS_MS_MAX > 15_000  # the limit of a gateway
