"""Fetching against a model that looks at one message at a time: the same messages, stops and places to go on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.messaging.read import log_reader
from basalt.messaging.read.log_reader import (
    Fetch,
    ReadBudget,
    Reading,
    SliceLimits,
    Start,
    Stopped,
    end_of,
    not_before,
    start_from,
)
from basalt.messaging.read.slices import PayloadRows
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import MessageId, position, position_fields
from basalt_engine.messages import MessageRow, Reference
from basalt_engine.payloads import PayloadRow
from basalt_engine.records import Compression, Extras, RecordKind, can_merge, decode, encode, merge
from basalt_engine.snapshot import InvalidList, TransactionSnapshot, Visibility

relaxed = settings(deadline=None)
thorough = settings(deadline=None, max_examples=125)

EVERYTHING = SliceLimits(10**6, 10**9)
FIRST_MS, NOW_MS = 100, 110
WRITERS = (11, 12, 13, 14)


@dataclass
class Message:
    """One message as the model knows it."""

    id: bytes
    payload: bytes
    expire_ms: int | None
    row: MessageRow


@dataclass
class Log:
    """A topic: its rows, the payload rows behind them, and every message in order."""

    rows: list[MessageRow] = field(default_factory=list)
    stored: dict[int, list[PayloadRow]] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    place: tuple[int, int] = (FIRST_MS, -1)
    stored_place: dict[int, tuple[int, int]] = field(default_factory=dict)

    def payload_rows(self, row: MessageRow) -> list[PayloadRow]:
        assert row.reference is not None
        assert row.written_by is not None
        first, last, _ = row.reference
        return [each for each in self.stored.get(abs(row.written_by), []) if first <= each.position <= last]

    def add(
        self, payloads: list[bytes], ttls: list[int | None], written_by: int | None, later_ms: int, zstd: bool
    ) -> None:
        self.place = (self.place[0], self.place[1] + len(payloads))
        if later_ms:
            self.place = (self.place[0] + later_ms, len(payloads) - 1)
        ms, last = self.place
        extras = [Extras(ttl_ms=ttl) for ttl in ttls] if any(ttls) else None
        batch = encode(payloads, extras, compression=Compression.ZSTD if zstd else Compression.NONE)
        row = MessageRow(position(ms, last), written_by, batch)
        self.rows.append(row)
        for number, (payload, ttl) in enumerate(zip(payloads, ttls, strict=True), last - len(payloads) + 1):
            self.messages.append(Message(MessageId(ms, number).encode(), payload, ms + ttl if ttl else None, row))

    def add_marker(self, later_ms: int) -> None:
        self.place = (self.place[0] + later_ms, 0 if later_ms else self.place[1] + 1)
        self.rows.append(MessageRow(position(*self.place), None, encode([b"never seen"], kind=RecordKind.WATERMARK)))

    def refer(
        self, batches: list[list[bytes]], written_by: int, later_ms: int, lost: bool, ttl: int | None = None
    ) -> None:
        """A row that refers to some payload rows; `lost`: they were removed already. `ttl` is that of all its messages."""
        self.place = (self.place[0] + later_ms, 0 if later_ms else self.place[1] + 1)
        ms, last = self.stored_place.get(abs(written_by), (FIRST_MS - 50, -1))
        found: list[tuple[bytes, list[bytes]]] = []
        for payloads in batches:
            last += len(payloads)
            found.append((position(ms, last), payloads))
        self.stored_place[abs(written_by)] = (ms, last)
        reference = Reference(found[0][0], found[-1][0], sum(map(len, batches)))
        row = MessageRow(position(*self.place), written_by, None, reference)
        self.rows.append(row)
        if lost:
            return
        for where, payloads in found:
            extras = [Extras(ttl_ms=ttl)] * len(payloads) if ttl else None
            self.stored.setdefault(abs(written_by), []).append(PayloadRow(where, encode(payloads, extras)))
            first = position_fields(where)[1] - len(payloads) + 1
            for number, payload in enumerate(payloads, first):
                expire_ms = self.place[0] + ttl if ttl else None
                self.messages.append(Message(MessageId(*self.place, ms, number).encode(), payload, expire_ms, row))

    def merge(self, start: int, stop: int) -> None:
        """Merge the rows start <= index < stop, as far as they can be."""
        some = self.rows[start:stop]
        if any(row.batch is None or row.written_by is not None or not can_merge(row.batch) for row in some):
            return
        batch = merge([(row.position, decode(row.batch or b"")) for row in some])
        self.rows[start:stop] = [MessageRow(some[-1].position, None, batch)]
        for message in self.messages:
            if any(message.row is row for row in some):
                message.row = self.rows[start]


PAYLOADS = st.lists(st.binary(max_size=6), min_size=1, max_size=5)
WRITER = st.sampled_from(WRITERS).flatmap(lambda pointer: st.sampled_from([pointer, pointer, -pointer]))


@st.composite
def logs(draw: st.DrawFn) -> Log:
    log = Log()
    for _ in range(draw(st.integers(0, 7))):
        later_ms = draw(st.sampled_from([0, 0, 1, 3]))
        kind = draw(st.sampled_from(["plain", "plain", "transaction", "reference", "reference", "marker"]))
        if kind == "marker":
            log.add_marker(later_ms)
        elif kind == "reference":
            batches = draw(st.lists(PAYLOADS, min_size=1, max_size=3))
            ttl = draw(st.sampled_from([None, None, 1, 5]))
            log.refer(batches, draw(WRITER), later_ms, lost=draw(st.integers(0, 5)) == 0, ttl=ttl)
        else:
            payloads = draw(PAYLOADS)
            own = st.sampled_from([None, None, 1, 5, 10, 50])
            ttls = draw(st.lists(own, min_size=len(payloads), max_size=len(payloads)))
            if draw(st.booleans()):
                ttls = [None] * len(payloads)
            log.add(payloads, ttls, draw(WRITER) if kind == "transaction" else None, later_ms, draw(st.booleans()))
    for start in range(len(log.rows), -1, -1):
        stop = min(start + draw(st.integers(1, 4)), len(log.rows))
        if start < stop:
            log.merge(start, stop)
    return log


SNAPSHOTS = st.none() | st.builds(
    lambda read, busy, failed, own: TransactionSnapshot(
        read, 0, tuple(sorted(busy)), InvalidList(tuple(sorted(failed))), tuple(own)
    ),
    st.integers(10, 14),
    st.sets(st.sampled_from(WRITERS), max_size=1),
    st.sets(st.sampled_from(WRITERS), max_size=2),
    st.sets(st.sampled_from(WRITERS), max_size=1),
)
LIMITS = st.builds(
    SliceLimits, st.integers(1, 12), st.integers(1, 30), st.just(1), st.none(), st.sampled_from([0, 0, 3])
)


@st.composite
def starts(draw: st.DrawFn, log: Log) -> Start:
    """The oldest message, a time, a message, just beside one, the end of a row, or any 20 bytes."""
    inclusive = draw(st.booleans())
    kind = draw(st.sampled_from(["oldest", "time", "message", "beside", "end", "any"]))
    if kind == "time":
        return start_from(draw(st.integers(FIRST_MS - 1, FIRST_MS + 25)), inclusive)
    if kind == "any":
        return Start(draw(st.binary(min_size=20, max_size=20)), inclusive)
    if kind == "end" and log.rows:
        return Start(end_of(draw(st.sampled_from(log.rows)).position), inclusive)
    if kind in ("message", "beside") and log.messages:
        chosen = draw(st.sampled_from(log.messages)).id
        aside = draw(st.sampled_from([-1, 1, -(1 << 80), 1 << 80])) if kind == "beside" else 0
        return Start((int.from_bytes(chosen, "big") + aside).to_bytes(20, "big"), inclusive)
    return start_from(None, inclusive)


def wanted(row: MessageRow, start: Start) -> bool:
    """Whether a row may hold a message from the start on, by the ids that it can have."""
    end = row.position + (row.reference.last if row.reference is not None else bytes(10))
    return end > start.id or (end == start.id and start.inclusive)


def naively(
    log: Log, start: Start, limits: SliceLimits, snapshot: TransactionSnapshot | None, now_ms: int
) -> tuple[list[Message], int | None]:
    """The messages that a reader gets, and the writer that it has to wait for."""
    found: list[Message] = []
    payload_bytes = 0
    for row in sorted(log.rows, key=lambda each: each.position):
        if not wanted(row, start):
            continue
        seen = Visibility.VISIBLE if snapshot is None else snapshot.judge(row.written_by)
        if seen is Visibility.HOLD:
            return found, row.written_by
        for message in log.messages if seen is Visibility.VISIBLE else ():
            if message.row is not row or message.id < start.id or (message.id == start.id and not start.inclusive):
                continue
            if message.expire_ms is not None and message.expire_ms <= now_ms:
                continue
            size_bytes = payload_bytes + len(message.payload) + limits.message_bytes * (len(found) + 1)
            if found and (len(found) == limits.messages_max or size_bytes > limits.bytes_max):
                return found, None
            found.append(message)
            payload_bytes += len(message.payload)
        if len(found) >= limits.messages_max or payload_bytes >= limits.bytes_max:
            return found, None
    return found, None


def fetched(
    log: Log,
    start: Start,
    limits: SliceLimits,
    snapshot: TransactionSnapshot | None,
    *,
    verify: bool = True,
) -> Fetch:
    rows = [row for row in log.rows if row.position >= start.position]
    return fetch(rows, log.payload_rows, start, limits, snapshot, NOW_MS, verify=verify)


def fetch(
    rows: Sequence[MessageRow],
    payload_rows: PayloadRows,
    start: Start,
    limits: SliceLimits,
    snapshot: TransactionSnapshot | None,
    now_ms: int,
    *,
    verify: bool = True,
) -> Fetch:
    """One look at rows that begin at the start, with the budget of a poll."""
    reading = Reading(start, limits, snapshot, now_ms, budget=ReadBudget(log_reader.ROWS_MAX))
    return reading.page(reading.look(rows, payload_rows, verify))


def fetched_in_turns(
    log: Log, start: Start, limits: SliceLimits, snapshot: TransactionSnapshot | None, turn_bytes: int
) -> tuple[Fetch, int]:
    """The page that looks of so many bytes make together, and how many looks it took."""
    reading, looks = Reading(start, limits, snapshot, NOW_MS, budget=ReadBudget(log_reader.ROWS_MAX)), 0
    while True:
        rows = [row for row in log.rows if row.position >= reading.start.position]
        looks += 1
        stopped = reading.look(rows, log.payload_rows, True, bytes_max=turn_bytes)
        if stopped is not Stopped.PAUSED:
            return reading.page(stopped), looks
        assert reading.next_id is not None
        assert reading.next_id > reading.start.id
        reading.go_on(0)


def ids(found: Fetch) -> list[bytes]:
    return [message_id for part in found.slices for message_id in part.ids()]


def payloads(found: Fetch) -> list[bytes]:
    return [bytes(payload) for part in found.slices for payload in part.payloads()]


@thorough
@given(logs(), st.data(), LIMITS, SNAPSHOTS, st.booleans())
def test_a_fetch_finds_what_looking_at_one_message_at_a_time_does(
    log: Log, data: st.DataObject, limits: SliceLimits, snapshot: TransactionSnapshot | None, verify: bool
) -> None:
    start = data.draw(starts(log))
    found = fetched(log, start, limits, snapshot, verify=verify)
    expected, held_by = naively(log, start, limits, snapshot, NOW_MS)
    assert ids(found) == [message.id for message in expected]
    assert payloads(found) == [message.payload for message in expected]
    assert found.held_by == held_by
    assert found.messages == len(expected)
    assert found.payload_bytes == sum(len(message.payload) for message in expected)
    assert found.messages <= limits.messages_max
    assert found.payload_bytes <= limits.bytes_max or found.messages == 1
    assert all(part.count for part in found.slices)


@thorough
@given(logs(), st.data(), LIMITS, SNAPSHOTS)
def test_the_place_to_go_on_from_skips_nothing_and_repeats_nothing(
    log: Log, data: st.DataObject, limits: SliceLimits, snapshot: TransactionSnapshot | None
) -> None:
    start = data.draw(starts(log))
    found = fetched(log, start, limits, snapshot)
    everything, _ = naively(log, start, EVERYTHING, snapshot, NOW_MS)
    returned = ids(found)
    if found.next_id is None:
        assert returned == []
        return
    assert found.next_id >= start.id
    assert [message.id for message in everything if message.id <= found.next_id] == returned
    if found.held_at is not None:
        assert found.held_at > found.next_id


@thorough
@given(logs(), st.data(), LIMITS, SNAPSHOTS, st.sampled_from([1, 2, 10_000]))
def test_paging_with_any_limit_is_the_same_as_one_large_fetch(
    log: Log, data: st.DataObject, limits: SliceLimits, snapshot: TransactionSnapshot | None, rows_max: int
) -> None:
    start = data.draw(starts(log))
    whole = fetched(log, start, EVERYTHING, snapshot)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reader, "ROWS_MAX", rows_max)
        found: list[bytes] = []
        for _ in range(200):
            page = fetched(log, start, limits, snapshot)
            found += ids(page)
            if page.next_id is None or (page.held_by is not None and not page.messages):
                break
            start = Start(page.next_id, False)
        else:
            pytest.fail("the pages do not come to an end")
    assert found == ids(whole)
    assert page.held_by == whole.held_by


@thorough
@given(logs(), st.data(), LIMITS, SNAPSHOTS, st.sampled_from([1, 250, 700]), st.sampled_from([1, 3, 10_000]))
def test_a_fetch_that_pauses_finds_what_it_would_have_found_in_one_go(
    log: Log,
    data: st.DataObject,
    limits: SliceLimits,
    snapshot: TransactionSnapshot | None,
    turn_bytes: int,
    rows_max: int,
) -> None:
    start = data.draw(starts(log))
    if log.messages and data.draw(st.booleans()):
        limits = limits._replace(through=data.draw(st.sampled_from(log.messages)).id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reader, "ROWS_MAX", rows_max)
        whole = fetched(log, start, limits, snapshot)
        found, _ = fetched_in_turns(log, start, limits, snapshot, turn_bytes)
    assert (ids(found), payloads(found)) == (ids(whole), payloads(whole))
    assert found._replace(slices=[]) == whole._replace(slices=[])


@relaxed
@given(logs(), st.data(), LIMITS, SNAPSHOTS)
def test_paging_by_the_last_message_loses_nothing_either(
    log: Log, data: st.DataObject, limits: SliceLimits, snapshot: TransactionSnapshot | None
) -> None:
    start = data.draw(starts(log))
    whole = ids(fetched(log, start, EVERYTHING, snapshot))
    found: list[bytes] = []
    while page := ids(fetched(log, start, limits, snapshot)):
        found += page
        start = Start(page[-1], False)
    assert found == whole


@relaxed
@given(logs(), st.data(), SNAPSHOTS)
def test_no_payload_row_before_the_start_is_read(
    log: Log, data: st.DataObject, snapshot: TransactionSnapshot | None
) -> None:
    """Else paging through a large reference would read it again from its beginning for every page."""
    start = data.draw(starts(log))
    read: list[bytes] = []

    def payload_rows(row: MessageRow) -> list[PayloadRow]:
        found = log.payload_rows(row)
        read.extend(row.position + each.position for each in found)
        return found

    rows = [row for row in log.rows if row.position >= start.position]
    fetch(rows, payload_rows, start, EVERYTHING, snapshot, NOW_MS)
    assert all(end >= start.id for end in read)


# Single cases.


def log_of(*parts: Sequence[bytes], ttls: int | None = None) -> Log:
    log = Log()
    for part in parts:
        log.add(list(part), [ttls] * len(part), None, 0, zstd=False)
    return log


def test_a_message_over_the_limit_comes_alone_and_only_as_the_first() -> None:
    log = log_of([b"small"], [b"x" * 100], [b"last"])
    limits = SliceLimits(10, 10)
    first = fetched(log, start_from(None, True), limits, None)
    assert payloads(first) == [b"small"]
    assert first.next_id is not None
    second = fetched(log, Start(first.next_id, False), limits, None)
    assert payloads(second) == [b"x" * 100]
    assert second.next_id is not None
    assert payloads(fetched(log, Start(second.next_id, False), limits, None)) == [b"last"]


@pytest.mark.parametrize(("at", "inclusive"), [(FIRST_MS, True), (FIRST_MS - 1, False), (None, True), (0, True)])
def test_a_time_and_the_oldest_message_are_starts(at: int | None, inclusive: bool) -> None:
    assert payloads(fetched(log_of([b"a", b"b"]), start_from(at, inclusive), EVERYTHING, None)) == [b"a", b"b"]
    assert payloads(fetched(log_of([b"a", b"b"]), start_from(FIRST_MS, False), EVERYTHING, None)) == []


def test_the_last_time_that_there_is_is_a_start_in_both_ways() -> None:
    for inclusive in (True, False):
        found = fetched(log_of([b"a"]), start_from(2**63 - 1, inclusive), EVERYTHING, None)
        assert (found.slices, found.next_id) == ([], None)


def test_what_has_expired_moves_the_start_and_never_back() -> None:
    early, late = start_from(5, True), start_from(50, True)
    assert not_before(early, 20) == start_from(20, True)
    assert not_before(late, 20) == late
    assert not_before(early, -3) == early
    exclusive = Start(MessageId(20, 0).encode(), False)
    assert not_before(exclusive, 20) == exclusive


def test_reading_on_within_a_reference_reads_no_payload_row_again() -> None:
    log = Log()
    log.refer([[b"a"], [b"b", b"c"], [b"d"]], 11, 0, lost=False)
    for message, first in zip(log.messages, (0, 1, 1, 2), strict=True):
        narrowed = Start(message.id, True).within(log.rows[0])
        assert log.payload_rows(narrowed) == log.stored[11][first:]
        assert Start(message.id[:9] + b"\xff" + message.id[10:], True).within(log.rows[0]) == log.rows[0]


def test_a_reader_that_is_past_an_open_writers_row_does_not_wait_for_it() -> None:
    log = Log()
    log.add([b"open"], [None], 14, 0, zstd=False)
    log.add([b"after"], [None], None, 0, zstd=False)
    log.refer([[b"x"], [b"y"]], 14, 0, lost=False)
    log.add([b"last"], [None], None, 0, zstd=False)
    snapshot = TransactionSnapshot(13)
    assert fetched(log, start_from(None, True), EVERYTHING, snapshot).held_by == 14
    past = fetched(log, Start(log.messages[0].id, False), EVERYTHING, snapshot)
    assert (payloads(past), past.held_by) == ([b"after"], 14)
    between = fetched(log, Start(log.messages[2].id, False), EVERYTHING, snapshot)
    assert (payloads(between), between.held_by) == ([], 14)
    behind = fetched(log, Start(log.messages[3].id, False), EVERYTHING, snapshot)
    assert (payloads(behind), behind.held_by) == ([b"last"], None)


def test_a_hold_names_the_writer_and_the_first_place_that_it_has() -> None:
    log = log_of([b"seen"])
    log.add([b"open"], [None], 14, 1, zstd=False)
    found = fetched(log, start_from(None, True), EVERYTHING, TransactionSnapshot(13))
    assert (found.held_by, found.next_id) == (14, end_of(log.rows[0].position))
    assert found.held_at == MessageId(FIRST_MS + 1, 0).encode()


@pytest.mark.parametrize("inclusive", [True, False])
def test_a_start_between_two_messages_of_a_row_begins_with_the_later_one(inclusive: bool) -> None:
    log = log_of([b"a", b"b", b"c"], [b"d"])
    for number, message in enumerate(log.messages, 1):
        behind = Start((int.from_bytes(message.id, "big") + 1).to_bytes(20, "big"), inclusive)
        assert payloads(fetched(log, behind, EVERYTHING, None)) == [b"a", b"b", b"c", b"d"][number:]


@pytest.mark.parametrize("behind_a_reference", [False, True])
def test_one_look_passes_a_bounded_number_of_bytes(behind_a_reference: bool) -> None:
    log, expired = Log(), [b"x" * 1_000] * 2
    if behind_a_reference:
        log.refer([expired] * 20, 11, 0, lost=False, ttl=1)
    else:
        for _ in range(20):
            log.add(expired, [1, 1], None, 0, zstd=False)
    log.add([b"here"], [None], None, 10, zstd=False)
    found, looks = fetched_in_turns(log, start_from(None, True), EVERYTHING, None, 10_000)
    assert payloads(found) == [b"here"]
    assert looks == 5  # four of 10 KiB, and what is left


def test_a_row_that_the_reader_is_past_is_not_decoded() -> None:
    log = log_of([b"a", b"b"])
    damaged = log.rows[0]._replace(batch=b"not a batch")
    start = Start(log.messages[-1].id, False)
    assert fetch([damaged], log.payload_rows, start, EVERYTHING, None, NOW_MS).slices == []
    with pytest.raises(CorruptionError):
        fetch([damaged], log.payload_rows, Start(log.messages[-1].id, True), EVERYTHING, None, NOW_MS)


def test_a_row_that_was_passed_as_a_whole_is_not_even_read() -> None:
    log = log_of([b"a"], [b"b"])
    for inclusive in (False, True):
        passed = Start(end_of(log.rows[0].position), inclusive)
        assert [row for row in log.rows if row.position >= passed.position] == log.rows[1:]


def test_damage_is_told_apart_from_trust_in_what_never_left_the_process() -> None:
    log = log_of([b"abc"])
    batch = log.rows[0].batch
    assert batch is not None
    flipped = log.rows[0]._replace(batch=batch.replace(b"abc", b"abd"))
    start = start_from(None, True)
    with pytest.raises(CorruptionError, match="checksum"):
        fetch([flipped], log.payload_rows, start, EVERYTHING, None, NOW_MS)
    trusted = fetch([flipped], log.payload_rows, start, EVERYTHING, None, NOW_MS, verify=False)
    assert payloads(trusted) == [b"abd"]


@pytest.mark.parametrize("stored", [False, True])
def test_a_row_with_more_messages_than_its_place_has_sequences_is_corrupt(stored: bool) -> None:
    three = encode([b"a", b"b", b"c"])
    row = MessageRow(position(FIRST_MS, 1), None, three)
    if stored:
        row = MessageRow(position(FIRST_MS, 1), 11, None, Reference(position(5, 1), position(5, 1), 3))
    with pytest.raises(CorruptionError, match="3 messages"):
        fetch([row], lambda _: [PayloadRow(position(5, 1), three)], start_from(None, True), EVERYTHING, None, NOW_MS)


def test_messages_expire_one_by_one_at_their_own_time() -> None:
    log = Log()
    log.add([b"a", b"b", b"c", b"d"], [None, NOW_MS - FIRST_MS, NOW_MS - FIRST_MS + 1, 1], None, 0, zstd=False)
    found = fetched(log, start_from(None, True), EVERYTHING, None)
    assert payloads(found) == [b"a", b"c"]
    assert found.next_id == end_of(log.rows[0].position)


@pytest.mark.parametrize("compression", Compression)
def test_a_look_ends_by_the_bytes_of_its_rows_before_they_were_compressed(compression: Compression) -> None:
    batch = encode([bytes(100_000)], compression=compression)
    rows = [MessageRow(position(FIRST_MS + number, 0), None, batch) for number in range(5)]
    reading = Reading(start_from(None, True), SliceLimits(1_000, 1 << 30), None, NOW_MS)
    stopped = reading.look(rows, lambda _: [], verify=True, bytes_max=250_000)
    assert (stopped, reading.messages) == (Stopped.PAUSED, 3)
