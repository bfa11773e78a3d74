"""Reading forward from a position: which messages of which rows, where the reader stops, and where it goes on. Pure.

Rows come in order from the tail cache or the store; payload rows behind a reference come from a function. The rules are
those of docs/reference/http-api.md, "What a reader may rely on".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from basalt.api.markers import Marker, decode_marker
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import MESSAGE_ID_BYTES, position, position_fields
from basalt_engine.messages import POSITION_BYTES, MessageRow
from basalt_engine.payloads import PayloadRow
from basalt_engine.records import Extras, Kind, RecordBatch, count_messages, decode
from basalt_engine.snapshot import TransactionSnapshot, Visibility

ROWS_MAX = 10_000  # rows one fetch looks at; behind a long stretch of hidden rows it answers "go on from here"
LOOK_BYTES_MAX = 4 << 20  # passed in one look without being shown, some 10 ms; then others get their turn
_END_OF_ROW = b"\xff" * POSITION_BYTES  # after every message of a row
_NO_PAYLOAD_ROW = bytes(MESSAGE_ID_BYTES - POSITION_BYTES)
_NUMBERS = [number.to_bytes(2, "big") for number in range(1 << 16)]  # at hand, for every poll needs thousands


class Slice:
    """Neighbouring messages of one record batch: start <= index < stop."""

    __slots__ = ("_first_sequence", "_head", "_stored_ms", "batch", "publish_ms", "start", "stop", "written_by")

    def __init__(self, row: MessageRow, batch: RecordBatch, start: int, stop: int, stored: bytes | None) -> None:
        self.batch = batch
        self.start = start
        self.stop = stop
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
        """The bytes of the payloads."""
        return self.batch.bytes_between(self.start, self.stop)

    def ids(self) -> list[bytes]:
        """The 20-byte id of each message."""
        head, tail, first = self._head, self._tail(), self._first_sequence
        numbers = range(first + self.start, first + self.stop)
        return [head + number.to_bytes(2, "big") + tail for number in numbers]

    def id_parts(self) -> tuple[bytes, list[bytes], bytes]:
        """The ids in parts: what all begin with, the two bytes that are each one's own, what all end with."""
        first = self._first_sequence
        return self._head, _NUMBERS[first + self.start : first + self.stop], self._tail()

    def first_id(self) -> bytes:
        """The id of the first message; the others count up from it, in the number at `counted_at`."""
        return self._head + _NUMBERS[self._first_sequence + self.start] + self._tail()

    @property
    def counted_at(self) -> int:
        """The offset in the ids of the two bytes in which the messages of this slice differ."""
        return len(self._head)

    def last_id(self) -> bytes:
        """The id of the last message."""
        return Slice.ids(self._part(self.stop - 1, self.stop))[0]

    def payloads(self) -> list[memoryview]:
        """The payload of each message."""
        return self.batch.payloads(self.start, self.stop)

    def span(self) -> tuple[memoryview, memoryview]:
        """The lengths of the payloads (4 bytes each) and the payloads, each as one stretch of stored bytes."""
        return self.batch.span(self.start, self.stop)

    def extras(self) -> list[Extras]:
        """Key, headers, event time and TTL of each message."""
        return self.batch.extras()[self.start : self.stop]

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

    def up_to(self, messages_max: int, bytes_max: int, least: int) -> Slice:
        """At most so many messages, and bytes; but `least` messages whatever their bytes."""
        within = max(self.batch.stop_within(self.start, bytes_max), self.start + least)
        stop = min(self.stop, self.start + messages_max, within)
        return self if stop == self.stop else self._part(self.start, stop)

    def unexpired(self, now_ms: int) -> list[Slice]:
        """The parts whose messages have no TTL of their own, or one that still runs."""
        ttls = self.batch.ttls_ms() if self.count else None
        if ttls is None:
            return [self] if self.count else []
        parts, first = [], None
        for index in range(self.start, self.stop):
            lives = not ttls[index] or self.publish_ms + ttls[index] > now_ms
            if lives and first is None:
                first = index
            elif not lives and first is not None:
                parts.append(self._part(first, index))
                first = None
        return parts if first is None else [*parts, self._part(first, self.stop)]


class Fetch(NamedTuple):
    """The result of one fetch. `next_id`: go on from here, exclusively; None when nothing was passed.

    Who asked for markers is told of which generation of the topic it is, and the topic's property `tasks`.
    """

    slices: list[Slice]
    next_id: bytes | None
    held_by: int | None
    messages: int
    payload_bytes: int
    held_at: bytes | None = None
    generation: int | None = None
    tasks: int | None = None
    full: bool = False  # it ended because a message did not fit the limits
    paused_rows: int | None = None  # it paused after so many rows, for the bytes that it passed: go on with it


class Start(NamedTuple):
    """The point at which a fetch begins: a message id (or any 20 bytes), and whether that message itself counts."""

    id: bytes
    inclusive: bool

    @property
    def position(self) -> bytes:
        """No row with a position below this one holds a wanted message."""
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
    oldest = start_from(max(oldest_ms, 0), True)
    return start if start.id >= oldest.id else oldest


def end_of(row_position: bytes) -> bytes:
    """An id after every message of the row, and before those of the next."""
    return row_position + _END_OF_ROW


def marker_of(row: MessageRow) -> Marker:
    """The marker in a row that has one."""
    assert row.batch is not None
    batch = decode(row.batch)
    return decode_marker(batch.kind.name.lower(), batch.payloads(0, 1)[0])


