"""The ASGI application: every call's route, and the one frame that all of them run in.

A request passes `Frame` (id, checks, errors told, log and metrics), Starlette's router, its path's `Endpoint` (method and
query), and its handler. Granian can serve it as well as uvicorn.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Sequence

import msgspec
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from basalt.errors import BasaltError, RouteNotFoundError
from basalt.http import openapi
from basalt.http.asgi.requests import JSON, BodyBudget, ClientGoneError
from basalt.http.asgi.responses import Response, internal_error, log_access, problem_response, send_response
from basalt.http.metrics import Metrics
from basalt.http.routes import messages, pruning, ranges, server, tables, topics, transactions
from basalt.http.routes.route_table import Endpoint, Operation, Request
from basalt.http.services import Services
from basalt.transactions.codec import SnapshotBytes

CLIENT_GONE = 499  # in log and metrics only: nobody is left to be told

log = logging.getLogger("basalt.http")


@server.route("GET", "/openapi.json", answer={JSON: {"type": "object"}})
async def describe(request: Request) -> Response:
    """This document."""
    return Response(200, _document(), JSON)


# Routes are tried in this order, so the calls made most often come first.
OPERATIONS: tuple[Operation, ...] = tuple(
    operation
    for table in (
        messages.route, transactions.route, ranges.route, tables.route, topics.route, server.route,
        transactions.operators, pruning.route,
    )
    for operation in table.operations
)  # fmt: skip


@functools.cache
def _document() -> bytes:
    return msgspec.json.encode(openapi.describe(OPERATIONS))


def build_app(services: Services) -> ASGIApp:
    """The application that serves `services`."""
    return Frame(services, routes(OPERATIONS))


def routes(operations: Iterable[Operation]) -> list[Route]:
    """One route for each path, with all its methods."""
    by_path: dict[str, list[Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, []).append(operation)
    return [Route(path, Endpoint(path, grouped), name=path) for path, grouped in by_path.items()]


class Frame:
    """The frame around every request."""

    def __init__(self, services: Services, all_routes: Sequence[Route]) -> None:
        self._services = services
        self._clock = services.clock
        self._router = Router(all_routes, redirect_slashes=False, default=_no_route)
        self._snapshots = SnapshotBytes()
        self.bodies = BodyBudget(services.settings.http.body_bytes_max)
        self.metrics = Metrics(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        started_ms = self._clock.monotonic_ms()
        request = Request(self._services, self.metrics, self._snapshots, self.bodies, scope, receive, started_ms)
        scope["basalt.request"] = request
        try:
            try:
                request.check()
                await self._router(scope, receive, send)
            except BasaltError as error:
                if request.status:
                    raise
                self.metrics.refused(error)
                request.name_as_asked(error)
                await send_response(request, problem_response(error, request.id), send)
        except ClientGoneError:
            request.status = CLIENT_GONE
        except Exception:
            log.exception("request %s failed", request.id, extra={"fields": {"requestId": request.id}})
            if request.status:
                raise  # half an answer is out: the server must break the connection, or it would pass for whole
            await send_response(request, problem_response(internal_error(), request.id), send)
        finally:
            duration_ms = self._clock.monotonic_ms() - request.started_ms
            self.metrics.answered(request, duration_ms)
            log_access(request, duration_ms, self._clock.now_ms(), self._services.settings.log.access)


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
        return
    raise RouteNotFoundError(
        f"no call has the path {scope['path'][:200]!r}", field="path", hint="GET /openapi.json lists every call."
    )
