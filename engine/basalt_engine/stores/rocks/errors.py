"""RocksDB's and the operating system's errors as ours. The binding raises plain `Exception`s, told apart by their words."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from basalt_engine.errors import BasaltError, CorruptionError, DataDirectoryError, DiskFullError, StoreError

_DISK_FULL = re.compile("No space left on device|File too large|Disk quota exceeded")
_DISK_FULL_NUMBERS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
RESTORE = "stop the server and put the data directory back from a backup"
_MAKE_SPACE = "free some space on the disk of the data directory; writing goes on without a restart"


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


def _where(text: str, directory: Path) -> str:
    """The file that RocksDB's text names, else the directory."""
    found = re.search(rf"{re.escape(str(directory))}/+[\w.-]*\w", text)
    if found:
        return found.group()
    number = re.search(r"WAL (?:with log number|\(log number): (\d+)", text)
    return f"{directory}/{int(number.group(1)):06d}.log" if number else str(directory)
