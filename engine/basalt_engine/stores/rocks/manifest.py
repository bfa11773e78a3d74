"""RocksDB's manifest, read without RocksDB: which files the database needs, and the checksum that each had when it was written.

A manifest is a log (see damage.py) of edits. An edit is a row of tagged fields; numbers are variable-length, seven bits to
a byte, lowest first; texts have their length before them. All edits together make the list of files. Only the tags that
this store's options bring about are read, and those that RocksDB marks as safe to skip; any other is refused, for guessing
its length would be guessing what the database holds.
"""

from __future__ import annotations

import re
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from basalt_engine.errors import CorruptionError
from basalt_engine.stores.rocks.damage import BLOB_ENDS_BYTES, RESTORE, os_errors

CHECKSUM_NAME = b"FileChecksumCrc32c"
_CHECKSUM_BYTES = 4

_BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

# Tags of an edit's fields, and how their contents are to be skipped.
_LOG_NUMBER, _FIRST_LOG, _FAMILY = 2, 10, 200
_NUMBERS = frozenset(
    (_LOG_NUMBER, 3, 4, 9, _FIRST_LOG, _FAMILY, 203, 300)
)  # next file, last sequence, …: one number each
_TEXTS = frozenset((1, 201))  # comparator, name of a new column family
_CURSOR, _DELETED_FILE, _NEW_FILE, _FAMILY_DROP = 5, 6, 103, 202
_NEW_BLOB, _BLOB_GARBAGE = 400, 401
_LOG_CLOSED, _LOGS_DELETED = 8199, 8200  # texts that begin with a log's number
_SAFE_TO_SKIP = 1 << 13  # a text follows, whatever it means

# Tags of a new file's own fields, each with a text.
_END_OF_FILE, _OLDEST_BLOB, _FILE_CHECKSUM, _CHECKSUM_FUNCTION = 1, 4, 7, 8
_END_OF_BLOB = 0


class StoreFile(NamedTuple):
    """A table or blob file that the database needs. `crc` is None where none was kept."""

    name: str
    size_bytes: int
    crc: int | None


class Needs(NamedTuple):
    """The files that a database needs: tables and blobs, and of its logs those from the number `first_log` on.

    `closed_logs` are those of them that were complete before the newest one was begun. `sequence` is the number of the newest
    change that was ever written to a table file.
    """

    files: list[StoreFile]
    first_log: int
    closed_logs: frozenset[int]
    sequence: int


class _Table(NamedTuple):
    file: StoreFile
    oldest_blob: int
    last_change: int


class _Blob(NamedTuple):
    file: StoreFile
    values: int


class _Logs:
    """The state of the logs, edit after edit; a change keeps its number here when a table file is written anew without it."""

    def __init__(self) -> None:
        self.first = 0
        self.closed: set[int] = set()
        self.sequence = 0


class _Family:
    """The files of one column family, edit after edit."""

    def __init__(self) -> None:
        self.first_log = 0
        self.tables: dict[int, _Table] = {}
        self.blobs: dict[int, _Blob] = {}
        self.garbage: Counter[int] = Counter()  # values that nothing needs any more

    def files(self) -> Iterator[StoreFile]:
        """The files that it needs now: RocksDB keeps no blob file older than the oldest one that a table file points into."""
        yield from (table.file for table in self.tables.values())
        linked = {table.oldest_blob for table in self.tables.values() if table.oldest_blob}
        for number, blob in self.blobs.items():
            if linked and number >= min(linked) and (number in linked or self.garbage[number] < blob.values):
                yield blob.file


def current_manifest(database: Path) -> Path:
    """The manifest that CURRENT names; `CorruptionError` when it names none, or it is missing."""
    current = database / "CURRENT"
    with os_errors(current):
        content = current.read_text("latin-1")
    name = content.removesuffix("\n")
    if not re.fullmatch(r"MANIFEST-\d+", name) or name == content:
        raise CorruptionError(f"{current} is damaged: it does not name a manifest", hint=RESTORE)
    if not (database / name).exists():
        raise CorruptionError(f"{database / name} is missing, but {current} names it", hint=RESTORE)
    return database / name


def read_manifest(manifest: Path) -> Needs:
    """The files that the database needs. That the manifest's own records are whole was checked before."""
    with os_errors(manifest):
        content = manifest.read_bytes()
    families: dict[int, _Family] = {}
    logs = _Logs()
    try:
        for edit in log_records(content):
            _apply(families, logs, _Edit(edit))
    except (IndexError, ValueError) as error:
        raise CorruptionError(f"{manifest} cannot be read: {error!r}", hint=RESTORE) from error
    files = [file for family in families.values() for file in family.files()]
    first_log = max(logs.first, min((family.first_log for family in families.values()), default=0))
    closed = frozenset(number for number in logs.closed if number >= first_log)
    return Needs(sorted(files, key=lambda file: int(file.name.partition(".")[0])), first_log, closed, logs.sequence)


