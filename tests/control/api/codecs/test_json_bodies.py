"""The bodies in Avro's JSON encoding: round trips, tagged and untagged unions, and what may be left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies.messages import (
    ConsumeRequest,
    Message,
    PublishRequest,
    PublishResponse,
    RecordIn,
    Work,
    WorkMarker,
    WorkPublish,
)
from basalt.api.codecs import avro, json_bodies
from basalt.errors import MalformedBodyError
from tests.control.api.codecs import client_codecs
from tests.control.api.codecs.acknowledgements import acknowledgements

PAYLOADS = st.binary(max_size=40)
IDS = st.binary(min_size=20, max_size=20)
WRITE_POINTERS = st.none() | st.integers(1, 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

RECORDS = st.builds(
    RecordIn,
    PAYLOADS,
    st.none() | PAYLOADS,
    st.lists(st.tuples(TEXTS.filter(bool), PAYLOADS), max_size=2).map(tuple),
    st.none() | st.integers(-9, 9),
    st.none() | st.integers(1, 9),
)
VALUES = [
    (
        "publish_request",
        st.builds(PublishRequest, WRITE_POINTERS, st.lists(PAYLOADS, min_size=1, max_size=8)),
    ),
    (
        "publish_response",
        st.builds(PublishResponse, WRITE_POINTERS, st.integers(0, 9), st.integers(0, 65_535), st.just(10), st.just(7)),
    ),
    (
        "consume_request",
        st.builds(
            ConsumeRequest,
            st.none() | IDS | st.integers(0, 2**63 - 1),
            st.booleans(),
            st.none() | st.integers(1, 2**31 - 1),
            st.none() | PAYLOADS,
        ),
    ),
    ("messages", st.lists(st.builds(Message, IDS, PAYLOADS), max_size=8)),
    (
        "work",
        st.builds(
            Work,
            st.lists(
                st.builds(WorkPublish, TEXTS, TEXTS, st.lists(PAYLOADS, min_size=1, max_size=3), st.just([]))
                | st.builds(WorkPublish, TEXTS, TEXTS, st.just([]), st.lists(RECORDS, min_size=1, max_size=3)),
                max_size=3,
            ),
            st.lists(
                st.builds(
                    WorkMarker,
                    TEXTS,
                    TEXTS,
                    TEXTS.filter(bool),
                    st.integers(1, 9),
                    st.just("watermark"),
                    st.integers(-9, 9),
                ),
                max_size=3,
            ),
            acknowledge=st.lists(acknowledgements(), max_size=3),
        ),
    ),
]


# What only clients of other languages write.
JSON_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "publish_request": client_codecs.encode_json_publish_request,
    "consume_request": client_codecs.encode_json_consume_request,
    "messages": client_codecs.encode_json_messages,
}
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "json messages": client_codecs.decode_json_messages,
    "avro messages": client_codecs.decode_avro_messages,
}
AVRO_ENCODERS: dict[str, Callable[[Any], bytes]] = {"messages": client_codecs.encode_avro_messages}


@pytest.mark.parametrize(("name", "values"), VALUES, ids=[name for name, _ in VALUES])
@given(data=st.data())
def test_what_is_written_reads_back_and_says_the_same_as_avro(
    name: str, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(values)
    json_encode = JSON_ENCODERS.get(name) or getattr(json_bodies, f"encode_{name}")
    avro_encode = AVRO_ENCODERS.get(name) or getattr(avro, f"encode_{name}")
    from_json = (DECODERS.get(f"json {name}") or getattr(json_bodies, f"decode_{name}"))(json_encode(value))
    from_avro = (DECODERS.get(f"avro {name}") or getattr(avro, f"decode_{name}"))(avro_encode(value))
    assert from_json == value
    assert from_json == from_avro


def test_bytes_are_code_points_and_unions_are_tagged() -> None:
    body = json.loads(client_codecs.encode_json_publish_request(PublishRequest(5, ["é".encode(), b"\x00\xff"])))
    assert body == {"transactionWritePointer": {"long": 5}, "messages": ["\u00c3\u00a9", "\x00\u00ff"]}
    body = json.loads(client_codecs.encode_json_consume_request(ConsumeRequest(b"i" * 20, False, 3, b"t")))
    assert body == {
        "startFrom": {"bytes": "i" * 20},
        "inclusive": False,
        "limit": {"int": 3},
        "transaction": {"bytes": "t"},
    }
    body = json.loads(client_codecs.encode_json_consume_request(ConsumeRequest(start_from=7)))
    assert body == {"startFrom": {"long": 7}, "inclusive": True, "limit": None, "transaction": None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", ConsumeRequest()),
        ('{"startFrom": null, "limit": null, "transaction": null}', ConsumeRequest()),
        ('{"startFrom": 7}', ConsumeRequest(start_from=7)),
        ('{"startFrom": {"long": 7}}', ConsumeRequest(start_from=7)),
        ('{"startFrom": "iiiiiiiiiiiiiiiiiiii"}', ConsumeRequest(start_from=b"i" * 20)),
        ('{"startFrom": {"bytes": "iiiiiiiiiiiiiiiiiii\\u00ff"}}', ConsumeRequest(start_from=b"i" * 19 + b"\xff")),
        ('{"limit": 3, "inclusive": false}', ConsumeRequest(limit=3, inclusive=False)),
        ('{"limit": {"int": 3}}', ConsumeRequest(limit=3)),
        ('{"transaction": "\u00ff"}', ConsumeRequest(transaction=b"\xff")),
        ('{"transaction": {"bytes": ""}}', ConsumeRequest(transaction=b"")),
        ('\n { "limit" : 3 }\r\n\t', ConsumeRequest(limit=3)),
    ],
)
def test_a_poll_may_be_written_by_hand(text: str, expected: ConsumeRequest) -> None:
    assert json_bodies.decode_consume_request(text.encode()) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"messages": ["a"]}', PublishRequest(None, [b"a"])),
        ('{"messages": [""], "transactionWritePointer": null}', PublishRequest(None, [b""])),
        ('{"transactionWritePointer": 5}', PublishRequest(5, [])),
        ('{"transactionWritePointer": {"long": 5}, "messages": []}', PublishRequest(5, [])),
    ],
)
def test_a_publish_may_be_written_by_hand(text: str, expected: PublishRequest) -> None:
    assert json_bodies.decode_publish_request(text.encode()) == expected


def test_absent_parts_of_a_work_are_empty() -> None:
    assert json_bodies.decode_work(b"{}") == Work([], [], None, [])
    entry = b'{"markers": [{"namespace": "n", "topic": "t", "task": "a", "taskCount": 1, "kind": "end_of_stream"}]}'
    assert json_bodies.decode_work(entry) == Work([], [WorkMarker("n", "t", "a", 1, "end_of_stream")], None, [])


def test_segments_are_absent_or_a_list_of_which_each_is_there_once() -> None:
    for body, expected in ((b"{}", None), (b'{"segments": null}', None), (b'{"segments": []}', [])):
        assert json_bodies.decode_work(body).segments == expected
    work = Work(segments=[9, 7, 8])
    assert json_bodies.decode_work(json_bodies.encode_work(work)).segments == [9, 7, 8]
    assert b"segments" not in json_bodies.encode_work(Work())
    for wrong in ("[7, 8]", '[{"writePointer": 0}]', '[{"writePointer": 7}, {"writePointer": 7}]', "{}"):
        with pytest.raises(MalformedBodyError):
            json_bodies.decode_work(f'{{"segments": {wrong}}}'.encode())
    with pytest.raises(MalformedBodyError, match="Avro has no place for segments"):
        avro.encode_work(Work(segments=[]))


def test_blocks_of_messages_are_joined_by_commas() -> None:
    blocks = [
        json_bodies.encode_messages_block([b"i" * 20], [b"a"]),
        json_bodies.encode_messages_block([b"j" * 20, b"k" * 20], [memoryview(b"\xff"), b""]),
    ]
    body = json_bodies.START_OF_MESSAGES + b",".join(blocks) + json_bodies.END_OF_MESSAGES
    assert client_codecs.decode_json_messages(body) == [
        Message(b"i" * 20, b"a"),
        Message(b"j" * 20, b"\xff"),
        Message(b"k" * 20, b""),
    ]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_body_may_be_any_buffer(kind: Callable[[bytes], Any]) -> None:
    assert json_bodies.decode_publish_request(kind(b'{"messages": ["a"]}')) == PublishRequest(None, [b"a"])
