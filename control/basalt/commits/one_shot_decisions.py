"""The coordinator's part of one-shot transactions: lends write pointers, and decides about those whose rows are durable.

A member's one-shot transactions are decided in the order of their pointers, each once, and only under a loan of that member that has not
ended: what comes late, from a member that is over or over a link that broke, finds no loan and decides nothing.
`OwnDecisions` is the coordinator as the leader's own owner has it; `commits.linked_decisions` is the same over a link.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from basalt.cluster.links.frames import ErrorBody
from basalt.commits.commit_stage import Asking, CommitStage
from basalt.commits.owning.topic_plan import NOTHING, TopicPlan
from basalt.errors import BusyError, CoordinatorUnavailableError
from basalt.groups.groups import Groups
from basalt.runtime.group_commit import Group, Waiter, tell
from basalt.transactions.manager import TransactionManager
from basalt.transactions.protocol import DecideOneShots, LentPointers, OneShotsDecided, OtherAnswer
from basalt.transactions.rules import edits
from basalt.transactions.rules.loans import OPEN_LOANS_MAX, LoanInUse, OneShotInFlight, OneShotsInFlight
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.clock import STAGES
from basalt_engine.errors import BasaltError
from basalt_engine.snapshot import PointerRuns

Answer = Outcome | BasaltError  # a refusal that is durable
Staged = Callable[[Group], None]


class UnderWay:
    """A one-shot transaction whose rows are placed, and who waits for its outcome. `basis`: see `Lent`."""

    __slots__ = ("asked", "basis", "in_flight", "placed", "plan", "staged", "started_ms", "told")

    plan: TopicPlan
    asked: Asking
    told: Waiter[Outcome]
    staged: Staged | None
    started_ms: float
    basis: object
    placed: OneShotInFlight
    in_flight: OneShotsInFlight  # in which it is kept


Settled = Callable[[Sequence[UnderWay], Sequence[Answer]], None]


class Lent(NamedTuple):
    """A loan, and what it rests on: once the coordinator's `basis` is another, no pointer of it is used any more."""

    basis: object
    first: int
    last: int


class OneShotDecisions:
    """The stages of the log by which one-shot transactions get pointers and outcomes."""

    def __init__(self, manager: TransactionManager, stages: CommitStage, groups: Groups) -> None:
        self._manager = manager
        self._stages = stages
        self._groups = groups

    def lend(self, member: str, group: Group) -> edits.Lent:
        """Lend pointers to a member; `BusyError` while it has too many that are not decided."""
        state = self._manager.state
        made = state.loans.lend(member, state.last_pointer, group.now_ms).edits
        if not made:
            raise BusyError(
                f"one-shot transactions of {OPEN_LOANS_MAX} loans of write pointers wait to be decided",
                hint="send the same call again after Retry-After",
            )
        self._manager.apply(group, made)
        (lent,) = made
        assert isinstance(lent, edits.Lent), "a loan is lent"
        return lent

    def decide(self, group: Group, placed: OneShotInFlight, plan: TopicPlan = NOTHING) -> Answer:
        """Commit one whose rows are durable, under the lowest pointer of a loan that is not decided; or give it up, and say why."""
        state = self._manager.state
        try:
            if placed.request_id is not None:
                first = state.first_one_shot(placed.request_id)
                if first is not None:  # since its rows were placed, the request was carried out elsewhere
                    self.give_up(group, placed.id, placed.id)
                    return state.outcome(first)
            if plan.acknowledgements:  # likewise, somebody else may have acknowledged
                self._groups.check(plan.acknowledgements, None, group.now_ms, placed.id)
        except BasaltError as refusal:
            self.give_up(group, placed.id, placed.id)
            return refusal
        made = state.committed_one_shot(placed.id, group.now_ms, placed.owner, placed.request_id, placed.principal)
        self._manager.apply(group, made)
        if plan.acknowledgements:
            self._stages.acknowledge(group, plan, placed.id)
        return state.outcome(placed.id)

    def give_up(self, group: Group, first: int, last: int) -> None:
        """Put these pointers of a loan on the invalid list."""
        self._manager.apply(group, (edits.GivenUp(first, last),))

    def give_back(self, group: Group, member: str, rests: Collection[tuple[int, int]]) -> list[int]:
        """Take back what is left of loans. Returns the first pointers of those of which something before is not decided yet."""
        loans, undecided = self._manager.state.loans, []
        for first, last in rests:
            made = loans.give_back(member, first).edits
            self._manager.apply(group, made)
            loan = None if made else loans.find(last)
            if loan is not None and loan.member == member:
                undecided.append(first)
        return undecided

    def end(self, group: Group, members: Collection[str]) -> None:
        """These members have no loans any more: what they leave undecided goes to the invalid list."""
        self._manager.apply(group, self._manager.state.loans.end(members).edits)

    # For members over their links.

    def lend_to(self, member: str, ends: bool, group: Group) -> LentPointers:
        """Lend pointers; with `ends` the member's loans of before are over."""
        if ends:
            self.end(group, (member,))
        lent = self.lend(member, group)
        return LentPointers(lent.first, lent.last)

    def decide_all(self, member: str, asked: DecideOneShots, group: Group) -> OneShotsDecided:
        """Decide about all that a member placed in one group."""
        others = []
        for number, placed in enumerate(asked.placed):
            answer = self._decide_of(member, placed, asked.written, group)
            if isinstance(answer, BasaltError):
                others.append(OtherAnswer(number, error=ErrorBody.of(answer)))
            elif answer.id != placed.id:
                others.append(OtherAnswer(number, first=answer))
        return OneShotsDecided(group.now_ms, tuple(others))

    def _decide_of(self, member: str, placed: OneShotInFlight, written: bool, group: Group) -> Answer:
        loan = self._manager.state.loans.find(placed.id)
        if loan is None or loan.member != member:
            return given_up()
        if loan.undecided < placed.id:  # frames of a link come in order: nothing will come of these
            self.give_up(group, loan.undecided, placed.id - 1)
        if written:
            return self.decide(group, placed)
        self.give_up(group, placed.id, placed.id)
        return given_up()


