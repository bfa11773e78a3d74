"""Iterators over messages and rows. A cursor plans which items come next; these run its plans and hand out the items."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from basalt.client.asynchronous.driver import AsyncDriver
from basalt.client.calls.following import FollowCursor
from basalt.client.calls.pages import Message, Page
from basalt.client.calls.reading import TopicCursor
from basalt.client.calls.tables import TableRow
from basalt.client.plans.calls import Cursor

ItemT = TypeVar("ItemT")


class _AsyncItems(AsyncIterator[ItemT]):
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


class AsyncReader(_AsyncItems[Message]):
    """The messages of a topic, page after page. `pages()` gives them a page at a time, which costs less."""

    _cursor: TopicCursor

    @property
    def next_id(self) -> bytes | None:
        """The id after which the next page begins, exclusively; None before the first page."""
        return self._cursor.next_id

    @property
    def held_by(self) -> str | None:
        """The id of the open transaction at which the last page ended, if one did that."""
        return self._cursor.held_by

    async def pages(self) -> AsyncIterator[Page | list[Message]]:
        """The rest, a page at a time; the last may be a list, cut at the bounds."""
        while not self._cursor.done:
            page = await self._driver.run(self._cursor.next_items())
            if page:
                yield page


class AsyncRowReader(_AsyncItems[TableRow]):
    """The rows of a scan, page after page."""


class AsyncFollower(_AsyncItems[Message]):
    """The messages of a topic in order, up to its end; markers are told on the way.

    With the blocking client a callback that is a coroutine function is a `TypeError`.
    """

    _cursor: FollowCursor

    def __init__(self, cursor: FollowCursor, driver: AsyncDriver) -> None:
        super().__init__(cursor, driver)
        # blocking: cursor.refuse_coroutines()

    @property
    def position(self) -> str:
        """Behind the message that was handed out last: a text with all that is known there, for `follow` to go on."""
        return str(self._cursor.position)

    @property
    def watermark_ms(self) -> int | None:
        """Up to where event time has come, as `on_watermark` was told last."""
        return self._cursor.watermark_ms

    @property
    def ended(self) -> bool:
        """True once every expected task has ended."""
        return self._cursor.ended
