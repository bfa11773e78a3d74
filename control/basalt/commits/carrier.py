"""Carries commits through both write lanes, where rows and log are not one batch.

    the log has its intent     its rows are durable     the log has its outcome

Each step is a stage that is submitted when the one before is durable. It runs though the client has gone, for others wait for
the end. Rows that cannot be placed are given up: the log says that the transaction is aborted, and what is there of it is
rolled back. When a write of the log fails, the state is read again, and recovery gives up whatever has no outcome there; a
step that comes later finds that out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from basalt.commits.commit_stage import CommitStage, TopicPlan
from basalt.commits.recovery import Recovery
from basalt.errors import StoreError, UnknownOutcomeError
from basalt.runtime.group_commit import Group, Waiter
from basalt.transactions.manager import TransactionManager
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import State
from basalt_engine.clock import STAGES, Clock, Stages
from basalt_engine.errors import BasaltError

log = logging.getLogger("basalt.transactions")

Answer = Outcome | BasaltError  # a refusal that is durable


class Carrier:
    """The commits that are under way in one server."""

    def __init__(self, manager: TransactionManager, stages: CommitStage, recovery: Recovery, clock: Clock) -> None:
        self._manager = manager
        self._lanes = manager.lanes
        self._stages = stages
        self._recovery = recovery
        self._clock = clock
        self._commits: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[object]] = set()

    def commit(
        self, stage: Callable[[Group], Answer | None], transaction_id: int, plan: TopicPlan, told: Waiter[Answer]
    ) -> None:
        """Submit the stage of `CommitStage.commit`, and carry through what it decides to place."""
        began = self._clock.monotonic_ms(), STAGES.get()
        carry = partial(self._begin_carrying, stage, transaction_id, plan, told, *began)
        self._lanes.log.submit(stage, _Step(told, carry), plan.payload_bytes)

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
        self, stage: Callable[[Group], Answer | None], transaction_id: int, plan: TopicPlan, told: Waiter[Answer],
        started_ms: float, stages: Stages | None, answer: Answer | None,
    ) -> None:  # fmt: skip
        if self.is_carrying(transaction_id) and isinstance(answer, Outcome) and answer.state is State.COMMITTING:
            self._keep(self._ask_again(stage, transaction_id, plan, told))
            return
        if answer is not None:
            if not told.done():
                told.set_result(answer)
            return
        token = STAGES.set(stages)  # the task's waits are those of the call, in whose turn this is not
        task = asyncio.get_running_loop().create_task(self._carry(transaction_id, plan, told, started_ms))
        STAGES.reset(token)
        self._commits[transaction_id] = task
        task.add_done_callback(lambda _: self._commits.pop(transaction_id, None))

    async def _ask_again(
        self, stage: Callable[[Group], Answer | None], transaction_id: int, plan: TopicPlan, told: Waiter[Answer]
    ) -> None:
        """The same commit was under way already: it has an outcome when that one is through."""
        await self.carried(transaction_id)
        try:
            self.commit(stage, transaction_id, plan, told)
        except BasaltError as refusal:
            _tell(told, refusal)

    async def _carry(self, transaction_id: int, plan: TopicPlan, told: Waiter[Answer], started_ms: float) -> None:
        answer: Outcome | Exception
        try:
            place = partial(self._stages.place, transaction_id=transaction_id, plan=plan)
            await self._lanes.topics.run(place, plan.payload_bytes, must_run=True)
        except Exception as error:  # noqa: BLE001  # it is raised where the commit was called
            answer = _half_way(error) if isinstance(error, StoreError) else error
            await self._give_up(transaction_id)
        else:
            try:
                decide = partial(self._stages.decide, transaction_id=transaction_id, started_ms=started_ms)
                answer = await self._lanes.log.run(decide, must_run=True)
            except Exception as error:  # noqa: BLE001  # likewise
                answer = error
        _tell(told, answer)

    async def _give_up(self, transaction_id: int) -> None:
        try:
            stage = partial(self._stages.give_up, transaction_id=transaction_id)
            unfinished = await self._lanes.log.run(stage, must_run=True)
        except BasaltError as error:  # recovery gives it up
            log.warning("transaction %s is given up when the log is read: %s", transaction_id, error)
            return
        if unfinished is not None:
            self._keep(self._recovery.drive([unfinished]))

    def _keep(self, work: Awaitable[object]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Step:
    """Waits for a step behind which another one comes, whatever became of the client."""

    def __init__(self, told: Waiter[Answer], then: Callable[..., None]) -> None:
        self._told = told
        self._then = then

    def cancelled(self) -> bool:
        """The client has gone before the step was taken."""
        return self._told.cancelled()

    def done(self) -> bool:
        """Never: the next step is to be taken."""
        return False

    def set_result(self, result: object, /) -> None:
        self._then(result)

    def set_exception(self, exception: BaseException, /) -> None:
        _tell(self._told, exception)


def _half_way(error: StoreError) -> UnknownOutcomeError:
    """The error of a commit whose rows were refused. It stays open no more, so it is not true that nothing was done."""
    return UnknownOutcomeError(
        f"the store failed half-way: {error}",
        hint="ask what became of it, or send the same call again; one that was aborted is to be run anew",
    )


def _tell(told: Waiter[Answer], answer: Answer | BaseException) -> None:
    if told.done():
        return
    if isinstance(answer, BaseException):
        told.set_exception(answer)
    else:
        told.set_result(answer)
