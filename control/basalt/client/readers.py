"""Iterators over a topic, for both clients: they fetch the pages that a `Cursor` asks for."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

from basalt.client.calls.pages import Message, Page
from basalt.client.handles import AsyncHandle, Handle
from basalt.client.plans.drivers import AsyncDriver, BlockingDriver
from basalt.client.reading import Cursor

P = ParamSpec("P")
ScopeT = TypeVar("ScopeT")


class _Standing:
    """Where a reader stands."""

    _cursor: Cursor

    @property
    def next_id(self) -> bytes | None:
        """Where reading goes on after the last page, exclusively; None before the first."""
        return self._cursor.next_id

    @property
    def held_by(self) -> str | None:
        """The id of the open transaction at which the last page ended, if one did that."""
        return self._cursor.held_by


class Reader(_Standing, Iterator[Message]):
    """The messages of a topic, page after page. `pages()` gives them a page at a time, which costs less."""

    def __init__(self, cursor: Cursor, driver: BlockingDriver) -> None:
        self._cursor = cursor
        self._driver = driver
        self._ready: Iterator[Message] = iter(())

    def __next__(self) -> Message:
        while True:
            for message in self._ready:
                return message
            page = self._next_page()
            if page is None:
                raise StopIteration
            self._ready = iter(page)

    def pages(self) -> Iterator[Page | list[Message]]:
        """What is left, a page at a time; the last may be a list, cut at the bounds."""
        while (page := self._next_page()) is not None:
            yield page

    def _next_page(self) -> Page | list[Message] | None:
        while not self._cursor.done:
            wanted = self._cursor.take(self._driver.run(self._cursor.next_page()))
            if wanted:
                return wanted
        return None


class AsyncReader(_Standing, AsyncIterator[Message]):
    """The messages of a topic, page after page. `pages()` gives them a page at a time, which costs less."""

    def __init__(self, cursor: Cursor, driver: AsyncDriver) -> None:
        self._cursor = cursor
        self._driver = driver
        self._ready: Iterator[Message] = iter(())

    async def __anext__(self) -> Message:
        while True:
            for message in self._ready:
                return message
            page = await self._next_page()
            if page is None:
                raise StopAsyncIteration
            self._ready = iter(page)

    async def pages(self) -> AsyncIterator[Page | list[Message]]:
        """What is left, a page at a time; the last may be a list, cut at the bounds."""
        while (page := await self._next_page()) is not None:
            yield page

    async def _next_page(self) -> Page | list[Message] | None:
        while not self._cursor.done:
            wanted = self._cursor.take(await self._driver.run(self._cursor.next_page()))
            if wanted:
                return wanted
        return None


def reading(plan: Callable[Concatenate[ScopeT, P], Cursor]) -> Callable[Concatenate[Handle[ScopeT], P], Reader]:
    """The method that reads what this cursor is about."""

    @functools.wraps(plan)
    def method(handle: Handle[ScopeT], /, *args: P.args, **kwargs: P.kwargs) -> Reader:
        return Reader(plan(handle._scope, *args, **kwargs), handle._driver)

    return method


def async_reading(
    plan: Callable[Concatenate[ScopeT, P], Cursor],
) -> Callable[Concatenate[AsyncHandle[ScopeT], P], AsyncReader]:
    """Its async twin: an async iterator, not a coroutine."""

    @functools.wraps(plan)
    def method(handle: AsyncHandle[ScopeT], /, *args: P.args, **kwargs: P.kwargs) -> AsyncReader:
        return AsyncReader(plan(handle._scope, *args, **kwargs), handle._driver)

    return method
