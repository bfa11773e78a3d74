"""More topics than the markers of are remembered, while a marker is being written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from basalt.api.markers import Marker
from basalt.messaging.log.topic_log import LogLimits
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import TableWrite
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio


class HeldStore(MemoryStore):
    """Writes on a thread, and only when told to go on."""

    remote = True

    def __init__(self) -> None:
        super().__init__()
        self.writing, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def write(self, writes: Sequence[TableWrite]) -> None:
        self.writing.set()
        self.go_on.wait(60)
        super().write(writes)


async def test_an_end_of_stream_is_not_forgotten_while_it_is_written() -> None:
    """Read again before it is durable it would be missing, and what comes later would be saved without it."""
    store = HeldStore()
    shop = await Wired.start(store, memory=LogLimits(detailed=1))
    markers = shop.services.markers
    for title in (A, B):
        await shop.topics.create(title, {})
    await markers.facts(A)
    store.writing.clear()
    store.go_on.clear()
    ending = asyncio.ensure_future(markers.publish(A, Marker("load", 1, None)))
    while not store.writing.is_set():
        await asyncio.sleep(0)
    await markers.facts(B)
    assert not (await markers.facts(A)).ended
    store.go_on.set()
    await ending
    assert (await markers.facts(A)).ended
    await markers.save(everything=True)
    later = await shop.restarted()
    assert (await later.services.markers.facts(A)).ended
    await shop.services.close()
