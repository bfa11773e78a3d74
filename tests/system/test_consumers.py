"""Consumers against a real server, with kills: of workers, of the server, and a worker that was stopped and wakes up. Outputs equal inputs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import basalt
from basalt.client import Client
from tests.ports import reserved_port
from tests.system import consuming_worker
from tests.system.server_process import ServerProcess

pytestmark = [pytest.mark.system]

MESSAGES = 3_000
KEYS = 7
LEASE_MS = 1_500
KILLS = 4
WAIT_SECONDS_MAX = 120.0  # a bound for a hang
BETWEEN_KILLS_SECONDS = 0.3


class Workers:
    """Processes of one group."""

    def __init__(self, url: str, mode: str) -> None:
        self.url = url
        self.mode = mode
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, member: str) -> None:
        """Start one, and wait until it has joined."""
        command = [sys.executable, consuming_worker.__file__, self.url, member, self.mode, str(LEASE_MS)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.running[member] = process
        assert process.stdout is not None
        assert process.stdout.readline() == b"joined\n"

    def kill(self, member: str) -> None:
        process = self.running.pop(member)
        process.kill()
        process.communicate()

    def stop_all(self) -> list[int]:
        """Let each end as a service manager does; their exit codes."""
        for process in self.running.values():
            process.terminate()
        return [self.end(process) for process in self.running.values()]

    @staticmethod
    def end(process: subprocess.Popen[bytes]) -> int:
        process.communicate(timeout=WAIT_SECONDS_MAX)
        return process.returncode

    def kill_all(self) -> None:
        for member in list(self.running):
            self.kill(member)


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as number:
        yield number


@pytest.fixture
def server(tmp_path: Path, port: int) -> Iterator[ServerProcess]:
    """A server that comes back at its place."""
    process = ServerProcess(tmp_path)
    process.launch("--set", "log.level=warning", port=port)
    process.wait_until_ready()
    yield process
    process.kill()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with basalt.connect(server.url, namespace="shop", timeout_ms=60_000) as connected:
        for topic in ("orders", "copies"):
            connected.topics.create(topic)
        yield connected


def publish(client: Client) -> Counter[bytes]:
    payloads = [b"%06d" % number for number in range(MESSAGES)]
    client.topic("orders").publish_records(
        basalt.RecordIn(payload, key=b"%d" % (number % KEYS)) for number, payload in enumerate(payloads)
    )
    return Counter(payloads)


def copies(client: Client) -> list[basalt.Message]:
    return list(client.topic("copies").read())


def wait_for_all(client: Client) -> None:
    """Wait until as many were copied as there are."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while len(copies(client)) < MESSAGES:
        assert time.monotonic() < deadline, f"{len(copies(client))} of {MESSAGES} were copied"
        time.sleep(0.1)


def check_order(client: Client) -> None:
    """Each key's messages are in the order in which they were published."""
    last: dict[bytes | None, bytes] = {}
    for message in copies(client):
        assert last.get(message.key, b"") < message.payload
        last[message.key] = message.payload


@pytest.mark.parametrize("mode", ["shared", "keyed"])
def test_workers_are_killed_and_every_message_is_copied_once(server: ServerProcess, client: Client, mode: str):
    expected = publish(client)
    workers = Workers(server.url, mode)
    try:
        for member in ("ann", "bob"):
            workers.start(member)
        for _ in range(KILLS):
            time.sleep(BETWEEN_KILLS_SECONDS)
            workers.kill("ann")
            workers.start("ann")
        wait_for_all(client)
        assert workers.stop_all() == [0, 0]
    finally:
        workers.kill_all()
    assert Counter(message.payload for message in copies(client)) == expected
    if mode == "keyed":
        check_order(client)


@pytest.mark.parametrize("mode", ["shared", "keyed"])
def test_the_server_is_killed_while_workers_process_and_every_message_is_copied_once(
    server: ServerProcess, client: Client, port: int, mode: str
):
    expected = publish(client)
    workers = Workers(server.url, mode)
    try:
        for member in ("ann", "bob"):
            workers.start(member)
        for _ in range(KILLS):
            time.sleep(BETWEEN_KILLS_SECONDS)
            server.kill()
            server.launch("--set", "log.level=warning", port=port)
            server.wait_until_ready()
        wait_for_all(client)
        assert workers.stop_all() == [0, 0]
    finally:
        workers.kill_all()
    assert Counter(message.payload for message in copies(client)) == expected
    if mode == "keyed":
        check_order(client)


def test_a_worker_that_was_stopped_beyond_its_lease_changes_nothing_when_it_wakes_up(
    server: ServerProcess, client: Client
):
    expected = publish(client)
    workers = Workers(server.url, "keyed")
    try:
        workers.start("ann")
        zombie = workers.running["ann"]
        while not copies(client):
            time.sleep(0.01)
        zombie.send_signal(signal.SIGSTOP)
        workers.start("bob")
        wait_for_all(client)
        workers.running["ann2"] = workers.running.pop("ann")
        workers.start("ann")  # its successor takes the name
        zombie.send_signal(signal.SIGCONT)
        assert workers.end(zombie) == consuming_worker.FENCED
        del workers.running["ann2"]
        assert workers.stop_all() == [0, 0]
    finally:
        workers.kill_all()
    assert Counter(message.payload for message in copies(client)) == expected
    check_order(client)


def test_a_consumer_waits_for_its_server_and_goes_on_by_itself(server: ServerProcess, client: Client, port: int):
    """In this process, where one sees that its calls are the same before, in and after the outage."""
    handled: list[bytes] = []
    first, done = threading.Event(), threading.Event()

    def handle(batch: basalt.Batch, out: basalt.Output) -> None:
        handled.extend(message.payload for message in batch)
        out.publish("copies", [message.payload for message in batch])
        first.set()
        if b"2" in handled:
            done.set()

    def work() -> None:
        with client.consumer("orders", group="copying", member_ms=60_000) as orders:
            orders.process(handle, until=done.is_set)

    client.topic("orders").publish("1")
    thread = threading.Thread(target=work)
    thread.start()
    assert first.wait(WAIT_SECONDS_MAX)
    server.kill()
    server.launch("--set", "log.level=warning", port=port)
    server.wait_until_ready()
    client.topic("orders").publish("2")
    thread.join(WAIT_SECONDS_MAX)
    assert not thread.is_alive()
    assert [message.payload for message in copies(client)] == [b"1", b"2"]
