"""The richer records in JSON and JSON lines: for people and scripts, so bytes that are UTF-8 text are written as text.

A payload, a key and a header value each have two spellings: `payload` is UTF-8 text, `payloadBase64` any bytes; a
request gives one, an answer gives text whenever the bytes are UTF-8. Format: docs/formats/records-api.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from basalt.api.bodies.messages import (
    PUBLISH_MESSAGES_MAX,
    Buffer,
    Record,
    RecordIn,
    RecordsRequest,
    check_count,
    check_records,
)
from basalt.api.codecs.json_bodies import (
    as_list,
    as_object,
    optional_long,
    parse_json,
    parse_json_lines,
    read_record,
    text_or_bytes,
)

RECORD_VALUES_MAX = 8 * PUBLISH_MESSAGES_MAX  # a record has up to seven values besides its headers'
START_OF_PAGE = b'{"records":['
_REQUEST_FIELDS = ("records", "transactionWritePointer")


class _HeaderJson(msgspec.Struct, omit_defaults=True, rename="camel"):
    name: str
    value: str | None = None
    value_base64: bytes | None = None


class _RecordJson(msgspec.Struct, omit_defaults=True, rename="camel"):
    """One record of an answer."""

    id: str
    payload: str | None = None
    payload_base64: bytes | None = None
    key: str | None = None
    key_base64: bytes | None = None
    headers: tuple[_HeaderJson, ...] = ()
    event_time_ms: int | None = None
    ttl_ms: int | None = None
    kind: str | None = None
    transaction_write_pointer: int | None = None


_encoder = msgspec.json.Encoder()


def decode_records_request(body: Buffer) -> RecordsRequest:
    """The JSON body of publishing records: {"records": […], "transactionWritePointer": 5}."""
    fields = as_object(parse_json(body, values_max=RECORD_VALUES_MAX), None, _REQUEST_FIELDS)
    write_pointer = optional_long(fields.get("transactionWritePointer"), "transactionWritePointer")
    items = as_list(fields.get("records", []), "records")
    check_count(len(items), PUBLISH_MESSAGES_MAX, "records")
    records = [read_record(item, f"records[{index}]") for index, item in enumerate(items)]
    request = RecordsRequest(write_pointer, records)
    check_records(request)
    return request


def decode_records_lines(body: Buffer) -> list[RecordIn]:
    """The JSON lines body of publishing records; the write pointer, if any, travels outside the body."""
    records: list[RecordIn] = []
    for item in parse_json_lines(body, lines_max=PUBLISH_MESSAGES_MAX, values_max=RECORD_VALUES_MAX):
        records.append(read_record(item, f"records[{len(records)}]"))
    check_records(RecordsRequest(None, records))
    check_count(len(records), PUBLISH_MESSAGES_MAX, "records")
    return records


def encode_records_block(records: Sequence[Record]) -> bytes:
    """Some records of a JSON answer: START_OF_PAGE, such blocks joined by commas (none empty), `end_of_page`."""
    return _encoder.encode(list(map(_answer_json, records)))[1:-1]


def end_of_page(next_id: bytes | None, held_by: str | None) -> bytes:
    """End of a JSON answer, behind its records: the id to go on from in hex, and the holder's id."""
    next_hex = None if next_id is None else next_id.hex()
    return b"]," + _encoder.encode({"next": next_hex, "heldBy": held_by})[1:]


def encode_records_lines(records: Sequence[Record]) -> bytes:
    """Some records of a JSON lines answer; such blocks, one after the other, make an answer."""
    return _encoder.encode_lines(list(map(_answer_json, records)))


def _answer_json(record: Record) -> _RecordJson:
    payload, payload_base64 = text_or_bytes(record.payload)
    key, key_base64 = (None, None) if record.key is None else text_or_bytes(record.key)
    return _RecordJson(
        id=record.id.hex(),
        payload=payload,
        payload_base64=payload_base64,
        key=key,
        key_base64=key_base64,
        headers=tuple(_HeaderJson(name, *text_or_bytes(value)) for name, value in record.headers),
        event_time_ms=record.event_time_ms,
        ttl_ms=record.ttl_ms,
        kind=record.kind,
        transaction_write_pointer=record.write_pointer,
    )
