"""The application of a standby: it says that it lives, that it is not ready, its metrics, and to all else who leads.

Nothing is done for a call that gets `not_leader`, so a client may send it to the leader at once.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from prometheus_client.exposition import choose_encoder
from starlette.types import Receive, Scope, Send

import basalt
from basalt.api.bodies.operations import Alive, Part, Readiness, Version
from basalt.cluster.leader import Leadership
from basalt.errors import BasaltError, NotLeaderError
from basalt.http.asgi.requests import BodyBudget, RequestHead
from basalt.http.asgi.responses import (
    Response,
    internal_error,
    json_response,
    log_access,
    method_not_allowed,
    problem_response,
    send_response,
)
from basalt.http.metrics import LeaderMetrics, process_collectors
from basalt_engine.clock import Clock

METHODS = ("GET", "HEAD")
NO_BODIES = BodyBudget(0)  # nothing that a standby answers takes one

log = logging.getLogger("basalt.http")


class StandbyFrame:
    """The ASGI application of a server that does not lead, or not yet."""

    def __init__(self, leadership: Leadership, clock: Clock) -> None:
        self._leadership = leadership
        self._clock = clock
        self._registry = process_collectors()
        self._registry.register(LeaderMetrics(leadership))
        self._answers = {"/livez": self._live, "/readyz": self._ready, "/v1": self._about, "/metrics": self._metrics}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013})  # try again later
            return
        request = RequestHead(scope, receive, self._clock.monotonic_ms(), NO_BODIES)
        try:
            await send_response(request, self._answer(request), send)
        finally:
            log_access(request, self._clock.monotonic_ms() - request.started_ms, self._clock.now_ms())

    def _answer(self, request: RequestHead) -> Response:
        try:
            request.check()
            answer = self._answers.get(request.scope["path"])
            if answer is None:
                raise self._not_leader()
            request.route = request.scope["path"]
            if request.scope["method"] not in METHODS:
                raise method_not_allowed(request, METHODS)
            return answer(request)
        except BasaltError as error:
            return problem_response(error, request.id)
        except Exception:  # a bug, but whoever asked must be answered
            log.exception("request %s failed", request.id, extra={"fields": {"requestId": request.id}})
            return problem_response(internal_error(), request.id)

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

    def _live(self, _request: RequestHead) -> Response:
        return json_response(Alive(True))

    def _ready(self, _request: RequestHead) -> Response:
        known, url = self._leadership, self._leadership.leader_url
        if known.is_leader:
            detail = f"leads under epoch {known.epoch}, and reads what the last leader left"
        else:
            detail = f"standby: {url} leads" if url else "standby: no server leads at the moment"
        store = Part("store", known.reachable, 0.0, "" if known.reachable else "the lease cannot be read")
        return json_response(
            Readiness(False, (store, Part("leader", False, 0.0, detail))), HTTPStatus.SERVICE_UNAVAILABLE
        )

    def _about(self, _request: RequestHead) -> Response:
        return json_response(Version("basalt", basalt.__version__))

    def _metrics(self, request: RequestHead) -> Response:
        encode, content_type = choose_encoder(request.headers.get(b"accept", b"").decode("latin-1"))
        return Response(200, encode(self._registry), content_type.encode("ascii"))
