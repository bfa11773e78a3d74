"""The API's bodies in Avro's JSON encoding: bytes as code points; unions tagged, or untagged by hand. And JSON text, read strictly:
what two readers could understand differently is refused, with the field at fault.

The same values, rules and errors as `avro`, and the same names. The standard library's parser, not msgspec's, because it alone
shows fields that are given twice; for bodies of long texts both take about the same time. Format: docs/formats/json-bodies.md.
"""

from __future__ import annotations

import json
import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, NoReturn, cast

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from basalt.api.bodies.messages import (
    LONG_MAX,
    PUBLISH_MESSAGES_MAX,
    PUBLISH_RESPONSE,
    RECORD_HEADERS_MAX,
    SEGMENTS_MAX,
    WORK_ACKNOWLEDGE,
    WORK_ENTRIES_MAX,
    WORK_MARKER,
    WORK_PUBLISH,
    Buffer,
    Carried,
    ConsumeRequest,
    PublishRequest,
    PublishResponse,
    RecordIn,
    Rejection,
    WireFields,
    Work,
    WorkAcknowledge,
    WorkMarker,
    WorkPublish,
    check_consume,
    check_count,
    check_long,
    check_publish,
    check_publish_response,
    check_record,
    check_work,
)
from basalt.errors import MalformedBodyError, TooLargeError

START_OF_MESSAGES = b"["
END_OF_MESSAGES = b"]"
JSON_VALUES_MAX = 262_144  # four per message of the largest publish: bounds memory, which small values would multiply
OBJECT_FIELDS_MAX = 1_024  # a body's own fields are few; this leaves room for a topic's properties
SHOWN_CHARS_MAX = 40  # of a name that a client made up, in an error message
_BODY = "the body"
# Possessive, so that no input makes the scan slower than linear; a text that is never closed runs to the end.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]', re.DOTALL)
_TOKENS_PER_VALUE = 3  # a comma or bracket, a field name, a text
_PUBLISH_FIELDS = ("transactionWritePointer", "messages")
_CONSUME_REQUEST: WireFields = {
    "startFrom": "position",
    "inclusive": "boolean",
    "limit": "int?",
    "transaction": "bytes?",
}
_RECORD_FIELDS = ("payload", "payloadBase64", "key", "keyBase64", "headers", "eventTimeMs", "ttlMs")
_HEADER_FIELDS = ("name", "value", "valueBase64")
_REJECTION_FIELDS = ("id", "reason")
_SEGMENT: WireFields = {"writePointer": "long"}
_encode = msgspec.json.Encoder().encode


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


def _position(value: object, field: str) -> bytes | int | None:
    tag, inner = untag(value, field, ("bytes", "long"))
    if inner is None and tag is None:
        return None
    if tag == "bytes" or (tag is None and isinstance(inner, str)):
        return as_bytes(inner, field)
    if tag is None and not isinstance(inner, int):
        refuse(inner, field, "a message id, a time in ms, or null")
    return as_long(inner, field)


def _byte_strings(value: object, field: str) -> list[bytes]:
    items = as_list(value, field)
    try:
        return [str.encode(item, "latin-1") for item in cast("list[str]", items)]
    except (TypeError, UnicodeEncodeError):  # naming each item only now keeps publishing from paying for it
        return [as_bytes(item, f"{field}[{index}]") for index, item in enumerate(items)]


def read_record(value: object, field: str) -> RecordIn:
    """A record to publish. Its payload, key and header values are text (UTF-8), or bytes in base64."""
    fields = as_object(value, field, _RECORD_FIELDS)
    payload = _either(fields, "payload", field)
    if payload is None:
        name = f"{field}.payload"
        raise MalformedBodyError(f"{name} is missing", field=name, hint="Send payload (text) or payloadBase64 (bytes).")
    record = RecordIn(
        payload=payload,
        key=_either(fields, "key", field),
        headers=_read_headers(fields.get("headers", []), f"{field}.headers"),
        event_time_ms=optional_long(fields.get("eventTimeMs"), f"{field}.eventTimeMs"),
        ttl_ms=optional_long(fields.get("ttlMs"), f"{field}.ttlMs"),
    )
    check_record(record, field)
    return record


