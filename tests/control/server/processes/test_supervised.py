"""A server of several, as a process of its own: what it reads on standard input, and that the end of that stops it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from basalt.server.processes.supervised import ANSWERS, LOOK, Order
from basalt.settings import Settings

RUN = "1111111111111111"
PROGRAM = """
import signal, sys, threading
from basalt.server.processes.supervised import Supervised

ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
supervised = Supervised.read()
supervised.look_by(lambda: print("looks", flush=True))
print(supervised.number, supervised.run, supervised.listener.getsockname()[1], flush=True)
supervised.answers("http://somewhere")
while not ended.wait(0.01):
    pass
print("stops", flush=True)
"""


class Child:
    """The process, and what it tells."""

    def __init__(self, log_file: str | None = None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.told, tells = os.pipe()
        order = Order(3, RUN, Settings(), self.listener.fileno(), tells, log_file)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self.listener.fileno(), tells),
        )
        os.close(tells)
        self.write(order.encode())

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.process.kill()
    child.process.wait()
    assert child.process.stdout is not None
    child.process.stdout.close()
    child.listener.close()
    os.close(child.told)


def test_it_knows_its_part_and_says_that_it_answers(child: Child):
    assert child.line() == f"3 {RUN} {child.listener.getsockname()[1]}"
    assert os.read(child.told, 100) == ANSWERS


def test_it_looks_when_it_is_told_to_and_stops_once_nobody_has_the_other_end(child: Child):
    child.line()
    child.write(LOOK)
    assert child.line() == "looks"
    child.write(b"a word that it does not know\n")
    assert child.process.stdin is not None
    child.process.stdin.close()
    assert child.line() == "stops"
    assert child.process.wait(60) == 0
