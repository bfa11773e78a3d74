"""Looking at a topic's messages whatever became of them, and at what its readers wait for."""

from __future__ import annotations

from typing import NamedTuple

from basalt.api.bodies.messages import Holder, PeekedHeader, PeekedMessage
from basalt.api.positions import SPEC_CHARS_MAX, PositionKind, parse_position
from basalt.catalog.topics import TopicName
from basalt.errors import InputError, MessageNotFoundError
from basalt.http.asgi.responses import Response, json_response
from basalt.http.routes.operations import Query, Request, RouteTable, flag, integer
from basalt.http.routes.topics import EXISTING, TOPIC_PATH, named_topic
from basalt.messaging.peek import MESSAGES_MAX, Peeked
from basalt_engine.keys import MESSAGE_ID_BYTES
from basalt_engine.records import Buffer

MESSAGES_DEFAULT = 100

FROM = Query(
    "from",
    str,
    {"type": "string", "maxLength": SPEC_CHARS_MAX},
    "start (the default), end, now, a message id, @milliseconds, @2026-01-31T10:00:00Z, -1h or +10m",
)
INCLUSIVE = flag("inclusive", "whether what is right at `from` counts; true by default")

route = RouteTable("inspection")


class From(NamedTuple):
    """A start: an id, a time in milliseconds, or None for the oldest message; and whether the message there counts."""

    at: bytes | int | None
    inclusive: bool


async def start_of(request: Request, title: TopicName) -> From:
    """The place that the parameters `from` and `inclusive` name. Grammar: `basalt.api.positions`."""
    text = request.text("from")
    inclusive = request.flag("inclusive", True)
    position = parse_position("start" if text is None else text, request.services.clock.now_ms(), field="from")
    if position.kind is not PositionKind.END:
        return From(position.time_ms if position.id is None else position.id, inclusive)
    end = await request.services.end_of_topic(title)
    return From(None, True) if end is None else From(end, False)


@route(
    "GET",
    TOPIC_PATH + "/messages",
    query=(
        FROM,
        INCLUSIVE,
        integer("limit", 1, MESSAGES_MAX, f"most messages to answer; {MESSAGES_DEFAULT} by default"),
    ),
    answer=list[PeekedMessage],
    errors=EXISTING,
)
async def peek(request: Request) -> Response:
    """Messages with their state: open, rolled back and invalid ones too."""
    title = named_topic(request)
    start = await start_of(request, title)
    limit = request.integer("limit") or MESSAGES_DEFAULT
    page = await request.services.peek.peek(title, start.at, start.inclusive, limit)
    headers = [] if page.next_id is None else [(b"basalt-next", page.next_id.hex().encode("ascii"))]
    return json_response([_shown(found) for found in page.messages], headers=headers)


@route("GET", TOPIC_PATH + "/messages/{message}", answer=PeekedMessage, errors=(*EXISTING, MessageNotFoundError))
async def message(request: Request) -> Response:
    """One message with its state."""
    title = named_topic(request)
    message_id = parse_message_id(request.path["message"])
    return json_response(_shown(await request.services.peek.message(title, message_id)))


@route("GET", TOPIC_PATH + "/holder", query=(FROM,), answer=Holder, errors=EXISTING)
async def holder(request: Request) -> Response:
    """The transaction that readers of committed messages wait for."""
    title = named_topic(request)
    start = await start_of(request, title)
    return json_response(await request.services.inspection.holder(title, start.at))


def parse_message_id(text: str) -> bytes:
    """A message id from its 40 hex digits; `InputError` for anything else."""
    try:
        found = bytes.fromhex(text) if text.isascii() and text.isalnum() else b""
    except ValueError:
        found = b""
    if len(found) != MESSAGE_ID_BYTES:
        raise InputError(
            f"{text[:60]!r} is not a message id",
            field="message",
            hint=f"Use {2 * MESSAGE_ID_BYTES} hex digits, as Basalt-Next has them.",
        )
    return found


def _shown(found: Peeked) -> PeekedMessage:
    payload, payload_base64 = _text_or_bytes(found.payload)
    key, key_base64 = (None, None) if found.extras.key is None else _text_or_bytes(found.extras.key)
    return PeekedMessage(
        id=found.id.hex(),
        state=found.state,
        kind=found.kind.name.lower(),
        payload=payload,
        payload_base64=payload_base64,
        key=key,
        key_base64=key_base64,
        headers=tuple(PeekedHeader(name, *_text_or_bytes(value)) for name, value in found.extras.headers),
        event_time_ms=found.extras.event_time_ms,
        ttl_ms=found.extras.ttl_ms,
        write_pointer=found.write_pointer,
    )


def _text_or_bytes(value: Buffer) -> tuple[str | None, bytes | None]:
    try:
        return str(value, "utf-8"), None
    except UnicodeDecodeError:
        return None, bytes(value)
