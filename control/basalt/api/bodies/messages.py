"""The values of the messaging API's bodies, and the rules about what they may mean.

A codec turns bytes into these values and refuses what is not well formed; the `check_` functions here refuse what is
well formed and means nothing (a limit of 0, an id of 19 bytes). Both codecs call the same functions, so Avro and JSON
cannot drift apart. Formats: docs/formats/avro-bodies.md and docs/formats/json-bodies.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from basalt.api.markers import KIND_END_OF_STREAM, KIND_WATERMARK, MARKER_KINDS
from basalt.errors import MalformedBodyError, TooLargeError

Buffer: TypeAlias = bytes | bytearray | memoryview  # memoryviews are one-dimensional, one byte an item

MESSAGE_ID_BYTES = 20  # publish_ms(8) sequence(2) write_ms(8) payload_sequence(2)
INT_MAX = 2**31 - 1  # Avro int
LONG_MAX = 2**63 - 1  # Avro long; write pointers and times are signed 64-bit on disk too
SEQUENCE_MAX = 65_535  # sequences are unsigned 16-bit, although Avro carries them in an int
PUBLISH_MESSAGES_MAX = 65_536  # one millisecond has as many sequences, so a publish spans two milliseconds at most
WORK_ENTRIES_MAX = 10_000  # per part of Work: one entry per topic or task, and a commit must stay one log entry
SEGMENTS_MAX = 10_001  # a transaction's first write pointer and the checkpoints that one may have
RECORD_HEADERS_MAX = 1_024  # headers of one record: far more than tracing and routing need
HEADER_NAME_BYTES_MAX = 65_535  # a stored name's length has 16 bits
ACKNOWLEDGED_ITEMS_MAX = 65_536  # ids and claims of one call: as many spans as a transaction may acknowledge
ACKNOWLEDGED_CLAIMS_MAX = 1_000  # among them: each takes some microseconds in which nobody else is served
MEMBER_CHARS_MAX = 255  # of a member's name: a host, a process and a number
REASON_CHARS_MAX = 1_000  # of a rejection's reason, which becomes a header of the dead letter
REQUEST_HEADERS_MAX = 131_072  # of all records of one request: small ones take 50 times their bytes in memory

_BEFORE_ALL = bytes(MESSAGE_ID_BYTES)

KIND_USER = "user"
RECORD_KINDS = (KIND_USER, KIND_WATERMARK, KIND_END_OF_STREAM)  # order is that of the Avro enum: never reorder


class PublishRequest(Struct, frozen=True):
    """Body of publish and of store: messages in order, under a transaction when `write_pointer` is not None."""

    write_pointer: int | None
    messages: Sequence[Buffer]


class PublishResponse(Struct, frozen=True):
    """Range of the messages of one publish; both ends inclusive. Also the body of a roll back."""

    write_pointer: int | None
    start_ms: int
    start_sequence: int
    end_ms: int
    end_sequence: int


class ConsumeRequest(Struct, frozen=True):
    """Body of poll. `start_from` is a message id (20 bytes), a time in ms since 1970, or None for the oldest.

    `limit` None leaves the number of messages to the server; `transaction` is TransactionCodec bytes.
    """

    start_from: Buffer | int | None = None
    inclusive: bool = True
    limit: int | None = None
    transaction: Buffer | None = None


class Message(Struct, frozen=True, gc=False):
    """One message of a poll answer; `id` is its 20-byte position."""

    id: bytes
    payload: bytes


class Carried(NamedTuple):
    """The key, headers and times that a message carries beside its payload. `ttl_ms` counts from publishing."""

    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    event_time_ms: int | None = None
    ttl_ms: int | None = None


NOTHING_CARRIED = Carried()


class RecordIn(Struct, frozen=True):
    """One record to publish: a payload with what may go with it. `ttl_ms` counts from publishing."""

    payload: Buffer
    key: Buffer | None = None
    headers: tuple[tuple[str, Buffer], ...] = ()
    event_time_ms: int | None = None
    ttl_ms: int | None = None


class Record(Struct, frozen=True):
    """One record as read: `kind` is one of RECORD_KINDS; `write_pointer` None means published outside a transaction."""

    id: bytes
    payload: Buffer
    key: Buffer | None = None
    headers: tuple[tuple[str, Buffer], ...] = ()
    event_time_ms: int | None = None
    ttl_ms: int | None = None
    kind: str = KIND_USER
    write_pointer: int | None = None


class RecordsRequest(NamedTuple):
    """Body of publishing records; a write pointer of None publishes outside a transaction."""

    write_pointer: int | None
    records: Sequence[RecordIn]


class WorkPublish(Struct, frozen=True):
    """Messages that a commit publishes to one topic: payloads alone, or all of them as records."""

    namespace: str
    topic: str
    messages: Sequence[Buffer] = ()
    records: Sequence[RecordIn] = ()


class WorkMarker(Struct, frozen=True):
    """An in-band marker that a commit publishes; `kind` is one of MARKER_KINDS, `event_time_ms` is for watermarks."""

    namespace: str
    topic: str
    task: str
    task_count: int
    kind: str
    event_time_ms: int | None = None


class Rejection(Struct, frozen=True):
    """A message that nobody can handle, and why: it becomes a dead letter of its group."""

    id: bytes
    reason: str = ""


class WorkAcknowledge(Struct, frozen=True):
    """Messages of one group that are acknowledged: by their ids, by claims, or all up to an id; less those of `except_ids`.

    `member`, `epoch` and `round` say who acknowledges and what it was dealt in; "" and 0 say nothing. What is rejected is
    acknowledged too.
    """

    namespace: str
    topic: str
    group: str
    ids: Sequence[bytes] = ()
    up_to: bytes | None = None
    member: str = ""
    epoch: int = 0
    round: int = 0
    claims: Sequence[int] = ()
    except_ids: Sequence[bytes] = ()
    reject: Sequence[Rejection] = ()


class Work(Struct, frozen=True):
    """Work to do when a transaction commits, or the whole of a one-shot transaction.

    `segments` are the write pointers whose stored payloads a commit publishes, in this order, and no others'; None: all.
    Avro has no place for them.
    """

    publish: Sequence[WorkPublish] = ()
    markers: Sequence[WorkMarker] = ()
    segments: Sequence[int] | None = None
    acknowledge: Sequence[WorkAcknowledge] = ()


# The fields of a body on the wire and their types, in the order of its struct: both formats read and write by these tables.
WireFields: TypeAlias = Mapping[str, str]
PUBLISH_RESPONSE: WireFields = {
    "transactionWritePointer": "long?",
    "startTimestamp": "long",
    "startSequenceId": "int",
    "endTimestamp": "long",
    "endSequenceId": "int",
}
WORK_TOPIC: WireFields = {"namespace": "string", "topic": "string"}
WORK_PUBLISH: WireFields = {**WORK_TOPIC, "messages": "bytes[]", "records": "record[]"}
WORK_MARKER: WireFields = {**WORK_TOPIC, "task": "string", "taskCount": "int", "kind": "string", "eventTimeMs": "long?"}
WORK_ACKNOWLEDGE: WireFields = {
    **WORK_TOPIC,
    "group": "string",
    "ids": "id[]",
    "upTo": "id?",
    "member": "string",
    "epoch": "long",
    "round": "long",
    "claims": "long[]",
    "except": "id[]",
    "reject": "rejection[]",
}


def check_write_pointer(write_pointer: int | None) -> None:
    """Refuse a write pointer that no transaction can have; whether it is still open is the coordinator's to say."""
    if write_pointer is not None and not 1 <= write_pointer <= LONG_MAX:
        raise MalformedBodyError(
            f"write pointer {write_pointer} is outside 1 to {LONG_MAX}",
            field="transactionWritePointer",
            hint="Send the writePointer that begin answered, or null to publish outside a transaction.",
        )


