"""The calls on topics: create, update, get, list, delete, truncate; statistics, and messages whatever became of them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple

from basalt import errors
from basalt.access import resources
from basalt.access.needs import needs
from basalt.access.quotas import FETCH_BYTES, TOPICS
from basalt.api.bodies.messages import LONG_MAX
from basalt.api.bodies.ranges import Holder, PeekedHeader, PeekedMessage
from basalt.api.bodies.topics import TopicDeletion, TopicPlan, TopicStats, TopicTruncation, TruncateRequest
from basalt.api.codecs.json_bodies import parse_json, text_or_bytes
from basalt.api.positions import SPEC_CHARS_MAX, PositionKind, parse_position
from basalt.catalog.topics import Topic, TopicName
from basalt.http.asgi.requests import JSON, convert_json
from basalt.http.asgi.responses import Response, json_response, next_header
from basalt.http.routes.route_table import (
    AS,
    DRY_RUN,
    EXISTING,
    REASON,
    TOPIC,
    TOPIC_PATH,
    TOPICS_PATH,
    Query,
    Request,
    RouteTable,
    flag,
    integer,
)
from basalt.http.routes.schemas import NAMES, PROPERTIES, PROPERTY_CHANGES, TOPIC_OR_PLAN
from basalt.http.routes.schemas import TOPIC as TOPIC_SCHEMA
from basalt.messaging.peek import MESSAGES_MAX, Peeked
from basalt.messaging.read.back_reader import BACK_MAX
from basalt_engine.keys import MESSAGE_ID_BYTES

MESSAGES_DEFAULT = 100
MERGE_PATCH = b"application/merge-patch+json"
PROPERTY_BYTES_MAX = 1_048_576  # 64 properties of 4,096 characters, each in up to four bytes
FROM = Query(
    "from",
    str,
    {"type": "string", "maxLength": SPEC_CHARS_MAX},
    "start (the default), end, now, a message id, @milliseconds, @2026-01-31T10:00:00Z, -1h or +10m",
)
INCLUSIVE = flag("inclusive", "whether what is right at `from` counts; true by default")
BACK = integer(
    "back",
    1,
    BACK_MAX,
    "begin so many messages before `from`, whatever became of them; there are fewer where they lie far apart",
)
ACT_QUERY = (DRY_RUN, REASON, AS)

route = RouteTable("topics")

_ENTITY_TAG = r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"'
_ENTITY_TAGS = re.compile(rf"[ \t]*{_ENTITY_TAG}[ \t]*(,[ \t]*{_ENTITY_TAG}[ \t]*)*")


class From(NamedTuple):
    """A start: an id, a time in milliseconds, or None for the oldest message; and whether the message there counts."""

    at: bytes | int | None
    inclusive: bool


async def start_of(request: Request, title: TopicName) -> From:
    """The place that the parameters `from`, `inclusive` and `back` name. Grammar: `basalt.api.positions`."""
    at, back = await _named_start(request, title), request.integer("back")
    if back is None:
        return at
    found = await request.services.back_reader.back(title, at.at, back)
    return at if found is None else From(found, True)


async def _named_start(request: Request, title: TopicName) -> From:
    text = request.text("from")
    inclusive = request.flag("inclusive", True)
    position = parse_position("start" if text is None else text, request.services.clock.now_ms(), field="from")
    if position.kind is not PositionKind.END:
        return From(position.time_ms if position.id is None else position.id, inclusive)
    end = await request.services.end_of_topic(title)
    return From(None, True) if end is None else From(end, False)


@route("GET", TOPIC_PATH, needs("observe", TOPIC), answer={JSON: TOPIC_SCHEMA}, errors=EXISTING)
async def get(request: Request) -> Response:
    """A topic's properties."""
    return _shown(request, await request.services.topics.get(request.topic))


@route(
    "PUT",
    TOPIC_PATH,
    needs("manage", TOPIC),
    query=ACT_QUERY,
    body={JSON: PROPERTIES},
    answer={JSON: TOPIC_OR_PLAN},
    errors=(errors.InvalidNameError, errors.InvalidPropertyError, errors.TopicExistsError, errors.ConflictError),
)
async def create(request: Request) -> Response:
    """Create a topic, or a new generation of a deleted one.

    With a reason, the audit has a line about it.
    """
    title, catalog = request.topic, request.services.topics.catalog
    properties = await _read_properties(request)
    if not request.limits(TOPICS) or await _exists(request, title):  # one that is there is refused as that
        return await _create(request, title, properties)
    with request.one_more(TOPICS, await catalog.created_by(request.principal)):
        return await _create(request, title, properties)


async def _create(request: Request, title: TopicName, properties: dict[str, object]) -> Response:
    services, creator = request.services, request.principal
    if request.flag("dryRun"):
        return _plan(None, await services.topics.catalog.would_create(title, properties))
    if not request.text("reason"):  # programs make topics as they go: the audit is for what somebody did by hand
        return _shown(request, await services.topics.create(title, properties, creator))
    created = await services.audit.act(
        "create topic", f"topic {title}", *request.act, lambda: services.topics.create(title, properties, creator),
        lambda topic: f"created, generation {topic.generation}",
    )  # fmt: skip
    return _shown(request, created)