def _read_headers(value: object, field: str) -> tuple[tuple[str, Buffer], ...]:
    items = as_list(value, field)
    check_count(len(items), RECORD_HEADERS_MAX, field)
    headers = list[tuple[str, Buffer]]()
    for index, item in enumerate(items):
        each = f"{field}[{index}]"
        fields = as_object(item, each, _HEADER_FIELDS)
        header_value = _either(fields, "value", each)
        if header_value is None:
            raise MalformedBodyError(f"{each}.value is missing", field=f"{each}.value", hint="A value may be empty.")
        headers.append((as_text(fields.get("name"), f"{each}.name"), header_value))
    return tuple(headers)


def _either(fields: dict[str, object], name: str, field: str) -> bytes | None:
    text, base64 = fields.get(name), fields.get(f"{name}Base64")
    if base64 is None:
        return None if text is None else as_utf8(text, f"{field}.{name}")
    base64_field = f"{field}.{name}Base64"
    if text is not None:
        raise MalformedBodyError(
            f"{field} has both {name} and {name}Base64", field=base64_field, hint="Send one of them."
        )
    if not isinstance(base64, str):
        refuse(base64, base64_field, "text in base64")
    try:
        return a2b_base64(base64, strict_mode=True)
    except (Base64Error, ValueError):
        hint = "Use the standard alphabet (A-Z a-z 0-9 + /) with padding."
        raise MalformedBodyError(f"{base64_field} is not base64", field=base64_field, hint=hint) from None


def text_or_bytes(value: Buffer) -> tuple[str | None, bytes | None]:
    """The two spellings of bytes: text where they are UTF-8, and None; else None and the bytes."""
    try:
        return str(value, "utf-8"), None
    except UnicodeDecodeError:
        return None, bytes(value)


def _read_records(value: object, field: str) -> list[RecordIn]:
    return [read_record(item, f"{field}[{index}]") for index, item in enumerate(as_list(value, field))]


def _longs(value: object, field: str) -> list[int]:
    return [as_long(item, f"{field}[{index}]") for index, item in enumerate(as_list(value, field))]


def _rejections(value: object, field: str) -> list[Rejection]:
    rejections = []
    for index, item in enumerate(as_list(value, field)):
        each = f"{field}[{index}]"
        fields = as_object(item, each, _REJECTION_FIELDS)
        message_id, reason = as_bytes(fields.get("id"), f"{each}.id"), fields.get("reason", "")
        rejections.append(Rejection(message_id, as_text(reason, f"{each}.reason")))
    return rejections


# How each type of `WireFields` is read, and what it is where it is absent: what is not listed there must be given.
_READERS: dict[str, Callable[[object, str], Any]] = {
    "string": as_text,
    "boolean": as_boolean,
    "int": as_long,
    "int?": partial(optional_long, tag="int"),
    "long": as_long,
    "long?": optional_long,
    "bytes?": optional_bytes,
    "bytes[]": _byte_strings,
    "record[]": _read_records,
    "position": _position,
    "id?": optional_bytes,
    "id[]": _byte_strings,
    "long[]": _longs,
    "rejection[]": _rejections,
}
_ABSENT: dict[str, object] = {
    "boolean": True,
    "int?": None,
    "long?": None,
    "bytes?": None,
    "bytes[]": [],
    "record[]": [],
    "position": None,
    "id?": None,
    "id[]": [],
    "long[]": [],
    "rejection[]": [],
}
_ABSENT_OF_ACKNOWLEDGE = {"member": "", "epoch": 0, "round": 0}  # of which others must be there


