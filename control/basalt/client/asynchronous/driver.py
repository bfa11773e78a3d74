"""Runs plans, and makes methods of them: `publish = awaiting(messages.publish)`.

So each call has one signature, one docstring and one body. A handle is what such methods hang on: the plan's scope (a topic,
say) and a driver.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from basalt.client.plans.calls import Await, Reply, Steps
from basalt.client.plans.run_plan import Environment, Pause, Send, run_plan
from basalt.client.transport.servers import Redirects, Servers, ServerUrl

P = ParamSpec("P")
T = TypeVar("T")
ScopeT = TypeVar("ScopeT")
HandleT = TypeVar("HandleT")


class AsyncTransport(Protocol):
    """Sends requests, many at the same time."""

    async def send(self, request: Send) -> Reply:
        """Send it and return what came back within its time-out. Raise nothing but bugs, interrupts and cancellation."""
        ...

    async def close(self) -> None:
        """Close every connection. Closing twice is no error."""
        ...


class AsyncRedirectingTransport:
    """Sends to the server that leads: one of those that were named, or one that a standby names."""

    def __init__(
        self,
        named: Sequence[ServerUrl],
        open_one: Callable[[ServerUrl], AsyncTransport],
        monotonic_ms: Callable[[], float],
    ) -> None:
        self._servers = Servers(named)
        self._open_one = open_one
        self._monotonic_ms = monotonic_ms
        self._open: dict[ServerUrl, AsyncTransport] = {}

    async def send(self, request: Send) -> Reply:
        """Send the request, and send it again only where nothing was done."""
        redirects = Redirects(self._servers, request, self._monotonic_ms)
        while True:
            reply = await self._transport_to(redirects.server).send(redirects.request)
            if not redirects.follow(reply):
                return reply

    async def close(self) -> None:
        """Close every connection to every server."""
        self._transport_to(self._servers.named[0])  # a client that was never used must refuse calls after this, too
        for transport in list(self._open.values()):
            await transport.close()

    def _transport_to(self, url: ServerUrl) -> AsyncTransport:
        transport = self._open.get(url)
        # `setdefault`: two threads that come here at the same time must get the same one.
        return self._open.setdefault(url, self._open_one(url)) if transport is None else transport


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

    async def _take(self, step: Send | Pause | Await) -> object:
        if isinstance(step, Send):
            return await self._transport.send(step)
        if isinstance(step, Pause):
            await self._sleep(step.duration_ms / 1_000)
            return None
        return await step.awaitable  # blocking: raise step.refused()


class AsyncHandle(Generic[ScopeT]):
    """An object of the client's user, with methods that are plans: what the plans work on, and what runs them."""

    def __init__(self, scope: ScopeT, driver: AsyncDriver) -> None:
        self._scope = scope
        self._driver = driver


def awaiting(
    plan: Callable[Concatenate[ScopeT, P], Steps[T]],
) -> Callable[Concatenate[AsyncHandle[ScopeT], P], Coroutine[Any, Any, T]]:
    """Make the method that runs this plan and returns its result."""

    @functools.wraps(plan)
    async def method(handle: AsyncHandle[ScopeT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await handle._driver.run(plan(handle._scope, *args, **kwargs))

    return method


def opening(
    kind: Callable[[T, AsyncDriver], HandleT], plan: Callable[Concatenate[ScopeT, P], Steps[T]]
) -> Callable[Concatenate[AsyncHandle[ScopeT], P], Coroutine[Any, Any, HandleT]]:
    """Make the method that runs this plan and returns a handle of its result."""

    @functools.wraps(plan)
    async def method(handle: AsyncHandle[ScopeT], /, *args: P.args, **kwargs: P.kwargs) -> HandleT:
        return kind(await handle._driver.run(plan(handle._scope, *args, **kwargs)), handle._driver)

    return method


def making(
    kind: Callable[[T, AsyncDriver], HandleT], scoped: Callable[Concatenate[ScopeT, P], T]
) -> Callable[Concatenate[AsyncHandle[ScopeT], P], HandleT]:
    """Make the method that returns a handle, or an iterator, of what this function returns. It asks nothing of the server."""

    @functools.wraps(scoped)
    def method(handle: AsyncHandle[ScopeT], /, *args: P.args, **kwargs: P.kwargs) -> HandleT:
        return kind(scoped(handle._scope, *args, **kwargs), handle._driver)

    return method
