"""The two that do what a conversation says: one blocks, one awaits. They are all that differs between the two clients."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol, TypeVar

from basalt.client.plans.calls import Later, Reply, Steps
from basalt.client.plans.conversation import Pause, Send, Surroundings, converse
from basalt.client.plans.retries import RetryPolicy
from basalt_engine.clock import Clock, SystemClock

T = TypeVar("T")


class Transport(Protocol):
    """Sends one request at a time per thread; used by many threads."""

    def send(self, request: Send) -> Reply:
        """What came of it, within the request's time-out. Raises nothing but bugs and interrupts."""
        ...

    def close(self) -> None:
        """Close every connection. Closing twice is no error."""
        ...


class AsyncTransport(Protocol):
    """Sends requests, many at a time, in one event loop."""

    async def send(self, request: Send) -> Reply:
        """What came of it, within the request's time-out. Raises nothing but bugs and cancellation."""
        ...

    async def close(self) -> None:
        """Close every connection. Closing twice is no error."""
        ...


def surroundings(
    url: str,
    policy: RetryPolicy,
    *,
    clock: Clock | None = None,
    chance: Callable[[], float] = random.random,
    new_request_id: Callable[[], str] = lambda: secrets.token_hex(16),
) -> Surroundings:
    """The world as a conversation sees it; tests give another one."""
    return Surroundings(policy, url, (clock or SystemClock()).monotonic_ms, chance, new_request_id)


class BlockingDriver:
    """Runs plans in the calling thread; any number of threads at once."""

    def __init__(self, transport: Transport, around: Surroundings, sleep: Callable[[float], None] = time.sleep) -> None:
        self._transport = transport
        self._around = around
        self._sleep = sleep

    def run(self, steps: Steps[T]) -> T:
        """The plan's result."""
        conversation = converse(steps, self._around)
        try:
            step = next(conversation)
            while True:
                try:
                    reply = self._take(step)
                except BaseException as error:  # noqa: BLE001  # an interrupt, too: the plan may have something to undo
                    step = conversation.throw(error)
                else:
                    step = conversation.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def pause(self, duration_ms: float) -> None:
        """Sleep."""
        self._sleep(duration_ms / 1_000)

    def _take(self, step: Send | Pause | Later) -> Reply | None:
        if isinstance(step, Send):
            return self._transport.send(step)
        if isinstance(step, Pause):
            self.pause(step.duration_ms)
            return None
        if isinstance(step.awaitable, Coroutine):
            step.awaitable.close()  # it was never begun; without this Python warns of that
        raise TypeError(f"{step.what} is a coroutine, which only the async client can await")

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()


class AsyncDriver:
    """Runs plans in the running event loop, any number at once."""

    def __init__(
        self,
        transport: AsyncTransport,
        around: Surroundings,
        sleep: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        if sleep is None:
            import asyncio  # here, for a blocking client need not load it

            sleep = asyncio.sleep
        self._transport = transport
        self._around = around
        self._sleep = sleep

    async def run(self, steps: Steps[T]) -> T:
        """The plan's result."""
        conversation = converse(steps, self._around)
        try:
            step = next(conversation)
            while True:
                try:
                    reply = await self._take(step)
                except BaseException as error:  # noqa: BLE001  # a cancellation, too: the plan may have something to undo
                    step = conversation.throw(error)
                else:
                    step = conversation.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def pause(self, duration_ms: float) -> None:
        """Sleep."""
        await self._sleep(duration_ms / 1_000)

    async def _take(self, step: Send | Pause | Later) -> object:
        if isinstance(step, Send):
            return await self._transport.send(step)
        if isinstance(step, Pause):
            await self.pause(step.duration_ms)
            return None
        return await step.awaitable

    async def close(self) -> None:
        """Close the transport."""
        await self._transport.close()
