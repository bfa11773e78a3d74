"""Pictures in docs are small, and what makes them so leaves them as they are, but for colors that few dots have."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.browser.pictures import COLORS_MAX, PICTURE_BYTES_MAX, with_few_colors

DOCS = Path(__file__).parents[2] / "docs"
RED, GREEN, NEARLY_RED = b"\xff\x00\x00", b"\x00\xff\x00", b"\xf0\x00\x00"


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def picture(lines: Sequence[bytes], kind: int = 2) -> bytes:
    """A PNG of these lines, each with the number of its filter before it."""
    head = struct.pack(">IIBBBBB", (len(lines[0]) - 1) // 3, len(lines), 8, kind, 0, 0, 0)
    data = zlib.compress(b"".join(lines))
    cut = len(data) // 2  # which a PNG may have in any number of pieces
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", data[:cut]), chunk(b"IDAT", data[cut:]), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def colors(png: bytes) -> list[list[bytes]]:
    """Each dot of a picture with a palette."""
    at, parts = 8, dict[bytes, bytes]()
    while at < len(png):
        (size,) = struct.unpack_from(">I", png, at)
        name, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        assert png[at + 8 + size : at + 12 + size] == struct.pack(">I", zlib.crc32(name + data))
        parts[name] = data
        at += 12 + size
    width, height = struct.unpack_from(">II", parts[b"IHDR"])
    palette = [parts[b"PLTE"][place : place + 3] for place in range(0, len(parts[b"PLTE"]), 3)]
    rows = zlib.decompress(parts[b"IDAT"])
    return [
        [palette[each] for each in rows[line * (width + 1) + 1 : (line + 1) * (width + 1)]] for line in range(height)
    ]


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.png")), ids=lambda path: path.name)
def test_a_picture_in_docs_is_small(path: Path):
    assert path.stat().st_size <= PICTURE_BYTES_MAX, "`make screenshots` makes it smaller"


def test_a_picture_whose_colors_are_few_keeps_every_dot():
    plain = b"\0" + RED + GREEN + RED
    left = b"\1" + RED + bytes([1, 255, 0]) + bytes([255, 1, 0])
    above = b"\2" + bytes(9)
    average = b"\3" + bytes([128, 0, 0]) + bytes([129, 128, 0]) + bytes([128, 129, 0])
    nearest = b"\4" + bytes([0, 0, 0]) + bytes(3) + bytes(3)
    found = colors(with_few_colors(picture([plain, left, above, average, nearest])))
    assert found[:3] == [[RED, GREEN, RED]] * 3
    assert found[3] == [RED, GREEN, RED]
    assert found[4] == [RED, GREEN, RED]


def test_colors_that_few_dots_have_become_the_nearest_of_the_others():
    lines = [b"\0" + RED * 4, b"\0" + GREEN * 3 + NEARLY_RED]
    assert colors(with_few_colors(picture(lines), 2)) == [[RED] * 4, [GREEN] * 3 + [RED]]
    assert NEARLY_RED in colors(with_few_colors(picture(lines)))[1]
    many = [b"\0" + b"".join(bytes([x, y, 0]) for x in range(20)) for y in range(20)]
    shown = {color for row in colors(with_few_colors(picture(many))) for color in row}
    assert len(shown) == COLORS_MAX


def test_another_form_of_picture_is_refused():
    with pytest.raises(ValueError, match="8 bits each"):
        with_few_colors(picture([b"\0" + RED], kind=6))
