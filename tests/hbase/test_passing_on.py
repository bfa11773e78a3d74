"""Two real servers on one real HBase, and callers that know one of them, which does not lead: each call is done by the other one, once."""

from __future__ import annotations

import json
import os
import threading

import pytest

from tests.hbase.server_pair import TAKE_OVER_SECONDS_MAX, WAIT_SECONDS_MAX, Pair, names, serves, until
from tests.system.server_process import Reply, ServerProcess

pytestmark = [pytest.mark.hbase, pytest.mark.system, pytest.mark.slow]

JSON = {"Content-Type": "application/json", "Accept": "application/json"}
TOPICS = "/v1/namespaces/passed/topics"
CALLS = 1_000
CALLERS = 8
LARGE_BYTES = 64 << 20
HELD_KIB_MAX = (
    48 << 10
)  # more than before, while 64 MB pass through: some hundred KB for each of two directions, and what the allocator keeps


def publish(server: ServerProcess, topic: str, text: str) -> Reply:
    return server.ask("POST", f"{TOPICS}/{topic}/publish", json.dumps({"messages": [text]}).encode(), JSON)


def read(server: ServerProcess, topic: str) -> list[str]:
    reply = server.ask("POST", f"{TOPICS}/{topic}/poll", b"{}", JSON)
    assert reply.status == 200, reply
    return [each["payload"] for each in json.loads(reply.body)]


def test_a_server_that_does_not_lead_takes_every_call(two: tuple[ServerProcess, ServerProcess]):
    leader, standby = two
    until(lambda: standby.ask("GET", "/readyz").status == 200, standby)
    standby.ask_json("PUT", f"{TOPICS}/plain")
    assert publish(standby, "plain", "hello").status == 200
    assert read(standby, "plain") == read(leader, "plain") == ["hello"]
    page = standby.ask("GET", "/console/topics", headers={"Accept": "text/html"})
    assert (page.status, page.headers["basalt-owner"]) == (200, leader.url)
    assert 'basalt_cluster_passed_on_total{outcome="answered"}' in standby.ask("GET", "/metrics").body.decode()


def test_of_a_thousand_calls_through_a_standby_while_the_leader_is_killed_none_is_lost_or_done_twice(
    two: tuple[ServerProcess, ServerProcess],
):
    leader, standby = two
    standby.ask_json("PUT", f"{TOPICS}/killed")
    outcomes: dict[int, str] = {}
    left, lock = iter(range(CALLS)), threading.Lock()

    def call() -> None:
        while True:
            with lock:
                number = next(left, None)
            if number is None:
                return
            while True:
                reply = publish(standby, "killed", f"{number}")
                outcomes[number] = "ok" if reply.status == 200 else reply.json()["code"]
                if outcomes[number] not in ("not_leader", "shard_moving"):
                    break
                pause.wait(0.05)  # nothing was done: once more

    pause = threading.Event()
    callers = [threading.Thread(target=call, daemon=True) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    until(lambda: len(outcomes) > CALLS // 3, standby)
    leader.kill()
    until(lambda: serves(standby), standby, TAKE_OVER_SECONDS_MAX)
    for caller in callers:
        caller.join(WAIT_SECONDS_MAX)
    found = read(standby, "killed")
    assert len(found) == len(set(found)), "done twice"
    assert len(outcomes) == CALLS
    assert set(outcomes.values()) <= {"ok", "outcome_unknown"}
    # One for each caller; and one more for who came again while the dying process still had its listening socket.
    assert list(outcomes.values()).count("outcome_unknown") <= 2 * CALLERS
    told = {f"{number}" for number, outcome in outcomes.items() if outcome == "ok"}
    unknown = {f"{number}" for number, outcome in outcomes.items() if outcome == "outcome_unknown"}
    assert told <= set(found) <= told | unknown


def test_what_is_large_passes_through_a_standby_in_little_memory(pair: Pair, guarded: object):
    from tests.hbase.server_pair import Installation

    assert isinstance(guarded, Installation)
    more = ("--set", f"http.body_bytes_max={2 * LARGE_BYTES}", "--set", f"messaging.queue_bytes_max={4 * LARGE_BYTES}",
            "--set", f"messaging.fetch_bytes_max={2 * LARGE_BYTES}")  # fmt: skip
    leader = pair.start(*guarded.still(), *more)
    until(lambda: serves(leader), leader)
    standby = pair.start(*guarded.still(), *more)
    until(lambda: names(standby, leader), standby)
    standby.ask_json("PUT", f"{TOPICS}/large")
    part = os.urandom(512 << 10).hex()  # a MiB as text
    assert publish(standby, "large", part).status == 200
    before = _resident_kib(standby)
    body = json.dumps({"messages": [part] * (LARGE_BYTES >> 20)}).encode()
    reply = standby.ask("POST", f"{TOPICS}/large/publish", body, JSON)
    assert reply.status == 200, reply.body[:500]
    answer = standby.ask("POST", f"{TOPICS}/large/poll", b"{}", JSON)
    assert answer.status == 200
    assert len(answer.body) > LARGE_BYTES
    assert _peak_kib(standby) - before < HELD_KIB_MAX


def _resident_kib(server: ServerProcess) -> int:
    return _status(server, "VmRSS:")


def _peak_kib(server: ServerProcess) -> int:
    return _status(server, "VmHWM:")


def _status(server: ServerProcess, name: str) -> int:
    assert server.process is not None
    with open(f"/proc/{server.process.pid}/status") as file:  # noqa: PTH123
        return next(int(line.split()[1]) for line in file if line.startswith(name))