def check_publish(request: PublishRequest) -> None:
    """A publish has messages, or a write pointer whose stored payloads it publishes, or both."""
    check_write_pointer(request.write_pointer)
    if request.write_pointer is None and not request.messages:
        raise MalformedBodyError(
            "a publish needs messages or a transactionWritePointer, and has neither",
            field="messages",
            hint="Send at least one message, or the write pointer whose stored payloads are to be published.",
        )


def check_store(request: PublishRequest) -> None:
    """A store has both: payloads, and the write pointer that will publish them."""
    check_write_pointer(request.write_pointer)
    if request.write_pointer is None:
        raise MalformedBodyError(
            "a store needs a transactionWritePointer",
            field="transactionWritePointer",
            hint="Begin a transaction and send its writePointer, or use publish.",
        )
    if not request.messages:
        raise MalformedBodyError("a store needs at least one message", field="messages", hint="Send its payloads.")


def check_publish_response(response: PublishResponse) -> None:
    """The range is one that a publish can have answered: times of 0 or more, 16-bit sequences, start not after end."""
    check_write_pointer(response.write_pointer)
    check_long(response.start_ms, "startTimestamp", minimum=0)
    check_long(response.end_ms, "endTimestamp", minimum=0)
    check_long(response.start_sequence, "startSequenceId", minimum=0, maximum=SEQUENCE_MAX)
    check_long(response.end_sequence, "endSequenceId", minimum=0, maximum=SEQUENCE_MAX)
    if (response.start_ms, response.start_sequence) > (response.end_ms, response.end_sequence):
        raise MalformedBodyError(
            f"the range starts at {response.start_ms}:{response.start_sequence},"
            f" after its end {response.end_ms}:{response.end_sequence}",
            field="endTimestamp",
            hint="Send the publish answer exactly as it was received.",
        )


