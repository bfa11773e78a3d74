"""One-shot transactions and the loans that have their pointers, on a store that is not atomic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from basalt.errors import BusyError
from basalt.operations.jobs import end_late
from basalt.transactions.rules import loans
from basalt.transactions.rules.loans import LOAN_POINTERS, USED_MS, OneShotsInFlight
from basalt_engine.errors import UnknownOutcomeError
from tests.control.commits.test_recovery_lost_one_shots import LosingStore, both, faults, is_entry, is_rows, lent, lose
from tests.wiring import A, B, Wired, shop_work

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shop() -> Wired:
    shop = await Wired.start(LosingStore())
    for title in (A, B):
        await shop.topics.create(title, {})
    await shop.transactions.one_shot(shop_work(orders=["first"], invoices=["first"]))  # from here on it has a loan
    return shop


async def writes_of(shop: Wired, **work: Sequence[str]) -> list[str]:
    before = len(faults(shop).writes)
    await shop.transactions.one_shot(shop_work(**work))
    return faults(shop).writes[before:]


async def test_a_one_shot_is_two_writes(shop: Wired):
    assert await writes_of(shop, orders=["a"], invoices=["b"]) == ["message", "transaction_log"]


async def test_where_none_was_for_long_the_log_hears_of_a_loan_first(shop: Wired):
    shop.clock.advance(USED_MS)
    assert await writes_of(shop, orders=["a"]) == ["transaction_log", "message", "transaction_log"]
    assert await writes_of(shop, invoices=["b"]) == ["message", "transaction_log"]


async def test_steady_use_asks_for_the_next_loan_before_the_last_one_is_over(shop: Wired):
    for _ in range(20):
        shop.clock.advance(USED_MS // 10)
        before = len(faults(shop).writes)
        await shop.transactions.one_shot(shop_work(orders=["a"]))
        await shop.transactions.manager.flush()
        assert faults(shop).writes[before] == "message", "it waited for a loan"
    assert len(lent(shop)) <= 2


async def test_the_expiry_job_gives_back_what_is_not_used_any_more(shop: Wired):
    shop.clock.advance(USED_MS - 1)
    await end_late(shop.transactions, shop.clock)
    ((first, last),) = lent(shop)
    assert last - first == LOAN_POINTERS - 2
    moment = await shop.transactions.manager_snapshot()
    assert moment.decided == first - 1
    shop.clock.advance(1)
    await end_late(shop.transactions, shop.clock)
    assert not lent(shop)
    moment = await shop.transactions.manager_snapshot()
    assert moment.decided == moment.write_pointer == last
    again = await shop.restarted()
    assert not lent(again)
    assert not again.transactions.state.invalid.runs
    writes = len(faults(shop).writes)
    await end_late(shop.transactions, shop.clock)
    assert len(faults(shop).writes) == writes, "there is nothing to do"


async def test_a_stop_gives_back_its_loan_and_a_crash_leaves_it_as_a_run_on_the_invalid_list(shop: Wired):
    ((first, last),) = lent(shop)
    crashed = await shop.restarted()
    assert list(crashed.transactions.state.invalid.runs) == [(first, last)]
    await crashed.transactions.one_shot(shop_work(orders=["more"]))
    await crashed.services._stop_writing()
    again = await crashed.restarted()
    assert list(again.transactions.state.invalid.runs) == [(first, last)]
    assert not lent(again)
    assert await both(again) == [["first", "more"], ["first"]]


async def test_more_at_once_than_a_loan_has_pointers_are_all_carried_out(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loans, "LOAN_POINTERS", 7)
    monkeypatch.setattr(loans, "ASKED_AHEAD_POINTERS", 2)
    shop.clock.advance(USED_MS)
    calls = [shop.transactions.one_shot(shop_work(orders=[f"{n}"])) for n in range(30)]
    outcomes = await asyncio.gather(*calls)
    assert len({outcome.id for outcome in outcomes}) == 30
    assert len(await shop.read(A, committed=True)) == 31


async def test_rows_of_which_nobody_knows_are_given_up_alone(shop: Wired):
    ((first, last),) = lent(shop)
    faults(shop).lose = is_rows
    calls = [shop.transactions.one_shot(shop_work(orders=[f"lost {n}"])) for n in range(3)]
    assert {type(answer) for answer in await asyncio.gather(*calls, return_exceptions=True)} == {UnknownOutcomeError}
    await shop.transactions.manager.flush()
    state = shop.transactions.state
    assert (lent(shop), list(state.invalid.runs)) == ([(first + 3, last)], [(first, first + 2)])
    assert state.in_flight.first is None
    assert shop.transactions.manager.totals.events["invalidated"] == 3
    shop.store.arrive()  # type: ignore[attr-defined]
    await shop.transactions.one_shot(shop_work(orders=["next"]))
    assert await both(shop) == [["first", "next"], ["first"]]


async def test_a_request_that_was_carried_out_meanwhile_is_given_up_and_its_caller_gets_the_first_outcome(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(OneShotsInFlight, "has_request", lambda *_: False)  # as where another server has the first
    ((first, last),) = lent(shop)
    calls = [shop.transactions.one_shot(shop_work(orders=["once"]), request_id="r") for _ in range(3)]
    outcomes = await asyncio.gather(*calls)
    assert {outcome.id for outcome in outcomes} == {first}
    state = shop.transactions.state
    assert (lent(shop), list(state.invalid.runs)) == ([(first + 3, last)], [(first + 1, first + 2)])
    assert state.in_flight.first is None
    assert await shop.read(A, committed=True) == ["first", "once"]
    assert await (await shop.restarted()).read(A, committed=True) == ["first", "once"]


async def test_a_loan_that_the_log_did_not_take_is_asked_for_again(shop: Wired):
    shop.clock.advance(USED_MS)
    faults(shop).lose = is_entry
    with pytest.raises(UnknownOutcomeError):
        await shop.transactions.one_shot(shop_work(orders=["a"]))
    assert await shop.read(A) == ["first"], "a row came before its loan"
    await shop.transactions.one_shot(shop_work(orders=["a"]))
    assert await shop.read(A, committed=True) == ["first", "a"]


async def test_no_pointer_of_a_state_that_was_lost_is_used_again(shop: Wired):
    ((_, last),) = lent(shop)
    await lose(shop, is_entry)
    outcome = await shop.transactions.one_shot(shop_work(orders=["next"]))
    assert outcome.id > last
    assert not any(loans.ended for loans in shop.transactions._one_shots.borrowing)


async def test_who_has_too_many_loans_that_are_not_decided_gets_no_more(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loans, "OPEN_LOANS_MAX", 0)
    shop.clock.advance(USED_MS)
    with pytest.raises(BusyError, match="wait to be decided"):
        await shop.transactions.one_shot(shop_work(orders=["a"]))
