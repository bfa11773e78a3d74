"""Control and bidirectional characters never reach a terminal as they are."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from basalt.cli.output import Column, Output, is_safe, printable, printable_bytes


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 漢 🙂", "plain ü 漢 🙂"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("abc\u202egpj.exe", "abc\\u202egpj.exe"),
        ("\u2066x\u2069\ufeff\u2028", "\\u2066x\\u2069\\ufeff\\u2028"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
        ('{"a": "\\n"}', '{"a": "\\n"}'),
    ],
)
def test_unsafe_characters_are_shown_as_escapes(text, shown):
    assert printable(text) == shown


def test_bytes_that_are_not_utf_8_are_shown_as_escapes():
    assert printable_bytes(b"a\xff\x1b") == "a\\xff\\x1b"


@given(st.text(alphabet=st.characters(), max_size=50))
def test_whatever_the_text_the_output_is_safe_and_programs_get_it_back(text):
    from _pytest.monkeypatch import MonkeyPatch

    def written(form: str) -> str:
        import io
        import sys

        with MonkeyPatch.context() as patch:
            stream = io.StringIO()
            patch.setattr(sys, "stdout", stream)
            Output(form).rows([Column("name")], [{"name": text}])
        return stream.getvalue()

    for form in ("table", "json", "jsonl", "yaml"):
        assert all(is_safe(line) for line in written(form).split("\n"))
    assert json.loads(written("json")) == [{"name": text}]
    if not any(0xD800 <= ord(character) < 0xE000 for character in text):
        assert yaml.safe_load(written("yaml")) == [{"name": text}]
