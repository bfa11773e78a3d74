"""Suspicions."""
import pytest
from basalt_engine.stores.memory import MemoryStore
from tests.wiring import A, Wired, ids
from basalt.messaging.range_reading import read_range
pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend(): return "asyncio"

async def test_a_settled_end_survives_retention_and_a_restart():
    store = MemoryStore()
    shop = await Wired.start(store)
    await shop.topics.create(A, {"ttl": "60"})
    await shop.publish(A, "one")
    seen = (await shop.services.ranges.stable_end(A)).id
    shop.clock.advance(700_000)
    print(await shop.services.scheduler.run_now("retention"))
    await shop.services.close()
    shop2 = await Wired.start(store, clock=shop.clock)
    found = (await shop2.services.ranges.stable_end(A)).id
    assert found == seen
    print(await shop2.services.ranges.splits(A, None, seen, 3))
