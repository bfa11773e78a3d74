"""A call that is passed on: the lines with which it goes to the other server, and its answer on the way back.

It is sent once: only what changes nothing is sent again, when a kept connection turns out to be closed. When there is no answer, the caller is told whether
the call was surely not done (`not_leader`, `shard_moving`), or that nobody knows (`outcome_unknown`). Why: docs/decisions/0058-any-server-takes-any-call.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, NamedTuple

from basalt.cluster.lease import LeaseRecord
from basalt.cluster.membership import Owner
from basalt.errors import BasaltError, NotLeaderError, ShardMovingError, UnavailableError, UnknownOutcomeError
from basalt.http.asgi.passed_on import DIRECT, HEADER, PassedOn
from basalt.http.asgi.requests import ClientGoneError, Headers, PromptExchange, RequestHead
from basalt.http.routes.ranges import PERMIT, PERMIT_ASKED
from basalt.server.leader_connection import CONNECT_SECONDS_MAX, LeaderConnection, LeaderConnections, LeaderLostError

HANG_UP_SECONDS = 0.25  # from which on a caller is watched who may hang up: most answers come sooner
CALLERS_OF_HEAD_MAX = 8  # whose lines are kept for calls that begin alike; more are written anew

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
# Between two servers, and not between a caller and the leader. `Connection` names no others here: our servers do not look at what it names, and
# who named a header of a proxy's there would have it left out.
HOP_BY_HOP = frozenset(
    (
        b"connection", b"content-length", b"expect", b"host", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"x-upgrade", b"basalt-request-id",
        b"basalt-sequence", DIRECT, HEADER, PERMIT_ASKED,
    )
)  # fmt: skip
# Of an answer: these, and what this server says itself in each of its own.
_NOT_GIVEN_BACK = frozenset(
    (b"connection", b"date", b"keep-alive", b"strict-transport-security", b"transfer-encoding", b"x-content-type-options")
)  # fmt: skip
_NOT_KEPT = (b"cache-control", b"no-store")
_WITHOUT_BODY = (204, 304)

_MOVING = b'"code":"%s"' % ShardMovingError.code.encode("ascii")  # as each problem that our servers answer has it

log = logging.getLogger("basalt.passing")


class MovedError(Exception):
    """The server to which the call was passed on does not serve its topic by now. Nothing was done, and nothing was given back."""


class _Lines(NamedTuple):
    """The first lines of calls that begin alike, as one leader gets them from one caller: all but what differs from call to call."""

    leader: LeaderConnections
    text: bytes


def _caller_of(request: RequestHead) -> tuple[str | None, str, bool]:
    return request.exchange.client, request.exchange.scheme, request.client_id is not None


def lines_of(request: RequestHead, leader: LeaderConnections) -> bytes | None:
    """The lines that this caller's calls with such a head were passed on with, if there was one."""
    kept: dict[object, _Lines] | None = request.head.passing
    made = None if kept is None else kept.get(_caller_of(request))
    return made.text if made is not None and made.leader is leader else None


def _make_lines(request: RequestHead, leader: LeaderConnections) -> bytes:
    head = request.head
    host = head.authority or request.headers.get(b"host") or leader.authority
    client, scheme, id_is_clients = caller = _caller_of(request)
    passed = PassedOn(client, scheme, id_is_clients)
    target = leader.prefix + head.raw_path + (b"?" + head.query_string if head.query_string else b"")
    first = b"%s %s HTTP/1.1\r\nhost: %s\r\n%s: %s\r\n"
    text = b"".join(
        (
            first % (head.method.encode("ascii"), target, host, HEADER, passed.header(leader.secret, head, host)),
            *(b"%s: %s\r\n" % each for each in request.headers.items() if each[0] not in HOP_BY_HOP),
        )
    )
    if head.passing is None or len(head.passing) >= CALLERS_OF_HEAD_MAX:
        head.passing = {}
    head.passing[caller] = _Lines(leader, text)
    return text


