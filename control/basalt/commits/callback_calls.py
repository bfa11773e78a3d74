"""Begin, change set and commit for a face that answers from callbacks: no task, coroutine or future for each call.

They do what the coordinator's calls of the same names do. Who asks is told as a waiter of the group commit.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

from basalt.commits.commit_stage import Stages
from basalt.commits.named import Beginning
from basalt.commits.participants import Plan
from basalt.runtime.group_commit import Group, Waiter
from basalt.transactions.manager import DurableState
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.states import Kind, Transaction
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError

P = TypeVar("P", bound=Plan)


UNTOLD_PER_ENTRY_MAX = 10_000  # of one log entry: some 300 KiB


class PromptCalls(Generic[P]):
    """Each answers False, and has done nothing, where only the coroutine can: while the log is to be read, say.

    Raises what speaks against taking the call at all.
    """

    def __init__(self, durable: DurableState[P], stages: Stages[P], nothing: P, clock: Clock) -> None:
        self._durable = durable
        self._stages = stages
        self._nothing = nothing
        self._clock = clock

    def begin(self, waiter: Waiter[Transaction], kind: Kind, timeout_ms: int | None, owner: str) -> bool:
        """A transaction with writes outside Basalt, whose change set is logged with its commit."""
        asked = Beginning(kind, timeout_ms, owner, outside=True)
        return self._durable.submit(lambda group: self._stages.begin(group, asked, changes_unlogged=True), waiter)

    def tell_changes(self, transaction_id: int, changes: Collection[bytes]) -> bool:
        """Keep the change set of a transaction that began here until its commit. Done at once, and not logged."""
        # The working state may be a group ahead of the log. When that group fails the state is read anew, without this set.
        return self._durable.is_known and self._durable.state.unlogged.tell(
            transaction_id, changes, self._clock.now_ms()
        )

    def commit(self, waiter: Waiter[Outcome | BasaltError], transaction_id: int) -> bool:
        """Commit what the transaction stored, without more. What is told may be a refusal that is durable now."""
        return self._durable.submit(self._stages.commit(transaction_id, self._nothing), waiter)

    async def note_untold(self) -> None:
        """Before the server stops: log of whom no change set is missing, so that they can commit after the restart."""
        while self._durable.is_known:

            def stage(group: Group) -> int:
                proposal = self._durable.state.unlogged.note_untold(UNTOLD_PER_ENTRY_MAX)
                self._durable.apply(group, proposal.edits)
                return len(proposal.edits)

            if await self._durable.run(stage) < UNTOLD_PER_ENTRY_MAX:
                return
