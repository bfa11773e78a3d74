"""The messaging calls: publish, store, roll back, poll, in Avro or JSON. They are the hot paths: bytes in, bytes out.

Formats: docs/formats/avro-bodies.md, docs/formats/json-bodies.md and, for who asks a poll for it, docs/formats/message-batches.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import ModuleType
from typing import TypeVar

from basalt.api.bodies.work import LONG_MAX, Buffer
from basalt.api.codecs import avro, json_bodies
from basalt.api.codecs.arrow import ARROW
from basalt.catalog.topics import TopicName
from basalt.errors import (
    InputError,
    InvalidNameError,
    TopicNotFoundError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.http.asgi.request_bodies import MESSAGE_TYPES, accepts, read_body, required_type
from basalt.http.asgi.requests import ClientGoneError, Request
from basalt.http.asgi.responses import AVRO, BATCHES, JSON, Answer, Headers
from basalt.http.routes import arrow
from basalt.http.routes.message_parts import avro_parts, batch_parts, json_parts
from basalt.http.routes.operations import Operation, choice, flag, integer, words
from basalt.http.routes.schemas import (
    ARROW_STREAM,
    BATCHED,
    CONSUME_REQUEST,
    MESSAGES,
    PUBLISH_REQUEST,
    PUBLISH_RESPONSE,
    STORE_REQUEST,
    in_both,
)
from basalt.http.routes.topics import TOPIC_PATH, named_topic
from basalt.messaging.read.fetch import Fetch
from basalt.transactions.codec import decode_transaction
from basalt.transactions.rules.pointers import ID_PATTERN
from basalt_engine.snapshot import TransactionSnapshot

WRITTEN_TYPES = (*MESSAGE_TYPES, ARROW)
WAIT_MS_MAX = 60_000  # proxies and clients give up on silent connections at about this age
WHOLE_BYTES_MAX = 1024 * 1024  # payloads of an answer that is made as a whole and sent with its length

T = TypeVar("T")
_CODECS = {AVRO: avro, JSON: json_bodies}


async def publish(request: Request) -> Answer:
    """Append messages; under a write pointer answer their range."""
    if is_arrow(request):
        return await arrow.publish(request)
    codec, content_type = _codec(request)
    title = named_topic(request)
    body = codec.decode_publish_request(await read_body(request))
    placed = await request.services.messaging.publish(title, body.messages, body.write_pointer)
    if body.write_pointer is None:
        return Answer()
    return Answer(200, codec.encode_publish_response(placed), content_type)


async def store(request: Request) -> Answer:
    """Keep messages aside for a transaction's commit."""
    if is_arrow(request):
        return await arrow.store(request)
    codec, _ = _codec(request)
    title = named_topic(request)
    body = codec.decode_store_request(await read_body(request))
    assert body.write_pointer is not None
    await request.services.messaging.store(title, body.messages, body.write_pointer)
    return Answer()


def is_arrow(request: Request) -> bool:
    """Whether the body is an Arrow stream, which has no room for a write pointer: the query has it then."""
    if required_type(request, WRITTEN_TYPES) == ARROW:
        return True
    if request.query:
        raise InputError(
            "the query names a transactionWritePointer, and the body has room for it",
            field="transactionWritePointer",
            hint="Put it into the body; the query is for Arrow.",
        )
    return False


async def roll_back(request: Request) -> Answer:
    """Undo a transactional publish."""
    codec, _ = _codec(request)
    title = named_topic(request)
    body = codec.decode_rollback_request(await read_body(request))
    await request.services.messaging.roll_back(title, body)
    return Answer()


async def poll(request: Request) -> Answer:
    """Messages from a position on."""
    codec, content_type = _codec(request)
    title = named_topic(request)
    body = codec.decode_consume_request(await read_body(request))
    start = body.start_from
    start = start if start is None or isinstance(start, int) else bytes(start)
    batched = accepts(request, BATCHES)
    if request.flag("markers", False) and not batched:
        raise InputError(
            "markers=true needs an answer that has room for markers",
            field="markers",
            hint="Accept application/vnd.basalt.batches, or read records.",
        )
    fetched = await fetch(request, title, start, body.inclusive, body.limit, body.transaction)
    request.figures.topics.fetched(title, fetched.messages, fetched.payload_bytes)
    headers = position_headers(request, fetched)
    if batched:  # takes no time to make, whatever its size
        return Answer(200, list(batch_parts(fetched.slices)), BATCHES, headers)
    parts = avro_parts(fetched.slices) if content_type == AVRO else json_parts(fetched.slices)
    whole = fetched.payload_bytes <= WHOLE_BYTES_MAX
    return Answer(200, list(parts) if whole else parts, content_type, headers)


