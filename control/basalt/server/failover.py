"""One of several servers on one store: it answers as a standby, and serves in its terms as the leader.

A standby says that it lives, that it is not ready, its metrics, and to all else who leads: to a browser on a page. Nothing is done for a call that
gets `not_leader`, so a client may send it to the leader at once. Who else there is, its leader tells.

A term begins with the lease, goes on with the fence (`Store.lead`) and with reading what the last leader left, and only then
does the server serve. When the term is over it stops serving at once, lets go of its services (whose store takes no
more writes), and is a standby again. How a pair behaves is told in docs/operations/two-servers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any, NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.types import Receive, Scope, Send

from basalt.api.bodies.operations import Alive, Readiness, ServerPart, Version
from basalt.cluster.leader import Leadership
from basalt.cluster.lease import Candidate
from basalt.cluster.led_store import LedStore, Term
from basalt.cluster.membership import Membership
from basalt.errors import BasaltError, NotLeaderError
from basalt.http.app import Frame, build_app
from basalt.http.asgi import responses
from basalt.http.asgi.connections import Connections
from basalt.http.asgi.front import Front
from basalt.http.asgi.heads import Heads
from basalt.http.asgi.plain_asgi import AsgiExchange, answer_no_request, head_of
from basalt.http.asgi.requests import BodyBudget, Exchange, Head, PromptExchange, RequestHead
from basalt.http.collectors import ConnectionMetrics, LeaderMetrics, LoopMetrics, MemberMetrics, process_collectors
from basalt.http.services import member_part
from basalt.runtime.loop_lag import LoopLag
from basalt.runtime.store_calls import StoreCalls
from basalt.server.authentication import is_asked
from basalt.server.wiring import RunningServices, pages_of
from basalt.settings import Settings
from basalt.thrift.face import ThriftFace
from basalt_engine import __version__
from basalt_engine.clock import Clock
from basalt_engine.errors import RetryError
from basalt_engine.table import Store

# Pause of a server that could not begin its term, so that others can take the lease. It doubles with each failure: each
# attempt uses up an epoch number.
REST_S_MIN = 2.0
REST_S_MAX = 60.0

WEB_SOCKET_CLOSE = 1013  # try again later
METHODS = ("GET", "HEAD")  # of a standby
PAGE_METHODS = (*METHODS, "POST")  # a form that comes to a standby is answered in words, too
NO_BODIES = BodyBudget(0)  # nothing that a standby answers takes one

Opening = Callable[[Store, int], Awaitable[RunningServices]]
ThriftStart = Callable[[RunningServices], Awaitable[ThriftFace]]

log = logging.getLogger("basalt.failover")


class StandbyFrame:
    """The application of a server that does not lead, or not yet."""

    def __init__(
        self, leadership: Leadership, membership: Membership, clock: Clock, settings: Settings, connections: Connections
    ) -> None:
        self._leadership = leadership
        self._membership = membership
        self._clock = clock
        self._settings = settings
        self._access = settings.log.access
        self._front = Front.of(settings)
        self._registry = process_collectors()
        self._registry.register(LeaderMetrics(leadership))
        self._registry.register(MemberMetrics(membership, clock))
        self._registry.register(ConnectionMetrics(connections))
        self._answers: dict[str, Callable[[RequestHead], responses.Response]] = {
            "/livez": lambda _: responses.json_response(Alive(True)),
            "/readyz": self._ready,
            "/v1": lambda _: responses.json_response(Version("basalt", __version__)),
        }
        # A standby asks nobody who they are, for it does not read who may come in: what is not for everybody, it does not tell.
        if not is_asked(settings) or "/metrics" in settings.auth.public:
            self._answers["/metrics"] = self._metrics

    def measure(self, collector: Collector) -> None:
        """Have these series in /metrics, too."""
        self._registry.register(collector)

    async def begin(self, head: Head, exchange: Exchange, client_id: str | None = None) -> None:
        """Answer a request."""
        request = RequestHead(head, exchange, self._clock.monotonic_ms(), NO_BODIES, client_id)
        try:
            await responses.send_response(request, self._answer(request))
        finally:
            duration_ms = self._clock.monotonic_ms() - request.started_ms
            responses.log_access(request, duration_ms, self._clock.now_ms(), self._access)

    def begin_whole(
        self, head: Head, exchange: PromptExchange, client_id: str | None, _body: bytes
    ) -> Coroutine[Any, Any, None]:
        """The same: the body makes no difference."""
        return self.begin(head, exchange, client_id)

    def _answer(self, request: RequestHead) -> responses.Response:
        try:
            request.check()
            self._front.admit(request)
            answer = self._answers.get(request.head.path)
            if self._settings.console.enabled and responses.is_page(request):
                return self._page(request)
            if answer is None:
                raise self._not_leader()
            request.route = request.head.path
            if request.head.method not in METHODS:
                raise responses.method_not_allowed(request, METHODS)
            return answer(request)
        except BasaltError as error:
            return self._told(request, error)
        except Exception:  # a bug, but the caller must be answered
            log.exception("request %s failed", request.id, extra={"fields": {"requestId": request.id}})
            return self._told(request, responses.internal_error())

    def _told(self, request: RequestHead, error: BasaltError) -> responses.Response:
        return responses.told(error, request, has_pages=self._settings.console.enabled)

    def _not_leader(self) -> NotLeaderError:
        url = self._leadership.leader_url
        if url is None:
            error = NotLeaderError(
                "no server leads at the moment, or this one is about to", hint="send the call again after Retry-After"
            )
        else:
            error = NotLeaderError("this server is a standby", hint=f"send the call to {url}, which leads")
        error.leader_url = url
        return error

    def _page(self, request: RequestHead) -> responses.Response:
        """A page of the console: this server's health, and the way to the leader."""
        from basalt.console.standby import StandbyHealth, standby_answer  # its templates take time to load, and memory

        request.route = responses.PAGES_PATH
        if request.head.method not in PAGE_METHODS:
            raise responses.method_not_allowed(request, PAGE_METHODS)
        leadership = self._leadership
        health = StandbyHealth(
            self._readiness(), leadership.is_leader, leadership.leader_url, leadership.epoch, leadership.unchanged_ms,
            leadership.candidate.lease_ms, leadership.terms,
        )  # fmt: skip
        now_ms = self._clock.now_ms()
        return standby_answer(request, health, self._settings, is_asked=is_asked(self._settings), now_ms=now_ms)

    def _ready(self, _request: RequestHead) -> responses.Response:
        return responses.json_response(self._readiness(), HTTPStatus.SERVICE_UNAVAILABLE)

    def _readiness(self) -> Readiness:
        leadership, url = self._leadership, self._leadership.leader_url
        if leadership.is_leader:
            detail = f"leads under epoch {leadership.epoch}, and reads what the last leader left"
        else:
            detail = f"standby: {url} leads" if url else "standby: no server leads at the moment"
        store = ServerPart(
            "store", leadership.reachable, 0.0, "" if leadership.reachable else "the lease cannot be read"
        )
        return Readiness(False, (store, ServerPart("leader", False, 0.0, detail), member_part(self._membership)))

    def _metrics(self, request: RequestHead) -> responses.Response:
        encode, content_type = choose_encoder(request.headers.get(b"accept", b"").decode("latin-1"))
        return responses.Response(200, encode(self._registry), content_type.encode("ascii"))


