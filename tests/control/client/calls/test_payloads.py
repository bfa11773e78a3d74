"""Messages to publish: cut into requests that a server takes, as payloads where that is all they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies import messages as bodies
from basalt.api.bodies.messages import PublishRequest, RecordsRequest
from basalt.api.codecs import avro
from basalt.client.calls.payloads import (
    ENTRY_BYTES_MAX,
    RECORD_BYTES_MAX,
    REQUEST_BYTES_MAX,
    Beside,
    RecordIn,
    are_plain,
    as_records,
    chunks,
    each_message,
    each_payload,
    record_of,
    size_bytes,
)

PAYLOADS = st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(min_size=1, max_size=40), PAYLOADS), max_size=4).map(tuple)
TIMES = st.none() | st.integers(1, 2**63 - 1)
RECORDS = st.builds(RecordIn, PAYLOADS, st.none() | PAYLOADS, HEADERS, TIMES, TIMES)


@given(st.lists(PAYLOADS | RECORDS, max_size=30), st.integers(1, 2_000))
def test_a_run_takes_no_more_bytes_than_a_request_may_have(given_messages: list[bytes | RecordIn], room: int) -> None:
    sent = list(each_message(given_messages))
    runs = list(chunks(sent, messages_max=7, body_bytes_max=REQUEST_BYTES_MAX + room))
    assert [message for run in runs for message in run] == sent
    for run in runs:
        body = (
            avro.encode_publish_request(PublishRequest(2**63 - 1, run))
            if are_plain(run)
            else avro.encode_records_request(RecordsRequest(2**63 - 1, as_records(run)))
        )
        assert 1 <= len(run) <= 7
        assert len(body) <= REQUEST_BYTES_MAX + sum(size_bytes(message) + ENTRY_BYTES_MAX for message in run)
        assert len(run) == 1 or len(body) <= REQUEST_BYTES_MAX + room


@pytest.mark.parametrize("plain", [b"a", "a", bytearray(b"a"), memoryview(b"a"), memoryview(b"a").cast("c")])
def test_payloads_alone_are_sent_as_they_are(plain: bytes | str) -> None:
    for sent in (list(each_message(plain)), list(each_message([plain])), list(each_payload([plain]))):
        assert are_plain(sent)
        assert [bytes(payload) for payload in sent] == [b"a"]


def test_where_one_message_carries_more_all_of_the_run_are_records() -> None:
    run = list(each_message(["a", RecordIn("b", key="k")]))
    assert not are_plain(run)
    assert as_records(run) == [bodies.RecordIn(b"a"), bodies.RecordIn(b"b", b"k")]


def test_text_is_utf_8_wherever_it_stands() -> None:
    expected = bodies.RecordIn("é".encode(), "ü".encode(), (("ö", "ä".encode()),), 5, 6)
    assert record_of(RecordIn("é", "ü", {"ö": "ä"}, 5, 6)) == expected
    assert list(each_message("é", Beside("ü", [("ö", "ä")], 5, 6))) == [expected]


def test_what_stands_beside_a_call_is_read_once_for_all_of_its_messages() -> None:
    headers = iter([("n", "v")])
    sent = list(each_message(["a", "b"], Beside(headers=headers)))
    assert sent == [bodies.RecordIn(payload, None, (("n", b"v"),)) for payload in (b"a", b"b")]


def test_the_outbox_takes_payloads_alone() -> None:
    with pytest.raises(TypeError, match="a RecordIn; encode it first"):
        list(each_payload([RecordIn("a")]))  # type: ignore[list-item]


def test_a_record_takes_no_more_beside_its_payload_than_is_counted() -> None:
    record = bodies.RecordIn(b"", b"", (), -(2**63) + 1, 2**63 - 1)
    alone = len(avro.encode_records_request(RecordsRequest(None, [record])))
    twice = len(avro.encode_records_request(RecordsRequest(None, [record, record])))
    assert twice - alone <= RECORD_BYTES_MAX == size_bytes(record)
