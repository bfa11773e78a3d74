"""Memberships over every store: a row begins, is renewed, ended by the leader alone, and removed; whatever the store is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from basalt.cluster.leader import Leadership
from basalt.cluster.lease import Candidate
from basalt.cluster.members import DEAD_KEPT_MS, MEMBER
from basalt.cluster.membership import Membership
from basalt_engine.clock import ManualClock
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

LEASE_MS = 6_000


def member(store: Store, clock: ManualClock, name: str, leads: bool) -> Membership:
    """A member whose stop leaves the test's store open."""
    handle = cast("Store", SimpleNamespace(table=store.table, close=lambda: None))
    leadership = cast("Leadership", SimpleNamespace(is_leader=leads))
    candidate = Candidate(name, f"http://{name}", f"{name}-1", LEASE_MS)
    return Membership(handle, clock, candidate, leadership)


def go_on(clock: ManualClock, duration_ms: int, *members: Membership) -> None:
    for _ in range(duration_ms // 500):
        clock.advance(500)
        for each in members:
            each.step()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_membership_begins_is_ended_followed_by_another_and_removed(store: Store, clock: ManualClock):
    system = SystemTable(store.table("system"))
    leader, standby = member(store, clock, "a", True), member(store, clock, "b", False)
    go_on(clock, 2 * LEASE_MS, leader, standby)
    assert [(name, record.is_over) for name, record in MEMBER.scan(system)] == [("a-1", False), ("b-1", False)]
    go_on(clock, 2 * LEASE_MS, leader)
    assert MEMBER.get(system, "b-1").is_over  # type: ignore[union-attr]
    go_on(clock, LEASE_MS, leader, standby)
    assert (standby.begun, standby.is_on) == (2, True)
    assert {name for name, _ in MEMBER.scan(system)} == {"a-1", "b-1", standby.instance}
    standby.stop()
    assert {name for name, _ in MEMBER.scan(system)} == {"a-1", "b-1"}
    clock.advance(DEAD_KEPT_MS)
    leader.step()
    assert [name for name, _ in MEMBER.scan(system)] == ["a-1"]


def test_an_entry_is_compared_as_a_whole_before_what_comes_after_it(store: Store):
    system = SystemTable(store.table("system"))
    system.write("member", "a", b"one")
    assert (system.is_still("member", "a", b"one"), system.is_still("member", "a", b"two")) == (True, False)
    assert not system.is_still("member", "b", b"one")
    assert list(system.scan("member")) == [("a", b"one")]
