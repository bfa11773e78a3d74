"""Two real servers on one real HBase: one leads. Killed, stopped and woken, or cut off, it writes nothing after its term."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

import basalt
from basalt.errors import BasaltError, RetryError, SessionFencedError
from basalt.thrift.discovery import FOLDER
from deploy.hbase.standalone import Gateways
from tests.hbase.holding_proxy import HoldingProxy
from tests.hbase.server_pair import (
    LEASE_MS,
    TAKE_OVER_SECONDS_MAX,
    WAIT_SECONDS_MAX,
    Installation,
    Pair,
    install,
    names,
    serves,
    until,
)
from tests.hbase.tables import Tables
from tests.system.server_process import Reply, ServerProcess
from tests.tephra_client.runtime import java_command

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

PUBLISHERS = 3
PAUSE_SECONDS = 0.02  # between two messages of a publisher
NAMESPACE = "pair"
# What a server says that does not lead is asked for here; that it passes calls on, in test_passing_on.py.
JSON = {"Content-Type": "application/json", "Accept": "application/json", "Basalt-Direct": "1"}


@pytest.fixture(scope="module")
def unguarded(hbase_gateways: Gateways) -> Iterator[Installation]:
    """Tables without the coprocessor."""
    prefix = f"bare-pair-{os.getpid()}"
    try:
        yield install(hbase_gateways, prefix, "--no-coprocessor")
    finally:
        Tables(hbase_gateways.thrift2, prefix).drop()


def create(server: ServerProcess, topic: str) -> None:
    server.ask_json("PUT", f"/v1/namespaces/{NAMESPACE}/topics/{topic}")


def publish(server: ServerProcess, topic: str, text: str) -> Reply:
    body = json.dumps({"messages": [text]}).encode()
    return server.ask("POST", f"/v1/namespaces/{NAMESPACE}/topics/{topic}/publish", body, JSON)


def publish_soon(server: ServerProcess, topic: str, text: str) -> None:
    """Publish once, as clients do: a shard that has no owner yet refuses it, and nothing was done then."""
    replies: list[Reply] = []

    def is_answered() -> bool:
        replies.append(publish(server, topic, text))
        return b'"shard_moving"' not in replies[-1].body

    until(is_answered, server)
    assert replies[-1].status == 200, replies[-1]


def read(server: ServerProcess, topic: str) -> list[str]:
    with basalt.connect(server.url, namespace=NAMESPACE) as client:
        return [message.text for message in client.topic(topic).read()]


def test_one_leads_and_the_other_says_where(two: tuple[ServerProcess, ServerProcess]):
    leader, standby = two
    create(leader, "greetings")
    reply = publish(standby, "greetings", "hello")
    assert reply.status == 503
    assert (reply.json()["code"] in ("not_leader", "not_owner"), reply.json()["leader"]) == (True, leader.url)
    assert (standby.ask("GET", "/livez").status, standby.ask("GET", "/readyz?leader=true").status) == (200, 503)
    with basalt.connect(standby.url, namespace=NAMESPACE) as client:
        client.topic("greetings").publish("hello")  # it follows
    assert read(leader, "greetings") == ["hello"]


def test_a_leader_that_stops_hands_over_at_once(two: tuple[ServerProcess, ServerProcess]):
    leader, standby = two
    create(leader, "stopped")
    assert publish(leader, "stopped", "one").status == 200
    assert leader.stop() == 0
    until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
    assert read(standby, "stopped") == ["one"]


class Publisher(threading.Thread):
    """One client of both servers, which publishes one message after the other and keeps what it was told."""

    def __init__(self, urls: str, topic: str, name: str, timeout_ms: int = 30_000) -> None:
        super().__init__(daemon=True)
        self.name = name
        self.topic = topic
        self.told: list[str] = []
        self.unknown: list[str] = []
        self.wrong: BaseException | None = None
        self.enough = threading.Event()
        self._urls = urls
        self._timeout_ms = timeout_ms

    def run(self) -> None:
        with basalt.connect(self._urls, namespace=NAMESPACE, timeout_ms=self._timeout_ms, attempts_max=1_000) as client:
            number = 0
            while not self.enough.is_set():
                number += 1
                text = f"{self.name}.{number:06}"
                try:
                    client.topic(self.topic).publish(text)
                    self.told.append(text)
                except RetryError:
                    self.unknown.append(text)
                except BasaltError as error:
                    self.wrong = error
                    return
                self.enough.wait(PAUSE_SECONDS)


def check(publishers: list[Publisher], found: list[str]) -> None:
    """What was answered is there, once and in order; what nobody knows of is there once at most."""
    assert len(found) == len(set(found)), "a message came twice"
    for publisher in publishers:
        assert publisher.wrong is None
        mine = [text for text in found if text.startswith(publisher.name + ".")]
        assert mine == sorted(mine), "messages of one client changed places"
        assert set(publisher.told) <= set(mine), "an acknowledged message is gone"
        assert set(mine) <= {*publisher.told, *publisher.unknown}


def test_a_leader_killed_under_load_is_followed_within_seconds_and_nothing_is_lost(
    pair: Pair, two: tuple[ServerProcess, ServerProcess]
):
    leader, standby = two
    create(leader, "load")
    patient_ms = int(2_000 * TAKE_OVER_SECONDS_MAX)
    publishers = [Publisher(pair.urls, "load", f"p{number}", patient_ms) for number in range(PUBLISHERS)]
    for publisher in publishers:
        publisher.start()
    until(lambda: all(len(publisher.told) > 20 for publisher in publishers), leader)
    leader.kill()
    took_seconds = until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
    print(f"followed after {took_seconds:.2f} s, with a lease of {LEASE_MS} ms")
    counts = [len(publisher.told) for publisher in publishers]
    until(lambda: all(len(p.told) > count + 20 for p, count in zip(publishers, counts, strict=True)), standby)
    for publisher in publishers:
        publisher.enough.set()
        publisher.join(WAIT_SECONDS_MAX)
    found = read(standby, "load")
    check(publishers, found)
    # Answers that were lost with the leader were sent again to the next one, which knew what was there.
    assert [publisher.unknown for publisher in publishers] == [[]] * PUBLISHERS
    assert len(found) == sum(len(publisher.told) for publisher in publishers)


def test_a_named_transaction_goes_on_under_the_next_leader(two: tuple[ServerProcess, ServerProcess]):
    """Begun and stored under one leader, joined and committed under the next one: the segments that count, and no others."""
    leader, standby = two
    create(leader, "segments")
    with basalt.connect(f"{leader.url},{standby.url}", namespace=NAMESPACE) as client:
        topic = client.topic("segments")
        old = client.named_transaction("etl", "monday", 0, counter_owner="query")
        zombie = old.segment()
        topic.store(["of a run that is replaced"], zombie)
        tx = client.named_transaction("etl", "tuesday", 0, counter_owner="query")
        lost, kept = tx.segment(), tx.segment()
        topic.store(["lost"], lost)
        topic.store(["kept"], kept)
        leader.kill()
        until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
        joined = client.named_transaction("etl", "tuesday", 0, counter_owner="query")
        assert joined.id == tx.id
        later = joined.segment()
        topic.store(["later"], later)
        with pytest.raises(SessionFencedError):
            client.named_transaction("etl", "monday", 0, counter_owner="query")
        with pytest.raises(SessionFencedError):
            client.transactions.commit_segments(old.id, [zombie])
        outcome = client.transactions.commit_segments(tx.id, [later, kept])
        assert client.transactions.commit_segments(tx.id, [lost]) == outcome
        assert client.named_transaction("etl", "wednesday", 0, counter_owner="query").committed_by == tx.id
    assert read(standby, "segments") == ["later", "kept"]


def test_a_leader_stopped_for_longer_than_its_lease_writes_nothing_when_it_wakes(
    two: tuple[ServerProcess, ServerProcess],
):
    leader, standby = two
    create(leader, "paused")
    publishers = [Publisher(leader.url, "paused", f"p{number}") for number in range(PUBLISHERS)]
    for publisher in publishers:
        publisher.start()
    until(lambda: all(len(publisher.told) > 20 for publisher in publishers), leader)
    assert leader.process is not None
    leader.process.send_signal(signal.SIGSTOP)
    until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
    before = read(standby, "paused")  # what there was when the new leader began
    publish_soon(standby, "paused", "now I lead")
    for publisher in publishers:
        publisher.enough.set()  # each has one call under way, which the woken server finds
    leader.process.send_signal(signal.SIGCONT)
    replies = [publish(leader, "paused", f"late {number}") for number in range(20)]
    assert {reply.status for reply in replies} == {503}, replies
    for publisher in publishers:
        publisher.join(WAIT_SECONDS_MAX)
    until(lambda: names(leader, standby), leader)
    assert leader.alive()
    ready = leader.ask("GET", "/readyz")
    assert f"standby: {standby.url} leads" in ready.body.decode()
    # A call that was under way may have followed to the new leader by itself: that is no write of the former one.
    after = read(standby, "paused")
    assert after[: len(before) + 1] == [*before, "now I lead"]
    assert not any(text.startswith("late") for text in after)
    check(publishers, [text for text in after if text != "now I lead"])

    # It is a standby like any other: it follows when its turn comes.
    standby.kill()
    until(lambda: serves(leader), leader, TAKE_OVER_SECONDS_MAX)
    assert read(leader, "paused") == after
    publish_soon(leader, "paused", "I lead again")
    assert read(leader, "paused") == [*after, "I lead again"]


def write_that_is_delayed_until_after_the_take_over(pair: Pair, installation: Installation, topic: str) -> list[str]:
    """What readers see once a write of the former leader, held back in the network, has come through at last."""
    proxy = HoldingProxy(installation.thrift2)
    try:
        leader = pair.start(*installation.still(proxy.address))
        until(lambda: serves(leader), leader)
        create(leader, topic)
        assert publish(leader, topic, "in time").status == 200
        standby = pair.start(*installation.still())
        proxy.hold()
        replies: list[Reply] = []
        calling = threading.Thread(target=lambda: replies.append(publish(leader, topic, "delayed")), daemon=True)
        calling.start()
        until(lambda: proxy.held_bytes > 0, leader)
        until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
        publish_soon(standby, topic, "by the new one")
        proxy.let_go()
        calling.join(WAIT_SECONDS_MAX)
        until(lambda: names(leader, standby), leader)
        until(lambda: not proxy.unanswered, leader)  # what was held has reached the region
        seen = read(standby, topic)
        standby.kill()
        until(lambda: serves(leader), leader, TAKE_OVER_SECONDS_MAX)
        assert set(seen) <= set(read(leader, topic))  # a reader without the new leader's cache
        return read(leader, topic)
    finally:
        proxy.close()


def test_a_write_under_way_for_longer_than_the_lease_is_refused_by_the_region(pair: Pair, guarded: Installation):
    found = write_that_is_delayed_until_after_the_take_over(pair, guarded, "delayed")
    assert found == ["in time", "by the new one"]


def test_without_the_coprocessor_such_a_write_lands(pair: Pair, unguarded: Installation):
    """That the test above can fail, and why docs/operations/several-servers.md asks for the coprocessor."""
    found = write_that_is_delayed_until_after_the_take_over(pair, unguarded, "delayed")
    assert sorted(found) == ["by the new one", "delayed", "in time"]


@pytest.mark.tephra
@pytest.mark.jvm
@pytest.mark.filterwarnings("ignore:No chroot path exists")
def test_clients_of_tephra_find_whoever_leads_in_zookeeper(pair: Pair, guarded: Installation, hbase_gateways: Gateways):
    if not hbase_gateways.zookeeper_port:
        pytest.skip("the named gateways do not say where their ZooKeeper is")
    ensemble = f"127.0.0.1:{hbase_gateways.zookeeper_port}/{guarded.prefix}"
    discovered = ("--set", "thrift.port=0", "--set", f"thrift.zookeeper={ensemble}")
    zookeeper = KazooClient(hosts=ensemble)
    zookeeper.start(timeout=WAIT_SECONDS_MAX)
    try:
        leader = pair.start(*guarded.still(), *discovered)
        until(lambda: len(registered(zookeeper)) == 1, leader)
        standby = pair.start(*guarded.still(), *discovered)
        until(lambda: names(standby, leader), standby)
        (former,) = registered(zookeeper)
        first = committed_through(ensemble)
        leader.kill()
        until(lambda: serves(standby), standby)
        # The dead one's node goes with its session; until then a client may be sent there, and tries again.
        until(lambda: len(registered(zookeeper)) == 1 and registered(zookeeper) != {former}, standby)
        second = committed_through(ensemble)
        assert second > first
        for transaction in (first, second):
            assert standby.ask_json("GET", f"/v1/transactions/{transaction}")["state"] == "COMMITTED"
    finally:
        zookeeper.stop()
        zookeeper.close()


def registered(zookeeper: KazooClient) -> set[str]:
    """The nodes of the Thrift services that are to be found."""
    return set(zookeeper.get_children(FOLDER)) if zookeeper.exists(FOLDER) else set()


def committed_through(ensemble: str) -> int:
    """The id of a transaction that Tephra's own client committed, knowing nothing but ZooKeeper.

    ZooKeeper may still name one that is dead: a client that is sent there tries again.
    """
    command, give_up_s = java_command("Discovering", ensemble), time.monotonic() + WAIT_SECONDS_MAX
    while True:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX, check=False)
        if done.returncode == 0:
            return int(done.stdout.split()[-1])
        refused = "Connection refused" in done.stderr and time.monotonic() < give_up_s
        assert refused, f"{done.stdout[-3_000:]}\n{done.stderr[-3_000:]}"
