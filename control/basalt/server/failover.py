"""One of several servers on one store: it answers as a standby, and serves in its terms as the leader.

A standby says that it lives, whether it is ready and its metrics, reads ranges that a topic's owner permits it, and passes all else on: what is about a topic to
its owner, and the rest to the server that leads. So does a server that serves with what is another's (`routing`). Where it cannot, it says who leads: to a browser on a page; and to a client that took it for a topic's owner, who that is. Nothing is done for a call that gets `not_leader` or `not_owner`, so it may be sent there at once.
Who else there is, its leader tells.

A term begins with the lease, goes on with the fence (`Store.lead`) and with reading what the last leader left, and only then
does the server serve. When the term is over it stops serving at once, lets go of its services (whose store takes no
more writes), and is a standby again. How a pair behaves is told in docs/operations/two-servers.md.

Where servers share the work (`cluster.share`) a server that does not lead is more than a standby: while its membership lasts it has services of its own,
for the topics that the leader gives it. They end, and others begin, with the membership, and whenever this server comes to lead or leads no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.types import Receive, Scope, Send

from basalt.api.bodies.operations import Alive, Readiness, ServerPart, Version
from basalt.cluster.leader import Leadership
from basalt.cluster.lease import Candidate, LeaseRecord
from basalt.cluster.led_store import LedStore, Term
from basalt.cluster.links.links import Links
from basalt.cluster.membership import Membership, Owner
from basalt.cluster.owners import Granted, OwnersMap, take_all, take_up
from basalt.commits.groups_elsewhere import GroupCalls
from basalt.commits.owner_calls import OwnerCalls
from basalt.errors import (
    BasaltError,
    NotLeaderError,
    NotOwnerError,
    ShardMovingError,
    UnavailableError,
    UnknownOutcomeError,
)
from basalt.http.app import CLIENT_GONE, Frame, build_app
from basalt.http.asgi import responses
from basalt.http.asgi.connections import Connections
from basalt.http.asgi.front import Front
from basalt.http.asgi.heads import Heads
from basalt.http.asgi.passed_on import DIRECT, HEADER, PassedExchange, PromptPassedExchange, passed_on
from basalt.http.asgi.plain_asgi import AsgiExchange, answer_no_request, head_of
from basalt.http.asgi.requests import BodyBudget, ClientGoneError, Exchange, Head, PromptExchange, RequestHead
from basalt.http.collectors import (
    ConnectionMetrics,
    LeaderMetrics,
    LinkMetrics,
    LoopMetrics,
    MemberMetrics,
    process_collectors,
)
from basalt.http.passing_by_link import PassedByLink
from basalt.http.services import member_part
from basalt.operations.shard_calls import ShardCalls
from basalt.runtime.loop_lag import LoopLag
from basalt.runtime.store_calls import StoreCalls
from basalt.server import passing_on
from basalt.server.authentication import is_asked
from basalt.server.leader_connection import LeaderLostError
from basalt.server.passing_on import Again, MovedError, PassingMetrics, PassingOn
from basalt.server.reading_here import ROUTE, ReadingHere, ReadingMetrics
from basalt.server.routing import By, is_here, newest, other_owner, place_of
from basalt.server.wiring import RunningServices, Shared, pages_of
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
ONE_SHOTS = "POST", "/v1/transactions"  # a member carries those out whose topics it has
NO_BODIES = BodyBudget(0)  # nothing that a standby answers itself takes one
# For which a server waits to hear of a newer map, when the owner of a topic has it no more: that one knows the map by then, and it comes over links.
FOLLOW_MS_MAX = 250
FOLLOW_LOOK_MS = 10
PASSED_ON = "(passed on)"  # the route of such a call in this server's log: the leader's names the real one

Opening = Callable[[Store, int, Shared | None], Awaitable[RunningServices]]
ThriftStart = Callable[[RunningServices], Awaitable[ThriftFace]]

log = logging.getLogger("basalt.failover")


class StandbyFrame:
    """The application of a server that does not serve, or not yet; and of one that does, for the calls that another one answers."""

    def __init__(
        self, leadership: Leadership, membership: Membership, clock: Clock, settings: Settings, connections: Connections,
        links: Links, open_store: Callable[[], Store], owners: Callable[[], OwnersMap | None],
        begin_again: Callable[[Head, PromptExchange, str | None, bytes], Coroutine[Any, Any, None]],
    ) -> None:  # fmt: skip
        self._owners = owners
        self._begin_again = begin_again
        self._leadership = leadership
        self._links = links
        self._membership = membership
        self._clock = clock
        self._settings = settings
        self._access = settings.log.access
        self._front = Front.of(settings)
        self._registry = process_collectors()
        self._registry.register(LeaderMetrics(leadership))
        self._registry.register(MemberMetrics(membership, clock, settings.cluster.servers_min))
        self._registry.register(ConnectionMetrics(connections))
        self.passing = PassingOn(leadership, membership, clock, settings, links)
        self._registry.register(PassingMetrics(self.passing))
        self.reading = ReadingHere(open_store, clock, settings)
        self._registry.register(ReadingMetrics(self.reading))
        self._answers: dict[str, Callable[[RequestHead], Awaitable[responses.Response]]] = {
            "/livez": self._alive,
            "/readyz": self._ready,
            "/v1": self._about,
            # A standby asks nobody who they are, for it does not read who may come in: what is not for everybody, it does not tell.
            "/metrics": self._metrics
            if not is_asked(settings) or "/metrics" in settings.auth.public
            else self._nothing,
        }

    def measure(self, collector: Collector) -> None:
        """Have these series in /metrics, too."""
        self._registry.register(collector)

    def begin(self, head: Head, exchange: Exchange, client_id: str | None = None) -> Coroutine[Any, Any, None]:
        """Make the coroutine that answers this request."""
        return self._respond(self._request(head, exchange, client_id))

    def begin_whole(
        self, head: Head, exchange: PromptExchange, client_id: str | None, body: bytes, *, has_task: bool = False,
        follows: bool = True,
    ) -> Coroutine[Any, Any, None] | None:  # fmt: skip
        """The same for a request that is here with all of its body; None: it is passed on without a coroutine.

        `has_task`: a task waits for the answer already, and is to have the coroutine. `follows`: it is answered anew where its topic has moved meanwhile.
        """
        request, server = self._request(head, exchange, client_id), self._server_for(head)
        again = (
            partial(self._follow, head, server, exchange, client_id, body)
            if follows and self._owns(head, server)
            else None
        )
        # Of a page that is not passed on a browser gets another one in its place; and a range may be read here.
        if (
            not has_task
            and not responses.is_page(request)
            and not self.reading.may_read(request, body)
            and self.passing.submit(request, server, exchange, body, self._note, again)
        ):
            request.route = PASSED_ON
            return None
        return self._respond(request, body, again=again)

    def _owns(self, head: Head, server: LeaseRecord | Owner | None) -> bool:
        """Tell whether the topic of a call with this head is this server's, as far as is known here; never where servers do not share topics."""
        owners, place = self._owners(), place_of(head)
        if not self._settings.cluster.share or server is None or owners is None or place.by is not By.OWNER:
            return False
        assert place.shard is not None
        return owners.owner_of(place.shard) == server.instance

    async def _follow(
        self,
        head: Head,
        tried: LeaseRecord | Owner | None,
        exchange: PromptExchange,
        client_id: str | None,
        body: bytes,
    ) -> None:
        """The topic has moved while the call was on its way, and nothing was done: answer it anew, once, when a newer map says where."""
        until_ms = self._clock.monotonic_ms() + FOLLOW_MS_MAX
        while self._owns(head, tried) and self._clock.monotonic_ms() < until_ms:  # noqa: ASYNC110  # another thread learns of maps, too
            await asyncio.sleep(FOLLOW_LOOK_MS / 1_000)
        await self._begin_again(head, exchange, client_id, body)

    async def refuse(self, head: Head, exchange: Exchange, client_id: str | None, error: BasaltError) -> None:
        """Answer a request with this error, whoever leads."""
        await self._respond(self._request(head, exchange, client_id), refused=error)

    def _request(self, head: Head, exchange: Exchange, client_id: str | None) -> RequestHead:
        return RequestHead(head, exchange, self._clock.monotonic_ms(), NO_BODIES, client_id)

    async def _respond(
        self, request: RequestHead, body: bytes | None = None, refused: BasaltError | None = None, again: Again | None = None
    ) -> None:  # fmt: skip
        is_here = True
        try:
            try:
                if refused is not None:
                    raise refused
                answer = await self._answer(request, body, follows=again is not None)
            except MovedError:
                assert again is not None
                is_here, answer = False, None
                await again()
            except LeaderLostError:
                raise  # half of its answer is out: the connection must break, or it would pass for whole
            except BasaltError as error:
                answer = self._told(request, error)
            except ClientGoneError:
                request.status, answer = CLIENT_GONE, None
            except Exception:  # a bug, but the caller must be answered
                log.exception("request %s failed", request.id, extra={"fields": {"requestId": request.id}})
                if request.status:
                    raise
                answer = self._told(request, responses.internal_error())
            if answer is not None:
                await responses.send_response(request, answer)
        finally:
            if is_here:  # else who answers it notes it
                self._note(request)

    def _note(self, request: RequestHead) -> None:
        self._links.calls += 1  # the next beat tells the leader of them
        duration_ms = self._clock.monotonic_ms() - request.started_ms
        responses.log_access(request, duration_ms, self._clock.now_ms(), self._access)

    async def _answer(self, request: RequestHead, body: bytes | None, *, follows: bool) -> responses.Response | None:
        """This server's own answer; None: another one's was given."""
        request.check()
        self._front.admit(request)
        own = self._answers.get(request.head.path)
        if own is not None:
            request.route = request.head.path
            if request.head.method not in METHODS:
                raise responses.method_not_allowed(request, METHODS)
            return await own(request)
        try:
            if self.reading.may_read(request, body):
                return await self._read_or_pass_on(request, body)
            await self._pass_on(request, body, follows=follows)
        except NotLeaderError as error:
            if self._settings.console.enabled and responses.is_page(request) and not request.status:
                return self._page(request, error)
            raise
        return None

    async def _read_or_pass_on(self, request: RequestHead, body: bytes | None) -> responses.Response | None:
        """This server's own answer to a call for a range, where the owner permits it; None: the owner's was given."""
        server, why = self._server_for(request.head), self.passing.refusal(request, reads=True)
        if server is None or why is not None:
            await self._pass_on(request, body)
            return None
        if body is None:
            await request.exchange.receive()  # it has none, and is watched for its end afterwards
        request.route = ROUTE
        permit = await self.passing.ask_for_permit(request, server, b"")
        answer = None if permit is None else await self.reading.read(permit)
        if permit is not None and answer is None:
            await self._pass_on(request, b"")
        return answer

    async def _pass_on(self, request: RequestHead, body: bytes | None, *, follows: bool = False) -> None:
        server, why = self._server_for(request.head), self.passing.refusal(request)
        if server is None or why is not None:
            raise self._refused(request, server, why or "")
        request.route = PASSED_ON
        await self.passing.pass_on(request, server, body, follows=follows)

    def _server_for(self, head: Head) -> LeaseRecord | Owner | None:
        """The server that is to answer a call with this head: the topic's owner where it is known to live, and else the leader, which may know more.

        None: no other server leads.
        """
        lease, candidate = self._leadership.leader, self._leadership.candidate
        leader = None if lease is None else lease.instance
        name = other_owner(place_of(head), self._owners(), candidate.instance, leader)
        if name is not None:
            owner = self._membership.owner(name)
            if owner.state == "live" and owner.url and owner.secret:
                return owner
        return lease

    def _refused(self, request: RequestHead, server: LeaseRecord | Owner | None, why: str) -> BasaltError:
        """The answer to a call that is passed on to nobody, for this reason (empty: nobody wants to know)."""
        is_passed_on = HEADER in request.headers
        if (DIRECT in request.headers or isinstance(server, Owner)) and not is_passed_on:
            error = self._not_owner(request)
            if error is not None:
                return error
        place = place_of(request.head)
        # Who has no lease cannot read who serves what, perhaps for long: its callers are to ask another server.
        knows = self._settings.cluster.share and self._membership.is_on
        if knows and place.by is By.OWNER and (is_passed_on or server is None):
            return ShardMovingError(
                f"no server is known to serve shard {place.shard} now, or two servers know different ones; nothing was done",
                hint="send the same call again after Retry-After",
            )
        return passing_on.refused(self._leadership.leader_url, why)

    def _not_owner(self, request: RequestHead) -> NotOwnerError | None:
        """The answer to who took this server for the owner of a topic; None where the call is about none, or no other server is known to serve it."""
        (by, shard), owners, lease = place_of(request.head), self._owners(), self._leadership.leader
        if shard is None or owners is None:
            return None
        owner = self._membership.owner(owners.owner_of(shard))
        if by is By.LEADER and (lease is None or owner.instance != lease.instance):
            return None
        # One that is silent may be followed by another soon, whom the leader knows first.
        if owner.state != "live" or owner.instance == self._leadership.candidate.instance:
            return None
        error = NotOwnerError(  # nobody was asked who they are: it tells no name of a machine but that in the address
            f"this server does not own shard {shard}, member {owner.instance} does; nothing was done",
            hint=f"send the call to {owner.url}; without Basalt-Direct it is passed on",
        )
        error.owner_url, error.member, error.leader_url = owner.url, owner.instance, self._leadership.leader_url
        return error

    def _told(self, request: RequestHead, error: BasaltError) -> responses.Response:
        return responses.told(error, request, has_pages=self._settings.console.enabled)

    def _page(self, request: RequestHead, error: NotLeaderError) -> responses.Response:
        """In place of a page of the console: this server's health, why the leader has not answered, and the way to it."""
        from basalt.console.standby import StandbyHealth, standby_answer  # its templates take time to load, and memory

        request.route = responses.PAGES_PATH
        if request.head.method not in PAGE_METHODS:
            raise responses.method_not_allowed(request, PAGE_METHODS)
        leadership = self._leadership
        health = StandbyHealth(
            self._readiness(False), leadership.is_leader, leadership.leader_url, leadership.epoch, leadership.unchanged_ms,
            leadership.candidate.lease_ms, leadership.terms,
        )  # fmt: skip
        now_ms = self._clock.now_ms()
        return standby_answer(
            request, health, error.message, self._settings, is_asked=is_asked(self._settings), now_ms=now_ms
        )

    async def _alive(self, _request: RequestHead) -> responses.Response:
        return responses.json_response(Alive(True))

    async def _about(self, _request: RequestHead) -> responses.Response:
        return responses.json_response(Version("basalt", __version__))

    async def _ready(self, request: RequestHead) -> responses.Response:
        """Ready is who passes on to a leader that is; never where the leader alone is asked for."""
        for_leader = any(each.partition(b"=")[0] == b"leader" for each in request.head.query_string.split(b"&"))
        is_ready = not for_leader and self._settings.cluster.pass_on and await self.passing.is_ready()
        return responses.json_response(
            self._readiness(is_ready), HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        )

    def _readiness(self, is_ready: bool) -> Readiness:
        leadership, url = self._leadership, self._leadership.leader_url
        if leadership.is_leader:
            detail = f"leads under epoch {leadership.epoch}, and reads what the last leader left"
        else:
            detail = f"standby: {url} leads" if url else "standby: no server leads at the moment"
            detail += ", and answers" if is_ready else ""
        store = ServerPart(
            "store", leadership.reachable, 0.0, "" if leadership.reachable else "the lease cannot be read"
        )
        return Readiness(is_ready, (store, ServerPart("leader", is_ready, 0.0, detail), member_part(self._membership)))

    async def _metrics(self, request: RequestHead) -> responses.Response:
        encode, content_type = choose_encoder(request.headers.get(b"accept", b"").decode("latin-1"))
        return responses.Response(200, encode(self._registry), content_type.encode("ascii"))

    async def _nothing(self, _request: RequestHead) -> responses.Response:
        raise passing_on.refused(self._leadership.leader_url, "")


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
    or with epoch 0 to serve as a member.

    Call `run` in the background, give requests to the server itself, and `close` it at the end.
    """

    def __init__(
        self, clock: Clock, candidate: Candidate, *, open_store: Callable[[], Store], open_services: Opening,
        settings: Settings, start_thrift: ThriftStart = _no_thrift,
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
        self.leadership = Leadership(open_store(), clock, candidate, on_term=self._begin)
        self.membership = Membership(open_store(), clock, candidate, self.leadership, on_term=self._begin_membership)
        self.links = Links(clock, self.leadership, self.membership, settings.cluster.secret)
        self._standby = StandbyFrame(
            self.leadership, self.membership, clock, settings, self.connections, self.links, open_store, self._owners,
            self._begin_again,
        )  # fmt: skip
        self._shards = ShardCalls(clock, self.links, self.membership)
        self._owner_calls = OwnerCalls(self.links.handlers)
        self._group_calls = GroupCalls(self.links.handlers)
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
        try:
            while not leading.done():
                beginning = asyncio.ensure_future(self._memberships.get())
                await asyncio.wait((leading, beginning), return_when=asyncio.FIRST_COMPLETED)
                if not beginning.done():
                    beginning.cancel()
                elif beginning.result().is_on():
                    await self._serve_as_member(beginning.result(), leading)
            return leading.result()
        except BaseException:
            leading.cancel()
            raise

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
        if is_whole and (head.method, head.path) == ONE_SHOTS and HEADER not in head.headers:
            return serving.app
        return serving.app if is_here(place_of(head), self._owners(), own, leads=serving.leads) else self._standby

    def _begin_again(
        self, head: Head, exchange: PromptExchange, client_id: str | None, body: bytes
    ) -> Coroutine[Any, Any, None]:
        """Make the coroutine that answers a request whose topic has moved while it was on its way to another server."""
        app = self._application(head)
        if isinstance(app, StandbyFrame):
            begun = app.begin_whole(head, exchange, client_id, body, has_task=True, follows=False)
            assert begun is not None
            return begun
        # The topic has come here. This server has let go of the body while it passed the call on, and would take it for an empty one.
        error = ShardMovingError(
            "the topic has come to this server while the call was on its way to another; nothing was done",
            hint="send the same call again after Retry-After",
        )
        return self._standby.refuse(head, exchange, client_id, error)

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
        self._owner_calls.owner = self._group_calls.groups = None
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
        services.collectors += [*self._collectors, PassingMetrics(self._standby.passing)]
        try:
            await services.scheduler.start()
            thrift = await (self._start_thrift if term.member is None else _no_thrift)(services)
        except BaseException:
            await services.close()
            raise
        if self._shares:
            services.share(self.links, self._may_borrow)
        if owners is None:
            self._owner_calls.owner, self._group_calls.groups = services.owner, services.transactions.groups_here
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
