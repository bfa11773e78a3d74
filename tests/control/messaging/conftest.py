"""The services under every combination that readers must not notice: batches atomic or not, tail cache or store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from basalt.messaging.log.topic_log import LOG_LIMITS, LogLimits
from basalt_engine.stores.memory import MemoryStore
from tests.wiring import A, B, Wired


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


HBASE = [pytest.param(f"hbase-{caching}", marks=pytest.mark.hbase) for caching in ("cached", "stored")]


@pytest.fixture
def memory() -> LogLimits:
    """How much the services remember."""
    return LOG_LIMITS


@pytest.fixture(params=["atomic-cached", "atomic-stored", "by-row-cached", "by-row-stored", *HBASE])
async def shop(request: pytest.FixtureRequest, memory: LogLimits) -> AsyncIterator[Wired]:
    """Two empty topics, orders and invoices."""
    kind, caching = request.param.rsplit("-", 1)
    if kind == "hbase":
        store = request.getfixturevalue("hbase_tables").emptied()
    else:
        store = MemoryStore(atomic=kind == "atomic")
    wired = await Wired.start(store, cached=caching == "cached", memory=memory)
    await wired.topics.create(A, {})
    await wired.topics.create(B, {"spread": "3"})
    yield wired
    await wired.services.close()
