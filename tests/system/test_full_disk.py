"""A disk that is full: what cannot be kept is refused, reads go on, and once there is space so do writes.

A limit on the size of the process's files stands for the disk: the kernel refuses what goes beyond it in the same way.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.system.caller import JSON, Caller
from tests.system.server_process import ORDERS, Reply, ServerProcess

pytestmark = pytest.mark.system

INVOICES = "/v1/namespaces/shop/topics/invoices"
ROOM_BYTES = 300_000
MESSAGE_BYTES = 20_000
TRIES = 60


@pytest.fixture
def server(tmp_path: Path):
    """A server with two topics, whose messages take as much space as they have bytes."""
    process = ServerProcess(tmp_path)
    process.start("--set", "log.level=error")
    for topic in (ORDERS, INVOICES):
        process.ask_json("PUT", topic, {"compression": "none"})
    yield process
    process.kill()


def message(number: int) -> str:
    return f"{number:04}" * (MESSAGE_BYTES // 4)


def publish(caller: Caller, text: str) -> Reply:
    reply = caller.ask("POST", f"{ORDERS}/publish", json.dumps({"messages": [text]}).encode(), JSON)
    assert reply is not None
    return reply


def one_shot(caller: Caller, number: int) -> Reply:
    work = {
        "publish": [
            {"namespace": "shop", "topic": topic, "messages": [f"both {number} " + message(number)]}
            for topic in ("orders", "invoices")
        ]
    }
    reply = caller.ask("POST", "/v1/transactions", json.dumps({"work": work}).encode(), JSON, f"one-shot-{number}")
    assert reply is not None
    return reply


def everything(server: ServerProcess, topic: str = ORDERS) -> list[str]:
    found: list[str] = []
    start: object = None
    while True:
        reply = server.ask(
            "POST",
            f"{topic}/poll",
            json.dumps({"startFrom": start, "inclusive": start is None}).encode(),
            {"Content-Type": JSON},
        )
        assert reply.status == 200, reply
        page = reply.json()
        if not page:
            return found
        found += [one["payload"] for one in page]
        start = {"bytes": page[-1]["id"]}


def is_refusal(reply: Reply) -> bool:
    """The disk is full and nothing was written, or nobody can tell."""
    return reply.status in (503, 507) and reply.json()["code"] in ("disk_full", "outcome_unknown", "store_unavailable")


def fill(server: ServerProcess, caller: Caller) -> tuple[list[str], list[str], list[str]]:
    """Publish into a disk that fills up: what was taken, what was refused, and what is unknown."""
    largest = max(path.stat().st_size for path in server.data.rglob("*") if path.is_file())
    server.limit_file_bytes(largest + ROOM_BYTES)
    taken: list[str] = []
    refused: list[str] = []
    unknown: list[str] = []
    for number in range(TRIES):
        reply = publish(caller, message(number))
        if reply.status == 200:
            taken.append(message(number))
            continue
        assert is_refusal(reply), reply
        (refused if reply.status == 507 else unknown).append(message(number))
    assert taken
    assert refused
    return taken, refused, unknown


def test_what_is_refused_is_not_there_and_what_was_taken_is_read_all_the_while(server: ServerProcess):
    caller = Caller(server.port)
    taken, refused, unknown = fill(server, caller)
    found = everything(server)
    assert set(taken) <= set(found) <= {*taken, *unknown}
    assert [text for text in found if text in taken] == taken
    assert is_refusal(one_shot(caller, 1))
    assert server.ask("GET", "/livez").status == 200

    server.limit_file_bytes(None)  # somebody has made space
    after = [publish(caller, f"after {number}").status for number in range(3)]
    assert after == [200] * 3, "it writes again without a restart"
    assert one_shot(caller, 1).status == 200
    whole = everything(server)
    assert set(refused).isdisjoint(whole)
    server.kill()
    server.start()
    assert everything(server) == whole
    assert [text for text in whole if text.startswith("after")] == [f"after {number}" for number in range(3)]
    assert len([text for text in whole if text.startswith("both 1")]) == 1
    assert len(everything(server, INVOICES)) == 1


def test_a_server_that_is_killed_while_the_disk_is_full_has_all_that_it_took(server: ServerProcess):
    taken, refused, unknown = fill(server, Caller(server.port))
    server.kill()
    server.start()
    found = everything(server)
    assert set(taken) <= set(found) <= {*taken, *unknown}
    assert set(refused).isdisjoint(found)


def test_a_transaction_that_meets_a_full_disk_is_whole_or_not_there(server: ServerProcess):
    caller = Caller(server.port)
    begun = server.ask_json("POST", "/v1/transactions", {})
    store = {"transactionWritePointer": begun["writePointer"], "messages": ["stored"]}
    for topic in (ORDERS, INVOICES):
        server.ask_json("POST", f"{topic}/store", store)
    fill(server, caller)
    work = {"publish": [{"namespace": "shop", "topic": "orders", "messages": [message(0)]}]}
    path = f"/v1/transactions/{begun['id']}/commit"
    reply = caller.ask("POST", path, json.dumps(work).encode(), JSON, "the-commit")
    assert reply is not None
    assert is_refusal(reply), reply
    server.limit_file_bytes(None)
    again = caller.ask("POST", path, json.dumps(work).encode(), JSON, "the-commit")
    assert again is not None
    assert again.status == 200, again
    assert everything(server)[-2:] == ["stored", message(0)]
    assert everything(server, INVOICES) == ["stored"]


def test_a_start_on_a_full_disk_is_refused_and_the_next_one_has_everything(server: ServerProcess):
    assert publish(Caller(server.port), message(1)).status == 200
    server.kill()
    server.launch(file_bytes_max=1_000)
    assert server.exit_code() == 6
    line = server.log.read_text().splitlines()[-1]
    assert line.startswith("basalt: ")
    assert "free some space" in line
    server.start()
    assert everything(server) == [message(1)]


def test_a_first_start_on_a_full_disk_leaves_nothing_that_a_later_one_stumbles_over(tmp_path: Path):
    server = ServerProcess(tmp_path)
    server.launch(file_bytes_max=2_000)
    assert server.exit_code() == 6, server.tail()
    assert server.log.read_text().count("\n") == 1
    server.start()
    server.ask_json("PUT", ORDERS)
    assert everything(server) == []
    server.kill()
