"""Plans for one topic's messages: publish, store, roll back, poll, ranges as Apache Arrow; and the positions to read from.

Routes: docs/reference/http-api.md. Bodies are Avro, or for a poll's answer batches: what costs least at both ends. Arrow's are
bytes, for any Arrow library; none is needed here (docs/formats/arrow.md). Positions in text are read by `basalt.api.positions`,
so the client understands what the command line does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

from basalt.api.bodies.messages import Buffer, ConsumeRequest, PublishRequest, PublishResponse, RecordsRequest
from basalt.api.bodies.transactions import TransactionInfo
from basalt.api.codecs import avro, json_bodies
from basalt.api.positions import START, Position, PositionKind, after_id, at_id, at_time, parse_position
from basalt.client.calls.pages import Message, Page
from basalt.client.calls.payloads import (
    Beside,
    HeadersLike,
    Outgoing,
    Payloads,
    RecordIn,
    Text,
    are_plain,
    as_records,
    chunks,
    each_message,
    json_payload,
    record_of,
)
from basalt.client.plans import (
    AVRO,
    BATCHES,
    JSON,
    Answer,
    Call,
    Effect,
    Query,
    Steps,
    TopicScope,
    ask,
    id_of,
    media_type_of,
    next_id_of,
    nothing,
    query_of,
)
from basalt.client.producers import FIRST_REPEAT_MS_MAX, STORED_BEFORE_HEADER
from basalt.client.servers import TO_OWNER, place_of_range
from basalt.errors import BasaltError, InputError, ProducerUnknownError, SequenceGapError

ARROW = "application/vnd.apache.arrow.stream"
ARROW_CONTINUES = b"\xff\xff\xff\xff"  # in front of each message of a stream
ARROW_RECORD_BATCH = 3  # the type of a message's header: Message.fbs

Isolation: TypeAlias = Literal["committed", "uncommitted"]
TransactionLike: TypeAlias = TransactionInfo | str | bytes | None
PositionLike: TypeAlias = bytes | str | int | datetime | Message | Position | None

FOLLOW_WAIT_MS = 20_000  # a poll that waits; well below the time-outs of proxies, and cheap to repeat

PUBLISHED_UNHEARD = (
    "Poll to see whether the messages came before publishing them again; a transaction can be asked for its outcome."
)
STORED_UNHEARD = "Abort the transaction and begin another: stored again, the messages may come twice."

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class ArrowPage:
    """A range's messages, or its first ones: an Arrow IPC stream, `pyarrow.ipc.open_stream(page.body)`.

    `next_id` is where to go on, as `after`; None: this is all of the range.
    """

    body: bytes = field(repr=False)
    next_id: bytes | None
    generation: int


def publish(
    scope: TopicScope,
    messages: Payloads,
    *,
    key: Text | None = None,
    headers: HeadersLike | None = None,
    event_time_ms: int | None = None,
    ttl_ms: int | None = None,
    write_pointer: int | None = None,
) -> Steps[PublishResponse | None]:
    """Publish one message (bytes, or text as UTF-8) or any number of them, in order.

    `key`, `headers` and times go with each of them; where they differ, give a `RecordIn` for a message. As few requests as
    the limits allow carry them (65,536 messages, 10 MiB), and each is taken as a whole or not at all; for more in one
    piece use a transaction. None at all publish nothing.

    A request whose answer is lost is sent again, and its messages are there once all the same, for the client numbers them.
    `UnknownOutcomeError` when it could not be learnt in time whether they are there, or at once with `connect(dedup=False)`.
    `write_pointer` is that of an open transaction, for readers to wait at (prefer `client.transaction()`, at which no
    reader waits); then the answer says where the messages stand, for `roll_back`, and one that is lost is not sent again.
    """
    first: PublishResponse | None = None
    last: PublishResponse | None = None
    published = 0
    # With a pointer an empty publish means something: it publishes what was stored.
    runs: Iterable[list[Outgoing]] = chunks(each_message(messages, Beside(key, headers, event_time_ms, ttl_ms)))
    if write_pointer is not None:
        runs = list(runs) or [[]]
    for run in runs:
        try:
            path, body = encoded(run, write_pointer)
            call = publish_call(f"publish {len(run)} messages to {scope}", scope.path(*path), body)
            last = yield from (_numbered(scope, call, len(run)) if write_pointer is None else ask(call))
        except BasaltError as error:
            if published:
                error.add_note(f"the first {published} messages of this call were published before that")
            raise
        first = first or last
        published += len(run)
    if first is None or last is None:
        return None
    return PublishResponse(write_pointer, first.start_ms, first.start_sequence, last.end_ms, last.end_sequence)


def publish_json(
    scope: TopicScope,
    content: object,
    *,
    key: Text | None = None,
    headers: HeadersLike | None = None,
    event_time_ms: int | None = None,
    ttl_ms: int | None = None,
) -> Steps[PublishResponse | None]:
    """Publish one message: any value as JSON in UTF-8. `TypeError` where JSON has no such value (a set, a date)."""
    return publish(scope, json_payload(content), key=key, headers=headers, event_time_ms=event_time_ms, ttl_ms=ttl_ms)


def publish_records(
    scope: TopicScope, records: Iterable[RecordIn], *, write_pointer: int | None = None
) -> Steps[PublishResponse | None]:
    """Publish records: payloads with a key, headers, an event time, a TTL of their own. One request, all or nothing."""
    sent = list(map(record_of, records))
    body = avro.encode_records_request(RecordsRequest(write_pointer, sent))
    call = publish_call(f"publish records to {scope}", scope.path("records"), body)
    return _numbered(scope, call, len(sent)) if write_pointer is None else ask(call)


def publish_arrow(
    scope: TopicScope, body: Buffer, *, write_pointer: int | None = None
) -> Steps[PublishResponse | None]:
    """Publish the rows of an Arrow IPC stream: column `value`, and of `key`, `headers`, `event_time`, `ttl_ms` any.

    One request, all or nothing: at most 65,536 rows and what the server takes as a body (10 MiB).
    """
    query, sent = query_of(transactionWritePointer=write_pointer), bytes(body)
    call = publish_call(f"publish Arrow rows to {scope}", scope.path("publish"), sent, ARROW, query)
    rows = None if write_pointer is not None else _arrow_rows(sent)
    return _numbered(scope, call, rows) if rows else ask(call)


def store(
    scope: TopicScope,
    messages: Payloads,
    transaction: TransactionInfo | int,
    *,
    key: Text | None = None,
    headers: HeadersLike | None = None,
    event_time_ms: int | None = None,
    ttl_ms: int | None = None,
    stored_before: int | None = None,
) -> Steps[None]:
    """Store messages aside under an open transaction (or its write pointer): its commit publishes them, in this order.

    What they are, and what goes with each, is as with `publish`; a `ttl_ms` counts from the commit. With `stored_before`, how
    many messages the pointer has stored in the topic before, a request whose answer is lost is sent again and stored once.
    """
    write_pointer = transaction if isinstance(transaction, int) else transaction.write_pointer
    given = each_message(messages, Beside(key, headers, event_time_ms, ttl_ms))
    yield from store_messages(scope, given, write_pointer, stored_before=stored_before)


def store_messages(
    scope: TopicScope, messages: Iterable[Outgoing], write_pointer: int, *, stored_before: int | None = None
) -> Steps[int]:
    """Store messages aside, as they are sent, under a write pointer. How many they are.

    `stored_before` is how many the pointer has stored in the topic before: by it the server knows a repetition. Without it
    one whose answer is lost is not sent again.
    """
    stored = 0
    for run in chunks(messages):
        path, body = encoded(run, write_pointer, ("store",))
        call = _store_call(scope, f"store messages for {scope}", body, AVRO, path=path)
        if stored_before is not None:
            headers = {STORED_BEFORE_HEADER: str(stored_before + stored)}
            call = replace(call, effect=Effect.NUMBERED, headers=headers)
        yield from ask(call)
        stored += len(run)
    return stored


def store_arrow(scope: TopicScope, body: Buffer, write_pointer: int) -> Steps[None]:
    """Store the rows of an Arrow IPC stream aside under a write pointer, as `store` does: its commit publishes them."""
    query = query_of(transactionWritePointer=write_pointer)
    return ask(_store_call(scope, f"store Arrow rows for {scope}", bytes(body), ARROW, query))


def roll_back(scope: TopicScope, published: PublishResponse) -> Steps[None]:
    """Undo a publish that was made with a write pointer: give back what it answered. Repeating it changes nothing."""
    body = avro.encode_publish_response(published)
    what, path = f"roll back in {scope}", scope.path("rollback")
    return ask(Call(what, "POST", path, nothing, Effect.REPEATABLE, body=body, content_type=AVRO))


def poll(
    scope: TopicScope,
    start: PositionLike = None,
    *,
    inclusive: bool = True,
    limit: int | None = None,
    isolation: Isolation = "committed",
    wait_ms: int = 0,
    transaction: TransactionLike = None,
) -> Steps[Page]:
    """The messages from a position on: as many as `limit`, or as the server puts into one answer.

    They are read under the manager's snapshot of this moment, or under that of a `transaction` (its id, or `TransactionInfo`,
    or the bytes of a snapshot). Such a poll ends at the first message of another open transaction, and `page.held_by`
    tells which. `isolation="uncommitted"` sees messages of open and aborted transactions too. With `wait_ms` (60,000 at most) the server answers when there is something, or then.
    """
    at = position(start, scope.now_ms())
    if at.kind is PositionKind.END:
        at = yield from end(scope)
    query, snapshot = seen_under(isolation, transaction)
    request = ConsumeRequest(start_from(at), inclusive, limit, snapshot)
    return (yield from ask(poll_call(scope, request, query, wait_ms)))


def end(scope: TopicScope, *, patient: bool = False) -> Steps[Position]:
    """The position behind the newest message there is now: never `END`."""
    query = (("from", "end"), ("inclusive", "false"), ("limit", "1"), ("isolation", "uncommitted"))
    what, path = f"find the end of {scope}", scope.path("records")
    return ask(Call(what, "GET", path, _end_position, Effect.NONE, query, accept=AVRO, patient=patient))


def seen_under(isolation: Isolation, transaction: TransactionLike) -> tuple[Query, bytes | None]:
    """Return what tells a poll which messages it may see: query parameters, and the bytes of a snapshot."""
    if transaction is None:
        return query_of(isolation=isolation), None
    if isolation == "uncommitted":
        raise InputError(
            "a read is under a transaction's snapshot, or of uncommitted messages",
            field="isolation",
            hint="give one of the two",
        )
    return ((), transaction) if isinstance(transaction, bytes) else (query_of(transaction=id_of(transaction)), None)


def poll_call(
    scope: TopicScope, request: ConsumeRequest, query: Query = (), wait_ms: int = 0, *, patient: bool = False
) -> Call[Page]:
    body, path = avro.encode_consume_request(request), scope.path("poll")
    return Call(f"poll {scope}", "POST", path, _page, Effect.NONE, query, body, AVRO, BATCHES, wait_ms, patient=patient)


def read_range(
    scope: TopicScope,
    after: bytes | None,
    through: bytes,
    *,
    columns: Sequence[str] | None = None,
    bytes_max: int | None = None,
    isolation: Isolation = "committed",
    generation: int | None = None,
    turn: int | None = None,
    size_bytes: int | None = None,
) -> Steps[ArrowPage]:
    """The messages after one id (None: from the oldest on) and through another, which `stable_end` or `advance` answered.

    The same range is the same rows at every reading, but for messages that expire. `columns`: these alone (None: all).
    An answer ends at about `bytes_max` bytes of payloads. `GenerationError` when the topic is of another generation.
    Of several servers any one may answer. Give ranges that are read side by side a `turn` each, 0, 1, 2 …: then all servers get as many;
    and `size_bytes`, about how many bytes the range has, where you know it: a small one is read by the topic's owner.
    """
    named = None if columns is None else ",".join(columns)
    query = query_of(
        through=through, isolation=isolation, after=after, columns=named, bytesMax=bytes_max, generation=generation
    )
    what, path = f"read a range of {scope}", scope.path("range")
    sizes = [size for size in (bytes_max, size_bytes) if size is not None]
    spread = place_of_range(path, after, turn, min(sizes, default=None))
    headers = TO_OWNER if spread is None else {}
    return ask(Call(what, "GET", path, _arrow_page, Effect.NONE, query, accept=ARROW, headers=headers, spread=spread))


def publish_call(
    what: str, path: str, body: bytes, media_type: str = AVRO, query: Query = ()
) -> Call[PublishResponse | None]:
    # Arrow rows are answered in JSON.
    accept, parse = (JSON, _response_in_json) if media_type == ARROW else (AVRO, _response)
    hint = PUBLISHED_UNHEARD
    return Call(what, "POST", path, parse, Effect.ONCE, query, body, media_type, accept, lost_hint=hint)


def _numbered(scope: TopicScope, call: Call[PublishResponse | None], count: int) -> Steps[PublishResponse | None]:
    """Publish so many messages under the numbers of a producer that nobody else has meanwhile."""
    if scope.producers is None:
        return (yield from ask(call))
    title = (scope.namespace, scope.name)
    producer = scope.producers.borrow(title)
    while True:
        first = producer.next_sequence == 0
        sent = replace(
            call, effect=Effect.NUMBERED, headers=producer.headers(),
            repeat_ms_max=FIRST_REPEAT_MS_MAX if first else None,
        )  # fmt: skip
        # Whatever is raised but a refusal of the call itself leaves its numbers in doubt: then it is never given back.
        try:
            response = yield from ask(sent)
        except (SequenceGapError, ProducerUnknownError):
            # The server has forgotten it. No attempt was lost, so nothing of this was published: begin anew, once.
            if first:
                raise
            producer = scope.producers.new()
        except InputError:
            scope.producers.give_back(title, producer)
            raise
        else:
            producer.next_sequence += count
            scope.producers.give_back(title, producer)
            return response


def encoded(
    run: Sequence[Outgoing], write_pointer: int | None, plain_path: tuple[str, ...] = ("publish",)
) -> tuple[tuple[str, ...], bytes]:
    """The path, below the topic's, and the body that publish a run of messages, or store them."""
    if are_plain(run):
        return plain_path, avro.encode_publish_request(PublishRequest(write_pointer, run))
    path = ("records", "store") if plain_path == ("store",) else ("records",)
    return path, avro.encode_records_request(RecordsRequest(write_pointer, as_records(run)))


