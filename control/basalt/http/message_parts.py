"""The body of a poll's answer, made in parts: a part is sent while the next one is made.

Avro lets an array come in several blocks, so each run of neighbouring messages is a block; messages that lie alone in
their rows are gathered, for a block of their own would cost each of them more than its bytes do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from basalt.messaging.fetch import Slice
from basalt.wire import avro, json_bodies
from basalt.wire.bodies import Buffer

PART_BYTES = 256 * 1024  # about the size of a part: few enough to send, small enough to make without a pause
RUN_MESSAGES_MIN = 16  # below that, gathering costs less than a block
_MESSAGE_OVERHEAD_BYTES = 24  # an id and two lengths, beside the payload


class _Gathered:
    """Messages of several slices, in columns."""

    def __init__(self) -> None:
        self.ids: list[bytes] = []
        self.payloads: list[Buffer] = []
        self.size_bytes = 0

    def add(self, piece: Slice) -> None:
        self.ids += piece.ids()
        self.payloads += piece.payloads()
        self.size_bytes += piece.payload_bytes + piece.count * _MESSAGE_OVERHEAD_BYTES


def avro_parts(slices: Sequence[Slice]) -> Iterator[bytes]:
    """A Messages answer as Avro."""
    gathered = _Gathered()
    for piece in slices:
        if piece.count < RUN_MESSAGES_MIN:
            gathered.add(piece)
            if gathered.size_bytes < PART_BYTES:
                continue
        if gathered.ids:
            yield avro.encode_messages_block(gathered.ids, gathered.payloads)
            gathered = _Gathered()
        if piece.count >= RUN_MESSAGES_MIN:
            yield avro.encode_messages_run(*piece.id_parts(), piece.payloads())
    if gathered.ids:
        yield avro.encode_messages_block(gathered.ids, gathered.payloads)
    yield avro.END_OF_ARRAY


def json_parts(slices: Sequence[Slice]) -> Iterator[bytes]:
    """A Messages answer as JSON."""
    before = json_bodies.START_OF_MESSAGES
    gathered = _Gathered()
    for piece in slices:
        gathered.add(piece)
        if gathered.size_bytes >= PART_BYTES:
            yield before + json_bodies.encode_messages_block(gathered.ids, gathered.payloads)
            before, gathered = b",", _Gathered()
    if gathered.ids:
        yield before + json_bodies.encode_messages_block(gathered.ids, gathered.payloads)
        before = b","
    yield json_bodies.END_OF_MESSAGES if before == b"," else json_bodies.START_OF_MESSAGES + json_bodies.END_OF_MESSAGES
