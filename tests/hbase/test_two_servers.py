"""Two real servers on one real HBase: one leads. Killed, stopped and woken, or cut off, it writes nothing after its term."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.client import KazooClient

import basalt
from basalt.client import Client
from basalt.errors import BasaltError, RetryError, SessionFencedError
from basalt.thrift.discovery import FOLDER
from deploy.hbase.standalone import Gateways
from tests.hbase.holding_proxy import HoldingProxy
from tests.hbase.tables import Tables
from tests.system import group_worker
from tests.system.group_worker import INPUTS, outputs_of
from tests.system.server_process import Reply, ServerProcess
from tests.tephra_client.runtime import java_command

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

LEASE_MS = 6_000  # by a test that is to lead all along, it may be missed for a second or two
BUCKETS = 2
TAKE_OVER_SECONDS_MAX = 60.0  # the lease, half a second until it is noticed, the fence and the log; a bound for a hang
WAIT_SECONDS_MAX = 60.0
PUBLISHERS = 3
PAUSE_SECONDS = 0.02  # between two messages of a publisher
NAMESPACE = "pair"
JSON = {"Content-Type": "application/json", "Accept": "application/json"}


@dataclass(frozen=True)
class Installation:
    """The tables that both servers share."""

    thrift: str
    thrift2: str
    prefix: str

    def options(self, thrift2: str | None = None) -> list[str]:
        """What a server is started with; `thrift2`: through another gateway, or a proxy before it."""
        settings = {
            "store.kind": "hbase", "store.hbase.prefix": self.prefix, "store.hbase.buckets": str(BUCKETS),
            "store.hbase.thrift": self.thrift, "store.hbase.thrift2": thrift2 or self.thrift2,
            "leader.lease_ms": str(LEASE_MS),
        }  # fmt: skip
        return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def install(gateways: Gateways, prefix: str, *coprocessor: str) -> Installation:
    made = Installation(gateways.thrift, gateways.thrift2, prefix)
    command = [sys.executable, "-m", "basalt.cli.main", "hbase", "install", *coprocessor, *made.options()]
    given = {name: value for name, value in os.environ.items() if not name.startswith("BASALT")}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.fixture(scope="module")
def guarded(hbase_gateways: Gateways, coprocessor_jar: Path) -> Iterator[Installation]:
    """Tables with the coprocessor."""
    prefix = f"pair-{os.getpid()}"
    try:
        yield install(hbase_gateways, prefix, "--jar", f"file:{coprocessor_jar}", "--refresh-interval", "1s")
    finally:
        Tables(hbase_gateways.thrift2, prefix).drop()


@pytest.fixture(scope="module")
def unguarded(hbase_gateways: Gateways) -> Iterator[Installation]:
    """Tables without it."""
    prefix = f"bare-pair-{os.getpid()}"
    try:
        yield install(hbase_gateways, prefix, "--no-coprocessor")
    finally:
        Tables(hbase_gateways.thrift2, prefix).drop()


class Pair:
    """Two servers; `leader` and `standby` say which is which at the moment of asking."""

    def __init__(self, folder: Path) -> None:
        self.servers: list[ServerProcess] = []
        self._folder = folder

    def start(self, *options: str) -> ServerProcess:
        folder = self._folder / f"server-{len(self.servers)}"
        folder.mkdir()
        server = ServerProcess(folder)
        self.servers.append(server)
        server.start(*options)
        return server

    def close(self) -> None:
        for server in self.servers:
            if server.process is not None and server.alive():
                server.process.send_signal(signal.SIGCONT)
            server.kill()

    @property
    def urls(self) -> str:
        return ",".join(server.url for server in self.servers)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    servers = Pair(tmp_path)
    yield servers
    servers.close()


@pytest.fixture
def two(pair: Pair, guarded: Installation) -> tuple[ServerProcess, ServerProcess]:
    """A leader, and a standby that knows it."""
    leader = pair.start(*guarded.options())
    until(lambda: serves(leader), leader)
    standby = pair.start(*guarded.options())
    until(lambda: names(standby, leader), standby)
    return leader, standby


def until(is_so: Callable[[], bool], server: ServerProcess, seconds_max: float = WAIT_SECONDS_MAX) -> float:
    """Wait until it is so; how long that took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < seconds_max, server.tail()
        time.sleep(0.1)
    return time.monotonic() - began


