"""Payloads as they are shown, and filters of messages: whatever the bytes, there is something to see."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies.ranges import PeekedHeader
from basalt.console.text import SHOWN_CHARS_MAX
from basalt.console.views.message_view import (
    HEX_BYTES_MAX,
    PARSED_BYTES_MAX,
    VIEWS,
    Filter,
    ShownRecord,
    at_pointer,
    seen,
    value_of,
)

ID = "00000000000003e8" + "0" * 24
SCHEMA = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "int"}]}


@pytest.mark.parametrize(
    ("payload", "view", "text"),
    [
        (b'{"a":[1]}', "json", '{\n  "a": [\n    1\n  ]\n}'),
        (b"17", "text", "17"),
        ("é\n".encode(), "text", "é\n"),
        (b"", "text", ""),
        (b"\xff\x00A", "hex", "00000000  ff 00 41" + " " * 41 + "..A"),
    ],
)
def test_a_payload_is_shown_as_what_it_seems_to_be(payload, view, text):
    found = seen(payload, "auto")
    assert (found.view, found.text.rstrip(" "), found.problem, found.is_cut) == (view, text, "", False)


def test_the_topics_schema_comes_first_and_a_payload_of_another_kind_is_shown_as_it_is():
    assert seen(b"\x02", "auto", SCHEMA).text == '{\n  "n": 1\n}'
    assert seen(b'{"a":1}', "auto", SCHEMA).view == "json"


@pytest.mark.parametrize(
    ("view", "payload", "shown_as", "problem"),
    [
        ("json", b"nonsense", "text", "it is no JSON"),
        ("json", b"[" * 50_000, "text", "it is no JSON"),
        ("json", b"9" * 10_000, "text", "it is no JSON"),
        ("avro", b"\xff", "hex", "it ends within a value, at byte 1"),
        ("json", b"1" * (PARSED_BYTES_MAX + 1), "text", f"it is longer than {PARSED_BYTES_MAX:,} bytes"),
    ],
)
def test_what_cannot_be_shown_as_asked_says_why_and_is_shown_otherwise(view, payload, shown_as, problem):
    found = seen(payload, view, SCHEMA)
    assert (found.view, found.problem) == (shown_as, problem)


def test_without_a_schema_avro_says_where_one_is_given():
    assert "label.schema" in seen(b"\x02", "avro").problem


@given(st.binary(max_size=300), st.sampled_from(VIEWS))
def test_every_payload_is_shown_in_every_view(payload: bytes, view: str):
    assert isinstance(seen(payload, view, SCHEMA).text, str)


def test_long_payloads_are_cut_and_say_so():
    assert seen(b"x" * (SHOWN_CHARS_MAX + 1), "text").is_cut
    assert not seen(b"x" * SHOWN_CHARS_MAX, "text").is_cut
    assert seen(b"\xff" * (HEX_BYTES_MAX + 1), "hex").is_cut
    assert len(seen("é".encode() * 100, "text", None, 10).text) == 10
    assert seen("é".encode() * 100_001, "auto").view == "text"


def test_in_a_list_json_takes_one_line():
    assert seen(b'{"a": [1,\n2]}', "auto", None, 100).text == '{"a": [1, 2]}'


def record(payload: object = "", **more: object) -> ShownRecord:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return ShownRecord(ID, text, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "takes"),
    [
        (Filter(), True),
        (Filter(contains="Zoë"), True),
        (Filter(contains="zoë"), False),
        (Filter(pointer="/customer/name", equals="Zoë"), True),
        (Filter(pointer="/customer/name", equals='"Zoë"'), True),
        (Filter(pointer="/customer/age", equals="42"), True),
        (Filter(pointer="customer/age", equals="42"), True),
        (Filter(pointer="/customer/age", equals='"42"'), False),
        (Filter(pointer="/items/1/a~1b~0", equals="true"), True),
        (Filter(pointer="/items/1/a~1b~0", equals="1"), False),
        (Filter(pointer="/items/7", equals="1"), False),
        (Filter(pointer="/items/x", equals="1"), False),
        (Filter(pointer="/nothing", equals=""), False),
        (Filter(header="trace", value="7"), True),
        (Filter(header="raw", value="ff"), True),
        (Filter(header="trace", value="8"), False),
        (Filter(header="other", value=""), False),
        (Filter(contains="Zoë", header="trace", value="8"), False),
    ],
)
def test_a_filter_lets_through_what_has_all_that_it_asks_for(wanted, takes):
    given = json.dumps({"customer": {"name": "Zoë", "age": 42}, "items": [0, {"a/b~": True}]}, ensure_ascii=False)
    headers = (PeekedHeader("trace", "7"), PeekedHeader("raw", None, b"\xff"))
    assert wanted.takes(record(given, headers=headers)) == takes
    assert wanted.is_empty == (wanted == Filter())


def test_a_payload_without_values_has_none_at_a_pointer():
    assert not Filter(pointer="/a", equals="1").takes(record("no json"))
    assert Filter(pointer="/n", equals="1").takes(ShownRecord(ID, None, b"\x02"), SCHEMA)
    assert at_pointer([1], "") == [1]
    with pytest.raises(ValueError, match="line 1"):
        value_of(b"nonsense")


def test_a_record_tells_its_time_key_and_writer():
    found = ShownRecord(ID, payload_base64=b"\xff", key_base64=b"\x01", transaction_write_pointer=5)
    assert (found.published_ms, found.content, found.key_shown, found.written_by) == (1_000, b"\xff", "0x01", 5)
    assert (record("a", key="k").key_shown, record("a").key_shown) == ("k", None)
