"""The stages of begin, commit and one-shot transactions in the group commit, for coroutines and for callbacks alike.

Where the store is atomic over tables a commit's rows and its edit are one batch. Elsewhere the log first gets what is
intended, and recovery rolls back a commit that got no outcome; the edit of a one-shot transaction follows its rows, and
the log knows beforehand only that the topics are in use (transactions/rules/one_shots.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from basalt.commits.topic_participant import TopicParticipant, TopicPlan
from basalt.runtime.group_commit import Group, NextGroupError, Phase
from basalt.transactions.manager import TransactionManager
from basalt.transactions.rules.edits import Edit, Invalidated
from basalt.transactions.rules.one_shots import TopicKey
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.states import Join, Kind, SessionBinding, State, Transaction
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError


class Beginning(NamedTuple):
    """The arguments of a begin, but for the session."""

    kind: Kind = Kind.SHORT
    timeout_ms: int | None = None
    owner: str = ""
    outside: bool = False
    request_id: str | None = None


class _GroupPart:
    """A part whose changes are in the group already. A failed write needs no undoing: the log is read again."""

    def closing(self, group: Group) -> None:
        pass

    def durable(self) -> None:
        pass

    def failed(self) -> None:
        pass


class _EndedInGroup(_GroupPart):
    """The transactions that end in one group."""

    def __init__(self, topics: TopicParticipant) -> None:
        self._topics = topics
        self.transactions: list[Transaction] = []

    def durable(self) -> None:
        for transaction in self.transactions:
            self._topics.ended(transaction)


class _OneShotsInGroup(_GroupPart):
    """The topics to which one-shot transactions of one group write: of each the log is told once."""

    def __init__(self) -> None:
        self.topics: set[TopicKey] = set()


class CommitStage:
    """The stages of one store's transactions."""

    def __init__(self, manager: TransactionManager, topics: TopicParticipant, clock: Clock) -> None:
        self._manager = manager
        self._topics = topics
        self._clock = clock

    def apply(self, group: Group, made: Sequence[Edit], phase: Phase | None = None) -> None:
        """In a stage: make the edits true, log them, and tell the topics of the transactions that they end."""
        for edit in made:
            if isinstance(edit, Invalidated):  # before anything is changed: the stage may have to run again
                found = map(self._manager.state.find, edit.ids)
                self._topics.require([transaction for transaction in found if transaction is not None])
        for transaction, state in self._manager.apply(group, made, phase):
            if state is State.INVALID:
                self._topics.invalidate(group, transaction)
            if transaction.topics:
                # Made after the manager's own part of the group, so that readers who are woken see the new state.
                group.part(self, lambda: _EndedInGroup(self._topics)).transactions.append(transaction)

    def begin(
        self, group: Group, asked: Beginning, session: SessionBinding | None = None, *, changes_deferred: bool = False
    ) -> Transaction:
        """In a stage: begin a transaction. `changes_deferred`: what it changes is logged with its commit only."""
        self._manager.check_order(group)
        state = self._manager.state
        proposal = state.begin(group.now_ms, *asked, session=session, changes_deferred=changes_deferred)
        self._manager.apply(group, proposal.edits)
        return state.get(proposal.transaction_id)

    def commit(
        self,
        transaction_id: int,
        plan: TopicPlan,
        request_id: str | None = None,
        deferred_changes: frozenset[bytes] | None = None,
    ) -> Callable[[Group], Outcome | BasaltError]:
        """The stage that publishes what was planned and all that was stored, and decides.

        Its answer may be a refusal, which is durable by then.
        """
        started_ms = self._clock.monotonic_ms()

        def stage(group: Group) -> Outcome | BasaltError:
            manager, topics = self._manager, self._topics
            state = manager.state
            proposal = state.commit(
                transaction_id, group.now_ms, inline=manager.atomic, request_id=request_id,
                deferred_changes=deferred_changes,
            )  # fmt: skip
            if proposal.refusal is not None or not proposal.edits:
                self.apply(group, proposal.edits)
                return proposal.refusal or state.outcome(transaction_id)
            transaction = state.get(transaction_id)
            topics.check(plan, transaction)
            if not manager.atomic:
                self._join(group, transaction.write_pointer, plan)
            topics.commit(group, plan, transaction.write_pointer, transaction)
            self.apply(group, proposal.edits)
            if not manager.atomic:
                self.apply(group, state.finish(transaction_id, group.now_ms).edits)
            group.when_durable(partial(self.count_commit, started_ms))
            return state.outcome(transaction_id)

        return stage

    def one_shot(self, group: Group, plan: TopicPlan, owner: str, request_id: str | None) -> Outcome:
        """In a stage: begin, add the plan's rows and commit, unless that was done before under the same request id."""
        manager, state = self._manager, self._manager.state
        made = state.begin_committed(group.now_ms, owner, request_id)
        if not made.edits:
            return state.outcome(made.transaction_id)
        self._topics.check(plan, None)
        if manager.atomic:
            self._topics.commit(group, plan, made.transaction_id, None)
            manager.apply(group, made.edits)
        else:
            told = group.part(_OneShotsInGroup, _OneShotsInGroup).topics
            joins = [join for join in self._joins(plan) if join[:2] not in told]
            use = state.one_shots.use(made.transaction_id, joins)
            self._topics.commit(group, plan, made.transaction_id, None)
            told.update(join[:2] for join in joins)
            manager.apply(group, use.before)
            manager.apply(group, made.edits)
            manager.apply(group, use.with_outcome, phase=Phase.OUTCOME)
        return state.outcome(made.transaction_id)

    def answered_one_shot(self, group: Group, owner: str, request_id: str | None) -> Outcome | None:
        """In a stage: the outcome of an earlier one-shot transaction with this request id."""
        state = self._manager.state
        made = state.begin_committed(group.now_ms, owner, request_id)
        return None if made.edits else state.outcome(made.transaction_id)

    def end_idle_topics(self, group: Group) -> None:
        """In a stage: say that topics are in use no more to which no one-shot transaction has written for long."""
        if not self._manager.is_untouched(group):
            raise NextGroupError  # replaying the log must not find it before or after what it came after or before
        state = self._manager.state
        self._manager.apply(group, state.one_shots.end_idle(state.last_pointer, group.now_ms).edits)

    def count_commit(self, started_ms: float) -> None:
        """A commit that began then is done."""
        self._manager.totals.commits.add((self._clock.monotonic_ms() - started_ms) / 1_000)

    def _join(self, group: Group, write_pointer: int, plan: TopicPlan) -> None:
        """Log the plan's topics: if rows and outcome are not one batch, recovery must know where to look for rows."""
        for topic in plan.topics:
            self._manager.join(group, write_pointer, topic, self._topics.newest_ms(topic))

    def _joins(self, plan: TopicPlan) -> list[Join]:
        """The plan's topics, each once, as they are before its rows."""
        topics = {topic.keys[:2]: topic for topic in plan.topics}
        return [Join(*key, self._topics.newest_ms(topic)) for key, topic in topics.items()]
