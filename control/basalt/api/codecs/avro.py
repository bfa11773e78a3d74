"""The messaging API's bodies in binary Avro, by hand for their fixed schemas: strict, and fast where messages are many.

`decode_X` raises MalformedBodyError for every body that is not exactly an X (with the byte offset) or that means
nothing (the `check_` functions of `bodies`), and TooLargeError for more items than a call may carry. Payloads of
requests come out as memoryviews of the body. `encode_X` trusts its caller's types, and checks meaning where a client
would be answered 400. Schemas: `avro_schemas`; format: docs/formats/avro-bodies.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from basalt.api.bodies.work import (
    MESSAGE_ID_BYTES,
    PUBLISH_MESSAGES_MAX,
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
    check_publish,
    check_publish_response,
    check_rollback,
    check_store,
    check_work,
    check_write_pointer,
)
from basalt.api.codecs.avro_primitives import (
    END_OF_ARRAY,
    FIRST_BRANCH,
    SECOND_BRANCH,
    THIRD_BRANCH,
    AvroCursor,
    encode_array,
    encode_boolean,
    encode_byte_strings,
    encode_bytes,
    encode_length,
    encode_long,
    encode_optional_bytes,
    encode_optional_long,
    encode_string,
)
from basalt.errors import MalformedBodyError

__all__ = [
    "END_OF_ARRAY",
    "decode_consume_request",
    "decode_messages",
    "decode_publish_request",
    "decode_publish_response",
    "decode_rollback_request",
    "decode_store_request",
    "decode_work",
    "encode_consume_request",
    "encode_messages",
    "encode_messages_block",
    "encode_messages_run",
    "encode_publish_request",
    "encode_publish_response",
    "encode_work",
]

_ID_LENGTH = encode_length(MESSAGE_ID_BYTES)
_MESSAGE_BYTES_MIN = 2  # two lengths
_WORK_PUBLISH_BYTES_MIN = 3  # two names' lengths, the end of the messages
_WORK_ACKNOWLEDGE_BYTES_MIN = 5  # three names' lengths, the end of the ids, a union branch
_WORK_MARKER_BYTES_MIN = 6  # four texts' lengths, a number, a union branch


def decode_publish_request(body: Buffer, *, messages_max: int = PUBLISH_MESSAGES_MAX) -> PublishRequest:
    """The body of publish; its messages are memoryviews of `body`."""
    request = _read_publish_request(body, messages_max)
    check_publish(request)
    return request


def decode_store_request(body: Buffer, *, messages_max: int = PUBLISH_MESSAGES_MAX) -> PublishRequest:
    """The body of store: the same schema as publish's, with both parts required."""
    request = _read_publish_request(body, messages_max)
    check_store(request)
    return request


def encode_publish_request(request: PublishRequest) -> bytes:
    """The body of publish or store."""
    check_write_pointer(request.write_pointer)
    return encode_byte_strings(request.messages, before=encode_optional_long(request.write_pointer))


def decode_publish_response(body: Buffer) -> PublishResponse:
    """The answer of a transactional publish."""
    cursor = AvroCursor(body)
    response = PublishResponse(
        write_pointer=cursor.read_optional_long("transactionWritePointer"),
        start_ms=cursor.read_long("startTimestamp"),
        start_sequence=cursor.read_int("startSequenceId"),
        end_ms=cursor.read_long("endTimestamp"),
        end_sequence=cursor.read_int("endSequenceId"),
    )
    cursor.expect_end()
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
    return encode_optional_long(response.write_pointer) + b"".join(
        map(encode_long, (response.start_ms, response.start_sequence, response.end_ms, response.end_sequence))
    )


def decode_consume_request(body: Buffer) -> ConsumeRequest:
    """The body of poll; `start_from` as an id, and `transaction`, are bytes of their own (small, and kept for long)."""
    cursor = AvroCursor(body)
    start_from: bytes | int | None = None
    branch = cursor.read_index("startFrom", 3)
    if branch == 0:
        start_from = bytes(cursor.read_bytes("startFrom"))
    elif branch == 1:
        start_from = cursor.read_long("startFrom")
    inclusive = cursor.read_boolean("inclusive")
    limit = cursor.read_int("limit") if cursor.read_index("limit", 2) == 0 else None
    transaction = cursor.read_optional_bytes("transaction")
    cursor.expect_end()
    request = ConsumeRequest(start_from, inclusive, limit, None if transaction is None else bytes(transaction))
    check_consume(request)
    return request


