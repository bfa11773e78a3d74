"""Where the event loop calls a store: reads at once when it is local, on a thread when they wait for a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from basalt_engine.table import Store

P = ParamSpec("P")
T = TypeVar("T")


class StoreCalls:
    """Runs calls of a store so that they never hold up the event loop for long."""

    def __init__(self, store: Store) -> None:
        self._remote = store.remote

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The call's result. A local store answers in microseconds, less than a thread would cost."""
        if self._remote:
            return await asyncio.to_thread(call, *args, **kwargs)
        return call(*args, **kwargs)

    async def write(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a call that writes. Always on a thread: it waits for the disk, and for whoever writes now."""
        return await asyncio.to_thread(call, *args, **kwargs)
