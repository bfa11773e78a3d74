"""The table of faults of consumer groups, on a real HBase: ends over Thrift, whoever leads by then, and tables that take no writes.

Leaders that are stopped, killed or cut off in the midst of what groups do are in test_groups_on_two_servers.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from thriftpy2.thrift import TException

import basalt
from basalt_engine.stores.hbase.thrift2 import Thrift2
from basalt_engine.table import TABLE_NAMES
from tests.hbase.server_pair import TAKE_OVER_SECONDS_MAX, WAIT_SECONDS_MAX, Installation, Pair, names, serves, until
from tests.hbase.test_groups_on_two_servers import COPIES, dealt, members, new_billing, stop, wake
from tests.ports import reserved_port
from tests.system import group_worker
from tests.system.group_calls import GROUP, INVOICES, JSON, Billing
from tests.system.group_worker import INPUTS, outputs_of
from tests.system.server_process import ORDERS, Reply, ServerProcess
from tests.system.test_thrift import connected

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

ENDS = ("committed", "aborted", "invalidated", "timed out")
OPEN_S = 300  # of a transaction that its client ends
SHORT_S = 3  # of one that nobody ends

# All of which may be tried again.
REFUSED = ("outcome_unknown", "store_unavailable", "unavailable", "coordinator_unavailable", "not_leader", "not_owner",
           "shard_moving")  # fmt: skip
REFUSALS_MIN = 10  # that members and publishers meet before the tables are mended
SENT = 240
PART = 20


@pytest.fixture
def faces(pair: Pair, guarded: Installation) -> Iterator[tuple[int, int]]:
    """The Thrift ports of a leader and a standby, which each opens while it leads."""
    with reserved_port() as first, reserved_port() as second:
        leader = pair.start(*guarded.still(), "--set", f"thrift.port={first}")
        until(lambda: serves(leader), leader)
        standby = pair.start(*guarded.still(), "--set", f"thrift.port={second}")
        until(lambda: names(standby, leader), standby)
        yield first, second


def acknowledge_in_each(billing: Billing, client: Any) -> dict[str, Any]:
    """A transaction of Tephra for each end, in each of which one message is acknowledged."""
    begun: dict[str, Any] = {}
    for end in ENDS:
        claim, _, _ = billing.claim("?limit=1")
        begun[end] = client.startShortTimeout(SHORT_S if end == "timed out" else OPEN_S)
        billing.acknowledge(claims=[claim], transaction=str(begun[end].id))
    return begun


def end_each(client: Any, begun: dict[str, Any]) -> None:
    """As Tephra's client does; the last one times out by itself."""
    committed = begun["committed"].id
    client.canCommitOrThrow(committed, set())
    client.commitOrThrow(committed, committed)
    client.abortTx(begun["aborted"])
    client.invalidateTx(begun["invalidated"].id)


def unacknowledged(server: ServerProcess) -> list[tuple[str, int, str | None]]:
    """State, attempts and transaction of each message that is not acknowledged."""
    found = server.ask_json("GET", f"{GROUP}/messages")["messages"]
    return [(each["state"], each["attempts"], each.get("transaction")) for each in found]


def check_that_the_open_ones_are_pending(server: ServerProcess, begun: dict[str, Any]) -> None:
    by_pointer = (server.ask_json("GET", f"/v1/transactions/{begun[end].id}") for end in ENDS if end != "timed out")
    pending = [("pending", 0, each["id"]) for each in by_pointer]
    assert unacknowledged(server)[: len(pending)] == pending


def check_that_all_have_come_back_but_what_was_committed(server: ServerProcess) -> None:
    returned = [("available", 1, None)] * (len(ENDS) - 1)
    until(lambda: unacknowledged(server) == returned, server)


def test_a_transaction_of_tephra_acknowledges_with_its_commit_and_gives_back_with_each_other_end(
    pair: Pair, faces: tuple[int, int]
):
    """Over HTTP it acknowledges, over Thrift it ends, as its clients end theirs; and so the next leader has it."""
    leader, standby = pair.servers
    billing = new_billing(leader, len(ENDS))
    with connected(faces[0]) as client:
        begun = acknowledge_in_each(billing, client)
        check_that_the_open_ones_are_pending(leader, begun)
        end_each(client, begun)
    check_that_all_have_come_back_but_what_was_committed(leader)
    leader.kill()
    until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
    check_that_all_have_come_back_but_what_was_committed(standby)
    assert [dealt(Billing(standby), "?limit=1") for _ in range(3)] == [(["m1"], "2"), (["m2"], "2"), (["m3"], "2")]


