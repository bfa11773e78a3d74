"""The answer of a poll, decoded when asked: no object is made for a message that nobody looks at.

`message_index` finds where the messages lie, once; ids and payloads are cut out of the body when they are wanted.
"""

from __future__ import annotations

import builtins
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from typing import overload

from basalt.client.message_index import MessageIndex, index_messages
from basalt.errors import ProtocolError
from basalt.wire import bodies
from basalt.wire.bodies import MESSAGE_ID_BYTES

_PUBLISH_MS_BYTES = 8
_NO_MESSAGES = b"\x00"


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

    Looking into it raises `ProtocolError` when the body is not what a poll answers.
    """

    def __init__(self, body: bytes, next_id: bytes | None = None, held_by: str | None = None) -> None:
        self._body = body
        self.next_id = next_id
        self.held_by = held_by

    @cached_property
    def _index(self) -> MessageIndex:
        try:
            return index_messages(self._body)
        except (IndexError, ValueError) as error:
            raise ProtocolError(f"the answer of a poll is not an Avro array of messages ({error})") from None

    def __len__(self) -> int:
        return len(self._index.ids)

    def __bool__(self) -> bool:
        return self._body != _NO_MESSAGES

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        ids, starts, stops = self._index
        if isinstance(index, slice):
            return list(map(self._message, ids[index], starts[index], stops[index]))
        return self._message(ids[index], starts[index], stops[index])

    def __iter__(self) -> Iterator[Message]:
        return map(self._message, *self._index)

    @cached_property
    def bytes(self) -> int:
        """The bytes of all payloads together."""
        return sum(self._index.stops) - sum(self._index.starts)

    def ids(self) -> list[builtins.bytes]:
        """The id of each message."""
        body = self._body
        return [body[at : at + MESSAGE_ID_BYTES] for at in self._index.ids]

    def payloads(self) -> list[memoryview]:
        """The payload of each message, not copied: while one is kept, so is the whole page."""
        view = memoryview(self._body)
        return [view[start:stop] for start, stop in zip(self._index.starts, self._index.stops, strict=True)]

    def count_before(self, stop_id: builtins.bytes) -> int:
        """How many messages of the page have an id below this one: they are in the order of their ids."""
        body = self._body
        return bisect_left(self._index.ids, stop_id, key=lambda at: body[at : at + MESSAGE_ID_BYTES])

    def __repr__(self) -> str:
        next_id = self.next_id.hex() if self.next_id else None
        return f"Page({len(self)} messages, next_id={next_id}, held_by={self.held_by})"

    def _message(self, id_at: int, start: int, stop: int) -> Message:
        body = self._body
        return Message(body[id_at : id_at + MESSAGE_ID_BYTES], body[start:stop])
