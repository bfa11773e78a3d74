"""The embedded store: RocksDB in a data directory of its own. Files and formats: docs/formats/rocks-store.md.

When a write fails, RocksDB refuses all later ones until it is opened again. The store does so by itself: at once, to
learn from the reopened log whether the failed write had arrived, and at each later write until it succeeds. While the
disk has no space to open it again, the old opening stays and serves reads.

RocksDB does not notice when its newest log is gone or cut short, nor when the end of its manifest is: it starts with a
shorter history, and then deletes the files that this history does not know. The file SYNCED says how much of its files was
on the disk at the last write, so that the loss is noticed before RocksDB is started. It is overwritten in place after each
synced write and needs no sync of its own: whichever of its versions survives a power failure names only bytes that were on
the disk before it was written.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from crc32c import crc32c
from rocksdict import DbClosedError, WriteBatch

from basalt_engine.clock import SystemClock
from basalt_engine.errors import (
    BasaltError,
    CorruptionError,
    DataDirectoryError,
    DiskFullError,
    StoreError,
    UnknownOutcomeError,
)
from basalt_engine.stores.rocks.damage import RESTORE, check_log, os_errors
from basalt_engine.stores.rocks.data_directory import DataDirectory, sync_directory, write_format
from basalt_engine.stores.rocks.database import CACHE_BYTES, Database, Figures, RocksOptions
from basalt_engine.stores.rocks.manifest import current_manifest
from basalt_engine.stores.rocks.replacement import copy_tree
from basalt_engine.stores.rocks.rows import StagedWrite
from basalt_engine.stores.rocks.table import RocksTable
from basalt_engine.table import TABLE_NAMES, Columns, Put, TableWrite, check_columns, check_key, check_table

SPARE_BYTES = 1 << 20  # beside the logs, which are written into table files, opening needs space for small files
OPEN_TRIES = 300  # with the pause below: 3 s for other threads to come to the end of the chunk that they are reading
OPEN_PAUSE_S = 0.01
GARBAGE_PAUSE_MS = 10_000  # between two looks at the garbage in blob files, which take some microseconds
SLOT_BYTES = (
    4 << 10
)  # two slots of SYNCED take turns, each in a page of its own: a torn write leaves the other one whole
LOGS_MAX = 64  # of these the newest are kept; RocksDB has about as many as it has column families

_MAGIC = b"basalt-synced-1"

T = TypeVar("T")
OpenDatabase = Callable[..., Database]  # `Database`, or a test's that fails where it is told to

log = logging.getLogger("basalt.store")


class RocksStore:
    """The tables in one data directory. Any thread may call it; writers take turns."""

    kind = "rocks"
    atomic = True
    remote = False
    applies_retention = False

    def __init__(self, durable: DurableDatabase) -> None:
        self._durable = durable
        self._lock = threading.Lock()  # held by the one writer, and while the database is reopened
        self._tables = {name: RocksTable(name, self) for name in TABLE_NAMES}

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        sync: bool = True,
        cache_bytes: int = CACHE_BYTES,
        open_database: OpenDatabase = Database,
    ) -> RocksStore:
        """Open the data directory, created if it does not exist or is empty.

        With `sync` a write is on the disk when it returns; without, a power failure may lose the last ones, but never
        one without all those after it. `cache_bytes` is what all tables together keep of what they read. Tests inject
        faults with `open_database`.

        Raises `DataDirectoryError` when the directory is not one that this program may open, `CorruptionError` when a
        part of it is missing, short or damaged, and `DiskFullError`.
        """
        locked = DataDirectory.open(directory.absolute())  # the program may change its working directory
        try:
            return cls(DurableDatabase(locked, sync=sync, cache_bytes=cache_bytes, open_database=open_database))
        except BaseException:
            locked.release()
            raise

    @property
    def busy(self) -> bool:
        """True while a checkpoint or another writer holds the lock that a write needs."""
        return self._lock.locked()

    def table(self, name: str) -> RocksTable:
        check_table(name)
        return self._tables[name]

    def reading(self, read: Callable[[Database], T]) -> T:
        """Call `read` with the open database; once more when the store has reopened it meanwhile."""
        database = self._durable.database
        if database is not None:
            try:
                return read(database)
            except DbClosedError:
                pass  # by a writer, which has the lock until it has opened another one
        with self._lock:
            if self._durable.database is None:
                raise self._durable.why_closed()
            return read(self._durable.database)

    def write(self, writes: Sequence[TableWrite]) -> None:
        with self._lock:
            staged = StagedWrite(self._durable.ready())
            for write in writes:
                staged.add(write)
            self._commit(staged)

    def check_and_write(self, table: str, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        """Put `columns` into the table's row iff its `column` now equals `expected`."""
        check_key(key)
        check_columns(columns)
        with self._lock:
            staged = StagedWrite(self._durable.ready())
            if staged.column(table, key, column) != expected:
                return False
            staged.add(TableWrite(table, [Put(key, columns)]))
            self._commit(staged)
            return True

    def _commit(self, staged: StagedWrite) -> None:
        if not staged.batch.is_empty():
            self._durable.write(staged.batch)

    def lead(self, epoch: int) -> None:
        """The lock on the data directory keeps every other process out, so there is nobody to refuse."""

    def take(self, epochs: Mapping[int, int]) -> None:
        """Nor is there anybody else who could have had these shards."""

    def checkpoint(self, directory: Path) -> None:
        """Write a copy of all tables into a new directory, which can be opened as a data directory.

        On the same file system the copy shares the large files, so it takes little time and space. Writers wait for the links
        alone: on another file system RocksDB would copy every file meanwhile, so there the links are made first, and copied.
        Raises `DataDirectoryError` when the directory exists and is not empty.
        """
        with os_errors(directory):
            if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
                raise DataDirectoryError(f"{directory} exists already", hint="name a new directory for the copy")
            directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=directory.parent))
            is_far = partial.stat().st_dev != self.path.stat().st_dev
            links = Path(tempfile.mkdtemp(prefix=".partial-", dir=self.path)) if is_far else partial
            try:
                self._copy(links)
                if is_far:
                    copy_tree(links, partial)
                partial.replace(directory)
                sync_directory(directory.parent)
            finally:
                for left in (partial, links):
                    shutil.rmtree(left, ignore_errors=True)

    def _copy(self, directory: Path) -> None:
        with self._lock:
            database = self._durable.ready()
            sequence = database.sequence()
            database.checkpoint(directory / "rocks")
        create_synced_file(directory / "SYNCED", directory / "rocks", sequence).release()
        write_format(directory, initialised=True)

    @property
    def path(self) -> Path:
        """The data directory."""
        return self._durable.path

    def figures(self) -> Figures | None:
        """The database's state; None while it is closed or being opened again, for which nobody has to wait here."""
        database = self._durable.database
        try:
            return None if database is None else database.figures()
        except DbClosedError:
            return None

    def close(self) -> None:
        """Write everything to table files, close them, and unlock the directory; closing twice is fine."""
        with self._lock:
            self._durable.close()


