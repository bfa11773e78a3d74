"""The calls on topics: create, update, get, list, delete."""

from __future__ import annotations

from typing import Any

from basalt.catalog.topics import Topic, TopicName, topic_name
from basalt.errors import (
    ConflictError,
    InvalidNameError,
    InvalidPropertyError,
    TooLargeError,
    TopicExistsError,
    TopicNotFoundError,
)
from basalt.http.asgi.json_input import decode_json
from basalt.http.asgi.request_bodies import content_type, read_body, read_nothing
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, json_answer
from basalt.http.routes.operations import Operation
from basalt.http.routes.schemas import PROPERTIES, TOPIC, TOPIC_NAMES

NAMESPACE_PATH = "/v1/namespaces/{namespace}/topics"
TOPIC_PATH = NAMESPACE_PATH + "/{topic}"
PROPERTY_BYTES_MAX = 1_048_576  # 64 properties of 4,096 characters, each in up to four bytes


def named_topic(request: Request) -> TopicName:
    """The topic that the path names; `InvalidNameError` when a name is none."""
    return topic_name(request.path["namespace"], request.path["topic"])


async def create(request: Request) -> Answer:
    """Create a topic, or a new generation of a deleted one."""
    title = named_topic(request)
    topic = await request.services.topics.create(title, await _read_properties(request))
    return json_answer(_shown(request, topic))


async def update(request: Request) -> Answer:
    """Replace a topic's properties."""
    title = named_topic(request)
    topic = await request.services.topics.update(title, await _read_properties(request))
    return json_answer(_shown(request, topic))


async def get(request: Request) -> Answer:
    """Show a topic."""
    return json_answer(_shown(request, await request.services.topics.get(named_topic(request))))


async def names(request: Request) -> Answer:
    """List a namespace's topics."""
    return json_answer(await request.services.topics.catalog.list(request.path["namespace"]))


async def delete(request: Request) -> Answer:
    """Delete a topic."""
    await read_nothing(request)
    title = named_topic(request)
    await request.services.topics.delete(title)
    request.figures.topics.forget(title)
    return Answer()


def _shown(request: Request, topic: Topic) -> dict[str, Any]:
    if request.services.settings.http.flat_topics:
        return topic.properties
    return {"name": topic.name, "properties": topic.properties}


async def _read_properties(request: Request) -> dict[str, object]:
    content_type(request, (JSON,))
    body = await read_body(request)
    if not body:
        return {}
    if len(body) > PROPERTY_BYTES_MAX:
        raise TooLargeError(f"the properties are {len(body)} bytes; the limit is {PROPERTY_BYTES_MAX}")
    return decode_json(body, dict[str, Any])


_EXISTING = (InvalidNameError, TopicNotFoundError)

OPERATIONS = (
    Operation(
        method="GET",
        path=TOPIC_PATH,
        handler=get,
        summary="A topic's properties",
        tag="topics",
        answers={200: {JSON: TOPIC}},
        errors=_EXISTING,
    ),
    Operation(
        method="PUT",
        path=TOPIC_PATH,
        handler=create,
        summary="Create a topic",
        tag="topics",
        body={JSON: PROPERTIES},
        answers={200: {JSON: TOPIC}},
        errors=(InvalidNameError, InvalidPropertyError, TopicExistsError, ConflictError),
    ),
    Operation(
        method="DELETE",
        path=TOPIC_PATH,
        handler=delete,
        summary="Delete a topic with all its messages",
        tag="topics",
        errors=(*_EXISTING, ConflictError),
    ),
    Operation(
        method="PUT",
        path=TOPIC_PATH + "/properties",
        handler=update,
        summary="Replace a topic's properties; those left out go back to their defaults",
        tag="topics",
        body={JSON: PROPERTIES},
        answers={200: {JSON: TOPIC}},
        errors=(*_EXISTING, InvalidPropertyError, ConflictError),
    ),
    Operation(
        method="GET",
        path=NAMESPACE_PATH,
        handler=names,
        summary="The names of a namespace's topics, sorted",
        tag="topics",
        answers={200: {JSON: TOPIC_NAMES}},
        errors=(InvalidNameError,),
    ),
)
