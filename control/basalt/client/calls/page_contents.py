"""What a page holds, in columns made from the body when they are first wanted: out of Avro, or out of batches.

Formats: docs/formats/avro-bodies.md, "Messages", and docs/formats/message-batches.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import ClassVar, TypeAlias

from basalt.api.bodies.work import MESSAGE_ID_BYTES
from basalt.api.codecs import batches
from basalt.client.calls.message_index import MessageIndex, index_messages
from basalt.errors import MalformedBodyError, ProtocolError


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
        """Where in the body each payload begins."""
        return self._index.starts

    @property
    def stops(self) -> list[int]:
        """Where in the body each payload ends."""
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
        """Where in the body each payload begins."""
        return [start for ends in self._ends for start in ends[:-1]]

    @cached_property
    def stops(self) -> list[int]:
        """Where in the body each payload ends."""
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