class DurableDatabase:
    """Opens, writes, reopens and closes the database. The store's write lock guards all of it but `database`."""

    def __init__(self, directory: DataDirectory, *, sync: bool, cache_bytes: int, open_database: OpenDatabase) -> None:
        self.database: Database | None = None  # None while it cannot be read
        self.path = directory.path
        self._directory = directory
        self._sync = sync
        self._open_database = open_database
        with os_errors(directory.path):
            self._options = RocksOptions(directory.path, cache_bytes)
        self._synced: SyncedFile | None = None
        self._failure: BasaltError | None = None
        self._closed = False
        self._clock = SystemClock()
        self._look_ms = 0.0  # when the next write is to look at the garbage
        try:
            self._open()
        except BaseException:
            self._release_marks()
            raise

    def _open(self) -> None:
        path = self._directory.database
        if not self._directory.initialised:
            database = self._open_database(path, self._options, create=True)
            try:
                self._synced = create_synced_file(self._directory.synced, path, database.sequence())
                self._directory.finish()
            except BaseException:
                database.close()
                raise
            self.database = database
            return
        synced = self._synced = self._synced or SyncedFile.load(self._directory.synced, path)
        synced.verify()
        if synced.marks.logs:
            log.info("%s was not closed: %d bytes of its log are read again", self._directory.path, self._log_bytes())
        database = self._open_when_unlocked(path)
        try:
            if database.sequence() < synced.marks.sequence:
                raise CorruptionError(
                    f"{path} ends at change {database.sequence()}, but {synced.marks.sequence} changes were synced",
                    hint=RESTORE,
                )
            database.check_blob_files()
            # RocksDB has put what was in its logs into table files, so all of it is on the disk.
            synced.restart(database.sequence(), torn_tails=self._sync)
        except BaseException:
            database.close()
            raise
        self.database = database

    def _release_marks(self) -> None:
        if self._synced is not None:
            self._synced.release()

    def _open_when_unlocked(self, path: Path) -> Database:
        for _ in range(OPEN_TRIES if self._failure else 1):
            try:
                return self._open_database(path, self._options, create=False)
            except DataDirectoryError as error:
                refusal = error
                time.sleep(OPEN_PAUSE_S)
        raise refusal

    def ready(self) -> Database:
        """The database, opened again if a write had failed; raises why it cannot be."""
        if self._closed:
            raise self.why_closed()
        if self._failure is not None or self.database is None:
            self._reopen()
        assert self.database is not None
        return self.database

    def write(self, batch: WriteBatch) -> None:
        """Write the batch and put it on the disk; to be called on a database that is `ready`.

        Raises `StoreError` or `CorruptionError` when nothing of it was written, and `UnknownOutcomeError`.
        """
        database = self.database
        assert database is not None
        assert self._synced is not None
        before, changes = database.sequence(), batch.len()
        appended = False
        try:
            database.write(batch)
            appended = True
            if self._sync:
                database.sync()
        except BasaltError as error:
            self._failure = error
            self._find_outcome(error, appended, before, before + changes)
            return
        if self._sync:
            self._synced.advance(before + changes, torn_tails=True)
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + GARBAGE_PAUSE_MS
            self._tend_garbage(database)

    def _tend_garbage(self, database: Database) -> None:
        try:
            database.tend_garbage()
        except BasaltError as error:  # the write that looked is on the disk all the same, and a later one looks again
            log.warning("%s: how garbage is collected stays as it was: %s", self.path, error)

    def _find_outcome(self, error: BasaltError, appended: bool, before: int, after: int) -> None:
        """Look in the reopened log for a write that failed. Returns if it is there after all, else raises."""
        if isinstance(error, CorruptionError):
            raise error
        try:
            sequence = self.ready().sequence()
        except CorruptionError:
            raise
        except BasaltError as refusal:
            # A log entry for which there was no space is not whole, so it does not count when the log is read again.
            if isinstance(error, DiskFullError) and not appended:
                raise error from refusal
            raise UnknownOutcomeError(
                f"a write failed ({error}), and its outcome cannot be seen yet: {refusal}",
                hint="look whether it took effect before repeating it",
            ) from error
        if sequence == before:
            raise error
        if sequence != after:
            raise UnknownOutcomeError(f"a write failed half-way: {error}") from error

    def _reopen(self) -> None:
        with os_errors(self._directory.database):  # of looking at the files, when too many are open
            self._directory.require_space(self._log_bytes() + SPARE_BYTES)
            if self.database is not None:
                database, self.database = self.database, None
                database.close()
            try:
                self._open()
            except BasaltError as error:
                self._failure = error
                raise
        self._failure = None

    def _log_bytes(self) -> int:
        total = 0
        for file in self._directory.database.glob("*.log"):
            with suppress(FileNotFoundError):  # RocksDB removes those that it needs no more
                total += file.stat().st_size
        return total

    def why_closed(self) -> BasaltError:
        """The error for a reader or writer who finds no database."""
        if self._closed or self._failure is None:
            return StoreError("the store is closed", hint="open it again")
        return type(self._failure)(self._failure.message, hint=self._failure.hint)

    def close(self) -> None:
        """Write everything to table files, close, and unlock the directory; closing twice is fine."""
        database, self.database = self.database, None
        if database is not None and self._synced is not None:
            sequence = database.sequence()
            flushed = database.close()
            if flushed and self._failure is None:
                self._synced.finish(sequence)
        self._release_marks()
        self._closed = True
        self._directory.release()


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
        self._paths: dict[str, str] = {}  # of the files looked at by every write; making a path takes longer
        self._file = -1

    @classmethod
    def load(cls, path: Path, database: Path) -> SyncedFile:
        """The marks that were written last; `CorruptionError` when neither slot is whole."""
        with os_errors(path):
            content = path.read_bytes()
        slots = [_decode(content[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
        whole = [marks for marks in slots if marks is not None]
        if not whole:
            raise CorruptionError(f"{path} is damaged: neither of its two slots is whole", hint=RESTORE)
        return cls(path, database, max(whole, key=lambda marks: marks.turn))

    def verify(self) -> None:
        """Check the files before RocksDB opens them.

        A record at the end of a log that was never acknowledged, and that a power failure left in pieces, is cut off.
        """
        ends = self.check()
        if self.marks.torn_tails:
            for file, end in ends.items():
                _cut(file, end)

    def check(self) -> dict[Path, int]:
        """Compare the marks with the files; `CorruptionError` names what is missing. Returns where each log's records end."""
        self._check_manifest()
        existing = {file.name: file for file in self._database.glob("*.log")}
        ends: dict[Path, int] = {}
        for name, synced_bytes in self.marks.logs.items():
            file = existing.get(name)
            if file is not None:
                ends[file] = check_log(file, synced_bytes)
            elif not any(log_number(other) > log_number(name) for other in existing):
                # RocksDB removes a log only when a newer one exists; it checks by itself that it needs none of these.
                raise CorruptionError(
                    f"{self._database / name} is missing; {synced_bytes} bytes of it were synced", hint=RESTORE
                )
        return ends

    def _check_manifest(self) -> None:
        manifest = current_manifest(self._database)
        if log_number(manifest.name) < log_number(self.marks.manifest):
            raise CorruptionError(
                f"{self._database / 'CURRENT'} names {manifest.name}, but {self.marks.manifest} is newer", hint=RESTORE
            )
        known = manifest.name == self.marks.manifest
        check_log(manifest, self.marks.manifest_bytes if known else 0)

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
        with os_errors(self._path):
            self._write(Marks(self.marks.turn + 1, sequence, torn_tails, manifest, manifest_bytes, logs))

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
            path = self._paths[name] = str(self._database / name)
        try:
            return os.stat(path).st_size  # noqa: PTH116  # a Path's takes twice as long
        except FileNotFoundError:
            return 0

    def _current_logs(self) -> dict[str, int]:
        """Known logs that still exist with their last known sizes, and the newest one with its size now."""
        self._paths.clear()
        names = sorted((file.name for file in self._database.glob("*.log")), key=log_number)[-LOGS_MAX:]
        logs = {name: self.marks.logs[name] for name in names if name in self.marks.logs}
        if names:
            logs[names[-1]] = self._size(names[-1])
        return logs

    def _sync_manifest(self) -> tuple[str, int]:
        """The manifest's name, and its size up to the last whole record: RocksDB may be writing the next one now."""
        current = self._database / "CURRENT"
        with os_errors(current):
            path = self._database / current.read_text("latin-1").removesuffix("\n")
        known_bytes = self.marks.manifest_bytes if path.name == self.marks.manifest else 0
        end = check_log(path, known_bytes, start=known_bytes)
        with os_errors(path), path.open("rb") as file:
            os.fdatasync(file.fileno())
        return path.name, end

    def _write(self, marks: Marks) -> None:
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        os.pwrite(self._file, _encode(marks), marks.turn % 2 * SLOT_BYTES)
        self.marks = marks


def create_synced_file(path: Path, database: Path, sequence: int) -> SyncedFile:
    """Write the first marks of a new database, or of a copy of one, and sync them."""
    file = SyncedFile(path, database, Marks(0, sequence, True, "MANIFEST-0", 0, {}))
    with os_errors(path):
        path.write_bytes(bytes(2 * SLOT_BYTES))
        file.restart(sequence, torn_tails=True)
        os.fsync(file._file)
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
    with os_errors(path):
        torn_bytes = path.stat().st_size - end
        if torn_bytes:
            log.warning("cut %d bytes of a write that was never acknowledged off %s", torn_bytes, path)
            with path.open("r+b") as file:
                file.truncate(end)
                os.fsync(file.fileno())


def log_number(name: str) -> int:
    """The number in `000012.log` or `MANIFEST-000012`."""
    digits = name.removesuffix(".log").removeprefix("MANIFEST-")
    return int(digits) if digits.isdecimal() else 0
