"""Consumer groups beside Kafka and Pulsar: the same work on the same machine, in turns, each with a broker of its own.

    python -m bench.peers [--quick] [--json FILE]

Needs a JDK and Maven, which fetches the brokers the first time: some minutes, and 300 MB. Basalt works twice: with cheap load over HTTP
(`bench.members`), which leaves the machine to the server, and through its Python client. The others work through their own Java clients, in
Java machines that stay warm. Nobody compresses, and every message is kept once. Basalt syncs each commit before it is answered, and so does
Pulsar's bookie; Kafka does as it is installed (it leaves that to the system), and where that is said with a sync each time.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

import basalt
from bench import processes
from bench.figures import Figure, table
from bench.load import drive
from bench.members import Member, Source, acknowledge_all, outputs, timed, transform_in_one_call
from bench.peers.brokers import FLUSHED, Peer, kafka, pulsar
from bench.processes import Process
from bench.setting_up import BATCH, NAMESPACE, create_topics, publish_request

ROUNDS = 5
CLIENTS = 8
PART = 5  # others transform a fifth of what Basalt does, so that their rounds take about as long

_numbers = count()
Run = Callable[[], float]  # does a round of work; the seconds that it took


class Rounds:
    """Rounds of work by several systems in turns: messages per second, and the processor time of the broker for each message."""

    def __init__(self) -> None:
        self._rates: dict[str, list[float]] = {}
        self._cpu_us: dict[str, list[float]] = {}

    def go(self, systems: dict[str, tuple[Process, int, Run]]) -> None:
        """So many rounds of each, after one that is not counted; each with its broker, and the messages of a round."""
        for turn in range(ROUNDS + 1):
            for name, (broker, messages, run) in systems.items():
                before_s = broker.cpu_s()
                rate = messages / run()
                if turn:
                    self._rates.setdefault(name, []).append(rate)
                    self._cpu_us.setdefault(name, []).append((broker.cpu_s() - before_s) * 1e6 / messages)

    def figure(self, title: str, ours: str, other: str, target: float) -> Figure:
        note = f"the yardstick takes {median(self._cpu_us[other]):.2f} us of its broker's processor"
        return Figure(
            f"{title}, {ours}", median(self._rates[ours]), "msg/s", f"msg/s of {other}", median(self._rates[other]), target,
            cpu_us=median(self._cpu_us[ours]), note=note,
        )  # fmt: skip


def transforming_batches(server: Process, stock: Peer, synced: Peer, other: Peer, total: int) -> Iterator[Figure]:
    """Consume, transform and produce, 500 in a transaction, one client; the others get a part of the work."""
    less = total // PART
    _fill(server, "whole", total)
    stock.seconds("fill", "whole", less, 1)
    synced.seconds("fill", "whole", less, 1)
    other.seconds("fill", "whole", total)
    made, rounds = outputs("made", BATCH), Rounds()
    transform = ("transform", "whole", less, BATCH)
    rounds.go(
        {
            "over HTTP": (server, total, partial(_by, server, "whole", 1, partial(transform_in_one_call, made=made))),
            "in Python": (server, total, partial(_processed, server, "whole", total)),
            "Kafka": (stock.broker, less, partial(stock.seconds, *transform, 1)),
            "Kafka with a sync": (synced.broker, less, partial(synced.seconds, *transform, 1)),
            "Pulsar": (other.broker, less, partial(other.seconds, *transform)),
        }
    )
    for ours in ("over HTTP", "in Python"):
        for peer in ("Kafka", "Kafka with a sync", "Pulsar"):
            yield rounds.figure("consume-transform-produce, 500 per transaction", ours, peer, 3)


def transforming_singles(server: Process, stock: Peer, synced: Peer, total: int) -> Iterator[Figure]:
    """The same with one message in a transaction, and eight clients."""
    _fill(server, "singles", total)
    less = total // PART
    stock.seconds("fill", "singles", less, CLIENTS)
    synced.seconds("fill", "singles", less, CLIENTS)
    work = partial(transform_in_one_call, made=outputs("made", 1), limit=1)
    transform = ("transform", "singles", less, 1, CLIENTS)
    rounds = Rounds()
    rounds.go(
        {
            "over HTTP": (server, total, partial(_by, server, "singles", CLIENTS, work)),
            "Kafka": (stock.broker, less, partial(stock.seconds, *transform)),
            "Kafka with a sync": (synced.broker, less, partial(synced.seconds, *transform)),
        }
    )
    for peer in ("Kafka", "Kafka with a sync"):
        yield rounds.figure("consume-transform-produce, 1 per transaction, 8 clients", "over HTTP", peer, 5)


def acknowledging(server: Process, other: Peer, total: int) -> Iterator[Figure]:
    """Fetch and acknowledge 500 at a time, one client of a shared group; on the topic that the batches came from."""
    rounds = Rounds()
    rounds.go(
        {
            "over HTTP": (server, total, partial(_by, server, "whole", 1, acknowledge_all)),
            "in Python": (server, total, partial(_acknowledged, server, "whole", total)),
            "Pulsar": (other.broker, total, partial(other.seconds, "consume", "whole", total, BATCH)),
        }
    )
    for ours in ("over HTTP", "in Python"):
        yield rounds.figure("fetch + acknowledge, 500 a call", ours, "Pulsar", 1)


def _fill(server: Process, topic: str, total: int) -> None:
    create_topics(server, topic)
    drive(server.port, 2, total // BATCH, publish_request(topic, BATCH))


def _by(server: Process, topic: str, members: int, work: Callable[[Member], Awaitable[None]]) -> float:
    """Work by members of a new group that have no names."""
    source = Source(topic, f"group-{next(_numbers)}")
    drive(server.port, 1, 1, source.put())
    return timed(server.port, source, ("",) * members, work)[0]


def _processed(server: Process, topic: str, total: int) -> float:
    """Consume, transform and produce with the Python client's `process`, once it has its first messages."""
    started = done = 0.0

    def transform(batch: basalt.Batch, out: basalt.Output) -> None:
        nonlocal started, done
        started = started or time.perf_counter()
        out.publish("made", [message.payload for message in batch])
        done += len(batch)

    with _client(server) as client, client.consumer(topic, group=f"group-{next(_numbers)}") as consumer:
        consumer.process(transform, until=lambda: done >= total, limit=BATCH)
        return time.perf_counter() - started


