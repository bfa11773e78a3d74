"""Carries one-shot transactions through both write lanes, where rows and log are not one batch.

    its pointer is of a loan     its rows are durable     the log has its outcome

The loan is the intent of all its one-shot transactions (transactions/rules/loans.py): the log has it before a row is written under one
of its pointers. The lane of topics takes pointers and writes rows; those of one group are decided by one stage of the log, in the
order of their pointers. Until then they are in flight, and readers stop at their rows.

When a write of rows fails, nobody knows which of them are there: the pointers are given up, a run on the invalid list. When a write of
the log fails, its state is read again, and recovery ends the loans. docs/decisions/0061-loans-of-write-pointers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from basalt.commits.commit_stage import Asking, CommitStage
from basalt.commits.owner import Owner, TopicPlan
from basalt.errors import BusyError, CoordinatorUnavailableError
from basalt.groups.groups import Groups
from basalt.messaging.log.topic_log import TopicLog
from basalt.runtime.group_commit import Group, NotLoadedError, Waiter, tell
from basalt.transactions.manager import TransactionManager
from basalt.transactions.rules import edits
from basalt.transactions.rules.loans import OPEN_LOANS_MAX, LoanInUse, OneShotInFlight
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.clock import STAGES, Clock
from basalt_engine.errors import BasaltError

log = logging.getLogger("basalt.transactions")

Answer = Outcome | BasaltError  # a refusal that is durable
Staged = Callable[[Group], None]


class OneShots:
    """The one-shot transactions that are under way in one server."""

    def __init__(
        self, manager: TransactionManager, stages: CommitStage, owner: Owner, groups: Groups, clock: Clock
    ) -> None:
        self.manager = manager
        self.stages = stages
        self.owner = owner
        self.groups = groups
        self._lanes = manager.lanes
        self._clock = clock
        self.loans = Borrowing(manager, clock)

    def carry(self, plan: TopicPlan, asked: Asking, told: Waiter[Outcome], staged: Staged | None = None) -> None:
        """Place the plan's rows and decide. One without rows is decided at once. `staged` is called in the stage that decides."""
        if not plan.publications and not plan.markers:
            self._lanes.log.submit(self.stages.one_shot_of(plan, asked, staged), told)
            return
        self._lanes.log.refuse_if_late()  # its rows would hold up readers until the write has ended
        one_shot = _OneShot(self, plan, asked, told, staged, self._clock.monotonic_ms())
        self._lanes.topics.submit(one_shot.place, one_shot, plan.payload_bytes)

    def has_idle_loan(self) -> bool:
        """True while `give_back` may have something to do."""
        return not self.manager.atomic and self.loans.has_idle()

    async def give_back(self) -> None:
        """Give back loans that are not used any more: what is in progress holds up what is decided."""
        if self.has_idle_loan() and self.manager.is_known:
            await self._lanes.log.run(self.loans.give_back)

    async def give_back_all(self) -> None:
        """The server stops, and takes no more one-shot transactions: give back what it has, behind what is to be decided."""
        self.loans.end()
        if self.loans.has_idle() and self.manager.is_known and not self._lanes.log.is_late:
            await self._lanes.log.run(self.loans.give_back, must_run=True)

    # Steps of all that were placed by one group.

    def decide(self, one_shots: Sequence[_OneShot]) -> None:
        """Their rows are durable: submit the stage that decides about them."""
        told, failed = partial(_tell_all, one_shots), partial(_tell_each, one_shots)
        self._submit_to_log(partial(self._decide_all, one_shots), _Decided(told, failed))

    def give_up(self, one_shots: Sequence[_OneShot]) -> None:
        """The write of their rows failed, or may have: submit the stage that gives up their pointers."""
        for each in one_shots:
            each.state.in_flight.failed(each.placed)
        self._submit_to_log(partial(self._give_up_all, one_shots), _Decided(_heard, _heard))

    def _submit_to_log(self, stage: Callable[[Group], list[Answer]], waiter: _Decided) -> None:
        token = STAGES.set(None)  # it is no single call's
        self._lanes.log.submit(stage, waiter, must_run=True)
        STAGES.reset(token)

    def _decide_all(self, one_shots: Sequence[_OneShot], group: Group) -> list[Answer]:
        if one_shots[0].state is not self.manager.state:
            return [_given_up_by_recovery() for _ in one_shots]
        answers = [self._decide(each, group) for each in one_shots]
        if self.loans.ended:
            self.loans.give_back(group)
        group.when_durable(partial(self._settled, one_shots, answers))
        return answers

    def _decide(self, each: _OneShot, group: Group) -> Answer:
        state, placed, now_ms = each.state, each.placed, group.now_ms
        try:
            if placed.request_id is not None:
                first = state.first_one_shot(placed.request_id)
                if first is not None:  # since its rows were placed, the request was carried out elsewhere
                    self._give_up(placed.id, placed.id, group)
                    return state.outcome(first)
            if each.plan.acknowledgements:  # likewise, somebody else may have acknowledged
                self.groups.check(each.plan.acknowledgements, None, now_ms, placed.id)
        except BasaltError as refusal:
            self._give_up(placed.id, placed.id, group)
            return refusal
        made = state.committed_one_shot(placed.id, now_ms, placed.owner, placed.request_id, placed.principal)
        self.manager.apply(group, made)
        if each.plan.acknowledgements:
            self.stages.acknowledge(group, each.plan, placed.id)
        if each.staged is not None:
            each.staged(group)
        return state.outcome(placed.id)

    def _give_up_all(self, one_shots: Sequence[_OneShot], group: Group) -> list[Answer]:
        if one_shots[0].state is self.manager.state:
            for first, last in _stretches([each.placed.id for each in one_shots]):
                self._give_up(first, last, group)
            group.when_durable(partial(self._settled, one_shots, ()))
        return []

    def _give_up(self, first: int, last: int, group: Group) -> None:
        self.manager.apply(group, (edits.GivenUp(first, last),))

    def _settled(self, one_shots: Sequence[_OneShot], answers: Sequence[Answer]) -> None:
        """It is durable what became of them: wake the readers that they held up."""
        writers_in: dict[TopicLog, set[int]] = {}
        for each in one_shots:
            each.state.in_flight.remove(each.placed)
            for topic_log in each.plan.logs:
                writers_in.setdefault(topic_log, set()).add(each.placed.id)
        for topic_log, writers in writers_in.items():
            topic_log.end_writers(writers)
            topic_log.notify()
        for each, answer in zip(one_shots, answers, strict=False):
            if isinstance(answer, Outcome):
                self.stages.count_commit(each.started_ms)


