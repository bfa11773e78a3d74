"""Messages in Apache Arrow's IPC streams. Format: docs/formats/arrow.md.

Requests are read by pyarrow, and doubted at every step: what could make it allocate more than the body holds (compressed
buffers, dictionaries, counts that nothing stands behind) is refused before it is looked at; every record batch is validated
in full before its values are.

Answers are a range's messages as columns, laid out by stretches of stored bytes, not by message; a column that nobody asks
for costs nothing. pyarrow, which a server may have or not, is imported here alone, when it is first needed.
"""

from __future__ import annotations

import difflib
import functools
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain, repeat
from operator import is_not
from typing import Any, NamedTuple

from basalt.api.bodies.messages import (
    HEADER_NAME_BYTES_MAX,
    LONG_MAX,
    MESSAGE_ID_BYTES,
    PUBLISH_MESSAGES_MAX,
    RECORD_HEADERS_MAX,
    REQUEST_HEADERS_MAX,
    Buffer,
    check_count,
)
from basalt.api.codecs.batches import SEQUENCE_AT
from basalt.errors import InputError, MalformedBodyError, TooLargeError, UnsupportedMediaTypeError
from basalt_engine.records import NO_EXTRAS, Extras, Headers

ARROW = b"application/vnd.apache.arrow.stream"
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
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
BATCH_ROWS_MAX = 8_192  # of one record batch: what is done once for each batch is then lost in what its rows cost
BATCH_BYTES_MAX = 2 << 20  # payloads of one record batch, but for a first message: fits a processor's cache


@functools.cache
def _counted() -> memoryview:
    """All sequence numbers as ids hold them, to be cut out."""
    numbers = array("H", range(1 << 16))
    if sys.byteorder == "little":
        numbers.byteswap()
    return memoryview(numbers.tobytes())


@functools.cache
def library() -> Any:
    """The pyarrow package; `UnsupportedMediaTypeError` where it is not installed."""
    try:
        import pyarrow as pa
    except ImportError:
        raise UnsupportedMediaTypeError(
            "this server has no Arrow library",
            hint="Install basalt-mq[arrow] where the server runs; or use poll and records, in Avro or JSON.",
        ) from None
    return pa


def _names_hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return (f"Did you mean {near[0]}? " if near else "") + f"There are {', '.join(known)}."


class ArrowMessages(NamedTuple):
    """The rows: their values, and what each carries beside it; None where none carries anything."""

    values: list[bytes]
    extras: list[Extras] | None


def decode_messages(body: bytes) -> ArrowMessages:
    """The rows of a whole stream. `MalformedBodyError` or `TooLargeError` for anything that is not one, of known columns."""
    pa = library()
    try:
        _check_frames(pa, body)
        return _decode(pa, body)
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
    if body[-8:] != END_OF_STREAM:
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


def _decode(pa: Any, body: bytes) -> ArrowMessages:
    columns: dict[str, list[Any]] = {}
    with pa.ipc.open_stream(body) as batches:
        readers = _readers(pa, batches.schema)
        columns = {name: [] for name in readers}
        headers = 0
        for batch in batches:
            check_count(len(columns[VALUE]) + batch.num_rows, PUBLISH_MESSAGES_MAX, "messages")
            batch.validate(full=True)
            if HEADERS in readers:  # before they are taken out: each takes thirty times its bytes in memory then
                headers += _header_count(pa, batch.column(HEADERS))
                check_count(headers, REQUEST_HEADERS_MAX, HEADERS)
            for name, read in readers.items():
                columns[name] += read(batch.column(name))
    return _messages(columns)


def _messages(columns: dict[str, list[Any]]) -> ArrowMessages:
    values = columns.pop(VALUE)
    if not values:
        raise MalformedBodyError("there are no messages in the stream", field=VALUE, hint="Send at least one row.")
    if None in values:
        raise _refused(VALUE, f"it is null in row {values.index(None)}")
    if not any(any(map(is_not, column, repeat(_EMPTY[name]))) for name, column in columns.items()):
        return ArrowMessages(values, None)
    nothing = [None] * len(values)
    keys, headers = columns.get(KEY, nothing), columns.get(HEADERS, [()] * len(values))
    times, ttls = columns.get(EVENT_TIME, nothing), columns.get(TTL, nothing)
    _check_numbers(EVENT_TIME, columns.get(EVENT_TIME, ()), -LONG_MAX)  # one less is stored as "none"
    _check_numbers(TTL, columns.get(TTL, ()), 1)
    check_count(max(map(len, headers)), RECORD_HEADERS_MAX, HEADERS)
    return ArrowMessages(values, list(map(Extras, keys, headers, times, ttls)))


