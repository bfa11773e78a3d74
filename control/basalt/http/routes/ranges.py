"""The calls on ranges of a topic: its stable end, how far a reader may go, a range in parts, its messages as Arrow; markers.

Format of a marker, and the rules: docs/formats/markers.md. An Arrow answer (docs/formats/arrow.md) is made of stretches
of stored bytes: no message is touched by itself, unless it has more than a payload.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from basalt.access.needs import needs
from basalt.access.quotas import FETCH_BYTES
from basalt.api.bodies.json import message_id
from basalt.api.bodies.messages import INT_MAX, LONG_MAX, Buffer
from basalt.api.bodies.ranges import Advance, MarkerRequest, MarkersInfo, Splits, StableEnd, TaskInfo
from basalt.api.codecs import arrow
from basalt.api.codecs.arrow import ARROW, BATCH_BYTES_MAX, BATCH_ROWS_MAX, END_OF_STREAM, Source, Stretch
from basalt.api.markers import Marker, MarkerState
from basalt.errors import ConflictError, GenerationError, InputError, MalformedBodyError, MarkerRefusedError
from basalt.http.asgi.passed_on import PassedExchange
from basalt.http.asgi.responses import Response, next_header
from basalt.http.routes.messages import load_arrow
from basalt.http.routes.polls import ISOLATION, WAIT_MS_MAX, in_parts, unless_gone
from basalt.http.routes.route_table import (
    EXISTING,
    TOPIC,
    TOPIC_PATH,
    Query,
    Request,
    RouteTable,
    choice,
    integer,
    query,
)
from basalt.http.routes.schemas import ARROW_STREAM
from basalt.messaging.ranges import SPLITS_MAX, Range, undecided
from basalt.messaging.read.range_permit import Asked
from basalt.messaging.read.slices import Slice
from basalt.transactions.rules.transaction import TransactionIds
from basalt_engine.keys import MESSAGE_ID_BYTES
from basalt_engine.records import BatchSection

MARKERS_PATH = TOPIC_PATH + "/markers"
RANGE_BYTES_MAX = 8 << 20  # of one answer, unless the request says otherwise: this much is in memory while it is sent
RANGE_BYTES_LIMIT = 32 << 20  # what it may be told
AT_ONCE_ROWS_MAX = 10_000  # an answer of more, or of more than payloads, is made while it is sent: others go in between

PERMIT_ASKED = b"basalt-range-permit"  # a server's word that it can read the range itself
PERMIT = b"application/vnd.basalt.range-permit"

_CARRIED = BatchSection.KEYS | BatchSection.HEADERS | BatchSection.EVENT_TIMES
_CARRIED_COLUMNS = {"key", "headers", "event_time"}

route = RouteTable("ranges")


def id_parameter(name: str, meaning: str, *, required: bool = False) -> Query:
    """A query parameter that is an id, whether or not a message has it."""
    digits = 2 * MESSAGE_ID_BYTES
    pattern = f"[0-9a-fA-F]{{{digits}}}"
    schema = {"type": "string", "pattern": f"^{pattern}$"}
    found = query(name, schema, meaning, re.compile(pattern).fullmatch, f"be an id: {digits} hex digits")
    return replace(found, required=required)


AFTER = id_parameter("after", "where the range begins, exclusively; without it at the oldest message")


class IdRange(NamedTuple):
    """The range that the parameters `after` and `through` name; None where one is left out."""

    after: bytes | None
    through: bytes | None


@route("GET", TOPIC_PATH + "/stable-end", needs("observe", TOPIC), query=(ISOLATION,), errors=EXISTING)
async def stable_end(request: Request) -> StableEnd:
    """Up to where the topic reads the same for ever."""
    return await request.services.ranges.stable_end(request.topic, _is_committed(request))


@route(
    "GET",
    TOPIC_PATH + "/advance",
    needs("observe", TOPIC),
    query=(
        AFTER,
        id_parameter("through", "go no further than this id"),
        integer("messagesMax", 1, LONG_MAX, "most messages; without it as many as there are"),
        integer("bytesMax", 1, LONG_MAX, "most bytes of payloads, but for a first message that is larger"),
        ISOLATION,
    ),
    errors=EXISTING,
)
async def advance(request: Request) -> Advance:
    """Advance a reader within limits, with the state of the markers on the way."""
    after, through = _id_range(request)
    run = await request.services.ranges.advance(
        request.topic, after, through=through, messages_max=request.integer("messagesMax"),
        bytes_max=request.integer("bytesMax"), committed=_is_committed(request),
    )  # fmt: skip
    return Advance(
        message_id(run.through), run.messages, run.payload_bytes, run.at_end, run.generation, run.expired,
        run.marker_state.task_count, run.tasks_property, _tasks(run.marker_state),
    )  # fmt: skip


@route(
    "GET",
    TOPIC_PATH + "/splits",
    needs("observe", TOPIC),
    query=(
        AFTER,
        id_parameter("through", "where the range ends, inclusively", required=True),
        replace(integer("n", 1, SPLITS_MAX, "most parts"), required=True),
        ISOLATION,
    ),
    errors=(*EXISTING, ConflictError),
)
async def splits(request: Request) -> Splits:
    """A range in parts of about the same size."""
    (after, through), count = _id_range(request), request.integer("n")
    if through is None or count is None:
        field = "through" if through is None else "n"
        raise InputError(f"the query parameter {field} is missing", field=field, hint="give `through`, an id, and `n`")
    return await request.services.ranges.splits(request.topic, after, through, count, committed=_is_committed(request))


@route(
    "GET",
    TOPIC_PATH + "/range",
    needs("read", TOPIC),
    query=(
        AFTER,
        id_parameter("through", "where the range ends, inclusively: at most the topic's stable end", required=True),
        Query("columns", str, {"type": "string"}, f"comma-separated, some of {', '.join(arrow.COLUMNS)}"),
        integer("bytesMax", 1, RANGE_BYTES_LIMIT, "cut the answer at so many bytes of payloads; 8 MiB by default"),
        ISOLATION,
        integer("generation", 1, INT_MAX, "refuse the call when the topic is of another generation"),
    ),
    answer={ARROW: ARROW_STREAM},
    errors=(*EXISTING, GenerationError, ConflictError),
    tag="messages",
    meters=(FETCH_BYTES,),
)
async def read(request: Request) -> Response:
    """The messages after one id and through another, as Arrow record batches."""
    await load_arrow()
    title = request.topic
    names = arrow.wanted(request.text("columns"))
    after, through = _id_range(request)
    if through is None:
        raise InputError("a range needs its end", field="through", hint="Ask stable-end or advance for one.")
    committed, topics = _is_committed(request), request.services.topics
    log = await topics.open(title)
    topic = log.topic.of_generation(request.integer("generation"))
    end = await request.services.ranges.stable_end(title, committed=committed)
    if end.id is None or through > end.id:
        raise undecided(through)
    bytes_max = request.integer("bytesMax") or RANGE_BYTES_MAX
    if _may_read_elsewhere(request):
        asked = Asked(after, through, bytes_max, names)
        permit = request.services.ranges.permit(log, asked, request.services.ids.coordinator, committed=committed)
        if permit is not None:
            return Response(200, _one_part(permit.encode()), PERMIT)
    found = await request.services.ranges.read(log, after, through, bytes_max, committed=committed)
    # If it was deleted meanwhile, rows were missing where nobody would miss them.
    (await topics.get(title)).of_generation(topic.generation)
    request.metrics.topics.fetched(title, found.messages, found.payload_bytes)
    return range_answer(found, names, Source(topic.name.encode(), topic.generation), request.services.ids)


def range_answer(found: Range, names: tuple[str, ...], source: Source, ids: TransactionIds) -> Response:
    """The answer with what was found of a range, whichever server has read it."""
    headers = [(b"basalt-generation", b"%d" % source.generation), *next_header(found.next_id)]
    parts = in_parts(_arrow(found.slices, names, source, ids))
    at_once = found.messages <= AT_ONCE_ROWS_MAX and not any(piece.batch.flags for piece in found.slices)
    return Response(200, list(parts) if at_once else parts, ARROW, headers)


def _may_read_elsewhere(request: Request) -> bool:
    """Tell whether the server that has passed the call on may read the range itself. Where a quota counts bytes, they are counted here."""
    return PERMIT_ASKED in request.headers and isinstance(request.exchange, PassedExchange) and request.account is None


async def _one_part(data: bytes) -> AsyncGenerator[Buffer, None]:
    """A body that goes out as it is, in no content coding: it is for the other server, and not for its caller."""
    yield data


@route("POST", MARKERS_PATH, needs("write", TOPIC), errors=(*EXISTING, MarkerRefusedError), tag="markers")
async def emit(request: Request, asked: MarkerRequest) -> None:
    """Emit a watermark or an end of stream."""
    if (asked.event_time_ms is None) == (asked.kind == "watermark"):
        raise MalformedBodyError("a watermark has an eventTimeMs, an end of stream has none", field="eventTimeMs")
    if asked.event_time_ms is not None and not -LONG_MAX - 1 <= asked.event_time_ms <= LONG_MAX:
        raise MalformedBodyError("eventTimeMs has more than 64 bits", field="eventTimeMs")
    marker = Marker(asked.task, asked.task_count, asked.event_time_ms)
    await request.services.markers.publish(request.topic, marker)


@route(
    "GET",
    MARKERS_PATH,
    needs("observe", TOPIC),
    query=(
        integer("waitMs", 0, WAIT_MS_MAX, "answer when the topic has ended, or after so many milliseconds"),
        choice("until", ("ended",), "what `waitMs` waits for"),
    ),
    errors=EXISTING,
    tag="markers",
)
async def show_markers(request: Request) -> MarkersInfo:
    """The topic's watermark, and whether it has ended."""
    title, markers = request.topic, request.services.markers
    facts = await markers.facts(title)
    wait_ms = request.integer("waitMs") or 0
    if wait_ms and not facts.ended:
        facts = await unless_gone(request, markers.facts(title, wait_ms=wait_ms))
    at = None if facts.at is None else facts.at.hex()
    return MarkersInfo(
        facts.watermark_ms, facts.ended, facts.state.task_count, _tasks(facts.state), at, facts.generation
    )