def _arrow_rows(stream: bytes) -> int | None:
    """The number of rows of an Arrow IPC stream, without the library; None where it is none that a server takes.

    Rows that are numbered must be counted right: one too few, and the next publish would begin with a number that was taken.
    """
    rows = at = 0
    try:
        while stream[at : at + 4] == ARROW_CONTINUES:
            size, start = struct.unpack_from("<I", stream, at + 4)[0], at + 8
            if not size:
                return rows if start == len(stream) else None
            message = start + struct.unpack_from("<I", stream, start)[0]
            kind_at, header_at, length_at = (_flat_slot(stream, message, field) for field in (1, 2, 3))
            if kind_at and stream[kind_at] == ARROW_RECORD_BATCH:
                header = header_at + struct.unpack_from("<I", stream, header_at)[0]
                rows_at = _flat_slot(stream, header, 0)
                rows += struct.unpack_from("<Q", stream, rows_at)[0] if rows_at else 0
            at = start + size + (struct.unpack_from("<Q", stream, length_at)[0] if length_at else 0)
    except (struct.error, IndexError):
        pass
    return None


def _flat_slot(data: bytes, table: int, field: int) -> int:
    """The place of a field in a FlatBuffers table; 0: it has its default."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise IndexError
    size = struct.unpack_from("<H", data, vtable)[0]
    slot: int = struct.unpack_from("<H", data, vtable + 4 + 2 * field)[0] if size >= 6 + 2 * field else 0
    return table + slot if slot else 0


def _store_call(
    scope: TopicScope, what: str, body: bytes, media_type: str, query: Query = (), path: tuple[str, ...] = ("store",)
) -> Call[None]:
    where = scope.path(*path)
    return Call(what, "POST", where, nothing, Effect.ONCE, query, body, media_type, lost_hint=STORED_UNHEARD)


def _response(answer: Answer) -> PublishResponse | None:
    return avro.decode_publish_response(answer.body) if answer.body else None


def _response_in_json(answer: Answer) -> PublishResponse | None:
    return json_bodies.decode_publish_response(answer.body) if answer.body else None


def _page(answer: Answer) -> Page:
    if media_type_of(answer) != BATCHES:
        raise ValueError("it is no message batches")
    age = answer.headers.get("basalt-view-age")
    held_by = answer.headers.get("basalt-held-by")
    return Page(answer.body, next_id_of(answer), held_by, None if age is None else int(age))


def _arrow_page(answer: Answer) -> ArrowPage:
    if media_type_of(answer) != ARROW:
        raise ValueError("it is no Arrow stream")
    return ArrowPage(answer.body, next_id_of(answer), int(answer.headers["basalt-generation"]))


def _end_position(answer: Answer) -> Position:
    came_meanwhile = avro.decode_records(answer.body)
    if came_meanwhile:
        return at_id(came_meanwhile[0].id)
    next_id = next_id_of(answer)
    return START if next_id is None else after_id(next_id)


def position(given: PositionLike, now_ms: int, field: str = "start") -> Position:
    """The position that was meant. None is the start; an int is milliseconds since 1970; text is a SPEC.

    `InputError` names `field` and what is wrong: a date without a time zone, say, which would mean another moment on
    another machine.
    """
    if given is None:
        return START
    if isinstance(given, Position):
        return given
    if isinstance(given, Message):
        return at_id(given.id)
    if isinstance(given, str):
        return parse_position(given, now_ms, field=field)
    if isinstance(given, bytes):
        return at_id(given)
    if isinstance(given, datetime):
        return at_time(max(0, _milliseconds(given, field)))
    if type(given) is int:  # not a bool, which means no time
        return at_time(given)
    raise TypeError(f"{field} is a {type(given).__name__}; give a message, its id, a time or text such as '-1h'")


def start_from(at: Position) -> bytes | int | None:
    """Return a poll's `startFrom` for this position; not for the end, which has to be found first."""
    assert at.kind is not PositionKind.END
    return at.id if at.id is not None else at.time_ms


def lowest_id(at: Position) -> bytes:
    """The smallest message id that is not before this position; not for the end."""
    if at.id is not None:
        return at.id
    return (at.time_ms or 0).to_bytes(8) + bytes(12)  # an id starts with its publish time


def _milliseconds(moment: datetime, field: str) -> int:
    if moment.tzinfo is None:
        hint = "Give one, such as datetime.now(UTC)."
        raise InputError(f"{field} {moment.isoformat()} has no time zone", field=field, hint=hint)
    return (moment - _EPOCH) // _MILLISECOND
