"""The groups of an owner hear from the log what becomes of transactions, and trust no memory that the log may contradict."""

from __future__ import annotations

from typing import Any

import pytest

from basalt.groups.owned_groups import OwnedGroups
from basalt.transactions.rules.edits import ReturnReason
from basalt.transactions.tellings import EndedInGroups
from tests.control.groups.conftest import Billing
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


@pytest.fixture
async def billing(shop: Wired) -> Billing:
    made = await Billing.made(shop)
    await shop.publish(A, "a", "b", "c")
    return made


def owned(billing: Billing) -> OwnedGroups:
    """The same groups, as those of an owner that follows."""
    groups: Any = billing.groups
    groups.__class__ = OwnedGroups
    return groups  # type: ignore[no-any-return]


async def test_claims_that_were_dealt_to_a_transaction_come_back_with_its_end(shop: Wired, billing: Billing) -> None:
    begun = await shop.transactions.begin()
    page = await billing.fetch(limit=2, transaction_id=begun.id)
    assert page.claim is not None
    groups = owned(billing)
    groups.hear(EndedInGroups(begun.id, ReturnReason.ABORTED, True, {}))
    while groups.desk.tasks:
        await next(iter(groups.desk.tasks))
    assert billing.live.dispatcher.claims.find(page.claim) is None or not len(billing.live.dispatcher.claims)
    assert [each.attempts for each in billing.live.state.returned] == [1]


async def test_what_somebody_else_ended_is_free_and_counts_no_attempt(shop: Wired, billing: Billing) -> None:
    begun = await shop.transactions.begin()
    await billing.fetch(limit=2, transaction_id=begun.id)
    owned(billing).hear(EndedInGroups(begun.id, None, False, {}))
    assert not len(billing.live.dispatcher.claims)
    assert billing.live.state.returned == []
    assert await billing.read() == ["a", "b", "c"]


@pytest.mark.parametrize("is_refused", [True, False])
async def test_claims_outlive_what_is_refused_and_not_what_nobody_knows(billing: Billing, is_refused: bool) -> None:
    page = await billing.fetch(limit=2)
    owned(billing)._unsettle([billing.live.number], is_refused)
    _ = billing.live.state
    found = billing.live.dispatcher.claims.find(page.claim or 0)
    assert (found is not None and found.end is None) == is_refused
