"""Named transactions over HTTP: begun and joined by session, run and version; committed with segments."""

from __future__ import annotations

import pytest

TRANSACTIONS = "/v1/transactions"
SESSIONS = "/v1/transactions/sessions"


def begin(client, run="r1", version=1, **more):
    return client.call(
        "POST",
        TRANSACTIONS,
        {"session": "etl", "run": run, "version": version, "kind": "long", "snapshot": False, **more},
    )


def segment(client, tx, path=None, *messages):
    pointer = client.call("POST", f"{TRANSACTIONS}/{tx['id']}/checkpoint", {"snapshot": False}).json()["writePointer"]
    if messages:
        body = {"transactionWritePointer": pointer, "messages": list(messages)}
        assert client.call("POST", f"{path}/store", body).status == 200
    return pointer


def commit(client, tx, segments, **work):
    listed = [{"writePointer": pointer} for pointer in segments]
    return client.call("POST", f"{TRANSACTIONS}/{tx['id']}/commit", {"segments": listed, **work})


def committed(client, path):
    return [each["payload"] for each in client.poll(path, "?isolation=committed", startFrom=None).json()]


def test_those_who_begin_by_the_same_names_share_a_transaction(client):
    first, second = begin(client, owner="driver").json(), begin(client, owner="task 3").json()
    assert first == second
    assert (first["state"], first["kind"], first["owner"]) == ("OPEN", "long", "driver")
    assert first["transaction"] is None
    shown = client.call("GET", f"{TRANSACTIONS}/{first['id']}").json()
    assert shown["session"] == {"name": "etl", "epoch": 1, "version": 1}
    assert "transaction" in begin(client, snapshot=True).json()


def test_a_commit_publishes_its_segments_in_their_order_and_drops_the_others(client):
    path = client.topic()
    tx = begin(client).json()
    lost, one, other = (segment(client, tx, path, text) for text in ("lost", "one", "other"))
    assert lost < one < other
    marker = {"namespace": "shop", "topic": path.rsplit("/", 1)[1], "task": "etl", "taskCount": 1, "kind": "watermark"}
    namespace = path.split("/")[3]
    done = commit(client, tx, [other, one], markers=[{**marker, "namespace": namespace, "eventTimeMs": {"long": 700}}])
    assert (done.status, done.json()["state"]) == (200, "COMMITTED")
    assert committed(client, path) == ["other", "one"]
    assert client.call("GET", f"{path}/markers").json()["watermarkMs"] == 700
    assert commit(client, tx, [lost]).json() == done.json()
    assert committed(client, path) == ["other", "one"]
    undone = client.call("POST", f"{TRANSACTIONS}/{tx['id']}/abort")
    assert (undone.status, undone.code) == (409, "transaction_ended")
    again = begin(client, run="r2").json()
    assert (again["id"], again["state"], again["version"], again["committedBy"]) == (None, "COMMITTED", 1, tx["id"])


def test_no_segments_publish_nothing_and_absent_ones_everything(client):
    path = client.topic()
    first, second = begin(client, version=1).json(), begin(client, version=2).json()
    segment(client, first, path, "nobody wants it")
    segment(client, second, path, "all of it")
    assert commit(client, first, []).status == 200
    assert committed(client, path) == []
    absent = client.call("POST", f"{TRANSACTIONS}/{second['id']}/commit", {"segments": None})
    assert absent.status == 200
    assert committed(client, path) == ["all of it"]


def test_a_new_run_ends_the_old_one_s_and_fences_it(client):
    path = client.topic()
    old = begin(client, run="r1").json()
    pointer = segment(client, old, path, "zombie")
    assert begin(client, run="r2").json()["id"] != old["id"]
    fenced = begin(client, run="r1", version=2)
    assert (fenced.status, fenced.code, fenced.json()["field"]) == (409, "session_fenced", "run")
    assert "run 'r2' holds it, at epoch 2" in fenced.json()["detail"]
    assert client.call("GET", f"{TRANSACTIONS}/{old['id']}").json()["state"] == "ABORTED"
    assert commit(client, old, [pointer]).code == "session_fenced"
    late = client.call("POST", f"{path}/store", {"transactionWritePointer": pointer, "messages": ["late"]})
    assert (late.status, late.code) == (409, "session_fenced")
    shown = client.call("GET", f"{SESSIONS}/etl").json()
    assert (shown["run"], shown["epoch"], shown["replaced"], shown["counterOwner"]) == ("r2", 2, ["r1"], None)


