"""A group's figures: how far behind it is, in messages and in time, and what it has done since the server started.

The lag is what a reader of committed messages still finds and the group has not acknowledged. It is counted once, by sums of
the topic's index; from then on only what was appended and what was acknowledged since the last question is counted, which
never differs from counting anew: the messages of a stretch are the same whoever reads it (docs/decisions/0013-ranges-end-where-all-is-decided.md),
but for those that expire, and then all is counted again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from basalt.messaging.index import FOREVER_MS, Recent
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.ranges import SCAN_BYTES_MAX, SCAN_ROWS_MAX, STRETCHES_TURN, Ranges
from basalt.messaging.read.last_stable import Settled
from basalt.messaging.read.log_reader import LogReader, ReadBudget, SliceLimits, Start, before, end_of
from basalt.transactions.rules.edits import ReturnReason
from basalt_engine.clock import Clock
from basalt_engine.keys import MessageId, position
from basalt_engine.spans.spans import ZERO_ID, Spans

OLDEST_TRIES_MAX = 100  # gaps without a living message that one search for the oldest message passes
REMEMBERED_STRETCHES_MAX = 4_000  # of which a group remembers how many messages lie there: of claims, returned ones


class Lag(NamedTuple):
    """The distance of a group from the end: messages (so many at least, unless `exact`), and the oldest of them."""

    messages: int
    exact: bool
    oldest_id: bytes | None

    def age_ms(self, now_ms: int) -> int:
        """The age of the oldest; 0 when there is none."""
        return 0 if self.oldest_id is None else max(now_ms - MessageId.decode(self.oldest_id).publish_ms, 0)


class GroupTotals:
    """The counts of what a group did since this server began to serve it."""

    __slots__ = (
        "acknowledged", "acknowledged_ms", "acknowledged_rate", "conflicts", "dead_lettered", "fetched", "fetched_rate", "returned",
    )  # fmt: skip

    def __init__(self) -> None:
        self.fetched = self.acknowledged = self.dead_lettered = self.conflicts = 0
        self.returned: Counter[str] = Counter()  # by reason, in lower case
        self.fetched_rate, self.acknowledged_rate = Recent(), Recent()
        self.acknowledged_ms: int | None = None  # when it last acknowledged something

    def was_fetched(self, now_ms: int, messages: int) -> None:
        """Messages were dealt to a member."""
        self.fetched += messages
        self.fetched_rate.add(now_ms, messages)

    def was_acknowledged(self, now_ms: int, messages: int) -> None:
        """Messages were acknowledged durably."""
        if messages:
            self.acknowledged += messages
            self.acknowledged_rate.add(now_ms, messages)
            self.acknowledged_ms = now_ms

    def was_returned(self, reason: ReturnReason, messages: int) -> None:
        """Messages came back unacknowledged, which counts as an attempt."""
        if messages:
            self.returned[reason_text(reason)] += messages

    def were_dead_lettered(self, messages: int) -> None:
        """Messages became dead letters: they had failed too often, or were rejected."""
        self.dead_lettered += messages


def reason_text(reason: ReturnReason) -> str:
    """The word for why messages came back: in metrics, lists and explanations."""
    return reason.name.lower()


class _Counted(NamedTuple):
    """The messages up to `through` that these spans did not cover, under a TTL and before a time."""

    spans: Spans
    through: bytes
    messages: int
    until_ms: int
    round: int
    ttl_ms: int

    def holds(self, log: TopicLog, round_: int, now_ms: int) -> bool:
        """True while nothing that was counted has expired, and nothing has come back."""
        first_gap, _ = self.spans.gap_after(ZERO_ID)
        return (
            self.round == round_
            and now_ms < self.until_ms
            and self.ttl_ms == log.topic.metadata.ttl_ms
            and expired_through(log, now_ms) <= first_gap
        )


def expired_through(log: TopicLog, now_ms: int) -> bytes:
    """The id up to which no reader gets a message any more; `ZERO_ID` where there is none."""
    oldest = before(position(log.oldest_ms(now_ms), 0))
    return end_of(oldest) if oldest else ZERO_ID


class Figures:
    """The figures of one group, and what is remembered so that they cost little."""

    def __init__(self, ranges: Ranges, reader: LogReader, clock: Clock) -> None:
        self.last: Lag | None = None  # as it was found last
        self.counted_ms: int | None = None  # and when
        self._ranges = ranges
        self._reader = reader
        self._clock = clock
        self._counting = asyncio.Lock()
        self._counted: _Counted | None = None
        self._stretches: dict[tuple[bytes, bytes], int] = {}

    async def lag(self, log: TopicLog, acknowledged: Spans, round_: int) -> Lag:
        """The group's lag, by what it has acknowledged in this round of its position."""
        async with self._counting:
            settled = await self._ranges.settled(log)
            spans = acknowledged.copy()  # of one moment; others acknowledge while it is counted
            messages, exact = await self._messages(log, settled, spans, round_)
            self.last = Lag(messages, exact, await self._oldest(log, settled, spans))
            self.counted_ms = self._clock.now_ms()
            return self.last

    async def messages_of(self, log: TopicLog, spans: Iterable[tuple[bytes, bytes]]) -> tuple[int, bool]:
        """The living messages of stretches that do not change, such as those of claims and of what was returned: so many, or
        (False) so many at least.
        """
        messages, missing = 0, list[tuple[bytes, bytes]]()
        for each in spans:
            known = self._stretches.get(each)
            if known is None:
                missing.append(each)
            else:
                messages += known
        if not missing:
            return messages, True
        settled = await self._ranges.settled(log)
        budget = ReadBudget(SCAN_ROWS_MAX, SCAN_BYTES_MAX)
        for number, stretch in enumerate(missing, 1):
            found = await self._ranges.count(log, settled, [stretch], budget)
            messages += found.messages
            if not found.exact:
                return messages, False
            if len(self._stretches) >= REMEMBERED_STRETCHES_MAX:
                self._stretches.clear()
            self._stretches[stretch] = found.messages
            if number % STRETCHES_TURN == 0:
                await asyncio.sleep(0)
        return messages, True

    async def _messages(self, log: TopicLog, settled: Settled, spans: Spans, round_: int) -> tuple[int, bool]:
        now_ms, budget = self._clock.now_ms(), ReadBudget(SCAN_ROWS_MAX, SCAN_BYTES_MAX)
        known, through = self._counted, max(settled.id, ZERO_ID)
        if known is None or not known.holds(log, round_, now_ms):
            self.last = None  # an older message may have come back
            known = _Counted(spans, ZERO_ID, 0, FOREVER_MS, round_, log.topic.metadata.ttl_ms)
        through = max(through, known.through)
        gone = await self._ranges.count(log, settled, _newly_covered(known, spans), budget)
        come = await self._ranges.count(log, settled, spans.gaps(known.through, through), budget)
        messages = max(known.messages - gone.messages + come.messages, 0)
        if not (gone.exact and come.exact):
            self._counted = None
            return messages, False
        until_ms = min(known.until_ms, come.until_ms)
        self._counted = _Counted(spans, through, messages, until_ms, round_, known.ttl_ms)
        return messages, True

    async def _oldest(self, log: TopicLog, settled: Settled, spans: Spans) -> bytes | None:
        """The oldest message that lives and is not acknowledged."""
        known = None if self.last is None else self.last.oldest_id
        first_gap, _ = spans.gap_after(ZERO_ID)
        if known is not None and first_gap < known and expired_through(log, self._clock.now_ms()) < known:
            first_gap = max(first_gap, before(known))
        for _ in range(OLDEST_TRIES_MAX):
            if first_gap >= settled.id:
                return None
            limits = SliceLimits(1, 1, through=settled.id)
            page = await self._reader.read(log, Start(first_gap, False), limits, settled.snapshot)
            if not page.slices:
                return None
            found = page.slices[0].first_id()
            if not spans.covers(found):
                return found
            first_gap, _ = spans.gap_after(found)
        return None


def _newly_covered(known: _Counted, spans: Spans) -> Iterator[tuple[bytes, bytes]]:
    """The parts of the stretch that was counted which these spans cover, and those before them did not."""
    # One at a time: who counts them lets others in between.
    for after, through in spans.beyond(known.spans):
        if after >= known.through:
            return
        yield after, min(through, known.through)
