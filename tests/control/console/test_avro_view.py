"""Avro payloads read by hand: as the library reads them, and within bounds whatever they claim."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.console.views.avro_view import (
    DEPTH_MAX,
    LONG_BYTES_MAX,
    SCHEMA_CHARS_MAX,
    VALUES_MAX,
    AvroError,
    decode,
    parse_schema,
)

ORDER = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "paid", "type": "boolean"},
        {"name": "price", "type": "double"},
        {"name": "weight", "type": "float"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "SENT"]}},
        {"name": "was", "type": ["null", "State"]},
        {"name": "items", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "sum", "type": {"type": "fixed", "name": "Sum", "size": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "parent", "type": ["null", "shop.Order"]},
    ],
}  # fmt: skip


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def order(**changed: Any) -> dict[str, Any]:
    return {
        "id": -5, "paid": True, "price": 1.5, "weight": 0.25, "state": "SENT", "was": "NEW", "items": ["a", "é"], "counts": {"x": 7},
        "sum": b"ab", "raw": b"text", "parent": None, **changed,
    }  # fmt: skip


def test_every_type_is_read_as_the_library_writes_it():
    payload = written(ORDER, order(parent=order(was=None)))
    text = order(sum="ab", raw="text")
    assert decode(ORDER, payload) == {**text, "parent": {**text, "was": None}}


def test_bytes_that_are_no_text_are_shown_in_hex():
    assert decode("bytes", written("bytes", b"\xff\x00")) == "0xff00"


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)), st.dictionaries(st.text(), st.booleans()))
def test_numbers_and_texts_come_back(numbers: list[int], flags: dict[str, bool]):
    lists, maps = {"type": "array", "items": "long"}, {"type": "map", "values": "boolean"}
    assert decode(lists, written(lists, numbers)) == numbers
    assert decode(maps, written(maps, flags)) == flags


@given(st.binary(max_size=200))
def test_whatever_the_bytes_there_is_a_value_or_a_reason(payload: bytes):
    try:
        json.dumps(decode(ORDER, payload))
    except AvroError as error:
        assert str(error)


def test_a_payload_behind_a_fingerprint_is_read():
    assert decode("string", b"\xc3\x01" + b"\x00" * 8 + written("string", "a")) == "a"


@pytest.mark.parametrize(
    ("schema", "payload", "why"),
    [
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", f"more than {VALUES_MAX:,} values"),
        ({"type": "array", "items": "null"}, (b"\xa0\x9c\x01" * 5) + b"\0", f"more than {VALUES_MAX:,} values"),
        ("string", b"\x7f", "ends within a value"),
        ("string", b"\x05", "ends within a value"),
        ("long", b"\x80" * (LONG_BYTES_MAX + 1), "longer than 64 bits"),
        ("int", b"\x02\x02", "1 bytes are left"),
        ({"type": "enum", "name": "e", "symbols": []}, b"\x00", "no such one"),
        (["null"], b"\x04", "no such one"),
        ("nobody", b"", "no type of it"),
        ({"type": "record", "name": "r", "fields": [{"name": "r", "type": "r"}]}, b"", f"deeper than {DEPTH_MAX}"),
        ({"type": {"type": {"type": "null"}}}, b"x", "left behind"),
        ({"type": "record", "name": "r"}, b"", "no fields"),
        ({"type": "fixed", "name": "f", "size": "x"}, b"", "no size"),
        ({"type": "fixed", "name": "f", "size": -1}, b"", "ends within"),
        (None, b"", "none of Avro's"),
    ],
)  # fmt: skip
def test_what_is_hostile_or_broken_is_refused_with_a_reason(schema, payload, why):
    with pytest.raises(AvroError, match=why):
        decode(schema, payload)


def test_a_schema_is_json_or_the_name_of_a_type_and_not_longer_than_a_property():
    assert parse_schema(" string ") == "string"
    assert parse_schema('{"type": "int"}') == {"type": "int"}
    for text in ("{", "nonsense", "[" * SCHEMA_CHARS_MAX, " " * (SCHEMA_CHARS_MAX + 1)):
        with pytest.raises(AvroError):
            parse_schema(text)
