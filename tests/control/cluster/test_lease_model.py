"""Several servers and one record, as Hypothesis drives them: pauses, clocks of unlike rate, lost and late answers.

At no moment do two of them hold valid leases, no epoch is anyone's but one server's, and epochs only rise. Once nothing
fails any more, one of them leads.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from basalt.cluster.leader import Leadership
from basalt.cluster.lease import Candidate
from basalt.cluster.led_store import Term
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Table
from tests.control.cluster.unreliable import FAULTS, RATES, UnreliableServer

SERVERS = 3
LEASE_MS = 6_000
LOOK_MS = 250.0
WAITS_MS = st.sampled_from([1, 100, 499, 500, 1_000, 1_499, 4_999, 5_000, 5_001, 6_000, 7_000, 60_000])


class World:
    """What all servers share: the passing of time and the tables."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.store = MemoryStore(atomic=False)
        self.servers: list[Server] = []
        self.late: list[Callable[[], object]] = []
        self.epochs: dict[int, str] = {}

    def advance(self, duration_ms: float) -> None:
        self.now_ms += duration_ms
        self.check()

    def go_on(self, duration_ms: float, without: Server | None = None) -> None:
        """Time passes, and the servers do what is due, but for one that waits for an answer or is stopped."""
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.advance(min(LOOK_MS, end_ms - self.now_ms))
            for server in self.servers:
                if server is not without and not server.waiting:
                    server.leadership.step()

    def check(self) -> None:
        leaders = [server.name for server in self.servers if server.leadership.is_leader]
        assert len(leaders) <= 1, f"{leaders} lead at the same time"


class Server(UnreliableServer):
    """One process: its own clock, and a network that fails when told to."""

    def __init__(self, world: World, name: str, rate: float, wall_ms: int) -> None:
        super().__init__(world.late, world.go_on)
        self.world = world
        self.name = name
        self.rate = rate
        self.wall_ms = wall_ms
        self.term: Term | None = None
        self.inner = world.store.another()
        self.leadership = Leadership(
            self,  # type: ignore[arg-type]
            self,
            Candidate(name, f"http://{name}:1", f"{name}-instance", LEASE_MS),
            on_term=self._begin,
        )
        self.leadership.seek()

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> float:
        return 1_000.0 + self.rate * self.world.now_ms

    def table(self, name: str) -> Table:
        self.system = self.inner.table(name)
        return self  # type: ignore[return-value]

    def _begin(self, term: Term) -> None:
        before = self.world.epochs
        assert term.epoch not in before, f"{self.name} leads under {term.epoch}, as {before[term.epoch]} did"
        assert all(epoch < term.epoch for epoch in before), "an epoch does not rise"
        before[term.epoch] = self.name
        self.term = term


class Leases(RuleBasedStateMachine):
    """Whatever happens to the servers."""

    @initialize(rates=st.lists(RATES, min_size=SERVERS, max_size=SERVERS))
    def start(self, rates: list[float]) -> None:
        self.world = World()
        self.world.servers = [Server(self.world, f"s{index}", rate, 0) for index, rate in enumerate(rates)]

    @rule(index=st.integers(0, SERVERS - 1), fault=st.sampled_from(FAULTS), good=st.integers(0, 1), slow_ms=WAITS_MS)
    def work(self, index: int, fault: str, good: int, slow_ms: int) -> None:
        """One server does what is due, and one of its next calls fails; the others only go on while it waits."""
        server = self.world.servers[index]
        server.fault, server.good_calls, server.slow_ms = fault, good, slow_ms
        server.leadership.step()

    @rule(duration_ms=WAITS_MS, stopped=st.integers(0, SERVERS))
    def work_for_a_while(self, duration_ms: int, stopped: int) -> None:
        """All do what is due, but for one that may be stopped."""
        self.world.go_on(duration_ms, None if stopped == SERVERS else self.world.servers[stopped])

    @rule(index=st.integers(0, SERVERS - 1))
    def fence(self, index: int) -> None:
        """The store refuses a write of the leader."""
        term = self.world.servers[index].term
        if term is not None:
            term.end("the store refused a write")

    @rule(duration_ms=WAITS_MS)
    def wait(self, duration_ms: int) -> None:
        self.world.advance(duration_ms)

    @rule()
    def deliver(self) -> None:
        """What was under way for long arrives; nobody waits for its answer any more."""
        for call in self.world.late:
            call()
        self.world.late.clear()

    @rule(index=st.integers(0, SERVERS - 1))
    def release(self, index: int) -> None:
        self.world.servers[index].leadership.release()

    @rule(index=st.integers(0, SERVERS - 1))
    def seek(self, index: int) -> None:
        self.world.servers[index].leadership.seek()

    @rule(index=st.integers(0, SERVERS - 1), wall_ms=st.sampled_from([-(10**9), 0, 1, 10**13]))
    def set_wall_clock(self, index: int, wall_ms: int) -> None:
        self.world.servers[index].wall_ms = wall_ms

    @invariant()
    def one_leader(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.deliver()
        for server in self.world.servers:
            server.fault = "none"
            server.leadership.seek()
        self.world.go_on(5 * LEASE_MS)
        assert sum(server.leadership.is_leader for server in self.world.servers) == 1, "nobody leads"


Leases.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestLeases = Leases.TestCase
