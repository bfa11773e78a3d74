"""The embedded store: RocksDB in a data directory of its own. Files and formats: docs/formats/rocks-store.md."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rocksdict import DbClosedError

from basalt_engine.errors import DataDirectoryError
from basalt_engine.stores.limits import check_columns, check_key, check_table
from basalt_engine.stores.rocks.data_directory import DataDirectory, sync_directory, write_format
from basalt_engine.stores.rocks.database import CACHE_BYTES, Database
from basalt_engine.stores.rocks.durable_database import DurableDatabase, OpenDatabase
from basalt_engine.stores.rocks.errors import from_os
from basalt_engine.stores.rocks.staged_write import StagedWrite
from basalt_engine.stores.rocks.synced import create_synced_file
from basalt_engine.stores.rocks.table import RocksTable
from basalt_engine.table import TABLE_NAMES, Columns, Put, TableWrite

T = TypeVar("T")


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
        """The table of this name; `InputError` when there is none."""
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
        """Apply the writes in order as one durable batch."""
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

    def checkpoint(self, directory: Path) -> None:
        """Write a copy of all tables into a new directory, which can be opened as a data directory.

        On the same file system the copy shares the large files, so it takes little time and space; writers wait for it.
        Raises `DataDirectoryError` when the directory exists and is not empty.
        """
        try:
            if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
                raise DataDirectoryError(f"{directory} exists already", hint="name a new directory for the copy")
            directory.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        except OSError as error:
            raise from_os(error, directory) from error
        try:
            self._copy(partial)
            partial.replace(directory)
            sync_directory(directory.parent)
        except OSError as error:
            raise from_os(error, directory) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _copy(self, directory: Path) -> None:
        with self._lock:
            database = self._durable.ready()
            sequence = database.sequence()
            database.checkpoint(directory / "rocks")
        create_synced_file(directory / "SYNCED", directory / "rocks", sequence).release()
        write_format(directory, initialised=True)

    def close(self) -> None:
        """Write everything to table files, close them, and unlock the directory; closing twice is fine."""
        with self._lock:
            self._durable.close()
