"""A leader killed in the middle of a planned move on a real HBase, and what it had sent arrives after the next leader has begun.

The move stops where the network keeps a write of it: the row of the map, the first fence, or the fences behind the first few.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator

import pytest

from basalt.cluster.owners import OwnersMap, read_map
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.hbase.stamps import FENCE
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.stores.shards import SHARDS, shard_of
from basalt_engine.system import SystemTable
from tests.hbase.holding_proxy import HoldingProxy
from tests.hbase.member_servers import CALLED_OFF
from tests.hbase.server_pair import TAKE_OVER_SECONDS_MAX, WAIT_SECONDS_MAX, Installation, Pair, names, serves, until
from tests.hbase.tables import Tables
from tests.hbase.test_two_servers import JSON, NAMESPACE, Publisher, check, create, publish, read
from tests.system.server_process import ServerProcess

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

FENCES = 8  # of a move: of three tables with two regions each, and two with one
TOLD_MIN = 10
ONE_LEADS = (
    "--set",
    "cluster.share=false",
)  # and moves shards to itself; those that share are in test_member_faults.py


class Point:
    """The first writes of one kind that a move makes pass; the others are meant, to be kept back."""

    def __init__(self, words: tuple[bytes, ...], passing: int) -> None:
        self._words = words
        self._passing = passing
        self._lock = threading.Lock()
        self.passed = 0
        self.kept = 0

    def __call__(self, piece: bytes) -> bool:
        if not all(each in piece for each in self._words):
            return False
        with self._lock:
            if self.passed < self._passing:
                self.passed += 1
                return False
            self.kept += 1
            return True

    def is_reached(self) -> bool:
        return self.passed == self._passing and self.kept > 0


POINTS = {
    "before the map": ((b"checkAndPut", b"owners:map"), 0, 0),
    "before the fences": ((FENCE,), 0, 1),
    "after half of the fences": ((FENCE,), FENCES // 2, 1),
}  # and by how much the move has raised the epoch in the map by then


@pytest.fixture
def proxy(guarded: Installation) -> Iterator[HoldingProxy]:
    made = HoldingProxy(guarded.thrift2)
    yield made
    made.close()


@pytest.fixture
def store(guarded: Installation) -> Iterator[HBaseStore]:
    opened = Tables(guarded.thrift2, guarded.prefix).open()
    yield opened
    opened.close()


def stored_map(store: HBaseStore) -> OwnersMap:
    found = read_map(SystemTable(store.table("system")))
    assert found is not None
    return found


def member_of(server: ServerProcess, role: str = "leader") -> str:
    (found,) = [each["instance"] for each in server.ask_json("GET", "/v1/cluster")["members"] if each["role"] == role]
    return str(found)


def is_known(server: ServerProcess) -> bool:
    return any(each["role"] == "leader" for each in server.ask_json("GET", "/v1/cluster")["members"])


def move(server: ServerProcess, member: str, topic: str) -> int:
    """The status of the answer; 0 when the server has died."""
    body = json.dumps({"to": member, "namespace": NAMESPACE, "topic": topic}).encode()
    try:
        return server.ask("POST", "/v1/admin/cluster/moves", body, JSON).status
    except (OSError, http.client.HTTPException):
        return 0


def is_moved(server: ServerProcess, topic: str) -> bool:
    """True when a move to the server itself was made. Calls of publishers may have held it up for longer than it waits: then nothing was changed."""
    status = move(server, member_of(server), topic)
    assert status == 200 or status in CALLED_OFF, status
    return status == 200


@pytest.mark.parametrize("name", POINTS)
def test_a_leader_killed_in_the_middle_of_a_move_leaves_every_shard_to_the_next(
    pair: Pair, guarded: Installation, proxy: HoldingProxy, store: HBaseStore, name: str
):
    words, passing, raised = POINTS[name]
    moved, still = f"moved-{passing}-{raised}", f"still-{passing}-{raised}"
    shard = shard_of(topic_prefix(NAMESPACE, moved))
    leader = pair.start(*guarded.options(proxy.address), *ONE_LEADS)
    until(lambda: serves(leader) and is_known(leader), leader)
    standby = pair.start(*guarded.options(), *ONE_LEADS)
    until(lambda: names(standby, leader), standby)
    for topic in (moved, still):
        create(leader, topic)
    patient_ms = int(2_000 * TAKE_OVER_SECONDS_MAX)
    publishers = [Publisher(pair.urls, topic, topic, patient_ms) for topic in (moved, still)]
    for each in publishers:
        each.start()
    until(lambda: all(len(each.told) >= TOLD_MIN for each in publishers), leader)

    before, point, statuses = stored_map(store), Point(words, passing), list[int]()
    proxy.hold(point)
    moving = threading.Thread(target=lambda: statuses.append(move(leader, member_of(leader), moved)), daemon=True)
    moving.start()
    until(point.is_reached, leader)
    served = len(publishers[1].told)
    until(lambda: len(publishers[1].told) > served, leader)  # its shard does not move
    leader.kill()
    moving.join(WAIT_SECONDS_MAX)
    assert statuses == [0]
    at_death = stored_map(store)
    assert at_death.epochs[shard] == before.epochs[shard] + raised
    assert sum(at_death.epochs) == sum(before.epochs) + raised

    until(lambda: serves(standby) and is_known(standby), standby, TAKE_OVER_SECONDS_MAX)
    now = stored_map(store)
    assert {epoch - former for former, epoch in zip(at_death.epochs, now.epochs, strict=True)} == {1}
    assert now.counts() == {member_of(standby): SHARDS}
    served = len(publishers[0].told)
    proxy.let_go()  # what the dead one had sent arrives
    until(lambda: not proxy.unanswered, standby)
    assert stored_map(store).version == now.version
    until(lambda: len(publishers[0].told) > served + TOLD_MIN, standby)
    until(lambda: is_moved(standby, moved), standby)
    assert stored_map(store).epochs[shard] == now.epochs[shard] + 1
    for each in publishers:
        each.enough.set()
        each.join(WAIT_SECONDS_MAX)
    for each in publishers:
        check([each], read(standby, each.topic))
        assert publish(standby, each.topic, "on").status == 200
