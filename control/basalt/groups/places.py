"""Finds the messages of ids in their rows, and what lies before them: so an acknowledged message becomes a span.

A span covers the message and all from the one before it on that a reader of committed messages sees. Where that one is not
among a few rows before it, the span begins later: it is as true, and only longer to write down.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from basalt.catalog.topics import Topic
from basalt.errors import BusyError, ConflictError, MessageNotFoundError
from basalt.messaging.log.tails import Tail
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.read.first_unstable import FirstUnstable
from basalt.messaging.read.last_stable import StableEnds
from basalt.messaging.read.log_reader import LogReader, SliceLimits, Start, before
from basalt.messaging.read.slices import NO_PAYLOAD_ROW, Slice, numbers, row_slices
from basalt.runtime.store_calls import StoreCalls
from basalt.transactions.log_state import LogState
from basalt.transactions.rules.transaction import TransactionIds
from basalt_engine.clock import Clock
from basalt_engine.keys import MESSAGE_ID_BYTES, position, position_fields
from basalt_engine.messages import POSITION_BYTES, MessageRow
from basalt_engine.payloads import PayloadRow
from basalt_engine.records import count_counted
from basalt_engine.snapshot import TransactionSnapshot, Visibility
from basalt_engine.spans.spans import ZERO_ID
from basalt_engine.table import Store

_HEAD_BYTES = 8  # of a position: the time, before the number
PLACES_TURN = 1_000  # ids that are looked up without a pause: a few milliseconds
ROWS_BEFORE_MAX = 8  # that are looked through for the message before another


class Place(NamedTuple):
    """A message as a span: behind `after`, up to and with its id. `is_known` is False where no row has it (any more)."""

    after: bytes
    id: bytes
    is_known: bool = True


class _Run(NamedTuple):
    """The ids of the messages of one row, where they count up: they begin with `head`, and end with zeros."""

    head: bytes
    first: int
    last: bytes

    def place(self, message_id: bytes) -> Place | None:
        """The place of an id that is not behind the last; None for the first message of the row."""
        head, first, _ = self
        number = message_id[_HEAD_BYTES] << 8 | message_id[_HEAD_BYTES + 1]
        if number < first or not message_id.startswith(head) or not message_id.endswith(NO_PAYLOAD_ROW):
            return Place(before(message_id), message_id, False)
        if number == first:
            return None
        return Place(head + numbers()[number - 1] + NO_PAYLOAD_ROW, message_id)


class MessagePlaces:
    """Finds messages of all topics of one store."""

    def __init__(
        self, store: Store, clock: Clock, reader: LogReader, manager: LogState, ends: StableEnds, first_unstable: FirstUnstable,
        ids: TransactionIds,
    ) -> None:  # fmt: skip
        self._call = StoreCalls(store)
        self._clock = clock
        self._reader = reader
        self._manager = manager
        self._ends = ends
        self._first_unstable = first_unstable
        self._ids = ids

    async def check_decided(self, log: TopicLog, last: bytes, field: str = "upTo") -> None:
        """`ConflictError` where what lies up to this id may still appear, or change who sees it."""
        if last[:POSITION_BYTES] <= log.stable:
            return
        settled = await self._ends.settled(log)
        if last <= settled.id:
            return
        await self.refuse_undecided(log, last, field)
        raise ConflictError(
            f"{last.hex()} lies behind the end of topic {log.topic.title}",
            field=field,
            hint="acknowledge what was read; to leave out what is there, seek to the end",
        )

    async def refuse_undecided(self, log: TopicLog, last: bytes, field: str) -> None:
        """`ConflictError` where a transaction that has not ended has messages up to this id."""
        held = await self._first_unstable.of_topic(log, log.stable + b"\0" if log.stable else b"")
        if held.searched_to is not None:
            raise BusyError(
                f"topic {log.topic.title} is still being searched for messages of transactions in progress",
                hint="send the same call again: it goes on from there",
            )
        if held.held_by is not None and held.held_at is not None and held.held_at <= last:
            named = self._ids.text(self._manager.id_of(held.held_by))
            raise ConflictError(
                f"{last.hex()} lies behind message {held.held_at.hex()} of transaction {named}, which has not ended",
                field=field,
                hint="readers of committed messages have not come that far: wait until it has ended",
            )

    async def find(self, log: TopicLog, ids: Sequence[bytes]) -> list[Place]:
        """The place of each id, in their order. Check first that all is decided up to the last."""
        snapshot = self._manager.current()
        ordered = sorted(set(ids))
        places: dict[bytes, Place] = {}
        first = 0
        while first < len(ordered):  # row by row
            run = None if log.tail is None else _run_at(log.tail, ordered[first], snapshot)
            if run is not None:
                last, place_of = run.last, run.place
            else:
                among = await self._slice_of(log, ordered[first], snapshot)
                last, place_of = b"" if among is None else among.last_id(), partial(_place_in, among)
            stop = max(bisect_right(ordered, last, first), first + 1)
            for number, message_id in enumerate(ordered[first:stop], first + 1):
                places[message_id] = place_of(message_id) or await self._first_of_row(log, message_id, snapshot)
                if number % PLACES_TURN == 0:
                    await asyncio.sleep(0)
            first = stop
        return [places[message_id] for message_id in ids]

    async def _first_of_row(self, log: TopicLog, message_id: bytes, snapshot: TransactionSnapshot) -> Place:
        """The place of the first message of a batch: what lies before it is in another row."""
        return Place(await self._last_before(log, message_id, snapshot), message_id)

    def refuse_unknown(self, log: TopicLog, place: Place) -> None:
        """`MessageNotFoundError` for an id that no message has, unless it may have expired."""
        published_ms = position_fields(place.id[:POSITION_BYTES])[0]
        if published_ms >= log.oldest_ms(self._clock.now_ms()):
            raise MessageNotFoundError(
                f"topic {log.topic.title} has no message {place.id.hex()}",
                field="ids",
                hint="send ids as a fetch of this topic answered them",
            )

    async def _slice_of(self, log: TopicLog, message_id: bytes, snapshot: TransactionSnapshot) -> Slice | None:
        """The messages among which one of this id is, if there is one."""
        tail, stop = log.tail, message_id[:POSITION_BYTES]
        if tail is not None and stop > tail.starts_after:
            rows = tail.rows_from(stop, 1)
            if rows and rows[0].reference is None:
                if snapshot.judge(rows[0].written_by) is not Visibility.VISIBLE:
                    return None
                return next(row_slices(rows[0], _no_payloads, verify=False), None)
        found = await self._reader.read(log, Start(message_id, True), SliceLimits(1, 1), snapshot)
        return found.slices[0].whole() if found.slices else None

    async def _last_before(self, log: TopicLog, place: bytes, snapshot: TransactionSnapshot) -> bytes:
        """The last message before the first one of a batch that readers see; or the place itself where that is not at hand."""
        if place[POSITION_BYTES:] != NO_PAYLOAD_ROW:
            return before(place)  # other payload rows of the same message row may come before it
        tail, stop = log.tail, place[:POSITION_BYTES]
        if tail is not None and stop > tail.starts_after:
            index = bisect_left(tail.positions, stop, tail.first)
            near = tail.rows[max(tail.first, index - ROWS_BEFORE_MAX) : index]
            found = _last_message([row for row in reversed(near) if row is not None], place, snapshot)
            if found:
                return found
        rows = await self._call(self._stored_before, log.topic, stop)
        if len(rows) < ROWS_BEFORE_MAX:  # these are all
            return _last_message(rows, place, snapshot) or ZERO_ID
        return _last_message(rows, place, snapshot) or before(place)

    def _stored_before(self, topic: Topic, stop: bytes) -> list[MessageRow]:
        rows = self._reader.messages.scan(topic.read_keys, b"", stop, reverse=True, rows_max=ROWS_BEFORE_MAX)
        return list(islice(rows, ROWS_BEFORE_MAX))


def _run_at(tail: Tail, message_id: bytes, snapshot: TransactionSnapshot) -> _Run | None:
    """The ids of the row in memory in which one of this id is, if there is one: by its position and its header alone. None: look."""
    position = message_id[:POSITION_BYTES]
    if position <= tail.starts_after:
        return None
    index = bisect_left(tail.positions, position, tail.first)
    row = tail.rows[index] if index < len(tail.rows) else None
    if row is None or row.batch is None or snapshot.judge(row.written_by) is not Visibility.VISIBLE:
        return None
    count = count_counted(row.batch)
    last = int.from_bytes(row.position[_HEAD_BYTES:], "big")
    if not 0 < count <= last + 1:
        return None
    return _Run(row.position[:_HEAD_BYTES], last + 1 - count, row.position + NO_PAYLOAD_ROW)


def _place_in(among: Slice | None, message_id: bytes) -> Place | None:
    """The place of an id among these messages, if there are some; None for the first of them."""
    found = None if among is None else among.after(message_id, True)
    if among is None or found is None or not found.count or found.first_id() != message_id:
        return Place(before(message_id), message_id, False)
    return Place(among.id_at(found.start - 1), message_id) if found.start > among.start else None


def _no_payloads(_: MessageRow) -> Iterable[PayloadRow]:
    """Nothing: the row has its messages in itself."""
    return ()


def _last_message(rows: Iterable[MessageRow], place: bytes, snapshot: TransactionSnapshot) -> bytes:
    """The last message before a place in these rows, newest first; empty when readers see none."""
    for row in rows:
        if snapshot.judge(row.written_by) is not Visibility.VISIBLE:
            continue
        if row.reference is not None:
            return row.position + row.reference.last
        whole = next(row_slices(row, _no_payloads, verify=True), None)
        earlier = None if whole is None else whole.through(before(place))
        if earlier is not None and earlier.count:
            return earlier.last_id()
    return b""


def oldest_of(log: TopicLog, now_ms: int) -> bytes:
    """The place before which no message of the topic lives any more."""
    oldest_ms = log.oldest_ms(now_ms)
    return before(position(oldest_ms, 0)).ljust(MESSAGE_ID_BYTES, b"\xff") if oldest_ms else ZERO_ID
