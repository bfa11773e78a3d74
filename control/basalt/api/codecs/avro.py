"""The API's bodies in binary Avro, by hand for their fixed schemas: strict, and fast where messages are many.

`decode_X` raises MalformedBodyError for every body that is not exactly an X (with the byte offset) or that means
nothing (the `check_` functions of `bodies`), and TooLargeError for more items than a call may carry. Payloads of
requests come out as memoryviews of the body. `encode_X` trusts its caller's types, and checks meaning where a client
would be answered 400. What bodies consist of, and how strictly it is read: `avro_values`.
Formats and schemas: docs/formats/avro-bodies.md and docs/formats/records-api.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from basalt.api.bodies.messages import (
    ACKNOWLEDGED_CLAIMS_MAX,
    ACKNOWLEDGED_ITEMS_MAX,
    LONG_MAX,
    MESSAGE_ID_BYTES,
    PUBLISH_MESSAGES_MAX,
    PUBLISH_RESPONSE,
    RECORD_HEADERS_MAX,
    RECORD_KINDS,
    REQUEST_HEADERS_MAX,
    WORK_ACKNOWLEDGE,
    WORK_ENTRIES_MAX,
    WORK_MARKER,
    WORK_TOPIC,
    Buffer,
    ConsumeRequest,
    PublishRequest,
    PublishResponse,
    Record,
    RecordIn,
    RecordsRequest,
    Rejection,
    WireFields,
    Work,
    WorkAcknowledge,
    WorkMarker,
    WorkPublish,
    check_consume,
    check_count,
    check_message_id,
    check_publish,
    check_publish_response,
    check_record,
    check_records,
    check_work,
    check_write_pointer,
)
from basalt.api.codecs.avro_values import (
    END_OF_ARRAY,
    FIRST_BRANCH,
    SECOND_BRANCH,
    THIRD_BRANCH,
    AvroCursor,
    encode_array,
    encode_boolean,
    encode_byte_strings,
    encode_bytes,
    encode_entries,
    encode_length,
    encode_long,
    encode_optional_bytes,
    encode_optional_long,
    encode_string,
)
from basalt.errors import MalformedBodyError

_WORK_PUBLISH_BYTES_MIN = 4  # two names' lengths, the ends of the messages and of the records
_WORK_MARKER_BYTES_MIN = 6  # four texts' lengths, a number, a union branch
_WORK_ACKNOWLEDGE_BYTES_MIN = 11  # four texts' lengths, a union branch, two numbers, the ends of four lists
_REJECTION_BYTES_MIN = 2  # two lengths
_RECORD_IN_BYTES_MIN = 5  # a length, three union branches, the end of the headers
_RECORD_BYTES_MIN = 8  # the same, and an id's length, a kind, one more union branch
_HEADER_BYTES_MIN = 2  # two lengths


_KIND_INDEX = {kind: encode_long(index) for index, kind in enumerate(RECORD_KINDS)}
_ID_LENGTH = encode_length(MESSAGE_ID_BYTES)


def _read_copied(cursor: AvroCursor, field: str) -> bytes | None:
    value = cursor.read_optional_bytes(field)
    return None if value is None else bytes(value)  # small, and kept for longer than the body


def _read_ids(cursor: AvroCursor, field: str) -> list[bytes]:
    if cursor.pass_empty_array():
        return []
    return list(map(bytes, cursor.read_byte_strings(field, ACKNOWLEDGED_ITEMS_MAX)))  # small, and kept for longer


def _read_longs(cursor: AvroCursor, field: str) -> list[int]:
    numbers: list[int] = []
    for count in cursor.read_blocks(field, item_bytes_min=1):
        check_count(len(numbers) + count, ACKNOWLEDGED_CLAIMS_MAX, field)
        numbers += [cursor.read_long(field) for _ in range(count)]
    return numbers


def _read_rejections(cursor: AvroCursor, field: str) -> list[Rejection]:
    rejections: list[Rejection] = []
    for count in cursor.read_blocks(field, item_bytes_min=_REJECTION_BYTES_MIN):
        check_count(len(rejections) + count, ACKNOWLEDGED_ITEMS_MAX, field)
        for _ in range(count):
            message_id = bytes(cursor.read_bytes(f"{field}.id"))
            rejections.append(Rejection(message_id, cursor.read_string(f"{field}.reason")))
    return rejections


def _encode_rejections(rejections: Sequence[Rejection]) -> bytes:
    return encode_array([encode_bytes(each.id) + encode_string(each.reason) for each in rejections])


# How each type of `WireFields` is read and written.
_TYPES: dict[str, tuple[Callable[[AvroCursor, str], Any], Callable[[Any], bytes]]] = {
    "string": (AvroCursor.read_string, encode_string),
    "int": (AvroCursor.read_int, encode_long),
    "long": (AvroCursor.read_long, encode_long),
    "long?": (AvroCursor.read_optional_long, encode_optional_long),
    "long[]": (_read_longs, lambda numbers: encode_array(list(map(encode_long, numbers)))),
    "id?": (_read_copied, encode_optional_bytes),
    "id[]": (_read_ids, encode_byte_strings),
    "rejection[]": (_read_rejections, _encode_rejections),
}


def _reader(fields: WireFields) -> Callable[[AvroCursor], list[Any]]:
    steps = [(_TYPES[kind][0], name) for name, kind in fields.items()]
    return lambda cursor: [read(cursor, name) for read, name in steps]


def _writer(fields: WireFields) -> Callable[[Struct], bytes]:
    steps = [_TYPES[kind][1] for kind in fields.values()]
    return lambda body: b"".join([encode(value) for encode, value in zip(steps, astuple(body), strict=True)])


_read_response, _write_response = _reader(PUBLISH_RESPONSE), _writer(PUBLISH_RESPONSE)
_read_marker, _write_marker = _reader(WORK_MARKER), _writer(WORK_MARKER)
_read_acknowledge, _write_acknowledge = _reader(WORK_ACKNOWLEDGE), _writer(WORK_ACKNOWLEDGE)
_read_topic = _reader(WORK_TOPIC)  # what the messages stand behind, which are counted over all topics


def decode_publish_request(body: Buffer, check: Callable[[PublishRequest], None] = check_publish) -> PublishRequest:
    """The body of publish; or of store, with `check_store`. Its messages are memoryviews of `body`."""
    cursor = AvroCursor(body)
    write_pointer = cursor.read_optional_long("transactionWritePointer")
    messages = cursor.read_byte_strings("messages", PUBLISH_MESSAGES_MAX)
    cursor.expect_end()
    request = PublishRequest(write_pointer, messages)
    check(request)
    return request


def encode_publish_request(request: PublishRequest) -> bytes:
    """The body of publish or store."""
    check_write_pointer(request.write_pointer)
    return encode_byte_strings(request.messages, before=encode_optional_long(request.write_pointer))


def decode_publish_response(
    body: Buffer, check: Callable[[PublishResponse], None] = check_publish_response
) -> PublishResponse:
    """The answer of a transactional publish; or the body of roll back, with `check_rollback`."""
    cursor = AvroCursor(body)
    response = PublishResponse(*_read_response(cursor))
    cursor.expect_end()
    check(response)
    return response


def encode_publish_response(response: PublishResponse) -> bytes:
    """The answer of a transactional publish, which is also the body of roll back."""
    check_publish_response(response)
    return _write_response(response)


def decode_consume_request(body: Buffer) -> ConsumeRequest:
    """The body of poll."""
    cursor = AvroCursor(body)
    start_from: bytes | int | None = None
    branch = cursor.read_index("startFrom", 3)
    if branch == 0:
        start_from = bytes(cursor.read_bytes("startFrom"))
    elif branch == 1:
        start_from = cursor.read_long("startFrom")
    inclusive = cursor.read_boolean("inclusive")
    limit = cursor.read_int("limit") if cursor.read_index("limit", 2) == 0 else None
    request = ConsumeRequest(start_from, inclusive, limit, _read_copied(cursor, "transaction"))
    cursor.expect_end()
    check_consume(request)
    return request


def encode_consume_request(request: ConsumeRequest) -> bytes:
    """The body of poll."""
    check_consume(request)
    start_from = request.start_from
    if start_from is None:
        start = THIRD_BRANCH
    elif isinstance(start_from, int):
        start = SECOND_BRANCH + encode_long(start_from)
    else:
        start = FIRST_BRANCH + encode_bytes(start_from)
    limit, transaction = encode_optional_long(request.limit), encode_optional_bytes(request.transaction)
    return b"".join((start, encode_boolean(request.inclusive), limit, transaction))


def encode_messages_block(ids: Sequence[Buffer], payloads: Sequence[Buffer]) -> bytes:
    """One block of a Messages answer: blocks, one after the other, and then END_OF_ARRAY, make an answer.

    `ids[i]`, 20 bytes, is the id of `payloads[i]`. No messages make no bytes, for an empty block would end the array.
    ValueError when the lists differ in length or an id is not 20 bytes.
    """
    return encode_messages_run(b"", ids, b"", payloads)


def encode_messages_run(
    id_head: bytes, id_numbers: Sequence[Buffer], id_tail: bytes, payloads: Sequence[Buffer]
) -> bytes:
    """As `encode_messages_block`, where `id_head + id_numbers[i] + id_tail` is the id of `payloads[i]`.

    Neighbouring messages differ in two bytes of their ids: so told, they cost half as much.
    """
    count = len(id_numbers)
    if count != len(payloads):
        raise ValueError(f"{count} ids for {len(payloads)} payloads")
    if not count:
        return b""
    if set(map(len, id_numbers)) != {MESSAGE_ID_BYTES - len(id_head) - len(id_tail)}:
        raise ValueError(f"a message id has {MESSAGE_ID_BYTES} bytes, and one of these {count} has not")
    # Columns are laid into the list by stride, so that no Python code runs per message.
    parts: list[Buffer] = [_ID_LENGTH + id_head] * (4 * count + 1)
    parts[0] = encode_long(count)
    parts[2::4] = id_numbers
    parts[3::4] = _after_tail(id_tail, payloads) if id_tail else map(encode_length, map(len, payloads))
    parts[4::4] = payloads
    return b"".join(parts)


def _after_tail(id_tail: bytes, payloads: Sequence[Buffer]) -> Iterator[bytes]:
    """Bytes between an id's number and each payload: the id's tail and the payload's length."""
    sizes = list(map(len, payloads))
    known = {size: id_tail + encode_length(size) for size in set(sizes)}
    return map(known.__getitem__, sizes)


