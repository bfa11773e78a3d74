"""What a Work acknowledges in consumer groups: in a fetch, a commit and a one-shot transaction, and when its answer was lost."""

from __future__ import annotations

from typing import Any

import pytest

from basalt.api.bodies.messages import Work, WorkAcknowledge, WorkPublish
from basalt.api.codecs import avro
from tests.control.api.codecs import client_codecs
from tests.control.http.conftest import AVRO
from tests.control.http.group_client import GROUP, INVOICES, ORDERS, GroupClient, claim_of, done, ids_of, payloads


def test_one_call_acknowledges_publishes_and_claims_the_next(shop: GroupClient) -> None:
    shop.make()
    first = shop.fetch("?limit=4&member=w1")
    second = shop.fetch("?limit=4&member=w1", done(claim_of(first), publish=("a", "b"), member="w1"))
    assert payloads(second) == ["m4", "m5", "m6", "m7"]
    shot = second.header("basalt-transaction")
    assert shop.call("GET", f"/v1/transactions/{shot}").json()["state"] == "COMMITTED"
    assert shop.payloads(INVOICES) == ["a", "b"]
    assert shop.shown()["floor"] == ids_of(first)[-1]
    third = shop.fetch("?limit=4&member=w1", avro.encode_work(Work(
        [WorkPublish("shop", "invoices", [b"c"])], acknowledge=[WorkAcknowledge("shop", "orders", "billing", claims=[claim_of(second)])]
    )), AVRO)  # fmt: skip
    assert [message.payload for message in client_codecs.decode_avro_messages(third.body)] == [b"m8", b"m9"]
    assert shop.payloads(INVOICES) == ["a", "b", "c"]


@pytest.mark.parametrize("media_type", ["application/octet-stream", "application/x-www-form-urlencoded"])
def test_without_a_body_it_does_not_matter_of_what_kind_it_would_be(shop: GroupClient, media_type: str) -> None:
    """Libraries name one all the same, curl and aiohttp for instance."""
    shop.make()
    assert len(payloads(shop.fetch("?limit=4", b"", media_type))) == 4
    refused = shop.call("POST", f"{GROUP}/fetch", b"{}", media_type)
    assert (refused.status, refused.code) == (415, "unsupported_media_type")


def test_a_work_that_only_acknowledges_is_no_transaction(shop: GroupClient) -> None:
    shop.make()
    first = shop.fetch("?limit=4")
    second = shop.fetch("?limit=1", done(claim_of(first)))
    assert (payloads(second), second.header("basalt-transaction")) == (["m4"], None)
    assert shop.shown()["floor"] == ids_of(first)[-1]
    third = shop.fetch("", {})
    assert (len(payloads(third)), third.header("basalt-transaction")) == (5, None)


def test_when_the_work_is_refused_nothing_is_fetched(shop: GroupClient) -> None:
    shop.make()
    first = shop.fetch("?limit=4&member=w1")
    refused = shop.call("POST", f"{GROUP}/fetch?member=w2", done(claim_of(first), publish=("a",), member="w2"))
    assert (refused.status, refused.code) == (409, "claim_lost")
    assert shop.payloads(INVOICES) == []
    assert [claim["claim"] for claim in shop.call("GET", f"{GROUP}/claims").json()["claims"]] == [claim_of(first)]


def test_behind_a_work_that_was_done_a_fetch_does_not_fail(shop: GroupClient) -> None:
    shop.make()
    first = shop.fetch("?limit=2&member=w1")
    second = shop.fetch("?limit=2&member=w1&epoch=1", done(claim_of(first), publish=("a",)))
    assert (payloads(second), second.header("basalt-waiting-for")) == ([], "member_fenced")
    assert shop.payloads(INVOICES) == ["a"]
    shop.post("pause")
    third = shop.fetch("", done(publish=("b",), claims=[], upTo=bytes.fromhex(ids_of(first)[0]).decode("latin-1")))
    assert (payloads(third), third.header("basalt-waiting-for")) == ([], "paused")
    assert shop.payloads(INVOICES) == ["a", "b"]


def test_a_fetch_whose_answer_was_lost_is_the_same_work_and_the_same_claim(shop: GroupClient) -> None:
    shop.make()
    first = shop.fetch("?limit=4")
    rounds = [
        shop.fetch("?limit=3", done(claim_of(first), publish=("a",)), basalt_request_id="round-1") for _ in range(3)
    ]
    assert {(claim_of(each), each.header("basalt-transaction"), *payloads(each)) for each in rounds} == {
        (claim_of(rounds[0]), rounds[0].header("basalt-transaction"), "m4", "m5", "m6")
    }
    assert shop.payloads(INVOICES) == ["a"]
    plain = [shop.fetch("", done(claim_of(rounds[0])), basalt_request_id="round-2") for _ in range(2)]
    assert claim_of(plain[0]) == claim_of(plain[1])
    assert payloads(plain[0]) == payloads(plain[1]) == ["m7", "m8", "m9"]
    assert len(shop.call("GET", f"{GROUP}/claims").json()["claims"]) == 1


