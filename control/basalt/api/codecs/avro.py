"""The API's bodies in binary Avro, by hand for their fixed schemas: strict, and fast where messages are many.

`decode_X` raises MalformedBodyError for every body that is not exactly an X (with the byte offset) or that means
nothing (the `check_` functions of `bodies`), and TooLargeError for more items than a call may carry. Payloads of
requests come out as memoryviews of the body. `encode_X` trusts its caller's types, and checks meaning where a client
would be answered 400. Stricter than Avro libraries on purpose: one spelling per number (no padded varints), counts that must
fit into what is left of the body, block sizes that must be true, and nothing after the end.
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
    INT_MAX,
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
from basalt.errors import MalformedBodyError

VARINT_BYTES_MAX = 10  # 64 bits at 7 bits a byte
EVEN_ITEMS_MIN = (
    32  # that a block has where it is looked whether all its items are equally long; fewer are as soon read
)
LENGTH_TABLE_ITEMS = 4_096  # lengths whose encoding is kept at hand; longer payloads cost more to copy than to count
END_OF_ARRAY = b"\x00"  # a block count of zero
NO_TAG_HINT = "Send the bare binary record of the documented schema."
FOREIGN_STARTS = (
    (b"Obj\x01", "This is an Avro container file. " + NO_TAG_HINT),
    (b"\xc3\x01", "This has a single-object header. " + NO_TAG_HINT),
    (b"\x1f\x8b", "This is gzip: name it in Content-Encoding."),
    (b"\x28\xb5\x2f\xfd", "This is zstd: name it in Content-Encoding."),
    (b"{", "This looks like JSON: send it as application/json."),
)
_WORK_PUBLISH_BYTES_MIN = 4  # two names' lengths, the ends of the messages and of the records
_WORK_MARKER_BYTES_MIN = 6  # four texts' lengths, a number, a union branch
_WORK_ACKNOWLEDGE_BYTES_MIN = 11  # four texts' lengths, a union branch, two numbers, the ends of four lists
_REJECTION_BYTES_MIN = 2  # two lengths
_RECORD_IN_BYTES_MIN = 5  # a length, three union branches, the end of the headers
_RECORD_BYTES_MIN = 8  # the same, and an id's length, a kind, one more union branch
_HEADER_BYTES_MIN = 2  # two lengths


class AvroCursor:
    """Reads one body from front to end. `field` in each method names, for errors, what is being read.

    Set `inside` to the entry that the fields belong to (`records[3]`), or to "" for fields of the body itself.
    Every method raises MalformedBodyError with the byte offset and what was expected there. Bytes come out as
    memoryview slices of the body: they stay valid, and keep the body alive, as long as someone holds them.
    """

    __slots__ = ("_body", "_position", "_size", "_view", "inside")

    def __init__(self, body: Buffer) -> None:
        self._view = memoryview(body)
        # Indexing bytes is about twice as fast as indexing a memoryview, and every varint is indexed.
        self._body: bytes | memoryview = body if isinstance(body, bytes) else self._view
        self._size = len(self._view)
        self._position = 0
        self.inside = ""
        if self._size == 0:
            raise MalformedBodyError("the body is empty; expected binary Avro", hint=NO_TAG_HINT)

    def read_long(self, field: str, expected: str = "a long") -> int:
        """A zigzag varint of at most 64 bits."""
        body, start = self._body, self._position
        if start < self._size and (byte := body[start]) < 0x80:
            self._position = start + 1
            return (byte >> 1) ^ -(byte & 1)
        value = shift = 0
        for position in range(start, min(start + VARINT_BYTES_MAX, self._size)):
            byte = body[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    raise self._refusal(start, field, expected, "a number padded with a zero byte")
                if value >> 64:
                    raise self._refusal(start, field, expected, "a number of more than 64 bits")
                self._position = position + 1
                return (value >> 1) ^ -(value & 1)
            shift += 7
        if self._size - start >= VARINT_BYTES_MAX:
            raise self._refusal(start, field, expected, f"a number of more than {VARINT_BYTES_MAX} bytes")
        raise self._refusal(start, field, expected, "the end of the body")

    def read_int(self, field: str) -> int:
        """A zigzag varint of at most 32 bits."""
        start = self._position
        value = self.read_long(field, "an int")
        if not -INT_MAX - 1 <= value <= INT_MAX:
            raise self._refusal(start, field, "an int", f"{value}, which needs more than 32 bits")
        return value

    def read_boolean(self, field: str) -> bool:
        """One byte, 0 or 1."""
        start = self._position
        if start >= self._size:
            raise self._refusal(start, field, "a boolean", "the end of the body")
        byte = self._body[start]
        if byte > 1:
            raise self._refusal(start, field, "a boolean (0 or 1)", f"the byte {byte}")
        self._position = start + 1
        return byte == 1

    def read_index(self, field: str, count: int, expected: str = "the index of a union branch") -> int:
        """The index of a union branch or of an enum symbol: 0 to count - 1."""
        start = self._position
        index = self.read_long(field, expected)
        if not 0 <= index < count:
            raise self._refusal(start, field, f"{expected}, 0 to {count - 1}", f"{index}")
        return index

    def read_bytes(self, field: str) -> memoryview:
        """A length and so many bytes, not copied."""
        start = self._position
        length = self.read_long(field, "a length")
        left = self._size - self._position
        if not 0 <= length <= left:
            raise self._refusal(start, field, f"a length of 0 to {left} (what is left of the body)", f"{length}")
        begin = self._position
        self._position = begin + length
        return self._view[begin : self._position]

    def read_string(self, field: str) -> str:
        """A length and so many bytes of UTF-8."""
        start = self._position
        try:
            return str(self.read_bytes(field), "utf-8")
        except UnicodeDecodeError:
            raise self._refusal(start, field, "UTF-8 text", "bytes that are not UTF-8") from None

    def read_optional_long(self, field: str) -> int | None:
        """The union [long, null]."""
        return self.read_long(field) if self.read_index(field, 2) == 0 else None

    def read_optional_bytes(self, field: str) -> memoryview | None:
        """The union [bytes, null], not copied."""
        return self.read_bytes(field) if self.read_index(field, 2) == 0 else None

    def read_blocks(self, field: str, *, item_bytes_min: int) -> Iterator[int]:
        """The item count of each block of an array; the caller reads that many items before it asks for the next.

        A count that cannot fit into what is left (each item has at least `item_bytes_min` bytes) is refused here, so
        a caller's loop is never longer than the body.
        """
        while True:
            start = self._position
            if start < self._size and self._body[start] == 0:  # the end of each array, and most have no more
                self._position = start + 1
                return
            count = self.read_long(field, "the count of a block")
            stop = None
            if count < 0:
                count = -count
                size_start = self._position
                size = self.read_long(field, "the size of a block")
                left = self._size - self._position
                if not 0 <= size <= left:
                    raise self._refusal(size_start, field, f"a block size of 0 to {left} (what is left)", f"{size}")
                stop = self._position + size
            if count * item_bytes_min > self._size - self._position:
                raise self._refusal(start, field, "a block count that fits into the rest of the body", f"{count}")
            yield count
            if stop is not None and self._position != stop:
                raise self._refusal(
                    self._position, field, f"the block to end at byte {stop}, as its size says", "another end"
                )

    def read_byte_strings(self, field: str, items_max: int, already: int = 0) -> list[memoryview]:
        """The type array<bytes>, not copied.

        TooLargeError, before any is read, when these and the `already` read ones are more than `items_max`.
        """
        items: list[memoryview] = []
        for count in self.read_blocks(field, item_bytes_min=1):
            check_count(already + len(items) + count, items_max, field)
            if count < EVEN_ITEMS_MIN or not self._append_even_byte_strings(items, count, field):
                self._append_byte_strings(items, count, field)
        return items

    def pass_empty_array(self) -> bool:
        """Read an array if it has no items. What most bodies leave empty costs next to nothing so."""
        empty = self._position < self._size and self._body[self._position] == 0
        self._position += empty
        return empty

    def expect_end(self) -> None:
        """Nothing may follow a body."""
        self.inside = ""
        if self._position != self._size:
            left = self._size - self._position
            raise self._refusal(self._position, None, "the end of the body", f"{left} bytes more")

    def _append_even_byte_strings(self, items: list[memoryview], count: int, field: str) -> bool:
        """Read a block whose items are all as long as the first one; False, and nothing is read, where they are not.

        Equally long items lie at equal distances: a slice for each byte of the lengths tells whether they are, and no Python
        code runs per item but that which cuts it out.
        """
        body, start = self._body, self._position
        length = len(self.read_bytes(f"{field}[{len(items)}]"))
        begin, distance = self._position - length, self._position - start
        stop = start + count * distance
        if stop > self._size or any(
            bytes(body[at:stop:distance]) != bytes(body[at : at + 1]) * count for at in range(start, begin)
        ):
            self._position = start
            return False
        source = self._view
        items += [source[at : at + length] for at in range(begin, begin + count * distance, distance)]
        self._position = stop
        return True

    def _append_byte_strings(self, items: list[memoryview], count: int, field: str) -> None:
        # The hot loop of publish: lengths of one and two bytes (up to 8 KiB) are read in line, all others,
        # and errors, by read_bytes. A slice past the end comes out short without an error, hence `size`.
        body, source, size, position = self._body, self._view, self._size, self._position
        append = items.append
        for _ in range(count):
            if position + 1 < size:
                length = body[position]
                begin = position + 1
                if length > 0x7F:
                    length = (length & 0x7F) | (body[begin] << 7)
                    begin += 1
                    if not 0x7F < length < 0x4000:  # padded, or of three bytes and more: odd is "not here"
                        length = 1
                stop = begin + (length >> 1)
                if stop <= size and not length & 1:
                    append(source[begin:stop])
                    position = stop
                    continue
            self._position = position
            length = len(self.read_bytes(f"{field}[{len(items)}]"))
            position = self._position
            append(source[position - length : position])
        self._position = position

    def _refusal(self, offset: int, field: str | None, expected: str, found: str) -> MalformedBodyError:
        if field and self.inside:
            field = f"{self.inside}.{field}"
        where = f", in {field}" if field else ""
        start = bytes(self._view[:4])
        hint = next((hint for magic, hint in FOREIGN_STARTS if start.startswith(magic)), None)
        return MalformedBodyError(
            f"binary Avro, byte {offset}{where}: expected {expected}, found {found}", field=field, hint=hint
        )


def encode_long(value: int) -> bytes:
    """A long, or an int, as a zigzag varint. ValueError when it needs more than 64 bits."""
    if not -LONG_MAX - 1 <= value <= LONG_MAX:
        raise ValueError(f"{value} does not fit into a long")
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append((rest & 0x7F) | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


class _LengthTable(dict[int, bytes]):
    """Encoded lengths: short ones are at hand, longer ones are made when asked for and not kept."""

    def __missing__(self, length: int) -> bytes:
        return encode_long(length)


LENGTHS = _LengthTable((length, encode_long(length)) for length in range(LENGTH_TABLE_ITEMS))
encode_length = LENGTHS.__getitem__

_KIND_INDEX = {kind: encode_long(index) for index, kind in enumerate(RECORD_KINDS)}
_ID_LENGTH = encode_length(MESSAGE_ID_BYTES)
FIRST_BRANCH, SECOND_BRANCH, THIRD_BRANCH = (encode_long(index) for index in range(3))


def encode_boolean(value: bool) -> bytes:
    """One byte, 0 or 1."""
    return b"\x01" if value else b"\x00"


def encode_bytes(value: Buffer) -> bytes:
    return b"".join((encode_length(len(value)), value))


def encode_string(value: str) -> bytes:
    """A length and the text in UTF-8."""
    return encode_bytes(value.encode())


def encode_optional_long(value: int | None) -> bytes:
    """The union [long, null]."""
    return SECOND_BRANCH if value is None else FIRST_BRANCH + encode_long(value)


def encode_optional_bytes(value: Buffer | None) -> bytes:
    """The union [bytes, null]."""
    return SECOND_BRANCH if value is None else FIRST_BRANCH + encode_bytes(value)


def encode_byte_strings(items: Sequence[Buffer], before: bytes = b"") -> bytes:
    """The type array<bytes>, in one block, after the bytes `before` (a second join would copy every payload again)."""
    if not items:
        return before + END_OF_ARRAY
    # Columns are laid into the list by stride, so that no Python code runs per item.
    parts: list[Buffer] = [END_OF_ARRAY] * (2 * len(items) + 3)
    parts[0] = before
    parts[1] = encode_long(len(items))
    parts[2:-1:2] = map(encode_length, map(len, items))
    parts[3:-1:2] = items
    return b"".join(parts)


def encode_array(items: Sequence[bytes]) -> bytes:
    """An array of items that are encoded already, in one block."""
    return _encode_entries(len(items), items)


def _encode_entries(count: int, parts: Sequence[bytes]) -> bytes:
    """An array of so many items, in one block; these are their parts, one after the other."""
    return b"".join((encode_long(count), *parts, END_OF_ARRAY)) if count else END_OF_ARRAY


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
    return _encode_entries(len(work.publish), publish) + markers + acknowledge


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
