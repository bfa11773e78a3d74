"""The database of one data directory, whose writes are on the disk when they return.

When a write fails, RocksDB refuses all later ones until it is opened again. The store does so by itself: at once, to
learn from the reopened log whether the failed write had arrived, and at each later write until it succeeds. While the
disk has no space to open it again, the old opening stays and serves reads.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from rocksdict import WriteBatch

from basalt_engine.errors import (
    BasaltError,
    CorruptionError,
    DataDirectoryError,
    DiskFullError,
    StoreError,
    UnknownOutcomeError,
)
from basalt_engine.stores.rocks.data_directory import DataDirectory
from basalt_engine.stores.rocks.database import Database, RocksOptions
from basalt_engine.stores.rocks.errors import RESTORE, from_os
from basalt_engine.stores.rocks.synced import SyncedFile, create_synced_file

SPARE_BYTES = 1 << 20  # beside the logs, which are written into table files, opening needs space for small files
OPEN_TRIES = 300  # with the pause below: 3 s for other threads to come to the end of the chunk that they are reading
OPEN_PAUSE_S = 0.01


class OpenDatabase(Protocol):
    """`Database`, or a test's that fails where it is told to."""

    def __call__(self, path: Path, options: RocksOptions, *, create: bool) -> Database: ...


class DurableDatabase:
    """Opens, writes, reopens and closes the database. The store's write lock guards all of it but `database`."""

    def __init__(self, directory: DataDirectory, *, sync: bool, cache_bytes: int, open_database: OpenDatabase) -> None:
        self.database: Database | None = None  # None while it cannot be read
        self._directory = directory
        self._sync = sync
        self._open_database = open_database
        try:
            self._options = RocksOptions(directory.path, cache_bytes)
        except OSError as error:
            raise from_os(error, directory.path) from error
        self._synced: SyncedFile | None = None
        self._failure: BasaltError | None = None
        self._closed = False
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
        try:
            self._directory.require_space(self._log_bytes() + SPARE_BYTES)
            if self.database is not None:
                database, self.database = self.database, None
                database.close()
            self._reopen_closed()
        except OSError as error:  # of looking at the files, when too many are open
            raise from_os(error, self._directory.database) from error
        self._failure = None

    def _reopen_closed(self) -> None:
        try:
            self._open()
        except BasaltError as error:
            self._failure = error
            raise

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
