"""The application of a server that does not serve, or not yet; and of one that does, for the calls that another one answers.

It says that it lives, whether it is ready and its metrics, reads ranges that a topic's owner permits it, and passes all else on: what is about a topic to
its owner, and the rest to the server that leads. Where it cannot, it says who leads: to a browser on a page; and to a client that took it for a topic's owner, who that is. Nothing is done for a call that gets `not_leader` or `not_owner`, so it may be sent there at once.
Who else there is, its leader tells.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from http import HTTPStatus
from typing import Any

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from basalt.api.bodies.operations import Alive, Readiness, ServerPart, Version
from basalt.cluster.leader import Leadership
from basalt.cluster.lease import LeaseRecord
from basalt.cluster.links.links import Links
from basalt.cluster.membership import Membership, Owner
from basalt.cluster.owners import OwnersMap
from basalt.errors import (
    BasaltError,
    NotLeaderError,
    NotOwnerError,
    ShardMovingError,
)
from basalt.http.app import CLIENT_GONE
from basalt.http.asgi import responses
from basalt.http.asgi.connections import Connections
from basalt.http.asgi.front import Front
from basalt.http.asgi.passed_on import DIRECT, HEADER
from basalt.http.asgi.requests import BodyBudget, ClientGoneError, Exchange, Head, PromptExchange, RequestHead
from basalt.http.collectors import (
    ConnectionMetrics,
    LeaderMetrics,
    MemberMetrics,
    process_collectors,
)
from basalt.http.services import member_part
from basalt.server.authentication import is_asked
from basalt.server.leader_connection import LeaderLostError
from basalt.server.passed_call import MovedError, not_leading
from basalt.server.passing_on import Again, PassingMetrics, PassingOn
from basalt.server.routing import By, other_owner, place_of
from basalt.server.standby.reading_here import ROUTE, ReadingHere, ReadingMetrics
from basalt.settings import Settings
from basalt_engine import __version__
from basalt_engine.clock import Clock
from basalt_engine.table import Store

METHODS = ("GET", "HEAD")  # of a standby
PAGE_METHODS = (*METHODS, "POST")  # a form that comes to a standby is answered in words, too
NO_BODIES = BodyBudget(0)  # nothing that a standby answers itself takes one
# For which a server waits to hear of a newer map, when the owner of a topic has it no more: that one knows the map by then, and it comes over links.
FOLLOW_MS_MAX = 250
FOLLOW_LOOK_MS = 10
PASSED_ON = "(passed on)"  # the route of such a call in this server's log: the leader's names the real one

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
        self.reading = ReadingHere(open_store, clock, settings)
        # Of what it does also while the server serves.
        self.figures: list[Collector] = [PassingMetrics(self.passing), ReadingMetrics(self.reading)]
        for figures in self.figures:
            self._registry.register(figures)
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
        lease, candidate, place = self._leadership.leader, self._leadership.candidate, place_of(head)
        leader = None if lease is None else lease.instance
        name = other_owner(place, self._owners(), candidate.instance, leader)
        if name is not None:
            assert place.shard is not None
            owner = self._membership.owner(name)
            if owner.url and owner.secret and self._is_there(owner, place.shard):
                return owner
        return lease

    def _is_there(self, owner: Owner, shard: int) -> bool:
        """Tell whether an owner is known to live: by its row, or by its beats to the leader while it cannot renew that, as where a region is away. Its own lease lasts for longer."""
        return owner.state == "live" or self._links.hears_of(owner.instance, shard)

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
        return not_leading(self._leadership.leader_url, why)

    def _not_owner(self, request: RequestHead) -> NotOwnerError | None:
        """The answer to who took this server for the owner of a topic; None where the call is about none, or no other server is known to serve it."""
        (by, shard), owners, lease = place_of(request.head), self._owners(), self._leadership.leader
        if shard is None or owners is None:
            return None
        owner = self._membership.owner(owners.owner_of(shard))
        if by is By.LEADER and (lease is None or owner.instance != lease.instance):
            return None
        # One that is silent may be followed by another soon, whom the leader knows first.
        if owner.instance == self._leadership.candidate.instance or not self._is_there(owner, shard):
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
        raise not_leading(self._leadership.leader_url, "")