class PassedCall:
    """One call on its way."""

    def __init__(
        self, request: RequestHead, leader: LeaderConnections, part: bytes, more: bool, lines: bytes | None = None, *,
        asks_permit: bool = False, follows: bool = False,
    ) -> None:  # fmt: skip
        self.request = request
        self._follows = follows
        self.permit: bytes | None = None  # of the leader, in place of an answer
        self._asks_permit = asks_permit
        self._lines = lines  # its first ones, where they are known
        self._exchange = request.exchange
        self._leader = leader
        self._part = part
        self._more = more
        self._loop = asyncio.get_running_loop()
        self._watch: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, asked: LeaderConnection | None = None) -> None:
        """Pass it on, and give its answer back. `asked`: a kept connection over which it was sent already."""
        connection = asked or self._leader.kept()
        is_kept = connection is not None
        while True:
            if connection is None:
                connection = await self._connect()
            try:
                try:
                    if connection is not asked:
                        self.send(connection)
                    await connection.answered
                except LeaderLostError as lost:
                    if is_kept and not self._more and self.request.head.method in SAFE_METHODS:
                        is_kept = False
                        self._leader.give_back(connection)
                        connection = None
                        continue
                    raise self._without_answer(connection, lost) from lost
                await self._give_back(connection)
                return
            finally:
                self._stop_watching()
                if connection is not None:
                    self._leader.give_back(connection)

    async def _connect(self) -> LeaderConnection:
        try:
            return await self._leader.connect()
        except (OSError, TimeoutError) as error:
            way = self._leader
            if way.is_reached:  # once for all calls until it is reached again
                way.is_reached = False
                why = str(error) or f"it did not answer within {CONNECT_SECONDS_MAX:g} s"
                log.warning("the %s at %s cannot be reached: %s", way.part, way.server.url, why)
            raise not_passed(way.server, f"the {way.part} cannot be reached from here") from error

    def _without_answer(self, connection: LeaderConnection, lost: LeaderLostError) -> BasaltError:
        part = self._leader.part
        log.warning("the %s has not answered %s: %s", part, self.request.id, lost)
        if not connection.is_sent:  # of which it does nothing
            return not_passed(self._leader.server, f"the {part} went away before it had all of the call")
        if self.request.head.method in SAFE_METHODS:
            return UnavailableError(f"the {part} went away before it answered; nothing was changed")
        return outcome_unknown(part)

    def send(self, connection: LeaderConnection, tell: Callable[[], None] | None = None) -> None:
        """Send the call, or begin to. `tell` is called when it is answered, or will not be."""
        request = self.request
        if not self._more:
            connection.ask(
                self._head(b"content-length: %d\r\n" % len(self._part)) + self._part, is_head=request.is_head, tell=tell
            )
            connection.is_sent = True
            self._watch = self._loop.call_later(HANG_UP_SECONDS, self._begin_to_watch, connection)
            return
        length = request.headers.get(b"content-length")
        framing = b"transfer-encoding: chunked\r\n" if length is None else b"content-length: %s\r\n" % length
        connection.ask(self._head(framing), is_head=request.is_head, tell=tell)
        self._in_background(connection, self._upload(connection, None if length is None else int(length)))

    def _head(self, framing: bytes) -> bytes:
        """The call's line and headers as the leader gets them: those of the caller, but for what is between two servers."""
        request = self.request
        text = self._lines or lines_of(request, self._leader) or _make_lines(request, self._leader)
        text += b"basalt-request-id: %s\r\n" % request.id.encode("ascii")
        if self._asks_permit:
            text += b"%s: 1\r\n" % PERMIT_ASKED
        sequence = self._exchange.sequence or request.headers.get(b"basalt-sequence")
        if sequence is not None:
            text += b"basalt-sequence: %s\r\n" % sequence
        if self._more or self._part or b"content-length" in request.headers or b"transfer-encoding" in request.headers:
            text += framing
        return text + b"\r\n"

    async def _upload(self, connection: LeaderConnection, left: int | None) -> None:
        """Send the body as it comes, and as fast as the leader takes it. `left`: how long it is; None: in chunks."""
        part, more, is_chunked = self._part, self._more, left is None
        while True:
            if left is not None:
                left -= len(part)
                if left < 0 or (left > 0 and not more):  # what is too much would be taken for another call
                    raise LeaderLostError("the body is not as long as it should be")
            if part:
                connection.write(b"%x\r\n%s\r\n" % (len(part), part) if is_chunked else part)
            if not more:
                break
            await connection.drained()
            part, more = await self._exchange.receive()
        if is_chunked:
            connection.write(b"0\r\n\r\n")
        connection.is_sent = True
        await self._exchange.until_gone()
        raise ClientGoneError

    def give_back_now(self, connection: LeaderConnection, exchange: PromptExchange) -> bool:
        """Give an answer back that is here as a whole. False: it is not, or there is none."""
        if connection.answered.exception() is not None or not connection.is_whole:
            return False
        if self._follows and connection.status == HTTPStatus.SERVICE_UNAVAILABLE:
            return False  # it may be that the topic has moved
        headers, is_listed = self._headers(connection)
        if not is_listed:
            return False
        self._stop_watching()
        exchange.send_now(self.request, connection.status, headers, connection.whole())
        self._leader.give_back(connection)
        return True

    async def _give_back(self, connection: LeaderConnection) -> None:
        if self._asks_permit and connection.status == HTTPStatus.OK and (b"content-type", PERMIT) in connection.headers:
            try:
                self.permit = b"".join([bytes(part) async for part in connection.parts()])
            except LeaderLostError as lost:  # nothing of it was given back, so the caller can be told
                part = self._leader.part
                raise UnavailableError(f"the {part} went away before it answered; nothing was changed") from lost
            return
        if self._follows and has_moved(connection.status, connection.seen()):
            raise MovedError
        headers, is_listed = self._headers(connection)
        parts = connection.whole() if is_listed and connection.is_whole else connection.parts()
        await self._exchange.send(self.request, connection.status, headers, parts)

    def _headers(self, connection: LeaderConnection) -> tuple[Headers, bool]:
        """The headers that the caller gets; and whether the body is one of a known length, or there is none."""
        self.request.status = connection.status
        headers = [each for each in connection.headers if each[0] not in _NOT_GIVEN_BACK and each != _NOT_KEPT]
        is_sized = any(name == b"content-length" for name, _ in headers)
        headers.append(self._leader.owner)
        return headers, is_sized or self.request.is_head or connection.status in _WITHOUT_BODY

    def _begin_to_watch(self, connection: LeaderConnection) -> None:
        self._in_background(connection, self._until_gone())

    async def _until_gone(self) -> None:
        await self._exchange.until_gone()
        raise ClientGoneError

    def _in_background(self, connection: LeaderConnection, work: Coroutine[Any, Any, None]) -> None:
        """Do something while the answer is waited for; what it raises ends the call at the leader."""
        task = self._loop.create_task(work)
        self._tasks.append(task)

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                connection.end(error)

        task.add_done_callback(ended)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        while self._tasks:
            self._tasks.pop().cancel()


