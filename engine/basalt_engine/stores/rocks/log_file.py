"""Checks a RocksDB log (a write-ahead log, or the manifest) before RocksDB reads it.

RocksDB takes a log that ends early for one that a crash cut off, which is right for what was never acknowledged and
wrong for everything else. Here it is known how far the log was once on the disk. The format is LevelDB's: blocks of
32 KiB, filled with records of checksum(4) length(2) type(1) payload, little-endian; no record crosses a block's end.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from crc32c import crc32c

from basalt_engine.errors import CorruptionError
from basalt_engine.stores.rocks.errors import RESTORE, from_os

_BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_TYPE_OFFSET = 6  # the checksum is over the type and the payload
_MASK_DELTA = 0xA282EAD8  # stored checksums are rotated and shifted, so that a log inside a log is not mistaken


def check_log(path: Path, synced_bytes: int, *, start: int = 0) -> int:
    """The offset at which the log's last good record ends, at least `synced_bytes`.

    Looks at the records from the offset `start` on, where one must begin. Raises `CorruptionError` with the file and
    the offset when a record before `synced_bytes` is damaged or gone.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size == 0:
                end = 0  # and nothing to map
            else:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as content:
                    size = len(content)
                    end = _end_of_records(content, start)
    except OSError as error:
        raise from_os(error, path) from error
    if end < synced_bytes:
        what = "ends" if end == size else "is damaged"
        raise CorruptionError(
            f"{path} {what} at byte {end}, but was written and synced up to byte {synced_bytes}", hint=RESTORE
        )
    return end


def _end_of_records(content: memoryview, start: int) -> int:
    at = end = start
    size = len(content)
    while True:
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER.size:  # too short for a record: filled with zeros
            at += left
            continue
        if at + _HEADER.size > size:
            return end
        checksum, length, _ = _HEADER.unpack_from(content, at)
        stop = at + _HEADER.size + length
        if stop > size or _HEADER.size + length > left:
            return end
        if checksum != masked_crc32c(crc32c(content[at + _TYPE_OFFSET : stop])):
            return end
        at = end = stop


def masked_crc32c(crc: int) -> int:
    """A CRC-32C as RocksDB stores it in logs and blob files."""
    rotated = (crc >> 15) | (crc << 17)
    return (rotated + _MASK_DELTA) & 0xFFFFFFFF
