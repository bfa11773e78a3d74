"""A region of messages that hangs, on a real HBase: with eight lanes of topics the topics of all other regions go on, with one they wait.

Reads and writes of the region get no answer, as those of one that a region server is about to lose. Then it answers, and all is there.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

import basalt
from basalt.errors import NotFoundError
from basalt.runtime.group_commit import STAGE_BYTES
from basalt_engine.keys import base_bucket, topic_prefix
from deploy.hbase.standalone import Gateways
from tests.hbase.holding_proxy import HoldingProxy
from tests.hbase.server_pair import Installation, Pair, install, serves, until
from tests.hbase.tables import Tables
from tests.system.server_process import ServerProcess

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

BUCKETS = 8  # and so as many lanes of topics as there can be, each with one region
NAMESPACE = "lanes"
ROUNDS = 3  # of calls of every kind to the topics of the other lanes while one region hangs


def topic_in(bucket: int) -> str:
    names = (f"topic-{number}" for number in count())
    return next(name for name in names if base_bucket(topic_prefix(NAMESPACE, name), BUCKETS) == bucket)


HUNG, *OTHERS = map(topic_in, range(BUCKETS))
FIRST, SECOND, THIRD, *_ = OTHERS
HELD_UP = "basalt_write_lanes_held_up"


class Server(NamedTuple):
    """A server with so many lanes behind a gateway that can be held up, and clients of it."""

    process: ServerProcess
    proxy: HoldingProxy
    client: basalt.Client
    threads: ThreadPoolExecutor
    table: bytes

    @contextmanager
    def hanging_region(self) -> Iterator[None]:
        """The region with the messages of `HUNG` says nothing; in the end it gets all that was meant for it."""
        # A call of HBase's second Thrift gateway: the table's name, and of each row, as the first field of a put, get or scan, its key.
        table = struct.pack(">i", len(self.table)) + self.table
        row = re.compile(re.escape(table) + rb".*\x0b\x00\x01\x00\x00\x00." + re.escape(b"\0"), re.DOTALL)
        self.proxy.hold(lambda piece: row.search(piece) is not None)
        try:
            yield
        finally:
            self.proxy.let_go()

    def wait_for(self, figure: str, at_least: float) -> None:
        """Return once the metrics say so."""
        line = re.compile(rf"^{re.escape(figure)} (\S+)", re.MULTILINE)

        def is_so() -> bool:
            found = line.search(self.process.ask("GET", "/metrics").body.decode())
            assert found is not None, figure
            return float(found[1]) >= at_least

        until(is_so, self.process)

    @contextmanager
    def calls_to_the_hung_topic(self) -> Iterator[list[Future[None]]]:
        """One of every kind, of which none is answered while the region hangs, and each is once it answers."""
        with self.hanging_region():
            calls = [self.threads.submit(self.publish, HUNG, *(f"plain.{number}" for number in range(ROUNDS)))]
            self.wait_for(HELD_UP, 1)  # before others come, one of which may share its write
            calls.append(self.threads.submit(self.client.publish_atomically, {HUNG: ["once"]}))
            calls.append(self.threads.submit(self.commit, "early", HUNG))
            yield calls
            self.wait_for(HELD_UP, 1)
            assert not any(call.done() for call in calls)
        for call in calls:
            call.result()

    def publish(self, topic: str, *texts: str) -> None:
        """Plainly, one after the other."""
        for text in texts:
            self.client.topic(topic).publish(text)

    def commit(self, text: str, *topics: str) -> None:
        """A transaction that publishes ahead of its commit to the first topic, and stores in the others."""
        tx = self.client.transactions.begin()
        self.client.topic(topics[0]).publish(text, write_pointer=tx.write_pointer)
        for topic in topics[1:]:
            self.client.topic(topic).store(text, tx)
        self.client.transactions.commit(tx)

    def read(self, topic: str) -> list[str]:
        return [message.text for message in self.client.topic(topic).read()]


@pytest.fixture(scope="module")
def eight_buckets(hbase_gateways: Gateways, coprocessor_jar: Path) -> Iterator[Installation]:
    """Tables with the coprocessor, and a region for each lane."""
    prefix = f"lanes-{os.getpid()}"
    try:
        yield install(hbase_gateways, prefix, "--jar", f"file:{coprocessor_jar}", buckets=BUCKETS)
    finally:
        Tables(hbase_gateways.thrift2, prefix).drop()


@contextmanager
def server(pair: Pair, installation: Installation, lanes: int) -> Iterator[Server]:
    with ExitStack() as stack:
        proxy = HoldingProxy(installation.thrift2)
        stack.callback(proxy.close)
        process = pair.start(*installation.still(proxy.address), "--set", f"messaging.topic_lanes={lanes}")
        stack.callback(process.stop)  # the next one need not wait for its lease
        until(lambda: serves(process), process)
        client = stack.enter_context(basalt.connect(process.url, namespace=NAMESPACE))
        for topic in (HUNG, *OTHERS):
            with suppress(NotFoundError):  # of the test before
                client.topics.delete(topic)
            client.topics.create(topic)
            client.topic(topic).publish("before")
        table = f"{installation.prefix}.message".encode()
        threads = stack.enter_context(ThreadPoolExecutor(BUCKETS + 3))
        stack.callback(proxy.let_go)
        yield Server(process, proxy, client, threads, table)


def test_with_eight_lanes_a_region_that_hangs_holds_up_its_own_topics_only(pair: Pair, eight_buckets: Installation):
    with server(pair, eight_buckets, lanes=8) as of:
        with of.calls_to_the_hung_topic():
            for number in range(ROUNDS):
                for topic in OTHERS:
                    of.publish(topic, f"plain.{number}")
                    of.client.publish_atomically({topic: [f"once.{number}"]})
                of.client.publish_atomically({FIRST: [f"spread.{number}"], SECOND: [f"spread.{number}"]})
                of.commit(f"tx.{number}", FIRST, SECOND, THIRD)
            meanwhile = {topic: of.read(topic) for topic in OTHERS}
        check_others(meanwhile)
        assert {topic: of.read(topic) for topic in OTHERS} == meanwhile
        check_the_hung_one(of.read(HUNG))


def check_others(found: dict[str, list[str]]) -> None:
    """All that was answered is there, in the order of the calls."""
    for topic in OTHERS:
        kinds = ["plain", "once"]
        kinds += ["spread"] if topic in (FIRST, SECOND) else []
        kinds += ["tx"] if topic in (FIRST, SECOND, THIRD) else []
        assert found[topic] == ["before", *(f"{kind}.{number}" for number in range(ROUNDS) for kind in kinds)]


def check_the_hung_one(found: list[str]) -> None:
    """Of calls that were under way together nobody knows which came first."""
    plain = [f"plain.{number}" for number in range(ROUNDS)]
    assert found[0] == "before"
    assert sorted(found[1:]) == sorted([*plain, "once", "early"])
    assert [text for text in found if text.startswith("plain")] == plain


def test_with_one_lane_such_a_region_holds_up_all(pair: Pair, eight_buckets: Installation):
    """That the test above can fail, and what `messaging.topic_lanes` is for."""
    with server(pair, eight_buckets, lanes=1) as of:
        with of.calls_to_the_hung_topic() as calls:
            calls += [of.threads.submit(of.publish, topic, "waits") for topic in OTHERS]
            of.wait_for('basalt_write_queue_bytes{lane="topics"}', (len(calls) - 1) * STAGE_BYTES)
        assert {topic: of.read(topic) for topic in OTHERS} == {topic: ["before", "waits"] for topic in OTHERS}
        check_the_hung_one(of.read(HUNG))
