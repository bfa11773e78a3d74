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

from basalt.commits.commit_stage import CommitAsked, CommitStage
from basalt.commits.owning.owner import Owner
from basalt.commits.recovery import Recovery
from basalt.errors import StoreError, TransactionEndedError, UnavailableError, UnknownOutcomeError
from basalt.runtime.group_commit import Waiter, tell
from basalt.transactions.manager import TransactionManager
from basalt.transactions.protocol import Decide, Intended, JoinedTransaction, Place
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import State
from basalt_engine.clock import STAGES, Clock, Stages
from basalt_engine.errors import BasaltError, RetryError

log = logging.getLogger("basalt.transactions")

Answer = Outcome | BasaltError  # a refusal that is durable


class Carrier:
    """The commits that are under way in one server."""

    def __init__(
        self, manager: TransactionManager, stages: CommitStage, owner: Owner, recovery: Recovery, clock: Clock,
        place_ms: int,
    ) -> None:  # fmt: skip
        self._manager = manager
        self._lanes = manager.lanes
        self._stages = stages
        self._owner = owner
        self._place_ms = place_ms  # the longest that the rows of a commit may take
        self._recovery = recovery
        self._clock = clock
        self._commits: dict[int, asyncio.Task[None]] = {}
        self._uncarried: set[int] = set()  # of the last look: commits with an intent that nobody carried
        self._tasks: set[asyncio.Task[object]] = set()

    def commit(self, asked: CommitAsked, told: Waiter[Answer]) -> None:
        """Submit the stage that decides the commit, or logs its intent; then have its rows placed, and decide."""
        carry = partial(self._begin_carrying, asked, told, self._clock.monotonic_ms(), STAGES.get())
        step = _Step(told, carry, partial(self._owner.drop, asked.prepared))
        self._lanes.log.submit(self._stages.commit(asked), step, asked.prepared.payload_bytes)

    async def carry_out(self, asked: CommitAsked) -> Outcome:
        """The outcome of a commit that is carried through; raises why it is refused."""
        told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.commit(asked, told)
        answer = await told
        if isinstance(answer, BasaltError):
            raise answer
        return answer

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
        if isinstance(answer, Intended):
            transaction_id = answer.transaction.id
            token = STAGES.set(stages)  # the task's waits are those of the call, in whose turn this is not
            task = asyncio.get_running_loop().create_task(self._carry(answer.transaction, asked, told, started_ms))
            STAGES.reset(token)
            self._commits[transaction_id] = task
            task.add_done_callback(lambda _: self._commits.pop(transaction_id, None))
        elif isinstance(answer, Outcome) and answer.state is State.COMMITTING:
            self._keep(self._ask_again(asked, told))
        else:
            self._owner.drop(asked.prepared)
            tell(told, answer)

    async def _ask_again(self, asked: CommitAsked, told: Waiter[Answer]) -> None:
        """The same commit was under way already: it has an outcome when that one is through, or is given up now."""
        transaction_id = asked.intend.transaction_id
        try:
            if self.is_carrying(transaction_id):
                await self.carried(transaction_id)
            else:
                await self.give_up(transaction_id)
            self.commit(asked, told)
        except BasaltError as refusal:
            self._owner.drop(asked.prepared)
            tell(told, refusal)

    async def _carry(
        self, transaction: JoinedTransaction, asked: CommitAsked, told: Waiter[Answer], started_ms: float
    ) -> None:
        answer: Outcome | Exception
        transaction_id, one_shot = transaction.id, asked.one_shot
        try:
            await self._placed_in_time(Place(transaction, asked.prepared.number))
        except Exception as error:  # noqa: BLE001  # it is raised where the commit was called
            answer = await self._give_up(transaction, error)
        else:
            try:
                decide = partial(self._stages.decide, Decide(transaction_id, placed=True), started_ms, one_shot)
                answer = await self._lanes.log.run(decide, must_run=True)
            except Exception as error:  # noqa: BLE001  # likewise
                answer = error
            if one_shot is not None and not (isinstance(answer, Outcome) and answer.id == transaction_id):
                self._keep(self._recovery.drive_one(transaction_id))  # given up, for its request was carried out before
        self._owner.drop(asked.prepared)
        tell(told, run_anew(answer) if one_shot is not None and isinstance(answer, TransactionEndedError) else answer)

    async def _placed_in_time(self, place: Place) -> None:
        """Have the owner place the rows. One that is late goes on, and what it places is rolled back."""
        placing = asyncio.ensure_future(self._owner.place(place))
        done, _ = await asyncio.wait((placing,), timeout=self._place_ms / 1_000)
        if not done:
            self._keep(placing)
            raise UnavailableError(f"its rows were not durable within {self._place_ms} ms")
        placing.result()

    async def _give_up(self, transaction: JoinedTransaction, why: Exception) -> Exception:
        """Decide that the commit did not happen. Its answer is final: by then no owner takes anything under its pointers any more."""
        transaction_id = transaction.id
        try:
            outcome = await self.give_up(transaction_id)
            await self._owner.closed(transaction)
        except BasaltError as error:  # recovery gives it up; or `give_up_uncarried` does, where the log did not fail
            log.warning("transaction %s is given up later: %s", transaction_id, error)
            return _half_way(why) if isinstance(why, StoreError | UnavailableError) else why
        log.warning("the commit of transaction %s is given up, and rolled back: %s", transaction_id, why)
        if outcome.state is State.COMMITTED or not isinstance(why, RetryError):
            return why
        return _not_placed(transaction_id, why)

    async def give_up(self, transaction_id: int) -> Outcome:
        """Decide that a commit which nobody carries did not happen, and have it rolled back."""
        decide = partial(self._stages.decide, Decide(transaction_id, placed=False), 0.0, None)
        answer = await self._lanes.log.run(decide, must_run=True)
        self._keep(self._recovery.drive_one(transaction_id))
        if isinstance(answer, BasaltError):
            raise answer
        return answer

    async def give_up_uncarried(self) -> BasaltError | None:
        """Give up the commits that had an intent and no carrier at the last call already; the first error.

        Nobody else would, until the log is read again. Such a one could not be given up when its carrying failed, for example while a shard
        that it joined moved, or an owner could not be reached.
        """
        first: BasaltError | None = None
        committing = (each.id for each in self._manager.state.unfinished() if each.state is State.COMMITTING)
        uncarried = set(committing) - self._commits.keys()
        for transaction_id in sorted(uncarried & self._uncarried):
            try:
                await self.give_up(transaction_id)
            except BasaltError as error:  # the others are none the worse for it
                log.warning("transaction %s is given up later: %s", transaction_id, error)
                first = first or error
        self._uncarried = uncarried
        return first

    def _keep(self, work: Awaitable[object]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._was_done)

    def _was_done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("what a commit that was given up left behind: %s", error)


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
        tell(self._told, exception)


def _not_placed(transaction_id: int, why: BasaltError) -> TransactionEndedError:
    """The error of a commit that was given up, which the log has."""
    return TransactionEndedError(
        f"transaction {transaction_id} is rolled back, for its commit could not place its messages: {why.message}",
        hint="Nothing of it shows, now or later. Run it again.",
    )


def run_anew(why: TransactionEndedError) -> UnavailableError:
    """The error of a one-shot transaction that was given up: its request was not carried out, and its client knows no transaction."""
    return UnavailableError(why.message, hint="Nothing of it shows, now or later. Send the same call again.")


def _half_way(error: BasaltError) -> UnknownOutcomeError:
    """The error of a commit whose rows were refused. It stays open no more, so it is not true that nothing was done."""
    return UnknownOutcomeError(
        f"the store failed half-way: {error}",
        hint="ask what became of it, or send the same call again; one that was aborted is to be run anew",
    )
