"""`basalt serve --processes N` on a real HBase, whose servers share the topics: each has some, all calls come to one port, and one of them is killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.hbase.log_workload import NAMESPACE, ORDERS
from tests.hbase.member_load import Load
from tests.hbase.server_pair import TAKE_OVER_SECONDS_MAX, Installation, Pair, until
from tests.hbase.test_members import members
from tests.hbase.test_processes import PROCESSES, leader_of, live, pids, start, state, wait_until
from tests.system.server_process import ServerProcess

if TYPE_CHECKING:
    from tests.hbase.member_servers import Members

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

JSON = {"Content-Type": "application/json"}
MOVES = "/v1/admin/cluster/moves"


class OneCommand:
    """The servers of one command, as `Load` knows servers: one that answers at the port which all of them share."""

    def __init__(self, command: ServerProcess) -> None:
        self.process = command
        self.number = 0
        self.those = [self]
        self.urls = command.url

    def up(self) -> list[OneCommand]:
        return self.those

    def leader(self) -> OneCommand:
        return self

    def make(self, target: str) -> None:
        """Make a topic or a table anew."""
        for method, done in (("DELETE", {200, 404}), ("PUT", {200})):
            until(lambda m=method, d=done: self.process.ask(m, target).status in d, self.process)  # type: ignore[misc]

    def spread(self, namespace: str, topics: list[str]) -> None:
        """Have each topic owned by another server, and none by the leader as long as there are others."""
        rows = [each for each in members(self.process) if each["state"] == "live"]
        others = [each["instance"] for each in sorted(rows, key=lambda each: str(each["role"] == "leader"))]
        for topic, to in zip(topics, others, strict=False):
            asked = json.dumps({"to": to, "namespace": namespace, "topic": topic}).encode()
            until(
                lambda t=topic, to=to, a=asked: (  # type: ignore[misc]
                    self.owner_of(namespace, t)["instance"] == to
                    or self.process.ask("POST", MOVES, a, JSON).status == 200
                ),
                self.process,
            )

    def owner_of(self, namespace: str, topic: str) -> dict[str, Any]:
        found: dict[str, Any] = self.process.ask_json("GET", f"/v1/cluster/owners/{namespace}/{topic}")
        return found

    def shards(self) -> dict[str, int]:
        """How many shards each live server has, by the name of its run."""
        told = self.process.ask_json("GET", "/v1/admin/cluster/shards")
        return {each["instance"]: each["shards"] for each in told["members"] if each["state"] == "live"}


def process_of(row: dict[str, Any]) -> int:
    return int(row["owner"].rpartition(":")[2])


def test_each_process_has_topics_and_those_of_one_that_is_killed_go_to_others_at_once_and_nothing_is_lost(
    pair: Pair, guarded: Installation, tmp_path: Path
):
    command = start(pair, guarded)
    servers = OneCommand(command)
    until(
        lambda: len(servers.shards()) == PROCESSES, command, TAKE_OVER_SECONDS_MAX
    )  # dealt evenly by the leader itself
    with Load(cast("Members", servers), tmp_path, may_hang=False) as load:
        load.wait_until_all_work()
        owner = servers.owner_of(NAMESPACE, ORDERS)
        killed = process_of(owner)
        assert killed != leader_of(command)
        led = command.log.read_text().count("serves under epoch")
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: f"ended the membership of the run {owner['instance']}" in command.log.read_text(), command)
        wait_until(lambda: servers.owner_of(NAMESPACE, ORDERS)["instance"] != owner["instance"], command)
        # Nobody waited for its lease: it would have been the leader that ended its membership.
        assert f"ended the membership {owner['instance']}" not in command.log.read_text()
        load.wait_until_all_work()
        until(lambda: len(live(command)) == PROCESSES, command)  # another process took its place
        until(lambda: len(servers.shards()) == PROCESSES, command, TAKE_OVER_SECONDS_MAX)  # and has topics
        load.wait_until_all_work()
        load.finish()
    assert command.log.read_text().count("serves under epoch") == led, "the leader went on"
    children = pids(command).values()
    assert command.stop() == 0
    assert [state(pid) for pid in children] == [""] * PROCESSES
