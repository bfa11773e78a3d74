"""A folder of archives: files of messages, and manifests of their contents. Format: docs/formats/archive.md.

The folder is a local path, or a URI of a file system that pyarrow knows (hdfs, s3, gs). A file appears whole or not at
all: it is written under a name that ends in `.partial` and then renamed. (On object stores a rename is a copy, and the
copy appears whole.) A manifest is written last. Files that no manifest names belong to no archive.

A digest does not depend on how messages lie in files. Each message is hashed by itself, and the hashes are added up
modulo 2^128; so parts are digested apart, in any order, and their digests added. The id is a part of the *digest* and
fixes the order. The *content digest* leaves out what a topic gives to a message (id, publish time, transaction), and is
the same in another topic.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple
from uuid import uuid4

import msgspec

from basalt.errors import CorruptionError, InputError, NotFoundError, StoreError

READ_BYTES = 1 << 20
PARTIAL = ".partial"


class Written(NamedTuple):
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
        from pyarrow.fs import FileType

        system, root = self._system()
        return bool(system.get_file_info(f"{root}/{path}").type == FileType.File)

    @contextmanager
    def reading(self, path: str) -> Iterator[IO[bytes]]:
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
        except BaseException as error:
            with suppress(OSError):  # it was never made, or an operator finds it by its name
                system.delete_file(partial)
            if isinstance(error, OSError):
                raise StoreError(f"{self.place}/{path} cannot be written: {error}") from error
            raise

    def remove_all(self, under: str, prefix: str) -> None:
        """Delete the files anywhere below a folder whose names start with the prefix."""
        from pyarrow.fs import FileSelector, FileType

        system, root = self._system()
        for found in system.get_file_info(FileSelector(f"{root}/{under}", allow_not_found=True, recursive=True)):
            if found.type == FileType.File and found.base_name.startswith(prefix):
                system.delete_file(found.path)

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
        return Written(self._size, self._digest.hexdigest())


FORMAT = "basalt-archive"
VERSION = 1
JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")  # a part of the names of files and sessions

HASH_BYTES = 16
MODULUS = 1 << (8 * HASH_BYTES)
NONE = b"\xff\xff\xff\xff"  # the length of a value that is null; no value is as long
_LENGTH = struct.Struct(">I")
_MICROSECONDS = struct.Struct(">q")
_NO_TIME = -(1 << 63)


class Digest(NamedTuple):
    """The digest of any number of messages. `value_bytes` is the size of their values."""

    messages: int = 0
    value_bytes: int = 0
    rows: int = 0
    content: int = 0

    def __add__(self, other: object) -> Digest:
        if not isinstance(other, Digest):
            return NotImplemented
        return Digest(
            self.messages + other.messages,
            self.value_bytes + other.value_bytes,
            (self.rows + other.rows) % MODULUS,
            (self.content + other.content) % MODULUS,
        )

    @property
    def digest(self) -> str:
        return f"{self.rows:032x}"

    @property
    def content_digest(self) -> str:
        return f"{self.content:032x}"


class Columns(NamedTuple):
    """The columns of some messages, as Python values; times in microseconds since 1970."""

    id: list[bytes]
    publish_time: list[int]
    key: list[bytes | None]
    value: list[bytes]
    tx_id: list[str | None]
    headers: list[list[Mapping[str, Any]] | None]
    event_time: list[int | None]


def digest_of(columns: Columns) -> Digest:
    rows = content = size = 0
    for id_, published, key, value, tx, headers, event in zip(*columns, strict=True):
        said = _content(key, value, headers, event)
        content += _hash(said)
        rows += _hash(id_ + _MICROSECONDS.pack(published) + _sized(None if tx is None else tx.encode()) + said)
        size += len(value)
    return Digest(len(columns.id), size, rows % MODULUS, content % MODULUS)


def columns_of(batch: Any) -> Columns:
    """The columns of a record batch in the archive's schema."""
    return Columns(*(_plain(batch.column(name)) for name in Columns._fields))


def total(digests: Iterable[Digest]) -> Digest:
    return sum(digests, Digest())


def _plain(column: Any) -> list[Any]:
    import pyarrow as pa

    values: list[Any] = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    return values


def _content(key: bytes | None, value: bytes, headers: Iterable[Mapping[str, Any]] | None, event: int | None) -> bytes:
    parts = [_sized(key), _sized(value)]
    for header in headers or ():
        parts += (_sized(header["name"].encode()), _sized(header["value"]))
    # The event time and the count of headers come last, and are longer than a length: no header can be mistaken for
    # them.
    parts += (_MICROSECONDS.pack(_NO_TIME if event is None else event), _LENGTH.pack(len(parts) // 2 - 1))
    return b"".join(parts)


def _sized(data: bytes | None) -> bytes:
    return NONE if data is None else _LENGTH.pack(len(data)) + data


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=HASH_BYTES).digest(), "big")


