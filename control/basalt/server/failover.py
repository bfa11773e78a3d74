"""One of several servers on one store: it answers as a standby, and serves in its terms as the leader.

What it does not answer itself, as a standby or since another server has the topic (`routing`), its `StandbyFrame` passes on.

A term begins with the lease, goes on with the fence (`Store.lead`) and with reading what the last leader left, and only then
does the server serve. When the term is over it stops serving at once, lets go of its services (whose store takes no
more writes), and is a standby again. How a pair behaves is told in docs/operations/several-servers.md.

Where servers share the work (`cluster.share`) a server that does not lead is more than a standby: while its membership lasts it has services of its own,
for the topics that the leader gives it. They end, and others begin, with the membership, and whenever this server comes to lead or leads no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from prometheus_client.registry import Collector
from starlette.types import Receive, Scope, Send

from basalt.cluster.leader import Leadership
from basalt.cluster.lease import Candidate
from basalt.cluster.led_store import LedStore, Term
from basalt.cluster.links.links import Links
from basalt.cluster.membership import Membership
from basalt.cluster.owners import Granted, OwnersMap, take_all, take_up
from basalt.errors import (
    UnavailableError,
    UnknownOutcomeError,
)
from basalt.http.app import Frame, build_app
from basalt.http.asgi.connections import Connections
from basalt.http.asgi.heads import Heads
from basalt.http.asgi.passed_on import HEADER, PassedExchange, PromptPassedExchange, passed_on
from basalt.http.asgi.plain_asgi import AsgiExchange, answer_no_request, head_of
from basalt.http.asgi.requests import Exchange, Head, PromptExchange
from basalt.http.collectors import (
    LinkMetrics,
    LoopMetrics,
)
from basalt.http.passing_by_link import PassedByLink
from basalt.operations.shard_calls import ShardCalls
from basalt.runtime.loop_lag import LoopLag
from basalt.runtime.store_calls import StoreCalls
from basalt.server.leader_connection import LeaderLostError
from basalt.server.routing import By, is_here, newest, place_of
from basalt.server.standby.standby_frame import METHODS, StandbyFrame
from basalt.server.wiring import RunningServices, Shared, pages_of
from basalt.settings import Settings
from basalt.thrift.face import ThriftFace
from basalt_engine.clock import Clock
from basalt_engine.errors import RetryError
from basalt_engine.table import Store

# Pause of a server that could not begin its term, so that others can take the lease. It doubles with each failure: each
# attempt uses up an epoch number.
REST_S_MIN = 2.0
REST_S_MAX = 60.0

WEB_SOCKET_CLOSE = 1013  # try again later

Opening = Callable[[Store, int, Shared | None], Awaitable[RunningServices]]
ThriftStart = Callable[[RunningServices], Awaitable[ThriftFace]]

log = logging.getLogger("basalt.failover")


class _Serving(NamedTuple):
    """The services and faces that answer while a term lasts."""

    term: Term
    services: RunningServices
    app: Frame
    thrift: ThriftFace
    leads: bool = True

    async def close(self) -> None:
        """Answer what was taken, and let go of the store."""
        self.app.sampler.stop()
        await self.thrift.stop()
        await self.services.close()


async def _no_thrift(services: RunningServices) -> ThriftFace:
    return ThriftFace(None)


class FailoverServer:
    """The server. `open_store` opens one more handle on the store, `open_services` wires and recovers services over one: to lead under an epoch,
    or with epoch 0 to serve as a member. `open_rows` opens one for the rows of leases, where these are to be renewed in another way.

    Call `run` in the background, give requests to the server itself, and `close` it at the end.
    """

    def __init__(
        self, clock: Clock, candidate: Candidate, *, open_store: Callable[[], Store], open_services: Opening,
        settings: Settings, start_thrift: ThriftStart = _no_thrift, open_rows: Callable[[], Store] | None = None,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._open_store = open_store
        self._open_services = open_services
        self._start_thrift = start_thrift
        self._terms: asyncio.Queue[Term] = asyncio.Queue()
        self._memberships: asyncio.Queue[Term] = asyncio.Queue()
        self._shares = settings.cluster.share
        self._loop = asyncio.get_running_loop()
        self.heads = Heads()
        self.connections = Connections.of(settings.http)
        self._collectors: list[Collector] = []
        self.loop_lag = LoopLag(clock)
        self.loop_lag.start()
        open_rows = open_rows or open_store
        self.leadership = Leadership(open_rows(), clock, candidate, on_term=self._begin)
        self.membership = Membership(open_rows(), clock, candidate, self.leadership, on_term=self._begin_membership)
        self.links = Links(clock, self.leadership, self.membership, settings.cluster.secret)
        self._standby = StandbyFrame(
            self.leadership, self.membership, clock, settings, self.connections, self.links, open_store, self._owners,
            self._begin_again,
        )  # fmt: skip
        self._shards = ShardCalls(clock, self.links, self.membership)
        self._passed_by_link = PassedByLink(self.links.handlers, self.begin_whole)
        self._forget_calls = self.links.handlers.from_now_on()
        self._standby.measure(LoopMetrics(self.loop_lag))
        self.measure(LinkMetrics(self.links))
        self._serving: _Serving | None = None
        self._stopping = False
        self._leaving: asyncio.Task[int] | None = None
        self._secret = candidate.secret.encode("ascii")

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
        app = self._application(head)
        if HEADER in head.headers and app is not self._standby:
            try:
                exchange = PassedExchange(exchange, passed_on(self._secret, head))
            except UnavailableError as error:
                return self._standby.refuse(head, exchange, client_id, error)
        return app.begin(head, exchange, client_id)

    def begin_whole(
        self, head: Head, exchange: PromptExchange, client_id: str | None, body: bytes
    ) -> Coroutine[Any, Any, None] | None:
        """The same for a request that is here with all of its body; None: it is answered without a coroutine."""
        app = self._application(head, is_whole=True)
        if isinstance(app, StandbyFrame):
            return app.begin_whole(head, exchange, client_id, body)
        if HEADER in head.headers:  # which goes no further
            try:
                exchange = PromptPassedExchange(exchange, passed_on(self._secret, head))
            except UnavailableError as error:
                return self._standby.refuse(head, exchange, client_id, error)
            return app.begin_whole(head, exchange, client_id, body)
        elsewhere = partial(self._standby.begin_whole, head, exchange, client_id, body) if self._shares else None
        return app.begin_whole(head, exchange, client_id, body, elsewhere)

    async def run(self) -> None:
        """Be a standby, then the leader, then a standby again, until cancelled. Raises what waiting does not mend."""
        rest_s = REST_S_MIN
        while True:
            self.leadership.seek()
            term = await (self._serve_until_it_leads() if self._shares else self._terms.get())
            try:
                await self._serve(term)
                rest_s = REST_S_MIN
            except RetryError as error:
                log.warning("the term under epoch %d came to nothing: %s", term.epoch, error.message)
                await asyncio.to_thread(self.leadership.release)
                await self._tell_members(error.message)
                await asyncio.sleep(rest_s)
                rest_s = min(2 * rest_s, REST_S_MAX)

    async def _serve_until_it_leads(self) -> Term:
        """Serve as a member, in one membership after the other; the term in which this server leads, once that has begun."""
        leading = asyncio.ensure_future(self._terms.get())
        beginning: asyncio.Future[Term] | None = None
        try:
            while not leading.done():
                beginning = asyncio.ensure_future(self._memberships.get())
                await asyncio.wait((leading, beginning), return_when=asyncio.FIRST_COMPLETED)
                if beginning.done() and beginning.result().is_on():
                    await self._serve_as_member(beginning.result(), leading)
            return leading.result()
        except BaseException:
            leading.cancel()
            raise
        finally:
            if beginning is not None:
                beginning.cancel()

    async def _serve_as_member(self, term: Term, leading: asyncio.Future[Term]) -> None:
        try:
            await self._serve(term, leading)
            why = "this server leads"
        except RetryError as error:
            why = f"nothing can be served: {error.message}"
            log.warning("member %s serves nothing yet: %s", term.member, error.message)
        term.end(why)  # with the next renewal another one begins

    def look(self) -> None:
        """Look at the lease and the members at once: a server beside this one has died. Any thread may call this."""
        self.leadership.look()
        self.membership.look()

    def stop_waiting(self) -> None:
        """The server is about to stop: requests that wait for a message are answered with what there is."""
        self._stopping = True
        self.leadership.withdraw()  # else a standby with an open call would lead for the seconds that it has left
        if self._serving is not None:
            self._serving.services.stop_waiting()
        self._call_in_loop(self._begin_to_leave)

    def _begin_to_leave(self) -> None:
        """Have others take the shards, while this server still answers what is open."""
        if self._leaving is None:
            self._leaving = self._loop.create_task(self._shards.leave())

    async def close(self) -> None:
        """Answer what was taken, give up the lease and the membership, and let go of the store. `run` has ended."""
        self._begin_to_leave()
        assert self._leaving is not None, "it was begun"
        await self._leaving
        serving, self._serving = self._serving, None
        self._end_calls()
        self.loop_lag.stop()
        self._standby.passing.close()
        try:
            if serving is not None:
                await serving.close()
        finally:
            await asyncio.gather(self._leave(), asyncio.to_thread(self.membership.stop))
            await self.links.close()
            await self._standby.reading.close()

    async def _leave(self) -> None:
        await asyncio.to_thread(self.leadership.stop)
        await self._tell_members("the leader stops")

    async def _tell_members(self, why: str) -> None:
        """Have those that this server led look at the lease: not before it says that it is free."""
        await asyncio.to_thread(self.leadership.settle)
        self.links.end_term(why)

    def _application(self, head: Head, *, is_whole: bool = False) -> Frame | StandbyFrame:
        """The application for a call with this head: that of the services, where it is this server that answers it, or its body is to be looked at."""
        serving = self._serving
        if serving is None or not serving.term.is_on():
            return self._standby
        if not self._shares:  # then it leads, and has all shards
            return serving.app
        own = self.leadership.candidate.instance
        place = place_of(head)
        if is_whole and place.by is By.BODY and HEADER not in head.headers:
            return serving.app
        return serving.app if is_here(place, self._owners(), own, leads=serving.leads) else self._standby

    def _begin_again(
        self, head: Head, exchange: PromptExchange, client_id: str | None, body: bytes
    ) -> Coroutine[Any, Any, None]:
        """Make the coroutine that answers a request whose topic has moved while it was on its way to another server."""
        app = self._application(head)
        if isinstance(app, StandbyFrame):
            begun = app.begin_whole(head, exchange, client_id, body, has_task=True, follows=False)
            assert begun is not None
            return begun
        exchange.give_again(body)  # some of the ways by which it was passed on have taken it
        return app.begin(head, exchange, client_id)

    def _elsewhere(self, head: Head, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Make the coroutine that has another server answer a call from within; None: this one is to."""
        return self._ask(head, exchange) if self._application(head) is self._standby else None

    async def _ask(self, head: Head, exchange: Exchange) -> None:
        try:
            await self._standby.begin(head, exchange)
        except LeaderLostError:  # no connection breaks by which whoever asked would see it
            why = "the server that answers broke off in its answer"
            error = UnavailableError(why) if head.method in METHODS else UnknownOutcomeError(why)
            await self._standby.refuse(head, exchange, None, error)

    def _owners(self) -> OwnersMap | None:
        """The newest map of owners that this server knows of."""
        serving, seen = self._serving, self.membership.owners
        return seen if serving is None else newest(seen, serving.services.topics.gate.owners)

    def _begin(self, term: Term) -> None:
        """Called by the leadership's thread."""
        self._call_in_loop(lambda: self._terms.put_nowait(term))

    def _begin_membership(self, term: Term) -> None:
        """Called by the membership's thread."""
        if self._shares:
            self._call_in_loop(lambda: self._memberships.put_nowait(term))

    def _call_in_loop(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)

    async def _serve(self, term: Term, leading: asyncio.Future[Term] | None = None) -> None:
        """Serve until the term is over; as a member also until this server is `leading`."""
        ended = asyncio.Event()
        term.when_over(lambda: self._call_in_loop(ended.set))
        services, thrift = await self._start(term)  # its first write fails when the term is over by then
        app = build_app(services, further_routes=pages_of(services.settings))
        app.metrics.watch()
        if self._shares:
            app.elsewhere = self._elsewhere
        serving = self._serving = _Serving(term, services, app, thrift, leads=term.member is None)
        app.sampler.start()
        what = f"under epoch {term.epoch}" if term.member is None else f"as member {term.member}"
        log.info("serves %s", what)
        over = asyncio.ensure_future(ended.wait())
        try:
            await asyncio.wait((over,) if leading is None else (over, leading), return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        log.warning("serves no more %s: %s", what, term.over or "it leads")
        self._serving = None
        self._end_calls()
        if term.member is None:
            await self._tell_members(term.over or "")
        await serving.close()

    def _end_calls(self) -> None:
        """The services are about to end: they answer no more calls of other servers."""
        self._shards.end()
        self._forget_calls()
        self._forget_calls = self.links.handlers.from_now_on()

    def _may_borrow(self, instance: str) -> bool:
        """True while this membership of another server lasts."""
        seen = self.membership.seen.get(instance)
        return self.membership.looked_ms is None or (seen is not None and not seen.record.is_over)

    async def _start(self, term: Term) -> tuple[RunningServices, ThriftFace]:
        store = LedStore(await asyncio.to_thread(self._open_store), term)
        try:
            owners = None if term.member is not None else await self._lead(store, term.epoch)
        except BaseException:
            store.close()
            raise
        owned = {} if owners is None else owners.shards_of(self.leadership.candidate.instance)
        shared = Shared(self.links, self.membership, owned) if self._shares else None
        services = await self._open_services(store, term.epoch, shared)
        services.leadership, services.membership = self.leadership, self.membership
        if owners is not None:
            services.granted = Granted(owners, self._clock.now_ms())
        services.connections, services.loop_lag = self.connections, self.loop_lag
        services.collectors += [*self._collectors, *self._standby.figures]
        try:
            await services.scheduler.start()
            thrift = await (self._start_thrift if term.member is None else _no_thrift)(services)
        except BaseException:
            await services.close()
            raise
        if self._shares:
            services.share(self.links, self._may_borrow)
        if owners is None:
            self._shards.serve(services.shard_holding)
        elif self._shares:
            self._shards.lead(services.shard_moves, owners, term.epoch)
        else:
            services.shard_moves.lead(owners, self.leadership.candidate.instance, term.epoch)
        if self._stopping:
            services.stop_waiting()
        return services, thrift

    async def _lead(self, store: LedStore, epoch: int) -> OwnersMap:
        """Fence the former leader, and take the shards."""
        write = StoreCalls(store).write
        await write(store.lead, epoch)
        return await write(take_up if self._shares else take_all, store, self.leadership.candidate.instance, epoch)
