"""Reads the log, decides what it leaves open, and goes on with roll backs that were interrupted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from basalt.commits.commit_stage import CommitStage
from basalt.commits.owning.owner import Owner
from basalt.errors import CoordinatorUnavailableError
from basalt.runtime.group_commit import Group, NotLoadedError
from basalt.transactions.manager import TransactionManager
from basalt.transactions.protocol import JoinedTransaction, RollBack
from basalt.transactions.rules.transaction import State, Transaction
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.errors import BasaltError, FencedError, RetryError, RowExistsError

KNOWN_WAIT_MS_MAX = 4_000  # how long a call waits for the log to be read: clients hear of it within five seconds
TAKE_OVER_TRIES = 16  # a former leader has one append under way at a time, and is fenced before this one reads

log = logging.getLogger("basalt.transactions")


class Recovery:
    """Reads the manager's state from the log, and drives decided roll backs to their end."""

    def __init__(self, manager: TransactionManager, stages: CommitStage, owner: Owner) -> None:
        self._manager = manager
        self._lanes = manager.lanes
        self._stages = stages
        self._owner = owner
        self._reading: asyncio.Task[None] | None = None  # the attempt that everybody waits for
        manager.recovered_by(self.ensure_known)
        self._driven: dict[int, asyncio.Event] = {}  # roll backs that a call drives right now, set when it is through

    async def ensure_known(self, wait_ms: float | None = KNOWN_WAIT_MS_MAX) -> None:
        """Read the log, if what it holds is unknown: at the start, and after a write that failed.

        `CoordinatorUnavailableError` when it cannot be read, or not in this time (None: however long that is); the attempt goes on.
        """
        if self._manager.is_known:
            return
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_log())
            self._reading.add_done_callback(self._was_read)
        reading = self._reading
        done, _ = await asyncio.wait((reading,), timeout=None if wait_ms is None else wait_ms / 1_000)
        if not done:
            raise _cannot_read(f"the log of transactions has not been read within {wait_ms:.0f} ms")
        try:
            reading.result()
        except (FencedError, RowExistsError):
            raise  # another server leads
        except RetryError as error:
            raise _cannot_read(f"the log of transactions cannot be read: {error.message}") from error

    def _was_read(self, reading: asyncio.Task[None]) -> None:
        self._reading, self._manager.unread_because = None, ""
        if not reading.cancelled() and (error := reading.exception()) is not None:
            self._manager.unread_because = str(error)
            log.warning("the log of transactions could not be read, which will be tried again: %s", error)

    async def _read_log(self) -> None:
        """Know the state again, and lead. While a former leader still adds entries, there is more to read."""
        # Rows that were added by the state that is lost are there, or in doubt, when it is decided what they count.
        await self._lanes.topics.passed(must_run=True)
        for tries_left in reversed(range(TAKE_OVER_TRIES)):
            state = await self._manager.read_log()
            self._owner.recovered(state.last_pointer, state.loans.in_progress)
            await self._owner.decide_doubts()
            committing = [each for each in state.transactions(State.COMMITTING) if each.cannot_roll_back]
            release = await self._owner.hold(list(map(JoinedTransaction.of, committing)))
            try:
                await self._lanes.log.run(partial(self._take_over, state))
                return
            except RowExistsError:
                if not tries_left:
                    raise
            finally:
                release()

    def _take_over(self, state: TransactionProposals, group: Group) -> None:
        """In a stage: lead, and decide what the log leaves open: a commit of which it has no outcome did not happen.

        Nothing is rolled back before this entry has its place: an outcome that is still under way comes too late then. Only leaders
        have loans, and those of all that led before are over, also of this one before it read the log again.
        """
        self._manager.adopt(group, state)
        self._manager.apply(group, state.loans.end({loan.member for loan in state.loans}).edits)
        self._stages.apply(group, state.give_up_begun(group.now_ms).edits)  # whoever carried them on leads no more
        for transaction in state.transactions(State.COMMITTING):
            try:
                self._stages.apply(group, state.give_up(transaction.id, group.now_ms).edits)
            except NotLoadedError:  # an owner of it is away, which holds up nobody else: `Carrier.give_up_uncarried`
                log.warning("the commit of transaction %s is given up later", transaction.id)

    async def drive_all(self) -> BasaltError | None:
        """Go on with all roll backs but those that a call has in hand, which need not hold up the others."""
        unfinished = self._manager.state.unfinished()
        return await self.drive([each for each in unfinished if each.id not in self._driven])

    async def drive(self, unfinished: Iterable[Transaction]) -> BasaltError | None:
        """Finish each roll back; the first error. Where one cannot be rolled back the others are none the worse for it."""
        first: BasaltError | None = None
        for transaction in unfinished:
            if transaction.state is State.COMMITTING:
                continue  # its carrier decides; when the log is read, those that have none are given up
            try:
                await self.roll_back(transaction)
            except BasaltError as error:
                log.warning("transaction %s is not rolled back, which will be tried again: %s", transaction.id, error)
                first = first or error
        return first

    async def drive_one(self, transaction_id: int) -> BasaltError | None:
        """Finish the roll back of this transaction, if there is one to finish."""
        if not self._manager.is_known:
            return None
        found = self._manager.state.find(transaction_id)
        return await self.drive([] if found is None else [found])

    async def roll_back(self, transaction: Transaction) -> None:
        """Roll back what an ABORTING transaction did, then log that it is done."""
        assert transaction.state is State.ABORTING, "only an abort that is decided is rolled back"
        while (driven := self._driven.get(transaction.id)) is not None:
            await driven.wait()
            await self.ensure_known()
            if self._manager.state.find(transaction.id) is None:
                return  # the other call has done it; else it failed, or was cancelled
        driven = self._driven[transaction.id] = asyncio.Event()
        try:
            await self._owner.roll_back(RollBack(JoinedTransaction.of(transaction)))
            await self._manager.run(partial(self._finish, transaction.id))
        finally:
            del self._driven[transaction.id]
            driven.set()

    def _finish(self, transaction_id: int, group: Group) -> None:
        self._stages.apply(group, self._manager.state.finish(transaction_id, group.now_ms).edits)


def _cannot_read(why: str) -> CoordinatorUnavailableError:
    return CoordinatorUnavailableError(
        why, hint="send the same call again after Retry-After; publishing without a transaction goes on"
    )
