"""Reading a topic's messages and records: a poll, with its wait, and the answer in the format that it asks for.

Formats: docs/formats/avro-bodies.md, docs/formats/json-bodies.md, docs/formats/message-batches.md, docs/formats/records-api.md.

A poll's answer is made in parts: a part is sent while the next one is made. Avro lets an array come in several blocks, so
each run of neighbouring messages is a block; messages that lie alone in their rows are gathered, for a block of their own
would cost each of them more than its bytes do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from basalt.access.needs import needs
from basalt.access.quotas import FETCH_BYTES, WAITING_FETCHES
from basalt.api.bodies.messages import INT_MAX, Buffer, Carried, ConsumeRequest, Record
from basalt.api.codecs import avro, avro_values, batches, json_bodies, json_records
from basalt.api.codecs.encoded import ALONE_BYTES_MIN, RUN_MESSAGES_MIN, AvroMessages, BatchedMessages, Encoding
from basalt.catalog.topics import TopicName
from basalt.errors import InputError, SessionFencedError, TransactionEndedError, TransactionNotFoundError
from basalt.http import traces
from basalt.http.asgi.requests import AVRO, JSON, ClientGoneError, Headers
from basalt.http.asgi.responses import WAITING, Response, next_header
from basalt.http.routes import schemas
from basalt.http.routes.route_table import (
    EXISTING,
    RECORDS_PATH,
    TOPIC,
    TOPIC_PATH,
    Request,
    RouteTable,
    choice,
    flag,
    integer,
    words,
)
from basalt.http.routes.topics import BACK, FROM, INCLUSIVE, start_of
from basalt.messaging.log.answers import StretchPart
from basalt.messaging.read.log_reader import Fetch
from basalt.messaging.read.slices import Slice
from basalt.transactions.codec import decode_transaction
from basalt.transactions.rules.transaction import ID_PATTERN
from basalt_engine.records import RecordKind
from basalt_engine.snapshot import TransactionSnapshot

BATCHES = b"application/vnd.basalt.batches"

WAIT_MS_MAX = 60_000  # proxies and clients give up on silent connections at about this age
WHOLE_BYTES_MAX = 1024 * 1024  # payloads of an answer that is made as a whole and sent with its length
PART_BYTES = 256 * 1024  # about the size of a part: few enough to send, small enough to make without a pause
PART_RECORDS = 1_000  # an answer of records is made and sent in parts of about so many; each takes a few milliseconds
_MESSAGE_OVERHEAD_BYTES = 24  # an id and two lengths, beside the payload

ISOLATION = choice(
    "isolation",
    ("committed", "uncommitted"),
    "what counts: messages that readers of committed ones see (the default), or everything",
)
READ_QUERY = (
    ISOLATION,
    integer("waitMs", 0, WAIT_MS_MAX, "answer when there is something to read, or after so many milliseconds"),
    words("transaction", ID_PATTERN, "read under the snapshot of this open transaction"),
    flag("markers", "markers too, in their places; they count for no limit"),
)
READS = needs(
    "read", TOPIC, in_body=("transact transactions",)
)  # the open transaction under which is read, if one is named
_KIND_NAMES = {kind: kind.name.lower() for kind in RecordKind}

T = TypeVar("T")

route = RouteTable("messages")


class Shape(NamedTuple):
    """The form of a poll's answer: batches, records in a media type, or messages in it."""

    media_type: bytes
    batched: bool
    records: bool

    @property
    def encoding(self) -> Encoding | None:
        """The encoding in which the log's rows are read; None where slices of them are wanted."""
        if self.batched:
            return BatchedMessages
        return AvroMessages if self.media_type == AVRO and not self.records else None


@route(
    "POST",
    TOPIC_PATH + "/poll",
    READS,
    query=(*READ_QUERY, flag("records", "answer records, in the formats of those")),
    body=schemas.in_both(schemas.CONSUME_REQUEST),
    body_required=True,
    answer={JSON: {"anyOf": [schemas.MESSAGES, schemas.RECORDS_PAGE]}, AVRO: schemas.BINARY, BATCHES: schemas.BATCHED},
    errors=(*EXISTING, TransactionEndedError, SessionFencedError, TransactionNotFoundError),
    meters=(FETCH_BYTES,),
)
async def poll(request: Request) -> Response:
    """Read messages from a position on."""
    title = request.topic
    media_type = request.required_type(_POLL)
    body = _POLL[media_type](await request.body())
    start = body.start_from
    start = start if start is None or isinstance(start, int) else bytes(start)
    records = request.flag("records")
    batched = request.accepts(BATCHES) and not records
    if request.flag("markers") and not (batched or records):
        raise InputError(
            "markers=true needs an answer that has room for markers",
            field="markers",
            hint="Accept application/vnd.basalt.batches, or read records.",
        )
    shape = Shape(media_type, batched, records)
    fetched = await fetch(request, title, start, body.inclusive, body.limit, body.transaction, shape.encoding)
    return messages_answer(request, fetched, shape, position_headers(request, fetched))


