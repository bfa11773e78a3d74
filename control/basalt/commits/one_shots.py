"""Carries one-shot transactions through, where rows and log are not one batch: the owner's part.

    its pointer is of a loan     its rows are durable     the log has its outcome

The loan is the intent of all its one-shot transactions (transactions/rules/loans.py): the log has it before a row is written under one
of its pointers. The lane of topics takes pointers and writes rows; those of one group are decided at once, in the
order of their pointers. Until then they are in flight, and readers stop at their rows.

The coordinator decides: in this process, where it leads, or over its link (`commits.linked_decisions`). When a write of rows fails, nobody
knows which of them are there: the pointers are given up, a run on the invalid list. docs/decisions/0061-loans-of-write-pointers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from basalt.commits.commit_stage import Asking, CommitStage
from basalt.commits.linked_decisions import LinkedDecisions
from basalt.commits.one_shot_decisions import Answer, OneShotDecisions, OwnDecisions, Staged, UnderWay
from basalt.commits.owner import Owner, TopicPlan
from basalt.groups.groups import Groups
from basalt.messaging.log.topic_log import TopicLog
from basalt.runtime.group_commit import Group, NotLoadedError, Waiter, tell
from basalt.transactions.manager import TransactionManager
from basalt.transactions.rules.loans import LoanInUse, OneShotInFlight
from basalt.transactions.rules.outcomes import Outcome
from basalt_engine.clock import STAGES, Clock
from basalt_engine.snapshot import Visibility

log = logging.getLogger("basalt.transactions")


class OneShots:
    """The one-shot transactions that are under way in one server. `linked`: another server decides about them."""

    def __init__(
        self, manager: TransactionManager, stages: CommitStage, owner: Owner, groups: Groups, clock: Clock,
        decisions: OneShotDecisions, linked: LinkedDecisions | None = None,
    ) -> None:  # fmt: skip
        self.manager = manager
        self.stages = stages
        self.owner = owner
        self.groups = groups
        self.coordinator: OwnDecisions | LinkedDecisions = linked or OwnDecisions(manager, stages, decisions)
        self.loans = Borrowing(self.coordinator, clock)
        self._lanes = manager.lanes
        self._clock = clock

    def carry(self, plan: TopicPlan, asked: Asking, told: Waiter[Outcome], staged: Staged | None = None) -> None:
        """Place the plan's rows and decide. One without rows is decided at once. `staged` is called in the stage that decides."""
        if not plan.publications and not plan.markers:
            self._lanes.log.submit(self.stages.one_shot_of(plan, asked, staged), told)
            return
        self.coordinator.check_taking()
        one_shot = _OneShot(self, plan, asked, told, staged, self._clock.monotonic_ms())
        self._lanes.topics.submit(one_shot.place, one_shot, plan.payload_bytes)

    async def answered(self, asked: Asking) -> Outcome | None:
        """The outcome of an earlier one with the same request id."""
        return await self.coordinator.answered(asked)

    def has_idle_loan(self) -> bool:
        """True while `give_back` may have something to do."""
        return not self.manager.atomic and (self.loans.has_idle() or self.coordinator.has_left_loans)

    async def give_back(self) -> None:
        """Give back loans that are not used any more: what is in progress holds up what is decided."""
        if self.has_idle_loan():
            await self.coordinator.give_back(self.loans.over)

    async def give_back_all(self) -> None:
        """The server stops, and takes no more one-shot transactions: give back what it has, behind what is to be decided."""
        await self.coordinator.finish()
        self.loans.end()
        if self.has_idle_loan():
            await self.coordinator.give_back(self.loans.over, must_run=True)

    # Steps of all that were placed by one group.

    def decide(self, one_shots: Sequence[UnderWay]) -> None:
        """Their rows are durable: have them decided."""
        self.coordinator.decide(one_shots, self._settled, self.loans.ended)

    def give_up(self, one_shots: Sequence[UnderWay]) -> None:
        """The write of their rows failed, or may have: have their pointers given up."""
        for each in one_shots:
            each.in_flight.failed(each.placed)
        self.coordinator.give_up(one_shots, self._settled)

    def _settled(self, one_shots: Sequence[UnderWay], answers: Sequence[Answer]) -> None:
        """It is durable what became of them: wake the readers that they held up."""
        writers_in: dict[TopicLog, set[int]] = {}
        view = self.manager.current()
        for each in one_shots:
            each.in_flight.remove(each.placed)
            # An answer may overtake the entry of the log, and by the view that is known here it is open until that comes.
            is_known = view.judge(each.placed.id) is not Visibility.HOLD
            for topic_log in each.plan.logs if is_known else ():
                writers_in.setdefault(topic_log, set()).add(each.placed.id)
        for topic_log, writers in writers_in.items():
            topic_log.end_writers(writers)
            topic_log.notify()
        for each, answer in zip(one_shots, answers, strict=False):
            if isinstance(answer, Outcome):
                self.stages.count_commit(each.started_ms)


