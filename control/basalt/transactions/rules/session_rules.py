"""The rules of named sessions: which run may open one and begin in it, and which transaction committed a version of its
work. Pure.

A run that opens a session ends the open transactions of the runs before it in the same proposal, so an open
transaction of a session always has the session's epoch. A transaction of a session may carry a version of the session's
work; its commit sets the session's version, so that the same work is never committed twice.

The processes of a run need tell each other nothing, and hold no epoch: each begins by the same three names
(`WorkVersion`), the first one begins the transaction, and the others join it. What decides is, in this order: whether the
run was replaced (therefore a session remembers which were), who counts the session's versions, whether the version was
committed before, and what is open. docs/decisions/0014-named-transactions.md.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from basalt.errors import BusyError, SessionFencedError, SessionForeignError, SessionNotFoundError
from basalt.transactions.rules import edits, refusals
from basalt.transactions.rules.edits import Edit, Proposal, forced_ends
from basalt.transactions.rules.sessions import SessionState, WorkVersion
from basalt.transactions.rules.transaction import (
    FORGOTTEN_MAX,
    IDLE_LOOKED_AT_MAX,
    Kind,
    Loss,
    SessionBinding,
    State,
    Transaction,
    check_counter_owner,
    check_run,
    check_session_name,
    check_version,
)
from basalt.transactions.rules.transaction_table import TransactionTable


class Taking(NamedTuple):
    """The epoch under which a run takes a session, and the edits that give it to the run."""

    epoch: int
    edits: tuple[Edit, ...]


class SessionRules:
    """The sessions of one transaction table."""

    def __init__(self, table: TransactionTable) -> None:
        self._table = table

    def all(self) -> list[SessionState]:
        return list(self._table.session_table)

    def get(self, name: str) -> SessionState:
        """The session; `SessionNotFoundError` when there is none of the name."""
        session = self._table.session_table.get(name)
        if session is None:
            raise refusals.no_session(name)
        return session

    def transactions(self, name: str) -> tuple[Transaction, ...]:
        """The session's transactions that have not ended, oldest first."""
        return tuple(self._table.by_id[key] for key in self._table.session_table.open_in(name))

    def open(self, name: str, run: str, now_ms: int, principal: str = "") -> Proposal:
        """The run holds the session from now on, at its present epoch if it did before, at the next one otherwise.

        `BusyError` when there are too many sessions. Sessions that nobody has used for long are forgotten on the way.
        A run opens its session when it starts, so a run that was replaced may come back this way.
        """
        check_session_name(name)
        check_run(run)
        return Proposal(self.taking(name, run, now_ms, principal).edits)

    def taking(self, name: str, run: str, now_ms: int, principal: str = "") -> Taking:
        """The edits by which this run takes the session, from whichever run holds it, and its epoch then."""
        idle = self._idle(name, now_ms)
        sessions = self._table.session_table
        session_now = sessions.get(name)
        if session_now is None and len(sessions) - len(idle) >= self._table.limits.sessions_max:
            raise _too_many_sessions(len(sessions), next(iter(sessions)))
        new_edits: list[Edit] = []
        if idle:
            new_edits.append(edits.SessionsForgotten(tuple(sorted(session.name for session in idle))))
        if session_now is None:
            epoch = 1 + max([sessions.epoch_over, *(session.epoch for session in idle)])
        elif session_now.run == run:
            epoch = session_now.epoch
        else:
            epoch = session_now.epoch + 1
            new_edits += self._ends(name, now_ms)
        return Taking(epoch, (*new_edits, edits.SessionOpened(name, run, epoch, now_ms, principal)))

    def delete(self, name: str, now_ms: int) -> Proposal:
        """End the session's open transactions and forget it. `SessionNotFoundError` when there is none of the name."""
        self.get(name)
        return Proposal((*self._ends(name, now_ms), edits.SessionsForgotten((name,))))

    def admit(self, session: SessionBinding) -> None:
        """Refuse what may not begin: `SessionFencedError` for an epoch that is over, `SessionNotFoundError` for one that
        there is not.
        """
        check_version(session.version)
        found = self.get(session.name)
        if session.epoch < found.epoch:
            raise _fenced(found, session.epoch)
        if session.epoch > found.epoch:
            raise _no_epoch(found, session.epoch)

    def fenced(self, session: SessionBinding) -> SessionFencedError | None:
        """The reason why a run may do nothing more in the session's epoch; None while it is not over."""
        found = self._table.session_table.get(session.name)
        return None if found is None or session.epoch >= found.epoch else _fenced(found, session.epoch)

    def is_done(self, session: SessionBinding) -> bool:
        """True when the binding has a version and it was committed before. Refuses what `admit` refuses."""
        self.admit(session)
        return self.get(session.name).covers(session.version)

    def loss(self, binding: SessionBinding) -> Loss | None:
        """The reason why a transaction may not commit: another one of its session has committed, or is committing, its version."""
        name, version = binding.name, binding.version
        if version is None:
            return None
        key = f"version {version} of session {name}".encode()
        found = self._table.session_table.get(name)
        if found is not None and found.covers(version):
            return Loss(found.committed_by, key, found.run)
        for other in self.transactions(name):
            theirs = None if other.session is None else other.session.version
            if other.state is State.COMMITTING and theirs is not None and theirs >= version:
                return Loss(other.id, key, other.owner)
        return None

    # By session, run and version: whichever process of the run comes first begins the transaction.

    def done_before(self, name: WorkVersion) -> SessionState | None:
        """The session, when it has committed the version. `SessionFencedError` for a run that was replaced,
        `SessionForeignError` when the versions are counted by somebody else.
        """
        check_session_name(name.session)
        check_run(name.run)
        check_version(name.version)
        check_counter_owner(name.counter_owner)
        session = self._table.session_table.get(name.session)
        if session is None:
            return None
        if name.run in session.replaced:
            raise _replaced(session, name.run)
        # Where nothing was committed nobody's versions can be taken for one's own, but in what a run has open.
        counts = session.version is not None or (session.run == name.run and session.counter_owner is not None)
        if name.counter_owner is not None and name.counter_owner != session.counter_owner and counts:
            raise _foreign(session, name.counter_owner)
        return session if session.covers(name.version) else None

    def begin_named(
        self,
        now_ms: int,
        name: WorkVersion,
        kind: Kind = Kind.SHORT,
        timeout_ms: int | None = None,
        owner: str = "",
        external_writes: bool = False,
        principal: str = "",
    ) -> Proposal:
        """The run's transaction for this version: the open one, without edits, or a new one. Ask `done_before` first.

        A run that the session does not know fences the one that holds it, and ends what that had open.
        """
        opened = self._joinable(name, now_ms)
        if opened is not None:
            return Proposal(self._claim(name), opened.id)
        taking: tuple[Edit, ...] = ()
        found = self._table.session_table.get(name.session)
        if found is not None and found.run == name.run:
            self._table.check_room()
            epoch = found.epoch
        else:
            ending = self.transactions(name.session)
            self._table.check_room(sum(len(transaction.pointers) for transaction in ending))
            epoch, taking = self.taking(name.session, name.run, now_ms, principal)
        session = SessionBinding(name.session, epoch, name.version)
        made = self._table.propose_begin(now_ms, kind, timeout_ms, owner, external_writes, None, session, principal)
        return Proposal((*taking, *self._claim(name), *made.edits), made.transaction_id)

    def _joinable(self, name: WorkVersion, now_ms: int) -> Transaction | None:
        """The run's oldest transaction for this version that may still be committed.

        One that is open is of the present epoch, so of the run that holds the session.
        """
        found = self._table.session_table.get(name.session)
        if found is None or found.run != name.run:
            return None
        for transaction in self.transactions(name.session):
            version = None if transaction.session is None else transaction.session.version
            usable = transaction.state is State.OPEN and transaction.doomed is None
            if version == name.version and usable and now_ms < transaction.deadline_ms:
                return transaction
        return None

    def _claim(self, name: WorkVersion) -> tuple[Edit, ...]:
        found = self._table.session_table.get(name.session)
        if name.counter_owner is None or (found is not None and found.counter_owner == name.counter_owner):
            return ()
        return (edits.CounterOwnerClaimed(name.session, name.counter_owner),)

    def _ends(self, name: str, now_ms: int) -> tuple[Edit, ...]:
        opened = [transaction for transaction in self.transactions(name) if transaction.state is State.OPEN]
        return forced_ends(opened, now_ms, timed_out=False)

    def _idle(self, besides: str, now_ms: int) -> list[SessionState]:
        """The sessions to forget, for nobody has used them for long. One whose versions somebody counts goes last, and
        only where another one would have no room: without it, work that was done would be done again.
        """
        sessions, limits = self._table.session_table, self._table.limits
        unused_since_ms = now_ms - limits.session_ms_max
        idle = [
            session
            for session in islice(sessions, IDLE_LOOKED_AT_MAX)
            if session.used_ms <= unused_since_ms and session.name != besides and not sessions.open_in(session.name)
        ]
        free = [session for session in idle if not session.counts_for_somebody][:FORGOTTEN_MAX]
        has_room = bool(free) or sessions.get(besides) is not None or len(sessions) < limits.sessions_max
        return free if has_room else idle[:1]