def check_rollback(response: PublishResponse) -> None:
    """A roll back names a range and the writer whose rows in it are undone."""
    check_publish_response(response)
    if response.write_pointer is None:
        raise MalformedBodyError(
            "a roll back needs the transactionWritePointer of the publish that it undoes",
            field="transactionWritePointer",
            hint="Only a transactional publish can be rolled back; send its answer exactly as it was received.",
        )


def check_consume(request: ConsumeRequest) -> None:
    """A position is 20 bytes or a time of 0 or more; a limit is at least one message."""
    start_from = request.start_from
    if isinstance(start_from, int):
        check_long(start_from, "startFrom", minimum=0)
    elif start_from is not None:
        check_message_id(start_from, "startFrom")
    if request.limit is not None:
        check_long(request.limit, "limit", minimum=1, maximum=INT_MAX)


def check_message_id(message_id: Buffer, field: str) -> None:
    """Any 20 bytes are a position; nothing else is."""
    if len(message_id) != MESSAGE_ID_BYTES:
        raise MalformedBodyError(
            f"{field} is {len(message_id)} bytes; a message id has {MESSAGE_ID_BYTES}",
            field=field,
            hint="Send the id of a message exactly as a poll answered it.",
        )


def check_long(value: int, field: str, *, minimum: int, maximum: int = LONG_MAX) -> None:
    """Refuse a number outside minimum to maximum, both inclusive."""
    if not minimum <= value <= maximum:
        shown = value if -LONG_MAX <= value <= LONG_MAX else "a number of more than 64 bits"
        raise MalformedBodyError(f"{field} is {shown}; it must be {minimum} to {maximum}", field=field)


def check_count(count: int, maximum: int, field: str) -> None:
    """Refuse more items than a call may carry, before anything is allocated for them."""
    if count > maximum:
        raise TooLargeError(
            f"{field} has {count} items; one call may carry {maximum}",
            field=field,
            hint=f"Split them over calls of at most {maximum}.",
        )


