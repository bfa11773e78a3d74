"""A leader and other members over one store that is not atomic, in one process and on one clock. Links are bytes in memory, which a story may lose.

A member here is what carries out one-shot transactions of its own topics, and follows the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.catalog.topics import TopicName, Topics, topic_name
from basalt.cluster.links.frames import FrameReader, Kind
from basalt.cluster.links.hello import LEADER, NONCE_BYTES, VERSION, Accept, Acceptor, Dial, Hello
from basalt.cluster.links.link import Handlers, Link, opened
from basalt.cluster.links.links import Links
from basalt.cluster.shard_gate import ShardGate
from basalt.cluster.shard_loads import ShardLoads
from basalt.commits.commit_stage import Asking, CommitStage
from basalt.commits.linked_decisions import LinkedDecisions
from basalt.commits.one_shots import OneShots
from basalt.commits.owning.owner import Owner
from basalt.messaging.log.roll_back import RollBacks
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers
from basalt.messaging.read.log_reader import LogReader
from basalt.runtime.write_lanes import WriteLanes
from basalt.server.wiring import BUCKETS_EMBEDDED
from basalt.transactions.followed import FollowedTransactions
from basalt.transactions.log.transaction_log import SHARED_ENTRIES_KEPT, TransactionLog
from basalt.transactions.manager import TransactionManager
from basalt.transactions.open_pointers import OpenPointers
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import TransactionLimits
from basalt_engine.clock import ManualClock
from basalt_engine.keys import TopicKeys
from basalt_engine.messages import MessageTable
from basalt_engine.records import decode
from basalt_engine.snapshot import TransactionSnapshot, Visibility
from basalt_engine.system import SystemTable, install
from tests.control.commits.test_recovery_lost_one_shots import LosingStore
from tests.wiring import Wired

HANG_S = 60.0
SECRET = b"a secret of thirty-two characters"
Loses = Callable[[bool, int, int], bool]  # of a frame: whether a member sends it, its number and its kind


class Wire(asyncio.Transport):
    """One end of a connection: what is written comes to the other end in a later turn, and in order."""

    def __init__(self, taker: Link, loses: Callable[[int, int], bool]) -> None:
        super().__init__({"peername": ("memory", 1)})
        self.taker = taker
        self.other: Wire
        self._loses = loses
        self._reader = FrameReader()
        self._is_closing = False
        self._is_cut = False
        self._loop = asyncio.get_running_loop()

    def write(self, data: Any) -> None:
        """Lose nothing, or this and all that would come after it."""
        if any(self._loses(frame.number, frame.kind) for frame in self._reader.feed(bytes(data))):
            self.cut()
        elif not self._is_closing:
            self._loop.call_soon(self._deliver, bytes(data))

    def _deliver(self, data: bytes) -> None:
        if not self._is_cut:
            self.taker.data_received(data)

    def cut(self) -> None:
        """Lose what is on its way, both ways; each end hears of it."""
        for end in (self, self.other):
            end._is_cut = True
            end.close()

    def close(self) -> None:
        """Take no more; the other end hears of it behind what it gets."""
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self.taker.connection_lost, None)

    def abort(self) -> None:
        self.cut()

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0


class LeadersLinks:
    """The leader's links to the members, for those who push over them."""

    def __init__(self, handlers: Handlers) -> None:
        self.handlers = handlers
        self.of_members: dict[str, Link] = {}
        self.beats, self.loads = self, ShardLoads()

    def views(self, instance: str, oldest_view: int) -> None:
        """Hear of the oldest view of a member."""

    def oldest_view_of_members(self) -> int | None:
        return None


class MembersLinks:
    """A member's link to the leader, for those who follow over it."""

    def __init__(self) -> None:
        self.loads = ShardLoads()
        self.handlers = Handlers()
        self.to_leader: Link | None = None
        self.oldest_view: Callable[[], int] = lambda: 0
        self._when_linked: list[Callable[[], None]] = []

    def when_linked(self, call: Callable[[], None]) -> None:
        self._when_linked.append(call)

    def forget(self, call: Callable[[], None]) -> None:
        self._when_linked.remove(call)

    def linked(self, link: Link) -> None:
        """There is a new link."""
        self.to_leader = link
        for call in self._when_linked:
            call()


