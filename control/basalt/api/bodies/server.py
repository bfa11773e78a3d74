"""The server itself: health, settings, store, backups; and the document that tells an error."""

from __future__ import annotations

from msgspec import Struct

from basalt.api.bodies.pruning import PublishedSnapshot


class Problem(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A problem document (RFC 9457). `code` is stable; `field` is the part of the input at fault; `hint` says what to do next.

    `leader` is the URL of the server that leads, when this one does not. What never became a request has no `request_id`.
    """

    type: str = ""
    title: str = ""
    status: int = 0
    code: str
    detail: str = ""
    request_id: str | None = None
    field: str | None = None
    hint: str | None = None
    retry_after_ms: int | None = None
    leader: str | None = None


class Alive(Struct, frozen=True):
    """The process answers; nothing else was looked at."""

    alive: bool


class Part(Struct, frozen=True, rename="camel"):
    """One part of a server, whether it works, and how long it took to tell."""

    name: str
    ok: bool
    latency_ms: float = 0.0
    detail: str = ""


class Readiness(Struct, frozen=True):
    """Readiness of a server: can it do its work, and which part cannot?"""

    ready: bool
    parts: tuple[Part, ...] = ()

    def __bool__(self) -> bool:
        return self.ready


class Version(Struct, frozen=True):
    """The name and version of the server."""

    name: str
    version: str


class SettingInfo(Struct, frozen=True):
    """A setting in force, and where it came from; the values of secrets are not shown."""

    key: str
    value: str
    origin: str


class StoreTable(Struct, frozen=True):
    """A table of the store, and about how many bytes it takes."""

    name: str
    bytes: int


class StoreInfo(Struct, frozen=True, rename="camel"):
    """The store, and the installation that it belongs to."""

    kind: str
    atomic: bool
    instance: str
    started_ms: int
    tables: tuple[StoreTable, ...]


class ManagerSnapshot(Struct, frozen=True, rename="camel"):
    """The transaction manager's snapshot: pointers, and how long its lists are; and what region servers were told."""

    read_pointer: int
    write_pointer: int
    in_progress: int
    invalid: int
    oldest_in_progress: str | None
    published: PublishedSnapshot | None


class BackupRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A backup's name: 1 to 255 of A-Z a-z 0-9 _ -"""

    name: str


class Backup(Struct, frozen=True, rename="camel"):
    """A backup. `bytes` are those of its files; those that the store still has as well take no space of their own."""

    name: str
    path: str
    created_ms: int
    files: int
    bytes: int
