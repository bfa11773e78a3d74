"""Refusals: counted one by one, told once a minute, and bounded."""

from __future__ import annotations

import logging

from basalt.access import refusals as module
from basalt.access.policy import Caller, Policy
from basalt.access.principal import parse_principal
from basalt.access.refusals import Refusals
from basalt.access.resources import topic
from basalt_engine.clock import ManualClock


def test_like_refusals_of_a_minute_are_one_line_with_their_number(caplog):
    clock = ManualClock()
    refusals = Refusals(clock, enforced=True)
    with caplog.at_level(logging.WARNING, "basalt.access"):
        for _ in range(5):
            refusals.note("token:etl", "write", "topic:shop:orders")
        clock.advance(60_000)
        refusals.note("token:etl", "write", "topic:shop:orders")
    assert [record.message for record in caplog.records] == [
        "token:etl was refused write on topic:shop:orders, 1 times",
        "token:etl was refused write on topic:shop:orders, 5 times",
    ]
    assert +refusals.counts == {("write", "topic"): 6}
    (found,) = refusals.newest(10)
    assert (found.count, found.last_ms - found.first_ms) == (6, 60_000)


def test_of_very_many_the_longest_unseen_goes(monkeypatch):
    monkeypatch.setattr(module, "NOTED_MAX", 3)
    refusals = Refusals(ManualClock(), enforced=True)
    for name in ("a", "b", "c", "a", "d"):
        refusals.note(f"token:{name}", "read", "cluster")
    assert [each.principal for each in refusals.newest(10)] == ["token:d", "token:a", "token:c"]
    assert [each.principal for each in refusals.newest(1)] == ["token:d"]


def test_a_caller_is_let_through_where_rights_are_not_enforced_and_has_the_right_no_more_than_before():
    refusals = Refusals(ManualClock(), enforced=False)
    caller = Caller(parse_principal("token:etl"), Policy(), refusals=refusals)
    orders = topic("shop", "orders")
    caller.must("write", orders)
    assert caller.may("write", orders)
    assert not caller.has("write", orders)
    assert not caller.may_give(["write"], orders)
    assert [(each.verb, each.count) for each in refusals.newest(9)] == [("write", 2)]


def test_names_that_could_forge_a_line_are_escaped():
    refusals = Refusals(ManualClock(), enforced=False)
    Caller(parse_principal("token:etl"), Policy(), refusals=refusals).must("read", topic("shop", "a\nb"))
    assert "\n" not in refusals.newest(1)[0].resource
