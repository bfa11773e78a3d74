"""Who may still write to which shard: regions refuse its former owner and nobody else, wherever they move, split or die."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from crc32c import crc32c
from py4j.protocol import Py4JJavaError

from basalt_engine.stores.shards import SHARDED_TABLES
from tests.budgets import FENCE_RACES as ROUNDS
from tests.hbase.bare_installation import BareInstallation
from tests.hbase.mini_cluster import MiniCluster

pytestmark = [pytest.mark.hbase, pytest.mark.slow]

MOVED, OTHER = 403, 157
FENCED = "basalt fenced"
ROWS_BETWEEN_FENCES = 20  # of each writer, at least
HANG_S = 120.0


@pytest.fixture
def installation(mini_cluster: MiniCluster, request: pytest.FixtureRequest) -> Iterator[BareInstallation]:
    with BareInstallation(mini_cluster, f"shard{crc32c(request.node.name.encode())}") as made:
        yield made
    assert mini_cluster.aborted() == []


def row(number: int) -> dict[bytes, dict[bytes, bytes | None]]:
    return {bytes([number % 2]) + b"shop:orders:%014d" % number: {b"p": b"%d" % number}}


def assert_refused(installation: BareInstallation, number: int, *, epoch: int, table: str = "message") -> None:
    """Neither written nor said to be."""
    (key,) = row(number)
    with pytest.raises(Py4JJavaError) as error:
        installation.write(row(number), table, epoch, MOVED)
    assert f"{FENCED}: epoch {epoch} of shard {MOVED}" in str(error.value.java_exception)
    assert key not in installation.cluster.scan(installation.table(table))


@pytest.mark.parametrize("table", SHARDED_TABLES)
def test_after_a_shard_was_taken_its_former_owner_writes_nothing_to_it(installation: BareInstallation, table: str):
    installation.deal({MOVED: 3, OTHER: 3})
    installation.write(row(2) | row(3), table, 3, MOVED)
    installation.deal({MOVED: 4, OTHER: 3})
    installation.fence(0, table, {MOVED: 4})
    assert_refused(installation, 4, epoch=3, table=table)
    installation.write(row(6), table, 4, MOVED)
    installation.write(row(8), table, 3, OTHER)
    installation.write(row(10), table, 1)  # the leader's
    installation.write(row(12), table)  # nobody's
    rows = installation.cluster.scan(installation.table(table))
    assert {*row(2), *row(3), *row(6), *row(8), *row(10), *row(12)} <= {*rows}


def test_a_region_that_opened_after_the_move_needs_no_fence(installation: BareInstallation):
    """It reads the map before it lets the first write in."""
    installation.deal({MOVED: 3, OTHER: 3})
    installation.write(row(2) | row(3), epoch=3, shard=MOVED)
    installation.deal({MOVED: 4, OTHER: 3})
    installation.write(row(4), epoch=3, shard=MOVED)  # no fence and no opening yet: nobody has told the region
    for region in installation.regions():
        installation.cluster.move(region)
    assert_refused(installation, 6, epoch=3)
    assert_refused(installation, 7, epoch=3)
    installation.write(row(6) | row(7), epoch=4, shard=MOVED)
    installation.write(row(8) | row(9), epoch=3, shard=OTHER)


def test_a_shard_that_moves_there_and_back_is_its_last_owners(installation: BareInstallation):
    for epoch in range(2, 8):
        installation.deal({MOVED: epoch})
        installation.fence(0, shards={MOVED: epoch})
        installation.write(row(2 * epoch), epoch=epoch, shard=MOVED)
        assert_refused(installation, 3, epoch=epoch - 1)
        with pytest.raises(Py4JJavaError) as error:
            installation.fence(0, shards={MOVED: epoch - 1})
        assert FENCED in str(error.value.java_exception)


def test_a_fence_of_a_shard_holds_over_a_move_a_split_a_merge_and_a_crash(installation: BareInstallation):
    cluster, message = installation.cluster, installation.table("message")
    installation.deal({MOVED: 7})
    installation.fence(0, shards={MOVED: 7})
    installation.write(row(2) | row(3), epoch=7, shard=MOVED)
    for region in installation.regions():
        cluster.move(region)
    assert_refused(installation, 4, epoch=6)
    installation.write(row(4) | row(5), epoch=7, shard=MOVED)
    cluster.split(message, installation.regions()[0], b"\0shop:orders:5")
    daughters = installation.regions()[:2]
    assert_refused(installation, 6, epoch=6)
    installation.write(row(6), epoch=7, shard=MOVED)
    installation.compact(major=True)  # references cannot be merged
    cluster.merge(*daughters)
    assert_refused(installation, 8, epoch=6)
    installation.write(row(8), epoch=7, shard=MOVED)
    cluster.kill(installation.regions()[0].server)
    cluster.start_server()
    cluster.settle()
    assert_refused(installation, 10, epoch=6)
    installation.write(row(10), epoch=7, shard=MOVED)


def write_until(
    installation: BareInstallation, shard: int, epoch: int, rows: list[bytes], over: Callable[[], bool]
) -> bool:
    """Put row after row; True when one was refused, False when it is over."""
    while not over():
        key = b"%c%d:%d:%06d" % (len(rows) % 2, shard, epoch, len(rows))
        try:
            installation.write({key: {b"p": b"x"}}, epoch=epoch, shard=shard)
        except Py4JJavaError as error:
            assert FENCED in str(error.java_exception)
            return True
        rows.append(key)
    return False


def test_while_one_shard_moves_its_former_owner_adds_nothing_and_others_write_on(installation: BareInstallation):
    table = installation.table("message")
    other: list[bytes] = []
    done = False
    installation.deal({MOVED: 1, OTHER: 1})
    with ThreadPoolExecutor(3) as threads:
        writing_on = threads.submit(write_until, installation, OTHER, 1, other, lambda: done)
        for epoch in range(1, ROUNDS + 1):
            rows: list[bytes] = []
            moved = threads.submit(write_until, installation, MOVED, epoch, rows, lambda: False)
            reached, stop_s = len(other) + ROWS_BETWEEN_FENCES, time.monotonic() + HANG_S
            while len(rows) < ROWS_BETWEEN_FENCES or len(other) < reached:
                assert time.monotonic() < stop_s, "the writers get no answers"
                time.sleep(0.01)
            installation.deal({MOVED: epoch + 1, OTHER: 1})
            installation.fence(0, shards={MOVED: epoch + 1})
            seen = {key for key in installation.cluster.scan(table) if key[1:].startswith(b"%d:" % MOVED)}
            assert moved.result(HANG_S)
            again = {key for key in installation.cluster.scan(table) if key[1:].startswith(b"%d:" % MOVED)}
            assert again == seen
            assert {*rows} <= seen
        done = True
        assert not writing_on.result(HANG_S)
