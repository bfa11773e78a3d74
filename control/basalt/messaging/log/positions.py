"""Where the next messages of a topic go: times and sequences that never go back. Pure.

A stamp is the place of the newest message. The next place is later than it whatever the clock says: a clock that went
back, a full millisecond and a restart all go on from the stamp.
"""

from __future__ import annotations

from typing import NamedTuple

from basalt_engine.keys import SEQUENCE_MAX


class Stamp(NamedTuple):
    """The newest place given out: milliseconds, and the sequence within them."""

    ms: int
    sequence: int


class Run(NamedTuple):
    """Neighbouring places within one millisecond: sequences start <= sequence < stop."""

    ms: int
    start: int
    stop: int


NEVER = Stamp(-1, SEQUENCE_MAX)


def places(stamp: Stamp, now_ms: int, count: int) -> list[Run]:
    """Where `count` messages go after `stamp`: one run, or two when the millisecond's sequences run out.

    `count` is at most `BATCH_MESSAGES_MAX`, all the sequences of one millisecond.
    """
    assert 0 < count <= SEQUENCE_MAX + 1, count
    ms, start = (now_ms, 0) if now_ms > stamp.ms else (stamp.ms, stamp.sequence + 1)
    runs = []
    room = SEQUENCE_MAX + 1 - start
    if room > 0:
        taken = min(room, count)
        runs.append(Run(ms, start, start + taken))
        count -= taken
    if count:
        runs.append(Run(ms + 1, 0, count))
    return runs


def after(runs: list[Run]) -> Stamp:
    """The stamp once these places are taken."""
    return Stamp(runs[-1].ms, runs[-1].stop - 1)