class _OneShot:
    """A one-shot transaction: the stage that adds its rows, and who waits for that, whatever became of the client."""

    __slots__ = ("_one_shots", "asked", "placed", "plan", "staged", "started_ms", "state", "told")

    def __init__(
        self, one_shots: OneShots, plan: TopicPlan, asked: Asking, told: Waiter[Outcome], staged: Staged | None, started_ms: float
    ) -> None:  # fmt: skip
        self._one_shots = one_shots
        self.plan = plan
        self.asked = asked
        self.told = told
        self.staged = staged
        self.started_ms = started_ms
        self.placed: OneShotInFlight
        self.state: TransactionProposals  # in which it is in flight

    def place(self, group: Group) -> int | None:
        """In a stage of the lane of topics: add the rows. Returns the transaction of the same request, where there was one before."""
        owner, request_id, principal = self.asked
        one_shots, plan = self._one_shots, self.plan
        manager = one_shots.manager
        state = manager.state
        if request_id is not None and state.in_flight.has_request(request_id):
            raise NotLoadedError(manager.until_decided)
        first = state.first_one_shot(request_id, owner)
        if first is not None:
            return first
        loan = one_shots.loans.in_use(state)
        one_shots.owner.check(plan, None)
        if plan.acknowledgements:
            one_shots.groups.check(plan.acknowledgements, None, group.now_ms, loan.next)
        one_shots.owner.place_one_shot(group, plan, loan.next)
        self.state, self.placed = state, OneShotInFlight(loan.take(), owner, principal, request_id)
        state.in_flight.add(self.placed)
        together: _PlacedTogether = group.part(one_shots, partial(_PlacedTogether, one_shots))
        together.one_shots.append(self)
        return None

    # As a waiter for its rows.

    def cancelled(self) -> bool:
        """The client has gone before its rows were placed."""
        return self.told.cancelled()

    def done(self) -> bool:
        """Never: it is to be decided."""
        return False

    def set_result(self, first: int | None, /) -> None:
        if first is not None:  # the outcome of the same request is answered when the log has it
            manager = self._one_shots.manager
            manager.lanes.log.submit(lambda _: manager.state.outcome(first), self.told, must_run=True)

    def set_exception(self, exception: BaseException, /) -> None:
        tell(self.told, exception)


class _PlacedTogether:
    """The one-shot transactions of one group."""

    def __init__(self, one_shots: OneShots) -> None:
        self._carrier = one_shots
        self.one_shots: list[_OneShot] = []

    def closing(self, group: Group) -> None:
        """Their rows are in the group already."""

    def durable(self) -> None:
        self._carrier.decide(self.one_shots)

    def failed(self) -> None:
        self._carrier.give_up(self.one_shots)


