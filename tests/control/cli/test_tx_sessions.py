"""`basalt tx sessions` against a real server."""

from __future__ import annotations

import json

import basalt


def test_sessions_are_listed_shown_and_deleted(cli, server_url):
    with basalt.connect(server_url) as client:
        session = client.session("nightly", run="host-7")
        with session.transaction(version=4) as tx:
            pass
    row = next(row for row in json.loads(cli("tx", "sessions", "list", "-o", "json").out) if row["name"] == "nightly")
    assert (row["run"], row["epoch"], row["version"], row["transactions"]) == ("host-7", session.epoch, 4, [])
    assert json.loads(cli("tx", "sessions", "show", "nightly", "-o", "json").out)["committed_by"] == tx.id
    assert "would delete session nightly" in cli("tx", "sessions", "delete", "nightly", "--dry-run").out
    assert cli("tx", "sessions", "delete", "nightly").code == 2, "nobody is there to ask"
    assert cli("tx", "sessions", "delete", "nightly", "--yes", "--reason", "it moved", "--as", "ada").code == 0
    act = json.loads(cli("audit", "list", "--limit", "1", "-o", "json").out)[0]
    assert (act["act"], act["what"], act["name"], act["reason"]) == (
        "delete session",
        "session nightly",
        "ada",
        "it moved",
    )
    assert cli("tx", "sessions", "show", "nightly").code == 3
