"""Following a topic: every message is shown or counted, once, to who may read; and a stream leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from basalt.console.pages.messaging import live
from basalt.console.pages.messaging.live import ADVANCES_MAX, ROW_CHARS, ROWS_A_SECOND, WAIT_MS
from basalt.http.asgi import inside
from basalt.http.asgi.connections import STREAMS_MAX, STREAMS_OF_LOGIN_MAX
from basalt.http.routes.polls import WAIT_MS_MAX, while_there
from tests.control.console.conftest import Api
from tests.control.http.conftest import Client

API = "/v1/namespaces/shop/topics/orders"
LIVE = "/console/live/ns/shop/topics/orders"
HANG_S = 60.0  # nothing waits that long


class Event:
    """One event of a stream."""

    def __init__(self, text: str) -> None:
        fields = dict(line.partition(": ")[::2] for line in text.split("\n") if not line.startswith(":"))
        self.name = fields.get("event", "")
        self.id = fields.get("id", "")
        self.data: Any = json.loads(fields["data"]) if "data" in fields else None


class Stream:
    """A stream as a browser gets it, over the application in this process."""

    def __init__(self, client: Client, target: str, headers: dict[str, str]) -> None:
        self._client = client
        self._bytes = b""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.over = False
        self.gone = asyncio.Event()
        path, _, query = target.partition("?")
        pairs = [(b"host", b"localhost"), *((name.lower().encode(), value.encode()) for name, value in headers.items())]
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode(), "headers": pairs,
            "client": ("192.0.2.7", 40_000), "http_version": "1.1",
        }  # fmt: skip
        self.task = asyncio.ensure_future(client.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self.status:
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self._bytes += message["body"]
            self.over = not message.get("more_body", False)

    @property
    def events(self) -> list[Event]:
        """The events so far."""
        return [each for each in map(Event, self._bytes.decode().split("\n\n")) if each.name]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for event in self.events if event.name == "rows" for row in event.data]

    @property
    def shown(self) -> list[str]:
        return [row["text"] for row in self.rows]

    @property
    def left_out(self) -> int:
        return sum(event.data["count"] for event in self.events if event.name == "left")

    async def until(self, come: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(HANG_S):
                while not come():
                    await asyncio.sleep(0)
        except TimeoutError:
            raise AssertionError(self._bytes) from None


@asynccontextmanager
async def following(client: Client, query: str = "?from=start", **headers: str) -> AsyncIterator[Stream]:
    stream = Stream(client, LIVE + query, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        yield stream
    finally:
        stream.gone.set()
        await stream.task


async def publish(client: Client, *payloads: str, pointer: int | None = None) -> None:
    body = {"messages": list(payloads), "transactionWritePointer": pointer}
    assert (await client.ask("POST", f"{API}/publish", body)).status == 200


def waiting(client: Client) -> int:
    return sum(log.waiting for log in client.services.topics.memory.with_waiting)


@pytest.fixture
def run(client: Client, api: Api) -> Callable[[Callable[[], Awaitable[None]]], None]:
    api("PUT", API)
    return lambda story: client.run(story())


def test_messages_come_as_they_are_published_with_the_id_of_the_last_one(client, run):
    async def story() -> None:
        async with following(client) as stream:
            await publish(client, "a", "b")
            await stream.until(lambda: len(stream.shown) == 2)
            await publish(client, "c")
            await stream.until(lambda: len(stream.shown) == 3)
            assert stream.shown == ["a", "b", "c"]
            assert [event.id for event in stream.events] == [stream.rows[1]["id"], stream.rows[2]["id"]]
            assert stream.status == 200
            assert stream.headers["content-type"] == "text/event-stream"
            assert stream.headers["cache-control"] == "no-store"
            assert "content-encoding" not in stream.headers
            assert stream.rows[0]["ms"] == client.clock.now_ms()

    assert WAIT_MS < WAIT_MS_MAX
    run(story)


def test_a_stream_from_the_end_shows_what_comes_behind_it(client, run):
    async def story() -> None:
        await publish(client, "old")
        async with following(client, "?from=end") as stream:
            await stream.until(lambda: waiting(client) == 1)
            await publish(client, "new")
            await stream.until(lambda: bool(stream.shown))
            assert stream.shown == ["new"]

    run(story)


@pytest.mark.parametrize("resume", ["header", "query"])
def test_who_comes_back_loses_none_and_gets_none_twice(client, run, resume):
    async def story() -> None:
        async with following(client) as stream:
            await publish(client, "a", "b")
            await stream.until(lambda: len(stream.shown) == 2)
        await publish(client, "c", "d")
        last = stream.events[-1].id
        query, headers = (
            ("?from=start", {"Last_Event_ID": last}) if resume == "header" else (f"?from=end&after={last}", {})
        )
        async with following(client, query, **headers) as again:
            await again.until(lambda: len(again.shown) == 2)
            assert again.shown == ["c", "d"]

    run(story)


def test_an_id_that_is_none_begins_as_the_url_says(client, run):
    async def story() -> None:
        await publish(client, "a")
        async with following(client, "?from=start", Last_Event_ID="nonsense") as stream:
            await stream.until(lambda: stream.shown == ["a"])

    run(story)


def test_what_comes_faster_than_it_is_drawn_is_counted_and_the_newest_are_shown(client, run, monkeypatch):
    monkeypatch.setattr(live, "SECOND_MS", 0)

    async def story() -> None:
        for start in range(0, 5_000, 500):
            await publish(client, *map(str, range(start, start + 500)))
        async with following(client) as stream:
            await stream.until(lambda: "4999" in stream.shown)
            assert stream.shown == [*map(str, range(50)), *map(str, range(4_950, 5_000))]
            assert stream.left_out == 4_900
            left = next(event for event in stream.events if event.name == "left")
            assert left.id < stream.rows[50]["id"]
        async with following(client, Last_Event_ID=left.id) as again:
            await again.until(lambda: len(again.shown) == 50)
            assert again.shown == [*map(str, range(4_950, 5_000))]

    assert (ROWS_A_SECOND, ADVANCES_MAX) == (50, 100)
    run(story)


def test_no_more_than_so_many_are_sent_in_a_second_however_they_come(client, run, monkeypatch):
    paused = asyncio.Event()

    async def pause(self: live._Tail) -> None:
        paused.set()
        await while_there(self._visit.request, asyncio.sleep(3_600))

    monkeypatch.setattr(live._Tail, "_wait_a_second", pause)

    async def story() -> None:
        async with following(client) as stream:
            for number in range(ROWS_A_SECOND):
                await publish(client, str(number))
                await stream.until(lambda number=number: len(stream.shown) == number + 1)
            await stream.until(paused.is_set)
            await publish(client, "later")
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(stream.shown) == ROWS_A_SECOND

    run(story)


def test_committed_readers_wait_for_an_open_transaction_and_others_do_not(client, run):
    async def story() -> None:
        begun = (await client.ask("POST", "/v1/transactions", {"snapshot": False})).json()
        async with following(client) as committed, following(client, "?from=start&isolation=uncommitted") as everything:
            await publish(client, "held", pointer=begun["writePointer"])
            await publish(client, "behind")
            await everything.until(lambda: everything.shown == ["held", "behind"])
            assert committed.shown == []
            await client.ask("POST", f"/v1/transactions/{begun['id']}/commit")
            await committed.until(lambda: committed.shown == ["held", "behind"])

    run(story)


def test_hostile_payloads_are_text_on_one_line_and_long_ones_cut(client, run):
    async def story() -> None:
        hostile = "<script>\u202e\x00\r\ndata: x\n\nevent: end\n\n"
        record = {"payload": hostile, "key": hostile}
        await client.ask("POST", f"{API}/records", {"records": [record, {"payload": "x" * 10_000}]})
        async with following(client) as stream:
            await stream.until(lambda: len(stream.rows) == 2)
            assert [event.name for event in stream.events] == ["rows"]
            first, long = stream.rows
            assert first["text"] == "<script>\\u202e\\x00\\x0d\ndata: x\n\nevent: end\n\n"
            assert "\n" not in first["key"]
            assert (len(long["text"]), long["cut"]) == (ROW_CHARS, True)

    run(story)


def test_a_client_that_goes_leaves_no_wait_no_task_and_no_place_behind(client, run):
    async def story() -> None:
        await publish(client, "a")
        before = asyncio.all_tasks()
        async with following(client) as stream:
            await stream.until(lambda: waiting(client) == 1)
            assert "basalt_http_open_streams 1.0" in (await client.ask("GET", "/metrics")).body.decode()
        await asyncio.sleep(0)
        assert (waiting(client), len(client.services.streams)) == (0, 0)
        assert "basalt_http_open_streams 0.0" in (await client.ask("GET", "/metrics")).body.decode()
        assert asyncio.all_tasks() == before

    run(story)


def test_a_server_that_stops_ends_its_streams_and_the_browser_comes_back(client, run):
    async def story() -> None:
        async with following(client) as stream:
            await stream.until(lambda: waiting(client) == 1)
            client.services.stop_waiting()
            await stream.until(lambda: stream.over)
            assert stream.events == []

    run(story)


def test_a_topic_that_is_deleted_ends_its_streams_in_words(client, run):
    async def story() -> None:
        async with following(client) as stream:
            await stream.until(lambda: waiting(client) == 1)
            await client.ask("DELETE", API)
            await stream.until(lambda: stream.over)
            assert (stream.events[-1].name, stream.events[-1].data["code"]) == ("end", "topic_not_found")

    run(story)


@pytest.mark.parametrize(
    ("query", "code"), [("?from=nonsense", "invalid_input"), ("?from=%3Cscript%3E", "invalid_input")]
)
def test_a_start_that_is_none_is_told(client, run, query, code):
    async def story() -> None:
        async with following(client, query) as stream:
            await stream.until(lambda: stream.over)
            assert [event.data["code"] for event in stream.events] == [code]

    run(story)


def test_a_login_has_so_many_streams(client, run):
    async def story() -> None:
        streams = [Stream(client, f"{LIVE}?from=start", {}) for _ in range(STREAMS_OF_LOGIN_MAX)]
        await streams[0].until(lambda: waiting(client) == STREAMS_OF_LOGIN_MAX)
        one_more = Stream(client, f"{LIVE}?from=start", {})
        await one_more.until(lambda: one_more.over)
        assert [event.data["code"] for event in one_more.events] == ["throttled"]
        for stream in streams:
            stream.gone.set()
            await stream.task
        async with following(client) as stream:
            await stream.until(lambda: waiting(client) == 1)

    assert STREAMS_OF_LOGIN_MAX < STREAMS_MAX
    run(story)


def test_a_message_that_is_too_long_to_show_is_counted_and_the_next_one_shown(client, run, monkeypatch):
    async def story() -> None:
        await publish(client, "small")
        await publish(client, "x" * 5_000)
        await publish(client, "next")
        monkeypatch.setattr(inside, "ANSWER_BYTES_MAX", 4_000)
        async with following(client) as stream:
            await stream.until(lambda: "next" in stream.shown)
            assert (stream.shown, stream.left_out) == (["small", "next"], 1)

    run(story)


def test_who_may_not_read_is_told_so_in_the_stream(asked, root, signed_in):
    root("PUT", API)
    eve = signed_in("eve", ("observe", "topic:shop:orders"))

    async def story() -> None:
        async with following(asked, **eve._headers) as stream:
            await stream.until(lambda: stream.over)
            assert [event.data["code"] for event in stream.events] == ["forbidden"]

    asked.run(story())


def test_a_login_that_ends_or_a_right_that_is_taken_ends_the_stream(asked, root, signed_in):
    root("PUT", API)
    ada, bob = (signed_in(name, ("read", "topic:shop:orders")) for name in ("ada", "bob"))
    grant = next(each["id"] for each in root("GET", "/v1/admin/grants") if each["subject"] == "token:bob")
    token = ada._headers["Cookie"].partition("=")[2]

    async def story() -> None:
        async with following(asked, **ada._headers) as first, following(asked, **bob._headers) as second:
            await first.until(lambda: waiting(asked) == 2)
            assert (await asked.ask("DELETE", "/v1/auth/logins", Authorization=f"Bearer {token}")).status == 200
            await asked.ask("DELETE", f"/v1/admin/grants/{grant}", Authorization=f"Bearer {'b' * 40}")
            body = {"messages": ["secret"]}
            await asked.ask("POST", f"{API}/publish", body, Authorization=f"Bearer {'b' * 40}")
            await first.until(lambda: first.over and second.over)
            assert [event.name for event in (*first.events, *second.events)] == ["end", "end"]

    asked.run(story())
