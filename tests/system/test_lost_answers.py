"""Calls whose answers are lost, against the real server: every message is there once, and handled once, without a word from the caller.

A proxy loses requests and answers, and the server is killed and started again while clients publish. Who gets no answer in
time is told so, and only those messages may be missing. Consumers fetch, acknowledge, give back and seek on the same bad line.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import basalt
from basalt.client import Client
from basalt.errors import ConflictError, RetryError, UnknownOutcomeError
from tests.ports import reserved_port
from tests.system.losing_proxy import LosingProxy
from tests.system.server_process import ServerProcess

pytestmark = pytest.mark.system

NAMESPACE = "shop"
PUBLISHERS = 4
PUBLISHES = 60  # of each
LOSES = 0.3
KILLS = 4
CONSUMED = 240  # messages
KEYS = 7
BATCH = 5
GROUP: dict[str, Any] = {
    "member_ms": 2_000,
    "claim_ms": 10_000,
    "attempts_max": 0,
    "retry_delay_ms": 10,
    "retry_delay_ms_max": 20,
}
PATIENT_MS = 300_000  # of what a test holds all along: on a bad line, and a busy machine, each call takes its time
WAIT_SECONDS_MAX = 240.0  # a bound for a hang
SEED = int(os.environ.get("BASALT_KILL_SEED", "0")) or 20261123


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[LosingProxy]:
    """A bad line to the server."""
    losing = LosingProxy(server.port, SEED, LOSES)
    yield losing
    losing.close()


def messages_of(publisher: int) -> list[list[str]]:
    """What a publisher publishes: one message, or three with one request."""
    return [[f"{publisher}.{number}.{each}" for each in range(1 if number % 2 else 3)] for number in range(PUBLISHES)]


def everything(url: str, topic: str = "orders") -> Counter[str]:
    with basalt.connect(url, namespace=NAMESPACE) as client:
        return Counter(message.text for message in client.topic(topic).read())


def in_threads(work: Callable[[int], None]) -> None:
    """Let so many publishers work at once."""
    failed: list[BaseException] = []

    def run(publisher: int) -> None:
        try:
            work(publisher)
        except BaseException as error:  # it is raised in the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=run, args=(publisher,)) for publisher in range(PUBLISHERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS_MAX)
    if failed:
        raise failed[0]
    assert not any(thread.is_alive() for thread in threads), "it hangs"


EVERYTHING_ONCE = Counter(text for publisher in range(PUBLISHERS) for batch in messages_of(publisher) for text in batch)


def test_threads_of_one_client_publish_on_a_bad_line_and_everything_is_there_once(server, proxy):
    with basalt.connect(proxy.url, namespace=NAMESPACE) as client:

        def work(publisher: int) -> None:
            for batch in messages_of(publisher):
                client.topic("orders").publish(batch, key=None if len(batch) == 1 else "k")

        in_threads(work)
    assert proxy.lost > PUBLISHES / 4
    assert everything(server.url) == EVERYTHING_ONCE


def test_tasks_of_one_async_client_publish_on_a_bad_line_and_everything_is_there_once(server, proxy):
    async def work(client: basalt.AsyncClient, publisher: int) -> None:
        for batch in messages_of(publisher):
            await client.topic("orders").publish(batch)

    async def work_all() -> None:
        async with basalt.aio.connect(proxy.url, namespace=NAMESPACE) as client:
            await asyncio.gather(*(work(client, publisher) for publisher in range(PUBLISHERS)))

    asyncio.run(work_all())
    assert proxy.lost > PUBLISHES / 4
    assert everything(server.url) == EVERYTHING_ONCE


def test_what_a_transaction_stores_on_a_bad_line_is_published_once_and_in_order(server, proxy):
    batches = messages_of(0)
    with basalt.connect(proxy.url, namespace=NAMESPACE) as client, client.transaction(timeout_ms=PATIENT_MS) as tx:
        for batch in batches:
            tx.store("orders", batch)
    with basalt.connect(server.url, namespace=NAMESPACE) as client:
        there = [message.text for message in client.topic("orders").read()]
    assert there == [text for batch in batches for text in batch]
    assert proxy.lost > PUBLISHES / 8


def test_who_may_try_only_once_is_told_that_nobody_knows_and_what_was_acknowledged_is_there_once(server, proxy):
    acknowledged: Counter[str] = Counter()
    doubtful: set[str] = set()
    with basalt.connect(proxy.url, namespace=NAMESPACE, attempts_max=1) as client:
        for batch in messages_of(0):
            try:
                client.topic("orders").publish(batch)
            except UnknownOutcomeError:
                doubtful.update(batch)
            else:
                acknowledged.update(batch)
    there = everything(server.url)
    assert doubtful
    assert {text: count for text, count in there.items() if text not in doubtful} == acknowledged
    assert max(there.values()) == 1


def test_a_server_that_is_killed_and_started_again_meanwhile_has_everything_once(tmp_path: Path):
    server, published = ServerProcess(tmp_path), [0]
    with reserved_port() as port:
        server.launch(port=port)
        server.wait_until_ready()
        try:
            with basalt.connect(server.url, namespace=NAMESPACE) as admin:
                admin.topics.create("orders")
            _publish_while_it_is_killed(server, port, published)
            assert everything(server.url) == EVERYTHING_ONCE
        finally:
            server.kill()


def _publish_while_it_is_killed(server: ServerProcess, port: int, published: list[int]) -> None:
    over = threading.Event()

    def work(publisher: int) -> None:
        with basalt.connect(server.url, namespace=NAMESPACE, timeout_ms=int(WAIT_SECONDS_MAX * 500)) as client:
            for batch in messages_of(publisher):
                client.topic("orders").publish(batch)
                published[0] += 1

    def kill() -> None:
        for kills in range(1, KILLS + 1):
            give_up = time.monotonic() + WAIT_SECONDS_MAX
            while published[0] < kills * PUBLISHERS * PUBLISHES // (KILLS + 1) and time.monotonic() < give_up:
                if over.wait(0.001):
                    return
            server.kill()
            server.launch(port=port)
            server.wait_until_ready()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        in_threads(work)
    finally:
        over.set()
        killer.join()


def test_a_file_is_tailed_under_a_name_and_each_line_is_there_once_and_in_order(server, proxy):
    lines = [f"line {number}" for number in range(400)]
    chance = proxy._chance
    while True:
        with basalt.connect(proxy.url, namespace=NAMESPACE, attempts_max=2) as client:
            if _tail(client, lines, chance.randrange(1, 40)):
                break
    with basalt.connect(server.url, namespace=NAMESPACE) as client:
        assert [message.text for message in client.topic("orders").read()] == lines


def _tail(client: Client, lines: list[str], batch: int) -> bool:
    """Publish what is not there yet, until an answer is lost as often as it may be; True when all of it is there."""
    try:
        producer = client.producer("orders", "file-7", run="tail")
        while producer.last_sequence + 1 < len(lines):
            first = producer.last_sequence + 1
            producer.publish(lines[first : first + batch])
    except (UnknownOutcomeError, basalt.errors.UnavailableError):
        return False
    return True


# Consumers.


@pytest.fixture
def consumed(server) -> Iterator[Client]:
    """Messages to be consumed, and a client on a good line."""
    with basalt.connect(server.url, namespace=NAMESPACE) as client:
        client.topics.create("copies")
        records = [basalt.RecordIn(b"%d" % number, key=b"%d" % (number % KEYS)) for number in range(CONSUMED)]
        client.topic("orders").publish_records(records)
        yield client


def check_copies(client: Client, *, in_order: bool) -> None:
    """Each message was copied once, and those of a key in order."""
    copies = [(message.key, int(message.payload)) for message in client.topic("copies").read()]
    assert sorted(number for _, number in copies) == list(range(CONSUMED))
    if in_order:
        assert sorted(copies, key=lambda copy: copy[0] or b"") == sorted(copies)


@pytest.mark.parametrize("mode", ["shared", "keyed"])
def test_fetches_that_carry_out_the_work_before_them_copy_each_message_once_on_a_bad_line(
    consumed: Client, proxy: LosingProxy, mode: Any
):
    def all_are_copied() -> bool:
        return sum(1 for _ in consumed.topic("copies").read()) >= CONSUMED

    def copy(batch: basalt.Batch, out: basalt.Output) -> None:
        for message in batch:
            out.publish("copies", message.payload, key=message.key)

    def work(_member: int) -> None:
        with (
            basalt.connect(proxy.url, namespace=NAMESPACE) as client,
            client.consumer("orders", group="copying", mode=mode, **GROUP) as orders,
        ):
            orders.process(copy, until=all_are_copied, limit=BATCH)

    in_threads(work)
    assert proxy.lost > CONSUMED / BATCH / 8
    check_copies(consumed, in_order=mode == "keyed")


def test_transactions_that_acknowledge_copy_each_message_once_on_a_bad_line(consumed: Client, proxy: LosingProxy):
    def work(_member: int) -> None:
        with (
            basalt.connect(proxy.url, namespace=NAMESPACE) as client,
            client.consumer("orders", group="copying", mode="keyed", **GROUP) as orders,
        ):
            while sum(1 for _ in consumed.topic("copies").read()) < CONSUMED:
                for batch in orders.batches(limit=BATCH, wait=False):
                    try:
                        with client.transaction(timeout_ms=5_000) as tx:
                            for message in batch:
                                tx.publish("copies", message.payload, key=message.key)
                            tx.acknowledge(batch)
                    except (ConflictError, RetryError):
                        continue

    in_threads(work)
    assert proxy.lost > CONSUMED / BATCH / 8
    check_copies(consumed, in_order=True)


def test_what_was_acknowledged_is_never_dealt_again_and_what_was_given_back_is_on_a_bad_line(
    consumed: Client, proxy: LosingProxy
):
    with (
        basalt.connect(proxy.url, namespace=NAMESPACE) as client,
        client.consumer("orders", group="counting", **GROUP | {"member_ms": PATIENT_MS}) as orders,
    ):
        for _ in range(2):
            acknowledged: set[bytes] = set()
            while len(acknowledged) < CONSUMED:
                for number, batch in enumerate(orders.batches(limit=BATCH, wait=False)):
                    assert acknowledged.isdisjoint(message.payload for message in batch)
                    if number % 3 == 0:
                        orders.release(batch, counts=False)
                        continue
                    done = batch[: BATCH - number % 2]  # of every other one a message is left, which goes back
                    orders.acknowledge(done)
                    acknowledged.update(message.payload for message in done)
            assert orders.seek("start").floor == bytes(20)
    assert proxy.lost > CONSUMED / BATCH / 8
