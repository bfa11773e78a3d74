"""The messages behind a row at which readers wait: counted by the index, and as a look at each of them would."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.api.bodies.messages import RecordIn
from basalt.messaging import ranges
from basalt.messaging.peek import MESSAGES_MAX
from basalt.messaging.ranges import BlockedReaders
from basalt.messaging.read.log_reader import ReadBudget, end_of
from basalt.settings import Settings, TransactionSettings
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.messages import POSITION_BYTES
from basalt_engine.records import Extras
from basalt_engine.stores.memory import MemoryStore
from tests.counted_reads import CountedReads
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


async def blocked_by(wired: Wired, tx: Transaction, rows: int = 1_000) -> BlockedReaders:
    """The one topic in which a transaction holds readers up, as a search of so many rows finds it."""
    known = wired.transactions.state.find(tx.id)
    assert known is not None
    (blocked,) = await wired.services.ranges.blocked_by(known, ReadBudget(rows))
    return blocked


async def looked_at(wired: Wired, tx: Transaction) -> int:
    """The messages behind the transaction's first row that may be shown one day, looked at one by one."""
    page = await wired.services.peek.peek(A, None, True)
    assert len(page.messages) < MESSAGES_MAX
    (first, *_) = [each for each in page.messages if each.write_pointer == tx.write_pointer and each.state == "open"]
    behind = [each for each in page.messages if each.id > end_of(first.id[:POSITION_BYTES])]
    return sum(each.state in ("plain", "committed", "open") for each in behind)


async def test_what_waits_behind_a_row_is_counted(shop: Wired):
    tx, stored = await shop.transactions.begin(), await shop.transactions.begin()
    await shop.publish(A, "early", "too", tx=tx)
    await shop.store_aside(A, *map(str, range(300)), tx=stored)
    await shop.commit(stored)
    undone = await shop.transactions.begin()
    await shop.publish(A, "undone", tx=undone)
    await shop.transactions.abort(undone.id)
    await shop.publish(A, "plain")
    blocked = await blocked_by(shop, tx)
    assert (blocked.topic, blocked.messages, blocked.exact, blocked.waiting) == (A, 301, True, 0)
    page = await shop.messaging.fetch(A, None, True, committed=True)
    assert page.held_by == tx.write_pointer
    log = await shop.topics.open(A)
    assert blocked.at == (await shop.services.first_unstable.of_topic(log)).held_at


async def test_a_spent_budget_says_that_there_may_be_more(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.publish(A, "early", tx=tx)
    await shop.publish(A, "behind")
    given_up = await blocked_by(shop, tx, 0)
    assert (given_up.at, given_up.messages, given_up.exact) == (None, 0, False)
    found = await blocked_by(shop, tx, 1)
    assert found.at is not None
    assert (found.messages, found.exact) == (0, False)


async def test_what_was_counted_once_behind_a_row_is_not_read_again():
    store = CountedReads()
    wired = await Wired.start(store, cached=False)
    await wired.topics.create(A, {"compression": "none"})  # so that bytes tell what is read
    tx, stored, other = [await wired.transactions.begin() for _ in range(3)]
    await wired.publish(A, "early", tx=tx)
    await wired.store_aside(A, *["x" * 1_000] * 100, tx=stored)
    await wired.commit(stored)
    for _ in range(50):
        await wired.publish(A, "y" * 1_000)
    async with store.watched():
        assert (await blocked_by(wired, tx)).messages == 150
    assert store.read_bytes > 150_000
    async with store.watched():
        assert (await blocked_by(wired, tx)).messages == 150
    assert store.read_bytes < 1_000
    await wired.publish(A, "open", tx=other)  # is looked at again, for it may still be rolled back
    await wired.publish(A, "plain")
    async with store.watched():
        assert (await blocked_by(wired, tx)).messages == 152
    await wired.transactions.abort(other.id)
    async with store.watched():
        assert (await blocked_by(wired, tx)).messages == 151
    assert store.read_bytes < 1_000
    await wired.services.close()


async def test_a_long_stretch_behind_a_row_is_counted_in_several_calls(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    tx = await shop.transactions.begin()
    await shop.publish(A, "early", tx=tx)
    for _ in range(20):
        await shop.publish(A, "behind")
        shop.clock.advance(1)
    found = [await blocked_by(shop, tx, 9) for _ in range(3)]
    assert [(blocked.messages, blocked.exact) for blocked in found] == [(7, False), (14, False), (20, True)]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 5)),
        st.tuples(st.sampled_from(["commit", "abort", "invalidate", "open"]), st.integers(1, 5)),
        st.tuples(st.just("brief"), st.integers(1, 5)),
        st.tuples(st.just("wait"), st.sampled_from([1, 3_000, 6_000, 30_000])),
        st.tuples(st.sampled_from(["end", "truncate", "retention", "restart", "count", "count"]), st.just(0)),
    ),
    max_size=25,
)


async def story(steps: list[tuple[str, int]]) -> None:
    """Each step, with counts in between: of what memory knows, and of what is looked at."""
    lifetime = Settings(transactions=TransactionSettings(timeout_ms_max=600_000, lifetime_ms_max=1_200_000))
    wired = await Wired.start(MemoryStore(), settings=lifetime)
    await wired.topics.create(A, {"ttl": "60"})
    await wired.publish(A, "before")
    tx = await wired.transactions.begin(timeout_ms=600_000)
    await wired.publish(A, "early", tx=tx)
    open_ones: list[Transaction] = []
    began_ms = wired.clock.now_ms()
    for what, size in [*steps, ("count", 0)]:
        if what == "publish":
            await wired.publish(A, *["p"] * size)
        elif what in ("commit", "abort", "invalidate", "open"):
            other = await wired.transactions.begin(timeout_ms=600_000)
            brief = [Extras(ttl_ms=5_000)] + [Extras()] * (size - 1)
            await wired.messaging.store(A, [b"aside"] * size, other.write_pointer, brief)
            await wired.publish(A, *["early"] * size, tx=other)
            if what == "open":
                open_ones.append(other)
            else:
                await getattr(wired.transactions, what)(other.id)
        elif what == "brief":
            await wired.messaging.publish_records(
                A, [RecordIn(b"brief", None, (), None, 5_000), *[RecordIn(b"long", None, (), None, None)] * (size - 1)]
            )
        elif what == "wait":
            wired.clock.advance(size)
        elif what == "end" and open_ones:
            await wired.transactions.commit(open_ones.pop().id)
        elif what == "truncate":
            await wired.services.truncation.truncate(A, began_ms)
        elif what == "retention":
            assert (await wired.services.scheduler.run_now("retention")).outcome == "ok"
        elif what == "restart":
            wired = await wired.restarted()
        elif what == "count" and wired.clock.now_ms() - began_ms < 60_000:  # else what blocked has expired
            blocked = await blocked_by(wired, tx)
            assert blocked.exact
            assert blocked.messages == await looked_at(wired, tx), steps
    await wired.services.close()


@settings(max_examples=80, deadline=None)
@given(steps, st.integers(1, 8))
def test_the_count_behind_a_row_is_what_a_look_at_each_message_says(steps: list[tuple[str, int]], blocks: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "BLOCK_MESSAGES", blocks)
        asyncio.run(story(steps))