def _no_epoch(session: SessionState, epoch: int) -> SessionNotFoundError:
    """The session never came to this epoch, as when the server's data were restored from a backup since."""
    return SessionNotFoundError(
        f"session {session.name!r} is at epoch {session.epoch} (run {session.run!r}) and never came to epoch {epoch}; open"
        " it again, and begin at the epoch that it tells then",
        field="sessionEpoch",
    )


def _fenced(session: SessionState, epoch: int) -> SessionFencedError:
    return SessionFencedError(
        f"epoch {epoch} of session {session.name!r} is over: run {session.run!r} holds it, at epoch {session.epoch}; stop"
        " this run, or open the session again to take it back",
        field="sessionEpoch",
    )


def _replaced(session: SessionState, run: str) -> SessionFencedError:
    return SessionFencedError(
        f"run {run!r} of session {session.name!r} was replaced: run {session.run!r} holds it, at epoch {session.epoch}; stop"
        " this run: it cannot begin by its name any more",
        field="run",
    )


def _foreign(session: SessionState, counter_owner: str) -> SessionForeignError:
    writer = (
        "a writer that named no counter owner"
        if session.counter_owner is None
        else f"counter owner {session.counter_owner!r}"
    )
    so_far = (
        "none is committed yet" if session.version is None else f"{session.version} is the newest that is committed"
    )
    return SessionForeignError(
        f"session {session.name!r} was written by {writer}, this is counter owner {counter_owner!r}: its versions ({so_far}) would be taken"
        " for this one's, and work be left out that was never done",
        field="counterOwner",
        hint="Use a session of its own, or delete this one, if what it counts is of no more use.",
    )


def _too_many_sessions(known: int, oldest: SessionState) -> BusyError:
    return BusyError(
        f"there are {known} sessions, the most that there may be (session {oldest.name!r} was used longest ago, at"
        f" {refusals.time_text(oldest.used_ms)}); delete those that are not needed"
    )
