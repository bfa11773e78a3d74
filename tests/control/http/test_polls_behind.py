"""Calls about topics at a server that follows the coordinator: here its manager takes itself for one that is behind, and need not be."""

from __future__ import annotations

from typing import Any

import pytest

from basalt.access.policy import Caller, Policy
from basalt.errors import CoordinatorUnavailableError
from basalt.http.app import build_app
from basalt.transactions.manager import TransactionManager
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from tests.control.http.conftest import Client
from tests.control.http.test_transactions_owners import ETL, MALLORY, may

COMMITTED = "?isolation=committed"


class Link:
    """Counts what the coordinator is asked, and tells whether it answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.answers = True
        monkeypatch.setattr(TransactionManager, "follows", True)
        monkeypatch.setattr(TransactionManager, "view_age_ms", 1_500.25)
        monkeypatch.setattr(TransactionManager, "ask", self.ask)

    async def ask(self) -> None:
        self.asked += 1
        if not self.answers:
            raise CoordinatorUnavailableError("there is no link")


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    return Link(monkeypatch)


def test_a_held_poll_tells_how_old_the_view_is_where_no_newer_one_came(client: Client, link: Link):
    path, begun = client.topic(), client.begin()
    client.publish(path, "one")
    client.publish(path, "two", pointer=begun["writePointer"])
    reply = client.poll(path, COMMITTED)
    assert (reply.header("basalt-held-by"), reply.header("basalt-view-age")) == (begun["id"], None)
    link.answers = False
    reply = client.poll(path, COMMITTED)
    assert [message["payload"] for message in reply.json()] == ["one"]
    assert (reply.header("basalt-held-by"), reply.header("basalt-view-age")) == (begun["id"], "1500")
    assert client.call("GET", f"{path}/records{COMMITTED}").header("basalt-view-age") == "1500"
    assert client.payloads(path, "?isolation=uncommitted") == ["one", "two"]
    metrics = client.call("GET", "/metrics").body.decode()
    assert "basalt_view_age_seconds 1.50025" in metrics
    assert 'basalt_holds_asked_total{outcome="answered"} 1.0' in metrics
    assert 'basalt_holds_asked_total{outcome="unanswered"} 2.0' in metrics


def test_a_read_under_a_transaction_is_asked_of_the_coordinator_first(client: Client, link: Link):
    """It may have begun just now, have a new checkpoint, or have ended."""
    path, own = client.topic(), client.begin()
    client.publish(path, "own", pointer=own["writePointer"])
    assert client.payloads(path, f"?transaction={own['id']}") == ["own"]
    assert link.asked == 1
    link.answers = False
    reply = client.poll(path, f"?transaction={own['id']}")
    assert (reply.status, reply.json()["code"]) == (503, "coordinator_unavailable")


def test_who_holds_a_topic_is_told_by_a_view_that_is_new(client: Client, link: Link):
    path, begun = client.topic(), client.begin()
    client.publish(path, "one", pointer=begun["writePointer"])
    assert client.call("GET", f"{path}/holder").json()["heldBy"] == begun["id"]
    assert link.asked == 2  # once for the row, and once for the transaction


def test_a_transaction_that_the_view_does_not_know_is_asked_for_before_somebody_is_refused(
    client: Client, link: Link, monkeypatch: pytest.MonkeyPatch
):
    path = client.topic()
    policy = Policy([*may(ETL), *may(MALLORY)], superusers=["token:root"])
    client.app = build_app(client.services, Caller(ETL, policy))
    begun = client.begin()
    known: Any = TransactionProposals.belonging
    monkeypatch.setattr(TransactionProposals, "belonging", lambda state, of: known(state, of) if link.asked else None)
    body = {"transactionWritePointer": begun["writePointer"], "messages": ["one"]}
    assert client.call("POST", f"{path}/publish", body).status == 200
    assert link.asked == 1
    link.asked = 0
    assert client.payloads(path, f"?transaction={begun['id']}") == ["one"]
    client.app = build_app(client.services, Caller(MALLORY, policy))
    link.asked = 0
    assert client.call("POST", f"{path}/store", body).status == 403
    assert link.asked == 1
