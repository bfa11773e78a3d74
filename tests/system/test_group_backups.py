"""Groups and producers in a backup: they are as they were when it was made, and members and producers go on with what they know."""

from __future__ import annotations

from pathlib import Path

import pytest

import basalt
from tests.system.command_line import CommandLine
from tests.system.group_calls import GROUP, INVOICES, Billing
from tests.system.server_process import Reply, ServerProcess

pytestmark = pytest.mark.system


class Story:
    """A group with claims, progress, a message that failed and one that is pending; a named producer, and a numbered publish."""

    def __init__(self, server: ServerProcess) -> None:
        self.billing = Billing(server)
        self.billing.make(5, attemptsMax=3)
        with basalt.connect(server.url, namespace="shop") as client:
            tailer = client.producer("invoices", "file-7", run="monday")
            tailer.publish(["line 0", "line 1"])
        assert numbered(server, 0, "once").status == 200
        (done, *_), in_hand, (pending, *_), (failed, *_) = (self.billing.claim("?limit=1") for _ in range(4))
        self.claim, _, self.ids = in_hand
        self.billing.acknowledge(claims=[done])
        self.transaction = server.ask_json("POST", "/v1/transactions", {"timeoutMs": 600_000})["id"]
        self.billing.acknowledge(claims=[pending], transaction=self.transaction)
        server.ask_json("POST", f"{GROUP}/release", {"claims": [failed]})

    def commit(self) -> None:
        """Commit what is pending, with what was made of it."""
        publish = {"publish": [{"namespace": "shop", "topic": "invoices", "messages": ["bill"]}]}
        target = f"/v1/transactions/{self.transaction}/commit"
        assert self.billing.server.ask_json("POST", target, publish)["state"] == "COMMITTED"

    def go_on(self) -> None:
        """Do what comes after the backup, and is lost with all that it did."""
        self.billing.acknowledge(ids=self.ids)
        with basalt.connect(self.billing.server.url, namespace="shop") as client:
            client.producer("invoices", "file-7", run="monday").publish(["line 2"])
        self.commit()
        assert self.billing.read(INVOICES) == ["line 0", "line 1", "once", "line 2", "bill"]

    def check_what_was_restored(self) -> None:
        """All is as it was in the backup, and members and producers go on with what they know."""
        billing, server = self.billing, self.billing.server
        with basalt.connect(server.url, namespace="shop") as client:
            tailer = client.producer("invoices", "file-7", run="monday")
            assert tailer.last_sequence == 1
            tailer.publish(["line 2"])
        again = numbered(server, 0, "once")
        assert (again.status, again.headers["basalt-duplicate"]) == (200, "true")
        assert billing.read(INVOICES) == ["line 0", "line 1", "once", "line 2"]
        assert billing.acknowledge(409, claims=[self.claim])["code"] == "claim_lost"
        assert billing.acknowledge(ids=self.ids)["acknowledged"] == 1
        reply = billing.fetch("?limit=1")
        assert ([each["payload"] for each in reply.json()], reply.headers["basalt-attempt"]) == (["m3"], "2")
        assert billing.claim()[1] == ["m4"], "what is pending is nobody's"
        self.commit()
        assert billing.read(INVOICES)[-1] == "bill"
        assert server.ask_json("GET", GROUP)["floor"] > self.ids[0]


def test_a_restored_store_has_groups_and_producers_as_they_were(server: ServerProcess, tmp_path: Path):
    story = Story(server)
    assert server.ask_json("POST", "/v1/admin/backups", {"name": "nightly"})["files"]
    story.billing.acknowledge(claims=[story.claim])
    story.go_on()
    command_line = CommandLine(tmp_path, server.url)
    verified = command_line.run("backup", "verify", "nightly")
    assert (verified.code, "nightly is whole" in verified.out) == (0, True), verified
    server.kill()
    restored = command_line.run("backup", "restore", "nightly", "--data", str(server.data), "--put-aside")
    assert restored.code == 0, restored
    server.start()
    story.check_what_was_restored()


def numbered(server: ServerProcess, sequence: int, text: str) -> Reply:
    """A publish of an automatic producer."""
    headers = {"Content-Type": "application/json", "Basalt-Producer": "p", "Basalt-Sequence": str(sequence)}
    return server.ask("POST", f"{INVOICES}/publish", b'{"messages": ["%s"]}' % text.encode(), headers)
