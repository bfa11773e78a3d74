"""The calls on transactions."""

from __future__ import annotations

import base64
import json
import re

import pytest

from basalt.api.bodies.messages import Work, WorkAcknowledge, WorkPublish
from basalt.api.codecs import avro, json_bodies
from basalt.transactions.codec import decode_transaction
from basalt.transactions.rules.transaction import Kind

TRANSACTIONS = "/v1/transactions"
AVRO = "avro/binary"


def work(*messages, topic="orders"):
    return {"publish": [{"namespace": "shop", "topic": topic, "messages": list(messages)}]}


def test_a_begin_answers_all_that_its_client_needs(client):
    begun = client.begin(owner="billing", timeoutMs=5_000)
    assert re.fullmatch(f"[0-9a-f]{{16}}{begun['writePointer']:016x}", begun["id"])
    assert (begun["state"], begun["kind"], begun["owner"]) == ("OPEN", "short", "billing")
    assert begun["expiresMs"] == client.clock.now_ms() + 5_000
    fields = decode_transaction(base64.b64decode(begun["transaction"]))
    assert (fields.id, fields.write_pointer, fields.read_pointer) == (
        begun["writePointer"],
        begun["writePointer"],
        begun["readPointer"],
    )


def test_a_begin_without_a_body_is_a_short_one(client):
    reply = client.call("POST", TRANSACTIONS)
    assert (reply.status, reply.json()["kind"], reply.json()["owner"]) == (200, "short", "")


def test_a_begin_may_leave_the_snapshot_out(client):
    assert client.begin(snapshot=False)["transaction"] is None


def test_the_bytes_name_who_was_in_progress_and_who_is_invalid(client):
    bad, other = client.begin(), client.begin()
    client.call("POST", f"{TRANSACTIONS}/{bad['id']}/invalidate")
    fields = decode_transaction(base64.b64decode(client.begin(kind="long")["transaction"]))
    assert (list(fields.invalid), list(fields.in_progress)) == ([bad["writePointer"]], [other["writePointer"]])
    assert fields.kind is Kind.LONG


def test_a_begin_repeated_with_its_request_id_answers_the_same_transaction(client):
    first, second = (client.call("POST", TRANSACTIONS, {}, basalt_request_id="begin-1").json() for _ in range(2))
    assert first == second
    assert client.call("POST", TRANSACTIONS, {}, basalt_request_id="begin-2").json()["id"] != first["id"]


def test_a_request_id_used_for_another_kind_of_call_is_refused(client):
    client.topic()
    client.call("POST", TRANSACTIONS, {}, basalt_request_id="once")
    reply = client.call("POST", TRANSACTIONS, {"work": work("a")}, basalt_request_id="once")
    assert (reply.status, reply.code) == (409, "request_reused")


def test_open_transactions_are_listed_oldest_first_with_their_topics(client):
    path = client.topic()
    first, second = client.begin(owner="a"), client.begin(kind="long", owner="b", externalWrites=True)
    client.publish(path, "x", pointer=second["writePointer"])
    listed = client.call("GET", TRANSACTIONS).json()["transactions"]
    assert [shown["id"] for shown in listed] == [first["id"], second["id"]]
    assert listed[0]["topics"] == []
    shown = listed[1]
    assert shown["topics"] == [{"namespace": "shop", "topic": "orders", "generation": 1}]
    assert (shown["owner"], shown["kind"], shown["externalWrites"], shown["beganMs"]) == (
        "b",
        "long",
        True,
        client.clock.now_ms(),
    )
    assert client.call("GET", f"{TRANSACTIONS}/{second['id']}").json() == shown


@pytest.mark.parametrize(("how", "state"), [("commit", "COMMITTED"), ("abort", "ABORTED")])
def test_an_ended_transaction_is_shown_with_its_outcome_and_its_end_may_be_repeated(client, how, state):
    begun = client.begin()
    answers = [client.call("POST", f"{TRANSACTIONS}/{begun['id']}/{how}").json() for _ in range(2)]
    expected = {"id": begun["id"], "writePointer": begun["writePointer"], "state": state}
    assert answers == [expected, expected]
    assert client.call("GET", f"{TRANSACTIONS}/{begun['id']}").json() == expected
    assert client.call("GET", TRANSACTIONS).json() == {"transactions": []}