def messages_answer(request: Request, fetched: Fetch, shape: Shape, headers: Headers) -> Response:
    """The answer of a poll, or of a fetch of a group."""
    if shape.batched:  # takes no time to make, whatever its size
        return Response(200, list(batch_parts(fetched.encoded)), BATCHES, headers)
    if shape.encoding is not None:
        parts = avro_parts(fetched.encoded)
    else:
        parts = _RECORD_PARTS[shape.media_type](request, fetched) if shape.records else json_parts(fetched.slices)
    encoded_bytes = sum(part.payload_bytes for part in fetched.encoded if isinstance(part, StretchPart))
    whole = fetched.payload_bytes - encoded_bytes <= WHOLE_BYTES_MAX
    return Response(200, list(parts) if whole else parts, shape.media_type, headers)


@route(
    "GET",
    RECORDS_PATH,
    READS,
    query=(FROM, INCLUSIVE, BACK, integer("limit", 1, INT_MAX, "most records to answer"), *READ_QUERY),
    answer={**schemas.in_both(schemas.RECORDS_PAGE), schemas.JSON_LINES: schemas.LINES},
    errors=(*EXISTING, TransactionEndedError, SessionFencedError, TransactionNotFoundError),
    meters=(FETCH_BYTES,),
    tag="records",
)
async def read_records(request: Request) -> Response:
    """Read records from a position on."""
    title = request.topic
    media_type = request.accepted_type(tuple(_RECORD_PARTS))
    start, inclusive = await start_of(request, title)
    fetched = await fetch(request, title, start, inclusive, request.integer("limit"))
    return Response(200, _RECORD_PARTS[media_type](request, fetched), media_type, position_headers(request, fetched))


async def fetch(
    request: Request,
    title: TopicName,
    start: bytes | int | None,
    inclusive: bool,
    messages_max: int | None,
    transaction: Buffer | None = None,
    encoding: Encoding | None = None,
) -> Fetch:
    """Fetch and count what the topic has for a reader; wait as long as `waitMs` says or until the client has gone.

    The query has `isolation`, `transaction`, `markers` and `waitMs`; the argument `transaction` are a snapshot's bytes.
    """
    snapshot = await _snapshot(request, transaction)
    committed = snapshot is None and _is_committed(request)
    wait_ms = request.integer("waitMs") or 0
    markers = request.flag("markers")

    def look(wait_ms: int) -> Coroutine[None, None, Fetch]:
        return request.services.messaging.fetch(
            title, start, inclusive, messages_max=messages_max, snapshot=snapshot, committed=committed, markers=markers,
            wait_ms=wait_ms, encoding=encoding,
        )  # fmt: skip

    fetched = await look(0)
    if wait_ms and not (fetched.slices or fetched.encoded):
        fetched = await unless_gone(request, look(wait_ms))
    request.metrics.topics.fetched(title, fetched.messages, fetched.payload_bytes)
    if request.services.traces is not None:
        request.traceparents = traceparents_in(fetched)
    return fetched


def traceparents_in(fetched: Fetch) -> list[bytes]:
    """The traces that messages of an answer name in their headers."""
    slices = (piece for piece in (*fetched.slices, *fetched.encoded) if isinstance(piece, Slice))
    return traces.named_in((piece.batch, piece.start, piece.stop) for piece in slices)


async def unless_gone(request: Request, answer: Coroutine[None, None, T]) -> T:
    """Wait for the answer; `ClientGoneError` when nobody is left to be told.

    `ThrottledError` when the caller has as many waits as its quota allows.
    """
    try:
        with request.one_more(WAITING_FETCHES):
            return await while_there(request, answer)
    finally:
        answer.close()  # which nobody may have begun


