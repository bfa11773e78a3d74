"""The calls on topics: create, update, get, list, delete, truncate, statistics."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from basalt.api.bodies.topics import TopicStats, TopicTruncation, TruncateRequest
from basalt.api.bodies.work import LONG_MAX
from basalt.api.codecs.json_values import parse_json
from basalt.catalog.topics import Topic, TopicName, topic_name
from basalt.errors import (
    BusyError,
    ConflictError,
    GenerationError,
    InputError,
    InvalidNameError,
    InvalidPropertyError,
    TooLargeError,
    TopicChangedError,
    TopicExistsError,
    TopicNotFoundError,
)
from basalt.http.asgi.request_bodies import content_type, convert_json, read_body, read_json, read_nothing
from basalt.http.asgi.responses import JSON, Response, json_response
from basalt.http.routes.operations import AS, DRY_RUN, REASON, Request, RouteTable, act_by
from basalt.http.routes.schemas import PROPERTIES, PROPERTY_CHANGES, TOPIC, TOPIC_NAMES

NAMESPACE_PATH = "/v1/namespaces/{namespace}/topics"
TOPIC_PATH = NAMESPACE_PATH + "/{topic}"
MERGE_PATCH = b"application/merge-patch+json"
PROPERTY_BYTES_MAX = 1_048_576  # 64 properties of 4,096 characters, each in up to four bytes
EXISTING = (InvalidNameError, TopicNotFoundError)

route = RouteTable("topics")

_ENTITY_TAG = r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"'
_ENTITY_TAGS = re.compile(rf"[ \t]*{_ENTITY_TAG}[ \t]*(,[ \t]*{_ENTITY_TAG}[ \t]*)*")


def named_topic(request: Request) -> TopicName:
    """The topic that the path names; `InvalidNameError` when a name is none."""
    return topic_name(request.path["namespace"], request.path["topic"])


@route("GET", TOPIC_PATH, answer={JSON: TOPIC}, errors=EXISTING)
async def get(request: Request) -> Response:
    """A topic's properties."""
    return _shown(request, await request.services.topics.get(named_topic(request)))


@route(
    "PUT",
    TOPIC_PATH,
    body={JSON: PROPERTIES},
    answer={JSON: TOPIC},
    errors=(InvalidNameError, InvalidPropertyError, TopicExistsError, ConflictError),
)
async def create(request: Request) -> Response:
    """Create a topic, or a new generation of a deleted one."""
    title = named_topic(request)
    return _shown(request, await request.services.topics.create(title, await _read_properties(request)))


@route("DELETE", TOPIC_PATH, errors=(*EXISTING, ConflictError))
async def delete(request: Request) -> Response:
    """Delete a topic with all its messages."""
    await read_nothing(request)
    title = named_topic(request)
    await request.services.topics.delete(title)
    request.metrics.topics.forget(title)
    return Response()


@route(
    "PUT",
    TOPIC_PATH + "/properties",
    body={JSON: PROPERTIES},
    answer={JSON: TOPIC},
    errors=(*EXISTING, InvalidPropertyError, TopicChangedError, ConflictError),
    if_match=True,
)
async def update(request: Request) -> Response:
    """Replace a topic's properties; those left out go back to their defaults."""
    title = named_topic(request)
    versions = _expected(request)
    return _shown(request, await request.services.topics.update(title, await _read_properties(request), versions))


@route(
    "PATCH",
    TOPIC_PATH + "/properties",
    body={JSON: PROPERTY_CHANGES, MERGE_PATCH: PROPERTY_CHANGES},
    answer={JSON: TOPIC},
    errors=(*EXISTING, InvalidPropertyError, TopicChangedError, ConflictError),
    if_match=True,
)
async def merge(request: Request) -> Response:
    """Change some of a topic's properties; null puts one back to its default."""
    title = named_topic(request)
    versions = _expected(request)
    changes = await _read_properties(request, (JSON, MERGE_PATCH))
    return _shown(request, await request.services.topics.merge(title, changes, versions))


@route("GET", NAMESPACE_PATH, answer={JSON: TOPIC_NAMES}, errors=(InvalidNameError,))
async def names(request: Request) -> Response:
    """The names of a namespace's topics, sorted."""
    return json_response(await request.services.topics.catalog.list(request.path["namespace"]))


@route(
    "POST",
    TOPIC_PATH + "/truncate",
    query=(DRY_RUN, REASON, AS),
    body=TruncateRequest,
    answer=TopicTruncation,
    errors=(InputError, *EXISTING, ConflictError, GenerationError, BusyError),
)
async def truncate(request: Request) -> Response:
    """Put a topic's messages before a time out of every reader's reach, for ever."""
    asked = await read_json(request, TruncateRequest)
    if not 0 <= asked.before_ms <= LONG_MAX:
        raise InputError("beforeMs is not a time", field="beforeMs", hint="give milliseconds since 1970")
    title, services = named_topic(request), request.services
    if request.flag("dryRun", False):
        would = await services.truncation.checked(title, asked.before_ms, asked.generation)
        committed = services.settings.transactions.manager == "builtin"
        lost = await services.truncation.lost(title, asked.before_ms, committed=committed)
        return json_response(
            TopicTruncation(would.before_ms, would.changed, True, lost.messages, lost.payload_bytes, lost.exact)
        )
    done = await services.audit.act(
        "truncate", f"topic {title}", *act_by(request),
        lambda: services.truncation.truncate(title, asked.before_ms, asked.generation),
        lambda done: f"{'truncated' if done.changed else 'was truncated'} before {done.before_ms} ms",
    )  # fmt: skip
    return json_response(TopicTruncation(done.before_ms, done.changed))


@route("GET", TOPIC_PATH + "/stats", answer=TopicStats, errors=EXISTING, tag="inspection")
async def stats(request: Request) -> Response:
    """A topic's statistics."""
    title = named_topic(request)
    found = await request.services.topic_stats.stats(title)
    topic = await request.services.topics.get(title)
    return json_response(
        TopicStats(
            messages=found.messages,
            bytes=found.payload_bytes,
            exact=found.exact,
            oldest_id=None if found.oldest_id is None else found.oldest_id.hex(),
            oldest_ms=found.oldest_ms,
            newest_id=None if found.newest_id is None else found.newest_id.hex(),
            newest_ms=found.newest_ms,
            published_per_second=found.published_per_second,
            stored_bytes=found.stored_bytes,
            oldest_open_write_pointer=found.oldest_open_write_pointer,
            truncated_before_ms=topic.truncated_before_ms or None,
        )
    )


def _shown(request: Request, topic: Topic) -> Response:
    properties = topic.properties
    flat = request.services.settings.http.flat_topics
    shown: dict[str, Any] = {**properties} if flat else {"name": topic.name, "properties": properties}
    return json_response(shown, headers=[(b"etag", b'"%s"' % topic.version.encode("ascii"))])


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
    return convert_json(parse_json(body), dict[str, Any])
