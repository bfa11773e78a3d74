"""`sharing`: servers that share the topics of one HBase, beside one that has all, in the same run.

Processor time is that of the servers alone, of all of them, those that have nothing to do included: on a machine of a few cores their rates say
nothing. Servers are asked directly for what they own. What a transaction over two owners takes is compared with one over two topics of one owner.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles

import uvloop

import basalt
from basalt.api.bodies.messages import Work, WorkPublish
from basalt.api.codecs.avro import encode_work
from basalt.errors import BasaltError, ConflictError, RetryError
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.shards import shard_of
from bench import processes
from bench.figures import Figure
from bench.load import Connection, drive, request
from bench.processes import Process
from bench.setting_up import NAMESPACE, messages, publish_request
from deploy import coprocessor_jar
from deploy.hbase.standalone import Gateways, Standalone
from tests.hbase.holding_proxy import HoldingProxy
from tests.hbase.server_pair import Installation, install

HEAP_MB = 2_048
CLIENTS = 8
ROUNDS = 5
MEMBERS = 3
MOVES, MOVES_QUICK = 100, 20
KILLS, KILLS_QUICK = 3, 1
COMMITS = 300
CALLS = 3_000
STUCK_ROUND_S = 6.0
AFTER_KILL_S = 10.0  # a lease, two seconds, and then some
READY_S = 60.0
JSON = "application/json"
LOG = "transaction_log"
PER_CPU_MIN, TWO_OWNERS_MAX, GAP_MS_MAX, OTHERS_MAX, STUCK_MIN = 0.9, 1.5, 500.0, 1.2, 0.9


class Sharers:
    """Some servers on tables of their own; the first one leads."""

    def __init__(self, stack: ExitStack, folder: Path, installation: Installation, *settings: str) -> None:
        self._stack = stack
        self._folder = folder
        self._installation = installation
        self._settings = settings
        self._made = 0
        self.servers: list[Process] = []

    def add(
        self, thrift2: str | None = None, *, settings: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> Process:
        """Start one more, and wait until the leader has it as a member."""
        options = [word for word in self._installation.options(thrift2) if word != "--set"]
        data = self._folder / f"{self._installation.prefix}-{self._made}"
        self._made += 1
        server = self._stack.enter_context(
            processes.basalt(
                data,
                *options,
                "cluster.share=true",
                "cluster.balance=off",
                *self._settings,
                *settings,
                environment=environment,
            )
        )
        self.servers.append(server)
        until(lambda: self.run_of(server) is not None)
        return server

    def client(self, server: Process) -> basalt.Client:
        return basalt.connect(f"http://127.0.0.1:{server.port}", namespace=NAMESPACE, timeout_ms=int(READY_S * 1_000))

    def run_of(self, server: Process) -> str | None:
        """The name by which the map knows a server that takes calls."""
        try:
            with self.client(self.servers[0]) as client:
                for each in client.admin.cluster_members().members:
                    if each.state == "live" and each.name.endswith(f":{server.pid}"):
                        return each.instance if each.role == "leader" or each.linked else None
        except BasaltError:
            pass
        return None

    def topic(self, name: str, owner: Process) -> str:
        """Make a topic of this owner."""
        with self.client(self.servers[0]) as client:
            client.topics.create(name)
        self.move(name, owner)
        return name

    def move(self, topic: str, to: Process) -> float:
        """Move its shard there: for how many milliseconds calls to it waited."""
        return self.move_shard(shard_of(topic_prefix(NAMESPACE, topic)), to)

    def move_shard(self, shard: int, to: Process) -> float:
        """The same for a shard."""
        run = self.run_of(to)
        assert run is not None
        stop_s = time.monotonic() + READY_S
        with self.client(self.servers[0]) as client:
            while True:
                try:
                    return client.admin.move_shards(run, shards=[shard]).took_ms
                except (ConflictError, RetryError):
                    if time.monotonic() > stop_s:
                        raise

    def cpu_s(self) -> float:
        return sum(server.cpu_s() for server in self.servers)


def until(is_so: Callable[[], bool]) -> None:
    """Wait for it."""
    stop_s = time.monotonic() + READY_S
    while not is_so():
        assert time.monotonic() < stop_s, "a server does not get ready"
        time.sleep(0.1)


@contextmanager
def hbase_with_coprocessor(folder: Path) -> Iterator[Callable[[str], Installation]]:
    """An HBase, and what makes tables in it."""
    standalone = Standalone(folder / "hbase")
    jar = coprocessor_jar.build()
    try:
        gateways: Gateways = standalone.start(heap_mb=HEAP_MB)
        yield lambda prefix: install(gateways, prefix, "--jar", f"file:{jar}", "--refresh-interval", "1s")
    finally:
        standalone.stop()


def sharing(folder: Path, quick: bool) -> Iterator[Figure]:
    """Rates, commits, moves, a log that is stuck, and kills."""
    with hbase_with_coprocessor(folder) as tables, ExitStack() as stack:
        alone, several = (Sharers(stack, folder, tables(prefix)) for prefix in ("alone", "several"))
        alone.add()
        installation = several._installation
        proxy = HoldingProxy(installation.thrift2)
        stack.callback(proxy.close)
        several.add(proxy.address)
        for _ in range(MEMBERS - 1):
            several.add()
        yield from _rates(alone, several, CALLS // 10 if quick else CALLS)
        yield from _commits(several, COMMITS // 10 if quick else COMMITS)
        yield from _moves(several, MOVES_QUICK if quick else MOVES)
        yield from _stuck(several, proxy, f"{installation.prefix}.{LOG}", STUCK_ROUND_S / (3 if quick else 1))
        yield from _kills(several, KILLS_QUICK if quick else KILLS)


def _rates(alone: Sharers, several: Sharers, calls: int) -> Iterator[Figure]:
    """Publishes of one message to topics of one, two and three servers, for each second of the servers' processors."""
    here = alone.topic("rate", alone.servers[0])
    # The leader has a gateway behind a proxy: where fewer than all publish, it is not among them.
    those = [(server, several.topic(f"rate-{number}", server)) for number, server in enumerate(several.servers)][::-1]
    per_cpu_s: dict[int, list[float]] = {count: [] for count in range(MEMBERS + 1)}
    rates: dict[int, list[float]] = {count: [] for count in range(MEMBERS + 1)}
    for turn in range(ROUNDS + 1):
        for count in (0, *range(1, MEMBERS + 1)):
            sharers, asked = (several, those[:count]) if count else (alone, [(alone.servers[0], here)])
            before_s, began_s = sharers.cpu_s(), time.perf_counter()
            _publish_to_all(asked, calls)
            if turn:
                total = calls * len(asked)
                per_cpu_s[count].append(total / (sharers.cpu_s() - before_s))
                rates[count].append(total / (time.perf_counter() - began_s))
    for count in range(1, MEMBERS + 1):
        yield Figure(
            f"publish 1 a call, topics of {count} of {MEMBERS} members", median(per_cpu_s[count]), "calls/s of processor",
            "calls/s of processor, alone", median(per_cpu_s[0]), PER_CPU_MIN,
            note=f"{median(rates[count]):,.0f} calls/s, alone {median(rates[0]):,.0f}",
        )  # fmt: skip