def decode_work(body: Buffer) -> Work:
    """Decode the work of a commit or a one-shot transaction. Limits count over the whole body, those of entries per part."""
    cursor = AvroCursor(body)
    publish, seen, headers = [], 0, 0
    for _ in _entries(cursor, "publish", _WORK_PUBLISH_BYTES_MIN, WORK_ENTRIES_MAX):
        namespace, topic = _read_topic(cursor)
        messages = cursor.read_byte_strings("messages", PUBLISH_MESSAGES_MAX, already=seen)
        seen += len(messages)
        records: list[RecordIn] = []
        if not cursor.pass_empty_array():
            records = _read_records(cursor, seen, headers)
            seen += len(records)
            headers += sum(len(record.headers) for record in records)
        publish.append(WorkPublish(namespace, topic, messages, records))
    entries = _entries(cursor, "markers", _WORK_MARKER_BYTES_MIN, WORK_ENTRIES_MAX)
    markers = [WorkMarker(*_read_marker(cursor)) for _ in entries]
    entries = _entries(cursor, "acknowledge", _WORK_ACKNOWLEDGE_BYTES_MIN, WORK_ENTRIES_MAX)
    acknowledge = [WorkAcknowledge(*_read_acknowledge(cursor)) for _ in entries]
    work = Work(publish, markers, None, acknowledge)
    cursor.expect_end()
    check_work(work)
    return work


