"""Slices: neighbouring messages of one record batch, which is how messages come from the log to whoever reads it.

A slice knows the id of each of its messages, and what the batch has of it, and is cut without copying the batch.
"""

from __future__ import annotations

import functools
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from basalt.api.markers import Marker, decode_marker
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import MESSAGE_ID_BYTES, position_fields
from basalt_engine.messages import POSITION_BYTES, MessageRow
from basalt_engine.payloads import PayloadRow
from basalt_engine.records import Extras, RecordBatch, RecordKind, decode, taker

NO_PAYLOAD_ROW = bytes(MESSAGE_ID_BYTES - POSITION_BYTES)

PayloadRows = Callable[[MessageRow], Iterable[PayloadRow]]  # reads the payload rows that a row refers to, in order


@functools.cache
def numbers() -> list[bytes]:
    """All sequence numbers, at hand: every poll needs thousands. A server that nobody polls goes without their 3 MB."""
    return [number.to_bytes(2, "big") for number in range(1 << 16)]


class Slice:
    """Neighbouring messages of one record batch: start <= index < stop.

    Those of a merged batch may lie in several milliseconds: `publish_ms` is that of the row, and `runs` tell them apart.
    """

    __slots__ = (
        "_first_sequence", "_head", "_positions", "_stored_ms", "batch", "publish_ms", "start", "stop", "written_by",
    )  # fmt: skip

    def __init__(self, row: MessageRow, batch: RecordBatch, stored: bytes | None) -> None:
        """All messages of a batch; `stored` is the position of the payload row that has it, None where it is in the row."""
        self.batch = batch
        self.start = 0
        self.stop = batch.count
        self.written_by = row.written_by
        self.publish_ms, last = position_fields(row.position)
        self._stored_ms: int | None = None
        self._positions = batch.positions
        if batch.positions is not None:
            self._first_sequence, self._head = 0, b""
            if batch.positions[-POSITION_BYTES:] != row.position:
                raise CorruptionError(f"row {row.key.hex()} does not end with the last of its merged messages")
            return
        if stored is None:
            self._first_sequence = last - batch.count + 1
            self._head = row.position[:8]
        else:
            self._stored_ms, stored_last = position_fields(stored)
            self._first_sequence = stored_last - batch.count + 1
            self._head = row.position + stored[:8]
        if self._first_sequence < 0:
            raise CorruptionError(f"row {row.key.hex()} ends at sequence {last} and has {batch.count} messages")

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def payload_bytes(self) -> int:
        return self.batch.bytes_between(self.start, self.stop)

    def ids(self) -> list[bytes]:
        """The 20-byte id of each message."""
        if self._positions is not None:
            return list(struct.unpack(f"{MESSAGE_ID_BYTES}s" * self.count, self.id_bytes()))
        head, numbers, tail = self.id_parts()
        return [head + number + tail for number in numbers]

    def id_bytes(self) -> bytes:
        """The ids of messages of a merged batch, one behind the other."""
        assert self._positions is not None
        positions = bytes(self._positions[POSITION_BYTES * self.start : POSITION_BYTES * self.stop])
        laid_out = bytearray(MESSAGE_ID_BYTES * self.count)
        for at in range(POSITION_BYTES):  # column by column: no object per message
            laid_out[at::MESSAGE_ID_BYTES] = positions[at::POSITION_BYTES]
        return bytes(laid_out)

    def id_parts(self) -> tuple[bytes, list[bytes], bytes]:
        """The ids in parts, where they count up: what all begin with, the two bytes that are each one's own, what all end with."""
        assert self._positions is None
        first = self._first_sequence
        return self._head, numbers()[first + self.start : first + self.stop], self._tail()

    def first_id(self) -> bytes:
        """The id of the first message; where there is a `counted_at`, the others count up from it in that number."""
        return self.id_at(self.start)

    def last_id(self) -> bytes:
        """The id of the last message."""
        return self.id_at(self.stop - 1)

    def id_at(self, index: int) -> bytes:
        """The id of the batch's message at this index."""
        if self._positions is not None:
            return bytes(self._positions[POSITION_BYTES * index : POSITION_BYTES * (index + 1)]) + NO_PAYLOAD_ROW
        return self._head + (self._first_sequence + index).to_bytes(2, "big") + self._tail()

    @property
    def counted_at(self) -> int | None:
        """The offset in the ids of the two bytes in which the messages of this slice differ; None where ids do not just count up."""
        return len(self._head) if self._positions is None else None

    def runs(self) -> list[Slice]:
        """The same messages in slices whose ids count up, each within one millisecond."""
        if self._positions is None:
            return [self]
        runs = []
        for start, stop in self.batch.runs(self.start, self.stop):
            run = self._part(start, stop)
            run.publish_ms, sequence = self.batch.place(start)
            run._head, run._first_sequence, run._positions = self.id_at(start)[:8], sequence - start, None
            runs.append(run)
        return runs

    def payloads(self) -> list[memoryview]:
        """The payload of each message."""
        return self.batch.payloads(self.start, self.stop)

    def span(self) -> tuple[memoryview, memoryview]:
        """The lengths of the payloads (4 bytes each) and the payloads, each as one stretch of stored bytes."""
        return self.batch.span(self.start, self.stop)

    def sections(self) -> list[memoryview]:
        """The sections of what the messages carry beside their payloads, as stretches of stored bytes."""
        return self.batch.sections(self.start, self.stop)

    def extras(self) -> list[Extras]:
        """Key, headers, event time and TTL of each message."""
        return self.batch.extras()[self.start : self.stop]

    def marker(self) -> Marker:
        """The marker, where the batch is one."""
        return decode_marker(self.batch.kind.name.lower(), self.batch.payloads(0, 1)[0])

    def _tail(self) -> bytes:
        """The end of each id, after the number that counts the messages."""
        return NO_PAYLOAD_ROW if self._stored_ms is None else b""

    def _part(self, start: int, stop: int) -> Slice:
        part = Slice.__new__(Slice)
        part.batch, part.written_by, part.publish_ms = self.batch, self.written_by, self.publish_ms
        part._head, part._first_sequence, part._stored_ms = self._head, self._first_sequence, self._stored_ms
        part._positions = self._positions
        part.start, part.stop = start, stop
        return part

    def after(self, start: bytes, inclusive: bool) -> Slice:
        """Without the messages before `start` (20 bytes), and without that one when not inclusive."""
        if self._positions is not None:
            # The ids end with zeros: whoever stands at something else behind a position has passed its message.
            rest = start[POSITION_BYTES:]
            passed = rest > NO_PAYLOAD_ROW or (rest == NO_PAYLOAD_ROW and not inclusive)
            first = self.batch.index_of(start[:POSITION_BYTES] + b"\0" * passed)
            return self._part(min(max(self.start, first), self.stop), self.stop)
        head, shared = self._head, start[: len(self._head)]
        if head > shared:
            return self
        if head < shared:
            return self._part(self.stop, self.stop)
        # The ids differ only in a number, so the first one that counts is computed and not searched for.
        rest = start[len(head) :]
        passed = rest[2:] > self._tail() or (rest[2:] == self._tail() and not inclusive)
        first = int.from_bytes(rest[:2], "big") + passed - self._first_sequence
        return self._part(min(max(self.start, first), self.stop), self.stop)

    def through(self, last: bytes) -> Slice:
        """Without the messages after this id."""
        return self._part(self.start, self.after(last, False).start)

    def whole(self) -> Slice:
        """All messages of the batch."""
        return self._part(0, self.batch.count)

    def picked(self, indexes: Sequence[int]) -> list[Slice]:
        """The messages at these indexes of the batch, ascending: as one, where their ids allow it."""
        if self._stored_ms is not None:
            return [self._part(index, index + 1) for index in indexes]
        part = self._part(0, len(indexes))
        head, first, count, merged = self._head, self._first_sequence, self.batch.count, self._positions
        known: Sequence[bytes] = numbers()[first : first + count]
        places = known if merged is None else struct.unpack(f"{POSITION_BYTES}s" * count, merged)
        part.batch = self.batch.picked(indexes, head + head.join(taker(indexes)(places)))
        part._first_sequence, part._head, part._positions = 0, b"", part.batch.positions
        return [part]

    def cut_at(self, at: int) -> tuple[Slice, Slice]:
        """The messages before index `at`, and the others."""
        return self._part(self.start, at), self._part(at, self.stop)

    def up_to(self, messages_max: int, bytes_max: int, least: int, message_bytes: int = 0) -> Slice:
        """At most so many messages, and bytes; but `least` messages whatever their bytes. Each counts `message_bytes` more."""
        start, batch = self.start, self.batch
        if not message_bytes:
            within = batch.stop_within(start, bytes_max)
        else:

            def size_bytes(stop: int) -> int:
                return batch.bytes_between(start, stop) + message_bytes * (stop - start)

            within = start + bisect_right(range(start, self.stop + 1), bytes_max, key=size_bytes) - 1
        stop = min(self.stop, start + messages_max, max(within, start + least))
        return self if stop == self.stop else self._part(start, stop)

    def unexpired(self, now_ms: int) -> list[Slice]:
        """The parts whose messages have no TTL of their own, or one that still runs."""
        ttls = self.batch.ttls_ms() if self.start < self.stop else None
        if ttls is None:
            return [self] if self.start < self.stop else []
        parts, first = [], None
        for index in range(self.start, self.stop):
            lives = not ttls[index] or self.publish_ms + ttls[index] > now_ms
            if lives and first is None:
                first = index
            elif not lives and first is not None:
                parts.append(self._part(first, index))
                first = None
        return parts if first is None else [*parts, self._part(first, self.stop)]


def row_slices(row: MessageRow, payload_rows: PayloadRows, verify: bool, *, markers: bool = False) -> Iterator[Slice]:
    """All messages of a row that readers may see, as slices; markers too for who asks for them."""
    if row.batch is not None:
        batch = decode(row.batch, verify=verify)
        if markers or batch.kind is RecordKind.USER:  # markers are not messages
            yield Slice(row, batch, None)
        return
    for stored in payload_rows(row):
        yield Slice(row, decode(stored.batch), stored.position)
