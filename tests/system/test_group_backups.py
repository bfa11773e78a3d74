"""Groups and producers in a backup: they are as they were when it was made, and members and producers go on with what they know."""

from __future__ import annotations

from pathlib import Path

import pytest

import basalt
from tests.system.command_line import CommandLine
from tests.system.group_calls import GROUP, INVOICES, Billing
from tests.system.server_process import Reply, ServerProcess

pytestmark = pytest.mark.system


def test_a_restored_store_has_groups_and_producers_as_they_were(server: ServerProcess, tmp_path: Path):
    billing = Billing(server)
    billing.make(5, attemptsMax=3)
    with basalt.connect(server.url, namespace="shop") as client:
        tailer = client.producer("invoices", "file-7", run="monday")
        tailer.publish(["line 0", "line 1"])
    assert numbered(server, 0, "once").status == 200
    (done, *_), (in_hand, _, ids), (pending, *_), (failed, *_) = (billing.claim("?limit=1") for _ in range(4))
    billing.acknowledge(claims=[done])
    begun = server.ask_json("POST", "/v1/transactions", {"timeoutMs": 600_000})
    billing.acknowledge(claims=[pending], transaction=begun["id"])
    server.ask_json("POST", f"{GROUP}/release", {"claims": [failed]})

    assert server.ask_json("POST", "/v1/admin/backups", {"name": "nightly"})["files"]
    billing.acknowledge(claims=[in_hand])
    with basalt.connect(server.url, namespace="shop") as client:
        client.producer("invoices", "file-7", run="monday").publish(["line 2"])
    server.ask_json("POST", f"/v1/transactions/{begun['id']}/commit")
    command_line = CommandLine(tmp_path, server.url)
    verified = command_line.run("backup", "verify", "nightly")
    assert (verified.code, "nightly is whole" in verified.out) == (0, True), verified
    server.kill()
    restored = command_line.run("backup", "restore", "nightly", "--data", str(server.data), "--put-aside")
    assert restored.code == 0, restored

    server.start()
    with basalt.connect(server.url, namespace="shop") as client:
        tailer = client.producer("invoices", "file-7", run="monday")
        assert tailer.last_sequence == 1
        tailer.publish(["line 2"])
    again = numbered(server, 0, "once")
    assert (again.status, again.headers["basalt-duplicate"]) == (200, "true")
    assert billing.read(INVOICES) == ["line 0", "line 1", "once", "line 2"]
    assert billing.acknowledge(409, claims=[in_hand])["code"] == "claim_lost"
    assert billing.acknowledge(ids=ids)["acknowledged"] == 1
    reply = billing.fetch("?limit=1")
    assert ([each["payload"] for each in reply.json()], reply.headers["basalt-attempt"]) == (["m3"], "2")
    assert billing.claim()[1] == ["m4"], "what is pending is nobody's"
    assert server.ask_json("POST", f"/v1/transactions/{begun['id']}/commit")["state"] == "COMMITTED"
    assert billing.server.ask_json("GET", GROUP)["floor"] > ids[0]


def numbered(server: ServerProcess, sequence: int, text: str) -> Reply:
    """A publish of an automatic producer."""
    headers = {"Content-Type": "application/json", "Basalt-Producer": "p", "Basalt-Sequence": str(sequence)}
    return server.ask("POST", f"{INVOICES}/publish", b'{"messages": ["%s"]}' % text.encode(), headers)
