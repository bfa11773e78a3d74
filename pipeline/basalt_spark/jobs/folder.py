"""A folder in which jobs keep files: a local path, or a URI of a file system that pyarrow knows (hdfs, s3, gs).

A file appears whole or not at all: it is written under a name that ends in `.partial` and then renamed. (On object
stores a rename is a copy, and the copy appears whole.)
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple
from uuid import uuid4

from basalt.errors import InputError, NotFoundError, StoreError

READ_BYTES = 1 << 20
PARTIAL = ".partial"


class Written(NamedTuple):
    """The size and checksum of a file."""

    bytes: int
    sha256: str


class Folder(NamedTuple):
    """A folder by path or URI; a value, so that it travels to executors."""

    place: str

    def __str__(self) -> str:
        return self.place

    def read(self, path: str) -> bytes:
        """Read a small file as a whole. `NotFoundError` when there is none."""
        with self.reading(path) as file:
            return file.read()

    def exists(self, path: str) -> bool:
        """True when there is such a file."""
        from pyarrow.fs import FileType

        system, root = self._system()
        return bool(system.get_file_info(f"{root}/{path}").type == FileType.File)

    @contextmanager
    def reading(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file to read."""
        system, root = self._system()
        try:
            file = system.open_input_file(f"{root}/{path}")
        except FileNotFoundError:
            raise NotFoundError(f"{self.place} has no file {path}", hint="name the folder of the archive") from None
        except OSError as error:
            raise StoreError(f"{self.place}/{path} cannot be read: {error}") from error
        with file:
            yield file

    def checksum(self, path: str) -> Written:
        """The size and checksum of a file, which is read in pieces."""
        digest, size = hashlib.sha256(), 0
        with self.reading(path) as file:
            while piece := file.read(READ_BYTES):
                digest.update(piece)
                size += len(piece)
        return Written(size, digest.hexdigest())

    def write(self, path: str, data: bytes) -> None:
        """Write a small file as a whole, in place of the one before."""
        with self.writing(path) as sink:
            sink.write(data)

    @contextmanager
    def writing(self, path: str) -> Iterator[HashingSink]:
        """Open a file to write. It appears when the block ends without an error."""
        system, root = self._system()
        whole, partial = f"{root}/{path}", f"{root}/{path}.{uuid4().hex}{PARTIAL}"
        try:
            system.create_dir(whole.rpartition("/")[0], recursive=True)
            with system.open_output_stream(partial) as stream:
                yield HashingSink(stream)
            system.move(partial, whole)
        except OSError as error:
            _remove(system, partial)
            raise StoreError(f"{self.place}/{path} cannot be written: {error}") from error
        except BaseException:
            _remove(system, partial)
            raise

    def files(self, under: str, prefix: str) -> list[str]:
        """The files anywhere below a folder whose names start with the prefix, sorted."""
        from pyarrow.fs import FileSelector, FileType

        system, root = self._system()
        found = system.get_file_info(FileSelector(f"{root}/{under}", allow_not_found=True, recursive=True))
        names = (each.path for each in found if each.type == FileType.File and each.base_name.startswith(prefix))
        return sorted(name.removeprefix(f"{root}/") for name in names)

    def remove(self, path: str) -> None:
        """Delete a file."""
        system, root = self._system()
        system.delete_file(f"{root}/{path}")

    def _system(self) -> tuple[Any, str]:
        from pyarrow.fs import FileSystem, LocalFileSystem

        if "://" not in self.place:
            return LocalFileSystem(), str(Path(self.place).absolute())
        try:
            system, root = FileSystem.from_uri(self.place)
        except (ValueError, OSError) as error:
            raise InputError(f"{self.place} cannot be used as a folder: {error}", field="folder") from error
        return system, root.rstrip("/")


class HashingSink(io.RawIOBase):
    """Passes on all writes, and knows their checksum."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream
        self._digest = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._stream.write(piece)
        self._digest.update(piece)
        self._size += len(piece)
        return len(piece)

    @property
    def written(self) -> Written:
        """The size and checksum so far."""
        return Written(self._size, self._digest.hexdigest())


def _remove(system: Any, path: str) -> None:
    try:
        system.delete_file(path)
    except OSError:
        pass  # it was never made, or an operator finds it by its name