def _entries(cursor: AvroCursor, part: str, entry_bytes_min: int, entries_max: int, already: int = 0) -> Iterator[None]:
    """One turn for each entry of an array; the caller reads the entry's fields in that turn."""
    seen, around = 0, cursor.inside
    within = f"{around}.{part}" if around else part
    for count in cursor.read_blocks(part, item_bytes_min=entry_bytes_min):
        check_count(already + seen + count, entries_max, part)
        for index in range(seen, seen + count):
            cursor.inside = f"{within}[{index}]"
            yield
            cursor.inside = around
        seen += count


def encode_work(work: Work) -> bytes:
    """Encode the work of a commit or a one-shot transaction; every part is there, an empty one as a zero count."""
    check_work(work)
    if work.segments is not None:
        raise MalformedBodyError("Avro has no place for segments", field="segments", hint="Send the work as JSON.")
    publish = list[bytes]()
    for index, entry in enumerate(work.publish):
        title = encode_string(entry.namespace) + encode_string(entry.topic)
        publish.append(encode_byte_strings(entry.messages, before=title))
        publish.append(_encode_records(entry.records, f"publish[{index}].records") if entry.records else END_OF_ARRAY)
    markers = encode_array(list(map(_write_marker, work.markers)))
    acknowledge = encode_array(list(map(_write_acknowledge, work.acknowledge)))
    return encode_entries(len(work.publish), publish) + markers + acknowledge


