"""What clients of other languages write and read, and ours does not: answers in Avro, and whole bodies in JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from basalt.api.bodies.messages import (
    ConsumeRequest,
    Message,
    PublishRequest,
    Record,
    RecordIn,
    RecordsRequest,
    check_consume,
    check_message_id,
    check_record,
    check_records,
    check_write_pointer,
)
from basalt.api.codecs import avro, avro_values, json_bodies, json_records
from basalt.errors import MalformedBodyError


class RecordsPage(NamedTuple):
    """Answer of reading records: go on from `next_id`, exclusive; `held_by` is the transaction that ended the page."""

    records: Sequence[Record]
    next_id: bytes | None = None
    held_by: str | None = None


def encode_avro_messages(messages: Sequence[Message]) -> bytes:
    """A whole Messages answer in Avro."""
    return (
        avro.encode_messages_block([m.id for m in messages], [m.payload for m in messages]) + avro_values.END_OF_ARRAY
    )


def decode_avro_messages(body: bytes | bytearray | memoryview) -> list[Message]:
    """The answer of a poll in Avro."""
    cursor = avro_values.AvroCursor(body)
    messages: list[Message] = []
    for count in cursor.read_blocks("messages", item_bytes_min=2):
        for _ in range(count):
            message_id, payload = bytes(cursor.read_bytes("messages")), bytes(cursor.read_bytes("messages"))
            if len(message_id) != 20:
                raise MalformedBodyError("a message of the answer has an id that is not 20 bytes", field="messages")
            messages.append(Message(message_id, payload))
    cursor.expect_end()
    return messages


def encode_avro_records(records: Sequence[Record]) -> bytes:
    """A whole Records answer in Avro; the position to go on from stands in the answer's headers."""
    return avro.encode_records_block(records) + avro_values.END_OF_ARRAY


def encode_json_publish_request(request: PublishRequest) -> bytes:
    """The body of publish or store in JSON."""
    check_write_pointer(request.write_pointer)
    pointer = None if request.write_pointer is None else {"long": request.write_pointer}
    messages = [str(message, "latin-1") for message in request.messages]
    return msgspec.json.encode({"transactionWritePointer": pointer, "messages": messages})


def encode_json_consume_request(request: ConsumeRequest) -> bytes:
    """The body of poll in JSON."""
    check_consume(request)
    values = {
        "startFrom": (request.start_from, "long"),
        "limit": (request.limit, "int"),
        "transaction": (request.transaction, "bytes"),
    }
    tagged = {
        name: None if value is None else {tag: value} if isinstance(value, int) else {"bytes": str(value, "latin-1")}
        for name, (value, tag) in values.items()
    }
    ordered = {"startFrom": tagged.pop("startFrom"), "inclusive": request.inclusive, **tagged}
    return msgspec.json.encode(ordered)


def encode_json_messages(messages: Sequence[Message]) -> bytes:
    """A whole Messages answer in JSON."""
    block = json_bodies.encode_messages_block([m.id for m in messages], [m.payload for m in messages])
    return json_bodies.START_OF_MESSAGES + block + json_bodies.END_OF_MESSAGES


def decode_json_messages(body: bytes) -> list[Message]:
    """The answer of a poll in JSON; it has as many messages as it has, the server chose how many."""
    messages = []
    for index, item in enumerate(json_bodies.as_list(json_bodies.parse_json(body, values_max=len(body)), None)):
        fields = json_bodies.as_object(item, f"[{index}]", ("id", "payload"))
        for name in ("id", "payload"):
            if name not in fields:
                raise MalformedBodyError(f"[{index}].{name} is missing", field=f"[{index}].{name}")
        message_id = json_bodies.as_bytes(fields["id"], f"[{index}].id")
        check_message_id(message_id, f"[{index}].id")
        messages.append(Message(message_id, json_bodies.as_bytes(fields["payload"], f"[{index}].payload")))
    return messages


