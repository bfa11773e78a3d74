"""Rows as RocksDB keys and values. Format and a worked example: docs/formats/rocks-store.md.

A row is one key with one *packed row*. In tables that hold message payloads its large values lie back to back under the
same key in a second column family, and the packed row says how long each is and what their CRC-32C must be. So a row's
small columns are read, changed and counted without touching its payload, and a payload is read without being copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from crc32c import crc32c

from basalt_engine.errors import CorruptionError

FORMAT_VERSION = 1
LARGE_VALUE_BYTES_MIN = 4 << 10  # from here on a value costs less in a blob file than in every compaction

_HEADER_BYTES = 3  # version, inline columns, large columns
_LENGTH_BYTES = 4
_CRC_BYTES = 4
_NO_LARGE: dict[bytes, int] = {}  # shared by all rows without; nobody changes it


class PackedRow(NamedTuple):
    """A row as its packed value describes it.

    `inline` are the columns kept in the packed value itself; `large` the length in bytes of each other column, in the
    order in which their values follow one another; `large_crc32c` is over all of these.
    """

    inline: dict[bytes, bytes]
    large: dict[bytes, int]
    large_crc32c: int

    @property
    def column_count(self) -> int:
        """All columns of the row."""
        return len(self.inline) + len(self.large)

    def split(self, large_values: bytes | None) -> dict[bytes, bytes] | None:
        """The large columns, given their values back to back; None when these are not what the row was written with."""
        if large_values is None or len(large_values) != sum(self.large.values()):
            return None
        if crc32c(large_values) != self.large_crc32c:
            return None
        columns = {}
        at = 0
        for name, length in self.large.items():
            # The slice of a whole bytes object is that object: the usual single payload is not copied.
            columns[name] = large_values[at : at + length]
            at += length
        return columns


def packed(inline: Mapping[bytes, bytes], large: Mapping[bytes, int], large_crc32c: int) -> bytes:
    """The packed value of a row with these inline columns and these large ones."""
    parts = [bytes((FORMAT_VERSION, len(inline), len(large)))]
    for name, value in inline.items():
        parts += (bytes((len(name),)), name, len(value).to_bytes(_LENGTH_BYTES), value)
    for name, length in large.items():
        parts += (bytes((len(name),)), name, length.to_bytes(_LENGTH_BYTES))
    if large:
        parts.append(large_crc32c.to_bytes(_CRC_BYTES))
    return b"".join(parts)


def joined(large_values: Mapping[bytes, bytes]) -> tuple[bytes, int]:
    """The large values back to back (a single one is not copied), and their CRC-32C."""
    joined_values = b"".join(large_values.values())
    return joined_values, crc32c(joined_values)


def unpack(value: bytes) -> PackedRow:
    """The row in a packed value; `CorruptionError` when it is none."""
    try:
        if value[0] != FORMAT_VERSION:
            raise CorruptionError(f"a packed row has format {value[0]}, this program reads {FORMAT_VERSION}")
        inline_count, large_count = value[1], value[2]
        at = _HEADER_BYTES
        inline: dict[bytes, bytes] = {}
        for _ in range(inline_count):
            name_stop = at + 1 + value[at]
            start = name_stop + _LENGTH_BYTES
            stop = start + int.from_bytes(value[name_stop:start])
            inline[value[at + 1 : name_stop]] = value[start:stop]
            at = stop
        if not large_count and at == len(value) and len(inline) == inline_count:
            return PackedRow(inline, _NO_LARGE, 0)
        large: dict[bytes, int] = {}
        for _ in range(large_count):
            name_stop = at + 1 + value[at]
            stop = name_stop + _LENGTH_BYTES
            large[value[at + 1 : name_stop]] = int.from_bytes(value[name_stop:stop])
            at = stop
    except IndexError:
        raise CorruptionError(f"a packed row of {len(value)} bytes ends too early") from None
    # A slice past the end is silently short, so only the total tells whether every part was there.
    if at + _CRC_BYTES != len(value) or len(inline) != inline_count or len(large) != large_count or not large:
        raise CorruptionError(f"a packed row of {len(value)} bytes does not end where its lengths say")
    return PackedRow(inline, large, int.from_bytes(value[at:]))


def row_bytes(value: bytes) -> int:
    """The bytes of a packed row and its large values. Only a row with several large values is unpacked for it."""
    if not value[2]:
        return len(value)
    if value[2] == 1:  # the one length lies before the checksum
        return len(value) + int.from_bytes(value[-_CRC_BYTES - _LENGTH_BYTES : -_CRC_BYTES])
    return len(value) + sum(unpack(value).large.values())
