"""Rising numbers as deltas, each an unsigned LEB128 varint: seven bits a byte, low ones first, 0x80 where more follow.

Only the shortest form of a number is written and read. A list of 100,000 takes milliseconds to encode: thousands of
deltas at a time lie side by side in one integer, and each step is done to all of them at once.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence

from basalt_engine.errors import CorruptionError

VALUE_MAX = (1 << 63) - 1  # Java's longs: what both sides can hold
VARINT_BYTES_MAX = 9  # 63 bits, seven in each byte
_LANES = 4_096  # deltas side by side: integers of 32 KiB, which stay in the processor's cache


def _lanes(lane: int) -> int:
    """The same 64 bits in every lane."""
    return int.from_bytes(lane.to_bytes(8, "little") * _LANES, "little")


_HIGH_28 = _lanes(0x00FF_FFFF_F000_0000)
_HIGH_14 = _lanes(0x0FFF_C000_0FFF_C000)
_HIGH_7 = _lanes(0x3F80_3F80_3F80_3F80)
_SEVENS = _lanes(0x7F7F_7F7F_7F7F_7F7F)
_TOO_LARGE = _lanes(0xFF00_0000_0000_0000)  # eight bytes hold 56 bits; larger deltas are encoded one by one
_BELOW_1 = _lanes(0x0080_8080_8080_8080)
_BELOW_2 = _lanes(0x0000_8080_8080_8080)
_BELOW_4 = _lanes(0x0000_0000_8080_8080)


def encode_rising(numbers: Sequence[int]) -> bytes:
    """The deltas of numbers that rise strictly from above 0; `ValueError` otherwise."""
    if not numbers:
        return b""
    if numbers[0] < 1 or numbers[-1] > VALUE_MAX or not all(map(operator.lt, numbers, numbers[1:])):
        raise ValueError("the numbers do not rise strictly from 1 to 2^63 - 1")
    packed = struct.pack(f"<{len(numbers)}Q", *numbers)
    parts = [_encode_lanes(packed, start) for start in range(8, len(packed), 8 * _LANES)]
    return b"".join((_encode_one(numbers[0]), *parts))


def decode_rising(data: bytes, offset: int, count: int) -> tuple[tuple[int, ...], int]:
    """That many rising numbers from `offset` on, and where they end; `CorruptionError`."""
    if count > len(data) - offset:
        raise CorruptionError(f"{count} varints cannot be in {len(data) - offset} bytes")
    numbers: list[int] = []
    last = 0
    for _ in range(count):
        delta, offset = _decode_one(data, offset)
        last += delta
        if delta == 0 or last > VALUE_MAX:
            raise CorruptionError(f"number {len(numbers)} does not rise, or rises above 2^63 - 1")
        numbers.append(last)
    return tuple(numbers), offset


def _encode_one(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _decode_one(data: bytes, offset: int) -> tuple[int, int]:
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


def _encode_lanes(packed: bytes, start: int) -> bytes:
    """The varints of some thousand deltas: of the numbers from byte `start` on, to the ones before them."""
    size = min(8 * _LANES, len(packed) - start)
    upper = int.from_bytes(packed[start : start + size], "little")
    bits = upper - int.from_bytes(packed[start - 8 : start - 8 + size], "little")  # nothing is borrowed: they rise
    if bits & _TOO_LARGE:
        return b"".join(map(_encode_one, struct.unpack(f"<{size // 8}Q", bits.to_bytes(size, "little"))))
    # Spread the groups of seven: the upper half of 56 bits moves up by 4, of 28 by 2, of 14 by 1. Adding 15 times a
    # field to where it stands moves it by 4: 1 + 15 = 2^4.
    bits += (bits & _HIGH_28) * 15
    bits += (bits & _HIGH_14) * 3
    bits += bits & _HIGH_7
    # A byte has 0x80 when a higher one of its lane is not zero: 0x7f added to seven bits carries unless they are zero.
    more = ((bits + _SEVENS) >> 8) & _BELOW_1 & ((1 << 8 * size) - 1)
    more |= (more >> 8) & _BELOW_2
    more |= (more >> 16) & _BELOW_2
    more |= (more >> 32) & _BELOW_4
    # What is zero now lies above the varints; within them it has become 0x80.
    return (bits | more).to_bytes(size, "little").translate(None, b"\0")
