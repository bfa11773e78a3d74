"""A world of members: the scale-out protocol as an executable model, with all that may go wrong drawn from one seed.

Several servers are to share the work of one installation: each topic has one owner, which gives out its places; one coordinator decides all
transactions in one log; fences per shard keep former owners out. The product has one leader and standbys today, and none of this. The model
comes first: what it finds costs an afternoon here, and data later. The parts of the product that share an installation are built after it, and then
this world runs over them in its place.
"""

from __future__ import annotations

from typing import Any

from tests.sim.members.clients import Client
from tests.sim.members.hbase import DATA_REGIONS, LOG, TOPICS, HBase
from tests.sim.members.history import History, Reader
from tests.sim.members.ledger import Run
from tests.sim.members.links import Links
from tests.sim.members.member import Clock, Member
from tests.sim.members.play import Play

MEMBERS = 3
CLIENTS = 4
ROUGH_MS = 30_000  # after which clients are left alone, whatever they have done by then
CALM_MS = 9_000  # in which everything must end: leases, transactions, runs that region servers have to hear of


class MembersWorld:
    """The run of one seed. The settings of a class may be changed by worlds of a kind."""

    lie_rate = 0.0  # how often a look of the leader ends a membership that lasts
    mix = (4, 5, 6, 2, 2)  # of what clients do
    move_every_ms = (300.0, 2_500.0)
    harms_max = 6
    acts = 8  # of each client
    abort_rate = 0.15
    cleans_every_ms = (100.0, 600.0)
    rates: tuple[float, ...] = (0.96, 1.0, 1.04)  # of the clocks that leases are counted by
    wrong_by_ms: tuple[int, ...] = (0, 0, -2_500, 2_500)  # less apart than a run rests before it is dropped
    rests_ms = 250.0  # at most, between two of them

    def __init__(self, seed: int) -> None:
        self.play = Play(seed)
        self.hbase = HBase(self.play)
        self.members: dict[str, Member] = {}
        self.links = Links(self.play, self.members)
        self.history = History()
        self.droppable: tuple[frozenset[int], tuple[Run, ...]] = (frozenset(), ())
        self.working = 0
        self.is_calm = False
        self._started = 0
        for _ in range(MEMBERS):
            self.start_member()

    def set_weather(self) -> None:
        """How bad the network is, by the seed."""
        chances = self.play.chances
        self.hbase.late_rate = chances.choice([0.0, 0.01, 0.04])
        self.hbase.lost_rate = chances.choice([0.0, 0.01, 0.03])
        self.links.slow_rate = chances.choice([0.0, 0.02, 0.1])
        self.links.lost_rate = chances.choice([0.0, 0.01, 0.03])

    def run(self) -> None:
        """Let clients work through all that goes wrong, then let everything end, and check."""
        self.set_weather()
        self.play.start(self._harm())
        self.play.start(self._clean())
        self.follow_topics()
        for number in range(CLIENTS):
            self.working += 1
            self.play.start(Client(self, f"session {number}").work())
        self.play.run(ROUGH_MS, lambda: not self.working)
        self.finish()

    def finish(self) -> None:
        """Calm down, let everything end, and check."""
        self.calm()
        self.play.run(self.play.now_ms + CALM_MS)
        broken = [*self.history.check(self.hbase), *self._unsettled()]
        self.play.close()
        assert not broken, "\n".join(broken[:5])

    def follow_topics(self) -> None:
        """Readers of both kinds for each topic."""
        for topic in TOPICS:
            for is_raw in (False, True):
                reader = Reader(topic, is_raw)
                self.history.readers.append(reader)
                self.play.start(Client(self, "").follow(reader))

    def start_member(self) -> Member:
        """A new run of a server."""
        self._started += 1
        name = f"member {self._started}"
        chances = self.play.chances
        clock = Clock(self.play, chances.choice(self.rates), chances.choice(self.wrong_by_ms))
        self.members[name] = made = Member(self, name, clock)
        return made

    def alive(self) -> list[Member]:
        """The members that are not dead; some may stand still."""
        return [member for member in self.members.values() if member.process.alive]

    def publish(self, writers: frozenset[int], runs: tuple[Run, ...]) -> None:
        """What the coordinator tells region servers of failed writers."""
        self.droppable = (writers, runs)

    def calm(self) -> None:
        """From now on nothing goes wrong any more."""
        self.is_calm = True
        self.lie_rate = 0.0
        self.hbase.late_rate = self.hbase.late_write_rate = self.hbase.lost_rate = self.links.slow_rate = (
            self.links.lost_rate
        ) = 0.0
        self.links.cut_until_ms.clear()
        for member in self.alive():
            member.process.stopped_until = 0.0
            member.process.steps_left = 0
        self.play.start(self._keep_alive())

    async def _keep_alive(self) -> None:
        while True:
            while len(self.alive()) < 2:
                self.start_member()
            await self.play.sleep(200)

    # What goes wrong.

    async def _harm(self) -> None:
        chances = self.play.chances
        harms: list[Any] = [
            self._kill,
            self._kill,
            self._stop,
            self._stop,
            self._cut_link,
            self._cut_off,
            self._region,
            self._no_log,
        ]
        for _ in range(chances.randint(0, self.harms_max)):
            await self.play.sleep(chances.uniform(200, 2_500))
            if self.is_calm:
                return
            while len(self.alive()) < 2:
                self.start_member()
            chances.choice(harms)()

    def _kill(self) -> None:
        """Between any two awaits: it is said after how many steps of the process."""
        self._victim().process.steps_left = self.play.chances.randint(1, 60)
        if self.play.chances.random() < 0.8:
            self.play.at(self.play.now_ms + self.play.chances.uniform(50, 1_000), self.start_member)

    def _stop(self) -> None:
        self._victim().process.stopped_until = self.play.now_ms + self.play.chances.choice([100, 700, 1_600, 3_500])

    def _victim(self) -> Member:
        """Each second time the leader, for there is one among many."""
        leaders = [member for member in self.alive() if member.leader is not None]
        return self.play.chances.choice(leaders if leaders and self.play.chances.random() < 0.5 else self.alive())

    def _cut_link(self) -> None:
        alive = self.alive()
        if len(alive) > 1:
            one, other = self.play.chances.sample(alive, 2)
            self.links.cut(one.instance, other.instance, self.play.chances.choice([5, 300, 2_000, 5_000]))

    def _cut_off(self) -> None:
        """A member has no gateway for a while; what it sends arrives afterwards."""
        until_ms = self.play.now_ms + self.play.chances.choice([200, 900, 2_500])
        self.hbase.cut_until_ms[self._victim().process] = until_ms

    def _region(self) -> None:
        """A region is away for a while, and comes back on another server."""
        name = self.play.chances.choice(DATA_REGIONS)
        until_ms = self.play.now_ms + self.play.chances.choice([0, 150, 800, 2_000])
        self.hbase.regions[name].away_until_ms = until_ms
        self.play.at(until_ms, lambda: self.hbase.reopen(name), in_order=True)

    def _no_log(self) -> None:
        self.hbase.regions[LOG].away_until_ms = self.play.now_ms + self.play.chances.choice([200, 1_000, 3_000])

    async def _clean(self) -> None:
        """Compactions of region servers, which drop the rows of failed writers that they have heard of."""
        while True:
            await self.play.sleep(self.play.chances.uniform(*self.cleans_every_ms))
            self.hbase.clean(self.play.chances.choice(DATA_REGIONS), self._may_drop)

    def _may_drop(self, writer: int) -> bool:
        writers, runs = self.droppable
        return writer in writers or any(run.first <= writer <= run.last for run in runs)

    def _unsettled(self) -> list[str]:
        """All that has not ended though nothing goes wrong any more."""
        leaders = [
            member.leader for member in self.alive() if member.leader is not None and member.leader.coordinator.is_open
        ]
        if not leaders:
            return ["nobody coordinates"]
        ledger = leaders[-1].coordinator.ledger
        broken = [f"transaction {writer} is {each.state} for ever" for writer, each in ledger.open.items()]
        live = {member.instance for member in self.alive()}
        broken += [
            f"the loan of {loan.member} lasts for ever" for loan in ledger.loans.values() if loan.member not in live
        ]
        owners = self.hbase.system["owners:map"].owners
        broken += [f"{shard} has no owner" for shard, (owner, _) in owners.items() if owner not in live]
        return broken


