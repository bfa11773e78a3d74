"""The calls on named sessions and the reset of a test server: each asks the rules, makes it durable, then answers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from basalt.group_commit import Group, NextGroupError
from basalt.transactions.durable_state import DurableState
from basalt.transactions.sessions import Session
from basalt.transactions.states import InSession, Kind, Transaction

log = logging.getLogger("basalt.transactions")


class SessionStanding(NamedTuple):
    """A session, and its transactions that have not ended, oldest first."""

    session: Session
    transactions: tuple[Transaction, ...]


class Beginning(NamedTuple):
    """What a begin asks for, but for the session."""

    kind: Kind = Kind.SHORT
    timeout_ms: int | None = None
    owner: str = ""
    outside: bool = False
    request_id: str | None = None


class SessionCalls:
    """Sessions of one coordinator, of which it is a part: `coordinator.sessions`."""

    def __init__(
        self,
        durable: DurableState[Any],
        begin: Callable[[Group, Beginning, InSession], Transaction],
        drive: Callable[[], Awaitable[None]],
    ) -> None:
        self._durable = durable
        self._begin = begin
        self._drive = drive

    async def open(self, name: str, run: str) -> Session:
        """The run holds the session. What the runs before it had not committed is ended, and rolled back, by then."""

        def stage(group: Group) -> Session:
            proposal = self._durable.state.sessions.open(name, run, group.now_ms)
            self._durable.apply(group, proposal.edits)
            return self._durable.state.sessions.get(name)

        opened = await self._durable.run(stage)
        await self._drive()
        log.info("session %s: run %s holds it at epoch %s", name, run, opened.epoch)
        return opened

    async def delete(self, name: str) -> None:
        """End the session's open transactions, and forget the session."""

        def stage(group: Group) -> None:
            self._durable.apply(group, self._durable.state.sessions.delete(name, group.now_ms).edits)

        await self._durable.run(stage)
        await self._drive()
        log.info("session %s: deleted", name)

    async def begin(self, session: InSession, asked: Beginning) -> Transaction | Session:
        """A new transaction of the session; or the session, when it has committed the version before."""

        def stage(group: Group) -> Transaction | Session:
            sessions = self._durable.state.sessions
            return sessions.get(session.name) if sessions.is_done(session) else self._begin(group, asked, session)

        return await self._durable.run(stage)

    async def get(self, name: str) -> SessionStanding:
        """A session, as it durably is."""
        return await self._durable.run(lambda group: self._standing(self._durable.state.sessions.get(name)))

    async def list(self) -> list[SessionStanding]:
        """All sessions, by name."""

        def stage(group: Group) -> list[SessionStanding]:
            found = sorted(self._durable.state.sessions.known(), key=lambda session: session.name)
            return [self._standing(session) for session in found]

        return await self._durable.run(stage)

    async def reset(self) -> None:
        """Forget every transaction and session: only where `transactions.allow_reset` says so."""

        def stage(group: Group) -> None:
            if not self._durable.is_untouched(group):
                raise NextGroupError  # what the group has begun would otherwise be logged behind it
            self._durable.apply(group, self._durable.state.reset(group.now_ms).edits)

        await self._durable.run(stage)
        log.warning("every transaction was forgotten: a client has reset this test server")

    def _standing(self, session: Session) -> SessionStanding:
        return SessionStanding(session, self._durable.state.sessions.transactions(session.name))
