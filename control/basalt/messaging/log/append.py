"""Appending to a log: the places of new messages, the cuts of a publish, and the rows that grow within a group.

Places are times and sequences that never go back: the next one is later than the newest whatever the clock says, so a clock
that went back, a full millisecond and a restart all go on from it. Publishes without a transaction that meet in one group
and one topic become one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from basalt.api.bodies.messages import RecordIn
from basalt.catalog.topics import Topic
from basalt.messaging.index import NO_TTLS, TtlCounts
from basalt_engine.keys import SEQUENCE_MAX, position
from basalt_engine.messages import ROW_BYTES_MAX, MessageRow, ProducerNumbers, Reference, add_numbers
from basalt_engine.records import NO_EXTRAS, Buffer, Extras, RecordKind, encode

BATCH_BYTES_MAX = ROW_BYTES_MAX - 16  # a batch's header and checksum, and its length when it is compressed
MESSAGE_OVERHEAD_BYTES = 4  # a length in the record batch
EXTRAS_OVERHEAD_BYTES = 24  # event time, TTL, and the lengths of key and headers


class LogPosition(NamedTuple):
    """A message's place in its topic: milliseconds, and the sequence within them."""

    ms: int
    sequence: int


class PositionRange(NamedTuple):
    """Neighbouring places within one millisecond: sequences start <= sequence < stop."""

    ms: int
    start: int
    stop: int


EMPTY_LOG = LogPosition(-1, SEQUENCE_MAX)  # the newest place of a log that has given out none


def places(newest: LogPosition, now_ms: int, count: int) -> list[PositionRange]:
    """The positions of the next `count` messages: one range, or two when the millisecond's sequences run out.

    `count` is at most `BATCH_MESSAGES_MAX`, all the sequences of one millisecond.
    """
    assert 0 < count <= SEQUENCE_MAX + 1, count
    ms, start = (now_ms, 0) if now_ms > newest.ms else (newest.ms, newest.sequence + 1)
    ranges = []
    room = SEQUENCE_MAX + 1 - start
    if room > 0:
        taken = min(room, count)
        ranges.append(PositionRange(ms, start, start + taken))
        count -= taken
    if count:
        ranges.append(PositionRange(ms + 1, 0, count))
    return ranges


def next_place(newest: LogPosition, now_ms: int) -> LogPosition:
    """The position of the next message: that of `places` for a single one."""
    if now_ms > newest.ms:
        return LogPosition(now_ms, 0)
    if newest.sequence < SEQUENCE_MAX:
        return LogPosition(newest.ms, newest.sequence + 1)
    return LogPosition(newest.ms + 1, 0)


def before_one_millisecond(newest: LogPosition, now_ms: int, count: int) -> LogPosition:
    """The newest place to go on from, so that the next `count` get places of one millisecond, and so can be one row."""
    place = next_place(newest, now_ms)
    return newest if place.sequence + count <= SEQUENCE_MAX + 1 else LogPosition(place.ms, SEQUENCE_MAX)


def last_of(ranges: list[PositionRange]) -> LogPosition:
    """The newest place once these are taken."""
    return LogPosition(ranges[-1].ms, ranges[-1].stop - 1)


class Placed(NamedTuple):
    """The places that one append took: first and last, both inclusive."""

    start_ms: int
    start_sequence: int
    end_ms: int
    end_sequence: int

    @classmethod
    def of(cls, ranges: Sequence[PositionRange]) -> Placed:
        return cls(ranges[0].ms, ranges[0].start, ranges[-1].ms, ranges[-1].stop - 1)

    @property
    def end(self) -> bytes:
        """The position of the last one."""
        return position(self.end_ms, self.end_sequence)


class RecordColumns(NamedTuple):
    """The payloads of records, and what else each carries."""

    payloads: Sequence[Buffer]
    extras: Sequence[Extras]

    @classmethod
    def of(cls, records: Sequence[RecordIn]) -> RecordColumns:
        extras = [
            Extras(
                None if record.key is None else bytes(record.key),
                tuple((name, bytes(value)) for name, value in record.headers),
                record.event_time_ms,
                record.ttl_ms,
            )
            for record in records
        ]
        return cls([record.payload for record in records], extras)


class Cut(NamedTuple):
    """Messages of one publish that go into one row: start <= index < stop. `size_bytes`: what they take in its batch."""

    start: int
    stop: int
    payload_bytes: int
    size_bytes: int


def lone_cut(payload_bytes: int) -> Cut:
    """The cut of a publish of a single message that carries nothing else: all of it, whatever its size."""
    return Cut(0, 1, payload_bytes, payload_bytes + MESSAGE_OVERHEAD_BYTES)


# The producer of a publish, and the number that it gave the first message; the others count up.
Numbered: TypeAlias = tuple[bytes, int]

# Time and last sequence of a part of a publish, its messages, what they carry, and its cut.
PlacedCut = tuple[int, int, Sequence[Buffer], Sequence[Extras] | None, Cut]


