"""What operators are told of a group over HTTP: its figures, its messages and why one waits; and its series in /metrics."""

from __future__ import annotations

import pytest

from basalt.api.bodies.groups import GroupFigures
from basalt.groups.live_group import LiveGroup
from basalt.http import group_metrics
from basalt.operations.groups import inspection as group_inspection
from tests.control.http.group_client import GROUP, ORDERS, GroupClient, claim_of, ids_of

GROUPS = f"{ORDERS}/groups"


def series(shop: GroupClient, name: str) -> dict[str, float]:
    """The values of one metric, by its labels."""
    lines = shop.call("GET", "/metrics").body.decode().splitlines()
    found = (line.partition(name)[2].rpartition(" ") for line in lines if line.startswith((f"{name}{{", f"{name} ")))
    return {labels: float(value) for labels, _, value in found}


LABELS = 'group="billing",namespace="shop",topic="orders"'


def make_three(shop: GroupClient, messages: int = 0) -> None:
    shop.make(messages, f"{GROUPS}/c")
    for name in ("a", "b"):
        assert shop.call("PUT", f"{GROUPS}/{name}", {}).status == 200


def test_a_group_is_shown_with_its_figures(shop: GroupClient):
    shop.make()
    shop.fetch("?limit=4&member=w1")
    shop.pass_ms(2_500)
    figures = shop.shown()["figures"]
    assert (figures["lagMessages"], figures["exact"], figures["unread"], figures["claimed"]) == (10, True, 6, 4)
    assert figures["lagSeconds"] == 2.5
    assert (figures["acknowledgedMs"], figures["fetchedPerSecond"] > 0, figures["spans"]) == (None, True, 0)


def test_groups_are_listed_with_their_figures_as_many_as_are_counted_in_the_time_of_a_page(
    shop: GroupClient, monkeypatch: pytest.MonkeyPatch
):
    make_three(shop, messages=6)
    whole = shop.call("GET", f"{GROUPS}?figures=true").json()
    assert [(each["name"], each["figures"]["lagMessages"]) for each in whole["groups"]] == [
        ("a", 6),
        ("b", 6),
        ("c", 6),
    ]
    assert whole["next"] is None
    assert whole["groups"][0] == shop.call("GET", f"{GROUPS}/a").json()
    monkeypatch.setattr(group_inspection, "PAGE_MS", 0)
    pages, start = [], ""
    while start is not None:
        page = shop.call("GET", f"{GROUPS}?figures=true{start and f'&start={start}'}").json()
        pages.append([each["name"] for each in page["groups"]])
        start = page["next"]
    assert pages == [["a"], ["b"], ["c"]]


def test_a_list_of_groups_goes_on_where_its_limit_ended_it_and_without_one_is_whole(shop: GroupClient):
    make_three(shop)
    listed = [
        ([each["name"] for each in page["groups"]], page["next"], page["groups"][0]["figures"])
        for page in (shop.call("GET", f"{GROUPS}{query}").json() for query in ("", "?limit=2", "?limit=2&start=aa"))
    ]
    assert listed == [(["a", "b", "c"], None, None), (["a", "b"], "c", None), (["b", "c"], None, None)]
    assert shop.call("GET", f"{GROUPS}?start=z").json() == {"groups": [], "next": None}


def test_a_group_that_is_deleted_while_its_topic_s_are_counted_is_left_out(
    shop: GroupClient, monkeypatch: pytest.MonkeyPatch
):
    make_three(shop)
    groups, counted = shop.services.groups, group_inspection.GroupInspection.figures

    async def deleting(inspection: group_inspection.GroupInspection, live: LiveGroup) -> GroupFigures:
        found = await counted(inspection, live)
        if live.state.name == "a":
            await groups.delete(live.title, "b")
        return found

    monkeypatch.setattr(group_inspection.GroupInspection, "figures", deleting)
    assert [each["name"] for each in shop.call("GET", f"{GROUPS}?figures=true").json()["groups"]] == ["a", "c"]


def test_markers_are_no_part_of_the_lag(shop: GroupClient):
    shop.make(messages=0)
    marker = {"task": "t", "kind": "watermark", "taskCount": 1, "eventTimeMs": 5}
    assert shop.call("POST", "/v1/namespaces/shop/topics/orders/markers", marker).status == 200
    assert (shop.shown()["figures"]["lagMessages"], shop.shown()["figures"]["lagSeconds"]) == (0, 0)


