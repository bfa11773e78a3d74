"""Writing a topic's messages, and records, which carry more than a payload: publish, store, roll back.

Formats: docs/formats/avro-bodies.md, docs/formats/json-bodies.md, docs/formats/arrow.md, docs/formats/records-api.md. Reading
them: `basalt.http.routes.polls`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from basalt.access.needs import needs
from basalt.access.quotas import PUBLISH_BYTES
from basalt.api.bodies.messages import (
    LONG_MAX,
    Buffer,
    RecordIn,
    RecordsRequest,
    Work,
    WorkPublish,
    check_rollback,
    check_store,
)
from basalt.api.codecs import avro, json_bodies, json_records
from basalt.api.codecs.arrow import ARROW, decode_messages, library
from basalt.catalog.topics import TopicName
from basalt.errors import (
    InputError,
    SequenceGapError,
    SessionFencedError,
    TopicEndedError,
    TransactionConflictError,
    TransactionEndedError,
)
from basalt.http.asgi.requests import AVRO, JSON
from basalt.http.asgi.responses import Response
from basalt.http.routes import schemas
from basalt.http.routes.producers import (
    DUPLICATE,
    NUMBERED_ERRORS,
    NUMBERING_HEADERS,
    STORED_HEADERS,
    is_numbered,
    key_of,
    refuse_under_transaction,
    sequenced,
    stored_before,
)
from basalt.http.routes.route_table import (
    EXISTING,
    RECORDS_PATH,
    TOPIC,
    TOPIC_PATH,
    Request,
    RouteTable,
    WaiterOf,
    integer,
)
from basalt.messaging.log.append import Placed, RecordColumns
from basalt_engine.records import Extras

POINTER = "transactionWritePointer"
_ARROW_QUERY = (integer(POINTER, 1, LONG_MAX, "of an Arrow stream, which has no room for it"),)
_LINES_QUERY = (integer(POINTER, 1, LONG_MAX, "of JSON lines, which have no room for it"),)
_RECORDS_BODY: schemas.Content = {**schemas.in_both(schemas.RECORDS_REQUEST), schemas.JSON_LINES: schemas.LINES}
WRITES = needs(
    "write", TOPIC, in_body=("transact transactions", "transact topic")
)  # the transaction of the write pointer, if there is one; where transactions are managed elsewhere, the topic
_WRITER = (*EXISTING, TopicEndedError, TransactionEndedError, SessionFencedError, TransactionConflictError)

route = RouteTable("messages")


class Format(NamedTuple):
    """One content type of a call: how its body is read, and how it is answered, in which type.

    `pointer_in_query`: the body has no room for a write pointer, so the query has it.
    """

    media_type: bytes
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], Any]
    pointer_in_query: bool = False


class ArrowRows(NamedTuple):
    """The rows of an Arrow stream, as a publish or a store takes them."""

    messages: Sequence[Buffer]
    extras: Sequence[Extras] | None


async def load_arrow() -> None:
    """Have the Arrow library, whose first import takes longer than others should wait; or say that it is missing."""
    if not library.cache_info().currsize:
        await asyncio.to_thread(library)


async def read_written(
    request: Request, formats: Mapping[bytes, Format], others: str
) -> tuple[Format, Any, int | None]:
    """The format of a write, its body, and the write pointer that it is under, if any.

    `others` are the formats without room for a write pointer, where the query may name one.
    """
    media_type = request.required_type(formats)
    written = formats[media_type]
    if not written.pointer_in_query and POINTER in request.query:
        raise InputError(
            f"the query names a {POINTER}, and the body has room for it",
            field=POINTER,
            hint=f"Put it into the body; the query is for {others}.",
        )
    named = request.integer(POINTER)
    if named is not None:  # before anything of the body is read
        await request.must_write_under(named, request.topic)
    if media_type == ARROW:
        await load_arrow()
    body = written.decode(await request.body())
    if written.pointer_in_query:
        return written, body, named
    pointer: int | None = body.write_pointer
    if pointer is not None:
        await request.must_write_under(pointer, request.topic)
    return written, body, pointer


def submit_publish(request: Request, body: bytes, waiter_of: WaiterOf) -> bool:
    """Submit a publish of plain messages."""
    asked = _read_plain(request, body, _PUBLISH)
    return asked is not None and _submit(request, waiter_of, asked.messages, None)


def submit_records(request: Request, body: bytes, waiter_of: WaiterOf) -> bool:
    """Submit a publish of records."""
    asked = _read_plain(request, body, _RECORDS)
    return asked is not None and _submit(request, waiter_of, *RecordColumns.of(asked.records))


def _submit(request: Request, waiter_of: WaiterOf, messages: Sequence[Buffer], extras: Sequence[Extras] | None) -> bool:
    messaging, title = request.services.messaging, request.topic
    if not is_numbered(request):
        return messaging.submit_publish(waiter_of(_published), title, messages, extras)
    numbers = sequenced(request, len(messages))
    if numbers is None or key_of(request, title) is not None:  # the latter is refused
        return False
    return messaging.submit_publish(waiter_of(_published_once), title, messages, extras, numbers)


def _read_plain(request: Request, body: bytes, formats: Mapping[bytes, Format]) -> Any:
    """The body of a publish that one stage answers: as Avro or JSON, and outside of transactions; None for all others."""
    media_type = request.plain_type
    if media_type not in (AVRO, JSON):
        return None
    asked = formats[media_type].decode(body)
    return asked if asked.write_pointer is None else None


def _published(_placed: object) -> Response:
    return Response()


def _published_once(placed: Placed | None) -> Response:
    return Response(headers=DUPLICATE if placed is None else None)


async def _publish(
    request: Request, title: TopicName, written: Format, messages: Sequence[Buffer], extras: Sequence[Extras] | None,
    pointer: int | None,
) -> Response:  # fmt: skip
    """Publish what a request has read: plainly, under a write pointer, or so that it may be sent again."""
    messaging = request.services.messaging
    if pointer is not None:
        refuse_under_transaction(request)
        placed = await messaging.publish(title, messages, pointer, extras=extras)
        return Response(200, written.encode(placed), written.media_type)
    key, numbers = key_of(request, title), sequenced(request, len(messages))
    if key is not None:
        carried = [RecordIn(payload, *more) for payload, more in zip(messages, extras or (), strict=extras is not None)]
        work = Work(publish=[WorkPublish(*title, () if carried else messages, carried)])
        await request.services.transactions.one_shot(work, "", request.own(key), None, request.principal)
    elif numbers is not None:
        return _published_once(await messaging.publish_numbered(title, messages, numbers, extras))
    else:
        await messaging.publish(title, messages, extras=extras)
    return Response()


@route(
    "POST",
    TOPIC_PATH + "/publish",
    WRITES,
    query=_ARROW_QUERY,
    body={**schemas.in_both(schemas.PUBLISH_REQUEST), ARROW: schemas.ARROW_STREAM},
    body_required=True,
    answer=schemas.in_both(schemas.PUBLISH_RESPONSE),
    errors=(*_WRITER, *NUMBERED_ERRORS),
    headers=NUMBERING_HEADERS,
    submit=submit_publish,
    meters=(PUBLISH_BYTES,),
)
async def publish(request: Request) -> Response:
    """Publish messages.

    In JSON a message is bytes, each a code point of 0 to 255: "café" becomes four bytes that are no UTF-8. For text use
    POST .../records, whose payloads are UTF-8.
    """
    title = request.topic
    written, body, pointer = await read_written(request, _PUBLISH, "Arrow")
    return await _publish(request, title, written, body.messages, _extras(body), pointer)


@route(
    "POST",
    TOPIC_PATH + "/store",
    WRITES,
    query=_ARROW_QUERY,
    body={**schemas.in_both(schemas.STORE_REQUEST), ARROW: schemas.ARROW_STREAM},
    body_required=True,
    errors=(*_WRITER, SequenceGapError),
    headers=STORED_HEADERS,
    meters=(PUBLISH_BYTES,),
)
async def store(request: Request) -> Response:
    """Store messages aside, for a transaction's commit to publish.

    In JSON a message is bytes, each a code point of 0 to 255. For text use POST .../records/store.
    """
    title = request.topic
    _, body, pointer = await read_written(request, _STORE, "Arrow")
    return await _store(request, title, body.messages, _extras(body), pointer)


@route(
    "POST",
    TOPIC_PATH + "/rollback",
    WRITES,
    body=schemas.in_both(schemas.PUBLISH_RESPONSE),
    body_required=True,
    errors=_WRITER,
)
async def roll_back(request: Request) -> None:
    """Undo a transactional publish, given its answer."""
    title = request.topic
    decode = _ROLL_BACK[request.required_type(_ROLL_BACK)]
    placed = decode(await request.body())
    assert placed.write_pointer is not None, "the codecs refuse a roll back without one"
    await request.must_write_under(placed.write_pointer, title)
    await request.services.messaging.roll_back(title, placed)


@route(
    "POST",
    RECORDS_PATH,
    WRITES,
    query=_LINES_QUERY,
    body=_RECORDS_BODY,
    body_required=True,
    answer=schemas.in_both(schemas.PUBLISH_RESPONSE),
    errors=(*EXISTING, TopicEndedError, TransactionEndedError, SessionFencedError, *NUMBERED_ERRORS),
    tag="records",
    headers=NUMBERING_HEADERS,
    submit=submit_records,
    meters=(PUBLISH_BYTES,),
)
async def publish_records(request: Request) -> Response:
    """Publish records.

    Each has a payload, and may have a key, headers, an event time and a TTL. In JSON payload, key and header values are text
    (UTF-8), or any bytes in base64.
    """
    title = request.topic
    written, body, pointer = await read_written(request, _RECORDS, "JSON lines")
    return await _publish(request, title, written, *RecordColumns.of(body.records), pointer)


@route(
    "POST",
    RECORDS_PATH + "/store",
    WRITES,
    query=_LINES_QUERY,
    body=_RECORDS_BODY,
    body_required=True,
    errors=(*_WRITER, SequenceGapError),
    tag="records",
    headers=STORED_HEADERS,
    meters=(PUBLISH_BYTES,),
)
async def store_records(request: Request) -> Response:
    """Store records aside, for a transaction's commit to publish."""
    title = request.topic
    _, body, pointer = await read_written(request, _RECORDS, "JSON lines")
    return await _store(request, title, *RecordColumns.of(body.records), pointer)


