"""One simulated run of consumers of a topic that moves between servers, while questions, answers, links, entries of the log and leaders are lost.

Each message is copied with its acknowledgement in one decision, in every way in which that can be asked for. So in the end each is there once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

from basalt.api.bodies.groups import AcknowledgeRequest, GroupOptions, ReleaseRequest
from basalt.api.bodies.json import HexMessageId
from basalt.api.bodies.messages import RecordIn, Work, WorkAcknowledge, WorkPublish
from basalt.catalog.topics import topic_name
from basalt.cluster.links.frames import Kind
from basalt.cluster.links.hello import LEADER, NONCE_BYTES, VERSION, Accept, Acceptor, Dial, Hello
from basalt.cluster.links.link import Handlers, Link, opened
from basalt.cluster.owners import OwnersMap
from basalt.groups.fetches import FetchAsk
from basalt.groups.groups import Groups
from basalt.groups.live_group import GroupFetch
from basalt.server.wiring import RunningServices, Shared, open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.errors import BasaltError
from basalt_engine.keys import topic_prefix
from basalt_engine.snapshot import POINTER_MAX
from basalt_engine.stores.shards import SHARDS, shard_of
from tests.control.commits.linked_shops import SECRET, LeadersLinks, Loses, MembersLinks, Wire
from tests.control.commits.test_recovery_lost_one_shots import LosingStore, is_entry
from tests.wiring import texts

ORDERS, COPIES = topic_name("shop", "orders"), topic_name("shop", "copies")
GROUP = "copying"
NAMES = ("leader", "a", "b")
CONSUMERS = 3
ROUNDS = 10  # of each consumer, while things are lost
SENT = 30
OPENED_S = 60.0
DRAINED_MAX = 400  # rounds in which all that is left is handled
LOST_CALLS = (
    Kind.PROPOSE, Kind.PROPOSE, Kind.PLACED, Kind.ACKNOWLEDGE, Kind.CARRY, Kind.ENTRIES, Kind.ASK, Kind.PREPARE, Kind.PLACE,
)  # fmt: skip
KEYS = 4
OPTIONS = [
    GroupOptions(mode, attempts_max=0, retry_delay_ms=1, retry_delay_ms_max=1, claim_ms=5_000, member_ms=5_000)
    for mode in ("shared", "keyed")
]


class LinksOfRuns(LeadersLinks):
    """The leader's links, by the names that the map has: those of the members."""

    def of_run(self, run: str) -> Link | None:
        link = self.of_members.get(run)
        return link if link is not None and link.is_open else None


