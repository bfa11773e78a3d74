"""SIGKILL of an application and of a relay, at every point at which anything leaves their process.

A point is just before or just after each commit of the SQL connection and each request to the server. Whatever was killed,
in the end every message that the database has decided on is in its topic, once and in order.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import basalt
from basalt.errors import TransactionEndedError
from basalt.outbox import Outbox, OutboxParticipant, Relay
from tests.system.server_process import ServerProcess

pytestmark = pytest.mark.system

MESSAGES = [str(number) for number in range(5)]
POINTS_MAX = 80  # far more than either program has
TRANSACTION_MS = 1_000  # as long as the rows of a killed application wait
TIMED_OUT = 75  # the exit code of an application that was too slow for it


class SlowMachineError(Exception):
    """The program did not come to its end, nor to the point, for it was stopped on the way by something else."""


class Points:
    """Counts the points that are passed, and dies at one."""

    def __init__(self, dies_at: int) -> None:
        self.dies_at = dies_at
        self.passed = 0

    def pass_one(self) -> None:
        if self.passed == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed += 1


class World:
    """One database file, one topic on the server."""

    def __init__(self, server: ServerProcess, folder: Path, name: str) -> None:
        self.url = server.url
        self.name = name
        self.path = folder / f"{name}.db"
        self.points = Points(-1)
        with self.client() as client:
            client.topics.create(name)
        self.outbox().create_table()
        with sqlite3.connect(self.path) as connection:
            connection.execute("CREATE TABLE accounts (name TEXT)")

    def client(self) -> basalt.client.Client:
        client = basalt.connect(self.url)
        transport: Any = client._driver._transport
        send = transport.send

        def counted(request: Any) -> Any:
            self.points.pass_one()
            reply = send(request)
            self.points.pass_one()
            return reply

        transport.send = counted
        return client

    def connect(self) -> sqlite3.Connection:
        world = self

        class Counted(sqlite3.Connection):
            def commit(self) -> None:
                world.points.pass_one()
                super().commit()
                world.points.pass_one()

        return sqlite3.connect(self.path, timeout=60, factory=Counted)

    def outbox(self) -> Outbox:
        return Outbox(self.connect, name=self.name)

    def killed(self, program: Callable[[World], None], dies_at: int) -> bool:
        """Run it in a process of its own that dies at this point; False when it came to its end before."""

        def run() -> None:
            self.points = Points(dies_at)
            try:
                program(self)
            except TransactionEndedError:
                os._exit(TIMED_OUT)

        process = multiprocessing.get_context("fork").Process(target=run)
        process.start()
        process.join(60)
        if process.exitcode == TIMED_OUT:
            raise SlowMachineError
        assert process.exitcode in (0, -signal.SIGKILL), f"point {dies_at}: exit code {process.exitcode}"
        return process.exitcode != 0

    def settle(self) -> None:
        """A relay goes over it until nothing is left."""
        with self.client() as client:
            relay = Relay(self.outbox(), client, rows_max=2)
            deadline = time.monotonic() + 60
            while relay.run_once() or self.asked("SELECT COUNT(*) FROM basalt_outbox"):
                assert time.monotonic() < deadline, "rows stay"
                time.sleep(0.02)
            relay.close()

    def published(self) -> list[str]:
        with self.client() as client:
            return [message.text for message in client.topic(self.name).read(isolation="committed")]

    def asked(self, statement: str) -> int:
        connection = sqlite3.connect(self.path, timeout=60)
        (found,) = connection.execute(statement).fetchone()
        connection.close()
        return int(found)


def relay_program(world: World) -> None:
    with world.client() as client:
        relay = Relay(world.outbox(), client, rows_max=2)
        while relay.run_once():
            pass


def application_program(world: World) -> None:
    connection = world.connect()
    participant = OutboxParticipant(world.outbox(), connection)
    with world.client() as client, client.transaction(participants=[participant], timeout_ms=TRANSACTION_MS) as tx:
        connection.execute("INSERT INTO accounts VALUES ('ann')")
        participant.publish(tx, world.name, MESSAGES)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("outbox"))
    server.start()
    yield server
    server.stop()


def filled(server: ServerProcess, folder: Path, name: str) -> World:
    world = World(server, folder, name)
    connection = sqlite3.connect(world.path)
    world.outbox().publish(connection, name, MESSAGES)
    connection.commit()
    connection.close()
    return world


def test_a_relay_may_die_at_any_point(running, tmp_path):
    for point in range(POINTS_MAX):
        world = filled(running, tmp_path, f"relay{point}")
        killed = world.killed(relay_program, point)
        world.settle()
        assert world.published() == MESSAGES, f"killed at point {point}"
        if not killed:
            break
    assert not killed
    assert point > 20, "the relay has fewer points than it must have: the kills did not happen"


def test_a_relay_may_die_again_and_again(running, tmp_path):
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for number in range(6):
        world = filled(running, tmp_path, f"again{number}")
        points = [chance.randrange(40) for _ in range(4)]
        for point in points:
            world.killed(relay_program, point)
        world.settle()
        assert world.published() == MESSAGES, f"seed {seed}: killed at points {points}"


def test_an_application_may_die_at_any_point(running, tmp_path):
    ends = set()
    tries = itertools.count()
    for point in range(POINTS_MAX):
        while True:
            world = World(running, tmp_path, f"application{next(tries)}")
            try:
                killed = world.killed(application_program, point)
                break
            except SlowMachineError:
                continue
        world.settle()
        decided = world.asked("SELECT COUNT(*) FROM accounts")
        assert world.published() == (MESSAGES if decided else []), f"killed at point {point}"
        ends.add(decided)
        if not killed:
            break
    assert (killed, ends) == (False, {0, 1})
    assert point >= 8
