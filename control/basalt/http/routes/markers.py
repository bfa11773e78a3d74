"""The calls on a topic's markers: emit one outside a transaction, and ask what they say together, or wait for the end.

Format of a marker, and the rules: docs/formats/markers.md.
"""

from __future__ import annotations

from basalt.api.bodies.markers import MarkerRequest, MarkersInfo, TaskInfo
from basalt.api.bodies.work import LONG_MAX
from basalt.api.markers.marker import Marker
from basalt.errors import InvalidNameError, MalformedBodyError, MarkerRefusedError, TopicNotFoundError
from basalt.http.asgi.json_input import decode_json
from basalt.http.asgi.request_bodies import content_type, read_body
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, json_answer
from basalt.http.routes.messages import WAIT_MS_MAX, unless_gone
from basalt.http.routes.operations import Operation, choice, integer
from basalt.http.routes.topics import TOPIC_PATH, named_topic
from basalt.messaging.markers.topic_markers import MarkerFacts

MARKERS_PATH = TOPIC_PATH + "/markers"


async def emit(request: Request) -> Answer:
    """Emit a marker."""
    title = named_topic(request)
    content_type(request, (JSON,))
    asked = decode_json(await read_body(request), MarkerRequest)
    if (asked.event_time_ms is None) == (asked.kind == "watermark"):
        raise MalformedBodyError("a watermark has an eventTimeMs, an end of stream has none", field="eventTimeMs")
    if asked.event_time_ms is not None and not -LONG_MAX - 1 <= asked.event_time_ms <= LONG_MAX:
        raise MalformedBodyError("eventTimeMs has more than 64 bits", field="eventTimeMs")
    await request.services.markers.publish(title, Marker(asked.task, asked.task_count, asked.event_time_ms))
    return Answer()


async def show(request: Request) -> Answer:
    """What the topic's markers say."""
    title = named_topic(request)
    markers = request.services.markers
    found = await markers.facts(title)
    wait_ms = request.integer("waitMs") or 0
    if wait_ms and not found.ended:
        found = await unless_gone(request, markers.facts(title, wait_ms=wait_ms))
    return json_answer(_shown(found))


def _shown(facts: MarkerFacts) -> MarkersInfo:
    tasks = tuple(TaskInfo(name, *task) for name, task in sorted(facts.state.tasks.items()))
    at = None if facts.at is None else facts.at.hex()
    return MarkersInfo(facts.watermark_ms, facts.ended, facts.state.task_count, tasks, at, facts.generation)


_TOPIC = (InvalidNameError, TopicNotFoundError)

OPERATIONS = (
    Operation(
        method="POST",
        path=MARKERS_PATH,
        handler=emit,
        summary="Emit a watermark or an end of stream",
        tag="markers",
        body={JSON: MarkerRequest},
        body_required=True,
        errors=(*_TOPIC, MarkerRefusedError),
    ),
    Operation(
        method="GET",
        path=MARKERS_PATH,
        handler=show,
        summary="The topic's watermark, and whether it has ended",
        tag="markers",
        query=(
            integer("waitMs", 0, WAIT_MS_MAX, "answer when the topic has ended, or after so many milliseconds"),
            choice("until", ("ended",), "what `waitMs` waits for"),
        ),
        answers={200: {JSON: MarkersInfo}},
        errors=_TOPIC,
    ),
)
