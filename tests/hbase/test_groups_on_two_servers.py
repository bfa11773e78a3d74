"""Consumer groups on a real HBase with two servers: their faults, one by one, and what each leaves behind.

Kills, lost answers and paused consumers on the embedded store are in tests/system; here a leader is stopped, woken or killed, or cut off from HBase, in
the midst of what groups do.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import basalt
from basalt.client import Client
from tests.hbase.holding_proxy import HoldingProxy
from tests.hbase.server_pair import TAKE_OVER_SECONDS_MAX, WAIT_SECONDS_MAX, Installation, Pair, names, serves, until
from tests.system import group_worker
from tests.system.group_calls import GROUP, INVOICES, JSON, Billing
from tests.system.group_worker import INPUTS, outputs_of
from tests.system.losing_proxy import LosingProxy
from tests.system.server_process import ORDERS, Reply, ServerProcess
from tests.system.test_group_resizing import resize_under_load
from tests.system.test_lost_answers import BATCH as LOST_BATCH
from tests.system.test_lost_answers import CONSUMED, KEYS, LOSES, check_copies, in_threads
from tests.system.test_lost_answers import GROUP as LOST_GROUP

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

COPIES = "/v1/namespaces/shop/topics/copies"
STAGE_MESSAGES_MIN = 500  # handed on before a group is resized again
SHORT_CLAIM_MS = 10_000  # its leader is stopped within that, and wakes when it is over
GROUP_MESSAGES = 400
GROUP_PART = 20
LOST_PART = (
    10  # messages of a publish on a bad line: a client sends a small one in one piece, and each piece may be lost
)
LOST_MIN = 5  # pieces, on the line to each server, before the leader is killed and before it is over
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
        leader = pair.start(*guarded.still(proxy.address))
        until(lambda: serves(leader), leader)
        standby = pair.start(*guarded.still())
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
            until(lambda: all(len(handed_on(group)) >= len(sent) for group in groups), leader)
            for group in groups:  # by a reader without the other's cache
                assert sorted(handed_on(group)) == sorted(sent), f"{group}: lost or doubled"
            by_key = [sorted(messages, key=lambda message: message[0]) for messages in (handed_on("late-keyed"), sent)]
            assert by_key[0] == by_key[1], "the order of a key"
    finally:
        proxy.close()


def test_a_keyed_group_that_is_resized_keeps_order_and_loses_and_doubles_nothing(pair: Pair, guarded: Installation):
    server = pair.start(*guarded.still())
    until(lambda: serves(server), server)
    delete_topics(server)
    resize_under_load(server.url, seed(), STAGE_MESSAGES_MIN)


def test_a_keyed_group_whose_leaders_are_killed_and_stopped_while_it_is_resized_keeps_order_and_loses_and_doubles_nothing(
    pair: Pair, two: tuple[ServerProcess, ServerProcess]
):
    first, second = two

    def meanwhile(size: int) -> None:
        if size == 3:
            stop(first)
            until(lambda: serves(second), second, TAKE_OVER_SECONDS_MAX)
            wake(first)
        if size == 12:
            until(lambda: names(first, second), first)
            second.kill()

    delete_topics(first)
    resize_under_load(pair.urls, seed(), STAGE_MESSAGES_MIN, meanwhile)
    assert serves(first)


def seed() -> int:
    drawn = int(os.environ.get("BASALT_KILL_SEED") or secrets.randbits(32))
    print(f"BASALT_KILL_SEED={drawn}")
    return drawn


def stop(server: ServerProcess) -> None:
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)


def wake(server: ServerProcess) -> None:
    assert server.process is not None
    server.process.send_signal(signal.SIGCONT)


def delete_topics(server: ServerProcess) -> None:
    """Remove what the test before has left on the same tables."""
    for topic in (ORDERS, INVOICES, COPIES):
        server.ask("DELETE", topic)


def new_billing(server: ServerProcess, messages: int = 10, **options: Any) -> Billing:
    """A group that nobody has used, of a topic that was not there."""
    delete_topics(server)
    server.ask_json("PUT", ORDERS)
    billing = Billing(server)
    billing.make(messages, **options)
    return billing


def dealt(billing: Billing, query: str) -> tuple[list[str], str]:
    """The payloads of the next claim, and which attempt at them it is."""
    reply = billing.fetch(query)
    return [each["payload"] for each in reply.json()], reply.headers["basalt-attempt"]


def test_claims_that_run_out_while_their_leader_stands_still_are_dealt_by_the_next_and_counted_by_nobody(
    two: tuple[ServerProcess, ServerProcess],
):
    leader, standby = two
    billing, later = new_billing(leader), Billing(standby)
    failed, _, _ = billing.claim("?limit=1")
    leader.ask_json("POST", f"{GROUP}/release", {"claims": [failed]})
    again, _, ids = billing.claim(f"?limit=1&member=w1&claimMs={SHORT_CLAIM_MS}")
    billing.claim(f"?limit=2&member=w2&claimMs={SHORT_CLAIM_MS}")
    over_s = time.monotonic() + SHORT_CLAIM_MS / 1_000
    stop(leader)
    until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
    assert dealt(later, "?limit=1&member=w3") == (["m0"], "2")
    held, taken, _ = later.claim("?limit=2&member=w4")
    assert taken == ["m1", "m2"]
    until(lambda: time.monotonic() > over_s, standby)
    wake(leader)  # what it would do first is to end both claims, which counts attempts
    until(lambda: names(leader, standby), leader)
    assert later.acknowledge(409, claims=[again], member="w1")["code"] == "claim_lost"
    assert later.acknowledge(409, ids=ids, member="w1")["code"] == "claim_lost"
    assert later.acknowledge(claims=[held], member="w4")["acknowledged"] == 2
    (failing,) = later.claims()
    standby.ask_json("POST", f"{GROUP}/release", {"claims": [failing], "member": "w3"})
    standby.kill()
    until(lambda: serves(leader), leader, TAKE_OVER_SECONDS_MAX)
    assert dealt(billing, "?limit=1") == (["m0"], "3")
    assert dealt(billing, "?limit=2") == (["m3", "m4"], "1")


def group_of(name: str) -> str:
    return f"{ORDERS}/groups/{name}"


def claim_in(server: ServerProcess, name: str) -> tuple[int, list[str], list[str], str]:
    """The next two messages of a group: claim, payloads, ids in hex, attempt."""
    reply = server.ask("POST", f"{group_of(name)}/fetch?limit=2")
    assert reply.status == 200, reply
    ids = [each["id"].encode("latin-1").hex() for each in reply.json()]
    payloads = [each["payload"] for each in reply.json()]
    return int(reply.headers["basalt-claim"]), payloads, ids, reply.headers["basalt-attempt"]


CALLED = ("acknowledged", "released", "sought", "worked", "committed")


class Calls:
    """A call of each kind, each on a group of its own which has claimed m0 and m1; the one that is sought back, m2 and m3.

    They can be under way at the same time, each in a thread of its own, and be repeated.
    """

    def __init__(self, server: ServerProcess) -> None:
        self.replies: dict[str, Reply] = {}
        self._threads: list[threading.Thread] = []
        self._id = secrets.token_hex(8)
        for name in CALLED:
            server.ask_json("PUT", group_of(name), {"retryDelayMs": 0})
        self.claims = {name: claim_in(server, name) for name in CALLED}
        claim = {name: claims[0] for name, claims in self.claims.items()}
        server.ask_json("POST", f"{group_of('sought')}/acknowledge", {"claims": [claim["sought"]]})
        self.claims["sought"] = claim_in(server, "sought")
        self.round = server.ask_json("GET", group_of("sought"))["round"]
        begun = server.ask_json("POST", "/v1/transactions", {"timeoutMs": 600_000})["id"]
        pending = {"claims": [claim["committed"]], "transaction": begun}
        server.ask_json("POST", f"{group_of('committed')}/acknowledge", pending)
        self._calls: dict[str, tuple[str, Any]] = {
            "acknowledged": (f"{group_of('acknowledged')}/acknowledge", {"claims": [claim["acknowledged"]]}),
            "released": (f"{group_of('released')}/release", {"claims": [claim["released"]]}),
            "sought": (f"{group_of('sought')}/seek", {"to": "start"}),
            "worked": (f"{group_of('worked')}/fetch?limit=2", self.work(claims=[claim["worked"]])),
            "committed": (f"/v1/transactions/{begun}/commit", {"publish": self._bill("committed")}),
        }

    def work(self, **acknowledges: Any) -> Any:
        """A Work that publishes, and acknowledges."""
        entry = {"namespace": "shop", "topic": "orders", "group": "worked", **acknowledges}
        return {"publish": self._bill("worked"), "acknowledge": [entry]}

    @staticmethod
    def _bill(text: str) -> Any:
        return [{"namespace": "shop", "topic": "invoices", "messages": [text]}]

    def ask(self, name: str, server: ServerProcess, asked: Any = None) -> Reply:
        """Make the call, always under the same id, or one that asks otherwise for the same."""
        target, at_first = self._calls[name]
        body = json.dumps(at_first if asked is None else asked).encode()
        return server.ask("POST", target, body, JSON | {"Basalt-Request-Id": f"{name}-{self._id}"})

    def begin(self, name: str, server: ServerProcess) -> None:
        """Make it, and do not wait for its answer."""

        def call() -> None:
            self.replies[name] = self.ask(name, server)

        self._threads.append(threading.Thread(target=call, daemon=True))
        self._threads[-1].start()

    def join(self) -> None:
        """Wait for all answers."""
        for thread in self._threads:
            thread.join(WAIT_SECONDS_MAX)


@pytest.mark.parametrize("first", ["sought", "worked"])
def test_calls_under_way_when_their_leader_loses_its_lease_are_not_done_late_and_are_done_once_by_the_next(
    pair: Pair, guarded: Installation, first: str
):
    """They reach HBase after the next leader has begun: an acknowledgement, a release, a seek, a fetch with a Work, a commit."""
    proxy = HoldingProxy(guarded.thrift2)
    try:
        leader = pair.start(*guarded.still(proxy.address))
        until(lambda: serves(leader), leader)
        new_billing(leader)
        calls = Calls(leader)
        standby = pair.start(*guarded.still())
        until(lambda: names(standby, leader), standby)
        proxy.hold()
        calls.begin(first, leader)
        until(
            lambda: proxy.holds(f"{guarded.prefix}.message".encode()), leader
        )  # the first is on its way, before the others
        for name in CALLED:
            if name != first:
                calls.begin(name, leader)
        until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
        dealt_anew = {name: claim_in(standby, name) for name in CALLED if name != "committed"}
        for name, claimed in dealt_anew.items():
            assert claimed[1:] == calls.claims[name][1:], "the same messages, and no attempt was counted"
        proxy.let_go()
        calls.join()
        assert {name: reply.status for name, reply in calls.replies.items()} == dict.fromkeys(CALLED, 503), (
            calls.replies
        )
        until(lambda: names(leader, standby), leader)
        until(lambda: not proxy.unanswered, leader)
        check_that_nothing_was_done(standby, calls)
        repeat(standby, calls, dealt_anew)
        check_that_all_was_done_once(standby, calls)
        standby.kill()
        until(lambda: serves(leader), leader, TAKE_OVER_SECONDS_MAX)  # which reads without the other's memory
        check_that_all_was_done_once(leader, calls)
    finally:
        proxy.close()


def floors(server: ServerProcess) -> dict[str, str]:
    return {name: server.ask_json("GET", group_of(name))["floor"] for name in CALLED}


def check_that_nothing_was_done(server: ServerProcess, calls: Calls) -> None:
    """All is as it was before the calls."""
    start, behind_m1 = "00" * 20, calls.claims["acknowledged"][2][1]
    assert floors(server) == dict.fromkeys(CALLED, start) | {"sought": behind_m1}
    assert Billing(server).read(INVOICES) == []


def repeat(server: ServerProcess, calls: Calls, dealt_anew: dict[str, Any]) -> None:
    """Make them again, as a client does that had no answer: a claim of another server is lost, and its messages are named by their ids."""
    for name in ("acknowledged", "released", "worked"):
        lost = calls.ask(name, server)
        assert lost.status == 409, (name, lost)
        assert lost.json()["code"] == "claim_lost"
        another = calls.ask(name, server, {"ids": calls.claims[name][2]} if name != "worked" else None)
        assert (another.status, another.json()["code"]) == (409, "claim_lost"), "somebody else has them meanwhile"
        server.ask_json("POST", f"{group_of(name)}/release", {"claims": [dealt_anew[name][0]], "counts": False})
    ids = {name: calls.claims[name][2] for name in CALLED}
    assert calls.ask("acknowledged", server, {"ids": ids["acknowledged"]}).json()["acknowledged"] == 2
    assert calls.ask("sought", server).status == 200
    stale = {"ids": ids["sought"], "round": calls.round}
    assert server.ask_json("POST", f"{group_of('sought')}/acknowledge", stale, 409)["code"] == "claim_lost"
    for _ in range(2):
        assert calls.ask("worked", server, calls.work(ids=as_in_a_work(ids["worked"]))).status == 200
        assert calls.ask("committed", server).json()["state"] == "COMMITTED"


def as_in_a_work(ids: list[str]) -> list[str]:
    """The ids as a Work has them in JSON."""
    return [bytes.fromhex(each).decode("latin-1") for each in ids]


def check_that_all_was_done_once(server: ServerProcess, calls: Calls) -> None:
    """Whoever reads."""
    start, behind_m1 = "00" * 20, calls.claims["acknowledged"][2][1]
    assert floors(server) == dict.fromkeys(CALLED, behind_m1) | {"sought": start, "released": start}
    assert sorted(Billing(server).read(INVOICES)) == ["committed", "worked"]


def test_members_on_bad_lines_copy_each_message_once_and_in_order_though_their_leader_is_killed(
    pair: Pair, guarded: Installation
):
    """Answers of publishes and of fetches with a Work are lost all along; whoever repeats them may meet another server."""
    proxies = [LosingProxy(0, seed(), LOSES) for _ in range(2)]
    urls, over = ",".join(proxy.url for proxy in proxies), threading.Event()
    try:
        for proxy in proxies:
            server = pair.start(*guarded.still(), "--set", f"leader.url={proxy.url}")
            proxy.port = server.port
            until(lambda: serves(pair.servers[0]), server)
        leader, standby = pair.servers
        delete_topics(leader)
        leader.ask_json("PUT", ORDERS)
        leader.ask_json("PUT", COPIES)

        def copy(batch: basalt.Batch, out: basalt.Output) -> None:
            for message in batch:
                out.publish("copies", message.payload, key=message.key)

        def work(client: Client) -> None:
            with client.consumer("orders", group="copying", mode="keyed", **LOST_GROUP) as orders:
                orders.process(copy, until=over.is_set, limit=LOST_BATCH)

        def publish_and_wait(client: Client) -> None:
            for first in range(0, CONSUMED, LOST_PART):
                numbers = range(first, first + LOST_PART)
                records = [basalt.RecordIn(b"%d" % number, b"%d" % (number % KEYS)) for number in numbers]
                client.topic("orders").publish_records(records)
                if first == CONSUMED // 2:
                    until(lambda: proxies[0].lost > LOST_MIN, leader)  # members go on fetching while they wait
                    leader.kill()
            until(lambda: sum(1 for _ in client.topic("copies").read()) >= CONSUMED, standby, 2 * WAIT_SECONDS_MAX)
            until(lambda: proxies[1].lost > LOST_MIN, standby)
            over.set()

        def run(number: int) -> None:
            with basalt.connect(urls, namespace="shop", timeout_ms=60_000) as client:
                (work if number else publish_and_wait)(client)

        in_threads(run)
        assert min(proxy.lost for proxy in proxies) > LOST_MIN
        with basalt.connect(standby.url, namespace="shop") as client:
            check_copies(client, in_order=True)
    finally:
        over.set()
        for proxy in proxies:
            proxy.close()