def _read_fields(value: object, shape: WireFields, inside: str | None = None) -> list[Any]:
    fields = as_object(value, inside, shape)
    values = []
    for name, kind in shape.items():
        path = f"{inside}.{name}" if inside else name
        if name not in fields and kind not in _ABSENT:
            raise MalformedBodyError(f"{path} is missing", field=path, hint=f"Send {name}.")
        values.append(_READERS[kind](fields.get(name, _ABSENT.get(kind)), path))
    return values


def _read_acknowledge(value: object, field: str) -> WorkAcknowledge:
    given = _ABSENT_OF_ACKNOWLEDGE | value if isinstance(value, dict) else value
    return WorkAcknowledge(*_read_fields(given, WORK_ACKNOWLEDGE, field))


_WRITERS: dict[str, Callable[[Any], object]] = {
    "long?": lambda value: None if value is None else {"long": value},
    "bytes[]": lambda values: [str(value, "latin-1") for value in values],
    "record[]": lambda records: list(map(_record_fields, records)),
    "id?": lambda value: None if value is None else {"bytes": str(value, "latin-1")},
    "id[]": lambda values: [str(value, "latin-1") for value in values],
    "long[]": list,
    "rejection[]": lambda rejections: [{"id": str(each.id, "latin-1"), "reason": each.reason} for each in rejections],
}


def _record_fields(record: RecordIn) -> dict[str, object]:
    fields = _either_field("payload", record.payload)
    if record.key is not None:
        fields.update(_either_field("key", record.key))
    if record.headers:
        fields["headers"] = [{"name": name, **_either_field("value", value)} for name, value in record.headers]
    if record.event_time_ms is not None:
        fields["eventTimeMs"] = record.event_time_ms
    if record.ttl_ms is not None:
        fields["ttlMs"] = record.ttl_ms
    return fields


def _either_field(name: str, value: Buffer) -> dict[str, object]:
    text, content = text_or_bytes(value)
    return {f"{name}Base64": content} if text is None else {name: text}


def _fields_of(body: Struct, shape: WireFields) -> dict[str, object]:
    """The fields of a body as JSON writes them: bytes as code points, unions tagged."""
    pairs = zip(shape.items(), astuple(body), strict=True)
    return {name: _WRITERS[kind](value) if kind in _WRITERS else value for (name, kind), value in pairs}


def decode_publish_request(body: Buffer, check: Callable[[PublishRequest], None] = check_publish) -> PublishRequest:
    """The body of publish; or of store, with `check_store`. An absent write pointer is null, absent messages are none."""
    fields = as_object(parse_json(body), None, _PUBLISH_FIELDS)
    messages = as_list(fields.get("messages", []), "messages")
    check_count(len(messages), PUBLISH_MESSAGES_MAX, "messages")  # before anything is made of them
    write_pointer = optional_long(fields.get("transactionWritePointer"), "transactionWritePointer")
    request = PublishRequest(write_pointer, _byte_strings(messages, "messages"))
    check(request)
    return request


def decode_publish_response(
    body: Buffer, check: Callable[[PublishResponse], None] = check_publish_response
) -> PublishResponse:
    """The answer of a transactional publish; or the body of roll back, with `check_rollback`. Only the write pointer may be absent."""
    response = PublishResponse(*_read_fields(parse_json(body), PUBLISH_RESPONSE))
    check(response)
    return response


def encode_publish_response(response: PublishResponse) -> bytes:
    """The answer of a transactional publish, which is also the body of roll back."""
    check_publish_response(response)
    return _encode(_fields_of(response, PUBLISH_RESPONSE))


def decode_consume_request(body: Buffer) -> ConsumeRequest:
    """The body of poll. Absent: from the oldest, inclusive, no limit, no transaction."""
    request = ConsumeRequest(*_read_fields(parse_json(body), _CONSUME_REQUEST))
    check_consume(request)
    return request


