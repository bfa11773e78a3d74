"""One case of fixed work, for comparing two trees: what a message, a call or a start costs, printed in one line.

    python -m bench.versus CASE [--quick] [--json]

`PYTHONPATH` chooses the tree whose server, client and Spark source are measured; the bench is that of the working directory, and
knows of the tree only its command line, its client and its HTTP calls as the client sends them. To pair an old tree with a new one,
turn by turn, and see the ratios new/old pair by pair, name both (`OLD` and `NEW` are checkouts):

    python -m bench.versus --old OLD --new NEW [--pairs 5] [--quick] [CASE ...]

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import uvloop

import basalt
from bench import processes, thrift_load
from bench.captured import captured
from bench.load import drive, turns
from bench.processes import Process
from bench.spark_session import running_spark, tree_cpu_s

MESSAGE_BYTES = 1_024
BATCH = 500
ROUNDS = 5  # the median of so many is printed
QUICK = 10
TOPIC = "topic-000000"
PACKAGES = ("engine", "control", "pipeline")

_MESSAGES = [os.urandom(MESSAGE_BYTES) for _ in range(BATCH)]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one unit of a case: less is better."""

    case: str
    value: float
    unit: str


def _rounds(server: Process, calls: int, messages: int, run: Callable[[int], object]) -> float:
    """The median of the server's processor time per message (us), after a round that warms up."""
    run(calls)
    costs = []
    for _ in range(ROUNDS):
        before_s = server.cpu_s()
        run(calls)
        costs.append((server.cpu_s() - before_s) * 1e6 / (calls * messages))
    return median(costs)


def _load(folder: Path, clients: int, calls: int, data: bytes, messages: int) -> float:
    with processes.basalt(folder / "data") as server:
        _create(server)
        return _rounds(server, calls, messages, lambda count: drive(server.port, clients, count, data))


def _create(server: Process) -> None:
    with _client(server) as client:
        client.topics.create(TOPIC)


def _client(server: Process) -> basalt.client.Client:
    return basalt.connect(f"http://127.0.0.1:{server.port}")


def _publish(count: int) -> bytes:
    return captured(lambda client: client.topic(TOPIC).publish(_MESSAGES[:count]))


def _one_shot(count: int) -> bytes:
    return captured(lambda client: client.publish_atomically({TOPIC: _MESSAGES[:count]}))


