"""Several servers over one store by row, in one process: the one that leads has all services, the others own topics of their shards.

Each has a handle of the store that refuses rows of shards which it has not taken. The others hear of transactions in the order of the log, at
once, and their links are real ones or such as lose, delay and reorder.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, cast
from unittest.mock import patch

import msgspec

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.catalog.topics import TopicName, Topics, topic_name
from basalt.cluster.links.frames import CallKind, ErrorBody
from basalt.cluster.links.link import Handlers, Link
from basalt.cluster.owners import OwnersMap
from basalt.cluster.reigns import Phase, Reign
from basalt.cluster.shard_gate import ShardGate
from basalt.commits.of_members.commits import CommitsOverLink
from basalt.commits.of_members.decided_here import CommitsOfMembers
from basalt.commits.owning.owner import Owner
from basalt.commits.owning.owner_calls import answer_for
from basalt.commits.owning.owners import Owners
from basalt.errors import ConflictError, UnavailableError, UnknownOutcomeError
from basalt.messaging.log.roll_back import RollBacks
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers
from basalt.messaging.messages import Messages
from basalt.messaging.producers import ProducerLimits, Producers
from basalt.messaging.read.first_unstable import FirstUnstable, KnownTransactions
from basalt.messaging.read.last_stable import StableEnds
from basalt.messaging.read.log_reader import LogReader, SliceLimits
from basalt.messaging.read.views import Views
from basalt.runtime.write_lanes import TopicLanes
from basalt.server import wiring
from basalt.server.wiring import BUCKETS_EMBEDDED, open_services
from basalt.settings import Settings
from basalt.transactions.manager import TransactionManager
from basalt.transactions.open_pointers import OpenPointers
from basalt.transactions.protocol import Close, End, Expect
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.clock import Clock, ManualClock
from basalt_engine.errors import BasaltError
from basalt_engine.keys import topic_prefix
from basalt_engine.snapshot import POINTER_MAX, PointerRuns
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import SHARDS, shard_of
from tests.wiring import Wired, encoded, texts

LEADER = "leader-run"
EPOCH = 1


class LinkFace(Protocol):
    """What the leader asks of a link."""

    async def call(self, kind: CallKind[Any, Any], question: Any, timeout_ms: float) -> Any:
        """The answer of the other side."""


class Server:
    """The topics of one server's shards."""

    name: str
    gate: ShardGate
    topics: TopicLogs
    messages: Messages
    owner: Owner
    pointers: OpenPointers
    lanes: TopicLanes
    store: MemoryStore

    async def read(self, title: TopicName) -> list[str]:
        """All committed messages, in their order."""
        return texts(await self.messages.fetch(title, None, True, committed=True))


class Member(Server):
    """A server that does not lead."""

    to_leader: FakeLink
    commits: CommitsOverLink  # that come here

    def __init__(self, name: str, store: MemoryStore, clock: Clock, manager: TransactionManager) -> None:
        self.name, self.store = name, store
        self.gate = ShardGate(clock)
        self.lanes = writer = TopicLanes.of(store, clock, BUCKETS_EMBEDDED)
        self.topics = TopicLogs(store, clock, Topics(store, clock, BUCKETS_EMBEDDED), tail_bytes_max=0, gate=self.gate)
        self.pointers = OpenPointers(manager)
        reader, roll_backs = LogReader(store, clock, self.topics), RollBacks(store, self.topics, writer)
        views = Views(manager)
        unstable = FirstUnstable(store, clock, self.topics, reader, KnownTransactions(manager), views)
        markers = TopicMarkers(
            store, clock, self.topics, reader, writer, StableEnds(store, reader, unstable, manager, views)
        )  # fmt: skip
        producers = Producers(store, clock, self.topics, writer, ProducerLimits(10, 10_000, 10_000, 10_000))
        self.messages = Messages(
            clock, self.topics, reader, roll_backs, writer, manager, views, self.pointers, markers, producers,
            limits=SliceLimits(1_000, 1 << 20), lifetime_ms_max=60_000,
        )  # fmt: skip
        drops = store.applies_retention
        self.owner = Owner(self.topics, roll_backs, writer, markers, self.pointers, clock, store_drops=drops)
        if manager.is_known:  # else only the store knows of any transaction
            self.owner.recovered(manager.state.last_pointer, manager.state.loans.in_progress)


