"""A group's lag: kept by what is appended and acknowledged, and always what a direct count of the log gives."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.groups.figures import Figures, GroupTotals, Lag, expired_through
from basalt.messaging import ranges as range_scan
from basalt.messaging.read.log_reader import before
from basalt_engine.spans.spans import ZERO_ID, Spans
from basalt_engine.stores.memory import MemoryStore
from tests.control.messaging.test_markers import emit
from tests.control.messaging.test_ranges import STEPS, counting, seen_by_all, small_blocks, write_log
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def figures_of(shop: Wired) -> Figures:
    ranges = shop.services.ranges
    return Figures(ranges, ranges._reader, shop.clock)


async def lag_of(shop: Wired, figures: Figures, spans: Spans, round_: int = 1) -> Lag:
    return await figures.lag(await shop.topics.open(A), spans, round_)


async def ids_of(shop: Wired) -> list[bytes]:
    """The messages that a committed reader gets; markers are none."""
    return [item.id for item in await seen_by_all(shop) if item.marker is None]


def acknowledge(spans: Spans, messages: list[bytes], chosen: list[int]) -> None:
    """Cover these messages, each from the message before it on, as a group does."""
    for index in chosen:
        after = messages[index - 1] if index else ZERO_ID
        if after < messages[index]:
            spans.add(after, messages[index])


async def check(shop: Wired, figures: Figures, spans: Spans, round_: int) -> None:
    unacknowledged = [each for each in await ids_of(shop) if not spans.covers(each)]
    found = await lag_of(shop, figures, spans, round_)
    assert found == Lag(len(unacknowledged), True, unacknowledged[0] if unacknowledged else None)
    if unacknowledged:
        oldest_ms = int.from_bytes(unacknowledged[0][:8], "big")
        assert found.age_ms(shop.clock.now_ms()) == max(shop.clock.now_ms() - oldest_ms, 0)
    else:
        assert found.age_ms(shop.clock.now_ms()) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=40), st.integers(0, 1 << 32), st.booleans(), st.booleans())
def test_the_lag_is_what_a_direct_count_gives(steps: list[str], seed: int, atomic: bool, cached: bool):
    """While messages are appended, acknowledged in any order, expire, and the group is set back."""

    async def story() -> None:
        chance = random.Random(seed)
        shop = await Wired.start(MemoryStore(atomic=atomic), cached=cached)
        await shop.topics.create(A, {"ttl": "3", "tasks": "2", "spread": "2"})
        figures, spans, round_ = figures_of(shop), Spans(), 1
        for part in range(4):
            await write_log(shop, chance, steps[part * len(steps) // 4 : (part + 1) * len(steps) // 4])
            await check(shop, figures, spans, round_)
            messages = await ids_of(shop)
            acknowledge(spans, messages, chance.sample(range(len(messages)), chance.randrange(len(messages) + 1)))
            await check(shop, figures, spans, round_)
            if chance.random() < 0.2:  # a seek
                spans, round_ = Spans([(ZERO_ID, chance.choice(messages))] if messages else []), round_ + 1
                await check(shop, figures, spans, round_)
            shop.clock.advance(chance.choice([0, 1, 50, 2_800]))
            await check(shop, figures, spans, round_)

    with small_blocks():
        asyncio.run(story())


async def test_markers_never_count():
    shop = await Wired.start()
    await shop.topics.create(A, {})
    figures = figures_of(shop)
    await emit(shop, "task", 5, 1)
    assert await lag_of(shop, figures, Spans()) == Lag(0, True, None)
    await shop.publish(A, "one")
    await emit(shop, "task", 9, 1)
    found = await lag_of(shop, figures, Spans())
    assert (found.messages, found.exact) == (1, True)


async def test_what_is_known_is_not_counted_again():
    shop, store = await counting(200, 1_000)
    figures, spans = figures_of(shop), Spans()
    assert (await lag_of(shop, figures, spans)).messages == 200_000
    store.rows = 0
    messages = (await lag_of(shop, figures, spans)).messages
    assert (messages, store.rows <= 3) == (200_000, True), "the newest row, and the oldest message"
    await shop.publish(A, *["x"] * 10)
    assert (await lag_of(shop, figures, spans)).messages == 200_010
    page = await shop.messaging.fetch(A, None, True, committed=True, messages_max=500)
    spans.add(ZERO_ID, page.slices[-1].last_id())
    assert (await lag_of(shop, figures, spans)).messages == 199_510
    assert store.rows < 40, f"{store.rows} rows: what was appended, and the block in which the group stands"


async def test_a_lag_that_takes_long_to_count_is_told_as_a_lower_bound_and_known_soon(monkeypatch: pytest.MonkeyPatch):
    shop, _ = await counting(60, 1_000)
    monkeypatch.setattr("basalt.groups.figures.SCAN_ROWS_MAX", 25)
    figures = figures_of(shop)
    found = [await lag_of(shop, figures, Spans()) for _ in range(4)]
    assert not found[0].exact
    assert found[0].messages < found[1].messages < 60_000
    assert (found[-1].messages, found[-1].exact) == (60_000, True)
    assert range_scan.SCAN_ROWS_MAX > 25


async def test_a_row_that_is_undecided_and_all_behind_it_wait_outside_of_the_lag():
    shop = await Wired.start()
    await shop.topics.create(A, {})
    figures = figures_of(shop)
    await shop.publish(A, "one")
    tx = await shop.transactions.begin()
    await shop.publish(A, "early", tx=tx)
    await shop.publish(A, "behind")
    assert (await lag_of(shop, figures, Spans())).messages == 1
    await shop.commit(tx)
    assert (await lag_of(shop, figures, Spans())).messages == 3


async def test_messages_of_stretches_are_counted_once():
    shop, store = await counting(10, 100)
    figures, log = figures_of(shop), await shop.topics.open(A)
    messages = await ids_of(shop)
    stretches = [(messages[9], messages[19]), (messages[500], messages[530])]
    assert await figures.messages_of(log, stretches) == (40, True)
    store.rows = 0
    assert (await figures.messages_of(log, stretches), store.rows) == ((40, True), 0)
    assert await figures.messages_of(log, []) == (0, True)


async def test_what_has_expired_is_out_of_reach():
    shop = await Wired.start()
    await shop.topics.create(A, {"ttl": "1"})
    await shop.publish(A, "one")
    [message] = await ids_of(shop)
    log = await shop.topics.open(A)
    assert expired_through(log, shop.clock.now_ms()) < message
    shop.clock.advance(1_000)
    assert expired_through(log, shop.clock.now_ms()) > message


def test_totals_tell_rates_of_the_last_minute_and_when_something_was_acknowledged():
    totals = GroupTotals()
    totals.was_fetched(1_000, 120)
    totals.was_acknowledged(2_000, 0)
    assert totals.acknowledged_ms is None
    totals.was_acknowledged(2_000, 60)
    assert (totals.fetched, totals.acknowledged, totals.acknowledged_ms) == (120, 60, 2_000)
    assert (totals.fetched_rate.per_second(2_000), totals.acknowledged_rate.per_second(2_000)) == (2.0, 1.0)


async def test_of_many_stretches_the_oldest_are_counted_again(monkeypatch: pytest.MonkeyPatch):
    shop, _ = await counting(1, 50)
    monkeypatch.setattr("basalt.groups.figures.REMEMBERED_STRETCHES_MAX", 2)
    figures, log, messages = figures_of(shop), await shop.topics.open(A), await ids_of(shop)
    for index in range(1, 6):
        assert await figures.messages_of(log, [(messages[index - 1], messages[index + 3])]) == (4, True)
        assert len(figures._stretches) <= 2


async def test_the_search_for_the_oldest_message_passes_a_bounded_number_of_gaps(monkeypatch: pytest.MonkeyPatch):
    shop, _ = await counting(1, 10)
    monkeypatch.setattr("basalt.groups.figures.OLDEST_TRIES_MAX", 3)
    messages, spans = await ids_of(shop), Spans([(ZERO_ID, before(ids[0])) for ids in [await ids_of(shop)]])
    for one, other in itertools.pairwise(messages[:5]):
        if (middle := before(other)) > one:
            spans.add(before(one), one)  # the gap behind it, up to the next message, holds none
            assert spans.covers(one)
            assert not spans.covers(middle)
    found = await lag_of(shop, figures_of(shop), spans)
    assert (found.messages, found.oldest_id) == (6, None), "an operator's question gives up, and tells no age"


async def test_a_lag_that_changed_everywhere_is_counted_in_turns_and_others_go_in_between():
    shop, _ = await counting(4, 1_000)
    figures, messages, spans = figures_of(shop), await ids_of(shop), Spans()
    acknowledge(spans, messages, list(range(0, 4_000, 4)))
    assert (await lag_of(shop, figures, spans)).messages == 3_000
    acknowledge(spans, messages, list(range(2, 4_000, 4)))
    turns, counted = 0, False

    async def others() -> None:
        nonlocal turns
        while not counted:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.create_task(others())
    assert (await lag_of(shop, figures, spans)).messages == 2_000
    counted = True
    await waiting
    assert turns >= 1_000 // range_scan.STRETCHES_TURN
