"""Avro payloads as values, for people: read by a schema in JSON, within bounds. Pure.

Both the payload and the schema are hostile: an array of nulls takes no bytes, so a few of them may claim a billion items, and a schema may
nest for ever. What is over a bound is refused, so a page takes milliseconds. Why there is no library: docs/decisions/0052-avro-is-read-by-hand.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

SCHEMA_CHARS_MAX = 4_096  # as long as a property of a topic may be
DEPTH_MAX = 32  # of a value: more than people read, and well below what Python's own stack takes
VALUES_MAX = 20_000  # of one payload; some ten milliseconds
LONG_BYTES_MAX = 10  # of a number: 64 bits, seven in each byte
SINGLE_OBJECT = b"\xc3\x01"  # two bytes and eight of a fingerprint before a payload, which some writers put there


class AvroError(ValueError):
    """A payload, or a schema, that cannot be read; says why."""


def parse_schema(text: str) -> Any:
    """The schema in a text; `AvroError`."""
    if len(text) > SCHEMA_CHARS_MAX:
        raise AvroError(f"the schema has {len(text):,} characters; the limit is {SCHEMA_CHARS_MAX:,}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if text.strip() in _PRIMITIVES:
            return text.strip()
        raise AvroError("the schema is no JSON") from None


def decode(schema: Any, payload: bytes) -> Any:
    """The value in a payload of this schema, of values that JSON has; `AvroError` where there is none, or more than one."""
    start = 10 if payload.startswith(SINGLE_OBJECT) and len(payload) > 10 else 0
    reader = _Reader(payload, start)
    value = reader.value(schema, 0)
    if reader.at != len(payload):
        raise AvroError(f"{len(payload) - reader.at:,} bytes are left behind the value")
    return value


class _Reader:
    """Reads one payload. `names` are the types that were met, by which a schema refers to them."""

    def __init__(self, payload: bytes, start: int) -> None:
        self.payload = payload
        self.at = start
        self.names: dict[str, Any] = {}
        self.left = VALUES_MAX

    def value(self, schema: Any, depth: int) -> Any:
        self.left -= 1
        if self.left < 0 or depth > DEPTH_MAX:
            raise AvroError(f"it has more than {VALUES_MAX:,} values, or they lie deeper than {DEPTH_MAX}")
        if isinstance(schema, list):
            return self.value(_branch(schema, self.long()), depth + 1)
        if isinstance(schema, str):
            return self._named(schema, depth)
        if not isinstance(schema, dict):
            raise AvroError("the schema is none of Avro's")
        kind = schema.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            self._keep(schema)
        read = self._complex.get(kind) if isinstance(kind, str) else None
        return self.value(kind, depth + 1) if read is None else read(self, schema, depth)

    def _named(self, name: str, depth: int) -> Any:
        read = _PRIMITIVES.get(name)
        if read is not None:
            return read(self)
        found = self.names.get(name)
        if found is None:
            raise AvroError(f"the schema names {name[:60]!r}, which is no type of it")
        return self.value(found, depth + 1)

    def _keep(self, schema: Mapping[str, Any]) -> None:
        name, namespace = str(schema.get("name", "")), schema.get("namespace")
        self.names[name.rpartition(".")[2]] = self.names[name] = schema
        if isinstance(namespace, str):
            self.names[f"{namespace}.{name}"] = schema

    def _record(self, schema: Mapping[str, Any], depth: int) -> Any:
        fields = schema.get("fields")
        if not isinstance(fields, list) or not all(isinstance(each, dict) for each in fields):
            raise AvroError("a record of the schema has no fields")
        return {str(each.get("name", "")): self.value(each.get("type"), depth + 1) for each in fields}

    def _enum(self, schema: Mapping[str, Any], _depth: int) -> Any:
        return _branch(schema.get("symbols"), self.long())

    def _fixed(self, schema: Mapping[str, Any], _depth: int) -> Any:
        size = schema.get("size")
        if not isinstance(size, int) or isinstance(size, bool):
            raise AvroError("a fixed type of the schema has no size")
        return _text_or_hex(self.take(size))

    def _array(self, schema: Mapping[str, Any], depth: int) -> Any:
        return [self.value(schema.get("items"), depth + 1) for _ in self._items()]

    def _map(self, schema: Mapping[str, Any], depth: int) -> Any:
        found: dict[str, Any] = {}
        for _ in self._items():
            key = self.string()
            found[key] = self.value(schema.get("values"), depth + 1)
        return found

    def _items(self) -> Any:
        """One turn for each item of all blocks."""
        while count := self.long():
            if count < 0:
                self.long()  # the bytes of the block
                count = -count
            if count > self.left:
                raise AvroError(f"it has more than {VALUES_MAX:,} values")
            yield from range(count)

    _complex: Mapping[str, Callable[[_Reader, Mapping[str, Any], int], Any]] = {
        "record": _record, "error": _record, "enum": _enum, "fixed": _fixed, "array": _array, "map": _map,
    }  # fmt: skip

    def take(self, count: int) -> bytes:
        part = self.payload[self.at : self.at + count] if count >= 0 else b""
        if len(part) != count:
            raise AvroError(f"it ends within a value, at byte {self.at:,}")
        self.at += count
        return part

    def long(self) -> int:
        number = 0
        for place in range(LONG_BYTES_MAX):
            (byte,) = self.take(1)
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise AvroError(f"a number at byte {self.at:,} is longer than 64 bits")

    def string(self) -> str:
        return self.take(self.long()).decode("utf-8", "backslashreplace")

    def boolean(self) -> bool:
        return self.take(1) != b"\0"

    def number(self, form: str, size: int) -> float:
        value: float = struct.unpack(form, self.take(size))[0]
        return value


_PRIMITIVES: Mapping[str, Callable[[_Reader], Any]] = {
    "null": lambda _: None,
    "boolean": _Reader.boolean,
    "int": _Reader.long,
    "long": _Reader.long,
    "float": lambda reader: reader.number("<f", 4),
    "double": lambda reader: reader.number("<d", 8),
    "bytes": lambda reader: _text_or_hex(reader.take(reader.long())),
    "string": _Reader.string,
}


def _branch(branches: Any, index: int) -> Any:
    if not isinstance(branches, list) or not 0 <= index < len(branches):
        raise AvroError(f"it takes branch {index} of a union or an enum that has no such one")
    return branches[index]


def _text_or_hex(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