class Member:
    """A server that does not lead, and owns topics."""

    def __init__(self, installation: Installation, name: str) -> None:
        self.installation = installation
        self.name = name
        self.store = installation.store.another()
        self.links = MembersLinks()
        self.died: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.loses: Loses = _loses_nothing
        self.wire: Wire
        clock, store = installation.clock, self.store
        facts = install(SystemTable(store.table(SystemTable.name)), clock, 16)
        self.lanes = WriteLanes.of(store, clock, BUCKETS_EMBEDDED)
        self.gate = ShardGate(clock)
        self.logs = TopicLogs(store, clock, Topics(store, clock, facts.buckets), tail_bytes_max=1 << 20, gate=self.gate)
        log = TransactionLog(store.table("transaction_log"), TransactionLimits(), entries_kept=SHARED_ENTRIES_KEPT)
        self.followed = FollowedTransactions(store, clock, self.lanes, log, cast("Links", self.links))
        self.followed.start()
        manager = cast("TransactionManager", self.followed)
        reader, roll_backs = LogReader(store, clock, self.logs), RollBacks(store, self.logs, self.lanes.topics)
        markers = TopicMarkers(store, clock, self.logs, reader, self.lanes.topics, cast("Any", None))
        self.owner = Owner(
            self.logs, roll_backs, self.lanes.topics, markers, OpenPointers(manager), clock, store_drops=False
        )
        self.linked = LinkedDecisions(manager, lambda: self.links.to_leader)
        nothing = cast("Any", None)
        stages = CommitStage(manager, self.owner, nothing, clock)
        self.one_shots = OneShots(manager, stages, self.owner, nothing, clock, nothing, self.linked)

    async def connect(self) -> None:
        """Have a link to the leader, in place of the one that there was."""
        if self.links.to_leader is not None:
            self.wire.cut()
        own = Acceptor(SECRET, "installation", "leader", 7, 7)
        hello = Hello(VERSION, "installation", self.name, "leader", 7, LEADER, bytes(NONCE_BYTES))
        answers = Link(Accept(bytes(NONCE_BYTES), "a test"), self.installation.handlers, lambda: own)
        asks = Link(Dial(SECRET, hello, "a test"), self.links.handlers)
        self.wire = Wire(answers, lambda number, kind: self.loses(True, number, kind))
        self.wire.other = Wire(asks, lambda number, kind: self.loses(False, number, kind))
        self.wire.other.other = self.wire
        answers.connection_made(self.wire.other)
        asks.connection_made(self.wire)
        assert await opened(asks, HANG_S)
        assert await opened(answers, HANG_S)
        self.installation.links.of_members[self.name] = answers
        self.links.linked(asks)
        await self.followed.ensure_known()

    @property
    def is_linked(self) -> bool:
        """True while it has a link to the leader."""
        return self.links.to_leader is not None and self.links.to_leader.is_open

    def lose_nothing(self) -> None:
        """From now on nothing is lost."""
        self.loses = _loses_nothing

    async def die(self) -> None:
        """Its process ends: nothing of it goes on."""
        self.died.set_result(None)
        self.wire.cut()
        for task in (
            *self.linked._asking,
            self.linked._learning,
            *(loans._asking for loans in self.one_shots.borrowing),
        ):
            if task is not None:
                task.cancel()
        await self.followed.close()

    async def one_shot(self, title: TopicName, *texts: str, request_id: str | None = None) -> Outcome:
        """One of these texts in one topic."""
        return await self.work({title: texts}, request_id)

    async def work(self, texts: dict[TopicName, Sequence[str]], request_id: str | None = None) -> Outcome:
        """One of these texts in these topics."""
        parts = [WorkPublish(*title, [text.encode() for text in each]) for title, each in texts.items()]
        work = Work(publish=parts)
        plan = self.owner.plan_in_memory(work) or await self.owner.plan(work, None)
        told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.one_shots.carry(plan, Asking("", request_id, ""), told)
        return await told

    def lose(self, kind: Kind, *, answer: bool = False) -> None:
        """Lose the next question of this kind, or the answer to it, and the link with it."""
        asked: list[int] = []

        def loses(by_member: bool, number: int, of_kind: int) -> bool:
            if by_member and of_kind == kind:
                asked.append(number)
            found = (
                of_kind in (Kind.ANSWER, Kind.ERROR) and not by_member and number in asked if answer else bool(asked)
            )
            if found:
                self.loses = _loses_nothing
            return found

        self.loses = loses


def _loses_nothing(_by_member: bool, _number: int, _kind: int) -> bool:
    return False


class Installation:
    """The store, its leader of the moment, and the other members."""

    def __init__(self, store: LosingStore, clock: ManualClock, leader: Wired) -> None:
        self.store, self.clock, self.leader = store, clock, leader
        self.members: list[Member] = []
        self.keys: dict[TopicName, TopicKeys] = {}
        self.over: set[str] = set()  # whose membership has ended
        self._serve()

    @classmethod
    async def start(cls, *members: str, clock: ManualClock | None = None) -> Installation:
        """A leader, and members of these names with links to it; each has a topic `shop:NAME` and one `shop:NAME-2`."""
        store, clock = LosingStore(), clock or ManualClock()
        made = cls(store, clock, await Wired.start(store, clock))
        for name in members:
            for title in (topic_name("shop", name), topic_name("shop", f"{name}-2")):
                made.keys[title] = (await made.leader.topics.create(title, {})).keys
            made.members.append(Member(made, name))
            await made.members[-1].connect()
        return made

    def _serve(self) -> None:
        self.handlers = Handlers()
        self.links = LeadersLinks(self.handlers)
        self.leader.transactions.manager.lead(cast("Links", self.links))
        self.leader.transactions.decide_for_members(self.handlers, lambda name: name not in self.over)

    async def lead_anew(self) -> None:
        """Another server leads, after a crash of the one before. Members hear of it, and dial."""
        for member in self.members:
            member.wire.cut()
        self.store.close()  # what the one before still does comes to nothing
        self.store = self.store.another()
        self.leader = await Wired.start(self.store, self.clock)
        self._serve()

    async def connect(self) -> None:
        """Each member has a new link."""
        for member in self.members:
            await member.connect()

    def shown(self, title: TopicName, view: TransactionSnapshot | None = None) -> list[str]:
        """The messages that a committed reader sees now: up to the first row of a writer that is not decided."""
        view = view or self.leader.transactions.manager.current()
        found: list[str] = []
        for row in MessageTable.of(self.store).scan(self.keys[title]):
            seen = view.judge(row.written_by)
            if seen is Visibility.HOLD:
                break
            if seen is Visibility.VISIBLE and row.batch is not None:
                found += [bytes(payload).decode() for payload in decode(row.batch).payloads()]
        return found

    def undecided(self, name: str) -> list[tuple[int, int]]:
        """The loans of a member."""
        return [tuple(loan.run) for loan in self.leader.transactions.state.loans.of(name)]