def _tasks(state: MarkerState) -> tuple[TaskInfo, ...]:
    return tuple(TaskInfo(name, *task) for name, task in sorted(state.tasks.items()))


def _is_committed(request: Request) -> bool:
    """Tell whether only messages that committed readers see count."""
    return request.text("isolation") != "uncommitted"


def _id_range(request: Request) -> IdRange:
    after, through = request.text("after"), request.text("through")
    id_range = IdRange(
        None if after is None else bytes.fromhex(after), None if through is None else bytes.fromhex(through)
    )
    if id_range.after is not None and id_range.through is not None and id_range.after > id_range.through:
        raise InputError(
            f"the range ends at {id_range.through.hex()}, before it begins at {id_range.after.hex()}",
            field="through",
            hint="give an id that is not before `after`",
        )
    return id_range


def _arrow(slices: Sequence[Slice], names: tuple[str, ...], source: Source, ids: TransactionIds) -> Iterator[Buffer]:
    yield arrow.encode_start(names)
    with_values, with_carried = "value" in names, not _CARRIED_COLUMNS.isdisjoint(names)
    for some in _batches(slices):
        stretches = [_stretch(run, ids, with_values, with_carried) for piece in some for run in piece.runs()]
        yield arrow.encode_batch(names, stretches, source)
    yield END_OF_STREAM


def _batches(slices: Sequence[Slice]) -> Iterator[list[Slice]]:
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
    assert piece.counted_at is not None
    lengths, payloads = piece.span() if with_values else (b"", b"")
    carried = None
    if with_carried and piece.batch.flags & _CARRIED:
        carried = piece.extras()
    writer = None if piece.written_by is None else ids.text(abs(piece.written_by)).encode("ascii")
    return Stretch(
        piece.count, piece.first_id(), piece.counted_at, piece.publish_ms, writer, lengths, payloads, carried
    )
