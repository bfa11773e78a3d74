"""The calls on named sessions, and what a begin in one answers."""

from __future__ import annotations

import pytest

TRANSACTIONS = "/v1/transactions"
SESSIONS = "/v1/transactions/sessions"


def opened(client, name="billing", run="monday"):
    reply = client.call("POST", f"{SESSIONS}/{name}", {"run": run})
    assert reply.status == 200, reply.body
    return reply.json()


def begin(client, session, **more):
    return client.call(
        "POST", TRANSACTIONS, {"session": session["name"], "sessionEpoch": session["epoch"], "snapshot": False, **more}
    )


def test_a_run_opens_a_session_and_the_next_one_fences_it(client):
    old = opened(client)
    assert old == {"name": "billing", "epoch": 1, "version": None} == opened(client)
    kept = begin(client, old).json()
    assert opened(client, run="tuesday")["epoch"] == 2
    fenced = begin(client, old)
    assert (fenced.status, fenced.code) == (409, "session_fenced")
    assert "run 'tuesday'" in fenced.json()["detail"]
    late = client.call("POST", f"{TRANSACTIONS}/{kept['id']}/commit")
    assert (late.status, late.code) == (409, "session_fenced")


def test_a_version_that_was_committed_is_told_and_nothing_begins(client):
    session = opened(client)
    begun = begin(client, session, version=7).json()
    shown = client.call("GET", f"{TRANSACTIONS}/{begun['id']}").json()
    assert shown["session"] == {"name": "billing", "epoch": 1, "version": 7}
    client.call("POST", f"{TRANSACTIONS}/{begun['id']}/commit")
    done = begin(client, session, version=7)
    assert (done.status, done.json()) == (
        200,
        {
            "id": None,
            "writePointer": None,
            "state": "COMMITTED",
            "session": "billing",
            "version": 7,
            "committedBy": begun["id"],
        },
    )
    assert client.call("GET", TRANSACTIONS).json() == {"transactions": []}
    assert opened(client, run="tuesday")["version"] == 7


def test_of_two_with_one_version_the_second_is_a_conflict(client):
    session = opened(client)
    first, second = (begin(client, session, version=1).json() for _ in range(2))
    client.call("POST", f"{TRANSACTIONS}/{first['id']}/commit")
    lost = client.call("POST", f"{TRANSACTIONS}/{second['id']}/commit")
    assert (lost.status, lost.code) == (409, "transaction_conflict")


def test_what_was_open_is_rolled_back_by_the_time_the_next_run_has_its_answer(client):
    path = client.topic()
    tx = begin(client, opened(client)).json()
    client.call("POST", f"{path}/store", {"transactionWritePointer": tx["writePointer"], "messages": ["zombie"]})
    client.publish(path, "zombie", pointer=tx["writePointer"])
    opened(client, run="tuesday")
    client.publish(path, "after")
    assert client.call("GET", f"{TRANSACTIONS}/{tx['id']}").json()["state"] == "ABORTED"
    assert b"zombie" not in client.poll(path, "?isolation=committed", startFrom=None).body


def test_sessions_are_listed_shown_and_deleted(client):
    opened(client, "import", "r1")
    tx = begin(client, opened(client)).json()
    listed = client.call("GET", SESSIONS).json()["sessions"]
    assert [(each["name"], each["run"], each["transactions"]) for each in listed] == [
        ("billing", "monday", [tx["id"]]),
        ("import", "r1", []),
    ]
    shown = client.call("GET", f"{SESSIONS}/billing").json()
    assert shown == listed[0]
    assert (shown["usedMs"], shown["version"], shown["committedBy"]) == (client.clock.now_ms(), None, None)
    assert client.call("DELETE", f"{SESSIONS}/billing").status == 200
    assert client.call("GET", f"{SESSIONS}/billing").code == "session_not_found"
    assert client.call("DELETE", f"{SESSIONS}/billing").status == 404
    assert client.call("GET", f"{TRANSACTIONS}/{tx['id']}").json()["state"] == "ABORTED"


def test_sessions_are_listed_a_page_at_a_time(client):
    for name in ("c", "a", "b"):
        opened(client, name)
    first = client.call("GET", f"{SESSIONS}?limit=2").json()
    assert ([each["name"] for each in first["sessions"]], first["next"]) == (["a", "b"], "b")
    second = client.call("GET", f"{SESSIONS}?limit=2&after=b").json()
    assert ([each["name"] for each in second["sessions"]], second["next"]) == (["c"], None)


def test_a_deletion_that_is_tried_dry_tells_what_it_would_end_and_ends_nothing(client):
    tx = begin(client, opened(client)).json()
    would = client.call("DELETE", f"{SESSIONS}/billing?dryRun=true").json()
    assert would == {"name": "billing", "run": "monday", "version": None, "transactions": [tx["id"]], "dryRun": True}
    assert client.call("GET", f"{TRANSACTIONS}/{tx['id']}").json()["state"] == "OPEN"
    assert client.call("DELETE", f"{SESSIONS}/billing").json() == {**would, "dryRun": False}


def test_a_name_is_any_text_without_a_slash(client):
    assert opened(client, "t%C3%A4glich%20%3F")["name"] == "täglich ?"
    assert client.call("GET", f"{SESSIONS}/t%C3%A4glich%20%3F").status == 200
    assert client.call("POST", f"{SESSIONS}/commit", {"run": "r"}).json()["name"] == "commit"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"session": "billing"}, "sessionEpoch"),
        ({"version": 7}, "session"),
        ({"sessionEpoch": 1}, "session"),
        ({"session": "billing", "sessionEpoch": 1, "version": -1}, "version"),
    ],
)
def test_half_a_session_is_refused(client, body, field):
    opened(client)
    reply = client.call("POST", TRANSACTIONS, body)
    assert (reply.status, reply.code, reply.json()["field"]) == (400, "invalid_input", field)


def test_an_epoch_that_never_was_is_not_found(client):
    reply = begin(client, {"name": "billing", "epoch": 5})
    assert (reply.status, reply.code) == (404, "session_not_found")


def test_an_id_of_another_installation_is_told_from_an_unknown_one(client):
    begun = client.begin()
    there = "0" * 16 + begun["id"][16:]
    reply = client.call("GET", f"{TRANSACTIONS}/{there}")
    assert (reply.status, reply.code) == (404, "transaction_not_found")
    assert "belongs to another installation" in reply.json()["detail"]
    by_pointer = client.call("POST", f"{TRANSACTIONS}/{begun['writePointer']}/commit").json()
    assert by_pointer["id"] == begun["id"]


def test_a_change_set_of_tables_is_no_write_outside(client):
    begun = client.begin()
    told = {"changes": ["YQ=="], "externalWrites": False}
    assert client.call("POST", f"{TRANSACTIONS}/{begun['id']}/changes", told).status == 200
    assert client.call("GET", f"{TRANSACTIONS}/{begun['id']}").json()["externalWrites"] is False