class _Serving(NamedTuple):
    """The services and faces that answer while a term lasts."""

    term: Term
    services: RunningServices
    app: Frame
    thrift: ThriftFace


async def _no_thrift(services: RunningServices) -> ThriftFace:
    return ThriftFace(None)


class FailoverServer:
    """The server. `open_store` opens one more handle on the store, `open_services` wires and recovers services over one.

    Call `run` in the background, give requests to the server itself, and `close` it at the end.
    """

    def __init__(
        self, clock: Clock, candidate: Candidate, *, open_store: Callable[[], Store], open_services: Opening,
        settings: Settings, start_thrift: ThriftStart = _no_thrift,
    ) -> None:  # fmt: skip
        self._open_store = open_store
        self._open_services = open_services
        self._start_thrift = start_thrift
        self._terms: asyncio.Queue[Term] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.heads = Heads()
        self.connections = Connections.of(settings.http)
        self.loop_lag = LoopLag(clock)
        self.loop_lag.start()
        self.leadership = Leadership(open_store(), clock, candidate, on_term=self._begin)
        self.membership = Membership(open_store(), clock, candidate, self.leadership)
        self._standby = StandbyFrame(self.leadership, self.membership, clock, settings, self.connections)
        self._standby.measure(LoopMetrics(self.loop_lag))
        self._serving: _Serving | None = None
        self._collectors: list[Collector] = []
        self._stopping = False

    def measure(self, collector: Collector) -> None:
        """Have these series in /metrics, as a standby and as the leader. Before `run`."""
        self._collectors.append(collector)
        self._standby.measure(collector)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.begin(head_of(scope), AsgiExchange(scope, receive, send))
        else:
            await answer_no_request(scope, receive, send, WEB_SOCKET_CLOSE)

    def begin(self, head: Head, exchange: Exchange, client_id: str | None = None) -> Coroutine[Any, Any, None]:
        """Make the coroutine that answers this request."""
        return self._application().begin(head, exchange, client_id)

    def begin_whole(
        self, head: Head, exchange: PromptExchange, client_id: str | None, body: bytes
    ) -> Coroutine[Any, Any, None] | None:
        """The same for a request that is here with all of its body; None: it is answered without a coroutine."""
        return self._application().begin_whole(head, exchange, client_id, body)

    async def run(self) -> None:
        """Be a standby, then the leader, then a standby again, until cancelled. Raises what waiting does not mend."""
        rest_s = REST_S_MIN
        while True:
            self.leadership.seek()
            term = await self._terms.get()
            try:
                await self._serve(term)
                rest_s = REST_S_MIN
            except RetryError as error:
                log.warning("the term under epoch %d came to nothing: %s", term.epoch, error.message)
                await asyncio.to_thread(self.leadership.release)
                await asyncio.sleep(rest_s)
                rest_s = min(2 * rest_s, REST_S_MAX)

    def stop_waiting(self) -> None:
        """The server is about to stop: requests that wait for a message are answered with what there is."""
        self._stopping = True
        if self._serving is not None:
            self._serving.services.stop_waiting()

    async def close(self) -> None:
        """Answer what was taken, give up the lease and the membership, and let go of the store. `run` has ended."""
        serving, self._serving = self._serving, None
        self.loop_lag.stop()
        try:
            if serving is not None:
                serving.app.sampler.stop()
                await serving.thrift.stop()
                await serving.services.close()
        finally:
            await asyncio.gather(*map(asyncio.to_thread, (self.leadership.stop, self.membership.stop)))

    def _application(self) -> Frame | StandbyFrame:
        serving = self._serving
        return self._standby if serving is None or not serving.term.is_on() else serving.app

    def _begin(self, term: Term) -> None:
        """Called by the leadership's thread."""
        self._call_in_loop(lambda: self._terms.put_nowait(term))

    def _call_in_loop(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)

    async def _serve(self, term: Term) -> None:
        over = asyncio.Event()
        term.when_over(lambda: self._call_in_loop(over.set))
        services, thrift = await self._start(term)  # its first write fails when the term is over by then
        app = build_app(services, further_routes=pages_of(services.settings))
        app.metrics.watch()
        self._serving = _Serving(term, services, app, thrift)
        app.sampler.start()
        log.info("serves under epoch %d", term.epoch)
        await over.wait()
        log.warning("serves no more under epoch %d: %s", term.epoch, term.over)
        self._serving = None
        app.sampler.stop()
        await thrift.stop()
        await services.close()

    async def _start(self, term: Term) -> tuple[RunningServices, ThriftFace]:
        store = LedStore(await asyncio.to_thread(self._open_store), term)
        try:
            await StoreCalls(store).write(store.lead, term.epoch)
        except BaseException:
            store.close()
            raise
        services = await self._open_services(store, term.epoch)
        services.leadership, services.membership = self.leadership, self.membership
        services.connections, services.loop_lag = self.connections, self.loop_lag
        services.collectors += self._collectors
        try:
            await services.scheduler.start()
            thrift = await self._start_thrift(services)
        except BaseException:
            await services.close()
            raise
        if self._stopping:
            services.stop_waiting()
        return services, thrift
