"""Two servers on one real HBase whose log of transactions is away for a while, once refused and once without an answer.

Publishing, raw readers, new servers and planned restarts go on. Calls about transactions are answered in time, and do nothing or nobody
knows what. Then all comes back by itself, and nothing is lost, doubled or out of order.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.budgets import LOG_AWAY_SECONDS
from tests.hbase.holding_proxy import HoldingProxy
from tests.hbase.log_workload import (
    COPIES,
    DONE,
    OPEN_MS,
    ORDERS,
    TOPICS,
    TRANSACTIONS,
    UNKNOWN,
    OneShots,
    PlainPublisher,
    Reader,
    Story,
    Transactions,
    Worker,
    everything,
)
from tests.hbase.server_pair import TAKE_OVER_SECONDS_MAX, WAIT_SECONDS_MAX, Installation, Pair, names, serves, until
from tests.hbase.test_group_faults import off_line
from tests.hbase.test_members import roles
from tests.system.server_process import Reply, ServerProcess

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

LOG = "transaction_log"
PROMISED_SECONDS = (
    5.0  # within which a call about transactions is answered; the server waits for the log for 4 s of them
)
STOP_SECONDS = 10.0  # within which a server that is told to stop ends
BUSY_MACHINE_SECONDS = (
    5.0  # for which it may stand still. A call that waits for HBase itself takes more than this and the promise
)
AWAY_CODES = {"coordinator_unavailable", "outcome_unknown"}
CALLS_MIN = 20  # of each client that can go on, in each stage
ENDED = {"COMMITTED", "ABORTED", "INVALID"}
REFUSALS_MIN = 2  # of each one that cannot


@contextmanager
def refused(installation: Installation, _proxy: HoldingProxy) -> Iterator[None]:
    """HBase says at once that the table is disabled."""
    with off_line(installation, LOG):
        yield


@contextmanager
def unanswered(installation: Installation, proxy: HoldingProxy) -> Iterator[None]:
    """The log's region says nothing; where it lies is known all the same. In the end it gets all that was meant for it."""
    name = f"{installation.prefix}.{LOG}".encode()
    table = struct.pack(">i", len(name)) + name  # as the argument of a call; hbase:meta and errors have the name, too
    proxy.hold(lambda piece: table in piece)
    try:
        yield
    finally:
        proxy.let_go()


AWAY: dict[str, Callable[[Installation, HoldingProxy], Any]] = {"refused": refused, "unanswered": unanswered}


