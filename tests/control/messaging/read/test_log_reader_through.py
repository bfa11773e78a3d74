"""Ranges: what lies between two ids, cut anywhere, against a model that looks at one message at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from basalt.messaging.read.log_reader import SliceLimits, Start, Stopped, end_of, start_from
from basalt_engine.snapshot import TransactionSnapshot
from tests.control.messaging.read.test_log_reader import (
    EVERYTHING,
    NOW_MS,
    SNAPSHOTS,
    Log,
    fetch,
    ids,
    logs,
    naively,
    starts,
    thorough,
)


@thorough
@given(logs(), st.data(), SNAPSHOTS)
def test_a_fetch_through_an_id_finds_what_is_not_after_it(
    log: Log, data: st.DataObject, snapshot: TransactionSnapshot | None
) -> None:
    begin, through = data.draw(starts(log)), data.draw(starts(log)).id
    rows = [row for row in log.rows if row.position >= begin.position]
    limits = SliceLimits(*EVERYTHING[:2], 1, through)
    found = fetch(rows, log.payload_rows, begin, limits, snapshot, NOW_MS)
    everything, held_by = naively(log, begin, EVERYTHING, snapshot, NOW_MS)
    assert ids(found) == [message.id for message in everything if message.id <= through]
    if found.held_by is not None:  # then by a row that may have something at or before the end
        assert found.held_by == held_by
        assert found.held_at is not None
        assert found.held_at[:10] <= through[:10] or any(
            message.id <= through for message in log.messages if message.row.position == found.held_at[:10]
        )


@thorough
@given(logs(), st.data(), st.integers(1, 12), st.integers(0, 30))
def test_a_fetch_that_need_not_find_anything_stops_before_what_does_not_fit(
    log: Log, data: st.DataObject, messages_max: int, bytes_max: int
) -> None:
    begin = data.draw(starts(log))
    rows = [row for row in log.rows if row.position >= begin.position]
    found = fetch(rows, log.payload_rows, begin, SliceLimits(messages_max, bytes_max, 0), None, NOW_MS)
    everything, _ = naively(log, begin, EVERYTHING, None, NOW_MS)
    assert found.payload_bytes <= bytes_max
    assert found.messages <= messages_max
    assert ids(found) == [message.id for message in everything][: found.messages]
    if found.stopped is Stopped.FULL:
        following = everything[found.messages]
        assert found.messages == messages_max or found.payload_bytes + len(following.payload) > bytes_max
        if found.next_id is not None:
            assert all(message.id > found.next_id for message in everything[found.messages :])


def test_a_row_that_lies_after_the_end_holds_nobody() -> None:
    """Its writer is undecided, but no message of it is in the range."""
    log = Log()
    log.add([b"a"], [None], None, 1, False)
    log.add([b"b", b"c"], [None, None], 14, 1, False)
    first, second = log.rows
    snapshot = TransactionSnapshot(10)
    for through in (end_of(first.position), log.messages[0].id):
        found = fetch(
            log.rows, log.payload_rows, start_from(None, True), SliceLimits(10, 10, 1, through), snapshot, NOW_MS
        )
        assert ids(found) == [log.messages[0].id]
        assert found.held_by is None
        removed = fetch(
            [second], log.payload_rows, start_from(None, True), SliceLimits(10, 10, 1, through), snapshot, NOW_MS
        )
        assert (removed.slices, removed.held_by, removed.next_id) == ([], None, through)
    beyond = Start(end_of(first.position), False)
    found = fetch([second], log.payload_rows, beyond, SliceLimits(10, 10, 1, log.messages[1].id), None, NOW_MS)
    assert ids(found) == [log.messages[1].id]
