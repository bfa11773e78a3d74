"""Templates of `basalt consume --template`: text with a message's fields in braces, and escapes. Fields: docs/reference/cli.md.

A template is taken apart once, before anything is read. Every field that a message does not have is empty. Templates are bytes, for
what they separate may be no text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from basalt.cli.output import PayloadFormat, payload_line, publish_ms, time_text

if TYPE_CHECKING:
    from basalt.client import Message

Part = Callable[["Message", PayloadFormat], bytes]  # of a template: what it writes of a message

_TOKEN = re.compile(
    rb"(?P<brace>\{\{|\}\})|\{(?P<field>[^{}]*)\}|\\(?P<escape>x[0-9A-Fa-f]{2}|.)?|(?P<stray>[{}])", re.DOTALL
)
_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.)?", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}
_ENDS = (b"\n", b"\0")  # a template that ends so separates its messages itself
_HEADER = "header."


def _bytes(content: bytes | None, form: PayloadFormat) -> bytes:
    if content is None:
        return b""
    return content if form == "raw" else payload_line(content, form).encode()


def _headers(message: Message, form: PayloadFormat) -> bytes:
    return b" ".join(
        _bytes(name.encode(), _name_form(form)) + b"=" + _bytes(value, form) for name, value in message.headers
    )


def _name_form(form: PayloadFormat) -> PayloadFormat:
    return "raw" if form == "raw" else "text"  # a name is text, however values are written


def _number(value: int | None) -> bytes:
    return b"" if value is None else b"%d" % value


def _time(value: int | None) -> bytes:
    return b"" if value is None else time_text(value).encode()


FIELDS: dict[str, Part] = {
    "id": lambda message, _form: message.id.hex().encode(),
    "key": lambda message, form: _bytes(message.key, form),
    "value": lambda message, form: _bytes(message.payload, form),
    "headers": _headers,
    "published": lambda message, _form: _time(publish_ms(message.id)),
    "published_ms": lambda message, _form: _number(publish_ms(message.id)),
    "event_time": lambda message, _form: _time(message.event_time_ms),
    "event_time_ms": lambda message, _form: _number(message.event_time_ms),
    "ttl_ms": lambda message, _form: _number(message.ttl_ms),
}


class Template:
    """The text to write of each message."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts

    def line(self, message: Message, form: PayloadFormat) -> bytes:
        """The template with this message's fields; their bytes are written as the format says, raw ones as they are."""
        return b"".join(part(message, form) for part in self._parts)


def parse_template(text: bytes) -> Template:
    """Take a template apart. `ValueError` says what is wrong with it."""
    parts: list[Part] = []
    literal, stop = b"", 0

    def close() -> None:
        if literal:
            parts.append(lambda _message, _form, written=literal: written)  # type: ignore[misc]

    for found in _TOKEN.finditer(text):
        literal += text[stop : found.start()]
        stop = found.end()
        if found["stray"] is not None:
            raise ValueError(f"has a brace by itself at character {found.start() + 1}; write {{{{ or }}}} for one")
        if found["field"] is not None:
            close()
            parts.append(_part(found["field"].decode("utf-8", "backslashreplace")))
            literal = b""
        elif found["brace"] is not None:
            literal += found["brace"][:1]
        else:
            literal += _unescape(found["escape"])
    literal += text[stop:]
    if not literal.endswith(_ENDS):
        literal += b"\n"
    close()
    return Template(parts)


def unescaped(text: bytes) -> bytes:
    r"""The text with \n, \t, \r, \0, \\ and \xHH as what they stand for. `ValueError` for another escape."""
    return _ESCAPE.sub(lambda found: _unescape(found[1]), text)


def _unescape(escape: bytes | None) -> bytes:
    known = None if escape is None else _ESCAPES.get(escape)
    if known is not None:
        return known
    if escape is not None and len(escape) == 3:
        return bytes.fromhex(escape[1:].decode())
    shown = (escape or b"").decode("utf-8", "backslashreplace")
    raise ValueError(rf"has the escape \{shown}; there are \n, \t, \r, \0, \\ and \xHH")


def _part(name: str) -> Part:
    if name.startswith(_HEADER) and len(name) > len(_HEADER):
        wanted = name.removeprefix(_HEADER)
        return lambda message, form: _bytes(
            next((value for key, value in message.headers if key == wanted), None), form
        )
    part = FIELDS.get(name)
    if part is None:
        raise ValueError(f"has no field {{{name[:80]}}}; there are {', '.join(FIELDS)} and {_HEADER}NAME")
    return part


class TemplateText(click.ParamType[Template]):
    """A template; a usage error says what is wrong with it."""

    name = "template"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Template:
        if isinstance(value, Template):
            return value
        try:
            return parse_template(os.fsencode(value))
        except ValueError as error:
            self.fail(f"the template {error}", param, ctx)


class Separator(click.ParamType[bytes]):
    """The text between two parts of a line: at least one byte, with escapes as in a template."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if isinstance(value, bytes):
            return value
        try:
            separator = unescaped(os.fsencode(value))
        except ValueError as error:
            self.fail(f"it {error}", param, ctx)
        if not separator or b"\n" in separator:
            self.fail("it must be at least one character, and no line end", param, ctx)
        return separator