class LyingWorld(MembersWorld):
    """Memberships are ended while they last, so that only fences protect."""

    lie_rate = 0.004


class HarshWorld(LyingWorld):
    """The same, and much is late or lost, while most of what clients do is small."""

    lie_rate = 0.015
    harms_max = 10
    move_every_ms = (200.0, 900.0)
    mix = (8, 8, 4, 1, 1)
    acts = 14
    rests_ms = 120.0

    def set_weather(self) -> None:
        """Always bad."""
        self.hbase.late_rate, self.hbase.lost_rate = 0.12, 0.04
        self.links.slow_rate, self.links.lost_rate = 0.1, 0.04


class CleaningWorld(MembersWorld):
    """Transactions over topics and tables fail, their rows are dropped, and topics go from one clock to another; notes are late."""

    mix = (5, 0, 10, 0, 1)
    abort_rate = 0.6
    acts = 14
    rests_ms = 200.0
    move_every_ms = (50.0, 300.0)
    cleans_every_ms = (5.0, 30.0)
    wrong_by_ms = (-2_500, 2_500)

    def set_weather(self) -> None:
        """The region of the notes is away most of the time."""
        self.play.start(self._without_notes())

    async def _without_notes(self) -> None:
        while not self.is_calm:
            self.hbase.regions["notes"].away_until_ms = self.play.now_ms + 500
            await self.play.sleep(self.play.chances.uniform(520, 900))


class SlowWorld(MembersWorld):
    """Commits over several owners, whose links are slow."""

    mix = (2, 1, 10, 0, 1)
    acts = 12

    def set_weather(self) -> None:
        """HBase answers."""
        self.links.slow_rate, self.links.slow_ms = 0.15, (20.0, 2_500.0)


class LateWorld(LyingWorld):
    """Plain messages of owners whose clocks are apart, and whose writes are late."""

    lie_rate = 0.03
    mix = (20, 1, 0, 0, 0)
    acts = 25
    rests_ms = 100.0
    wrong_by_ms = (-2_500, 2_500)

    def set_weather(self) -> None:
        """Only writes are late."""
        self.hbase.late_write_rate = 0.25
