"""SPEC of a position: every form, and what each wrong one is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.positions import END, START, Position, after_id, at_id, at_time, parse_position
from basalt.errors import InputError

NOW_MS = 1_700_000_000_000
ID = bytes(range(20))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", START),
        ("end", END),
        ("now", at_time(NOW_MS)),
        (ID.hex(), at_id(ID)),
        (ID.hex().upper(), at_id(ID)),
        ("@0", at_time(0)),
        ("@1700000000123", at_time(1_700_000_000_123)),
        ("@2024-05-01T10:00:00Z", at_time(1_714_557_600_000)),
        ("@2024-05-01t10:00:00z", at_time(1_714_557_600_000)),
        ("@2024-05-01 12:00:00+02:00", at_time(1_714_557_600_000)),
        ("@2024-05-01T04:30:00-05:30", at_time(1_714_557_600_000)),
        ("@2024-05-01T10:00:00.25Z", at_time(1_714_557_600_250)),
        ("@2024-05-01T10:00:00.999999999Z", at_time(1_714_557_600_999)),
        ("@9999-12-31T23:59:59-23:59", at_time(253_402_387_139_000)),
        ("@0001-01-01T00:00:00+23:00", at_time(0)),
        ("-1h", at_time(NOW_MS - 3_600_000)),
        ("+10m", at_time(NOW_MS + 600_000)),
        ("-1h30m", at_time(NOW_MS - 5_400_000)),
        ("-5ms", at_time(NOW_MS - 5)),
        ("-2d", at_time(NOW_MS - 172_800_000)),
        ("-9999w", at_time(0)),
    ],
)
def test_every_form_is_read(text, expected):
    assert parse_position(text, NOW_MS) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("Start", "is not a position"),
        (" now", "is not a position"),
        ("now\n", "is not a position"),
        ("5", "bare number"),
        ("-1", "no unit"),
        ("+1.5", "no unit"),
        ("-1x", "is not a position"),
        ("-h", "is not a position"),
        ("1h", "is not a position"),
        ("--1h", "is not a position"),
        ("+999999999999999w", "past the last time"),
        ("@", "is not a position"),
        ("@-1", "is not a position"),
        ("@1.5", "is not a position"),
        ("@\uff11", "is not a position"),
        ("@9223372036854775808", "past the last time"),
        ("@99999999999999999999999", "past the last time"),
        ("@2024-05-01", "without a time of day"),
        ("@2024-05-01T10:00:00", "no offset from UTC"),
        ("@2024-05-01T10:00Z", "is not a position"),
        ("@2024-02-30T10:00:00Z", "is no date"),
        ("@2024-05-01T24:00:00Z", "is no date"),
        ("@2024-05-01T10:00:60Z", "is no date"),
        ("@0000-05-01T10:00:00Z", "is no date"),
        ("@2024-05-01T10:00:00+24:00", "no clock has"),
        (ID.hex()[:-1], "39 hex digits"),
        (ID.hex() + "0", "41 hex digits"),
        ("x" * 5_000, "longer than 100"),
        ("\x1b[31m", "is not a position"),
    ],
)
def test_everything_else_is_refused_with_the_field_the_reason_and_a_hint(text, reason):
    with pytest.raises(InputError) as caught:
        parse_position(text, NOW_MS, field="from")
    assert str(caught.value).startswith("from ")
    assert reason in str(caught.value)
    assert caught.value.field == "from"
    assert caught.value.hint
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


@given(
    st.one_of(
        st.just(START),
        st.just(END),
        st.integers(0, 2**63 - 1).map(at_time),
        st.binary(min_size=20, max_size=20).map(at_id),
    )
)
def test_a_position_written_as_text_reads_back_the_same_on_any_clock(position: Position):
    assert parse_position(position.text, 5) == position


@given(st.text(max_size=120))
def test_no_text_raises_anything_but_an_input_error(text):
    try:
        parse_position(text, NOW_MS)
    except InputError:
        pass


def test_the_position_after_an_id_is_before_the_next_id_there_can_be():
    assert after_id(b"\x00" * 19 + b"\xff") == at_id(b"\x00" * 18 + b"\x01\x00")
    assert after_id(b"\xff" * 20) == END


@pytest.mark.parametrize("wrong", [b"", b"x" * 19, b"x" * 21])
def test_an_id_of_another_length_is_refused(wrong):
    with pytest.raises(InputError):
        at_id(wrong)


def test_a_negative_time_is_refused():
    with pytest.raises(InputError):
        at_time(-1)