class Leader(Server):
    """The server that leads."""

    name = LEADER
    owner: ToldOwners

    def __init__(self, wired: Wired, owner: ToldOwners, store: MemoryStore) -> None:
        self.wired, self.owner, self.store = wired, owner, store
        self.topics, self.messages = wired.topics, wired.messaging
        self.gate, self.pointers = wired.topics.gate, owner._pointers
        self.lanes = wired.services.writer


class ToldOwners(Owners):
    """The others hear what follows from the log, in its order."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.hearers: list[Owner] = []  # set by the fleet

    def expect(self, told: Expect) -> None:
        super().expect(told)
        for each in self.hearers:
            each.expect(told)

    def close(self, told: Close) -> None:
        super().close(told)
        for each in self.hearers:
            each.close(told)

    def end(self, told: End) -> None:
        super().end(told)
        for each in self.hearers:
            each.end(told)

    def recovered(self, last_pointer: int, lent: PointerRuns) -> None:
        """The log may hold ends of which nobody told: the others know as little as this one then."""
        super().recovered(last_pointer, lent)
        for each in self.hearers:
            each.recovered(last_pointer, lent)


class FakeLink:
    """A link without sockets: each question and answer is encoded. `fate` says of each call what becomes of it; `run` is who asks."""

    def __init__(
        self,
        handlers: Handlers,
        tasks: set[asyncio.Task[Any]],
        pause: Callable[[], Awaitable[None]] | None = None,
        run: str = "leader",
    ) -> None:
        self.handlers = handlers
        self._run = run
        self._pause = pause or some_turns
        self.is_cut = False
        self.fate: Callable[[str], str] = lambda _: "answered"
        self.asked: list[str] = []
        self._tasks = tasks

    @property
    def is_open(self) -> bool:
        """True while calls go over it."""
        return not self.is_cut

    async def call(self, kind: CallKind[Any, Any], question: Any, timeout_ms: float) -> Any:
        """As a link does. Fates: answered, lost (nothing arrives), unanswered, late (done after it was given up)."""
        if self.is_cut:
            raise UnavailableError("the link is cut")
        self.asked.append(kind.name)
        fate = self.fate(kind.name)
        work = self._done(kind, msgspec.msgpack.encode(question))
        if fate == "lost":
            work.close()
            raise UnknownOutcomeError("the question was lost")
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        if fate == "late":
            raise UnknownOutcomeError("no answer in time")
        done, _ = await asyncio.wait((task,), timeout=timeout_ms / 1_000)
        if not done:
            raise UnknownOutcomeError("no answer in time")
        answer, error = task.result()
        if fate == "unanswered":
            raise UnknownOutcomeError("the answer was lost")
        if error is not None:
            raise error
        return kind.answer.decode(answer)

    async def _done(self, kind: CallKind[Any, Any], question: bytes) -> tuple[bytes, BasaltError | None]:
        await self._pause()
        handled = self.handlers.find(kind.number)
        assert handled is not None, kind.name
        try:
            answer = handled.answer(self._run, kind.question.decode(question))
            if asyncio.iscoroutine(answer):
                answer = await answer
        except BasaltError as error:
            return b"", msgspec.msgpack.decode(msgspec.msgpack.encode(ErrorBody.of(error)), type=ErrorBody).error()
        return msgspec.msgpack.encode(answer), None


async def some_turns() -> None:
    """The time that a question is on its way."""
    for _ in range(3):
        await asyncio.sleep(0)


class HeldLink(FakeLink):
    """A link whose first place arrives when it is let go."""

    def __init__(self, handlers: Handlers, tasks: set[asyncio.Task[Any]]) -> None:
        super().__init__(handlers, tasks)
        self.let_go = asyncio.Event()
        self.is_holding = False

    async def call(self, kind: CallKind[Any, Any], question: Any, timeout_ms: float) -> Any:
        if kind.name == "place" and not self.is_holding:
            self.is_holding = True
            await self.let_go.wait()
        return await super().call(kind, question, timeout_ms)


class TestLinks:
    """The links of the leader, by the names that the map has."""

    __test__ = False

    def __init__(self) -> None:
        self.links: dict[str, LinkFace] = {}
        self.runs: dict[str, str] = {}  # of the members, by the same names

    @property
    def of_members(self) -> dict[str, LinkFace]:
        """The same links by the runs of members."""
        return {self.runs[name]: link for name, link in self.links.items()}

    def of_run(self, run: str) -> LinkFace | None:
        """The member's link."""
        return self.links.get(run)


