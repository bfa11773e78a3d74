"""The answer of a poll, decoded when asked: no object is made for a message that nobody looks at.

Where the messages lie in the answer's bytes is found once, in columns; ids and payloads are cut out of the body when they are
wanted. Formats: docs/formats/avro-bodies.md, "Messages", and docs/formats/message-batches.md. The answer comes from a server
that encodes it right, over a transport that knows when it is cut short; so the index of an Avro body checks what keeps it from
reading wrongly, and leaves strictness to `basalt.api.codecs.avro`.
"""

from __future__ import annotations

import builtins
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import ClassVar, NamedTuple, TypeAlias, overload

from basalt.api.bodies import work as bodies
from basalt.api.bodies.work import MESSAGE_ID_BYTES
from basalt.api.codecs import batches
from basalt.errors import MalformedBodyError, ProtocolError

_PUBLISH_MS_BYTES = 8


_ID_LENGTH_BYTE = 2 * MESSAGE_ID_BYTES  # its zigzag varint
_VARINT_BYTES_MAX = 10
_RUN_MESSAGES_MIN = 8  # below that, comparing columns costs more than walking


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
        """Count the messages of the page with an id below this one. They are in the order of their ids."""
        return bisect_left(self._contents.ids, stop_id)

    def __repr__(self) -> str:
        next_id = self.next_id.hex() if self.next_id else None
        return f"Page({len(self)} messages, next_id={next_id}, held_by={self.held_by})"


class AvroContents:
    """The messages of an Avro body."""

    NOTHING: ClassVar[bytes] = b"\x00"

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._index = _indexed(body)

    @property
    def count(self) -> int:
        return len(self._index.ids)

    @cached_property
    def payload_bytes(self) -> int:
        """The bytes of all payloads together."""
        return sum(self._index.stops) - sum(self._index.starts)

    @cached_property
    def ids(self) -> list[bytes]:
        """The id of each message."""
        body = self._body
        return [body[at : at + MESSAGE_ID_BYTES] for at in self._index.ids]

    def messages(self) -> tuple[Iterable[bytes], Iterator[bytes]]:
        """The ids and the payloads, these cut out one by one."""
        body, spans = self._body, zip(self._index.starts, self._index.stops, strict=True)
        return self.ids, (body[start:stop] for start, stop in spans)

    @property
    def starts(self) -> list[int]:
        """The offset in the body at which each payload begins."""
        return self._index.starts

    @property
    def stops(self) -> list[int]:
        """The offset in the body at which each payload ends."""
        return self._index.stops


class BatchContents:
    """The messages of a body of batches. Their number is known from a handful of frames."""

    NOTHING: ClassVar[bytes] = batches.START + batches.END

    def __init__(self, body: bytes) -> None:
        self._body = body
        try:
            self._frames = batches.decode(body)
        except MalformedBodyError as error:
            raise ProtocolError(f"the answer of a poll is not one of message batches ({error.message})") from None
        self.count = sum(frame.count for frame in self._frames)
        self.payload_bytes = sum(frame.payload_bytes for frame in self._frames)

    @cached_property
    def ids(self) -> list[bytes]:
        """The id of each message."""
        return [each for frame in self._frames for each in frame.ids(self._body)]

    def messages(self) -> tuple[Iterable[bytes], Iterator[bytes]]:
        """The ids and the payloads, cut out frame by frame: so they stay in the processor's caches."""
        body, frames = self._body, self._frames
        return chain.from_iterable(frame.ids(body) for frame in frames), chain.from_iterable(
            frame.payloads(body) for frame in frames
        )

    @cached_property
    def starts(self) -> list[int]:
        """The offset in the body at which each payload begins."""
        return [start for ends in self._ends for start in ends[:-1]]

    @cached_property
    def stops(self) -> list[int]:
        """The offset in the body at which each payload ends."""
        return [stop for ends in self._ends for stop in ends[1:]]

    @cached_property
    def _ends(self) -> list[list[int]]:
        return [frame.ends() for frame in self._frames]


Contents: TypeAlias = AvroContents | BatchContents


def _indexed(body: bytes) -> MessageIndex:
    try:
        return index_messages(body)
    except (IndexError, ValueError) as error:
        raise ProtocolError(f"the answer of a poll is not an Avro array of messages ({error})") from None


class MessageIndex(NamedTuple):
    """Offsets into the body, one of each per message. An id is the 20 bytes from its offset."""

    ids: list[int]
    starts: list[int]
    stops: list[int]


def index_messages(body: bytes) -> MessageIndex:
    """Find where the ids and payloads lie. ValueError or IndexError when the body is not an array of messages."""
    index = MessageIndex([], [], [])
    position = 0
    while True:
        count, position = _read_long(body, position)
        if count == 0:
            break
        if count < 0:  # then the size of the block follows, for readers that skip it
            count = -count
            _, position = _read_long(body, position)
        if count > len(body):
            raise ValueError(f"a block of {count} messages in {len(body)} bytes")
        after_run = _index_run(body, position, count, index) if count >= _RUN_MESSAGES_MIN else None
        position = _walk_block(body, position, count, index) if after_run is None else after_run
    if position != len(body):
        raise ValueError(f"{len(body) - position} bytes follow the end of the messages")
    return index


def _index_run(body: bytes, position: int, count: int, index: MessageIndex) -> int | None:
    """Index a block whose payloads are all as long as its first, in no time at all; None when they are not."""
    length_at = position + 1 + MESSAGE_ID_BYTES
    length, payload_at = _read_long(body, length_at)
    stride = payload_at - position + length
    stop = position + count * stride
    if length < 0 or stop > len(body):
        return None
    # If the lengths at these places are equal, then by induction these places are where messages begin.
    for offset in (0, *range(length_at - position, payload_at - position)):
        column = body[position + offset : stop : stride]
        if column != column[:1] * count:
            return None
    if body[position] != _ID_LENGTH_BYTE:
        return None
    index.ids.extend(range(position + 1, stop, stride))
    index.starts.extend(range(payload_at, payload_at + count * stride, stride))
    index.stops.extend(range(position + stride, stop + stride, stride))
    return stop


def _walk_block(body: bytes, position: int, count: int, index: MessageIndex) -> int:
    """Index a block message by message. Lengths of one and two bytes (up to 8 KiB) are read in line."""
    ids, starts, stops = index
    for _ in range(count):
        if body[position] != _ID_LENGTH_BYTE:
            raise ValueError(f"byte {position}: a message id is not {MESSAGE_ID_BYTES} bytes long")
        ids.append(position + 1)
        position += 1 + MESSAGE_ID_BYTES
        length = body[position]
        if length < 0x80:
            position += 1
        elif body[position + 1] < 0x80:
            length = (length & 0x7F) | (body[position + 1] << 7)
            position += 2
        else:
            length, position = _read_long(body, position)
            length *= 2
        if length < 0 or length & 1:
            raise ValueError(f"byte {position}: a payload has a negative length")
        starts.append(position)
        position += length >> 1
        stops.append(position)
    if position > len(body):
        raise ValueError("the last payload is cut short")
    return position


def _read_long(body: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint, and the offset after it."""
    value = 0
    for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
    raise ValueError(f"byte {position}: a number of more than {_VARINT_BYTES_MAX} bytes")
