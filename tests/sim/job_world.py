"""One simulated run of a job that writes batch by batch, in named transactions of which each task has segments of its own.

Runs of the job follow each other, and older ones go on as zombies: their tasks begin and store, their drivers commit. In the
end each batch must be in the topic once, as one driver listed it, one batch behind the other, and nothing else be left.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from basalt.api.bodies.messages import Work
from basalt.catalog.topics import topic_name
from basalt.commits.commit_stage import Beginning
from basalt.transactions.rules.sessions import WorkVersion
from basalt.transactions.rules.transaction import Kind, Transaction
from basalt_engine.errors import BasaltError
from basalt_engine.payloads import PayloadTable
from basalt_engine.records import decode
from tests.sim.history import Told
from tests.sim.world import World

JOB = topic_name("sim", "job")
TASKS_MAX = 3
JOB_TIMEOUT_MS = 20_000


class Attempt(NamedTuple):
    """What one attempt of a task has stored, and where."""

    transaction: Transaction
    write_pointer: int
    texts: list[str]


class Batch(NamedTuple):
    """What a driver is about to commit."""

    run: int
    version: int
    winners: list[Attempt]


class JobWorld(World):
    """The run of one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.runs = 0
        self.at_work = 0  # of them now, zombies left aside
        self.epochs: dict[int, int] = {}  # of each run that was told of a transaction
        self.checkpoint = 0  # the first version that no driver knows to be committed
        self.listed: dict[int, list[list[str]]] = {}  # by version: what drivers asked to publish
        self.sure: dict[int, list[str]] = {}  # and what they were told is published
        self.zombies: list[Batch] = []

    async def _prepare(self) -> None:
        await super()._prepare()
        await self._create(JOB)

    async def _step(self) -> None:
        if self.chances.random() < 0.4:
            await super()._step()
            return
        steps = {self._run: 8, self._zombie_commits: 2, self._zombie_begins: 2}
        await self.chances.choices(list(steps), list(steps.values()))[0]()

    async def _run(self) -> None:
        """A run of the job, as far as it comes."""
        if self.at_work and self.chances.random() < 0.7:
            return  # where each fences the others, none gets far
        self.runs += 1
        self.at_work += 1
        try:
            await self._batches(self.runs)
        finally:
            self.at_work -= 1

    async def _batches(self, run: int) -> None:
        for _ in range(self.chances.randint(1, 3)):
            version = self.checkpoint
            with suppress(BasaltError):
                batch = await self._batch(run, version)
                if batch is None:
                    self.checkpoint = max(self.checkpoint, version + 1)
                    continue
                if self.chances.random() < 0.15:
                    self.zombies.append(batch)
                    return
                if await self._commit(batch):
                    continue
            if self.chances.random() < 0.7:
                return

    async def _batch(self, run: int, version: int) -> Batch | None:
        """All tasks side by side; None when the version was committed before."""
        tasks = [self._task(run, version, number) for number in range(self.chances.randint(1, TASKS_MAX))]
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for each in done:
            if isinstance(each, BaseException):
                raise each
        winners = [each for each in done if isinstance(each, Attempt)]
        if len(winners) < len(done):
            return None
        return Batch(run, version, winners)

    async def _task(self, run: int, version: int, task: int) -> Attempt | None:
        attempts = self.chances.choice([1, 1, 2, 3])
        for number in range(attempts):
            found = await self._begin(run, version)
            if found is None:
                return None
            pointer = (await self.wired.transactions.checkpoint(found.id)).write_pointer
            texts = [
                f"v{version} t{task} r{run} p{pointer} {each}"
                for each in range(self.chances.randint(0 if number == attempts - 1 else 1, 2))
            ]
            for text in texts:
                await self.wired.messaging.store(JOB, [text.encode()], pointer)
                await asyncio.sleep(0)
        return Attempt(found, pointer, texts)

    async def _begin(self, run: int, version: int) -> Transaction | None:
        """The run's transaction for the version; None when that is committed."""
        asked = Beginning(Kind.LONG, JOB_TIMEOUT_MS, "job")
        found = await self.wired.transactions.sessions.begin_named(
            WorkVersion("etl", f"r{run}", version, "query"), asked
        )
        if not isinstance(found, Transaction):
            return None
        assert found.session is not None
        epoch = self.epochs.setdefault(run, found.session.epoch)
        assert found.session.epoch == epoch, f"run {run} came back after another one had replaced it"
        return found

    async def _commit(self, batch: Batch) -> bool:
        """Whether the driver was told that its batch is committed."""
        transactions = {attempt.transaction.id for attempt in batch.winners}
        if len(transactions) != 1:
            return False  # a time-out came in between
        segments = [attempt.write_pointer for attempt in batch.winners]
        texts = [text for attempt in batch.winners for text in attempt.texts]
        self.listed.setdefault(batch.version, []).append(texts)
        for _ in range(2):
            told = await self.tell([], self.wired.transactions.commit(transactions.pop(), Work(segments=segments)))
            transactions = {batch.winners[0].transaction.id}
            if told is Told.DONE:
                assert self.sure.setdefault(batch.version, texts) == texts, f"version {batch.version} committed twice"
                self.checkpoint = max(self.checkpoint, batch.version + 1)
            if told is not Told.NOTHING:
                return told is Told.DONE
        return False

    async def _zombie_commits(self) -> None:
        """A driver wakes up that had all in hand to commit."""
        if self.zombies:
            await self._commit(self.zombies.pop(0))

    async def _zombie_begins(self) -> None:
        """A task wakes up of any run, present ones among them."""
        if self.runs:
            with suppress(BasaltError):
                version = max(0, self.checkpoint + self.chances.choice([-1, 0, 0, 1]))
                await self._task(self.chances.randint(1, self.runs), version, TASKS_MAX)

    async def _check(self) -> None:
        await super()._check()
        published = await self.wired.page_through(JOB, self.chances.choice([1, 4, 16]), committed=True)
        versions = [int(text.split()[0][1:]) for text in published]
        assert versions == sorted(versions), f"batches out of order: {published}"
        batches = {
            version: list(texts) for version, texts in groupby(published, key=lambda text: int(text.split()[0][1:]))
        }
        for version, texts in batches.items():
            assert texts in self.listed.get(version, []), f"version {version} is {texts}, which no driver asked for"
        for version, texts in self.sure.items():
            assert batches.get(version, []) == texts, (
                f"version {version} is {batches.get(version)}, and was told as {texts}"
            )
        self._check_payloads(published)

    def _check_payloads(self, published: list[str]) -> None:
        """Losers, and what was stored for nothing, leave nothing behind."""
        rows = self.inner.table(PayloadTable.name).scan(b"", None)
        stored = [
            bytes(text).decode() for row in rows if b"p" in row.columns for text in decode(row.columns[b"p"]).payloads()
        ]
        left = sorted(text for text in stored if text.startswith("v") and text not in published)
        assert not left, f"payloads are left that nobody publishes: {left}"
