"""Following a topic: new messages as server-sent events, over the API's long poll, as whoever looks.

No more than 50 messages a second are sent, for nobody reads faster. Where there are more, the newest are sent and the others counted, which
takes no reading of them (`advance`): what is left out is always told. The id of an event is that of the last message that it shows or counts, so a
browser that comes back (`Last-Event-ID`) loses none and gets none twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from basalt.access.needs import PUBLIC
from basalt.access.quotas import WAITING_FETCHES
from basalt.api.bodies.messages import MESSAGE_ID_BYTES
from basalt.api.bodies.operations import Problem
from basalt.api.bodies.ranges import Advance
from basalt.api.positions import after_id, parse_position
from basalt.console import text
from basalt.console.call import Answer, Call
from basalt.console.page import CONSOLE_PATH, HEADERS, Visit, text_query
from basalt.console.pages.messaging.topics import TOPIC
from basalt.console.views.message_view import RecordPage, ShownRecord, seen
from basalt.errors import BasaltError, InputError
from basalt.http.asgi.responses import Response
from basalt.http.routes.polls import ISOLATION, while_there
from basalt.http.routes.route_table import Header, Request, RouteTable

LIVE_PATH = CONSOLE_PATH + "/live/ns/{namespace}/topics/{topic}"
ROWS_A_SECOND = 50  # that are sent: more than anybody reads, and a browser draws them without effort
SECOND_MS = 1_000
WAIT_MS = (
    15_000  # of one poll, behind which a line says that the stream is alive: proxies close silent ones after a minute
)
RETRY_MS = 2_000  # after which a browser comes back to a server that has stopped
ROW_CHARS = 500  # of a payload
ADVANCES_MAX = 100  # calls that count what one second left out: each goes through up to 100,000 rows
EVENTS = b"text/event-stream"

_LAST = b"last-event-id"

route = RouteTable("console")


@route(
    "GET", LIVE_PATH, PUBLIC,
    query=(text_query("from", "where to begin"), text_query("after", "the id behind which to go on, in place of Last-Event-ID"), ISOLATION),
    headers=(Header("Last-Event-ID", {"type": "string"}, "the id of the last event that was got"),),
)  # fmt: skip
async def live(request: Request) -> Response:
    """New messages of a topic, as they come."""
    headers = [*HEADERS, (b"x-accel-buffering", b"no")]  # or a proxy would keep them until it has many
    return Response(200, _stream(Visit(request)), EVENTS, headers)


async def _stream(visit: Visit) -> AsyncGenerator[bytes, None]:
    """The events of one stream. What ends it is told as an event: a browser sees no status."""
    request = visit.request
    caller = request.caller
    login = f"{caller.principal} {caller.credential or request.exchange.client}"
    yield b"retry: %d\n\n" % RETRY_MS
    try:
        with request.services.streams.one_more(login), request.one_more(WAITING_FETCHES):
            async with aclosing(_Tail(visit).events()) as events:
                async for event in events:
                    yield event
    except BasaltError as error:
        yield _event("end", Problem(code=error.code, detail=error.message, hint=error.hint))


class _Tail:
    """A reading of a topic that goes on: where it stands, and how many messages were sent in this second."""

    def __init__(self, visit: Visit) -> None:
        request = visit.request
        self._visit = visit
        self._names = dict(request.path)
        self._isolation = request.text("isolation") or "committed"
        self._clock = request.services.clock
        self._last = _id_of(request.headers.get(_LAST, b"").decode("latin-1") or request.text("after") or "")
        self._start = request.text("from") or "end"
        self._rows_max = ROWS_A_SECOND
        self._second_ms = self._clock.monotonic_ms()
        self._sent = 0

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events, until the server stops, the login ends, or a call is refused."""
        request = self._visit.request
        if self._last is None:
            await self._settle()
        while not self._is_stopping():
            principal, policy = request.caller.principal, request.caller.policy
            answer = await while_there(request, self._visit.ask(self._poll()))
            if self._is_stopping():
                return
            request.judge_again()  # whose login is over sees no more
            if request.caller.policy is not policy or request.caller.principal != principal:
                continue  # with other rights, maybe: the answer was for those of before
            if not answer.ok:
                if answer.problem is None or answer.problem.code != "too_large":
                    yield _event("end", answer.problem)
                    return
                event = await self._pass_by()
            else:
                event = self._take(answer.value)
            yield event
            if self._sent >= ROWS_A_SECOND:
                await self._wait_a_second()
                left = await self._left_out()
                if left is not None:
                    yield left

    def _is_stopping(self) -> bool:
        return self._visit.services.stopping

    async def _settle(self) -> None:
        """Make a place of a start such as `now` or `end`, which is another one with each poll."""
        position = parse_position(self._start, self._visit.now_ms, field="from")
        if position.id is not None or position.time_ms is not None:
            self._start = position.text
        elif self._start == "end":
            stable = await self._ask(
                Call("GET", f"{TOPIC}/stable-end", dict[str, Any], self._names, {"isolation": self._isolation})
            )
            self._last = stable["id"]
            self._start = "start"

    def _poll(self) -> Call:
        start = self._start if self._last is None else after_id(bytes.fromhex(self._last)).text
        asked = {
            "from": start,
            "isolation": self._isolation,
            "limit": str(min(self._rows_max, ROWS_A_SECOND - self._sent)),
        }
        return Call("GET", f"{TOPIC}/records", RecordPage, self._names, {**asked, "waitMs": str(WAIT_MS)})

    def _take(self, page: RecordPage) -> bytes:
        """The event of the messages of a poll; a comment, where there are none."""
        self._rows_max = ROWS_A_SECOND
        if not page.records:
            self._last = page.next or self._last
            return b": here\n\n"
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._second_ms >= SECOND_MS:
            self._second_ms, self._sent = now_ms, 0
        self._sent += len(page.records)
        self._last = page.records[-1].id
        return _event("rows", [_row(each) for each in page.records], self._last)

    async def _wait_a_second(self) -> None:
        left_ms = self._second_ms + SECOND_MS - self._clock.monotonic_ms()
        if left_ms > 0:
            await while_there(self._visit.request, asyncio.sleep(left_ms / 1_000))
        self._second_ms, self._sent = self._clock.monotonic_ms(), 0

    async def _left_out(self) -> bytes | None:
        """Pass what is there by now but for the newest messages of a second; the event that tells how many were passed."""
        there = await self._count(None)
        if there <= ROWS_A_SECOND:
            return None
        passed = await self._count(there - ROWS_A_SECOND, go=True)
        return _event("left", {"count": passed}, self._last)

    async def _pass_by(self) -> bytes:
        """An answer was too long to show: ask for one message at a time, and pass one that is too long alone."""
        if self._rows_max > 1:
            self._rows_max = 1
            return b": shorter\n\n"
        self._rows_max = ROWS_A_SECOND
        return _event("left", {"count": await self._count(1, go=True)}, self._last)

    async def _count(self, messages_max: int | None, *, go: bool = False) -> int:
        """The number of messages behind the place where it stands, up to a limit; and go there."""
        at, counted = self._last, 0
        for _ in range(ADVANCES_MAX):
            asked = {"isolation": self._isolation, **({} if at is None else {"after": at})}
            if messages_max is not None:
                asked["messagesMax"] = str(messages_max - counted)
            found = await self._ask(Call("GET", f"{TOPIC}/advance", Advance, self._names, asked))
            counted += found.messages
            at = at if found.through is None else found.through.hex()
            if found.at_end or (messages_max is not None and counted >= messages_max):
                break
        if go:
            self._last = at
        return counted

    async def _ask(self, call: Call) -> Any:
        answer: Answer = await while_there(self._visit.request, self._visit.ask(call))
        if answer.problem is not None:
            raise InputError(answer.problem.detail, hint=answer.problem.hint or "")
        return answer.value


def _id_of(given: str) -> str | None:
    """A message id that a browser has kept; None where it is none, so that the stream begins anew."""
    try:
        return (
            given.lower()
            if len(bytes.fromhex(given)) == MESSAGE_ID_BYTES and len(given) == 2 * MESSAGE_ID_BYTES
            else None
        )
    except ValueError:
        return None


def _row(record: ShownRecord) -> dict[str, object]:
    """A message as the script draws it: all of it is text."""
    payload = seen(record.content, "auto", None, ROW_CHARS)
    return {
        "id": record.id,
        "ms": record.published_ms,
        "key": "" if record.key_shown is None else text.shown(record.key_shown[:ROW_CHARS]),
        "text": text.shown(payload.text, block=True),
        "cut": payload.is_cut,
        "kind": record.kind,
    }


def _event(name: str, data: object, event_id: str | None = None) -> bytes:
    """One event. Its data is JSON, which has no line end: nothing of a message begins a line of the stream."""
    identified = b"" if event_id is None else b"id: %s\n" % event_id.encode("ascii")
    return b"%sevent: %s\ndata: %s\n\n" % (identified, name.encode("ascii"), msgspec.json.encode(data))
