"""The driver of the transaction manager: it makes the rules' edits durable, then answers.

Every call is a stage of the group commit: it asks `TransactionState` for a proposal, applies its edits to the working
state, and hands them to the group, which writes them as one log entry. Readers see the state only after that
(`current`), and callers are answered only after that; when a write fails, the working state is read again from the log.

Where the store is atomic over tables, a commit's rows and its edit are one batch. Elsewhere the group writes what a
transaction intends first (began, joined a topic), then rows, then outcomes: a crash in between leaves an open
transaction that times out and is rolled back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from basalt.errors import TransactionEndedError, TransactionNotFoundError, UnavailableError
from basalt.group_commit import Group, GroupCommit, NextGroupError, Phase
from basalt.store_calls import StoreCalls
from basalt.topics import Topic
from basalt.transactions import edits
from basalt.transactions.edits import Edit
from basalt.transactions.log import TransactionLog
from basalt.transactions.outcomes import Outcome
from basalt.transactions.participants import Participant, Plan
from basalt.transactions.states import Join, Kind, State, Transaction
from basalt.transactions.transaction_state import Proposal, TransactionState
from basalt.wire.bodies import Work
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.snapshot import TransactionSnapshot
from basalt_engine.table import Store

ENDS = (edits.Committed, edits.Aborted, edits.Invalidated)
OUTCOMES = (*ENDS, edits.OneShot, edits.Pruned, edits.Truncated)

P = TypeVar("P", bound=Plan)
T = TypeVar("T")
log = logging.getLogger("basalt.transactions")


class _Entry:
    """The edits that one group logs."""

    def __init__(self, coordinator: Coordinator[Any]) -> None:
        self._coordinator = coordinator
        self.intents: list[Edit] = []
        self.outcomes: list[Edit] = []
        self.ended: list[Transaction] = []

    def closing(self, group: Group) -> None:
        self._coordinator.write(group, self.intents, Phase.INTENT)
        self._coordinator.write(group, self.outcomes, Phase.OUTCOME)

    def durable(self) -> None:
        self._coordinator.durable([*self.intents, *self.outcomes], self.ended)

    def failed(self) -> None:
        self._coordinator.lost()


class Coordinator(Generic[P]):
    """All transactions of one store. Everything runs on the event loop of its group commit."""

    def __init__(self, store: Store, clock: Clock, writer: GroupCommit, transaction_log: TransactionLog) -> None:
        self._atomic = store.atomic
        self._call = StoreCalls(store)
        self._clock = clock
        self._writer = writer
        self._log = transaction_log
        self._state: TransactionState | None = None
        self._current = TransactionSnapshot(0)
        self._participant: Participant[P]
        self._recovering = asyncio.Lock()
        self._driven: set[int] = set()  # transactions whose end is being driven by a call right now
        self.totals = {"begun": 0, "committed": 0, "aborted": 0, "invalidated": 0, "conflicts": 0}

    def attach(self, participant: Participant[P]) -> None:
        """Name the participant; before `recover`."""
        self._participant = participant

    async def recover(self) -> None:
        """Read the log, and finish what was being ended when the last process stopped."""
        await self._run(lambda group: None)
        await self.drive()

    @property
    def state(self) -> TransactionState:
        """The working state, for showing: it may be a group ahead of what is durable."""
        if self._state is None:
            raise UnavailableError("the transaction manager is reading its log", hint="try again")
        return self._state

    def current(self) -> TransactionSnapshot:
        """The newest durable snapshot."""
        return self._current

    # Calls of clients.

    async def begin(
        self,
        kind: Kind = Kind.SHORT,
        timeout_ms: int | None = None,
        owner: str = "",
        outside: bool = False,
        request_id: str | None = None,
    ) -> Transaction:
        """A new transaction. `outside`: its client writes under its pointer outside Basalt, too."""

        def stage(group: Group) -> Transaction:
            if not self._atomic and self._entry(group).outcomes:
                raise NextGroupError  # its snapshot must be the same when the log is replayed
            proposal = self.state.begin(group.now_ms, kind, timeout_ms, owner, outside, request_id)
            self._apply(group, proposal.edits)
            return self.state.get(proposal.transaction_id)

        return await self._run(stage)

    async def commit(self, transaction_id: int, work: Work | None = None, request_id: str | None = None) -> Outcome:
        """Publish the work and all that was stored, and make every write of the transaction visible, in one decision.

        A commit of what is committed succeeds again; `TransactionConflictError`, `TransactionEndedError` otherwise.
        """
        plan = await self._participant.plan(work)

        def stage(group: Group) -> Outcome | BasaltError:
            self._participant.check(plan)
            proposal = self.state.commit(transaction_id, group.now_ms, inline=True, request_id=request_id)
            if proposal.refusal is not None or not proposal.edits:
                self._apply(group, proposal.edits)
                return proposal.refusal or self.state.outcome(transaction_id)
            transaction = self.state.get(transaction_id)
            self._join_plan(group, transaction.write_pointer, plan)
            self._participant.commit(group, plan, transaction.write_pointer, transaction)
            self._apply(group, proposal.edits)
            return self.state.outcome(transaction_id)

        return _told(await self._run(stage, plan.payload_bytes))

    async def one_shot(self, work: Work, owner: str = "", request_id: str | None = None) -> Outcome:
        """Begin, publish the work and commit, in one call: all of it or nothing."""
        plan = await self._participant.plan(work)

        def stage(group: Group) -> Outcome:
            self._participant.check(plan)
            if self._atomic:
                proposal = self.state.begin_committed(group.now_ms, owner, request_id)
                if proposal.edits:
                    self._participant.commit(group, plan, proposal.transaction_id, None)
                self._apply(group, proposal.edits)
                return self.state.outcome(proposal.transaction_id)
            began = self.state.begin(group.now_ms, Kind.SHORT, None, owner, False, request_id)
            self._apply(group, began.edits)
            committed = self.state.commit(began.transaction_id, group.now_ms, inline=True)
            if committed.edits:
                self._join_plan(group, began.transaction_id, plan)
                self._participant.commit(group, plan, began.transaction_id, None)
                self._apply(group, committed.edits)
            return self.state.outcome(began.transaction_id)

        return await self._run(stage, plan.payload_bytes)

    async def abort(self, transaction_id: int) -> Outcome:
        """Decide against the transaction and undo what it did to topics; again: the same answer."""
        return await self._end(transaction_id, lambda group: self.state.abort(transaction_id, group.now_ms), "abort")

    async def invalidate(self, transaction_id: int) -> bool:
        """Put the transaction's writers on the invalid list; False when it was not in progress."""

        def stage(group: Group) -> bool:
            proposal = self.state.invalidate(transaction_id, group.now_ms)
            self._apply(group, proposal.edits)
            return bool(proposal.edits)

        return await self._run(stage)

    async def checkpoint(self, transaction_id: int) -> Transaction:
        """A further write pointer for the transaction."""
        return await self._move(transaction_id, lambda group: self.state.checkpoint(transaction_id, group.now_ms))

    async def set_changes(self, transaction_id: int, changes: Sequence[bytes]) -> Transaction:
        """Tell what the transaction changed outside Basalt; a conflict dooms it."""
        return await self._move(
            transaction_id, lambda group: self.state.set_changes(transaction_id, changes, group.now_ms)
        )

    async def mark_outside(self, transaction_id: int, name: str) -> Transaction:
        """The transaction has, or may have, writes outside Basalt: its time-out is not a clean roll back."""
        log.info("transaction %s writes outside Basalt: %s", transaction_id, name)
        return await self._move(transaction_id, lambda group: self.state.mark_outside(transaction_id, group.now_ms))

    async def join_topic(self, transaction_id: int, topic: Topic) -> Transaction:
        """The topic takes part in the transaction, before anything was written to it."""

        def stage(group: Group) -> Transaction:
            self.join(group, transaction_id, topic, self._participant.newest_ms(topic))
            return self.state.get(transaction_id)

        return await self._run(stage)

    async def get(self, transaction_id: int) -> Transaction:
        """A transaction in progress."""
        return self.state.get(transaction_id)

    async def outcome(self, transaction_id: int) -> Outcome:
        """Where a transaction stands or how it ended."""
        return self.state.outcome(transaction_id)

    # For messaging: `basalt.messaging.writers.Writers`.

    def join(self, group: Group, write_pointer: int, topic: Topic, from_ms: int) -> None:
        """The topic takes part in the transaction that writes under this pointer."""
        transaction = self._open_writer(write_pointer, group.now_ms)
        joined = Join(topic.keys.prefix, topic.generation, from_ms)
        proposal = self.state.join(transaction.id, joined, group.now_ms)
        if proposal.refusal is not None:
            raise proposal.refusal
        self._apply(group, proposal.edits)

    def check_open(self, write_pointer: int) -> None:
        """`TransactionEndedError` unless the pointer is in progress."""
        self._open_writer(write_pointer, self._clock.now_ms())

    def id_of(self, write_pointer: int) -> int:
        """The id of the transaction in progress that has this write pointer; else the pointer itself."""
        try:
            return self.state.writer(write_pointer, 0).id
        except BasaltError:
            return write_pointer

    # For the scheduler.

    async def expire(self) -> int:
        """End the transactions whose time is up, and go on with ends that were interrupted; how many ended."""
        expired = 0
        while True:
            proposal = await self._run(self._stage_expire)
            if not proposal:
                break
            expired += proposal
        await self.drive()
        return expired

    async def drive(self) -> None:
        """Finish every transaction whose end is decided and not done."""
        for transaction in self.state.unfinished():
            await self._finish(transaction)

    async def write_log_snapshot(self) -> int:
        """Write the whole state, so that a restart replays only what follows; its bytes."""

        def stage(group: Group) -> int:
            if self._entry(group).intents or self._entry(group).outcomes:
                raise NextGroupError  # the snapshot holds just what older entries made
            mutations = self._log.snapshot(self.state)
            group.add(self._log.table_name, *mutations, phase=Phase.INTENT)
            return sum(len(value) for put in mutations for value in getattr(put, "columns", {}).values())

        return await self._run(stage)

    # How.

    async def _run(self, stage: Callable[[Group], T], size_bytes: int = 0) -> T:
        if self._state is None:
            async with self._recovering:
                if self._state is None:
                    state = await self._call(self._log.recover)
                    self._participant.recovered(state.last_pointer)
                    self._state, self._current = state, state.view()
        return await self._writer.run(stage, size_bytes)

    def _entry(self, group: Group) -> _Entry:
        return group.part(self, lambda: _Entry(self))

    def _apply(self, group: Group, made: Sequence[Edit]) -> None:
        entry = self._entry(group)
        for edit in made:
            if isinstance(edit, ENDS):
                ids = edit.ids if isinstance(edit, edits.Invalidated) else (edit.id,)
                ended = [transaction for transaction in map(self.state.find, ids) if transaction is not None]
                entry.ended += ended
                if isinstance(edit, edits.Invalidated):
                    for transaction in ended:
                        self._participant.invalidate(group, transaction)
            self.state.apply(edit)
            outcome = self._atomic or isinstance(edit, OUTCOMES)
            (entry.outcomes if outcome else entry.intents).append(edit)

    def write(self, group: Group, entry: list[Edit], phase: Phase) -> None:
        """Add the edits to the group, as one entry of the log."""
        if entry:
            group.add(self._log.table_name, self._log.encode_next(entry), phase=phase)

    def durable(self, entry: list[Edit], ended: list[Transaction]) -> None:
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

    def _open_writer(self, write_pointer: int, now_ms: int) -> Transaction:
        try:
            return self.state.writer(write_pointer, now_ms)
        except TransactionNotFoundError as error:
            raise TransactionEndedError(error.message, field="transactionWritePointer", hint=error.hint) from None

    def _join_plan(self, group: Group, write_pointer: int, plan: P) -> None:
        """Where rows and outcome are not one batch, recovery must know where the rows of a lost commit lie."""
        if self._atomic:
            return
        for topic in plan.topics:
            self.join(group, write_pointer, topic, self._participant.newest_ms(topic))

    async def _move(self, transaction_id: int, propose: Callable[[Group], Proposal]) -> Transaction:
        def stage(group: Group) -> Transaction | BasaltError:
            proposal = propose(group)
            self._apply(group, proposal.edits)
            return proposal.refusal or self.state.get(transaction_id)

        return _told(await self._run(stage))

    async def _end(self, transaction_id: int, propose: Callable[[Group], Proposal], call: str) -> Outcome:
        def stage(group: Group) -> Transaction | BasaltError | None:
            proposal = propose(group)
            self._apply(group, proposal.edits)
            if proposal.refusal is not None:
                return proposal.refusal
            return next((found for found in self.state.unfinished() if found.id == transaction_id), None)

        unfinished = await self._run(stage)
        if isinstance(unfinished, BasaltError):
            raise unfinished
        if unfinished is not None:
            await self._finish(unfinished)
        log.info("transaction %s: %s", transaction_id, call)
        return self.state.outcome(transaction_id)

    async def _finish(self, transaction: Transaction) -> None:
        """Do what an ABORTING or COMMITTING transaction still needs, then log that it is done."""
        if transaction.id in self._driven:
            return
        self._driven.add(transaction.id)
        try:
            plan = await self._participant.plan(None)
            if transaction.state is State.ABORTING:
                await self._participant.roll_back(transaction)

            def stage(group: Group) -> None:
                if transaction.state is State.COMMITTING:
                    self._participant.commit(group, plan, transaction.write_pointer, transaction)
                self._apply(group, self.state.finish(transaction.id, group.now_ms).edits)

            await self._run(stage)
        finally:
            self._driven.discard(transaction.id)

    def _stage_expire(self, group: Group) -> int:
        made = self.state.expire(group.now_ms).edits
        self._apply(group, made)
        return len(made)

    async def list(self) -> list[Transaction]:
        """All transactions that have not ended, oldest first."""
        return self.state.transactions()


_COUNTED: dict[type, str] = {
    edits.Began: "begun",
    edits.OneShot: "committed",
    edits.Committed: "committed",
    edits.Aborted: "aborted",
    edits.Invalidated: "invalidated",
    edits.Doomed: "conflicts",
}


def _told(answer: T | BasaltError) -> T:
    """The answer, or the refusal that is durable now."""
    if isinstance(answer, BasaltError):
        raise answer
    return answer
