"""The transactions that were begun for one-shot transactions: which of them somebody carries on, and an end for the others.

A one-shot transaction that acknowledges in groups of other owners begins before its commit, and what it has acknowledged is held until it
ends. No client knows it. So it is ended as soon as nobody carries it on: by this leader, when the call is over or the server stops, and by the
next one when it reads the log (`TransactionProposals.give_up_begun`). docs/decisions/0086-begun-one-shots-are-ended.md.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from basalt.commits.commit_stage import Asking, Beginning, CommitStage
from basalt.errors import StoppingError
from basalt.runtime.group_commit import Group
from basalt.transactions.manager import TransactionManager
from basalt.transactions.rules.edits import Aborting
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.errors import BasaltError

log = logging.getLogger("basalt.transactions")


class BegunOneShots:
    """Those of the leader's process. Everything runs on the event loop of the group commit."""

    def __init__(self, manager: TransactionManager, stages: CommitStage) -> None:
        self._manager = manager
        self._stages = stages
        self._carried: set[int] = set()
        self._calls = 0  # that carry one on, or are about to begin it
        self._stopping = False

    @asynccontextmanager
    async def begin(self, asking: Asking) -> AsyncIterator[Transaction]:
        """A new transaction, which is carried on within the context. Where it is open at the end of that, it was interrupted."""
        if self._stopping:
            raise StoppingError("the server is shutting down", hint="send the call again to the next server")
        asked = Beginning(owner=asking.owner, principal=asking.principal)
        known: set[int] = set()
        is_over = False

        def stage(group: Group) -> Transaction:
            begun = self._stages.begin(group, asked, for_one_shot=True)
            if not is_over:  # else its client has heard that nobody knows, and nobody comes for it
                known.add(begun.id)
                self._carried.add(begun.id)
            return begun

        self._calls += 1
        try:
            yield await self._manager.run(stage)
        finally:
            self._calls -= 1
            is_over = True
            self._carried -= known
            try:
                await self.give_up_uncarried()
            except BasaltError as error:
                log.info("what was begun for a one-shot transaction ends later: %s", error)

    def has_uncarried(self) -> bool:
        """True while some are open that nobody carries on: their calls failed, and so did the abort."""
        if self._manager.follows or not self._manager.is_known:
            return False
        return any(each.id not in self._carried for each in self._manager.state.begun_for_one_shots())

    async def give_up_uncarried(self) -> int:
        """End those; how many."""
        return await self._manager.run(self._give_up) if self.has_uncarried() else 0

    async def stop(self) -> None:
        """End all, and begin no more. What was to come for them is refused, and their clients send the same calls again."""
        self._stopping = True
        if self._calls or self.has_uncarried():
            await self._manager.run(self._give_up)

    def _give_up(self, group: Group) -> int:
        made = self._manager.state.give_up_begun(group.now_ms, () if self._stopping else self._carried).edits
        self._stages.apply(group, made)
        return sum(isinstance(edit, Aborting) for edit in made)
