"""Text on pages: hostile text is shown as what it is, and numbers, sizes and times as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.console import text
from basalt.console.text import SHOWN_CHARS_MAX

NOTHING = "\u2013"


@pytest.mark.parametrize(
    ("given_text", "as_shown"),
    [
        ("plain é 漢字", "plain é 漢字"),
        ("a\u202eb", "a\\u202eb"),
        ("a\x00b\x1b[2J", "a\\x00b\\x1b[2J"),
        ("a\nb\tc", "a\\x0ab\\x09c"),
        ("soft\u00adhyphen\u200bspace", "soft\\xadhyphen\\u200bspace"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_would_not_be_seen_as_it_is_is_shown_by_its_code(given_text, as_shown):
    assert text.shown(given_text) == as_shown


@given(st.text())
def test_what_is_shown_has_nothing_that_hides(some):
    assert text.shown(some).isprintable()


def test_a_block_keeps_its_lines_and_nothing_else():
    assert text.block("a\n\tb\x07<b>") == "<pre>a\n\tb\\x07&lt;b&gt;</pre>"


def test_long_text_is_cut_and_the_rest_counted():
    assert text.shown("x" * (SHOWN_CHARS_MAX + 1_000)).endswith("x… (1,000 more characters)")
    assert text.shown("x" * SHOWN_CHARS_MAX) == "x" * SHOWN_CHARS_MAX


@pytest.mark.parametrize(
    ("value", "as_shown"),
    [
        (None, NOTHING), (b"", ""), ("é".encode(), "é"), (b"\xff\x00", "0xff00"), (b"a\x00", "a\\x00"), (b"x" * 11, "x" * 10 + "… (11 bytes)"),
        (b"\xff" * 11, "0xffffffff… (11 bytes)"), ("é".encode() * 10, "é" * 10),
    ],
)  # fmt: skip
def test_bytes_are_text_where_they_are_and_hex_where_not(value, as_shown):
    assert text.content(value, 10) == as_shown


@pytest.mark.parametrize(
    ("sentence", "markup"),
    [
        ("wait", "wait"),
        ("run `basalt tx abort 1` now", "run <code>basalt tx abort 1</code> now"),
        ("of <b>`<i>`", "of &lt;b&gt;<code>&lt;i&gt;</code>"),
        ("an owner with a ` of its own", "an owner with a <code> of its own</code>"),
        ("a\u202e", "a\\u202e"),
    ],
)
def test_commands_of_an_advice_are_code_and_all_of_it_is_escaped(sentence, markup):
    assert text.advice(sentence) == markup


@pytest.mark.parametrize(
    ("name", "as_read"),
    [("externalWrites", "external writes"), ("expiresMs", "expires"), ("a_b", "a b"), ("<i>", "<i>")],
)
def test_members_of_an_answer_are_named_in_words(name, as_read):
    assert text.words(name) == as_read


def test_numbers_sizes_and_durations_have_units():
    assert [text.number(value) for value in (None, 0, 12_345, 1.25, 12_345.6)] == [
        NOTHING,
        "0",
        "12,345",
        "1.2",
        "12,346",
    ]
    assert [text.size(value) for value in (None, 0, 1_023, 1_536, 5 << 30)] == [
        NOTHING,
        "0 B",
        "1,023 B",
        "1.5 KiB",
        "5.0 GiB",
    ]
    assert [text.duration(value) for value in (None, 0, 999, 61_000, 3_600_000, 90_061_000, -5_000)] == [
        NOTHING, "0 ms", "999 ms", "1 min 1 s", "1 h", "1 d 1 h", "-5 s",
    ]  # fmt: skip


def test_times_are_elements_in_utc_and_those_beyond_the_calendar_are_numbers():
    assert text.moment(1_700_000_000_000) == (
        '<time datetime="2023-11-14T22:13:20.000Z">2023-11-14 22:13:20 UTC</time>'
    )  # fmt: skip
    assert text.age(1_000, 62_000) == '<time class="age" datetime="1970-01-01T00:00:01.000Z">1 min 1 s</time>'
    assert (text.moment(None), text.age(None, 0)) == (NOTHING, NOTHING)
    assert text.moment(10**18) == f"{10**18:,}"
