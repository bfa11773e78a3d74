"""The services over stores that write whole batches, or row by row."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from basalt.settings import Settings, TransactionSettings
from basalt_engine.stores.memory import MemoryStore
from tests.control.retention.readers import LIFETIME_MS
from tests.wiring import A, B, Wired


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["atomic", "by-row", pytest.param("hbase", marks=pytest.mark.hbase)])
async def shop(request: pytest.FixtureRequest) -> AsyncIterator[Wired]:
    """Two empty topics, orders and invoices; a transaction lives an hour at most."""
    settings = Settings(transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS))
    if request.param == "hbase":
        store = request.getfixturevalue("hbase_tables").emptied()
    else:
        store = MemoryStore(atomic=request.param == "atomic")
    wired = await Wired.start(store, settings=settings)
    await wired.topics.create(A, {})
    await wired.topics.create(B, {"spread": "3"})
    yield wired
    await wired.services.close()
