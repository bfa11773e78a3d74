"""How one call to the Java side carries many values; the other end is the Java class `Frames`."""

from __future__ import annotations

import struct

_LENGTH = struct.Struct(">i")
_NUMBER = struct.Struct(">q")
_COUNT = struct.Struct(">i")


def framed(value: bytes | None) -> bytes:
    """A value behind its length; None is the length -1."""
    return _LENGTH.pack(-1) if value is None else _LENGTH.pack(len(value)) + value


class Frames:
    """Reads what the Java side answered, value by value."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    def __bool__(self) -> bool:
        return self._offset < len(self._data)

    def value(self) -> bytes | None:
        """The next bytes; None where the Java side has a null."""
        (length,) = _LENGTH.unpack_from(self._data, self._offset)
        start = self._offset + _LENGTH.size
        self._offset = start + max(length, 0)
        return None if length < 0 else self._data[start : self._offset]

    def text(self) -> str:
        """The next bytes as UTF-8."""
        value = self.value()
        assert value is not None
        return value.decode()

    def number(self) -> int:
        """The next long."""
        (number,) = _NUMBER.unpack_from(self._data, self._offset)
        self._offset += _NUMBER.size
        return number

    def count(self) -> int:
        """The next int."""
        (count,) = _COUNT.unpack_from(self._data, self._offset)
        self._offset += _COUNT.size
        return count

    def flag(self) -> bool:
        """The next boolean."""
        self._offset += 1
        return self._data[self._offset - 1] != 0
