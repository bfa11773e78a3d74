"""The end of a server's run, written by somebody who knows that its process is gone: it need not be waited for.

Only what is surely of that run is touched: the lease whose `instance` it is, and the memberships whose `run` it is; both are 64 random bits, and
so no matter of process ids. And only by check-and-write against the record that was read. A write that the process had sent before it died may
still land: a renewal then meets a changed row, or changes it first and is read anew; anything else meets the fence of the next leader.
"""

from __future__ import annotations

from typing import NamedTuple

from basalt.cluster import members
from basalt.cluster.lease import LEASE, Lease, released
from basalt.cluster.members import MEMBER, ROWS_MAX, Seen
from basalt_engine.system import SystemTable

# Of a check-and-write: each time that it is refused, a write has landed that the process had under way, which is one for each row.
TRIES_MAX = 3


class Ended(NamedTuple):
    """The memberships of the run that were ended, and the epoch under which it led, if it did and the lease is free now."""

    memberships: int
    epoch: int | None


def end_run(system: SystemTable, run: str, now_ms: int, *, fenced: bool) -> Ended:
    """Free the lease of the run, and end its memberships. `now_ms` is wall time, for people.

    Without fences both are left to run out: a message that is still under way in the network must not land behind what the next leader, or
    the next owner of its shard, has read.
    """
    if not fenced:
        return Ended(0, None)
    epoch = _free_lease(system, run)
    rows = system.scan(MEMBER.kind, rows_max=ROWS_MAX)
    return Ended(sum(_end(system, instance, stored, run, now_ms) for instance, stored in rows), epoch)


def _free_lease(system: SystemTable, run: str) -> int | None:
    # An answer that was lost counts as a failure of the whole: the caller tries again, and finds the lease free or another's.
    for _ in range(TRIES_MAX):
        stored = system.get(LEASE.kind, LEASE.name)
        record = None if stored is None else LEASE.decode(stored)
        if record is None or record.instance != run:
            return None
        free = LEASE.encode(released(Lease(stored=stored, record=record)))
        if system.replace(LEASE.kind, LEASE.name, stored, free):
            return record.epoch
    return None


def _end(system: SystemTable, instance: str, stored: bytes | None, run: str, now_ms: int) -> bool:
    # The row stays, and says so: an operator sees who died. A leader that ends it at the same time is refused, or was first.
    for _ in range(TRIES_MAX):
        record = None if stored is None else MEMBER.decode(stored)
        if stored is None or record is None or record.run != run or record.is_over:
            return False
        over = MEMBER.encode(members.ended(Seen(stored, record, 0.0), now_ms))
        if system.replace(MEMBER.kind, instance, stored, over):
            return True
        stored = system.get(MEMBER.kind, instance)
    return False
