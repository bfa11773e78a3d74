"""Carries one-shot transactions through, where rows and log are not one batch: the owner's part.

    its pointer is of a loan     its rows are durable     the log has its outcome

The loan is the intent of all its one-shot transactions (transactions/rules/loans.py): the log has it before a row is written under one
of its pointers. Each lane of topics has loans of its own, takes pointers and writes rows; those of one group are decided at once, in the
order of their pointers. Until then they are in flight, and readers stop at their rows.
One with topics in several lanes is *spread*: each lane writes the rows of its topics under one pointer, which the first of them takes. The
lanes end in any order, so the spread ones have loans of their own, and are decided once all parts are there of them and of those before.
One that waits for a region that does not answer holds up those behind it that are spread, too, and no others.

The coordinator decides: in this process, where it leads, or over its link (`commits.linked_decisions`). When a write of rows fails, nobody
knows which of them are there: the pointers are given up, a run on the invalid list. docs/decisions/0061-loans-of-write-pointers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby

from basalt.commits.commit_stage import Asking, CommitStage
from basalt.commits.linked_decisions import LinkedDecisions
from basalt.commits.one_shot_decisions import Answer, OneShotDecisions, OwnDecisions, Staged, UnderWay, given_up
from basalt.commits.owning.owner import Owner
from basalt.commits.owning.topic_plan import TopicPlan
from basalt.groups.groups import Groups
from basalt.messaging.log.topic_log import TopicLog
from basalt.runtime.group_commit import Group, GroupCommit, NotLoadedError, Waiter, tell
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
        self._lanes = manager.lanes
        self._clock = clock
        # A loan is settled from below, so whatever takes pointers of one ends in order: a lane does.
        self._loans: dict[GroupCommit, Borrowing] = {
            lane: Borrowing(self.coordinator, clock) for lane in manager.lanes.topics.each
        }
        self.spread = SpreadOneShots(self, Borrowing(self.coordinator, clock))

    def carry(self, plan: TopicPlan, asked: Asking, told: Waiter[Outcome], staged: Staged | None = None) -> None:
        """Place the plan's rows and decide. One without rows is decided at once. `staged` is called in the stage that decides."""
        if not plan.publications and not plan.markers:
            self._lanes.log.submit(self.stages.one_shot_of(plan, asked, staged), told)
            return
        self.coordinator.check_taking()
        parts = plan.by_lane(self._lanes.topics)
        began_ms = self._clock.monotonic_ms()
        if len(parts) > 1:
            self.spread.place(plan, parts, asked, told, staged, began_ms)
            return
        (lane,) = parts
        one_shot = OneShot(self, self._loans[lane], plan, asked, told, staged, began_ms)
        lane.submit(one_shot.place, one_shot, plan.payload_bytes)

    async def answered(self, asked: Asking) -> Outcome | None:
        """The outcome of an earlier one with the same request id."""
        return await self.coordinator.answered(asked)

    def has_idle_loan(self) -> bool:
        """True while `give_back` may have something to do."""
        return not self.manager.atomic and (
            any(loans.has_idle() for loans in self.borrowing) or self.coordinator.has_left_loans
        )

    @property
    def borrowing(self) -> list[Borrowing]:
        """The loans of each lane, and those of what is spread."""
        return [*self._loans.values(), self.spread.loans]

    async def give_back(self) -> None:
        """Give back loans that are not used any more: what is in progress holds up what is decided."""
        if self.has_idle_loan():
            await self._give_back()

    async def _give_back(self, *, must_run: bool = False) -> None:
        for loans in self.borrowing:
            if loans.has_idle() or self.coordinator.has_left_loans:
                await self.coordinator.give_back(loans.over, must_run=must_run)

    async def give_back_all(self) -> None:
        """The server stops, and takes no more one-shot transactions: give back what it has, behind what is to be decided."""
        await self.coordinator.finish()
        for loans in self.borrowing:
            loans.end()
        if self.has_idle_loan():
            await self._give_back(must_run=True)

    # Steps of all that were placed by one group.

    def decide(self, one_shots: Sequence[UnderWay], loans: Borrowing) -> None:
        """Their rows are durable: have them decided. `loans`: from which they all have their pointers."""
        self.coordinator.decide(one_shots, self._settled, loans.ended)

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


