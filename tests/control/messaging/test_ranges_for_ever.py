"""A range that ends at the stable end, or before, reads the same for ever: whoever writes, fails and is cleaned up after."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.errors import BasaltError
from basalt_engine.stores.memory import MemoryStore
from tests.control.messaging.test_markers import emit, work
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio


class Told(NamedTuple):
    """A range, and all that was said about it when it was asked about first."""

    after: bytes | None
    through: bytes
    messages: list[tuple[bytes, bytes]]
    polled: list[tuple[bytes, bytes]]
    counted: tuple
    splits: tuple


async def told(shop: Wired, after: bytes | None, through: bytes) -> Told:
    found = await shop.services.ranges.read(await shop.topics.open(A), after, through, 1 << 20, committed=True)
    assert found.next_id is None
    advanced = await shop.services.ranges.advance(A, after, through=through)
    splits = await shop.services.ranges.splits(A, after, through, 3)
    read = [pair for piece in found.slices for pair in zip(piece.ids(), map(bytes, piece.payloads()), strict=True)]
    return Told(
        after,
        through,
        read,
        await polled(shop, after, through),
        (*advanced[:4], advanced.marker_state),
        (*splits.splits,),
    )


async def polled(shop: Wired, after: bytes | None, through: bytes) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    at = after
    while True:
        page = await shop.messaging.fetch(A, at, at is None, committed=True, messages_max=7)
        found += [pair for piece in page.slices for pair in zip(piece.ids(), map(bytes, piece.payloads()), strict=True)]
        if not page.slices or found[-1][0] > through:
            return [pair for pair in found if pair[0] <= through]
        at = page.slices[-1].last_id()


async def write(shop: Wired, chance: random.Random, open_ones: list) -> None:
    """Something happens: a publish, a writer that begins, goes on or ends, a time-out, clean-up, a restart of nothing."""
    messages = [f"{chance.randrange(1 << 30)}" for _ in range(chance.randrange(1, 5))]
    what = chance.randrange(10)
    if what == 0:
        await shop.publish(A, *messages)
    elif what == 1:
        await shop.transactions.one_shot(work(("a", chance.randrange(100)), messages=tuple(messages)))
    elif what == 2:
        open_ones.append(await shop.transactions.begin(timeout_ms=2_000))
    elif what in (3, 4) and open_ones:
        await shop.publish(A, *messages, tx=chance.choice(open_ones))
    elif what == 5 and open_ones:
        await shop.store_aside(A, *messages, tx=chance.choice(open_ones))
    elif what == 6 and open_ones:
        tx = open_ones.pop(chance.randrange(len(open_ones)))
        ending = chance.choice(["commit", "abort", "invalidate"])
        await getattr(shop.transactions, ending)(tx.id)
    elif what == 7:
        await emit(shop, "b", chance.randrange(100))
    elif what == 8:
        shop.clock.advance(chance.randrange(1_500))
        await shop.transactions.expire()
    else:
        await shop.services.scheduler.run_now("retention")
        await shop.services.scheduler.run_now("prune")


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 32), st.booleans(), st.booleans())
def test_a_settled_range_reads_the_same_whatever_happens_then(seed: int, atomic: bool, cached: bool):
    async def story() -> None:
        chance = random.Random(seed)
        shop = await Wired.start(MemoryStore(atomic=atomic), cached=cached)
        await shop.topics.create(A, {})
        await shop.topics.create(B, {})
        before: list[Told] = []
        open_ones: list = []
        for step in range(60):
            try:
                await write(shop, chance, open_ones)
            except BasaltError:  # the transaction has timed out
                open_ones.clear()
            if step % 20 == 19:
                shop, open_ones = await shop.restarted(cached=cached), []
            end = (await shop.services.ranges.stable_end(A)).id
            if end is not None and chance.random() < 0.3:
                after = chance.choice([None, *(each.through for each in before)])
                before.append(await told(shop, after, end))
            if before:
                known = chance.choice(before)
                assert await told(shop, known.after, known.through) == known
        for known in before:
            assert await told(shop, known.after, known.through) == known
            assert known.messages == known.polled
            assert known.counted[1] == len(known.messages)

    asyncio.run(story())
