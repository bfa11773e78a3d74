"""Damage to a data directory: failures of RocksDB and of the operating system as our errors, and damaged files.

The binding raises plain `Exception`s, told apart by their words. Files are checked where RocksDB does not: logs before it
reads them, and blob files, which it opens only to read a value.

A log is a write-ahead log, or the manifest. RocksDB takes a log that ends early for one that a crash cut off, which is
right for what was never acknowledged and wrong for everything else. Here it is known how far the log was once on the
disk. The format is LevelDB's: blocks of 32 KiB, filled with records of checksum(4) length(2) type(1) payload,
little-endian; no record crosses a block's end.

A blob file is a header, records of lengths(24) checksum(4) checksum(4) key value, and a footer. The first checksum is
over the lengths, the second over key and value, little-endian, both as in logs.
"""

from __future__ import annotations

import errno
import mmap
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from basalt_engine.errors import BasaltError, CorruptionError, DataDirectoryError, DiskFullError, StoreError

RESTORE = "stop the server and put the data directory back from a backup; `basalt repair` tells what can be mended, and at what loss"

_DISK_FULL = re.compile("No space left on device|File too large|Disk quota exceeded")
_DISK_FULL_NUMBERS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
_MAKE_SPACE = "free some space on the disk of the data directory; writing goes on without a restart"

_LOG_BLOCK_BYTES = 32 << 10
_LOG_HEADER = struct.Struct("<IHB")
_LOG_TYPE_OFFSET = 6  # the checksum is over the type and the payload
_MASK_DELTA = 0xA282EAD8  # stored checksums are rotated and shifted, so that a log inside a log is not mistaken

_BLOB_MAGIC = (2395959).to_bytes(4, "little")  # header and footer begin with it
_BLOB_HEADER_BYTES = 30
_BLOB_FOOTER_BYTES = 32
BLOB_ENDS_BYTES = _BLOB_HEADER_BYTES + _BLOB_FOOTER_BYTES  # beside the records, which the manifest counts
_BLOB_RECORD = struct.Struct("<QQQII")  # key bytes, value bytes, expiration, checksums
_BLOB_LENGTHS_BYTES = 24


def from_rocksdb(error: Exception, directory: Path) -> BasaltError:
    """Our error for one of RocksDB's, over the database in `directory`."""
    # It blames the manifest for what it finds in other files; that the manifest is whole was checked before.
    text = re.sub(r"\s*The file \S+/MANIFEST-\d+ may be corrupted\.", "", str(error)).strip()
    if "No such file" in text or "Missing WAL" in text:
        return CorruptionError(f"{_where(text, directory)} is missing: {text}", hint=RESTORE)
    if text.startswith("Corruption"):
        return CorruptionError(f"{_where(text, directory)} is damaged: {text}", hint=RESTORE)
    if _DISK_FULL.search(text):
        return DiskFullError(f"the disk of {directory} is full: {text}", hint=_MAKE_SPACE)
    if "lock file" in text or "lock hold" in text:
        return DataDirectoryError(
            f"{directory} is in use by another program: {text}", hint="stop that program, or use another directory"
        )
    if text.startswith("Invalid argument: Column famil"):
        return CorruptionError(
            f"{directory} does not have the tables that its FORMAT says it has: {text}", hint=RESTORE
        )
    return StoreError(f"RocksDB refused a call on {directory}: {text}")


def from_os(error: OSError, place: Path) -> BasaltError:
    """Our error for one of the operating system's, over a file of the data directory; `place` if it names none."""
    path = place if error.filename is None else error.filename
    if error.errno in _DISK_FULL_NUMBERS:
        return DiskFullError(f"{path}: {error.strerror}", hint=_MAKE_SPACE)
    if isinstance(error, PermissionError | NotADirectoryError) or error.errno == errno.EROFS:
        return DataDirectoryError(
            f"{path} cannot be used: {error.strerror}", hint="run as the user that owns the data directory"
        )
    if isinstance(error, FileNotFoundError):
        return CorruptionError(f"{path} is missing", hint=RESTORE)
    return StoreError(f"{path}: {error.strerror}")


