"""The driver runs plans over a transport; methods and iterators of the client's objects are made of plans here.

A method made so is a plan's: `publish = awaiting(messages.publish)` has its signature, its docstring and its body.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from basalt.client.asynchronous.transport import AsyncTransport
from basalt.client.attempts import Environment, Pause, Say, Send, run_plan
from basalt.client.handles import Handle, signed
from basalt.client.plans import Await, Cursor, Steps

log = logging.getLogger("basalt.client")

P = ParamSpec("P")
T = TypeVar("T")
ItemT = TypeVar("ItemT")
ScopeT = TypeVar("ScopeT")
HandleT = TypeVar("HandleT")


class AsyncDriver:
    """Runs plans, any number at the same time."""

    def __init__(
        self, transport: AsyncTransport, environment: Environment, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._transport = transport
        self._environment = environment
        self._sleep = sleep

    async def run(self, steps: Steps[T]) -> T:
        """Run a plan and return its result."""
        running = run_plan(steps, self._environment)
        try:
            step = next(running)
            while True:
                try:
                    reply = await self._take(step)
                except BaseException as error:  # noqa: BLE001  # an interrupt or a cancellation, too: the plan may have something to undo
                    step = running.throw(error)
                else:
                    step = running.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def close(self) -> None:
        """Close the transport."""
        await self._transport.close()

    async def _take(self, step: Send | Pause | Say | Await) -> object:
        if isinstance(step, Send):
            return await self._transport.send(step)
        if isinstance(step, Pause):
            await self._sleep(step.duration_ms / 1_000)
            return None
        if isinstance(step, Say):
            log.warning(step.line)
            return None
        return await step.awaitable  # blocking: raise step.refused()


def awaiting(
    plan: Callable[Concatenate[ScopeT, P], Steps[T]],
) -> Callable[Concatenate[Handle[ScopeT, AsyncDriver], P], Coroutine[Any, Any, T]]:
    """Make the method that runs this plan and returns its result."""

    @functools.wraps(plan)
    async def method(handle: Handle[ScopeT, AsyncDriver], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await handle._driver.run(plan(handle._scope, *args, **kwargs))

    return signed(method, plan)


def opening(
    kind: Callable[[T, AsyncDriver], HandleT], plan: Callable[Concatenate[ScopeT, P], Steps[T]]
) -> Callable[Concatenate[Handle[ScopeT, AsyncDriver], P], Coroutine[Any, Any, HandleT]]:
    """Make the method that runs this plan and returns a handle of its result."""

    @functools.wraps(plan)
    async def method(handle: Handle[ScopeT, AsyncDriver], /, *args: P.args, **kwargs: P.kwargs) -> HandleT:
        return kind(await handle._driver.run(plan(handle._scope, *args, **kwargs)), handle._driver)

    return signed(method, plan, kind)


class AsyncItems(AsyncIterator[ItemT]):
    """The items of a cursor, one after the other, fetched as they are asked for."""

    def __init__(self, cursor: Cursor[ItemT], driver: AsyncDriver) -> None:
        self._cursor = cursor
        self._driver = driver
        self._ready: Iterator[ItemT] = iter(())

    async def __anext__(self) -> ItemT:
        while True:
            for item in self._ready:
                return item
            if self._cursor.done:
                raise StopAsyncIteration
            self._ready = iter(await self._driver.run(self._cursor.next_items()))
