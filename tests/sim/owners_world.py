"""One simulated run of commits over the topics of several servers: calls between them are lost, late and out of turn, writes fail, members die
and topics move, at any moment.

Nothing may be lost, doubled, torn or out of order in its topic: who was told that it committed sees all of it, who was told that it did not sees
nothing, and what a reader of committed messages has seen never changes.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

from basalt.api.bodies.messages import Work
from basalt.api.bodies.tables import CellPut
from basalt.catalog.tables import table_name
from basalt.catalog.topics import TopicName
from basalt.errors import (
    BasaltError,
    InputError,
    NotHereError,
    RetryError,
    StoreError,
    TransactionNotFoundError,
    UnknownOutcomeError,
)
from basalt.settings import Settings
from basalt.settings.tree import TransactionSettings
from basalt.tables.tables import CellWrites
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import State, Transaction
from basalt_engine.clock import ManualClock
from basalt_engine.table import TableWrite
from tests.several_owners import LEADER, ByRow, FakeLink, Fleet, fleet, titles, work_of

TOPICS = titles(5)
STOCK = table_name("shop", "stock")
CLIENTS = 3
STEPS = 9  # of each client
MEMBERS = ("second", "third")
FATES = ("answered", "lost", "unanswered", "late")
TRIES = 4
LIFETIME_MS = 30_000


class ShakyStore(ByRow):
    """A store whose writes fail now and then: nothing is written, or all of it and nobody knows."""

    chances = random.Random(0)
    fault_rate = 0.0

    def write(self, writes: Sequence[TableWrite]) -> None:
        fate = self.chances.random() / self.fault_rate if self.fault_rate else 2.0
        if fate < 0.5:
            raise StoreError("nothing was written")
        super().write(writes)
        if fate < 1.0:
            raise UnknownOutcomeError("no answer")


class Sent:
    """One transaction of a client: what it sent to each topic, in the order in which it is to show there."""

    def __init__(self, client: int, number: int) -> None:
        self.client, self.number = client, number
        self.early: dict[TopicName, list[str]] = defaultdict(list)
        self.stored: dict[TopicName, list[str]] = defaultdict(list)
        self.work: dict[TopicName, list[str]] = defaultdict(list)
        self.doubtful: set[str] = set()  # sent, and nobody knows whether it was taken
        self.told: str | None = None
        self.id: int | None = None

    def expected(self, title: TopicName) -> list[str]:
        return [*self.early[title], *self.stored[title], *self.work[title]]


class OwnersWorld:
    """The run of one seed."""

    hurry = 0.0
    steady = True  # no write takes longer than callers wait: in this world answers of servers do

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chances = random.Random(seed)
        self.clock = ManualClock()
        self.shop: Fleet
        self.sent: list[Sent] = []
        self.seen: dict[TopicName, list[str]] = {title: [] for title in TOPICS}
        self.fault_rate = self.chances.choice((0.0, 0.01, 0.03))
        self.bad_calls = self.chances.choice((0.0, 0.05, 0.15))
        self.is_calm = False
        self._texts = 0

    async def run(self) -> None:
        """Everything that happens; raises when a promise was broken."""
        store = ShakyStore()
        store.chances = self.chances
        settings = Settings(transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS))
        async with fleet(*MEMBERS, clock=self.clock, store=store, settings=settings) as self.shop:
            for name in MEMBERS:
                self._link(name)
            for title in TOPICS:
                await self.shop.create(title, self.chances.choice((LEADER, *MEMBERS)))
            await self.shop.leader.wired.services.tables.catalog.create(STOCK)
            self._shake(self.fault_rate)
            clients = [asyncio.ensure_future(self._client(number)) for number in range(CLIENTS)]
            others = [asyncio.ensure_future(each) for each in (self._disturb(), self._expire(), self._read())]
            await asyncio.gather(*clients)
            self.is_calm = True
            self._shake(0.0)
            await asyncio.gather(*others)
            await self._calm_down()
            broken = await self._broken()
            assert broken is None, broken

    def _shake(self, rate: float) -> None:
        for server in self.shop.servers.values():
            assert isinstance(server.store, ShakyStore)
            server.store.fault_rate = rate

    def _link(self, name: str) -> None:
        link, member = FakeLink(self.shop.handlers[name], self.shop.tasks, self._pause), self.shop.members[name]
        self.shop.links.links[name] = link
        member.to_leader._pause = self._pause
        for each in (link, member.to_leader):
            each.fate = lambda kind: (
                "answered" if self.is_calm or self.chances.random() > self.bad_calls else self.chances.choice(FATES)
            )

    async def _pause(self) -> None:
        """The time that a question or an answer is on its way."""
        await asyncio.sleep(self.chances.choice((0, 0, 0.001, 0.02, 0.3 if self.bad_calls else 0)))

    def text(self, sent: Sent) -> str:
        self._texts += 1
        return f"{sent.client}.{sent.number}.{self._texts}"

    # What happens.

    async def _client(self, client: int) -> None:
        for number in range(STEPS):
            sent = Sent(client, number)
            self.sent.append(sent)
            kind = self.chances.choices(("transaction", "one_shot", "plain"), (5, 4, 2))[0]
            try:
                await {"transaction": self._transaction, "one_shot": self._one_shot, "plain": self._plain}[kind](sent)
            except BasaltError:
                sent.told = sent.told or "unknown"
            await self._pause()

    def _some_work(self, sent: Sent) -> Work:
        for title in self.chances.sample(TOPICS, self.chances.randint(0, 3)):
            sent.work[title] += [self.text(sent) for _ in range(self.chances.randint(1, 2))]
        return work_of(sent.work)

    async def _plain(self, sent: Sent) -> None:
        title = self.chances.choice(TOPICS)
        sent.work[title] = [self.text(sent)]
        try:
            await self.shop.publish(title, *sent.work[title])
            sent.told = "committed"
        except UnknownOutcomeError:
            sent.told = "unknown"
        except BasaltError:
            sent.told = "aborted"

    async def _one_shot(self, sent: Sent) -> None:
        work, request = self._some_work(sent), f"{sent.client}.{sent.number}"
        for _ in range(TRIES):
            attempts = [self._shoot(work, request) for _ in range(2 if self.chances.random() < 0.3 else 1)]
            outcomes = [each for each in await asyncio.gather(*attempts) if each is not None]
            if outcomes:
                sent.told, sent.id = "committed", outcomes[0].id
                assert all(each.id == sent.id for each in outcomes), f"one request is two transactions: {outcomes}"
                return
            await self._pause()
        sent.told = "unknown"

    async def _shoot(self, work: Work, request: str) -> Outcome | None:
        """One attempt; None when it is to be made again."""
        await self._pause()
        try:
            return await self.shop.transactions.one_shot(work, "me", request)
        except RetryError:
            return None

    async def _transaction(self, sent: Sent) -> None:
        tx = await self._begun()
        sent.id = tx.id
        for _ in range(self.chances.randint(0, 5)):
            await self._write(sent, tx)
        if self.chances.random() < 0.2:
            await self._abort(sent, tx)
            return
        work = self._some_work(sent)
        for _ in range(TRIES):
            try:
                await self._commit(tx, work)
                sent.told = "committed"
                return
            except UnknownOutcomeError:
                sent.told = "unknown"
                return
            except InputError:
                sent.told = "aborted"
                await self._late_write(tx)
                return
            except RetryError:
                await self._pause()
        await self._abort(sent, tx)

    async def _commit(self, tx: Transaction, work: Work) -> None:
        """Commit, at any of the servers; and now and then at another one at the same time, as a client does that waited too long."""
        attempts = [self._commit_at(tx, work) for _ in range(2 if self.chances.random() < 0.2 else 1)]
        answers = await asyncio.gather(*attempts, return_exceptions=True)
        ends = {isinstance(each, Outcome) for each in answers if isinstance(each, Outcome | InputError)}
        assert len(ends) < 2, f"one commit has two ends: {answers}"
        error = next((each for each in answers if isinstance(each, InputError)), answers[-1])
        if True not in ends and isinstance(error, BaseException):
            raise error

    async def _commit_at(self, tx: Transaction, work: Work) -> Outcome:
        """Commit at the owner of the first topic, mostly; what is not its own to prepare goes to the leader."""
        at = self.chances.choice((LEADER, *MEMBERS))
        if work.publish and self.chances.random() < 0.7:
            at = self.shop.owner_of(TopicName(work.publish[0].namespace, work.publish[0].topic)).name
        if at != LEADER:
            with suppress(NotHereError):
                return await self.shop.members[at].commits.commit(tx.id, work)
        return await self.shop.transactions.commit(tx.id, work)

    async def _begun(self) -> Transaction:
        while True:
            try:
                return await self.shop.transactions.begin(timeout_ms=self.chances.choice((2_000, 20_000)))
            except RetryError:
                await self._pause()

    async def _write(self, sent: Sent, tx: Transaction) -> None:
        title, text = self.chances.choice(TOPICS), self.text(sent)
        kind = self.chances.choices(("store", "publish", "cell"), (6, 3, 0.4))[0]
        if kind == "cell":
            with suppress(BasaltError):
                await self.shop.leader.wired.services.tables.write(
                    STOCK, tx.id, CellWrites([CellPut(text.encode(), b"c", b"1")])
                )
            return
        kept = sent.stored if kind == "store" else sent.early
        kept[title].append(text)
        try:
            await getattr(self.shop, kind)(title, text, tx=tx)
        except UnknownOutcomeError:
            sent.doubtful.add(text)
        except BasaltError:
            kept[title].remove(text)

    async def _abort(self, sent: Sent, tx: Transaction) -> None:
        try:
            outcome = await self.shop.transactions.abort(tx.id)
            sent.told = "committed" if outcome.state is State.COMMITTED else "aborted"
            if sent.told == "aborted":
                await self._late_write(tx)
        except BasaltError:
            sent.told = "unknown"

    async def _late_write(self, tx: Transaction) -> None:
        """Nothing is taken once the end was answered: what would be taken shows as a message that nobody sent."""
        late = Sent(-1, len(self.sent))
        title = self.chances.choice(TOPICS)
        late.told, late.early[title] = "refused", [self.text(late)]
        try:
            await self.shop.store(title, *late.early[title], tx=tx)
            late.told = "taken"
        except BasaltError:
            pass
        self.sent.append(late)

    async def _disturb(self) -> None:
        """Topics move, members die, and the log is read anew."""
        while not self.is_calm:
            await asyncio.sleep(self.chances.choice((0.002, 0.02, 0.2)))
            happens = self.chances.choices(("move", "crash", "lost", "nothing"), (3, 1, 0.6, 3))[0]
            if happens == "move":
                with suppress(BasaltError):
                    await self.shop.move(self.chances.choice(TOPICS), self.chances.choice((LEADER, *MEMBERS)))
            elif happens == "crash":
                name = self.chances.choice(MEMBERS)
                self.shop.crash(name, self.chances.choice((None, LEADER, *MEMBERS)))
                self._link(name)
                self._shake(0.0 if self.is_calm else self.fault_rate)
            elif happens == "lost" and self.fault_rate:
                self.shop.transactions.manager.lost()

    async def _expire(self) -> None:
        while not self.is_calm:
            with suppress(BasaltError):
                await self.shop.transactions.expire()
            await asyncio.sleep(0.5)

    async def _read(self) -> None:
        while not self.is_calm:
            await self._look(self.chances.choice(TOPICS))
            await asyncio.sleep(0.05)

    async def _look(self, title: TopicName) -> None:
        try:
            found = await self.shop.read(title)
        except BasaltError:
            return
        before = self.seen[title]
        assert found[: len(before)] == before or before[: len(found)] == found, f"{title.name}: {found} after {before}"
        if len(found) > len(before):
            self.seen[title] = found

    # The end.

    async def _calm_down(self) -> None:
        """Whatever was interrupted comes to its end once all answer."""
        for _ in range(60):
            self.clock.advance(1_000)
            with suppress(BasaltError):
                await self.shop.transactions.expire()
            await self.shop.settled()
            if self.shop.transactions.manager.is_known and not self.shop.transactions.state.transactions():
                return
        raise AssertionError("transactions never ended")

    async def _broken(self) -> str | None:
        there = {}
        for title in TOPICS:
            await self._look(title)
            there[title] = await self.shop.read(title)
            if len(set(there[title])) != len(there[title]):
                return f"{title.name} has a message twice: {there[title]}"
        for sent in self.sent:
            if (fault := await self._fault(sent, there)) is not None:
                return fault
        return self._out_of_order(there)

    async def _fault(self, sent: Sent, there: dict[TopicName, list[str]]) -> str | None:
        if sent.told == "taken":
            return f"a write was taken after the end of its transaction was answered: {dict(sent.early)}"
        found = {title: [text for text in there[title] if text in set(sent.expected(title))] for title in TOPICS}
        shows = any(found.values())
        if sent.id is not None and sent.told in ("committed", "aborted", "unknown"):
            try:
                state = (await self.shop.transactions.outcome(sent.id)).state
            except TransactionNotFoundError:  # few are remembered
                state = (
                    State.COMMITTED if sent.told == "committed" or (sent.told == "unknown" and shows) else State.ABORTED
                )
            if sent.told != "unknown" and (state is State.COMMITTED) != (sent.told == "committed"):
                return f"transaction {sent.id} was told to be {sent.told}, and is {state.name}"
            shows = state is State.COMMITTED
        elif sent.told in ("committed", "aborted", "refused"):
            shows = sent.told == "committed"
        for title in TOPICS:
            expected = [
                text for text in sent.expected(title) if text not in sent.doubtful or text in found[title]
            ] if shows else []  # fmt: skip
            if found[title] != expected:
                return f"{title.name} has {found[title]} of {sent.told} {sent.id}, and not {expected}"
        return None

    def _out_of_order(self, there: dict[TopicName, list[str]]) -> str | None:
        """What one client did, one after the other, comes one after the other: but for rows that came ahead of their commit."""
        early = {text for sent in self.sent for texts in sent.early.values() for text in texts}
        for title, texts in there.items():
            for client in range(CLIENTS):
                numbers = [
                    int(each.split(".")[1]) for each in texts if each.startswith(f"{client}.") and each not in early
                ]
                if numbers != sorted(numbers):
                    return f"{title.name} has the transactions of client {client} as {numbers}"
        return None
