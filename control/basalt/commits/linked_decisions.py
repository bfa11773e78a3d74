"""One-shot transactions away from the coordinator: pointers and outcomes come over the link, one call for all that one group placed.

A link keeps the order of what is asked, and what it loses, it loses for good. So an owner that gets no answer to a decision, or whose link
breaks, uses none of the loans that it had, and has the coordinator end them: behind all that it asked before. From then on each of
these is decided, and the log says how, which this server follows. Its readers stop at their rows until then; who waits for an answer is told that
nobody knows if it takes too long, and learns the outcome by the same request id.

The other side, `DecisionsForMembers`, decides about nothing that is of no loan of the asking member: what comes late does no harm.
docs/decisions/0074-one-shots-away-from-the-coordinator.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from basalt.cluster.links.frames import CallKind, Kind
from basalt.cluster.links.link import Handlers, Link
from basalt.commits.commit_stage import Asking
from basalt.commits.one_shot_decisions import Answer, Lent, OneShotDecisions, Settled, UnderWay, given_up
from basalt.errors import BasaltError, BusyError, CoordinatorUnavailableError, UnavailableError, UnknownOutcomeError
from basalt.runtime.group_commit import Group, Waiter, tell
from basalt.runtime.write_lanes import LOG_LATE_MS_MAX
from basalt.transactions.manager import TransactionManager
from basalt.transactions.protocol import (
    DecideOneShots,
    GiveBack,
    GivenBack,
    Lend,
    LentPointers,
    OneShotsDecided,
)
from basalt.transactions.rules.loans import LoanInUse, OneShotInFlight
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import Kind as TransactionKind
from basalt.transactions.rules.transaction import State
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.clock import STAGES
from basalt_engine.snapshot import POINTERS_PER_MS, Visibility

ASK_MS_MAX = LOG_LATE_MS_MAX + 500  # for the coordinator to answer: its log is late after 4 s, and then it says so
LEARN_MS_MAX = (
    4_000  # from a lost answer on, for the log to say what became of it, before a client is told that nobody knows
)
AGAIN_MS = 250  # between two tries to learn that: a broken link is dialed again after as long

LEND: CallKind[Lend, LentPointers] = CallKind(Kind.LEND, "lend", Lend, LentPointers)
DECIDE: CallKind[DecideOneShots, OneShotsDecided] = CallKind(
    Kind.DECIDE_ONE_SHOTS, "decide one-shots", DecideOneShots, OneShotsDecided
)
GIVE_BACK: CallKind[GiveBack, GivenBack] = CallKind(Kind.GIVE_BACK, "give back", GiveBack, GivenBack)

log = logging.getLogger("basalt.transactions")

Q = TypeVar("Q")
A = TypeVar("A")


class _Basis:
    """A link to the coordinator, as long as all that was asked over it got its answer. `has_ended`: loans of before are over."""

    __slots__ = ("has_ended", "link")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.has_ended = False


class LinkedDecisions:
    """The coordinator, as an owner in another server has it. `link_of` is the link to it; None: there is none now."""

    def __init__(self, manager: TransactionManager, link_of: Callable[[], Link | None]) -> None:
        self._manager = manager
        self.link_of = link_of
        self._basis: _Basis | None = None
        self._had_loans = False  # of a basis that is over, perhaps: they are not ended yet
        self._asking: set[asyncio.Task[None]] = set()
        self._unknown: list[tuple[Sequence[UnderWay], Settled]] = []  # of which no answer came
        self._learning: asyncio.Task[None] | None = None
        self.lost_total = 0  # decisions without an answer

    @property
    def basis(self) -> _Basis:
        """The ground of all loans of now: a link. `CoordinatorUnavailableError` without a link."""
        link = self.link_of()
        if link is None or not link.is_open:
            raise CoordinatorUnavailableError(
                "this server has no link to the one that decides transactions; nothing was done",
                hint="send the same call again after Retry-After; publishing without a transaction goes on",
            )
        if self._basis is None or self._basis.link is not link:
            self._basis = _Basis(link)
        return self._basis

    def basis_in(self, _state: TransactionProposals) -> _Basis:
        """The same: it is not the log's."""
        return self.basis

    @property
    def has_left_loans(self) -> bool:
        """True while the coordinator may hold loans that are not used any more, for a link broke."""
        return self._had_loans and (self._basis is None or not self._basis.has_ended or not self._basis.link.is_open)

    def check_taking(self) -> None:
        """Refuse a call that nobody could decide now: its rows would hold up readers."""
        _ = self.basis

    async def lend(self) -> Lent:
        """Borrow pointers. Over a new link the loans of before end."""
        basis = self.basis
        ends, basis.has_ended, self._had_loans = not basis.has_ended, True, True
        try:
            lent = await self._ask(basis, LEND, Lend(ends))
        except UnknownOutcomeError as error:
            raise CoordinatorUnavailableError(
                f"no write pointers were lent: {error.message}; nothing was done",
                hint="send the same call again after Retry-After",
            ) from error
        return Lent(basis, lent.first, lent.last)

    def decide(self, one_shots: Sequence[UnderWay], settled: Settled, over: list[LoanInUse]) -> None:
        """Have those decided that one group placed. Loans that are `over` are given back by themselves."""
        self._start(self._decide(one_shots, settled, written=True))

    def give_up(self, one_shots: Sequence[UnderWay], settled: Settled) -> None:
        """Their rows are not there, or may not be: have their pointers given up. Their clients have heard."""
        self._start(self._decide(one_shots, settled, written=False))

    async def give_back(self, over: Callable[[], list[LoanInUse]], *, must_run: bool = False) -> None:
        """Give back these loans, where nothing of them is undecided, and have those ended that were left when a link broke."""
        link = self.link_of()
        if link is None or not link.is_open:
            return  # they end with the membership, if no link comes
        basis = self.basis
        if self.has_left_loans:
            await self._end(basis)
        rests = {loan.rest: loan for loan in over() if loan.rest is not None}
        if not rests:
            return
        given = await self._ask(basis, GIVE_BACK, GiveBack(tuple(rests)))
        loans = over()
        for rest, loan in rests.items():
            if rest.first not in given.undecided and loan in loans:
                loans.remove(loan)

    async def finish(self) -> None:
        """Before a stop: return once all that was asked is answered, or its answer is lost. What is unknown by then stays so."""
        await self._answered_or_lost()
        if self._learning is not None:
            self._learning.cancel()
            for one_shots, _ in self._unknown:
                _tell_unknown(one_shots)

    async def _answered_or_lost(self) -> None:
        while self._asking:
            await asyncio.wait(self._asking)

    async def until_decided(self) -> Callable[[], None]:
        """Return once those that are in flight now are decided; refused while nobody can tell about some."""
        await self._manager.lanes.topics.passed()
        await self._answered_or_lost()
        if self._learning is not None:
            await asyncio.wait((self._learning,), timeout=LEARN_MS_MAX / 1_000)
        if self._unknown:
            raise CoordinatorUnavailableError(
                "the same request may have been carried out, which the log of transactions has not told yet",
                hint="send the same call again after Retry-After",
            )
        return _nothing_to_release

    async def answered(self, asked: Asking) -> Outcome | None:
        """The outcome of an earlier one with the same request id."""
        if self._manager.state.in_flight.has_request(asked.request_id):
            await self.until_decided()
        await self._manager.ask()
        state = self._manager.state
        first = state.first_one_shot(asked.request_id, asked.owner)
        return None if first is None else state.outcome(first)

    def tell_first(self, first: int, told: Waiter[Outcome]) -> None:
        """Answer with the outcome of the same request, which the log has."""
        try:
            tell(told, self._manager.state.outcome(first))
        except BasaltError as error:  # it is forgotten
            tell(told, error)

    # Asking.

    def _start(self, asking: Awaitable[None]) -> None:
        token = STAGES.set(None)  # it is no single call's
        task = asyncio.ensure_future(asking)
        STAGES.reset(token)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, basis: _Basis, kind: CallKind[Q, A], question: Q) -> A:
        """Ask over the link. Whatever is not answered ends the basis: nobody knows what of it was done."""
        try:
            return await basis.link.call(kind, question, ASK_MS_MAX)
        except BusyError:
            raise  # it was not sent, or done
        except BaseException:
            self._over(basis)
            raise

    def _over(self, basis: _Basis) -> None:
        if self._basis is basis:
            self._basis = None

    async def _end(self, basis: _Basis) -> None:
        basis.has_ended = True
        await self._ask(basis, GIVE_BACK, GiveBack(ends=True))

    async def _decide(self, one_shots: Sequence[UnderWay], settled: Settled, *, written: bool) -> None:
        began_s = asyncio.get_running_loop().time()
        question = DecideOneShots(tuple([each.placed for each in one_shots]), written)
        try:
            basis = self.basis  # after a break it is another one: then they are of no loan, or still of one
            decided = await self._ask(basis, DECIDE, question)
        except BasaltError as error:
            log.info("nobody answered what became of %d one-shot transactions: %s", len(one_shots), error)
            self._lost(one_shots, settled, began_s)
            return
        answers = _answers(one_shots, decided)
        if written and any(isinstance(answer, CoordinatorUnavailableError) for answer in answers):
            self._over(basis)  # the coordinator knows no such loan
        self._tell(one_shots, answers, settled)

    @staticmethod
    def _tell(one_shots: Sequence[UnderWay], answers: Sequence[Answer], settled: Settled) -> None:
        settled(one_shots, answers)
        for each, answer in zip(one_shots, answers, strict=True):
            tell(each.told, answer)

    # Answers that were lost.

    def _lost(self, one_shots: Sequence[UnderWay], settled: Settled, began_s: float) -> None:
        self.lost_total += 1
        if self._basis is one_shots[0].basis:
            self._basis = None
        self._unknown.append((one_shots, settled))
        loop = asyncio.get_running_loop()
        loop.call_at(began_s + LEARN_MS_MAX / 1_000, partial(_tell_unknown, one_shots))
        if self._learning is None:
            self._learning = loop.create_task(self._learn())

    async def _learn(self) -> None:
        """Have it decided what is unknown, and read in the log how."""
        try:
            while self._unknown:
                lost = list(self._unknown)
                try:
                    basis = self.basis
                    if not basis.has_ended:
                        await self._end(basis)
                    await self._manager.ask()
                    self._unknown = [each for each in self._unknown if each not in lost or not self._is_learned(*each)]
                except BasaltError as error:
                    log.debug("what became of one-shot transactions is not known yet: %s", error)
                if self._unknown:
                    await asyncio.sleep(AGAIN_MS / 1_000)
        finally:
            self._learning = None

    def _is_learned(self, one_shots: Sequence[UnderWay], settled: Settled) -> bool:
        view = self._manager.state.view()
        if any(view.judge(each.placed.id) is Visibility.HOLD for each in one_shots):
            return False
        self._tell(one_shots, [self._answer_of(each) for each in one_shots], settled)
        return True

    def _answer_of(self, each: UnderWay) -> Answer:
        """The answer to one that is decided, by the log: its outcome, or that of the same request, or that it was given up."""
        state = self._manager.state
        if state.view().judge(each.placed.id) is Visibility.VISIBLE:
            at_ms = each.placed.id // POINTERS_PER_MS  # or some seconds later, where that is forgotten
            return state.outcomes.get(each.placed.id) or _committed(each.placed, at_ms)
        try:
            first = state.first_one_shot(each.placed.request_id)
        except BasaltError as refusal:
            return refusal
        return given_up() if first is None else state.outcome(first)


