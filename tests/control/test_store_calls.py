"""Where the event loop calls a store: writes never on its own thread, for a disk may take its time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from basalt.runtime.store_calls import StoreCalls
from basalt_engine.stores.memory import MemoryStore, MemoryTable
from tests.wiring import Wired

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_local_store_is_read_at_once_and_written_on_a_thread() -> None:
    call = StoreCalls(MemoryStore())
    assert await call(threading.get_ident) == threading.get_ident()
    assert await call.write(threading.get_ident) != threading.get_ident()


async def test_a_job_that_is_paused_is_noted_without_a_wait_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup holds the lock, or the disk takes 300 ms: others are served meanwhile."""
    wired = await Wired.start(MemoryStore(atomic=True))
    threads: list[int] = []
    write = MemoryTable.write

    def noted(table: MemoryTable, *given: Any) -> None:
        threads.append(threading.get_ident())
        write(table, *given)

    monkeypatch.setattr(MemoryTable, "write", noted)
    await wired.services.scheduler.pause("stats")
    assert threads
    assert threading.get_ident() not in threads