def check_record(record: RecordIn, field: str) -> None:
    """A record's TTL lasts, and its headers have names. `field` says which record, such as records[3]."""
    if record.ttl_ms is not None and not 1 <= record.ttl_ms <= LONG_MAX:
        check_long(record.ttl_ms, f"{field}.ttlMs", minimum=1)
    if record.event_time_ms is not None and not -LONG_MAX <= record.event_time_ms <= LONG_MAX:
        check_long(record.event_time_ms, f"{field}.eventTimeMs", minimum=-LONG_MAX)  # one less is stored as "none"
    if record.headers:
        check_count(len(record.headers), RECORD_HEADERS_MAX, f"{field}.headers")
        for name, _ in record.headers:
            if not name:
                raise MalformedBodyError("a header needs a name", field=f"{field}.headers")
            if len(name.encode("utf-8", "surrogatepass")) > HEADER_NAME_BYTES_MAX:
                raise TooLargeError(
                    f"a header's name has over {HEADER_NAME_BYTES_MAX} bytes",
                    field=f"{field}.headers",
                    hint="Move it into the header's value.",
                )


def check_records(request: RecordsRequest) -> None:
    """Publishing records needs at least one; a reference to stored payloads is published by the plain publish."""
    check_write_pointer(request.write_pointer)
    if not request.records:
        raise MalformedBodyError("there are no records", field="records", hint="Send at least one record.")


def check_work(work: Work) -> None:
    """Every entry of a Work does something; names are checked later, where topics and groups are looked up."""
    items = claims = 0
    for index, acknowledge in enumerate(work.acknowledge):
        check_acknowledge(acknowledge, f"acknowledge[{index}]")
        claims += len(acknowledge.claims)
        items += sum(map(len, (acknowledge.ids, acknowledge.claims, acknowledge.except_ids, acknowledge.reject)))
    check_count(items, ACKNOWLEDGED_ITEMS_MAX, "acknowledge")
    check_count(claims, ACKNOWLEDGED_CLAIMS_MAX, "claims")
    for index, publish in enumerate(work.publish):
        field = f"publish[{index}].messages"
        if not (publish.messages or publish.records):
            raise MalformedBodyError(f"{field} is empty", field=field, hint="Leave the entry out, or add messages.")
        if publish.messages and publish.records:
            hint = "Send them all as records, or as two entries: messages are published in the order of the entries."
            raise MalformedBodyError(f"publish[{index}] has both messages and records", field=field, hint=hint)
    for index, marker in enumerate(work.markers):
        _check_marker(marker, f"markers[{index}]")
    _check_segments(() if work.segments is None else work.segments)


def _check_segments(segments: Sequence[int]) -> None:
    check_count(len(segments), SEGMENTS_MAX, "segments")
    first: dict[int, int] = {}
    for index, write_pointer in enumerate(segments):
        field = f"segments[{index}].writePointer"
        check_long(write_pointer, field, minimum=1)
        if first.setdefault(write_pointer, index) != index:
            raise MalformedBodyError(
                f"{field} names segment {write_pointer}, as segments[{first[write_pointer]}] did",
                field=field,
                hint="Name each segment once: what it holds is published once.",
            )


def _check_marker(marker: WorkMarker, field: str) -> None:
    if not marker.task:
        raise MalformedBodyError(f"{field}.task is empty", field=f"{field}.task", hint="Name the producing task.")
    check_long(marker.task_count, f"{field}.taskCount", minimum=1, maximum=INT_MAX)
    if marker.kind not in MARKER_KINDS:
        raise MalformedBodyError(
            f"{field}.kind is none of {', '.join(MARKER_KINDS)}", field=f"{field}.kind", hint="Send one of those."
        )
    if (marker.event_time_ms is None) == (marker.kind == KIND_WATERMARK):
        raise MalformedBodyError(
            f"{field}: a watermark has an eventTimeMs, an end of stream has none", field=f"{field}.eventTimeMs"
        )
    if marker.event_time_ms is not None:
        check_long(marker.event_time_ms, f"{field}.eventTimeMs", minimum=-LONG_MAX - 1)


