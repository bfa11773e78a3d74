"""The calls on topics: create, update, get, list, delete."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from basalt.catalog.topics import Topic, TopicName, topic_name
from basalt.errors import (
    ConflictError,
    InputError,
    InvalidNameError,
    InvalidPropertyError,
    TooLargeError,
    TopicChangedError,
    TopicExistsError,
    TopicNotFoundError,
)
from basalt.http.asgi.json_input import decode_json
from basalt.http.asgi.request_bodies import content_type, read_body, read_nothing
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, json_answer
from basalt.http.routes.operations import Operation
from basalt.http.routes.schemas import PROPERTIES, PROPERTY_CHANGES, TOPIC, TOPIC_NAMES

NAMESPACE_PATH = "/v1/namespaces/{namespace}/topics"
TOPIC_PATH = NAMESPACE_PATH + "/{topic}"
MERGE_PATCH = b"application/merge-patch+json"
PROPERTY_BYTES_MAX = 1_048_576  # 64 properties of 4,096 characters, each in up to four bytes

_ENTITY_TAG = r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"'
_ENTITY_TAGS = re.compile(rf"[ \t]*{_ENTITY_TAG}[ \t]*(,[ \t]*{_ENTITY_TAG}[ \t]*)*")


def named_topic(request: Request) -> TopicName:
    """The topic that the path names; `InvalidNameError` when a name is none."""
    return topic_name(request.path["namespace"], request.path["topic"])


async def create(request: Request) -> Answer:
    """Create a topic, or a new generation of a deleted one."""
    title = named_topic(request)
    topic = await request.services.topics.create(title, await _read_properties(request))
    return _shown(request, topic)


async def update(request: Request) -> Answer:
    """Replace a topic's properties."""
    title = named_topic(request)
    versions = _expected(request)
    return _shown(request, await request.services.topics.update(title, await _read_properties(request), versions))


async def merge(request: Request) -> Answer:
    """Change some of a topic's properties."""
    title = named_topic(request)
    versions = _expected(request)
    changes = await _read_properties(request, (JSON, MERGE_PATCH))
    return _shown(request, await request.services.topics.merge(title, changes, versions))


async def get(request: Request) -> Answer:
    """Show a topic."""
    return _shown(request, await request.services.topics.get(named_topic(request)))


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


def _shown(request: Request, topic: Topic) -> Answer:
    properties = topic.properties
    flat = request.services.settings.http.flat_topics
    shown: dict[str, Any] = {**properties} if flat else {"name": topic.name, "properties": properties}
    return json_answer(shown, headers=[(b"etag", b'"%s"' % topic.version.encode("ascii"))])


def _expected(request: Request) -> Collection[str] | None:
    """The versions that the If-Match header names, of which the topic must have one; None where any will do."""
    given = request.headers.get(b"if-match", b"*").decode("latin-1").strip()
    if given == "*":
        return None
    if _ENTITY_TAGS.fullmatch(given) is None:
        raise InputError(
            f"the header If-Match is {given[:60]!r}, which is no list of ETags",
            field="If-Match",
            hint='Send the ETag of an answer as it is, in its quotes; or "*".',
        )
    return {tag for weak, tag in re.findall(_ENTITY_TAG, given) if not weak}


async def _read_properties(request: Request, allowed: Collection[bytes] = (JSON,)) -> dict[str, object]:
    content_type(request, allowed)
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
        errors=(*_EXISTING, InvalidPropertyError, TopicChangedError, ConflictError),
        if_match=True,
    ),
    Operation(
        method="PATCH",
        path=TOPIC_PATH + "/properties",
        handler=merge,
        summary="Change some of a topic's properties; null puts one back to its default",
        tag="topics",
        body={JSON: PROPERTY_CHANGES, MERGE_PATCH: PROPERTY_CHANGES},
        answers={200: {JSON: TOPIC}},
        errors=(*_EXISTING, InvalidPropertyError, TopicChangedError, ConflictError),
        if_match=True,
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
