"""The file SYNCED: how much of RocksDB's files was on the disk at the last write. Format: docs/formats/rocks-store.md.

RocksDB does not notice when its newest log is gone or cut short, nor when the end of its manifest is: it starts with a
shorter history, and then deletes the files that this history does not know. With this file the loss is noticed before
RocksDB is started. The file is overwritten in place after each synced write and needs no sync of its own: whichever of
its versions survives a power failure names only bytes that were on the disk before it was written.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from basalt_engine.errors import BasaltError, CorruptionError
from basalt_engine.stores.rocks.errors import RESTORE, from_os
from basalt_engine.stores.rocks.file_checks import check_log

SLOT_BYTES = 4 << 10  # two slots take turns, each in a page of its own, so that a torn write leaves the other one whole
LOGS_MAX = 64  # of these the newest are kept; RocksDB has about as many as it has column families

_MAGIC = b"basalt-synced-1"

log = logging.getLogger("basalt.store")


class Marks(NamedTuple):
    """The part of the database that is known to be on the disk: the number of changes, and file names with sizes in bytes.

    `turn` counts the versions of these marks. `torn_tails` tells whether everything behind the sizes is unacknowledged, as
    it is when every write is synced.
    """

    turn: int
    sequence: int
    torn_tails: bool
    manifest: str
    manifest_bytes: int
    logs: dict[str, int]


class SyncedFile:
    """The marks of one data directory. Not safe for threads: the store's write lock guards it."""

    def __init__(self, path: Path, database: Path, marks: Marks) -> None:
        self.marks = marks
        self._path = path
        self._database = database
        self._paths: dict[str, Path] = {}  # of the files looked at by every write; making a path takes longer
        self._file = -1

    @classmethod
    def load(cls, path: Path, database: Path) -> SyncedFile:
        """The marks that were written last; `CorruptionError` when neither slot is whole."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise from_os(error, path) from error
        slots = [_decode(content[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
        whole = [marks for marks in slots if marks is not None]
        if not whole:
            raise CorruptionError(f"{path} is damaged: neither of its two slots is whole", hint=RESTORE)
        return cls(path, database, max(whole, key=lambda marks: marks.turn))

    def verify(self) -> None:
        """Compare the marks with the files, before RocksDB opens them; `CorruptionError` names what is missing.

        A record at the end of a log that was never acknowledged, and that a power failure left in pieces, is cut off.
        """
        self._verify_manifest()
        existing = {file.name: file for file in self._database.glob("*.log")}
        ends: dict[Path, int] = {}
        for name, synced_bytes in self.marks.logs.items():
            file = existing.get(name)
            if file is not None:
                ends[file] = check_log(file, synced_bytes)
            elif not any(_number(other) > _number(name) for other in existing):
                # RocksDB removes a log only when a newer one exists; it checks by itself that it needs none of these.
                raise CorruptionError(
                    f"{self._database / name} is missing; {synced_bytes} bytes of it were synced", hint=RESTORE
                )
        if self.marks.torn_tails:
            for file, end in ends.items():
                _cut(file, end)

    def _verify_manifest(self) -> None:
        current = self._database / "CURRENT"
        try:
            content = current.read_text("latin-1")
        except OSError as error:
            raise from_os(error, current) from error
        manifest = content.removesuffix("\n")
        if not manifest.startswith("MANIFEST-") or not manifest[9:].isdecimal() or manifest == content:
            raise CorruptionError(f"{current} is damaged: it does not name a manifest", hint=RESTORE)
        if _number(manifest) < _number(self.marks.manifest):
            raise CorruptionError(f"{current} names {manifest}, but {self.marks.manifest} is newer", hint=RESTORE)
        if not (self._database / manifest).exists():
            raise CorruptionError(f"{self._database / manifest} is missing, but {current} names it", hint=RESTORE)
        known = manifest == self.marks.manifest
        check_log(self._database / manifest, self.marks.manifest_bytes if known else 0)

    def advance(self, sequence: int, *, torn_tails: bool) -> None:
        """Note that everything up to this sequence is on the disk; called after each sync.

        Never fails: the write that it is about has succeeded, and older marks are still true.
        """
        marks = self.marks
        logs = marks.logs
        manifest, manifest_bytes = marks.manifest, marks.manifest_bytes
        try:
            newest = next(reversed(logs), "")
            size = self._size(newest)
            if not newest or size <= logs[newest]:  # the write went into a newer log
                logs = self._current_logs()
            else:
                logs = {**logs, newest: size}
            if self._size(manifest) != manifest_bytes:
                manifest, manifest_bytes = self._sync_manifest()
            self._write(Marks(marks.turn + 1, sequence, torn_tails, manifest, manifest_bytes, logs))
        except (OSError, BasaltError):
            log.warning("%s could not be brought up to date", self._path, exc_info=True)

    def restart(self, sequence: int, *, torn_tails: bool) -> None:
        """Note which files RocksDB has after it was opened, with everything up to this sequence on the disk."""
        manifest, manifest_bytes = self._sync_manifest()
        logs = self._current_logs()
        try:
            self._write(Marks(self.marks.turn + 1, sequence, torn_tails, manifest, manifest_bytes, logs))
        except OSError as error:
            raise from_os(error, self._path) from error

    def finish(self, sequence: int) -> None:
        """Note that RocksDB was closed with everything up to this sequence in table files: it needs no log any more.

        Never fails, as `advance` does not.
        """
        try:
            manifest, manifest_bytes = self._sync_manifest()
            self._write(Marks(self.marks.turn + 1, sequence, True, manifest, manifest_bytes, {}))
        except (OSError, BasaltError):
            log.warning("%s could not be brought up to date", self._path, exc_info=True)

    def release(self) -> None:
        """Close the file, leaving the marks as they are."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _size(self, name: str) -> int:
        path = self._paths.get(name)
        if path is None:
            path = self._paths[name] = self._database / name
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    def _current_logs(self) -> dict[str, int]:
        """Known logs that still exist with their last known sizes, and the newest one with its size now."""
        self._paths.clear()
        names = sorted((file.name for file in self._database.glob("*.log")), key=_number)[-LOGS_MAX:]
        logs = {name: self.marks.logs[name] for name in names if name in self.marks.logs}
        if names:
            logs[names[-1]] = self._size(names[-1])
        return logs

    def _sync_manifest(self) -> tuple[str, int]:
        """The manifest's name, and its size up to the last whole record: RocksDB may be writing the next one now."""
        path = self._database / "CURRENT"
        try:
            path = self._database / path.read_text("latin-1").removesuffix("\n")
            known_bytes = self.marks.manifest_bytes if path.name == self.marks.manifest else 0
            end = check_log(path, known_bytes, start=known_bytes)
            with path.open("rb") as file:
                os.fdatasync(file.fileno())
        except OSError as error:
            raise from_os(error, path) from error
        return path.name, end

    def _write(self, marks: Marks) -> None:
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        os.pwrite(self._file, _encode(marks), marks.turn % 2 * SLOT_BYTES)
        self.marks = marks