class ArchiveFile(msgspec.Struct, frozen=True):
    """One Parquet file: messages of one day, in their order. Its day is that of the publish time, in UTC."""

    path: str
    day: str
    bytes: int
    sha256: str
    messages: int
    value_bytes: int
    first_id: str
    last_id: str
    digest: str
    content_digest: str

    @property
    def digests(self) -> Digest:
        return Digest(self.messages, self.value_bytes, int(self.digest, 16), int(self.content_digest, 16))


class Manifest(msgspec.Struct, frozen=True):
    """One archive: the messages of one generation of a topic with `after` < id <= `through`, 40 hex digits each.

    `after` is null from the topic's start on. `files` are in the order of the topic.
    """

    format: str
    version: int
    job_id: str
    created_ms: int
    namespace: str
    topic: str
    generation: int
    after: str | None
    through: str | None
    messages: int
    value_bytes: int
    digest: str
    content_digest: str
    files: tuple[ArchiveFile, ...]

    @property
    def digests(self) -> Digest:
        return Digest(self.messages, self.value_bytes, int(self.digest, 16), int(self.content_digest, 16))

    def encode(self) -> bytes:
        body = msgspec.json.format(msgspec.json.encode(self), indent=1)
        return msgspec.json.encode(_Sealed(msgspec.Raw(body), hashlib.sha256(body).hexdigest())) + b"\n"


class _Sealed(msgspec.Struct):
    manifest: msgspec.Raw
    sha256: str


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 0


class Place(NamedTuple):
    """The place of a topic's generation in a folder of archives."""

    namespace: str
    topic: str
    generation: int

    def file(self, day: str, job_id: str, first_id: str) -> str:
        """The path of a file. Tools that know partitions by the names of folders see four."""
        head = f"data/namespace={self.namespace}/topic={self.topic}/generation={self.generation}"
        return f"{head}/day={day}/{job_id}.{first_id}.parquet"


def manifest_of(
    place: Place, job_id: str, created_ms: int, after: str | None, through: str | None, files: tuple[ArchiveFile, ...]
) -> Manifest:
    files = tuple(sorted(files, key=lambda file: file.first_id))
    whole = total(file.digests for file in files)
    return Manifest(
        FORMAT, VERSION, job_id, created_ms, *place, after, through, whole.messages, whole.value_bytes,
        whole.digest, whole.content_digest, files,
    )  # fmt: skip


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Read a manifest from a file's bytes.

    `CorruptionError` when it is damaged, `InputError` when it is of another version.
    """
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        body = bytes(sealed.manifest)
        if hashlib.sha256(body).hexdigest() != sealed.sha256:
            raise CorruptionError(f"manifest {name} does not match its checksum", hint="restore it from a copy")
        head = msgspec.json.decode(body, type=_Head)
        if head.format != FORMAT:
            raise CorruptionError(f"{name} is no manifest of an archive")
        if head.version != VERSION:
            raise InputError(
                f"manifest {name} has version {head.version}; this Basalt reads version {VERSION}",
                hint="read it with the Basalt that wrote it",
            )
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.DecodeError as error:
        raise CorruptionError(f"manifest {name} is damaged: {error}", hint="restore it from a copy") from None
    if total(file.digests for file in manifest.files) != manifest.digests:
        raise CorruptionError(f"manifest {name} counts other messages than its files do")
    return manifest


def manifest_path(job_id: str) -> str:
    return f"manifests/{job_id}.json"


def read_manifest(folder: Folder, job_id: str) -> Manifest:
    """Read the manifest of an archive job. `NotFoundError` when the job never ended in this folder."""
    path = manifest_path(job_id)
    if not folder.exists(path):
        raise NotFoundError(
            f"{folder} has no archive of job {job_id}", hint="see the folder `manifests` in it for the jobs that ended"
        )
    return decode_manifest(folder.read(path), path)


def checked_job_id(job_id: str) -> str:
    """Check the id of a job; `InputError` when it cannot be one."""
    if not JOB_ID.fullmatch(job_id):
        raise InputError(
            f"{job_id[:200]!r} cannot be the id of a job", field="job-id", hint="use 1 to 128 of A-Z a-z 0-9 _ -"
        )
    return job_id
