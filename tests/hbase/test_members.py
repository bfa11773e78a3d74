"""Memberships of real servers on one real HBase: killed, paused past the lease, stopped, and after a change of leader; and clocks far apart."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from basalt.cluster.leader import Leadership
from basalt.cluster.lease import Candidate
from basalt.cluster.members import DEAD_KEPT_MS, MEMBER
from basalt.cluster.membership import Membership
from basalt_engine.clock import ManualClock
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.system import SystemTable
from deploy.hbase.standalone import Gateways
from tests.hbase.server_pair import LEASE_MS, TAKE_OVER_SECONDS_MAX, Pair, serves, until
from tests.hbase.tables import Tables
from tests.system.command_line import RUN_SECONDS_MAX
from tests.system.server_process import ServerProcess

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

HOUR_MS = 3_600_000


def members(server: ServerProcess) -> list[dict[str, Any]]:
    """The members as the leader tells them; none while it does not lead."""
    reply = server.ask("GET", "/v1/cluster")
    found: list[dict[str, Any]] = reply.json()["members"] if reply.status == 200 else []
    return found


def name_of(server: ServerProcess) -> str:
    """The end of the name that a running server has as a member: other tests' servers died on the same tables, some at the same port."""
    assert server.process is not None
    return f":{server.process.pid}"


def states_of(leader: ServerProcess, name: str) -> list[str]:
    """The states of the memberships of this server, in the order in which they began."""
    return [each["state"] for each in members(leader) if each["name"].endswith(name)]


def roles(leader: ServerProcess) -> dict[str, str]:
    return {each["url"]: each["role"] for each in members(leader) if each["state"] == "live"}


@pytest.fixture
def known(two: tuple[ServerProcess, ServerProcess]) -> tuple[ServerProcess, ServerProcess]:
    """A leader, and a standby that is a member which it knows."""
    leader, standby = two
    until(lambda: roles(leader) == {leader.url: "leader", standby.url: "standby"}, leader)
    return leader, standby


def test_a_standby_that_is_killed_is_silent_and_then_dead(known: tuple[ServerProcess, ServerProcess]):
    leader, standby = known
    name = name_of(standby)
    standby.kill()
    until(lambda: states_of(leader, name) == ["silent"], leader)
    until(lambda: states_of(leader, name) == ["dead"], leader)
    assert "it was not renewed for its whole lease" in leader.tail()
    assert roles(leader) == {leader.url: "leader"}


def test_a_standby_paused_past_its_lease_begins_another_membership(known: tuple[ServerProcess, ServerProcess]):
    leader, standby = known
    name = name_of(standby)
    assert standby.process is not None
    standby.process.send_signal(signal.SIGSTOP)
    until(lambda: states_of(leader, name) == ["dead"], leader)
    standby.process.send_signal(signal.SIGCONT)
    until(lambda: sorted(states_of(leader, name)) == ["dead", "live"], leader)
    assert "a new one begins as" in standby.tail()
    assert standby.ask("GET", "/readyz?leader=true").status == 503  # a standby as before


def test_a_server_that_stops_in_an_orderly_way_is_gone_at_once(known: tuple[ServerProcess, ServerProcess]):
    leader, standby = known
    name = name_of(standby)
    assert standby.stop() == 0
    seen: list[list[str]] = []

    def is_gone() -> bool:
        seen.append(states_of(leader, name))
        return seen[-1] == []

    until(is_gone, leader)
    assert [states for states in seen[:-1] if states != ["live"]] == [], "it was not waited for"


