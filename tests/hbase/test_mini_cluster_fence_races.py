"""Writers that do not know that their leader's term is over, and a fence that comes in the middle of their writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from py4j.protocol import Py4JJavaError

from tests.budgets import FENCE_RACES as ROUNDS
from tests.hbase.bare_installation import BareInstallation
from tests.hbase.mini_cluster import MiniCluster

pytestmark = [pytest.mark.hbase, pytest.mark.slow]

WRITERS = 8
ROWS_BETWEEN_FENCES = 3 * WRITERS  # at least
HANG_S = 120.0


@pytest.fixture
def installation(mini_cluster: MiniCluster) -> Iterator[BareInstallation]:
    with BareInstallation(mini_cluster, "fencerace") as made:
        yield made
    assert mini_cluster.aborted() == []


def write_until_fenced(installation: BareInstallation, writer: int, epoch: int, rows: list[bytes]) -> int:
    """How many rows the region took before it refused one; `rows` gets the key of each."""
    taken = 0
    while True:
        key = b"%c%d:%d:%06d" % (writer % 2, epoch, writer, taken)
        try:
            installation.write({key: {b"p": b"x"}}, epoch=epoch)
        except Py4JJavaError as error:
            assert "basalt fenced" in str(error.java_exception)
            return taken
        taken += 1
        rows.append(key)


def test_once_a_fence_has_returned_nothing_of_a_former_leader_is_added(installation: BareInstallation) -> None:
    table = installation.table("message")
    taken = 0
    with ThreadPoolExecutor(WRITERS) as threads:
        for epoch in range(1, ROUNDS + 1):
            installation.lead(epoch)
            installation.fence(epoch)
            rows: list[bytes] = []
            writing = [
                threads.submit(write_until_fenced, installation, writer, epoch, rows) for writer in range(WRITERS)
            ]
            stop_s = time.monotonic() + HANG_S
            while len(rows) < ROWS_BETWEEN_FENCES:
                assert time.monotonic() < stop_s, "the writers get no answers"
                time.sleep(0.01)
            installation.lead(epoch + 1)
            installation.fence(epoch + 1)
            seen = installation.cluster.scan(table)
            taken += sum(writer.result() for writer in writing)
            assert installation.cluster.scan(table) == seen
            assert len(seen) == taken
    assert taken > WRITERS * ROUNDS
