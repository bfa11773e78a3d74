"""Calls that another server is to answer, the leader or a topic's owner, are passed on to it, once, and its answers are given back.

Here is which calls go on, and to whom, how many at a time, and what became of them; `passed_call` has one call on its way. What proves who calls goes along, to
the address in the leader's lease or the member's row and nowhere else. Why: docs/decisions/0058-any-server-takes-any-call.md.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

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
    UnavailableError,
    UnknownOutcomeError,
)
from basalt.http.app import CLIENT_GONE
from basalt.http.asgi.passed_on import DIRECT, HEADER, TO_OWNER
from basalt.http.asgi.requests import BODY_SECONDS_MAX, ClientGoneError, PromptExchange, RequestHead
from basalt.http.asgi.responses import problem_response, send_response
from basalt.http.collectors import counters, gauge
from basalt.http.passing_by_link import PASS, PASS_MS_MAX, Given, Pass, goes_by_link, link_to
from basalt.server.leader_connection import LeaderConnection, LeaderConnections, LeaderLostError
from basalt.server.passed_call import MovedError, PassedCall, has_moved, lines_of, not_passed, outcome_unknown
from basalt.settings import Settings
from basalt_engine.clock import Clock

LOOK_SECONDS = 1.0  # between two looks whether the leader is still the one to which calls were passed on
READY_SECONDS_MAX = 2.0  # for the leader to say that it is ready
READY_AGAIN_SECONDS = 1.0  # so long its word holds: who asks often must not ask the leader as often

Note = Callable[[RequestHead], None]
Again = Callable[[], Coroutine[Any, Any, None]]

log = logging.getLogger("basalt.passing")


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
        lines = lines_of(request, leader)
        if lines is None or (self._takes_certificates and exchange.certificate is not None):
            return False
        if self._submit_by_link(request, leader, lines, exchange, body, note, again):
            return True
        connection = leader.kept()
        if connection is None:
            return False
        call = PassedCall(request, leader, body, False, lines, follows=again is not None)
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
        """Pass it on over the link to that server. False: it is for HTTP, as all that TLS would keep secret from who listens to a link without it."""
        if way.prefix or not goes_by_link(request.head, body):
            return False
        link, began_ms = link_to(self._links, way.server), self._clock.monotonic_ms()
        if link is None or (way.is_secure and not link.is_secure):
            return False

        def answered(done: asyncio.Future[Given]) -> None:
            error = done.exception()
            given = done.result() if error is None else None
            if given is not None and not (again is not None and has_moved(given.status, given.body)):
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
            link.send(PASS, Pass(lines, request.id, sequence, body), PASS_MS_MAX, answered, gathers=True)
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
            await send_response(request, problem_response(outcome_unknown(way.part), request.id))
            note(request)
        else:  # it answers no such calls, now or ever
            call = PassedCall(request, way, body, False, follows=again is not None)
            await self._go_on(call, None, exchange, began_ms, note, again)

    async def _go_on(
        self, call: PassedCall, connection: LeaderConnection | None, exchange: PromptExchange, began_ms: float, note: Note,
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
        call = PassedCall(request, leader, part, more, follows=follows and not more)
        await self._told(call.run(), self._begin())

    async def ask_for_permit(self, request: RequestHead, server: LeaseRecord | Owner, whole: bytes) -> bytes | None:
        """Ask the topic's owner whether this server may read the range that the call is about, and how: its permit.

        None: the owner has answered the call itself, and the caller has that answer. It fails as `pass_on`.
        """
        leader = self._way_for(request, server)
        self._check_room(server)
        call = PassedCall(request, leader, whole, False, asks_permit=True)
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


async def _first_part(request: RequestHead) -> tuple[bytes, bool]:
    """The body as far as it has come: before that the call takes no place among those that are passed on."""
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            return await request.exchange.receive()
    except TimeoutError:
        raise RequestTimeoutError(
            f"nothing of the body came within {BODY_SECONDS_MAX} s", hint="Nothing was done; send the request again."
        ) from None


def _part(server: LeaseRecord | Owner) -> str:
    return "leader" if isinstance(server, LeaseRecord) else "owner"
