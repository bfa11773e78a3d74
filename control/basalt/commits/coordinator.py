"""The transaction manager's calls: each asks the rules for a proposal, makes it durable, then answers.

Every call is a stage of the group commit over the `DurableState`: ask `TransactionState` what may happen, apply its
edits, add the rows that go with them. Callers are answered once the group is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, TypeVar

from basalt.api.bodies.work import Work
from basalt.catalog.topics import Topic
from basalt.commits.callback_calls import PromptCalls
from basalt.commits.commit_stage import Stages
from basalt.commits.named import Beginning, SessionCalls
from basalt.commits.one_shot import OneShots
from basalt.commits.participants import Participant, Plan
from basalt.errors import InputError, TransactionEndedError, TransactionNotFoundError
from basalt.runtime.group_commit import Group, GroupCommit, NextGroupError
from basalt.transactions.active_snapshots import Readers
from basalt.transactions.log.timeline import Journal
from basalt.transactions.log.transaction_log import TransactionLog
from basalt.transactions.manager import DurableState
from basalt.transactions.rules.edits import Pruned, Restored
from basalt.transactions.rules.manager_snapshot import Moment
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.states import Join, Kind, State, TableJoin, Transaction
from basalt.transactions.rules.transaction_state import Proposal, TransactionState
from basalt.transactions.totals import Totals
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.snapshot import TransactionSnapshot
from basalt_engine.table import Store

P = TypeVar("P", bound=Plan)
T = TypeVar("T")
Guard = Callable[[Transaction | None], None]  # looks at the transaction, None when it has ended, and may refuse
log = logging.getLogger("basalt.transactions")


class Coordinator(Generic[P]):
    """All transactions of one store. Everything runs on the event loop of its group commit."""

    def __init__(
        self, store: Store, clock: Clock, writer: GroupCommit, transaction_log: TransactionLog, *, epoch: int = 0
    ) -> None:
        self._durable: DurableState[P] = DurableState(store, writer, transaction_log, epoch)
        self._clock = clock
        self._participant: Participant[P]
        self._stages: Stages[P] = Stages(self._durable, clock)
        self._one_shots: OneShots[P]
        self.prompt: PromptCalls[P]  # for a face that answers from callbacks
        self._readers = Readers()
        self.reading = self._readers.reading
        self.sessions = SessionCalls(self._durable, self._stages.begin, self._drive)
        self._driven: dict[int, asyncio.Event] = {}  # ends that a call drives right now, set when it is through

    def attach(self, participant: Participant[P]) -> None:
        """Name the participant; before `recover`."""
        self._participant = participant
        self._durable.attach(participant)
        self._stages.attach(participant)
        self._one_shots = OneShots(self._durable, participant)
        self.prompt = PromptCalls(self._durable, self._stages, participant.nothing, self._clock)

    async def recover(self) -> None:
        """Read the log, and finish what was being ended when the last process stopped, as far as that succeeds."""
        await self._durable.run(lambda group: None)
        await self._drive(self.state.unfinished())

    @property
    def state(self) -> TransactionState:
        """The working state, for showing: it may be a group ahead of what is durable."""
        return self._durable.state

    @property
    def totals(self) -> Totals:
        """How many transactions were begun, committed, aborted, invalidated and so on, and how long commits took."""
        return self._durable.totals

    @property
    def journal(self) -> Journal:
        """What has happened of late."""
        return self._durable.journal

    @property
    def log_length(self) -> tuple[int, int]:
        """How many entries of the log, and bytes of them, follow its newest snapshot."""
        return self._durable.log_length

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

        moment = await self._durable.run(stage)
        # Counted now: who begins to read later does so under a snapshot that is as new as this moment.
        return moment._replace(visibility_upper_bound=self._readers.bound(moment.visibility_upper_bound))

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
        asked = Beginning(kind, timeout_ms, owner, outside, request_id)
        return await self._durable.run(lambda group: self._stages.begin(group, asked))

    async def commit(self, transaction_id: int, work: Work | None = None, request_id: str | None = None) -> Outcome:
        """Publish the work and all that was stored, and make every write of the transaction visible, in one decision.

        A commit of what is committed succeeds again; `TransactionConflictError`, `TransactionEndedError` otherwise.
        """
        await self._durable.known()
        try:
            plan = await self._participant.plan(work, self.state.find(transaction_id))
        except InputError:
            before = await self.outcome(transaction_id)
            if before.state is State.COMMITTED:  # a retry is answered whatever became of the topics since
                return before
            raise
        return _told(await self._durable.run(self._stages.commit(transaction_id, plan, request_id), plan.payload_bytes))

    async def one_shot(self, work: Work, owner: str = "", request_id: str | None = None) -> Outcome:
        """Begin, publish the work and commit, in one call: all of it or nothing."""
        try:
            plan = await self._participant.plan(work, None)
        except InputError:
            before = await self._durable.run(lambda group: self._one_shots.before(group, owner, request_id))
            if before is not None:
                return before
            raise
        started_ms = self._clock.monotonic_ms()
        outcome = await self._durable.run(
            lambda group: self._one_shots.carry_out(group, plan, owner, request_id), plan.payload_bytes
        )
        return self._timed(started_ms, outcome)

    async def abort(self, transaction_id: int, guard: Guard | None = None) -> Outcome:
        """Decide against the transaction and undo what it did to topics; again: the same answer.

        A `guard` raises, in the stage that decides, when it must not be.
        """

        def stage(group: Group) -> Transaction | None:
            if guard is not None:
                guard(self.state.find(transaction_id))
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

        def propose(group: Group) -> Proposal:
            self._durable.check_order(group)
            return self.state.checkpoint(transaction_id, group.now_ms)

        return await self._move(transaction_id, propose)

    async def set_changes(self, transaction_id: int, changes: Sequence[bytes], *, outside: bool = True) -> Transaction:
        """Tell what the transaction changed; a conflict dooms it. `outside`: that was outside Basalt."""
        return await self._move(
            transaction_id, lambda group: self.state.set_changes(transaction_id, changes, group.now_ms, outside=outside)
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
        """A transaction in progress, as it durably is."""
        return await self._durable.run(lambda group: self.state.get(transaction_id))

    async def outcome(self, transaction_id: int) -> Outcome:
        """Where a transaction durably stands or how it ended."""
        return await self._durable.run(lambda group: self.state.outcome(transaction_id))

    async def find(self, transaction_id: int) -> Transaction | Outcome:
        """A transaction in progress, or how it ended, as it durably is."""
        return await self._durable.run(
            lambda group: self.state.find(transaction_id) or self.state.outcome(transaction_id)
        )

    # For tables.

    async def run(self, stage: Callable[[Group], T], size_bytes: int = 0) -> T:
        """A stage that asks for the state: see `DurableState.run`."""
        return await self._durable.run(stage, size_bytes)

    async def known(self) -> None:
        """Return once `state` answers: after a failed write the log is read first."""
        await self._durable.known()

    # For messaging: `basalt.messaging.log.writers.Writers`.

    def join(self, group: Group, write_pointer: int, topic: Topic, from_ms: int) -> None:
        """The topic takes part in the transaction that writes under this pointer."""
        transaction = self._open_writer(write_pointer, group.now_ms)
        joined = Join(topic.keys.prefix, topic.generation, from_ms)
        proposal = self.state.join(transaction.id, joined, group.now_ms)
        if proposal.refusal is not None:
            raise proposal.refusal
        self._durable.apply(group, proposal.edits)

    def join_table(self, group: Group, write_pointer: int, table: TableJoin) -> None:
        """Cells of the table are about to be written under this pointer."""
        transaction = self._open_writer(write_pointer, group.now_ms)
        proposal = self.state.join_table(transaction.id, table, group.now_ms)
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
        """End the transactions whose time is up, and go on with ends that were interrupted; how many ended.

        Raises, when all that can be done is done, why one of them could not be rolled back.
        """
        expired = 0
        while True:
            proposal = await self._durable.run(self._stage_expire)
            if not proposal:
                break
            expired += proposal
        if not self._durable.atomic and self.state.one_shots.over(self._clock.now_ms()).edits:
            await self._durable.run(self._one_shots.end_use)
        # Those that a call drives right now are in hand, and need not hold up the others.
        failed = await self._drive([each for each in self.state.unfinished() if each.id not in self._driven])
        if failed is not None:
            raise failed
        return expired

    async def write_log_snapshot(self) -> int:
        """Write the whole state, so that a restart replays only what follows; its bytes."""
        return await self._durable.write_snapshot()

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

    def _timed(self, started_ms: float, outcome: Outcome) -> Outcome:
        """The outcome of a commit, whose time is counted."""
        self.totals.commits.add((self._clock.monotonic_ms() - started_ms) / 1_000)
        return outcome

    def _open_writer(self, write_pointer: int, now_ms: int) -> Transaction:
        try:
            return self.state.writer(write_pointer, now_ms)
        except TransactionNotFoundError as error:
            raise TransactionEndedError(error.message, field="transactionWritePointer", hint=error.hint) from None

    async def _move(self, transaction_id: int, propose: Callable[[Group], Proposal]) -> Transaction:
        def stage(group: Group) -> Transaction | BasaltError:
            proposal = propose(group)
            self._durable.apply(group, proposal.edits)
            return proposal.refusal or self.state.get(transaction_id)

        return _told(await self._durable.run(stage))

    async def _drive(self, unfinished: Iterable[Transaction]) -> BasaltError | None:
        """Finish each of them; the first error. Where one cannot be rolled back the others are none the worse for it."""
        first: BasaltError | None = None
        for transaction in unfinished:
            try:
                await self._finish(transaction)
            except BasaltError as error:
                log.warning("transaction %s is not rolled back, which will be tried again: %s", transaction.id, error)
                first = first or error
        return first

    async def _finish(self, transaction: Transaction) -> None:
        """Roll back what an ABORTING transaction did, then log that it is done."""
        assert transaction.state is State.ABORTING, "a commit without an outcome is given up when the log is read"
        while (driven := self._driven.get(transaction.id)) is not None:
            await driven.wait()
            await self._durable.known()
            if self.state.find(transaction.id) is None:
                return  # the other call has done it; else it failed, or was cancelled
        driven = self._driven[transaction.id] = asyncio.Event()
        try:
            await self._participant.roll_back(transaction)
            await self._durable.run(
                lambda group: self._durable.apply(group, self.state.finish(transaction.id, group.now_ms).edits)
            )
        finally:
            del self._driven[transaction.id]
            driven.set()

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
