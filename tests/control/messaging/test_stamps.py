"""Where the next messages go: forward, without a hole or a place given out twice, whatever the clock does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.messaging.log.positions import NEVER, Run, Stamp, after, places
from basalt_engine.keys import SEQUENCE_MAX, position

relaxed = settings(deadline=None)

TIMES = st.integers(0, 5)
SEQUENCES = st.integers(0, SEQUENCE_MAX) | st.integers(SEQUENCE_MAX - 300, SEQUENCE_MAX)
STAMPS = st.just(NEVER) | st.builds(Stamp, TIMES, SEQUENCES)
COUNTS = st.integers(1, 300)


def listed(runs: list[Run]) -> list[Stamp]:
    return [Stamp(run.ms, sequence) for run in runs for sequence in range(run.start, run.stop)]


def naively(stamp: Stamp, now_ms: int, count: int) -> list[Stamp]:
    """One place at a time: the clock's millisecond if it is later, else the next place there is."""
    found: list[Stamp] = []
    for _ in range(count):
        if now_ms > stamp.ms:
            stamp = Stamp(now_ms, 0)
        elif stamp.sequence == SEQUENCE_MAX:
            stamp = Stamp(stamp.ms + 1, 0)
        else:
            stamp = Stamp(stamp.ms, stamp.sequence + 1)
        found.append(stamp)
    return found


@relaxed
@given(STAMPS, TIMES, COUNTS)
def test_places_are_those_that_counting_one_by_one_gives(stamp: Stamp, now_ms: int, count: int) -> None:
    runs = places(stamp, now_ms, count)
    assert listed(runs) == naively(stamp, now_ms, count)
    assert len(runs) <= 2
    assert all(0 <= run.start < run.stop <= SEQUENCE_MAX + 1 for run in runs)


@relaxed
@given(STAMPS, st.lists(st.tuples(TIMES, st.integers(1, 3)), min_size=1, max_size=6))
def test_no_place_is_given_out_twice_or_before_an_earlier_one(stamp: Stamp, calls: list[tuple[int, int]]) -> None:
    given_out = [stamp]
    for now_ms, count in calls:
        runs = places(stamp, now_ms, count)
        stamp = after(runs)
        given_out += listed(runs)
        assert given_out[-1] == stamp
    assert given_out == sorted(set(given_out))
    keys = [position(*place) for place in given_out if place != NEVER]
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("stamp", "now_ms", "count", "runs"),
    [
        (NEVER, 0, 1, [Run(0, 0, 1)]),
        (NEVER, 7, 65_536, [Run(7, 0, 65_536)]),
        (Stamp(7, 0), 8, 2, [Run(8, 0, 2)]),
        (Stamp(7, 0), 7, 2, [Run(7, 1, 3)]),
        (Stamp(7, 0), 3, 2, [Run(7, 1, 3)]),  # the clock went back
        (Stamp(7, 254), 7, 2, [Run(7, 255, 257)]),
        (Stamp(7, 32_766), 7, 2, [Run(7, 32_767, 32_769)]),
        (Stamp(7, 65_534), 7, 1, [Run(7, 65_535, 65_536)]),
        (Stamp(7, 65_534), 7, 2, [Run(7, 65_535, 65_536), Run(8, 0, 1)]),
        (Stamp(7, 65_535), 7, 2, [Run(8, 0, 2)]),  # a full millisecond: ahead of the clock now
        (Stamp(9, 65_535), 7, 65_536, [Run(10, 0, 65_536)]),
        (Stamp(9, 0), 9, 65_536, [Run(9, 1, 65_536), Run(10, 0, 1)]),
    ],
)
def test_each_kind_of_place(stamp: Stamp, now_ms: int, count: int, runs: list[Run]) -> None:
    assert places(stamp, now_ms, count) == runs


@pytest.mark.parametrize("count", [0, -1, 65_537])
def test_a_count_that_no_millisecond_holds_is_a_bug(count: int) -> None:
    with pytest.raises(AssertionError):
        places(NEVER, 0, count)