def test_messages_are_listed_by_state_and_each_says_what_frees_it(shop: GroupClient):
    shop.make()
    fetched = shop.fetch("?limit=2&member=w1")
    first, second = ids_of(fetched)
    listed = shop.call("GET", f"{GROUP}/messages").json()["messages"]
    assert [(each["id"], each["state"], each["member"]) for each in listed] == [
        (first, "claimed", "w1"),
        (listed[1]["id"], "available", None),
    ]
    assert listed[0]["through"] == second
    assert shop.call("GET", f"{GROUP}/messages?state=available&limit=1").json()["messages"] == listed[1:]
    told = shop.call("GET", f"{GROUP}/messages/{second}").json()
    assert (told["state"], told["reason"], told["explanation"]) == ("claimed", "claimed", "member w1 works on it")
    assert told["claim"] == claim_of(fetched)
    assert told["untilMs"] == shop.clock.now_ms() + 300_000
    assert told["nextStep"] == "its acknowledgement or release, or the end of the claim"
    shop.post("acknowledge", {"ids": [first], "member": "w1"})
    assert shop.call("GET", f"{GROUP}/messages/{first}").json()["state"] == "acknowledged"


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        (f"{GROUP}/messages?state=lost", 400, "invalid_input"),
        (f"{GROUP}/messages?limit=0", 400, "invalid_input"),
        (f"{GROUP}/messages?limit=1001", 400, "invalid_input"),
        (f"{GROUP}/messages?limit=x", 400, "invalid_input"),
        (f"{GROUP}/messages?from=start", 400, "invalid_input"),
        (f"{GROUP}/messages/{'0' * 38}", 400, "invalid_input"),
        (f"{GROUP}/messages/{'x' * 40}", 400, "invalid_input"),
        (f"{GROUP}s/messages", 404, "group_not_found"),
        (f"{GROUP}s/messages/{'0' * 40}", 404, "group_not_found"),
    ],
)
def test_questions_that_make_no_sense_are_refused(shop: GroupClient, target: str, status: int, code: str):
    shop.make()
    before = shop.shown()
    reply = shop.call("GET", target)
    assert (reply.status, reply.code) == (status, code), reply.body
    assert shop.shown() == before


def test_an_id_that_no_message_has_is_told_as_such(shop: GroupClient):
    shop.make()
    absent = f"{shop.clock.now_ms():016x}" + "f" * 24
    told = shop.call("GET", f"{GROUP}/messages/{absent}").json()
    assert (told["state"], told["reason"]) == ("absent", "absent")


def test_metrics_tell_of_groups_that_nobody_works_for_and_count_what_they_do(shop: GroupClient):
    shop.make()
    assert series(shop, "basalt_groups") == {"": 1.0}
    assert series(shop, "basalt_group_lag_messages") == {f"{{{LABELS}}}": 10.0}
    assert series(shop, "basalt_group_members") == {f"{{{LABELS}}}": 0.0}
    fetched = shop.fetch("?limit=3&member=w1")
    again = shop.fetch("?limit=2&member=w2")
    assert (
        series(shop, "basalt_group_unacknowledged")['{group="billing",namespace="shop",state="claimed",topic="orders"}']
        == 5.0
    )
    shop.post("acknowledge", {"claims": [claim_of(fetched)], "member": "w1"})
    shop.post("release", {"claims": [claim_of(again)], "member": "w2"})
    refused = shop.call("POST", f"{GROUP}/acknowledge", {"claims": [claim_of(again)], "member": "w2"})
    assert refused.code == "claim_lost"
    assert series(shop, "basalt_group_fetched_total") == {f"{{{LABELS}}}": 5.0}
    assert series(shop, "basalt_group_acknowledged_total") == {f"{{{LABELS}}}": 3.0}
    assert series(shop, "basalt_group_conflicts_total") == {f"{{{LABELS}}}": 1.0}
    returned = series(shop, "basalt_group_returned_total")
    assert returned == {'{group="billing",namespace="shop",reason="released",topic="orders"}': 2.0}
    assert series(shop, "basalt_group_lag_messages") == {f"{{{LABELS}}}": 7.0}


def test_messages_of_a_transaction_count_when_it_commits_and_as_returned_when_it_does_not(shop: GroupClient):
    shop.make()
    for end, name in (("commit", "acknowledged"), ("abort", "returned")):
        fetched = shop.fetch("?limit=2&member=w1")
        transaction = shop.call("POST", "/v1/transactions").json()["id"]
        shop.post("acknowledge", {"claims": [claim_of(fetched)], "member": "w1", "transaction": transaction})
        assert 2.0 not in series(shop, f"basalt_group_{name}_total").values()
        assert shop.call("POST", f"/v1/transactions/{transaction}/{end}").status == 200
        assert 2.0 in series(shop, f"basalt_group_{name}_total").values()


def test_beyond_the_groups_that_are_shown_one_series_stands_for_all(shop: GroupClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group_metrics, "LOOKED_AT", 1)
    shop.make()
    shop.call("PUT", f"{GROUP}2", {})
    shop.app.metrics._groups._series = group_metrics.GroupSeries(shown_max=1)
    shop.fetch("?limit=3&member=w1")
    shop.fetch("?limit=2&member=w1", group=f"{GROUP}2")
    other = '{group="_other",namespace="_other",topic="_other"}'
    assert series(shop, "basalt_group_fetched_total") == {f"{{{LABELS}}}": 3.0, other: 2.0}
    assert series(shop, "basalt_group_members")[other] == 1.0
    assert series(shop, "basalt_group_lag_messages") == {f"{{{LABELS}}}": 10.0}, "nobody counts what is not shown"