def outcome_unknown(part: str) -> UnknownOutcomeError:
    return UnknownOutcomeError(
        f"the {part} went away before it answered, so whether the call took effect is unknown",
        hint="Look whether it did; or send it again under the same Basalt-Request-Id or producer number, where the call takes one.",
    )


def has_moved(status: int, body: bytes) -> bool:
    """Tell the answer of a server that does not serve the topic by now."""
    return status == HTTPStatus.SERVICE_UNAVAILABLE and _MOVING in body


def not_passed(server: LeaseRecord | Owner, why: str) -> NotLeaderError | ShardMovingError:
    """The answer to a call that is not passed on to this server for this reason."""
    if isinstance(server, LeaseRecord):
        return not_leading(server.url, why)
    return ShardMovingError(
        f"another server owns the topic, and the call is not passed on: {why}; nothing was done",
        hint=f"send the same call again after Retry-After, or to the owner at {server.url}",
    )


def not_leading(url: str | None, why: str) -> NotLeaderError:
    """The answer of a server that does not lead, to a call that it does not pass on for this reason (empty: nobody wants to know)."""
    told = f", and the call is not passed on: {why}" if why else ""
    if url is None:
        error = NotLeaderError(
            f"no server leads at the moment, or this one is about to{told}",
            hint="send the call again after Retry-After",
        )
    else:
        error = NotLeaderError(f"this server is a standby{told}", hint=f"send the call to {url}, which leads")
    error.leader_url = url
    return error
