"""What an orchestrator asks: does the process live, and can it serve."""

from __future__ import annotations

import basalt
from basalt.api.bodies.server import Alive, Part, Readiness, Version
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, json_answer
from basalt.http.routes.operations import Operation


async def live(request: Request) -> Answer:
    """The process answers."""
    return json_answer(Alive(True))


async def ready(request: Request) -> Answer:
    """Each part that a request may need, tried: 200 when all of them work, else 503."""
    parts = tuple(Part(*part) for part in await request.services.readiness())
    answer = Readiness(all(part.ok for part in parts), parts)
    return json_answer(answer, 200 if answer.ready else 503)


async def about(request: Request) -> Answer:
    """What this is."""
    return json_answer(Version("basalt", basalt.__version__))


OPERATIONS = (
    Operation(
        method="GET",
        path="/livez",
        handler=live,
        summary="Whether the process answers",
        tag="server",
        answers={200: {JSON: Alive}},
    ),
    Operation(
        method="GET",
        path="/readyz",
        handler=ready,
        summary="Whether every part works",
        tag="server",
        answers={200: {JSON: Readiness}, 503: {JSON: Readiness}},
    ),
    Operation(
        method="GET",
        path="/v1",
        handler=about,
        summary="Name and version of the server",
        tag="server",
        answers={200: {JSON: Version}},
    ),
)