def test_what_was_acknowledged_under_one_leader_is_ended_over_thrift_by_the_next_alone(
    pair: Pair, faces: tuple[int, int]
):
    """A commit waits in the former leader while it stands still; when it wakes it commits nothing."""
    leader, standby = pair.servers
    billing, refused = new_billing(leader, len(ENDS)), list[Exception]()

    def commit_late(client: Any, tx: Any) -> None:
        try:
            client.commitOrThrow(tx.id, tx.id)
        except (TException, OSError, EOFError) as error:
            refused.append(error)

    with connected(faces[0]) as client:
        begun = acknowledge_in_each(billing, client)
        client.canCommitOrThrow(begun["aborted"].id, set())
        stop(leader)
        late = threading.Thread(target=commit_late, args=(client, begun["aborted"]))
        late.start()
        until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
        check_that_the_open_ones_are_pending(standby, begun)
        wake(leader)
        until(lambda: names(leader, standby), leader)
        late.join(WAIT_SECONDS_MAX)
    assert refused, "a former leader has committed"
    check_that_the_open_ones_are_pending(standby, begun)
    with connected(faces[1]) as client:
        end_each(client, begun)
    check_that_all_have_come_back_but_what_was_committed(standby)
    standby.kill()
    until(lambda: serves(leader), leader, TAKE_OVER_SECONDS_MAX)
    check_that_all_have_come_back_but_what_was_committed(leader)
    assert [dealt(billing, "?limit=1") for _ in range(3)] == [(["m1"], "2"), (["m2"], "2"), (["m3"], "2")]


@contextmanager
def read_only(installation: Installation, *tables: str) -> Iterator[None]:
    """Regions refuse all writes, as where a space quota is used up."""

    def let(writes: bool) -> None:
        with Thrift2(installation.thrift2) as gateway:
            for table in tables:
                found = gateway.descriptor(f"{installation.prefix}.{table}")
                assert found is not None
                attribute = {"READONLY": "false" if writes else "true"}
                gateway.modify(found._replace(attributes={**found.attributes, **attribute}))

    let(writes=False)
    try:
        yield
    finally:
        let(writes=True)


@contextmanager
def off_line(installation: Installation, *tables: str) -> Iterator[None]:
    """Tables serve neither reads nor writes, for an operator has disabled them."""
    with Thrift2(installation.thrift2) as gateway:
        for table in tables:
            gateway.disable(f"{installation.prefix}.{table}")
    try:
        yield
    finally:
        with Thrift2(installation.thrift2) as gateway:
            for table in tables:
                gateway.enable(f"{installation.prefix}.{table}")


AWAY = {"read only": read_only, "off line": off_line}


def is_refused(reply: Reply) -> bool:
    """True of an answer after which the same call may be made again; what was done is known by its request id."""
    return reply.status == 503 and reply.json()["code"] in REFUSED


class Work:
    """What a consumer does in the midst of an outage: it acknowledges m0 and m1 and publishes, with one call, and in a transaction m2 and m3.

    Each publishes to a topic of its own: after one that was refused the topic takes nothing before that is decided.
    """

    def __init__(self, billing: Billing) -> None:
        self.billing = billing
        billing.server.ask_json("PUT", COPIES)
        self.first, *_ = billing.claim("?limit=2")
        self.run_anew()

    def run_anew(self) -> None:
        """A transaction acknowledges the next two messages."""
        second, *_ = self.billing.claim("?limit=2")
        self.transaction = self.billing.server.ask_json("POST", "/v1/transactions", {"timeoutMs": 600_000})["id"]
        self.billing.acknowledge(claims=[second], transaction=self.transaction)

    def publish(self) -> Reply:
        return self._ask("publish", f"{INVOICES}/publish", {"messages": ["plain"]})

    def bill(self) -> Reply:
        return self._ask("bill", f"{GROUP}/fetch?limit=1", self.billing.work(self.first, "bill"))

    def acknowledge(self, claim: int) -> Reply:
        return self._ask("acknowledge", f"{GROUP}/acknowledge", {"claims": [claim]})

    def commit(self) -> Reply:
        publish = {"namespace": "shop", "topic": "copies", "messages": ["committed"]}
        return self._ask(
            f"commit-{self.transaction}", f"/v1/transactions/{self.transaction}/commit", {"publish": [publish]}
        )

    def _ask(self, name: str, target: str, body: Any) -> Reply:
        """Always under the same id, as a client does that tries again."""
        named = {"Basalt-Request-Id": f"{name}-{self.first}"}
        return self.billing.server.ask("POST", target, json.dumps(body).encode(), JSON | named)