def _acknowledged(server: Process, topic: str, total: int) -> float:
    """Fetch and acknowledge with the Python client, which decodes each message."""
    started = done = 0.0

    def read(batch: basalt.Batch, out: basalt.Output) -> None:
        nonlocal started, done
        started = started or time.perf_counter()
        done += sum(1 for _ in batch)

    with _client(server) as client, client.consumer(topic, group=f"group-{next(_numbers)}") as consumer:
        consumer.process(read, until=lambda: done >= total, limit=BATCH)
        return time.perf_counter() - started


def _client(server: Process) -> basalt.Client:
    return basalt.connect(f"http://127.0.0.1:{server.port}", namespace=NAMESPACE)


def figures(folder: Path, quick: bool) -> Iterator[Figure]:
    """All of it, with the four brokers on the machine at once."""
    total, singles = (20_000, 2_000) if quick else (50_000, 8_000)
    with ExitStack() as stack:
        stock = stack.enter_context(kafka(folder / "kafka"))
        synced = stack.enter_context(kafka(folder / "kafka-synced", *FLUSHED))
        other = stack.enter_context(pulsar(folder / "pulsar"))
        server = stack.enter_context(processes.basalt(folder / "basalt"))
        create_topics(server, "made")
        yield from transforming_batches(server, stock, synced, other, total)
        yield from acknowledging(server, other, total)
        yield from transforming_singles(server, stock, synced, singles)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller rounds")
    parser.add_argument("--json", type=Path, help="also write the JSON lines to this file")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="basalt-peers-"))
    found: list[Figure] = []
    try:
        for figure in figures(folder, arguments.quick):
            print(figure.json_line(), flush=True)
            found.append(figure)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json is not None:
        arguments.json.write_text("".join(f"{figure.json_line()}\n" for figure in found))
    print("\n" + table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
