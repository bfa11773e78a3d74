"""Looking at a topic: its figures, messages whatever became of them, and what its readers wait for."""

from __future__ import annotations

from basalt.api.bodies.messages import Holder, PeekedHeader, PeekedMessage
from basalt.api.bodies.topics import TopicStats
from basalt.errors import (
    InputError,
    InvalidNameError,
    MessageNotFoundError,
    TopicNotFoundError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, json_answer
from basalt.http.routes.operations import Operation, integer
from basalt.http.routes.positions import FROM, INCLUSIVE, start_of
from basalt.http.routes.topics import TOPIC_PATH, named_topic
from basalt.messaging.peek import MESSAGES_MAX, Peeked
from basalt.messaging.read.fetch import end_of
from basalt_engine.keys import MESSAGE_ID_BYTES, position
from basalt_engine.messages import POSITION_BYTES
from basalt_engine.records import Buffer

MESSAGES_DEFAULT = 100


async def stats(request: Request) -> Answer:
    """A topic's figures."""
    title = named_topic(request)
    found = await request.services.usage.stats(title)
    topic = await request.services.topics.get(title)
    return json_answer(
        TopicStats(
            messages=found.messages,
            bytes=found.payload_bytes,
            exact=found.exact,
            oldest_id=_hex(found.oldest_id),
            oldest_ms=found.oldest_ms,
            newest_id=_hex(found.newest_id),
            newest_ms=found.newest_ms,
            published_per_second=found.published_per_second,
            stored_bytes=found.stored_bytes,
            oldest_open_write_pointer=found.oldest_open_write_pointer,
            truncated_before_ms=topic.truncated_before_ms or None,
        )
    )


async def message(request: Request) -> Answer:
    """One message, whatever became of it."""
    title = named_topic(request)
    message_id = parse_message_id(request.path["message"])
    return json_answer(_shown(await request.services.peek.message(title, message_id)))


async def peek(request: Request) -> Answer:
    """Messages from a position on, whatever became of them."""
    title = named_topic(request)
    start = await start_of(request, title)
    limit = request.integer("limit") or MESSAGES_DEFAULT
    page = await request.services.peek.peek(title, start.at, start.inclusive, limit)
    headers = [] if page.next_id is None else [(b"basalt-next", page.next_id.hex().encode("ascii"))]
    return json_answer([_shown(found) for found in page.messages], headers=headers)


async def holder(request: Request) -> Answer:
    """Which transaction makes readers of committed messages wait, and where."""
    title = named_topic(request)
    start = (await start_of(request, title)).at
    first = position(start, 0) if isinstance(start, int) else (start or b"")[:POSITION_BYTES]
    found = await request.services.peek.first_hold(title, first)
    searched_to = None if found.searched_to is None else end_of(found.searched_to[:POSITION_BYTES]).hex()
    if found.held_by is None:
        return json_answer(Holder(None, None, None, None, searched_to))
    transaction_id = request.services.transactions.manager.id_of(found.held_by)
    at = _hex(found.held_at)
    try:
        transaction = await request.services.transactions.get(transaction_id)
    except (TransactionEndedError, TransactionNotFoundError):  # between the two looks
        return json_answer(Holder(request.services.ids.text(transaction_id), at, None, None, None))
    return json_answer(
        Holder(request.services.ids.text(transaction_id), at, transaction.owner, transaction.deadline_ms, None)
    )


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


def _hex(message_id: bytes | None) -> str | None:
    return None if message_id is None else message_id.hex()


_TOPIC = (InvalidNameError, TopicNotFoundError)

OPERATIONS = (
    Operation(
        method="GET",
        path=TOPIC_PATH + "/stats",
        handler=stats,
        summary="A topic's figures",
        tag="inspection",
        answers={200: {JSON: TopicStats}},
        errors=_TOPIC,
    ),
    Operation(
        method="GET",
        path=TOPIC_PATH + "/messages",
        handler=peek,
        summary="Messages with their state: open, rolled back and invalid ones too",
        tag="inspection",
        query=(
            FROM,
            INCLUSIVE,
            integer("limit", 1, MESSAGES_MAX, f"most messages to answer; {MESSAGES_DEFAULT} by default"),
        ),
        answers={200: {JSON: list[PeekedMessage]}},
        errors=_TOPIC,
    ),
    Operation(
        method="GET",
        path=TOPIC_PATH + "/messages/{message}",
        handler=message,
        summary="One message with its state",
        tag="inspection",
        answers={200: {JSON: PeekedMessage}},
        errors=(*_TOPIC, MessageNotFoundError),
    ),
    Operation(
        method="GET",
        path=TOPIC_PATH + "/holder",
        handler=holder,
        summary="Which transaction readers of committed messages wait for",
        tag="inspection",
        query=(FROM,),
        answers={200: {JSON: Holder}},
        errors=_TOPIC,
    ),
)
