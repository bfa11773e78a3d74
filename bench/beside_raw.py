"""A program with Basalt's client beside one with raw happybase, on the same HBase, in turns: rates, and whose processor each message takes.

Both sides run their clients in processes of their own, as many as producers or consumers: happybase's with one row per message, Basalt's
with its Python client. Counted apart are the region server (with master and ZooKeeper, one process here), the Thrift gateway that the side
goes through, Basalt's server, and the clients. Rates depend on what else the machine does; processor time per message hardly does.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import basalt
from bench.figures import Figure
from bench.on_hbase import (
    FAMILY,
    FROM_STORE,
    PEERS,
    RAW_TABLE,
    SCAN_ROWS,
    connect,
    happybase_at,
    read,
    running_hbase,
    seconds,
    server_on,
)  # fmt: skip
from bench.processes import Process, cpu_s_of
from bench.setting_up import BATCH, MESSAGE_BYTES, NAMESPACE, create_topics, messages
from deploy.hbase.standalone import MASTER, THRIFT, THRIFT2, Gateways, Standalone

ROUNDS = 5
WARM_UP_ROUNDS = (
    3  # that do not count: Java compiles what it does often, which takes half of a region server's time at first
)
# What a side leaves HBase to do (flushes, compactions) counts for that side: before the next one begins, HBase is waited for until it rests.
RESTING_SHARE = 0.1  # of a core; it takes a few hundredths when nobody calls it
LOOK_SECONDS = 0.4
REST_SECONDS_MAX = 20.0
PUBLISH_TARGET, READ_TARGET = 3.5, 3.0  # of the rate of happybase
SINGLE_TARGET = 1.0  # a message a call is a row and a round trip on both sides
# Of the processor time of happybase, all processes: what the rates come to where all of them share the same cores.
PUBLISH_CPU_TARGET, READ_CPU_TARGET, SINGLE_CPU_TARGET = 1 / PUBLISH_TARGET, 1 / READ_TARGET, 1.0
SIDES = RAW, BASALT = "happybase", "Basalt"
COLUMN = FAMILY + b":p"


class Work(NamedTuple):
    """What each side does: so many messages with each number of clients, `size` of them a call."""

    title: str
    size: int
    calls: int  # of all clients together
    target: float
    cpu_target: float
    sides: tuple[
        Callable[[int, int], None], Callable[[int, int], None]
    ]  # each with its client's number and the calls that it makes


@dataclass(slots=True)
class Account:
    """The processor time of one side, by whose it is; and its rates. Of several rounds."""

    per_second: list[float] = field(default_factory=list)
    us_each: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def rate(self) -> float:
        return median(self.per_second)

    @property
    def parts(self) -> dict[str, float]:
        return {name: median(values) for name, values in self.us_each.items()}

    @property
    def us(self) -> float:
        """Of all processes, for each message: the median of the rounds."""
        return median(map(sum, zip(*self.us_each.values(), strict=True)))

    def told(self) -> str:
        return ", ".join(f"{name} {value:.2f}" for name, value in self.parts.items())


def beside_raw(folder: Path, quick: bool) -> Iterator[Figure]:
    """Publishing and reading with 1, 2 and 4 clients, 500 messages a call and one."""
    calls = 40 if quick else 120
    with running_hbase(folder) as gateways:
        connect(gateways).create_table(RAW_TABLE, {FAMILY.decode(): {}})
        pids = Standalone(folder / "hbase").pids()
        with server_on(folder, gateways, FROM_STORE) as server, ProcessPoolExecutor(max(PEERS)) as pool:
            sides = _processes(pids, server)
            for size in (BATCH, 1):
                of_size = calls if size == BATCH else 12 * calls
                yield from _publishing(gateways, server, pool, sides, size, of_size)
            for size in (BATCH, 1):
                of_size = calls if size == BATCH else 48 * calls
                yield from _reading(gateways, server, pool, sides, size, of_size)


def _processes(pids: dict[str, int], server: Process) -> dict[str, dict[str, int]]:
    """Whose processor time counts for each side, beside its clients'."""
    return {
        RAW: {"region server": pids[MASTER], "gateway": pids[THRIFT]},
        BASALT: {"region server": pids[MASTER], "gateway": pids[THRIFT2], "Basalt": server.pid},
    }


