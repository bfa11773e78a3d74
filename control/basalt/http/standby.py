"""What a standby answers: that it lives, that it is not ready, its figures, and to all else who leads.

Nothing is done for a call that gets `not_leader`, so a client may send it to the leader at once.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from starlette.types import Receive, Scope, Send

import basalt
from basalt.api.bodies.server import Alive, Part, Readiness, Version
from basalt.cluster.leader import Leadership
from basalt.errors import BasaltError, MethodNotAllowedError, NotLeaderError
from basalt.http.asgi import access_log
from basalt.http.asgi.problems import internal_error, problem_answer
from basalt.http.asgi.requests import Received
from basalt.http.asgi.responses import Answer, json_answer, send_answer
from basalt.http.metrics.leader import LeaderFigures
from basalt_engine.clock import Clock

METHODS = ("GET", "HEAD")

log = logging.getLogger("basalt.http")


class StandbyFront:
    """The ASGI application of a server that does not lead, or not yet."""

    def __init__(self, leadership: Leadership, clock: Clock) -> None:
        self._leadership = leadership
        self._clock = clock
        self._registry = CollectorRegistry()
        for collector in (
            LeaderFigures(leadership),
            ProcessCollector(registry=None),
            PlatformCollector(registry=None),
        ):
            self._registry.register(collector)
        GCCollector(registry=self._registry)
        self._answers = {"/livez": self._live, "/readyz": self._ready, "/v1": self._about, "/metrics": self._metrics}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013})  # try again later
            return
        request = Received(scope, receive, self._clock.monotonic_ms())
        try:
            await send_answer(request, self._answer(request), send)
        finally:
            access_log.write(request, self._clock.monotonic_ms() - request.started_ms, self._clock.now_ms())

    def _answer(self, request: Received) -> Answer:
        try:
            request.check()
            answer = self._answers.get(request.scope["path"])
            if answer is None:
                raise self._not_leader()
            request.route = request.scope["path"]
            if request.scope["method"] not in METHODS:
                raise _method_not_allowed(request)
            return answer(request)
        except BasaltError as error:
            return problem_answer(error, request.id)
        except Exception:  # a bug, but whoever asked must be answered
            log.exception("request %s failed", request.id, extra={"fields": {"requestId": request.id}})
            return problem_answer(internal_error(), request.id)

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

    def _live(self, _request: Received) -> Answer:
        return json_answer(Alive(True))

    def _ready(self, _request: Received) -> Answer:
        known, url = self._leadership, self._leadership.leader_url
        if known.is_leader:
            detail = f"leads under epoch {known.epoch}, and reads what the last leader left"
        else:
            detail = f"standby: {url} leads" if url else "standby: no server leads at the moment"
        store = Part("store", known.reachable, 0.0, "" if known.reachable else "the lease cannot be read")
        return json_answer(
            Readiness(False, (store, Part("leader", False, 0.0, detail))), HTTPStatus.SERVICE_UNAVAILABLE
        )

    def _about(self, _request: Received) -> Answer:
        return json_answer(Version("basalt", basalt.__version__))

    def _metrics(self, request: Received) -> Answer:
        encode, content_type = choose_encoder(request.headers.get(b"accept", b"").decode("latin-1"))
        return Answer(200, encode(self._registry), content_type.encode("ascii"))


def _method_not_allowed(request: Received) -> MethodNotAllowedError:
    allowed = ", ".join(METHODS)
    error = MethodNotAllowedError(
        f"{request.scope['method'][:20]} is not a method of {request.route}", hint=f"Use one of: {allowed}."
    )
    error.allowed = METHODS
    return error