def create_synced_file(path: Path, database: Path, sequence: int) -> SyncedFile:
    """Write the first marks of a new database, or of a copy of one, and sync them."""
    file = SyncedFile(path, database, Marks(0, sequence, True, "MANIFEST-0", 0, {}))
    try:
        path.write_bytes(bytes(2 * SLOT_BYTES))
        file.restart(sequence, torn_tails=True)
        os.fsync(file._file)
    except OSError as error:
        raise from_os(error, path) from error
    return file


def _encode(marks: Marks) -> bytes:
    logs = ",".join([f"{name}:{size}" for name, size in marks.logs.items()])
    text = (
        f"turn={marks.turn} sequence={marks.sequence} torn_tails={marks.torn_tails:d} "
        f"manifest={marks.manifest}:{marks.manifest_bytes} logs={logs}"
    )
    body = _MAGIC + b" " + text.encode()
    return body + b" crc32c=%08x\n" % crc32c(body)


def _decode(slot: bytes) -> Marks | None:
    """The marks in a slot, None when it is not whole. Behind its first line there may be the end of a longer one."""
    body, _, checksum = slot.partition(b"\n")[0].rpartition(b" crc32c=")
    if not body.startswith(_MAGIC) or checksum != b"%08x" % crc32c(body):
        return None
    fields = dict(field.split("=") for field in body.decode().split()[1:])
    manifest, _, manifest_bytes = fields["manifest"].partition(":")
    logs = dict(item.split(":") for item in fields["logs"].split(",") if item)
    return Marks(
        int(fields["turn"]),
        int(fields["sequence"]),
        fields["torn_tails"] == "1",
        manifest,
        int(manifest_bytes),
        {name: int(size) for name, size in logs.items()},
    )


def _cut(path: Path, end: int) -> None:
    try:
        torn_bytes = path.stat().st_size - end
        if torn_bytes:
            log.warning("cut %d bytes of a write that was never acknowledged off %s", torn_bytes, path)
            with path.open("r+b") as file:
                file.truncate(end)
                os.fsync(file.fileno())
    except OSError as error:
        raise from_os(error, path) from error


def _number(name: str) -> int:
    """The number in `000012.log` or `MANIFEST-000012`."""
    digits = name.removesuffix(".log").removeprefix("MANIFEST-")
    return int(digits) if digits.isdecimal() else 0
