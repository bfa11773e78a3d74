"""The coordinator, to members that have it begin, commit and abort for their clients. The asking side is `basalt.commits.of_members.commits`."""

from __future__ import annotations

import msgspec

from basalt.cluster.links.link import Handlers
from basalt.cluster.shard_gate import SEND_AGAIN
from basalt.commits.commit_stage import CommitAsked, Guard
from basalt.commits.coordinator import Coordinator
from basalt.commits.of_members.commits import (
    ACT,
    BEGIN,
    COMMIT,
    ActCall,
    Acted,
    BeginCall,
    CommitAnswer,
    CommitCall,
    seen_of,
)
from basalt.commits.owning.owners import Owners
from basalt.errors import ConflictError, UnavailableError
from basalt.transactions.protocol import Intend
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import State, Transaction
from basalt_engine.errors import BasaltError


class _ChangedError(ConflictError):
    """The transaction is not what the member took it for: another of its calls came in between. Nothing was done."""


class CommitsOfMembers:
    """The coordinator, to members to which commits come."""

    def __init__(self, coordinator: Coordinator, owners: Owners) -> None:
        self._coordinator = coordinator
        self._manager = coordinator.manager
        self._owners = owners
        self._carrier = coordinator.carrier

    def answer_over(self, handlers: Handlers) -> None:
        """Answer the calls of members over links."""
        handlers.add(COMMIT, self.commit)
        handlers.add(BEGIN, self.begin)
        handlers.add(ACT, self.act)

    async def begin(self, _: str, asked: BeginCall) -> Acted:
        """Begin a transaction."""
        try:
            begun = await self._coordinator.begin(*msgspec.structs.astuple(asked))
        except BasaltError as refusal:
            return Acted(0, 0, CommitAnswer.of(refusal))
        return Acted(begun.id, self._manager.entries_durable)

    async def act(self, _: str, asked: ActCall) -> Acted:
        """Abort a transaction, or have a checkpoint."""
        outcome: Outcome | BasaltError | None = None
        try:
            if asked.what == "abort":
                outcome = await self._coordinator.abort(asked.transaction_id)
            else:
                await self._coordinator.checkpoint(asked.transaction_id)
        except BasaltError as refusal:
            outcome = refusal
        return Acted(asked.transaction_id, self._manager.entries_durable, CommitAnswer.of(outcome))

    async def commit(self, instance: str, asked: CommitCall) -> CommitAnswer:
        """Commit what the member has prepared."""
        link = self._owners.links.of_run(asked.member)
        if link is None or self._owners.links.of_members.get(instance) is not link:
            raise UnavailableError(f"{asked.member} is not the member of this link; nothing was done", hint=SEND_AGAIN)
        try:
            return CommitAnswer.of(await self._committed(asked))
        except _ChangedError:
            return CommitAnswer()
        except BasaltError as refusal:
            return CommitAnswer.of(refusal)

    async def _committed(self, asked: CommitCall) -> Outcome:
        transaction_id = asked.transaction.id
        await self._carrier.carried(transaction_id)
        await self._manager.ensure_known()
        self._check(asked, self._manager.state.find(transaction_id))
        if asked.pending:  # their owners look at the order of what it acknowledges
            await self._coordinator.elsewhere.acknowledged(None, self._manager.state.find(transaction_id))
        prepared = await self._owners.prepared_by(asked.member, asked.prepared, asked.transaction, asked.segments)
        intend = Intend(transaction_id, prepared.topics, asked.request_id)
        guard = self._guard(asked)
        try:
            await self._manager.ensure_known()
        except BasaltError:
            self._owners.drop(prepared)
            raise
        return await self._carrier.carry_out(CommitAsked(intend, prepared, guard=guard))

    def _check(self, asked: CommitCall, found: Transaction | None) -> None:
        if (
            found is None
            or found.state is not State.OPEN
            or seen_of(self._manager, found) != (asked.transaction, asked.pending)
        ):
            raise _ChangedError(f"transaction {asked.transaction.id} has changed; nothing was done")

    def _guard(self, asked: CommitCall) -> Guard:
        def guard(found: Transaction | None) -> None:
            if found is not None and found.state is State.OPEN:  # otherwise it is decided, and the answer says how
                self._check(asked, found)

        return guard