def serves(server: ServerProcess) -> bool:
    return server.ask("GET", "/readyz").status == 200


def names(server: ServerProcess, leader: ServerProcess) -> bool:
    reply = server.ask("GET", "/v1/admin/jobs")
    return reply.status == 503 and reply.headers.get("basalt-leader") == leader.url


def create(server: ServerProcess, topic: str) -> None:
    server.ask_json("PUT", f"/v1/namespaces/{NAMESPACE}/topics/{topic}")


def publish(server: ServerProcess, topic: str, text: str) -> Reply:
    body = json.dumps({"messages": [text]}).encode()
    return server.ask("POST", f"/v1/namespaces/{NAMESPACE}/topics/{topic}/publish", body, JSON)


def read(server: ServerProcess, topic: str) -> list[str]:
    with basalt.connect(server.url, namespace=NAMESPACE) as client:
        return [message.text for message in client.topic(topic).read()]


def test_one_leads_and_the_other_says_where(two: tuple[ServerProcess, ServerProcess]):
    leader, standby = two
    create(leader, "greetings")
    reply = publish(standby, "greetings", "hello")
    assert reply.status == 503
    assert (reply.json()["code"], reply.json()["leader"]) == ("not_leader", leader.url)
    assert (standby.ask("GET", "/livez").status, standby.ask("GET", "/readyz").status) == (200, 503)
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
    assert publish(standby, "paused", "now I lead").status == 200
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
    assert publish(leader, "paused", "I lead again").status == 200
    assert read(leader, "paused") == [*after, "I lead again"]


GROUP_MESSAGES = 400
GROUP_PART = 20
SLOW_SECONDS = 15.0


