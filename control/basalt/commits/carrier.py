"""Carries commits and one-shot transactions through both write lanes, where rows and log are not one batch.

    a commit      the log has its intent     its rows are durable     the log has its outcome
    a one-shot                               its rows are durable     the log has its outcome

Each step is a stage that is submitted when the one before is durable. It runs though the client has gone, for others wait for
the end. Rows that cannot be placed are given up: the log says that the transaction is aborted, and what is there of it is
rolled back. When a write of the log fails, the state is read again, and recovery gives up whatever has no outcome there; a
step that comes later finds that out.

One-shot transactions of one group are decided by one stage. Until then they are in flight (transactions/rules/one_shots.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from basalt.commits.commit_stage import Asking, CommitAsked, CommitStage
from basalt.commits.owner import Owner, TopicPlan
from basalt.commits.recovery import Recovery
from basalt.errors import (
    CoordinatorUnavailableError,
    StoreError,
    TransactionEndedError,
    UnavailableError,
    UnknownOutcomeError,
)
from basalt.groups.groups import Groups
from basalt.runtime.group_commit import Group, NotLoadedError, Waiter
from basalt.transactions.manager import TransactionManager
from basalt.transactions.protocol import Decide, Intended, JoinedTransaction, Place, Prepared
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.one_shots import OneShotInFlight, TopicKey, TopicUseEdits
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import State
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.clock import STAGES, Clock, Stages
from basalt_engine.errors import BasaltError, RetryError

log = logging.getLogger("basalt.transactions")

Answer = Outcome | BasaltError  # a refusal that is durable
Staged = Callable[[Group], None]


@dataclass(frozen=True, slots=True)
class _OneShot:
    """A one-shot transaction whose rows are being written, or are."""

    placed: OneShotInFlight
    plan: TopicPlan
    use: TopicUseEdits
    state: TransactionProposals  # in which it is in flight
    told: Waiter[Outcome]
    staged: Staged | None
    started_ms: float


class Carrier:
    """The commits and one-shot transactions that are under way in one server."""

    def __init__(
        self, manager: TransactionManager, stages: CommitStage, owner: Owner, groups: Groups, recovery: Recovery, clock: Clock,
        place_ms: int,
    ) -> None:  # fmt: skip
        self._manager = manager
        self._lanes = manager.lanes
        self._stages = stages
        self._owner = owner
        self._place_ms = place_ms  # the longest that the rows of a commit may take
        self._groups = groups
        self._recovery = recovery
        self._clock = clock
        self._commits: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[object]] = set()

    # Commits.

    def commit(self, asked: CommitAsked, told: Waiter[Answer]) -> None:
        """Submit the stage that decides the commit, or logs its intent; then have its rows placed, and decide."""
        carry = partial(self._begin_carrying, asked, told, self._clock.monotonic_ms(), STAGES.get())
        step = _Step(told, carry, partial(self._owner.drop, asked.prepared))
        self._lanes.log.submit(self._stages.commit(asked), step, asked.prepared.payload_bytes)

    def is_carrying(self, transaction_id: int) -> bool:
        """True between the intent of a commit and its outcome."""
        return transaction_id in self._commits

    async def carried(self, transaction_id: int) -> None:
        """Return once the transaction is not between the intent of its commit and the outcome."""
        while (task := self._commits.get(transaction_id)) is not None:
            await asyncio.wait((task,))

    async def finish(self) -> None:
        """Return once every commit that has begun is decided, or has failed."""
        while tasks := (*self._commits.values(), *self._tasks):
            await asyncio.wait(tasks)

    def _begin_carrying(
        self, asked: CommitAsked, told: Waiter[Answer], started_ms: float, stages: Stages | None, answer: Answer | Intended
    ) -> None:  # fmt: skip
        transaction_id = asked.intend.transaction_id
        if isinstance(answer, Intended):
            token = STAGES.set(stages)  # the task's waits are those of the call, in whose turn this is not
            carrying = self._carry(answer.transaction, asked.prepared, told, started_ms)
            task = asyncio.get_running_loop().create_task(carrying)
            STAGES.reset(token)
            self._commits[transaction_id] = task
            task.add_done_callback(lambda _: self._commits.pop(transaction_id, None))
        elif self.is_carrying(transaction_id) and isinstance(answer, Outcome) and answer.state is State.COMMITTING:
            self._keep(self._ask_again(asked, told))
        else:
            self._owner.drop(asked.prepared)
            _tell(told, answer)

    async def _ask_again(self, asked: CommitAsked, told: Waiter[Answer]) -> None:
        """The same commit was under way already: it has an outcome when that one is through."""
        await self.carried(asked.intend.transaction_id)
        try:
            self.commit(asked, told)
        except BasaltError as refusal:
            _tell(told, refusal)

    async def _carry(
        self, transaction: JoinedTransaction, prepared: Prepared, told: Waiter[Answer], started_ms: float
    ) -> None:
        answer: Outcome | Exception
        transaction_id = transaction.id
        try:
            await self._placed_in_time(Place(transaction, prepared.number))
        except Exception as error:  # noqa: BLE001  # it is raised where the commit was called
            answer = await self._give_up(transaction_id, error)
        else:
            try:
                decide = partial(self._stages.decide, Decide(transaction_id, placed=True), started_ms)
                answer = await self._lanes.log.run(decide, must_run=True)
            except Exception as error:  # noqa: BLE001  # likewise
                answer = error
        self._owner.drop(prepared)
        _tell(told, answer)

    async def _placed_in_time(self, place: Place) -> None:
        """Have the owner place the rows. One that is late goes on, and what it places is rolled back."""
        placing = asyncio.ensure_future(self._owner.place(place))
        done, _ = await asyncio.wait((placing,), timeout=self._place_ms / 1_000)
        if not done:
            self._keep(placing)
            raise UnavailableError(f"its rows were not durable within {self._place_ms} ms")
        placing.result()

    async def _give_up(self, transaction_id: int, why: Exception) -> Exception:
        """Decide that the commit did not happen. Its answer is final: by then its owner takes nothing under its pointers any more."""
        try:
            decide = partial(self._stages.decide, Decide(transaction_id, placed=False), 0.0)
            outcome = await self._lanes.log.run(decide, must_run=True)
        except BasaltError as error:  # recovery gives it up
            log.warning("transaction %s is given up when the log is read: %s", transaction_id, error)
            return _half_way(why) if isinstance(why, StoreError) else why
        log.warning("the commit of transaction %s is given up, and rolled back: %s", transaction_id, why)
        self._keep(self._recovery.drive_one(transaction_id))
        if outcome.state is State.COMMITTED or not isinstance(why, RetryError):
            return why
        return _not_placed(transaction_id, why)

    def _keep(self, work: Awaitable[object]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._was_done)

    def _was_done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("what a commit that was given up left behind: %s", error)

    # One-shot transactions.

    def one_shot(self, plan: TopicPlan, asked: Asking, told: Waiter[Outcome], staged: Staged | None = None) -> None:
        """Place the plan's rows and decide. One without rows is decided at once. `staged` is called in the stage that decides."""
        if not plan.publications and not plan.markers:
            self._lanes.log.submit(self._stages.one_shot_of(plan, asked, staged), told)
            return
        self._lanes.log.refuse_if_late()  # its rows would hold up readers until the write has ended
        place = partial(self._place, plan, asked, told, staged, self._clock.monotonic_ms())
        self._lanes.topics.submit(place, _Step(told, partial(self._placed, told)), plan.payload_bytes)

    def _place(
        self,
        plan: TopicPlan,
        asked: Asking,
        told: Waiter[Outcome],
        staged: Staged | None,
        started_ms: float,
        group: Group,
    ) -> int | None:
        """In a stage of the lane of topics: add the rows. Returns the transaction of the same request, where there was one before."""
        manager = self._manager
        state = manager.state
        if state.in_flight.has_request(asked.request_id):
            raise NotLoadedError(manager.until_decided)
        made = state.begin_committed(group.now_ms, *asked)
        if not made.edits:
            return made.transaction_id
        pointer = made.transaction_id
        self._owner.check(plan, None)
        if plan.acknowledgements:
            self._groups.check(plan.acknowledgements, None, group.now_ms, pointer)
        together = group.part(self, lambda: _PlacedTogether(self))
        joins = tuple(self._owner.joins(plan))
        use = manager.use_topics(pointer, [join for join in joins if join.key not in together.topics])
        self._owner.place_one_shot(group, plan, pointer)
        placed = OneShotInFlight(pointer, group.now_ms, asked.owner, asked.principal, asked.request_id, joins)
        state.in_flight.add(placed)
        together.topics.update(join.key for join in joins)
        together.one_shots.append(_OneShot(placed, plan, use, state, told, staged, started_ms))
        return None

    def _placed(self, told: Waiter[Outcome], before: int | None) -> None:
        if before is not None:  # its outcome is answered when the log has it
            self._lanes.log.submit(lambda _: self._manager.state.outcome(before), told, must_run=True)

    def decide(self, one_shots: Sequence[_OneShot]) -> None:
        """Their rows are durable: submit the stage that decides about them."""
        tell = partial(_tell_all, one_shots)
        failed = partial(_tell_each, one_shots)
        self._submit_to_log(partial(self._decide_all, one_shots), _Decided(tell, failed))

    def give_up(self, one_shots: Sequence[_OneShot]) -> None:
        """The write of their rows failed, or may have: submit the stage that aborts them."""
        for each in one_shots:
            each.state.in_flight.failed(each.placed)
        self._submit_to_log(partial(self._give_up_all, one_shots), _Decided(_heard, _heard))

    def _submit_to_log(self, stage: Callable[[Group], list[Answer]], waiter: _Decided) -> None:
        token = STAGES.set(None)  # it is no single call's
        self._lanes.log.submit(stage, waiter, must_run=True)
        STAGES.reset(token)

    def _decide_all(self, one_shots: Sequence[_OneShot], group: Group) -> list[Answer]:
        return [self._decide(each, group) for each in one_shots]

    def _decide(self, each: _OneShot, group: Group) -> Answer:
        state, placed = self._manager.state, each.placed
        if each.state is not state or placed.id not in state.in_flight:
            return CoordinatorUnavailableError(
                "the log of transactions failed before this one was decided, so it is rolled back",
                hint="send the same call again: it is carried out anew",
            )
        try:
            if each.plan.acknowledgements:  # since its rows were placed, somebody else may have acknowledged
                self._groups.check(each.plan.acknowledgements, None, group.now_ms, placed.id)
        except BasaltError as refusal:
            self._give_up_one(each, group)
            return refusal
        made: list[Edit] = [edits.OneShot(placed.id, group.now_ms, placed.owner, placed.request_id)]
        if placed.principal and placed.id > state.last_pointer:
            made.append(edits.Owned(placed.id, placed.principal))
        self._manager.apply(group, made)
        self._stages.acknowledge(group, each.plan, placed.id)
        self._manager.apply(group, each.use.with_outcome)
        if each.staged is not None:
            each.staged(group)
        group.when_durable(partial(self._decided, each))
        return state.outcome(placed.id)

    def _decided(self, each: _OneShot) -> None:
        each.state.in_flight.remove(each.placed)
        for topic_log in dict.fromkeys(each.plan.logs):
            topic_log.end_writers({each.placed.id})
            topic_log.notify()
        self._stages.count_commit(each.started_ms)

    def _give_up_all(self, one_shots: Sequence[_OneShot], group: Group) -> list[Answer]:
        for each in one_shots:
            if each.state is self._manager.state and each.placed.id in each.state.in_flight:
                self._give_up_one(each, group)
        return []

    def _give_up_one(self, each: _OneShot, group: Group) -> None:
        """In a stage of the log: abort it, and roll it back once that is durable."""
        state, placed = self._manager.state, each.placed
        if placed.id > state.last_pointer:
            self._stages.apply(group, [*placed.began(), edits.Aborting(placed.id, False)])
        else:
            self._stages.apply(group, state.give_up(placed.id, group.now_ms).edits)
        aborting = state.get(placed.id)

        def durable() -> None:
            state.in_flight.remove(placed)
            self._keep(self._recovery.drive([aborting]))

        group.when_durable(durable)


