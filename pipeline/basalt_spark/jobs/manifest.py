"""The manifest of an archive: which files it has, and what is in them. Format: docs/formats/archive.md.

It is written last and whole. Files without a manifest that names them belong to no archive.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

import msgspec

from basalt.errors import CorruptionError, InputError, NotFoundError
from basalt_spark.jobs.digest import Digest, total
from basalt_spark.jobs.folder import Folder

FORMAT = "basalt-archive"
VERSION = 1
JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")  # part of files' and sessions' names


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
        """What its messages come to."""
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
        """What it says of all messages together."""
        return Digest(self.messages, self.value_bytes, int(self.digest, 16), int(self.content_digest, 16))

    def encode(self) -> bytes:
        """The file's bytes."""
        body = msgspec.json.format(msgspec.json.encode(self), indent=1)
        return msgspec.json.encode(_Sealed(msgspec.Raw(body), hashlib.sha256(body).hexdigest())) + b"\n"


class _Sealed(msgspec.Struct):
    manifest: msgspec.Raw
    sha256: str


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 0


class Place(NamedTuple):
    """Where the archives of a generation of a topic lie."""

    namespace: str
    topic: str
    generation: int

    def file(self, day: str, job_id: str, first_id: str) -> str:
        """The path of a file. Tools that know partitions by their folders' names see four."""
        head = f"data/namespace={self.namespace}/topic={self.topic}/generation={self.generation}"
        return f"{head}/day={day}/{job_id}.{first_id}.parquet"


def made(
    place: Place, job_id: str, created_ms: int, after: str | None, through: str | None, files: tuple[ArchiveFile, ...]
) -> Manifest:
    """The manifest of these files."""
    files = tuple(sorted(files, key=lambda file: file.first_id))
    whole = total(file.digests for file in files)
    return Manifest(
        FORMAT, VERSION, job_id, created_ms, *place, after, through, whole.messages, whole.value_bytes,
        whole.digest, whole.content_digest, files,
    )  # fmt: skip


def decode(data: bytes, name: str) -> Manifest:
    """The manifest in a file's bytes; `CorruptionError` when it is not whole, `InputError` when it is of a later version."""
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


def path_of(job_id: str) -> str:
    """Where the manifest of a job lies."""
    return f"manifests/{job_id}.json"


def read(folder: Folder, job_id: str) -> Manifest:
    """The manifest of an archive job. `NotFoundError` when the job never came to its end in this folder."""
    path = path_of(job_id)
    if not folder.exists(path):
        raise NotFoundError(
            f"{folder} has no archive of job {job_id}", hint="see the folder `manifests` in it for the jobs that ended"
        )
    return decode(folder.read(path), path)


def checked_job_id(job_id: str) -> str:
    """The job's id; `InputError` when it cannot be one."""
    if not JOB_ID.fullmatch(job_id):
        raise InputError(
            f"{job_id[:200]!r} cannot be the id of a job", field="job-id", hint="use 1 to 128 of A-Z a-z 0-9 _ -"
        )
    return job_id