def row_slices(
    row: MessageRow, payload_rows: Callable[[MessageRow], Iterable[PayloadRow]], verify: bool, *, markers: bool = False
) -> Iterator[Slice]:
    """All messages of a row that readers may see, as slices; markers too for who asks for them."""
    if row.batch is not None:
        batch = decode(row.batch, verify=verify)
        if markers or batch.kind is Kind.USER:  # markers are not messages
            yield Slice(row, batch, 0, batch.count, None)
        return
    for stored in payload_rows(row):
        batch = decode(stored.batch)
        yield Slice(row, batch, 0, batch.count, stored.position)


class Limits(NamedTuple):
    """The limits of one fetch: it returns `least` messages whatever their bytes, and none after the id `through`."""

    messages_max: int
    bytes_max: int
    least: int = 1
    through: bytes | None = None

    def end_before(self, row: MessageRow) -> bool:
        """True when all messages of the row, and so of those after it, come after `through`."""
        if self.through is None or row.position <= self.through[:POSITION_BYTES]:
            return False
        if row.batch is None:
            return True
        publish_ms, last = position_fields(row.position)
        return position(publish_ms, max(0, last - count_messages(row.batch) + 1)) > self.through[:POSITION_BYTES]

    def within(self, piece: Slice) -> Slice:
        """The messages that do not come after `through`."""
        return piece if self.through is None else piece.through(self.through)

    def end_at(self, id_: bytes) -> bool:
        """True when a fetch that has come to this id is at `through`: nothing more is to be read."""
        return self.through is not None and id_ >= self.through


class _Taken:
    """What a fetch has found so far, and the bytes that it passed in this look without showing them."""

    __slots__ = ("hidden_bytes", "messages", "payload_bytes", "slices")

    def __init__(self, before: Fetch | None) -> None:
        self.slices: list[Slice] = [] if before is None else list(before.slices)
        self.messages, self.payload_bytes = (0, 0) if before is None else (before.messages, before.payload_bytes)
        self.hidden_bytes = 0

    def take(self, whole: Slice, start: Start, limits: Limits, now_ms: int) -> bool:
        """Take what the reader gets of these messages; False when one did not fit the limits."""
        ahead = whole.after(start.id, start.inclusive)
        parts = limits.within(ahead).unexpired(now_ms)
        for part in parts:
            if part.batch.kind is not Kind.USER:
                self.slices.append(part)
                continue
            least = 0 if self.messages else limits.least  # a first message comes whole, however large
            cut = part.up_to(limits.messages_max - self.messages, limits.bytes_max - self.payload_bytes, least)
            if cut.count:
                self.slices.append(cut)
                self.messages += cut.count
                self.payload_bytes += cut.payload_bytes
            if cut.stop < part.stop:
                return False
        if (len(parts) != 1 or parts[0] is not ahead) and sum(part.count for part in parts) < ahead.count:
            self.hidden_bytes += whole.batch.body_bytes
        return True

    def fetch(self, next_id: bytes | None, row: MessageRow | None = None) -> Fetch:
        """What was found; `row` is the one at which the reader is held."""
        if row is None:
            return Fetch(self.slices, next_id, None, self.messages, self.payload_bytes)
        held_at = row.position + _NO_PAYLOAD_ROW
        return Fetch(self.slices, next_id, row.written_by, self.messages, self.payload_bytes, held_at)


def fetch(
    rows: Iterable[MessageRow],
    payload_rows: Callable[[MessageRow], Iterable[PayloadRow]],
    start: Start,
    limits: Limits,
    snapshot: TransactionSnapshot | None,
    now_ms: int,
    *,
    verify: bool = True,
    markers: bool = False,
    before: Fetch | None = None,
    hidden_bytes_max: int = sys.maxsize,
) -> Fetch:
    """The messages from `start` on that `snapshot` may see; without a snapshot all that are not expired.

    `rows` begin at `start.position`. `verify=False` trusts batches that never left this process. With `markers` these come
    in between, and count for no limit. It pauses once it passed `hidden_bytes_max` without showing them; called again as
    `before`, with its `next_id` as the exclusive start, it goes on as if it had not.
    """
    taken = _Taken(before)
    next_id = None if before is None else before.next_id
    looked_at = 0 if before is None else before.paused_rows or 0
    for row in rows:
        if limits.end_before(row):
            return taken.fetch(limits.through)
        seen = Visibility.VISIBLE if snapshot is None else snapshot.judge(row.written_by)
        if start.is_past(row):
            seen = Visibility.SKIP
        if seen is Visibility.HOLD:
            return taken.fetch(next_id, row)
        if seen is Visibility.VISIBLE:
            for whole in row_slices(start.within(row), payload_rows, verify, markers=markers):
                if not taken.take(whole, start, limits, now_ms):
                    passed = taken.slices[-1].last_id() if taken.slices else next_id
                    return taken.fetch(passed)._replace(full=True)
                if taken.hidden_bytes >= hidden_bytes_max and row.reference is not None:
                    return taken.fetch(whole.last_id())._replace(paused_rows=looked_at)  # the row is looked at again
        else:
            taken.hidden_bytes += row.size_bytes
        looked_at += 1
        next_id = end_of(row.position)
        enough = taken.messages >= limits.messages_max or taken.payload_bytes >= limits.bytes_max
        if enough or looked_at >= ROWS_MAX or limits.end_at(next_id):
            break
        if taken.hidden_bytes >= hidden_bytes_max:
            return taken.fetch(next_id)._replace(paused_rows=looked_at)
    return taken.fetch(next_id)
