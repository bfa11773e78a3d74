"""`basalt consume --template`: fields of messages, escapes, and what is no template."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies.messages import Carried
from basalt.cli.output import time_text
from basalt.cli.template import FIELDS, parse_template, unescaped
from basalt.client import Message

ID = bytes.fromhex("000001a2081ef57b000000000000000000000000")
PLAIN = Message(ID, b"one")
FULL = Message(
    ID, b"two\n\xff", Carried(b"k\t1", (("from", b"eu"), ("from", b"us"), ("n", b"\x01")), 1_700_000_000_000, 5_000)
)


def line(template: str, message: Message = FULL, form="text") -> str:
    return parse_template(template.encode()).line(message, form).decode("utf-8", "backslashreplace")


@pytest.mark.parametrize(
    ("template", "plain", "full"),
    [
        ("{id}", f"{ID.hex()}\n", f"{ID.hex()}\n"),
        ("{key} {value}", " one\n", "k\\t1 two\\n\\xff\n"),
        ("{headers}", "\n", "from=eu from=us n=\\x01\n"),
        ("{header.from}/{header.none}", "/\n", "eu/\n"),
        ("{event_time} {event_time_ms} {ttl_ms}", "  \n", "2023-11-14T22:13:20.000Z 1700000000000 5000\n"),
        ("{published_ms}", f"{int.from_bytes(ID[:8])}\n", f"{int.from_bytes(ID[:8])}\n"),
        ("{published}", f"{time_text(int.from_bytes(ID[:8]))}\n", f"{time_text(int.from_bytes(ID[:8]))}\n"),
        ("{{{ttl_ms}}}", "{}\n", "{5000}\n"),
        ("", "\n", "\n"),
        (r"a\tb\\n\x41", "a\tb\\nA\n", "a\tb\\nA\n"),
        (r"{ttl_ms}\n", "\n", "5000\n"),
        (r"{ttl_ms}\0", "\0", "5000\0"),
        (r"ü\n{ttl_ms}", "ü\n\n", "ü\n5000\n"),
    ],
)
def test_fields_and_escapes_are_written(template, plain, full):
    assert (line(template, PLAIN), line(template, FULL)) == (plain, full)


def test_the_format_says_how_bytes_are_written():
    assert line("{key} {value}", form="hex") == f"{b'k'.hex()}0931 {FULL.payload.hex()}\n"
    assert parse_template(rb"{key}\x00{value}\0").line(FULL, "raw") == b"k\t1\0two\n\xff\0"
    assert line("{headers}", form="hex") == "from=6575 from=7573 n=01\n"


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{payload}", "has no field {payload}; there are id, key, value"),
        ("{header.}", "has no field {header.}"),
        ("{}", "has no field {}"),
        ("{id", "brace by itself at character 1"),
        ("id}", "brace by itself at character 3"),
        ("\\q", "has the escape \\q; there are"),
        ("a\\", "has the escape \\;"),
        ("\\x4", "has the escape \\x;"),
    ],
)
def test_what_is_no_template_is_refused_before_anything_is_read(run, template, told):
    ran = run("consume", "orders", "--template", template)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


@given(st.binary())
def test_bytes_without_braces_and_backslashes_stay_as_they_are(text):
    plain = text.translate(None, b"{}\\")
    assert unescaped(plain) == plain
    assert parse_template(plain).line(PLAIN, "text") == (plain if plain.endswith((b"\n", b"\0")) else plain + b"\n")


def test_consume_writes_a_template_and_refuses_two_ways_to_write(cli):
    cli("topic", "create", "orders")
    cli("publish", "orders", "--key-separator", ":", "--header", "from=eu", "a:one", "b:two")
    ids = [row["id"] for row in json.loads(cli("consume", "orders", "-o", "json").out)]
    told = cli("consume", "orders", "--template", "{id} {key} {value} {header.from}")
    assert told.out.splitlines() == [f"{ids[0]} a one eu", f"{ids[1]} b two eu"]
    assert cli("consume", "orders", "--template", "{key}", "-o", "json").code == 2


@pytest.mark.parametrize(
    ("text", "told"), [("", "at least one character"), ("\\n", "no line end"), ("\\q", "has the escape")]
)
def test_what_separates_nothing_is_refused(run, text, told):
    ran = run("publish", "orders", "--key-separator", text, "a:b")
    assert (ran.code, told in ran.err) == (2, True), ran.err


def test_every_field_is_in_the_help_and_in_the_reference(run):
    from pathlib import Path

    page = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()
    shown = " ".join(run("consume", "--help").out.split())
    for name in FIELDS:
        assert f"`{{{name}}}`" in page
        assert name in shown
