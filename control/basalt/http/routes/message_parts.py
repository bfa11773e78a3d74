"""The body of a poll's answer, made in parts: a part is sent while the next one is made.

Avro lets an array come in several blocks, so each run of neighbouring messages is a block; messages that lie alone in
their rows are gathered, for a block of their own would cost each of them more than its bytes do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from basalt.api.bodies.work import Buffer
from basalt.api.codecs import avro, batches, json_bodies
from basalt.messaging.read.fetch import Slice
from basalt_engine.records import Kind

PART_BYTES = 256 * 1024  # about the size of a part: few enough to send, small enough to make without a pause
RUN_MESSAGES_MIN = 16  # below that, gathering costs less than a block
_MESSAGE_OVERHEAD_BYTES = 24  # an id and two lengths, beside the payload


ALONE_BYTES_MIN = 64 * 1024  # a stretch of stored bytes this long is sent as it lies; shorter ones are joined


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


def batch_parts(slices: Sequence[Slice]) -> Iterator[Buffer]:
    """A Messages answer as batches. Long stretches are the stored bytes themselves, not copied."""
    return in_parts(chain([batches.START], _batch_pieces(slices), [batches.END]))


def in_parts(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes in parts worth a call to send them: short pieces joined, long ones as they lie."""
    joined: list[Buffer] = []
    joined_bytes = 0
    for piece in pieces:
        if len(piece) < ALONE_BYTES_MIN:
            joined.append(piece)
            joined_bytes += len(piece)
            if joined_bytes < PART_BYTES:
                continue
        if joined:
            yield b"".join(joined)
            joined, joined_bytes = [], 0
        if len(piece) >= ALONE_BYTES_MIN:
            yield piece
    if joined:
        yield b"".join(joined)


def _batch_pieces(slices: Sequence[Slice]) -> Iterator[Buffer]:
    gathered = _Gathered()
    for piece in slices:
        if piece.batch.kind is not Kind.USER:
            if gathered.ids:
                yield batches.encode_list(gathered.ids, gathered.payloads)
                gathered = _Gathered()
            yield batches.encode_marker(piece.batch.kind.name.lower(), piece.first_id(), piece.payloads()[0])
            continue
        is_short = piece.count < RUN_MESSAGES_MIN and piece.payload_bytes < ALONE_BYTES_MIN
        if is_short:
            gathered.add(piece)
        if gathered.ids and (not is_short or gathered.size_bytes >= PART_BYTES):
            yield batches.encode_list(gathered.ids, gathered.payloads)
            gathered = _Gathered()
        if not is_short:
            lengths, payloads = piece.span()
            yield batches.encode_run_head(piece.first_id(), piece.counted_at, piece.count, len(payloads))
            yield lengths
            yield payloads
    if gathered.ids:
        yield batches.encode_list(gathered.ids, gathered.payloads)


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
