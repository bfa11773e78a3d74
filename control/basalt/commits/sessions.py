"""The calls on named sessions and the reset of a test server: each asks the rules, makes it durable, then answers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from basalt.commits.commit_stage import Beginning, CommitStage
from basalt.commits.recovery import Recovery
from basalt.runtime.group_commit import Group, NextGroupError, Phase
from basalt.transactions.manager import TransactionManager
from basalt.transactions.rules.edits import SessionOpened
from basalt.transactions.rules.session_rules import WorkVersion
from basalt.transactions.rules.sessions import Session
from basalt.transactions.rules.states import SessionBinding, State, Transaction

log = logging.getLogger("basalt.transactions")


class SessionStanding(NamedTuple):
    """A session, and its transactions that have not ended, oldest first."""

    session: Session
    transactions: tuple[Transaction, ...]


class SessionCalls:
    """Sessions of one coordinator, of which it is a part: `coordinator.sessions`."""

    def __init__(self, manager: TransactionManager, stages: CommitStage, recovery: Recovery) -> None:
        self._manager = manager
        self._stages = stages
        self._recovery = recovery

    async def open(self, name: str, run: str) -> Session:
        """The run holds the session. What the runs before it had not committed is ended by then.

        It is rolled back, too, where that succeeds. Where not, it stays hidden, and the expiry job tries again.
        """

        def stage(group: Group) -> tuple[Session, list[Transaction]]:
            sessions = self._manager.state.sessions
            self._stages.apply(group, sessions.open(name, run, group.now_ms).edits)
            return sessions.get(name), _unfinished(sessions.transactions(name))

        opened, unfinished = await self._manager.run(stage)
        await self._recovery.drive(unfinished)
        log.info("session %s: run %s holds it at epoch %s", name, run, opened.epoch)
        return opened

    async def delete(self, name: str) -> None:
        """End the session's open transactions, and forget the session. They are rolled back as by `open`."""

        def stage(group: Group) -> list[Transaction]:
            state = self._manager.state
            ending = state.sessions.transactions(name)
            self._stages.apply(group, state.sessions.delete(name, group.now_ms).edits)
            return _unfinished(filter(None, (state.find(transaction.id) for transaction in ending)))

        await self._recovery.drive(await self._manager.run(stage))
        log.info("session %s: deleted", name)

    async def begin(self, session: SessionBinding, asked: Beginning) -> Transaction | Session:
        """A new transaction of the session; or the session, when it has committed the version before."""

        def stage(group: Group) -> Transaction | Session:
            sessions = self._manager.state.sessions
            return (
                sessions.get(session.name) if sessions.is_done(session) else self._stages.begin(group, asked, session)
            )

        return await self._manager.run(stage)

    async def begin_named(self, name: WorkVersion, asked: Beginning) -> Transaction | Session:
        """The run's transaction for the version, new or open before; or the session, when it has committed the version.

        What a run that is replaced by this one had open is ended by then, and rolled back where that succeeds. A request
        id is of no use here: to ask again is to join.
        """

        def stage(group: Group) -> tuple[Transaction | Session, list[Transaction]]:
            state = self._manager.state
            done = state.named.done_before(name)
            if done is not None:
                return done, []
            proposal = state.named.begin(group.now_ms, name, *asked[:-1])
            # As one entry, for a session that is taken over and the begin in it are one decision.
            self._stages.apply(group, proposal.edits, phase=Phase.OUTCOME)
            taken = any(isinstance(edit, SessionOpened) for edit in proposal.edits)
            ending = _unfinished(state.sessions.transactions(name.session)) if taken else []
            return state.get(proposal.transaction_id), ending

        found, unfinished = await self._manager.run(stage)
        await self._recovery.drive(unfinished)
        return found

    async def get(self, name: str) -> SessionStanding:
        """A session, as it durably is."""
        return await self._manager.run(lambda group: self._standing(self._manager.state.sessions.get(name)))

    async def list(self) -> list[SessionStanding]:
        """All sessions, by name."""

        def stage(group: Group) -> list[SessionStanding]:
            found = sorted(self._manager.state.sessions.known(), key=lambda session: session.name)
            return [self._standing(session) for session in found]

        return await self._manager.run(stage)

    async def reset(self) -> None:
        """Forget every transaction and session: only where `transactions.allow_reset` says so."""

        def stage(group: Group) -> None:
            if not self._manager.is_untouched(group):
                raise NextGroupError  # what the group has begun would otherwise be logged behind it
            self._stages.apply(group, self._manager.state.reset(group.now_ms).edits)

        await self._manager.run(stage)
        log.warning("every transaction was forgotten: a client has reset this test server")

    def _standing(self, session: Session) -> SessionStanding:
        return SessionStanding(session, self._manager.state.sessions.transactions(session.name))


def _unfinished(transactions: Iterable[Transaction]) -> list[Transaction]:
    """Those whose end is decided and not done."""
    return [transaction for transaction in transactions if transaction.state is State.ABORTING]