def decode_records_request(body: Buffer) -> RecordsRequest:
    """The body of publishing records. Payloads are memoryviews of `body`; keys and header values are copied."""
    cursor = AvroCursor(body)
    write_pointer = cursor.read_optional_long("transactionWritePointer")
    records = _read_records(cursor)
    cursor.expect_end()
    request = RecordsRequest(write_pointer, records)
    check_records(request)
    return request


def _read_records(cursor: AvroCursor, already: int = 0, headers: int = 0) -> list[RecordIn]:
    """Records to publish; the body has so many messages, and headers, before them."""
    records: list[RecordIn] = []
    for _ in _entries(cursor, "records", _RECORD_IN_BYTES_MIN, PUBLISH_MESSAGES_MAX, already):
        record = RecordIn(*_read_content(cursor))
        check_record(record, cursor.inside)
        headers += len(record.headers)
        check_count(headers, REQUEST_HEADERS_MAX, "headers")
        records.append(record)
    return records


def encode_records_request(request: RecordsRequest) -> bytes:
    """The body of publishing records."""
    check_records(request)
    return encode_optional_long(request.write_pointer) + _encode_records(request.records, "records")


def _encode_records(records: Sequence[RecordIn], field: str) -> bytes:
    for index, record in enumerate(records):
        check_record(record, f"{field}[{index}]")
    return encode_array(list(map(_encode_content, records)))


def encode_records_block(records: Sequence[Record]) -> bytes:
    """One block of a Records answer: blocks, one after the other, and then END_OF_ARRAY, make an answer."""
    return encode_array(list(map(_encode_record, records)))[: -len(END_OF_ARRAY)]


def decode_records(body: Buffer) -> list[Record]:
    """The answer of reading records, as a client reads it: everything is copied."""
    cursor = AvroCursor(body)
    records = [_read_record(cursor) for _ in _entries(cursor, "records", _RECORD_BYTES_MIN, LONG_MAX)]
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
    payload, key, headers = cursor.read_bytes("payload"), _read_copied(cursor, "key"), _read_headers(cursor)
    return payload, key, headers, cursor.read_optional_long("eventTimeMs"), cursor.read_optional_long("ttlMs")


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
