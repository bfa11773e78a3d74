"""Messages of a log as readers get them: slices of record batches, where a reader starts, and the limits at which it stops. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from basalt.api.markers import Marker, decode_marker
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import MESSAGE_ID_BYTES, position, position_fields
from basalt_engine.messages import POSITION_BYTES, MessageRow
from basalt_engine.payloads import PayloadRow
from basalt_engine.records import Extras, RecordBatch, RecordKind, count_messages, decode

_END_OF_ROW = b"\xff" * POSITION_BYTES  # after every message of a row
_NO_PAYLOAD_ROW = bytes(MESSAGE_ID_BYTES - POSITION_BYTES)
_NUMBERS = [number.to_bytes(2, "big") for number in range(1 << 16)]  # at hand, for every poll needs thousands

PayloadRows = Callable[[MessageRow], Iterable[PayloadRow]]  # reads the payload rows that a row refers to, in order


class Slice:
    """Neighbouring messages of one record batch: start <= index < stop."""

    __slots__ = ("_first_sequence", "_head", "_stored_ms", "batch", "publish_ms", "start", "stop", "written_by")

    def __init__(self, row: MessageRow, batch: RecordBatch, stored: bytes | None) -> None:
        """All messages of a batch; `stored` is the position of the payload row that has it, None where it is in the row."""
        self.batch = batch
        self.start = 0
        self.stop = batch.count
        self.written_by = row.written_by
        self.publish_ms, last = position_fields(row.position)
        self._stored_ms: int | None = None
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
        head, numbers, tail = self.id_parts()
        return [head + number + tail for number in numbers]

    def id_parts(self) -> tuple[bytes, list[bytes], bytes]:
        """The ids in parts: what all begin with, the two bytes that are each one's own, what all end with."""
        first = self._first_sequence
        return self._head, _NUMBERS[first + self.start : first + self.stop], self._tail()

    def first_id(self) -> bytes:
        """The id of the first message; the others count up from it, in the number at `counted_at`."""
        return self.id_at(self.start)

    def last_id(self) -> bytes:
        """The id of the last message."""
        return self.id_at(self.stop - 1)

    def id_at(self, index: int) -> bytes:
        """The id of the batch's message at this index."""
        return self._head + _NUMBERS[self._first_sequence + index] + self._tail()

    @property
    def counted_at(self) -> int:
        """The offset in the ids of the two bytes in which the messages of this slice differ."""
        return len(self._head)

    def payloads(self) -> list[memoryview]:
        """The payload of each message."""
        return self.batch.payloads(self.start, self.stop)

    def span(self) -> tuple[memoryview, memoryview]:
        """The lengths of the payloads (4 bytes each) and the payloads, each as one stretch of stored bytes."""
        return self.batch.span(self.start, self.stop)

    def extras(self) -> list[Extras]:
        """Key, headers, event time and TTL of each message."""
        return self.batch.extras()[self.start : self.stop]

    def marker(self) -> Marker:
        """The marker, where the batch is one."""
        return decode_marker(self.batch.kind.name.lower(), self.batch.payloads(0, 1)[0])

    def _tail(self) -> bytes:
        """The end of each id, after the number that counts the messages."""
        return _NO_PAYLOAD_ROW if self._stored_ms is None else b""

    def _part(self, start: int, stop: int) -> Slice:
        part = Slice.__new__(Slice)
        part.batch, part.written_by, part.publish_ms = self.batch, self.written_by, self.publish_ms
        part._head, part._first_sequence, part._stored_ms = self._head, self._first_sequence, self._stored_ms
        part.start, part.stop = start, stop
        return part

    def after(self, start: bytes, inclusive: bool) -> Slice:
        """Without the messages before `start` (20 bytes), and without that one when not inclusive."""
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

    def cut_at(self, at: int) -> tuple[Slice, Slice]:
        """The messages before index `at`, and the others."""
        return self._part(self.start, at), self._part(at, self.stop)

    def up_to(self, messages_max: int, bytes_max: int, least: int, message_bytes: int = 0) -> Slice:
        """The most messages and bytes to take; but `least` messages whatever their bytes.

        Each counts `message_bytes` more.
        """
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
    """All messages of a row that readers may see, as slices; markers too if `markers`."""
    if row.batch is not None:
        batch = decode(row.batch, verify=verify)
        if markers or batch.kind is RecordKind.USER:  # markers are not messages
            yield Slice(row, batch, None)
        return
    for stored in payload_rows(row):
        yield Slice(row, decode(stored.batch), stored.position)


