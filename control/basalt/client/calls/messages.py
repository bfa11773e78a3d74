"""Plans for one topic's messages: publish, store, roll back, poll, and the positions that need asking for.

Routes: docs/reference/http-api.md. Bodies are Avro, or for a poll's answer batches: what costs least at both ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from basalt.api.bodies.transactions import TransactionInfo
from basalt.api.bodies.work import (
    PUBLISH_MESSAGES_MAX,
    Buffer,
    ConsumeRequest,
    PublishRequest,
    PublishResponse,
    RecordIn,
    RecordsRequest,
)
from basalt.api.codecs import avro
from basalt.api.positions import START, Position, PositionKind, after_id, at_id
from basalt.client.calls.pages import Page
from basalt.client.calls.positions import PositionLike, position, start_from
from basalt.client.plans.calls import AVRO, BATCHES, Answer, Call, Effect, Steps, ask, nothing
from basalt.client.plans.scopes import TopicScope
from basalt.errors import BasaltError

Isolation: TypeAlias = Literal["committed"] | None
TransactionLike: TypeAlias = TransactionInfo | str | bytes | None
Payload: TypeAlias = Buffer | str
Payloads: TypeAlias = Payload | Iterable[Payload]

FOLLOW_WAIT_MS = 20_000  # a poll that waits; well below the time-outs of proxies, and cheap to repeat

PUBLISHED_UNHEARD = (
    "Poll to see whether the messages came before publishing them again; a transaction can be asked for its outcome."
)
STORED_UNHEARD = "Abort the transaction and begin another: stored again, the messages may come twice."
BODY_BYTES_MAX = 10 * 1024 * 1024  # what a server takes unless it is told otherwise (http.body_bytes_max)
ENTRY_BYTES_MAX = 5  # the length in front of a message, of up to 16 GiB
REQUEST_BYTES_MAX = 2_048  # all of a body that is not messages: a pointer, counts, names of up to 255 characters


def publish(
    scope: TopicScope, messages: Payloads, *, write_pointer: int | None = None
) -> Steps[PublishResponse | None]:
    """Publish one message (bytes, or text as UTF-8) or any number of them, in order.

    As few requests as the limits allow carry them (65,536 messages, 10 MiB), and each is taken as a whole or not at
    all; for more in one piece use a transaction. None at all publish nothing.

    A request whose answer is lost is not sent again, for its messages could come twice: `UnknownOutcomeError`.
    `write_pointer` is that of an open transaction, for readers to wait at (prefer `client.transaction()`, at which no
    reader waits); then the answer says where the messages stand, for `roll_back`.
    """
    first: PublishResponse | None = None
    last: PublishResponse | None = None
    published = 0
    # With a pointer an empty publish means something: it publishes what was stored.
    runs: Iterable[list[Buffer]] = chunks(each_payload(messages))
    if write_pointer is not None:
        runs = list(runs) or [[]]
    for run in runs:
        try:
            last = yield from ask(_publish_call(scope, PublishRequest(write_pointer, run)))
        except BasaltError as error:
            if published:
                error.add_note(f"the first {published} messages of this call were published before that")
            raise
        first = first or last
        published += len(run)
    if first is None or last is None:
        return None
    return PublishResponse(write_pointer, first.start_ms, first.start_sequence, last.end_ms, last.end_sequence)


def publish_records(
    scope: TopicScope, records: Iterable[RecordIn], *, write_pointer: int | None = None
) -> Steps[PublishResponse | None]:
    """Publish records: payloads with a key, headers, an event time, a TTL of their own. One request, all or nothing."""
    body = avro.encode_records_request(RecordsRequest(write_pointer, list(records)))
    what = f"publish records to {scope}"
    return (
        yield from ask(
            Call(
                what,
                "POST",
                scope.path("records"),
                _response,
                Effect.ONCE,
                body=body,
                content_type=AVRO,
                accept=AVRO,
                lost_hint=PUBLISHED_UNHEARD,
            )
        )
    )


def store(scope: TopicScope, messages: Payloads, transaction: TransactionInfo | int) -> Steps[None]:
    """Store messages aside under an open transaction (or its write pointer): its commit publishes them, in this order."""
    write_pointer = transaction if isinstance(transaction, int) else transaction.write_pointer
    path = scope.path("store")
    for run in chunks(each_payload(messages)):
        body = avro.encode_publish_request(PublishRequest(write_pointer, run))
        what = f"store messages for {scope}"
        yield from ask(
            Call(what, "POST", path, nothing, Effect.ONCE, body=body, content_type=AVRO, lost_hint=STORED_UNHEARD)
        )


def roll_back(scope: TopicScope, published: PublishResponse) -> Steps[None]:
    """Undo a publish that was made with a write pointer: give back what it answered. Repeating it changes nothing."""
    body = avro.encode_publish_response(published)
    call = Call(
        f"roll back in {scope}",
        "POST",
        scope.path("rollback"),
        nothing,
        Effect.REPEATABLE,
        body=body,
        content_type=AVRO,
    )
    yield from ask(call)


def poll(
    scope: TopicScope,
    start: PositionLike = None,
    *,
    inclusive: bool = True,
    limit: int | None = None,
    isolation: Isolation = None,
    wait_ms: int = 0,
    transaction: TransactionLike = None,
) -> Steps[Page]:
    """The messages from a position on: as many as `limit`, or as the server puts into one answer.

    Without a snapshot every message is seen, also those of open and aborted transactions. `isolation="committed"` reads
    under the manager's snapshot of this moment; `transaction` under that of an open transaction (its id, or
    `TransactionInfo`, or the bytes of a snapshot). Such a poll ends at the first message of another open transaction, and
    `page.held_by` tells which. With `wait_ms` (60,000 at most) the server answers when there is something, or then.
    """
    at = position(start, scope.now_ms())
    if at.kind is PositionKind.END:
        at = yield from end(scope)
    query, snapshot = seen_under(isolation, transaction)
    return (
        yield from ask(poll_call(scope, ConsumeRequest(start_from(at), inclusive, limit, snapshot), query, wait_ms))
    )


def end(scope: TopicScope) -> Steps[Position]:
    """The position behind the newest message there is now: never `END`."""
    query = (("from", "end"), ("inclusive", "false"), ("limit", "1"))
    what = f"find the end of {scope}"
    call = Call(what, "GET", scope.path("records"), _end_position, Effect.NONE, query=query, accept=AVRO)
    return (yield from ask(call))


def seen_under(isolation: Isolation, transaction: TransactionLike) -> tuple[tuple[tuple[str, str], ...], bytes | None]:
    """Return what tells a poll which messages it may see: query parameters, and the bytes of a snapshot."""
    query = () if isolation is None else (("isolation", isolation),)
    if transaction is None or isinstance(transaction, bytes):
        return query, transaction
    return (*query, ("transaction", transaction if isinstance(transaction, str) else transaction.id)), None


def poll_call(
    scope: TopicScope, request: ConsumeRequest, query: tuple[tuple[str, str], ...] = (), wait_ms: int = 0
) -> Call[Page]:
    """The call of one poll."""
    return Call(
        f"poll {scope}",
        "POST",
        scope.path("poll"),
        _page,
        Effect.NONE,
        query=query,
        body=avro.encode_consume_request(request),
        content_type=AVRO,
        accept=f"{BATCHES}, {AVRO}",  # an older server knows the second only
        wait_ms=wait_ms,
    )


def _publish_call(scope: TopicScope, request: PublishRequest) -> Call[PublishResponse | None]:
    body = avro.encode_publish_request(request)
    what = f"publish {len(request.messages)} messages to {scope}"
    return Call(
        what,
        "POST",
        scope.path("publish"),
        _response,
        Effect.ONCE,
        body=body,
        content_type=AVRO,
        accept=AVRO,
        lost_hint=PUBLISHED_UNHEARD,
    )


def _response(answer: Answer) -> PublishResponse | None:
    return avro.decode_publish_response(answer.body) if answer.body else None


def _page(answer: Answer) -> Page:
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (BATCHES, AVRO):
        raise ValueError("it is neither batches nor Avro")
    next_id = answer.headers.get("basalt-next")
    return Page(
        answer.body,
        None if next_id is None else bytes.fromhex(next_id),
        answer.headers.get("basalt-held-by"),
        batches=media_type == BATCHES,
    )


def _end_position(answer: Answer) -> Position:
    came_meanwhile = avro.decode_records(answer.body)
    if came_meanwhile:
        return at_id(came_meanwhile[0].id)
    next_id = answer.headers.get("basalt-next")
    return START if next_id is None else after_id(bytes.fromhex(next_id))


def each_payload(given: Payloads) -> Iterator[Buffer]:
    """The messages one by one, text as UTF-8. TypeError names the first that is neither bytes nor text."""
    if isinstance(given, str | bytes | bytearray | memoryview):
        yield _payload(given)
        return
    for payload in given:
        yield payload if type(payload) is bytes else _payload(payload)


def chunks(
    payloads: Iterable[Buffer], *, messages_max: int = PUBLISH_MESSAGES_MAX, body_bytes_max: int = BODY_BYTES_MAX
) -> Iterator[list[Buffer]]:
    """Runs of messages, each as long as one request may carry; none for no messages.

    A message over the limit makes a run of its own, which the server refuses by name of its limit.
    """
    room_bytes = body_bytes_max - REQUEST_BYTES_MAX
    run: list[Buffer] = []
    run_bytes = 0
    for payload in payloads:
        payload_bytes = len(payload) + ENTRY_BYTES_MAX
        if run and (run_bytes + payload_bytes > room_bytes or len(run) == messages_max):
            yield run
            run, run_bytes = [], 0
        run.append(payload)
        run_bytes += payload_bytes
    if run:
        yield run


def _payload(given: Payload) -> Buffer:
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, memoryview):
        return given if given.format == "B" and given.ndim == 1 else given.cast("B")
    if isinstance(given, bytes | bytearray):
        return given
    raise TypeError(f"a message is bytes or text, not {type(given).__name__}; encode it first, as JSON say")
