"""Messages that are encoded once, for a poll's answer, and cut anywhere: into answers that begin or end between them.

There is a class per format. Formats: docs/formats/avro-bodies.md (Messages) and docs/formats/message-batches.md.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import ClassVar

from basalt.api.bodies.messages import MESSAGE_ID_BYTES, Buffer
from basalt.api.codecs import avro, avro_values, batches

ALONE_BYTES_MIN = 64 * 1024  # a stretch of stored bytes this long is sent as it lies; shorter ones are joined
RUN_MESSAGES_MIN = 16  # below that, gathering costs less than a block, or a frame


class EncodedMessages:
    """Messages in the order of their ids, in one format. Immutable.

    `ends` are the bytes of the payloads before each message, and of all of them.
    """

    __slots__ = ("count", "ends", "ids", "whole")

    ids: Buffer
    whole: bytes

    def __init__(self, lengths: Sequence[int]) -> None:
        self.count = len(lengths)
        self.ends = array("Q", accumulate(lengths, initial=0))

    def id_at(self, index: int) -> bytes:
        """The id of the message at this index."""
        return bytes(self.ids[MESSAGE_ID_BYTES * index : MESSAGE_ID_BYTES * (index + 1)])

    def first_from(self, start: bytes, inclusive: bool) -> int:
        """The index of the first message with an id above `start`, or with that very id when inclusive."""
        if self.id_at(0) > start:
            return 0
        return bisect_left(range(self.count), start if inclusive else start + b"\0", key=self.id_at)

    def pieces(self, start: int, stop: int) -> list[Buffer]:
        """The messages in start <= index < stop, encoded."""
        raise NotImplementedError

    @property
    def size_bytes(self) -> int:
        """The bytes in memory."""
        return len(self.whole) + self.ends.itemsize * len(self.ends)


class AvroMessages(EncodedMessages):
    """Messages as blocks of an Avro array: ids and payloads, nothing of what they carry beside these."""

    __slots__ = ("_places",)

    has_carried: ClassVar[bool] = False

    def __init__(self, ids: Sequence[bytes], lengths: Sequence[int], payloads: Sequence[Buffer]) -> None:
        """Encode them; the payloads come in pieces of any length, one behind the other."""
        super().__init__(lengths)
        column = memoryview(b"".join(payloads))
        self.ids = b"".join(ids)
        self.whole = avro.encode_messages_block(ids, [column[start:stop] for start, stop in pairwise(self.ends)])
        heads = [MESSAGE_ID_BYTES + 1 + len(avro_values.encode_length(length)) for length in lengths]
        head_bytes = len(self.whole) - sum(heads) - len(column)
        # Where each message begins, and the last one ends.
        self._places = array(
            "Q", accumulate([head + length for head, length in zip(heads, lengths, strict=True)], initial=head_bytes)
        )

    def pieces(self, start: int, stop: int) -> list[Buffer]:
        if stop - start == self.count:
            return [self.whole]
        places = self._places
        return [avro_values.encode_long(stop - start), memoryview(self.whole)[places[start] : places[stop]]]

    @property
    def size_bytes(self) -> int:
        return super().size_bytes + len(self.ids) + self._places.itemsize * len(self._places)

    @staticmethod
    def stands_alone(_count: int, _payload_bytes: int) -> bool:
        """True for a row that is answered as it is stored: in this format, none."""
        return False


class BatchedMessages(EncodedMessages):
    """Messages as one frame of message batches, which carry nothing beside their payloads."""

    __slots__ = ()

    has_carried: ClassVar[bool] = True

    def __init__(self, ids: Sequence[bytes], lengths: Sequence[int], payloads: Sequence[Buffer]) -> None:
        """Encode them; the payloads come in pieces of any length, one behind the other."""
        super().__init__(lengths)
        head = batches.encode_list_head(len(ids), self.ends[-1])
        self.whole = b"".join([head, *ids, struct.pack(f">{len(ids)}I", *lengths), *payloads])
        self.ids = memoryview(self.whole)[len(head) :]

    def pieces(self, start: int, stop: int) -> list[Buffer]:
        if stop - start == self.count:
            return [self.whole]
        ids, ends = memoryview(self.ids), self.ends
        lengths = ids[MESSAGE_ID_BYTES * self.count :]
        payloads = lengths[4 * self.count :]
        return [
            batches.encode_list_head(stop - start, ends[stop] - ends[start]),
            ids[MESSAGE_ID_BYTES * start : MESSAGE_ID_BYTES * stop],
            lengths[4 * start : 4 * stop],
            payloads[ends[start] : ends[stop]],
        ]

    @staticmethod
    def stands_alone(count: int, payload_bytes: int) -> bool:
        """True for a row that is answered as it is stored, which costs less than to gather it with others."""
        return count >= RUN_MESSAGES_MIN or payload_bytes >= ALONE_BYTES_MIN


Encoding = type[AvroMessages] | type[BatchedMessages]
