"""A server of two that stands still while the network holds up what it sent for a one-shot over both topics, and the other one goes on.

What arrives then changes nothing: an entry of the log finds its place taken, and rows meet the fences of their shards. In the
controls its server leaves out the condition, and the epoch in its timestamp, or the attributes: then it lands. The paused server
wakes, and is a member like any other.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from basalt_engine.keys import topic_prefix
from basalt_engine.table import prefix_stop
from deploy.hbase.standalone import Gateways
from tests.budgets import LATE_WRITES
from tests.hbase.log_workload import read_to_the_end
from tests.hbase.member_servers import Member, Members, members
from tests.hbase.server_pair import BUCKETS, TAKE_OVER_SECONDS_MAX, WAIT_SECONDS_MAX, Installation, install, until
from tests.hbase.tables import Tables
from tests.system.server_process import Reply

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

NAMESPACE = "paused"
JSON = {"Content-Type": "application/json", "Accept": "application/json"}
LOG, MESSAGES = "transaction_log", "message"
HIGHEST = b"\xff" * 64
Rows = dict[bytes, Mapping[bytes, bytes]]


class Late(NamedTuple):
    """Which write of which server is late."""

    of_leader: bool  # who decides and carries; else of the owner of the other topic
    table: str
    behind: str  # the first write to this table passes, and what follows it is meant; empty: the first one is meant
    bare: str  # what the server has in its environment in the control: its write is then held off by nothing


LATE = {
    "the entry that decides": Late(True, LOG, MESSAGES, "BASALT_OVERWRITING"),
    "rows of an owner": Late(False, MESSAGES, "", "BASALT_UNSTAMPED"),
    "the first entry of the log": Late(True, LOG, "", "BASALT_OVERWRITING"),
    "rows of the carrier": Late(True, MESSAGES, "", "BASALT_UNSTAMPED"),
}
NAMES = list(LATE)[:LATE_WRITES]


class Point:
    """Tell of each piece whether it is meant."""

    def __init__(self, late: Late, prefix: str) -> None:
        self._meant = f"{prefix}.{late.table}".encode()
        self._behind = f"{prefix}.{late.behind}".encode() if late.behind else b""
        self._lock = threading.Lock()

    def __call__(self, piece: bytes) -> bool:
        if b"put" not in piece and b"checkAndPut" not in piece:
            return False
        with self._lock:
            if self._behind:
                if self._behind in piece:
                    self._behind = b""
                return False
            return self._meant in piece


def topics(story: str) -> tuple[str, str]:
    """One for the member that does not lead, and one for the leader."""
    return f"{story}-orders", f"{story}-copies"


def one_shot(server: Member, story: str, text: str) -> Reply:
    publish = [{"namespace": NAMESPACE, "topic": topic, "messages": [text]} for topic in topics(story)]
    return server.process.ask("POST", "/v1/transactions", json.dumps({"work": {"publish": publish}}).encode(), JSON)


def read(server: Member, topic: str) -> list[str]:
    return [text for _, text in read_to_the_end(server.process, f"/v1/namespaces/{NAMESPACE}/topics/{topic}")]


def rows(installation: Installation, table: str, story: str) -> Rows:
    """What HBase has: of messages those of both topics."""
    store = Tables(installation.thrift2, installation.prefix).open()
    try:
        if table == LOG:
            spans = [(b"", HIGHEST)]
        else:
            keys = [bytes([n]) + topic_prefix(NAMESPACE, topic) for n in range(BUCKETS) for topic in topics(story)]
            spans = [(key, prefix_stop(key)) for key in keys]
        return {row.key: dict(row.columns) for span in spans for row in store.table(table).scan(*span)}
    finally:
        store.close()


class Paused:
    """Two servers, one of which stands still, and what was told of the one-shot that it had a part in."""

    def __init__(self, servers: Members, installation: Installation, story: str, late: Late, *, bare: bool) -> None:
        self.servers = servers
        self._installation = installation
        self._story = story
        self._late = late
        self.leader = servers.those[0]
        other = servers.add({late.bare: "1"} if bare and not late.of_leader else None)
        servers.wait_until_all_are_linked()
        self.paused, self.left = (self.leader, other) if late.of_leader else (other, self.leader)
        for topic, to in zip(topics(story), (other, self.leader), strict=True):
            servers.make(f"/v1/namespaces/{NAMESPACE}/topics/{topic}")
            if servers.owner_of(NAMESPACE, topic) is not to:
                servers.move(NAMESPACE, topic, to)
        until(lambda: one_shot(self.leader, story, "in time").status == 200, self.leader.process)
        self.told: list[Reply] = []
        self._calling = threading.Thread(target=self._call, daemon=True)

    def _call(self) -> None:
        with suppress(OSError):
            self.told.append(one_shot(self.leader, self._story, "late"))

    def pause(self) -> None:
        """In the midst of the call, with its write held up; the other one goes on when all is its own."""
        self.paused.gateway.hold(Point(self._late, self._installation.prefix))
        self._calling.start()
        until(lambda: self.paused.gateway.held_bytes > 0, self.paused.process)
        self.paused.signal(signal.SIGSTOP)
        next_one = self.left
        until(
            lambda: one_shot(next_one, self._story, "by the next").status == 200,
            next_one.process,
            TAKE_OVER_SECONDS_MAX,
        )

    def changed(self) -> bool:
        """Let the write go; True when something that was there is another thing, or something is new."""
        before = rows(self._installation, self._late.table, self._story)
        self.paused.gateway.let_go()
        until(lambda: not self.paused.gateway.unanswered, self.left.process)
        after = rows(self._installation, self._late.table, self._story)
        if self._late.table == LOG:  # the next leader writes on
            after = {key: after.get(key, {}) for key in before}
        return before != after

    def wake(self) -> None:
        """It has a call, a lease and a term that are over."""
        self.paused.signal(signal.SIGCONT)
        self._calling.join(WAIT_SECONDS_MAX)
        self.servers.wait_until_all_are_linked()
        for number, each in enumerate(self.servers.those):
            until(lambda n=number, e=each: one_shot(e, self._story, f"through {n}").status == 200, each.process)  # type: ignore[misc]

    def found(self) -> list[list[str]]:
        """Both topics, through both servers."""
        return [read(each, topic) for each in self.servers.those for topic in topics(self._story)]


def paused(installation: Installation, servers: Members, name: str, *, bare: bool) -> Paused:
    story = f"{NAMES.index(name)}-{'lands' if bare else 'refused'}"
    made = Paused(servers, installation, story, LATE[name], bare=bare)
    made.pause()
    return made


@pytest.mark.parametrize("name", NAMES)
def test_what_a_paused_server_had_sent_changes_nothing_when_the_other_has_its_part(
    guarded: Installation, tmp_path: Path, name: str
):
    with members(tmp_path, guarded, 1, share=True, balance=False) as servers:
        story = paused(guarded, servers, name, bare=False)
        assert not story.changed()
        story.wake()
        one, *others = story.found()
        assert all(each == one for each in others)
        done = [reply.status == 200 for reply in story.told]
        assert ("late" in one) <= (done != [False]), "what was refused is there"
        assert one.count("late") >= (done == [True]), "what was acknowledged is gone"
        later = ["by the next", "through 0", "through 1"]
        assert len(set(one)) == len(one)
        assert [text for text in one if text != "late"] == ["in time", *later]


@pytest.fixture
def spoiled(hbase_gateways: Gateways, coprocessor_jar: Path) -> Iterator[Installation]:
    """Tables of a control's own: it leaves a log that nobody can go on with."""
    prefix = f"spoiled-{os.getpid()}"
    try:
        yield install(hbase_gateways, prefix, "--jar", f"file:{coprocessor_jar}", "--refresh-interval", "1s")
    finally:
        Tables(hbase_gateways.thrift2, prefix).drop()


@pytest.mark.parametrize("name", NAMES)
def test_a_write_that_nothing_holds_off_lands(spoiled: Installation, tmp_path: Path, name: str):
    late = LATE[name]
    environment = {late.bare: "1"} if late.of_leader else None
    with members(tmp_path, spoiled, 1, share=True, balance=False, environment=environment) as servers:
        assert paused(spoiled, servers, name, bare=True).changed()
