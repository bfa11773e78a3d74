"""The answer of a poll, decoded when asked: no object is made for a message that nobody looks at.

`page_contents` finds where the messages lie, once; ids and payloads are cut out of the body when they are wanted.
"""

from __future__ import annotations

import builtins
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from typing import overload

from basalt.api.bodies import work as bodies
from basalt.client.calls.page_contents import AvroContents, BatchContents, Contents

_PUBLISH_MS_BYTES = 8


class Message(bodies.Message, frozen=True, gc=False):
    """One message: `id`, its 20-byte position in the topic, and `payload`."""

    @property
    def published_ms(self) -> int:
        """When it was published, by the server's clock: milliseconds since 1970."""
        return int.from_bytes(self.id[:_PUBLISH_MS_BYTES])

    @property
    def hex_id(self) -> str:
        """The id as 40 hex digits, as paths and the command line take it."""
        return self.id.hex()

    @property
    def text(self) -> str:
        """The payload as UTF-8 text. UnicodeDecodeError when it is none."""
        return self.payload.decode()


class Page:
    """The messages of one poll, in order.

    `next_id` is where to go on, exclusively: `poll(start=page.next_id, inclusive=False)`; None when nothing was read
    yet. `held_by` is the id of the open transaction at which the poll ended, if one did that.

    The body is Avro or, where the server has them, `batches`. Looking into it raises `ProtocolError` when it is not what
    a poll answers.
    """

    def __init__(
        self, body: bytes, next_id: bytes | None = None, held_by: str | None = None, *, batches: bool = False
    ) -> None:
        self._body = body
        self._kind: type[AvroContents | BatchContents] = BatchContents if batches else AvroContents
        self.next_id = next_id
        self.held_by = held_by

    @cached_property
    def _contents(self) -> Contents:
        return self._kind(self._body)

    def __len__(self) -> int:
        return self._contents.count

    def __bool__(self) -> bool:
        return self._body != self._kind.NOTHING

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        ids, starts, stops = self._contents.ids, self._contents.starts, self._contents.stops
        if isinstance(index, slice):
            spans = zip(starts[index], stops[index], strict=True)
            return list(map(Message, ids[index], (self._body[start:stop] for start, stop in spans)))
        return Message(ids[index], self._body[starts[index] : stops[index]])

    def __iter__(self) -> Iterator[Message]:
        return map(Message, *self._contents.messages())

    @property
    def bytes(self) -> int:
        """The bytes of all payloads together."""
        return self._contents.payload_bytes

    def ids(self) -> list[builtins.bytes]:
        """The id of each message."""
        return self._contents.ids.copy()

    def payloads(self) -> list[memoryview]:
        """The payload of each message, not copied: while one is kept, so is the whole page."""
        view, contents = memoryview(self._body), self._contents
        return [view[start:stop] for start, stop in zip(contents.starts, contents.stops, strict=True)]

    def count_before(self, stop_id: builtins.bytes) -> int:
        """How many messages of the page have an id below this one: they are in the order of their ids."""
        return bisect_left(self._contents.ids, stop_id)

    def __repr__(self) -> str:
        next_id = self.next_id.hex() if self.next_id else None
        return f"Page({len(self)} messages, next_id={next_id}, held_by={self.held_by})"
