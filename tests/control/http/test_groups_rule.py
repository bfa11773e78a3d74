"""What may happen to a message in a group, event by event and state by state, claims included: as a member sees it.

The same events over the states that the log knows: tests/control/transactions/rules/test_acknowledgements.py. Both stand in the table of
docs/operations/groups-shown.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from basalt.operations.jobs import end_late
from tests.control.http.conftest import Reply
from tests.control.http.group_client import GROUP, ORDERS, GroupClient, claim_of, done, ids_of, payloads

MS = 30_000  # of a lease, and of a transaction
STATES = ("available", "claimed", "another's", "delayed", "parked", "pending", "acknowledged")
OUTCOMES = ("commits", "aborts", "times out")


class Rule:
    """Message m0 of a group, which w1 acknowledges and gives back, and those that come in between."""

    def __init__(self, shop: GroupClient, state: str, **options: Any) -> None:
        self.shop = shop
        shop.make(3, **{"retryDelayMs": 60_000, "attemptsMax": 1 if state == "parked" else 8, **options})
        self.id = shop.poll(ORDERS).json()[0]["id"].encode("latin-1").hex()
        self.claim = 0
        self.holder: Any = None  # the transaction in which it is pending
        if state in ("claimed", "another's"):
            self.claim = claim_of(shop.fetch(f"?limit=1&member={'w1' if state == 'claimed' else 'w2'}"))
        elif state in ("delayed", "parked"):
            shop.post("release", {"claims": [claim_of(shop.fetch("?limit=1"))]})
        elif state == "pending":
            self.holder = shop.begin(owner="holder")
            self.acknowledge(self.holder["id"])
        elif state == "acknowledged":
            self.acknowledge()
        assert self.state() == {"another's": "claimed"}.get(state, state)

    @property
    def named(self) -> dict[str, Any]:
        """The message as w1 names it."""
        return {"member": "w1", "ids": [self.id]}

    def end(self, call: str, **how: Any) -> Any:
        """The answer to w1, or its code."""
        reply = self.shop.call("POST", f"{GROUP}/{call}", {**self.named, **how})
        return reply.json() if reply.status == 200 else reply.code

    def acknowledge(self, transaction: str | None = None) -> Any:
        return self.end("acknowledge", **({} if transaction is None else {"transaction": transaction}))

    def shown(self) -> Any:
        return self.shop.call("GET", f"{GROUP}/messages/{self.id}").json()

    def state(self) -> str:
        state: str = self.shown()["state"]
        return state

    def commit(self, transaction: Any) -> Reply:
        return self.shop.call("POST", f"/v1/transactions/{transaction['id']}/commit")


@pytest.mark.parametrize("state", STATES)
def test_a_fetch_is_dealt_what_nobody_has(shop: GroupClient, state: str) -> None:
    rule = Rule(shop, state)
    is_free = state == "available"
    assert payloads(shop.fetch("?limit=1&member=w3")) == ["m0" if is_free else "m1"]
    assert rule.state() == ("claimed" if is_free or state == "another's" else state)
    if state in ("delayed", "parked"):
        shop.pass_ms(60_000)
        assert payloads(shop.fetch("?limit=1")) == ["m0" if state == "delayed" else "m2"]


@pytest.mark.parametrize("state", STATES)
def test_a_plain_acknowledgement(shop: GroupClient, state: str) -> None:
    rule = Rule(shop, state)
    refused = {"another's": "claim_lost", "pending": "acknowledge_conflict"}.get(state)
    already = state == "acknowledged"
    assert rule.acknowledge() == (refused or {"acknowledged": not already, "already": already})
    assert rule.state() == {"another's": "claimed", "pending": "pending"}.get(state, "acknowledged")
    if refused is None:
        shop.pass_ms(60_000)
        assert payloads(shop.fetch("?limit=1")) == ["m1"], "it is done, and never dealt again"


@pytest.mark.parametrize("state", STATES)
def test_an_acknowledgement_in_a_transaction(shop: GroupClient, state: str) -> None:
    rule, transaction = Rule(shop, state), shop.begin()
    told = rule.acknowledge(transaction["id"])
    if state == "another's":
        assert (told, rule.state(), rule.commit(transaction).status) == ("claim_lost", "claimed", 200)
    elif state in ("pending", "acknowledged"):
        assert (told, rule.state()) == ("transaction_conflict", state)
        lost = rule.commit(transaction)
        assert (lost.status, lost.code) == (409, "transaction_conflict")
        assert f"message {rule.id} of group billing" in lost.json()["detail"]
        if rule.holder is not None:
            assert (rule.commit(rule.holder).status, rule.state()) == (200, "acknowledged")
    else:
        assert (told["acknowledged"], rule.state()) == (1, "pending")
        assert (rule.commit(transaction).status, rule.state()) == (200, "acknowledged")


def test_what_is_pending_in_a_transaction_is_its_own(shop: GroupClient) -> None:
    rule = Rule(shop, "pending")
    assert rule.acknowledge(rule.holder["id"])["acknowledged"] == 1
    assert (rule.commit(rule.holder).status, rule.state()) == (200, "acknowledged")


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_a_release(shop: GroupClient, state: str, counts: bool) -> None:
    rule = Rule(shop, state)
    refused = {"another's": "claim_lost", "pending": "acknowledge_conflict"}.get(state)
    assert rule.end("release", counts=counts) == (refused or {"released": int(state == "claimed")})
    came_back = "delayed" if counts else "available"
    assert rule.state() == {"claimed": came_back, "another's": "claimed"}.get(state, state)
    if state == "claimed":
        shop.pass_ms(60_000)
        again = shop.fetch("?limit=1")
        assert (payloads(again), again.header("basalt-attempt")) == (["m0"], "2" if counts else "1")


def test_a_claim_is_not_given_back_once_all_of_it_is_pending(shop: GroupClient) -> None:
    rule, transaction = Rule(shop, "claimed"), shop.begin()
    shop.post("acknowledge", {"claims": [rule.claim], "member": "w1", "transaction": transaction["id"]})
    refused = shop.call("POST", f"{GROUP}/release", {"claims": [rule.claim], "member": "w1"})
    assert (refused.code, rule.state()) == ("acknowledge_conflict", "pending")
    assert rule.commit(transaction).status == 200
    assert shop.post("release", {"claims": [rule.claim], "member": "w1"}) == {"released": 0}


def run_out(rule: Rule) -> None:
    rule.shop.pass_ms(300_000)
    rule.shop.fetch("?limit=1&member=w3")


def lose_the_member(rule: Rule) -> None:
    rule.shop.pass_ms(MS)
    rule.shop.fetch("?limit=1&member=w3")


def replace_the_member(rule: Rule) -> None:
    rule.shop.post("members/w1")
    rule.shop.fetch("?limit=1&member=w3")


def let_the_member_leave(rule: Rule) -> None:
    assert rule.shop.call("DELETE", f"{GROUP}/members/w1").status == 200


@pytest.mark.parametrize(
    ("end", "state"),
    [(run_out, "delayed"), (lose_the_member, "delayed"), (replace_the_member, "delayed"), (let_the_member_leave, "available")],
)  # fmt: skip
def test_the_end_of_a_claim(shop: GroupClient, end: Callable[[Rule], None], state: str) -> None:
    rule = Rule(shop, "claimed", memberMs=600_000 if end is run_out else MS)
    end(rule)
    assert rule.state() == state
    shop.pass_ms(60_000)
    again = shop.fetch("?limit=1")
    assert (payloads(again), again.header("basalt-attempt")) == (["m0"], "1" if state == "available" else "2")


@pytest.mark.parametrize("end", [run_out, lose_the_member, replace_the_member, let_the_member_leave])
def test_what_is_pending_outlives_its_claim(shop: GroupClient, end: Callable[[Rule], None]) -> None:
    rule, transaction = Rule(shop, "claimed"), shop.begin(timeoutMs=600_000)
    shop.post("acknowledge", {"claims": [rule.claim], "member": "w1", "transaction": transaction["id"]})
    end(rule)
    assert rule.state() == "pending"
    assert (rule.commit(transaction).status, rule.state()) == (200, "acknowledged")


def end_transaction(shop: GroupClient, transaction: Any, end: str) -> None:
    if end == "times out":
        shop.pass_ms(MS)
        shop.run(end_late(shop.services.transactions, shop.clock))
    else:
        assert shop.call("POST", f"/v1/transactions/{transaction['id']}/{end[:-1]}").status == 200


@pytest.mark.parametrize("end", OUTCOMES)
def test_the_end_of_the_transaction_that_was_dealt_a_message(shop: GroupClient, end: str) -> None:
    rule, transaction = Rule(shop, "available", memberMs=600_000), shop.begin(timeoutMs=MS)
    claim = claim_of(shop.fetch(f"?limit=1&member=w1&transaction={transaction['id']}"))
    end_transaction(shop, transaction, end)
    assert rule.state() == ("available" if end == "commits" else "delayed")
    assert shop.call("POST", f"{GROUP}/acknowledge", {"claims": [claim], "member": "w1"}).code == "claim_lost"
    shop.pass_ms(60_000)
    again = shop.fetch("?limit=1")
    assert (payloads(again), again.header("basalt-attempt")) == (["m0"], "1" if end == "commits" else "2")


@pytest.mark.parametrize("end", OUTCOMES)
def test_the_end_of_the_transaction_in_which_it_is_pending(shop: GroupClient, end: str) -> None:
    """Who waits for a message hears of it at once."""
    rule = Rule(shop, "pending", retryDelayMs=0)
    shop.post("acknowledge", {"claims": [claim_of(shop.fetch())]})

    async def story() -> Reply:
        waiting = asyncio.ensure_future(shop.ask("POST", f"{GROUP}/fetch?waitMs=60000"))
        while not shop.services.groups.live.all()[0].waiting:
            await asyncio.sleep(0)
        if end == "times out":
            shop.pass_ms(MS)
            await end_late(shop.services.transactions, shop.clock)
        else:
            await shop.ask("POST", f"/v1/transactions/{rule.holder['id']}/{end[:-1]}")
        if end == "commits":
            await shop.ask("POST", f"{ORDERS}/publish", {"messages": ["m3"]})
        return await waiting

    answered = shop.run(story())
    assert payloads(answered) == ["m3" if end == "commits" else "m0"]
    assert (answered.header("basalt-attempt"), rule.state()) == (
        ("1", "acknowledged") if end == "commits" else ("2", "claimed")
    )


@pytest.mark.parametrize("to", ["start", "end"])
@pytest.mark.parametrize("state", STATES)
def test_a_seek(shop: GroupClient, state: str, to: str) -> None:
    rule = Rule(shop, state)
    if rule.holder is not None:
        refused = shop.call("POST", f"{GROUP}/seek", {"to": to})
        assert (refused.code, rule.state(), "owner holder" in refused.json()["detail"]) == ("conflict", "pending", True)
        assert shop.post("seek?force=true", {"to": to})["doomed"] == [rule.holder["id"]]
        assert rule.commit(rule.holder).code == "transaction_conflict"
    else:
        assert shop.post("seek", {"to": to})["claimsRevoked"] == bool(rule.claim)
    assert rule.state() == ("available" if to == "start" else "acknowledged")
    if rule.claim:
        member = "w1" if state == "claimed" else "w2"
        late = shop.call("POST", f"{GROUP}/acknowledge", {"claims": [rule.claim], "member": member})
        assert late.code == "claim_lost"
    again = shop.fetch("?limit=1")
    assert (payloads(again), again.header("basalt-attempt")) == ((["m0"], "1") if to == "start" else ([], None))


@pytest.mark.parametrize("sought", [0, 2])
def test_what_was_dealt_by_a_group_that_was_deleted_is_void_in_one_of_its_name(shop: GroupClient, sought: int) -> None:
    shop.make(3)
    dealt = shop.fetch("?limit=2&member=w1")
    assert shop.call("DELETE", GROUP).status == 200
    assert shop.call("PUT", GROUP, {}).status == 200
    rounds = {dealt.header("basalt-round"), *(str(shop.post("seek", {"to": "start"})["round"]) for _ in range(sought))}
    assert len(rounds) == 1 + sought
    by_ids = {"ids": ids_of(dealt), "member": "w1", "round": int(dealt.header("basalt-round") or 0)}
    assert shop.call("POST", f"{GROUP}/acknowledge", by_ids).code == "claim_lost"
    assert payloads(shop.fetch("")) == ["m0", "m1", "m2"]


@pytest.mark.parametrize("state", STATES)
def test_a_one_shot_acknowledges_what_nobody_else_has_or_has_done(shop: GroupClient, state: str) -> None:
    """Its outputs are there exactly when its message is its own."""
    rule = Rule(shop, state)
    work = done(publish=("a",), member="w1", ids=[bytes.fromhex(rule.id).decode("latin-1")])
    reply = shop.call("POST", "/v1/transactions", {"work": work})
    refused = {"another's": "claim_lost", "pending": "transaction_conflict", "acknowledged": "transaction_conflict"}
    assert (reply.status == 200) == (state not in refused)
    assert reply.status == 200 or reply.code == refused[state]
    assert shop.payloads("/v1/namespaces/shop/topics/invoices") == (["a"] if reply.status == 200 else [])
    assert rule.state() == {"another's": "claimed", "pending": "pending"}.get(state, "acknowledged")


@pytest.mark.parametrize("twice", ["its id", "its claim", "both"])
def test_what_is_named_twice_in_a_call_happens_once(shop: GroupClient, twice: str) -> None:
    rule = Rule(shop, "claimed", attemptsMax=3)
    named: dict[str, Any] = {
        "its id": {"ids": [rule.id, rule.id]},
        "its claim": {"claims": [rule.claim, rule.claim]},
        "both": {"claims": [rule.claim], "ids": [rule.id]},
    }[twice]
    assert shop.post("release", {"member": "w1", **named}) == {"released": 1}
    assert (rule.state(), rule.shown()["attempts"]) == ("delayed", 1)
    shop.pass_ms(60_000)
    again = {"its claim": claim_of(shop.fetch("?limit=1&member=w1"))}
    if twice != "its id":
        named["claims"] = [again["its claim"]] * len(named["claims"])
    assert shop.post("acknowledge", {"member": "w1", **named}) == {"acknowledged": 1, "already": 0}
    shop.publish(ORDERS, "m3")
    assert payloads(shop.fetch()) == ["m1", "m2", "m3"]