@pytest.mark.parametrize("how", ["in the call", "in the commit", "in the commit, as Avro"])
def test_what_a_transaction_acknowledges_is_so_when_it_commits(shop: GroupClient, how: str) -> None:
    shop.make()
    first = shop.fetch("?limit=2")
    begun = shop.begin()
    work: Any = b""
    media_type = None
    if how == "in the call":
        assert shop.post("acknowledge", {"claims": [claim_of(first)], "transaction": begun["id"]})["acknowledged"] == 2
        assert shop.shown()["floor"] == "00" * 20
    elif how == "in the commit":
        work = done(claim_of(first))
    else:
        entry = WorkAcknowledge("shop", "orders", "billing", claims=[claim_of(first)])
        work, media_type = avro.encode_work(Work(acknowledge=[entry])), AVRO
    reply = shop.call("POST", f"/v1/transactions/{begun['id']}/commit", work, media_type)
    assert (reply.status, reply.json().get("state")) == (200, "COMMITTED")
    assert shop.shown()["floor"] == ids_of(first)[-1]


def test_what_a_transaction_acknowledged_comes_again_when_it_aborts(shop: GroupClient) -> None:
    shop.make()
    begun = shop.begin()
    first = shop.fetch(f"?limit=2&transaction={begun['id']}")
    assert shop.call("GET", f"{GROUP}/claims").json()["claims"][0]["transaction"] == begun["id"]
    shop.post("acknowledge", {"claims": [claim_of(first)], "transaction": begun["id"]})
    conflict = shop.call("POST", f"{GROUP}/acknowledge", {"ids": [ids_of(first)[0]]})
    assert (conflict.status, conflict.code) == (409, "acknowledge_conflict")
    shop.call("POST", f"/v1/transactions/{begun['id']}/abort")
    shop.pass_ms(10_000)
    again = shop.fetch("?limit=2")
    assert (payloads(again), again.header("basalt-attempt")) == (["m0", "m1"], "2")


def test_a_one_shot_transaction_acknowledges_and_publishes_together(shop: GroupClient) -> None:
    shop.make()
    first = shop.fetch("?limit=2")
    reply = shop.call("POST", "/v1/transactions", {"work": done(claim_of(first), publish=("a",))})
    assert reply.status == 200, reply.body
    assert (shop.payloads(INVOICES), shop.shown()["floor"]) == (["a"], ids_of(first)[-1])


def test_a_work_repeated_on_a_new_server_is_done_once_and_claims_anew(shop: GroupClient) -> None:
    shop.make()
    first = shop.fetch("?limit=4")
    told = shop.fetch("?limit=3", done(claim_of(first), publish=("a",)), basalt_request_id="round-1")
    shop.restart()
    again = shop.fetch("?limit=3", done(claim_of(first), publish=("a",)), basalt_request_id="round-1")
    assert again.header("basalt-transaction") == told.header("basalt-transaction")
    assert (payloads(again), again.header("basalt-attempt")) == (["m4", "m5", "m6"], "1")
    assert claim_of(again) != claim_of(told)
    assert shop.payloads(INVOICES) == ["a"]


def test_on_a_new_server_claims_are_lost_and_their_messages_are_acknowledged_by_ids(shop: GroupClient) -> None:
    shop.make()
    first = shop.fetch("?limit=4&member=w1")
    shop.restart()
    work = done(claim_of(first), publish=("a",), member="w1")
    assert shop.call("POST", f"{GROUP}/fetch?member=w1", work).code == "claim_lost"
    assert shop.payloads(INVOICES) == []
    ids = [bytes.fromhex(each).decode("latin-1") for each in ids_of(first)]
    by_ids = done(publish=("a",), member="w1", ids=ids, round=int(first.header("basalt-round") or 0))
    assert payloads(shop.fetch("?limit=2&member=w1", by_ids)) == ["m4", "m5"]
    assert (shop.payloads(INVOICES), shop.shown()["floor"]) == (["a"], ids_of(first)[-1])


def test_what_another_holds_by_then_is_not_acknowledged_by_ids(shop: GroupClient) -> None:
    shop.make()
    first = shop.fetch("?limit=4&member=w1")
    shop.restart()
    assert payloads(shop.fetch("?limit=2&member=w2")) == ["m0", "m1"]
    ids = [bytes.fromhex(each).decode("latin-1") for each in ids_of(first)]
    refused = shop.call("POST", f"{GROUP}/fetch?member=w1", done(publish=("a",), member="w1", ids=ids))
    assert (refused.status, refused.code, shop.payloads(INVOICES)) == (409, "claim_lost", [])