class Fleet:
    """A leader and members, and the map that all of them know."""

    def __init__(self, clock: ManualClock, leader: Leader, names: Sequence[str], links: TestLinks) -> None:
        self.clock, self.leader, self.links, self.names = clock, leader, links, (LEADER, *names)
        self.members: dict[str, Member] = {}
        self.servers: dict[str, Server] = {LEADER: leader}
        self.transactions = leader.wired.transactions
        self.handlers: dict[str, Handlers] = {}
        self.of_leader, self.runs = Handlers(), 0
        CommitsOfMembers(self.transactions, leader.owner).answer_over(self.of_leader)
        self.tasks: set[asyncio.Task[Any]] = set()
        self.owners = [0] * SHARDS
        self.epochs = [EPOCH] * SHARDS
        self.version = 0
        for name in names:
            self._begin(name)
        self.publish_map()

    def _begin(self, name: str) -> Member:
        """A member of this name, which has no shard yet."""
        member = Member(name, self.leader.store.another(), self.clock, self.transactions.manager)
        member.gate.reigns = [Reign(0, 0, Phase.TAKING)] * SHARDS
        self.members[name] = self.servers[name] = member
        self.handlers[name] = Handlers()
        answer_for(member.owner, self.handlers[name])
        self.leader.owner.hearers.append(member.owner)
        self.runs += 1
        run = self.links.runs[name] = f"{name}-{self.runs}"
        member.to_leader = FakeLink(self.of_leader, self.tasks, run=run)
        link_of = cast("Callable[[], Link]", lambda: member.to_leader)
        member.commits = CommitsOverLink(self.transactions.manager, member.owner, name, link_of)
        return member

    def crash(self, name: str, heir: str | None = None) -> None:
        """The member dies, and another run of it, or an heir, takes its shards: what the dead one still does is fenced off.

        The new run has no link yet.
        """
        self.leader.owner.hearers.remove(self.members[name].owner)
        del self.links.links[name]
        self._begin(name)
        heir = heir or name
        shards = [shard for shard, owner in enumerate(self.owners) if self.names[owner] == name]
        for shard in shards:
            self.epochs[shard] += 1
            self.owners[shard] = self.names.index(heir)
        self.publish_map()
        self._take(self.servers[heir], shards)

    def _take(self, server: Server, shards: Sequence[int]) -> None:
        server.store.take({shard: self.epochs[shard] for shard in shards})
        manager = self.transactions.manager
        last_pointer = manager.state.last_pointer if manager.is_known else POINTER_MAX
        for shard in shards:
            server.gate.reigns[shard] = Reign(self.epochs[shard], 0, Phase.HELD, last_pointer)
        server.gate.call_off(())  # wakes who waits

    def fake_links(self) -> dict[str, FakeLink]:
        """Links without sockets to all members."""
        made = {name: FakeLink(self.handlers[name], self.tasks) for name in self.members}
        self.links.links.update(made)
        return made

    def publish_map(self) -> None:
        """All servers know who owns what."""
        self.version += 1
        new = OwnersMap(self.version, EPOCH, self.names, tuple(self.owners), tuple(self.epochs))
        for server in self.servers.values():
            server.gate.owners = new

    def owner_of(self, title: TopicName) -> Server:
        """The server that has the topic."""
        return self.servers[self.names[self.owners[shard_of(topic_prefix(*title))]]]

    async def move(self, title: TopicName, to: str) -> None:
        """A planned move of the topic's shard: nothing that one knows of it goes along. Called off while rows are in doubt."""
        shard = shard_of(topic_prefix(*title))
        before = self.owner_of(title)
        held = before.gate.reigns[shard]
        before.gate.reigns[shard] = held._replace(phase=Phase.RELEASING)
        try:
            logs = before.topics.suspend({shard})
            await before.gate.left({shard})
            await before.lanes.passed()
            await before.topics.confirm_or_delete({shard})
            await before.lanes.alone(before.lanes.each, lambda: self._forget(before, shard, logs))
        except BasaltError:
            before.gate.reigns[shard] = held
            before.gate.call_off(())
            raise
        before.gate.reigns[shard] = before.gate.reigns[shard]._replace(phase=Phase.TAKING)
        if self.servers[before.name] is not before:  # it died meanwhile
            return
        self.epochs[shard] += 1
        self.owners[shard] = self.names.index(to)
        self.publish_map()
        self._take(self.servers[to], [shard])

    @staticmethod
    def _forget(server: Server, shard: int, logs: Sequence[TopicLog]) -> None:
        if server.topics.in_doubt({shard}):
            raise ConflictError("rows are in doubt")
        for topic_log in logs:
            topic_log.forget()
        server.topics.catalog.forget_doubts({shard})
        server.pointers.leave({shard})

    async def create(self, title: TopicName, at: str) -> None:
        """A topic at that server."""
        if self.owner_of(title).name != at:
            await self.move(title, at)
        await self.servers[at].topics.create(title, {})

    async def store(self, title: TopicName, *messages: str, tx: Transaction) -> None:
        """Store under the transaction, at the owner."""
        await self.owner_of(title).messages.store(title, encoded(messages), tx.write_pointer)

    async def publish(self, title: TopicName, *messages: str, tx: Transaction | None = None) -> None:
        """Publish at the owner."""
        await self.owner_of(title).messages.publish(title, encoded(messages), tx and tx.write_pointer)

    async def read(self, title: TopicName) -> list[str]:
        """All committed messages, at the owner."""
        return await self.owner_of(title).read(title)

    async def settled(self) -> None:
        """Wait for what goes on behind answers."""
        while True:
            await self.transactions.carry_through()
            waiting = [task for task in self.tasks if not task.done()]
            if not waiting:
                return
            await asyncio.wait(waiting)