class _PlacedTogether:
    """The one-shot transactions of one group. The log hears once that they use a topic."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.topics: set[TopicKey] = set()
        self.one_shots: list[_OneShot] = []

    def closing(self, group: Group) -> None:
        """Their rows are in the group already."""

    def durable(self) -> None:
        if self.one_shots:
            self._carrier.decide(self.one_shots)

    def failed(self) -> None:
        if self.one_shots:
            self._carrier.give_up(self.one_shots)


class _Step:
    """Waits for a step behind which another one comes, whatever became of the client."""

    def __init__(
        self,
        told: Waiter[Outcome] | Waiter[Answer],
        then: Callable[..., None],
        refused: Callable[[], None] | None = None,
    ) -> None:
        self._told = told
        self._then = then
        self._refused = refused  # called when there is no next step

    def cancelled(self) -> bool:
        """The client has gone before the step was taken."""
        return self._told.cancelled()

    def done(self) -> bool:
        """Never: the next step is to be taken."""
        return False

    def set_result(self, result: object, /) -> None:
        self._then(result)

    def set_exception(self, exception: BaseException, /) -> None:
        if self._refused is not None and not isinstance(
            exception, UnknownOutcomeError
        ):  # of a write that is late a result may come
            self._refused()
        _tell(self._told, exception)


class _Decided:
    """Waits for the stage that decides about several."""

    def __init__(self, then: Callable[[Sequence[Answer]], None], failed: Callable[[BaseException], None]) -> None:
        self._then = then
        self._failed = failed

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        """Never: a write that was late ends some time."""
        return False

    def set_result(self, result: Sequence[Answer], /) -> None:
        self._then(result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._failed(exception)


def _not_placed(transaction_id: int, why: BasaltError) -> TransactionEndedError:
    """The error of a commit that was given up, which the log has."""
    return TransactionEndedError(
        f"transaction {transaction_id} is rolled back, for its commit could not place its messages: {why.message}",
        hint="Nothing of it shows, now or later. Run it again.",
    )


def _half_way(error: StoreError) -> UnknownOutcomeError:
    """The error of a commit whose rows were refused. It stays open no more, so it is not true that nothing was done."""
    return UnknownOutcomeError(
        f"the store failed half-way: {error}",
        hint="ask what became of it, or send the same call again; one that was aborted is to be run anew",
    )


def _tell(told: Waiter[Answer] | Waiter[Outcome], answer: Answer | BaseException) -> None:
    if told.done():
        return
    if isinstance(answer, BaseException):
        told.set_exception(answer)
    else:
        told.set_result(answer)


def _tell_all(one_shots: Sequence[_OneShot], answers: Sequence[Answer]) -> None:
    for each, answer in zip(one_shots, answers, strict=True):
        _tell(each.told, answer)


def _tell_each(one_shots: Sequence[_OneShot], error: BaseException) -> None:
    for each in one_shots:
        _tell(each.told, error)


def _heard(_: object) -> None:
    """The clients heard of the write that failed."""
