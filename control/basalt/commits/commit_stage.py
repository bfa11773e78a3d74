"""What begin and commit do in the group commit, whoever asked: a coroutine, or a call that is told.

Where the store is atomic over tables a commit's rows and its edit are one batch. Elsewhere the log first gets what is
intended, and recovery rolls back a commit that got no outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from basalt.commits.named import Beginning
from basalt.commits.participants import Participant, Plan
from basalt.runtime.group_commit import Group
from basalt.transactions.manager import DurableState
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.states import InSession, Join, Transaction
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError

P = TypeVar("P", bound=Plan)


class Stages(Generic[P]):
    """Begin and commit of one coordinator."""

    def __init__(self, durable: DurableState[P], clock: Clock) -> None:
        self._durable = durable
        self._clock = clock
        self._participant: Participant[P]

    def attach(self, participant: Participant[P]) -> None:
        """Name the participant; before the first stage."""
        self._participant = participant

    def begin(
        self, group: Group, asked: Beginning, session: InSession | None = None, *, changes_unlogged: bool = False
    ) -> Transaction:
        """In a stage: begin a transaction. `changes_unlogged`: what it changes is to be logged with its commit only."""
        durable = self._durable
        durable.check_order(group)
        state = durable.state
        proposal = state.begin(group.now_ms, *asked, session=session)
        if changes_unlogged:
            proposal = state.unlogged.begin(proposal)
        durable.apply(group, proposal.edits)
        return state.get(proposal.transaction_id)

    def commit(
        self, transaction_id: int, plan: P, request_id: str | None = None
    ) -> Callable[[Group], Outcome | BasaltError]:
        """The stage that publishes what was planned and all that was stored, and decides.

        Its answer may be a refusal, which is durable by then.
        """
        started_ms = self._clock.monotonic_ms()

        def stage(group: Group) -> Outcome | BasaltError:
            durable, participant = self._durable, self._participant
            state = durable.state
            proposal = state.commit(transaction_id, group.now_ms, inline=durable.atomic, request_id=request_id)
            if proposal.refusal is not None or not proposal.edits:
                durable.apply(group, proposal.edits)
                return proposal.refusal or state.outcome(transaction_id)
            transaction = state.get(transaction_id)
            participant.check(plan, transaction)
            self._join(group, transaction_id, plan)
            participant.commit(group, plan, transaction.write_pointer, transaction)
            durable.apply(group, proposal.edits)
            if not durable.atomic:
                durable.apply(group, state.finish(transaction_id, group.now_ms).edits)
            group.when_durable(partial(self._committed, started_ms))
            return state.outcome(transaction_id)

        return stage

    def _join(self, group: Group, transaction_id: int, plan: P) -> None:
        """Where rows and outcome are not one batch, recovery must know where the rows of a lost commit lie."""
        if self._durable.atomic:
            return
        for topic in plan.topics:
            joined = Join(topic.keys.prefix, topic.generation, self._participant.newest_ms(topic))
            proposal = self._durable.state.join(transaction_id, joined, group.now_ms)
            if proposal.refusal is not None:
                raise proposal.refusal
            self._durable.apply(group, proposal.edits)

    def _committed(self, started_ms: float) -> None:
        self._durable.totals.commits.add((self._clock.monotonic_ms() - started_ms) / 1_000)
