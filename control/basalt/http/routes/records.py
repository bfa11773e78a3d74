"""The calls on richer records: payloads with a key, headers, an event time, a TTL. JSON, JSON lines or Avro.

Format: docs/formats/records-api.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from basalt.api.bodies.work import INT_MAX, LONG_MAX, Record, RecordsRequest
from basalt.api.codecs import avro, json_bodies, records, records_avro
from basalt.errors import (
    InputError,
    InvalidNameError,
    TopicNotFoundError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.http.asgi.request_bodies import accepted_type, read_body, required_type
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import AVRO, JSON, Answer
from basalt.http.routes import schemas
from basalt.http.routes.messages import READ_QUERY, fetch, position_headers
from basalt.http.routes.operations import Operation, integer
from basalt.http.routes.positions import FROM, INCLUSIVE, start_of
from basalt.http.routes.schemas import JSON_LINES, JSON_LINES_ALIAS
from basalt.http.routes.topics import TOPIC_PATH, named_topic
from basalt.messaging.read.fetch import Fetch, Slice
from basalt_engine.records import Kind

RECORDS_PATH = TOPIC_PATH + "/records"
RECORD_TYPES = (JSON, AVRO, JSON_LINES, JSON_LINES_ALIAS)
PART_RECORDS = 1_000  # an answer is made and sent in parts of about so many; each takes a few milliseconds

_KIND_NAMES = {kind: kind.name.lower() for kind in Kind}


async def publish(request: Request) -> Answer:
    """Publish records; under a write pointer answer their range."""
    media_type = required_type(request, RECORD_TYPES)
    title = named_topic(request)
    wanted = _decode(request, media_type, await read_body(request))
    placed = await request.services.messaging.publish_records(title, wanted.records, wanted.write_pointer)
    if wanted.write_pointer is None:
        return Answer()
    if media_type == AVRO:
        return Answer(200, avro.encode_publish_response(placed), AVRO)
    return Answer(200, json_bodies.encode_publish_response(placed), JSON)


async def read(request: Request) -> Answer:
    """Records from a position on."""
    title = named_topic(request)
    media_type = accepted_type(request, RECORD_TYPES)
    start = await start_of(request, title)
    fetched = await fetch(request, title, start.at, start.inclusive, request.integer("limit"))
    request.figures.topics.fetched(title, fetched.messages, fetched.payload_bytes)
    return Answer(200, _parts(request, fetched, media_type), media_type, position_headers(request, fetched))


def records_of(slices: Sequence[Slice]) -> Iterator[list[Record]]:
    """The records of the slices, some at a time."""
    records_left = chain.from_iterable(map(_records, slices))
    while some := list(islice(records_left, PART_RECORDS)):
        yield some


def _records(piece: Slice) -> Iterator[Record]:
    pointer = None if piece.written_by is None else abs(piece.written_by)
    kind = _KIND_NAMES[piece.batch.kind]
    for message_id, payload, extra in zip(piece.ids(), piece.payloads(), piece.extras(), strict=True):
        yield Record(message_id, payload, extra.key, extra.headers, extra.event_time_ms, extra.ttl_ms, kind, pointer)


def _decode(request: Request, media_type: bytes, body: bytes) -> RecordsRequest:
    pointer = request.integer("transactionWritePointer")
    if media_type in (JSON_LINES, JSON_LINES_ALIAS):
        return RecordsRequest(pointer, records.decode_records_lines(body))
    if pointer is not None:
        raise InputError(
            "the query names a transactionWritePointer, and the body has room for it",
            field="transactionWritePointer",
            hint="Put it into the body; the query is for JSON lines.",
        )
    return records_avro.decode_records_request(body) if media_type == AVRO else records.decode_records_request(body)


def _parts(request: Request, fetched: Fetch, media_type: bytes) -> Iterator[bytes]:
    if media_type == AVRO:
        yield from map(records_avro.encode_records_block, records_of(fetched.slices))
        yield avro.END_OF_ARRAY
    elif media_type == JSON:
        before = records.START_OF_PAGE
        for some in records_of(fetched.slices):
            yield before + records.encode_records_block(some)
            before = b","
        held_by = None if fetched.held_by is None else request.services.holder(fetched.held_by)
        yield (before if before != b"," else b"") + records.end_of_page(fetched.next_id, held_by)
    else:
        yield from map(records.encode_records_lines, records_of(fetched.slices))


_TOPIC = (InvalidNameError, TopicNotFoundError)

OPERATIONS = (
    Operation(
        method="POST",
        path=RECORDS_PATH,
        handler=publish,
        summary="Publish records",
        tag="records",
        query=(integer("transactionWritePointer", 1, LONG_MAX, "of JSON lines, which have no room for it"),),
        body={**schemas.in_both(schemas.RECORDS_REQUEST), JSON_LINES: schemas.LINES},
        body_required=True,
        answers={200: schemas.in_both(schemas.PUBLISH_RESPONSE)},
        errors=(*_TOPIC, TransactionEndedError),
    ),
    Operation(
        method="GET",
        path=RECORDS_PATH,
        handler=read,
        summary="Read records from a position on",
        tag="records",
        query=(
            FROM,
            INCLUSIVE,
            integer("limit", 1, INT_MAX, "most records to answer"),
            *READ_QUERY,
        ),
        answers={200: {**schemas.in_both(schemas.RECORDS_PAGE), JSON_LINES: schemas.LINES}},
        errors=(*_TOPIC, TransactionEndedError, TransactionNotFoundError),
    ),
)
