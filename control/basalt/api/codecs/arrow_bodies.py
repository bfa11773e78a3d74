"""Messages out of an Arrow IPC stream that came as a request's body: read by pyarrow, and doubted at every step.

What could make it allocate more than the body holds (compressed buffers, dictionaries, counts that nothing stands behind) is
refused before it is looked at; every record batch is validated in full before its values are. Format: docs/formats/arrow.md.
"""

from __future__ import annotations

import difflib
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import is_not
from typing import Any, NamedTuple

from basalt.api.bodies.work import (
    HEADER_NAME_BYTES_MAX,
    LONG_MAX,
    PUBLISH_MESSAGES_MAX,
    RECORD_HEADERS_MAX,
    REQUEST_HEADERS_MAX,
    check_count,
)
from basalt.api.codecs.arrow import library
from basalt.errors import MalformedBodyError, TooLargeError
from basalt_engine.records import Extras, Headers

BATCHES_MAX = 1_024  # of one body: each costs more than its smallest bytes do, and no writer makes such small ones

VALUE, KEY, HEADERS, EVENT_TIME, TTL = "value", "key", "headers", "event_time", "ttl_ms"
_BYTES = "binary, large_binary, utf8 or large_utf8"
_MEANT = {
    VALUE: _BYTES,
    KEY: _BYTES,
    HEADERS: "a list of structs of name and value, or a map",
    EVENT_TIME: "a timestamp, or int64 milliseconds",
    TTL: "int64 milliseconds",
}
_EMPTY: Mapping[str, object] = {KEY: None, HEADERS: (), EVENT_TIME: None, TTL: None}
_UNITS = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}  # milliseconds to so many units
_NAMES = ("name", "key")


class Messages(NamedTuple):
    """The rows: their values, and what each carries beside it; None where none carries anything."""

    values: list[bytes]
    extras: list[Extras] | None


def decode_messages(body: bytes, *, messages_max: int = PUBLISH_MESSAGES_MAX) -> Messages:
    """The rows of a whole stream. `MalformedBodyError` or `TooLargeError` for anything that is not one, of known columns."""
    pa = library()
    try:
        _check_frames(pa, body)
        return _decode(pa, body, messages_max)
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise _no_stream(str(error)[:200]) from None


def _check_frames(pa: Any, body: bytes) -> None:
    """Refuse what must not be read: nothing is decoded here but the frames of messages."""
    source = pa.BufferReader(body)
    kinds = []
    for message in pa.MessageReader.open_stream(source):
        kinds.append(message.type)
        if message.type == "record batch" and _is_compressed(message.metadata):
            raise MalformedBodyError(
                "the stream's buffers are compressed",
                field="body",
                hint="Write it without compression; Content-Encoding gzip or zstd compresses the body as a whole.",
            )
        check_count(len(kinds), BATCHES_MAX + 1, "record batches")
    if kinds[:1] != ["schema"] or kinds.count("schema") > 1:
        raise _no_stream("it does not begin with a schema")
    if source.tell() != len(body):
        raise _no_stream(f"{len(body) - source.tell()} bytes follow its end")
    if body[-8:] != b"\xff\xff\xff\xff\0\0\0\0":
        raise _no_stream("it has no end marker: close its writer")


def _is_compressed(metadata: Any) -> bool:
    """Tell whether a record batch says that its buffers are compressed: the fourth field of its table, which pyarrow shows nobody."""
    data = memoryview(metadata)
    try:
        message = struct.unpack_from("<I", data)[0]
        header_at = message + _slot(data, message, 2)
        header = header_at + struct.unpack_from("<I", data, header_at)[0]
        return bool(_slot(data, header, 3))
    except struct.error:
        raise _no_stream("a record batch's metadata is cut") from None


def _slot(data: memoryview, table: int, field: int) -> int:
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    slot: int = struct.unpack_from("<H", data, vtable + 4 + 2 * field)[0] if size >= 6 + 2 * field else 0
    return slot


def _decode(pa: Any, body: bytes, messages_max: int) -> Messages:
    found: dict[str, list[Any]] = {}
    with pa.ipc.open_stream(body) as batches:
        readers = _readers(pa, batches.schema)
        found = {name: [] for name in readers}
        headers = 0
        for batch in batches:
            check_count(len(found[VALUE]) + batch.num_rows, messages_max, "messages")
            batch.validate(full=True)
            if HEADERS in readers:  # before they are taken out: each takes thirty times its bytes in memory then
                headers += _header_count(pa, batch.column(HEADERS))
                check_count(headers, REQUEST_HEADERS_MAX, HEADERS)
            for name, read in readers.items():
                found[name] += read(batch.column(name))
    return _messages(found)


