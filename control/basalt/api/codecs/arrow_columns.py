"""A range's messages as the columns of Arrow record batches: laid out by stretches of stored bytes, not by message.

The names and types are fixed: docs/formats/arrow.md. A column that nobody asks for costs nothing.
"""

from __future__ import annotations

import difflib
import functools
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain, repeat
from typing import Any, NamedTuple

from basalt.api.bodies.work import LONG_MAX, MESSAGE_ID_BYTES, Buffer
from basalt.api.codecs.arrow import library
from basalt.api.codecs.batches import SEQUENCE_AT
from basalt.errors import InputError
from basalt_engine.records import NO_EXTRAS, Extras

BATCH_ROWS_MAX = 8_192  # of one record batch: what is done once for each batch is then lost in what its rows cost
BATCH_BYTES_MAX = 2 << 20  # payloads of one record batch, but for a first message: fits a processor's cache

_NUMBERS = array("H", range(1 << 16))
if sys.byteorder == "little":
    _NUMBERS.byteswap()
_COUNTED = memoryview(_NUMBERS.tobytes())  # all sequence numbers as ids hold them, to be cut out


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
            near = difflib.get_close_matches(name, COLUMNS, 1)
            meant = f"Did you mean {near[0]}? " if near else ""
            raise InputError(
                f"column {name[:60]!r} is none of a range",
                field="columns",
                hint=f"{meant}There are {', '.join(COLUMNS)}.",
            )
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

    def carried(self) -> Sequence[Extras] | None:
        """Extras of each message; None where none carries anything."""
        if all(stretch.carried is None for stretch in self.stretches):
            return None
        return list(chain.from_iterable(map(_carried, self.stretches)))


def _carried(stretch: Stretch) -> Iterable[Extras]:
    return repeat(NO_EXTRAS, stretch.rows) if stretch.carried is None else stretch.carried


def _topic(batch: _Batch) -> Any:
    return batch.array(_even_offsets(len(batch.source.topic))[: 4 * (batch.rows + 1)], batch.source.topic * batch.rows)


def _id(batch: _Batch) -> Any:
    return batch.array(_even_offsets(MESSAGE_ID_BYTES)[: 4 * (batch.rows + 1)], b"".join(map(_ids, batch.stretches)))


def _ids(stretch: Stretch) -> Buffer:
    if stretch.rows == 1:
        return stretch.first_id
    at = stretch.counted_at
    first = int.from_bytes(stretch.first_id[at : at + 2], "big")
    numbers = _COUNTED[2 * first : 2 * (first + stretch.rows)]
    laid_out = bytearray(stretch.first_id) * stretch.rows
    laid_out[at::MESSAGE_ID_BYTES] = numbers[0::2]
    laid_out[at + 1 :: MESSAGE_ID_BYTES] = numbers[1::2]
    return laid_out


def _publish_time(batch: _Batch) -> Any:
    return batch.array(b"".join(_long(_microseconds(each.publish_ms)) * each.rows for each in batch.stretches))


def _value(batch: _Batch) -> Any:
    lengths = array("I")
    for stretch in batch.stretches:
        lengths.frombytes(stretch.lengths)
    if sys.byteorder == "little":
        lengths.byteswap()
    return batch.array(_offsets(lengths), b"".join(stretch.payloads for stretch in batch.stretches))


def _tx_id(batch: _Batch) -> Any:
    if all(stretch.tx_id is None for stretch in batch.stretches):
        return batch.pa.nulls(batch.rows, batch.type)
    values: list[bytes | None] = []
    for stretch in batch.stretches:
        values += [stretch.tx_id] * stretch.rows
    return batch.pa.array(values, batch.type)


def _key(batch: _Batch) -> Any:
    carried = batch.carried()
    if carried is None:
        return batch.pa.nulls(batch.rows, batch.type)
    return batch.pa.array([each.key for each in carried], batch.type)


def _event_time(batch: _Batch) -> Any:
    carried = batch.carried()
    if carried is None:
        return batch.pa.nulls(batch.rows, batch.type)
    times = [None if each.event_time_ms is None else _microseconds(each.event_time_ms) for each in carried]
    return batch.pa.array(times, batch.pa.int64()).view(batch.type)


def _headers(batch: _Batch) -> Any:
    of_each = [each.headers for each in batch.carried() or ()]
    headers = list(chain.from_iterable(of_each))
    offsets = _offsets(map(len, of_each)) if headers else bytes(4 * (batch.rows + 1))
    names = batch.pa.array([name for name, _ in headers], batch.pa.string())
    values = batch.pa.array([value for _, value in headers], batch.pa.binary())
    entries = batch.pa.StructArray.from_arrays([names, values], fields=list(batch.type.value_type))
    buffers = [None, batch.pa.py_buffer(offsets)]
    return batch.pa.Array.from_buffers(batch.type, batch.rows, buffers, 0, children=[entries])


def _sequence(batch: _Batch) -> Any:
    numbers = []
    for stretch in batch.stretches:
        first = int.from_bytes(stretch.first_id[SEQUENCE_AT : SEQUENCE_AT + 2], "big")
        counts = stretch.counted_at == SEQUENCE_AT
        numbers.append(_sequences(first, stretch.rows) if counts else _long(first) * stretch.rows)
    return batch.array(b"".join(numbers))


def _generation(batch: _Batch) -> Any:
    return batch.array(_long(batch.source.generation) * batch.rows)


def _offsets(lengths: Iterable[int]) -> bytes:
    return _little(array("i", accumulate(lengths, initial=0)))


@functools.lru_cache(maxsize=64)
def _even_offsets(size: int) -> bytes:
    """Offsets of as many values as a record batch has, all of one size."""
    if not size:
        return bytes(4 * (BATCH_ROWS_MAX + 1))
    return _little(array("i", range(0, size * (BATCH_ROWS_MAX + 1), size)))


def _sequences(first: int, count: int) -> bytes:
    """Numbers that count up, of which none has more than 16 bits."""
    laid_out = bytearray(8 * count)
    laid_out[0::8] = _COUNTED[2 * first + 1 : 2 * (first + count) : 2]
    laid_out[1::8] = _COUNTED[2 * first : 2 * (first + count) : 2]
    return bytes(laid_out)


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
    "topic": _topic,
    "id": _id,
    "publish_time": _publish_time,
    "key": _key,
    "value": _value,
    "tx_id": _tx_id,
    "headers": _headers,
    "event_time": _event_time,
    "sequence": _sequence,
    "generation": _generation,
}
