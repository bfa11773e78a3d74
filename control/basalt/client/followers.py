"""Iterators that follow a topic, for both clients: they give its messages away, and run what it asks for in between."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

from basalt.client.calls.pages import Message
from basalt.client.following import Following
from basalt.client.handles import AsyncHandle, Handle
from basalt.client.plans.drivers import AsyncDriver, BlockingDriver

P = ParamSpec("P")
ScopeT = TypeVar("ScopeT")


class _Standing:
    """Where a follower stands."""

    def __init__(self, following: Following) -> None:
        self._following = following

    @property
    def position(self) -> str:
        """Behind the message that was given away last: a text with all that is known there, for `follow` to go on."""
        return str(self._following.position)

    @property
    def watermark_ms(self) -> int | None:
        """Up to where event time has come, as `on_watermark` was told last."""
        return self._following.watermark_ms

    @property
    def ended(self) -> bool:
        """Whether every expected task has ended."""
        return self._following.ended


class Follower(_Standing, Iterator[Message]):
    """The messages of a topic in order, up to its end; markers are told on the way.

    `TypeError` for callbacks that are coroutine functions: only the async client can await them.
    """

    def __init__(self, following: Following, driver: BlockingDriver) -> None:
        super().__init__(following)
        self._driver = driver
        if following.coroutines:
            raise TypeError(f"{following.coroutines[0]} is a coroutine function, which only the async client can await")

    def __next__(self) -> Message:
        while not self._following.done:
            message = self._following.ready()
            if message is not None:
                return message
            self._driver.run(self._following.go_on())
        raise StopIteration


class AsyncFollower(_Standing, AsyncIterator[Message]):
    """The messages of a topic in order, up to its end; markers are told on the way, and callbacks awaited."""

    def __init__(self, following: Following, driver: AsyncDriver) -> None:
        super().__init__(following)
        self._driver = driver

    async def __anext__(self) -> Message:
        while not self._following.done:
            message = self._following.ready()
            if message is not None:
                return message
            await self._driver.run(self._following.go_on())
        raise StopAsyncIteration


def following(plan: Callable[Concatenate[ScopeT, P], Following]) -> Callable[Concatenate[Handle[ScopeT], P], Follower]:
    """The method that follows what this plan is about."""

    @functools.wraps(plan)
    def method(handle: Handle[ScopeT], /, *args: P.args, **kwargs: P.kwargs) -> Follower:
        return Follower(plan(handle._scope, *args, **kwargs), handle._driver)

    return method


def async_following(
    plan: Callable[Concatenate[ScopeT, P], Following],
) -> Callable[Concatenate[AsyncHandle[ScopeT], P], AsyncFollower]:
    """Its async twin: an async iterator, not a coroutine."""

    @functools.wraps(plan)
    def method(handle: AsyncHandle[ScopeT], /, *args: P.args, **kwargs: P.kwargs) -> AsyncFollower:
        return AsyncFollower(plan(handle._scope, *args, **kwargs), handle._driver)

    return method
