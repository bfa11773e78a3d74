"""The richer records in binary Avro: as strict as `avro`, with key, headers, event time, TTL and kind.

Schemas: `avro_schemas.RECORDS_REQUEST` and `avro_schemas.RECORDS`; format: docs/formats/records-api.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from basalt.api.bodies.work import (
    PUBLISH_MESSAGES_MAX,
    RECORD_HEADERS_MAX,
    RECORD_KINDS,
    REQUEST_HEADERS_MAX,
    Buffer,
    Record,
    RecordIn,
    RecordsRequest,
    check_count,
    check_message_id,
    check_record,
    check_records,
)
from basalt.api.codecs.avro_primitives import (
    END_OF_ARRAY,
    AvroCursor,
    encode_array,
    encode_bytes,
    encode_long,
    encode_optional_bytes,
    encode_optional_long,
    encode_string,
)

_RECORD_IN_BYTES_MIN = 5  # a length, three union branches, the end of the headers
_RECORD_BYTES_MIN = 8  # the same, and an id's length, a kind, one more union branch
_HEADER_BYTES_MIN = 2  # two lengths
_KIND_INDEX = {kind: encode_long(index) for index, kind in enumerate(RECORD_KINDS)}


def decode_records_request(body: Buffer, *, records_max: int = PUBLISH_MESSAGES_MAX) -> RecordsRequest:
    """The body of publishing records. Payloads are memoryviews of `body`; keys and header values are copied."""
    cursor = AvroCursor(body)
    write_pointer = cursor.read_optional_long("transactionWritePointer")
    records: list[RecordIn] = []
    headers = 0
    for count in cursor.read_blocks("records", item_bytes_min=_RECORD_IN_BYTES_MIN):
        check_count(len(records) + count, records_max, "records")
        for _ in range(count):
            cursor.inside = f"records[{len(records)}]"
            record = RecordIn(*_read_content(cursor))
            check_record(record, cursor.inside)
            headers += len(record.headers)
            check_count(headers, REQUEST_HEADERS_MAX, "headers")
            records.append(record)
        cursor.inside = ""
    cursor.expect_end()
    request = RecordsRequest(write_pointer, records)
    check_records(request)
    return request


def encode_records_request(request: RecordsRequest) -> bytes:
    """The body of publishing records."""
    check_records(request)
    for index, record in enumerate(request.records):
        check_record(record, f"records[{index}]")
    return encode_optional_long(request.write_pointer) + encode_array(list(map(_encode_content, request.records)))


def encode_records_block(records: Sequence[Record]) -> bytes:
    """One block of a Records answer: blocks, one after the other, and then END_OF_ARRAY, make an answer."""
    return encode_array(list(map(_encode_record, records)))[: -len(END_OF_ARRAY)]


def encode_records(records: Sequence[Record]) -> bytes:
    """A whole Records answer; the position to go on from stands in the answer's headers."""
    return encode_records_block(records) + END_OF_ARRAY


def decode_records(body: Buffer) -> list[Record]:
    """The answer of reading records, as a client reads it: everything is copied."""
    cursor = AvroCursor(body)
    records: list[Record] = []
    for count in cursor.read_blocks("records", item_bytes_min=_RECORD_BYTES_MIN):
        for _ in range(count):
            cursor.inside = f"records[{len(records)}]"
            records.append(_read_record(cursor))
        cursor.inside = ""
    cursor.expect_end()
    return records


def _read_record(cursor: AvroCursor) -> Record:
    message_id = bytes(cursor.read_bytes("id"))
    check_message_id(message_id, f"{cursor.inside}.id")
    payload, key, headers, event_time_ms, ttl_ms = _read_content(cursor)
    kind = RECORD_KINDS[cursor.read_index("kind", len(RECORD_KINDS), "the index of a kind")]
    write_pointer = cursor.read_optional_long("transactionWritePointer")
    return Record(message_id, bytes(payload), key, headers, event_time_ms, ttl_ms, kind, write_pointer)


def _read_content(
    cursor: AvroCursor,
) -> tuple[memoryview, bytes | None, tuple[tuple[str, bytes], ...], int | None, int | None]:
    payload = cursor.read_bytes("payload")
    key = cursor.read_optional_bytes("key")
    headers = _read_headers(cursor)
    event_time_ms = cursor.read_optional_long("eventTimeMs")
    ttl_ms = cursor.read_optional_long("ttlMs")
    return payload, None if key is None else bytes(key), headers, event_time_ms, ttl_ms


def _read_headers(cursor: AvroCursor) -> tuple[tuple[str, bytes], ...]:
    headers: list[tuple[str, bytes]] = []
    for count in cursor.read_blocks("headers", item_bytes_min=_HEADER_BYTES_MIN):
        check_count(len(headers) + count, RECORD_HEADERS_MAX, f"{cursor.inside}.headers")
        for _ in range(count):
            name = cursor.read_string("headers.name")
            headers.append((name, bytes(cursor.read_bytes("headers.value"))))
    return tuple(headers)


def _encode_record(record: Record) -> bytes:
    tail = _KIND_INDEX[record.kind] + encode_optional_long(record.write_pointer)
    return encode_bytes(record.id) + _encode_content(record) + tail


def _encode_content(record: RecordIn | Record) -> bytes:
    headers = [encode_string(name) + encode_bytes(value) for name, value in record.headers]
    return b"".join(
        (
            encode_bytes(record.payload),
            encode_optional_bytes(record.key),
            encode_array(headers),
            encode_optional_long(record.event_time_ms),
            encode_optional_long(record.ttl_ms),
        )
    )