def encode_consume_request(request: ConsumeRequest) -> bytes:
    """The body of poll."""
    check_consume(request)
    start_from, limit = request.start_from, request.limit
    if start_from is None:
        start = THIRD_BRANCH
    elif isinstance(start_from, int):
        start = SECOND_BRANCH + encode_long(start_from)
    else:
        start = FIRST_BRANCH + encode_bytes(start_from)
    return b"".join(
        (
            start,
            encode_boolean(request.inclusive),
            encode_optional_long(limit),
            encode_optional_bytes(request.transaction),
        )
    )


def encode_messages_block(ids: Sequence[Buffer], payloads: Sequence[Buffer]) -> bytes:
    """One block of a Messages answer: blocks, one after the other, and then END_OF_ARRAY, make an answer.

    `ids[i]`, 20 bytes, is the id of `payloads[i]`. No messages make no bytes, for an empty block would end the array.
    ValueError when the lists differ in length or an id is not 20 bytes.
    """
    count = len(ids)
    if count != len(payloads):
        raise ValueError(f"{count} ids for {len(payloads)} payloads")
    if not count:
        return b""
    if set(map(len, ids)) != {MESSAGE_ID_BYTES}:
        raise ValueError(f"a message id has {MESSAGE_ID_BYTES} bytes, and one of {count} has not")
    # Columns are laid into the list by stride, so that no Python code runs per message.
    parts: list[Buffer] = [_ID_LENGTH] * (4 * count + 1)
    parts[0] = encode_long(count)
    parts[2::4] = ids
    parts[3::4] = map(encode_length, map(len, payloads))
    parts[4::4] = payloads
    return b"".join(parts)


def encode_messages_run(
    id_head: bytes, id_numbers: Sequence[bytes], id_tail: bytes, payloads: Sequence[Buffer]
) -> bytes:
    """As `encode_messages_block`, where `id_head + id_numbers[i] + id_tail` is the id of `payloads[i]`.

    Neighbouring messages differ in two bytes of their ids: so told, they cost half as much.
    """
    count = len(id_numbers)
    if count != len(payloads):
        raise ValueError(f"{count} ids for {len(payloads)} payloads")
    if not count:
        return b""
    number_bytes = MESSAGE_ID_BYTES - len(id_head) - len(id_tail)
    if set(map(len, id_numbers)) != {number_bytes}:
        raise ValueError(f"a message id has {MESSAGE_ID_BYTES} bytes, and those of this run have not")
    parts: list[Buffer] = [_ID_LENGTH + id_head] * (4 * count + 1)
    parts[0] = encode_long(count)
    parts[2::4] = id_numbers
    parts[3::4] = _with_lengths(id_tail, payloads)
    parts[4::4] = payloads
    return b"".join(parts)


def encode_messages(messages: Sequence[Message]) -> bytes:
    """A whole Messages answer, for a caller that has it in one piece."""
    return encode_messages_block([m.id for m in messages], [m.payload for m in messages]) + END_OF_ARRAY


def decode_messages(body: Buffer) -> list[Message]:
    """The answer of a poll, as a client reads it: payloads are copied, so that keeping one does not keep the answer."""
    body = body if isinstance(body, bytes) else bytes(body)
    cursor = AvroCursor(body)
    messages: list[Message] = []
    for count in cursor.read_blocks("messages", item_bytes_min=_MESSAGE_BYTES_MIN):
        columns = cursor.read_copied(2 * count, "messages")
        ids = columns[0::2]
        if set(map(len, ids)) != {MESSAGE_ID_BYTES}:
            raise MalformedBodyError(
                f"a message of the answer has an id that is not {MESSAGE_ID_BYTES} bytes", field="messages"
            )
        messages.extend(map(Message, ids, columns[1::2]))
    cursor.expect_end()
    return messages


def decode_work(
    body: Buffer,
    *,
    messages_max: int = PUBLISH_MESSAGES_MAX,
    entries_max: int = WORK_ENTRIES_MAX,
    ids_max: int = WORK_IDS_MAX,
) -> Work:
    """Decode the work of a commit or a one-shot transaction. Limits count over the whole body, `entries_max` per part."""
    cursor = AvroCursor(body)
    work = Work(
        publish=_read_work_publish(cursor, messages_max, entries_max),
        acknowledge=_read_work_acknowledge(cursor, ids_max, entries_max),
        markers=_read_work_markers(cursor, entries_max),
    )
    cursor.expect_end()
    check_work(work)
    return work