@contextmanager
def os_errors(place: Path) -> Iterator[None]:
    """Raise the operating system's errors as ours."""
    try:
        yield
    except OSError as error:
        raise from_os(error, place) from error


def _where(text: str, directory: Path) -> str:
    """The file that RocksDB's text names, else the directory."""
    found = re.search(rf"{re.escape(str(directory))}/+[\w.-]*\w", text)
    if found:
        return found.group()
    number = re.search(r"WAL (?:with log number|\(log number): (\d+)", text)
    return f"{directory}/{int(number.group(1)):06d}.log" if number else str(directory)


def check_log(path: Path, synced_bytes: int, *, start: int = 0) -> int:
    """The offset at which the log's last good record ends, at least `synced_bytes`.

    Looks at the records from the offset `start` on, where one must begin. Raises `CorruptionError` with the file and
    the offset when a record before `synced_bytes` is damaged or gone.
    """
    end = 0
    with os_errors(path), path.open("rb") as file:
        size = path.stat().st_size
        if size:  # else there is nothing to map
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as content:
                size = len(content)
                end = _end_of_records(content, start)
    if end < synced_bytes:
        what = "ends" if end == size else "is damaged"
        raise CorruptionError(
            f"{path} {what} at byte {end}, but was written and synced up to byte {synced_bytes}", hint=RESTORE
        )
    return end


def _end_of_records(content: memoryview, start: int) -> int:
    offset = end = start
    size = len(content)
    while True:
        left = _LOG_BLOCK_BYTES - offset % _LOG_BLOCK_BYTES
        if left < _LOG_HEADER.size:  # too short for a record: filled with zeros
            offset += left
            continue
        if offset + _LOG_HEADER.size > size:
            return end
        checksum, length, _ = _LOG_HEADER.unpack_from(content, offset)
        stop = offset + _LOG_HEADER.size + length
        if stop > size or _LOG_HEADER.size + length > left:
            return end
        if checksum != _masked_crc32c(crc32c(content[offset + _LOG_TYPE_OFFSET : stop])):
            return end
        offset = end = stop


class BlobFile(NamedTuple):
    """A blob file as the manifest has it: the bytes of its records, and the numbers of the table files that need it."""

    path: Path
    records_bytes: int
    table_files: frozenset[int]


def check_blob_files(files: Iterable[BlobFile]) -> None:
    """`CorruptionError` names the first file that is missing, or has not the size, or the ends, that it must have."""
    for file in files:
        with os_errors(file.path), file.path.open("rb") as content:
            size = file.path.stat().st_size
            header = content.read(len(_BLOB_MAGIC))
            content.seek(max(size - _BLOB_FOOTER_BYTES, 0))
            footer = content.read(len(_BLOB_MAGIC))
        expected = file.records_bytes + BLOB_ENDS_BYTES
        if size != expected:
            raise CorruptionError(f"{file.path} has {size} bytes, the manifest says {expected}", hint=RESTORE)
        if header != _BLOB_MAGIC or footer != _BLOB_MAGIC:
            raise CorruptionError(f"{file.path} is damaged: it does not begin and end as a blob file", hint=RESTORE)


def damaged_offset(path: Path) -> int | None:
    """The offset of the first damaged record, None when all are whole. Reads the whole file."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as content,
    ):
        at = _BLOB_HEADER_BYTES
        while at < len(content) - _BLOB_FOOTER_BYTES:
            stop = _record_stop(content, at)
            if stop is None:
                return at
            at = stop
    return None


def _record_stop(content: memoryview, at: int) -> int | None:
    start = at + _BLOB_RECORD.size
    if start > len(content):
        return None
    key_bytes, value_bytes, _, lengths_crc, record_crc = _BLOB_RECORD.unpack_from(content, at)
    if lengths_crc != _masked_crc32c(crc32c(content[at : at + _BLOB_LENGTHS_BYTES])):
        return None
    stop: int = start + key_bytes + value_bytes
    return stop if record_crc == _masked_crc32c(crc32c(content[start:stop])) else None


def _masked_crc32c(crc: int) -> int:
    """The CRC-32C as RocksDB stores it in logs and blob files."""
    rotated = (crc >> 15) | (crc << 17)
    return (rotated + _MASK_DELTA) & 0xFFFFFFFF
