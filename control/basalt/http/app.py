"""The application: every call's route, and the one frame that all of them run in.

A request passes `Frame` (id, errors told, log and metrics), `Routes` (checks, path, method, rights and query), and its handler. It comes
from our own protocol, or from any ASGI server.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.types import Receive, Scope, Send

from basalt.access.authentication import PLAIN_COOKIE, SECURE_COOKIE
from basalt.access.needs import PUBLIC
from basalt.access.policy import Caller
from basalt.access.principal import ANONYMOUS, INTERNAL
from basalt.errors import (
    BasaltError,
    ForbiddenError,
    NotHereError,
    NotLeaderError,
    ShardElsewhereError,
    ThrottledError,
    UnauthenticatedError,
    UnavailableError,
)
from basalt.http import openapi
from basalt.http.asgi.front import Front
from basalt.http.asgi.heads import Heads
from basalt.http.asgi.inside import InsideCall, InsideExchange, Reply
from basalt.http.asgi.plain_asgi import AsgiExchange, answer_no_request, head_of
from basalt.http.asgi.requests import JSON, BodyBudget, ClientGoneError, Exchange, Head, PromptExchange
from basalt.http.asgi.responses import (
    Body,
    Response,
    encoded,
    internal_error,
    is_page,
    json_response,
    log_access,
    log_slow,
    send_response,
    told,
)
from basalt.http.metrics import Metrics
from basalt.http.routes import (
    cluster,
    groups,
    messages,
    polls,
    producers,
    pruning,
    ranges,
    server,
    tables,
    topics,
    transactions,
)
from basalt.http.routes.access import quotas, rights
from basalt.http.routes.route_table import Operation, Request
from basalt.http.routing import Found, Routes
from basalt.http.sampler import Sampler
from basalt.http.services import Services
from basalt.http.traces import About, traced_by
from basalt.transactions.codec import SnapshotBytes
from basalt_engine.clock import STAGES

# A browser whose login is over is sent to sign in again, and comes back. It forgets the login, or it would send it along there, too.
LOGIN_PAGE = "/console/login"
FORGET_LOGIN = {
    PLAIN_COOKIE: b"basalt=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict",
    SECURE_COOKIE: b"__Host-basalt=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict; Secure",
}

HELD_SPREAD = (
    1.5  # refusals that are kept back go out over so long: those of many connections must not come in one heap
)
CLIENT_GONE = 499  # in log and metrics only: nobody is left to be told
ANYBODY = Caller(ANONYMOUS, None)  # who may do everything, where nobody has to prove who they are

Elsewhere = Callable[..., Coroutine[Any, Any, None] | None]

log = logging.getLogger("basalt.http")


@server.route("GET", "/openapi.json", PUBLIC, answer={JSON: {"type": "object"}})
async def describe(request: Request) -> Response:
    """This document."""
    return Response(200, _document(), JSON)


# Routes are tried in this order, so the calls made most often come first.
OPERATIONS: tuple[Operation, ...] = tuple(
    operation
    for table in (
        messages.route, polls.route, groups.route, transactions.route, ranges.route, producers.route, tables.route, topics.route,
        server.route, cluster.route, rights.route, quotas.route, transactions.operators, tables.operators, groups.operators, pruning.route,
    )
    for operation in table.operations
)  # fmt: skip


@functools.cache
def _document() -> bytes:
    return msgspec.json.encode(openapi.describe(OPERATIONS))


def build_app(services: Services, caller: Caller = ANYBODY, further_routes: Iterable[Operation] = ()) -> Frame:
    """The application that serves `services`. `caller` is who makes all of its calls: from within the process, where that is internal.

    `further_routes` are answered beside those of the API, and are no part of it.
    """
    settings = services.settings
    routes = Routes(
        (*OPERATIONS, *further_routes), Front.of(settings), services.quotas, services.authentication, settings.auth.public
    )  # fmt: skip
    return Frame(services, routes, caller)


class Frame:
    """The frame around every request. It is an ASGI application, and one of our own protocol (`begin`)."""

    def __init__(self, services: Services, routes: Routes, caller: Caller) -> None:
        self._internal = caller.principal.kind == INTERNAL
        self._services = services
        self._caller = caller
        if services.authentication is not None and caller is ANYBODY:
            self._caller = services.authentication.nobody  # until it is known who asks
        self._clock = services.clock
        self._routes = routes
        self._snapshots = SnapshotBytes()
        self.bodies = BodyBudget(services.settings.http.body_bytes_max)
        self.metrics = Metrics(services)
        self.sampler = Sampler(services, self.metrics)  # which looks once somebody starts it
        self.heads = Heads()
        self.connections = services.connections
        # Begins a call from within that is another server's; None: it is this one's. No such thing where there is no other server.
        self.elsewhere: Callable[[Head, Exchange], Coroutine[Any, Any, None] | None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.begin(head_of(scope), AsgiExchange(scope, receive, send, internal=self._internal))
        else:
            await answer_no_request(scope, receive, send)

    async def ask(self, caller: Caller, call: InsideCall) -> Reply:
        """Answer a call that is made from within the process for this caller, whose rights and quotas hold as over a socket."""
        exchange, head = InsideExchange(call), call.head()
        begun = None if self.elsewhere is None else self.elsewhere(head, exchange)
        if begun is not None:
            await begun
            return exchange.reply
        request = self._request(head, exchange, None)
        request.caller = caller
        await self._respond(request)
        return exchange.reply

    def begin(self, head: Head, exchange: Exchange, client_id: str | None = None) -> Coroutine[Any, Any, None]:
        """Make the coroutine that answers this request."""
        return self._respond(self._request(head, exchange, client_id))

    def begin_whole(
        self,
        head: Head,
        exchange: PromptExchange,
        client_id: str | None,
        body: bytes,
        elsewhere: Elsewhere | None = None,
    ) -> Coroutine[Any, Any, None] | None:
        """The same for a request that is here with all of its body; None: it is answered without a coroutine.

        `elsewhere` begins the same request anew, at the server that leads or has the topic: called where only its body tells that it belongs there,
        or where the topic has moved while it waited.
        """
        request = self._request(head, exchange, client_id)
        try:
            found = self._routes.find(request)
        except BasaltError as error:  # a credential is verified, a quota is charged, and both are counted, once
            return self._respond(request, error)
        except NotHereError:
            return self._respond(request) if elsewhere is None else elsewhere()
        except Exception:  # noqa: BLE001  # `_respond` meets the same, and tells it
            return self._respond(request)
        try:
            if self._submit(request, exchange, body, found):
                return None
        except (NotHereError, ShardElsewhereError):
            if elsewhere is not None:
                return elsewhere()
        except ForbiddenError as error:  # which is noted once, too
            return self._respond(request, error)
        except Exception:  # noqa: BLE001, S110  # as well
            pass
        return self._respond(request, elsewhere=elsewhere)

    def _request(self, head: Head, exchange: Exchange, client_id: str | None) -> Request:
        return Request(
            self._services, self.metrics, self._snapshots, self.bodies, self._caller, head, exchange,
            self._clock.monotonic_ms(), client_id, self.ask,
        )  # fmt: skip

    def _submit(self, request: Request, exchange: PromptExchange, body: bytes, found: Found) -> bool:
        if found.submit is None or len(body) > self.bodies.bytes_max:
            return False
        request.path, request.query = found.path, found.query
        token = STAGES.set(request.stages)
        try:
            if not found.submit(request, body, functools.partial(_StageAnswer, self, request, exchange)):
                return False
        finally:
            STAGES.reset(token)
        request.charge_body(len(body))
        return True

    def tell(self, request: Request, exchange: PromptExchange, make: Callable[[], Response]) -> None:
        """Answer a request that was begun without a coroutine with what is made for it, or with the error that this raises."""
        try:
            try:
                answer = make()
            except BasaltError as error:
                answer = self._problem(request, error)
            except Exception:
                log.exception("request %s failed", request.id, extra={"fields": {"requestId": request.id}})
                answer = _told(request, internal_error())
            headers, parts = encoded(request, answer)
            assert not isinstance(parts, AsyncIterator), "no stage answers with a stream"
            exchange.send_now(request, answer.status, headers, list(parts))
        except Exception:
            log.exception("request %s failed", request.id, extra={"fields": {"requestId": request.id}})
            exchange.break_off()
        finally:
            self._note(request)

    async def _respond(
        self, request: Request, refused: BasaltError | None = None, elsewhere: Elsewhere | None = None
    ) -> None:
        STAGES.set(request.stages)
        is_here = True
        try:
            try:
                if refused is not None:
                    raise refused
                answer = await self._answer(request)
            except (NotHereError, ShardElsewhereError) as error:
                if elsewhere is not None:
                    is_here = False
                    await _passed_on(elsewhere)
                    return
                answer = self._problem(request, error if isinstance(error, BasaltError) else _no_leader())
            except BasaltError as error:
                if isinstance(error, (ThrottledError, UnauthenticatedError)) and error.held_ms:
                    await asyncio.sleep(error.held_ms / 1_000 * random.uniform(1, HELD_SPREAD))  # noqa: S311
                answer = self._problem(request, error)
            async with _closing(answer.body):
                await send_response(request, answer)
        except ClientGoneError:
            request.status = CLIENT_GONE
        except Exception:
            log.exception("request %s failed", request.id, extra={"fields": {"requestId": request.id}})
            if request.status:
                raise  # half an answer is out: the server must break the connection, or it would pass for whole
            await send_response(request, _told(request, internal_error()))
        finally:
            if is_here:
                self._note(request)

    async def _answer(self, request: Request) -> Response:
        try:
            found = self._routes.find(request)
        except UnavailableError:
            manager = self._services.transactions.manager
            if manager.is_known:
                raise
            await manager.ensure_known()  # whose a transaction is, the log tells
            found = self._routes.find(request)
        request.path, request.query = found.path, found.query
        answer = await found.handler(request)
        if found.is_reading:
            request.judge_again()
        if isinstance(answer, Response):
            return answer
        return Response() if answer is None else json_response(answer)

    def _problem(self, request: Request, error: BasaltError) -> Response:
        self.metrics.refused(error)
        if isinstance(error, UnauthenticatedError) and is_page(request):
            return _sign_in_again(request)
        request.name_as_asked(error)
        return _told(request, error)

    def _note(self, request: Request) -> None:
        monotonic_ms, now_ms, services = self._clock.monotonic_ms(), self._clock.now_ms(), self._services
        duration_ms = monotonic_ms - request.started_ms
        request.charge_answer(monotonic_ms)
        place, loads = request.head.place, services.topics.gate.loads
        if loads is not None and place is not None and place.shard is not None:
            loads.add(place.shard, request.received_bytes + request.sent_bytes)
        self.metrics.answered(request, duration_ms)
        client = services.forwarders.client_of(request)
        trace_id = traced_by(request)
        if services.traces is not None and services.traces.is_sampled(request):
            about = About(_topic(request), _transaction(request), client, request.traceparents)
            trace_id = services.traces.answered(request, now_ms, duration_ms, request.stages, about)
        principal = "" if services.authentication is None else request.caller.principal
        settings = services.settings.log
        log_access(request, duration_ms, now_ms, settings.access, principal, client, trace_id)
        if settings.slow_ms is not None and duration_ms >= settings.slow_ms:
            log_slow(request, duration_ms, principal, client, trace_id)


def _transaction(request: Request) -> int:
    """The transaction that the request is about: by its first write pointer, though it wrote under another. 0: none."""
    write_pointer = request.writer or request.asked_id[0]
    return request.services.transactions.manager.id_of(write_pointer) if write_pointer else 0


def _topic(request: Request) -> str:
    """The topic that the request's path names, as people write it."""
    return ":".join(request.path[name] for name in ("namespace", "topic") if name in request.path)


