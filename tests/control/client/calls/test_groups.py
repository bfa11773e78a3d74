"""What each call of a group sends, and what a fetch makes of its answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from basalt.api.bodies.groups import AcknowledgeRequest, GroupInfo, GroupList, GroupOptions, Released, ReleaseRequest
from basalt.api.bodies.json import HexMessageId
from basalt.api.bodies.messages import Work, WorkAcknowledge
from basalt.api.codecs import avro, batches
from basalt.client.calls import groups
from basalt.client.calls.groups import GroupScope
from basalt.client.plans import Answer, Effect

HERE = "/v1/namespaces/shop/topics/orders/groups/billing"
ID = bytes(range(20))
HEX = ID.hex()
NONE, REPEATABLE, ONCE = Effect.NONE, Effect.REPEATABLE, Effect.ONCE
DEFAULTS = {
    "mode": "shared", "key": "key", "start": "start", "memberMs": 30_000, "claimMs": 300_000, "unackedMax": 10_000,
    "attemptsMax": 8, "retryDelayMs": 1_000, "retryDelayMsMax": 300_000, "deadLetterTopic": None, "expireMs": 0,
}  # fmt: skip

# plan, arguments, method and path, query, JSON body (None: none), effect
CALLS: list[tuple[Any, ...]] = [
    (groups.create, [], {"mode": "keyed", "dead_letter_topic": "dead"}, f"PUT {HERE}", {}, DEFAULTS | {"mode": "keyed", "deadLetterTopic": "dead"}, REPEATABLE),
    (groups.get, [], {}, f"GET {HERE}", {}, None, NONE),
    (groups.delete, [], {}, f"DELETE {HERE}", {}, None, ONCE),
    (groups.delete, [], {"force": True, "reason": "old", "by": "me"}, f"DELETE {HERE}", {"force": "true", "reason": "old", "as": "me"}, None, ONCE),
    (groups.acknowledge, [AcknowledgeRequest((HexMessageId(ID),), None, (7,), member="m", epoch=3, round=2)], {}, f"POST {HERE}/acknowledge", {}, {"ids": [HEX], "claims": [7], "member": "m", "epoch": 3, "round": 2}, REPEATABLE),
    (groups.release, [ReleaseRequest(claims=(7,), member="m", epoch=3, counts=False, reason="late")], {}, f"POST {HERE}/release", {}, {"claims": [7], "member": "m", "epoch": 3, "counts": False, "reason": "late"}, REPEATABLE),
    (groups.give_back, [], {"claims": [7], "ids": [HEX, ID], "delay_ms": 5}, f"POST {HERE}/release", {}, {"ids": [HEX, HEX], "claims": [7], "delayMs": 5}, REPEATABLE),
    (groups.sign_of_life, ["m 1", 0], {}, f"POST {HERE}/members/m%201", {}, {}, REPEATABLE),
    (groups.sign_of_life, ["m", 3, [7, 8]], {}, f"POST {HERE}/members/m", {}, {"epoch": 3, "extend": [7, 8]}, REPEATABLE),
    (groups.remove_member, ["m"], {"epoch": 3}, f"DELETE {HERE}/members/m", {"epoch": "3"}, None, REPEATABLE),
    (groups.members, [], {}, f"GET {HERE}/members", {}, None, NONE),
    (groups.claims, [], {}, f"GET {HERE}/claims", {}, None, NONE),
    (groups.messages, [], {"state": "parked", "limit": 5}, f"GET {HERE}/messages", {"state": "parked", "limit": "5"}, None, NONE),
    (groups.message, [ID], {}, f"GET {HERE}/messages/{HEX}", {}, None, NONE),
    (groups.message, [HEX], {}, f"GET {HERE}/messages/{HEX}", {}, None, NONE),
    (groups.seek, ["-1h"], {"dry_run": True, "force": True}, f"POST {HERE}/seek", {"dryRun": "true", "force": "true"}, {"to": "-1h"}, REPEATABLE),
    (groups.seek, [ID], {}, f"POST {HERE}/seek", {}, {"to": HEX}, REPEATABLE),
    (groups.seek, [1_700], {"reason": "again", "by": "me"}, f"POST {HERE}/seek", {"reason": "again", "as": "me"}, {"to": "@1700"}, REPEATABLE),
    (groups.seek, [None], {}, f"POST {HERE}/seek", {}, {"to": "start"}, REPEATABLE),
    (groups.pause, [], {"reason": "night"}, f"POST {HERE}/pause", {"reason": "night"}, None, REPEATABLE),
    (groups.resume, [], {}, f"POST {HERE}/resume", {}, None, REPEATABLE),
    (groups.unpark, [], {}, f"POST {HERE}/unpark", {}, {"all": True}, REPEATABLE),
    (groups.unpark, [[ID]], {}, f"POST {HERE}/unpark", {}, {"ids": [HEX]}, REPEATABLE),
    (groups.report_position, [ID], {"by": "spark"}, f"POST {HERE}/position", {}, {"upTo": HEX, "by": "spark"}, REPEATABLE),
]  # fmt: skip


@pytest.fixture
def group_scope(topic_scope) -> GroupScope:
    return groups.group(topic_scope, "billing")


def first_call(steps: Any) -> Any:
    """The call with which a plan begins."""
    return next(steps)


@pytest.mark.parametrize(
    ("plan", "args", "kwargs", "line", "query", "body", "effect"),
    CALLS,
    ids=[f"{row[0].__name__}-{number}" for number, row in enumerate(CALLS)],
)
def test_calls_of_a_group(group_scope, plan, args, kwargs, line, query, body, effect):
    call = first_call(plan(group_scope, *args, **kwargs))
    assert f"{call.method} {call.path}" == line
    assert dict(call.query) == query
    assert (json.loads(call.body) if call.body else None) == body
    assert call.effect is effect


def test_the_groups_of_a_topic_are_listed(topic_scope):
    call = first_call(groups.list_groups(topic_scope))
    assert f"{call.method} {call.path}" == "GET /v1/namespaces/shop/topics/orders/groups"
    assert call.effect is NONE


def test_the_groups_of_a_topic_are_listed_with_their_figures_page_by_page(topic_scope):
    steps = groups.list_groups(topic_scope, figures=True)
    assert dict(next(steps).query) == {"figures": "true"}
    first, second = (
        GroupInfo("shop", "orders", 1, name, 1, GroupOptions(), False, 0, HexMessageId(bytes(20)), 0, 0, 0, 0)
        for name in "ab"
    )
    call = steps.send(GroupList((first,), "b"))
    assert (call.path, dict(call.query)) == (
        "/v1/namespaces/shop/topics/orders/groups",
        {"figures": "true", "start": "b"},
    )
    with pytest.raises(StopIteration) as ended:
        steps.send(GroupList((second,)))
    assert ended.value.value == [first, second]


def test_more_claims_than_a_call_may_name_are_given_back_by_several(group_scope, monkeypatch):
    monkeypatch.setattr(groups, "ACKNOWLEDGED_CLAIMS_MAX", 2)
    steps = groups.give_back(group_scope, claims=[7, 8, 9], ids=[ID])
    assert json.loads(next(steps).body) == {"ids": [HEX], "claims": [7, 8]}
    assert json.loads(steps.send(Released(3)).body) == {"claims": [9]}
    with pytest.raises(StopIteration) as ended:
        steps.send(Released(1))
    assert ended.value.value == Released(4)


def test_a_change_keeps_the_options_that_it_does_not_name(group_scope):
    steps = groups.update(group_scope, claim_ms=60_000)
    next(steps)
    options = GroupOptions(mode="stream", attempts_max=3)
    floor = HexMessageId(bytes(20))
    info = GroupInfo("shop", "orders", 1, "billing", 1, options, False, 0, floor, 0, 0, 0, 0)
    call = steps.send(info)
    assert f"{call.method} {call.path}" == f"PUT {HERE}/options"
    assert json.loads(call.body) == DEFAULTS | {"mode": "stream", "attemptsMax": 3, "claimMs": 60_000}


def test_a_fetch_carries_the_work_before_it(group_scope):
    work = Work(acknowledge=[WorkAcknowledge("shop", "orders", "billing", claims=[7], member="m", epoch=3)])
    call = first_call(groups.fetch(group_scope, "m", 3, limit=5, bytes_max=9, wait_ms=100, claim_ms=60_000, work=work))
    assert f"{call.method} {call.path}" == f"POST {HERE}/fetch"
    assert dict(call.query) == {"member": "m", "epoch": "3", "limit": "5", "bytes": "9", "claimMs": "60000"}
    assert (call.wait_ms, call.effect, call.content_type) == (100, REPEATABLE, "avro/binary")
    (entry,) = avro.decode_work(call.body).acknowledge
    assert (entry.group, entry.claims, entry.member, entry.epoch) == ("billing", [7], "m", 3)
    bare = first_call(groups.fetch(group_scope, "m", 0))
    assert (dict(bare.query), bare.body, bare.content_type) == ({"member": "m"}, b"", None)


BATCHES = {"content-type": "application/vnd.basalt.batches"}


def test_a_fetch_answers_a_claim_with_its_messages(group_scope):
    call = first_call(groups.fetch(group_scope, "m", 3))
    body = b"".join([batches.START, batches.encode_list([ID], [b"a"]), batches.END])
    headers = {
        "basalt-claim": "7", "basalt-after": bytes(20).hex(), "basalt-through": HEX, "basalt-round": "2",
        "basalt-attempt": "3", "basalt-claim-until": "1700", "basalt-member-epoch": "4", "basalt-transaction": "12",
    }  # fmt: skip
    dealt = call.parse(Answer(200, BATCHES | headers, body))
    assert [message.payload for message in dealt.page] == [b"a"]
    assert (dealt.claim, dealt.after, dealt.through) == (7, bytes(20), ID)
    assert (dealt.round, dealt.attempt, dealt.until_ms, dealt.epoch) == (2, 3, 1_700, 4)
    assert (dealt.transaction, dealt.waiting_for) == ("12", None)


def test_an_empty_fetch_says_what_it_waits_for(group_scope):
    call = first_call(groups.fetch(group_scope, "m", 3))
    dealt = call.parse(Answer(200, BATCHES | {"basalt-waiting-for": "held 12"}, batches.START + batches.END))
    assert (dealt.claim, dealt.waiting_for, len(dealt.page)) == (None, "held 12", 0)


def test_an_answer_that_is_no_batches_is_none(group_scope):
    call = first_call(groups.fetch(group_scope, "m", 3))
    with pytest.raises(ValueError, match="no message batches"):
        call.parse(Answer(200, {"content-type": "text/html"}, b"<html>"))
