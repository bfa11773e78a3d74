"""Ends of runs are written to a store that may be away, and the other servers hear of each."""

from __future__ import annotations

import pytest

from basalt.cluster.members import MEMBER, MemberRecord
from basalt.errors import UnavailableError
from basalt.server.processes.endings import LEASES_MAX, Endings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

RUN = "1111111111111111"
LEASE_MS = 6_000


@pytest.fixture
def store() -> MemoryStore:
    """A store that keeps late writes of the dead out."""
    store = MemoryStore()
    store.applies_retention = True
    row = MemberRecord("here:7", "http://here:1", "1.0", 1, LEASE_MS, 3, 0, "", RUN)
    MEMBER.write(SystemTable(store.table(SystemTable.name)), row, RUN)
    return store


def another(store: MemoryStore) -> MemoryStore:
    made = store.another()
    made.applies_retention = store.applies_retention
    return made


def is_over(store: MemoryStore) -> bool:
    row = MEMBER.get(SystemTable(store.table(SystemTable.name)), RUN)
    assert row is not None
    return row.is_over


def test_the_others_look_once_the_end_is_written_and_not_before(store: MemoryStore):
    seen: list[bool] = []
    endings = Endings(lambda: store, ManualClock(), LEASE_MS, lambda: seen.append(is_over(store)))
    assert endings.write(RUN)
    assert seen == [True]


def test_where_nothing_keeps_late_writes_out_the_membership_runs_out_by_itself(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
):
    store.applies_retention = False
    caplog.set_level("INFO")
    assert Endings(lambda: store, ManualClock(), LEASE_MS, lambda: None).write(RUN)
    assert not is_over(store)
    assert "ends when its lease is over" in caplog.text


def test_a_store_that_is_away_is_asked_again(store: MemoryStore):
    away = [True, False]

    def opened() -> Store:
        if away.pop(0):
            raise UnavailableError("the gateway is away")
        return store

    seen: list[bool] = []
    endings = Endings(opened, ManualClock(), LEASE_MS, lambda: seen.append(True))
    assert not endings.write(RUN)
    assert seen == []
    assert endings.write(RUN)
    assert is_over(store)


def test_what_is_given_before_the_end_is_written_at_the_end(store: MemoryStore):
    endings = Endings(lambda: another(store), ManualClock(), LEASE_MS, lambda: None)
    endings.end(RUN)
    endings.start()
    endings.close()
    assert is_over(store)


def test_a_store_that_stays_away_is_given_up_after_the_time_in_which_it_matters():
    clock = ManualClock()
    tries: list[float] = []

    def opened() -> Store:
        tries.append(clock.monotonic_ms())
        clock.advance(LEASE_MS)
        raise UnavailableError("the gateway is away")

    endings = Endings(opened, clock, LEASE_MS, lambda: None)
    endings.start()
    endings.end(RUN)
    endings._gone.put(None)
    endings._thread.join(60)
    assert not endings._thread.is_alive()
    assert len(tries) == 1 + LEASES_MAX  # it had tried to open the store before
