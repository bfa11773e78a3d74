"""A long way through a topic's rows, a page at a time, so that others get their turn in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from basalt.runtime.store_calls import StoreCalls
from basalt_engine.keys import TopicKeys
from basalt_engine.messages import MessageRow, MessageTable

PAGE_ROWS = 256
PAGE_BYTES = 2 << 20  # a page with payloads is read in a few milliseconds


class Page(NamedTuple):
    """Some rows of a range; `rest` is the position from which there may be more, None when these are the last."""

    rows: list[MessageRow]
    rest: bytes | None


async def pages(
    call: StoreCalls, messages: MessageTable, keys: TopicKeys, start: bytes = b"", stop: bytes | None = None
) -> AsyncGenerator[list[MessageRow], None]:
    """Rows with start <= position < stop, in pages that are not empty.

    It ends when a read has found nothing more. Rows that are written meanwhile may be among them, or not.
    """
    while rows := (await call(read_page, messages, keys, start, stop)).rows:
        yield rows
        start = rows[-1].position + b"\0"
        await asyncio.sleep(0)


def read_page(messages: MessageTable, keys: TopicKeys, start: bytes, stop: bytes | None) -> Page:
    """The first rows with start <= position < stop."""
    rows: list[MessageRow] = []
    size_bytes = 0
    for row in messages.scan(keys, start, stop):
        rows.append(row)
        size_bytes += row.size_bytes
        if len(rows) >= PAGE_ROWS or size_bytes >= PAGE_BYTES:
            return Page(rows, row.position + b"\0")
    return Page(rows, None)
