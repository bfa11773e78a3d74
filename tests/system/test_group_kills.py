"""SIGKILL of the server and of members of consumer groups, again and again, while they consume, transform and produce.

Meanwhile members of the keyed group come and leave, and some are stopped for longer than their lease and wake up. Whatever happened, in
the end each group has handed on every message once, or moved it to its dead letters once, and a keyed group has kept the order of each key. `BASALT_KILL_SEED` draws the same kills again; tests/budgets.py says how many rounds
there are.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import basalt
from tests.budgets import GROUP_KILL_ROUNDS as ROUNDS
from tests.ports import reserved_port
from tests.system import group_worker, killing_server
from tests.system.group_worker import INPUTS, NAMESPACE, dead_of, outputs_of
from tests.system.server_process import ServerProcess

pytestmark = pytest.mark.system

KEYS = 17
ROUND_MESSAGES = 120
POISON_EVERY = 60  # messages
SERVER_KILLS = 0.6  # of the rounds; which ones is drawn, how many is not, so that each run has its kills
MEMBER_STOPS = 0.5  # of the rounds, drawn in the same way
FAULT_RUNS_MAX = 3
DRAIN_SECONDS_MAX = 300.0  # a bound for a hang on a loaded machine
KILLER = (str(Path(killing_server.__file__)),)


class Member(NamedTuple):
    group: str
    mode: str
    way: str
    number: int = 0


MEMBERS = (
    Member("shared", "shared", "process"),
    Member("shared", "shared", "transaction"),
    Member("keyed", "keyed", "process"),
    Member("keyed", "keyed", "transaction"),
    Member("stream", "stream", "process"),
)
VISITORS = tuple(Member("keyed", "keyed", ("process", "transaction")[number % 2], number) for number in range(1, 4))
GROUPS = tuple(dict.fromkeys(member.group for member in MEMBERS))


class World:
    """One data directory and the members of its groups, all of which die."""

    def __init__(self, folder: Path, port: int, seed: int, fault: str = "") -> None:
        self.chances = random.Random(seed)
        self.server = ServerProcess(folder, KILLER)
        self.log = folder / "members.log"
        self.fault = {"BASALT_BREAK": fault} if fault else {}
        self.port = port
        self.sent: list[tuple[bytes, bytes]] = []  # key and payload, in order
        self.members: dict[Member, subprocess.Popen[bytes]] = {}
        self.leaving: list[subprocess.Popen[bytes]] = []
        self.stopped: list[subprocess.Popen[bytes]] = []
        self.kills: Counter[str] = Counter()

    def start_server(self) -> None:
        options = (
            "jobs.log-snapshot.interval_ms=100",
            "jobs.stats.interval_ms=100",
            "transactions.expiry_interval_ms=100",
            "log.level=warning",
        )
        flags = [part for option in options for part in ("--set", option)]
        environment = self.fault | {"BASALT_LOG_SNAPSHOT": str(self.chances.choice((1, 50)))}
        self.server.launch(*flags, port=self.port, environment=environment)
        self.server.wait_until_ready()

    def client(self) -> Any:
        return basalt.connect(self.server.url, namespace=NAMESPACE)

    def create_topics(self) -> None:
        with self.client() as client:
            # Those of dead letters too: a member that is late to join would make its group's only then.
            for topic in (INPUTS, *map(outputs_of, GROUPS), *map(dead_of, GROUPS)):
                client.topics.create(topic)

    def start_member(self, member: Member) -> None:
        with self.log.open("ab") as log:
            self.members[member] = subprocess.Popen(
                [sys.executable, group_worker.__file__, self.server.url, *member[:3]], stdout=log, stderr=log,
                env={name: value for name, value in os.environ.items() if not name.startswith("BASALT")},
            )  # fmt: skip

    def kill_member(self, member: Member) -> None:
        process = self.members[member]
        assert process.poll() is None, f"{member} ended:\n{self.log.read_text()[-3_000:]}"
        process.kill()
        process.wait()
        self.kills[f"{member.mode} {member.way}"] += 1

    def resize(self, *, stops: bool) -> None:
        """Let visitors come and leave, and in some rounds stop somebody until the next one; what was stopped wakes up."""
        for process in self.stopped:
            process.send_signal(signal.SIGCONT)
        self.stopped.clear()
        for visitor in VISITORS:
            if self.chances.random() < 0.5:
                continue
            if visitor in self.members:
                process = self.members.pop(visitor)
                process.terminate()
                self.leaving.append(process)
                self.kills["left"] += 1
            else:
                self.start_member(visitor)
        if stops:
            process = self.members[self.chances.choice(sorted(self.members))]
            process.send_signal(signal.SIGSTOP)
            self.stopped.append(process)
            self.kills["stopped"] += 1

    def publish(self) -> None:
        """Publish a round's messages; a client's numbers keep those single whose answer a kill takes away."""
        batch = []
        for index in range(ROUND_MESSAGES):
            key = b"key-%d" % self.chances.randrange(KEYS)
            poison = index % POISON_EVERY == POISON_EVERY - 1
            batch.append((key, b"%s-%d" % (b"poison" if poison else b"good", len(self.sent) + index)))
        with self.client() as client:
            for start in range(0, ROUND_MESSAGES, 10):
                part = batch[start : start + 10]
                client.publish_atomically({INPUTS: [basalt.RecordIn(payload, key) for key, payload in part]})
        self.sent += batch

    def run(self, rounds: int) -> None:
        if not self.members:
            self.start_server()
            self.create_topics()
            for member in MEMBERS:
                self.start_member(member)
        killed, stopping = (
            self.chances.sample(range(rounds), round(rounds * share)) for share in (SERVER_KILLS, MEMBER_STOPS)
        )
        for number in range(rounds):
            self.resize(stops=number in stopping)
            self.publish()
            time.sleep(self.chances.uniform(0, 0.5))  # a random moment
            for member in self.chances.sample(sorted(self.members), self.chances.randint(0, 2)):
                self.kill_member(member)
                self.start_member(member)
            if number in killed:
                self.server.process.send_signal(signal.SIGKILL)  # type: ignore[union-attr]
                self.server.exit_code()
                self.kills["server"] += 1
                self.start_server()
        self.drain()

    def drain(self) -> None:
        """Wait until every group has acknowledged all, and who left is gone."""
        for process in self.stopped:
            process.send_signal(signal.SIGCONT)
        self.stopped.clear()
        for process in self.leaving:  # one may have left before it knew how
            assert process.wait(DRAIN_SECONDS_MAX) in (0, -signal.SIGTERM), self.log.read_text()[-3_000:]
        self.leaving.clear()
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while True:
            counts = {group: sum(map(len, self.handed_on(group))) for group in GROUPS}
            if all(count >= len(self.sent) for count in counts.values()):
                return
            for member, process in self.members.items():
                assert process.poll() is None, f"{member} ended:\n{self.log.read_text()[-3_000:]}"
            assert time.monotonic() < deadline, f"{counts} of {len(self.sent)}\n{self.standing()}"
            time.sleep(0.1)

    def standing(self) -> str:
        """Each group as the server shows it, and what it says of its first messages."""
        path = f"/v1/namespaces/{NAMESPACE}/topics/{INPUTS}/groups"
        parts = ("", "/members", "/claims", "/messages?limit=3")
        paths = [f"{path}/{group}{part}" for group in GROUPS for part in parts]
        return "\n".join(f"{each}: {self.server.ask('GET', each).body.decode()}" for each in paths)

    def handed_on(self, group: str) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]:
        """What the group has published, and its dead letters."""
        with self.client() as client:
            return (
                [(message.key, message.payload) for message in client.topic(outputs_of(group)).read()],
                [(message.key, message.payload) for message in client.topic(dead_of(group)).read()],
            )

    def compare(self) -> None:
        """Every message was handed on once, or is a dead letter once; order per key is kept where it is promised."""
        good = [each for each in self.sent if each[1].startswith(b"good")]
        poison = [each for each in self.sent if each[1].startswith(b"poison")]
        for group in GROUPS:
            outputs, dead = self.handed_on(group)
            assert Counter(outputs) == Counter(good), f"{group}: lost or doubled"
            assert Counter(dead) == Counter(poison), f"{group}: dead letters lost or doubled"
            if group != "shared":
                assert by_key(outputs) == by_key(good), f"{group}: order of a key"

    def stop(self) -> None:
        for process in (*self.members.values(), *self.leaving):
            process.kill()
            process.wait()
        with suppress(Exception):
            self.server.kill()


@pytest.fixture
def port() -> Iterator[int]:
    """Nobody else listens there while the server is dead, and is taken for it."""
    with reserved_port() as number:
        yield number


@pytest.fixture
def world(tmp_path: Path, port: int) -> Iterator[World]:
    seed = int(os.environ.get("BASALT_KILL_SEED") or secrets.randbits(32))
    print(f"BASALT_KILL_SEED={seed}")
    world = World(tmp_path, port, seed)
    yield world
    world.stop()


def by_key(messages: list[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = defaultdict(list)
    for key, payload in messages:
        found[key].append(payload)
    return found


def test_each_group_hands_every_message_on_once_whoever_is_killed(world):
    world.run(ROUNDS)

    world.compare()
    assert world.kills["server"] == round(ROUNDS * SERVER_KILLS)
    assert world.kills["stopped"] == round(ROUNDS * MEMBER_STOPS)


@pytest.mark.parametrize("fault", sorted(killing_server.GROUP_FAULTS))
def test_the_loop_finds_a_server_that_breaks_its_promise_to_groups(tmp_path, port, fault):
    world = World(tmp_path, port, 1, fault)
    try:
        with pytest.raises(AssertionError, match="lost or doubled"):
            for _ in range(FAULT_RUNS_MAX):
                world.run(ROUNDS)
                world.compare()
    finally:
        world.stop()
