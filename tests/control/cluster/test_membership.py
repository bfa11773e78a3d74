"""One server's membership, step by step and on its own thread; and what all members together read and write."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from basalt.cluster.leader import Leadership
from basalt.cluster.lease import MARGIN_PARTS, RENEWALS_PER_LEASE, Candidate, LeaseRecord
from basalt.cluster.led_store import Term
from basalt.cluster.members import (
    DEAD_KEPT_MS,
    DEAD_MAX,
    LOOKS_PER_LEASE,
    MEMBER,
    MEMBERS_MAX,
    ROWS_MAX,
    OwnMember,
)
from basalt.cluster.membership import CHANGES_PER_LOOK_MAX, ROUNDS_MAX, Membership, Owner
from basalt.cluster.owners import KIND, NAME, OwnersMap, granted
from basalt_engine.clock import ManualClock
from basalt_engine.errors import StoreError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import SHARDS
from basalt_engine.system import VALUE, SystemTable, entry_key, install
from basalt_engine.table import Columns, Mutation, Put, Row

LEASE_MS = 6_000
LOOK_MS = LEASE_MS // LOOKS_PER_LEASE
STEP_MS = 100
HANG_S = 60.0


class CountedStore(MemoryStore):
    """One server's handle on the system table, which counts its calls, and fails when it is told to."""

    def __init__(self, shared: MemoryStore) -> None:
        super().__init__(atomic=False)
        self.system = shared.another().table("system")
        self.calls: Counter[str] = Counter()
        self.rows = 0
        self.fails: set[str] = set()

    def table(self, name: str) -> Any:
        return self if name == "system" else super().table(name)

    def _called(self, name: str) -> None:
        self.calls[name] += 1
        if name in self.fails:
            raise StoreError("the network is down")

    def get(self, key: bytes) -> Columns | None:
        self._called("get")
        return self.system.get(key)

    def scan(self, *given: Any, **limits: Any) -> Iterator[Row]:
        self._called("scan")
        for row in self.system.scan(*given, **limits):
            self.rows += 1
            yield row

    def write(self, mutations: Sequence[Any]) -> None:
        self._called("write")
        self.system.write(cast("Sequence[Mutation]", mutations))

    def check_and_write(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        self._called("check_and_write")
        return self.system.check_and_write(key, column, expected, columns)


class Server:
    """One member, which leads or not as the test says."""

    def __init__(self, world: World, name: str, leads: bool = False) -> None:
        self.name = name
        self.store = CountedStore(world.store)
        self.leadership = SimpleNamespace(is_leader=leads, leader=None, unchanged_ms=0.0)
        candidate = Candidate(name, f"http://{name}:4780", f"{name}-1", LEASE_MS)
        self.terms: list[Term] = []
        self.membership = Membership(
            self.store, world.clock, candidate, cast("Leadership", self.leadership), "1.0", on_term=self.terms.append
        )

    def states(self, clock: ManualClock) -> dict[str, str]:
        return {each.record.holder: each.state(clock.monotonic_ms()) for each in self.membership.seen.values()}


class World:
    """The members, their rows and the time."""

    def __init__(self) -> None:
        self.store = MemoryStore(atomic=False)
        self.system = SystemTable(self.store.table("system"))
        self.clock = ManualClock()
        install(self.system, self.clock, 2)
        self.servers: list[Server] = []

    def add(self, name: str, leads: bool = False) -> Server:
        self.servers.append(Server(self, name, leads))
        return self.servers[-1]

    def go_on(self, duration_ms: int, *without: Server) -> None:
        for server in self.servers:
            if server not in without:
                server.membership.step()
        for _ in range(duration_ms // STEP_MS):
            self.clock.advance(STEP_MS)
            for server in self.servers:
                if server not in without:
                    server.membership.step()

    def rows(self) -> list[str]:
        return [name for name, _ in MEMBER.scan(self.system)]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def pair(world: World) -> tuple[Server, Server]:
    """A leader, and a standby; both are members."""
    leader, standby = world.add("first", leads=True), world.add("second")
    world.go_on(LOOK_MS)
    return leader, standby


def until(is_so: Callable[[], bool]) -> None:
    stop_s = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < stop_s, "it did not come to be"
        time.sleep(0.001)


def test_every_server_is_a_member_and_knows_all(world: World, pair: tuple[Server, Server]):
    world.go_on(3 * LEASE_MS)
    for server in pair:
        assert server.states(world.clock) == {"first": "live", "second": "live"}
        assert (server.membership.is_on, server.membership.begun, server.membership.reachable) == (True, 1, True)
    record = pair[0].membership.seen["second-1"].record
    assert (record.url, record.version, record.lease_ms) == ("http://second:4780", "1.0", LEASE_MS)
    assert record.count > 2 * RENEWALS_PER_LEASE


def test_who_is_killed_is_silent_and_after_its_lease_dead(world: World, pair: tuple[Server, Server]):
    leader, standby = pair
    world.go_on(LEASE_MS // 2 + LEASE_MS // RENEWALS_PER_LEASE, standby)
    assert leader.states(world.clock)["second"] == "silent"
    assert leader.membership.silent() == ["second-1"]
    world.go_on(LEASE_MS // 2 + LOOK_MS, standby)
    assert (leader.states(world.clock)["second"], leader.membership.silent()) == ("dead", [])
    assert MEMBER.get(world.system, "second-1").is_over  # type: ignore[union-attr]


def test_a_standby_ends_nobody(world: World, pair: tuple[Server, Server]):
    leader, standby = pair
    world.go_on(3 * LEASE_MS, leader)
    assert standby.states(world.clock)["first"] == "silent"


def test_a_new_leader_has_counted_already(world: World, pair: tuple[Server, Server]):
    leader, standby = pair
    third = world.add("third")
    world.go_on(LEASE_MS)
    world.go_on(LEASE_MS, leader, third)  # both died at one moment
    standby.leadership.is_leader = True
    world.go_on(LOOK_MS + LOOK_MS, leader, third)
    assert standby.states(world.clock) == {"first": "dead", "second": "live", "third": "dead"}


def test_who_was_paused_past_its_lease_begins_another_membership_and_says_so(
    world: World, pair: tuple[Server, Server], caplog: pytest.LogCaptureFixture
):
    leader, standby = pair
    world.go_on(2 * LEASE_MS, standby)
    assert not standby.membership.is_on, "its own clock told it first"
    assert leader.states(world.clock)["second"] == "dead"
    caplog.set_level(logging.INFO)
    world.go_on(LOOK_MS)
    assert "the membership second-1 was ended" in caplog.text
    assert standby.membership.instance != "second-1"
    assert (standby.membership.is_on, standby.membership.begun) == (True, 2)
    world.go_on(LOOK_MS)
    assert Counter(each.state(world.clock.monotonic_ms()) for each in leader.membership.seen.values()) == {
        "live": 2, "dead": 1
    }  # fmt: skip


def test_who_was_ended_while_it_renewed_may_serve_until_its_lease_is_over_and_who_was_silent_may_not(
    world: World, pair: tuple[Server, Server]
):
    """Its own clock is what it goes by until its next renewal is refused: nobody may be given its shards before."""
    leader, cut_off = pair
    leader.membership.beats.to_end = frozenset({cut_off.membership.instance})
    for _ in range(LEASE_MS // STEP_MS):
        world.go_on(STEP_MS, cut_off)  # it stands still, as between two renewals
        if cut_off.membership.is_on:
            assert cut_off.membership.candidate.instance in leader.membership.may_serve()
            assert leader.membership.others_reading() == [cut_off.membership.instance], (
                "versions that it reads are kept"
            )
    assert leader.states(world.clock)["second"] == "dead"
    assert not cut_off.membership.is_on
    world.go_on(LOOK_MS + STEP_MS, cut_off)
    assert leader.membership.may_serve() == {"first-1"}
    assert leader.membership.others_reading() == []
    third = world.add("third")
    world.go_on(LOOK_MS, cut_off)
    assert leader.membership.may_serve() == {"first-1", "third-1"}
    world.go_on(2 * LEASE_MS, cut_off, third)
    assert leader.membership.may_serve() == {"first-1"}


@pytest.mark.parametrize("looked", [True, False], ids=["it was a standby", "it has just been started"])
def test_the_leader_that_follows_knows_who_may_not_know_that_it_was_ended(
    world: World, pair: tuple[Server, Server], looked: bool
):
    leader, cut_off = pair
    if looked:
        third = world.add("third")
        world.go_on(LOOK_MS)
    leader.membership.beats.to_end = frozenset({cut_off.membership.instance})
    world.go_on(LOOK_MS + STEP_MS, cut_off)  # it stands still, as between two renewals
    leader.membership.stop()
    if not looked:
        third = world.add("third")
    third.leadership.is_leader = True
    run = cut_off.membership.candidate.instance
    began_ms = world.clock.monotonic_ms()
    world.go_on(STEP_MS, leader, cut_off)
    while cut_off.membership.is_on:
        assert run in third.membership.may_serve()
        world.go_on(STEP_MS, leader, cut_off)
    assert world.clock.monotonic_ms() > began_ms + STEP_MS, "its end came later than that of the leader"
    world.go_on(LEASE_MS, leader, cut_off)
    assert third.membership.may_serve() == {"third-1"}


def test_a_pause_that_nobody_noticed_ends_nothing(world: World, pair: tuple[Server, Server]):
    leader, standby = pair
    leader.leadership.is_leader = False
    world.go_on(3 * LEASE_MS, standby)
    world.go_on(LOOK_MS)
    assert (standby.membership.instance, standby.membership.is_on) == ("second-1", True)


def test_a_term_lasts_as_long_as_the_lease_and_another_begins_with_the_next_membership(
    world: World, pair: tuple[Server, Server]
):
    _, standby = pair
    world.go_on(3 * LEASE_MS)
    (first,) = standby.terms
    assert (first.member, first.epoch, first.is_on()) == ("second-1", 0, True)
    world.go_on(2 * LEASE_MS, standby)
    assert not first.is_on(), "its own clock says so, and nobody has to look"
    world.go_on(LOOK_MS)
    first, second = standby.terms
    assert first.over == "its lease ran out before it could be renewed"
    assert (second.member, second.is_on()) == (standby.membership.instance, True)


def test_a_term_is_never_taken_up_again_though_the_membership_goes_on(world: World, pair: tuple[Server, Server]):
    leader, standby = pair
    leader.leadership.is_leader = False  # nobody ends the membership
    world.go_on(3 * LEASE_MS, standby)
    world.go_on(LOOK_MS)
    assert [term.is_on() for term in standby.terms] == [False, True]
    standby.terms[-1].end("the store refused a write")
    world.go_on(LEASE_MS // 2)
    assert [(term.member, term.is_on()) for term in standby.terms] == [
        ("second-1", False), ("second-1", False), ("second-1", True)
    ]  # fmt: skip


def test_who_stops_is_in_no_term_any_more(world: World, pair: tuple[Server, Server]):
    _, standby = pair
    standby.membership.stop()
    assert standby.terms[-1].over == "it stops"


def test_who_stops_is_gone_at_once(world: World, pair: tuple[Server, Server]):
    leader, standby = pair
    world.servers.remove(standby)
    standby.membership.stop()
    assert world.rows() == ["first-1"]
    world.go_on(LOOK_MS)
    assert leader.states(world.clock) == {"first": "live"}


def test_who_was_ended_leaves_its_row_to_the_leader_when_it_stops(world: World, pair: tuple[Server, Server]):
    _, standby = pair
    world.go_on(2 * LEASE_MS, standby)
    world.servers.remove(standby)
    standby.membership.stop()
    assert world.rows() == ["first-1", "second-1"]


def test_a_stop_does_not_wait_for_a_store_that_is_away(world: World, pair: tuple[Server, Server]):
    _, standby = pair
    standby.store.fails = {"get", "scan", "write", "check_and_write"}
    world.go_on(LOOK_MS)
    world.servers.remove(standby)
    standby.store.calls.clear()
    standby.membership.stop()
    assert not standby.store.calls


@pytest.mark.parametrize("call", ["get", "write", "check_and_write"])
def test_a_stop_that_fails_says_so_and_the_membership_runs_out(
    world: World, pair: tuple[Server, Server], call: str, caplog: pytest.LogCaptureFixture
):
    _, standby = pair
    standby.store.fails = {call}
    standby.membership.stop()
    assert "could not be ended, and runs out" in caplog.text


def test_a_store_that_is_away_is_told_once_and_so_is_its_return(
    world: World, pair: tuple[Server, Server], caplog: pytest.LogCaptureFixture
):
    _, standby = pair
    caplog.set_level(logging.INFO)
    standby.store.fails = {"get", "check_and_write"}
    world.go_on(LEASE_MS // 2)
    assert not standby.membership.reachable
    standby.store.fails = set()
    world.go_on(LEASE_MS // 2)
    told = [each.message for each in caplog.records]
    assert sorted(told) == [
        "memberships are renewed again", "memberships are watched again", "memberships cannot be renewed: the network is down",
        "memberships cannot be watched: the network is down",
    ]  # fmt: skip
    assert standby.membership.is_on


def test_a_damaged_row_keeps_nobody_from_being_a_member(
    world: World, pair: tuple[Server, Server], caplog: pytest.LogCaptureFixture
):
    world.store.table("system").write([Put(entry_key("member", "bad"), {VALUE: b"damage"})])
    world.go_on(2 * LEASE_MS)
    assert [server.membership.is_on for server in pair] == [True, True]
    assert not pair[0].membership.reachable
    assert len([each for each in caplog.records if "cannot be watched" in each.message]) == 2


def test_a_hundred_restarts_leave_no_hundred_rows(world: World, pair: tuple[Server, Server]):
    for number in range(100):
        Server(world, f"crashed-{number}").membership.step()
        world.go_on(LEASE_MS + LOOK_MS)
    assert len(world.rows()) <= DEAD_MAX + 4  # the pair, and those that died within a lease
    world.go_on(DEAD_KEPT_MS)
    assert world.rows() == ["first-1", "second-1"]


def test_one_look_changes_no_more_rows_than_the_limit(world: World, pair: tuple[Server, Server]):
    many = [Server(world, f"crashed-{number}") for number in range(CHANGES_PER_LOOK_MAX + 5)]
    for server in many:
        server.membership.step()
    world.clock.advance(LOOK_MS)
    pair[0].membership.step()
    world.clock.advance(LEASE_MS)
    before = pair[0].store.calls["check_and_write"]
    pair[0].membership.step()
    assert pair[0].store.calls["check_and_write"] - before == 1 + CHANGES_PER_LOOK_MAX  # its own renewal is the one
    world.go_on(LOOK_MS)
    assert list(pair[0].states(world.clock).values()).count("dead") == len(many)


def test_there_are_no_more_members_than_the_limit(
    world: World, pair: tuple[Server, Server], caplog: pytest.LogCaptureFixture
):
    for number in range(MEMBERS_MAX - 2):
        Server(world, f"n{number:03}").membership.step()
    late = world.add("late")
    world.go_on(LEASE_MS // 2)
    assert not late.membership.is_on
    assert [each.message for each in caplog.records if "no more may begin" in each.message] == [
        f"there are {MEMBERS_MAX} members, and no more may begin: this server is not told of"
    ]
    world.go_on(LEASE_MS)  # those that never renewed are ended
    assert late.membership.is_on


def test_a_look_reads_no_more_rows_than_the_limit(world: World):
    for number in range(ROWS_MAX + 10):
        row = MEMBER.put(Server(world, "x").membership._first(), f"n{number:05}")
        world.store.table("system").write([row])
    server = world.add("first")
    server.membership.step()
    assert server.store.rows == ROWS_MAX


def test_a_renewal_that_goes_on_being_refused_is_given_up_until_later(world: World, pair: tuple[Server, Server]):
    _, standby = pair
    standby.store.check_and_write = lambda *_: False  # type: ignore[method-assign]
    standby.store.calls.clear()
    world.clock.advance(LEASE_MS // RENEWALS_PER_LEASE)
    standby.membership.step()
    assert standby.store.calls["get"] == ROUNDS_MAX - 1 + 1  # the last is of the look at the map


@pytest.mark.parametrize("count", [2, 100])
def test_reads_and_writes_of_all_members_together(world: World, count: int):
    """Docs: docs/decisions/0057. A minute of that many members, none of which is new."""
    for number in range(count):
        world.add(f"n{number}", leads=number == 0)
    world.go_on(LEASE_MS)
    for server in world.servers:
        server.store.calls.clear()
        server.store.rows = 0
    seconds = 60
    world.go_on(1_000 * seconds)
    total: Counter[str] = Counter()
    for server in world.servers:
        total += server.store.calls
    rows = sum(server.store.rows for server in world.servers)
    figures = {
        "scans": total["scan"],
        "rows": rows,
        "renewals": total["check_and_write"],
        "maps": total["get"],
        "others": total["write"],
    }
    print({name: round(value / seconds, 1) for name, value in figures.items()})
    looks_per_s, renewals_per_s = LOOKS_PER_LEASE / LEASE_MS * 1_000, RENEWALS_PER_LEASE / LEASE_MS * 1_000
    assert total["scan"] <= count * (looks_per_s * seconds + 1)
    assert rows == count * total["scan"]
    assert total["check_and_write"] <= count * (renewals_per_s * seconds + 1)
    assert total["get"] == total["scan"]
    assert figures["others"] == 0


def test_who_owns_shards_is_known_by_rows_and_the_leader_by_its_lease(world: World, pair: tuple[Server, Server]):
    leader, standby = pair
    system, names = world.system, ("first-1", "second-1", "gone-1")
    assert standby.membership.shard_states() is None
    owners = OwnersMap(7, 3, names, (0, 1, 1, 2, *(0,) * (SHARDS - 4)), (3,) * SHARDS)
    system.write(KIND, NAME, owners.encode())
    world.go_on(LOOK_MS)
    assert standby.membership.owners == owners
    assert standby.membership.shard_states() == {"live": SHARDS - 1, "dead": 1}
    assert leader.membership.owner("second-1") == Owner("second-1", "second", "http://second:4780", "live")
    assert leader.membership.owner("gone-1") == Owner("gone-1", "", "", "dead")
    leader.leadership.leader = LeaseRecord("gone", "http://gone:4780", 4, 0, "gone-1", LEASE_MS)
    assert leader.membership.owner("gone-1") == Owner("gone-1", "gone", "http://gone:4780", "live")
    leader.leadership.unchanged_ms = LEASE_MS / 2
    assert leader.membership.owner("gone-1").state == "silent"
    world.servers.remove(standby)  # paused: its row stays as it is
    world.go_on(LEASE_MS // 2 + LOOK_MS)
    leader.leadership.leader = None
    assert leader.membership.shard_states() == {"live": SHARDS - 3, "silent": 2, "dead": 1}


def test_a_leader_whose_membership_was_ended_still_owns_what_the_map_gives_it(
    world: World, pair: tuple[Server, Server]
):
    leader, _ = pair
    leader.membership._own = OwnMember("another")
    assert leader.membership.owner("first-1") == Owner("first-1", "first", "http://first:4780", "live")


def test_a_run_whose_membership_was_ended_is_known_by_its_next_one_and_by_its_secret(
    world: World, pair: tuple[Server, Server]
):
    leader, standby = pair
    standby.membership.candidate = standby.membership.candidate._replace(secret="its secret")
    world.go_on(2 * LEASE_MS, standby)
    assert leader.membership.owner("second-1") == Owner("second-1", "second", "http://second:4780", "dead")
    world.go_on(2 * LOOK_MS)
    assert standby.membership.instance != "second-1"
    now = Owner("second-1", "second", "http://second:4780", "live", "its secret")
    assert leader.membership.owner("second-1") == now
    assert leader.membership.row_of("second-1") == standby.membership.instance
    assert leader.membership.row_of("nobody-1") is None


def test_a_map_is_taken_apart_once(world: World, pair: tuple[Server, Server]):
    leader, _ = pair
    world.system.write(KIND, NAME, granted(None, "first-1", (), 1).encode())
    world.go_on(LOOK_MS)
    found = leader.membership.owners
    world.go_on(LOOK_MS)
    assert leader.membership.owners is found


def test_its_thread_renews_and_watches_for_as_long_as_it_runs(world: World):
    first, second = world.add("first", leads=True), world.add("second")
    for server in (first, second):
        server.membership.start()
    until(lambda: len(world.rows()) == 2)
    for _ in range(2 * LOOKS_PER_LEASE):  # the time of leases stands still until both have looked
        world.clock.advance(LOOK_MS)
        for server in (first, second):
            server.membership._wake.set()
            until(lambda membership=server.membership: membership.looked_ms == world.clock.monotonic_ms())  # type: ignore[misc]
    assert first.states(world.clock) == {"first": "live", "second": "live"}
    assert first.membership.is_on
    second.membership.stop()
    assert world.rows() == ["first-1"]
    first.membership.stop()


def test_what_nobody_has_foreseen_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch):
    server, looks = world.add("first"), []

    def look() -> None:
        looks.append(1)
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(server.membership, "_look", look)
        server.membership.start()
        until(lambda: bool(looks))
    assert not world.rows()
    server.membership._wake.set()
    until(lambda: bool(world.rows()))
    server.membership.stop()


def test_the_age_of_the_lease_is_told_from_the_last_renewal_on(world: World):
    server = world.add("first")
    assert server.membership.lease_age_ms is None
    server.membership.step()
    world.clock.advance(700)
    assert server.membership.lease_age_ms == 700
    world.clock.advance(LEASE_MS - LEASE_MS // MARGIN_PARTS - 701)
    assert server.membership.is_on
    world.clock.advance(1)
    assert not server.membership.is_on
