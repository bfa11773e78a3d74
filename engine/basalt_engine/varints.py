"""Numbers as unsigned LEB128 varints: seven bits a byte, low ones first, 0x80 where more follow; lists as deltas.

Only the shortest form of a number is written and read.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

from basalt_engine.errors import CorruptionError

VALUE_MAX = (1 << 63) - 1  # Java's longs: what both sides can hold
VARINT_BYTES_MAX = 9  # 63 bits, seven in each byte


def encode_varint(value: int) -> bytes:
    """A number from 0 to 2^63 - 1."""
    return encode_deltas((value,))


def encode_deltas(numbers: Iterable[int]) -> bytes:
    """Of ascending numbers from 0 on, the first one, then what is to be added for each next one."""
    out = bytearray()
    previous = 0
    for number in numbers:
        delta = number - previous
        previous = number
        while delta > 0x7F:
            out.append(delta & 0x7F | 0x80)
            delta >>= 7
        out.append(delta)
    return bytes(out)


def encode_rising(numbers: Sequence[int]) -> bytes:
    """The deltas of numbers that rise strictly from above 0; `ValueError` otherwise."""
    if not numbers:
        return b""
    if numbers[0] < 1 or numbers[-1] > VALUE_MAX or not all(map(operator.lt, numbers, numbers[1:])):
        raise ValueError("the numbers do not rise strictly from 1 to 2^63 - 1")
    return encode_deltas(numbers)


def decode_rising(data: bytes, offset: int, count: int) -> tuple[tuple[int, ...], int]:
    """That many rising numbers from `offset` on, and where they end; `CorruptionError`."""
    if count > len(data) - offset:
        raise CorruptionError(f"{count} varints cannot be in {len(data) - offset} bytes")
    numbers: list[int] = []
    last = 0
    for _ in range(count):
        delta, offset = decode_varint(data, offset)
        last += delta
        if delta == 0 or last > VALUE_MAX:
            raise CorruptionError(f"number {len(numbers)} does not rise, or rises above 2^63 - 1")
        numbers.append(last)
    return tuple(numbers), offset


def decode_varint(data: bytes, offset: int) -> tuple[int, int]:
    """The number that begins at `offset`, and where it ends; `CorruptionError`."""
    number = 0
    for index in range(VARINT_BYTES_MAX):
        if offset + index >= len(data):
            break
        byte = data[offset + index]
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if byte == 0 and index > 0:
                raise CorruptionError(f"the varint at byte {offset} is longer than it need be")
            return number, offset + index + 1
    raise CorruptionError(f"the varint at byte {offset} does not end")
