"""Iterators over a table's rows, for both clients: they fetch the pages that a `RowCursor` asks for."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

from basalt.client.calls.tables import TableRow
from basalt.client.handles import AsyncHandle, Handle
from basalt.client.plans.drivers import AsyncDriver, BlockingDriver
from basalt.client.transaction.transactional_table import RowCursor

P = ParamSpec("P")
ScopeT = TypeVar("ScopeT")


class RowReader(Iterator[TableRow]):
    """The rows of a scan, page after page."""

    def __init__(self, cursor: RowCursor, driver: BlockingDriver) -> None:
        self._cursor = cursor
        self._driver = driver
        self._ready: Iterator[TableRow] = iter(())

    def __next__(self) -> TableRow:
        while True:
            for row in self._ready:
                return row
            if self._cursor.done:
                raise StopIteration
            self._ready = iter(self._driver.run(self._cursor.next_page()).rows)


class AsyncRowReader(AsyncIterator[TableRow]):
    """The rows of a scan, page after page."""

    def __init__(self, cursor: RowCursor, driver: AsyncDriver) -> None:
        self._cursor = cursor
        self._driver = driver
        self._ready: Iterator[TableRow] = iter(())

    async def __anext__(self) -> TableRow:
        while True:
            for row in self._ready:
                return row
            if self._cursor.done:
                raise StopAsyncIteration
            self._ready = iter((await self._driver.run(self._cursor.next_page())).rows)


def scanning(plan: Callable[Concatenate[ScopeT, P], RowCursor]) -> Callable[Concatenate[Handle[ScopeT], P], RowReader]:
    """The method that reads what this cursor is about."""

    @functools.wraps(plan)
    def method(handle: Handle[ScopeT], /, *args: P.args, **kwargs: P.kwargs) -> RowReader:
        return RowReader(plan(handle._scope, *args, **kwargs), handle._driver)

    return method


def async_scanning(
    plan: Callable[Concatenate[ScopeT, P], RowCursor],
) -> Callable[Concatenate[AsyncHandle[ScopeT], P], AsyncRowReader]:
    """Its async twin: an async iterator, not a coroutine."""

    @functools.wraps(plan)
    def method(handle: AsyncHandle[ScopeT], /, *args: P.args, **kwargs: P.kwargs) -> AsyncRowReader:
        return AsyncRowReader(plan(handle._scope, *args, **kwargs), handle._driver)

    return method