def _check_numbers(name: str, numbers: Sequence[int | None], minimum: int) -> None:
    for row, number in enumerate(numbers):
        if number is not None and not minimum <= number <= LONG_MAX:
            raise _refused(name, f"in row {row} it is {number} ms; it must be {minimum} to {LONG_MAX}")


Read = Callable[[Any], Sequence[Any]]


def _readers(pa: Any, schema: Any) -> dict[str, Read]:
    readers: dict[str, Read] = {}
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in _MEANT:
            told = f"column {name[:60]!r} is none of a message"
            raise MalformedBodyError(told, field=name[:60], hint=_names_hint(name, _MEANT))
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


class Stretch(NamedTuple):
    """Neighbouring messages of one record batch. Their ids count up in two bytes at `counted_at`.

    `lengths` (4 bytes each, as stored) and `payloads` are empty when nobody asks for values, `carried` is None where
    no message carries anything, or nobody asks.
    """

    rows: int
    first_id: bytes
    counted_at: int
    publish_ms: int
    tx_id: bytes | None
    lengths: Buffer
    payloads: Buffer
    carried: Sequence[Extras] | None


class Source(NamedTuple):
    """Values that all rows of an answer share."""

    topic: bytes
    generation: int


def wanted(text: str | None) -> tuple[str, ...]:
    """The columns that a comma-separated list names, in its order; all of them for None."""
    if text is None:
        return tuple(COLUMNS)
    names = tuple(text.split(","))
    for name in names:
        if name not in COLUMNS:
            told = f"column {name[:60]!r} is none of a range"
            raise InputError(told, field="columns", hint=_names_hint(name, COLUMNS))
    if len(set(names)) < len(names):
        raise InputError("a column is named twice", field="columns", hint="Name each column once.")
    return names


@functools.cache
def schema_of(names: tuple[str, ...]) -> Any:
    """The Arrow schema of these columns."""
    pa = library()
    time = pa.timestamp("us", "UTC")
    types = {
        "topic": pa.string(),
        "id": pa.binary(),
        "publish_time": time,
        "key": pa.binary(),
        "value": pa.binary(),
        "tx_id": pa.string(),
        "headers": pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
        "event_time": time,
        "sequence": pa.int64(),
        "generation": pa.int64(),
    }
    return pa.schema([(name, types[name]) for name in names])


def encode_start(names: tuple[str, ...]) -> Buffer:
    """Start of a stream with these columns."""
    return memoryview(schema_of(names).serialize())


def encode_batch(names: tuple[str, ...], stretches: Sequence[Stretch], source: Source) -> Buffer:
    """One record batch of these stretches' messages."""
    pa, schema = library(), schema_of(names)
    rows = sum(stretch.rows for stretch in stretches)
    assert rows <= BATCH_ROWS_MAX, rows
    arrays = [COLUMNS[name](_Batch(pa, schema.field(name).type, stretches, rows, source)) for name in names]
    return memoryview(pa.RecordBatch.from_arrays(arrays, schema=schema).serialize())


class _Batch(NamedTuple):
    """Source of a column's values."""

    pa: Any
    type: Any
    stretches: Sequence[Stretch]
    rows: int
    source: Source

    def array(self, *buffers: Buffer) -> Any:
        """A column without nulls of these buffers."""
        laid_out = [None, *map(self.pa.py_buffer, buffers)]
        return self.pa.Array.from_buffers(self.type, self.rows, laid_out, 0)

    def nulls(self) -> Any:
        return self.pa.nulls(self.rows, self.type)

    def carried(self) -> Sequence[Extras] | None:
        """Extras of each message; None where none carries anything."""
        if all(stretch.carried is None for stretch in self.stretches):
            return None
        return list(chain.from_iterable(map(_carried, self.stretches)))


def _carried(stretch: Stretch) -> Iterable[Extras]:
    return repeat(NO_EXTRAS, stretch.rows) if stretch.carried is None else stretch.carried


def _topic_column(batch: _Batch) -> Any:
    return batch.array(_even_offsets(len(batch.source.topic))[: 4 * (batch.rows + 1)], batch.source.topic * batch.rows)


def _id_column(batch: _Batch) -> Any:
    return batch.array(_even_offsets(MESSAGE_ID_BYTES)[: 4 * (batch.rows + 1)], b"".join(map(_ids, batch.stretches)))