def encode_records_request(request: RecordsRequest) -> bytes:
    """The body of publishing records in JSON."""
    check_records(request)
    body = {"records": _records_json(request.records), "transactionWritePointer": request.write_pointer}
    return msgspec.json.encode({name: value for name, value in body.items() if value is not None})


def encode_records_request_lines(records: Sequence[RecordIn]) -> bytes:
    """The JSON lines body of publishing records."""
    check_records(RecordsRequest(None, records))
    return msgspec.json.Encoder().encode_lines(_records_json(records))


def encode_records_page(page: RecordsPage) -> bytes:
    """A whole JSON answer: {"records": […], "next": hex or null, "heldBy": id or null}."""
    block = json_records.encode_records_block(page.records)
    return json_records.START_OF_PAGE + block + json_records.end_of_page(page.next_id, page.held_by)


class _HeaderJson(msgspec.Struct, rename="camel"):
    name: str
    value: str | None = None
    value_base64: bytes | None = None


class _RecordJson(msgspec.Struct, rename="camel"):
    id: str
    payload: str | None = None
    payload_base64: bytes | None = None
    key: str | None = None
    key_base64: bytes | None = None
    headers: tuple[_HeaderJson, ...] = ()
    event_time_ms: int | None = None
    ttl_ms: int | None = None
    kind: str = "user"
    transaction_write_pointer: int | None = None


class _PageJson(msgspec.Struct, rename="camel"):
    records: list[_RecordJson]
    next: str | None = None
    held_by: str | None = None


def decode_records_page(body: bytes) -> RecordsPage:
    """A JSON answer. Fields of a newer server are passed over."""
    try:
        page = msgspec.json.decode(body, type=_PageJson)
        next_id = None if page.next is None else bytes.fromhex(page.next)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise MalformedBodyError(f"the answer is not a page of records: {error}") from None
    if next_id is not None:
        check_message_id(next_id, "next")
    return RecordsPage(list(map(_record, page.records)), next_id, page.held_by)


def decode_records_lines_answer(body: bytes) -> list[Record]:
    """A JSON lines answer. Fields of a newer server are passed over."""
    try:
        lines = msgspec.json.Decoder(_RecordJson).decode_lines(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise MalformedBodyError(f"the answer is not records, one a line: {error}") from None
    return list(map(_record, lines))


def _records_json(records: Sequence[RecordIn]) -> list[dict[str, Any]]:
    for index, record in enumerate(records):
        check_record(record, f"records[{index}]")
    fields = [
        {
            **_text_or_bytes("payload", record.payload),
            **({} if record.key is None else _text_or_bytes("key", record.key)),
            "headers": [{"name": name, **_text_or_bytes("value", value)} for name, value in record.headers],
            "eventTimeMs": record.event_time_ms,
            "ttlMs": record.ttl_ms,
        }
        for record in records
    ]
    return [{name: value for name, value in each.items() if value is not None} for each in fields]


def _text_or_bytes(name: str, value: bytes | bytearray | memoryview) -> dict[str, str]:
    try:
        return {name: str(value, "utf-8")}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(value).decode()}


def _record(record: _RecordJson) -> Record:
    try:
        message_id = bytes.fromhex(record.id)
    except ValueError:
        raise MalformedBodyError("a record's id is not hexadecimal", field="id") from None
    check_message_id(message_id, "id")
    payload = _from_either(record.payload, record.payload_base64)
    if payload is None:
        raise MalformedBodyError("a record's payload is missing", field="payload")
    return Record(
        id=message_id,
        payload=payload,
        key=_from_either(record.key, record.key_base64),
        headers=tuple((h.name, _from_either(h.value, h.value_base64) or b"") for h in record.headers),
        event_time_ms=record.event_time_ms,
        ttl_ms=record.ttl_ms,
        kind=record.kind,
        write_pointer=record.transaction_write_pointer,
    )


def _from_either(text: str | None, content: bytes | None) -> bytes | None:
    return content if text is None else text.encode()
