"""The calls about transactions and sessions: each asks the rules for a proposal, hands it to the group commit, then answers.

Every call is a stage of the group commit over the manager's state: ask `TransactionProposals` what may happen, apply its edits,
add the rows that go with them. They are durable once `GroupCommit` has written the group, and then callers are answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from basalt.api.bodies.messages import Work
from basalt.catalog.topics import TopicName
from basalt.cluster.links.link import Handlers, Link
from basalt.commits.begun_one_shots import BegunOneShots
from basalt.commits.carrier import Carrier, run_anew
from basalt.commits.commit_stage import Asking, Beginning, CommitAsked, CommitStage, Guard, OneShotAsked
from basalt.commits.dead_letters import DeadLetters
from basalt.commits.groups_elsewhere import (
    CARRY,
    MAKE_TOPIC,
    Carried,
    GroupsElsewhere,
    GroupsHere,
    WorkCall,
    have_topic,
)
from basalt.commits.linked_decisions import DecisionsForMembers, LinkedDecisions
from basalt.commits.of_members.commits import CommitsOverLink
from basalt.commits.of_members.proposals import ProposalsOfMembers
from basalt.commits.one_shot_decisions import OneShotDecisions
from basalt.commits.one_shots import OneShots
from basalt.commits.owning.owner import Owner
from basalt.commits.owning.owners import Owners
from basalt.commits.owning.topic_plan import NOTHING, TopicPlan, check_one_shot
from basalt.commits.recovery import Recovery
from basalt.errors import (
    ConflictError,
    InputError,
    NotHereError,
    TransactionEndedError,
    UnavailableError,
)
from basalt.groups.acknowledgements import PlannedAcknowledgement
from basalt.groups.groups import Groups
from basalt.runtime.group_commit import Group, Waiter
from basalt.transactions.log_state import ManagerSnapshot
from basalt.transactions.manager import TransactionManager
from basalt.transactions.protocol import Intend, JoinedTransaction, Joining, Prepare, Prepared
from basalt.transactions.rules.edits import Invalidated, Proposal, Restored, SessionOpened
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.sessions import SessionState, WorkVersion
from basalt.transactions.rules.transaction import Kind, SessionBinding, State, Transaction
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.snapshot import NO_RUNS, PointerRuns

CARRY_MS_MAX = 15_000  # for the leader to carry a Work out: its log, owners and rows; clients wait no longer

T = TypeVar("T")
log = logging.getLogger("basalt.transactions")


class Coordinator:
    """All transactions of one store. Everything runs on the event loop of its group commit."""

    def __init__(
        self, manager: TransactionManager, owner: Owner, groups: Groups, clock: Clock, *, place_ms: int,
        linked: LinkedDecisions | None = None, member: str = "",
    ) -> None:  # fmt: skip
        """`linked`: another server leads and decides; transactions of this one's own topics go over that link. The map knows it as `member`."""
        self.manager = manager
        self.totals = manager.totals
        self.journal = manager.journal
        self._owner = owner
        self._clock = clock
        self._groups = groups
        self._dead_letters = DeadLetters(clock, manager, groups, owner)
        self._stages = CommitStage(manager, owner, groups, clock)
        groups.make_topic = self.make_topic
        self.groups_here = GroupsHere(groups, self._dead_letters)
        self._elsewhere = GroupsElsewhere(manager, owner, groups.desk.logs) if isinstance(owner, Owners) else None
        self._recovery = Recovery(manager, self._stages, owner)
        self.carrier = Carrier(manager, self._stages, owner, self._recovery, clock, place_ms)
        self._decisions = OneShotDecisions(manager, self._stages, groups)
        self._begun = BegunOneShots(manager, self._stages)
        self._linked = linked
        self._over_link = None if linked is None else CommitsOverLink(manager, owner, member, linked.link_of)
        self._one_shots = OneShots(manager, self._stages, owner, groups, clock, self._decisions, linked)
        self._may_borrow: Callable[[str], bool] | None = None
        self._run = manager.run
        self.sessions = SessionCalls(manager, self._stages, self._recovery)

    @property
    def state(self) -> TransactionProposals:
        """The working state, for showing: it may be a group ahead of what is durable."""
        return self.manager.state

    async def recover(self) -> None:
        """Read the log, and finish what was being ended when the last process stopped, as far as that succeeds."""
        if self.manager.atomic:
            await self._recovery.ensure_known(None)
        else:
            await self._recovery.ensure_known()
        await self._recovery.drive(self.state.unfinished())

    async def manager_snapshot(self) -> ManagerSnapshot:
        """Pointers and lists that belong together, for those who draw conclusions from what is *not* in the lists."""
        return await self.manager.snapshot()

    # Calls of clients.

    async def begin(
        self,
        kind: Kind = Kind.SHORT,
        timeout_ms: int | None = None,
        owner: str = "",
        external_writes: bool = False,
        request_id: str | None = None,
        principal: str = "",
    ) -> Transaction:
        """A new transaction. `external_writes`: its client writes under its pointer outside Basalt, too."""
        asked = Beginning(kind, timeout_ms, owner, external_writes, request_id, principal)
        if self._over_link is not None:
            return await self._over_link.begin(asked)
        return await self._run(lambda group: self._stages.begin(group, asked))

    async def commit(
        self,
        transaction_id: int,
        work: Work | None = None,
        request_id: str | None = None,
        deferred_changes: frozenset[bytes] | None = None,
        guard: Guard | None = None,
    ) -> Outcome:
        """Publish the work and all that was stored, and make every write of the transaction visible, in one decision.

        A commit of what is committed succeeds again; `TransactionConflictError`, `TransactionEndedError` otherwise. A `guard`
        raises, in the stage that decides, when it must not be: then nothing has changed.
        """
        if self._over_link is not None:
            return await self._over_link.commit(transaction_id, work, request_id, guard)
        await self.carrier.carried(transaction_id)  # a retry is answered as the first call is
        await self.manager.ensure_known()
        found = self.state.find(transaction_id)
        try:
            if self._elsewhere is not None:
                work = await self._elsewhere.acknowledged(work, found)
            prepared, acknowledgements = await self._prepared(work, found)
        except InputError:
            before = await self.outcome(transaction_id)
            if before.state is State.COMMITTED:  # a retry is answered whatever became of the topics since
                return before
            raise
        await self.manager.ensure_known()
        intend = Intend(transaction_id, prepared.topics, request_id, deferred_changes)
        return await self.carrier.carry_out(CommitAsked(intend, prepared, acknowledgements, guard))

    async def one_shot(
        self,
        work: Work,
        owner: str = "",
        request_id: str | None = None,
        staged: Callable[[Group], None] | None = None,
        principal: str = "",
    ) -> Outcome:
        """Begin, publish the work and commit, in one call: all of it or nothing. `staged` is called while it is to be written."""
        asked = Asking(owner, request_id, principal)
        self._check_here(work)
        if self._elsewhere is not None and self._elsewhere.has_some(work.acknowledge):
            return await self._one_shot_apart(self._elsewhere, work, OneShotAsked(asked, staged, begun=True))
        try:
            plan = self._owner.plan_in_memory(work) or await self._plan(work)
        except InputError:
            before = await self._one_shots.answered(asked)
            if before is not None:
                return before
            raise
        await self.manager.ensure_known()
        if isinstance(plan, CommitAsked):
            return await self.carrier.carry_out(plan._replace(one_shot=OneShotAsked(asked, staged)))
        told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._submit_one_shot(told, plan, asked, staged)
        return await told

    async def _one_shot_apart(self, elsewhere: GroupsElsewhere, work: Work, one_shot: OneShotAsked) -> Outcome:
        """A one-shot transaction that acknowledges in groups of other owners: begun before them, for they acknowledge in it."""
        asking = one_shot.asking
        first = await self._one_shots.answered(asking)
        if first is not None:
            return first
        async with self._begun.begin(asking) as begun:
            try:
                left = await elsewhere.acknowledged(work, begun)
                prepared, acknowledgements = await self._prepared(left, begun)
                intend = Intend(begun.id, prepared.topics)
                asked = CommitAsked(intend, prepared, acknowledgements, one_shot=one_shot)
                outcome = await self.carrier.carry_out(asked)
            except TransactionEndedError as error:  # its time was up, or this server stops, or has read its log again
                raise run_anew(error) from error
            except ConflictError:
                raise
            except InputError:  # it would be refused again: a failed attempt for what it acknowledges
                with suppress(BasaltError):  # then it ends as one that was interrupted
                    await self.abort(begun.id)
                raise
            return outcome

    async def give_up_begun(self) -> None:
        """Before a stop, as the leader: what was begun for one-shot transactions ends now, and nothing more is begun for any."""
        await self._begun.stop()

    async def one_shot_anywhere(
        self,
        work: Work,
        owner: str = "",
        request_id: str | None = None,
        staged: Callable[[Group], None] | None = None,
        principal: str = "",
    ) -> Outcome:
        """As `one_shot`; what is the leader's to carry out is carried out there, over the link."""
        try:
            return await self.one_shot(work, owner, request_id, staged, principal)
        except NotHereError:
            pass
        call = WorkCall.of(work, owner, request_id, principal)
        carried = await self._link_to_leader().call(CARRY, call, CARRY_MS_MAX)
        await self.manager.ask()
        return self.state.outcome(carried.transaction_id)

    def _link_to_leader(self) -> Link:
        assert self._linked is not None, "another server leads"
        return self._linked.basis.link

    async def make_topic(self, title: TopicName) -> None:
        """Have a topic, whoever owns it: one for dead letters of a group here."""
        if self._linked is not None:
            await self._link_to_leader().call(MAKE_TOPIC, title, CARRY_MS_MAX)
        elif self._elsewhere is not None:
            await self._elsewhere.make_topic(title)
        else:
            await have_topic(self._groups.desk.logs, title)

    def check_leads(self) -> None:
        """Raise `NotHereError` where another server decides."""
        if self._linked is not None:
            raise NotHereError

    @property
    def elsewhere(self) -> GroupsElsewhere:
        """The consumer groups of other owners, as the one that leads them has them."""
        assert self._elsewhere is not None, "there are other owners"
        return self._elsewhere

    def check_commits_here(self, work: Work | None) -> None:
        """Raise `NotHereError` for a commit that the leader, which is another server, is to carry out as a whole."""
        if self._over_link is not None:
            self._over_link.check_here(work)

    def _check_here(self, work: Work) -> None:
        """Raise `NotHereError` for a one-shot transaction that the leader is to carry out."""
        if self._linked is not None and (work.acknowledge or not self._owner.has_all_topics(work)):
            raise NotHereError

    def _submit_one_shot(
        self, told: Waiter[Outcome], plan: TopicPlan, asked: Asking, staged: Callable[[Group], None] | None = None
    ) -> None:
        if self.manager.atomic:
            self.manager.lanes.log.submit(self._stages.one_shot_of(plan, asked, staged), told, plan.payload_bytes)
        else:
            self._one_shots.carry(plan, asked, told, staged)

    async def carry_through(self) -> None:
        """Return once every commit that has begun is decided, or has failed."""
        await self.carrier.finish()

    def decide_for_members(self, handlers: Handlers, may_borrow: Callable[[str], bool]) -> None:
        """As the leader: answer members' calls about one-shot transactions, and end the loans of those that may not borrow any more."""
        self._may_borrow = may_borrow
        DecisionsForMembers(self.manager, self._decisions, may_borrow).answer_over(handlers)
        if isinstance(self._owner, Owners):
            ProposalsOfMembers(self.manager, self._stages, self._groups.desk.logs.gate, self._owner.links).answer_over(
                handlers
            )
        handlers.add(CARRY, self._carry)
        handlers.add(MAKE_TOPIC, lambda _, title: self.make_topic(title))

    async def _carry(self, _: str, asked: WorkCall) -> Carried:
        outcome = await self.one_shot(asked.work, asked.owner, asked.request_id, principal=asked.principal)
        return Carried(outcome.id)

    async def end_loans(self) -> None:
        """End the loans of members that are over: readers wait at their rows until then."""
        if self._over():
            await self._run(lambda group: self._decisions.end(group, self._over()))

    def _over(self) -> list[str]:
        if self._may_borrow is None or not self.manager.is_known:
            return []
        others = {loan.member for loan in self.state.loans} - {self.manager.member}
        return [member for member in others if not self._may_borrow(member)]

    async def give_back_loans(self) -> None:
        """Before a stop: what was taken is decided, and nothing more comes."""
        await self._one_shots.give_back_all()

    def has_left_over(self) -> bool:
        """True while `expire` has a loan to give back, or to end, or what was begun for a one-shot transaction and nobody carries on."""
        return self._one_shots.has_idle_loan() or bool(self._over()) or self._begun.has_uncarried()

    async def abort(self, transaction_id: int, guard: Guard | None = None) -> Outcome:
        """Decide against the transaction and undo what it did to topics; again: the same answer.

        A `guard` raises, in the stage that decides, when it must not be.
        """

        if self._over_link is not None:
            return await self._over_link.abort(transaction_id)

        def stage(group: Group) -> Transaction | None:
            if guard is not None:
                guard(self.state.find(transaction_id))
            self._stages.apply(group, self.state.abort(transaction_id, group.now_ms).edits)
            return self.state.find(transaction_id)  # None once it has ended, with nothing to undo

        await self.carrier.carried(transaction_id)
        unfinished = await self._run(stage)
        if unfinished is not None:
            await self._recovery.roll_back(unfinished)
        log.info("transaction %s: abort", transaction_id)
        return self.state.outcome(transaction_id)

    async def invalidate(self, transaction_id: int) -> bool:
        """Put the transaction's writers on the invalid list; False when it was not in progress."""

        def stage(group: Group) -> bool:
            proposal = self.state.invalidate(transaction_id, group.now_ms)
            self._stages.apply(group, proposal.edits)
            return bool(proposal.edits)

        await self.carrier.carried(transaction_id)
        return await self._run(stage)

    async def checkpoint(self, transaction_id: int) -> Transaction:
        """A further write pointer."""
        if self._over_link is not None:
            return await self._over_link.checkpoint(transaction_id)

        def propose(group: Group) -> Proposal:
            return self.state.checkpoint(transaction_id, group.now_ms)

        return await self._move(transaction_id, propose)

    async def set_changes(
        self, transaction_id: int, changes: Sequence[bytes], *, external_writes: bool = True
    ) -> Transaction:
        """Tell what the transaction changed; a conflict dooms it. `external_writes`: that was outside Basalt."""
        return await self._move(
            transaction_id,
            lambda group: self.state.set_changes(
                transaction_id, changes, group.now_ms, external_writes=external_writes
            ),
        )

    async def mark_external_writes(self, transaction_id: int, name: str) -> Transaction:
        """The transaction has, or may have, writes outside Basalt: its time-out is not a clean roll back."""
        log.info("transaction %s writes outside Basalt: %s", transaction_id, name)
        return await self._move(
            transaction_id, lambda group: self.state.mark_external_writes(transaction_id, group.now_ms)
        )

    async def join_topic(self, transaction_id: int, title: TopicName) -> Transaction:
        """The topic takes part in the transaction, before anything was written to it."""
        join = await self._owner.join_of(title)

        def stage(group: Group) -> Transaction:
            self.manager.admit(group, Joining(transaction_id, join))
            return self.state.get(transaction_id)

        return await self._run(stage)

    async def get(self, transaction_id: int) -> Transaction:
        """A transaction in progress, as it durably is; asked of the coordinator where that is another server."""
        if self.manager.follows:
            await self.manager.ask()
            return self.state.get(transaction_id)
        return await self._run(lambda group: self.state.get(transaction_id))

    async def outcome(self, transaction_id: int) -> Outcome:
        """The durable state of a transaction: its outcome, or the state in which it is."""
        return await self._run(lambda group: self.state.outcome(transaction_id))

    async def find(self, transaction_id: int) -> Transaction | Outcome:
        """A transaction in progress, or how it ended, as it durably is."""
        if self._over_link is not None:
            return await self._over_link.find(transaction_id)
        return await self._run(lambda group: self.state.find(transaction_id) or self.state.outcome(transaction_id))

    # For a face that answers from callbacks: no task, coroutine or future for each call. False, and nothing is done, where
    # only the coroutine can do it: while the log is to be read. The waiter may be told a refusal that is durable now.

    def submit_begin(self, waiter: Waiter[Transaction], asked: Beginning, *, changes_deferred: bool = False) -> bool:
        """As `begin`. `changes_deferred`: what it changes is logged with its commit, which brings it."""
        return self.manager.submit(partial(self._stages.begin, asked=asked, changes_deferred=changes_deferred), waiter)

    def submit_commit(
        self,
        waiter: Waiter[Outcome | BasaltError],
        transaction_id: int,
        deferred_changes: frozenset[bytes] | None = None,
        guard: Guard | None = None,
    ) -> bool:
        """As `commit`, of what the transaction stored, without more."""
        if not self.manager.is_known or self.carrier.is_carrying(transaction_id):
            return False
        intend = Intend(transaction_id, deferred_changes=deferred_changes)
        self.carrier.commit(CommitAsked(intend, guard=guard), waiter)
        return True

    def submit_one_shot(
        self, waiter: Waiter[Outcome], work: Work, owner: str = "", request_id: str | None = None, principal: str = ""
    ) -> bool:
        """As `one_shot`, where nothing speaks against the work and its topics are in memory."""
        self._check_here(work)
        try:
            plan = self._owner.plan_in_memory(work)
        except InputError:
            return False  # it may be a retry, which is answered whatever became of the topics since
        if plan is None or not self.manager.is_known:
            return False
        self._submit_one_shot(waiter, plan, Asking(owner, request_id, principal))
        return True

    async def log_no_changes(self, transaction_ids: Collection[int]) -> None:
        """Log that the deferred change sets of these transactions are empty, so that nothing of them can be lost."""
        await self._run(lambda group: self._stages.apply(group, self.state.log_no_changes(transaction_ids).edits))

    # For the scheduler.

    async def expire(self) -> int:
        """End the transactions whose time is up, and go on with ends that were interrupted; how many ended.

        Raises, when all that can be done is done, why one of them could not be ended or rolled back.
        """
        expired = 0
        failed: BasaltError | None = None
        while True:
            try:
                proposal = await self._run(partial(self._stage_expire, all_of_them=failed is None))
            except (
                UnavailableError
            ) as error:  # an owner of some that are to be invalid is away; the others can be ended
                if failed is not None or not self.manager.is_known:
                    raise
                failed = error
                continue
            if not proposal:
                break
            expired += proposal
        expired += await self._begun.give_up_uncarried()
        await self._one_shots.give_back()
        await self.end_loans()
        if not self.manager.atomic:
            failed = await self.carrier.give_up_uncarried() or failed
        failed = await self._recovery.drive_all() or failed
        if failed is not None:
            raise failed
        return expired

    async def move_dead_letters(self) -> int:
        """Move messages that failed too often to the topics that their groups name for them; how many."""
        return await self._dead_letters.move(self.one_shot if self._linked is None else self.one_shot_anywhere)

    async def write_log_snapshot(self) -> int:
        """Write the whole state, so that a restart replays only what follows; its bytes."""
        return await self.manager.write_log_snapshot()

    async def prune(self, pointers: Collection[int], runs: PointerRuns = NO_RUNS) -> int:
        """Take write pointers of which no row is left anywhere off the invalid list; how many it held."""

        def stage(group: Group) -> int:
            before = len(self.state.invalid)
            self._stages.apply(group, self.state.prune(pointers, runs).edits)
            return before - len(self.state.invalid)

        return await self._run(stage)

    async def truncate(self, before_ms: int) -> int:
        """Take all write pointers older than a time off the invalid list, whatever rows of theirs are left; how many."""

        def stage(group: Group) -> int:
            before = len(self.state.invalid)
            self._stages.apply(group, self.state.truncate(before_ms).edits)
            return before - len(self.state.invalid)

        return await self._run(stage)

    async def restore(self, pointers: Collection[int], runs: PointerRuns = NO_RUNS) -> int:
        """Put write pointers that were pruned back on the invalid list; how many were not on it."""

        def stage(group: Group) -> int:
            held = self.state.invalid
            lost = tuple(sorted(pointer for pointer in set(pointers) if pointer not in held))
            lost_runs = runs.without(held.runs)
            ends = (*lost[:1], *lost[-1:], *(pointer for run in lost_runs for pointer in run))
            if ends and not 0 < min(ends) <= max(ends) <= self.state.last_pointer:
                raise InputError("a write pointer to restore was never given out", field="pointers")
            self._stages.apply(group, (Restored(lost, lost_runs),) if ends else ())
            return len(self.state.invalid) - len(held)

        return await self._run(stage)

    # How.

    async def _prepared(
        self, work: Work | None, found: Transaction | None
    ) -> tuple[Prepared, Sequence[PlannedAcknowledgement]]:
        """Have the owner keep what a commit brings, and look at what it acknowledges."""
        if work is not None and work.acknowledge:
            work = await self._dead_letters.with_rejected(work)
        joined = JoinedTransaction.of(found) if found is not None and found.state is State.OPEN else None
        prepared = await self._owner.prepare(Prepare(work, joined))
        if work is None or not work.acknowledge:
            return prepared, ()
        try:
            return prepared, await self._groups.plan(work.acknowledge, found)
        except BasaltError:
            self._owner.drop(prepared)
            raise

    async def _plan(self, work: Work) -> TopicPlan | CommitAsked:
        """The plan of a one-shot transaction; where other servers have topics of it, the commit that several owners carry out."""
        if work.acknowledge:
            work = await self._dead_letters.with_rejected(work)
        if not self._owner.has_all(work):
            check_one_shot(work)
            prepared, acknowledgements = await self._prepared(work, None)
            if prepared.topics:
                return CommitAsked(Intend(0, prepared.topics), prepared, acknowledgements)
            return NOTHING._replace(acknowledgements=acknowledgements)
        plan = await self._owner.plan(work, None)
        if not work.acknowledge:
            return plan
        return plan._replace(acknowledgements=await self._groups.plan(work.acknowledge, None))

    async def _move(self, transaction_id: int, propose: Callable[[Group], Proposal]) -> Transaction:
        def stage(group: Group) -> Transaction | BasaltError:
            proposal = propose(group)
            self._stages.apply(group, proposal.edits)
            return proposal.refusal or self.state.get(transaction_id)

        return _answer_or_raise(await self._run(stage))

    def _stage_expire(self, group: Group, *, all_of_them: bool) -> int:
        made = self.state.expire(group.now_ms).edits
        if not all_of_them:
            made = tuple(edit for edit in made if not isinstance(edit, Invalidated))
        self._stages.apply(group, made)
        return sum(len(edit.ids) if isinstance(edit, Invalidated) else 1 for edit in made)

    async def list(self) -> list[Transaction]:
        return self.state.transactions()


