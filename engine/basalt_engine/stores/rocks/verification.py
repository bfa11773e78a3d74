"""Verification: every byte of a data directory that nobody has open, a backup above all, compared with what was written.

RocksDB keeps a checksum of each table and blob file in its manifest from when it wrote the file. So a byte that changed
later is found wherever it is, in an index as in a row that nobody reads. The manifest and the logs have a checksum in every
record, and SYNCED says how long they must be. At last the rows on which all else depends are decoded: topics' metadata, and
the system's entries.

It goes by pages of whole files, so that a large directory holds nobody up and tells how far it is. Nothing is changed.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from basalt_engine.errors import BasaltError, CorruptionError
from basalt_engine.metadata import METADATA, TopicMetadata
from basalt_engine.stores.rocks.manifest import StoreFile, current_manifest, read_manifest
from basalt_engine.stores.rocks.read_only import ReadOnlyRocksStore, check_closed
from basalt_engine.stores.rocks.store import SyncedFile
from basalt_engine.system import VALUE, SystemTable, unseal
from basalt_engine.table import Row

PAGE_BYTES = 128 << 20  # less than a second, from a slow disk a few; at least one file, of 256 MiB at most
CHUNK_BYTES = 1 << 20  # other threads run between them
FAULTS_MAX = 100  # told of one page: whoever has more needs no longer list
ROWS = "rows"  # the last page, in place of a file's name


class Page(NamedTuple):
    """The findings of one page. `next` starts the page behind it; None when this was the last."""

    files: int
    checked_bytes: int
    faults: tuple[str, ...]
    next: str | None


class Verification:
    """A verification of one directory. Its state is the name of the next file, so it can be gone on with by anybody."""

    def __init__(self, directory: Path) -> None:
        """Check all but table and blob files; `CorruptionError` when the list of these cannot be read."""
        self._directory = directory.absolute()
        self._database = self._directory / "rocks"
        check_closed(self._directory)
        self.marks = SyncedFile.load(self._directory / "SYNCED", self._database)
        self.marks.check()
        self.files: Sequence[StoreFile] = read_manifest(current_manifest(self._database)).files

    @property
    def total_bytes(self) -> int:
        """The bytes of all files that are compared."""
        return sum(file.size_bytes for file in self.files)

    def page(self, start: str | None = None, *, page_bytes: int = PAGE_BYTES) -> Page:
        """Compare the files from the one named `start` on, or the first, until they are `page_bytes` together.

        The rows are the last page.
        """
        if start == ROWS:
            return Page(0, 0, tuple(islice(self._row_faults(), FAULTS_MAX)), None)
        first = 0 if start is None else self._index(start)
        faults: list[str] = []
        checked_bytes = 0
        for index in range(first, len(self.files)):
            if checked_bytes >= page_bytes:
                return Page(index - first, checked_bytes, tuple(faults[:FAULTS_MAX]), self.files[index].name)
            fault = fault_of(self._database, self.files[index])
            faults += [] if fault is None else [fault]
            checked_bytes += self.files[index].size_bytes
        return Page(len(self.files) - first, checked_bytes, tuple(faults[:FAULTS_MAX]), ROWS)

    def pages(self) -> Iterator[Page]:
        """All pages. Rows are looked at only where no file is damaged: they would tell the same again."""
        start: str | None = None
        whole = True
        while True:
            page = self.page(start)
            whole = whole and not page.faults
            yield page
            start = page.next
            if start is None or (start == ROWS and not whole):
                return

    def _index(self, name: str) -> int:
        for index, file in enumerate(self.files):
            if file.name == name:
                return index
        raise CorruptionError(f"{self._database} does not need a file {name!r}, or needs it no more")

    def _row_faults(self) -> Iterator[str]:
        """The faults of rows on which all else depends."""
        try:
            with ReadOnlyRocksStore.open(self._directory) as store:
                for table, decode in (("metadata", _topic), (SystemTable.name, _entry)):
                    for row in store.table(table).scan(b"", None):
                        try:
                            decode(row)
                        except BasaltError as error:
                            yield error.message
        except BasaltError as error:
            yield error.message


def fault_of(database: Path, file: StoreFile) -> str | None:
    """The fault of a file in words; None when it is as it was written."""
    path = database / file.name
    try:
        size_bytes = path.stat().st_size
        if size_bytes != file.size_bytes:
            return f"{path} has {size_bytes} bytes, and had {file.size_bytes}"
        if file.crc is None:
            return f"{path} cannot be judged: no checksum of it was kept"
        return None if _crc_of(path) == file.crc else f"{path} is damaged: it is not as it was written"
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"


def _topic(row: Row) -> None:
    TopicMetadata.decode(row.columns.get(METADATA, b""), row.key)


def _entry(row: Row) -> None:
    unseal(row.key, row.columns.get(VALUE))


def _crc_of(path: Path) -> int:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        crc = 0
        with memoryview(mapped) as content:
            for at in range(0, len(content), CHUNK_BYTES):
                crc = crc32c(content[at : at + CHUNK_BYTES], crc)
    return crc
