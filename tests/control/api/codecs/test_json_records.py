"""The richer records in JSON and JSON lines: text as text, other bytes in base64, and pages that say where to go on."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies.messages import Record, RecordIn, RecordsRequest
from basalt.api.codecs import avro, json_records
from basalt.errors import MalformedBodyError
from tests.control.api.codecs import client_codecs

ID = bytes.fromhex("0000018bcfe568000001") + bytes(10)
IDS = st.binary(min_size=20, max_size=20)
ANY_BYTES = st.binary(max_size=30) | st.text(st.characters(exclude_categories=["Cs"]), max_size=10).map(str.encode)
HEADERS = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), ANY_BYTES), max_size=3
).map(tuple)
TIMES = st.none() | st.integers(-(2**63) + 1, 2**63 - 1)
TTLS = st.none() | st.integers(1, 2**63 - 1)
WRITE_POINTERS = st.none() | st.integers(1, 2**63 - 1)
RECORDS_IN = st.lists(
    st.builds(RecordIn, ANY_BYTES, st.none() | ANY_BYTES, HEADERS, TIMES, TTLS), min_size=1, max_size=5
)
HOLDER = "00000000000000ff17979cfe362a0000"
KINDS = st.sampled_from(["user", "watermark", "end_of_stream"])
RECORDS = st.lists(
    st.builds(Record, IDS, ANY_BYTES, st.none() | ANY_BYTES, HEADERS, TIMES, TTLS, KINDS, WRITE_POINTERS), max_size=5
)


@given(write_pointer=WRITE_POINTERS, content=RECORDS_IN)
def test_a_request_reads_back_in_every_format(write_pointer: int | None, content: list[RecordIn]) -> None:
    request = RecordsRequest(write_pointer, content)
    assert json_records.decode_records_request(client_codecs.encode_records_request(request)) == request
    assert avro.decode_records_request(avro.encode_records_request(request)) == request
    assert json_records.decode_records_lines(client_codecs.encode_records_request_lines(content)) == content


@given(content=RECORDS, next_id=st.none() | IDS, held_by=st.none() | st.text(max_size=33))
def test_an_answer_reads_back_in_every_format(
    content: list[Record], next_id: bytes | None, held_by: str | None
) -> None:
    page = client_codecs.RecordsPage(content, next_id, held_by)
    assert client_codecs.decode_records_page(client_codecs.encode_records_page(page)) == page
    assert avro.decode_records(client_codecs.encode_avro_records(content)) == content
    assert client_codecs.decode_records_lines_answer(json_records.encode_records_lines(content)) == content


@given(batches=st.lists(RECORDS, max_size=4))
def test_an_answer_may_be_streamed_block_by_block(batches: list[list[Record]]) -> None:
    whole = [record for batch in batches for record in batch]
    blocks = [json_records.encode_records_block(batch) for batch in batches if batch]
    body = json_records.START_OF_PAGE + b",".join(blocks) + json_records.end_of_page(ID, None)
    assert client_codecs.decode_records_page(body) == client_codecs.RecordsPage(whole, ID, None)
    body = b"".join(map(avro.encode_records_block, batches)) + b"\x00"
    assert avro.decode_records(body) == whole
    assert client_codecs.decode_records_lines_answer(b"".join(map(json_records.encode_records_lines, batches))) == whole


def test_text_is_written_as_text_and_other_bytes_in_base64() -> None:
    record = Record(ID, "é".encode(), b"\xff", (("a", b"b"), ("c", b"\xfe")), 5, 60_000, "user", 7)
    body = json.loads(client_codecs.encode_records_page(client_codecs.RecordsPage([record], ID, HOLDER)))
    assert body == {
        "records": [
            {
                "id": "0000018bcfe56800000100000000000000000000",
                "payload": "é",
                "keyBase64": "/w==",
                "headers": [{"name": "a", "value": "b"}, {"name": "c", "valueBase64": "/g=="}],
                "eventTimeMs": 5,
                "ttlMs": 60_000,
                "kind": "user",
                "transactionWritePointer": 7,
            }
        ],
        "next": "0000018bcfe56800000100000000000000000000",
        "heldBy": HOLDER,
    }


def test_what_a_record_has_not_is_left_out() -> None:
    body = json.loads(client_codecs.encode_records_page(client_codecs.RecordsPage([Record(ID, b"")])))
    assert body == {"records": [{"id": ID.hex(), "payload": "", "kind": "user"}], "next": None, "heldBy": None}


def test_a_record_may_be_written_by_hand() -> None:
    body = b'{"records": [{"payload": "a", "key": null, "ttlMs": null}, {"payloadBase64": "AP8=", "keyBase64": ""}]}'
    assert json_records.decode_records_request(body) == RecordsRequest(
        None, [RecordIn(b"a"), RecordIn(b"\x00\xff", b"")]
    )


def test_lines_may_be_empty_and_end_as_on_windows() -> None:
    body = b'{"payload":"a"}\r\n\r\n{"payload":"b"}'
    assert json_records.decode_records_lines(body) == [RecordIn(b"a"), RecordIn(b"b")]


def test_a_line_separator_inside_a_text_ends_no_line() -> None:
    content = [RecordIn("a\u2028b\u0085\x0bc".encode())]
    assert json_records.decode_records_lines('{"payload":"a\u2028b\u0085\\u000bc"}'.encode()) == content


def test_a_client_passes_over_what_a_newer_server_adds() -> None:
    body = b'{"records": [{"id": "%s", "payload": "a", "kind": "user", "colour": [1]}], "next": null, "more": {}}'
    page = client_codecs.decode_records_page(body % ID.hex().encode())
    assert page == client_codecs.RecordsPage([Record(ID, b"a")], None, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"records": [{"id": "00", "payload": "a"}], "next": null}',
        b'{"records": [{"id": "zz", "payload": "a"}], "next": null}',
        b'{"records": [{"id": "0000018bcfe56800000100000000000000000000"}], "next": null}',
        b'{"records": [], "next": "00"}',
        b'{"records": [], "next": "zz"}',
        b'{"records": [], "heldBy": 7}',
        b'{"records": [], "next": 5}',
    ],
)
def test_an_answer_that_is_no_page_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        client_codecs.decode_records_page(body)


def test_payloads_of_an_avro_request_are_views_of_the_body() -> None:
    body = avro.encode_records_request(RecordsRequest(None, [RecordIn(b"payload", b"key")]))
    record = avro.decode_records_request(body).records[0]
    assert isinstance(record.payload, memoryview)
    assert record.payload.obj is body
    assert type(record.key) is bytes