def _publish_500(folder: Path, scale: int) -> float:
    return _load(folder, 1, 400 // scale, _publish(BATCH), BATCH)


def _publish_64(folder: Path, scale: int) -> float:
    return _load(folder, 64, 20_000 // scale, _publish(1), 1)


def _one_shots_1(folder: Path, scale: int) -> float:
    return _load(folder, 1, 2_000 // scale, _one_shot(1), 1)


def _one_shots_8(folder: Path, scale: int) -> float:
    return _load(folder, 8, 8_000 // scale, _one_shot(1), 1)


def _transaction_500(folder: Path, scale: int) -> float:
    return _load(folder, 4, 400 // scale, _one_shot(BATCH), BATCH)


def _fill(server: Process, messages: int) -> None:
    _create(server)
    drive(server.port, 2, max(1, messages // BATCH), _publish(BATCH))


def _poll(folder: Path, scale: int) -> float:
    """Committed messages to the end of a topic: the server's and the client's processor time."""
    total = 200_000 // scale
    with processes.basalt(folder / "data") as server, _start_client(server, total) as client:
        costs = []
        for _ in range(ROUNDS + 1):
            before_s = server.cpu_s() + time.process_time()
            count = sum(len(page) for page in _pages(client))
            costs.append((server.cpu_s() + time.process_time() - before_s) * 1e6 / count)
        return median(costs[1:])


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


def _thrift(folder: Path, scale: int) -> float:
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
        return _rounds(server, calls, 1, lambda count: uvloop.run(run(count)))


def _spark_read(folder: Path, scale: int) -> float:
    """A topic as a data frame, all columns: the server, the driver, the JVM and the workers together."""
    total = 200_000 // scale
    with processes.basalt(folder / "data") as server, running_spark(folder) as spark:
        _fill(server, total)
        options = {"server": f"http://127.0.0.1:{server.port}", "namespace": "default", "topic": TOPIC}
        costs = []
        for _ in range(ROUNDS + 3):  # a JVM is at its speed after some turns
            before_s = tree_cpu_s()
            spark.read.format("basalt").options(**options).load().write.format("noop").mode("overwrite").save()
            costs.append((tree_cpu_s() - before_s) * 1e6 / total)
        return median(costs[3:])


def _memory(folder: Path, scale: int) -> float:
    """Measure the memory of the server once each of 10,000 topics has a message."""
    count = 10_000 // scale
    create = captured(lambda client: client.topics.create(TOPIC))
    publish = _publish(1)
    topics = [f"topic-{number:06d}".encode() for number in range(count)]
    with processes.basalt(folder / "data") as server:
        for data in (create, publish):
            drive(server.port, 16, count, turns([data.replace(TOPIC.encode(), topic) for topic in topics]))
        return server.rss_mib()


def _start(folder: Path, scale: int) -> float:
    """Processor time from exec to ready and the first answer, with a million messages in the store."""
    with processes.basalt(folder / "data") as server:
        _fill(server, 1_000_000 // scale)
    costs = []
    for _ in range(ROUNDS):
        with processes.basalt(folder / "data") as server, _client(server) as client:
            assert client.ready()
            costs.append(server.cpu_s() * 1_000)
    return median(costs)


CASES: dict[str, tuple[Callable[[Path, int], float], str]] = {
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


def measured(case: str, quick: bool) -> Cost:
    """The cost of a case on the tree that is imported."""
    measure, unit = CASES[case]
    folder = Path(tempfile.mkdtemp(prefix="basalt-versus-"))
    try:
        return Cost(case, measure(folder, QUICK if quick else 1), unit)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def paired(case: str, trees: Sequence[Path], pairs: int, quick: bool) -> list[list[float]]:
    """The costs of a case on each of the trees, in turns; the first turn of each is not counted."""
    found: list[list[float]] = [[] for _ in trees]
    for turn in range(pairs + 1):
        for tree, costs in zip(trees, found, strict=True):
            value = _measured_on(tree, case, quick)
            if turn:
                costs.append(value)
    return found


def _measured_on(tree: Path, case: str, quick: bool) -> float:
    path = os.pathsep.join(str(tree.resolve() / package) for package in PACKAGES)
    command = [sys.executable, "-m", "bench.versus", case, "--json", *(["--quick"] if quick else [])]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True
    )
    return float(json.loads(done.stdout.splitlines()[-1])["value"])


def comparison(case: str, old: Sequence[float], new: Sequence[float]) -> str:
    """A line: the medians, and the least, middle and greatest ratio of the pairs."""
    ratios = sorted(ours / theirs for ours, theirs in zip(new, old, strict=True))
    return (
        f"{case:20} old {median(old):9.2f}  new {median(new):9.2f}  "
        f"new/old {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})  {CASES[case][1]}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.versus", description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of: {', '.join(CASES)} (default: all)")
    parser.add_argument("--old", type=Path, help="the tree to compare with")
    parser.add_argument("--new", type=Path, help="the tree that is compared")
    parser.add_argument("--pairs", type=int, default=5, help="counted runs on each tree")
    parser.add_argument("--quick", action="store_true", help=f"a {QUICK}th of the work")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    arguments = parser.parse_args()
    if unknown := [case for case in arguments.cases if case not in CASES]:
        parser.error(f"no case is called {unknown[0]}; there are {', '.join(CASES)}")
    if (arguments.old is None) != (arguments.new is None) or arguments.pairs < 1:
        parser.error("name both --old and --new, and one pair at least")
    for case in arguments.cases or CASES:
        if arguments.old is not None:
            old, new = paired(case, (arguments.old, arguments.new), arguments.pairs, arguments.quick)
            line = json.dumps({"case": case, "old": old, "new": new}) if arguments.json else comparison(case, old, new)
        else:
            cost = measured(case, arguments.quick)
            line = json.dumps(asdict(cost)) if arguments.json else f"{case:20} {cost.value:9.2f} {cost.unit}"
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
