"""The calls on consumer groups, over stores that write a batch at once and row by row."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from basalt.api.bodies.messages import Work
from basalt.api.codecs import avro, batches
from basalt.groups import attendance
from basalt.settings import Settings
from basalt.transactions.rules import acknowledgements
from tests.control.api.codecs import client_codecs
from tests.control.http.conftest import AVRO, JSON, Client, Reply
from tests.control.http.group_client import GROUP, ORDERS, GroupClient, claim_of, done, ids_of, payloads

BATCHES = "application/vnd.basalt.batches"


def test_a_group_is_made_shown_and_listed_with_its_options(shop: GroupClient) -> None:
    made = shop.make(claimMs=60_000)
    assert (made["namespace"], made["topic"], made["name"], made["generation"]) == ("shop", "orders", "billing", 1)
    assert (made["options"]["mode"], made["options"]["claimMs"], made["options"]["attemptsMax"]) == (
        "shared",
        60_000,
        8,
    )
    assert (made["paused"], made["round"], made["floor"], made["members"]) == (False, made["round"], "00" * 20, 0)
    assert shop.shown()["number"] == made["number"]
    assert [group["name"] for group in shop.call("GET", f"{ORDERS}/groups").json()["groups"]] == ["billing"]


def test_a_group_made_again_stays_and_with_other_options_is_refused(shop: GroupClient) -> None:
    made = shop.make()
    assert shop.call("PUT", GROUP, {}).json()["number"] == made["number"]
    refused = shop.call("PUT", GROUP, {"claimMs": 60_000})
    assert (refused.status, refused.code) == (409, "group_exists")
    assert "claimMs" in refused.json()["detail"]
    changed = shop.call("PUT", f"{GROUP}/options", {"claimMs": 60_000}).json()["group"]
    assert (changed["options"]["claimMs"], changed["number"]) == (60_000, made["number"])


def test_its_dead_letter_topic_is_made_with_it(shop: GroupClient) -> None:
    shop.make(deadLetterTopic="orders-dead")
    assert shop.call("GET", "/v1/namespaces/shop/topics/orders-dead").status == 200


def test_a_deleted_group_is_gone_and_the_audit_knows_who_did_it(shop: GroupClient) -> None:
    shop.make()
    assert shop.call("DELETE", f"{GROUP}?reason=done&as=ada").status == 200
    assert shop.call("GET", GROUP).code == "group_not_found"
    line = shop.call("GET", "/v1/admin/audit").json()[0]
    assert (line["act"], line["what"], line["reason"], line["outcome"]) == (
        "delete group",
        "group shop:orders/billing",
        "done",
        "done",
    )


def test_a_fetch_claims_messages_and_says_all_of_the_claim(shop: GroupClient) -> None:
    shop.make()
    first = shop.fetch("?limit=3&member=w1")
    assert payloads(first) == ["m0", "m1", "m2"]
    assert (first.header("basalt-after"), first.header("basalt-through")) == ("00" * 20, ids_of(first)[-1])
    assert (first.header("basalt-attempt"), first.header("basalt-waiting-for")) == ("1", None)
    assert int(first.header("basalt-claim-until") or 0) == shop.clock.now_ms() + 300_000
    assert int(first.header("basalt-member-epoch") or 0) > 0
    second = shop.fetch()
    assert payloads(second) == [f"m{number}" for number in range(3, 10)]
    nothing = shop.fetch()
    assert (payloads(nothing), nothing.header("basalt-claim")) == ([], None)
    assert nothing.header("basalt-waiting-for") == "claimed"
    shown = shop.call("GET", f"{GROUP}/claims").json()["claims"]
    assert [(each["claim"], each["member"], each["messages"]) for each in shown] == [
        (claim_of(first), "w1", 3),
        (claim_of(second), "", 7),
    ]


def test_a_fetch_answers_as_a_poll_does(shop: GroupClient) -> None:
    shop.make(0)
    record = {"payload": "café", "key": "k", "headers": [{"name": "h", "value": "v"}]}

    def next_one(query: str = "", accept: str = JSON, body: bytes = b"", media_type: str | None = None) -> Reply:
        assert shop.call("POST", f"{ORDERS}/records", {"records": [record]}).status == 200
        return shop.fetch(query, body, media_type, accept=accept)

    assert next_one().json()[0]["payload"].encode("latin-1").decode() == "café"
    in_avro = next_one(accept=AVRO)
    assert (in_avro.header("content-type"), client_codecs.decode_avro_messages(in_avro.body)[0].payload) == (
        AVRO,
        "café".encode(),
    )
    by_type = next_one(body=avro.encode_work(Work()), media_type=AVRO)
    assert (by_type.header("content-type"), client_codecs.decode_avro_messages(by_type.body)[0].payload) == (
        AVRO,
        "café".encode(),
    )
    batched = next_one(accept=BATCHES)
    (frame,) = batches.decode(batched.body)
    assert (batched.header("content-type"), list(map(bytes, frame.payloads(batched.body)))) == (
        BATCHES,
        ["café".encode()],
    )
    assert next_one("?records=true").json()["records"][0]["key"] == "k"
    assert avro.decode_records(next_one("?records=true", AVRO).body)[0].key == b"k"
    assert shop.fetch("?records=true").json()["records"] == []


def test_a_fetch_waits_for_a_message(shop: GroupClient) -> None:
    shop.make(0)

    async def story() -> Reply:
        waiting = asyncio.ensure_future(shop.ask("POST", f"{GROUP}/fetch?waitMs=60000"))
        while not shop.services.groups.live.all() or not shop.services.groups.live.all()[0].waiting:
            await asyncio.sleep(0)
        await shop.ask("POST", f"{ORDERS}/publish", {"messages": ["late"]})
        return await waiting

    assert payloads(shop.run(story())) == ["late"]


def test_who_has_gone_while_waiting_is_dealt_nothing(shop: GroupClient) -> None:
    shop.make(0)

    async def story() -> Reply:
        gone = asyncio.Event()
        leaving = asyncio.ensure_future(shop.exchange("POST", f"{GROUP}/fetch?waitMs=60000", [b""], gone=gone))
        while not shop.services.groups.live.all() or not shop.services.groups.live.all()[0].waiting:
            await asyncio.sleep(0)
        gone.set()
        await shop.ask("POST", f"{ORDERS}/publish", {"messages": ["late"]})
        await leaving
        return await shop.ask("POST", f"{GROUP}/fetch")

    reply = shop.run(story())
    assert (payloads(reply), reply.header("basalt-attempt")) == (["late"], "1")


def test_claims_ids_and_ranges_are_acknowledged_and_again_as_already(shop: GroupClient) -> None:
    shop.make()
    first = shop.fetch("?limit=4&member=w1")
    ids = ids_of(first)
    assert shop.post("acknowledge", {"ids": [ids[1]], "member": "w1"}) == {"acknowledged": 1, "already": 0}
    assert shop.post("acknowledge", {"claims": [claim_of(first)], "except": [ids[3]], "member": "w1"}) == {
        "acknowledged": 2,
        "already": 1,
    }
    assert shop.post("acknowledge", {"ids": [ids[1]]}) == {"acknowledged": 0, "already": 1}
    assert shop.shown()["floor"] == ids[2]
    shop.post("acknowledge", {"upTo": ids[3], "member": "w1"})
    assert shop.shown()["floor"] == ids[3]


def test_the_work_before_a_fetch_may_be_about_another_group(shop: GroupClient) -> None:
    shop.make()
    audit = GROUP.replace("billing", "audit")
    shop.call("PUT", audit, {})
    theirs = shop.fetch("?limit=3", group=audit)
    mine = shop.fetch("?limit=2", done(claim_of(theirs), group="audit"), JSON)
    assert payloads(mine) == ["m0", "m1"]
    assert shop.call("GET", audit).json()["floor"] == ids_of(theirs)[2]
    assert shop.shown()["floor"] == "00" * 20


def test_released_messages_come_again_and_count_an_attempt_unless_they_shall_not(shop: GroupClient) -> None:
    shop.make()
    first = shop.fetch("?limit=2")
    assert shop.post("release", {"claims": [claim_of(first)], "counts": False}) == {"released": 2}
    again = shop.fetch("?limit=2")
    assert (payloads(again), again.header("basalt-attempt")) == (["m0", "m1"], "1")
    shop.post("release", {"claims": [claim_of(again)], "delayMs": 5_000})
    assert payloads(shop.fetch("?limit=2")) == ["m2", "m3"]
    shop.pass_ms(5_000)
    third = shop.fetch("?limit=2")
    assert (payloads(third), third.header("basalt-attempt")) == (["m0", "m1"], "2")


def test_a_member_joins_lives_extends_its_claims_and_leaves(shop: GroupClient) -> None:
    shop.make()
    joined = shop.post("members/w1")
    assert (joined["claims"], joined["epoch"] > 0) == ([], True)
    claim = claim_of(shop.fetch(f"?limit=2&member=w1&epoch={joined['epoch']}"))
    shop.pass_ms(20_000)
    renewed = shop.post("members/w1", {"epoch": joined["epoch"], "extend": [claim, 999]})
    assert renewed == {**joined, "claims": [claim]}
    shown = shop.call("GET", f"{GROUP}/claims").json()["claims"][0]
    assert shown["untilMs"] == shop.clock.now_ms() + 300_000
    member = shop.call("GET", f"{GROUP}/members").json()["members"][0]
    assert (member["name"], member["claims"], member["expiresMs"]) == ("w1", 1, shop.clock.now_ms() + 30_000)
    assert shop.call("DELETE", f"{GROUP}/members/w1?epoch={joined['epoch']}").status == 200
    freed = shop.fetch("?limit=2")
    assert (payloads(freed), freed.header("basalt-attempt")) == (["m0", "m1"], "1")
    assert shop.call("GET", f"{GROUP}/members").json()["members"] == []


def test_an_older_process_of_a_member_is_fenced(shop: GroupClient) -> None:
    shop.make()
    older, newer = shop.post("members/w1"), shop.post("members/w1")
    assert newer["epoch"] > older["epoch"]
    for target, body in (
        ("members/w1", {"epoch": older["epoch"]}),
        (f"fetch?member=w1&epoch={older['epoch']}", b""),
        ("acknowledge", {"claims": [1], "member": "w1", "epoch": older["epoch"]}),
        ("release", {"claims": [1], "member": "w1", "epoch": older["epoch"]}),
    ):
        assert shop.call("POST", f"{GROUP}/{target}", body).code == "member_fenced"
    assert shop.call("DELETE", f"{GROUP}/members/w1?epoch={older['epoch']}").code == "member_fenced"
    assert [each["epoch"] for each in shop.call("GET", f"{GROUP}/members").json()["members"]] == [newer["epoch"]]


def test_a_seek_is_shown_first_and_then_done_and_audited(shop: GroupClient) -> None:
    shop.make()
    first = shop.fetch("?limit=4")
    shop.post("acknowledge", {"claims": [claim_of(first)]})
    second = shop.fetch("?limit=2")
    would = shop.post("seek?dryRun=true", {"to": ids_of(first)[1]})
    assert (would["repeated"], would["claimsRevoked"], would["dryRun"]) == (3, 1, True)
    assert ids_of(first)[0] <= would["floor"] < ids_of(first)[1]
    assert len(shop.call("GET", "/v1/admin/audit").json()) == 0
    sought = shop.post("seek?reason=again", {"to": ids_of(first)[1]})
    assert {**would, "dryRun": False, "round": sought["round"]} == sought
    assert sought["round"] != would["round"]
    assert shop.call("POST", f"{GROUP}/acknowledge", {"claims": [claim_of(second)]}).code == "claim_lost"
    again = shop.fetch("?limit=2")
    assert (payloads(again), again.header("basalt-round")) == (["m1", "m2"], str(sought["round"]))
    line = shop.call("GET", "/v1/admin/audit").json()[0]
    assert (line["act"], line["reason"]) == ("seek", "again")


def test_a_paused_group_deals_nothing_until_it_is_resumed(shop: GroupClient) -> None:
    shop.make()
    assert shop.post("pause?as=ada")["paused"] is True
    assert shop.fetch().header("basalt-waiting-for") == "paused"
    assert shop.post("resume")["paused"] is False
    assert len(payloads(shop.fetch())) == 10
    assert [line["act"] for line in shop.call("GET", "/v1/admin/audit").json()] == ["resume group", "pause group"]


def test_the_position_of_a_tracked_group_is_reported(shop: GroupClient) -> None:
    shop.make(mode="tracked")
    ids = ids_of(shop.poll(ORDERS))
    assert shop.call("POST", f"{GROUP}/position", {"upTo": ids[4], "by": "query 7"}).status == 200
    assert shop.shown()["floor"] == ids[4]
    assert shop.call("POST", f"{GROUP}/fetch").code == "conflict"


def test_groups_end_with_their_topic(shop: GroupClient) -> None:
    shop.make()
    shop.fetch()
    assert shop.call("DELETE", ORDERS).status == 200
    assert shop.call("POST", f"{GROUP}/fetch").code == "topic_not_found"
    shop.call("PUT", ORDERS, {})
    assert shop.call("POST", f"{GROUP}/fetch").code == "group_not_found"
    assert shop.call("GET", f"{ORDERS}/groups").json() == {"groups": [], "next": None}


def test_a_group_far_out_of_order_fills_its_gaps_first(shop: GroupClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledgements, "OWN_SPANS", 1)
    state = shop.services.transactions.state
    state.limits = replace(state.limits, group_spans_max=1)
    shop.make()
    page = shop.fetch("?limit=6")
    ids = ids_of(page)
    shop.post("release", {"claims": [claim_of(page)], "counts": False})
    shop.post("acknowledge", {"ids": ids[1:2]})
    shop.post("acknowledge", {"ids": ids[3:4]})
    before = shop.shown()
    refused = shop.call("POST", f"{GROUP}/acknowledge", {"ids": ids[5:6]})
    assert (refused.status, refused.code) == (503, "busy")
    assert "2 of them" in json.loads(refused.body)["detail"]
    assert shop.shown() == before
    dealt = [shop.fetch(), shop.fetch()]
    assert [payloads(each) for each in dealt] == [["m0"], ["m2"]]
    waits = shop.fetch()
    assert (payloads(waits), waits.header("basalt-waiting-for")) == ([], "spans")
    shop.post("acknowledge", {"claims": [claim_of(each) for each in dealt]})
    assert payloads(shop.fetch()) == ["m4", "m5", "m6", "m7", "m8", "m9"]


def test_what_up_to_covers_is_counted_in_messages_and_may_be_given_back(shop: GroupClient) -> None:
    shop.make(retryDelayMs=0)
    held = shop.fetch("?limit=6")
    ids, claim = ids_of(held), claim_of(held)
    asked = {"claims": [claim], "upTo": ids[3]}
    assert shop.post("acknowledge", {"claims": [claim], "except": ids[2:]}) == {"acknowledged": 2, "already": 0}
    back = shop.call("POST", f"{GROUP}/release", {"upTo": ids[3]})
    assert (back.status, back.code) == (409, "claim_lost"), "who says neither claim nor member has nothing there"
    assert shop.post("release", asked) == {"released": 4}
    assert payloads(shop.fetch("?limit=2")) == ["m2", "m3"]
    mine = shop.fetch("?limit=2&member=w1")
    assert payloads(mine) == ["m4", "m5"]
    member = {"member": "w1", "epoch": int(mine.header("basalt-member-epoch") or 0)}
    assert shop.post("release", {"upTo": ids[5], "except": ids[2:5], **member}) == {"released": 1}
    shop.post("seek", {"to": "start"})
    assert shop.post("acknowledge", {"upTo": ids[4]}) == {"acknowledged": 5, "already": 0}


def test_groups_need_the_builtin_manager(connect: Callable[[Settings], Client]) -> None:
    settings = Settings()
    client = connect(replace(settings, transactions=replace(settings.transactions, manager="external")))
    client.topic()
    client.publish(ORDERS, "before")
    work = {"acknowledge": [{"namespace": "shop", "topic": "orders", "group": "billing", "claims": [1]}]}
    publish = [{"namespace": "shop", "topic": "orders", "messages": ["never"]}]
    refused = [
        client.call("PUT", GROUP, {}), client.call("GET", GROUP), client.call("GET", f"{ORDERS}/groups"), client.call("DELETE", GROUP),
        client.call("POST", f"{GROUP}/fetch"), client.call("POST", f"{GROUP}/fetch", {**work, "publish": publish}),
        client.call("POST", f"{GROUP}/acknowledge", {"claims": [1]}), client.call("POST", f"{GROUP}/release", {"claims": [1]}),
        client.call("POST", f"{GROUP}/seek", {"to": "start"}), client.call("POST", f"{GROUP}/members/w1", {}),
    ]  # fmt: skip
    assert [(each.status, each.json().get("field")) for each in refused] == [(400, "transactions.manager")] * len(
        refused
    )
    assert client.call("POST", "/v1/transactions", {"work": {**work, "publish": publish}}).status in (400, 409)
    client.publish(ORDERS, "after")
    assert client.payloads(ORDERS) == ["before", "after"]
    assert client.runner.run(client.services.groups.upkeep.run()) == ([], 0, [])


def test_of_very_many_claims_the_oldest_are_shown(shop: GroupClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "CLAIMS_SHOWN_MAX", 2)
    shop.make()
    claims = [claim_of(shop.fetch("?limit=1")) for _ in range(3)]
    assert [each["claim"] for each in shop.call("GET", f"{GROUP}/claims").json()["claims"]] == claims[:2]


def test_a_group_with_a_pending_acknowledgement_is_deleted_only_by_force(shop: GroupClient) -> None:
    shop.make()
    begun = shop.begin()
    shop.post("acknowledge", {"claims": [claim_of(shop.fetch("?limit=2"))], "transaction": begun["id"]})
    assert shop.call("DELETE", GROUP).code == "conflict"
    assert shop.shown()["name"] == "billing"
    assert shop.call("DELETE", f"{GROUP}?force=true").status == 200
    assert shop.call("GET", GROUP).code == "group_not_found"


def test_a_renewal_extends_the_claims_that_it_names_alone(shop: GroupClient) -> None:
    shop.make()
    epoch = shop.post("members/w1")["epoch"]
    first, second = (claim_of(shop.fetch(f"?limit=2&member=w1&epoch={epoch}")) for _ in range(2))
    begun_ms = shop.clock.now_ms()
    shop.pass_ms(10_000)
    shop.post("members/w1", {"epoch": epoch, "extend": [second]})
    shown = {each["claim"]: each["untilMs"] for each in shop.call("GET", f"{GROUP}/claims").json()["claims"]}
    assert shown == {first: begun_ms + 300_000, second: begun_ms + 310_000}
