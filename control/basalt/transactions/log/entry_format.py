"""The bytes of a log entry: the edits that one group commit made durable; and the field types of all the log's formats.

    entry := version(1) first_edit(8) count(4) edit* crc32c(4)        edit := number(1) length(4) body

`first_edit` is the number of edits before this entry since the log began, so that an entry in the wrong place, or after
a lost one, shows. Numbers are big-endian; varints are unsigned LEB128 of at most nine bytes without a needless last one, so
that each value has one encoding. Whatever a writer here would not have written is a `CorruptionError` that names the offset.
Format: docs/formats/transaction-log.md.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from crc32c import crc32c

from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit, ReturnReason
from basalt.transactions.rules.transaction import Join, Kind, Loss, SessionBinding, TableJoin
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import MESSAGE_ID_BYTES
from basalt_engine.snapshot import NO_RUNS, PointerRuns
from basalt_engine.spans.spans import Spans
from basalt_engine.varints import VARINT_BYTES_MAX, encode_deltas, encode_varint

VERSION = 1
_HEADER = struct.Struct(">BqI")
_EDIT = struct.Struct(">BI")
_EDIT_BYTES_MIN = _EDIT.size + 4  # no edit has a body shorter than a count
NO_VERSION = -1  # of a session's transaction that was begun without one, and of a session that has committed none
CRC_BYTES = 4
_LONG = struct.Struct(">q")
_INT = struct.Struct(">I")
_SHORT = struct.Struct(">H")
_BYTE = struct.Struct(">B")
_NO_TEXT = _SHORT.pack(0)


def encode_entry(first_edit: int, group: Sequence[Edit]) -> bytes:
    parts = [_HEADER.pack(VERSION, first_edit, len(group))]
    for edit in group:
        number = NUMBERS[type(edit)]
        body = _FORMATS[number].encode(edit)
        parts += (_EDIT.pack(number, len(body)), body)
    return sealed(b"".join(parts))


def decode_entry(data: bytes, what: str) -> tuple[int, tuple[Edit, ...]]:
    """Decode an entry: the number of edits before it, and its edits. `CorruptionError` names `what` and the offset."""
    body = opened(data, what, VERSION, _HEADER.size)
    _, first_edit, count = _HEADER.unpack_from(body)
    reader = FieldReader(body, what, _HEADER.size)
    if first_edit < 0 or count * _EDIT_BYTES_MIN > len(body):
        raise reader.failure(f"{count} edits after edit {first_edit} in {len(body)} bytes", 1)
    group = tuple([_decode_edit(reader) for _ in range(count)])
    reader.end()
    return first_edit, group


def _decode_edit(reader: FieldReader) -> Edit:
    start = reader.offset
    number, length = reader.unpack(_EDIT)
    body = _FORMATS.get(number)
    if body is None:
        raise reader.failure(f"edit number {number}, which never was", start)
    stop, rest = reader.offset + length, reader.stop
    if stop > rest:
        raise reader.failure(f"an edit of {length} bytes in {rest - reader.offset}", start)
    reader.stop = stop
    edit: Edit = body.read(reader)
    reader.end()
    reader.stop = rest
    return edit


def sealed(data: bytes) -> bytes:
    return data + crc32c(data).to_bytes(CRC_BYTES, "big")


def opened(data: bytes, what: str, version: int, header_bytes: int) -> bytes:
    """The data without its CRC-32C, which fits, as does the version in its first byte.

    Every version of every format of the log begins with its version and ends with a CRC of all before, so that a newer
    format is told apart from damage.
    """
    if len(data) < header_bytes + CRC_BYTES:
        raise CorruptionError(
            f"{what} is cut off: {len(data)} bytes at offset 0, expected {header_bytes + CRC_BYTES} or more"
        )
    body, crc = data[:-CRC_BYTES], int.from_bytes(data[-CRC_BYTES:], "big")
    if crc32c(body) != crc:
        raise CorruptionError(
            f"{what} is damaged: CRC-32C {crc:08x} at offset {len(body)}, computed {crc32c(body):08x};"
            " restore the data directory from a backup"
        )
    if body[0] > version:
        raise CorruptionError(
            f"{what} was written by a newer Basalt: format version {body[0]} at offset 0, this one reads up to {version};"
            " start that version again"
        )
    if body[0] < version:
        raise CorruptionError(f"{what} has format version {body[0]} at offset 0, which never was")
    return body


class FieldReader:
    """Reads fields one after the other, of the types that the page of the format names; `what` names the bytes in errors."""

    __slots__ = ("_data", "_what", "offset", "stop")

    def __init__(self, data: bytes, what: str, offset: int = 0) -> None:
        self._data = data
        self._what = what
        self.offset = offset
        self.stop = len(data)

    def failure(self, problem: str, offset: int | None = None) -> CorruptionError:
        """The error for a problem at this offset (by default where the reader stands)."""
        return CorruptionError(
            f"{self._what} is damaged: {problem} at offset {self.offset if offset is None else offset};"
            " restore the data directory from a backup"
        )

    def take(self, length: int) -> bytes:
        end = self.offset + length
        if end > self.stop:
            raise self.failure(f"{length} bytes expected, {self.stop - self.offset} left")
        data = self._data[self.offset : end]
        self.offset = end
        return data

    def ahead(self, fixed: struct.Struct) -> list[Any] | None:
        """The numbers that come next, which stay to be read; None where fewer bytes are left."""
        return None if self.offset + fixed.size > self.stop else [*fixed.unpack_from(self._data, self.offset)]

    def unpack(self, fixed: struct.Struct) -> tuple[int, ...]:
        end = self.offset + fixed.size
        if end > self.stop:
            raise self.failure(f"{fixed.size} bytes expected, {self.stop - self.offset} left")
        values: tuple[int, ...] = fixed.unpack_from(self._data, self.offset)
        self.offset = end
        return values

    def byte(self, maximum: int = 255) -> int:
        value = self.take(1)[0]
        if value > maximum:
            raise self.failure(f"{value} where at most {maximum} is possible", self.offset - 1)
        return value

    def flag(self) -> bool:
        return self.byte(maximum=1) == 1

    def long(self) -> int:
        value: int = _LONG.unpack(self.take(8))[0]
        return value

    def pointer(self) -> int:
        """A 64-bit number that is not negative."""
        value = self.long()
        if value < 0:
            raise self.failure(f"negative write pointer {value}", self.offset - 8)
        return value

    def count(self) -> int:
        return self.unpack(_INT)[0]

    def short(self) -> int:
        value: int = _SHORT.unpack(self.take(2))[0]
        return value

    def data(self) -> bytes:
        return self.take(self.count())

    def text(self) -> str:
        start = self.offset
        (length,) = self.unpack(_SHORT)
        if not length:
            return ""
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise self.failure("text that is not UTF-8", start) from error

    def optional_text(self) -> str | None:
        """A text of which the empty one stands for none."""
        return self.text() or None

    def set(self) -> frozenset[bytes]:
        items: list[bytes] = []
        for _ in range(self.count()):
            start = self.offset
            items.append(self.data())
            if len(items) > 1 and items[-2] >= items[-1]:
                raise self.failure("a set that is not sorted, or holds an item twice", start)
        return frozenset(items)

    def varint(self) -> int:
        """A varint of at most 63 bits, in as few bytes as it can have."""
        value = shift = 0
        start = self.offset
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= 7 * VARINT_BYTES_MAX:
                raise self.failure(f"a varint longer than {VARINT_BYTES_MAX} bytes", start)
        if byte == 0 and shift:
            raise self.failure("a varint with a needless last byte", start)
        return value

    def pointers(self) -> tuple[int, ...]:
        start = self.offset
        count = self.varint()
        if count > self.stop - self.offset:  # each takes a byte at least; do not try to read millions
            raise self.failure(f"{count} numbers expected in {self.stop - self.offset} bytes", start)
        numbers: list[int] = []
        last = 0
        for _ in range(count):
            step = self.varint()
            if step == 0 and numbers:
                raise self.failure("a list that holds a number twice")
            last += step
            numbers.append(last)
        if last >> 63:
            raise self.failure("a number beyond 63 bits")
        return tuple(numbers)

    def runs(self) -> PointerRuns:
        """Runs of write pointers: where each begins, and the first number behind it. They rise, so no two overlap or touch."""
        start, edges = self.offset, self.pointers()
        if len(edges) % 2:
            raise self.failure("a run of write pointers without an end", start)
        return (
            PointerRuns((first, behind - 1) for first, behind in zip(edges[::2], edges[1::2], strict=True))
            if edges
            else NO_RUNS
        )

    def spans(self) -> Spans:
        """Spans of message ids; never none."""
        start, spans = self.offset, self.any_spans()
        if not spans:
            raise self.failure("no spans where there must be some", start)
        return spans

    def any_spans(self) -> Spans:
        """Spans of message ids, or none."""
        start = self.offset
        try:
            spans, self.offset = Spans.decode_from(self._data, start, self.stop)
        except CorruptionError as error:
            raise self.failure(f"{error.message}:", start) from error
        return spans

    def since(self, start: int) -> bytes:
        """The bytes that were read from `start` on."""
        return self._data[start : self.offset]

    def end(self) -> None:
        if self.offset != self.stop:
            raise self.failure(f"{self.stop - self.offset} bytes too many")


# Field types: how the values of each stand in the log.


class FieldType(NamedTuple):
    """One type of fields, both ways. `letter` is that of `struct`, where a number is all of it.

    `value_of` is the value for such a number, `LookupError` or `ValueError` for one that none has; None: the number itself.
    """

    encode: Callable[[Any], bytes]
    read: Callable[[FieldReader], Any]
    letter: str = ""
    value_of: Callable[[int], Any] | None = None


def numbered(kind: type[enum.IntEnum], name: str) -> FieldType:
    """A byte that is one of an enumeration's numbers; errors call it by the name."""
    members = {int(member): member for member in kind}

    def read(reader: FieldReader) -> enum.IntEnum:
        member = members.get(number := reader.byte())
        if member is None:
            raise reader.failure(f"{name} {number}, which never was", reader.offset - 1)
        return member

    return FieldType(_BYTE.pack, read, "B", members.__getitem__)