def test_another_counter_owner_is_refused_and_told_whose_the_versions_are(client):
    tx = begin(client, version=0, counterOwner="query A").json()
    commit(client, tx, [])
    foreign = begin(client, run="r2", version=0, counterOwner="query B")
    assert (foreign.status, foreign.code, foreign.json()["field"]) == (409, "session_foreign", "counterOwner")
    assert "'query A'" in foreign.json()["detail"]
    assert "Use a session of its own" in foreign.json()["hint"]
    shown = client.call("GET", f"{SESSIONS}/etl").json()
    assert (shown["run"], shown["counterOwner"], shown["version"]) == ("r1", "query A", 0)
    assert begin(client, run="r2", version=0).json()["state"] == "COMMITTED"


def test_an_abort_of_a_long_one_undoes_it(client):
    path = client.topic()
    tx = begin(client).json()
    segment(client, tx, path, "in vain")
    assert client.call("POST", f"{TRANSACTIONS}/{tx['id']}/abort").json()["state"] == "ABORTED"
    assert begin(client).json()["id"] != tx["id"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"run": "r1", "version": 1}, "session"),
        ({"counterOwner": "q"}, "session"),
        ({"session": "etl", "run": "r1"}, "version"),
        ({"session": "etl", "run": "r1", "version": 1, "sessionEpoch": 1}, "sessionEpoch"),
        ({"session": "etl", "sessionEpoch": 1, "counterOwner": "q"}, "run"),
        ({"session": "etl", "run": "r1", "version": -1}, "version"),
        ({"session": "etl", "run": "", "version": 1}, "run"),
        ({"session": "etl", "run": "r1", "version": 1, "counterOwner": ""}, "counterOwner"),
        ({"session": "etl", "run": "r1", "version": 1, "timeoutMs": 0}, "timeoutMs"),
    ],
)
def test_half_a_name_is_refused(client, body, field):
    reply = client.call("POST", TRANSACTIONS, body)
    assert (reply.status, reply.code, reply.json()["field"]) == (400, "invalid_input", field)
    assert client.call("GET", SESSIONS).json() == {"sessions": [], "next": None}


@pytest.mark.parametrize(
    ("segments", "field"),
    [
        ("all", "segments"),
        ([7], "segments[0]"),
        ([{}], "segments[0].writePointer"),
        ([{"writePointer": 0}], "segments[0].writePointer"),
        ([{"writePointer": "7"}], "segments[0].writePointer"),
        ([{"writePointer": 7, "topic": "orders"}], "segments[0]"),
        ([{"writePointer": 7}, {"writePointer": 7}], "segments[1].writePointer"),
    ],
)
def test_segments_that_are_none_are_refused(client, segments, field):
    tx = begin(client).json()
    reply = client.call("POST", f"{TRANSACTIONS}/{tx['id']}/commit", {"segments": segments})
    assert (reply.status, reply.code, reply.json()["field"]) == (400, "malformed_body", field)
    assert client.call("GET", f"{TRANSACTIONS}/{tx['id']}").json()["state"] == "OPEN"


def test_a_pointer_of_another_transaction_is_no_segment(client):
    tx, other = begin(client, version=1).json(), begin(client, version=2).json()
    reply = commit(client, tx, [other["writePointer"]])
    assert (reply.status, reply.code, reply.json()["field"]) == (400, "invalid_input", "segments[0].writePointer")


def test_more_segments_than_a_transaction_can_have_are_refused(client):
    tx = begin(client).json()
    reply = commit(client, tx, range(1, 10_003))
    assert (reply.status, reply.code) == (413, "too_large")


def test_a_one_shot_transaction_has_no_segments(client):
    path = client.topic()
    work = {
        "segments": [],
        "publish": [{"namespace": path.split("/")[3], "topic": path.rsplit("/", 1)[1], "messages": ["m"]}],
    }
    reply = client.call("POST", TRANSACTIONS, {"work": work})
    assert (reply.status, reply.code, reply.json()["field"]) == (400, "invalid_input", "segments")
    assert committed(client, path) == []


def test_a_checkpoint_may_leave_the_snapshot_out(client):
    tx = begin(client).json()
    path = f"{TRANSACTIONS}/{tx['id']}/checkpoint"
    assert client.call("POST", path, {"snapshot": False}).json()["transaction"] is None
    assert "transaction" in client.call("POST", path).json()
    for body in ({}, {"snapshot": True}):
        assert "transaction" in client.call("POST", path, body).json()
    assert client.call("POST", path, {"more": 1}).status == 400
