"""Our binary Avro against a general Avro library: what it writes we read, what we write it reads, in any blocks."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies.messages import (
    ConsumeRequest,
    Message,
    PublishRequest,
    PublishResponse,
    Record,
    RecordIn,
    RecordsRequest,
    Work,
    WorkMarker,
    WorkPublish,
)
from basalt.api.codecs import avro, avro_values
from tests.control.api.codecs import avro_schemas, client_codecs
from tests.control.api.codecs.acknowledgements import acknowledgements

SCHEMAS = {
    name: fastavro.parse_schema(json.loads(text))
    for name, text in vars(avro_schemas).items()
    if name.isupper() and isinstance(text, str)
}

# Lengths around every change of a varint's size, among short random ones.
PAYLOADS = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([0, 63, 64, 127, 128, 8_191, 8_192, 16_384]).map(lambda length: b"p" * length),
)
IDS = st.binary(min_size=20, max_size=20)
WRITE_POINTERS = st.none() | st.integers(1, 2**63 - 1)
TIMES = st.integers(0, 2**63 - 1)
ANY_TIMES = st.integers(-(2**63) + 1, 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = TEXTS.filter(bool)


def their_bytes(schema: str, value: Any) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, SCHEMAS[schema], value)
    return written.getvalue()


def their_value(schema: str, body: bytes) -> Any:
    stream = io.BytesIO(body)
    value = fastavro.schemaless_reader(stream, SCHEMAS[schema], None)
    assert stream.read() == b"", "they left bytes unread"
    return value


def their_long(value: int) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, {"type": "long"}, value)
    return written.getvalue()


def in_blocks(items: list[bytes], data: st.DataObject) -> bytes:
    """The items as an array of random blocks, some with their size in bytes."""
    body, rest = b"", items
    while rest:
        count = data.draw(st.integers(1, len(rest)))
        content = b"".join(rest[:count])
        if data.draw(st.booleans()):
            body += their_long(-count) + their_long(len(content)) + content
        else:
            body += their_long(count) + content
        rest = rest[count:]
    return body + their_long(0)


def as_dicts(messages: list[Message]) -> list[dict[str, bytes]]:
    return [{"id": message.id, "payload": message.payload} for message in messages]


PUBLISH_REQUESTS = st.builds(PublishRequest, WRITE_POINTERS, st.lists(PAYLOADS, min_size=1, max_size=12))
MESSAGES = st.lists(st.builds(Message, IDS, PAYLOADS), max_size=12)
CONSUME_REQUESTS = st.builds(
    ConsumeRequest,
    start_from=st.none() | IDS | TIMES,
    inclusive=st.booleans(),
    limit=st.none() | st.integers(1, 2**31 - 1),
    transaction=st.none() | PAYLOADS,
)


@st.composite
def publish_responses(draw: st.DrawFn) -> PublishResponse:
    start, end = sorted(draw(st.lists(st.tuples(TIMES, st.integers(0, 65_535)), min_size=2, max_size=2)))
    return PublishResponse(draw(WRITE_POINTERS), *start, *end)


HEADERS = st.lists(st.tuples(NAMES, PAYLOADS), max_size=3).map(tuple)
RECORDS_IN = st.builds(
    RecordIn, PAYLOADS, st.none() | PAYLOADS, HEADERS, st.none() | ANY_TIMES, st.none() | st.integers(1, 2**63 - 1)
)
PUBLISHED = st.builds(WorkPublish, TEXTS, TEXTS, st.lists(PAYLOADS, min_size=1, max_size=4), st.just([]))
PUBLISHED_RECORDS = st.builds(WorkPublish, TEXTS, TEXTS, st.just([]), st.lists(RECORDS_IN, min_size=1, max_size=3))
WORKS = st.builds(
    Work,
    publish=st.lists(
        PUBLISHED | PUBLISHED_RECORDS,
        max_size=3,
    ),
    markers=st.lists(
        st.builds(WorkMarker, TEXTS, TEXTS, NAMES, st.integers(1, 2**31 - 1), st.just("watermark"), ANY_TIMES)
        | st.builds(WorkMarker, TEXTS, TEXTS, NAMES, st.integers(1, 2**31 - 1), st.just("end_of_stream"), st.none()),
        max_size=3,
    ),
    acknowledge=st.lists(acknowledgements(), max_size=3),
)

RECORDS = st.builds(
    Record,
    IDS,
    PAYLOADS,
    st.none() | PAYLOADS,
    HEADERS,
    st.none() | ANY_TIMES,
    st.none() | st.integers(1, 2**63 - 1),
    st.sampled_from(["user", "watermark", "end_of_stream"]),
    WRITE_POINTERS,
)


def publish_request_dict(request: PublishRequest) -> dict[str, Any]:
    return {"transactionWritePointer": request.write_pointer, "messages": [bytes(m) for m in request.messages]}


def publish_response_dict(response: PublishResponse) -> dict[str, Any]:
    return {
        "transactionWritePointer": response.write_pointer,
        "startTimestamp": response.start_ms,
        "startSequenceId": response.start_sequence,
        "endTimestamp": response.end_ms,
        "endSequenceId": response.end_sequence,
    }


def consume_request_dict(request: ConsumeRequest) -> dict[str, Any]:
    return {
        "startFrom": request.start_from,
        "inclusive": request.inclusive,
        "limit": request.limit,
        "transaction": request.transaction,
    }


def work_dict(work: Work) -> dict[str, Any]:
    return {
        "publish": [
            {
                "namespace": p.namespace,
                "topic": p.topic,
                "messages": [bytes(m) for m in p.messages],
                "records": [content_dict(record) for record in p.records],
            }
            for p in work.publish
        ],
        "markers": [
            {
                "namespace": m.namespace,
                "topic": m.topic,
                "task": m.task,
                "taskCount": m.task_count,
                "kind": m.kind,
                "eventTimeMs": m.event_time_ms,
            }
            for m in work.markers
        ],
        "acknowledge": [
            {
                "namespace": a.namespace,
                "topic": a.topic,
                "group": a.group,
                "ids": a.ids,
                "upTo": a.up_to,
                "member": a.member,
                "epoch": a.epoch,
                "round": a.round,
                "claims": a.claims,
                "except": a.except_ids,
                "reject": [{"id": each.id, "reason": each.reason} for each in a.reject],
            }
            for a in work.acknowledge
        ],
    }


def content_dict(record: Record | RecordIn) -> dict[str, Any]:
    return {
        "payload": bytes(record.payload),
        "key": record.key,
        "headers": [{"name": name, "value": value} for name, value in record.headers],
        "eventTimeMs": record.event_time_ms,
        "ttlMs": record.ttl_ms,
    }


def record_dict(record: Record) -> dict[str, Any]:
    return {
        **content_dict(record),
        "id": record.id,
        "kind": record.kind,
        "transactionWritePointer": record.write_pointer,
    }


def records_request_dict(request: RecordsRequest) -> dict[str, Any]:
    return {
        "transactionWritePointer": request.write_pointer,
        "records": [content_dict(record) for record in request.records],
    }


BOTH_WAYS = [
    (
        "PUBLISH_REQUEST",
        PUBLISH_REQUESTS,
        publish_request_dict,
        avro.encode_publish_request,
        avro.decode_publish_request,
    ),
    (
        "PUBLISH_RESPONSE",
        publish_responses(),
        publish_response_dict,
        avro.encode_publish_response,
        avro.decode_publish_response,
    ),
    (
        "CONSUME_REQUEST",
        CONSUME_REQUESTS,
        consume_request_dict,
        avro.encode_consume_request,
        avro.decode_consume_request,
    ),
    ("MESSAGES", MESSAGES, as_dicts, client_codecs.encode_avro_messages, client_codecs.decode_avro_messages),
    ("WORK", WORKS, work_dict, avro.encode_work, avro.decode_work),
    (
        "RECORDS_REQUEST",
        st.builds(RecordsRequest, WRITE_POINTERS, st.lists(RECORDS_IN, min_size=1, max_size=4)),
        records_request_dict,
        avro.encode_records_request,
        avro.decode_records_request,
    ),
    (
        "RECORDS",
        st.lists(RECORDS, max_size=4),
        lambda records: [record_dict(record) for record in records],
        client_codecs.encode_avro_records,
        avro.decode_records,
    ),
]


@pytest.mark.parametrize(
    ("schema", "values", "as_dict", "encode", "decode"), BOTH_WAYS, ids=[row[0] for row in BOTH_WAYS]
)
@given(data=st.data())
def test_they_read_what_we_write_and_we_read_what_they_write(
    schema: str,
    values: st.SearchStrategy[Any],
    as_dict: Callable[[Any], Any],
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
    data: st.DataObject,
) -> None:
    value = data.draw(values)
    ours = encode(value)
    assert their_value(schema, ours) == as_dict(value)
    assert as_dict(decode(their_bytes(schema, as_dict(value)))) == as_dict(value)
    assert decode(ours) == value


def test_every_schema_is_compared() -> None:
    assert {row[0] for row in BOTH_WAYS} == set(SCHEMAS)


@given(request=PUBLISH_REQUESTS, data=st.data())
def test_a_publish_may_come_in_any_blocks(request: PublishRequest, data: st.DataObject) -> None:
    pointer = b"\x02" if request.write_pointer is None else b"\x00" + their_long(request.write_pointer)
    body = pointer + in_blocks([their_long(len(m)) + bytes(m) for m in request.messages], data)
    assert their_value("PUBLISH_REQUEST", body) == publish_request_dict(request)
    assert avro.decode_publish_request(body) == request


@given(messages=MESSAGES, data=st.data())
def test_an_answer_may_come_in_any_blocks(messages: list[Message], data: st.DataObject) -> None:
    items = [their_long(20) + m.id + their_long(len(m.payload)) + m.payload for m in messages]
    body = in_blocks(items, data)
    assert their_value("MESSAGES", body) == as_dicts(messages)
    assert client_codecs.decode_avro_messages(body) == messages


@given(batches=st.lists(MESSAGES, max_size=4))
def test_blocks_that_are_streamed_one_by_one_make_one_answer(batches: list[list[Message]]) -> None:
    blocks = [
        avro.encode_messages_block([m.id for m in batch], [memoryview(m.payload) for m in batch]) for batch in batches
    ]
    body = b"".join(blocks) + avro_values.END_OF_ARRAY
    messages = [message for batch in batches for message in batch]
    assert client_codecs.decode_avro_messages(body) == messages
    assert their_value("MESSAGES", body) == as_dicts(messages)


@given(work=WORKS, data=st.data())
def test_a_work_may_come_in_any_blocks(work: Work, data: st.DataObject) -> None:
    entries = [
        their_long(len(p.namespace.encode()))
        + p.namespace.encode()
        + their_long(len(p.topic.encode()))
        + p.topic.encode()
        + in_blocks([their_long(len(m)) + bytes(m) for m in p.messages], data)
        + in_blocks(
            [
                their_bytes("RECORDS_REQUEST", records_request_dict(RecordsRequest(None, [record])))[2:-1]
                for record in p.records
            ],
            data,
        )
        for p in work.publish
    ]
    acknowledged = [
        their_bytes("WORK", work_dict(Work(acknowledge=[each])))[3:-1] for each in work.acknowledge
    ]  # without the counts around it
    body = in_blocks(entries, data) + b"\x00" + in_blocks(acknowledged, data)
    expected = Work(publish=work.publish, markers=[], acknowledge=work.acknowledge)
    assert their_value("WORK", body) == work_dict(expected)
    assert avro.decode_work(body) == expected


def test_messages_come_out_as_views_of_the_body() -> None:
    body = avro.encode_publish_request(PublishRequest(None, [b"one", b"x" * 9_000]))
    messages = avro.decode_publish_request(body).messages
    assert [type(message) for message in messages] == [memoryview, memoryview]
    assert all(isinstance(message, memoryview) and message.obj is body for message in messages)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_body_may_be_any_buffer(kind: Callable[[bytes], Any]) -> None:
    request = PublishRequest(7, [b"one", b"x" * 100, b"y" * 9_000])
    assert avro.decode_publish_request(kind(avro.encode_publish_request(request))) == request
    messages = [Message(b"i" * 20, b"payload")]
    assert client_codecs.decode_avro_messages(kind(client_codecs.encode_avro_messages(messages))) == messages


def test_a_block_of_no_messages_does_not_end_the_answer() -> None:
    assert avro.encode_messages_block([], []) == b""


@pytest.mark.parametrize(
    ("ids", "payloads"),
    [([b"i" * 20], []), ([b"i" * 19], [b"p"]), ([b"i" * 20, b"i" * 21], [b"p", b"p"])],
    ids=["an id without a payload", "an id of 19 bytes", "an id of 21 bytes"],
)
def test_a_block_with_wrong_ids_is_our_own_bug(ids: list[bytes], payloads: list[bytes]) -> None:
    with pytest.raises(ValueError):
        avro.encode_messages_block(ids, payloads)