def encode_work(work: Work) -> bytes:
    """Encode the work of a commit or a one-shot transaction; every part is there, an empty one as a zero count."""
    check_work(work)
    if work.segments is not None:
        raise MalformedBodyError("Avro has no place for segments", field="segments", hint="Send the work as JSON.")
    publish = [
        encode_byte_strings(p.messages, before=encode_string(p.namespace) + encode_string(p.topic))
        for p in work.publish
    ]
    acknowledge = [
        b"".join(
            (
                *map(encode_string, (a.namespace, a.topic, a.group)),
                encode_byte_strings(a.ids),
                encode_optional_bytes(a.up_to),
            )
        )
        for a in work.acknowledge
    ]
    markers = [
        b"".join(
            (
                *map(encode_string, (m.namespace, m.topic, m.task)),
                encode_long(m.task_count),
                encode_string(m.kind),
                encode_optional_long(m.event_time_ms),
            )
        )
        for m in work.markers
    ]
    return encode_array(publish) + encode_array(acknowledge) + encode_array(markers)


def _with_lengths(id_tail: bytes, payloads: Sequence[Buffer]) -> list[bytes]:
    """Bytes between an id's number and each payload: the id's tail and the payload's length."""
    lengths = list(map(len, payloads))
    known = {length: id_tail + encode_length(length) for length in set(lengths)}
    return list(map(known.__getitem__, lengths))


def _read_publish_request(body: Buffer, messages_max: int) -> PublishRequest:
    cursor = AvroCursor(body)
    write_pointer = cursor.read_optional_long("transactionWritePointer")
    messages = cursor.read_byte_strings("messages", messages_max)
    cursor.expect_end()
    return PublishRequest(write_pointer, messages)


def _entries(cursor: AvroCursor, part: str, entry_bytes_min: int, entries_max: int) -> Iterator[None]:
    """One turn for each entry of one part of a Work; the caller reads the entry's fields in that turn."""
    seen = 0
    for count in cursor.read_blocks(part, item_bytes_min=entry_bytes_min):
        check_count(seen + count, entries_max, part)
        for index in range(seen, seen + count):
            cursor.inside = f"{part}[{index}]"
            yield
            cursor.inside = ""
        seen += count


def _read_work_publish(cursor: AvroCursor, messages_max: int, entries_max: int) -> list[WorkPublish]:
    entries, seen = [], 0
    for _ in _entries(cursor, "publish", _WORK_PUBLISH_BYTES_MIN, entries_max):
        namespace = cursor.read_string("namespace")
        topic = cursor.read_string("topic")
        messages = cursor.read_byte_strings("messages", messages_max, already=seen)
        seen += len(messages)
        entries.append(WorkPublish(namespace, topic, messages))
    return entries


def _read_work_acknowledge(cursor: AvroCursor, ids_max: int, entries_max: int) -> list[WorkAcknowledge]:
    entries, seen = [], 0
    for _ in _entries(cursor, "acknowledge", _WORK_ACKNOWLEDGE_BYTES_MIN, entries_max):
        namespace = cursor.read_string("namespace")
        topic = cursor.read_string("topic")
        group = cursor.read_string("group")
        ids = cursor.read_byte_strings("ids", ids_max, already=seen)
        seen += len(ids)
        up_to = cursor.read_optional_bytes("upTo")
        entries.append(
            WorkAcknowledge(namespace, topic, group, list(map(bytes, ids)), None if up_to is None else bytes(up_to))
        )
    return entries


def _read_work_markers(cursor: AvroCursor, entries_max: int) -> list[WorkMarker]:
    return [
        WorkMarker(
            namespace=cursor.read_string("namespace"),
            topic=cursor.read_string("topic"),
            task=cursor.read_string("task"),
            task_count=cursor.read_int("taskCount"),
            kind=cursor.read_string("kind"),
            event_time_ms=cursor.read_optional_long("eventTimeMs"),
        )
        for _ in _entries(cursor, "markers", _WORK_MARKER_BYTES_MIN, entries_max)
    ]
