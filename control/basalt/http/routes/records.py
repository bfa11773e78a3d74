"""The calls on richer records: payloads with a key, headers, an event time, a TTL. JSON, JSON lines or Avro.

Format: docs/formats/records-api.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice

from basalt.api.bodies.work import INT_MAX, LONG_MAX, Record, RecordsRequest
from basalt.api.codecs import avro, json_bodies, records, records_avro
from basalt.errors import TransactionEndedError, TransactionNotFoundError
from basalt.http.asgi.request_bodies import accepted_type, read_body
from basalt.http.asgi.responses import AVRO, JSON, Response
from basalt.http.routes import schemas
from basalt.http.routes.inspection import FROM, INCLUSIVE, start_of
from basalt.http.routes.messages import POINTER, READ_QUERY, Format, fetch, format_of, position_headers
from basalt.http.routes.operations import Request, RouteTable, integer
from basalt.http.routes.schemas import JSON_LINES, JSON_LINES_ALIAS
from basalt.http.routes.topics import EXISTING, TOPIC_PATH, named_topic
from basalt.messaging.read.log_reader import Fetch
from basalt.messaging.read.slices import Slice
from basalt_engine.records import Kind

RECORDS_PATH = TOPIC_PATH + "/records"
PART_RECORDS = 1_000  # an answer is made and sent in parts of about so many; each takes a few milliseconds

_KIND_NAMES = {kind: kind.name.lower() for kind in Kind}

route = RouteTable("records")


@route(
    "POST",
    RECORDS_PATH,
    query=(integer(POINTER, 1, LONG_MAX, "of JSON lines, which have no room for it"),),
    body={**schemas.in_both(schemas.RECORDS_REQUEST), JSON_LINES: schemas.LINES},
    body_required=True,
    answer=schemas.in_both(schemas.PUBLISH_RESPONSE),
    errors=(*EXISTING, TransactionEndedError),
)
async def publish(request: Request) -> Response:
    """Publish records."""
    written = format_of(request, _WRITTEN, "JSON lines")
    title = named_topic(request)
    wanted: RecordsRequest = written.decode(await read_body(request))
    pointer = request.integer(POINTER) if written.pointer_in_query else wanted.write_pointer
    placed = await request.services.messaging.publish_records(title, wanted.records, pointer)
    return Response() if pointer is None else Response(200, written.encode(placed), written.media_type)


@route(
    "GET",
    RECORDS_PATH,
    query=(FROM, INCLUSIVE, integer("limit", 1, INT_MAX, "most records to answer"), *READ_QUERY),
    answer={**schemas.in_both(schemas.RECORDS_PAGE), JSON_LINES: schemas.LINES},
    errors=(*EXISTING, TransactionEndedError, TransactionNotFoundError),
)
async def read(request: Request) -> Response:
    """Read records from a position on."""
    title = named_topic(request)
    media_type = accepted_type(request, tuple(_READ))
    start = await start_of(request, title)
    fetched = await fetch(request, title, start.at, start.inclusive, request.integer("limit"))
    request.metrics.topics.fetched(title, fetched.messages, fetched.payload_bytes)
    return Response(200, _READ[media_type](request, fetched), media_type, position_headers(request, fetched))


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


def _avro_parts(_request: Request, fetched: Fetch) -> Iterator[bytes]:
    yield from map(records_avro.encode_records_block, records_of(fetched.slices))
    yield avro.END_OF_ARRAY


def _json_parts(request: Request, fetched: Fetch) -> Iterator[bytes]:
    before = records.START_OF_PAGE
    for some in records_of(fetched.slices):
        yield before + records.encode_records_block(some)
        before = b","
    held_by = None if fetched.held_by is None else request.services.holder(fetched.held_by)
    yield (before if before != b"," else b"") + records.end_of_page(fetched.next_id, held_by)


def _line_parts(_request: Request, fetched: Fetch) -> Iterator[bytes]:
    yield from map(records.encode_records_lines, records_of(fetched.slices))


def _decode_lines(body: bytes) -> RecordsRequest:
    return RecordsRequest(None, records.decode_records_lines(body))


_LINES = Format(JSON, _decode_lines, json_bodies.encode_publish_response, pointer_in_query=True)
_WRITTEN: Mapping[bytes, Format] = {
    JSON: Format(JSON, records.decode_records_request, json_bodies.encode_publish_response),
    AVRO: Format(AVRO, records_avro.decode_records_request, avro.encode_publish_response),
    JSON_LINES: _LINES,
    JSON_LINES_ALIAS: _LINES,
}
_READ: Mapping[bytes, Callable[[Request, Fetch], Iterator[bytes]]] = {
    JSON: _json_parts,
    AVRO: _avro_parts,
    JSON_LINES: _line_parts,
    JSON_LINES_ALIAS: _line_parts,
}
