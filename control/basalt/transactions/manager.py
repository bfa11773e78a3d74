"""The transactions' state, logged first and shown after.

Stages of the group commit move a working state; the edits that they apply become one entry of the log. Readers see the
state only once the entry is durable (`current`). When a write fails, what the log holds is unknown: the working state is
read again from it before the next call.

Where the store is atomic over tables, a commit's rows and its edit are one batch. Elsewhere the group writes what a
transaction intends first (began, joined a topic, committing), then rows, then outcomes. After a crash in between nobody
can tell which of the rows there are, so a commit without an outcome is rolled back. One-shot transactions leave their
intent out (`one_shot_rules`): rows of theirs without an outcome are searched for when the log is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from basalt.commits.participants import Participant, Plan
from basalt.errors import UnavailableError
from basalt.runtime.group_commit import Group, GroupCommit, NextGroupError, Phase, Waiter
from basalt.runtime.store_calls import StoreCalls
from basalt.transactions import external_writes as outside
from basalt.transactions.log.timeline import Journal
from basalt.transactions.log.transaction_log import SnapshotDraft, TransactionLog
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.states import Join, State, Transaction
from basalt.transactions.rules.transaction_state import TransactionState
from basalt.transactions.totals import Totals
from basalt_engine.errors import RowExistsError
from basalt_engine.snapshot import TransactionSnapshot
from basalt_engine.table import Put, Store

ENDS = (edits.Committed, edits.Aborted, edits.Invalidated)
SNAPSHOT_ENTRIES_INLINE = 2_000  # a log snapshot of fewer things is encoded at once, in some milliseconds
TAKE_OVER_TRIES = 16  # a former leader has one append under way at a time, and is fenced before this one reads
OUTCOMES = (
    *ENDS,
    edits.OneShot,
    edits.Pruned,
    edits.Truncated,
    edits.Restored,
    edits.Reset,
    edits.SessionOpened,
    edits.SessionsForgotten,
    edits.LedgerClaimed,
)

P = TypeVar("P", bound=Plan)
T = TypeVar("T")


class _Entry:
    """The edits that one group logs."""

    def __init__(self, durable: DurableState[Any]) -> None:
        self._durable = durable
        self._now_ms = 0
        self.intents: list[Edit] = []
        self.outcomes: list[Edit] = []
        self.ended: list[Transaction] = []

    def closing(self, group: Group) -> None:
        self._now_ms = group.now_ms
        self._durable.write(group, self.intents, Phase.INTENT)
        self._durable.write(group, self.outcomes, Phase.OUTCOME)

    def durable(self) -> None:
        self._durable.written([*self.intents, *self.outcomes], self.ended, self._now_ms)

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
        self.totals = Totals()
        self.journal = Journal()

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

    @property
    def log_length(self) -> tuple[int, int]:
        """How many entries of the log, and bytes of them, follow its newest snapshot: what a restart replays."""
        return self._log.entries_since_snapshot, self._log.bytes_since_snapshot

    def has_outcomes(self, group: Group) -> bool:
        """Whether an earlier stage of the group has ended a transaction."""
        return bool(self._entry(group).outcomes)

    def check_order(self, group: Group) -> None:
        """In a stage whose edit is an intent and hands out a pointer: `NextGroupError` when replaying the log would find
        it before what an earlier stage of the group made, and give its transaction another snapshot, or refuse it.
        """
        if not self.atomic and self.has_outcomes(group):
            raise NextGroupError

    def draft(self, group: Group) -> SnapshotDraft:
        """A snapshot of the log; only in a group that has no edits yet."""
        return self._log.draft(self.state)

    async def write_snapshot(self) -> int:
        """Write a snapshot of the log; its bytes."""

        def draft(group: Group) -> SnapshotDraft:
            if not self.is_untouched(group):
                raise NextGroupError  # the snapshot holds just what older entries made
            return self.draft(group)

        drafted = await self.run(draft)
        # Encoding a hundred thousand outcomes takes a second; meanwhile the state moves on, and its entries follow.
        large = drafted.entries > SNAPSHOT_ENTRIES_INLINE
        steps = await asyncio.to_thread(drafted.steps) if large else drafted.steps()

        def write(group: Group) -> None:
            for phase, mutations in zip(Phase, steps, strict=True):
                group.add(self._log.table_name, *mutations, phase=phase)
            group.when_durable(partial(self._log.snapshot_written, drafted))

        await self.run(write)
        return sum(
            len(value) for step in steps for put in step if isinstance(put, Put) for value in put.columns.values()
        )

    def is_untouched(self, group: Group) -> bool:
        """Whether no earlier stage of the group has moved the state."""
        return not self._entry(group).intents and not self._entry(group).outcomes

    @property
    def is_known(self) -> bool:
        """Whether there is a working state; else the next call reads it from the log."""
        return self._state is not None

    def submit(self, stage: Callable[[Group], T], waiter: Waiter[T]) -> bool:
        """Run a stage, and tell the waiter, if the state is known: `run` is for when it is not."""
        if self._state is not None:
            self._writer.submit(stage, waiter)
        return self._state is not None

    async def run(self, stage: Callable[[Group], T], size_bytes: int = 0) -> T:
        """Run a stage of the group commit over a state that is known; read it from the log first if need be."""
        await self.known()
        return await self._writer.run(stage, size_bytes)

    async def known(self) -> None:
        """Read the state from the log, if what that holds is unknown."""
        if self._state is None:
            async with self._recovering:
                if self._state is None:
                    await self._read_log()

    async def _read_log(self) -> None:
        """Know the state again, and lead. While a former leader still adds entries, there is more to read."""
        for tries_left in reversed(range(TAKE_OVER_TRIES)):
            state = await self._call(self._log.recover, self.journal)
            taking_over = state.lead(self._epoch).edits
            self._participant.recovered(state.last_pointer)
            unknown = await self._participant.unknown_writers(state.one_shots.in_use(), state.last_pointer)
            held = await self._participant.hold(state.transactions(State.COMMITTING))
            try:
                await self._writer.run(partial(self._settle, state, taking_over, unknown))
                return
            except RowExistsError:
                if not tries_left:
                    raise
            finally:
                del held

    def _settle(
        self, state: TransactionState, taking_over: Sequence[Edit], unknown: Mapping[int, Sequence[Join]], group: Group
    ) -> None:
        """Take over, if need be. A commit of which the log has not the outcome did not happen.

        Nothing is rolled back before this entry has its place: an outcome that is still under way comes too late then.
        Only from here on is the state known to others, for a pointer that they committed would show unknown writers' rows.
        """
        self._state, self._current = state, state.view()
        self.apply(group, taking_over)
        self.apply(group, state.one_shots.recover(unknown).edits)
        for transaction in self.state.transactions(State.COMMITTING):
            self.apply(group, self.state.give_up(transaction.id, group.now_ms).edits)

    def _entry(self, group: Group) -> _Entry:
        return group.part(self, lambda: _Entry(self))

    def apply(self, group: Group, made: Sequence[Edit], phase: Phase | None = None) -> None:
        """In a stage: make the edits true in the working state, and log them with the group, in their phase or this one."""
        entry, state = self._entry(group), self.state
        for edit in made:
            if isinstance(edit, edits.Invalidated):  # before anything is changed: the stage may have to run again
                self._participant.require([each for each in map(state.find, edit.ids) if each is not None])
        for edit in made:
            if isinstance(edit, ENDS):
                ids = edit.ids if isinstance(edit, edits.Invalidated) else (edit.id,)
                ended = [transaction for transaction in map(state.find, ids) if transaction is not None]
                entry.ended += ended
                if isinstance(edit, edits.Invalidated):
                    for transaction in ended:
                        outside.note(group, transaction)
                        self._participant.invalidate(group, transaction)
            elif isinstance(edit, edits.Reset):
                entry.ended += state.transactions()
            state.apply(edit)
            outcome = self.atomic or isinstance(edit, OUTCOMES) or phase is Phase.OUTCOME
            (entry.outcomes if outcome else entry.intents).append(edit)

    def write(self, group: Group, entry: list[Edit], phase: Phase) -> None:
        """Add the edits to the group, as one entry of the log."""
        if entry:
            group.add(self._log.table_name, self._log.encode_next(entry), phase=phase)

    def written(self, entry: list[Edit], ended: list[Transaction], now_ms: int) -> None:
        """The edits are in the log: readers may see what they made."""
        if self._state is not None:
            self._current = self._state.view()
        if entry:
            self.totals.count(entry)
            self.journal.add(now_ms, entry)
        for transaction in ended:
            self._participant.ended(transaction)

    def lost(self) -> None:
        """What the log holds now is unknown until it is read: no call may build on the working state."""
        self._state = None
