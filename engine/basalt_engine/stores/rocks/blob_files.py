"""Looks at RocksDB's blob files, which it opens only when a value in one of them is read.

A blob file is a header, records of lengths(24) checksum(4) checksum(4) key value, and a footer. The first checksum is
over the lengths, the second over key and value, little-endian, both as in RocksDB's logs.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from basalt_engine.errors import CorruptionError
from basalt_engine.stores.rocks.errors import RESTORE, from_os
from basalt_engine.stores.rocks.log_file import masked_crc32c

_MAGIC = (2395959).to_bytes(4, "little")  # header and footer begin with it
_HEADER_BYTES = 30
_FOOTER_BYTES = 32
_RECORD = struct.Struct("<QQQII")  # key bytes, value bytes, expiration, checksums
_LENGTHS_BYTES = 24


class BlobFile(NamedTuple):
    """A blob file as the manifest has it: the bytes of its records, and the numbers of the table files that need it."""

    path: Path
    records_bytes: int
    table_files: frozenset[int]


def check_blob_files(files: Iterable[BlobFile]) -> None:
    """`CorruptionError` names the first file that is missing, or has not the size, or the ends, that it must have."""
    for file in files:
        try:
            size = file.path.stat().st_size
            with file.path.open("rb") as content:
                header = content.read(len(_MAGIC))
                content.seek(max(size - _FOOTER_BYTES, 0))
                footer = content.read(len(_MAGIC))
        except OSError as error:
            raise from_os(error, file.path) from error
        expected = _HEADER_BYTES + file.records_bytes + _FOOTER_BYTES
        if size != expected:
            raise CorruptionError(f"{file.path} has {size} bytes, the manifest says {expected}", hint=RESTORE)
        if header != _MAGIC or footer != _MAGIC:
            raise CorruptionError(f"{file.path} is damaged: it does not begin and end as a blob file", hint=RESTORE)


def damaged_offset(path: Path) -> int | None:
    """Where the first damaged record begins, None when all are whole. Reads the whole file."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as content,
    ):
        at = _HEADER_BYTES
        while at < len(content) - _FOOTER_BYTES:
            stop = _record_stop(content, at)
            if stop is None:
                return at
            at = stop
    return None


def _record_stop(content: memoryview, at: int) -> int | None:
    start = at + _RECORD.size
    if start > len(content):
        return None
    key_bytes, value_bytes, _, lengths_crc, record_crc = _RECORD.unpack_from(content, at)
    if lengths_crc != masked_crc32c(crc32c(content[at : at + _LENGTHS_BYTES])):
        return None
    stop: int = start + key_bytes + value_bytes
    return stop if record_crc == masked_crc32c(crc32c(content[start:stop])) else None