@pytest.mark.parametrize(("first", "second"), [("commit", "abort"), ("abort", "commit"), ("invalidate", "commit")])
def test_the_opposite_of_what_happened_is_a_conflict_that_tells_it(client, first, second):
    begun = client.begin()
    client.call("POST", f"{TRANSACTIONS}/{begun['id']}/{first}")
    reply = client.call("POST", f"{TRANSACTIONS}/{begun['id']}/{second}")
    assert (reply.status, reply.code) == (409, "transaction_ended")


@pytest.mark.parametrize("call", ["commit", "abort", "checkpoint", "invalidate"])
def test_a_transaction_nobody_knows_is_not_found(client, call):
    reply = client.call("POST", f"{TRANSACTIONS}/5/{call}")
    if call == "invalidate" and reply.status == 200:
        assert reply.json() == {"invalidated": False}
    else:
        assert (reply.status, reply.code) == (404, "transaction_not_found")


def test_an_unknown_transaction_is_not_shown(client):
    assert client.call("GET", f"{TRANSACTIONS}/5").code == "transaction_not_found"


@pytest.mark.parametrize("media_type", ["application/json", AVRO])
def test_a_commit_publishes_its_work_in_all_topics_at_once(client, media_type):
    paths = [client.topic(name) for name in ("orders", "invoices")]
    begun = client.begin()
    parts = [WorkPublish("shop", name, [b"1", b"2"]) for name in ("orders", "invoices")]
    body = avro.encode_work(Work(publish=parts))
    if media_type != AVRO:
        body = json.dumps(
            {"publish": [work("1", "2", topic=name)["publish"][0] for name in ("orders", "invoices")]}
        ).encode()
    reply = client.call("POST", f"{TRANSACTIONS}/{begun['id']}/commit", body, media_type)
    assert reply.json()["state"] == "COMMITTED"
    assert [client.payloads(path, "?isolation=committed") for path in paths] == [["1", "2"]] * 2


@pytest.mark.parametrize("media_type", ["application/json", AVRO])
def test_a_one_shot_transaction_publishes_and_commits(client, media_type):
    path = client.topic()
    body = avro.encode_work(Work(publish=[WorkPublish("shop", "orders", [b"1"])]))
    if media_type != AVRO:
        body = json.dumps({"work": work("1"), "owner": "billing"}).encode()
    answers = [client.call("POST", TRANSACTIONS, body, media_type, basalt_request_id="shot").json() for _ in range(2)]
    assert answers[0]["state"] == "COMMITTED"
    assert answers[0] == answers[1]
    assert client.payloads(path, "?isolation=committed") == ["1"]


@pytest.mark.parametrize("media_type", ["application/json", AVRO])
def test_work_that_acknowledges_in_a_group_that_is_not_there_does_nothing_at_all(client, media_type):
    path = client.topic()
    done = Work(
        [WorkPublish("shop", "orders", [b"a"])], acknowledge=[WorkAcknowledge("shop", "orders", "g", claims=[1])]
    )
    begun = client.begin()
    for target in (f"{TRANSACTIONS}/{begun['id']}/commit", TRANSACTIONS):
        body = avro.encode_work(done) if media_type == AVRO else json_bodies.encode_work(done)
        if media_type != AVRO and target == TRANSACTIONS:
            body = b'{"work": %b}' % body
        reply = client.call("POST", target, body, media_type)
        assert (reply.status, reply.code) == (404, "group_not_found")
    assert client.payloads(path) == []
    assert client.call("GET", f"{TRANSACTIONS}/{begun['id']}").json()["state"] == "OPEN"


