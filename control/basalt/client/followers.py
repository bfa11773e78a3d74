"""Iterators that follow a topic, for both clients: they fetch what a `Following` asks for."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

from basalt.client.drivers import AsyncDriver, BlockingDriver
from basalt.client.following import Following, Item, MarkedPage
from basalt.client.handles import AsyncHandle, Handle
from basalt.client.pages import Message

P = ParamSpec("P")
ScopeT = TypeVar("ScopeT")


class _Standing:
    """Where a follower stands."""

    def __init__(self, following: Following) -> None:
        self._following = following
        self._page: MarkedPage | None = None
        self._items: Iterator[Item] = iter(())

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

    def _ready(self) -> Message | None:
        """The next message of the page; None when there is none left, or the topic has ended."""
        for item in self._items:
            message = self._following.take(item)
            if message is not None:
                return message
            if self._following.done:
                self._items, self._page = iter(()), None
                return None
        if self._page is not None:
            self._following.passed(self._page)
            self._page = None
        return None

    def _turn(self, page: MarkedPage) -> None:
        self._page, self._items = (page, iter(page)) if page else (None, iter(()))


class Follower(_Standing, Iterator[Message]):
    """The messages of a topic in order, up to its end; markers are told on the way."""

    def __init__(self, following: Following, driver: BlockingDriver) -> None:
        super().__init__(following)
        self._driver = driver

    def __next__(self) -> Message:
        while True:
            message = self._ready()
            if message is not None:
                return message
            if self._following.done:
                raise StopIteration
            self._turn(self._driver.run(self._following.next_page()))


class AsyncFollower(_Standing, AsyncIterator[Message]):
    """The messages of a topic in order, up to its end; markers are told on the way."""

    def __init__(self, following: Following, driver: AsyncDriver) -> None:
        super().__init__(following)
        self._driver = driver

    async def __anext__(self) -> Message:
        while True:
            message = self._ready()
            if message is not None:
                return message
            if self._following.done:
                raise StopAsyncIteration
            self._turn(await self._driver.run(self._following.next_page()))


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
