"""Transactions that are begun by session, run and version, by whichever process of the run comes first. Pure.

The processes of a run need tell each other nothing: each begins by the same three names, the first one begins the
transaction, and the others join it. What decides is, in this order: whether the run was replaced, whose versions the
session counts, whether the version was committed before, and what is open. docs/decisions/0014-named-transactions.md.
"""

from __future__ import annotations

from typing import NamedTuple

from basalt.transactions.rules import edits, refusals
from basalt.transactions.rules.begin import begun, check_room
from basalt.transactions.rules.checks import check_ledger, check_run, check_session_name, check_version
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.proposals import Proposal
from basalt.transactions.rules.session_rules import SessionRules
from basalt.transactions.rules.sessions import Session
from basalt.transactions.rules.states import InSession, Kind, State, Transaction
from basalt.transactions.rules.transaction_table import Ledger


class Name(NamedTuple):
    """What a transaction is begun by. `ledger` says whose count the version is; None: that is not compared."""

    session: str
    run: str
    version: int
    ledger: str | None = None


class NamedRules:
    """The named transactions of one ledger."""

    def __init__(self, ledger: Ledger, sessions: SessionRules) -> None:
        self._ledger = ledger
        self._sessions = sessions

    def done_before(self, name: Name) -> Session | None:
        """The session, when it has committed the version. `SessionFencedError` for a run that was replaced,
        `SessionForeignError` when the versions are another ledger's.
        """
        check_session_name(name.session)
        check_run(name.run)
        check_version(name.version)
        check_ledger(name.ledger)
        found = self._ledger.sessions.get(name.session)
        if found is None:
            return None
        if name.run in found.replaced:
            raise refusals.replaced(found, name.run)
        # Where nothing was committed another ledger's versions cannot be taken for one's own, but in what a run has open.
        counts = found.version is not None or (found.run == name.run and found.ledger is not None)
        if name.ledger is not None and name.ledger != found.ledger and counts:
            raise refusals.foreign(found, name.ledger)
        return found if found.covers(name.version) else None

    def begin(
        self,
        now_ms: int,
        name: Name,
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
        found = self._ledger.sessions.get(name.session)
        if found is not None and found.run == name.run:
            check_room(self._ledger)
            epoch = found.epoch
        else:
            ending = self._sessions.transactions(name.session)
            check_room(self._ledger, sum(len(transaction.pointers) for transaction in ending))
            epoch, taking = self._sessions.taking(name.session, name.run, now_ms)
        session = InSession(name.session, epoch, name.version)
        made = begun(self._ledger, now_ms, kind, timeout_ms, owner, outside, None, session)
        return Proposal((*taking, *self._claim(name), *made.edits), made.transaction_id)

    def _joinable(self, name: Name, now_ms: int) -> Transaction | None:
        """The run's oldest transaction for this version that may still be committed.

        One that is open is of the present epoch, so of the run that holds the session.
        """
        found = self._ledger.sessions.get(name.session)
        if found is None or found.run != name.run:
            return None
        for transaction in self._sessions.transactions(name.session):
            version = None if transaction.session is None else transaction.session.version
            usable = transaction.state is State.OPEN and transaction.doomed is None
            if version == name.version and usable and now_ms < transaction.deadline_ms:
                return transaction
        return None

    def _claim(self, name: Name) -> tuple[Edit, ...]:
        found = self._ledger.sessions.get(name.session)
        if name.ledger is None or (found is not None and found.ledger == name.ledger):
            return ()
        return (edits.LedgerClaimed(name.session, name.ledger),)
