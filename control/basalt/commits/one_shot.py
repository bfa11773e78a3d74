"""One-shot transactions: begun, written and committed in one stage of the group commit.

Where the store is atomic the rows and one edit are one batch. Elsewhere the edit follows the rows, and the log knows
beforehand only that the topics are in use: `one_shot_rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from basalt.commits.participants import Participant, Plan
from basalt.runtime.group_commit import Group, NextGroupError, Phase
from basalt.transactions.manager import DurableState
from basalt.transactions.rules.one_shot_topics import TopicKey
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.states import Join

P = TypeVar("P", bound=Plan)


class _Written:
    """The topics to which one-shot transactions of one group write. About these the log says what it must."""

    def __init__(self) -> None:
        self.topics: set[TopicKey] = set()

    def without(self, joins: Sequence[Join]) -> list[Join]:
        return [join for join in joins if join[:2] not in self.topics]

    def closing(self, group: Group) -> None:
        pass

    def durable(self) -> None:
        pass

    def failed(self) -> None:
        pass


class OneShots(Generic[P]):
    """What a one-shot transaction does in its stage."""

    def __init__(self, durable: DurableState[P], participant: Participant[P]) -> None:
        self._durable = durable
        self._participant = participant

    def before(self, group: Group, owner: str, request_id: str | None) -> Outcome | None:
        """The outcome of an earlier one-shot transaction with this request id."""
        state = self._durable.state
        made = state.begin_committed(group.now_ms, owner, request_id)
        return None if made.edits else state.outcome(made.transaction_id)

    def carry_out(self, group: Group, plan: P, owner: str, request_id: str | None) -> Outcome:
        """Begin, add the plan's rows and commit, unless that was done before under the same request id."""
        if not self._durable.atomic:
            return self._carry_out_apart(group, plan, owner, request_id)
        state = self._durable.state
        made = state.begin_committed(group.now_ms, owner, request_id)
        if made.edits:
            self._participant.check(plan, None)
            self._participant.commit(group, plan, made.transaction_id, None)
            self._durable.apply(group, made.edits)
        return state.outcome(made.transaction_id)

    def _carry_out_apart(self, group: Group, plan: P, owner: str, request_id: str | None) -> Outcome:
        """The same where the outcome is not one batch with the rows."""
        state = self._durable.state
        made = state.begin_committed(group.now_ms, owner, request_id)
        if not made.edits:
            return state.outcome(made.transaction_id)
        self._participant.check(plan, None)
        written = group.part(self, _Written)
        joins = written.without(self._joins(plan))
        use = state.one_shots.use(made.transaction_id, joins)
        self._participant.commit(group, plan, made.transaction_id, None)
        written.topics.update(join[:2] for join in joins)
        self._durable.apply(group, use.before)
        self._durable.apply(group, made.edits)
        self._durable.apply(group, use.with_outcome, phase=Phase.OUTCOME)
        return state.outcome(made.transaction_id)

    def end_use(self, group: Group) -> None:
        """Say that topics are in use no more to which nothing was written for long."""
        if not self._durable.is_untouched(group):
            raise NextGroupError  # replaying the log must not find it before or after what it came after or before
        self._durable.apply(group, self._durable.state.one_shots.over(group.now_ms).edits)

    def _joins(self, plan: P) -> list[Join]:
        """The plan's topics, each once, as they are before its rows."""
        topics = {topic.keys[:2]: topic for topic in plan.topics}
        return [Join(*key, self._participant.newest_ms(topic)) for key, topic in topics.items()]