async def _store(
    request: Request, title: TopicName, messages: Sequence[Buffer], extras: Sequence[Extras] | None, pointer: int | None
) -> Response:
    pointer, before = _stored_under(pointer), stored_before(request)
    stored = await request.services.messaging.store(title, messages, pointer, extras, before)
    return Response(headers=None if stored else DUPLICATE)


def _stored_under(pointer: int | None) -> int:
    """The write pointer of a store; the codecs of plain messages refuse one without."""
    if pointer is None:
        raise InputError(
            f"a store of Arrow rows or records needs a {POINTER}: in the query where the body has no room for it",
            field=POINTER,
            hint="Begin a transaction and send its writePointer, or use publish.",
        )
    return pointer


def _extras(body: object) -> Sequence[Extras] | None:
    return body.extras if isinstance(body, ArrowRows) else None


_PUBLISH: Mapping[bytes, Format] = {
    AVRO: Format(AVRO, avro.decode_publish_request, avro.encode_publish_response),
    JSON: Format(JSON, json_bodies.decode_publish_request, json_bodies.encode_publish_response),
    ARROW: Format(
        JSON, lambda body: ArrowRows(*decode_messages(body)), json_bodies.encode_publish_response, pointer_in_query=True
    ),
}
_STORE: Mapping[bytes, Format] = {
    AVRO: _PUBLISH[AVRO]._replace(decode=partial(avro.decode_publish_request, check=check_store)),
    JSON: _PUBLISH[JSON]._replace(decode=partial(json_bodies.decode_publish_request, check=check_store)),
    ARROW: _PUBLISH[ARROW],
}
_ROLL_BACK = {
    AVRO: partial(avro.decode_publish_response, check=check_rollback),
    JSON: partial(json_bodies.decode_publish_response, check=check_rollback),
}
_LINES = _PUBLISH[ARROW]._replace(decode=lambda body: RecordsRequest(None, json_records.decode_records_lines(body)))
_RECORDS: Mapping[bytes, Format] = {
    JSON: _PUBLISH[JSON]._replace(decode=json_records.decode_records_request),
    AVRO: _PUBLISH[AVRO]._replace(decode=avro.decode_records_request),
    schemas.JSON_LINES: _LINES,
    schemas.JSON_LINES_ALIAS: _LINES,
}
