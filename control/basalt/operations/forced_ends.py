"""Operators end other people's transactions: with a line in the audit, and not where an abort would promise too much.

An abort is refused where the transaction wrote outside Basalt: those writes would be seen, and nobody would undo them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from basalt.api.bodies.transactions import ForcedEnd
from basalt.commits.coordinator import Coordinator, Guard
from basalt.errors import ConflictError, OutsideWritesError
from basalt.operations.audit import Audit, By
from basalt.operations.inspection import Inspection
from basalt.transactions.rules.edits import Invalidated
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import Kind, State, Transaction, TransactionIds
from basalt_engine.clock import Clock


class ForcedEnds:
    """Aborts and invalidates transactions by hand."""

    def __init__(
        self, clock: Clock, transactions: Coordinator, ids: TransactionIds, inspection: Inspection, audit: Audit
    ) -> None:
        self._clock = clock
        self._transactions = transactions
        self._ids = ids
        self._inspection = inspection
        self._audit = audit

    async def abort(self, transaction_id: int, by: By, *, force: bool, dry_run: bool) -> ForcedEnd:
        """Abort; `force` says that the writes outside Basalt have been undone. `OutsideWritesError` where they may be left."""
        transactions = self._transactions

        async def do() -> Outcome:
            return await transactions.abort(transaction_id, await self._guard(was, force))

        # Out of the group commit: what it says is durable, and so is the note that a writer's end leaves with it.
        was = await transactions.outcome(transaction_id)
        if dry_run:
            return await self._would_abort(was, force)
        return await self._done("abort", was, by, do)

    async def invalidate(self, transaction_id: int, by: By, *, dry_run: bool) -> ForcedEnd:
        """Hide for good what the transaction wrote."""
        transactions = self._transactions

        async def do() -> Outcome:
            await transactions.invalidate(transaction_id)
            return transactions.state.outcome(transaction_id)

        was = transactions.state.outcome(transaction_id)
        if dry_run:
            moves = transactions.state.invalidate(transaction_id, self._clock.now_ms()).edits
            state = State.INVALID if moves else was.state
            return ForcedEnd(self._ids.text(was.id), was.state.name, state.name, bool(moves), True)
        return await self._done("invalidate", was, by, do)

    async def _done(self, verb: str, was: Outcome, by: By, do: Callable[[], Awaitable[Outcome]]) -> ForcedEnd:
        """Do it with a line in the audit, and count it."""

        def told(outcome: Outcome) -> str:
            return f"{outcome.state.name} before" if outcome.state is was.state else outcome.state.name

        text = self._ids.text(was.id)
        outcome = await self._audit.act(f"forced {verb}", f"transaction {text}", *by, do, told)
        changed = outcome.state is not was.state
        self._transactions.totals.events["forced"] += changed
        return ForcedEnd(text, was.state.name, outcome.state.name, changed, False)

    async def _would_abort(self, was: Outcome, force: bool) -> ForcedEnd:
        """Tell what an abort would do; refuse what it would refuse."""
        state = self._transactions.state
        guard = await self._guard(was, force)
        guard(state.find(was.id))
        moves = state.abort(was.id, self._clock.now_ms()).edits
        after = was.state
        if moves:
            after = State.INVALID if any(isinstance(edit, Invalidated) for edit in moves) else State.ABORTED
        return ForcedEnd(self._ids.text(was.id), was.state.name, after.name, bool(moves), True)

    async def _guard(self, was: Outcome, force: bool) -> Guard:
        """Refuse to abort one that wrote outside Basalt, unless it is forced.

        The guard refuses what only the stage that decides can tell: also one that became invalid after `was` was read, for
        then nobody has looked for a note about it. Long transactions are hidden by an abort too, so they need no refusal.
        """
        if force:
            return lambda transaction: None
        text = self._ids.text(was.id)
        if _leaves_the_list(was) and await self._inspection.wrote_outside(was):
            raise _outside_writes(text, was.owner, "had")

        def guard(transaction: Transaction | None) -> None:
            if transaction is not None:
                if transaction.outside and transaction.kind is Kind.SHORT:
                    raise _outside_writes(text, transaction.owner, "may have")
            elif was.state is not State.INVALID and _leaves_the_list(self._transactions.state.outcome(was.id)):
                raise ConflictError(
                    f"transaction {text} became invalid meanwhile", hint=f"look again (`basalt tx describe {text}`)"
                )

        return guard


def _leaves_the_list(outcome: Outcome) -> bool:
    """Tell whether an abort takes the transaction off the invalid list."""
    return outcome.state is State.INVALID and outcome.kind is Kind.SHORT


def _outside_writes(text: str, owner: str, has: str) -> OutsideWritesError:
    who = f" (owner {owner})" if owner else ""
    return OutsideWritesError(
        f"transaction {text}{who} {has} writes outside Basalt, which only its client can undo: an abort would show them",
        hint=f"invalidate it (`basalt tx invalidate {text}`), or say force once its client has undone them",
    )