async def _exists(request: Request, title: TopicName) -> bool:
    try:
        await request.services.topics.catalog.read(title)
    except errors.TopicNotFoundError:
        return False
    return True


@route("DELETE", TOPIC_PATH, needs("manage", TOPIC), query=ACT_QUERY, errors=(*EXISTING, errors.ConflictError))
async def delete(request: Request) -> TopicDeletion:
    """Delete a topic with all its messages."""
    title, services = request.topic, request.services
    if request.flag("dryRun"):
        topic, sums = await services.topics.get(title), await services.topic_stats.sums(title)
        groups = len(await services.groups.list(title))
        return TopicDeletion(*title, topic.generation, True, sums.messages, sums.payload_bytes, sums.exact, groups)
    deleted = await services.audit.act(
        "delete topic", f"topic {title}", *request.act, lambda: services.topics.delete(title),
        lambda topic: f"deleted, generation {topic.generation}",
    )  # fmt: skip
    request.metrics.topics.forget(title)
    return TopicDeletion(*title, deleted.generation)


@route(
    "PUT",
    TOPIC_PATH + "/properties",
    needs("manage", TOPIC),
    query=ACT_QUERY,
    body={JSON: PROPERTIES},
    answer={JSON: TOPIC_OR_PLAN},
    errors=(*EXISTING, errors.InvalidPropertyError, errors.TopicChangedError, errors.ConflictError),
    if_match=True,
)
async def update(request: Request) -> Response:
    """Replace a topic's properties; those left out go back to their defaults."""
    return await _change(request, await _read_properties(request), request.services.topics.update, merging=False)


@route(
    "PATCH",
    TOPIC_PATH + "/properties",
    needs("manage", TOPIC),
    query=ACT_QUERY,
    body={JSON: PROPERTY_CHANGES, MERGE_PATCH: PROPERTY_CHANGES},
    answer={JSON: TOPIC_OR_PLAN},
    errors=(*EXISTING, errors.InvalidPropertyError, errors.TopicChangedError, errors.ConflictError),
    if_match=True,
)
async def merge(request: Request) -> Response:
    """Change some of a topic's properties; null puts one back to its default."""
    changes = await _read_properties(request, (JSON, MERGE_PATCH))
    return await _change(request, changes, request.services.topics.merge, merging=True)


async def _change(
    request: Request, asked: Mapping[str, object], change: Callable[..., Awaitable[Topic]], *, merging: bool
) -> Response:
    """Change properties, in one way or the other; or tell what they would be."""
    title, services, versions = request.topic, request.services, _expected(request)
    if request.flag("dryRun"):
        return _plan(*await services.topics.would_change(title, asked, versions, merging=merging))
    changed = await services.audit.act(
        "change topic",
        f"topic {title}",
        *request.act,
        lambda: change(title, asked, versions),
        lambda _: _in_words(asked),
    )
    return _shown(request, changed)


@route("GET", TOPICS_PATH, needs(filters="observe topic"), answer={JSON: NAMES}, errors=(errors.InvalidNameError,))
async def names(request: Request) -> Response:
    """The names of a namespace's topics, sorted."""
    namespace, may = request.path["namespace"], request.caller.may
    listed = await request.services.topics.catalog.list(namespace)
    return json_response([name for name in listed if may("observe", resources.topic(namespace, name))])


@route(
    "POST",
    TOPIC_PATH + "/truncate",
    needs("manage", TOPIC),
    query=ACT_QUERY,
    errors=(errors.InputError, *EXISTING, errors.ConflictError, errors.GenerationError, errors.BusyError),
)
async def truncate(request: Request, asked: TruncateRequest) -> TopicTruncation:
    """Put a topic's messages before a time out of every reader's reach, for ever."""
    if not 0 <= asked.before_ms <= LONG_MAX:
        raise errors.InputError("beforeMs is not a time", field="beforeMs", hint="give milliseconds since 1970")
    title, services = request.topic, request.services
    if request.flag("dryRun"):
        would = await services.truncation.checked(title, asked.before_ms, asked.generation)
        committed = services.settings.transactions.manager == "builtin"
        lost = await services.truncation.lost(title, asked.before_ms, committed=committed)
        return TopicTruncation(would.before_ms, would.changed, True, lost.messages, lost.payload_bytes, lost.exact)
    done = await services.audit.act(
        "truncate", f"topic {title}", *request.act,
        lambda: services.truncation.truncate(title, asked.before_ms, asked.generation),
        lambda done: f"{'truncated' if done.changed else 'was truncated'} before {done.before_ms} ms",
    )  # fmt: skip
    return TopicTruncation(done.before_ms, done.changed)