class _StageAnswer:
    """The answer to a request that is no more than one stage of the group commit, which waits for its result."""

    __slots__ = ("_answer", "_exchange", "_frame", "_is_done", "_request")

    def __init__(
        self, frame: Frame, request: Request, exchange: PromptExchange, answer: Callable[[Any], Response]
    ) -> None:
        self._frame = frame
        self._request = request
        self._exchange = exchange
        self._answer = answer
        self._is_done = False

    def cancelled(self) -> bool:
        """No: what came as a whole is done, whether its client is still there or not."""
        return False

    def done(self) -> bool:
        """Tell whether the answer was sent."""
        return self._is_done

    def set_result(self, result: object) -> None:
        """Answer with what the stage returned."""
        self._is_done = True
        self._frame.tell(self._request, self._exchange, functools.partial(self._answer, result))

    def set_exception(self, exception: BaseException) -> None:
        """Answer with what went wrong."""
        self._is_done = True
        self._frame.tell(self._request, self._exchange, functools.partial(_raise, exception))


async def _passed_on(elsewhere: Elsewhere) -> None:
    begun = elsewhere(has_task=True)  # the request's task must not end before its answer
    assert begun is not None
    await begun


def _no_leader() -> NotLeaderError:
    return NotLeaderError(
        "this is for the server that leads, and was not sent as one that can be passed on; nothing was done",
        hint="send the same call to the server that leads: GET /v1/cluster names it",
    )


