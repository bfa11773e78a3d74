"""The messaging API's bodies in Avro's JSON encoding: bytes as code points; unions tagged, or untagged by hand.

The same values, rules and errors as `avro`, and the same names. Format: docs/formats/json-bodies.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import msgspec

from basalt.api.bodies.work import (
    INT_MAX,
    PUBLISH_MESSAGES_MAX,
    SEGMENTS_MAX,
    WORK_ENTRIES_MAX,
    WORK_IDS_MAX,
    Buffer,
    ConsumeRequest,
    Message,
    PublishRequest,
    PublishResponse,
    Work,
    WorkAcknowledge,
    WorkMarker,
    WorkPublish,
    check_consume,
    check_count,
    check_long,
    check_message_id,
    check_publish,
    check_publish_response,
    check_rollback,
    check_store,
    check_work,
    check_write_pointer,
)
from basalt.api.codecs.json_values import (
    as_boolean,
    as_bytes,
    as_list,
    as_long,
    as_object,
    as_text,
    optional_bytes,
    optional_long,
    parse_json,
    refuse,
    untag,
)
from basalt.errors import MalformedBodyError

START_OF_MESSAGES = b"["
END_OF_MESSAGES = b"]"
_PUBLISH_FIELDS = ("transactionWritePointer", "messages")
_RESPONSE_LONGS = ("startTimestamp", "startSequenceId", "endTimestamp", "endSequenceId")
_RESPONSE_FIELDS = ("transactionWritePointer", *_RESPONSE_LONGS)
_CONSUME_FIELDS = ("startFrom", "inclusive", "limit", "transaction")
_MESSAGE_FIELDS = ("id", "payload")
_WORK_FIELDS = ("publish", "acknowledge", "markers", "segments")
_WORK_PUBLISH_FIELDS = ("namespace", "topic", "messages")
_WORK_ACKNOWLEDGE_FIELDS = ("namespace", "topic", "group", "ids", "upTo")
_WORK_SEGMENT_FIELDS = ("writePointer",)
_WORK_MARKER_FIELDS = ("namespace", "topic", "task", "taskCount", "kind", "eventTimeMs")

Entry = TypeVar("Entry")
_encode = msgspec.json.Encoder().encode


def decode_publish_request(body: Buffer, *, messages_max: int = PUBLISH_MESSAGES_MAX) -> PublishRequest:
    """The body of publish. An absent write pointer is null, absent messages are none."""
    request = _read_publish_request(body, messages_max)
    check_publish(request)
    return request


def decode_store_request(body: Buffer, *, messages_max: int = PUBLISH_MESSAGES_MAX) -> PublishRequest:
    """The body of store: the same as publish's, with both parts required."""
    request = _read_publish_request(body, messages_max)
    check_store(request)
    return request


def encode_publish_request(request: PublishRequest) -> bytes:
    """The body of publish or store."""
    check_write_pointer(request.write_pointer)
    return _encode(
        {
            "transactionWritePointer": _tagged("long", request.write_pointer),
            "messages": [_code_points(message) for message in request.messages],
        }
    )


def decode_publish_response(body: Buffer) -> PublishResponse:
    """The answer of a transactional publish; all but the write pointer must be there."""
    fields = as_object(parse_json(body), None, _RESPONSE_FIELDS)
    longs = [as_long(_required(fields, name, None), name) for name in _RESPONSE_LONGS]
    response = PublishResponse(_write_pointer(fields), *longs)
    check_publish_response(response)
    return response


def decode_rollback_request(body: Buffer) -> PublishResponse:
    """The body of roll back: a publish answer that names its writer."""
    response = decode_publish_response(body)
    check_rollback(response)
    return response


def encode_publish_response(response: PublishResponse) -> bytes:
    """The answer of a transactional publish, which is also the body of roll back."""
    check_publish_response(response)
    return _encode(
        {
            "transactionWritePointer": _tagged("long", response.write_pointer),
            "startTimestamp": response.start_ms,
            "startSequenceId": response.start_sequence,
            "endTimestamp": response.end_ms,
            "endSequenceId": response.end_sequence,
        }
    )


def decode_consume_request(body: Buffer) -> ConsumeRequest:
    """The body of poll. Absent: from the oldest, inclusive, no limit, no transaction."""
    fields = as_object(parse_json(body), None, _CONSUME_FIELDS)
    request = ConsumeRequest(
        start_from=_start_from(fields.get("startFrom")),
        inclusive=as_boolean(fields.get("inclusive", True), "inclusive"),
        limit=optional_long(fields.get("limit"), "limit", tag="int"),
        transaction=optional_bytes(fields.get("transaction"), "transaction"),
    )
    check_consume(request)
    return request


