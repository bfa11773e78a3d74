"""What the coordinator does for the scheduler, across the bounds of one call."""

from __future__ import annotations

import pytest

from basalt.transactions.rules import transaction_proposals
from basalt.transactions.rules.transaction import State
from tests.wiring import Wired

pytestmark = pytest.mark.anyio


async def test_all_whose_time_is_up_end_however_many_one_call_of_the_rules_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transaction_proposals, "EXPIRED_MAX", 2)
    shop = await Wired.start()
    late = [await shop.transactions.begin(timeout_ms=1_000, external_writes=number % 2 == 0) for number in range(7)]
    later = await shop.transactions.begin()
    shop.clock.advance(1_000)
    assert await shop.transactions.expire() == len(late)
    ends = [(await shop.transactions.outcome(one.id)).state for one in late]
    assert ends == [State.INVALID if number % 2 == 0 else State.ABORTED for number in range(7)]
    assert await shop.transactions.list() == [later]
    assert await shop.transactions.expire() == 0


async def test_each_transaction_that_becomes_invalid_counts_though_one_edit_says_it_of_all():
    shop = await Wired.start()
    for _ in range(3):
        await shop.transactions.begin(timeout_ms=1_000, external_writes=True)
    shop.clock.advance(1_000)
    assert await shop.transactions.expire() == 3
