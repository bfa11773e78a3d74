"""Pictures of pages made small: Chromium writes three bytes for each dot, and a page has a few hundred colors, most of them at the edges of letters.

The colors that most dots have are kept, and the others become the nearest of those, which nobody sees. It needs no library.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

COLORS_MAX = 256  # one byte for each dot
PICTURE_BYTES_MAX = 40_000  # what a page of docs loads quickly; as Chromium writes them, two had 70,000
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEAD = struct.Struct(">IIBBBBB")
_DOT = 3  # bytes
_RGB, _PALETTE = 2, 3


def with_few_colors(picture: bytes, colors_max: int = COLORS_MAX) -> bytes:
    """The PNG with no more than so many colors; `ValueError` for one that is not of 8 bits each of red, green and blue."""
    parts = dict[bytes, bytes]()
    for name, data in _chunks(picture):
        parts[name] = parts.get(name, b"") + data
    width, height, *form = _HEAD.unpack(parts[b"IHDR"])
    if form != [8, _RGB, 0, 0, 0]:
        raise ValueError(f"a PNG of the form {form}; only 8 bits each of red, green and blue are read")
    rows = list(_unfiltered(zlib.decompress(parts[b"IDAT"]), width * _DOT, height))
    counts = Counter(dot for row in rows for dot in _dots(row))
    kept = [color for color, _ in counts.most_common(colors_max)]
    place = {color: number for number, color in enumerate(kept)}
    for color in counts.keys() - place.keys():
        place[color] = place[min(kept, key=lambda other: _distance(color, other))]
    lines = b"".join(b"\0" + bytes(place[dot] for dot in _dots(row)) for row in rows)
    made = (
        (b"IHDR", _HEAD.pack(width, height, 8, _PALETTE, 0, 0, 0)),
        (b"PLTE", b"".join(kept)),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    return _SIGNATURE + b"".join(_chunk(name, data) for name, data in made)


def _distance(one: bytes, other: bytes) -> int:
    return sum((mine - its) ** 2 for mine, its in zip(one, other, strict=True))


def _dots(row: bytes) -> Iterator[bytes]:
    return (row[at : at + _DOT] for at in range(0, len(row), _DOT))


def _chunks(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_SIGNATURE)
    while at < len(picture):
        (size,) = struct.unpack_from(">I", picture, at)
        yield picture[at + 4 : at + 8], picture[at + 8 : at + 8 + size]
        at += 12 + size


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _unfiltered(data: bytes, size: int, height: int) -> Iterator[bytes]:
    """The rows as they are: in the file each byte is the difference to what is left of it, above it, or both."""
    above = bytearray(size)
    for number in range(height):
        kind, *row = data[number * (size + 1) : (number + 1) * (size + 1)]
        for at in range(size):
            left, up, corner = (row[at - _DOT], above[at], above[at - _DOT]) if at >= _DOT else (0, above[at], 0)
            row[at] = (row[at] + _expected(kind, left, up, corner)) & 0xFF
        above = bytearray(row)
        yield bytes(above)


def _expected(kind: int, left: int, up: int, corner: int) -> int:
    if kind < 3:
        return (0, left, up)[kind]
    if kind == 3:
        return (left + up) // 2
    guess = left + up - corner  # by Paeth: the neighbour that is nearest to it
    return min((left, up, corner), key=lambda each: abs(guess - each))