def test_a_new_leader_knows_who_died_and_who_stands_by(
    pair: Pair, guarded: Any, known: tuple[ServerProcess, ServerProcess]
):
    leader, standby = known
    name = name_of(leader)
    leader.kill()
    until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
    assert states_of(standby, name_of(standby)) == ["live"]
    assert states_of(standby, name)[0] in {"silent", "dead"}  # it was counted while it led
    until(lambda: states_of(standby, name) == ["dead"], standby)
    third = pair.start(*guarded.options())
    until(lambda: roles(standby) == {standby.url: "leader", third.url: "standby"}, standby)
    command = [sys.executable, "-m", "basalt.cli.main", "cluster", "status", "--url", standby.url, "-o", "json"]
    status = json.loads(
        subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=True).stdout
    )
    assert (status["url"], status["standbys"], status["dead"] > 0) == (standby.url, 1, True)


def test_clocks_an_hour_apart_neither_end_a_membership_nor_keep_its_row(hbase_gateways: Gateways, hbase_tables: Tables):
    """A row whose cells have a timestamp of the future is ended, and removed, by a leader whose clock says that it is earlier."""
    hbase_tables.emptied().close()
    time = ManualClock()
    present_ms = hbase_tables.open()._stamps._now_ms()

    def at(ahead_ms: int) -> HBaseStore:
        clock = ManualClock(present_ms + ahead_ms)
        return HBaseStore.open(hbase_gateways.thrift2, hbase_tables.prefix, clock=clock)

    def joined(name: str, ahead_ms: int) -> tuple[Leadership, Membership]:
        candidate = Candidate(name, f"http://{name}", name, LEASE_MS)
        leadership = Leadership(at(ahead_ms), time, candidate, on_term=lambda _: None)
        return leadership, Membership(at(ahead_ms), time, candidate, leadership)

    late, early = joined("late", 1), joined("early", HOUR_MS)
    late[0].seek()
    system = SystemTable(hbase_tables.open().table("system"))
    for _ in range(8):
        for each in (*late, *early):
            each.step()
        time.advance(LEASE_MS // 4)
    assert [record.is_over for _, record in MEMBER.scan(system)] == [False, False]
    for _ in range(8):
        late[0].step()
        late[1].step()
        time.advance(LEASE_MS // 4)
    assert MEMBER.get(system, "early").is_over  # type: ignore[union-attr]
    time.advance(DEAD_KEPT_MS)
    late[0].seek()
    for _ in range(3):
        late[0].step()
        late[1].step()
        time.advance(LEASE_MS // 4)
    assert [name for name, _ in MEMBER.scan(system)] == ["late"]
    early[1].step()  # it wakes, and is another member
    assert (early[1].begun, early[1].is_on) == (2, True)
    early[1].stop()
    late[1].stop()
    assert list(MEMBER.scan(system)) == []
    for leadership in (late[0], early[0]):
        leadership.stop()


def test_who_owns_a_topic_is_told_through_any_server_and_where_its_regions_are(
    known: tuple[ServerProcess, ServerProcess],
):
    leader, standby = known
    for server in known:
        told = server.ask("GET", "/v1/cluster/owners/shop/orders").json()
        assert (told["url"], told["state"]) == (leader.url, "live")
        assert told["why"] in (
            "lead",
            "move",
        )  # it has led from the first, or got it of one that an earlier test has killed
        assert told["epoch"] >= 1
        assert told["sinceMs"] is not None
    shards = standby.ask("GET", "/v1/admin/cluster/shards").json()
    assert (shards["shared"], shards["unowned"], len(shards["ranges"])) == (True, 0, 1)
    assert shards["version"] == told["mapVersion"]
    explained = standby.ask("GET", "/v1/admin/namespaces/shop/topics/orders/explain").json()
    assert (explained["exists"], explained["answers"]) == (False, True)
    assert explained["regions"]
    assert all(each["server"] and each["table"].endswith("message") for each in explained["regions"])
    topic = "/v1/namespaces/shop/topics/orders"

    def named() -> bool:
        problem = standby.ask("GET", topic, headers={"Basalt-Direct": "1"}).json()
        return (problem["code"], problem.get("owner")) == ("not_owner", leader.url)

    until(named, standby)  # it has looked at the map