def _publishing(
    gateways: Gateways,
    server: Process,
    pool: ProcessPoolExecutor,
    sides: dict[str, dict[str, int]],
    size: int,
    calls: int,
) -> Iterator[Figure]:
    topic = f"published-{size}"
    create_topics(server, topic)
    target, cpu_target = (PUBLISH_TARGET, PUBLISH_CPU_TARGET) if size == BATCH else (SINGLE_TARGET, SINGLE_CPU_TARGET)
    works = partial(put, gateways.thrift, size), partial(publish, server.port, topic, size)
    work = Work(f"HBase: publish {size} x 1 KB", size, calls, target, cpu_target, works)
    for producers in PEERS:
        yield from _figures(work, f"{producers} producers", measured(pool, sides, work, producers, calls // producers))


def _reading(
    gateways: Gateways,
    server: Process,
    pool: ProcessPoolExecutor,
    sides: dict[str, dict[str, int]],
    size: int,
    calls: int,
) -> Iterator[Figure]:
    """Read back what was published by so many a call; each consumer reads all of it."""
    connection = connect(gateways)
    connection.delete_table(RAW_TABLE, disable=True)
    connection.create_table(RAW_TABLE, {FAMILY.decode(): {}})
    topic = f"read-{size}"
    create_topics(server, topic)
    writers = max(PEERS) if size == 1 else 1
    for write in (partial(put, gateways.thrift, size), partial(publish, server.port, topic, size)):
        seconds(pool, [partial(write, number, calls // writers) for number in range(writers)])
    works = partial(scan, gateways.thrift, size), partial(poll, server.port, topic, size)
    work = Work(f"HBase: read back {size} x 1 KB", size, calls, READ_TARGET, READ_CPU_TARGET, works)
    for consumers in PEERS:
        yield from _figures(work, f"{consumers} consumers", measured(pool, sides, work, consumers, calls))


def measured(
    pool: ProcessPoolExecutor, sides: dict[str, dict[str, int]], work: Work, clients: int, calls: int
) -> dict[str, Account]:
    """Have both sides work in turns, with so many clients that make so many calls each."""
    accounts = {name: Account() for name in SIDES}
    count = clients * calls * work.size
    for turn in range(WARM_UP_ROUNDS + ROUNDS):
        for name in SIDES if turn % 2 else reversed(SIDES):
            before_s = {part: cpu_s_of(pid) for part, pid in sides[name].items()}
            clients_s, took_s = run_clients(pool, work.sides[SIDES.index(name)], clients, calls)
            wait_until_rests(sides[name]["region server"])
            after_s = {part: cpu_s_of(pid) for part, pid in sides[name].items()}
            if turn >= WARM_UP_ROUNDS:
                account = accounts[name]
                account.per_second.append(count / took_s)
                for part, second in after_s.items():
                    account.us_each[part].append((second - before_s[part]) * 1e6 / count)
                account.us_each["clients"].append(clients_s * 1e6 / count)
    return accounts


def wait_until_rests(pid: int) -> None:
    """Return when this process has all but nothing to do any more, or does not come to rest."""
    give_up_s = time.monotonic() + REST_SECONDS_MAX
    before_s = cpu_s_of(pid)
    while time.monotonic() < give_up_s:
        time.sleep(LOOK_SECONDS)
        now_s = cpu_s_of(pid)
        if now_s - before_s < RESTING_SHARE * LOOK_SECONDS:
            return
        before_s = now_s


def run_clients(
    pool: ProcessPoolExecutor, client: Callable[[int, int], None], clients: int, calls: int
) -> tuple[float, float]:
    """The processor seconds of so many clients at once, and the seconds that all took."""
    start = time.perf_counter()
    futures = [pool.submit(_timed, client, number, calls) for number in range(clients)]
    clients_s = sum(future.result() for future in futures)
    return clients_s, time.perf_counter() - start


def _timed(client: Callable[[int, int], None], number: int, calls: int) -> float:
    before_s = time.process_time()
    client(number, calls)
    return time.process_time() - before_s


def _figures(work: Work, clients: str, accounts: dict[str, Account]) -> Iterator[Figure]:
    ours, theirs = accounts[BASALT], accounts[RAW]
    title = f"{work.title}, {clients}"
    yield Figure(
        title, ours.rate, "msg/s", "happybase rows/s", theirs.rate, work.target, cpu_us=ours.parts["Basalt"],
    )  # fmt: skip
    yield Figure(
        f"{title}, processor", ours.us, "us/msg", "us/row", theirs.us, work.cpu_target, at_most=True, cpu_us=ours.us,
        note=f"us a message: Basalt's side {ours.told()}; happybase's {theirs.told()}",
    )  # fmt: skip


def put(thrift: str, size: int, number: int, calls: int) -> None:
    """A row per message, as happybase's users put it, so many a call; keys rise, and each producer has its own."""
    with happybase_at(thrift) as connection:
        table, began, payloads = connection.table(RAW_TABLE), time.time_ns(), messages(BATCH)
        for call in range(calls):
            if size == 1:
                table.put(_key(number, began, call, 0), {COLUMN: payloads[call % BATCH]})
                continue
            with table.batch() as batch:
                for index in range(size):
                    batch.put(_key(number, began, call, index), {COLUMN: payloads[index]})


def _key(number: int, began: int, call: int, index: int) -> bytes:
    return b"%d-%020d-%08d-%04d" % (number, began, call, index)


def publish(port: int, name: str, size: int, _number: int, calls: int) -> None:
    """The same through Basalt's client."""
    payloads = messages(BATCH)
    with basalt.connect(f"http://127.0.0.1:{port}", namespace=NAMESPACE) as client:
        topic = client.topic(name)
        for call in range(calls):
            topic.publish(payloads if size == BATCH else [payloads[call % BATCH]])


def scan(thrift: str, size: int, _number: int, calls: int) -> None:
    """All rows of so many calls."""
    with happybase_at(thrift) as connection:
        rows = connection.table(RAW_TABLE).scan(batch_size=SCAN_ROWS)
        count = sum(1 for _, columns in rows if len(columns[COLUMN]) == MESSAGE_BYTES)
    assert count == calls * size, (count, calls, size)


def poll(port: int, name: str, size: int, _number: int, calls: int) -> None:
    """The same through Basalt's client."""
    count = read(port, name)
    assert count == calls * size, (count, calls, size)