def check_what_was_published(billing: Billing) -> None:
    """Once the tables were mended, and each call was made again."""
    assert billing.read(INVOICES) == ["plain", "bill"]
    assert billing.read(COPIES) == ["committed"]


def check_after_a_restart(pair: Pair, installation: Installation, left: list[str]) -> None:
    """What a server finds that knows nothing but what HBase has."""
    assert pair.servers[-1].stop() == 0
    server = pair.start(*installation.still())
    until(lambda: serves(server), server)
    billing = Billing(server)
    check_what_was_published(billing)
    assert billing.claim("?limit=100")[1] == left


@pytest.mark.parametrize("away", AWAY.values(), ids=AWAY)
def test_while_hbase_takes_no_messages_nothing_is_acknowledged_with_outputs_and_then_all_goes_on(
    pair: Pair, guarded: Installation, away: Any
):
    server = pair.start(*guarded.still())
    until(lambda: serves(server), server)
    billing = new_billing(server)
    work = Work(billing)
    with away(guarded, "message"):
        for call in (work.bill, work.commit, work.publish, work.bill, work.commit):
            reply = call()
            # Where topics can be read a commit is begun, and rolled back when its rows are refused.
            given_up = away is read_only and call == work.commit and reply.json()["code"] == "transaction_ended"
            assert given_up or is_refused(reply), reply
    assert billing.claims() == [work.first]
    assert work.publish().status == 200
    if (
        away is read_only
    ):  # topics could be read, so the commit was begun: it is given up, and what it acknowledged comes back
        until(lambda: [state for state, _, _ in unacknowledged(server)][:2] == ["claimed", "available"], server)
        assert work.commit().json()["code"] == "transaction_ended"
        work.run_anew()
    assert [state for state, _, _ in unacknowledged(server)][:2] == ["claimed", "pending"]
    assert work.commit().json()["state"] == "COMMITTED"
    assert work.bill().status == 200
    check_after_a_restart(pair, guarded, ["m4", "m5", "m6", "m7", "m8", "m9"])


def test_while_hbase_takes_no_messages_those_that_are_there_are_read_and_dealt_of_a_topic_that_somebody_would_publish_to(
    pair: Pair, guarded: Installation
):
    """Whether the refused ones are there is not known, so nobody is told that the topic ends before them."""
    server = pair.start(*guarded.still())
    until(lambda: serves(server), server)
    billing = new_billing(server)
    everything = [f"m{number}" for number in range(10)]
    with read_only(guarded, "message"):
        refused = server.ask("POST", f"{ORDERS}/publish", b'{"messages": ["refused"]}', JSON)
        assert is_refused(refused), refused
        assert billing.read(ORDERS) == everything
        claim, dealt_to_it, _ = billing.claim("?limit=100")
        assert dealt_to_it == everything
        assert billing.acknowledge(claims=[claim])["acknowledged"] == len(everything)
        at_the_end = billing.fetch()
        assert is_refused(at_the_end), at_the_end
    assert "basalt-claim" not in billing.fetch().headers
    billing.publish("next")
    assert billing.claim()[1] == ["next"]


@pytest.mark.parametrize("away", AWAY.values(), ids=AWAY)
def test_while_hbase_takes_nothing_into_the_log_nothing_is_acknowledged_and_messages_are_published_and_read(
    pair: Pair, guarded: Installation, away: Any
):
    server = pair.start(*guarded.still())
    until(lambda: serves(server), server)
    billing = new_billing(server)
    work = Work(billing)
    third, _, _ = billing.claim("?limit=1")
    with away(guarded, "transaction_log"):
        for refused in (work.acknowledge(third), work.bill(), work.commit(), work.acknowledge(third), work.bill()):
            assert is_refused(refused), refused
        assert work.publish().status == 200
        assert billing.read(INVOICES) == ["plain"]
        fetched = billing.fetch("?limit=1")
        assert fetched.status == 200 or is_refused(fetched), fetched
    assert work.acknowledge(third).json() == {"acknowledged": 1, "already": 0}, "its claim has outlived the outage"
    assert work.commit().json()["state"] == "COMMITTED"
    assert work.bill().status == 200
    check_after_a_restart(pair, guarded, ["m5", "m6", "m7", "m8", "m9"])


