"""Named sessions: which run of a job may write now, and how far its work has been committed. The memory of the ledger.

A session has an epoch. A run that opens it raises the epoch by one, and whoever still holds an older epoch (a zombie) can
begin nothing. A transaction of a session may carry a version of the session's work; its commit sets the session's version,
so that the same work is never committed twice. The rules are in session_rules.py, the bytes in
docs/formats/transaction-log.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from basalt.transactions.states import Transaction


class Session(msgspec.Struct, frozen=True):
    """What is known of one session. `committed_by` is the transaction that committed `version`; 0 while there is none."""

    name: str
    run: str
    epoch: int
    used_ms: int
    version: int | None = None
    committed_by: int = 0


class Sessions:
    """All sessions, the one that was used longest ago first. Every call costs the same however many there are.

    `epoch_over` is the highest epoch of a session that was forgotten: one that is opened later begins above it, so that
    the zombies of a forgotten session stay fenced.
    """

    def __init__(self, sessions: Iterable[Session] = (), epoch_over: int = 0) -> None:
        self._sessions = OrderedDict((session.name, session) for session in sessions)
        self._open: dict[str, set[int]] = {}
        self.epoch_over = epoch_over

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, name: str) -> Session | None:
        """The session, or None."""
        return self._sessions.get(name)

    def put(self, session: Session) -> None:
        """Keep what is known of a session now, as the one used last."""
        self._sessions[session.name] = session
        self._sessions.move_to_end(session.name)

    def forget(self, name: str) -> None:
        """Drop a session that is there. What of it is being committed or rolled back is still found by its name."""
        session = self._sessions.pop(name)
        self.epoch_over = max(self.epoch_over, session.epoch)

    def open_in(self, name: str) -> tuple[int, ...]:
        """The ids of the session's transactions that have not ended, ascending."""
        return tuple(sorted(self._open.get(name, ())))

    def entered(self, transaction: Transaction) -> None:
        """A transaction of a session is in progress."""
        if transaction.session is not None:
            self._open.setdefault(transaction.session.name, set()).add(transaction.id)

    def left(self, transaction: Transaction) -> None:
        """A transaction, of a session or not, has ended."""
        if transaction.session is not None:
            held = self._open.get(transaction.session.name, set())
            held.discard(transaction.id)
            if not held:
                self._open.pop(transaction.session.name, None)

    def committed(self, transaction: Transaction, at_ms: int) -> None:
        """A transaction of a session has committed: its version is the session's from now on."""
        found = None if transaction.session is None else self._sessions.get(transaction.session.name)
        if transaction.session is None or found is None:
            return
        used_ms, version = max(found.used_ms, at_ms), transaction.session.version
        if version is None or (found.version is not None and found.version >= version):
            self.put(replace(found, used_ms=used_ms))
        else:
            self.put(replace(found, used_ms=used_ms, version=version, committed_by=transaction.id))
