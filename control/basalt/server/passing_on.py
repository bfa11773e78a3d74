"""Calls that another server is to answer, the leader or a topic's owner, are passed on to it, once, and its answers are given back.

What proves who calls goes along, to the address in the leader's lease or the member's row and nowhere else. A call is sent once: only what changes nothing is sent again, when a
kept connection turns out to be closed. When there is no answer, the caller is told whether the call was surely not done (`not_leader`, `shard_moving`), or that
nobody knows (`outcome_unknown`). Why: docs/decisions/0058-any-server-takes-any-call.md.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NamedTuple

from prometheus_client.core import SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from basalt.access.authentication import NEGOTIATE, SECURE_COOKIE, login_of
from basalt.cluster.leader import Leadership
from basalt.cluster.lease import LeaseRecord
from basalt.cluster.links.links import Links
from basalt.cluster.membership import Membership, Owner
from basalt.errors import (
    BasaltError,
    InvalidSettingError,
    NotLeaderError,
    RequestTimeoutError,
    RetryError,
    ShardMovingError,
    UnavailableError,
    UnknownOutcomeError,
)
from basalt.http.app import CLIENT_GONE
from basalt.http.asgi.passed_on import DIRECT, HEADER, TO_OWNER, PassedOn
from basalt.http.asgi.requests import BODY_SECONDS_MAX, ClientGoneError, Headers, PromptExchange, RequestHead
from basalt.http.asgi.responses import problem_response, send_response
from basalt.http.collectors import counters, gauge
from basalt.http.passing_by_link import PASS, PASS_MS_MAX, Given, Pass, goes_by_link, link_to
from basalt.http.routes.ranges import PERMIT, PERMIT_ASKED
from basalt.server.leader_connection import CONNECT_SECONDS_MAX, LeaderConnection, LeaderConnections, LeaderLostError
from basalt.settings import Settings
from basalt_engine.clock import Clock

HANG_UP_SECONDS = 0.25  # from which on a caller is watched who may hang up: most answers come sooner
LOOK_SECONDS = 1.0  # between two looks whether the leader is still the one to which calls were passed on
READY_SECONDS_MAX = 2.0  # for the leader to say that it is ready
READY_AGAIN_SECONDS = 1.0  # so long its word holds: who asks often must not ask the leader as often

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
Note = Callable[[RequestHead], None]
Again = Callable[[], Coroutine[Any, Any, None]]

_MOVING = b'"code":"%s"' % ShardMovingError.code.encode("ascii")  # as each problem that our servers answer has it

log = logging.getLogger("basalt.passing")


class MovedError(Exception):
    """The server to which the call was passed on does not serve its topic by now. Nothing was done, and nothing was given back."""


class PassingOn:
    """Passes on, for one server, the calls that are not its own."""

    def __init__(
        self, leadership: Leadership, membership: Membership, clock: Clock, settings: Settings, links: Links
    ) -> None:
        self._links = links
        self._leadership = leadership
        self._membership = membership
        self._clock = clock
        self._settings = settings
        self._takes_certificates = "cert" in settings.auth.kinds
        self._under_way_max = settings.cluster.passed_on_max
        self._leader: LeaderConnections | None = None
        self._owners: dict[str, LeaderConnections] = {}  # by their instances in the map: as many as there are members
        if settings.cluster.ca is not None:
            try:
                self._trust()
            except OSError as error:
                raise InvalidSettingError(
                    f"setting cluster.ca: {settings.cluster.ca} cannot be read: {error.strerror or error}",
                    field="cluster.ca",
                    hint="name a file of CA certificates in PEM",
                ) from error
        self._loop = asyncio.get_running_loop()
        self._looking: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: tuple[LeaderConnections, float, bool] | None = None  # what the leader said last, and when
        self._asking: asyncio.Task[bool] | None = None
        self.under_way = 0
        # By what became of them, for the metrics.
        self.outcomes: Counter[str] = Counter({"answered": 0, "not_done": 0, "unknown": 0, "broken": 0, "gone": 0})
        self.answered_s = 0.0  # for how long those that were answered took, all together

    def refusal(self, request: RequestHead, *, reads: bool = False) -> str | None:
        """The reason why the call cannot be passed on, as its caller is told; None: it can.

        `reads`: this server would answer it itself, by the owner's permit, so `Basalt-Direct: 1` does not count.
        """
        headers = request.headers
        if HEADER in headers:
            return "another server has passed it on already, and calls are passed on once"
        if (headers.get(DIRECT) == TO_OWNER if reads else DIRECT in headers) or not self._settings.cluster.pass_on:
            return ""
        if self._settings.tls.client == "required":
            return "who calls proves it by a certificate, which cannot be passed on"
        given = headers.get(b"authorization")
        if given is None:
            has_certificate = self._takes_certificates and request.exchange.certificate is not None
            if has_certificate and login_of(headers.get(b"cookie"), SECURE_COOKIE) is None:
                return "who calls proves it by a certificate, which cannot be passed on"
        elif given[: len(NEGOTIATE)].lower() == NEGOTIATE:
            return "who calls proves it by a Kerberos ticket, which is for this server"
        return None

    def submit(
        self, request: RequestHead, server: LeaseRecord | Owner | None, exchange: PromptExchange, body: bytes, note: Note,
        again: Again | None = None,
    ) -> bool:  # fmt: skip
        """Pass a call on that is here with all of its body, without a coroutine. False: it is to be judged and passed on by `pass_on`.

        Only one whose like was passed on before: what that one was let through by lies in its head. `note` is called at the end.
        `again` answers it anew where the topic has moved meanwhile; None: its caller is to be told so.
        """
        if server is None or self.under_way >= self._under_way_max:
            return False
        leader = self._leader if isinstance(server, LeaseRecord) else self._owners.get(server.instance)
        if leader is None or not leader.is_to(server):
            return False
        lines = _lines_of(request, leader)
        if lines is None or (self._takes_certificates and exchange.certificate is not None):
            return False
        if self._submit_by_link(request, leader, lines, exchange, body, note, again):
            return True
        connection = leader.kept()
        if connection is None:
            return False
        call = _PassedCall(request, leader, body, False, lines, follows=again is not None)
        began_ms = self._begin()

        def answered() -> None:
            try:
                is_given = call.give_back_now(connection, exchange)
            except Exception:  # an answer that cannot be written, such as one with the end of a line in a header
                log.exception("request %s failed", request.id, extra={"fields": {"requestId": request.id}})
                connection.end(LeaderLostError("its answer cannot be given back"))
                leader.give_back(connection)
                exchange.break_off()
                self._end("broken", began_ms)
                note(request)
                return
            if is_given:
                self._end("answered", began_ms)
                note(request)
            else:
                task = asyncio.ensure_future(self._go_on(call, connection, exchange, began_ms, note, again))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        call.send(connection, answered)
        return True

    def _submit_by_link(
        self, request: RequestHead, way: LeaderConnections, lines: bytes, exchange: PromptExchange, body: bytes, note: Note,
        again: Again | None,
    ) -> bool:  # fmt: skip
        """Pass it on over the link to that server. False: it is for HTTP, as all that TLS would keep secret from who listens between the two."""
        if way.is_secure or way.prefix or not goes_by_link(request.head, body):
            return False
        link, began_ms = link_to(self._links, way.server), self._clock.monotonic_ms()
        if link is None:
            return False

        def answered(done: asyncio.Future[Given]) -> None:
            error = done.exception()
            given = done.result() if error is None else None
            if given is not None and not (again is not None and _has_moved(given.status, given.body)):
                self._give(given, request, way, exchange)
                self._end("answered", began_ms)
                note(request)
                return
            going_on = self._go_on_after_link(request, way, exchange, body, error, began_ms, note, again)
            task = asyncio.ensure_future(going_on)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        sequence = exchange.sequence or request.headers.get(b"basalt-sequence")
        try:
            link.send(PASS, Pass(lines, request.id, sequence, body), PASS_MS_MAX, answered)
        except RetryError:  # nothing was sent
            return False
        self._begin()
        return True

    def _give(self, given: Given, request: RequestHead, way: LeaderConnections, exchange: PromptExchange) -> None:
        request.status = given.status
        try:
            exchange.send_now(request, given.status, [*given.headers, way.owner], [given.body])
        except Exception:  # an answer that cannot be written, such as one with the end of a line in a header
            log.exception("request %s failed", request.id, extra={"fields": {"requestId": request.id}})
            exchange.break_off()

    async def _go_on_after_link(
        self, request: RequestHead, way: LeaderConnections, exchange: PromptExchange, body: bytes, error: BaseException | None,
        began_ms: float, note: Note, again: Again | None,
    ) -> None:  # fmt: skip
        """Do what is left where the link has brought no answer for the caller: the call goes on by HTTP if nothing was done."""
        if error is None:
            assert again is not None
            self._end("not_done", began_ms)
            await again()
        elif isinstance(error, UnknownOutcomeError):
            self._end("unknown", began_ms)
            log.warning("the %s has not answered %s: %s", way.part, request.id, error)
            await send_response(request, problem_response(_unknown(way.part), request.id))
            note(request)
        else:  # it answers no such calls, now or ever
            call = _PassedCall(request, way, body, False, follows=again is not None)
            await self._go_on(call, None, exchange, began_ms, note, again)

    async def _go_on(
        self, call: _PassedCall, connection: LeaderConnection | None, exchange: PromptExchange, began_ms: float, note: Note,
        again: Again | None,
    ) -> None:  # fmt: skip
        request, is_ours = call.request, True
        try:
            try:
                await self._told(call.run(connection), began_ms)
            except MovedError:
                assert again is not None
                is_ours = False  # whoever answers notes it
                await again()
        except BasaltError as error:
            await send_response(request, problem_response(error, request.id))
        except ClientGoneError:
            request.status = CLIENT_GONE
        except LeaderLostError:
            exchange.break_off()
        except Exception:
            log.exception("request %s failed", request.id, extra={"fields": {"requestId": request.id}})
            exchange.break_off()
        finally:
            if is_ours:
                note(request)

    async def pass_on(
        self, request: RequestHead, server: LeaseRecord | Owner, whole: bytes | None = None, *, follows: bool = False
    ) -> None:
        """Have this server answer the call, and give its answer to the caller. `whole`: the body, where it is here.

        `NotLeaderError` or `ShardMovingError` where nothing was done, `UnknownOutcomeError` where nobody knows; both before anything is answered. When an answer
        breaks off, so does what the caller gets. `ClientGoneError`. With `follows`, and all of the body here, `MovedError`.
        """
        leader = self._way_for(request, server)
        part, more = (whole, False) if whole is not None else await _first_part(request)
        self._check_room(server)
        call = _PassedCall(request, leader, part, more, follows=follows and not more)
        await self._told(call.run(), self._begin())

    async def ask_for_permit(self, request: RequestHead, server: LeaseRecord | Owner, whole: bytes) -> bytes | None:
        """Ask the topic's owner whether this server may read the range that the call is about, and how: its permit.

        None: the owner has answered the call itself, and the caller has that answer. It fails as `pass_on`.
        """
        leader = self._way_for(request, server)
        self._check_room(server)
        call = _PassedCall(request, leader, whole, False, asks_permit=True)
        await self._told(call.run(), self._begin())
        return call.permit

    def _way_for(self, request: RequestHead, server: LeaseRecord | Owner) -> LeaderConnections:
        """The way to this server for this call; an error where it must not go there."""
        part = _part(server)
        if not server.secret:
            raise not_passed(server, f"the {part} is of a version that takes none from other servers")
        try:
            way = self._way_to(server)
        except OSError as error:
            log.error("cluster.ca cannot be read: %s", error)
            raise not_passed(server, f"this server cannot tell whether the {part} is whom it should be") from error
        if request.exchange.scheme == "https" and not way.is_secure:
            raise not_passed(server, f"it came over TLS, and the {part}'s address is one without")
        return way

    def _check_room(self, server: LeaseRecord | Owner) -> None:
        if self.under_way >= self._under_way_max:
            raise not_passed(
                server, f"{self.under_way} calls are being passed on, as many as cluster.passed_on_max says"
            )

    def _begin(self) -> float:
        self.under_way += 1
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look)
        return self._clock.monotonic_ms()

    def _end(self, outcome: str, began_ms: float) -> None:
        self.under_way -= 1
        self.outcomes[outcome] += 1
        if outcome == "answered":
            self.answered_s += (self._clock.monotonic_ms() - began_ms) / 1_000

    async def _told(self, call: Coroutine[Any, Any, None], began_ms: float) -> None:
        outcome = "broken"
        try:
            await call
            outcome = "answered"
        except (NotLeaderError, UnavailableError, MovedError):
            outcome = "not_done"
            raise
        except UnknownOutcomeError:
            outcome = "unknown"
            raise
        except ClientGoneError:
            outcome = "gone"
            raise
        finally:
            self._end(outcome, began_ms)

    async def is_ready(self) -> bool:
        """Tell whether there is a leader that answers, and is ready."""
        lease = self._leadership.leader
        if lease is None:
            return False
        try:
            leader, now_s = self._way_to(lease), self._loop.time()
        except OSError:  # cluster.ca cannot be read any more, as calls that are to be passed on tell
            return False
        if self._ready is not None and self._ready[0] is leader and now_s - self._ready[1] < READY_AGAIN_SECONDS:
            return self._ready[2]
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_whether_ready(leader))
        return await asyncio.shield(self._asking)

    def close(self) -> None:
        """Pass nothing on any more."""
        if self._looking is not None:
            self._looking.cancel()
        if self._asking is not None:
            self._asking.cancel()
        for way in self._ways():
            way.close()

    async def _ask_whether_ready(self, leader: LeaderConnections) -> bool:
        found = False
        with suppress(OSError, TimeoutError, LeaderLostError):
            async with asyncio.timeout(READY_SECONDS_MAX):
                connection = leader.kept() or await leader.connect()
                try:
                    host, prefix = leader.authority, leader.prefix
                    connection.ask(
                        b"GET %s/readyz?leader=true HTTP/1.1\r\nHost: %s\r\n\r\n" % (prefix, host), is_head=False
                    )
                    connection.is_sent = True
                    await connection.answered
                    async for _ in connection.parts():
                        pass
                    found = connection.status == 200
                finally:
                    leader.give_back(connection)
        self._ready = leader, self._loop.time(), found
        return found

    def _way_to(self, server: LeaseRecord | Owner) -> LeaderConnections:
        is_leader = isinstance(server, LeaseRecord)
        way = self._leader if is_leader else self._owners.get(server.instance)
        if way is not None and way.is_to(server):
            return way
        if way is not None and not way.is_former:
            way.retire()
        way = LeaderConnections(server, self._trust() if server.url.startswith("https:") else None)
        if is_leader:
            self._leader = way
        else:
            self._owners[server.instance] = way
        return way

    def _ways(self) -> list[LeaderConnections]:
        return [*self._owners.values(), *([] if self._leader is None else [self._leader])]

    def _trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._settings.cluster.ca)

    def _look(self) -> None:
        """Notice that the leader is another one, or an owner dead: calls that it does not answer would wait for ever."""
        self._looking = None
        leader, lease = self._leader, self._leadership.leader
        if leader is not None and not leader.is_former and (lease is None or lease.instance != leader.server.instance):
            leader.retire()
        for instance, way in list(self._owners.items()):
            if self._membership.owner(instance).state == "dead":
                way.retire()
                del self._owners[instance]
        if self.under_way:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look)


class PassingMetrics(Collector):
    """The series of the calls that a server passes on."""

    def __init__(self, passing: PassingOn) -> None:
        self._passing = passing

    def collect(self) -> Iterator[Metric]:
        """Every series there is."""
        passing = self._passing
        yield gauge("basalt_cluster_passing_on", "Calls that are passed on to other servers now", passing.under_way)
        text = "Calls that were passed on to other servers, by what became of them"
        yield counters("basalt_cluster_passed_on", text, "outcome", passing.outcomes)
        text = "Time from a call that was passed on to the end of its answer"
        answered = passing.outcomes["answered"]
        yield SummaryMetricFamily("basalt_cluster_passed_on_seconds", text, answered, passing.answered_s)


class _Lines(NamedTuple):
    """The first lines of calls that begin alike, as one leader gets them from one caller: all but what differs from call to call."""

    leader: LeaderConnections
    text: bytes


def _caller_of(request: RequestHead) -> tuple[str | None, str, bool]:
    return request.exchange.client, request.exchange.scheme, request.client_id is not None


def _lines_of(request: RequestHead, leader: LeaderConnections) -> bytes | None:
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


class _PassedCall:
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
        return _unknown(part)

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
        text = self._lines or _lines_of(request, self._leader) or _make_lines(request, self._leader)
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
        if self._follows and _has_moved(connection.status, connection.seen()):
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


async def _first_part(request: RequestHead) -> tuple[bytes, bool]:
    """The body as far as it has come: before that the call takes no place among those that are passed on."""
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            return await request.exchange.receive()
    except TimeoutError:
        raise RequestTimeoutError(
            f"nothing of the body came within {BODY_SECONDS_MAX} s", hint="Nothing was done; send the request again."
        ) from None


def _unknown(part: str) -> UnknownOutcomeError:
    return UnknownOutcomeError(
        f"the {part} went away before it answered, so whether the call took effect is unknown",
        hint="Look whether it did; or send it again under the same Basalt-Request-Id or producer number, where the call takes one.",
    )


def _has_moved(status: int, body: bytes) -> bool:
    """Tell the answer of a server that does not serve the topic by now."""
    return status == HTTPStatus.SERVICE_UNAVAILABLE and _MOVING in body


def _part(server: LeaseRecord | Owner) -> str:
    return "leader" if isinstance(server, LeaseRecord) else "owner"


def not_passed(server: LeaseRecord | Owner, why: str) -> NotLeaderError | ShardMovingError:
    """The answer to a call that is not passed on to this server for this reason."""
    if isinstance(server, LeaseRecord):
        return refused(server.url, why)
    return ShardMovingError(
        f"another server owns the topic, and the call is not passed on: {why}; nothing was done",
        hint=f"send the same call again after Retry-After, or to the owner at {server.url}",
    )


def refused(url: str | None, why: str) -> NotLeaderError:
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