def test_work_for_a_topic_that_is_not_there_does_nothing_at_all(client):
    path = client.topic()
    both = {"publish": [*work("1")["publish"], *work("2", topic="none")["publish"]]}
    begun = client.begin()
    for reply in (
        client.call("POST", TRANSACTIONS, {"work": both}),
        client.call("POST", f"{TRANSACTIONS}/{begun['id']}/commit", both),
    ):
        assert (reply.status, reply.code) == (404, "topic_not_found")
    assert client.payloads(path) == []
    assert client.call("GET", f"{TRANSACTIONS}/{begun['id']}").json()["state"] == "OPEN"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"null", None),
        (b"[]", None),
        (b"{", None),
        (b'{"kind": "medium"}', "kind"),
        (b'{"kind": null}', "kind"),
        (b'{"Kind": "short"}', "Kind"),
        (b'{"timeoutMs": "5"}', "timeoutMs"),
        (b'{"timeoutMs": true}', "timeoutMs"),
        (b'{"timeoutMs": 5.0}', "timeoutMs"),
        (b'{"owner": 5}', "owner"),
        (b'{"owner": null}', "owner"),
        (b'{"externalWrites": 1}', "externalWrites"),
        (b'{"snapshot": "yes"}', "snapshot"),
        (b'{"timeoutMs": 5, "timeoutMs": 6}', "timeoutMs"),
        (b'{"work": null}', None),
        (b'{"work": []}', None),
        (b'{"work": {}, "kind": "short"}', "kind"),
        (b'{"work": {"publish": [{}]}}', "publish[0].namespace"),
        (b'{"work": {"publish": [{"namespace": "shop", "topic": "orders", "messages": []}]}}', "publish[0].messages"),
        (b'{"work": {"publish": "all"}}', "publish"),
        (b'{"work": {"unknown": []}}', "unknown"),
    ],
)
def test_a_malformed_begin_is_refused_and_begins_nothing(client, body, field):
    client.topic()
    reply = client.call("POST", TRANSACTIONS, body, "application/json")
    assert (reply.status, reply.code) == (400, "malformed_body"), reply.body
    assert reply.json().get("field") == field
    assert client.call("GET", TRANSACTIONS).json() == {"transactions": []}


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"timeoutMs": 0}, "timeoutMs"),
        ({"timeoutMs": -1}, "timeoutMs"),
        ({"timeoutMs": 10**30}, "timeoutMs"),
        ({"timeoutMs": 600_001}, "timeoutMs"),
        ({"owner": "x" * 256}, "owner"),
        ({"owner": "a\nb"}, "owner"),
        ({"owner": "\u202e"}, "owner"),
    ],
)
def test_a_begin_out_of_bounds_is_refused(client, wanted, field):
    reply = client.call("POST", TRANSACTIONS, wanted)
    assert reply.status == 400, reply.body
    assert reply.code in ("invalid_input", "invalid_name", "malformed_body")
    assert client.call("GET", TRANSACTIONS).json() == {"transactions": []}


def test_a_checkpoint_answers_a_further_pointer_under_the_same_snapshot(client):
    path = client.topic()
    begun = client.begin()
    client.publish(path, "before", pointer=begun["writePointer"])
    later = client.call("POST", f"{TRANSACTIONS}/{begun['id']}/checkpoint").json()
    assert later["id"] == begun["id"]
    assert later["writePointer"] > begun["writePointer"]
    assert later["readPointer"] == begun["readPointer"]
    client.publish(path, "after", pointer=later["writePointer"])
    client.call("POST", f"{TRANSACTIONS}/{begun['id']}/commit")
    assert client.payloads(path, "?isolation=committed") == ["before", "after"]


