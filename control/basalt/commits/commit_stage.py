"""Begin, commit and one-shot transactions in the group commit: the coordinator's part of each.

Where the store is atomic over tables a commit's rows and its edit are one batch, and a commit is one stage. Elsewhere a commit
with rows is three, each durable before the next: `intend` logs what is intended, the owner places the rows, `decide` logs the
outcome; recovery rolls back what got none. `commits.carrier` takes these steps, and `commits.one_shots` those of one-shot transactions.

What a transaction acknowledges in consumer groups is decided by its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from basalt.commits.owning.owner import Owner
from basalt.commits.owning.topic_plan import TopicPlan
from basalt.errors import TooLargeError
from basalt.groups.acknowledgements import PlannedAcknowledgement
from basalt.groups.groups import Groups
from basalt.runtime.group_commit import Group, NotLoadedError
from basalt.transactions.manager import TransactionManager
from basalt.transactions.protocol import (
    Close,
    Decide,
    End,
    Expect,
    Intend,
    Intended,
    JoinedTransaction,
    Joining,
    Prepared,
)
from basalt.transactions.rules.edits import Aborting, Doomed, Edit, Invalidated
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import TOPICS_MAX, Kind, SessionBinding, State, Transaction
from basalt.transactions.tellings import EndedInGroups, ended_in_groups
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError


class Beginning(NamedTuple):
    """The arguments of a begin, but for the session. `principal` is whose it is to be."""

    kind: Kind = Kind.SHORT
    timeout_ms: int | None = None
    owner: str = ""
    external_writes: bool = False
    request_id: str | None = None
    principal: str = ""


class Asking(NamedTuple):
    """Who asks for a one-shot transaction: a label, the request, and whose the transaction is to be."""

    owner: str = ""
    request_id: str | None = None
    principal: str = ""


Guard = Callable[[Transaction | None], None]  # looks at the transaction, None when it has ended, and may refuse


def _asked_by(edit: Edit, request_id: str | None) -> Edit:
    """The edit that dooms a transaction at its commit, with the request by which that was asked for."""
    return replace(edit, request_id=request_id) if isinstance(edit, Doomed) else edit


class OneShotAsked(NamedTuple):
    """A one-shot transaction of which other servers have topics. `staged` is called in the stage that decides.

    `begun`: it is in the log, for it acknowledges in groups of other servers; else it begins with the intent of its commit.
    """

    asking: Asking
    staged: Callable[[Group], None] | None
    begun: bool = False


class CommitAsked(NamedTuple):
    """A commit: what the log is told of it, what its owners keep for it, and what it acknowledges in groups.

    A `guard` raises when it must not be, and then nothing has changed. A `one_shot` begins with the intent of its commit.
    """

    intend: Intend
    prepared: Prepared = Prepared()
    acknowledgements: Sequence[PlannedAcknowledgement] = ()
    guard: Guard | None = None
    one_shot: OneShotAsked | None = None


class CommitStage:
    """The stages of one store's transactions."""

    def __init__(self, manager: TransactionManager, owner: Owner, groups: Groups, clock: Clock) -> None:
        self._manager = manager
        self._owner = owner
        self._groups = groups
        self._clock = clock

    def apply(self, group: Group, made: Sequence[Edit]) -> None:
        """In a stage: make the edits true, log them, and tell topics and groups of the transactions that they end."""
        for edit in made:
            if isinstance(edit, Invalidated):  # before anything is changed: the stage may have to run again
                found = map(self._manager.state.find, edit.ids)
                self._owner.require([JoinedTransaction.of(each) for each in found if each is not None])
        if not len(self._manager.state.groups):
            self._apply(group, made)
            return
        for edit in made:
            ended = ended_in_groups(self._manager.state, edit)
            self._apply(group, (edit,))
            for each in ended:
                self._tell_groups(group, each)

    def _tell_groups(self, group: Group, ended: EndedInGroups) -> None:
        made = self._groups.transaction_ended(
            group, ended.transaction_id, ended.reason, ended.pending, counts=ended.counts
        )
        self._manager.apply(group, made)

    def _apply(self, group: Group, made: Sequence[Edit]) -> None:
        atomic = self._manager.atomic
        for edit in made:
            if not atomic and isinstance(edit, Aborting | Doomed):
                group.when_durable(partial(self._owner.close, Close(edit.id)))
        for transaction, state in self._manager.apply(group, made):
            if atomic and not transaction.topics and not transaction.tables:
                continue  # its owner has never heard of it
            joined = JoinedTransaction.of(transaction)
            if state is State.INVALID:
                self._owner.invalidate(group, joined)
            # Called after the manager's own part of the group, so that readers who are woken see the new state.
            group.when_durable(partial(self._owner.end, End(joined)))

    def begin(
        self, group: Group, asked: Beginning, session: SessionBinding | None = None, *, changes_deferred: bool = False,
        for_one_shot: bool = False,
    ) -> Transaction:  # fmt: skip
        """In a stage: begin a transaction. `changes_deferred`: what it changes is logged with its commit only."""
        state = self._manager.state
        proposal = state.begin(
            group.now_ms, *asked, session=session, changes_deferred=changes_deferred, for_one_shot=for_one_shot
        )
        self._manager.apply(group, proposal.edits)
        return state.get(proposal.transaction_id)

    def commit(self, asked: CommitAsked) -> Callable[[Group], Outcome | BasaltError | Intended]:
        """The stage that decides a commit, or logs its intent where rows are to be placed before: by a stage of another lane.

        Its answer may be a refusal, which is durable by then.
        """
        return partial(self._commit, asked, self._clock.monotonic_ms())

    def _commit(self, asked: CommitAsked, started_ms: float, group: Group) -> Outcome | BasaltError | Intended:
        state = self._manager.state
        if asked.one_shot is not None:
            first = self.answered_one_shot(group, asked.one_shot.asking)
            if first is not None:
                return first
            if not asked.one_shot.begun:
                asked = self._begin_one_shot(group, asked, asked.one_shot.asking)
        intend = asked.intend
        transaction_id, topics = intend.transaction_id, intend.topics
        found = state.find(transaction_id)
        if asked.guard is not None:
            asked.guard(found)
        has_rows = bool(topics or (found is not None and (found.topics or found.tables)))
        atomic = self._manager.atomic
        at_once = atomic or not (has_rows or asked.one_shot is not None)  # whose outcome counts for its request
        proposal = state.commit(
            transaction_id, group.now_ms, inline=at_once, request_id=intend.request_id,
            deferred_changes=intend.deferred_changes,
        )  # fmt: skip
        if proposal.refusal is not None or not proposal.edits:
            self.apply(group, proposal.edits)
            return proposal.refusal or state.outcome(transaction_id)
        transaction = state.get(transaction_id)
        joined = JoinedTransaction.of(transaction)
        if atomic:
            self._owner.check_prepared(asked.prepared.number, joined)
        refused = self._lost(group, asked, transaction)
        if refused is not None:
            return refused
        if atomic:
            self._owner.commit_prepared(group, asked.prepared.number, joined)
        for join in () if at_once else topics:  # who reads the log is to know where to look for rows
            self._manager.admit(group, Joining(transaction.write_pointer, join))
        if asked.acknowledgements:  # they are the transaction's from here on, and the groups' once it has committed
            self.apply(group, self._groups.stage(group, asked.acknowledgements, transaction_id, group.now_ms))
        self.apply(group, proposal.edits)
        if not at_once:
            group.when_durable(partial(self._owner.expect, Expect(transaction_id)))
            return Intended(JoinedTransaction.of(state.get(transaction_id)))
        group.when_durable(partial(self.count_commit, started_ms))
        return state.outcome(transaction_id)

    def _begin_one_shot(self, group: Group, asked: CommitAsked, asking: Asking) -> CommitAsked:
        """Begin it where nothing speaks against it. Its request counts once it has committed: one that is given up is carried out anew."""
        state, topics = self._manager.state, asked.intend.topics
        if len(topics) > TOPICS_MAX:
            raise TooLargeError(
                f"a one-shot transaction over several servers may publish to {TOPICS_MAX} topics, and this one has {len(topics)}",
                hint="publish to fewer topics at a time",
            )
        begun = state.begin(group.now_ms, owner=asking.owner, principal=asking.principal)
        if asked.acknowledgements:
            self._groups.check(asked.acknowledgements, None, group.now_ms, begun.transaction_id)
        self._manager.apply(group, begun.edits)
        return asked._replace(intend=replace(asked.intend, transaction_id=begun.transaction_id))

    def _lost(self, group: Group, asked: CommitAsked, transaction: Transaction) -> Outcome | BasaltError | None:
        """The answer of a commit that has lost what it acknowledges to somebody else; None when it has not."""
        state, planned = self._manager.state, asked.acknowledgements
        if not planned and not state.groups.pending_of(transaction.id):
            return None
        lost = self._groups.check(planned, transaction, group.now_ms)
        if lost is None:
            return None
        self.apply(group, [_asked_by(edit, asked.intend.request_id) for edit in lost.edits])
        return lost.refusal or state.outcome(transaction.id)

    def decide(
        self, asked: Decide, started_ms: float, one_shot: OneShotAsked | None, group: Group
    ) -> Outcome | BasaltError:
        """In a stage of the log: the rows of a commit are durable, so it is done; or it is given up. Refused where that was so before.

        A one-shot transaction whose request was carried out meanwhile is given up, and has the answer of the first.
        """
        state, transaction_id = self._manager.state, asked.transaction_id
        if asked.placed:
            state.commit(transaction_id, group.now_ms)
        first = None if one_shot is None or not asked.placed else self._answered(one_shot.asking)
        if first is not None or not asked.placed:
            self.apply(group, state.give_up(transaction_id, group.now_ms).edits)
            return first or state.outcome(transaction_id)
        request_id = None if one_shot is None else one_shot.asking.request_id
        self.apply(group, state.finish(transaction_id, group.now_ms, request_id).edits)
        if one_shot is not None and one_shot.staged is not None:
            one_shot.staged(group)
        group.when_durable(partial(self.count_commit, started_ms))
        return state.outcome(transaction_id)

    def _answered(self, asking: Asking) -> Outcome | BasaltError | None:
        """The answer to the request by which a one-shot transaction was asked for, where it was carried out before."""
        try:
            first = self._manager.state.first_one_shot(asking.request_id, asking.owner)
        except BasaltError as refusal:
            return refusal
        return None if first is None else self._manager.state.outcome(first)

    def one_shot(self, group: Group, plan: TopicPlan, asked: Asking) -> Outcome:
        """In a stage: begin, add the plan's rows and commit, unless that was done before under the same request id.

        Where rows and log are not one batch, only of a plan without rows.
        """
        manager = self._manager
        state = manager.state
        made = state.begin_committed(group.now_ms, *asked)
        if not made.edits:
            return state.outcome(made.transaction_id)
        self._owner.check(plan, None)
        if plan.acknowledgements:
            self._groups.check(plan.acknowledgements, None, group.now_ms, made.transaction_id)
        self._owner.commit_one_shot(group, plan, made.transaction_id)
        manager.apply(group, made.edits)
        self.acknowledge(group, plan, made.transaction_id)
        return state.outcome(made.transaction_id)

    def acknowledge(self, group: Group, plan: TopicPlan, writer: int) -> None:
        """In the stage of a one-shot transaction, behind its outcome: what is acknowledged without it would be lost work."""
        if plan.acknowledgements:
            made = self._groups.stage(group, plan.acknowledgements, None, group.now_ms, writer)
            self._manager.apply(group, made)

    def one_shot_of(
        self, plan: TopicPlan, asked: Asking, staged: Callable[[Group], None] | None = None
    ) -> Callable[[Group], Outcome]:
        """The stage of a one-shot transaction, counted as a commit that begins now. Calls `staged` once nothing refuses it any more."""
        started_ms = self._clock.monotonic_ms()

        def stage(group: Group) -> Outcome:
            outcome = self.one_shot(group, plan, asked)
            group.when_durable(partial(self.count_commit, started_ms))
            if staged is not None:
                staged(group)
            return outcome

        return stage

    def answered_one_shot(self, group: Group, asked: Asking) -> Outcome | None:
        """In a stage: the outcome of an earlier one-shot transaction with this request id."""
        state = self._manager.state
        if self._manager.in_flight.has_request(asked.request_id):
            raise NotLoadedError(self._manager.until_decided)
        first = state.first_one_shot(asked.request_id, asked.owner)
        return None if first is None else state.outcome(first)

    def count_commit(self, started_ms: float) -> None:
        """A commit that began then is done."""
        self._manager.totals.commits.add((self._clock.monotonic_ms() - started_ms) / 1_000)
