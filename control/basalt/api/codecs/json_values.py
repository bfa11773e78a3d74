"""JSON text, read strictly: what two readers could understand differently is refused, with the field at fault.

The standard library's parser, not msgspec's, because it alone shows fields that are given twice; for bodies of long
texts both take about the same time. Format: docs/formats/json-bodies.md.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from typing import NoReturn

from basalt.api.bodies.work import LONG_MAX, Buffer, check_count, check_long
from basalt.errors import MalformedBodyError, TooLargeError

JSON_VALUES_MAX = 262_144  # four per message of the largest publish: bounds memory, which small values would multiply
OBJECT_FIELDS_MAX = 1_024  # a body's own fields are few; this leaves room for a topic's properties
SHOWN_CHARS_MAX = 40  # of a name that a client made up, in an error message
_BODY = "the body"
# Possessive, so that no input makes the scan slower than linear; a text that is never closed runs to the end.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]', re.DOTALL)
_TOKENS_PER_VALUE = 3  # a comma or bracket, a field name, a text


def parse_json(body: Buffer, *, values_max: int = JSON_VALUES_MAX) -> object:
    """The value that the body is.

    TooLargeError for more than `values_max` values; MalformedBodyError, with line and column, for what is not JSON.
    """
    return _parse(_text(body, values_max), line=1)


def parse_json_lines(body: Buffer, *, lines_max: int, values_max: int = JSON_VALUES_MAX) -> Iterator[object]:
    """The values of JSON lines, one a line. Lines of only white space are passed over. Errors as `parse_json`."""
    text = _text(body, values_max)
    check_count(text.count("\n"), lines_max, "lines")
    for line, content in enumerate(text.split("\n"), start=1):
        if content.strip(" \t\r"):
            yield _parse(content, line)


def _text(body: Buffer, values_max: int) -> str:
    raw = bytes(body)
    if not raw:
        raise MalformedBodyError("the body is empty; expected JSON")
    _check_values(raw, values_max)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedBodyError(f"the body is not UTF-8 at byte {error.start}", hint="Send JSON in UTF-8.") from None
    if text.startswith("\ufeff"):
        raise MalformedBodyError("the body starts with a byte order mark", hint="Send UTF-8 without it.")
    return text


def _parse(text: str, line: int) -> object:
    try:
        return _decode(text)
    except json.JSONDecodeError as error:
        where = f"line {line + error.lineno - 1}, column {error.colno}"
        raise MalformedBodyError(f"the body is not JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise MalformedBodyError("the body is nested too deeply") from None
    except ValueError:  # what int() says to thousands of digits
        raise MalformedBodyError("the body has a number of too many digits") from None


def as_object(value: object, field: str | None, known: Collection[str]) -> dict[str, object]:
    """An object with no other fields than the known ones; MalformedBodyError names the nearest of those."""
    if not isinstance(value, dict):
        refuse(value, field, "an object")
    for name in value:
        if name not in known:
            _refuse_unknown(name, field, known)
    return value


def as_list(value: object, field: str | None) -> list[object]:
    """A list of anything."""
    if not isinstance(value, list):
        refuse(value, field, "a list")
    return value


def as_long(value: object, field: str) -> int:
    """A whole number of 64 bits, written without fraction and exponent."""
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(value, field, "a whole number")
    check_long(value, field, minimum=-LONG_MAX - 1)
    return value


def as_boolean(value: object, field: str) -> bool:
    """True or false, and nothing that only counts as such."""
    if not isinstance(value, bool):
        refuse(value, field, "true or false")
    return value


def as_text(value: object, field: str) -> str:
    """Text that UTF-8 can carry: half of a surrogate pair is refused."""
    as_utf8(value, field)
    return str(value)


def as_utf8(value: object, field: str) -> bytes:
    """Text, in UTF-8: half of a surrogate pair is refused."""
    if not isinstance(value, str):
        refuse(value, field, "text")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise MalformedBodyError(f"{field} has half of a surrogate pair at {error.start}", field=field) from None


def as_bytes(value: object, field: str) -> bytes:
    """Bytes as Avro's JSON writes them: a text whose code points, 0 to 255, are the bytes."""
    if not isinstance(value, str):
        refuse(value, field, "bytes, as text of code points 0 to 255")
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError as error:
        raise MalformedBodyError(
            f"{field} has code point {ord(value[error.start])} at {error.start}; bytes are code points 0 to 255",
            field=field,
            hint='Write each byte as one code point, UTF-8 text as its single bytes ("é" is "\\u00c3\\u00a9").',
        ) from None


def untag(value: object, field: str, tags: Sequence[str]) -> tuple[str | None, object]:
    """The branch tag of a union, None when it was written without, and the value under it."""
    if not isinstance(value, dict):
        return None, value
    if len(value) != 1:
        refuse(value, field, f"an object with one field, {' or '.join(tags)}")
    ((tag, inner),) = as_object(value, field, tags).items()
    return tag, inner


def optional_long(value: object, field: str, tag: str = "long") -> int | None:
    """The union [long, null], tagged or not; `tag` is int where the schema says int."""
    tagged, inner = untag(value, field, (tag,))
    return None if inner is None and tagged is None else as_long(inner, field)


def optional_bytes(value: object, field: str) -> bytes | None:
    """The union [bytes, null], tagged or not."""
    tagged, inner = untag(value, field, ("bytes",))
    return None if inner is None and tagged is None else as_bytes(inner, field)


def refuse(value: object, field: str | None, expected: str) -> NoReturn:
    """Say what was expected and what kind of value was found; never the value, which may be anyone's payload."""
    raise MalformedBodyError(f"{field or _BODY} is {_kind(value)}; expected {expected}", field=field)


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "text"
        case int():
            return "a whole number"
        case float():
            return "a number with a fraction or an exponent"
        case list():
            return "a list"
        case _:
            return "an object"


def _refuse_unknown(name: str, field: str | None, known: Collection[str]) -> NoReturn:
    shown = name[:SHOWN_CHARS_MAX]
    by_case = {each.casefold(): each for each in known}
    near = get_close_matches(shown.casefold(), by_case, n=1)
    hint = f"Did you mean {by_case[near[0]]}?" if near else f"Known fields: {', '.join(sorted(known))}."
    raise MalformedBodyError(f"{field or _BODY} has an unknown field {shown!a}", field=field or shown, hint=hint)


def _check_values(raw: bytes, values_max: int) -> None:
    # The quick count also counts commas and brackets inside texts; only a body that it suspects is scanned properly.
    if len(raw) <= values_max or raw.count(b",") + raw.count(b"[") + raw.count(b"{") <= values_max:
        return
    tokens_max = values_max * _TOKENS_PER_VALUE
    for tokens, _ in enumerate(_TOKENS.finditer(raw)):
        if tokens > tokens_max:
            raise TooLargeError(
                f"the body has more than {values_max} JSON values",
                hint="Split it, or send binary Avro, which carries the same in less.",
            )


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(pairs) > OBJECT_FIELDS_MAX:
        raise TooLargeError(f"an object has {len(pairs)} fields; one may have {OBJECT_FIELDS_MAX}")
    fields = dict(pairs)
    if len(fields) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = counts.most_common(1)[0][0][:SHOWN_CHARS_MAX]
        raise MalformedBodyError(
            f"the field {twice!a} is given twice",
            field=twice,
            hint="Readers differ in which one they take; send it once.",
        )
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedBodyError(f"{name} is not JSON", hint="JSON has no such number.")


_decode = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant).decode