def _answer_or_raise(answer: T | BasaltError) -> T:
    """The answer, or the refusal that is durable now."""
    if isinstance(answer, BasaltError):
        raise answer
    return answer


log = logging.getLogger("basalt.transactions")


class SessionStanding(NamedTuple):
    """A session, and its transactions that have not ended, oldest first."""

    session: SessionState
    transactions: tuple[Transaction, ...]


class SessionCalls:
    """Sessions of one coordinator, of which it is a part: `coordinator.sessions`."""

    def __init__(self, manager: TransactionManager, stages: CommitStage, recovery: Recovery) -> None:
        self._manager = manager
        self._stages = stages
        self._recovery = recovery

    async def open(self, name: str, run: str, principal: str = "") -> SessionState:
        """The run holds the session, which `principal` opens for it. Transactions that the runs before it left open are ended by then.

        It is rolled back, too, where that succeeds. Where not, it stays hidden, and the expiry job tries again.
        """

        def stage(group: Group) -> tuple[SessionState, list[Transaction]]:
            sessions = self._manager.state.sessions
            self._stages.apply(group, sessions.open(name, run, group.now_ms, principal).edits)
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

    async def begin(self, session: SessionBinding, asked: Beginning) -> Transaction | SessionState:
        """A new transaction of the session; or the session, when it has committed the version before."""

        def stage(group: Group) -> Transaction | SessionState:
            sessions = self._manager.state.sessions
            return (
                sessions.get(session.name) if sessions.is_done(session) else self._stages.begin(group, asked, session)
            )

        return await self._manager.run(stage)

    async def begin_named(self, name: WorkVersion, asked: Beginning) -> Transaction | SessionState:
        """The run's transaction for the version, new or open before; or the session, when it has committed the version.

        Transactions of a run that this one replaces are ended by then, and rolled back where that succeeds. A request
        id is of no use here: to ask again is to join.
        """

        def stage(group: Group) -> tuple[Transaction | SessionState, list[Transaction]]:
            state = self._manager.state
            done = state.sessions.done_before(name)
            if done is not None:
                return done, []
            proposal = state.sessions.begin_named(
                group.now_ms, name, asked.kind, asked.timeout_ms, asked.owner, asked.external_writes, asked.principal
            )
            # As one entry, for a session that is taken over and the begin in it are one decision.
            self._stages.apply(group, proposal.edits)
            taken = any(isinstance(edit, SessionOpened) for edit in proposal.edits)
            ending = _unfinished(state.sessions.transactions(name.session)) if taken else []
            return state.get(proposal.transaction_id), ending

        found, unfinished = await self._manager.run(stage)
        await self._recovery.drive(unfinished)
        return found

    async def get(self, name: str) -> SessionStanding:
        return await self._manager.run(lambda group: self._standing(self._manager.state.sessions.get(name)))

    async def list(self, after: str = "") -> list[SessionStanding]:
        """The sessions by name, those behind a name."""

        def stage(group: Group) -> list[SessionStanding]:
            behind = (session for session in self._manager.state.sessions.all() if session.name > after)
            return [self._standing(session) for session in sorted(behind, key=lambda session: session.name)]

        return await self._manager.run(stage)

    async def reset(self) -> None:
        """Forget every transaction and session: only where `transactions.allow_reset` says so."""

        def stage(group: Group) -> None:
            self._stages.apply(group, self._manager.state.reset(group.now_ms).edits)

        await self._manager.run(stage)
        log.warning("every transaction was forgotten: a client has reset this test server")

    def _standing(self, session: SessionState) -> SessionStanding:
        return SessionStanding(session, self._manager.state.sessions.transactions(session.name))


def _unfinished(transactions: Iterable[Transaction]) -> list[Transaction]:
    return [transaction for transaction in transactions if transaction.state is State.ABORTING]
