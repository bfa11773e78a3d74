"""Named sessions: of all runs of a job only the newest may write, and work that has a version is committed once."""

from __future__ import annotations

from msgspec import Struct


class OpenSession(Struct, frozen=True, forbid_unknown_fields=True):
    """The run that wants to hold the session."""

    run: str


class OpenedSession(Struct, frozen=True):
    """The session, held by the caller's run. `version` is the newest that was committed; null: none was."""

    name: str
    epoch: int
    version: int | None


class SessionInfo(Struct, frozen=True, rename="camel"):
    """A session: the run that holds it, the newest version that was committed, and the ids of what is open in it.

    `committed_by` is the transaction that committed `version`; `ledger` says whose count the versions are, if anybody
    said so; `replaced` are the runs before, newest last, which cannot begin by their names any more.
    """

    name: str
    run: str
    epoch: int
    version: int | None
    committed_by: str | None
    used_ms: int
    transactions: tuple[str, ...]
    ledger: str | None
    replaced: tuple[str, ...]


class SessionList(Struct, frozen=True):
    """All sessions, by name."""

    sessions: list[SessionInfo]
