"""The positions of a topic's next messages: times and sequences that never go back. Pure.

The next place is later than the newest one whatever the clock says: a clock that went back, a full millisecond and a
restart all go on from it.
"""

from __future__ import annotations

from typing import NamedTuple

from basalt_engine.keys import SEQUENCE_MAX


class Position(NamedTuple):
    """A message's place in its topic: milliseconds, and the sequence within them."""

    ms: int
    sequence: int


class PositionRange(NamedTuple):
    """Neighbouring places within one millisecond: sequences start <= sequence < stop."""

    ms: int
    start: int
    stop: int


EMPTY_LOG = Position(-1, SEQUENCE_MAX)  # the newest place of a log that has given out none


def places(newest: Position, now_ms: int, count: int) -> list[PositionRange]:
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


def last_of(ranges: list[PositionRange]) -> Position:
    """The newest place once these are taken."""
    return Position(ranges[-1].ms, ranges[-1].stop - 1)
