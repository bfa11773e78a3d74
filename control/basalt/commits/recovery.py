"""Reads the log, looks through the topics for what it lacks, and goes on with roll backs that were interrupted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from basalt.commits.commit_stage import CommitStage, TopicParticipant
from basalt.runtime.group_commit import Group, GroupCommit
from basalt.transactions.manager import TransactionManager
from basalt.transactions.rules.transaction import Join, State, Transaction
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.errors import BasaltError, RowExistsError

TAKE_OVER_TRIES = 16  # a former leader has one append under way at a time, and is fenced before this one reads

log = logging.getLogger("basalt.transactions")


class Recovery:
    """Reads the manager's state from the log, and drives decided roll backs to their end."""

    def __init__(
        self, manager: TransactionManager, stages: CommitStage, topics: TopicParticipant, writer: GroupCommit
    ) -> None:
        self._manager = manager
        self._stages = stages
        self._topics = topics
        self._writer = writer
        self._reading = asyncio.Lock()
        manager.recovered_by(self.ensure_known)
        self._driven: dict[int, asyncio.Event] = {}  # roll backs that a call drives right now, set when it is through

    async def ensure_known(self) -> None:
        """Read the log, if what it holds is unknown: at the start, and after a write that failed."""
        if not self._manager.is_known:
            async with self._reading:
                if not self._manager.is_known:
                    await self._read_log()

    async def _read_log(self) -> None:
        """Know the state again, and lead. While a former leader still adds entries, there is more to read."""
        for tries_left in reversed(range(TAKE_OVER_TRIES)):
            state = await self._manager.read_log()
            last_pointer = state.last_pointer
            self._topics.recovered(last_pointer)
            in_use = [used.join for used in state.one_shots.entries(last_pointer)]
            unknown = await self._topics.unknown_writers(in_use, last_pointer)
            held = await self._topics.hold(state.transactions(State.COMMITTING))
            try:
                await self._writer.run(partial(self._take_over, state, unknown))
                return
            except RowExistsError:
                if not tries_left:
                    raise
            finally:
                del held

    def _take_over(self, state: TransactionProposals, unknown: Mapping[int, Sequence[Join]], group: Group) -> None:
        """In a stage: lead, and decide what the log leaves open: a commit of which it has no outcome did not happen.

        Nothing is rolled back before this entry has its place: an outcome that is still under way comes too late then.
        Publish the state only now. A commit made earlier would raise the read pointer and expose rows of crashed one-shots.
        """
        self._manager.adopt(group, state)
        self._stages.apply(group, state.one_shots.roll_back_unknown(state.last_pointer, unknown).edits)
        for transaction in state.transactions(State.COMMITTING):
            self._stages.apply(group, state.give_up(transaction.id, group.now_ms).edits)

    async def drive_all(self) -> BasaltError | None:
        """Go on with all roll backs but those that a call has in hand, which need not hold up the others."""
        unfinished = self._manager.state.unfinished()
        return await self.drive([each for each in unfinished if each.id not in self._driven])

    async def drive(self, unfinished: Iterable[Transaction]) -> BasaltError | None:
        """Finish each of them; the first error. Where one cannot be rolled back the others are none the worse for it."""
        first: BasaltError | None = None
        for transaction in unfinished:
            try:
                await self.roll_back(transaction)
            except BasaltError as error:
                log.warning("transaction %s is not rolled back, which will be tried again: %s", transaction.id, error)
                first = first or error
        return first

    async def roll_back(self, transaction: Transaction) -> None:
        """Roll back what an ABORTING transaction did, then log that it is done."""
        assert transaction.state is State.ABORTING, "a commit without an outcome is given up when the log is read"
        while (driven := self._driven.get(transaction.id)) is not None:
            await driven.wait()
            await self.ensure_known()
            if self._manager.state.find(transaction.id) is None:
                return  # the other call has done it; else it failed, or was cancelled
        driven = self._driven[transaction.id] = asyncio.Event()
        try:
            await self._topics.roll_back(transaction)
            await self._manager.run(partial(self._finish, transaction.id))
        finally:
            del self._driven[transaction.id]
            driven.set()

    def _finish(self, transaction_id: int, group: Group) -> None:
        self._stages.apply(group, self._manager.state.finish(transaction_id, group.now_ms).edits)
