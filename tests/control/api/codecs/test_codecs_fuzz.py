"""Good bodies, cut at every byte and with every bit flipped: an error of ours or another meaning, never anything else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

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
    Rejection,
    Work,
    WorkAcknowledge,
    WorkMarker,
    WorkPublish,
    check_rollback,
    check_store,
)
from basalt.api.codecs import avro, batches, json_bodies, json_records
from basalt.errors import BasaltError, MalformedBodyError
from basalt.transactions import codec
from basalt.transactions.rules.transaction import Kind
from tests.control.api.codecs import client_codecs
from tests.control.transactions.whole_bytes import encode_transaction

ID = bytes(range(20))
WRITE_POINTER = 1_700_000_000_000_000_001
PUBLISH = PublishRequest(WRITE_POINTER, [b"a", b"", "é".encode(), b"x" * 70])
RESPONSE = PublishResponse(WRITE_POINTER, 1_700_000_000_000, 65_535, 1_700_000_000_001, 0)
CONSUME = ConsumeRequest(ID, False, 100, b"snapshot")
MESSAGES = [Message(ID, b"a"), Message(ID, b"\xff" * 70)]
WORK = Work(
    [WorkPublish("n", "t", [b"a", b""])],
    [WorkMarker("n", "t", "task", 2, "watermark", 5), WorkMarker("n", "t", "task", 2, "end_of_stream")],
    acknowledge=[
        WorkAcknowledge("n", "t", "g", [ID], None, "w", 5, 1),
        WorkAcknowledge(
            "n", "t", "g", up_to=ID, claims=[1, 70], except_ids=[b"e" * 20], reject=[Rejection(b"r" * 20, "é")]
        ),
    ],
)
RECORDS_REQUEST = RecordsRequest(
    WRITE_POINTER, [RecordIn(b"a", b"k", (("h", b"\xff"), ("é", b"")), -1, 60_000), RecordIn(b"\xff")]
)
RECORDS = [Record(ID, b"a", b"k", (("h", b"\xff"),), -1, 60_000, "watermark", 5), Record(ID, b"\xff")]
TRANSACTION = codec.TransactionFields(
    WRITE_POINTER,
    WRITE_POINTER - 1,
    [WRITE_POINTER - 9, WRITE_POINTER - 8],
    [WRITE_POINTER - 1],
    WRITE_POINTER - 1,
    Kind.SHORT,
    WRITE_POINTER,
    [WRITE_POINTER + 1],
)

GOOD: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "publish": (avro.decode_publish_request, avro.encode_publish_request(PUBLISH)),
    "publish in blocks with sizes": (
        avro.decode_publish_request,
        bytes.fromhex("02 01 04 02 61 03 0a 04 62 63 02 64 00"),
    ),
    "store": (partial(avro.decode_publish_request, check=check_store), avro.encode_publish_request(PUBLISH)),
    "roll back": (partial(avro.decode_publish_response, check=check_rollback), avro.encode_publish_response(RESPONSE)),
    "poll": (avro.decode_consume_request, avro.encode_consume_request(CONSUME)),
    "messages": (client_codecs.decode_avro_messages, client_codecs.encode_avro_messages(MESSAGES)),
    "work": (avro.decode_work, avro.encode_work(WORK)),
    "records request": (avro.decode_records_request, avro.encode_records_request(RECORDS_REQUEST)),
    "records": (avro.decode_records, client_codecs.encode_avro_records(RECORDS)),
    "JSON publish": (json_bodies.decode_publish_request, client_codecs.encode_json_publish_request(PUBLISH)),
    "JSON store": (
        partial(json_bodies.decode_publish_request, check=check_store),
        client_codecs.encode_json_publish_request(PUBLISH),
    ),
    "JSON roll back": (
        partial(json_bodies.decode_publish_response, check=check_rollback),
        json_bodies.encode_publish_response(RESPONSE),
    ),
    "JSON poll": (json_bodies.decode_consume_request, client_codecs.encode_json_consume_request(CONSUME)),
    "JSON messages": (client_codecs.decode_json_messages, client_codecs.encode_json_messages(MESSAGES)),
    "JSON work": (json_bodies.decode_work, json_bodies.encode_work(WORK)),
    "JSON records request": (
        json_records.decode_records_request,
        client_codecs.encode_records_request(RECORDS_REQUEST),
    ),
    "JSON records": (
        client_codecs.decode_records_page,
        client_codecs.encode_records_page(client_codecs.RecordsPage(RECORDS, ID, "7")),
    ),
    "transaction": (codec.decode_transaction, encode_transaction(TRANSACTION)),
    "batches": (
        batches.decode,
        batches.START
        + batches.encode_run_head(ID, batches.PAYLOAD_SEQUENCE_AT, 2, 3)
        + bytes.fromhex("00000001 00000002 616263")
        + batches.encode_list([ID, ID], [b"a", b""])
        + batches.END,
    ),
}
# JSON lines have no end of their own: a body cut between two lines is a shorter good one, and only HTTP can tell.
LINES: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "lines request": (
        json_records.decode_records_lines,
        client_codecs.encode_records_request_lines(RECORDS_REQUEST.records),
    ),
    "lines": (client_codecs.decode_records_lines_answer, json_records.encode_records_lines(RECORDS)),
}
DECODERS = {name: decode for name, (decode, _) in (GOOD | LINES).items()}


@pytest.mark.parametrize("name", GOOD)
def test_a_body_cut_anywhere_is_refused(name: str) -> None:
    decode, body = GOOD[name]
    decode(body)
    for length in range(len(body)):
        with pytest.raises(MalformedBodyError):
            decode(body[:length])


@pytest.mark.parametrize("name", LINES)
def test_lines_cut_anywhere_are_refused_or_the_first_of_them(name: str) -> None:
    decode, body = LINES[name]
    whole = decode(body)
    for length in range(len(body)):
        try:
            some = decode(body[:length])
        except MalformedBodyError:
            continue
        assert some == whole[: len(some)]
        assert body[length : length + 1] in (b"\n", b"{") or body[length - 1 : length] == b"\n"


@pytest.mark.parametrize("name", GOOD | LINES)
def test_a_flipped_bit_is_refused_or_another_meaning(name: str) -> None:
    decode, body = (GOOD | LINES)[name]
    refused = 0
    for bit in range(8 * len(body)):
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            decode(bytes(flipped))
        except BasaltError:
            refused += 1
    assert refused > 0


@pytest.mark.parametrize("name", GOOD)
def test_a_byte_more_is_refused(name: str) -> None:
    decode, body = GOOD[name]
    for more in (b"\x00", b"\xff", b"{", body):
        with pytest.raises(MalformedBodyError):
            decode(body + more)


@pytest.mark.parametrize("decode", [pytest.param(decode, id=name) for name, decode in DECODERS.items()])
@given(body=st.binary(max_size=60))
def test_random_bytes_are_refused_or_mean_something(decode: Callable[[bytes], Any], body: bytes) -> None:
    try:
        decode(body)
    except BasaltError as error:
        assert error.message


@pytest.mark.parametrize("name", GOOD)
@given(data=st.data())
def test_bytes_put_in_or_taken_out_are_refused_or_another_meaning(name: str, data: st.DataObject) -> None:
    decode, body = GOOD[name]
    start = data.draw(st.integers(0, len(body)))
    stop = data.draw(st.integers(start, min(len(body), start + 4)))
    try:
        decode(body[:start] + data.draw(st.binary(max_size=4)) + body[stop:])
    except BasaltError as error:
        assert error.message