def _ids(stretch: Stretch) -> Buffer:
    if stretch.rows == 1:
        return stretch.first_id
    at = stretch.counted_at
    first = int.from_bytes(stretch.first_id[at : at + 2], "big")
    numbers = _counted()[2 * first : 2 * (first + stretch.rows)]
    laid_out = bytearray(stretch.first_id) * stretch.rows
    laid_out[at::MESSAGE_ID_BYTES] = numbers[0::2]
    laid_out[at + 1 :: MESSAGE_ID_BYTES] = numbers[1::2]
    return laid_out


def _publish_time_column(batch: _Batch) -> Any:
    return batch.array(b"".join(_long(_microseconds(each.publish_ms)) * each.rows for each in batch.stretches))


def _value_column(batch: _Batch) -> Any:
    lengths = array("I")
    for stretch in batch.stretches:
        lengths.frombytes(stretch.lengths)
    if sys.byteorder == "little":
        lengths.byteswap()
    return batch.array(_offsets(lengths), b"".join(stretch.payloads for stretch in batch.stretches))


def _tx_id_column(batch: _Batch) -> Any:
    if all(stretch.tx_id is None for stretch in batch.stretches):
        return batch.nulls()
    return batch.pa.array(
        list(chain.from_iterable(repeat(each.tx_id, each.rows) for each in batch.stretches)), batch.type
    )


def _key_column(batch: _Batch) -> Any:
    carried = batch.carried()
    if carried is None:
        return batch.nulls()
    return batch.pa.array([each.key for each in carried], batch.type)


def _event_time_column(batch: _Batch) -> Any:
    carried = batch.carried()
    if carried is None:
        return batch.nulls()
    times = [None if each.event_time_ms is None else _microseconds(each.event_time_ms) for each in carried]
    return batch.pa.array(times, batch.pa.int64()).view(batch.type)


def _headers_column(batch: _Batch) -> Any:
    of_each = [each.headers for each in batch.carried() or ()]
    headers = list(chain.from_iterable(of_each))
    offsets = _offsets(map(len, of_each)) if headers else bytes(4 * (batch.rows + 1))
    names = batch.pa.array([name for name, _ in headers], batch.pa.string())
    values = batch.pa.array([value for _, value in headers], batch.pa.binary())
    entries = batch.pa.StructArray.from_arrays([names, values], fields=list(batch.type.value_type))
    buffers = [None, batch.pa.py_buffer(offsets)]
    return batch.pa.Array.from_buffers(batch.type, batch.rows, buffers, 0, children=[entries])


def _sequence_column(batch: _Batch) -> Any:
    return batch.array(b"".join(map(_sequences_of, batch.stretches)))


def _sequences_of(stretch: Stretch) -> bytes:
    first = int.from_bytes(stretch.first_id[SEQUENCE_AT : SEQUENCE_AT + 2], "big")
    if stretch.counted_at != SEQUENCE_AT:
        return _long(first) * stretch.rows
    laid_out = bytearray(8 * stretch.rows)  # none has more than 16 bits
    laid_out[0::8] = _counted()[2 * first + 1 : 2 * (first + stretch.rows) : 2]
    laid_out[1::8] = _counted()[2 * first : 2 * (first + stretch.rows) : 2]
    return bytes(laid_out)


def _generation_column(batch: _Batch) -> Any:
    return batch.array(_long(batch.source.generation) * batch.rows)


def _offsets(lengths: Iterable[int]) -> bytes:
    return _little(array("i", accumulate(lengths, initial=0)))


@functools.lru_cache(maxsize=64)
def _even_offsets(size: int) -> bytes:
    """Offsets of as many values as a record batch has, all of one size."""
    if not size:
        return bytes(4 * (BATCH_ROWS_MAX + 1))
    return _little(array("i", range(0, size * (BATCH_ROWS_MAX + 1), size)))


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _long(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


def _microseconds(time_ms: int) -> int:
    """A time in microseconds; one that has none, 292,000 years from now, is the last that has."""
    return max(-LONG_MAX, min(time_ms * 1_000, LONG_MAX))


COLUMNS: Mapping[str, Callable[[_Batch], Any]] = {
    "topic": _topic_column,
    "id": _id_column,
    "publish_time": _publish_time_column,
    "key": _key_column,
    "value": _value_column,
    "tx_id": _tx_id_column,
    "headers": _headers_column,
    "event_time": _event_time_column,
    "sequence": _sequence_column,
    "generation": _generation_column,
}
