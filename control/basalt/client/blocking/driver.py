# Generated from basalt/client/asynchronous/driver.py by deploy/blocking_twin.py: edit that one, then run `make format`.
"""The driver runs plans over a transport; methods and iterators of the client's objects are made of plans here.

A method made so is a plan's: `publish = blocking(messages.publish)` has its signature, its docstring and its body.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

from basalt.client.attempts import Environment, Pause, Say, Send, run_plan
from basalt.client.blocking.transport import Transport
from basalt.client.handles import Handle, signed
from basalt.client.plans import Await, Cursor, Steps

log = logging.getLogger("basalt.client")

P = ParamSpec("P")
T = TypeVar("T")
ItemT = TypeVar("ItemT")
ScopeT = TypeVar("ScopeT")
HandleT = TypeVar("HandleT")


class Driver:
    """Runs plans, any number at the same time."""

    def __init__(self, transport: Transport, environment: Environment, sleep: Callable[[float], None]) -> None:
        self._transport = transport
        self._environment = environment
        self._sleep = sleep

    def run(self, steps: Steps[T]) -> T:
        """Run a plan and return its result."""
        running = run_plan(steps, self._environment)
        try:
            step = next(running)
            while True:
                try:
                    reply = self._take(step)
                except BaseException as error:  # noqa: BLE001  # an interrupt or a cancellation, too: the plan may have something to undo
                    step = running.throw(error)
                else:
                    step = running.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()

    def _take(self, step: Send | Pause | Say | Await) -> object:
        if isinstance(step, Send):
            return self._transport.send(step)
        if isinstance(step, Pause):
            self._sleep(step.duration_ms / 1_000)
            return None
        if isinstance(step, Say):
            log.warning(step.line)
            return None
        raise step.refused()


def blocking(
    plan: Callable[Concatenate[ScopeT, P], Steps[T]],
) -> Callable[Concatenate[Handle[ScopeT, Driver], P], T]:
    """Make the method that runs this plan and returns its result."""

    @functools.wraps(plan)
    def method(handle: Handle[ScopeT, Driver], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return handle._driver.run(plan(handle._scope, *args, **kwargs))

    return signed(method, plan)


def opening(
    kind: Callable[[T, Driver], HandleT], plan: Callable[Concatenate[ScopeT, P], Steps[T]]
) -> Callable[Concatenate[Handle[ScopeT, Driver], P], HandleT]:
    """Make the method that runs this plan and returns a handle of its result."""

    @functools.wraps(plan)
    def method(handle: Handle[ScopeT, Driver], /, *args: P.args, **kwargs: P.kwargs) -> HandleT:
        return kind(handle._driver.run(plan(handle._scope, *args, **kwargs)), handle._driver)

    return signed(method, plan, kind)


class Items(Iterator[ItemT]):
    """The items of a cursor, one after the other, fetched as they are asked for."""

    def __init__(self, cursor: Cursor[ItemT], driver: Driver) -> None:
        self._cursor = cursor
        self._driver = driver
        self._ready: Iterator[ItemT] = iter(())

    def __next__(self) -> ItemT:
        while True:
            for item in self._ready:
                return item
            if self._cursor.done:
                raise StopIteration
            self._ready = iter(self._driver.run(self._cursor.next_items()))