def titles(count: int) -> list[TopicName]:
    """Topics of as many shards."""
    found: dict[int, TopicName] = {}
    for number in range(10_000):
        title = topic_name("shop", f"topic{number}")
        found.setdefault(shard_of(topic_prefix(*title)), title)
        if len(found) == count:
            break
    return list(found.values())


def work(**parts: Sequence[str]) -> Work:
    """Work that publishes to the topics of these names."""
    return Work([WorkPublish("shop", name, encoded(messages)) for name, messages in parts.items()])


def work_of(parts: Mapping[TopicName, Sequence[str]]) -> Work:
    """Work that publishes to these topics."""
    return Work([WorkPublish(*title, encoded(messages)) for title, messages in parts.items()])


async def start_leader(
    store: MemoryStore, clock: ManualClock, links: TestLinks, settings: Settings | None = None
) -> Leader:
    """All services of a leader that knows the other owners."""
    store.lead(EPOCH)
    store.take(dict.fromkeys(range(SHARDS), EPOCH))
    made: list[ToldOwners] = []

    def owners(*given: Any, **named: Any) -> ToldOwners:
        made.append(ToldOwners(*given, **named, links=links, member=LEADER, place_ms=2_000))
        return made[0]

    with patch.object(wiring, "Owner", owners):
        services = await open_services(settings or Settings(), None, store=store, clock=clock, epoch=EPOCH)
    return Leader(Wired(services, clock, store), made[0], store)


class ByRow(MemoryStore):
    """A store by row. With `drops` it says that it drops rows of failed writers by itself."""

    def __init__(self, *, drops: bool = False) -> None:
        super().__init__(atomic=False)
        self.applies_retention = drops

    def another(self) -> MemoryStore:
        made = type(self).__new__(type(self))
        made.__dict__ |= super().another().__dict__ | {"applies_retention": self.applies_retention}
        for table in made._tables.values():
            table._store = made
        return made


@asynccontextmanager
async def fleet(
    *names: str,
    clock: ManualClock | None = None,
    drops: bool = False,
    settings: Settings | None = None,
    store: ByRow | None = None,
) -> AsyncIterator[Fleet]:
    """A leader and members of these names, without links yet."""
    clock, links = clock or ManualClock(), TestLinks()
    first = store or ByRow(drops=drops)
    leader = await start_leader(first, clock, links, settings)
    made = Fleet(clock, leader, names, links)
    try:
        yield made
    finally:
        await made.settled()
        await leader.wired.services.close()
