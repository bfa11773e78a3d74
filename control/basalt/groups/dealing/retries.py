"""The messages of a group that came back, without regard to keys: when each is dealt again, and in whose company. Pure.

A message that failed twice is dealt alone, so that its company is known to have failed for it. Those of a keyed group are dealt by
`keyed/comebacks`; here is only which they are.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from basalt.groups.claims import ALONE_ATTEMPTS
from basalt.groups.dealing.free_gaps import LAST_ID
from basalt.transactions.rules.groups import NEVER_MS, Attempt, GroupState
from basalt_engine.spans.spans import ZERO_ID, Spans

SPARED_LOOKS_MAX = 16  # stretches behind a message that failed alone of which it is asked whether they were its company
READY_MAX = 1_000  # stretches of what came back that are sorted by their time without a pause: some milliseconds
STALE_DELAYS = 4  # times as many delays as there are stretches that came back: then they are found anew


class Held(NamedTuple):
    """Messages that are claimed, or pending in transactions: none of them is dealt."""

    claimed: Spans
    pending: Spans

    def gaps(self, after: bytes, through: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The parts of the range that are neither. Do not change anything while they are asked."""
        for free in self.claimed.gaps(after, through):
            yield from self.pending.gaps(*free)


class Retries:
    """The messages of one group that came back and are not acknowledged."""

    def __init__(self) -> None:
        self.spans = Spans()  # not acknowledged since; pending or claimed again, some of it
        self.spared = Spans()  # dealt in company again: the message before them failed alone, so they had failed for it
        self.is_sorted = True  # False: `next` has found nothing so far, and there is more to look at, after a pause
        # What came back waits here until it is dealt: in stretches of which nobody knows when they are due, which are delayed (a
        # heap: due time, after, through), or which were due when they were looked at. Some may be acknowledged, or dealt, since.
        self._unsorted = Spans()
        self._delayed: list[tuple[int, bytes, bytes]] = []
        self._ready: deque[tuple[bytes, bytes]] = deque()
        self._due_ms = NEVER_MS  # when the next of them is due, as far as a fetch has found out

    def rebuild(self, returns: Iterable[tuple[bytes, bytes, Attempt]]) -> None:
        """These came back, and no others."""
        self.spans, self.spared = Spans([(after, through) for after, through, _ in returns]), Spans()
        self._sort_anew()

    def _sort_anew(self) -> None:
        """Find anew what is due."""
        self._unsorted = Spans([(ZERO_ID, LAST_ID)])
        self._delayed.clear()
        self._ready.clear()
        self._due_ms = NEVER_MS

    @property
    def due_ms(self) -> int | None:
        """The time when the next is due, by the wall clock; None when nothing is, or a fetch has yet to find out."""
        return None if self._due_ms == NEVER_MS or not self.spans else self._due_ms

    # What has happened.

    def came_back(self, spans: Spans) -> None:
        """These have failed. `look_again` once nobody has them."""
        self.spans.update(spans)
        self.spared.subtract(spans)

    def look_again(self, spans: Spans) -> None:
        """Nobody has these any more: what of them came back is due at some time."""
        if self.spans:
            self._unsorted.update(spans)
            self._due_ms = NEVER_MS

    def unparked(self, spans: Spans) -> None:
        """These are as if they had never come back."""
        self.spans.subtract(spans)

    def forget(self, spans: Spans) -> None:
        """These are acknowledged."""
        self.spans.subtract(spans)
        self.spared.subtract(spans)

    def close(self, after: bytes, through: bytes) -> None:
        """Nothing lives in this gap any more."""
        self.spans.remove(after, through)

    def put_back(self, after: bytes, through: bytes) -> None:
        """Nobody was dealt these, which `next` had found: the next search finds them again."""
        self._unsorted.add(after, through)

    def goes_on(self, after: bytes, through: bytes) -> None:
        """Of what `next` had found this is left, and comes next."""
        self._ready.appendleft((after, through))

    # What is next.

    def unheld(self, held: Held, after: bytes, through: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The parts of the range that came back, that nobody has, and that live, as far as is known. Do not change anything while they are asked."""
        for free in held.gaps(after, through):
            yield from self.spans.within(*free)

    def next(self, state: GroupState, held: Held, now_ms: int) -> tuple[bytes, bytes, int] | None:
        """The next stretch that is due and that nobody has, with its attempts; it is found once. None: there is none, or `is_sorted` is False."""
        self.is_sorted = True
        if not len(state.returns):
            return None
        while True:
            while self._ready:
                after, through = self._ready.popleft()
                for begin, end, attempts in self._due_within(state, held, after, through, now_ms):
                    if end < through:
                        self._ready.appendleft((end, through))
                    before = state.returns.at(begin)
                    if before is not None and before.attempts > max(attempts, ALONE_ATTEMPTS):  # since it was found
                        self._spare(state, begin, before.attempts)
                    return begin, end, attempts
            self.is_sorted = self._sort(state, now_ms)
            if not self.is_sorted or not self._ready:
                return None

    def _due_within(
        self, state: GroupState, held: Held, after: bytes, through: bytes, now_ms: int
    ) -> Iterator[tuple[bytes, bytes, int]]:
        """The parts of the range that came back, are due, and nobody has, with their attempts: some of it may be acknowledged since it was found."""
        for begin, end, attempt in state.returns.within(after, through):
            if attempt.not_before_ms > now_ms:  # it came back once more, or the clock stepped back
                self._unsorted.add(begin, end)
                continue
            for part in self.unheld(held, begin, end):
                yield *part, attempt.attempts

    def _sort(self, state: GroupState, now_ms: int) -> bool:
        """Find what was returned and is due, or when something will be; False: there is more to look at, after a pause."""
        if len(self._delayed) > STALE_DELAYS * len(state.returns) + READY_MAX:
            self._sort_anew()
        looks = READY_MAX
        while self._delayed and looks:
            at_ms, after, through = self._delayed[0]
            if at_ms <= now_ms:
                self._unsorted.add(after, through)
            elif any(attempt.not_before_ms == at_ms for _, _, attempt in state.returns.within(after, through)):
                break
            heapq.heappop(self._delayed)
            looks -= 1
        while self._unsorted and looks:
            after, through = next(iter(self._unsorted))
            seen = after
            for begin, end, attempt in islice(state.returns.within(after, through), looks):
                looks -= 1
                seen = end
                if attempt.attempts > ALONE_ATTEMPTS:
                    self._spare(state, end, attempt.attempts)
                if attempt.not_before_ms <= now_ms:
                    self._ready.append((begin, end))
                elif attempt.not_before_ms != NEVER_MS:
                    heapq.heappush(self._delayed, (attempt.not_before_ms, begin, end))
            looks -= seen == after
            self._unsorted.remove(ZERO_ID, through if looks or seen == after else seen)
        self._due_ms = self._delayed[0][0] if self._delayed else NEVER_MS
        return looks > 0 or bool(self._ready)

    def first(self, state: GroupState, held: Held) -> tuple[bytes, bytes, Attempt] | None:
        """The first stretch that nobody has, due or not: of a stream, in which it holds back all that follows."""
        self._due_ms = NEVER_MS
        if not self.spans:
            return None
        for free in self.unheld(held, ZERO_ID, LAST_ID):
            found = next(state.returns.within(*free), None)
            if found is not None:
                return found
        return None

    def waits_for(self, state: GroupState, through: bytes, attempt: Attempt) -> None:
        """A stream waits for that stretch, up to its time."""
        if attempt.attempts > ALONE_ATTEMPTS:
            whole = state.returns.span_of(through)
            self._spare(state, through if whole is None else whole[1], attempt.attempts)
        self._due_ms = attempt.not_before_ms

    def _spare(self, state: GroupState, through: bytes, attempts: int) -> None:
        """A message that ends here has failed alone: what failed less often behind it was its company, and is dealt so again."""
        for after, end, attempt in islice(state.returns.within(through, LAST_ID), SPARED_LOOKS_MAX):
            if after != through or not ALONE_ATTEMPTS <= attempt.attempts < attempts:
                return
            self.spared.add(after, end)
            through = end