class Clients:
    """All kinds of clients at once."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.plain = [PlainPublisher(story, f"plain-{number}") for number in range(2)]
        self.raw = [Reader(story, topic, "uncommitted") for topic in (ORDERS, COPIES)]
        self.committed = [Reader(story, topic, "committed") for topic in (ORDERS, COPIES)]
        self.patient = OneShots(story, "patient", is_patient=True)
        self.hasty = OneShots(story, "hasty", is_patient=False)
        self.transactions = Transactions(story, "tx")
        self.going_on: list[Worker] = [*self.plain, *self.raw]
        self.deciding: list[Worker] = [self.patient, self.hasty, self.transactions]
        self.all: list[Worker] = [*self.going_on, *self.deciding, *self.committed]

    def __enter__(self) -> Clients:
        for worker in self.all:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.story.is_over.set()
        for worker in self.all:
            worker.join(WAIT_SECONDS_MAX)

    @property
    def outcomes(self) -> dict[str, str]:
        """By text, of all that is published by one call."""
        plain = {text: outcome for worker in self.plain for text, outcome in worker.outcomes.items()}
        return plain | self.patient.outcomes | self.hasty.outcomes

    def is_of_a_one_shot(self, text: str) -> bool:
        return text in self.patient.outcomes or text in self.hasty.outcomes

    def check_that_none_failed(self) -> None:
        assert [(worker.name, worker.wrong) for worker in self.all if worker.wrong] == []

    def wait_until_all_work(self) -> float:
        """Return once every client got some more answers of 200; how long that took."""
        return self._wait_until_these_work(self.all)

    def wait_until_those_go_on(self) -> float:
        """Return once every client that needs no transaction got some more answers of 200; how long that took."""
        return self._wait_until_these_work(self.going_on)

    def _wait_until_these_work(self, workers: Sequence[Worker]) -> float:
        self.story.phase = f"works since {time.monotonic()}"

        def works() -> bool:
            self.check_that_none_failed()
            answered = [[answer.status for answer in worker.of(self.story.phase)] for worker in workers]
            return all(statuses.count(200) >= CALLS_MIN for statuses in answered)

        return until(works, self.story.servers[0])

    def check_a_stage_without_the_log(self, phase: str) -> None:
        """For as long as it takes until every client has made some calls: who needs no transaction notices nothing."""
        self.story.phase, began = phase, time.monotonic()

        def has_seen_enough() -> bool:
            self.check_that_none_failed()
            return (
                all(len(worker.of(phase)) >= CALLS_MIN for worker in self.going_on)
                and all(len(worker.of(phase)) >= REFUSALS_MIN for worker in (*self.deciding, *self.committed))
                and time.monotonic() - began >= LOG_AWAY_SECONDS
            )

        until(has_seen_enough, self.story.servers[0], LOG_AWAY_SECONDS + WAIT_SECONDS_MAX)
        self.story.phase = ""
        for worker in self.going_on:
            assert Counter(answer[1:3] for answer in worker.of(phase)).keys() == {(200, "")}, worker.name
        for worker in self.deciding:
            told = Counter(answer[1:3] for answer in worker.of(phase))
            assert told.keys() <= {(503, code) for code in AWAY_CODES}, (worker.name, worker.answers[-40:])
            print(f"{phase}, {worker.name}: {dict(told)}")
        for worker in self.committed:
            told = Counter(answer[1:3] for answer in worker.of(phase))
            assert told.keys() <= {(200, ""), (503, "coordinator_unavailable")}, worker.name
        slowest = max(answer.seconds for worker in self.all for answer in worker.of(phase))
        print(f"{phase}: the slowest answer took {slowest:.2f} s")
        assert slowest < PROMISED_SECONDS + BUSY_MACHINE_SECONDS


def begin_with_a_message(server: ServerProcess, text: str) -> str:
    """An open transaction, which has published to the topic: readers of committed messages stop there."""
    begun = server.ask_json("POST", TRANSACTIONS, {"timeoutMs": OPEN_MS, "snapshot": False})
    body = {"transactionWritePointer": begun["writePointer"], "messages": [text]}
    server.ask_json("POST", f"{TOPICS}/{ORDERS}/publish", body)
    return str(begun["id"])


def end(server: ServerProcess, transaction: str, how: str) -> Reply:
    return server.ask("POST", f"{TRANSACTIONS}/{transaction}/{how}")


def state_of(server: ServerProcess, transaction: str) -> str:
    return str(server.ask_json("GET", f"{TRANSACTIONS}/{transaction}")["state"])


def check_that_it_says_so(leader: ServerProcess) -> None:
    """Ready for all but transactions, and the part that is not is named."""
    ready = leader.ask("GET", "/readyz?leader=true")
    assert (ready.status, ready.json()["ready"]) == (200, True)
    parts = {part["name"]: part["ok"] for part in ready.json()["parts"]}
    assert [name for name, ok in parts.items() if not ok] == ["coordinator"]
    assert "basalt_coordinator_available 0.0" in leader.ask("GET", "/metrics").body.decode()


def check_a_call_in_time(server: ServerProcess, transaction: str, how: str) -> None:
    began = time.monotonic()
    reply = end(server, transaction, how)
    assert (reply.status, reply.json()["code"] in AWAY_CODES) == (503, True), reply
    assert time.monotonic() - began < PROMISED_SECONDS + BUSY_MACHINE_SECONDS


class Servers:
    """They are replaced one by one, as when a new version is put in place."""

    def __init__(self, pair: Pair, installation: Installation, proxy: HoldingProxy) -> None:
        self._pair = pair
        self._options = installation.still(proxy.address)
        leader = pair.start(*self._options)
        until(lambda: serves(leader), leader)
        self.story = Story([leader])
        self.add()

    @property
    def leader(self) -> ServerProcess:
        return self.story.servers[0]

    def add(self) -> None:
        """Start one that stands by and passes calls on."""
        standby = self._pair.start(*self._options)
        until(lambda: names(standby, self.leader), standby)
        self.story.servers = (self.leader, standby)
        until(lambda: roles(self.leader) == {self.leader.url: "leader", standby.url: "standby"}, self.leader)

    def replace_the_leader(self) -> None:
        leader, standby = self.story.servers
        self.story.servers = (standby,)
        stopped_at = time.monotonic()
        assert leader.stop() == 0
        assert time.monotonic() - stopped_at < STOP_SECONDS + BUSY_MACHINE_SECONDS
        took_seconds = until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
        print(f"followed after {took_seconds:.2f} s")
        self.add()


@pytest.mark.parametrize("away", AWAY.values(), ids=AWAY)
def test_while_the_log_is_away_all_but_transactions_goes_on_and_then_they_do(
    pair: Pair, guarded: Installation, away: Callable[[Installation, HoldingProxy], Any]
):
    with ExitStack() as stack:
        proxy = HoldingProxy(guarded.thrift2)
        stack.callback(proxy.close)
        servers = Servers(pair, guarded, proxy)
        for topic in (ORDERS, COPIES):
            servers.leader.ask("DELETE", f"{TOPICS}/{topic}")
            servers.leader.ask_json("PUT", f"{TOPICS}/{topic}")
        clients = Clients(servers.story)
        held: dict[str, str] = {}
        with clients:
            clients.wait_until_all_work()
            with away_after_some_were_begun(away(guarded, proxy), servers.leader, held):
                live_without_the_log(clients, servers, held)
            clients_come_back(clients, servers.leader, held)
        clients.check_that_none_failed()
        check_what_is_there(clients, servers.leader, held)


@contextmanager
def away_after_some_were_begun(outage: Any, leader: ServerProcess, held: dict[str, str]) -> Iterator[None]:
    """Three open transactions have published: one is to be committed meanwhile, one to be aborted, and one is left alone."""
    for what in ("left", "commit", "abort"):
        held[what] = begin_with_a_message(leader, what)
    with outage:
        yield


def live_without_the_log(clients: Clients, servers: Servers, held: dict[str, str]) -> None:
    """One stage under each of three leaders, two of which have never read the log."""
    for number, server in enumerate(("that knew the log", "that begins without it", "that was started without it")):
        clients.check_a_stage_without_the_log(f"under a leader {server}")
        check_what_is_held(clients, servers.leader, held)
        if number < 2:
            servers.replace_the_leader()


def check_what_is_held(clients: Clients, leader: ServerProcess, held: dict[str, str]) -> None:
    """Through any server: nothing of it ends, all of it is there for raw readers, and the leader says why."""
    calls = [(each, held[how], how) for each in clients.story.servers for how in ("commit", "abort")]
    with ThreadPoolExecutor(len(calls)) as threads:
        list(threads.map(check_a_call_in_time, *zip(*calls, strict=True)))
    check_that_it_says_so(leader)
    assert not {"left", "commit", "abort"} & set(clients.committed[0].texts)
    assert {"left", "commit", "abort"} <= set(clients.raw[0].texts)


def clients_come_back(clients: Clients, leader: ServerProcess, held: dict[str, str]) -> None:
    """Nobody does anything. Then what is open is ended, and readers go on."""
    took_seconds = clients.wait_until_all_work()
    print(f"all goes on {took_seconds:.2f} s after the log is back")
    assert end(leader, held["left"], "commit").status == 200
    for how in ("commit", "abort"):  # done meanwhile, or given up when the log was read, or still open
        assert end(leader, held[how], how).status in (200, 409)
    until(lambda: "left" in clients.committed[0].texts, leader)
    assert "basalt_coordinator_available 1.0" in leader.ask("GET", "/metrics").body.decode()
    assert all(part["ok"] for part in leader.ask("GET", "/readyz").json()["parts"])


def check_what_is_there(clients: Clients, leader: ServerProcess, held: dict[str, str]) -> None:
    states = states_when_all_have_ended(clients, leader, held)
    found = {topic: everything(leader, topic) for topic in (ORDERS, COPIES)}
    check_readers(clients, leader, found)
    there = check_order(found)
    outcomes = clients.outcomes
    print(f"publishers: {dict(Counter(outcomes.values()))}; transactions: {dict(Counter(states.values()))}")
    done = {text for text, outcome in outcomes.items() if outcome == DONE}
    done |= {text for text, state in states.items() if state == "COMMITTED"}
    unknown = {text for text, outcome in outcomes.items() if outcome == UNKNOWN}
    assert done <= there, "what was acknowledged is gone"
    assert there <= done | unknown, "what was refused, or aborted, is there all the same"

    for one_shots in (clients.patient, clients.hasty):
        one_shots.repeat_what_is_not_done()
    after = {topic: everything(leader, topic) for topic in (ORDERS, COPIES)}
    assert all(after[topic][: len(found[topic])] == found[topic] for topic in found)
    times = Counter(text for topic in after.values() for _, text in topic if clients.is_of_a_one_shot(text))
    assert times == Counter({text: 2 for worker in (clients.patient, clients.hasty) for text in worker.outcomes})


def states_when_all_have_ended(clients: Clients, leader: ServerProcess, held: dict[str, str]) -> dict[str, str]:
    """By text. What its client could not commit is aborted."""
    texts = clients.transactions.texts | {transaction: what for what, transaction in held.items()}
    states = {transaction: state_when_it_has_ended(leader, transaction) for transaction in texts}
    assert set(states.values()) <= {"COMMITTED", "ABORTED"}
    assert {states[transaction] for transaction in (*clients.transactions.committed, held["left"])} == {"COMMITTED"}
    return {text: states[transaction] for transaction, text in texts.items()}


def state_when_it_has_ended(leader: ServerProcess, transaction: str) -> str:
    """A roll back that was begun may wait for the owner of a topic."""
    if state_of(leader, transaction) == "OPEN":
        assert end(leader, transaction, "abort").status == 200
    until(lambda: state_of(leader, transaction) in ENDED, leader)
    return state_of(leader, transaction)


def check_readers(clients: Clients, leader: ServerProcess, found: dict[str, list[tuple[str, str]]]) -> None:
    """What one has seen is what there is, from the start on: nothing turned up behind it. Only what was rolled back may be gone since."""
    for reader in clients.committed:
        assert found[reader.topic][: len(reader.seen)] == reader.seen
    for reader in clients.raw:
        raw = everything(leader, reader.topic, "uncommitted")
        there = [message for message in raw if message[0] <= reader.seen[-1][0]]
        assert [message for message in reader.seen if message in set(raw)] == there
        assert set(found[reader.topic]) <= set(raw)


def check_order(found: dict[str, list[tuple[str, str]]]) -> set[str]:
    """Each is there once, in the order in which its client sent it, and in both topics where it was sent to both. All texts of orders."""
    texts = {topic: [text for _, text in messages] for topic, messages in found.items()}
    for each in texts.values():
        assert len(each) == len(set(each)), "a message came twice"
        for name in {text.partition(".")[0] for text in each}:
            mine = [text for text in each if text.partition(".")[0] == name]
            assert mine == sorted(mine), f"messages of {name} changed places"
    in_both = {text for text in texts[ORDERS] if text.partition(".")[0] in ("patient", "hasty", "tx")}
    assert in_both == set(texts[COPIES]), "a transaction is not whole"
    return set(texts[ORDERS])
