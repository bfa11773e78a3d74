"""The end of a run that somebody else writes: the lease and the memberships of exactly that run, whatever lands meanwhile."""

from __future__ import annotations

import msgspec
import pytest

from basalt.cluster.ended_run import TRIES_MAX, Ended, end_run
from basalt.cluster.lease import LEASE, LeaseRecord
from basalt.cluster.members import MEMBER, MemberRecord
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable

NOW_MS = 1_000
RUN, OTHER = "1111111111111111", "2222222222222222"
HELD = LeaseRecord("here:7", "http://here:1", 5, 9, RUN, 6_000, "secret", "here:2")


class LateSystem(SystemTable):
    """A system table in which writes of the dead land just before those that are to replace them."""

    def __init__(self, late: int) -> None:
        super().__init__(MemoryStore().table(SystemTable.name))
        self.late = late

    def replace(self, kind: str, name: str, old: bytes | None, new: bytes) -> bool:
        if self.late and old is not None:
            self.late -= 1
            self._renew(kind, name, old)
        return super().replace(kind, name, old, new)

    def _renew(self, kind: str, name: str, old: bytes) -> None:
        if kind == LEASE.kind:
            lease = LEASE.decode(old)
            self.write(kind, name, LEASE.encode(msgspec.structs.replace(lease, expire_ms=lease.expire_ms + 1)))
        else:
            member = MEMBER.decode(old)
            self.write(kind, name, MEMBER.encode(msgspec.structs.replace(member, count=member.count + 1)))


@pytest.fixture
def system() -> LateSystem:
    return LateSystem(0)


def join(system: SystemTable, instance: str, run: str) -> None:
    """A member at the same host and process as all others: as after the number of a process came round, or in containers."""
    MEMBER.write(system, MemberRecord("here:7", "http://here:1", "1.0", 1, 6_000, 3, 0, "", run), instance)


def over(system: SystemTable) -> dict[str, bool]:
    return {instance: record.is_over for instance, record in MEMBER.scan(system)}


def test_the_lease_is_free_under_its_epoch_and_all_memberships_of_the_run_are_over(system: LateSystem):
    LEASE.write(system, HELD)
    join(system, RUN, RUN)
    join(system, "3333333333333333", RUN)  # it was ended once, and began another one
    join(system, OTHER, OTHER)
    assert end_run(system, RUN, NOW_MS, fenced=True) == Ended(2, 5)
    lease = LEASE.get(system)
    assert lease is not None
    assert (lease.is_released, lease.epoch, lease.secret) == (True, 5, "")
    assert over(system) == {RUN: True, OTHER: False, "3333333333333333": True}
    assert end_run(system, RUN, NOW_MS, fenced=True) == Ended(0, None)


def test_a_lease_that_another_run_has_is_left_alone_also_where_host_and_process_are_the_same(system: LateSystem):
    LEASE.write(system, HELD)
    assert end_run(system, OTHER, NOW_MS, fenced=True) == Ended(0, None)
    assert LEASE.get(system) == HELD


def test_without_fences_lease_and_memberships_run_out_by_themselves(system: LateSystem):
    LEASE.write(system, HELD)
    join(system, RUN, RUN)
    assert end_run(system, RUN, NOW_MS, fenced=False) == Ended(0, None)
    assert LEASE.get(system) == HELD
    assert over(system) == {RUN: False}, "its shards would be another's while writes of its own are under way"


def test_a_renewal_that_lands_meanwhile_is_read_anew():
    system = LateSystem(late=1)
    LEASE.write(system, HELD)
    assert end_run(system, RUN, NOW_MS, fenced=True).epoch == 5
    system.late = 1
    join(system, RUN, RUN)
    assert end_run(system, RUN, NOW_MS, fenced=True).memberships == 1


def test_a_row_that_changes_on_and_on_is_given_up():
    system = LateSystem(late=2 * TRIES_MAX)
    LEASE.write(system, HELD)
    join(system, RUN, RUN)
    assert end_run(system, RUN, NOW_MS, fenced=True) == Ended(0, None)
    assert system.late == 0


def test_a_server_that_has_taken_the_lease_meanwhile_keeps_it():
    class TakenSystem(LateSystem):
        def _renew(self, kind: str, name: str, old: bytes) -> None:
            self.write(kind, name, LEASE.encode(msgspec.structs.replace(HELD, instance=OTHER, epoch=6)))

    system = TakenSystem(late=1)
    LEASE.write(system, HELD)
    assert end_run(system, RUN, NOW_MS, fenced=True) == Ended(0, None)
    lease = LEASE.get(system)
    assert lease is not None
    assert (lease.instance, lease.epoch) == (OTHER, 6)


def test_an_empty_table_has_nothing_to_end(system: LateSystem):
    assert end_run(system, RUN, NOW_MS, fenced=True) == Ended(0, None)
