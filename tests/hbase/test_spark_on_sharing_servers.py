"""Spark on two real servers that share the topics of one real HBase: its reads, batch and streaming, and its writes are exactly once and in order.

Topics have different owners, and the option `server` names both servers. While a stream runs, the server that owns its first input and its output is killed
with kill -9, and shards are moved back and forth. That both servers read ranges is counted in their own metrics.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import basalt
from tests.hbase.member_servers import Member, Members, members
from tests.hbase.server_pair import TAKE_OVER_SECONDS_MAX, WAIT_SECONDS_MAX, Installation, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.hbase, pytest.mark.spark, pytest.mark.system, pytest.mark.slow]

NAMESPACE = "spark"
LEFT, RIGHT, COPIES, ONCE = TOPICS = ("left", "right", "copies", "once")
BACKLOG = 1_000  # messages in each input before anybody reads
LARGE_BYTES = 5_000  # of each of them: a quarter of a topic is more than what a client leaves to the owner
BATCH_ROWS = "1000"  # of a micro-batch at most: the backlog is two of them, of four large tasks each
TASKS = "4"
PAUSE_SECONDS = 0.02  # between two messages of the publisher
BATCHES = 2  # that the stream makes after each fault: the second one was planned after it


class Publisher(threading.Thread):
    """Goes on publishing to both inputs, through whichever server answers."""

    def __init__(self, urls: str) -> None:
        super().__init__(daemon=True)
        self.told = {LEFT: texts(LEFT, BACKLOG), RIGHT: texts(RIGHT, BACKLOG)}
        self.enough = threading.Event()
        self.wrong: BaseException | None = None
        self._urls = urls

    def run(self) -> None:
        try:
            with connected(self._urls) as client:
                while not self.enough.wait(PAUSE_SECONDS):
                    for topic, told in self.told.items():
                        text = f"{topic} {len(told):06}"
                        client.topic(topic).publish(text)
                        told.append(text)
        except Exception as error:  # whatever it is, no client is to meet it
            self.wrong = error


def texts(topic: str, count: int) -> list[str]:
    return [f"{topic} {number:06}" for number in range(count)]


def connected(urls: str) -> basalt.Client:
    return basalt.connect(urls, namespace=NAMESPACE, timeout_ms=int(2_000 * TAKE_OVER_SECONDS_MAX))


class Read(NamedTuple):
    """The messages of ranges of both inputs that a server has read, in all its process: as their owner, and by the permit of the other one."""

    as_owner: int
    by_permit: int

    @classmethod
    def at(cls, server: Member) -> Read:
        figures = server.process.ask("GET", "/metrics").body.decode()
        own = [
            f'basalt_topic_fetched_messages_total{{namespace="{NAMESPACE}",topic="{topic}"}}' for topic in (LEFT, RIGHT)
        ]
        return cls(
            sum(_count(figures, series) for series in own), _count(figures, "basalt_cluster_range_messages_total")
        )


def _count(figures: str, series: str) -> int:
    found = re.search(rf"^{re.escape(series)} (\S+)$", figures, re.MULTILINE)
    return 0 if found is None else int(float(found[1]))  # it is not there before anything was counted


def read_since(servers: Members, before: Sequence[Read] = ()) -> list[Read]:
    """What each server has read since then, or ever."""
    now = [Read.at(each) for each in servers.those]
    return [Read(*(map(sub, one, other))) for one, other in zip(now, before or [Read(0, 0)] * len(now), strict=True)]


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory: pytest.TempPathFactory, guarded: Installation) -> Iterator[Members]:
    """Two servers, whose shards move where a test says so."""
    with members(tmp_path_factory.mktemp("members"), guarded, 2, share=True, balance=False) as servers:
        yield servers


@pytest.fixture
def two_sharing(two_servers: Members) -> Members:
    """The two, with empty topics: the server that does not lead owns the first input and the outputs, and the leader the second input."""
    for topic in TOPICS:
        two_servers.make(f"/v1/namespaces/{NAMESPACE}/topics/{topic}")
    for topic, owner in zip(TOPICS, owners(two_servers), strict=True):
        give(two_servers, topic, owner)
    return two_servers


def owners(servers: Members) -> list[Member]:
    leader = servers.leader()
    (other,) = [each for each in servers.those if each is not leader]
    return [other, leader, other, other]


def give(servers: Members, topic: str, to: Member) -> None:
    if servers.owner_of(NAMESPACE, topic) is not to:
        servers.move(NAMESPACE, topic, to)


def options(servers: Members, **more: str) -> dict[str, str]:
    patient = f"{2 * TAKE_OVER_SECONDS_MAX:.0f} seconds"
    return {"server": servers.urls, "namespace": NAMESPACE, "callTimeout": patient, **more}


def values(frame: DataFrame) -> list[str]:
    return [bytes(row["value"]).decode().rstrip() for row in frame.collect()]


def of(topic: str, found: list[str]) -> list[str]:
    return [text for text in found if text.startswith(topic)]


def test_a_read_is_shared_by_both_servers_and_a_write_is_there_once_though_its_topic_moves(
    spark: SparkSession, two_sharing: Members
):
    servers = two_sharing
    publish_backlog(servers)
    source = options(servers, topics=f"{LEFT},{RIGHT}", minPartitions="8", columns="value")
    before = read_since(servers)
    assert values(spark.read.format("basalt").options(**source).load()) == texts(LEFT, BACKLOG) + texts(RIGHT, BACKLOG)
    parts = read_since(servers, before)
    assert all(part.as_owner and part.by_permit for part in parts), parts
    assert sum(map(sum, parts)) == 2 * BACKLOG, "something was read twice, or by nobody"

    frame = spark.range(0, 100, 1, 4).selectExpr("format_string('once %06d', id) as value")
    written = options(servers, topic=ONCE, txnAppId="once", txnVersion="1")
    for owner in (servers.leader(), None):
        frame.write.format("basalt").mode("append").options(**written).save()
        if owner is not None:
            servers.move(NAMESPACE, ONCE, owner)
    with connected(servers.urls) as client:
        assert [message.text for message in client.topic(ONCE).read()] == texts(ONCE, 100)
        assert client.transactions.list() == []


def publish_backlog(servers: Members) -> None:
    with connected(servers.urls) as client:
        for topic in (LEFT, RIGHT):
            client.topic(topic).publish([text.ljust(LARGE_BYTES) for text in texts(topic, BACKLOG)])


class Copying:
    """A stream of both inputs into one output."""

    def __init__(self, spark: SparkSession, servers: Members, checkpoint: Path) -> None:
        read = options(
            servers, topics=f"{LEFT},{RIGHT}", minPartitions=TASKS, maxRowsPerTrigger=BATCH_ROWS, columns="value"
        )
        frame = spark.readStream.format("basalt").options(**read).load()
        written = options(servers, topic=COPIES, txnAppId="copies", checkpointLocation=str(checkpoint))
        self._query: Any = frame.writeStream.format("basalt").options(**written).start()
        self._servers = servers

    def go_on(self, batches: int = BATCHES) -> None:
        """Return when it has made so many more batches with rows."""
        last = self._last()
        until(lambda: self._last() >= last + batches, self._servers.up()[0].process, TAKE_OVER_SECONDS_MAX)

    def _last(self) -> int:
        """The number of its newest batch that is done."""
        assert self._query.exception() is None, self._query.exception()
        return max((each["batchId"] for each in self._query.recentProgress if each["numInputRows"]), default=-1)

    def end(self) -> None:
        """Copy all that is there, and stop."""
        self._query.processAllAvailable()
        self.stop()

    def stop(self) -> None:
        self._query.stop()


def test_a_stream_is_exactly_once_and_in_order_while_an_owner_is_killed_and_shards_move(
    spark: SparkSession, two_sharing: Members, tmp_path: Path
):
    servers = two_sharing
    publish_backlog(servers)
    publisher, before = Publisher(servers.urls), read_since(servers)
    stream = Copying(spark, servers, tmp_path / "checkpoint")
    try:
        stream.go_on(2 * BACKLOG // int(BATCH_ROWS))
        parts = read_since(servers, before)
        assert all(part.as_owner for part in parts), parts
        assert sum(part.by_permit for part in parts) >= BACKLOG / 2, parts
        publisher.start()
        stream.go_on()
        small = read_since(servers, before)
        assert [part.by_permit for part in small] == [part.by_permit for part in parts], "small batches are the owners'"
        for fault in (kill_the_owner, move_its_topics_back, move_all_topics):
            fault(servers, stream.go_on)
        publisher.enough.set()
        publisher.join(WAIT_SECONDS_MAX)
        assert publisher.wrong is None
        stream.end()
    finally:
        publisher.enough.set()
        stream.stop()
    with connected(servers.urls) as client:
        found = [message.text.rstrip() for message in client.topic(COPIES).read()]
    for topic, told in publisher.told.items():
        assert of(topic, found) == told
    assert len(found) == sum(map(len, publisher.told.values()))


def kill_the_owner(servers: Members, go_on: Callable[[], None]) -> None:
    """Of the first input and of the output; the leader takes its shards. Another process comes in its place, and owns nothing."""
    owner, leader = servers.owner_of(NAMESPACE, LEFT), servers.leader()
    assert owner is not leader
    assert servers.owner_of(NAMESPACE, COPIES) is owner
    owner.process.kill()
    go_on()
    assert {servers.owner_of(NAMESPACE, topic) for topic in TOPICS} == {leader}
    servers.launch(owner)
    owner.process.wait_until_ready()
    servers.wait_until_all_are_linked()


def move_its_topics_back(servers: Members, go_on: Callable[[], None]) -> None:
    """As an operator does after such a fault."""
    for topic, owner in zip(TOPICS, owners(servers), strict=True):
        give(servers, topic, owner)
        go_on()


def move_all_topics(servers: Members, go_on: Callable[[], None]) -> None:
    """Each to the other server, and nobody waits in between."""
    before = owners(servers)
    for topic, owner in zip(TOPICS, before, strict=True):
        (to,) = [each for each in servers.those if each is not owner]
        servers.move(NAMESPACE, topic, to)
    go_on()
    assert all(servers.owner_of(NAMESPACE, topic) is not owner for topic, owner in zip(TOPICS, before, strict=True))