def _messages(found: dict[str, list[Any]]) -> Messages:
    values = found.pop(VALUE)
    if not values:
        raise MalformedBodyError("there are no messages in the stream", field=VALUE, hint="Send at least one row.")
    if None in values:
        raise _refused(VALUE, f"it is null in row {values.index(None)}")
    if not any(any(map(is_not, column, repeat(_EMPTY[name]))) for name, column in found.items()):
        return Messages(values, None)
    nothing = [None] * len(values)
    keys, headers = found.get(KEY, nothing), found.get(HEADERS, [()] * len(values))
    times, ttls = found.get(EVENT_TIME, nothing), found.get(TTL, nothing)
    _check_numbers(EVENT_TIME, found.get(EVENT_TIME, ()), -LONG_MAX)  # one less is stored as "none"
    _check_numbers(TTL, found.get(TTL, ()), 1)
    check_count(max(map(len, headers)), RECORD_HEADERS_MAX, HEADERS)
    return Messages(values, list(map(Extras, keys, headers, times, ttls)))


def _check_numbers(name: str, numbers: Sequence[int | None], minimum: int) -> None:
    for row, number in enumerate(numbers):
        if number is not None and not minimum <= number <= LONG_MAX:
            raise _refused(name, f"in row {row} it is {number} ms; it must be {minimum} to {LONG_MAX}")


Read = Callable[[Any], Sequence[Any]]


def _readers(pa: Any, schema: Any) -> dict[str, Read]:
    readers: dict[str, Read] = {}
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in _MEANT:
            near = difflib.get_close_matches(name, _MEANT, 1)
            meant = f"Did you mean {near[0]}? " if near else ""
            raise MalformedBodyError(
                f"column {name[:60]!r} is none of a message",
                field=name[:60],
                hint=f"{meant}There are {', '.join(_MEANT)}.",
            )
        if name in readers:
            raise _refused(name, "it is there twice")
        read = _reader(pa, name, kind)
        if read is None:
            raise _refused(name, f"it may not be of type {str(kind)[:80]}", f"Send {_MEANT[name]}.")
        readers[name] = read
    if VALUE not in readers:
        raise MalformedBodyError("the stream has no column value", field=VALUE, hint="It holds the messages' payloads.")
    return readers


def _reader(pa: Any, name: str, kind: Any) -> Read | None:
    if name in (VALUE, KEY) and _is_blob(pa, kind):
        return lambda column: column.cast(pa.large_binary()).to_pylist()
    if name != VALUE and pa.types.is_null(kind):
        return lambda column: [_EMPTY[name]] * len(column)
    if name == HEADERS:
        return _header_reader(pa, kind)
    if name == EVENT_TIME and pa.types.is_timestamp(kind):
        return lambda column: _milliseconds(column.view(pa.int64()).to_pylist(), *_UNITS[kind.unit])
    if name in (EVENT_TIME, TTL) and pa.types.is_int64(kind):
        return lambda column: column.to_pylist()
    return None


def _is_blob(pa: Any, kind: Any) -> bool:
    return kind in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())


def _milliseconds(times: list[int | None], ms: int, units: int) -> list[int | None]:
    return [None if time is None else time * ms // units for time in times]


def _header_count(pa: Any, column: Any) -> int:
    if pa.types.is_null(column.type):
        return 0
    return len(column.keys if pa.types.is_map(column.type) else column.flatten())


def _header_reader(pa: Any, kind: Any) -> Read | None:
    if pa.types.is_map(kind):
        shape = (kind.key_type, kind.item_type)
        return _headers if all(_is_blob(pa, each) for each in shape) else None
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return None
    fields = {field.name: field.type for field in kind.value_type}
    called = next((name for name in _NAMES if name in fields), "")
    if (
        kind.value_type.num_fields != 2
        or set(fields) != {called, "value"}
        or not all(_is_blob(pa, each) for each in fields.values())
    ):
        return None
    return lambda column: _headers(
        [None if each is None else [_pair(entry, called) for entry in each] for each in column.to_pylist()]
    )


def _pair(entry: dict[str, Any] | None, called: str) -> tuple[Any, Any]:
    if entry is None:
        raise _refused(HEADERS, "an entry of it is null")
    return entry[called], entry["value"]


def _headers(column: Any) -> list[Headers]:
    rows = column if isinstance(column, list) else column.to_pylist()
    return [tuple((_name(name), _value(value)) for name, value in row) if row else () for row in rows]


def _name(name: str | bytes | None) -> str:
    if not name:
        raise _refused(HEADERS, "a header has no name")
    try:
        text = name if isinstance(name, str) else name.decode()
    except UnicodeDecodeError:
        raise _refused(HEADERS, "a header's name is not UTF-8") from None
    if len(text.encode()) > HEADER_NAME_BYTES_MAX:
        raise TooLargeError(f"a header's name has over {HEADER_NAME_BYTES_MAX} bytes", field=HEADERS)
    return text


def _value(value: str | bytes | None) -> bytes:
    if value is None:
        raise _refused(HEADERS, "a header's value is null; it may be empty")
    return value if isinstance(value, bytes) else value.encode()


def _no_stream(what: str) -> MalformedBodyError:
    return MalformedBodyError(
        f"the body is no Arrow stream: {what}", hint="Send what a closed writer of IPC streams wrote."
    )


def _refused(name: str, what: str, hint: str | None = None) -> MalformedBodyError:
    return MalformedBodyError(f"column {name}: {what}", field=name, hint=hint)
