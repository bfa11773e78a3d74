"""The loans of write pointers that a server has for its one-shot transactions: its own side of transactions/rules/loans.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from basalt.commits.linked_decisions import LinkedDecisions
from basalt.commits.one_shot_decisions import OwnDecisions
from basalt.runtime.group_commit import NotLoadedError
from basalt.transactions.rules.loans import LoanInUse
from basalt_engine.clock import STAGES, Clock

log = logging.getLogger("basalt.transactions")


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
