"""Messages of the Thrift face: calls as they are read, strictly and within bounds, and frames as they are answered.

Calls are not read by the library, whose reader follows whatever a stranger nests or counts, and makes an object of
every id in the lists that clients send back. The arguments and the answer of a call are in its specification in
tephra.thrift.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import thriftpy2
from thriftpy2.protocol import TCyBinaryProtocolFactory
from thriftpy2.utils import serialize

types: Any = thriftpy2.load(str(Path(__file__).with_name("tephra.thrift")), module_name="basalt_tephra_thrift")

_PROTOCOL: Any = TCyBinaryProtocolFactory()  # type: ignore[no-untyped-call]  # as the library has it

NAME_BYTES_MAX = 128  # of a method; the longest has 32
UNKNOWN_VALUES_MAX = 1_000  # of fields that this version does not know; a later client of Tephra's adds a few
UNKNOWN_DEPTH_MAX = 16  # of what such a field nests

CALL, REPLY, EXCEPTION, ONEWAY = 1, 2, 3, 4  # message types
VERSION_1 = 0x8001  # the first half of a strict message; the second is its type

STOP, BOOL, BYTE, DOUBLE, I16, I32, I64, STRING, STRUCT, MAP, SET, LIST = 0, 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15
_BINARY = 18  # how the specification tells bytes from text; both are STRING on the wire
_FIXED_BYTES = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8}

# What kind of TApplicationException; the numbers are Thrift's.
UNKNOWN_METHOD, INVALID_MESSAGE_TYPE, INTERNAL_ERROR, PROTOCOL_ERROR = 1, 2, 6, 7

# Most that the transport of Tephra's clients reads (TFramedTransport's own default, which they do not change).
ANSWER_BYTES_MAX = 16_384_000
RESULT_BYTES_MAX = ANSWER_BYTES_MAX - 4_096  # the rest is the message's header

JOIN_BYTES_MAX = 65_536  # a larger answer is given to the socket in its pieces

Pieces = Sequence[bytes]  # of one result; a transaction's bytes may be long, and are not copied

NO_SEQUENCE = bytes(4)  # of what answers no call in particular

_HEADER = struct.Struct(">HHi")  # version, type, length of the name
_FIELD_ID = struct.Struct(">h")
_LIST_HEADER = struct.Struct(">bi")
_MAP_HEADER = struct.Struct(">bbi")
_I32_VALUE = struct.Struct(">i")
_I64_VALUE = struct.Struct(">q")
_FIELD_HEADER = struct.Struct(">bh")
_FIELD_START = struct.Struct(">Bh")  # as it is read: a stranger's type may be any byte
SEQUENCE_BYTES = 4


class NoMessageError(Exception):
    """The frame does not begin with the header of a call: nobody can tell what to answer to."""


class MalformedArgumentsError(Exception):
    """The header is that of a call, but what follows is not its arguments."""


class TooManyEntriesError(Exception):
    """A set has more entries than the call takes; they were not read."""

    def __init__(self, count: int, limit: int) -> None:
        super().__init__(f"a set of {count} entries came, the limit is {limit}")
        self.count = count


class Header(NamedTuple):
    """The head of a message: method, kind and sequence number, and the offset at which its arguments start."""

    name: str
    kind: int
    sequence: int
    arguments_start: int


class Field(NamedTuple):
    """One field of a struct, and the function that reads it. `kind` is its type on the wire."""

    name: str
    kind: int
    read: Callable[[_Reader], Any]


def message_head(kind: int, name: str) -> bytes:
    """The first bytes of any message of this method: all that is before its sequence number."""
    encoded = name.encode("ascii")
    return _HEADER.pack(VERSION_1, kind, len(encoded)) + encoded


def head_of(frame: bytes) -> bytes:
    """The head of the message, where it is one with a short name, as of every method; else bytes that are no head."""
    return frame[: _HEADER.size + frame[_HEADER.size - 1]] if len(frame) >= _HEADER.size else b""


def read_header(frame: bytes) -> Header:
    """The message header; `NoMessageError` when there is none."""
    if len(frame) < _HEADER.size:
        raise NoMessageError(f"a frame of {len(frame)} bytes holds no message")
    version, kind, name_bytes = _HEADER.unpack_from(frame)
    if version != VERSION_1:
        raise NoMessageError("the frame does not begin with a strict TBinaryProtocol message")
    start = _HEADER.size + name_bytes
    if not 0 < name_bytes <= NAME_BYTES_MAX or start + _I32_VALUE.size > len(frame):
        raise NoMessageError(
            f"a method's name is 1 to {NAME_BYTES_MAX} bytes within its frame, this one says {name_bytes}"
        )
    try:
        name = frame[_HEADER.size : start].decode("ascii")
    except UnicodeDecodeError:
        raise NoMessageError("the method's name is not ASCII") from None
    (sequence,) = _I32_VALUE.unpack_from(frame, start)
    return Header(name, kind, sequence, start + _I32_VALUE.size)


def read_arguments(frame: bytes, start: int, fields: Mapping[int, Field], entries_max: int) -> dict[str, Any]:
    """The arguments by name; lists of ids are passed over, for no call needs them.

    An absent argument is not in the result.
    """
    reader = _Reader(frame, start, entries_max)
    values = reader.structure(fields)
    if reader.position != len(frame):
        raise MalformedArgumentsError(f"{len(frame) - reader.position} bytes follow the arguments")
    return values


def fields_of(specification: Mapping[int, tuple[Any, ...]]) -> dict[int, Field]:
    return {number: _field(*entry) for number, entry in specification.items()}


def _field(kind: int, name: str, *of: Any) -> Field:
    if kind == STRUCT:
        fields = fields_of(of[0].thrift_spec)
        return Field(name, STRUCT, lambda reader: reader.structure(fields))
    if kind == SET:
        return Field(name, SET, _Reader.numbers if of[0] == I64 else _Reader.blobs)
    readers: dict[int, tuple[int, Callable[[_Reader], Any]]] = {
        I32: (I32, _Reader.i32),
        I64: (I64, _Reader.i64),
        STRING: (STRING, _Reader.text),
        _BINARY: (STRING, _Reader.blob),
        LIST: (LIST, lambda reader: reader.skip(LIST)),
    }
    return Field(name, *readers[kind])


class _Reader:
    """A place in a frame."""

    __slots__ = ("_data", "_entries_max", "_unknown_left", "position")

    def __init__(self, data: bytes, position: int, entries_max: int) -> None:
        self._data = data
        self._entries_max = entries_max
        self._unknown_left = UNKNOWN_VALUES_MAX
        self.position = position

    def structure(self, fields: Mapping[int, Field]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        data, last = self._data, len(self._data) - _FIELD_START.size
        while True:
            position = self.position
            if position <= last:
                kind, number = _FIELD_START.unpack_from(data, position)
                if kind == STOP:
                    self.position = position + 1
                    break
                self.position = position + _FIELD_START.size
            else:  # a stop, or less than a field
                kind = self._byte()
                if kind == STOP:
                    break
                (number,) = _FIELD_ID.unpack_from(data, self._take(_FIELD_ID.size))
            field = fields.get(number)
            if field is None:
                self.skip(kind)
            elif kind != field.kind:
                _refuse(f"{field.name} has Thrift type {kind}, not {field.kind}")
            elif field.name in values:
                _refuse(f"{field.name} is there twice")
            else:
                values[field.name] = field.read(self)
        return values

    def i32(self) -> int:
        value: int = _I32_VALUE.unpack_from(self._data, self._take(_I32_VALUE.size))[0]
        return value

    def i64(self) -> int:
        position = self.position
        if position + _I64_VALUE.size > len(self._data):
            self._take(_I64_VALUE.size)  # refuses
        self.position = position + _I64_VALUE.size
        value: int = _I64_VALUE.unpack_from(self._data, position)[0]
        return value

    def blob(self) -> bytes:
        start = self._take(self.i32())
        return self._data[start : self.position]

    def text(self) -> str:
        try:
            return self.blob().decode("utf-8")
        except UnicodeDecodeError:
            _refuse("a text is not UTF-8")

    def blobs(self) -> frozenset[bytes]:
        return frozenset([self.blob() for _ in range(self._count(STRING))])

    def numbers(self) -> frozenset[int]:
        count = self._count(I64)
        start = self._take(count * _I64_VALUE.size)
        return frozenset(struct.unpack_from(f">{count}q", self._data, start))

    def skip(self, kind: int, depth: int = 0) -> None:
        self._unknown_left -= 1
        if self._unknown_left < 0 or depth > UNKNOWN_DEPTH_MAX:
            _refuse("there is too much in fields that nobody knows")
        if kind in _FIXED_BYTES:
            self._take(_FIXED_BYTES[kind])
        elif kind == STRING:
            self._take(self.i32())
        elif kind == STRUCT:
            while (inner := self._byte()) != STOP:
                self._take(_FIELD_ID.size)
                self.skip(inner, depth + 1)
        elif kind in (LIST, SET):
            element, count = self._unpack(_LIST_HEADER)
            self._skip_all((element,), count, depth)
        elif kind == MAP:
            key, value, count = self._unpack(_MAP_HEADER)
            self._skip_all((key, value), count, depth)
        else:
            _refuse(f"there is no Thrift type {kind}")

    def _skip_all(self, kinds: tuple[int, ...], count: int, depth: int) -> None:
        if count < 0:
            _refuse(f"a count is {count}")
        if all(kind in _FIXED_BYTES for kind in kinds):
            self._take(count * sum(_FIXED_BYTES[kind] for kind in kinds))
            return
        for _ in range(count):
            for kind in kinds:
                self.skip(kind, depth + 1)

    def _count(self, element: int) -> int:
        kind, count = self._unpack(_LIST_HEADER)
        if count < 0 or (count and kind != element):
            _refuse(f"a set of {count} values of Thrift type {kind}, not {element}")
        if count > self._entries_max:
            raise TooManyEntriesError(count, self._entries_max)
        return int(count)

    def _byte(self) -> int:
        position = self.position
        if position >= len(self._data):
            _refuse(f"the {position} bytes of the frame end within a struct")
        self.position = position + 1
        return self._data[position]

    def _unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack_from(self._data, self._take(layout.size))

    def _take(self, size: int) -> int:
        start = self.position
        if not 0 <= size <= len(self._data) - start:
            _refuse(f"{size} bytes from byte {start} on, in a frame of {len(self._data)}")
        self.position = start + size
        return start


def _refuse(reason: str) -> NoReturn:
    raise MalformedArgumentsError(reason)


class ApplicationError(Exception):
    """A call that its method has no exception for is refused: it is answered as a TApplicationException."""

    def __init__(self, kind: int, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def reply(head: bytes, sequence: bytes, result: Pieces) -> Pieces:
    """The frame of a result, whose message begins with `head`. `ApplicationError` when no client would read it."""
    size_bytes = len(result[0]) if len(result) == 1 else sum(map(len, result))
    if size_bytes > RESULT_BYTES_MAX:
        raise ApplicationError(
            INTERNAL_ERROR,
            f"the answer is {size_bytes} bytes, and Tephra's clients read {ANSWER_BYTES_MAX}: the invalid list is too long,"
            " prune it",
        )
    start = _I32_VALUE.pack(len(head) + len(sequence) + size_bytes)
    if size_bytes <= JOIN_BYTES_MAX:
        return (b"".join((start, head, sequence, *result)),)
    return start + head + sequence, *result


def exception(name: str, sequence: bytes, kind: int, message: str) -> Pieces:
    body = unframed_exception(kind, message, name, sequence)
    return (_I32_VALUE.pack(len(body)) + body,)


def unframed_exception(kind: int, message: str, name: str = "", sequence: bytes = NO_SEQUENCE) -> bytes:
    """A TApplicationException as a client without frames reads it."""
    text = message.encode("utf-8", "replace")
    fields = (
        _FIELD_HEADER.pack(STRING, 1) + _I32_VALUE.pack(len(text)) + text,
        _FIELD_HEADER.pack(I32, 2) + _I32_VALUE.pack(kind),
        bytes((STOP,)),
    )
    return b"".join((message_head(EXCEPTION, name), sequence, *fields))


@dataclass(frozen=True, slots=True)
class Method:
    """One call of the service. `throws` are the exceptions that it declares, by the name of their field in the result.

    `reply_head` is how the message of its result begins, up to the sequence number.
    """

    name: str
    reply_head: bytes
    arguments: Mapping[int, Field]
    result: Any
    throws: Mapping[type[Exception], str]

    def encode(self, **fields: Any) -> bytes:
        encoded: bytes = serialize(self.result(**fields), _PROTOCOL)
        return encoded


def _method(name: str) -> Method:
    service = types.TTransactionServer
    result = getattr(service, f"{name}_result")
    throws = {field[2]: field[1] for number, field in result.thrift_spec.items() if number != 0}
    return Method(
        name, message_head(REPLY, name), fields_of(getattr(service, f"{name}_args").thrift_spec), result, throws
    )


METHODS: dict[str, Method] = {name: _method(name) for name in types.TTransactionServer.thrift_services}
BY_HEAD: dict[bytes, Method] = {message_head(CALL, name): method for name, method in METHODS.items()}