def log_records(content: bytes) -> Iterator[bytes]:
    """The records of a log whose checksums were looked at before; ends with the last whole one."""
    parts: list[bytes] = []
    at = 0
    while True:
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER.size:
            at += left
            continue
        if at + _HEADER.size > len(content):
            return
        _, length, kind = _HEADER.unpack_from(content, at)
        stop = at + _HEADER.size + length
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or stop > len(content):
            return  # what a crash left of a record; where one must be whole was checked
        if kind in (_WHOLE, _FIRST):
            parts = []
        parts.append(content[at + _HEADER.size : stop])
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)
        at = stop


class _Edit:
    """One edit, and how far it was read."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.content[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def text(self) -> bytes:
        length = self.number()
        self.at += length
        if self.at > len(self.content):
            raise IndexError(f"a text of {length} bytes ends behind its edit")
        return self.content[self.at - length : self.at]

    def custom(self, end: int) -> dict[int, bytes]:
        """Further fields of a file, up to the tag that ends them."""
        fields = {}
        while (tag := self.number()) != end:
            fields[tag] = self.text()
        return fields


def _apply(families: dict[int, _Family], logs: _Logs, edit: _Edit) -> None:
    """Take one edit over; what names no family is about family 0."""
    fields: dict[int, list[Any]] = defaultdict(list)
    while edit.at < len(edit.content):
        tag = edit.number()
        fields[tag].append(_reader(tag)(edit))
    logs.first = max([logs.first, *fields[_FIRST_LOG], *(_Edit(text).number() for text in fields[_LOGS_DELETED])])
    logs.closed.update(_Edit(text).number() for text in fields[_LOG_CLOSED])
    logs.sequence = max([logs.sequence, *(table.last_change for _number, table in fields[_NEW_FILE])])
    number = fields[_FAMILY][-1] if fields[_FAMILY] else 0
    if fields[_FAMILY_DROP]:
        families.pop(number, None)
        return
    family = families.setdefault(number, _Family())
    family.first_log = max([family.first_log, *fields[_LOG_NUMBER]])
    for _level, table in fields[_DELETED_FILE]:  # before those that are new: a file that moves to another level is both
        family.tables.pop(table, None)
    family.tables |= dict(fields[_NEW_FILE])
    family.blobs |= dict(fields[_NEW_BLOB])
    for blob, values in fields[_BLOB_GARBAGE]:
        family.garbage[blob] += values


def _reader(tag: int) -> Callable[[_Edit], Any]:
    """The way to read the contents of a field."""
    if tag in _NUMBERS:
        return _Edit.number
    if tag in _TEXTS or tag & _SAFE_TO_SKIP:
        return _Edit.text
    if tag not in _FIELDS:
        raise ValueError(f"an edit has the unknown field {tag}")
    return _FIELDS[tag]


def _new_file(edit: _Edit) -> tuple[int, _Table]:
    _level, number, size_bytes = edit.number(), edit.number(), edit.number()
    _first_key, _last_key, _first_change, last_change = edit.text(), edit.text(), edit.number(), edit.number()
    fields = edit.custom(_END_OF_FILE)
    crc = _crc(fields.get(_CHECKSUM_FUNCTION, b""), fields.get(_FILE_CHECKSUM, b""))
    oldest_blob = _Edit(fields[_OLDEST_BLOB]).number() if _OLDEST_BLOB in fields else 0
    return number, _Table(StoreFile(f"{number:06d}.sst", size_bytes, crc), oldest_blob, last_change)


def _new_blob(edit: _Edit) -> tuple[int, _Blob]:
    number, values, record_bytes = edit.number(), edit.number(), edit.number()
    function, checksum = edit.text(), edit.text()
    edit.custom(_END_OF_BLOB)
    size_bytes = record_bytes + BLOB_ENDS_BYTES
    return number, _Blob(StoreFile(f"{number:06d}.blob", size_bytes, _crc(function, checksum)), values)


def _blob_garbage(edit: _Edit) -> tuple[int, int]:
    number, values, _bytes = edit.number(), edit.number(), edit.number()
    edit.custom(_END_OF_BLOB)
    return number, values


def _crc(function: bytes, checksum: bytes) -> int | None:
    if function != CHECKSUM_NAME or len(checksum) != _CHECKSUM_BYTES:
        return None
    return int.from_bytes(checksum, "big")


_FIELDS: dict[int, Callable[[_Edit], Any]] = {
    _CURSOR: lambda edit: (edit.number(), edit.text()),
    _DELETED_FILE: lambda edit: (edit.number(), edit.number()),
    _NEW_FILE: _new_file,
    _FAMILY_DROP: lambda _edit: True,
    _NEW_BLOB: _new_blob,
    _BLOB_GARBAGE: _blob_garbage,
}