def encode_consume_request(request: ConsumeRequest) -> bytes:
    """The body of poll."""
    check_consume(request)
    start_from = request.start_from
    return _encode(
        {
            "startFrom": _tagged("long", start_from) if isinstance(start_from, int) else _tagged_bytes(start_from),
            "inclusive": request.inclusive,
            "limit": _tagged("int", request.limit),
            "transaction": _tagged_bytes(request.transaction),
        }
    )


def encode_messages_block(ids: Sequence[Buffer], payloads: Sequence[Buffer]) -> bytes:
    """Some messages of an answer: START_OF_MESSAGES, such blocks joined by commas (none empty), END_OF_MESSAGES.

    ValueError when the lists differ in length.
    """
    items = [
        {"id": str(message_id, "latin-1"), "payload": str(payload, "latin-1")}
        for message_id, payload in zip(ids, payloads, strict=True)
    ]
    return _encode(items)[1:-1]


def encode_messages(messages: Sequence[Message]) -> bytes:
    """A whole Messages answer, for a caller that has it in one piece."""
    block = encode_messages_block([m.id for m in messages], [m.payload for m in messages])
    return START_OF_MESSAGES + block + END_OF_MESSAGES


def decode_messages(body: Buffer) -> list[Message]:
    """The answer of a poll, as a client reads it; it has as many messages as it has, the server chose how many."""
    messages = []
    for index, item in enumerate(as_list(parse_json(body, values_max=len(body)), None)):
        field = f"[{index}]"
        fields = as_object(item, field, _MESSAGE_FIELDS)
        message_id = as_bytes(_required(fields, "id", field), f"{field}.id")
        check_message_id(message_id, f"{field}.id")
        messages.append(Message(message_id, as_bytes(_required(fields, "payload", field), f"{field}.payload")))
    return messages


def decode_work(
    body: Buffer,
    *,
    messages_max: int = PUBLISH_MESSAGES_MAX,
    entries_max: int = WORK_ENTRIES_MAX,
    ids_max: int = WORK_IDS_MAX,
) -> Work:
    """Decode the work of a commit or a one-shot transaction; absent parts are empty. Limits as in `avro.decode_work`."""
    return read_work(parse_json(body), messages_max=messages_max, entries_max=entries_max, ids_max=ids_max)


def read_work(
    value: object,
    *,
    messages_max: int = PUBLISH_MESSAGES_MAX,
    entries_max: int = WORK_ENTRIES_MAX,
    ids_max: int = WORK_IDS_MAX,
) -> Work:
    """As `decode_work`, of a value that was parsed before: work that is a part of a larger body."""
    fields = as_object(value, None, _WORK_FIELDS)
    work = Work(
        publish=_entries(fields, "publish", _WORK_PUBLISH_FIELDS, entries_max, _read_work_publish),
        acknowledge=_entries(fields, "acknowledge", _WORK_ACKNOWLEDGE_FIELDS, entries_max, _read_work_acknowledge),
        markers=_entries(fields, "markers", _WORK_MARKER_FIELDS, entries_max, _read_work_marker),
        segments=_entries(fields, "segments", _WORK_SEGMENT_FIELDS, SEGMENTS_MAX, _read_work_segment)
        if fields.get("segments") is not None
        else None,
    )
    check_count(sum(len(entry.messages) for entry in work.publish), messages_max, "publish.messages")
    check_count(sum(len(entry.ids) for entry in work.acknowledge), ids_max, "acknowledge.ids")
    check_work(work)
    return work


def encode_work(work: Work) -> bytes:
    """Encode the work of a commit or a one-shot transaction, with every part."""
    check_work(work)
    publish = [
        {"namespace": p.namespace, "topic": p.topic, "messages": [_code_points(message) for message in p.messages]}
        for p in work.publish
    ]
    acknowledge = [
        {
            "namespace": a.namespace,
            "topic": a.topic,
            "group": a.group,
            "ids": [_code_points(message_id) for message_id in a.ids],
            "upTo": _tagged_bytes(a.up_to),
        }
        for a in work.acknowledge
    ]
    markers = [
        {
            "namespace": m.namespace,
            "topic": m.topic,
            "task": m.task,
            "taskCount": m.task_count,
            "kind": m.kind,
            "eventTimeMs": _tagged("long", m.event_time_ms),
        }
        for m in work.markers
    ]
    parts: dict[str, object] = {"publish": publish, "acknowledge": acknowledge, "markers": markers}
    if work.segments is not None:
        parts["segments"] = [{"writePointer": write_pointer} for write_pointer in work.segments]
    return _encode(parts)