class OneShot(UnderWay):
    """A one-shot transaction: the stage that adds its rows, and who waits for that, whatever became of the client."""

    __slots__ = ("_loans", "_one_shots")

    def __init__(
        self, one_shots: OneShots, loans: Borrowing, plan: TopicPlan, asked: Asking, told: Waiter[Outcome], staged: Staged | None,
        started_ms: float,
    ) -> None:  # fmt: skip
        self._one_shots = one_shots
        self._loans = loans
        self.plan = plan
        self.asked = asked
        self.told = told
        self.staged = staged
        self.started_ms = started_ms

    def place(self, group: Group) -> int | None:
        """In a stage of a lane of topics: add the rows. Returns the transaction of the same request, where there was one before."""
        first = self.take(group, self.plan)
        if first is None:
            together: _PlacedTogether = group.part(self._loans, partial(_PlacedTogether, self._one_shots, self._loans))
            together.one_shots.append(self)
        return first

    def take(self, group: Group, placed: TopicPlan) -> int | None:
        """In the same stage: check all of the plan, take a pointer, and add the rows of this part of the plan."""
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
        loan = self._loans.in_use(basis)
        one_shots.owner.check(plan, None)
        if plan.acknowledgements:
            one_shots.groups.check(plan.acknowledgements, None, group.now_ms, loan.next)
        one_shots.owner.place_one_shot(group, placed, loan.next)
        self.basis, self.in_flight = basis, in_flight
        self.placed = OneShotInFlight(loan.take(), owner, principal, request_id)
        in_flight.add(self.placed)
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

    def __init__(self, one_shots: OneShots, loans: Borrowing) -> None:
        self._carrier = one_shots
        self._loans = loans
        self.one_shots: list[UnderWay] = []

    def closing(self, group: Group) -> None:
        """Their rows are in the group already."""

    def durable(self) -> None:
        self._carrier.decide(self.one_shots, self._loans)

    def failed(self) -> None:
        self._carrier.give_up(self.one_shots)


class SpreadOneShots:
    """The one-shot transactions with topics in several lanes that are under way in one server."""

    def __init__(self, one_shots: OneShots, loans: Borrowing) -> None:
        self.one_shots = one_shots
        self.loans = loans
        self._placed: deque[_Spread] = deque()  # in the order of their pointers

    def place(
        self, plan: TopicPlan, parts: Mapping[GroupCommit, TopicPlan], asked: Asking, told: Waiter[Outcome], staged: Staged | None,
        began_ms: float,
    ) -> None:  # fmt: skip
        """Place the rows in all of these lanes, and decide."""
        (lane, first), *others = parts.items()
        spread = _Spread(self, first, others, plan, asked, told, staged, began_ms)
        lane.submit(spread.place, spread, first.payload_bytes)

    def took_pointer(self, spread: _Spread) -> None:
        """In the stage that took it."""
        self._placed.append(spread)

    def decide(self) -> None:
        """Decide those of which, and of all before which, it is known what became of their rows."""
        known: list[_Spread] = []
        while self._placed and not self._placed[0].left:
            known.append(self._placed.popleft())
        for (_, has_failed), some in groupby(known, lambda each: (each.basis, each.has_failed)):
            if has_failed:
                self.one_shots.give_up(list(some))
            else:
                self.one_shots.decide(list(some), self.loans)


class _Spread(OneShot):
    """One of them: the stage and the waiter of its first part, which hands the others to their lanes."""

    __slots__ = ("_first", "_others", "_spread", "has_failed", "left")

    def __init__(
        self, spread: SpreadOneShots, first: TopicPlan, others: Sequence[tuple[GroupCommit, TopicPlan]], plan: TopicPlan, asked: Asking,
        told: Waiter[Outcome], staged: Staged | None, began_ms: float,
    ) -> None:  # fmt: skip
        super().__init__(spread.one_shots, spread.loans, plan, asked, told, staged, began_ms)
        self._spread = spread
        self._first = first
        self._others = others
        self.left = 0  # parts of which it is not known yet what became of them
        self.has_failed = False

    def place(self, group: Group) -> int | None:
        first = self.take(group, self._first)
        if first is None:
            self.left = 1 + len(self._others)
            self._spread.took_pointer(self)
            for lane, part in self._others:  # this stage has succeeded, and is not undone any more
                lane.submit(partial(self._place_part, part), _Part(self), part.payload_bytes, must_run=True)
        return first

    def _place_part(self, part: TopicPlan, group: Group) -> None:
        one_shots = self._one_shots
        if one_shots.coordinator.basis_in(one_shots.manager.state) is not self.basis:
            raise given_up()  # its pointer is, or will be, on the invalid list, and may be forgotten there if no row is found
        one_shots.owner.check(part, None)
        one_shots.owner.place_one_shot(group, part, self.placed.id)

    def part_ended(self, error: BaseException | None) -> None:
        """The rows of a part are durable, or not all there: then the client hears why, and what there is of it is given up."""
        self.left -= 1
        if error is not None:
            self.has_failed = True
            tell(self.told, error)
        if not self.left:
            self._spread.decide()

    # As the waiter of the first part.

    def set_result(self, first: int | None, /) -> None:
        if first is None:
            self.part_ended(None)
        else:
            super().set_result(first)

    def set_exception(self, exception: BaseException, /) -> None:
        if self.left:
            self.part_ended(exception)
        else:  # it took no pointer
            super().set_exception(exception)


class _Part:
    """Waits for another part. It is to be taken, whatever became of the client: a pointer was."""

    def __init__(self, spread: _Spread) -> None:
        self._of = spread

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return False

    def set_result(self, _: None, /) -> None:
        self._of.part_ended(None)

    def set_exception(self, exception: BaseException, /) -> None:
        self._of.part_ended(exception)


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