def _told(request: Request, error: BasaltError) -> Response:
    return told(error, request, has_pages=request.services.settings.console.enabled)


def _sign_in_again(request: Request) -> Response:
    head, authentication = request.head, request.services.authentication
    location = LOGIN_PAGE
    if head.path.startswith(f"{LOGIN_PAGE}/"):
        location = (
            f"{LOGIN_PAGE}?failed=true"  # what a button sent does not count: to come back here would send it again
        )
    elif head.method == "GET" and not head.path.startswith(LOGIN_PAGE):
        target = head.raw_path + (b"?" + head.query_string if head.query_string else b"")
        location = (
            f"{LOGIN_PAGE}?next={quote(target, safe='')}"  # which that page takes only where it is one of the console
        )
    assert authentication is not None
    forgetting = FORGET_LOGIN[authentication.cookie(request.exchange.scheme == "https")]
    return Response(303, headers=[(b"location", location.encode("ascii")), (b"set-cookie", forgetting)])


def _closing(body: Body) -> AbstractAsyncContextManager[object]:
    """Close a stream when it has been sent, or its client has gone: whatever it holds is given back then, and not some time later."""
    return contextlib.aclosing(body) if isinstance(body, AsyncGenerator) else contextlib.nullcontext()


def _raise(error: BaseException) -> Response:
    raise error
