"""Reads a page for a poll's answer: of stretches that are encoded already where there are some, of rows where not.

A stretch is made at its first reading, once the rows are there that fill it; what has come of late, and what not all
readers see alike, is read row by row. Both ways give the same messages, and stop at the same ones.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from basalt.api.codecs.encoded import RUN_MESSAGES_MIN, Encoding
from basalt.messaging.log.answers import Answers, Stretch, StretchPart
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.read.log_reader import (
    LOOK_ROWS_MAX,
    Fetch,
    LogReader,
    Reading,
    RowsAhead,
    SliceLimits,
    Start,
    Stopped,
    end_of,
)
from basalt.messaging.read.slices import NO_PAYLOAD_ROW, Slice, numbers
from basalt_engine.errors import CorruptionError
from basalt_engine.messages import POSITION_BYTES, ROW_BYTES_MAX, MessageRow
from basalt_engine.records import BatchSection, Buffer, RecordKind, count_messages, decode, plain_span
from basalt_engine.snapshot import TransactionSnapshot, Visibility, Writers

STRETCH_BYTES_MIN = 256 * 1024  # with so many bytes of ids and payloads a stretch is full: about a part of an answer,
STRETCH_MESSAGES_MIN = 4_096  # or with so many messages,
STRETCH_ROWS_MIN = 1_000  # or with so many rows
MESSAGE_BYTES = 24  # an id and a length, beside the payload
ROWS_AROUND = 100  # read row by row where a row is that no stretch can have


class Encoded(NamedTuple):
    """The encoding that a page is to have, and whether it is read under the manager's own newest snapshot.

    Only then is it certain that who is seen has ended: rows of others may yet vanish without anybody hearing of it.
    """

    encoding: Encoding
    committed: bool


class AnswerReading(Reading):
    """One page in the making, of stretches and of rows. `encoded` is what it has so far, but for the newest slices."""

    __slots__ = ("encoded",)

    def __init__(
        self, start: Start, limits: SliceLimits, snapshot: TransactionSnapshot | None, now_ms: int, *, markers: bool = False
    ) -> None:  # fmt: skip
        super().__init__(start, limits, snapshot, now_ms, markers=markers)
        self.encoded: list[Slice | StretchPart] = []

    @property
    def has_found(self) -> bool:
        return bool(self.encoded or self.slices)

    @property
    def is_worth_a_stretch(self) -> bool:
        """False for a reader who wants so few messages that most of a stretch would be made for nobody."""
        return self._limits.bytes_max >= STRETCH_BYTES_MIN and self._limits.messages_max >= RUN_MESSAGES_MIN

    def can_see(self, writers: Writers | None) -> bool:
        """True when the reader certainly gets the rows of all these writers."""
        return writers is None or self._snapshot is None or self._snapshot.sees_all(writers)

    def sees(self, written_by: int) -> bool:
        """True when the reader gets rows of this writer, and reads under a snapshot."""
        return self._snapshot is not None and self._snapshot.judge(written_by) is Visibility.VISIBLE

    def take(self, stretch: Stretch) -> Stopped | None:
        """Take what is wanted of the stretch, as `look` does of rows; None when it was passed as a whole."""
        held, limits, first_taken = stretch.messages, self._limits, not self.messages
        first = held.first_from(self.start.id, self.start.inclusive)
        if first == held.count:
            self.next_id = end_of(stretch.last)
            return None
        ends, bytes_left = held.ends, limits.bytes_max - self.payload_bytes
        stop = min(held.count, first + limits.messages_max - self.messages)
        within = bisect_right(ends, ends[first] + bytes_left) - 1
        stop = min(stop, max(within, first + (limits.least if first_taken else 0)))
        # A page that has all its bytes ends with the row, even before messages without any.
        enough = bisect_left(ends, ends[first] + bytes_left)
        if enough <= stop:
            stop = min(stop, _row_stop(stretch, max(enough, first + 1)))
        if stop > first:
            self._add(StretchPart(stretch, first, stop))
        ends_row = stop > first and _row_stop(stretch, stop) == stop
        if ends_row:
            self.next_id = end_of(held.id_at(stop - 1)[:POSITION_BYTES])
        elif stop > first:
            self.next_id = held.id_at(stop - 1)
        if ends_row and (self.messages >= limits.messages_max or self.payload_bytes >= limits.bytes_max):
            return Stopped.ENOUGH
        if stop == held.count:
            return None
        self.full_at = held.id_at(stop)
        return Stopped.FULL

    def _add(self, part: StretchPart) -> None:
        self.encoded += self.slices
        self.encoded.append(part)
        self.slices = []
        self.messages += part.count
        self.payload_bytes += part.payload_bytes

    def page(self, stopped: Stopped) -> Fetch:
        encoded = [*self.encoded, *self.slices]
        return super().page(stopped)._replace(slices=[], encoded=encoded)


def _row_stop(stretch: Stretch, count: int) -> int:
    """The messages up to the end of the row in which the stretch has its first `count` ones."""
    return stretch.row_stops[bisect_left(stretch.row_stops, count)]


class _StretchMaker:
    """The rows of a stretch in the making."""

    def __init__(self, reading: AnswerReading, asked: Encoded, verify: bool) -> None:
        self._reading = reading
        self._encoding = asked.encoding
        self._committed = asked.committed
        self._verify = verify
        self._writers = set[int]()
        self._ids: list[bytes] = []
        self._lengths: list[int] = []
        self._payloads: list[Buffer] = []
        self._row_stops = array("Q")
        self._last = b""
        self._size_bytes = 0

    @property
    def messages(self) -> int:
        return len(self._ids)

    @property
    def is_full(self) -> bool:
        return (
            self._size_bytes >= STRETCH_BYTES_MIN
            or len(self._ids) >= STRETCH_MESSAGES_MIN
            or len(self._row_stops) >= STRETCH_ROWS_MIN
        )

    def add(self, row: MessageRow) -> bool:
        """Add a row; False when no stretch can have it, or one in this encoding is not to."""
        data, written_by = row.batch, row.written_by
        if data is None or len(data) > 2 * ROW_BYTES_MAX:
            return False
        if written_by is not None and not (self._committed and written_by > 0 and self._reading.sees(written_by)):
            return False
        if self._encoding.stands_alone(count_messages(data), len(data)):
            return False
        span = plain_span(data, verify=self._verify)
        added = self._add_decoded(row, data) if span is None else self._add_plain(row, *span)
        if added:
            if written_by is not None:
                self._writers.add(written_by)
            self._row_stops.append(len(self._ids))
            self._last = row.position
        return added

    def _add_plain(self, row: MessageRow, lengths: tuple[int, ...], payloads: memoryview) -> bool:
        last = int.from_bytes(row.position[8:], "big")
        first = last - len(lengths) + 1
        if first < 0:
            return False
        if first == last:
            self._ids.append(row.position + NO_PAYLOAD_ROW)
        else:
            head = row.position[:8]
            self._ids += [head + number + NO_PAYLOAD_ROW for number in numbers()[first : last + 1]]
        self._add(lengths, payloads)
        return True

    def _add_decoded(self, row: MessageRow, data: bytes) -> bool:
        try:
            batch = decode(data, verify=self._verify)
            whole = Slice(row, batch, None)
        except CorruptionError:  # who reads row by row says so, if they come to it
            return False
        never = BatchSection.TTLS if not self._encoding.has_carried else -1
        if batch.kind is not RecordKind.USER or batch.flags & never:
            return False
        if self._encoding.stands_alone(batch.count, batch.payload_bytes):
            return False
        self._ids += whole.ids()
        self._add(batch.lengths(), whole.span()[1])
        return True

    def _add(self, lengths: tuple[int, ...], payloads: memoryview) -> None:
        self._lengths += lengths
        self._payloads.append(payloads)
        self._size_bytes += len(payloads) + MESSAGE_BYTES * len(lengths)

    def stretch(self, start: bytes) -> Stretch:
        """The rows so far as a stretch, which have all that the log holds from `start` on."""
        messages = self._encoding(self._ids, self._lengths, self._payloads)
        return Stretch(start, self._last, self._row_stops, Writers.of(frozenset(self._writers)), messages)


class AnswerReader:
    """Reads pages of the logs of one store for answers, and keeps stretches of them."""

    def __init__(self, reader: LogReader, answers: Answers) -> None:
        self._reader = reader
        self._answers = answers

    async def read(self, log: TopicLog, reading: AnswerReading, asked: Encoded) -> Fetch:
        """A page in this encoding, past any stretch of rows that this reader may not see, as `LogReader.read`."""
        answers, rows_around = self._answers, ROWS_AROUND
        while True:
            start = reading.go_on(log.oldest_ms(reading.now_ms)).position
            if log.is_in_doubt_before(start):
                await log.confirm_or_delete()
            stretch = answers.find(log, asked.encoding, start)
            if stretch is not None and reading.can_see(stretch.writers):
                answers.hits += 1
                stopped = reading.take(stretch)
                if stopped is not None:
                    return reading.page(stopped)
                continue
            ahead, rows_max = self._reader.rows_ahead(log, reading), LOOK_ROWS_MAX
            if stretch is None and answers.bytes_max and reading.is_worth_a_stretch and ahead.rows is not None:
                stretch, ahead, is_blocked = self._make(log, reading, asked, ahead, ahead.rows)
                if stretch is not None:
                    if not log.ended:
                        answers.keep(log, stretch)
                    stopped = reading.take(stretch)
                    if stopped is not None:
                        return reading.page(stopped)
                    await asyncio.sleep(0)  # others get their turn on a long way
                    continue
                if is_blocked:
                    rows_max, rows_around = rows_around, min(4 * rows_around, LOOK_ROWS_MAX)
            page = await self._reader.turn(log, reading, ahead, rows_max)
            if page is not None and not (page.stopped is Stopped.END and await log.goes_on(reading.has_found)):
                return page

    def _make(
        self, log: TopicLog, reading: AnswerReading, asked: Encoded, ahead: RowsAhead, rows: Iterable[MessageRow]
    ) -> tuple[Stretch | None, RowsAhead, bool]:
        """A stretch of the rows ahead, if there is one: else the same rows ahead, and whether one of them cannot be in any."""
        start = reading.start.position
        stop = self._answers.start_behind(log, asked.encoding, start)
        maker, passed, is_blocked = _StretchMaker(reading, asked, ahead.cached is None), list[MessageRow](), False
        left = iter(rows)
        for row in left:
            passed.append(row)
            # The row at which another stretch begins is none of this: merged, it may have messages on both sides.
            is_blocked = (stop is not None and row.position >= stop) or not maker.add(row)
            if is_blocked or maker.is_full:
                break
        if maker.is_full or (is_blocked and maker.messages >= RUN_MESSAGES_MIN):
            return maker.stretch(start), ahead, False
        return None, ahead if ahead.cached is not None else RowsAhead(None, chain(passed, left)), is_blocked