def test_an_older_process_that_is_let_in_by_a_new_server_does_nothing_twice(shop: GroupClient) -> None:
    """Nobody knows there that it was fenced: what it was dealt is decided by the log, and by who holds it now."""
    shop.make(3, retryDelayMs=0)
    older = shop.fetch("?limit=3&member=w1")
    newer = shop.post("members/w1")["epoch"]
    again = shop.fetch(f"?limit=1&member=w1&epoch={newer}")
    who = f"?limit=1&member=w1&epoch={newer}"
    shop.fetch(who, done(claim_of(again), publish=("once",), member="w1", epoch=newer))
    shop.restart()
    assert payloads(shop.fetch("?limit=1&member=w2")) == ["m1"]
    zombie = {"member": "w1", "epoch": int(older.header("basalt-member-epoch") or 0)}
    assert shop.post("members/w1", {"epoch": zombie["epoch"]})["claims"] == []
    for message_id, code in zip(ids_of(older), ("transaction_conflict", "claim_lost"), strict=False):
        by_id = {"ids": [bytes.fromhex(message_id).decode("latin-1")], "round": int(older.header("basalt-round") or 0)}
        refused = shop.call("POST", f"{GROUP}/fetch", done(publish=("twice",), **zombie, **by_id))
        assert refused.code == code
    assert shop.post("acknowledge", {"ids": ids_of(older)[:1], **zombie}) == {"acknowledged": 0, "already": 1}
    assert shop.post("acknowledge", {"ids": ids_of(older)[2:], **zombie}) == {"acknowledged": 1, "already": 0}
    assert shop.payloads(INVOICES) == ["once"]
    assert shop.post("members/w1", {"epoch": newer})["epoch"] == newer
    assert shop.call("POST", f"{GROUP}/members/w1", {"epoch": zombie["epoch"]}).code == "member_fenced"
    assert payloads(shop.fetch("")) == []


def test_a_rejected_message_is_one_dead_letter_though_the_call_is_repeated(shop: GroupClient) -> None:
    shop.make(deadLetterTopic="dead")
    first = shop.fetch("?limit=2")
    poison = {"id": bytes.fromhex(ids_of(first)[0]).decode("latin-1"), "reason": "no customer"}
    work = done(claim_of(first), publish=("a",), reject=[poison])
    rounds = [shop.fetch("?limit=1", work, basalt_request_id="round-1") for _ in range(2)]
    assert [payloads(each) for each in rounds] == [["m2"], ["m2"]]
    dead = shop.call("GET", f"{ORDERS.replace('orders', 'dead')}/records").json()["records"]
    assert [record["payload"] for record in dead] == ["m0"]
    assert {"name": "basalt-dead-reason", "value": "no customer"} in dead[0]["headers"]
    assert (shop.payloads(INVOICES), shop.shown()["floor"]) == (["a"], ids_of(first)[-1])


def test_without_a_topic_for_dead_letters_nothing_is_rejected(shop: GroupClient) -> None:
    shop.make()
    first = shop.fetch("?limit=2")
    poison = {"id": bytes.fromhex(ids_of(first)[0]).decode("latin-1")}
    refused = shop.call("POST", f"{GROUP}/fetch", done(claim_of(first), publish=("a",), reject=[poison]))
    assert (refused.status, refused.code, shop.payloads(INVOICES)) == (409, "conflict", [])


def test_a_message_that_failed_too_often_is_parked_until_it_is_unparked(shop: GroupClient) -> None:
    shop.make(1, attemptsMax=2, retryDelayMs=0)
    for _ in range(2):
        shop.post("release", {"claims": [claim_of(shop.fetch())]})
    assert payloads(shop.fetch()) == []
    parked = shop.call("GET", f"{GROUP}/messages?state=parked").json()["messages"]
    assert [each["attempts"] for each in parked] == [2]
    assert shop.post("unpark", {"ids": [parked[0]["id"]]}) == {"unparked": 1}
    again = shop.fetch()
    assert (payloads(again), again.header("basalt-attempt")) == (["m0"], "1")
    assert shop.call("GET", "/v1/admin/audit").json()[0]["act"] == "unpark"


def test_a_work_acknowledges_in_several_groups_and_may_reject_alone(shop: GroupClient) -> None:
    shop.make(deadLetterTopic="dead")
    other = GROUP.replace("billing", "auditing")
    assert shop.call("PUT", other, {}).status == 200
    first, second = shop.fetch("?limit=2"), shop.fetch("?limit=3", group=other)
    both = done(claim_of(first))
    both["acknowledge"] += done(claim_of(second), group="auditing")["acknowledge"]
    third = shop.fetch("?limit=1", both)
    assert [shop.shown()["floor"], shop.call("GET", other).json()["floor"]] == [ids_of(first)[-1], ids_of(second)[-1]]
    poison = {"id": bytes.fromhex(ids_of(third)[0]).decode("latin-1")}
    assert payloads(shop.fetch("?limit=1", done(claim_of(third), reject=[poison]))) == ["m3"]
    assert shop.payloads(ORDERS.replace("orders", "dead")) == ["m2"]