def is_member(name: str) -> bool:
    """Tell a member's name by its form: one line, and one segment of a path; "" is no member."""
    return len(name) <= MEMBER_CHARS_MAX and name.isprintable() and "/" not in name and name not in (".", "..")


def check_acknowledge(acknowledge: WorkAcknowledge, field: str = "") -> None:
    """It names messages, none of them twice to opposite ends, and says by whom in a way that can be. `field`: which entry."""
    inside = f"{field}." if field else ""
    if not is_member(acknowledge.member):
        hint = f"Use up to {MEMBER_CHARS_MAX} printable characters without a slash, such as a host name and a number."
        raise MalformedBodyError(f"{inside}member is no member's name", field=f"{inside}member", hint=hint)
    check_long(acknowledge.epoch, f"{inside}epoch", minimum=0)
    if acknowledge.epoch and not acknowledge.member:
        raise MalformedBodyError(f"{inside}epoch names no member", field=f"{inside}epoch", hint="Name the member too.")
    check_long(acknowledge.round, f"{inside}round", minimum=0)
    ids, left_out = acknowledge.ids, acknowledge.except_ids
    _check_ids(ids, f"{inside}ids")
    _check_ids(left_out, f"{inside}except")
    if acknowledge.up_to is not None:
        check_place(acknowledge.up_to, f"{inside}upTo")
    if acknowledge.claims and min(acknowledge.claims) < 1:
        raise MalformedBodyError(f"{inside}claims has a number below 1", field=f"{inside}claims")
    ranges = bool(acknowledge.claims) or acknowledge.up_to is not None
    if not (ids or ranges or acknowledge.reject):
        hint = "Name messages by ids, claims or upTo, or leave the entry out."
        raise MalformedBodyError(f"{inside}ids is empty, and nothing else is named", field=f"{inside}ids", hint=hint)
    if left_out and not ranges:
        raise MalformedBodyError(
            f"{inside}except leaves nothing out", field=f"{inside}except", hint="It is for claims and upTo."
        )
    if acknowledge.reject or left_out:
        _check_rejected(acknowledge, inside)


def _check_rejected(acknowledge: WorkAcknowledge, inside: str) -> None:
    _check_ids([each.id for each in acknowledge.reject], f"{inside}reject")
    for index, rejection in enumerate(acknowledge.reject):
        if len(rejection.reason) > REASON_CHARS_MAX:
            name = f"{inside}reject[{index}].reason"
            raise MalformedBodyError(f"{name} has over {REASON_CHARS_MAX} characters", field=name, hint="Shorten it.")
    meant = set[bytes]()
    for name, ids in (
        ("ids", acknowledge.ids),
        ("except", acknowledge.except_ids),
        ("reject", [each.id for each in acknowledge.reject]),
    ):
        given = set(ids)
        if twice := meant & given:
            shown = min(twice).hex()
            raise MalformedBodyError(
                f"{inside}{name} names {shown}, which is named to another end too",
                field=f"{inside}{name}",
                hint="A message is acknowledged, left out or rejected: name it in one of the lists.",
            )
        if name == "reject" and len(given) < len(acknowledge.reject):
            raise MalformedBodyError(f"{inside}reject names a message twice", field=f"{inside}reject")
        meant |= given


def check_place(message_id: bytes, field: str) -> None:
    """A position at which a message may be: not that before all."""
    check_message_id(message_id, field)
    if message_id == _BEFORE_ALL:
        raise MalformedBodyError(f"{field} is the place before all messages, at which none is", field=field)


def _check_ids(ids: Sequence[bytes], field: str) -> None:
    if ids and set(map(len, ids)) != {MESSAGE_ID_BYTES}:
        index = next(index for index, each in enumerate(ids) if len(each) != MESSAGE_ID_BYTES)
        check_message_id(ids[index], f"{field}[{index}]")
    if _BEFORE_ALL in ids:
        check_place(_BEFORE_ALL, field)
