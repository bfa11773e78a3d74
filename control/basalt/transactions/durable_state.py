"""The transactions' state, logged first and shown after.

Stages of the group commit move a working state; the edits that they apply become one entry of the log. Readers see the
state only once the entry is durable (`current`). When a write fails, what the log holds is unknown: the working state is
read again from it before the next call.

Where the store is atomic over tables, a commit's rows and its edit are one batch. Elsewhere the group writes what a
transaction intends first (began, joined a topic, committing), then rows, then outcomes. After a crash in between nobody
can tell which of the rows there are, so a commit without an outcome is rolled back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from basalt.errors import UnavailableError
from basalt.group_commit import Group, GroupCommit, Phase
from basalt.store_calls import StoreCalls
from basalt.transactions import edits, outside
from basalt.transactions.edits import Edit
from basalt.transactions.log import SnapshotDraft, TransactionLog
from basalt.transactions.participants import Participant, Plan
from basalt.transactions.states import State, Transaction
from basalt.transactions.transaction_state import TransactionState
from basalt_engine.errors import RowExistsError
from basalt_engine.snapshot import TransactionSnapshot
from basalt_engine.table import Store

ENDS = (edits.Committed, edits.Aborted, edits.Invalidated)
TAKE_OVER_TRIES = 16  # a former leader has one append under way at a time, and is fenced before this one reads
OUTCOMES = (*ENDS, edits.OneShot, edits.Pruned, edits.Truncated, edits.Restored)

P = TypeVar("P", bound=Plan)
T = TypeVar("T")

_COUNTED: dict[type, str] = {
    edits.Began: "begun",
    edits.OneShot: "committed",
    edits.Committed: "committed",
    edits.Aborted: "aborted",
    edits.Invalidated: "invalidated",
    edits.Doomed: "conflicts",
}


class _Entry:
    """The edits that one group logs."""

    def __init__(self, durable: DurableState[Any]) -> None:
        self._durable = durable
        self.intents: list[Edit] = []
        self.outcomes: list[Edit] = []
        self.ended: list[Transaction] = []

    def closing(self, group: Group) -> None:
        self._durable.write(group, self.intents, Phase.INTENT)
        self._durable.write(group, self.outcomes, Phase.OUTCOME)

    def durable(self) -> None:
        self._durable.written([*self.intents, *self.outcomes], self.ended)

    def failed(self) -> None:
        self._durable.lost()


class DurableState(Generic[P]):
    """The working state of one store's transactions, and the newest durable snapshot of it."""

    def __init__(self, store: Store, writer: GroupCommit, transaction_log: TransactionLog, epoch: int = 0) -> None:
        self._epoch = epoch
        self.atomic = store.atomic
        self._call = StoreCalls(store)
        self._writer = writer
        self._log = transaction_log
        self._state: TransactionState | None = None
        self._current = TransactionSnapshot(0)
        self._participant: Participant[P]
        self._recovering = asyncio.Lock()
        self.totals = {"begun": 0, "committed": 0, "aborted": 0, "invalidated": 0, "conflicts": 0}

    def attach(self, participant: Participant[P]) -> None:
        """Name the participant; before anything else."""
        self._participant = participant

    @property
    def state(self) -> TransactionState:
        """The working state: it may be a group ahead of what is durable."""
        if self._state is None:
            raise UnavailableError("the transaction manager is reading its log", hint="try again")
        return self._state

    def current(self) -> TransactionSnapshot:
        """The newest durable snapshot."""
        return self._current

    def has_outcomes(self, group: Group) -> bool:
        """Whether an earlier stage of the group has ended a transaction."""
        return bool(self._entry(group).outcomes)

    def draft(self, group: Group) -> SnapshotDraft:
        """A snapshot of the log; only in a group that has no edits yet."""
        return self._log.draft(self.state)

    def is_untouched(self, group: Group) -> bool:
        """Whether no earlier stage of the group has moved the state."""
        return not self._entry(group).intents and not self._entry(group).outcomes

    async def run(self, stage: Callable[[Group], T], size_bytes: int = 0) -> T:
        """Run a stage of the group commit over a state that is known; read it from the log first if need be."""
        if self._state is None:
            async with self._recovering:
                if self._state is None:
                    await self._read_log()
        return await self._writer.run(stage, size_bytes)

    async def _read_log(self) -> None:
        """Know the state again, and lead. While a former leader still adds entries, there is more to read."""
        for tries_left in reversed(range(TAKE_OVER_TRIES)):
            state = await self._call(self._log.recover)
            taking_over = state.lead(self._epoch).edits
            self._participant.recovered(state.last_pointer)
            self._state, self._current = state, state.view()
            try:
                await self._writer.run(partial(self._settle, taking_over))
                return
            except RowExistsError:
                if not tries_left:
                    raise

    def _settle(self, taking_over: Sequence[Edit], group: Group) -> None:
        """Take over, if need be. A commit of which the log has the intent and not the outcome did not happen."""
        self.apply(group, taking_over)
        for transaction in self.state.transactions(State.COMMITTING):
            self.apply(group, self.state.give_up(transaction.id).edits)

    def _entry(self, group: Group) -> _Entry:
        return group.part(self, lambda: _Entry(self))

    def apply(self, group: Group, made: Sequence[Edit]) -> None:
        """In a stage: make the edits true in the working state, and log them with the group."""
        entry = self._entry(group)
        for edit in made:
            if isinstance(edit, ENDS):
                ids = edit.ids if isinstance(edit, edits.Invalidated) else (edit.id,)
                ended = [transaction for transaction in map(self.state.find, ids) if transaction is not None]
                entry.ended += ended
                if isinstance(edit, edits.Invalidated):
                    for transaction in ended:
                        outside.note(group, transaction)
                        self._participant.invalidate(group, transaction)
            self.state.apply(edit)
            outcome = self.atomic or isinstance(edit, OUTCOMES)
            (entry.outcomes if outcome else entry.intents).append(edit)

    def write(self, group: Group, entry: list[Edit], phase: Phase) -> None:
        """Add the edits to the group, as one entry of the log."""
        if entry:
            group.add(self._log.table_name, self._log.encode_next(entry), phase=phase)

    def written(self, entry: list[Edit], ended: list[Transaction]) -> None:
        """The edits are in the log: readers may see what they made."""
        if self._state is not None:
            self._current = self._state.view()
        for edit in entry:
            name = _COUNTED.get(type(edit))
            if name is not None:
                self.totals[name] += len(edit.ids) if isinstance(edit, edits.Invalidated) else 1

        for transaction in ended:
            self._participant.ended(transaction)

    def lost(self) -> None:
        """What the log holds now is unknown until it is read: no call may build on the working state."""
        self._state = None
