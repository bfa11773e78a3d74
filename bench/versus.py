"""One case of fixed work, for comparing two trees: what a message, a call or a start costs, printed in one line.

    python -m bench.versus CASE [--quick] [--json]

`PYTHONPATH` chooses the tree whose server, client and Spark source are measured; the bench is that of the working directory, and
knows of the tree only its command line, its client and its HTTP calls as the client sends them. To pair an old tree with a new one
and see the ratios new/old pair by pair, name both (`OLD` and `NEW` are checkouts, each with its bytecode or both without):

    python -m bench.versus --old OLD --new NEW [--pairs 6] [--servers 3] [--quick] [CASE ...]

A server of each then runs all the time, and they work in turns of a second or so: a machine that gets slower for a minute slows both.
After some pairs new servers take over: a process is some percent slower or quicker for as long as it lives.

A program that times whole processes in turns can be given the single runs:

    PYTHONPATH=NEW/engine:NEW/control:NEW/pipeline python -m bench.versus CASE
    PYTHONPATH=OLD/engine:OLD/control:OLD/pipeline python -m bench.versus CASE
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import IO

import uvloop

import basalt
from bench import processes, thrift_load
from bench.captured import captured
from bench.load import drive, turns
from bench.processes import Process
from bench.spark_session import running_spark, tree_cpu_s

MESSAGE_BYTES = 1_024
BATCH = 500
ROUNDS = 5  # of one tree the median of so many is printed
QUICK = 10
TOPIC = "topic-000000"
WARM_UP_ROUNDS = 3  # a JVM is at its speed after some rounds
PACKAGES = ("engine", "control", "pipeline")
ROUND = b"\n"  # asks a child for one round

Rounds = Generator[float, None, None]  # of each round its cost, for as long as one asks

_MESSAGES = [os.urandom(MESSAGE_BYTES) for _ in range(BATCH)]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one unit of a case: less is better."""

    case: str
    value: float
    unit: str


def _rounds(server: Process, calls: int, messages: int, run: Callable[[int], object]) -> Rounds:
    """The server's processor time per message (us), round by round, after one that warms up."""
    run(calls)
    while True:
        before_s = server.cpu_s()
        run(calls)
        yield (server.cpu_s() - before_s) * 1e6 / (calls * messages)


def _load(folder: Path, clients: int, calls: int, data: bytes, messages: int) -> Rounds:
    with processes.basalt(folder / "data") as server:
        _create(server)
        yield from _rounds(server, calls, messages, lambda count: drive(server.port, clients, count, data))


def _create(server: Process) -> None:
    with _client(server) as client:
        client.topics.create(TOPIC)


def _client(server: Process) -> basalt.client.Client:
    return basalt.connect(f"http://127.0.0.1:{server.port}")


def _publish(count: int) -> bytes:
    return captured(lambda client: client.topic(TOPIC).publish(_MESSAGES[:count]))


def _one_shot(count: int) -> bytes:
    return captured(lambda client: client.publish_atomically({TOPIC: _MESSAGES[:count]}))


