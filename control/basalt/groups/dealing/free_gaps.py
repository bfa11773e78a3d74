"""The gaps of a group from which nothing is dealt: what was never dealt, in the topic's order, and what is free again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from basalt_engine.keys import MESSAGE_ID_BYTES
from basalt_engine.spans.spans import ZERO_ID, Spans

STEPS_MAX = 1_000  # spans that a search for the first gap passes without a pause: some milliseconds
LAST_ID = b"\xff" * MESSAGE_ID_BYTES  # behind every message


class Gap(NamedTuple):
    """A range that nobody has. Without `through` it is open to the end of the topic. Nothing lives between `after` and `start`."""

    after: bytes
    through: bytes | None
    start: bytes


class FreeGaps:
    """The place from which on nothing was dealt, and what is free before it."""

    def __init__(self) -> None:
        self._cursor = ZERO_ID  # nothing is free before this place, but in `_freed`
        self._freed = Spans()
        self._passed = ZERO_ID  # nothing lives from the cursor's gap on to this place

    def clear(self) -> None:
        """Find anew what is free."""
        self._cursor = self._passed = ZERO_ID
        self._freed = Spans()

    def add(self, spans: Spans) -> None:
        """Nobody has these any more."""
        self._freed.update(spans)

    def forget(self, spans: Spans) -> None:
        """These are acknowledged."""
        self._freed.subtract(spans)

    def passed(self, place: bytes) -> None:
        """Nothing lives from the first open gap on to this place."""
        self._passed = max(self._passed, place)

    def next(self, taken: Sequence[Spans], before: bytes) -> Gap | None:
        """The first gap of all that nobody has, by these spans; any gap behind `before` where there is none up to there. None: the search goes on after a pause."""
        steps = STEPS_MAX
        while self._freed and steps:
            after, through = next(iter(self._freed))
            if through >= self._cursor:  # it is one with the gap that the cursor is in
                self._freed.remove(after, LAST_ID)
                self._cursor, self._passed = min(self._cursor, after), ZERO_ID
                continue
            place, stop, steps = _first_gap(taken, after, through, steps)
            if place > after:
                self._freed.remove(after, place)
            if place < through and steps:
                return Gap(place, stop, place)
        if steps:
            self._cursor, stop, steps = _first_gap(taken, self._cursor, before, steps)
        if not steps:
            return None
        place = self._cursor
        start = place if self._passed <= place or (stop is not None and self._passed > stop) else self._passed
        return Gap(place, stop, start)


def _first_gap(taken: Sequence[Spans], place: bytes, through: bytes, steps: int) -> tuple[bytes, bytes | None, int]:
    """The first place up to `through` that none of these covers, and where one begins again; and the steps that are left of so many.

    Without any left, the search goes on at that place.
    """
    while steps and place < through:
        stop, steps = None, steps - 1
        for spans in taken:
            behind, following = spans.gap_after(place)
            if behind != place:
                place = behind
                break
            if following is not None and (stop is None or following < stop):
                stop = following
        else:
            return place, stop, steps + 1
    return place, None, steps
