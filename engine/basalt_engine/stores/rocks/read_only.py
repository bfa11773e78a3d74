"""A read-only store over a data directory that no server has open: a backup, or that of a server that was stopped.

It takes no lock and changes no file, so any number of processes may have it open at a time. Offline jobs read so.
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from basalt_engine.errors import DataDirectoryError, InputError
from basalt_engine.stores.rocks.damage import os_errors
from basalt_engine.stores.rocks.data_directory import read_format
from basalt_engine.stores.rocks.database import Database, RocksOptions
from basalt_engine.stores.rocks.table import RocksTable
from basalt_engine.table import TABLE_NAMES, Columns, TableWrite, check_table

CACHE_BYTES = 8 << 20  # a job reads each row once: only the indexes of the files are worth keeping

T = TypeVar("T")


class ReadOnlyRocksStore:
    """The tables in one data directory, which nobody changes. Any thread may read them."""

    kind = "rocks"
    atomic = True
    remote = False
    applies_retention = False
    busy = False

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = {name: RocksTable(name, self) for name in TABLE_NAMES}

    @classmethod
    def open(cls, directory: Path) -> ReadOnlyRocksStore:
        """Open what is there.

        `DataDirectoryError` when it is no data directory of this format, or a server has it open: its files come and go.
        """
        directory = directory.absolute()
        check_closed(directory)
        with os_errors(directory):
            # Not in the directory, which may be on a disk that cannot be written.
            options = RocksOptions(Path(tempfile.gettempdir()), CACHE_BYTES)
        return cls(Database(directory / "rocks", options, create=False, read_only=True))

    def table(self, name: str) -> RocksTable:
        check_table(name)
        return self._tables[name]

    def reading(self, read: Callable[[Database], T]) -> T:
        """Call `read` with the open database."""
        return read(self._database)

    def write(self, writes: Sequence[TableWrite]) -> None:
        """`InputError`: it is open to be read."""
        raise InputError(f"{self._database.path} is open to be read only", hint="open it with a server to change it")

    def check_and_write(self, table: str, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        """`InputError`: it is open to be read."""
        raise InputError(f"{self._database.path} is open to be read only", hint="open it with a server to change it")

    def close(self) -> None:
        """Let go of the files; closing twice is fine."""
        self._database.close()

    def __enter__(self) -> ReadOnlyRocksStore:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def check_closed(directory: Path) -> None:
    """Raise `DataDirectoryError` unless the directory can be read as it is."""
    file = directory / "FORMAT"
    if not file.is_file():
        raise DataDirectoryError(
            f"{directory} is no data directory of Basalt's: it has no file FORMAT",
            hint="name the directory of a backup, as `basalt backup create` printed it",
        )
    with os_errors(file):
        initialised = read_format(file)
        in_use = is_locked(directory / "LOCK")
    if not initialised:
        raise DataDirectoryError(
            f"{directory} was never complete", hint="open it once with `basalt serve`, which goes on with creating it"
        )
    if in_use:
        raise DataDirectoryError(
            f"a server has {directory} open", hint="make a copy with `basalt backup create NAME` and read that"
        )


def is_locked(lock: Path) -> bool:
    """True if a process has the directory's lock; a backup has no lock file yet."""
    if not lock.exists():
        return False
    with lock.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