class _OneShot(UnderWay):
    """A one-shot transaction: the stage that adds its rows, and who waits for that, whatever became of the client."""

    __slots__ = ("_one_shots",)

    def __init__(
        self, one_shots: OneShots, plan: TopicPlan, asked: Asking, told: Waiter[Outcome], staged: Staged | None, started_ms: float
    ) -> None:  # fmt: skip
        self._one_shots = one_shots
        self.plan = plan
        self.asked = asked
        self.told = told
        self.staged = staged
        self.started_ms = started_ms

    def place(self, group: Group) -> int | None:
        """In a stage of the lane of topics: add the rows. Returns the transaction of the same request, where there was one before."""
        owner, request_id, principal = self.asked
        one_shots, plan = self._one_shots, self.plan
        state = one_shots.manager.state
        in_flight = state.in_flight
        if request_id is not None and in_flight.has_request(request_id):
            raise NotLoadedError(one_shots.coordinator.until_decided)
        first = state.first_one_shot(request_id, owner)
        if first is not None:
            return first
        basis = one_shots.coordinator.basis_in(state)
        loan = one_shots.loans.in_use(basis)
        one_shots.owner.check(plan, None)
        if plan.acknowledgements:
            one_shots.groups.check(plan.acknowledgements, None, group.now_ms, loan.next)
        one_shots.owner.place_one_shot(group, plan, loan.next)
        self.basis, self.in_flight = basis, in_flight
        self.placed = OneShotInFlight(loan.take(), owner, principal, request_id)
        in_flight.add(self.placed)
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
        if first is not None:
            self._one_shots.coordinator.tell_first(first, self.told)

    def set_exception(self, exception: BaseException, /) -> None:
        tell(self.told, exception)


class _PlacedTogether:
    """The one-shot transactions of one group."""

    def __init__(self, one_shots: OneShots) -> None:
        self._carrier = one_shots
        self.one_shots: list[UnderWay] = []

    def closing(self, group: Group) -> None:
        """Their rows are in the group already."""

    def durable(self) -> None:
        self._carrier.decide(self.one_shots)

    def failed(self) -> None:
        self._carrier.give_up(self.one_shots)


class Borrowing:
    """The loans of this server: one whose pointers are given out, the next one, and those that are to be given back.

    They end with what they rest on: in the leader the state of transactions under which they were lent, for who reads the log again ends
    them; at another member the link to the coordinator.
    """

    def __init__(self, coordinator: OwnDecisions | LinkedDecisions, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self.basis: object = None
        self._loans: list[LoanInUse] = []  # the first is used, until it is over
        self._asking: asyncio.Task[None] | None = None
        self.ended: list[LoanInUse] = []  # given back once all that was placed under them is decided

    def in_use(self, basis: object) -> LoanInUse:
        """In a stage that needs a pointer: the loan that has the next one. `NotLoadedError` until the log has it."""
        self._know(basis)
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

    def over(self) -> list[LoanInUse]:
        """The loans that are not used any more and are to be given back; whoever does so takes them off the list."""
        self._know(self._coordinator.basis)
        if self._loans:
            now_ms = self._clock.monotonic_ms()
            for loan in [loan for loan in self._loans if loan.is_over(now_ms)]:
                self._loans.remove(loan)
                self._end(loan)
        return self.ended

    def _know(self, basis: object) -> None:
        if basis is not self.basis:
            self.basis, self._loans, self.ended = basis, [], []

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
        lent = await self._coordinator.lend()
        self._know(self._coordinator.basis)
        if lent.basis is self.basis:
            self._loans.append(LoanInUse(lent.first, lent.last, asked_ms))


def _nothing_to_release() -> None:
    """A loan stays until it is over."""
