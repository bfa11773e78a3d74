"""Reads the lines that `--print-shell` prints as Ruby and the HBase shell would: just what occurs in them.

In single quotes Ruby knows two escapes, and the shell reads split keys with HBase's `Bytes.toBytesBinary`: both are done
here as they are done there.
"""

from __future__ import annotations

import re
from typing import Any

from basalt_engine.stores.hbase.tables import FAMILY
from basalt_engine.stores.hbase.thrift2 import TableDescriptor

_TOKEN = re.compile(r"\s*(?:(?P<text>'(?:[^'\\]|\\.)*')|(?P<number>\d+)|(?P<word>[A-Za-z_]+)|(?P<sign>=>|[{}\[\],]))")
_UPPER_HEX = "0123456789ABCDEF"


def read_line(line: str) -> tuple[str, list[Any]]:
    """The command and its arguments: texts, numbers, lists and dicts."""
    tokens = []
    end = 0
    while end < len(line):
        match = _TOKEN.match(line, end)
        assert match, f"not understood: {line[end:]}"
        tokens.append((match.lastgroup, match[match.lastgroup or 0]))
        end = match.end()
    kind, command = tokens.pop(0)
    assert kind == "word"
    arguments = [_value(tokens)]
    while tokens:
        assert tokens.pop(0) == ("sign", ",")
        arguments.append(_value(tokens))
    return command, arguments


def created(line: str) -> tuple[TableDescriptor, list[bytes]]:
    """The table and split keys that a `create` line makes."""
    command, (name, family, options) = read_line(line)
    assert command == "create"
    assert family.pop("NAME") == FAMILY
    if family.get("TTL") == "FOREVER":
        family["TTL"] = str((1 << 31) - 1)
    attributes = {key: str(value) for key, value in family.items()}
    splits = [to_bytes_binary(key) for key in options.pop("SPLITS", [])]
    metadata = options.pop("METADATA")
    assert options == {}
    return TableDescriptor(name, {FAMILY: attributes}, metadata), splits


def to_bytes_binary(text: str) -> bytes:
    r"""HBase's Bytes.toBytesBinary: `\xHH` with upper-case digits is a byte, `\x` with others is dropped."""
    found = bytearray()
    index = 0
    while index < len(text):
        if text.startswith("\\x", index):
            digits = text[index + 2 : index + 4]
            if len(digits) == 2 and all(digit in _UPPER_HEX for digit in digits):
                found.append(int(digits, 16))
                index += 4
                continue
        found.append(ord(text[index]) & 0xFF)
        index += 1
    return bytes(found)


def _value(tokens: list[tuple[str | None, str]]) -> Any:
    kind, token = tokens.pop(0)
    if kind == "text":
        return re.sub(r"\\([\\'])", r"\1", token[1:-1])
    if kind == "number":
        return int(token)
    if kind == "word":
        return token
    closing = {"{": "}", "[": "]"}[token]
    items: list[Any] = []
    while tokens[0] != ("sign", closing):
        if items:
            assert tokens.pop(0) == ("sign", ",")
        items.append(_value(tokens))
        if token == "{":
            assert tokens.pop(0) == ("sign", "=>")
            items[-1] = (items[-1], _value(tokens))
    tokens.pop(0)
    return dict(items) if token == "{" else items
