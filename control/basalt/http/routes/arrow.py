"""Ranges of a topic as Arrow record batches, and Arrow bodies of publish and store. Format: docs/formats/arrow.md.

What is sent is made of stretches of stored bytes: no message is touched by itself, unless it has more than a payload.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from basalt.api.bodies.work import INT_MAX, Buffer
from basalt.api.codecs import arrow_columns, json_bodies
from basalt.api.codecs.arrow import ARROW, END_OF_STREAM, library
from basalt.api.codecs.arrow_bodies import decode_messages
from basalt.api.codecs.arrow_columns import BATCH_BYTES_MAX, BATCH_ROWS_MAX, Source, Stretch
from basalt.errors import ConflictError, GenerationError, InputError, InvalidNameError, TopicNotFoundError
from basalt.http.asgi.request_bodies import read_body
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, Headers
from basalt.http.routes.message_parts import in_parts
from basalt.http.routes.operations import Operation, Query, integer
from basalt.http.routes.ranges import AFTER, ISOLATION, backwards, id_parameter, is_committed, range_id
from basalt.http.routes.schemas import ARROW_STREAM
from basalt.http.routes.topics import TOPIC_PATH, named_topic
from basalt.messaging.ranges.range_reading import undecided
from basalt.messaging.read.fetch import Slice
from basalt.transactions.rules.pointers import TransactionIds
from basalt_engine.records import Flag

RANGE_BYTES_MAX = 8 << 20  # of one answer, unless it is told otherwise: so much is in memory while it is sent
RANGE_BYTES_LIMIT = 32 << 20  # what it may be told
AT_ONCE_ROWS_MAX = 10_000  # an answer of more, or of more than payloads, is made while it is sent: others go in between

_CARRIED = Flag.KEYS | Flag.HEADERS | Flag.EVENT_TIMES
_CARRIED_COLUMNS = {"key", "headers", "event_time"}


async def load_library() -> None:
    """Have the Arrow library, whose first import takes longer than others should wait; or say that it is missing."""
    if not library.cache_info().currsize:
        await asyncio.to_thread(library)


async def read(request: Request) -> Answer:
    """The messages of a range, from its beginning on."""
    await load_library()
    title = named_topic(request)
    names = arrow_columns.wanted(request.text("columns"))
    after, through = range_id(request, "after"), range_id(request, "through")
    if through is None:
        raise InputError("a range needs its end", field="through", hint="Ask stable-end or advance for one.")
    if after is not None and after > through:
        raise backwards(after, through)
    committed, topics = is_committed(request), request.services.topics
    log = await topics.open(title)
    topic = log.topic.of_generation(request.integer("generation"))
    end = await request.services.ranges.stable_end(title, committed=committed)
    if end.id is None or through > end.id:
        raise undecided(through)
    bytes_max = request.integer("bytesMax") or RANGE_BYTES_MAX
    found = await request.services.ranges.read(log, after, through, bytes_max, committed=committed)
    # If it was deleted meanwhile, rows were missing where nobody would miss them.
    (await topics.get(title)).of_generation(topic.generation)
    request.figures.topics.fetched(title, found.messages, found.payload_bytes)
    headers: Headers = [(b"basalt-generation", b"%d" % topic.generation)]
    if found.next_id is not None:
        headers.append((b"basalt-next", found.next_id.hex().encode("ascii")))
    parts = in_parts(_pieces(found.slices, names, Source(topic.name.encode(), topic.generation), request.services.ids))
    at_once = found.messages <= AT_ONCE_ROWS_MAX and not any(piece.batch.flags for piece in found.slices)
    return Answer(200, list(parts) if at_once else parts, ARROW, headers)


async def publish(request: Request) -> Answer:
    """Append the rows of an Arrow stream; under a write pointer answer their range."""
    title = named_topic(request)
    pointer = request.integer("transactionWritePointer")
    await load_library()
    given = decode_messages(await read_body(request))
    placed = await request.services.messaging.publish(title, given.values, pointer, extras=given.extras)
    return Answer() if pointer is None else Answer(200, json_bodies.encode_publish_response(placed), JSON)


async def store(request: Request) -> Answer:
    """Keep the rows of an Arrow stream aside for a transaction's commit."""
    title = named_topic(request)
    pointer = request.integer("transactionWritePointer")
    if pointer is None:
        raise InputError(
            "a store of Arrow rows needs a transactionWritePointer in the query",
            field="transactionWritePointer",
            hint="Begin a transaction and send its writePointer, or use publish.",
        )
    await load_library()
    given = decode_messages(await read_body(request))
    await request.services.messaging.store(title, given.values, pointer, given.extras)
    return Answer()


def _pieces(slices: Sequence[Slice], names: tuple[str, ...], source: Source, ids: TransactionIds) -> Iterator[Buffer]:
    yield arrow_columns.encode_start(names)
    with_values, with_carried = "value" in names, not _CARRIED_COLUMNS.isdisjoint(names)
    for some in _batches(slices, with_carried):
        stretches = [_stretch(piece, ids, with_values, with_carried) for piece in some]
        yield arrow_columns.encode_batch(names, stretches, source)
    yield END_OF_STREAM


def _batches(slices: Sequence[Slice], with_carried: bool) -> Iterator[list[Slice]]:
    """The slices cut into record batches. Where depends on the messages alone, not on the rows or looks they came in."""
    batch: list[Slice] = []
    rows = size_bytes = 0
    for whole in slices:
        piece = whole
        while piece.count:
            part = piece.up_to(BATCH_ROWS_MAX - rows, BATCH_BYTES_MAX - size_bytes, 0 if batch else 1)
            if part.count:
                batch.append(part)
                rows += part.count
                size_bytes += part.payload_bytes
            if part.stop == piece.stop:
                break
            yield batch
            batch, rows, size_bytes = [], 0, 0
            piece = piece.cut_at(part.stop)[1]
    if batch:
        yield batch


def _stretch(piece: Slice, ids: TransactionIds, with_values: bool, with_carried: bool) -> Stretch:
    lengths, payloads = piece.span() if with_values else (b"", b"")
    carried = None
    if with_carried and piece.batch.flags & _CARRIED:
        carried = piece.extras()
    writer = None if piece.written_by is None else ids.text(abs(piece.written_by)).encode("ascii")
    return Stretch(
        piece.count, piece.first_id(), piece.counted_at, piece.publish_ms, writer, lengths, payloads, carried
    )


def generation_query(meaning: str = "refuse the call when the topic is of another generation") -> Query:
    """The parameter that guards a caller against a topic that was created anew."""
    return integer("generation", 1, INT_MAX, meaning)


OPERATIONS = (
    Operation(
        method="GET",
        path=TOPIC_PATH + "/range",
        handler=read,
        summary="The messages after one id and through another, as Arrow record batches",
        tag="messages",
        query=(
            AFTER,
            id_parameter("through", "where the range ends, inclusively: at most the topic's stable end", required=True),
            Query("columns", str, {"type": "string"}, f"comma-separated, some of {', '.join(arrow_columns.COLUMNS)}"),
            integer("bytesMax", 1, RANGE_BYTES_LIMIT, "cut the answer at so many bytes of payloads; 8 MiB by default"),
            ISOLATION,
            generation_query(),
        ),
        answers={200: {ARROW: ARROW_STREAM}},
        errors=(InvalidNameError, TopicNotFoundError, GenerationError, ConflictError),
    ),
)