async def while_there(request: Request, answer: Coroutine[Any, Any, T]) -> T:
    """Wait for what is to be answered; `ClientGoneError` when nobody is left to be told."""
    if not request.route.endswith(WAITING):
        request.route += WAITING  # in the metrics a call that waits is not a slow call
    task, waits, given_up = asyncio.current_task(), True, False
    assert task is not None, "a call is answered in a task"

    def give_up(_: asyncio.Future[None]) -> None:
        nonlocal given_up
        if waits:  # else it was told while the answer was on its way
            given_up = True
            task.cancel()

    gone = asyncio.ensure_future(request.exchange.until_gone())
    gone.add_done_callback(give_up)
    try:
        return await answer  # in this task, so that nothing of the request runs on behind it
    except asyncio.CancelledError:
        if given_up and not task.uncancel():  # nobody else cancels it
            raise ClientGoneError from None
        raise
    finally:
        waits = False
        gone.cancel()


def _is_committed(request: Request) -> bool:
    """True when a read without a transaction is of committed messages: by default, where transactions are managed here."""
    isolation = request.text("isolation")
    if isolation is None:
        return request.services.settings.transactions.manager == "builtin"
    return isolation == "committed"


async def _snapshot(request: Request, given: Buffer | None) -> TransactionSnapshot | None:
    """The snapshot to read under: of the bytes in the body, or of the open transaction that the query names."""
    transaction_id = request.text("transaction")
    if [given, request.text("isolation"), transaction_id].count(None) < 2:
        raise InputError(
            "the poll names more than one snapshot to read under",
            field="transaction",
            hint="Give one of: isolation, the query's transaction, the body's transaction.",
        )
    if given is not None:
        return request.snapshots.snapshot(decode_transaction(given))
    if transaction_id is not None:
        transaction = await request.services.transactions.get(
            await request.transaction_of(transaction_id, "transaction")
        )
        return transaction.snapshot()
    return None


def position_headers(request: Request, fetched: Fetch) -> Headers:
    """Headers that say where the reader goes on and which transaction stopped it; with markers, how to judge them."""
    headers = next_header(fetched.next_id)
    if fetched.held_by is not None:
        headers.append((b"basalt-held-by", request.services.holder(fetched.held_by).encode("ascii")))
    if fetched.view_age_ms is not None:
        headers.append((b"basalt-view-age", b"%d" % fetched.view_age_ms))
    if fetched.generation is not None:
        headers.append((b"basalt-generation", b"%d" % fetched.generation))
    if fetched.tasks is not None:
        headers.append((b"basalt-tasks", b"%d" % fetched.tasks))
    return headers


class _Gathered:
    """Messages of several slices, in columns. All or none of the slices have a section of what messages carry: `flags`."""

    def __init__(self, flags: int = 0) -> None:
        self.flags = flags
        self.ids: list[bytes] = []
        self.payloads: list[Buffer] = []
        self.size_bytes = 0
        self._slices: list[Slice] = []

    def add(self, piece: Slice) -> None:
        self.ids += [piece.first_id()] if piece.count == 1 else piece.ids()
        self.payloads += piece.payloads()
        self.size_bytes += piece.payload_bytes + piece.count * _MESSAGE_OVERHEAD_BYTES
        if self.flags:
            self._slices.append(piece)

    def sections(self) -> list[list[memoryview]]:
        """The sections of each slice, as they are stored."""
        return [piece.sections() for piece in self._slices]

    def carried(self) -> list[Carried] | None:
        """Read what each message carries beside its payload; None when none carries anything."""
        return [Carried(*extras) for piece in self._slices for extras in piece.extras()] if self.flags else None


Piece = Slice | StretchPart


def _gathered(
    pieces: Sequence[Piece], stands_alone: Callable[[Slice], bool]
) -> Iterator[_Gathered | Slice | StretchPart]:
    """Pieces that are encoded already, and slices that stand alone, as they are; the others gathered to about the size of a part."""
    gathered = _Gathered()
    for piece in pieces:
        if isinstance(piece, StretchPart):
            alone, flags = True, gathered.flags
        else:
            alone, flags = stands_alone(piece), piece.batch.flags
        if flags != gathered.flags:
            if gathered.ids:
                yield gathered
            gathered = _Gathered(flags)
        if not alone:
            assert isinstance(piece, Slice)
            gathered.add(piece)
        if gathered.ids and (alone or gathered.size_bytes >= PART_BYTES):
            yield gathered
            gathered = _Gathered(flags)
        if alone:
            yield piece
    if gathered.ids:
        yield gathered


def avro_parts(pieces: Sequence[Piece]) -> Iterator[Buffer]:
    """A Messages answer as Avro."""
    return in_parts(_avro_pieces(pieces))