class DecisionsForMembers:
    """The coordinator, to owners in other servers. `may_borrow`: whether a member's membership lasts."""

    def __init__(
        self, manager: TransactionManager, decisions: OneShotDecisions, may_borrow: Callable[[str], bool]
    ) -> None:
        self._manager = manager
        self._decisions = decisions
        self._may_borrow = may_borrow

    def answer_over(self, handlers: Handlers) -> None:
        """Answer the calls of members over links."""
        handlers.add(LEND, self.lend)
        handlers.add(DECIDE, self.decide)
        handlers.add(GIVE_BACK, self.give_back)

    async def lend(self, member: str, asked: Lend) -> LentPointers:
        """Lend pointers to a member."""
        if not self._may_borrow(member):
            raise UnavailableError(f"the membership of {member} is over; nothing was done")
        return await self._manager.run(partial(self._decisions.lend_to, member, asked.ends))

    def decide(self, member: str, asked: DecideOneShots) -> asyncio.Future[OneShotsDecided]:
        """Decide about all that a member placed in one group. It runs though the link breaks: what was asked has an order."""
        told: asyncio.Future[OneShotsDecided] = asyncio.get_running_loop().create_future()
        stage = partial(self._decisions.decide_all, member, asked)
        self._manager.lanes.log.submit(stage, told, must_run=True)
        return told

    async def give_back(self, member: str, asked: GiveBack) -> GivenBack:
        """Take back what a member did not use; with `ends`, all its loans are over."""

        def stage(group: Group) -> GivenBack:
            if asked.ends:
                self._decisions.end(group, (member,))
            return GivenBack(tuple(self._decisions.give_back(group, member, asked.rests)))

        return await self._manager.run(stage)


def _answers(one_shots: Sequence[UnderWay], decided: OneShotsDecided) -> list[Answer]:
    answers: list[Answer] = [_committed(each.placed, decided.at_ms) for each in one_shots]
    for other in decided.others:
        answers[other.number] = other.first or (given_up() if other.error is None else other.error.error())
    return answers


def _committed(placed: OneShotInFlight, at_ms: int) -> Outcome:
    return Outcome(
        placed.id,
        placed.id,
        State.COMMITTED,
        TransactionKind.SHORT,
        placed.owner,
        at_ms,
        principal=placed.principal,
    )


def _tell_unknown(one_shots: Sequence[UnderWay]) -> None:
    error = UnknownOutcomeError(
        "the server that decides transactions has not answered; the call took effect as a whole or not at all",
        hint="ask what became of it, or repeat it under the same request id",
    )
    for each in one_shots:
        tell(each.told, error)


def _nothing_to_release() -> None:
    """Nothing is held while one waits for a decision."""
