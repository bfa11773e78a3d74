"""Renews a consumer's lease and claims from the side, while its user handles messages: a thread, or a task of the event loop.

The end waits for a renewal that is on its way: one that came in after its member has left would join it anew.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class Renewal:
    """A thread that renews until it is stopped. `renew` returns the milliseconds to the next time; None: there is nothing to be renewed."""

    def __init__(self, renew: Callable[[], float | None], first_ms: float) -> None:
        self._renew = renew
        self._first_ms = first_ms
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="basalt-renewal", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Renew no more. Stopping twice is no error."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        wait_ms: float | None = self._first_ms
        while wait_ms is not None and not self._stopping.wait(wait_ms / 1_000):
            wait_ms = self._renew()


class AsyncRenewal:
    """A task that does the same."""

    def __init__(self, renew: Callable[[], Awaitable[float | None]], first_ms: float) -> None:
        import asyncio  # here, for blocking clients do without it

        self._renew = renew
        self._first_ms = first_ms
        self._stopping: asyncio.Event = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="basalt-renewal")

    async def stop(self) -> None:
        """Renew no more. Stopping twice is no error, nor is it that the task was cancelled."""
        import asyncio

        self._stopping.set()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        wait_ms: float | None = self._first_ms
        while wait_ms is not None and not await self._stopped(wait_ms):
            wait_ms = await self._renew()

    async def _stopped(self, within_ms: float) -> bool:
        import asyncio

        try:
            await asyncio.wait_for(self._stopping.wait(), within_ms / 1_000)
        except TimeoutError:
            return False
        return True
