"""Messages as pages show them: a payload as text, JSON, Avro or hex, and which messages a filter lets through. Pure.

A payload is whatever somebody has published: it is parsed only where it is short, and what cannot be parsed is shown as it is.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from msgspec import Struct

from basalt.api.bodies.ranges import PeekedHeader
from basalt.console import text
from basalt.console.views import avro_view
from basalt.console.views.avro_view import AvroError

VIEWS = ("auto", "text", "json", "avro", "hex")
PARSED_BYTES_MAX = 65_536  # of a payload that is taken apart: a millisecond
HEX_BYTES_MAX = 8_192  # of a payload that is shown in hex: 512 lines
HEX_LINE_BYTES = 16


class ShownRecord(Struct, frozen=True, rename="camel"):
    """A record of an answer, or a message with its state."""

    id: str
    payload: str | None = None
    payload_base64: bytes | None = None
    key: str | None = None
    key_base64: bytes | None = None
    headers: tuple[PeekedHeader, ...] = ()
    event_time_ms: int | None = None
    ttl_ms: int | None = None
    kind: str = "user"
    state: str = ""
    transaction_write_pointer: int | None = None
    write_pointer: int | None = None

    @property
    def content(self) -> bytes:
        """The payload's bytes."""
        return self.payload.encode() if self.payload is not None else self.payload_base64 or b""

    @property
    def published_ms(self) -> int:
        """The time of its publication, which its id begins with."""
        return int(self.id[:16], 16)

    @property
    def written_by(self) -> int | None:
        """The write pointer of its transaction."""
        return self.write_pointer or self.transaction_write_pointer

    @property
    def key_shown(self) -> str | None:
        """The key: as text, or 0x and hex digits."""
        return f"0x{self.key_base64.hex()}" if self.key_base64 is not None else self.key


class RecordPage(Struct, frozen=True, rename="camel"):
    """A page of records: where a reader goes on, and the transaction at which it stopped."""

    records: list[ShownRecord]
    next: str | None = None
    held_by: str | None = None


class Seen(NamedTuple):
    """A payload as it is shown: in which view, the text, and what is wrong where another view was asked for."""

    view: str
    text: str
    problem: str = ""
    is_cut: bool = False


def seen(payload: bytes, view: str, schema: Any = None, chars_max: int = text.SHOWN_CHARS_MAX) -> Seen:
    """A payload in this view; as text or hex where it cannot be shown so. JSON takes a line in a list, and many where all of it is shown."""
    if view == "auto":
        view = _fitting(payload, schema)
    problem = ""
    if view in ("json", "avro"):
        try:
            indent = 2 if chars_max == text.SHOWN_CHARS_MAX else None
            return _cut(view, json.dumps(_parsed(payload, view, schema), indent=indent, ensure_ascii=False), chars_max)
        except (ValueError, RecursionError) as error:
            problem = str(error) if isinstance(error, AvroError) else "it is no JSON"
            view = "text" if _is_text(payload) else "hex"
    if view == "hex":
        dump = _hex_dump(payload[:HEX_BYTES_MAX])
        return _cut(view, dump, chars_max, problem, is_cut=len(payload) > HEX_BYTES_MAX)
    head = payload[: 4 * chars_max]  # a character has up to four bytes
    return _cut("text", head.decode("utf-8", "backslashreplace"), chars_max, problem, is_cut=len(head) < len(payload))


def value_of(payload: bytes, schema: Any = None) -> Any:
    """The value in a payload, by the schema or else of JSON; ValueError where there is none."""
    return _parsed(payload, "json" if schema is None else "avro", schema)


def _parsed(payload: bytes, view: str, schema: Any) -> Any:
    if len(payload) > PARSED_BYTES_MAX:
        raise AvroError(f"it is longer than {PARSED_BYTES_MAX:,} bytes")
    if view == "json":
        return json.loads(payload)
    if schema is None:
        raise AvroError("there is no schema: give one, or the topic a property label.schema")
    return avro_view.decode(schema, payload)


def _fitting(payload: bytes, schema: Any) -> str:
    for view in ("avro", "json") if schema is not None else ("json",):
        try:
            value = _parsed(payload, view, schema)
        except (ValueError, RecursionError):
            continue
        if view == "avro" or isinstance(value, (dict, list)):
            return view
    return "text" if _is_text(payload) else "hex"


def _is_text(payload: bytes) -> bool:
    try:
        payload[: text.SHOWN_CHARS_MAX].decode("utf-8")
    except UnicodeDecodeError as error:
        return len(payload) > text.SHOWN_CHARS_MAX and error.start > text.SHOWN_CHARS_MAX - 4  # cut within a character
    return True


def _cut(view: str, whole: str, chars_max: int, problem: str = "", *, is_cut: bool = False) -> Seen:
    return Seen(view, whole[:chars_max], problem, is_cut or len(whole) > chars_max)


def _hex_dump(payload: bytes) -> str:
    lines = []
    for at in range(0, len(payload), HEX_LINE_BYTES):
        part = payload[at : at + HEX_LINE_BYTES]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)


class Filter(NamedTuple):
    """A filter of messages: what each must have, all of it. `pointer` is a JSON pointer, and `equals` the value there."""

    contains: str = ""
    pointer: str = ""
    equals: str = ""
    header: str = ""
    value: str = ""

    @property
    def is_empty(self) -> bool:
        """True where every message is let through."""
        return not (self.contains or self.pointer or self.header)

    def takes(self, record: ShownRecord, schema: Any = None) -> bool:
        """Tell whether a message is let through."""
        if self.contains and self.contains.encode("utf-8", "surrogatepass") not in record.content:
            return False
        if self.header and not any(each.name == self.header and _is_value(each, self.value) for each in record.headers):
            return False
        return not self.pointer or self._points(record, schema)

    def _points(self, record: ShownRecord, schema: Any) -> bool:
        try:
            found = at_pointer(value_of(record.content, schema), self.pointer)
        except (ValueError, LookupError, RecursionError):
            return False
        if isinstance(found, str) and found == self.equals:
            return True
        try:
            wanted = json.loads(self.equals)
        except ValueError:
            return False
        return type(wanted) is type(found) and bool(wanted == found)


def _is_value(header: PeekedHeader, wanted: str) -> bool:
    return (header.value if header.value is not None else (header.value_base64 or b"").hex()) == wanted


def at_pointer(value: Any, pointer: str) -> Any:
    """The part of a value that a JSON pointer (RFC 6901) names; a `LookupError` or `ValueError` where there is none."""
    if pointer and not pointer.startswith("/"):
        pointer = f"/{pointer}"
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            value = value[int(name)] if name.isdecimal() else _nothing(name)
        else:
            value = value[name] if isinstance(value, dict) else _nothing(name)
    return value


def _nothing(name: str) -> Any:
    raise LookupError(name)