async def fetch(
    request: Request,
    title: TopicName,
    start: bytes | int | None,
    inclusive: bool,
    messages_max: int | None,
    transaction: Buffer | None = None,
) -> Fetch:
    """What the topic has for a reader, waited for as long as `waitMs` says or until the client has gone.

    Takes the query parameters `isolation`, `transaction`, `markers` and `waitMs`; `transaction` are a snapshot's bytes.
    """
    committed = request.text("isolation") == "committed"
    snapshot = await _snapshot(request, transaction, committed)
    wait_ms = request.integer("waitMs") or 0
    markers = request.flag("markers", False)

    def look(wait_ms: int) -> Coroutine[None, None, Fetch]:
        return request.services.messaging.fetch(
            title, start, inclusive, messages_max=messages_max, snapshot=snapshot, committed=committed, markers=markers,
            wait_ms=wait_ms,
        )  # fmt: skip

    found = await look(0)
    if found.slices or not wait_ms:
        return found
    return await unless_gone(request, look(wait_ms))


async def unless_gone(request: Request, answer: Coroutine[None, None, T]) -> T:
    """What this waits for, or `ClientGoneError` when nobody is left to be told."""
    request.route += "?waitMs"  # in the figures a call that waits is not a slow call
    waiting = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(request.until_gone())
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait((waiting,))  # so that nothing of this request runs on behind it
            raise ClientGoneError
        return waiting.result()
    finally:
        gone.cancel()
        waiting.cancel()


async def _snapshot(request: Request, given: Buffer | None, committed: bool) -> TransactionSnapshot | None:
    """The snapshot to read under: of the bytes in the body, or of the open transaction that the query names."""
    transaction_id = request.text("transaction")
    if [given is not None, committed, transaction_id is not None].count(True) > 1:
        raise InputError(
            "the poll names more than one snapshot to read under",
            field="transaction",
            hint="Give one of: isolation=committed, the query's transaction, the body's transaction.",
        )
    if given is not None:
        return request.snapshots.snapshot(decode_transaction(given))
    if transaction_id is not None:
        transaction = await request.services.transactions.get(request.services.ids.parse(transaction_id, "transaction"))
        return transaction.snapshot()
    return None


def position_headers(request: Request, fetched: Fetch) -> Headers:
    """Where the reader goes on, which transaction stopped it; with markers, what is needed to judge them."""
    headers: Headers = []
    if fetched.next_id is not None:
        headers.append((b"basalt-next", fetched.next_id.hex().encode("ascii")))
    if fetched.held_by is not None:
        headers.append((b"basalt-held-by", request.services.holder(fetched.held_by).encode("ascii")))
    if fetched.generation is not None:
        headers.append((b"basalt-generation", b"%d" % fetched.generation))
    if fetched.tasks is not None:
        headers.append((b"basalt-tasks", b"%d" % fetched.tasks))
    return headers


def _codec(request: Request) -> tuple[ModuleType, bytes]:
    """The codec of the body's content type, which is also the answer's."""
    media_type = required_type(request, MESSAGE_TYPES)
    return _CODECS[media_type], media_type


READ_QUERY = (
    choice("isolation", ("committed",), "read under the manager's newest snapshot, without a transaction"),
    integer("waitMs", 0, WAIT_MS_MAX, "answer when there is something to read, or after so many milliseconds"),
    words("transaction", ID_PATTERN, "read under the snapshot of this open transaction"),
    flag("markers", "markers too, in their places; they count for no limit"),
)
_ARROW_QUERY = (integer("transactionWritePointer", 1, LONG_MAX, "of an Arrow stream, which has no room for it"),)
_TOPIC = (InvalidNameError, TopicNotFoundError)
_WRITER = (*_TOPIC, TransactionEndedError, TransactionConflictError)

OPERATIONS = (
    Operation(
        method="POST",
        path=TOPIC_PATH + "/publish",
        handler=publish,
        summary="Publish messages",
        tag="messages",
        query=_ARROW_QUERY,
        body={**in_both(PUBLISH_REQUEST), ARROW: ARROW_STREAM},
        body_required=True,
        answers={200: in_both(PUBLISH_RESPONSE)},
        errors=_WRITER,
    ),
    Operation(
        method="POST",
        path=TOPIC_PATH + "/poll",
        handler=poll,
        summary="Read messages from a position on",
        tag="messages",
        query=READ_QUERY,
        body=in_both(CONSUME_REQUEST),
        body_required=True,
        answers={200: {**in_both(MESSAGES), BATCHES: BATCHED}},
        errors=(*_TOPIC, TransactionEndedError, TransactionNotFoundError),
    ),
    Operation(
        method="POST",
        path=TOPIC_PATH + "/store",
        handler=store,
        summary="Store messages aside, for a transaction's commit to publish",
        tag="messages",
        query=_ARROW_QUERY,
        body={**in_both(STORE_REQUEST), ARROW: ARROW_STREAM},
        body_required=True,
        errors=_WRITER,
    ),
    Operation(
        method="POST",
        path=TOPIC_PATH + "/rollback",
        handler=roll_back,
        summary="Undo a transactional publish, given its answer",
        tag="messages",
        body=in_both(PUBLISH_RESPONSE),
        body_required=True,
        errors=_WRITER,
    ),
)
