"""Where the next messages go: forward, without a hole or a place given out twice, whatever the clock does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.messaging.log.append import (
    EMPTY_LOG,
    LogPosition,
    PositionRange,
    cuts,
    last_of,
    lone_cut,
    next_place,
    places,
)
from basalt_engine.keys import SEQUENCE_MAX, position

relaxed = settings(deadline=None)

TIMES = st.integers(0, 5)
SEQUENCES = st.integers(0, SEQUENCE_MAX) | st.integers(SEQUENCE_MAX - 300, SEQUENCE_MAX)
NEWEST = st.just(EMPTY_LOG) | st.builds(LogPosition, TIMES, SEQUENCES)
COUNTS = st.integers(1, 300)


def listed(ranges: list[PositionRange]) -> list[LogPosition]:
    return [LogPosition(each.ms, sequence) for each in ranges for sequence in range(each.start, each.stop)]


def naively(newest: LogPosition, now_ms: int, count: int) -> list[LogPosition]:
    """One place at a time: the clock's millisecond if it is later, else the next place there is."""
    found: list[LogPosition] = []
    for _ in range(count):
        if now_ms > newest.ms:
            newest = LogPosition(now_ms, 0)
        elif newest.sequence == SEQUENCE_MAX:
            newest = LogPosition(newest.ms + 1, 0)
        else:
            newest = LogPosition(newest.ms, newest.sequence + 1)
        found.append(newest)
    return found


@relaxed
@given(NEWEST, TIMES, COUNTS)
def test_places_are_those_that_counting_one_by_one_gives(newest: LogPosition, now_ms: int, count: int) -> None:
    ranges = places(newest, now_ms, count)
    assert listed(ranges) == naively(newest, now_ms, count)
    assert len(ranges) <= 2
    assert all(0 <= each.start < each.stop <= SEQUENCE_MAX + 1 for each in ranges)


@relaxed
@given(NEWEST, TIMES, st.integers(0, 3 << 20))
def test_a_single_message_gets_the_place_and_the_cut_of_a_publish_of_one(
    newest: LogPosition, now_ms: int, payload_bytes: int
) -> None:
    assert next_place(newest, now_ms) == last_of(places(newest, now_ms, 1))
    assert [lone_cut(payload_bytes)] == cuts([bytes(payload_bytes)])


@relaxed
@given(NEWEST, st.lists(st.tuples(TIMES, st.integers(1, 3)), min_size=1, max_size=6))
def test_no_place_is_given_out_twice_or_before_an_earlier_one(
    newest: LogPosition, calls: list[tuple[int, int]]
) -> None:
    given_out = [newest]
    for now_ms, count in calls:
        ranges = places(newest, now_ms, count)
        newest = last_of(ranges)
        given_out += listed(ranges)
        assert given_out[-1] == newest
    assert given_out == sorted(set(given_out))
    keys = [position(*place) for place in given_out if place != EMPTY_LOG]
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("newest", "now_ms", "count", "ranges"),
    [
        (EMPTY_LOG, 0, 1, [PositionRange(0, 0, 1)]),
        (EMPTY_LOG, 7, 65_536, [PositionRange(7, 0, 65_536)]),
        (LogPosition(7, 0), 8, 2, [PositionRange(8, 0, 2)]),
        (LogPosition(7, 0), 7, 2, [PositionRange(7, 1, 3)]),
        (LogPosition(7, 0), 3, 2, [PositionRange(7, 1, 3)]),  # the clock went back
        (LogPosition(7, 254), 7, 2, [PositionRange(7, 255, 257)]),
        (LogPosition(7, 32_766), 7, 2, [PositionRange(7, 32_767, 32_769)]),
        (LogPosition(7, 65_534), 7, 1, [PositionRange(7, 65_535, 65_536)]),
        (LogPosition(7, 65_534), 7, 2, [PositionRange(7, 65_535, 65_536), PositionRange(8, 0, 1)]),
        (LogPosition(7, 65_535), 7, 2, [PositionRange(8, 0, 2)]),  # a full millisecond: ahead of the clock now
        (LogPosition(9, 65_535), 7, 65_536, [PositionRange(10, 0, 65_536)]),
        (LogPosition(9, 0), 9, 65_536, [PositionRange(9, 1, 65_536), PositionRange(10, 0, 1)]),
    ],
)
def test_each_kind_of_place(newest: LogPosition, now_ms: int, count: int, ranges: list[PositionRange]) -> None:
    assert places(newest, now_ms, count) == ranges


@pytest.mark.parametrize("count", [0, -1, 65_537])
def test_a_count_that_no_millisecond_holds_is_a_bug(count: int) -> None:
    with pytest.raises(AssertionError):
        places(EMPTY_LOG, 0, count)
