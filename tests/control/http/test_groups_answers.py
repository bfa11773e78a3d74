"""What calls on groups answer: each reason for an empty fetch, and the refusals and parameters of the rows of the calls' table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from basalt.settings import Settings
from tests.control.http.conftest import Client, Reply
from tests.control.http.group_client import GROUP, INVOICES, ORDERS, GroupClient, claim_of, done, ids_of, payloads


def nothing(reply: Reply) -> str | None:
    assert (payloads(reply), reply.header("basalt-claim"), reply.header("basalt-through")) == ([], None, None)
    return reply.header("basalt-waiting-for")


def keyed(shop: GroupClient, *keys: str, **options: Any) -> None:
    shop.make(0, mode="keyed", **options)
    records = [{"payload": f"{key}{number}", "key": key} for number, key in enumerate(keys)]
    assert shop.call("POST", f"{ORDERS}/records", {"records": records}).status == 200


def member(shop: GroupClient, name: str) -> str:
    """The query of a member that has joined."""
    return f"member={name}&epoch={shop.post(f'members/{name}')['epoch']}"


# Why there is nothing.


def test_there_may_be_no_messages_or_others_have_them(shop: GroupClient) -> None:
    shop.make(0)
    assert nothing(shop.fetch()) == "no_messages"
    shop.publish(ORDERS, "a")
    shop.fetch()
    assert nothing(shop.fetch()) == "claimed"


def test_what_a_transaction_published_early_holds_a_group_up_and_the_transaction_is_named(shop: GroupClient) -> None:
    shop.make(1)
    begun = shop.begin()
    shop.publish(ORDERS, "early", pointer=begun["writePointer"])
    shop.publish(ORDERS, "late")
    assert payloads(shop.fetch()) == ["m0"]
    assert nothing(shop.fetch()) == f"held {begun['id']}"
    shop.call("POST", f"/v1/transactions/{begun['id']}/commit")
    assert payloads(shop.fetch()) == ["early", "late"]


def test_a_keyed_group_is_held_up_alike(shop: GroupClient) -> None:
    shop.make(0, mode="keyed")
    begun = shop.begin()
    shop.publish(ORDERS, "early", pointer=begun["writePointer"])
    assert nothing(shop.fetch(f"?{member(shop, 'w1')}")) == f"held {begun['id']}"


def test_a_group_may_be_paused(shop: GroupClient) -> None:
    shop.make()
    shop.post("pause")
    assert nothing(shop.fetch()) == "paused"


@pytest.mark.parametrize("mode", ["shared", "keyed"])
def test_too_much_may_be_unacknowledged_and_who_holds_most_is_named(shop: GroupClient, mode: str) -> None:
    shop.make(4, mode=mode, unackedMax=3)
    who = member(shop, "w1")
    assert len(payloads(shop.fetch(f"?limit=4&{who}"))) == 3
    assert nothing(shop.fetch(f"?{who}")) == "unacked w1"


@pytest.mark.parametrize("mode", ["shared", "keyed", "stream"])
def test_what_came_back_is_delayed_for_so_many_milliseconds(shop: GroupClient, mode: str) -> None:
    shop.make(1, mode=mode, retryDelayMs=4_000)
    who = member(shop, "w1")
    first = shop.fetch(f"?{who}")
    shop.post("release", {"claims": [claim_of(first)], "member": "w1"})
    shop.pass_ms(1_500)
    assert nothing(shop.fetch(f"?{who}")) == "delayed 2500"
    shop.pass_ms(2_500)
    assert shop.fetch(f"?{who}").header("basalt-attempt") == "2"


def test_members_of_a_stream_stand_by_for_the_one_whose_turn_it_is(shop: GroupClient) -> None:
    shop.make(2, mode="stream")
    active, other = member(shop, "w1"), member(shop, "w2")
    assert payloads(shop.fetch(f"?limit=1&{active}")) == ["m0"]
    assert nothing(shop.fetch(f"?{other}")) == "standby"
    shown = {each["name"]: each["standby"] for each in shop.call("GET", f"{GROUP}/members").json()["members"]}
    assert shown == {"w1": False, "w2": True}
    shop.call("DELETE", f"{GROUP}/members/w1")
    assert payloads(shop.fetch(f"?{other}")) == ["m0", "m1"]


def test_a_parked_message_of_a_stream_holds_it_up(shop: GroupClient) -> None:
    shop.make(2, mode="stream", attemptsMax=1)
    shop.post("release", {"claims": [claim_of(shop.fetch("?limit=1"))]})
    assert nothing(shop.fetch()) == "parked"


def test_slots_that_moved_drain_and_the_members_tell_how_many_each_has(shop: GroupClient) -> None:
    keyed(shop, *2 * [f"k{number}" for number in range(3_000)], unackedMax=20_000)
    first = shop.fetch(f"?limit=3000&{member(shop, 'w1')}")
    assert len(payloads(first)) == 3_000
    assert shop.call("GET", f"{GROUP}/members").json()["members"][0]["slots"] == 1_024
    second = member(shop, "w2")
    assert nothing(shop.fetch(f"?{second}")) == "draining"
    assert [each["slots"] for each in shop.call("GET", f"{GROUP}/members").json()["members"]] == [512, 512]
    assert shop.post("members/w2", {"epoch": int(second.partition("epoch=")[2])})["slots"] == 512
    shop.post("acknowledge", {"claims": [claim_of(first)], "member": "w1"})
    assert 1_000 < len(payloads(shop.fetch(f"?{second}"))) < 2_000


def test_a_server_that_stops_deals_nothing_and_answers_who_waits(shop: GroupClient) -> None:
    shop.make(0)

    async def story() -> Reply:
        waiting = asyncio.ensure_future(shop.ask("POST", f"{GROUP}/fetch?waitMs=60000"))
        while not shop.services.groups.live.all() or not shop.services.groups.live.all()[0].waiting:
            await asyncio.sleep(0)
        shop.services.groups.live.stop_waiting()
        return await waiting

    assert nothing(shop.run(story())) == "stopping"


@pytest.mark.parametrize(
    "code", ["member_fenced", "transaction_not_found", "transaction_ended", "invalid_input", "conflict"]
)
def test_behind_a_work_that_was_done_the_code_of_what_failed_is_told(shop: GroupClient, code: str) -> None:
    shop.make()
    first = shop.fetch("?limit=2")
    member(shop, "w1")
    ended = shop.begin()["id"]
    shop.call("POST", f"/v1/transactions/{ended}/abort")
    query = {
        "member_fenced": "?member=w1&epoch=1", "transaction_not_found": f"?transaction={'f' * 32}", "transaction_ended": f"?transaction={ended}",
        "invalid_input": "?claimMs=43200001", "conflict": "",
    }[code]  # fmt: skip
    work = done(claim_of(first), publish=("a",))
    group = GROUP
    if code == "conflict":  # the work is of one group, the fetch of another, of which nothing is dealt
        group = f"{ORDERS}/groups/ledger"
        assert shop.call("PUT", group, {"mode": "tracked"}).status == 200
    reply = shop.call("POST", f"{group}/fetch{query}", work)
    if code == "transaction_not_found":  # an id that was never given here: found before anything is done
        assert (reply.code, shop.payloads(INVOICES), shop.shown()["floor"]) == (code, [], "00" * 20)
        return
    assert (reply.status, nothing(reply)) == (200, code)
    assert (shop.payloads(INVOICES), shop.shown()["floor"]) == (["a"], ids_of(first)[-1])


# The rows of the table.


def test_groups_are_as_many_as_the_setting_says(connect: Callable[[Settings], Client]) -> None:
    settings = Settings()
    client = connect(replace(settings, subscriptions=replace(settings.subscriptions, groups_max=1, members_max=1)))
    client.topic()
    assert client.call("PUT", GROUP, {}).status == 200
    busy = client.call("PUT", f"{ORDERS}/groups/other", {})
    assert (busy.status, busy.code) == (503, "busy")
    assert client.call("PUT", GROUP, {}).status == 200, "it is there"
    assert client.call("POST", f"{GROUP}/members/w1").status == 200
    full = client.call("POST", f"{GROUP}/members/w2")
    assert (full.status, full.code) == (503, "busy")
    work = {"publish": [{"namespace": "shop", "topic": "orders", "messages": ["a"]}]}
    behind = client.call("POST", f"{GROUP}/fetch?member=w2", work)
    assert (behind.status, behind.header("basalt-waiting-for"), client.payloads(ORDERS)) == (200, "busy", ["a"])


def test_of_groups_that_are_made_in_one_group_commit_as_many_are_made_as_may_be(
    connect: Callable[[Settings], Client],
) -> None:
    settings = Settings()
    client = connect(replace(settings, subscriptions=replace(settings.subscriptions, groups_max=3)))
    client.topic()

    async def story() -> list[int]:
        asked = [client.ask("PUT", f"{ORDERS}/groups/g{number}", {}) for number in range(8)]
        return sorted([reply.status for reply in await asyncio.gather(*asked)])

    assert client.run(story()) == [200] * 3 + [503] * 5
    assert len(client.call("GET", f"{ORDERS}/groups").json()["groups"]) == 3


def test_a_fetch_keeps_to_its_bytes_and_to_the_time_of_its_claim(shop: GroupClient) -> None:
    shop.make(0)
    shop.publish(ORDERS, *("x" * 100 for _ in range(10)))
    first = shop.fetch("?bytes=250&claimMs=7000")
    assert 1 <= len(payloads(first)) <= 3
    assert int(first.header("basalt-claim-until") or 0) == shop.clock.now_ms() + 7_000
    shop.pass_ms(7_000)
    shop.fetch()
    assert shop.call("POST", f"{GROUP}/acknowledge", {"claims": [claim_of(first)]}).code == "claim_lost"


def test_a_claim_that_is_acknowledged_again_is_counted_as_already(shop: GroupClient) -> None:
    shop.make()
    claim = claim_of(shop.fetch("?limit=4"))
    assert shop.post("acknowledge", {"claims": [claim]}) == {"acknowledged": 4, "already": 0}
    assert shop.post("acknowledge", {"claims": [claim]}) == {"acknowledged": 0, "already": 4}


@pytest.mark.parametrize("mode", ["keyed", "stream"])
def test_what_is_out_of_order_is_refused_with_what_is_before_it_and_dooms_nothing(shop: GroupClient, mode: str) -> None:
    if mode == "keyed":
        keyed(shop, "k", "k", "k")
    else:
        shop.make(3, mode=mode)
    who = member(shop, "w1")
    first, second = shop.fetch(f"?limit=1&{who}"), shop.fetch(f"?limit=1&{who}")
    plain = shop.call("POST", f"{GROUP}/acknowledge", {"claims": [claim_of(second)], "member": "w1"})
    assert (plain.status, plain.code) == (409, "acknowledge_order")
    assert f"claim {claim_of(first)} of w1" in plain.json()["detail"]
    if mode == "keyed":
        assert ids_of(first)[0] in plain.json()["detail"]
    begun = shop.begin()
    commit = f"/v1/transactions/{begun['id']}/commit"
    alone = done(claim_of(second), publish=("a",), member="w1")
    both = done(claim_of(first), claim_of(second), publish=("a",), member="w1")
    for call, work in (("/v1/transactions", {"work": alone}), (commit, alone), (f"{GROUP}/fetch?{who}", alone)):
        assert shop.call("POST", call, work).code == "acknowledge_order"
    assert (shop.payloads(INVOICES), shop.shown()["floor"]) == ([], "00" * 20)
    assert shop.call("POST", commit, both).status == 200
    assert (shop.payloads(INVOICES), shop.shown()["floor"]) == (["a"], ids_of(second)[-1])


def test_all_that_is_parked_is_unparked_at_once(shop: GroupClient) -> None:
    shop.make(3, attemptsMax=1)
    shop.post("release", {"claims": [claim_of(shop.fetch())]})
    assert nothing(shop.fetch()) == "no_messages"
    assert shop.post("unpark", {"all": True}) == {"unparked": 3}
    again = shop.fetch()
    assert (payloads(again), again.header("basalt-attempt")) == (["m0", "m1", "m2"], "1")
    assert shop.post("unpark", {"all": True}) == {"unparked": 0}


def test_another_mode_waits_until_nothing_is_unacknowledged(shop: GroupClient) -> None:
    shop.make(3)
    begun = shop.begin()
    first = shop.fetch()
    assert shop.call("PUT", f"{GROUP}/options", {"mode": "stream"}).code == "conflict"
    shop.post("acknowledge", {"claims": [claim_of(first)], "transaction": begun["id"]})
    assert shop.call("PUT", f"{GROUP}/options", {"mode": "stream"}).code == "conflict"
    shop.restart()
    assert shop.call("PUT", f"{GROUP}/options", {"mode": "stream"}).code == "conflict", "the log knows what is pending"
    assert shop.call("POST", f"/v1/transactions/{begun['id']}/commit").status == 200
    assert shop.call("PUT", f"{GROUP}/options", {"mode": "stream"}).json()["group"]["options"]["mode"] == "stream"


@pytest.mark.parametrize("mode", ["shared", "keyed", "stream"])
def test_a_fetch_that_joined_and_lost_its_answer_is_repeated_by_the_same_process(shop: GroupClient, mode: str) -> None:
    """It has no epoch yet; were it another process of its name, what it was dealt would come back, counted."""
    shop.make(4, mode=mode)
    first, again = (shop.fetch("?limit=2&member=w1", basalt_request_id="first") for _ in range(2))
    told = ("basalt-claim", "basalt-member-epoch", "basalt-attempt")
    assert [again.header(name) for name in told] == [first.header(name) for name in told]
    assert payloads(again) == payloads(first) == ["m0", "m1"]
    other = shop.fetch("?limit=2&member=w1", basalt_request_id="another-process")
    assert int(other.header("basalt-member-epoch") or 0) > int(first.header("basalt-member-epoch") or 0)
    late = shop.call("POST", f"{GROUP}/acknowledge", {"claims": [claim_of(first)], "member": "w1", "epoch": 1})
    assert late.code == "member_fenced"


def test_what_is_refused_makes_no_topic_for_dead_letters(shop: GroupClient) -> None:
    shop.make()
    shop.fetch()
    for target, code in ((GROUP, "group_exists"), (f"{GROUP}/options", "conflict")):
        assert shop.call("PUT", target, {"mode": "stream", "deadLetterTopic": "dead"}).code == code
    assert shop.call("GET", "/v1/namespaces/shop/topics/dead").code == "topic_not_found"
    assert shop.call("PUT", f"{GROUP}/options", {"deadLetterTopic": "dead"}).status == 200
    assert shop.call("GET", "/v1/namespaces/shop/topics/dead").status == 200


def test_a_group_too_many_makes_no_topic_for_dead_letters(connect: Callable[[Settings], Client]) -> None:
    settings = Settings()
    client = connect(replace(settings, subscriptions=replace(settings.subscriptions, groups_max=1)))
    client.topic()
    assert client.call("PUT", GROUP, {}).status == 200
    assert client.call("PUT", f"{ORDERS}/groups/other", {"deadLetterTopic": "dead"}).code == "busy"
    assert client.call("GET", "/v1/namespaces/shop/topics/dead").code == "topic_not_found"


def test_another_members_request_id_gets_nothing_of_its_claim(shop: GroupClient) -> None:
    shop.make(4)
    one, two = member(shop, "w1"), member(shop, "w2")
    found = [shop.fetch(f"?limit=2&{who}", basalt_request_id="1") for who in (one, two, two)]
    assert [payloads(each) for each in found] == [["m0", "m1"], ["m2", "m3"], ["m2", "m3"]]
    for who, each in (("w1", found[0]), ("w2", found[1])):
        assert shop.post("acknowledge", {"claims": [claim_of(each)], "member": who})["acknowledged"] == 2
