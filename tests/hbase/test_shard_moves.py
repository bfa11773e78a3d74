"""Planned moves of shards on a real HBase with the coprocessor, under load of every kind: no client meets an error, and nothing is lost,
doubled or reordered. The moves are from the leader to itself, or between two servers that share topics, and each is whole: release, row of the map,
fences to all regions, new epochs."""

from __future__ import annotations

import re
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import pytest

import basalt
from basalt.client import Batch, Output
from basalt.client.calls.messages import Isolation
from basalt.errors import BusyError, ConflictError, NotFoundError
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.shards import shard_of
from tests.budgets import SHARD_MOVES
from tests.hbase.server_pair import Installation, Pair, serves, until
from tests.system.server_process import ServerProcess

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

NAMESPACE = "moves"
TOPICS = ("orders", "bills", "copies")
PAUSE_SECONDS = 0.01  # between two calls of a client: they are to be there all the time, not to keep both cores busy
CALLED_OFF_MAX = 50  # tries of one move: something of the load may hold it up for longer than a release waits
END = "end"


class Load:
    """Clients of one server, each in a thread of its own, and what they saw."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._enough = threading.Event()
        self.written: dict[str, list[str]] = defaultdict(list)  # by topic and writer, in order
        self.read: dict[str, list[str]] = defaultdict(list)  # by reader
        self.wrong: list[str] = []
        self._writers = [self._thread(self._plain), self._thread(self._one_shots), self._thread(self._transactions)]
        self._readers = [
            self._thread(lambda client, topic=topic, isolation=isolation: self._follow(client, topic, isolation))
            for topic in ("orders", "bills")
            for isolation in ("committed", "uncommitted")
        ]  # fmt: skip
        self._readers.append(self._thread(self._copy))

    def _thread(self, work: Callable[[basalt.Client], None]) -> threading.Thread:
        def run() -> None:
            try:
                with basalt.connect(self._server.url, namespace=NAMESPACE) as client:
                    work(client)
            except Exception as error:  # whatever it is, no client is to meet it
                self.wrong.append(repr(error))

        return threading.Thread(target=run, daemon=True)

    def __enter__(self) -> Load:
        for thread in (*self._readers, *self._writers):
            thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._enough.set()
        for thread in self._writers:
            thread.join(60)
        with basalt.connect(self._server.url, namespace=NAMESPACE) as client:
            client.publish_atomically({"orders": [END], "bills": [END]})
        for thread in self._readers:
            thread.join(60)

    def _numbers(self) -> Iterator[int]:
        for number in count():
            if self._enough.wait(PAUSE_SECONDS):
                return
            yield number

    def _plain(self, client: basalt.Client) -> None:
        for number in self._numbers():
            client.topic("orders").publish(f"plain.{number}")
            self.written["orders plain"].append(f"plain.{number}")

    def _one_shots(self, client: basalt.Client) -> None:
        for number in self._numbers():
            client.publish_atomically({"orders": [f"once.{number}"], "bills": [f"once.{number}"]})
            for topic in ("orders", "bills"):
                self.written[f"{topic} once"].append(f"once.{number}")

    def _transactions(self, client: basalt.Client) -> None:
        for number in self._numbers():
            kept = number % 4 != 3
            tx = client.transactions.begin()
            client.topic("orders").publish(f"early.{number}", write_pointer=tx.write_pointer)
            client.topic("bills").store(f"stored.{number}", tx)
            client.transactions.commit(tx) if kept else client.transactions.abort(tx)
            if kept:
                self.written["orders early"].append(f"early.{number}")
                self.written["bills stored"].append(f"stored.{number}")

    def _follow(self, client: basalt.Client, topic: str, isolation: Isolation) -> None:
        for message in client.topic(topic).read(isolation=isolation, follow=True):
            if message.text == END:
                return
            self.read[f"{topic} {isolation}"].append(message.text)

    def _copy(self, client: basalt.Client) -> None:
        done = threading.Event()

        def copy(batch: Batch, out: Output) -> None:
            for message in batch:
                if message.text == END:
                    done.set()
                else:
                    out.publish("copies", message.text)

        with client.consumer("orders", group="copying", member="ann") as orders:
            orders.process(copy, until=done.is_set, limit=50)


def _of_writers(texts: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for text in texts:
        found[text.partition(".")[0]].append(text)
    return found


def _linked(client: basalt.Client) -> list[str]:
    """The leader and the members that are linked to it, the leader first."""
    members = client.admin.cluster_members().members
    leaders = [each.instance for each in members if each.role == "leader"]
    return [*leaders, *(each.instance for each in members if each.state == "live" and each.linked)]


def _move(client: basalt.Client, member: str, topic: str) -> float:
    """Move the shard of a topic; for how long calls waited."""
    for _ in range(CALLED_OFF_MAX):
        try:
            return client.admin.move_shards(member, topic=topic).took_ms
        except (ConflictError, BusyError) as error:
            called_off = error
    raise called_off


# A topic with a consumer group stays with the leader, which decides about both.
MOVED = {"to itself": TOPICS, "between two servers": ("bills", "copies")}


@pytest.mark.parametrize("how", MOVED)
def test_moves_under_load_are_seen_by_no_client(pair: Pair, guarded: Installation, how: str):
    moved, count = MOVED[how], 1 + (how != "to itself")
    sharing = ("--set", "cluster.balance=off") if count > 1 else ("--set", "cluster.share=false")
    server = pair.start(*guarded.options(), *sharing)
    until(
        lambda: serves(server), server
    )  # else another one might lead: all wait for the lease of a server that a test before has killed
    for _ in range(count - 1):
        pair.start(*guarded.options(), *sharing)
    gaps_ms: list[float] = []
    with basalt.connect(server.url, namespace=NAMESPACE) as client:
        until(lambda: len(_linked(client)) == count, server)  # it serves before it is a member
        for topic in TOPICS:
            with suppress(NotFoundError):
                client.topics.delete(topic)
            client.topics.create(topic)
        members = _linked(client)
        with Load(server) as load:
            for number in range(SHARD_MOVES):
                to = members[(number // len(moved) + 1) % count]
                gaps_ms.append(_move(client, to, moved[number % len(moved)]))
                time.sleep(PAUSE_SECONDS)
        assert load.wrong == [], server.tail()
        copies = [message.text for message in client.topic("copies").read()]
    for topic in ("orders", "bills"):
        committed = load.read[f"{topic} committed"]
        expected = {name.split()[1]: texts for name, texts in load.written.items() if name.split()[0] == topic}
        assert _of_writers(committed) == expected
        raw = load.read[f"{topic} uncommitted"]
        assert len(raw) == len(set(raw))
        assert [text for text in raw if text in set(committed)] == committed
    assert copies == load.read["orders committed"]
    figures = server.ask("GET", "/metrics").body.decode()
    moved = re.search(r'basalt_cluster_moves_total\{why="planned"\} (\S+)', figures)
    assert moved is not None
    assert float(moved[1]) >= SHARD_MOVES
    refused = re.search(r"^basalt_cluster_calls_refused_total (\S+)", figures, re.MULTILINE)
    called_off = re.search(r'basalt_cluster_moves_total\{why="called_off"\} (\S+)', figures)
    waited = re.search(r"^basalt_cluster_calls_waited_total (\S+)", figures, re.MULTILINE)
    assert refused is not None
    assert called_off is not None
    assert waited is not None
    gaps_ms.sort()
    print(
        f"{len(gaps_ms)} moves: p50 {statistics.median(gaps_ms):.0f} ms, p99 {gaps_ms[len(gaps_ms) * 99 // 100]:.0f} ms, max {gaps_ms[-1]:.0f};"
        f" {called_off[1]} called off; {waited[1]} calls waited, {refused[1]} were refused;"
        f" {sum(map(len, load.written.values()))} messages"
    )
    for name, sum_s in re.findall(r'basalt_cluster_move_seconds_sum\{phase="(\w+)"\} (\S+)', figures):
        print(f"  {name}: {float(sum_s) * 1_000 / len(gaps_ms):.1f} ms a move")


def test_topics_of_the_load_are_in_shards_of_their_own():
    """Else a move of one would move the other, and the moves of three would be those of two."""
    assert len({shard_of(topic_prefix(NAMESPACE, topic)) for topic in TOPICS}) == len(TOPICS)
