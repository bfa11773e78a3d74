"""What each server of an installation has HBase do beside its clients' work: renew and read leases, read the map of owners, fence regions.

Each call is made as the servers make it, so many in turn; whose processor it takes is told apart, as for `raw-hbase`. The yardstick is
a row that happybase reads. What these figures come to with 10 and with 100 servers: docs/operations/capacity.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from basalt.cluster.owners import OwnersMap
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.stores.shards import SHARDED_TABLES, SHARDS
from basalt_engine.system import SystemTable
from bench.figures import Figure
from bench.on_hbase import FAMILY, RAW_TABLE, connect, happybase_at, running_hbase
from bench.processes import cpu_s_of
from deploy.hbase.standalone import MASTER, THRIFT, THRIFT2, Standalone

ROUNDS = 5
WARM_UP_ROUNDS = 6  # that do not count: an HBase that has just begun has most of its code still to compile
RAW = "happybase reads a row"
MEMBERS = 100
ROW_BYTES = 300  # of a lease or a membership: names, a URL, a version, times
TAKEN_SHARDS = 10  # that one of a hundred members has
EPOCH = 7
# Of the processor time of happybase's read of one small row, all processes together.
READ_MAX, RENEWAL_MAX, SCAN_MAX, FENCE_MAX = 2.0, 6.0, 12.0, 3.0


class Work(NamedTuple):
    """What is done, of how many calls it is, and what one of them may cost."""

    title: str
    calls: int
    limit: float
    do: Callable[[], object]


class Cost(NamedTuple):
    """The microseconds of processor time of one call, by whose they are; and those that it took."""

    region_server: float
    gateway: float
    server: float
    took: float

    @property
    def us(self) -> float:
        return self.region_server + self.gateway + self.server


def member_calls(folder: Path, quick: bool) -> Iterator[Figure]:
    """The calls of members, each beside a plain read, in turns."""
    times = 100 if quick else 600
    with running_hbase(folder, coprocessor=True) as gateways:
        connect(gateways).create_table(RAW_TABLE, {FAMILY.decode(): {}})
        pids = Standalone(folder / "hbase").pids()
        store = HBaseStore.open(gateways.thrift2)
        try:
            with happybase_at(gateways.thrift) as raw:
                table = raw.table(RAW_TABLE)
                table.put(b"row", {FAMILY + b":v": bytes(ROW_BYTES)})
                done = [Work(RAW, 1, 1.0, lambda: table.row(b"row")), *works(store)]
                yield from _figures(done, measured(pids, done, times))
        finally:
            store.close()


def _figures(done: list[Work], costs: list[Cost]) -> Iterator[Figure]:
    for work, cost in zip(done[1:], costs[1:], strict=True):
        yield Figure(
            f"HBase: {work.title}", cost.us, "us", f"us, {RAW}", costs[0].us, work.limit, at_most=True, cpu_us=cost.us,
            note=f"us of processor: region server {cost.region_server:.0f}, gateway {cost.gateway:.0f}, the server itself"
            f" {cost.server:.0f}; it takes {cost.took / 1_000:.1f} ms",
        )  # fmt: skip


def works(store: HBaseStore) -> Iterator[Work]:
    """What members do."""
    system = SystemTable(store.table(SystemTable.name))
    lease = Renewed(system, "bench-lease", "leader", ROW_BYTES)
    members = tuple(f"server-{number}-{'x' * 32}" for number in range(MEMBERS))
    shards = range(SHARDS)
    owners = OwnersMap(1, EPOCH, members, tuple(each % MEMBERS for each in shards), (EPOCH,) * SHARDS).encode()
    for name in members:
        system.write("bench-member", name, bytes(ROW_BYTES))
    map_of_owners = Renewed(system, "bench-owners", "map", len(owners))
    store.lead(EPOCH)
    regions = sum(len(store.regions(name)) for name in SHARDED_TABLES)
    taken = dict.fromkeys(range(TAKEN_SHARDS), EPOCH)
    yield Work("a lease is read", 1, READ_MAX, lambda: system.get("bench-lease", "leader"))
    yield Work("a lease is renewed", 1, RENEWAL_MAX, lease.again)
    yield Work(f"the rows of {MEMBERS} members are read", 1, SCAN_MAX, lambda: list(system.scan("bench-member")))
    yield Work(f"the map of {SHARDS:,} shards is read", 1, READ_MAX, lambda: system.get("bench-owners", "map"))
    yield Work(f"the map of {SHARDS:,} shards is written", 1, RENEWAL_MAX, map_of_owners.again)
    title = f"{TAKEN_SHARDS} shards are fenced in one of {regions} regions"
    yield Work(title, regions, FENCE_MAX, lambda: store.take(taken))


class Renewed:
    """A row of the system table that is written again and again, each time over what it was."""

    def __init__(self, system: SystemTable, kind: str, name: str, size: int) -> None:
        self._system, self._kind, self._name = system, kind, name
        self._size, self._number = size, 0
        self._body: bytes | None = None
        self.again()

    def again(self) -> None:
        """Write it, as somebody who knows what it is."""
        self._number += 1
        body = b"%d" % self._number + bytes(self._size)
        assert self._system.replace(self._kind, self._name, self._body, body)
        self._body = body


def measured(pids: dict[str, int], done: list[Work], times: int) -> list[Cost]:
    """What one call of each work costs, by the median of some rounds."""
    rounds: list[list[Cost]] = [[] for _ in done]
    for turn in range(WARM_UP_ROUNDS + ROUNDS):
        for work, costs in zip(done, rounds, strict=True):
            own = pids[MASTER], pids[THRIFT if work.title == RAW else THRIFT2]
            repeated = max(1, times // work.calls)
            before = *map(cpu_s_of, own), time.process_time(), time.perf_counter()
            for _ in range(repeated):
                work.do()
            after = *map(cpu_s_of, own), time.process_time(), time.perf_counter()
            if turn >= WARM_UP_ROUNDS:
                spent = (now - then for then, now in zip(before, after, strict=True))
                costs.append(Cost(*(second * 1e6 / (repeated * work.calls) for second in spent)))
    return [Cost(*map(median, zip(*costs, strict=True))) for costs in rounds]
