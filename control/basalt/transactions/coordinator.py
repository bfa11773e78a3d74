"""The transaction manager's calls: each asks the rules for a proposal, makes it durable, then answers.

Every call is a stage of the group commit over the `DurableState`: ask `TransactionState` what may happen, apply its
edits, add the rows that go with them. Callers are answered once the group is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Generic, NamedTuple, TypeVar

from basalt.errors import InputError, TransactionEndedError, TransactionNotFoundError
from basalt.group_commit import Group, GroupCommit, NextGroupError, Phase
from basalt.topics import Topic
from basalt.transactions.durable_state import DurableState
from basalt.transactions.edits import Pruned, Restored
from basalt.transactions.log import SnapshotDraft, TransactionLog
from basalt.transactions.outcomes import Outcome
from basalt.transactions.participants import Participant, Plan
from basalt.transactions.states import Join, Kind, State, Transaction
from basalt.transactions.transaction_state import Proposal, TransactionState
from basalt.wire.bodies import Work
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.snapshot import TransactionSnapshot
from basalt_engine.table import Put, Store

SNAPSHOT_ENTRIES_INLINE = 2_000  # a log snapshot of fewer things is encoded at once, in some milliseconds

P = TypeVar("P", bound=Plan)
T = TypeVar("T")
log = logging.getLogger("basalt.transactions")


class Moment(NamedTuple):
    """What was true of all transactions at one moment, durably. `write_pointer` is the last one that was given out."""

    epoch: int
    write_pointer: int
    visibility_upper_bound: int
    view: TransactionSnapshot

    @property
    def decided(self) -> int:
        """Every writer up to it has committed, is undone, or is in the invalid list."""
        return self.view.in_progress[0] - 1 if self.view.in_progress else self.write_pointer


class Coordinator(Generic[P]):
    """All transactions of one store. Everything runs on the event loop of its group commit."""

    def __init__(
        self, store: Store, clock: Clock, writer: GroupCommit, transaction_log: TransactionLog, *, epoch: int = 0
    ) -> None:
        self._durable: DurableState[P] = DurableState(store, writer, transaction_log, epoch)
        self._log_table = transaction_log.table_name
        self._clock = clock
        self._participant: Participant[P]
        self._driven: set[int] = set()  # transactions whose end is being driven by a call right now

    def attach(self, participant: Participant[P]) -> None:
        """Name the participant; before `recover`."""
        self._participant = participant
        self._durable.attach(participant)

    async def recover(self) -> None:
        """Read the log, and finish what was being ended when the last process stopped."""
        await self._durable.run(lambda group: None)
        await self.drive()

    @property
    def state(self) -> TransactionState:
        """The working state, for showing: it may be a group ahead of what is durable."""
        return self._durable.state

    @property
    def totals(self) -> dict[str, int]:
        """How many transactions were begun, committed, aborted, invalidated; and how many conflicts there were."""
        return self._durable.totals

    def current(self) -> TransactionSnapshot:
        """The newest durable snapshot."""
        return self._durable.current()

    async def moment(self) -> Moment:
        """Pointers and lists that belong together, for those who draw conclusions from what is *not* in the lists."""

        def stage(group: Group) -> Moment:
            if not self._durable.is_untouched(group):
                raise NextGroupError  # what older entries made is durable once this group is
            state = self.state
            return Moment(state.leader_epoch, state.last_pointer, state.visibility_upper_bound(), state.view())

        return await self._durable.run(stage)

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
            if not self._durable.atomic and self._durable.has_outcomes(group):
                raise NextGroupError  # its snapshot must be the same when the log is replayed
            proposal = self.state.begin(group.now_ms, kind, timeout_ms, owner, outside, request_id)
            self._durable.apply(group, proposal.edits)
            return self.state.get(proposal.transaction_id)

        return await self._durable.run(stage)

    async def commit(self, transaction_id: int, work: Work | None = None, request_id: str | None = None) -> Outcome:
        """Publish the work and all that was stored, and make every write of the transaction visible, in one decision.

        A commit of what is committed succeeds again; `TransactionConflictError`, `TransactionEndedError` otherwise.
        """
        try:
            plan = await self._participant.plan(work)
        except InputError:
            if await self._is_committed(transaction_id):  # a retry is answered whatever became of the topics since
                return self.state.outcome(transaction_id)
            raise

        def stage(group: Group) -> Outcome | BasaltError:
            proposal = self.state.commit(
                transaction_id, group.now_ms, inline=self._durable.atomic, request_id=request_id
            )
            if proposal.refusal is not None or not proposal.edits:
                self._durable.apply(group, proposal.edits)
                return proposal.refusal or self.state.outcome(transaction_id)
            self._participant.check(plan)
            transaction = self.state.get(transaction_id)
            self._join_plan(group, transaction.write_pointer, plan)
            self._participant.commit(group, plan, transaction.write_pointer, transaction)
            self._durable.apply(group, proposal.edits)
            if not self._durable.atomic:
                self._durable.apply(group, self.state.finish(transaction_id, group.now_ms).edits)
            return self.state.outcome(transaction_id)

        return _told(await self._durable.run(stage, plan.payload_bytes))

    async def one_shot(self, work: Work, owner: str = "", request_id: str | None = None) -> Outcome:
        """Begin, publish the work and commit, in one call: all of it or nothing."""
        try:
            plan = await self._participant.plan(work)
        except InputError:
            before = await self._durable.run(lambda group: self._one_shot_before(group, owner, request_id))
            if before is not None:
                return before
            raise

        def stage(group: Group) -> Outcome:
            before = self._one_shot_before(group, owner, request_id)
            if before is not None:
                return before
            self._participant.check(plan)
            if self._durable.atomic:
                made = self.state.begin_committed(group.now_ms, owner, request_id)
                self._participant.commit(group, plan, made.transaction_id, None)
                self._durable.apply(group, made.edits)
                return self.state.outcome(made.transaction_id)
            made = self.state.begin(group.now_ms, Kind.SHORT, None, owner)
            self._durable.apply(group, made.edits)
            self._join_plan(group, made.transaction_id, plan)
            self._participant.commit(group, plan, made.transaction_id, None)
            self._durable.apply(group, self.state.commit(made.transaction_id, group.now_ms).edits)
            self._durable.apply(
                group, self.state.finish(made.transaction_id, group.now_ms, request_id=request_id).edits
            )
            return self.state.outcome(made.transaction_id)

        return await self._durable.run(stage, plan.payload_bytes)

    async def abort(self, transaction_id: int) -> Outcome:
        """Decide against the transaction and undo what it did to topics; again: the same answer."""

        def stage(group: Group) -> Transaction | None:
            self._durable.apply(group, self.state.abort(transaction_id, group.now_ms).edits)
            return self.state.find(transaction_id)  # None once it has ended, with nothing to undo

        unfinished = await self._durable.run(stage)
        if unfinished is not None:
            await self._finish(unfinished)
        log.info("transaction %s: abort", transaction_id)
        return self.state.outcome(transaction_id)

    async def invalidate(self, transaction_id: int) -> bool:
        """Put the transaction's writers on the invalid list; False when it was not in progress."""

        def stage(group: Group) -> bool:
            proposal = self.state.invalidate(transaction_id, group.now_ms)
            self._durable.apply(group, proposal.edits)
            return bool(proposal.edits)

        return await self._durable.run(stage)

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

        return await self._durable.run(stage)

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
        self._durable.apply(group, proposal.edits)

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
            proposal = await self._durable.run(self._stage_expire)
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

        def draft(group: Group) -> SnapshotDraft:
            if not self._durable.is_untouched(group):
                raise NextGroupError  # the snapshot holds just what older entries made
            return self._durable.draft(group)

        drafted = await self._durable.run(draft)
        # Encoding a hundred thousand outcomes takes a second; meanwhile the state moves on, and its entries follow.
        large = drafted.entries > SNAPSHOT_ENTRIES_INLINE
        steps = await asyncio.to_thread(drafted.steps) if large else drafted.steps()

        def write(group: Group) -> None:
            for phase, mutations in zip(Phase, steps, strict=True):
                group.add(self._log_table, *mutations, phase=phase)

        await self._durable.run(write)
        return sum(
            len(value) for step in steps for put in step if isinstance(put, Put) for value in put.columns.values()
        )

    async def prune(self, pointers: Collection[int]) -> int:
        """Take write pointers of which no row is left anywhere off the invalid list; how many it held."""

        def stage(group: Group) -> int:
            proposal = self.state.prune(pointers)
            self._durable.apply(group, proposal.edits)
            return sum(len(edit.pointers) for edit in proposal.edits if isinstance(edit, Pruned))

        return await self._durable.run(stage)

    async def truncate(self, before_ms: int) -> int:
        """Take all write pointers older than a time off the invalid list, whatever rows of theirs are left; how many."""

        def stage(group: Group) -> int:
            before = len(self.state.invalid)
            self._durable.apply(group, self.state.truncate(before_ms).edits)
            return before - len(self.state.invalid)

        return await self._durable.run(stage)

    async def restore(self, pointers: Collection[int]) -> int:
        """Put write pointers that were pruned back on the invalid list; how many were not on it."""

        def stage(group: Group) -> int:
            held = self.state.invalid
            lost = tuple(sorted(pointer for pointer in set(pointers) if pointer not in held))
            if lost and not 0 < lost[0] <= lost[-1] <= self.state.last_pointer:
                raise InputError("a write pointer to restore was never given out", field="pointers")
            self._durable.apply(group, (Restored(lost),) if lost else ())
            return len(lost)

        return await self._durable.run(stage)

    # How.

    async def _is_committed(self, transaction_id: int) -> bool:
        """Whether the commit is durable."""

        def stage(group: Group) -> bool:
            return self.state.outcome(transaction_id).state is State.COMMITTED

        return await self._durable.run(stage)

    def _one_shot_before(self, group: Group, owner: str, request_id: str | None) -> Outcome | None:
        """The outcome of an earlier one-shot transaction with this request id."""
        if self._durable.atomic:
            made = self.state.begin_committed(group.now_ms, owner, request_id)
            return None if made.edits else self.state.outcome(made.transaction_id)
        before = self.state.one_shot_before(request_id)
        return None if before is None else self.state.outcome(before)

    def _open_writer(self, write_pointer: int, now_ms: int) -> Transaction:
        try:
            return self.state.writer(write_pointer, now_ms)
        except TransactionNotFoundError as error:
            raise TransactionEndedError(error.message, field="transactionWritePointer", hint=error.hint) from None

    def _join_plan(self, group: Group, write_pointer: int, plan: P) -> None:
        """Where rows and outcome are not one batch, recovery must know where the rows of a lost commit lie."""
        if self._durable.atomic:
            return
        for topic in plan.topics:
            self.join(group, write_pointer, topic, self._participant.newest_ms(topic))

    async def _move(self, transaction_id: int, propose: Callable[[Group], Proposal]) -> Transaction:
        def stage(group: Group) -> Transaction | BasaltError:
            proposal = propose(group)
            self._durable.apply(group, proposal.edits)
            return proposal.refusal or self.state.get(transaction_id)

        return _told(await self._durable.run(stage))

    async def _finish(self, transaction: Transaction) -> None:
        """Roll back what an ABORTING transaction did, then log that it is done."""
        assert transaction.state is State.ABORTING, "a commit without an outcome is given up when the log is read"
        if transaction.id in self._driven:
            return
        self._driven.add(transaction.id)
        try:
            await self._participant.roll_back(transaction)
            await self._durable.run(
                lambda group: self._durable.apply(group, self.state.finish(transaction.id, group.now_ms).edits)
            )
        finally:
            self._driven.discard(transaction.id)

    def _stage_expire(self, group: Group) -> int:
        made = self.state.expire(group.now_ms).edits
        self._durable.apply(group, made)
        return len(made)

    async def list(self) -> list[Transaction]:
        """All transactions that have not ended, oldest first."""
        return self.state.transactions()


def _told(answer: T | BasaltError) -> T:
    """The answer, or the refusal that is durable now."""
    if isinstance(answer, BasaltError):
        raise answer
    return answer