class Borrowing:
    """The loans of this server: one whose pointers are given out, the next one, and those that are to be given back.

    They end with the state of transactions under which they were lent: who reads the log again ends them.
    """

    def __init__(self, manager: TransactionManager, clock: Clock) -> None:
        self._manager = manager
        self._clock = clock
        self._state: TransactionProposals | None = None
        self._loans: list[LoanInUse] = []  # the first is used, until it is over
        self._asking: asyncio.Task[None] | None = None
        self.ended: list[LoanInUse] = []  # given back once all that was placed under them is decided

    def in_use(self, state: TransactionProposals) -> LoanInUse:
        """In a stage that needs a pointer: the loan that has the next one. `NotLoadedError` until the log has it."""
        self._know(state)
        now_ms = self._clock.monotonic_ms()
        while self._loans and self._loans[0].is_over(now_ms):
            self._end(self._loans.pop(0))
        if not self._loans:
            raise NotLoadedError(self._borrowed)
        if len(self._loans) == 1 and self._asking is None and self._loans[0].is_ending(now_ms):
            self._ask()
        return self._loans[0]

    def has_idle(self) -> bool:
        """True while a loan is to be given back, or is over."""
        now_ms = self._clock.monotonic_ms()
        return bool(self.ended) or any(loan.is_over(now_ms) for loan in self._loans)

    def end(self) -> None:
        """Use none of them any more."""
        for loan in self._loans:
            self._end(loan)
        self._loans.clear()

    def give_back(self, group: Group) -> None:
        """In a stage of the log: what is left of loans that are over, where nothing of them is undecided."""
        state = self._manager.state
        self._know(state)
        now_ms = self._clock.monotonic_ms()
        for loan in [loan for loan in self._loans if loan.is_over(now_ms)]:
            self._loans.remove(loan)
            self._end(loan)
        undecided = []
        for loan in self.ended:
            made = () if loan.rest is None else state.loans.give_back(self._manager.member, loan.rest.first).edits
            self._manager.apply(group, made)
            if not made:
                undecided.append(loan)
        self.ended = undecided

    def _know(self, state: TransactionProposals) -> None:
        if state is not self._state:
            self._state, self._loans, self.ended = state, [], []

    def _end(self, loan: LoanInUse) -> None:
        if loan.rest is not None:
            self.ended.append(loan)

    def _ask(self) -> asyncio.Task[None]:
        token = STAGES.set(None)  # it is for many calls
        self._asking = asyncio.get_running_loop().create_task(self._borrow())
        STAGES.reset(token)
        self._asking.add_done_callback(self._asked)
        return self._asking

    def _asked(self, asking: asyncio.Task[None]) -> None:
        self._asking = None
        if not asking.cancelled() and (error := asking.exception()) is not None:
            log.info("no write pointers for one-shot transactions were lent: %s", error)

    async def _borrowed(self) -> Callable[[], None]:
        await asyncio.shield(self._asking or self._ask())
        return _nothing_to_release

    async def _borrow(self) -> None:
        asked_ms = self._clock.monotonic_ms()
        state, lent = await self._manager.run(self._lend)
        if state is self._manager.state:
            self._know(state)
            self._loans.append(LoanInUse(lent.first, lent.last, asked_ms))

    def _lend(self, group: Group) -> tuple[TransactionProposals, edits.Lent]:
        state = self._manager.state
        made = state.loans.lend(self._manager.member, state.last_pointer, group.now_ms).edits
        if not made:
            raise BusyError(
                f"one-shot transactions of {OPEN_LOANS_MAX} loans of write pointers wait to be decided",
                hint="send the same call again after Retry-After",
            )
        self._manager.apply(group, made)
        (lent,) = made
        assert isinstance(lent, edits.Lent), "a loan is lent"
        return state, lent


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


def _stretches(pointers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The ascending pointers as first and last ones of what has no gap: those of two loans are two."""
    first = before = pointers[0]
    for pointer in pointers[1:]:
        if pointer != before + 1:
            yield first, before
            first = pointer
        before = pointer
    yield first, before


def _given_up_by_recovery() -> CoordinatorUnavailableError:
    return CoordinatorUnavailableError(
        "the log of transactions failed before this one was decided, so nobody will see it",
        hint="send the same call again: it is carried out anew",
    )


def _tell_all(one_shots: Sequence[_OneShot], answers: Sequence[Answer]) -> None:
    for each, answer in zip(one_shots, answers, strict=True):
        tell(each.told, answer)


def _tell_each(one_shots: Sequence[_OneShot], error: BaseException) -> None:
    for each in one_shots:
        tell(each.told, error)


def _heard(_: object) -> None:
    """The clients heard of the write that failed."""


def _nothing_to_release() -> None:
    """A loan stays until it is over."""
