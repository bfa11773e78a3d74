"""The ASGI application: every call's route, and the one frame that all of them run in.

A request passes `Front` (id, checks, errors told, log and figures), Starlette's router, its path's `Endpoint` (method and
query), and its handler. Granian can serve it as well as uvicorn.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Sequence

import msgspec
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from basalt.errors import BasaltError, RouteNotFoundError
from basalt.http.asgi import access_log
from basalt.http.asgi.problems import internal_error, problem_answer
from basalt.http.asgi.requests import ClientGoneError, Request
from basalt.http.asgi.responses import JSON, Answer, send_answer
from basalt.http.metrics import metrics
from basalt.http.metrics.metrics import Figures
from basalt.http.routes import (
    admin,
    arrow,
    audit,
    health,
    inspection,
    markers,
    messages,
    openapi,
    pruning,
    ranges,
    records,
    sessions,
    tables,
    topics,
    transaction_admin,
    transactions,
    truncation,
)
from basalt.http.routes.operations import Endpoint, Operation
from basalt.services import Services
from basalt.transactions.codec import SnapshotBytes

CLIENT_GONE = 499  # in log and figures only: nobody is left to be told

log = logging.getLogger("basalt.http")


async def describe(request: Request) -> Answer:
    """The OpenAPI document."""
    return Answer(200, _document(), JSON)


# Routes are tried in this order, so the calls made most often come first.
OPERATIONS: tuple[Operation, ...] = (
    *messages.OPERATIONS,
    *records.OPERATIONS,
    *arrow.OPERATIONS,
    *transactions.OF_ALL,
    *markers.OPERATIONS,
    *ranges.OPERATIONS,
    *sessions.OPERATIONS,  # before those of one transaction, of which "sessions" is no id
    *transactions.OF_ONE,
    *tables.OPERATIONS,
    *topics.OPERATIONS,
    *truncation.OPERATIONS,
    *inspection.OPERATIONS,
    *health.OPERATIONS,
    *metrics.OPERATIONS,
    *admin.OPERATIONS,
    *transaction_admin.OPERATIONS,
    *audit.OPERATIONS,
    *pruning.OPERATIONS,
    Operation(
        method="GET",
        path="/openapi.json",
        handler=describe,
        summary="This document",
        tag="server",
        answers={200: {JSON: {"type": "object"}}},
    ),
)


@functools.cache
def _document() -> bytes:
    return msgspec.json.encode(openapi.describe(OPERATIONS))


def build_app(services: Services, *, further_routes: Sequence[BaseRoute] = ()) -> ASGIApp:
    """The application that serves `services`. `further_routes` are tried last (a console's pages, say)."""
    return Front(services, [*routes(OPERATIONS), *further_routes])


def routes(operations: Iterable[Operation]) -> list[Route]:
    """One route for each path, with all its methods."""
    by_path: dict[str, list[Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, []).append(operation)
    return [Route(path, Endpoint(path, grouped), name=path) for path, grouped in by_path.items()]


class Front:
    """The frame around every request."""

    def __init__(self, services: Services, all_routes: Sequence[BaseRoute]) -> None:
        self._services = services
        self._clock = services.clock
        self._router = Router(all_routes, redirect_slashes=False, default=_no_route)
        self._snapshots = SnapshotBytes()
        self.figures = Figures(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        started_ms = self._clock.monotonic_ms()
        request = Request(self._services, self.figures, self._snapshots, scope, receive, started_ms)
        scope["basalt.request"] = request
        try:
            try:
                request.check()
                await self._router(scope, receive, send)
            except BasaltError as error:
                if request.status:
                    raise
                self.figures.refused(error)
                await send_answer(request, problem_answer(error, request.id), send)
        except ClientGoneError:
            request.status = CLIENT_GONE
        except Exception:
            log.exception("request %s failed", request.id, extra={"fields": {"requestId": request.id}})
            if request.status:
                raise  # half an answer is out: the server must break the connection, or it would pass for whole
            await send_answer(request, problem_answer(internal_error(), request.id), send)
        finally:
            duration_ms = self._clock.monotonic_ms() - request.started_ms
            self.figures.answered(request, duration_ms)
            access_log.write(request, duration_ms, self._clock.now_ms())


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
        return
    raise RouteNotFoundError(
        f"no call has the path {scope['path'][:200]!r}", field="path", hint="GET /openapi.json lists every call."
    )