def _publish_to_all(asked: Sequence[tuple[Process, str]], calls: int) -> None:
    with ThreadPoolExecutor(len(asked)) as threads:
        list(threads.map(lambda each: drive(each[0].port, CLIENTS, calls, publish_request(each[1], 1)), asked))


def _commits(several: Sharers, commits: int) -> Iterator[Figure]:
    """A commit that brings a message for each of two topics, asked of the leader."""
    leader, member = several.servers[0], several.servers[1]
    first, second = several.topic("commit-1", leader), several.topic("commit-2", leader)
    distant = several.topic("commit-3", member)
    near_ms: list[float] = []
    far_ms: list[float] = []
    for turn in range(ROUNDS + 1):
        for topics, took_ms in (((first, second), near_ms), ((first, distant), far_ms)):
            found = uvloop.run(_commit_times(leader.port, topics, commits // ROUNDS))
            took_ms.extend(found if turn else ())
    yield Figure(
        "commit over topics of two owners, p50", median(far_ms), "ms", "ms over two topics of one", median(near_ms),
        TWO_OWNERS_MAX, at_most=True,
    )  # fmt: skip


async def _commit_times(port: int, topics: Sequence[str], commits: int) -> list[float]:
    _, caller = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    body = encode_work(Work(publish=[WorkPublish(NAMESPACE, topic, messages(1)) for topic in topics]))
    took_ms = []
    for _ in range(commits):
        begun = await caller.call(request("/v1/transactions", b'{"snapshot":false}', JSON))
        transaction = json.loads(begun.partition(b"\r\n\r\n")[2])["id"]
        began_s = time.perf_counter()
        await caller.call(request(f"/v1/transactions/{transaction}/commit", body))
        took_ms.append((time.perf_counter() - began_s) * 1_000)
    caller.close()
    return took_ms


def _moves(several: Sharers, moves: int) -> Iterator[Figure]:
    """Planned moves of a topic between two members that do not lead, while a client publishes to it."""
    _, one, other = several.servers[:3]
    topic = several.topic("moved", one)
    gaps_ms: list[float] = []
    call_ms: list[float] = []
    with several.client(several.servers[0]) as client, ThreadPoolExecutor(1) as threads:
        is_over: list[bool] = []

        def publish() -> None:
            while not is_over:
                began_s = time.perf_counter()
                client.topic(topic).publish("m")
                call_ms.append((time.perf_counter() - began_s) * 1_000)

        publishing = threads.submit(publish)
        try:
            gaps_ms += [several.move(topic, (other, one)[number % 2]) for number in range(moves)]
        finally:
            is_over.append(True)
        publishing.result()
    yield Figure(
        "planned move between two members, p99 of the gap", percentile(gaps_ms, 99), "ms", "ms allowed", GAP_MS_MAX, 1.0, at_most=True,
        note=f"p50 {median(gaps_ms):.0f} ms, longest {max(gaps_ms):.0f}; {len(call_ms)} publishes, the longest took {max(call_ms):.0f} ms",
    )  # fmt: skip


def _stuck(several: Sharers, proxy: HoldingProxy, table: str, round_s: float) -> Iterator[Figure]:
    """Plain publishing at a member while HBase does not answer what the leader writes to the log of transactions."""
    member = several.servers[1]
    topic = several.topic("beside-the-log", member)
    name = table.encode()
    argument = len(name).to_bytes(4, "big") + name  # the table's name as the argument of a call
    stuck: list[float] = []
    there: list[float] = []
    for turn in range(ROUNDS):
        there.append(len(_timed([(member.port, topic)], round_s)) / round_s)
        proxy.hold(lambda piece: argument in piece)
        with several.client(several.servers[0]) as client:
            threads = ThreadPoolExecutor(1)
            beginning = threads.submit(_begin, client)
            stuck.append(len(_timed([(member.port, topic)], round_s)) / round_s)
            proxy.let_go()
            beginning.result()
            threads.shutdown()
        until(lambda: _begins(several))
        del turn
    yield Figure(
        "publish at a member while the log is stuck",
        median(stuck),
        "calls/s",
        "calls/s with the log",
        median(there),
        STUCK_MIN,
    )


def _begin(client: basalt.Client) -> None:
    try:
        client.transactions.abort(client.transactions.begin())
    except BasaltError:
        pass


def _begins(several: Sharers) -> bool:
    with several.client(several.servers[0]) as client:
        try:
            client.transactions.abort(client.transactions.begin())
        except BasaltError:
            return False
    return True


def _kills(several: Sharers, kills: int) -> Iterator[Figure]:
    """Calls to topics of others while a member that has one is killed, and until somebody else serves its topic."""
    asked = [(server.port, several.topic(f"other-{number}", server)) for number, server in enumerate(several.servers)]
    before_ms: list[float] = []
    after_ms: list[float] = []
    gaps_s: list[float] = []
    for number in range(kills):
        victim = several.add()
        topic = several.topic(f"killed-{number}", victim)
        before_ms += _timed(asked, AFTER_KILL_S)
        with ThreadPoolExecutor(1) as threads:
            os.kill(victim.pid, signal.SIGKILL)
            serving = threads.submit(_gap, several, topic)
            after_ms += _timed(asked, AFTER_KILL_S)
            gaps_s.append(serving.result())
        several.servers.remove(victim)
    yield Figure(
        "publish to others' topics during a kill, p99", percentile(after_ms, 99), "ms", "ms before it", percentile(before_ms, 99), OTHERS_MAX,
        at_most=True,
        note=f"p50 {median(after_ms):.1f} and {median(before_ms):.1f} ms; the killed one's topic was away for {', '.join(f'{gap:.1f}' for gap in gaps_s)} s",
    )  # fmt: skip


def _gap(several: Sharers, topic: str) -> float:
    began_s = time.monotonic()
    with several.client(several.servers[0]) as client:
        client.topic(topic).publish("m")
    return time.monotonic() - began_s


def _timed(asked: Sequence[tuple[int, str]], seconds: float) -> list[float]:
    """The milliseconds that publishes of one message took, by some clients of each of these servers, for so long."""

    async def client(port: int, topic: str, took_ms: list[float]) -> None:
        _, caller = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
        data, stop_s = publish_request(topic, 1), time.perf_counter() + seconds
        while (began_s := time.perf_counter()) < stop_s:
            await caller.call(data)
            took_ms.append((time.perf_counter() - began_s) * 1_000)
        caller.close()

    async def all_of_them() -> list[float]:
        took_ms: list[float] = []
        await asyncio.gather(*(client(port, topic, took_ms) for port, topic in asked for _ in range(CLIENTS // 2)))
        return took_ms

    return uvloop.run(all_of_them())


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many of a hundred do not exceed."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]
