"""What operators see of who works on what: the slots of a keyed group, and how far each is behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from basalt.groups import attendance
from basalt.groups.attendance import SLOT_LOOKS_MAX
from basalt.groups.keyed.slots import SLOTS
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from tests.control.http.group_client import GROUP, GroupClient, claim_of


@pytest.fixture
def keyed() -> Iterator[GroupClient]:
    """A keyed group of nine messages, each of a key of its own."""
    with asyncio.Runner() as runner:
        services = runner.run(open_services(Settings(), None, store=MemoryStore(), clock=ManualClock()))
        client = GroupClient(services, runner)
        client.make(9, mode="keyed")
        yield client
        runner.run(services.close())


def slots(client: GroupClient, query: str = "") -> dict:
    reply = client.call("GET", f"{GROUP}/slots{query}")
    assert reply.status == 200, reply.body
    return reply.json()


def test_what_was_read_ahead_is_told_by_slot_the_furthest_behind_first(keyed: GroupClient) -> None:
    assert slots(keyed) == {"mode": "keyed", "slots": [], "through": None, "leftOut": 0, "exact": True}
    keyed.pass_ms(5_000)
    claim = claim_of(keyed.fetch("?limit=2&member=w1"))
    found = slots(keyed)["slots"]
    assert (sum(each["messages"] for each in found), sum(each["claimed"] for each in found)) == (9, 2)
    assert {(each["owner"], each["lagSeconds"], each["draining"]) for each in found} == {("w1", 5.0, None)}
    assert [each["oldest"] for each in found] == sorted(each["oldest"] for each in found)
    one = slots(keyed, "?limit=1")
    assert (one["slots"], one["leftOut"]) == (found[:1], len(found) - 1)
    keyed.post("acknowledge", {"claims": [claim]})
    assert sum(each["messages"] for each in slots(keyed)["slots"]) == 7
    assert keyed.call("GET", f"{GROUP}/slots?limit={SLOTS + 1}").status == 400


def test_a_slot_that_moved_while_it_was_worked_on_names_who_it_drains_from(keyed: GroupClient) -> None:
    keyed.fetch("?member=w1")
    keyed.fetch("?member=w2")
    moved = [each for each in slots(keyed)["slots"] if each["owner"] == "w2"]
    assert moved
    assert {each["draining"] for each in moved} == {"w1"}


def test_looking_changes_nothing(keyed: GroupClient) -> None:
    claim = claim_of(keyed.fetch("?limit=3&member=w1"))
    for _ in range(2):
        slots(keyed)
    keyed.post("release", {"claims": [claim], "counts": False})
    slots(keyed)
    assert len(keyed.fetch("?member=w1").json()) == 9


def test_no_more_is_looked_at_than_takes_a_moment_and_that_is_told(
    keyed: GroupClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed.fetch("?limit=1&member=w1")
    assert SLOT_LOOKS_MAX < 1_000_000
    monkeypatch.setattr(attendance, "SLOT_LOOKS_MAX", 4)
    found = slots(keyed)
    assert (sum(each["messages"] for each in found["slots"]), found["exact"]) == (4, False)


def test_a_group_of_another_mode_has_no_slots(keyed: GroupClient) -> None:
    keyed.call("PUT", GROUP.replace("billing", "mail"), {"mode": "stream"})
    reply = keyed.call("GET", f"{GROUP.replace('billing', 'mail')}/slots").json()
    assert (reply["mode"], reply["slots"]) == ("stream", [])
