"""Named sessions: which run of a job may write now, and how far its work has been committed. Pure values.

A session has an epoch. A run that opens it raises the epoch by one, and a process that still holds an older epoch (a
zombie) can begin nothing. `session_rules` decides; bytes: docs/formats/transaction-log.md.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from basalt.transactions.rules import edits
from basalt.transactions.rules.transaction import REPLACED_RUNS_MAX, SessionBinding, Transaction
from basalt_engine.errors import CorruptionError


class SessionState(msgspec.Struct, frozen=True):
    """The state of one session. `committed_by` is the transaction that committed `version`; 0 while there is none.

    `counter_owner` says whose count the versions are (the id of a query, say), if anybody said so. `replaced` are the runs that held the session before,
    the newest last, at most `REPLACED_RUNS_MAX` of them; the present one is not among them. `principal` opened it for the run.
    """

    name: str
    run: str
    epoch: int
    used_ms: int
    version: int | None = None
    committed_by: int = 0
    counter_owner: str | None = None
    replaced: tuple[str, ...] = ()
    principal: str = ""

    def held_by(self, run: str, epoch: int, at_ms: int, principal: str = "") -> SessionState:
        """The session as it is once this run holds it."""
        if run == self.run:
            return replace(self, epoch=epoch, used_ms=at_ms, principal=principal)
        replaced = (*(known for known in self.replaced if known != run), self.run)[-REPLACED_RUNS_MAX:]
        return replace(self, run=run, epoch=epoch, used_ms=at_ms, replaced=replaced, principal=principal)

    @property
    def counts_for_somebody(self) -> bool:
        """True when its version has an owner, who relies on it and may come back after any time."""
        return self.counter_owner is not None and self.version is not None

    def covers(self, version: int | None) -> bool:
        """True when the version is at most the one that was committed last; False for None."""
        return version is not None and self.version is not None and version <= self.version


class PrincipalCounts(Counter[str]):
    """Numbers of things by whose they are; of a principal that has none there is no entry."""

    def move(self, before: str | None, after: str | None) -> None:
        """One belongs to `after` from now on, and no more to `before`; None: to nobody, for it is not there."""
        if after is not None:
            self[after] += 1
        if before is not None:
            self[before] -= 1
            if not self[before]:
                del self[before]


class SessionTable:
    """All sessions, the one that was used longest ago first. Every call costs the same however many there are.

    `epoch_over` is the highest epoch of a session that was forgotten: one that is opened later begins above it, so that
    the zombies of a forgotten session stay fenced.
    """

    def __init__(self, sessions: Iterable[SessionState] = (), epoch_over: int = 0) -> None:
        self._sessions = OrderedDict((session.name, session) for session in sessions)
        self.held = PrincipalCounts(session.principal for session in self._sessions.values())
        self._open: dict[str, set[int]] = {}
        self.epoch_over = epoch_over

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[SessionState]:
        return iter(self._sessions.values())

    def get(self, name: str) -> SessionState | None:
        return self._sessions.get(name)

    def open_in(self, name: str) -> tuple[int, ...]:
        """The ids of the session's transactions that have not ended, ascending."""
        return tuple(sorted(self._open.get(name, ())))

    # What edits do. `CorruptionError`, and nothing changed, when the state does not allow it.

    def opened(self, edit: edits.SessionOpened, is_open: bool) -> None:
        """A run holds a session. `is_open`: a transaction of the session may still commit by a call of its client."""
        session = self.get(edit.name)
        over = self.epoch_over if session is None else session.epoch - (session.run == edit.run)
        taken = session is None or session.epoch < edit.epoch
        if edit.epoch <= over or (taken and is_open):
            raise CorruptionError(
                f"session {edit.name!r} is opened at epoch {edit.epoch}, while another one is not over"
            )
        if session is None:
            self._put(SessionState(edit.name, edit.run, edit.epoch, edit.at_ms, principal=edit.principal))
        else:
            self._put(session.held_by(edit.run, edit.epoch, edit.at_ms, edit.principal))

    def claimed(self, edit: edits.CounterOwnerClaimed) -> None:
        """A session's versions are counted by this owner."""
        session = self.get(edit.name)
        if session is None or session.counter_owner == edit.owner or not edit.owner:
            raise CorruptionError(
                f"session {edit.name!r} gets counter owner {edit.owner!r}, which it has, or cannot have"
            )
        self._sessions[edit.name] = replace(session, counter_owner=edit.owner)

    def began(self, edit: edits.SessionBegan, transaction: Transaction) -> None:
        """A transaction, which is one of the session now, has begun."""
        known = self.get(edit.session.name)
        assert known is not None, "the transaction table has looked"
        self.entered(known.name, transaction.id)
        self._put(replace(known, used_ms=max(known.used_ms, transaction.began_ms)))

    def forgotten(self, edit: edits.SessionsForgotten, in_use: Iterable[bool]) -> None:
        """Nothing is known of some sessions any more."""
        for name, is_open in zip(edit.names, in_use, strict=True):
            if is_open or self.get(name) is None:
                raise CorruptionError(f"session {name!r} is forgotten, which is not there, or in use")
        for name in edit.names:
            # What of it is being committed or rolled back is still found by its name.
            session = self._sessions.pop(name)
            self.epoch_over = max(self.epoch_over, session.epoch)
            self.held.move(session.principal, None)

    def entered(self, name: str, transaction_id: int) -> None:
        """A transaction of the session is in progress."""
        self._open.setdefault(name, set()).add(transaction_id)

    def left(self, name: str, transaction_id: int) -> None:
        """A transaction of the session has ended."""
        held = self._open.get(name, set())
        held.discard(transaction_id)
        if not held:
            self._open.pop(name, None)

    def committed(self, binding: SessionBinding, transaction_id: int, at_ms: int) -> None:
        """A transaction of the session has committed: its version is the session's from now on."""
        found = self._sessions.get(binding.name)
        if found is None:
            return
        used_ms = max(found.used_ms, at_ms)
        if binding.version is None or found.covers(binding.version):
            self._put(replace(found, used_ms=used_ms))
        else:
            self._put(replace(found, used_ms=used_ms, version=binding.version, committed_by=transaction_id))

    def _put(self, session: SessionState) -> None:
        """Keep what is known of a session now, as the one used last."""
        before = self._sessions.get(session.name)
        if before is None or before.principal != session.principal:
            self.held.move(None if before is None else before.principal, session.principal)
        self._sessions[session.name] = session
        self._sessions.move_to_end(session.name)


class WorkVersion(NamedTuple):
    """The name by which a transaction is begun. `counter_owner` counts the versions; None: that is not compared."""

    session: str
    run: str
    version: int
    counter_owner: str | None = None
