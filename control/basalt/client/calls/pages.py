"""The answer of a poll, decoded when asked: no object is made for a message that nobody looks at.

Where the messages lie in the answer's bytes is known from a handful of frames; ids and payloads are cut out of the body when they
are wanted. Format: docs/formats/message-batches.md.
"""

from __future__ import annotations

import builtins
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from typing import TypeVar, overload

from basalt.api.bodies import messages as bodies
from basalt.api.codecs import batches
from basalt.errors import MalformedBodyError, NotTextError, ProtocolError

_NOTHING = batches.START + batches.END
_PUBLISH_MS_BYTES = 8

T = TypeVar("T")


class Message(bodies.Message, frozen=True, gc=False):
    """One message: `id`, its 20-byte position in the topic, `payload`, and what it carries beside that."""

    # One field for all four: most messages carry nothing, and a page makes thousands of them.
    carried: bodies.Carried = bodies.NOTHING_CARRIED

    @property
    def key(self) -> bytes | None:
        """The key that it was published with; None: none."""
        return self.carried.key

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """The headers that it was published with, in order; `dict(message.headers)` where no name comes twice."""
        return self.carried.headers

    @property
    def event_time_ms(self) -> int | None:
        """The time of what it tells of, as its publisher said it: milliseconds since 1970; None: nobody said it."""
        return self.carried.event_time_ms

    @property
    def ttl_ms(self) -> int | None:
        """The time for which it lasts from its publishing on, where it was given one of its own."""
        return self.carried.ttl_ms

    @property
    def published_ms(self) -> int:
        """The time at which it was published, by the server's clock: milliseconds since 1970."""
        return int.from_bytes(self.id[:_PUBLISH_MS_BYTES])

    @property
    def hex_id(self) -> str:
        """The id as 40 hex digits, as paths and the command line take it."""
        return self.id.hex()

    @property
    def text(self) -> str:
        """The payload as UTF-8 text. `NotTextError` when it is none; `text_or` does not raise."""
        try:
            return self.payload.decode()
        except UnicodeDecodeError as error:
            raise NotTextError(
                f"message {self.hex_id} is no UTF-8 text: byte {error.start} of its payload is {self.payload[error.start]:02x}",
                field="payload",
                hint="Take message.payload, or message.text_or(None). JSON sent to .../publish is bytes, one code point"
                " each; .../records takes text.",
            ) from None

    def text_or(self, instead: T) -> str | T:
        """The payload as UTF-8 text; this value instead where it is none."""
        try:
            return self.payload.decode()
        except UnicodeDecodeError:
            return instead


class Page:
    """The messages of one poll, in order.

    `next_id` is where to go on, exclusively: `poll(start=page.next_id, inclusive=False)`; None when nothing was read
    yet. `held_by` is the id of the open transaction at which the poll ended, if one did that. It may have ended since, where there
    is a `view_age_ms`: so old (ms) is what the server knows, for its coordinator does not answer. Looking into a page raises
    `ProtocolError` when its body is not what a poll answers.
    """

    def __init__(
        self, body: bytes, next_id: bytes | None = None, held_by: str | None = None, view_age_ms: int | None = None
    ) -> None:
        self._body = body
        self.next_id = next_id
        self.held_by = held_by
        self.view_age_ms = view_age_ms

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._body != _NOTHING

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        ids, (starts, stops) = self._ids, self._places
        if isinstance(index, slice):
            spans = zip(starts[index], stops[index], strict=True)
            payloads = (self._body[start:stop] for start, stop in spans)
            carried = () if self._carried is None else (self._carried[index],)
            return list(map(Message, ids[index], payloads, *carried))
        payload = self._body[starts[index] : stops[index]]
        return Message(ids[index], payload, *(() if self._carried is None else (self._carried[index],)))

    def __iter__(self) -> Iterator[Message]:
        # Cut out frame by frame: so they stay in the processor's caches.
        body, frames = self._body, self._frames
        ids = chain.from_iterable(frame.ids(body) for frame in frames)
        payloads = chain.from_iterable(frame.payloads(body) for frame in frames)
        return map(Message, ids, payloads) if self._carried is None else map(Message, ids, payloads, self._carried)

    @property
    def bytes(self) -> int:
        """The bytes of all payloads together."""
        return sum(frame.payload_bytes for frame in self._frames)

    def ids(self) -> list[builtins.bytes]:
        """The id of each message."""
        return self._ids.copy()

    def payloads(self) -> list[memoryview]:
        """The payload of each message, not copied: while one is kept, so is the whole page."""
        view = memoryview(self._body)
        return [view[start:stop] for start, stop in zip(*self._places, strict=True)]

    def count_before(self, stop_id: builtins.bytes) -> int:
        """Count the messages of the page with an id below this one. They are in the order of their ids."""
        return bisect_left(self._ids, stop_id)

    def __repr__(self) -> str:
        next_id = self.next_id.hex() if self.next_id else None
        return f"Page({len(self)} messages, next_id={next_id}, held_by={self.held_by})"

    @cached_property
    def _frames(self) -> list[batches.BatchFrame]:
        try:
            return batches.decode(self._body)
        except MalformedBodyError as error:
            raise _unreadable(error) from None

    @cached_property
    def _carried(self) -> list[bodies.Carried] | None:
        """The key, headers and times of each message; None where none carries anything."""
        if all(frame.carried_at is None for frame in self._frames):
            return None
        nothing, found = bodies.NOTHING_CARRIED, list[bodies.Carried]()
        try:
            for frame in self._frames:
                found += frame.carried(self._body) or [nothing] * frame.count
        except MalformedBodyError as error:
            raise _unreadable(error) from None
        return found

    @cached_property
    def _count(self) -> int:
        return sum(frame.count for frame in self._frames)

    @cached_property
    def _ids(self) -> list[builtins.bytes]:
        return [each for frame in self._frames for each in frame.ids(self._body)]

    @cached_property
    def _places(self) -> tuple[list[int], list[int]]:
        """The offsets in the body at which the payloads begin, and those at which they end."""
        ends = [frame.ends() for frame in self._frames]
        return [start for each in ends for start in each[:-1]], [stop for each in ends for stop in each[1:]]


def _unreadable(error: MalformedBodyError) -> ProtocolError:
    return ProtocolError(f"the answer of a poll is not one of message batches ({error})")