@contextmanager
def members(urls: str, log: Path, *them: tuple[str, str, str], inputs: str = INPUTS) -> Iterator[None]:
    """Members of consumer groups, each a process that hands messages on: group, mode and way of committing."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("BASALT")}
    with log.open("ab") as told:
        running = [
            subprocess.Popen(
                [sys.executable, group_worker.__file__, urls, *one, inputs], stdout=told, stderr=told, env=given
            )
            for one in them
        ]
    try:
        yield
        assert all(process.poll() is None for process in running), log.read_text()[-3_000:]
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_groups_hand_every_message_on_once_while_leaders_are_stopped_woken_and_killed(
    pair: Pair, two: tuple[ServerProcess, ServerProcess], tmp_path: Path
):
    leader, standby = two
    them = (("shared", "shared", "process"), ("shared", "shared", "transaction"), ("keyed", "keyed", "process"))
    sent = [(b"key-%d" % (number % 7), b"%06d" % number) for number in range(GROUP_MESSAGES)]
    groups = sorted({group for group, _, _ in them})

    def handed_on(group: str, to: ServerProcess = leader) -> list[tuple[bytes | None, bytes]]:
        return [(message.key, message.payload) for message in clients[to.url].topic(outputs_of(group)).read()]

    def publish_some(to: ServerProcess) -> None:
        for _ in range(GROUP_MESSAGES // 4 // GROUP_PART):
            part = [left.pop(0) for _ in range(GROUP_PART)]
            clients[to.url].publish_atomically({INPUTS: [basalt.RecordIn(payload, key) for key, payload in part]})

    left = list(sent)
    with ExitStack() as stack:
        clients = {
            server.url: stack.enter_context(basalt.connect(server.url, namespace=group_worker.NAMESPACE))
            for server in (leader, standby)
        }
        for topic in (INPUTS, *map(outputs_of, groups)):
            clients[leader.url].topics.create(topic)
        with members(pair.urls, tmp_path / "members.log", *them):
            publish_some(leader)
            until(lambda: all(handed_on(group) for group in groups), leader)
            assert leader.process is not None
            leader.process.send_signal(signal.SIGSTOP)
            until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
            publish_some(standby)
            leader.process.send_signal(signal.SIGCONT)  # it wakes with claims, members and calls that are over
            publish_some(standby)
            until(lambda: names(leader, standby), leader)
            standby.kill()
            until(lambda: serves(leader), leader, TAKE_OVER_SECONDS_MAX)
            publish_some(leader)
            until(lambda: all(len(handed_on(group)) >= len(sent) for group in groups), leader, TAKE_OVER_SECONDS_MAX)
        for group in groups:
            assert sorted(handed_on(group)) == sorted(sent), f"{group}: lost or doubled"
        by_key = [sorted(messages, key=lambda message: message[0]) for messages in (handed_on("keyed"), sent)]
        assert by_key[0] == by_key[1], "the order of a key"


def test_groups_hand_every_message_on_once_though_a_leaders_writes_arrive_when_it_leads_no_more(
    pair: Pair, guarded: Installation, tmp_path: Path
):
    """Amid what they consume and produce its calls take 15 s and more: their outcome is lost, and another server leads meanwhile."""
    them = (("late-shared", "shared", "transaction"), ("late-keyed", "keyed", "process"))
    sent = [(b"key-%d" % (number % 7), b"%06d" % number) for number in range(GROUP_MESSAGES // 2)]
    groups = [group for group, _, _ in them]
    proxy = HoldingProxy(guarded.thrift2)

    def publish_some(client: Client) -> None:
        for _ in range(GROUP_MESSAGES // 4 // GROUP_PART):
            part = [left.pop(0) for _ in range(GROUP_PART)]
            client.publish_atomically({"late-inputs": [basalt.RecordIn(payload, key) for key, payload in part]})

    def handed_on(group: str) -> list[tuple[bytes | None, bytes]]:
        return [(message.key, message.payload) for message in client.topic(outputs_of(group)).read()]

    left = list(sent)
    try:
        leader = pair.start(*guarded.options(proxy.address))
        until(lambda: serves(leader), leader)
        standby = pair.start(*guarded.options())
        until(lambda: names(standby, leader), standby)
        with basalt.connect(pair.urls, namespace=group_worker.NAMESPACE) as client:
            for topic in ("late-inputs", *map(outputs_of, groups)):
                client.topics.create(topic)
            with members(pair.urls, tmp_path / "members.log", *them, inputs="late-inputs"):
                publish_some(client)
                until(lambda: all(handed_on(group) for group in groups), leader)
                proxy.hold()
                held_at = time.monotonic()
                until(lambda: proxy.held_bytes > 0, leader)
                until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
                publish_some(client)
                time.sleep(max(0.0, held_at + SLOW_SECONDS - time.monotonic()))
                proxy.let_go()
                until(lambda: names(leader, standby), leader)
                until(lambda: not proxy.unanswered, leader)
                until(lambda: all(len(handed_on(group)) >= len(sent) for group in groups), standby)
            standby.kill()
            until(lambda: serves(leader), leader, TAKE_OVER_SECONDS_MAX)
            for group in groups:  # by a reader without the other's cache
                assert sorted(handed_on(group)) == sorted(sent), f"{group}: lost or doubled"
            by_key = [sorted(messages, key=lambda message: message[0]) for messages in (handed_on("late-keyed"), sent)]
            assert by_key[0] == by_key[1], "the order of a key"
    finally:
        proxy.close()


def write_that_is_delayed_until_after_the_take_over(pair: Pair, installation: Installation, topic: str) -> list[str]:
    """What readers see once a write of the former leader, held back in the network, has come through at last."""
    proxy = HoldingProxy(installation.thrift2)
    try:
        leader = pair.start(*installation.options(proxy.address))
        until(lambda: serves(leader), leader)
        create(leader, topic)
        assert publish(leader, topic, "in time").status == 200
        standby = pair.start(*installation.options())
        proxy.hold()
        replies: list[Reply] = []
        calling = threading.Thread(target=lambda: replies.append(publish(leader, topic, "delayed")), daemon=True)
        calling.start()
        until(lambda: proxy.held_bytes > 0, leader)
        until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
        assert publish(standby, topic, "by the new one").status == 200
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
    """That the test above can fail, and why docs/operations/two-servers.md asks for the coprocessor."""
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
        leader = pair.start(*guarded.options(), *discovered)
        until(lambda: len(registered(zookeeper)) == 1, leader)
        standby = pair.start(*guarded.options(), *discovered)
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
    """The id of a transaction that Tephra's own client committed, knowing nothing but ZooKeeper."""
    command = java_command("Discovering", ensemble)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX, check=False)
    assert done.returncode == 0, f"{done.stdout[-3_000:]}\n{done.stderr[-3_000:]}"
    return int(done.stdout.split()[-1])