class OwnDecisions:
    """The coordinator, to the owner in the same process. Loans rest on the working state, which ends with a write that failed."""

    def __init__(self, manager: TransactionManager, stages: CommitStage, decisions: OneShotDecisions) -> None:
        self._manager = manager
        self._lanes = manager.lanes
        self._stages = stages
        self._decisions = decisions

    has_left_loans = False

    @property
    def basis(self) -> TransactionProposals:
        """The state under which pointers are lent now."""
        return self._manager.state

    def basis_in(self, state: TransactionProposals) -> TransactionProposals:
        """The same, for who has the state."""
        return state

    def check_taking(self) -> None:
        """Refuse a call whose rows would hold up readers until a late write of the log has ended."""
        self._lanes.log.refuse_if_late()

    async def lend(self) -> Lent:
        """Borrow pointers."""

        def stage(group: Group) -> Lent:
            lent = self._decisions.lend(self._manager.member, group)
            return Lent(self._manager.state, lent.first, lent.last)

        return await self._manager.run(stage)

    def decide(self, one_shots: Sequence[UnderWay], settled: Settled, over: list[LoanInUse]) -> None:
        """Submit the stage that decides about those that one group placed; `over` are the loans to give back with them."""
        waiter = _Decided(partial(_tell_all, one_shots), partial(_tell_each, one_shots))
        self._submit(partial(self._decide_all, one_shots, settled, over), waiter)

    def give_up(self, one_shots: Sequence[UnderWay], settled: Settled) -> None:
        """Their rows are not there, or may not be: submit the stage that gives up their pointers. Their clients have heard."""
        self._submit(partial(self._give_up_all, one_shots, settled), _Decided(_heard, _heard))

    async def give_back(self, over: Callable[[], list[LoanInUse]], *, must_run: bool = False) -> None:
        """Give back these loans, where nothing of them is undecided."""
        if self._manager.is_known and not (must_run and self._lanes.log.is_late):
            await self._lanes.log.run(lambda group: self._give_back(over(), group), must_run=must_run)

    async def finish(self) -> None:
        """Before a stop, once the lanes are drained: all is decided."""

    async def until_decided(self) -> Callable[[], None]:
        """Return once those that are in flight now are decided."""
        return await self._manager.until_decided()

    async def answered(self, asked: Asking) -> Outcome | None:
        """The outcome of an earlier one with the same request id."""
        return await self._manager.run(lambda group: self._stages.answered_one_shot(group, asked))

    def tell_first(self, first: int, told: Waiter[Outcome]) -> None:
        """Answer with the outcome of the same request, when the log has it."""
        self._lanes.log.submit(lambda _: self._manager.state.outcome(first), told, must_run=True)

    # Stages of the log.

    def _submit(self, stage: Callable[[Group], list[Answer]], waiter: _Decided) -> None:
        token = STAGES.set(None)  # it is no single call's
        self._lanes.log.submit(stage, waiter, must_run=True)
        STAGES.reset(token)

    def _decide_all(
        self, one_shots: Sequence[UnderWay], settled: Settled, over: list[LoanInUse], group: Group
    ) -> list[Answer]:
        if one_shots[0].basis is not self._manager.state:
            return [given_up() for _ in one_shots]
        answers = []
        for each in one_shots:
            answer = self._decisions.decide(group, each.placed, each.plan)
            if each.staged is not None and isinstance(answer, Outcome) and answer.id == each.placed.id:
                each.staged(group)
            answers.append(answer)
        if over:
            self._give_back(over, group)
        group.when_durable(partial(settled, one_shots, answers))
        return answers

    def _give_up_all(self, one_shots: Sequence[UnderWay], settled: Settled, group: Group) -> list[Answer]:
        if one_shots[0].basis is self._manager.state:
            for first, last in PointerRuns((each.placed.id, each.placed.id) for each in one_shots):
                self._decisions.give_up(group, first, last)
            group.when_durable(partial(settled, one_shots, ()))
        return []

    def _give_back(self, loans: list[LoanInUse], group: Group) -> None:
        for loan in list(loans):
            rest = loan.rest
            if rest is None or not self._decisions.give_back(group, self._manager.member, (rest,)):
                loans.remove(loan)


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


def given_up() -> CoordinatorUnavailableError:
    """The answer to a one-shot transaction that was not decided in time."""
    return CoordinatorUnavailableError(
        "the log of transactions failed before this one was decided, so nobody will see it",
        hint="send the same call again: it is carried out anew",
    )


def _tell_all(one_shots: Sequence[UnderWay], answers: Sequence[Answer]) -> None:
    for each, answer in zip(one_shots, answers, strict=True):
        tell(each.told, answer)


def _tell_each(one_shots: Sequence[UnderWay], error: BaseException) -> None:
    for each in one_shots:
        tell(each.told, error)


def _heard(_: object) -> None:
    """The clients heard of the write that failed."""
