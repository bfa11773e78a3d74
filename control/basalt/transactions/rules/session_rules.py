"""What may happen to a named session, as proposals. What a session is: sessions.py.

Pure: the time comes with each call. A run that opens a session ends the open transactions of the runs before it in the
same proposal, so an open transaction of a session always has the session's epoch.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from basalt.transactions.rules import edits, refusals
from basalt.transactions.rules.checks import check_run, check_session_name, check_version
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.expire import ends
from basalt.transactions.rules.limits import FORGOTTEN_MAX, IDLE_LOOKED_AT_MAX
from basalt.transactions.rules.proposals import Proposal
from basalt.transactions.rules.sessions import Session
from basalt.transactions.rules.states import InSession, Loss, State, Transaction
from basalt.transactions.rules.transaction_table import Ledger


class Taking(NamedTuple):
    """How a run comes to hold a session."""

    epoch: int
    edits: tuple[Edit, ...]


class SessionRules:
    """The sessions of one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def known(self) -> list[Session]:
        """All sessions, the one that was used longest ago first."""
        return list(self._ledger.sessions)

    def get(self, name: str) -> Session:
        """The session; `SessionNotFoundError` when there is none of the name."""
        found = self._ledger.sessions.get(name)
        if found is None:
            raise refusals.no_session(name)
        return found

    def transactions(self, name: str) -> tuple[Transaction, ...]:
        """The session's transactions that have not ended, oldest first."""
        return tuple(self._ledger.transactions[key] for key in self._ledger.sessions.open_in(name))

    def open(self, name: str, run: str, now_ms: int) -> Proposal:
        """The run holds the session from now on, at its present epoch if it did before, at the next one otherwise.

        `BusyError` when there are too many sessions. Sessions that nobody has used for long are forgotten on the way.
        Whoever opens a session does so when it starts, so a run that was replaced may come back this way.
        """
        check_session_name(name)
        check_run(run)
        return Proposal(self.taking(name, run, now_ms).edits)

    def taking(self, name: str, run: str, now_ms: int) -> Taking:
        """The edits with which the run holds the session, whoever may, and the epoch that it holds then."""
        idle = self._idle(name, now_ms)
        sessions = self._ledger.sessions
        found = sessions.get(name)
        if found is None and len(sessions) - len(idle) >= self._ledger.limits.sessions_max:
            raise refusals.too_many_sessions(len(sessions), next(iter(sessions)))
        made: list[Edit] = []
        if idle:
            made.append(edits.SessionsForgotten(tuple(sorted(session.name for session in idle))))
        if found is None:
            epoch = 1 + max([sessions.epoch_over, *(session.epoch for session in idle)])
        elif found.run == run:
            epoch = found.epoch
        else:
            epoch = found.epoch + 1
            made += self._ends(name, now_ms)
        return Taking(epoch, (*made, edits.SessionOpened(name, run, epoch, now_ms)))

    def delete(self, name: str, now_ms: int) -> Proposal:
        """End the session's open transactions and forget it. `SessionNotFoundError` when there is none of the name."""
        self.get(name)
        return Proposal((*self._ends(name, now_ms), edits.SessionsForgotten((name,))))

    def admit(self, session: InSession) -> None:
        """Refuse what may not begin: `SessionFencedError` for an epoch that is over, `SessionNotFoundError` for one that
        there is not.
        """
        check_version(session.version)
        found = self.get(session.name)
        if session.epoch < found.epoch:
            raise refusals.fenced(found, session.epoch)
        if session.epoch > found.epoch:
            raise refusals.no_epoch(found, session.epoch)

    def is_done(self, session: InSession) -> bool:
        """Whether the version, if there is one, was committed before. Refuses what `admit` refuses."""
        self.admit(session)
        return self.get(session.name).covers(session.version)

    def loss(self, transaction: Transaction) -> Loss | None:
        """Why a transaction may not commit: another one of its session has committed, or is committing, its version."""
        if transaction.session is None or transaction.session.version is None:
            return None
        name, version = transaction.session.name, transaction.session.version
        key = f"version {version} of session {name}".encode()
        found = self._ledger.sessions.get(name)
        if found is not None and found.covers(version):
            return Loss(found.committed_by, key, found.run)
        for other in self.transactions(name):
            theirs = None if other.session is None else other.session.version
            if other.state is State.COMMITTING and theirs is not None and theirs >= version:
                return Loss(other.id, key, other.owner)
        return None

    def _ends(self, name: str, now_ms: int) -> tuple[Edit, ...]:
        opened = [transaction for transaction in self.transactions(name) if transaction.state is State.OPEN]
        return ends(opened, now_ms, timed_out=False)

    def _idle(self, besides: str, now_ms: int) -> list[Session]:
        """The sessions to forget, for nobody has used them for long. One that counts versions for a ledger goes last, and
        only where another one would have no room: without it, work that was done would be done again.
        """
        sessions, limits = self._ledger.sessions, self._ledger.limits
        unused_since_ms = now_ms - limits.session_ms_max
        idle = [
            session
            for session in islice(sessions, IDLE_LOOKED_AT_MAX)
            if session.used_ms <= unused_since_ms and session.name != besides and not sessions.open_in(session.name)
        ]
        free = [session for session in idle if not session.counts_for_ledger][:FORGOTTEN_MAX]
        has_room = bool(free) or sessions.get(besides) is not None or len(sessions) < limits.sessions_max
        return free if has_room else idle[:1]