def _read_publish_request(body: Buffer, messages_max: int) -> PublishRequest:
    fields = as_object(parse_json(body), None, _PUBLISH_FIELDS)
    messages = as_list(fields.get("messages", []), "messages")
    check_count(len(messages), messages_max, "messages")
    return PublishRequest(_write_pointer(fields), _byte_strings(messages, "messages"))


def _write_pointer(fields: dict[str, object]) -> int | None:
    write_pointer = optional_long(fields.get("transactionWritePointer"), "transactionWritePointer")
    check_write_pointer(write_pointer)
    return write_pointer


def _start_from(value: object) -> bytes | int | None:
    tag, inner = untag(value, "startFrom", ("bytes", "long"))
    if inner is None and tag is None:
        return None
    if tag == "bytes" or (tag is None and isinstance(inner, str)):
        return as_bytes(inner, "startFrom")
    if tag is None and not isinstance(inner, int):
        refuse(inner, "startFrom", "a message id, a time in ms, or null")
    return as_long(inner, "startFrom")


def _byte_strings(items: list[object], field: str) -> list[bytes]:
    try:
        return [str.encode(item, "latin-1") for item in cast("list[str]", items)]
    except (TypeError, UnicodeEncodeError):  # naming each item only now keeps publishing from paying for it
        return [as_bytes(item, f"{field}[{index}]") for index, item in enumerate(items)]


def _required(fields: dict[str, object], name: str, field: str | None) -> object:
    if name not in fields:
        path = f"{field}.{name}" if field else name
        raise MalformedBodyError(f"{path} is missing", field=path, hint=f"Send {name}.")
    return fields[name]


def _entries(
    fields: dict[str, object],
    part: str,
    known: tuple[str, ...],
    entries_max: int,
    read: Callable[[dict[str, object], str], Entry],
) -> list[Entry]:
    items = as_list(fields.get(part, []), part)
    check_count(len(items), entries_max, part)
    entries = []
    for index, item in enumerate(items):
        field = f"{part}[{index}]"
        entries.append(read(as_object(item, field, known), field))
    return entries


def _read_work_publish(fields: dict[str, object], field: str) -> WorkPublish:
    messages = as_list(fields.get("messages", []), f"{field}.messages")
    return WorkPublish(
        namespace=_required_text(fields, "namespace", field),
        topic=_required_text(fields, "topic", field),
        messages=_byte_strings(messages, f"{field}.messages"),
    )


def _read_work_acknowledge(fields: dict[str, object], field: str) -> WorkAcknowledge:
    ids = as_list(fields.get("ids", []), f"{field}.ids")
    return WorkAcknowledge(
        namespace=_required_text(fields, "namespace", field),
        topic=_required_text(fields, "topic", field),
        group=_required_text(fields, "group", field),
        ids=_byte_strings(ids, f"{field}.ids"),
        up_to=optional_bytes(fields.get("upTo"), f"{field}.upTo"),
    )


def _read_work_segment(fields: dict[str, object], field: str) -> int:
    return as_long(_required(fields, "writePointer", field), f"{field}.writePointer")


def _read_work_marker(fields: dict[str, object], field: str) -> WorkMarker:
    task_count = as_long(_required(fields, "taskCount", field), f"{field}.taskCount")
    check_long(task_count, f"{field}.taskCount", minimum=1, maximum=INT_MAX)
    return WorkMarker(
        namespace=_required_text(fields, "namespace", field),
        topic=_required_text(fields, "topic", field),
        task=_required_text(fields, "task", field),
        task_count=task_count,
        kind=_required_text(fields, "kind", field),
        event_time_ms=optional_long(fields.get("eventTimeMs"), f"{field}.eventTimeMs"),
    )


def _required_text(fields: dict[str, object], name: str, field: str) -> str:
    return as_text(_required(fields, name, field), f"{field}.{name}")


def _code_points(value: Buffer) -> str:
    return str(value, "latin-1")


def _tagged(tag: str, value: int | None) -> dict[str, int] | None:
    return None if value is None else {tag: value}


def _tagged_bytes(value: Buffer | None) -> dict[str, str] | None:
    return None if value is None else {"bytes": _code_points(value)}