@pytest.mark.parametrize("away", AWAY.values(), ids=AWAY)
def test_while_hbase_takes_nothing_at_all_nobody_leads_and_then_somebody_does_and_all_is_as_it_was(
    pair: Pair, two: tuple[ServerProcess, ServerProcess], guarded: Installation, away: Any
):
    billing = new_billing(two[0])
    work = Work(billing)
    with away(guarded, *TABLE_NAMES):
        for refused in (work.bill(), work.commit(), work.acknowledge(work.first), work.publish()):
            assert is_refused(refused), refused
        until(lambda: not any(serves(server) for server in two), two[0])
        for fetched in (Billing(server).fetch("?limit=1") for server in two):
            assert is_refused(fetched), fetched
    until(lambda: serves(two[0]) or serves(two[1]), two[0])
    leader = next(server for server in two if serves(server))
    work.billing = Billing(leader)
    first, second = [state for state, _, _ in unacknowledged(leader)][:2]
    assert second == "pending"
    assert (work.billing.read(INVOICES), work.billing.read(COPIES)) == ([], [])
    assert work.publish().status == 200
    assert work.commit().json()["state"] == "COMMITTED"
    if first != "claimed":  # it is, where a server goes on whose lease has lapsed and was taken by nobody
        work.first, taken, _ = work.billing.claim("?limit=2")
        assert taken == ["m0", "m1"]
    assert work.bill().status == 200
    check_what_was_published(work.billing)


OUTAGES = (("read only", "message"), ("read only", "transaction_log"), ("off line", "message"))


def test_groups_hand_every_message_on_once_though_hbase_refuses_writes_now_and_then(
    pair: Pair, guarded: Installation, tmp_path: Path
):
    them = (("shared", "shared", "process"), ("shared", "shared", "transaction"), ("keyed", "keyed", "process"))
    sent = [(b"key-%d" % (number % 7), b"%06d" % number) for number in range(SENT)]
    groups = sorted({group for group, _, _ in them})
    server = pair.start(*guarded.still())
    until(lambda: serves(server), server)

    def handed_on(group: str) -> list[tuple[bytes | None, bytes]]:
        return [(message.key, message.payload) for message in client.topic(outputs_of(group)).read()]

    def publish_some() -> None:
        for _ in range(SENT // (len(OUTAGES) + 1) // PART):
            part = [left.pop(0) for _ in range(PART)]
            client.publish_atomically({INPUTS: [basalt.RecordIn(payload, key) for key, payload in part]})

    left = list(sent)
    connected_to = basalt.connect(
        server.url, namespace=group_worker.NAMESPACE, timeout_ms=int(WAIT_SECONDS_MAX * 1_000)
    )
    with connected_to as client, ThreadPoolExecutor(1) as beside:
        for topic in (INPUTS, *map(outputs_of, groups)):
            client.topics.create(topic)
        with members(server.url, tmp_path / "members.log", *them):
            publish_some()
            until(lambda: all(handed_on(group) for group in groups), server)
            for how, table in OUTAGES:
                enough = refusals(server) + REFUSALS_MIN
                with AWAY[how](guarded, table):
                    publishing = beside.submit(publish_some)
                    until(lambda enough=enough: refusals(server) >= enough, server)
                publishing.result(WAIT_SECONDS_MAX)
            until(lambda: all(len(handed_on(group)) >= len(sent) for group in groups), server)
        for group in groups:
            assert sorted(handed_on(group)) == sorted(sent), f"{group}: lost or doubled"
        by_key = [sorted(messages, key=lambda message: message[0]) for messages in (handed_on("keyed"), sent)]
        assert by_key[0] == by_key[1], "the order of a key"


def refusals(server: ServerProcess) -> int:
    """How many calls it has answered with a 503."""
    return server.log.read_bytes().count(b'"status":503')
