"""The calls on a topic's markers: emit one outside a transaction, ask what they say together, wait for the end.

Format of a marker, and the rules: docs/formats/markers.md.
"""

from __future__ import annotations

from basalt.api.bodies.markers import MarkerRequest, MarkersInfo, TaskInfo
from basalt.api.bodies.work import LONG_MAX
from basalt.api.markers.marker import Marker
from basalt.errors import MalformedBodyError, MarkerRefusedError
from basalt.http.asgi.request_bodies import read_json
from basalt.http.asgi.responses import Response, json_response
from basalt.http.routes.messages import WAIT_MS_MAX, unless_gone
from basalt.http.routes.operations import Request, RouteTable, choice, integer
from basalt.http.routes.topics import EXISTING, TOPIC_PATH, named_topic
from basalt.messaging.markers import MarkerFacts

MARKERS_PATH = TOPIC_PATH + "/markers"

route = RouteTable("markers")


@route("POST", MARKERS_PATH, body=MarkerRequest, errors=(*EXISTING, MarkerRefusedError))
async def emit(request: Request) -> Response:
    """Emit a watermark or an end of stream."""
    title = named_topic(request)
    asked = await read_json(request, MarkerRequest)
    if (asked.event_time_ms is None) == (asked.kind == "watermark"):
        raise MalformedBodyError("a watermark has an eventTimeMs, an end of stream has none", field="eventTimeMs")
    if asked.event_time_ms is not None and not -LONG_MAX - 1 <= asked.event_time_ms <= LONG_MAX:
        raise MalformedBodyError("eventTimeMs has more than 64 bits", field="eventTimeMs")
    await request.services.markers.publish(title, Marker(asked.task, asked.task_count, asked.event_time_ms))
    return Response()


@route(
    "GET",
    MARKERS_PATH,
    query=(
        integer("waitMs", 0, WAIT_MS_MAX, "answer when the topic has ended, or after so many milliseconds"),
        choice("until", ("ended",), "what `waitMs` waits for"),
    ),
    answer=MarkersInfo,
    errors=EXISTING,
)
async def show(request: Request) -> Response:
    """The topic's watermark, and whether it has ended."""
    title = named_topic(request)
    markers = request.services.markers
    facts = await markers.facts(title)
    wait_ms = request.integer("waitMs") or 0
    if wait_ms and not facts.ended:
        facts = await unless_gone(request, markers.facts(title, wait_ms=wait_ms))
    return json_response(_info(facts))


def _info(facts: MarkerFacts) -> MarkersInfo:
    tasks = tuple(TaskInfo(name, *task) for name, task in sorted(facts.state.tasks.items()))
    at = None if facts.at is None else facts.at.hex()
    return MarkersInfo(facts.watermark_ms, facts.ended, facts.state.task_count, tasks, at, facts.generation)