@route("GET", TOPIC_PATH + "/stats", needs("observe", TOPIC), errors=EXISTING, tag="inspection")
async def stats(request: Request) -> TopicStats:
    """A topic's statistics."""
    title = request.topic
    figures = await request.services.topic_stats.stats(title)
    topic = await request.services.topics.get(title)
    return TopicStats(
        messages=figures.messages,
        bytes=figures.payload_bytes,
        exact=figures.exact,
        oldest_id=None if figures.oldest_id is None else figures.oldest_id.hex(),
        oldest_ms=figures.oldest_ms,
        newest_id=None if figures.newest_id is None else figures.newest_id.hex(),
        newest_ms=figures.newest_ms,
        published_per_second=figures.published_per_second,
        stored_bytes=figures.stored_bytes,
        oldest_open_write_pointer=figures.oldest_open_write_pointer,
        truncated_before_ms=topic.metadata.truncated_before_ms or None,
    )


@route(
    "GET",
    TOPIC_PATH + "/messages",
    needs("inspect", TOPIC),
    query=(
        FROM,
        INCLUSIVE,
        BACK,
        integer("limit", 1, MESSAGES_MAX, f"most messages to answer; {MESSAGES_DEFAULT} by default"),
    ),
    answer=list[PeekedMessage],
    errors=EXISTING,
    tag="inspection",
    meters=(FETCH_BYTES,),
)
async def peek(request: Request) -> Response:
    """Messages with their state: open, rolled back and invalid ones too."""
    title = request.topic
    start = await start_of(request, title)
    limit = request.integer("limit") or MESSAGES_DEFAULT
    page = await request.services.peek.peek(title, start.at, start.inclusive, limit)
    return json_response([_peeked(found) for found in page.messages], headers=next_header(page.next_id))


@route(
    "GET",
    TOPIC_PATH + "/messages/{message}",
    needs("inspect", TOPIC),
    errors=(*EXISTING, errors.MessageNotFoundError),
    tag="inspection",
)
async def message(request: Request) -> PeekedMessage:
    """One message with its state."""
    title, message_id = request.topic, parse_message_id(request.path["message"])
    return _peeked(await request.services.peek.message(title, message_id))


@route("GET", TOPIC_PATH + "/holder", needs("observe", TOPIC), query=(FROM,), errors=EXISTING, tag="inspection")
async def holder(request: Request) -> Holder:
    """The transaction that readers of committed messages wait for."""
    title = request.topic
    start = await start_of(request, title)
    return await request.services.inspection.holder(title, start.at, request.sees)


def parse_message_id(text: str) -> bytes:
    """A message id from its 40 hex digits; `InputError` for anything else."""
    digits = 2 * MESSAGE_ID_BYTES
    if re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", text) is None:
        raise errors.InputError(
            f"{text[:60]!r} is not a message id",
            field="message",
            hint=f"Use {digits} hex digits, as Basalt-Next has them.",
        )
    return bytes.fromhex(text)


def _shown(request: Request, topic: Topic) -> Response:
    properties = topic.properties
    flat = request.services.settings.http.flat_topics
    shown: dict[str, Any] = {**properties} if flat else {"name": topic.name, "properties": properties}
    return json_response(shown, headers=[(b"etag", b'"%s"' % topic.version.encode("ascii"))])


def _plan(before: Topic | None, topic: Topic) -> Response:
    was = None if before is None else before.properties
    return json_response(TopicPlan(*topic.title, topic.generation, was, topic.properties))


def _in_words(asked: Mapping[str, object]) -> str:
    """The properties that were asked for, for the audit."""
    return ", ".join(f"{name}={'default' if value is None else value}" for name, value in asked.items()) or "defaults"


def _expected(request: Request) -> Collection[str] | None:
    """The versions that the If-Match header names, of which the topic must have one; None where any will do."""
    given = request.headers.get(b"if-match", b"*").decode("latin-1").strip()
    if given == "*":
        return None
    if _ENTITY_TAGS.fullmatch(given) is None:
        raise errors.InputError(
            f"the header If-Match is {given[:60]!r}, which is no list of ETags",
            field="If-Match",
            hint='Send the ETag of an answer as it is, in its quotes; or "*".',
        )
    return {tag for weak, tag in re.findall(_ENTITY_TAG, given) if not weak}


async def _read_properties(request: Request, allowed: Collection[bytes] = (JSON,)) -> dict[str, object]:
    request.content_type(allowed)
    body = await request.body()
    if len(body) > PROPERTY_BYTES_MAX:
        raise errors.TooLargeError(f"the properties are {len(body)} bytes; the limit is {PROPERTY_BYTES_MAX}")
    properties: dict[str, object] = convert_json(parse_json(body), dict[str, Any]) if body else {}
    return properties


def _peeked(peeked: Peeked) -> PeekedMessage:
    payload, payload_base64 = text_or_bytes(peeked.payload)
    key, key_base64 = (None, None) if peeked.extras.key is None else text_or_bytes(peeked.extras.key)
    return PeekedMessage(
        id=peeked.id.hex(),
        state=peeked.state,
        kind=peeked.kind.name.lower(),
        payload=payload,
        payload_base64=payload_base64,
        key=key,
        key_base64=key_base64,
        headers=tuple(PeekedHeader(name, *text_or_bytes(value)) for name, value in peeked.extras.headers),
        event_time_ms=peeked.extras.event_time_ms,
        ttl_ms=peeked.extras.ttl_ms,
        write_pointer=peeked.write_pointer,
    )
