"""Named sessions: which run of a job may write now, and how far its work has been committed. Pure.

A session has an epoch. A run that opens it raises the epoch by one, and whoever still holds an older epoch (a zombie) can
begin nothing. A run that opens a session ends the open transactions of the runs before it in the same proposal, so an open
transaction of a session always has the session's epoch. A transaction of a session may carry a version of the session's
work; its commit sets the session's version, so that the same work is never committed twice.

The processes of a run need tell each other nothing, and hold no epoch: each begins by the same three names
(`WorkVersion`), the first one begins the transaction, and the others join it. What decides is, in this order: whether the
run was replaced (therefore a session remembers which were), who counts the session's versions, whether the version was
committed before, and what is open. docs/decisions/0014-named-transactions.md; bytes: docs/formats/transaction-log.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from basalt.transactions.rules import edits, refusals
from basalt.transactions.rules.edits import Edit, Proposal, forced_ends
from basalt.transactions.rules.transaction import (
    FORGOTTEN_MAX,
    IDLE_LOOKED_AT_MAX,
    REPLACED_RUNS_MAX,
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
from basalt_engine.errors import CorruptionError

if TYPE_CHECKING:
    from basalt.transactions.rules.transaction_table import TransactionTable


class Session(msgspec.Struct, frozen=True):
    """The state of one session. `committed_by` is the transaction that committed `version`; 0 while there is none.

    `counter_owner` says whose count the versions are (the id of a query, say), if anybody said so. `replaced` are the runs that held the session before,
    the newest last, at most `REPLACED_RUNS_MAX` of them; the present one is not among them.
    """

    name: str
    run: str
    epoch: int
    used_ms: int
    version: int | None = None
    committed_by: int = 0
    counter_owner: str | None = None
    replaced: tuple[str, ...] = ()

    def held_by(self, run: str, epoch: int, at_ms: int) -> Session:
        """The session as it is once this run holds it."""
        if run == self.run:
            return replace(self, epoch=epoch, used_ms=at_ms)
        replaced = (*(known for known in self.replaced if known != run), self.run)[-REPLACED_RUNS_MAX:]
        return replace(self, run=run, epoch=epoch, used_ms=at_ms, replaced=replaced)

    @property
    def counts_for_somebody(self) -> bool:
        """True when its version has an owner, who relies on it and may come back after any time."""
        return self.counter_owner is not None and self.version is not None

    def covers(self, version: int | None) -> bool:
        """True when the version is at most the one that was committed last; False for None."""
        return version is not None and self.version is not None and version <= self.version


class SessionTable:
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

    def open_in(self, name: str) -> tuple[int, ...]:
        """The ids of the session's transactions that have not ended, ascending."""
        return tuple(sorted(self._open.get(name, ())))

    # What edits do. `CorruptionError`, and nothing changed, when the state does not allow it.

    def opened(self, edit: edits.SessionOpened, is_open: bool) -> None:
        """A run holds a session. `is_open`: a transaction of the session may still commit by a call of its client."""
        known = self.get(edit.name)
        over = self.epoch_over if known is None else known.epoch - (known.run == edit.run)
        taken = known is None or known.epoch < edit.epoch
        if edit.epoch <= over or (taken and is_open):
            raise CorruptionError(
                f"session {edit.name!r} is opened at epoch {edit.epoch}, while another one is not over"
            )
        if known is None:
            self._put(Session(edit.name, edit.run, edit.epoch, edit.at_ms))
        else:
            self._put(known.held_by(edit.run, edit.epoch, edit.at_ms))

    def claimed(self, edit: edits.CounterOwnerClaimed) -> None:
        """A session's versions are counted by this owner."""
        known = self.get(edit.name)
        if known is None or known.counter_owner == edit.owner or not edit.owner:
            raise CorruptionError(
                f"session {edit.name!r} gets counter owner {edit.owner!r}, which it has, or cannot have"
            )
        self._sessions[edit.name] = replace(known, counter_owner=edit.owner)

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
            self.epoch_over = max(self.epoch_over, self._sessions.pop(name).epoch)

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

    def _put(self, session: Session) -> None:
        """Keep what is known of a session now, as the one used last."""
        self._sessions[session.name] = session
        self._sessions.move_to_end(session.name)


class Taking(NamedTuple):
    """The epoch under which a run takes a session, and the edits that give it to the run."""

    epoch: int
    edits: tuple[Edit, ...]


class WorkVersion(NamedTuple):
    """The name by which a transaction is begun. `counter_owner` counts the versions; None: that is not compared."""

    session: str
    run: str
    version: int
    counter_owner: str | None = None


class SessionRules:
    """The sessions of one transaction table."""

    def __init__(self, table: TransactionTable) -> None:
        self._table = table

    def known(self) -> list[Session]:
        return list(self._table.session_table)

    def get(self, name: str) -> Session:
        """The session; `SessionNotFoundError` when there is none of the name."""
        found = self._table.session_table.get(name)
        if found is None:
            raise refusals.no_session(name)
        return found

    def transactions(self, name: str) -> tuple[Transaction, ...]:
        """The session's transactions that have not ended, oldest first."""
        return tuple(self._table.by_id[key] for key in self._table.session_table.open_in(name))

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
        sessions = self._table.session_table
        found = sessions.get(name)
        if found is None and len(sessions) - len(idle) >= self._table.limits.sessions_max:
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

    def admit(self, session: SessionBinding) -> None:
        """Refuse what may not begin: `SessionFencedError` for an epoch that is over, `SessionNotFoundError` for one that
        there is not.
        """
        check_version(session.version)
        found = self.get(session.name)
        if session.epoch < found.epoch:
            raise refusals.fenced(found, session.epoch)
        if session.epoch > found.epoch:
            raise refusals.no_epoch(found, session.epoch)

    def is_done(self, session: SessionBinding) -> bool:
        """True when the binding has a version and it was committed before. Refuses what `admit` refuses."""
        self.admit(session)
        return self.get(session.name).covers(session.version)

    def loss(self, binding: SessionBinding) -> Loss | None:
        """Why a transaction may not commit: another one of its session has committed, or is committing, its version."""
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

    def done_before(self, name: WorkVersion) -> Session | None:
        """The session, when it has committed the version. `SessionFencedError` for a run that was replaced,
        `SessionForeignError` when the versions are counted by somebody else.
        """
        check_session_name(name.session)
        check_run(name.run)
        check_version(name.version)
        check_counter_owner(name.counter_owner)
        found = self._table.session_table.get(name.session)
        if found is None:
            return None
        if name.run in found.replaced:
            raise refusals.replaced(found, name.run)
        # Where nothing was committed nobody's versions can be taken for one's own, but in what a run has open.
        counts = found.version is not None or (found.run == name.run and found.counter_owner is not None)
        if name.counter_owner is not None and name.counter_owner != found.counter_owner and counts:
            raise refusals.foreign(found, name.counter_owner)
        return found if found.covers(name.version) else None

    def begin_named(
        self,
        now_ms: int,
        name: WorkVersion,
        kind: Kind = Kind.SHORT,
        timeout_ms: int | None = None,
        owner: str = "",
        outside: bool = False,
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
            epoch, taking = self.taking(name.session, name.run, now_ms)
        session = SessionBinding(name.session, epoch, name.version)
        made = self._table.propose_begin(now_ms, kind, timeout_ms, owner, outside, None, session)
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

    def _idle(self, besides: str, now_ms: int) -> list[Session]:
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