def _not_negative(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number


def record(
    kind: type, fields: Mapping[str, FieldType], problem_of: Callable[[Any], str | None] | None = None
) -> FieldType:
    """A value of this class: its fields one after the other. `problem_of` tells why a value that was read cannot be."""
    names, types = [*fields], [*fields.values()]
    values_of = attrgetter(*names)  # of a single name it answers the value itself
    alone = types[0].encode if len(names) == 1 else None
    numbers = len(
        [*takewhile(lambda field: field.letter, types)]
    )  # the fields before the first of another size are one
    fixed = struct.Struct(">" + "".join(field.letter for field in types[:numbers]))
    pack = fixed.pack
    encodes = [field.encode for field in types[numbers:]]

    def encode(value: Any) -> bytes:
        if alone is not None:
            return alone(values_of(value))
        values = values_of(value)
        if not encodes:
            return pack(*values)
        rest = [encode(field) for encode, field in zip(encodes, values[numbers:], strict=True)]
        return pack(*values[:numbers]) + b"".join(rest)

    return FieldType(encode, _record_reader(kind, names, types, fixed, problem_of))


def _record_reader(
    kind: type, names: Sequence[str], types: Sequence[FieldType], fixed: struct.Struct, problem_of: Callable[[Any], str | None] | None
) -> Callable[[FieldReader], Any]:  # fmt: skip
    """A reader of such values. The numbers at its beginning are read together; one by one where they cannot be, which tells of each what is wrong."""
    numbers = len(fixed.format) - 1  # a letter each, behind that of the order of bytes
    turned = [(index, field.value_of) for index, field in enumerate(types[:numbers]) if field.value_of is not None]
    all_reads, rest_reads = [field.read for field in types], [field.read for field in types[numbers:]]
    in_order = _by_position(kind, names)

    def read_all(reader: FieldReader) -> list[Any]:
        values = reader.ahead(fixed)
        if values is not None:
            try:
                for index, value_of in turned:
                    values[index] = value_of(values[index])
            except (LookupError, ValueError):
                values = None
        if values is None:
            return [read(reader) for read in all_reads]
        reader.offset += fixed.size
        values += [read(reader) for read in rest_reads]
        return values

    def read(reader: FieldReader) -> Any:
        start = reader.offset
        values = read_all(reader)
        value = kind(*in_order(values)) if in_order is not None else kind(**dict(zip(names, values, strict=True)))
        if problem_of is not None and (problem := problem_of(value)) is not None:
            raise reader.failure(problem, start)
        return value

    return read


def _by_position(kind: type, names: Sequence[str]) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
    """A function that puts values of fields of these names in the order in which the class takes them, which is faster than by name; None: it has other fields too."""
    taken: tuple[str, ...] = getattr(kind, "__struct_fields__", ()) or getattr(kind, "_fields", ())
    if sorted(taken) != sorted(names):
        return None
    if [*taken] == [*names]:
        return lambda values: values
    return itemgetter(*[names.index(name) for name in taken])


def many(item: FieldType) -> FieldType:
    """Any number of them, after their 32-bit count."""

    def encode(values: Sequence[Any]) -> bytes:
        return _INT.pack(len(values)) + b"".join(map(item.encode, values))

    def read(reader: FieldReader) -> tuple[Any, ...]:
        return tuple([item.read(reader) for _ in range(reader.count())])

    return FieldType(encode, read)


def pair(first: FieldType, second: FieldType) -> FieldType:
    """Two values, one after the other."""
    return FieldType(
        lambda value: first.encode(value[0]) + second.encode(value[1]),
        lambda reader: (first.read(reader), second.read(reader)),
    )


def _ascending(values: FieldType, what: str, *, ahead: Sequence[Any] = ()) -> FieldType:
    def read(reader: FieldReader) -> Any:
        start, found = reader.offset, values.read(reader)
        if any(left >= right for left, right in pairwise((*ahead, *found))):
            raise reader.failure(f"{what} that do not ascend", start)
        return found

    return FieldType(values.encode, read)


def _text_field(text: str | None) -> bytes:
    if not text:
        return _NO_TEXT
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def _set_field(items: Iterable[bytes]) -> bytes:
    ordered = sorted(items)
    return _INT.pack(len(ordered)) + b"".join([_INT.pack(len(item)) + item for item in ordered])


def _read_longs(reader: FieldReader) -> tuple[int, ...]:
    count = reader.count()
    return struct.unpack(f">{count}q", reader.take(8 * count))


def _read_version(reader: FieldReader) -> int | None:
    version = reader.long()
    if version < NO_VERSION:
        raise reader.failure(f"version {version} of a session", reader.offset - 8)
    return None if version == NO_VERSION else version


LONG = FieldType(_LONG.pack, FieldReader.long, "q")
POINTER = FieldType(_LONG.pack, FieldReader.pointer, "q", _not_negative)
SHORT = FieldType(_SHORT.pack, FieldReader.short, "H")
COUNT = FieldType(_INT.pack, FieldReader.count, "I")
FLAG = FieldType(_BYTE.pack, FieldReader.flag, "B", (False, True).__getitem__)
KIND = numbered(Kind, "kind")
TEXT = FieldType(_text_field, FieldReader.text)
OPTIONAL_TEXT = FieldType(_text_field, FieldReader.optional_text)
BYTES = FieldType(lambda data: _INT.pack(len(data)) + data, FieldReader.data)
SET = FieldType(_set_field, FieldReader.set)
MESSAGE_ID = FieldType(bytes, lambda reader: reader.take(MESSAGE_ID_BYTES))
SPANS = FieldType(Spans.encode, FieldReader.spans)
ANY_SPANS = FieldType(Spans.encode, FieldReader.any_spans)
RETURN_REASON = numbered(ReturnReason, "reason")
POINTERS = FieldType(lambda pointers: encode_varint(len(pointers)) + encode_deltas(pointers), FieldReader.pointers)
RUNS = FieldType(lambda runs: POINTERS.encode(runs.edges), FieldReader.runs)
VERSION_OF_WORK = FieldType(lambda version: _LONG.pack(NO_VERSION if version is None else version), _read_version)
JOIN = record(Join, {"generation": COUNT, "from_ms": LONG, "topic": BYTES})
TABLE_JOIN = record(TableJoin, {"generation": COUNT, "table": BYTES})
IN_SESSION = record(SessionBinding, {"epoch": POINTER, "version": VERSION_OF_WORK, "name": TEXT})
LOSS = record(Loss, {"winner": POINTER, "key": BYTES, "winner_owner": TEXT})
_LONGS = _ascending(
    FieldType(lambda numbers: struct.pack(f">I{len(numbers)}q", len(numbers), *numbers), _read_longs),
    "write pointers",
    ahead=(-1,),
)

_EDITS: dict[int, tuple[type[Edit], dict[str, FieldType]]] = {
    1: (edits.Began, {"id": POINTER, "kind": KIND, "external_writes": FLAG, "began_ms": LONG, "deadline_ms": LONG,
                      "owner": TEXT, "request_id": OPTIONAL_TEXT}),
    2: (edits.Checkpointed, {"id": POINTER, "write_pointer": POINTER}),
    3: (edits.Joined, {"id": POINTER, "join": JOIN}),
    4: (edits.Changed, {"id": POINTER, "external_writes": FLAG, "changes": SET}),
    5: (edits.Doomed, {"id": POINTER, "at_ms": LONG, "request_id": OPTIONAL_TEXT, "loss": LOSS}),
    6: (edits.Committing, {"id": POINTER, "at_ms": LONG, "request_id": OPTIONAL_TEXT}),
    7: (edits.Committed, {"id": POINTER, "ended_ms": LONG, "request_id": OPTIONAL_TEXT}),
    8: (edits.Aborting, {"id": POINTER, "timed_out": FLAG}),
    9: (edits.Aborted, {"id": POINTER, "ended_ms": LONG, "timed_out": FLAG}),
    10: (edits.Invalidated, {"ended_ms": LONG, "timed_out": FLAG, "ids": _LONGS}),
    11: (edits.OneShot, {"id": POINTER, "ended_ms": LONG, "owner": TEXT, "request_id": OPTIONAL_TEXT}),
    12: (edits.Pruned, {"pointers": _LONGS, "runs": RUNS}),
    13: (edits.Truncated, {"before": POINTER}),
    14: (edits.Reset, {"at_ms": LONG}),
    15: (edits.Led, {"epoch": POINTER}),
    16: (edits.Restored, {"pointers": _LONGS, "runs": RUNS}),
    17: (edits.TableJoined, {"id": POINTER, "join": TABLE_JOIN}),
    18: (edits.SessionOpened, {"epoch": POINTER, "at_ms": LONG, "name": TEXT, "run": TEXT, "principal": TEXT}),
    19: (edits.SessionBegan, {"id": POINTER, "session": IN_SESSION}),
    21: (edits.ChangesUnlogged, {"id": POINTER}),
    22: (edits.SessionsForgotten, {"names": _ascending(many(TEXT), "names of sessions")}),
    23: (edits.CounterOwnerClaimed, {"name": TEXT, "owner": TEXT}),
    24: (edits.GroupMade, {"number": COUNT, "at_ms": LONG, "generation": COUNT, "prefix": BYTES, "name": TEXT,
                           "options": BYTES, "floor": MESSAGE_ID, "round": COUNT}),
    25: (edits.GroupChanged, {"number": COUNT, "at_ms": LONG, "options": BYTES, "paused": FLAG}),
    26: (edits.GroupSought, {"number": COUNT, "at_ms": LONG, "round": COUNT, "floor": MESSAGE_ID}),
    27: (edits.GroupsForgotten, {"numbers": _ascending(many(COUNT), "numbers of groups")}),
    28: (edits.Acknowledged, {"writer": POINTER, "number": COUNT, "at_ms": LONG, "spans": SPANS}),
    29: (edits.AcknowledgedIn, {"id": POINTER, "number": COUNT, "at_ms": LONG, "spans": SPANS}),
    30: (edits.Returned, {"number": COUNT, "at_ms": LONG, "reason": RETURN_REASON, "not_before_ms": LONG, "spans": SPANS}),
    31: (edits.Owned, {"id": POINTER, "principal": TEXT}),
    32: (edits.Lent, {"first": POINTER, "last": POINTER, "member": TEXT}),
    33: (edits.LoanReturned, {"first": POINTER, "last": POINTER}),
    34: (edits.GivenUp, {"first": POINTER, "last": POINTER}),
    35: (edits.MemberEnded, {"member": TEXT}),
}  # fmt: skip
_FORMATS = {number: record(kind, fields) for number, (kind, fields) in _EDITS.items()}
NUMBERS: dict[type[Edit], int] = {kind: number for number, (kind, _) in _EDITS.items()}