class Start(NamedTuple):
    """The point at which a reader begins: a message id (or any 20 bytes), and whether that message itself counts."""

    id: bytes
    inclusive: bool

    @property
    def position(self) -> bytes:
        """The lowest position at which a wanted message may lie."""
        if self.id[POSITION_BYTES:] == _END_OF_ROW:  # no message has this id: the row was passed as a whole
            return self.id[:POSITION_BYTES] + b"\0"
        return self.id[:POSITION_BYTES]

    def is_past(self, row: MessageRow) -> bool:
        """True when all messages of the row lie before the start, as its position and reference alone can tell.

        A reader that goes on from a row's last message need not decode the row again, nor wait for its writer.
        """
        if row.position != self.id[:POSITION_BYTES]:
            return False
        last = _NO_PAYLOAD_ROW if row.reference is None else row.reference.last
        return self.id[POSITION_BYTES:] > last or (self.id[POSITION_BYTES:] == last and not self.inclusive)

    def within(self, row: MessageRow) -> MessageRow:
        """The row, referring to no payload rows that lie before the start."""
        if row.reference is None or row.position != self.id[:POSITION_BYTES]:
            return row
        first = max(row.reference.first, self.id[POSITION_BYTES:])
        return row._replace(reference=row.reference._replace(first=first))


def start_from(at: bytes | int | None, inclusive: bool) -> Start:
    """The start that an id, a time in milliseconds, or None (the oldest message) means."""
    if at is None:
        return Start(bytes(MESSAGE_ID_BYTES), True)
    if isinstance(at, int):
        return Start(position(at if inclusive else at + 1, 0) + _NO_PAYLOAD_ROW, True)
    return Start(at, inclusive)


def not_before(start: Start, oldest_ms: int) -> Start:
    """The later of `start` and the first message published at or after `oldest_ms`."""
    if int.from_bytes(start.id[:8], "big") >= oldest_ms:
        return start
    return start_from(oldest_ms, True)


def end_of(row_position: bytes) -> bytes:
    """An id after every message of the row, and before those of the next."""
    return row_position + _END_OF_ROW


def before(place: bytes) -> bytes:
    """The last id, or position, before this one; empty when there is none."""
    number = int.from_bytes(place, "big")
    return (number - 1).to_bytes(len(place), "big") if number else b""


class SliceLimits(NamedTuple):
    """The limits of one page: it has `least` messages whatever their bytes, and none after the id `through`.

    Each message counts `message_bytes` beside its payload.
    """

    messages_max: int
    bytes_max: int
    least: int = 1
    through: bytes | None = None
    message_bytes: int = 0

    def end_before(self, row: MessageRow) -> bool:
        """True when all messages of the row, and so of those after it, come after `through`."""
        if self.through is None or row.position <= self.through[:POSITION_BYTES]:
            return False
        if row.batch is None:
            return True
        publish_ms, last = position_fields(row.position)
        return position(publish_ms, max(0, last - count_messages(row.batch) + 1)) > self.through[:POSITION_BYTES]

    @property
    def stop(self) -> bytes | None:
        """No row from this position on has a message at or before `through`. None: there is no such position."""
        # A row lies at its last message, so the one in which a range ends may lie behind that, within the millisecond.
        return None if self.through is None else self.through[:8] + b"\xff\xff\0"
