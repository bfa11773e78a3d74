"""The field types of the log's formats, written and strictly read. Described in docs/formats/transaction-log.md.

Numbers are big-endian; varints are unsigned LEB128 of at most nine bytes without a needless last one, so that each
value has one encoding. Whatever a writer here would not have written is a `CorruptionError` that names the offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from crc32c import crc32c

from basalt_engine.errors import CorruptionError
from basalt_engine.varints import VARINT_BYTES_MAX, encode_deltas, encode_varint

CRC_BYTES = 4
_LONG = struct.Struct(">q")
_INT = struct.Struct(">I")
_SHORT = struct.Struct(">H")


def long_field(value: int) -> bytes:
    """A signed 64-bit number."""
    return _LONG.pack(value)


def count_field(value: int) -> bytes:
    """A 32-bit count or length."""
    return _INT.pack(value)


def text_field(text: str | None) -> bytes:
    """UTF-8 after its 16-bit length in bytes; None is the empty text."""
    data = (text or "").encode()
    return _SHORT.pack(len(data)) + data


def bytes_field(data: bytes) -> bytes:
    """Bytes after their 32-bit length."""
    return _INT.pack(len(data)) + data


def set_field(items: Iterable[bytes]) -> bytes:
    """A 32-bit count, then the items in ascending order."""
    ordered = sorted(items)
    return _INT.pack(len(ordered)) + b"".join([_INT.pack(len(item)) + item for item in ordered])


def pointers_field(pointers: Sequence[int]) -> bytes:
    """Ascending numbers: how many, the first one, then what is to be added for each next one, as varints."""
    return encode_varint(len(pointers)) + encode_deltas(pointers)


def sealed(data: bytes) -> bytes:
    """The data and its CRC-32C."""
    return data + crc32c(data).to_bytes(CRC_BYTES, "big")


def opened(data: bytes, what: str, version: int, header_bytes: int, *, oldest: int | None = None) -> bytes:
    """The data without its CRC-32C, which fits, as does the version in its first byte (from `oldest`, if that is given).

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
    if not (version if oldest is None else oldest) <= body[0] <= version:
        raise CorruptionError(f"{what} has format version {body[0]} at offset 0, which never was")
    return body


class Reader:
    """Reads fields one after the other; `what` names the bytes in errors."""

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
        """The next bytes."""
        end = self.offset + length
        if end > self.stop:
            raise self.failure(f"{length} bytes expected, {self.stop - self.offset} left")
        data = self._data[self.offset : end]
        self.offset = end
        return data

    def unpack(self, fixed: struct.Struct) -> tuple[int, ...]:
        """Several fields of fixed size at once."""
        end = self.offset + fixed.size
        if end > self.stop:
            raise self.failure(f"{fixed.size} bytes expected, {self.stop - self.offset} left")
        values: tuple[int, ...] = fixed.unpack_from(self._data, self.offset)
        self.offset = end
        return values

    def byte(self, maximum: int = 255) -> int:
        """A number of one byte, at most `maximum`."""
        value = self.take(1)[0]
        if value > maximum:
            raise self.failure(f"{value} where at most {maximum} is possible", self.offset - 1)
        return value

    def flag(self) -> bool:
        """A byte that is 0 or 1."""
        return self.byte(maximum=1) == 1

    def long(self) -> int:
        """A signed 64-bit number."""
        value: int = _LONG.unpack(self.take(8))[0]
        return value

    def pointer(self) -> int:
        """A 64-bit number that is not negative."""
        value = self.long()
        if value < 0:
            raise self.failure(f"negative write pointer {value}", self.offset - 8)
        return value

    def count(self) -> int:
        """A 32-bit count or length."""
        value: int = _INT.unpack(self.take(4))[0]
        return value

    def data(self) -> bytes:
        """Bytes after their 32-bit length."""
        return self.take(self.count())

    def text(self) -> str:
        """UTF-8 after its 16-bit length."""
        start = self.offset
        length: int = _SHORT.unpack(self.take(2))[0]
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise self.failure("text that is not UTF-8", start) from error

    def optional_text(self) -> str | None:
        """A text of which the empty one stands for none."""
        return self.text() or None

    def set(self) -> frozenset[bytes]:
        """The items of a set, which must ascend."""
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
        """Ascending numbers."""
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

    def end(self) -> None:
        """Nothing may be left."""
        if self.offset != self.stop:
            raise self.failure(f"{self.stop - self.offset} bytes too many")
