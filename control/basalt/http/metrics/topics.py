"""Metrics by topic, bounded: the busiest topics have a series each, all the others share one named `_other`.

A topic that comes to be busier than one that is shown takes its place at a scrape. Its series then starts at 0, as after a
restart, so every series only ever rises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from basalt.catalog.topics import TopicName

TOPICS_SHOWN_MAX = 100  # series are what a metrics store pays for: four of each topic
CANDIDATES_MAX = 10_000  # topics not shown whose messages of late are counted, to see which of them are busy
BUSIER = 2  # times as busy as the quietest that is shown: so that two like topics do not take turns

OTHER = TopicName("_other", "_other")


@dataclass(slots=True)
class TopicCounts:
    """Counts of a topic's series. `recent` are messages of late: each scrape halves it."""

    published_messages: int = 0
    published_bytes: int = 0
    fetched_messages: int = 0
    fetched_bytes: int = 0
    recent: int = 0


class TopicSeries:
    """Counts of the topics that are shown, and of all others together."""

    def __init__(self, shown_max: int = TOPICS_SHOWN_MAX) -> None:
        self._shown_max = shown_max
        self._shown: dict[TopicName, TopicCounts] = {}
        self._other = TopicCounts()
        self._candidates: dict[TopicName, int] = {}

    def published(self, title: TopicName, messages: int, payload_bytes: int) -> None:
        """Count messages that were appended to a topic."""
        counts = self._counts(title, messages)
        counts.published_messages += messages
        counts.published_bytes += payload_bytes

    def fetched(self, title: TopicName, messages: int, payload_bytes: int) -> None:
        """Count messages that a reader got."""
        counts = self._counts(title, messages)
        counts.fetched_messages += messages
        counts.fetched_bytes += payload_bytes

    def forget(self, title: TopicName) -> None:
        """The topic was deleted: its series ends."""
        self._shown.pop(title, None)
        self._candidates.pop(title, None)

    def series(self) -> Iterator[tuple[TopicName, TopicCounts]]:
        """Every series, after busier topics have taken the places of quiet ones."""
        self._settle()
        yield from self._shown.items()
        if self._other != TopicCounts():
            yield OTHER, self._other

    def _counts(self, title: TopicName, messages: int) -> TopicCounts:
        counts = self._shown.get(title)
        if counts is None:
            if len(self._shown) < self._shown_max:
                counts = self._shown[title] = TopicCounts()
            else:
                self._nominate(title, messages)
                return self._other
        counts.recent += messages
        return counts

    def _nominate(self, title: TopicName, messages: int) -> None:
        known = self._candidates.get(title)
        if known is not None or len(self._candidates) < CANDIDATES_MAX:
            self._candidates[title] = (known or 0) + messages

    def _settle(self) -> None:
        quiet = sorted(self._shown, key=lambda title: self._shown[title].recent)
        busy = sorted(self._candidates, key=self._candidates.__getitem__, reverse=True)
        for leaving, coming in zip(quiet, busy, strict=False):
            if self._candidates[coming] <= BUSIER * self._shown[leaving].recent:
                break
            self._shown[coming] = TopicCounts(recent=self._candidates.pop(coming))
            self._candidates[leaving] = self._shown.pop(leaving).recent
        self._candidates = {title: recent // 2 for title, recent in self._candidates.items() if recent > 1}
        for counts in self._shown.values():
            counts.recent //= 2
        self._other.recent = 0