def test_of_two_that_change_the_same_thing_the_second_to_commit_loses(client):
    first, second = client.begin(), client.begin()
    changes = {"changes": [base64.b64encode(b"account 7").decode()]}
    for begun in (first, second):
        assert client.call("POST", f"{TRANSACTIONS}/{begun['id']}/changes", changes).status == 200
    assert client.call("POST", f"{TRANSACTIONS}/{first['id']}/commit").status == 200
    reply = client.call("POST", f"{TRANSACTIONS}/{second['id']}/commit")
    assert (reply.status, reply.code) == (409, "transaction_conflict")
    reply = client.call("POST", f"{TRANSACTIONS}/{second['id']}/commit")
    assert (reply.status, reply.code) == (409, "transaction_conflict")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"changes": "YQ=="}',
        b'{"changes": [5]}',
        b'{"changes": ["not base64!"]}',
        b'{"changes": ["YQ"]}',
        b"[]",
    ],
)
def test_malformed_changes_are_refused(client, body):
    begun = client.begin()
    reply = client.call("POST", f"{TRANSACTIONS}/{begun['id']}/changes", body, "application/json")
    assert (reply.status, reply.code) == (400, "malformed_body")


@pytest.mark.parametrize("call", ["abort", "checkpoint", "invalidate"])
def test_calls_without_a_body_take_none_but_an_empty_object(client, call):
    begun = client.begin()
    reply = client.call("POST", f"{TRANSACTIONS}/{begun['id']}/{call}", {"force": True})
    assert (reply.status, reply.code) == (400, "malformed_body")
    assert client.call("GET", f"{TRANSACTIONS}/{begun['id']}").json()["state"] == "OPEN"
    assert client.call("POST", f"{TRANSACTIONS}/{begun['id']}/{call}", {}).status == 200


@pytest.mark.parametrize("call", ["commit", "abort", "checkpoint", "invalidate"])
def test_an_empty_body_may_have_the_content_type_that_the_client_always_sends(client, call):
    begun = client.begin()
    assert client.call("POST", f"{TRANSACTIONS}/{begun['id']}/{call}", b"", "avro/binary").status == 200


def test_a_topic_may_take_part_ahead_of_its_first_write(client):
    client.topic()
    begun = client.begin()
    asked = {"kind": "topic", "namespace": "shop", "topic": "orders"}
    assert client.call("POST", f"{TRANSACTIONS}/{begun['id']}/participants", asked).status == 200
    shown = client.call("GET", f"{TRANSACTIONS}/{begun['id']}").json()
    assert shown["topics"] == [{"namespace": "shop", "topic": "orders", "generation": 1}]


def test_an_external_participant_makes_a_time_out_invalid(client):
    begun = client.begin()
    asked = {"kind": "external", "name": "ledger"}
    assert client.call("POST", f"{TRANSACTIONS}/{begun['id']}/participants", asked).status == 200
    assert client.call("GET", f"{TRANSACTIONS}/{begun['id']}").json()["externalWrites"] is True


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"kind": "inside"},
        {"kind": "external"},
        {"kind": "external", "name": 5},
        {"kind": "topic", "namespace": "shop"},
        {"kind": "external", "name": "x", "topic": "y"},
        [],
    ],
)
def test_a_malformed_participant_is_refused(client, asked):
    begun = client.begin()
    reply = client.call("POST", f"{TRANSACTIONS}/{begun['id']}/participants", asked)
    assert (reply.status, reply.code) == (400, "malformed_body")


def test_a_transaction_past_its_deadline_cannot_commit(client):
    begun = client.begin(timeoutMs=1_000)
    client.clock.advance(1_000)
    reply = client.call("POST", f"{TRANSACTIONS}/{begun['id']}/commit")
    assert (reply.status, reply.code) == (409, "transaction_ended")


def test_an_unavailable_manager_is_told_and_plain_publishing_goes_on(client, monkeypatch):
    from basalt.errors import UnavailableError

    path = client.topic()

    async def unavailable(*arguments):
        raise UnavailableError("the transaction manager is reading its log", hint="try again")

    monkeypatch.setattr(client.services.transactions, "begin", unavailable)
    reply = client.call("POST", TRANSACTIONS, {})
    assert (reply.status, reply.code, reply.header("retry-after")) == (503, "unavailable", "1")
    client.publish(path, "goes on")
    assert client.payloads(path) == ["goes on"]