def _publish_500(folder: Path, scale: int) -> Rounds:
    return _load(folder, 1, 400 // scale, _publish(BATCH), BATCH)


def _publish_64(folder: Path, scale: int) -> Rounds:
    return _load(folder, 64, 20_000 // scale, _publish(1), 1)


def _one_shots_1(folder: Path, scale: int) -> Rounds:
    return _load(folder, 1, 2_000 // scale, _one_shot(1), 1)


def _one_shots_8(folder: Path, scale: int) -> Rounds:
    return _load(folder, 8, 8_000 // scale, _one_shot(1), 1)


def _transaction_500(folder: Path, scale: int) -> Rounds:
    return _load(folder, 4, 400 // scale, _one_shot(BATCH), BATCH)


def _fill(server: Process, messages: int) -> None:
    _create(server)
    drive(server.port, 2, max(1, messages // BATCH), _publish(BATCH))


def _poll(folder: Path, scale: int) -> Rounds:
    """Committed messages to the end of a topic: the server's and the client's processor time."""
    total = 200_000 // scale
    with processes.basalt(folder / "data") as server, _start_client(server, total) as client:
        sum(map(len, _pages(client)))
        while True:
            before_s = server.cpu_s() + time.process_time()
            count = sum(map(len, _pages(client)))
            yield (server.cpu_s() + time.process_time() - before_s) * 1e6 / count


def _start_client(server: Process, total: int) -> basalt.client.Client:
    _fill(server, total)
    return _client(server)


def _pages(client: basalt.client.Client) -> Iterator[list[object]]:
    topic, start = client.topic(TOPIC), None
    while True:
        page = topic.poll(start=start, inclusive=start is None, isolation="committed")
        if not len(page):
            return
        yield list(page.payloads())
        start = page.next_id


def _thrift(folder: Path, scale: int) -> Rounds:
    """Transactions of eight clients, one changed key each."""
    clients, calls = 8, 8_000 // scale
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]

    async def client(number: int, count: int) -> None:
        connection = await thrift_load.connected(port)
        for turn in range(count):
            await thrift_load.transaction(connection, b"row %d of client %d" % (turn, number))
        connection.close()

    async def run(count: int) -> None:
        await asyncio.gather(*(client(number, count // clients) for number in range(clients)))

    with processes.basalt(folder / "data", f"thrift.port={port}") as server:
        yield from _rounds(server, calls, 1, lambda count: uvloop.run(run(count)))


def _spark_read(folder: Path, scale: int) -> Rounds:
    """A topic as a data frame, all columns: the server, the driver, the JVM and the workers together."""
    total = 200_000 // scale
    with processes.basalt(folder / "data") as server, running_spark(folder) as spark:
        _fill(server, total)
        options = {"server": f"http://127.0.0.1:{server.port}", "namespace": "default", "topic": TOPIC}
        for turn in count():
            before_s = tree_cpu_s()
            spark.read.format("basalt").options(**options).load().write.format("noop").mode("overwrite").save()
            if turn >= WARM_UP_ROUNDS:
                yield (tree_cpu_s() - before_s) * 1e6 / total


def _memory(folder: Path, scale: int) -> Rounds:
    """Measure the memory of the server once each of 10,000 topics has a message."""
    create = captured(lambda client: client.topics.create(TOPIC))
    publish = _publish(1)
    topics = [f"topic-{number:06d}".encode() for number in range(10_000 // scale)]
    for turn in count():
        with processes.basalt(folder / f"data-{turn}") as server:
            for data in (create, publish):
                drive(server.port, 16, len(topics), turns([data.replace(TOPIC.encode(), topic) for topic in topics]))
            yield server.rss_mib()


def _start(folder: Path, scale: int) -> Rounds:
    """Processor time from exec to ready and the first answer, with a million messages in the store."""
    with processes.basalt(folder / "data") as server:
        _fill(server, 1_000_000 // scale)
    while True:
        with processes.basalt(folder / "data") as server, _client(server) as client:
            assert client.ready()
            yield server.cpu_s() * 1_000


CASES: dict[str, tuple[Callable[[Path, int], Rounds], str]] = {
    "publish-500": (_publish_500, "CPU us/message"),
    "publish-64-clients": (_publish_64, "CPU us/message"),
    "one-shot-1-client": (_one_shots_1, "CPU us/message"),
    "one-shot-8-clients": (_one_shots_8, "CPU us/message"),
    "poll-committed": (_poll, "CPU us/message, with the client's"),
    "transaction-500": (_transaction_500, "CPU us/message"),
    "thrift": (_thrift, "CPU us/transaction"),
    "spark-read": (_spark_read, "CPU us/row, of all processes"),
    "memory-topics": (_memory, "MiB"),
    "start": (_start, "CPU ms"),
}


@contextmanager
def costs_of(case: str, quick: bool) -> Iterator[Rounds]:
    """The cost of a case on the tree that is imported, of each round as it is asked for."""
    folder = Path(tempfile.mkdtemp(prefix="basalt-versus-"))
    try:
        with closing(CASES[case][0](folder, QUICK if quick else 1)) as costs:
            yield costs
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measured(case: str, quick: bool) -> Cost:
    """The cost of a case on the tree that is imported."""
    with costs_of(case, quick) as costs:
        return Cost(case, median(islice(costs, ROUNDS)), CASES[case][1])


def answer_rounds(case: str, quick: bool, asked: IO[bytes], answers: IO[bytes]) -> None:
    """Do a round for each line that is asked, and answer its cost, until no more is asked."""
    with costs_of(case, quick) as costs:
        for _ in iter(asked.readline, b""):
            answers.write(b"%r\n" % next(costs))
            answers.flush()


def paired(trees: Sequence[Child], pairs: int) -> list[list[float]]:
    """The costs of so many rounds of each tree, which are first in turns; the first round of each is not counted."""
    found: list[list[float]] = [[] for _ in trees]
    for turn in range(pairs + 1):
        order = list(zip(trees, found, strict=True))
        for tree, costs in order if turn % 2 else reversed(order):
            value = tree.next_cost()
            if turn:
                costs.append(value)
    return found


class Child:
    """A process in which the packages are those of a tree, and which does a round of a case whenever it is asked."""

    def __init__(self, tree: Path, case: str, quick: bool) -> None:
        self._what = f"{case} on {tree}"
        path = os.pathsep.join(str(tree.resolve() / package) for package in PACKAGES)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.versus", case, "--answer-rounds", *(["--quick"] if quick else [])],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def next_cost(self) -> float:
        """Do a round; `RuntimeError` when the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(ROUND)
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._what} failed, with exit code {self._process.wait()}")
        return float(line)

    def close(self) -> None:
        """Let it end, and wait for it."""
        self._process.communicate()


def comparison(case: str, old: Sequence[float], new: Sequence[float]) -> str:
    """A line: the medians, and the least, middle and greatest ratio of the pairs."""
    ratios = sorted(ours / theirs for ours, theirs in zip(new, old, strict=True))
    return (
        f"{case:20} old {median(old):9.2f}  new {median(new):9.2f}  "
        f"new/old {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})  {CASES[case][1]}"
    )


def compared(case: str, arguments: argparse.Namespace) -> tuple[list[float], list[float]]:
    """The costs of a case on both trees, over all pairs and servers."""
    both: tuple[list[float], list[float]] = ([], [])
    for _ in range(arguments.servers):
        with ExitStack() as stack:
            trees = [Child(tree, case, arguments.quick) for tree in (arguments.old, arguments.new)]
            for tree in trees:
                stack.callback(tree.close)
            for costs, found in zip(both, paired(trees, arguments.pairs), strict=True):
                costs.extend(found)
    return both


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.versus", description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of: {', '.join(CASES)} (default: all)")
    parser.add_argument("--old", type=Path, help="the tree to compare with")
    parser.add_argument("--new", type=Path, help="the tree that is compared")
    parser.add_argument("--pairs", type=int, default=6, help="counted rounds of each server")
    parser.add_argument("--servers", type=int, default=3, help="servers of each tree, one after the other")
    parser.add_argument("--quick", action="store_true", help=f"a {QUICK}th of the work")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.add_argument(
        "--answer-rounds", action="store_true", help=argparse.SUPPRESS
    )  # how it starts itself for a tree
    arguments = parser.parse_args()
    if unknown := [case for case in arguments.cases if case not in CASES]:
        parser.error(f"no case is called {unknown[0]}; there are {', '.join(CASES)}")
    if (arguments.old is None) != (arguments.new is None) or min(arguments.pairs, arguments.servers) < 1:
        parser.error("name both --old and --new, and one pair and one server at least")
    if arguments.answer_rounds:
        answers, sys.stdout = sys.stdout.buffer, sys.stderr  # whatever else is printed is no answer
        answer_rounds(arguments.cases[0], arguments.quick, sys.stdin.buffer, answers)
        return 0
    for case in arguments.cases or CASES:
        if arguments.old is not None:
            old, new = compared(case, arguments)
            line = json.dumps({"case": case, "old": old, "new": new}) if arguments.json else comparison(case, old, new)
        else:
            cost = measured(case, arguments.quick)
            line = json.dumps(asdict(cost)) if arguments.json else f"{case:20} {cost.value:9.2f} {cost.unit}"
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
