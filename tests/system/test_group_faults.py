"""The table of faults of consumer groups, row by row, on a real server: what each leaves behind, and what goes on.

Kills are in test_group_kills.py, lost answers in test_lost_answers.py, paused consumers in test_consumers.py, leaders in tests/hbase.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.system.group_calls import GROUP, INVOICES, JSON, Billing
from tests.system.server_process import ORDERS, Reply, ServerProcess

pytestmark = pytest.mark.system

DEAD = "/v1/namespaces/shop/topics/dead"
FULL = ("disk_full", "store_unavailable", "outcome_unknown")
WAIT_SECONDS_MAX = 60.0  # a bound for a hang


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def billing(server: ServerProcess) -> Billing:
    return Billing(server)


def fill_disk(server: ServerProcess) -> None:
    """No file of the server grows any more."""
    newest = max((server.data / "rocks").glob("*.log"), key=lambda path: path.stat().st_mtime_ns)
    server.limit_file_bytes(newest.stat().st_size)
    reply = server.ask("POST", f"{INVOICES}/publish", b'{"messages": ["no room"]}', JSON)
    assert is_full(reply), reply


def is_full(reply: Reply) -> bool:
    return reply.status in (503, 507) and reply.json()["code"] in FULL


def test_on_a_full_disk_nothing_is_acknowledged_and_claims_and_fetches_go_on(billing: Billing):
    billing.make()
    first, _, _ = billing.claim("?limit=2")
    fill_disk(billing.server)
    refused = billing.server.ask("POST", f"{GROUP}/acknowledge", b'{"claims": [%d]}' % first, JSON)
    assert is_full(refused), refused
    second, dealt, _ = billing.claim("?limit=3")
    assert dealt == ["m2", "m3", "m4"]
    behind_a_work = billing.fetch("?limit=1", billing.work(first, "bill"))
    assert is_full(behind_a_work), behind_a_work
    assert sorted(billing.claims()) == [first, second], "nothing was fetched behind a work that was not done"
    assert billing.server.ask_json("GET", GROUP)["floor"] == "00" * 20

    billing.server.limit_file_bytes(None)
    assert billing.fetch("?limit=1", billing.work(first, "bill")).status == 200
    assert billing.acknowledge(claims=[second])["acknowledged"] == 3
    assert billing.read(INVOICES) == ["bill"]
    billing.server.kill()
    billing.server.start()
    assert billing.claim()[1] == ["m5", "m6", "m7", "m8", "m9"]


def test_what_runs_out_on_a_full_disk_is_dealt_again_and_its_attempt_which_nobody_can_note_is_not_counted(
    billing: Billing,
):
    billing.make()
    fill_disk(billing.server)  # before there is a claim: one that ran out any sooner would be counted
    first, _, _ = billing.claim("?limit=2&claimMs=1000")
    until(lambda: first not in billing.claims())
    second = billing.fetch("?limit=2&claimMs=60000")
    assert ([each["payload"] for each in second.json()], second.headers["basalt-attempt"]) == (["m0", "m1"], "1")
    billing.server.limit_file_bytes(None)
    assert billing.acknowledge(claims=[int(second.headers["basalt-claim"])])["acknowledged"] == 2
    billing.acknowledge(409, claims=[first])


def test_a_topic_that_is_deleted_while_claimed_takes_its_group_along_and_a_new_one_knows_nothing_of_it(
    billing: Billing,
):
    server = billing.server
    billing.make()
    claim, _, ids = billing.claim("?limit=2&member=w1")
    begun = server.ask_json("POST", "/v1/transactions", {})
    other, _, _ = billing.claim("?limit=2&member=w2")
    billing.acknowledge(claims=[other], member="w2", transaction=begun["id"])
    billing.claim("?member=w3")
    waiting: list[Reply] = []
    thread = threading.Thread(target=lambda: waiting.append(billing.fetch("?member=w4&waitMs=60000")))
    thread.start()
    server.ask_json("DELETE", ORDERS)
    assert billing.acknowledge(404, claims=[claim], member="w1")["code"] == "topic_not_found"
    server.ask_json("PUT", ORDERS)
    assert billing.acknowledge(404, claims=[claim], member="w1")["code"] == "group_not_found"
    thread.join(60)
    assert waiting[0].status == 404, waiting
    billing.make(3)
    assert billing.acknowledge(409, claims=[claim], member="w1")["code"] == "claim_lost"
    billing.acknowledge(404, ids=ids, member="w1")
    work = {"publish": [{"namespace": "shop", "topic": "invoices", "messages": ["bill"]}]}
    assert server.ask_json("POST", f"/v1/transactions/{begun['id']}/commit", work)["state"] == "COMMITTED"
    for _ in range(2):
        assert server.ask_json("GET", GROUP)["floor"] == "00" * 20
        assert billing.claim("?member=w1")[1] == ["m0", "m1", "m2"]
        server.kill()
        server.start()
    assert billing.read(INVOICES) == ["bill"]


def test_what_is_truncated_while_it_is_claimed_may_be_acknowledged_and_comes_to_nobody_else(billing: Billing):
    server = billing.server
    billing.make(6, claimMs=1_000)
    long, _, _ = billing.claim("?limit=2&claimMs=60000")
    billing.claim("?limit=2")  # runs out
    before_ms = round(time.time() * 1_000) + 1
    server.ask_json("POST", f"{ORDERS}/truncate", {"beforeMs": before_ms})
    until(lambda: time.time() * 1_000 > before_ms + 1)  # what is published from now on is not truncated
    billing.publish("new")
    assert billing.claim("?claimMs=60000")[1] == ["new"]
    assert billing.acknowledge(claims=[long])["acknowledged"] == 2
    until(lambda: billing.claims() != [] and len(billing.claims()) == 1)
    reply = billing.fetch("?waitMs=1500")
    assert "basalt-claim" not in reply.headers, reply
    (newest,) = billing.claims()
    assert billing.acknowledge(claims=[newest])["acknowledged"] == 1
    until(lambda: server.ask_json("GET", GROUP)["figures"]["lagMessages"] == 0)


def test_while_its_topic_for_dead_letters_is_gone_a_message_is_parked_and_comes_there_once_in_the_end(
    billing: Billing,
):
    server = billing.server
    billing.make(4, mode="keyed", attemptsMax=1, deadLetterTopic="dead", memberMs=60_000)
    server.ask_json("DELETE", DEAD)
    claim, (bad,), _ = billing.claim("?limit=1&member=w1")
    server.ask_json("POST", f"{GROUP}/release", {"claims": [claim], "member": "w1"})
    until(lambda: parked(server) == 1)
    claim, others, ids = billing.claim("?member=w1")
    assert sorted([*others, bad]) == ["m0", "m1", "m2", "m3"]
    entry = {"namespace": "shop", "topic": "orders", "group": "billing", "member": "w1", "claims": [claim]}
    rejected = {
        "acknowledge": [{**entry, "reject": [{"id": bytes.fromhex(ids[0]).decode("latin-1"), "reason": "no customer"}]}]
    }
    reply = billing.fetch("?member=w1", rejected)
    assert reply.status == 404, reply
    assert billing.claims() == [claim]
    server.ask_json("PUT", DEAD)
    assert billing.fetch("?member=w1", rejected).status == 200
    server.kill()  # the next one tries at once; this one would after a minute
    server.start()
    until(lambda: len(billing.read(DEAD)) == 2 and parked(server) == 0)
    assert sorted(billing.read(DEAD)) == sorted([others[0], bad])
    until(lambda: server.ask_json("GET", GROUP)["figures"]["lagMessages"] == 0)


def parked(server: ServerProcess) -> int:
    return len(server.ask_json("GET", f"{GROUP}/messages?state=parked")["messages"])
