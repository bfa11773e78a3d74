"""Runs of one job, some of them zombies, that commit its versions in a session; and what must be true of that."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.commits.commit_stage import Beginning
from basalt.transactions.rules.sessions import SessionState
from basalt.transactions.rules.transaction import SessionBinding, Transaction
from basalt_engine.errors import BasaltError
from tests.sim.history import Ending, Told

if TYPE_CHECKING:
    from tests.sim.world import World

RUNS = ("monday", "tuesday", "wednesday")
NAME = "job"
TIMEOUT_MS = 2_000


class Jobs:
    """The runs. Each goes by what it was told last, however old that is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: dict[str, SessionState] = {}
        self._newest_epoch = 0  # that anybody was told
        self._newest_done = 0  # the highest version whose commit somebody was told
        self._attempts: dict[int, list[str]] = {}  # the messages that each version was tried with

    async def step(self) -> None:
        """One run opens the session, perhaps, and does a version of the work."""
        world = self._world
        run = world.chances.choice(RUNS)
        if run not in self._held or world.chances.random() < 0.3:
            with suppress(BasaltError):
                self._held[run] = await world.wired.transactions.sessions.open(NAME, run)
                self._newest_epoch = max(self._newest_epoch, self._held[run].epoch)
        if run in self._held:
            version = self._newest_done + world.chances.choice([0, 1, 1, 1, 2])
            await self._work(self._held[run], version)

    async def _work(self, session: SessionState, version: int) -> None:
        world, newest_before = self._world, self._newest_epoch
        asked = SessionBinding(NAME, session.epoch, version)
        try:
            begun = await world.wired.transactions.sessions.begin(asked, Beginning(timeout_ms=TIMEOUT_MS))
        except BasaltError:
            return
        assert session.epoch >= newest_before, "a zombie began a transaction after it was fenced"
        if isinstance(begun, SessionState):
            assert version == 0 or self._attempts.keys() & set(range(version, version + 1_000)), "done by nobody"
            return
        world.history.pointers.append(begun.id)
        for _ in range(world.chances.randint(0, 3)):
            await asyncio.sleep(0)
        await self._commit(begun, session, version)

    async def _commit(self, tx: Transaction, session: SessionState, version: int) -> None:
        world, newest_before = self._world, self._newest_epoch
        ending = world.history.transactions[tx.id] = Ending("commit")
        title = world.chances.choice(world.topics)
        message = world.message(title, tx.id)
        self._attempts.setdefault(version, []).append(message.text)
        work = Work(publish=[WorkPublish(*title, [message.text.encode()])])
        for _ in range(2):  # the second is the retry of a lost answer
            commit = world.wired.transactions.commit(tx.id, work, f"commit-{tx.id}")
            ending.told = await world.tell([message], commit)
            if ending.told is not Told.NOTHING:
                break
        if ending.told is Told.DONE:
            assert session.epoch >= newest_before, "a zombie committed after it was fenced"
            self._newest_done = max(self._newest_done, version)

    def check(self, committed: set[str]) -> None:
        """Given all committed messages: no version is there twice, and none that was told is forgotten."""
        for version, texts in self._attempts.items():
            assert len(committed.intersection(texts)) <= 1, f"version {version} was committed twice"
        known = {session.name: session for session in self._world.wired.transactions.state.sessions.all()}
        if self._newest_done:
            assert (known[NAME].version or 0) >= self._newest_done, "a version that was told done is forgotten"
        if self._newest_epoch:
            assert known[NAME].epoch >= self._newest_epoch, "an epoch that was told is forgotten"