def _avro_pieces(pieces: Sequence[Piece]) -> Iterator[Buffer]:
    for part in _gathered(pieces, lambda piece: piece.count >= RUN_MESSAGES_MIN and piece.counted_at is not None):
        if isinstance(part, _Gathered):
            yield avro.encode_messages_block(part.ids, part.payloads)
        elif isinstance(part, StretchPart):
            yield from part.pieces()
        else:
            yield avro.encode_messages_run(*part.id_parts(), part.payloads())
    yield avro_values.END_OF_ARRAY


def batch_parts(pieces: Sequence[Piece]) -> Iterator[Buffer]:
    """A Messages answer as batches. Long stretches are the stored bytes themselves, not copied."""
    return in_parts(chain([batches.START], _batch_pieces(pieces), [batches.END]))


def in_parts(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes in parts worth a call to send them: short pieces joined, long ones as they lie."""
    joined: list[Buffer] = []
    joined_bytes = 0
    for piece in pieces:
        if len(piece) < ALONE_BYTES_MIN:
            joined.append(piece)
            joined_bytes += len(piece)
            if joined_bytes < PART_BYTES:
                continue
        if joined:
            yield b"".join(joined)
            joined, joined_bytes = [], 0
        if len(piece) >= ALONE_BYTES_MIN:
            yield piece
    if joined:
        yield b"".join(joined)


def _is_batch(piece: Slice) -> bool:
    is_short = piece.count < RUN_MESSAGES_MIN and piece.payload_bytes < ALONE_BYTES_MIN
    return not is_short or piece.batch.kind is not RecordKind.USER


def _batch_pieces(pieces: Sequence[Piece]) -> Iterator[Buffer]:
    for part in _gathered(pieces, _is_batch):
        if isinstance(part, StretchPart):
            yield from part.pieces()
        elif isinstance(part, _Gathered):
            yield batches.encode_list(part.ids, part.payloads)
            if part.flags:
                yield batches.encode_carried(part.flags, part.sections())
        elif part.batch.kind is not RecordKind.USER:
            yield batches.encode_marker(_KIND_NAMES[part.batch.kind], part.first_id(), part.payloads()[0])
        else:
            lengths, payloads = part.span()
            if part.counted_at is None:
                yield batches.encode_list_head(part.count, len(payloads))
                yield part.id_bytes()
            else:
                yield batches.encode_run_head(part.first_id(), part.counted_at, part.count, len(payloads))
            yield lengths
            yield payloads
            if part.batch.flags:
                yield batches.encode_carried(part.batch.flags, [part.sections()])


def json_parts(slices: Sequence[Slice]) -> Iterator[bytes]:
    """A Messages answer as JSON."""
    before = json_bodies.START_OF_MESSAGES
    for part in _gathered(slices, lambda _: False):
        assert isinstance(part, _Gathered)
        yield before + json_bodies.encode_messages_block(part.ids, part.payloads, part.carried())
        before = b","
    yield json_bodies.END_OF_MESSAGES if before == b"," else json_bodies.START_OF_MESSAGES + json_bodies.END_OF_MESSAGES


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


def _avro_record_parts(_request: Request, fetched: Fetch) -> Iterator[bytes]:
    yield from map(avro.encode_records_block, records_of(fetched.slices))
    yield avro_values.END_OF_ARRAY


def _json_record_parts(request: Request, fetched: Fetch) -> Iterator[bytes]:
    before = json_records.START_OF_PAGE
    for some in records_of(fetched.slices):
        yield before + json_records.encode_records_block(some)
        before = b","
    held_by = None if fetched.held_by is None else request.services.holder(fetched.held_by)
    yield (before if before != b"," else b"") + json_records.end_of_page(fetched.next_id, held_by)


def _record_lines(_request: Request, fetched: Fetch) -> Iterator[bytes]:
    yield from map(json_records.encode_records_lines, records_of(fetched.slices))


_POLL: Mapping[bytes, Callable[[bytes], ConsumeRequest]] = {
    AVRO: avro.decode_consume_request,
    JSON: json_bodies.decode_consume_request,
}
_RECORD_PARTS: Mapping[bytes, Callable[[Request, Fetch], Iterator[bytes]]] = {
    JSON: _json_record_parts,
    AVRO: _avro_record_parts,
    schemas.JSON_LINES: _record_lines,
    schemas.JSON_LINES_ALIAS: _record_lines,
}
