"""Bodies that are half received: all connections together hold so much of them, and no more."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from basalt.errors import BusyError
from basalt.http.asgi.requests import BodyBudget

BODY = json.dumps({"messages": ["x" * 80]}).encode()
HALVES = [BODY[:50], BODY[50:]]


class Sender:
    """A client that sends the first half of a publish at once, and the second when it is told to."""

    def __init__(self, client: Any, path: str) -> None:
        self._rest = asyncio.Event()
        self._half = asyncio.Event()
        self._scope = {
            "type": "http", "method": "POST", "path": f"{path}/publish", "raw_path": f"{path}/publish".encode(),
            "query_string": b"", "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")], "client": ("192.0.2.7", 1),
            "http_version": "1.1",
        }  # fmt: skip
        self._client = client
        self._sent = 0
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.task = asyncio.ensure_future(client.app(self._scope, self._receive, self._send))

    async def half_sent(self) -> None:
        """Return once the server waits for the second half, or has answered without it."""
        waiting = asyncio.ensure_future(self._half.wait())
        await asyncio.wait((waiting, self.task), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    async def finish(self) -> int:
        self._rest.set()
        await self.task
        return self.status

    def cut(self) -> None:
        """The connection breaks."""
        self._sent = 2
        self._rest.set()

    async def _receive(self) -> dict[str, Any]:
        if self._sent == 0:
            self._sent = 1
            return {"type": "http.request", "body": HALVES[0], "more_body": True}
        self._half.set()
        await self._rest.wait()
        if self._sent == 1:
            self._sent = 2
            return {"type": "http.request", "body": HALVES[1], "more_body": False}
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.body += message["body"]


async def half_sent(client: Any, path: str, count: int) -> list[Sender]:
    senders = []
    for _ in range(count):
        senders.append(Sender(client, path))
        await senders[-1].half_sent()
    return senders


@pytest.fixture
def narrow(client):
    """A server with room for three half bodies of these tests."""
    client.app.bodies = BodyBudget(10_000, total_bytes_max=3 * len(HALVES[0]))
    return client


def test_half_bodies_beyond_the_limit_are_refused_with_a_time_to_come_back_and_the_others_go_on(narrow):
    path = narrow.topic()

    async def story():
        held = await half_sent(narrow, path, 3)
        (refused,) = await half_sent(narrow, path, 1)
        await refused.task
        assert (refused.status, json.loads(refused.body)["code"]) == (503, "busy")
        assert int(refused.headers[b"retry-after"]) >= 1
        assert [await sender.finish() for sender in held] == [200, 200, 200]
        again = await half_sent(narrow, path, 3)
        assert [await sender.finish() for sender in again] == [200, 200, 200]

    narrow.run(story())
    assert len(narrow.payloads(path)) == 6


def test_a_body_that_is_given_up_gives_its_place_back(narrow):
    path = narrow.topic()

    async def story():
        held = await half_sent(narrow, path, 3)
        for sender in held:
            sender.cut()
            await sender.task
        again = await half_sent(narrow, path, 3)
        assert [await sender.finish() for sender in again] == [200, 200, 200]

    narrow.run(story())
    assert len(narrow.payloads(path)) == 3


def test_bodies_that_come_whole_need_no_place(narrow):
    path = narrow.topic()

    async def story():
        held = await half_sent(narrow, path, 3)
        assert (await narrow.ask("POST", f"{path}/publish", {"messages": ["whole"]})).status == 200
        assert [await sender.finish() for sender in held] == [200, 200, 200]

    narrow.run(story())


def test_a_body_that_is_alone_always_has_its_place():
    budget = BodyBudget(10_000, total_bytes_max=10)
    budget.take(8, 0)
    budget.take(8, 8)
    with pytest.raises(BusyError, match="16 bytes; the limit is 10"):
        budget.take(1, 0)
    budget.give_back(16)
    budget.take(10, 0)
