"""Ranges on HBase: the same story gives the same answers as in memory."""

from __future__ import annotations

import random

import pytest

from basalt_engine.stores.memory import MemoryStore
from tests.control.messaging.test_ranges import STEPS, small_blocks, write_log
from tests.wiring import A, Wired

pytestmark = [pytest.mark.anyio, pytest.mark.hbase]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def answers(store) -> list[object]:
    """A log, and all that is said about its ranges."""
    chance = random.Random(6)
    shop = await Wired.start(store, cached=False)
    await shop.topics.create(A, {"spread": "2"})
    await write_log(shop, chance, chance.choices(STEPS, k=40))
    ranges = shop.services.ranges
    found: list[object] = [await ranges.stable_end(A), await ranges.stable_end(A, committed=False)]
    for _ in range(2):  # read, and remembered
        at = None
        for _ in range(200):
            advanced = await ranges.advance(A, at, messages_max=3)
            found.append(advanced)
            at = advanced.through
            if advanced.at_end:
                break
    assert at is not None
    found.append(await ranges.splits(A, None, at, 7))
    await shop.services.close()
    return found


async def test_a_story_is_told_alike(hbase_tables):
    with small_blocks():
        assert await answers(hbase_tables.emptied()) == await answers(MemoryStore(atomic=False))