class RowBuilder:
    """A row that still may grow within its group."""

    __slots__ = (
        "after", "extras", "kind", "last", "messages", "ms", "own_ttls", "payload_bytes", "payloads", "producers", "reference",
        "size_bytes", "topic", "written_by",
    )  # fmt: skip

    def __init__(self, topic: Topic, written_by: int | None, after: bytes, ms: int) -> None:
        self.topic = topic
        self.written_by = written_by
        self.after = after
        self.ms = ms
        self.last = 0
        self.kind = RecordKind.USER
        self.payloads: list[Buffer] = []
        self.extras: list[Extras] | None = None
        self.reference: Reference | None = None
        self.own_ttls: TtlCounts | None = NO_TTLS  # of what the reference publishes; None: too many
        self.messages = 0
        self.payload_bytes = 0
        self.size_bytes = 0
        self.producers: ProducerNumbers | None = None  # of messages that have numbers

    def can_take(
        self, ms: int, sequence: int, written_by: int | None, cut: Cut, extras: Sequence[Extras] | None
    ) -> bool:
        """True when the cut can join this row: neither has a writer, and the cut comes next and fits."""
        if self.ms != ms or self.reference is not None or written_by is not None or self.written_by is not None:
            return False
        if self.kind is not RecordKind.USER:
            return False
        if sequence != self.last + 1:
            return False
        return self.size_bytes + cut.size_bytes + self._mixed_bytes(cut, extras) <= BATCH_BYTES_MAX

    def _mixed_bytes(self, cut: Cut, extras: Sequence[Extras] | None) -> int:
        """The bytes added by mixing: in a row where some messages have extras, the others need empty ones."""
        if (extras is None) == (self.extras is None):
            return 0
        return EXTRAS_OVERHEAD_BYTES * (self.messages if extras is not None else cut.stop - cut.start)

    def extend(self, payloads: Sequence[Buffer], extras: Sequence[Extras] | None, cut: Cut, last: int) -> None:
        """Add messages of one cut; the last of them has this sequence."""
        self.size_bytes += cut.size_bytes + self._mixed_bytes(cut, extras)
        if extras is not None and self.extras is None:
            self.extras = [NO_EXTRAS] * self.messages
        if self.extras is not None:
            self.extras += extras if extras is not None else [NO_EXTRAS] * len(payloads)
        self.payloads += payloads
        self.messages += len(payloads)
        self.payload_bytes += cut.payload_bytes
        self.last = last

    def number(self, producer: bytes, last: int, messages: int) -> None:
        """The messages that came last are this producer's, up to this number."""
        if self.producers is None:
            self.producers = {}
        add_numbers(self.producers, producer, last, messages)

    def row(self) -> MessageRow:
        where = position(self.ms, self.last)
        if self.reference is not None:
            return MessageRow(where, self.written_by, None, self.reference)
        batch = encode(self.payloads, self.extras, kind=self.kind)
        return MessageRow(where, self.written_by, batch, None, self._expire_ms(), producers=self.producers)

    def _expire_ms(self) -> int | None:
        """The time at which the row's last message expires by its own TTL; None when a message lives as long as the topic says."""
        if self.extras is None:
            return None
        longest = 0
        for extra in self.extras:
            if extra.ttl_ms is None or extra.ttl_ms >= self.topic.metadata.ttl_ms:
                return None
            longest = max(longest, extra.ttl_ms)
        return self.ms + longest


def placed_cuts(
    ranges: Sequence[PositionRange], payloads: Sequence[Buffer], extras: Sequence[Extras] | None
) -> Iterator[PlacedCut]:
    """The messages of a publish as they go into rows."""
    start = 0
    for each in ranges:
        stop = start + each.stop - each.start
        within, carried = payloads[start:stop], None if extras is None else extras[start:stop]
        for cut in cuts(within, carried):
            theirs = None if carried is None else carried[cut.start : cut.stop]
            yield each.ms, each.start + cut.stop - 1, within[cut.start : cut.stop], theirs, cut
        start = stop


def cuts(payloads: Sequence[Buffer], extras: Sequence[Extras] | None = None) -> list[Cut]:
    """Cut a publish into rows of at most `BATCH_BYTES_MAX`; a larger message is alone in its row."""
    lengths = list(map(len, payloads))
    payload_bytes, size_bytes = sum(lengths), MESSAGE_OVERHEAD_BYTES * len(lengths)
    sizes = None if extras is None else list(map(_extras_bytes, extras))
    size_bytes += payload_bytes + (0 if sizes is None else sum(sizes))
    if size_bytes <= BATCH_BYTES_MAX:
        return [Cut(0, len(lengths), payload_bytes, size_bytes)]
    parts, first, payload_bytes, size_bytes = [], 0, 0, 0
    for index, length in enumerate(lengths):
        cost = length + MESSAGE_OVERHEAD_BYTES + (0 if sizes is None else sizes[index])
        if index > first and size_bytes + cost > BATCH_BYTES_MAX:
            parts.append(Cut(first, index, payload_bytes, size_bytes))
            first, payload_bytes, size_bytes = index, 0, 0
        payload_bytes += length
        size_bytes += cost
    return [*parts, Cut(first, len(lengths), payload_bytes, size_bytes)]


def _extras_bytes(extra: Extras) -> int:
    size_bytes = EXTRAS_OVERHEAD_BYTES if extra.key is None else EXTRAS_OVERHEAD_BYTES + len(extra.key)
    for name, value in extra.headers:  # most have none, and each row of a large publish comes here
        size_bytes += 6 + len(name.encode()) + len(value)
    return size_bytes