def encode_messages_block(
    ids: Sequence[Buffer], payloads: Sequence[Buffer], carried: Sequence[Carried] | None = None
) -> bytes:
    """Some messages of an answer: START_OF_MESSAGES, such blocks joined by commas (none empty), END_OF_MESSAGES.

    `carried`: what each has beside its payload; None when none has anything. ValueError when the lists differ in length.
    """
    items: list[dict[str, object]] = [
        {"id": str(message_id, "latin-1"), "payload": str(payload, "latin-1")}
        for message_id, payload in zip(ids, payloads, strict=True)
    ]
    for item, each in zip(items, carried or (), strict=carried is not None):
        item.update(_carried_fields(each))
    return _encode(items)[1:-1]


def _carried_fields(carried: Carried) -> dict[str, object]:
    fields: dict[str, object] = {}
    if carried.key is not None:
        fields["key"] = str(carried.key, "latin-1")
    if carried.headers:
        fields["headers"] = [{"name": name, "value": str(value, "latin-1")} for name, value in carried.headers]
    if carried.event_time_ms is not None:
        fields["eventTimeMs"] = carried.event_time_ms
    if carried.ttl_ms is not None:
        fields["ttlMs"] = carried.ttl_ms
    return fields


def decode_work(body: Buffer) -> Work:
    """Decode the work of a commit or a one-shot transaction; absent parts are empty. Limits as in `avro.decode_work`."""
    return read_work(parse_json(body))


def read_work(value: object) -> Work:
    """As `decode_work`, of a value that was parsed before: work that is a part of a larger body."""
    fields = as_object(value, None, ("publish", "acknowledge", "markers", "segments"))
    publish = _read_entries(fields, "publish", WORK_PUBLISH, WORK_ENTRIES_MAX)
    markers = _read_entries(fields, "markers", WORK_MARKER, WORK_ENTRIES_MAX)
    segments = None
    if fields.get("segments") is not None:
        segments = [pointer for [pointer] in _read_entries(fields, "segments", _SEGMENT, SEGMENTS_MAX)]
    acknowledge = as_list(fields.get("acknowledge", []), "acknowledge")
    check_count(len(acknowledge), WORK_ENTRIES_MAX, "acknowledge")
    acknowledged = [_read_acknowledge(each, f"acknowledge[{index}]") for index, each in enumerate(acknowledge)]
    published, marked = [WorkPublish(*each) for each in publish], [WorkMarker(*each) for each in markers]
    work = Work(published, marked, segments, acknowledged)
    count = sum(len(entry.messages) + len(entry.records) for entry in work.publish)
    check_count(count, PUBLISH_MESSAGES_MAX, "publish.messages")
    check_work(work)
    return work


def _read_entries(fields: dict[str, object], part: str, shape: WireFields, entries_max: int) -> list[list[Any]]:
    items = as_list(fields.get(part, []), part)
    check_count(len(items), entries_max, part)
    return [_read_fields(item, shape, f"{part}[{index}]") for index, item in enumerate(items)]


def encode_work(work: Work) -> bytes:
    """Encode the work of a commit or a one-shot transaction."""
    check_work(work)
    parts: dict[str, object] = {
        "publish": [_fields_of(entry, WORK_PUBLISH) for entry in work.publish],
        "markers": [_fields_of(marker, WORK_MARKER) for marker in work.markers],
    }
    if work.acknowledge:
        parts["acknowledge"] = [_fields_of(entry, WORK_ACKNOWLEDGE) for entry in work.acknowledge]
    if work.segments is not None:
        parts["segments"] = [{"writePointer": write_pointer} for write_pointer in work.segments]
    return _encode(parts)


_KINDS = {
    type(None): "null",
    bool: "true or false",
    str: "text",
    int: "a whole number",
    float: "a number with a fraction or an exponent",
    list: "a list",
}


def refuse(value: object, field: str | None, expected: str) -> NoReturn:
    """Say what was expected and what kind of value was found; never the value, which may be anyone's payload."""
    raise MalformedBodyError(
        f"{field or _BODY} is {_KINDS.get(type(value), 'an object')}; expected {expected}", field=field
    )


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