class Server:
    """One of the servers, with all services of its part."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.links = MembersLinks()
        self.forget_calls = self.links.handlers.from_now_on()  # of former services
        self.services: RunningServices
        self.wire: Wire | None = None
        self.loses: Loses = _nothing

    @property
    def groups(self) -> Groups:
        return self.services.groups

    def lose(self, kind: Kind, *, answer: bool) -> None:
        """Lose the next call of this kind, whoever makes it, or its answer, and the link with it."""
        asked: list[tuple[bool, int]] = []

        def loses(by_member: bool, number: int, of_kind: int) -> bool:
            if of_kind == kind:
                asked.append((by_member, number))
            is_answer = of_kind in (Kind.ANSWER, Kind.ERROR) and (not by_member, number) in asked
            found = is_answer if answer else bool(asked)
            if found:
                self.loses = _nothing
            return found

        self.loses = loses


def _nothing(_by_member: bool, _number: int, _kind: int) -> bool:
    return False


class GroupsWorld:
    """The run of one seed."""

    def __init__(self, seed: int) -> None:
        self.chances = random.Random(seed)
        self.options = OPTIONS[seed % 2]
        self.clock = ManualClock()
        self.hurry = self.chances.choice([0, 0.01])
        self.steady = self.chances.random() < 0.5
        self.store = LosingStore()
        self.servers = {name: Server(name) for name in NAMES}
        self.owners = [0] * SHARDS
        self.epochs = [1_000] * SHARDS  # above those of leaders
        self.version, self.epoch = 0, 0
        self.working, self.moving = True, asyncio.Lock()
        self.answers = Counter[str]()
        self.handlers: Handlers
        self.leaders_links: LinksOfRuns

    # Servers.

    @property
    def leader(self) -> Server:
        return self.servers["leader"]

    async def _lead(self) -> None:
        self.epoch += 1
        self.handlers = Handlers()
        self.leaders_links = LinksOfRuns(self.handlers)
        services = await self._opened("leader", self.leaders_links, self.store, self.epoch)
        assert services.transactions.state.begun_for_one_shots() == [], "whoever carried them on leads no more"
        self.leader.services = services
        services.share(cast("Any", self.leaders_links), lambda _: True)

    async def _opened(self, name: str, links: Any, store: LosingStore, epoch: int) -> RunningServices:
        member: Any = SimpleNamespace(candidate=SimpleNamespace(instance=name))
        mine = {shard: self.epochs[shard] for shard in range(SHARDS) if NAMES[self.owners[shard]] == name}
        services = await open_services(
            Settings(), None, store=store, clock=self.clock, epoch=epoch, shared=Shared(links, member, mine)
        )
        store.take(mine)
        services.topics.gate.member = name
        services.topics.gate.forgot(mine, POINTER_MAX)
        services.topics.gate.learn(self._map())
        return services

    def _map(self) -> OwnersMap:
        return OwnersMap(self.version, 1, NAMES, tuple(self.owners), tuple(self.epochs))

    async def _begin(self, name: str) -> None:
        server = self.servers[name]
        services = await self._opened(name, server.links, self.store.another(), 0)
        server.services = services
        server.forget_calls()
        services.share(cast("Any", server.links), lambda _: True)
        await self._connect(server)

    async def _connect(self, server: Server) -> None:
        if server.wire is not None:
            server.wire.cut()
        own = Acceptor(SECRET, "installation", "leader", 7, 7)
        hello = Hello(VERSION, "installation", server.name, "leader", 7, LEADER, bytes(NONCE_BYTES))
        answers = Link(Accept(bytes(NONCE_BYTES), "a test"), self.handlers, lambda: own)
        asks = Link(Dial(SECRET, hello, "a test"), server.links.handlers)
        wire = server.wire = Wire(answers, lambda number, kind: server.loses(True, number, kind))
        wire.other = Wire(asks, lambda number, kind: server.loses(False, number, kind))
        wire.other.other = wire
        answers.connection_made(wire.other)
        asks.connection_made(wire)
        if await opened(asks, OPENED_S) and await opened(answers, OPENED_S):
            self.leaders_links.of_members[server.name] = answers
            server.links.linked(asks)

    def owner_of(self, title: Any) -> Server:
        return self.servers[NAMES[self.owners[shard_of(topic_prefix(*title))]]]

    async def _move(self, title: Any, to: str) -> None:
        """A planned move: what memory knows of it does not go along."""
        async with self.moving:
            shard, before = shard_of(topic_prefix(*title)), self.owner_of(title)
            if before.name == to:
                return
            services, gate = before.services, before.services.topics.gate
            gate.close([shard])
            try:
                logs = services.topics.suspend({shard})
                await gate.left({shard})
                await services.writer.passed()
                await services.topics.confirm_or_delete({shard})
                await services.writer.alone(services.writer.each, lambda: services.shard_holding._forget({shard}))
            except BasaltError:
                gate.call_off([shard])
                return
            assert logs is not None
            gate.lose([shard])
            self.epochs[shard] += 1
            self.owners[shard] = NAMES.index(to)
            self.version += 1
            for server in self.servers.values():
                server.services.topics.gate.learn(self._map())
            taker = self.servers[to].services
            taker.topics.gate.begin({shard: self.epochs[shard]})
            taker.store.take({shard: self.epochs[shard]})
            taker.topics.gate.forgot([shard], POINTER_MAX)  # nothing is taken for known of any transaction
            taker.topics.gate.take([shard])

    # The run.

    async def run(self) -> None:
        """Have consumers work while things are lost, then handle what is left, and look."""
        await self._lead()
        for name in NAMES[1:]:
            await self._begin(name)
        for title in (ORDERS, COPIES):
            await self.leader.services.topics.create(title, {})
        await self._move(ORDERS, "a")
        await self._move(COPIES, self.chances.choice(NAMES))
        await self.owner_of(ORDERS).groups.make(ORDERS, GROUP, self.options)
        records = [RecordIn(b"%d" % each, b"%d" % (each % KEYS)) for each in range(SENT)]
        await self.owner_of(ORDERS).services.messaging.publish_records(ORDERS, records)
        trouble = asyncio.ensure_future(self._trouble())
        await asyncio.gather(*[self._consumer(f"consumer{number}") for number in range(CONSUMERS)])
        self.working = False
        await trouble
        await self._drain()
        for server in reversed(self.servers.values()):
            await server.services.close()

    async def _consumer(self, name: str) -> None:
        for _ in range(ROUNDS):
            await asyncio.sleep(self.chances.choice([0, 0.001, 0.05, 0.3]))
            with suppress(BasaltError):
                await self._round(name, self.chances.choice(self.WAYS))
                self.answers["done"] += 1

    async def _round(
        self, name: str, way: Callable[[GroupsWorld, str, GroupFetch, list[str]], Awaitable[None]]
    ) -> None:
        fetched = await self.owner_of(ORDERS).groups.fetch(
            ORDERS, GROUP, FetchAsk(name, limit=self.chances.choice([1, 2, 5]))
        )
        if fetched.claim is not None:
            await way(self, name, fetched, texts(fetched.fetch))

    def _entry(self, name: str, fetched: GroupFetch) -> WorkAcknowledge:
        if self.chances.random() < 0.5:
            assert fetched.claim is not None
            return WorkAcknowledge(*ORDERS, GROUP, claims=(fetched.claim,), member=name, round=fetched.round)
        found = [each for part in fetched.fetch.slices for each in part.ids()]
        return WorkAcknowledge(*ORDERS, GROUP, ids=found, member=name, round=fetched.round)

    @staticmethod
    def _copies(found: list[str]) -> list[WorkPublish]:
        return [WorkPublish(*COPIES, [text.encode() for text in found])]

    async def _tried(self, call: Callable[[], Awaitable[object]]) -> None:
        """As a client does: the same once more where nobody knows."""
        try:
            await call()
        except BasaltError:
            if self.chances.random() < 0.5:
                raise
            await asyncio.sleep(self.chances.choice([0, 0.3, 1]))
            await call()

    async def _at_once(self, name: str, fetched: GroupFetch, found: list[str]) -> None:
        work = Work(self._copies(found), acknowledge=[self._entry(name, fetched)])
        request_id = f"{name} {self.chances.random()}"
        at = self.chances.choice([self.leader, self.owner_of(ORDERS)])
        await self._tried(lambda: at.services.transactions.one_shot_anywhere(work, "", request_id))

    async def _with_the_commit(self, name: str, fetched: GroupFetch, found: list[str]) -> None:
        transactions = self.leader.services.transactions
        begun = await transactions.begin(timeout_ms=4_000)
        work = Work(self._copies(found), acknowledge=[self._entry(name, fetched)])
        await self._tried(lambda: transactions.commit(begun.id, work))

    async def _before_the_commit(self, name: str, fetched: GroupFetch, found: list[str]) -> None:
        transactions = self.leader.services.transactions
        begun = await transactions.begin(timeout_ms=4_000)
        entry = self._entry(name, fetched)
        asked = AcknowledgeRequest(
            tuple(map(HexMessageId, entry.ids)), None, tuple(entry.claims), (), name, 0, fetched.round
        )

        async def acknowledge() -> None:
            owner = self.owner_of(ORDERS).services
            await owner.transactions.get(begun.id)
            await owner.groups.acknowledge(ORDERS, GROUP, asked, begun.id)

        await self._tried(acknowledge)
        if self.chances.random() < 0.3:
            await transactions.abort(begun.id)
            return
        await self._tried(lambda: transactions.commit(begun.id, Work(self._copies(found))))

    async def _release(self, name: str, fetched: GroupFetch, found: list[str]) -> None:
        assert fetched.claim is not None
        asked = ReleaseRequest(claims=(fetched.claim,), member=name)
        await self._tried(lambda: self.owner_of(ORDERS).groups.release(ORDERS, GROUP, asked))

    async def _forget(self, name: str, fetched: GroupFetch, found: list[str]) -> None:
        """The consumer is gone."""

    WAYS = (
        _at_once,
        _at_once,
        _with_the_commit,
        _with_the_commit,
        _before_the_commit,
        _before_the_commit,
        _release,
        _forget,
    )

    # What goes wrong.

    async def _trouble(self) -> None:
        troubles: dict[Callable[[], Awaitable[None]], int] = {
            self._lose: 8, self._cut: 2, self._lose_entry: 1, self._jobs: 5, self._move_some: 3, self._lead_anew: 3,
        }  # fmt: skip
        while self.working:
            await asyncio.sleep(self.chances.choice([0, 0.001, 0.05, 0.3]))
            await self.chances.choices(list(troubles), list(troubles.values()))[0]()
            for server in self._members():
                if self.chances.random() < 0.7 and not self._is_linked(server):
                    await self._connect(server)

    def _members(self) -> list[Server]:
        return [self.servers[name] for name in NAMES[1:]]

    @staticmethod
    def _is_linked(server: Server) -> bool:
        return server.links.to_leader is not None and server.links.to_leader.is_open

    async def _lose(self) -> None:
        self.chances.choice(self._members()).lose(self.chances.choice(LOST_CALLS), answer=self.chances.random() < 0.6)

    async def _cut(self) -> None:
        wire = self.chances.choice(self._members()).wire
        assert wire is not None
        wire.cut()

    async def _lose_entry(self) -> None:
        faults = self.store.faults
        faults.lose, faults.before, faults.late = is_entry, self.chances.random() < 0.5, []

    async def _jobs(self) -> None:
        with suppress(BasaltError):
            await self.leader.services.transactions.expire()

    async def _move_some(self) -> None:
        await self._move(self.chances.choice([ORDERS, ORDERS, COPIES]), self.chances.choice(NAMES))

    async def _lead_anew(self) -> None:
        """Another process leads, after a crash of the one before, and has its shards."""
        async with self.moving:
            for server in self._members():
                if server.wire is not None:
                    server.wire.cut()
            former = self.leader.services
            self.store.faults.lose = None
            self.store.close()
            self.store = self.store.another()
            with suppress(BasaltError):
                await former.groups.live.close()
            await self._lead()

    # What must hold.

    async def _drain(self) -> None:
        """Nothing is lost any more: all that is left is handled."""
        self.store.faults.lose = None
        for server in self._members():
            server.loses = _nothing
            await self._connect(server)
        for _ in range(DRAINED_MAX):
            with suppress(BasaltError):
                await self.leader.services.transactions.expire()
                left = self.leader.services.transactions.state.begun_for_one_shots()
                assert left == [], f"nobody carries these on, and they are open: {left}"
            with suppress(BasaltError):
                await self._round("last", type(self)._at_once)
            if await self._copied() == list(range(SENT)) and self._is_acknowledged():
                return
            await asyncio.sleep(0.5)
        raise AssertionError(f"copied {await self._copied()}; acknowledged: {self._is_acknowledged()}")

    async def _copied(self) -> list[int]:
        found = list[int]()
        with suppress(BasaltError):
            page = await self.owner_of(COPIES).services.messaging.fetch(COPIES, None, True, committed=True)
            found = sorted(map(int, texts(page)))
            assert len(found) == len(set(found)), f"copied twice: {found}"
        return found

    def _is_acknowledged(self) -> bool:
        (state,) = self.leader.services.transactions.state.groups.by_number.values()
        return len(state.acknowledged) == 1 and not self.leader.services.transactions.state.groups.pending_in(
            state.number
        )
