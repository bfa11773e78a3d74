"""Lists of topics as operators look through them: filtered, sorted, a page at a time, with the figures of each.

In the order of the store a page reads what it shows and little more. A search, or another order, goes through what is stored of every
topic, and keeps a page of it. Figures that are not in memory are read for a bounded time, and stay there for the next page. Those of other servers' topics are
asked for there, as many at once as there are in a page.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple, TypeAlias

from basalt.api.bodies.topics import TopicDescription, TopicFigures, TopicPage
from basalt.catalog.topics import TopicName, topic_name
from basalt.cluster.links.links import Links
from basalt.errors import NotFoundError, ShardMovingError
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.read.first_unstable import FirstUnstable
from basalt.messaging.topic_stats import TopicStatistics, TopicSums
from basalt.operations.figures_elsewhere import FiguresElsewhere, FiguresOf, Told, ToldFigures
from basalt.transactions.log_state import LogState
from basalt.transactions.rules.transaction import TransactionIds
from basalt_engine.clock import Clock
from basalt_engine.keys import MessageId, topic_prefix
from basalt_engine.metadata import TopicMetadata
from basalt_engine.stores.shards import shard_of

FIGURES_MS = 250  # of reading figures that are not in memory, for one page: somebody waits for it

_METADATA: dict[str, Callable[[TopicMetadata], int]] = {
    "created": lambda stored: stored.created_ms,
    "updated": lambda stored: stored.updated_ms,
    "ttl": lambda stored: stored.ttl_ms,
    "generation": lambda stored: abs(stored.generation),
}
_FIGURES: dict[str, Callable[[TopicSums], float]] = {
    "messages": lambda sums: sums.messages,
    "bytes": lambda sums: sums.payload_bytes,
    "rate": lambda sums: sums.published_per_second,
    "oldest": lambda sums: sums.oldest_ms or 0,
    "newest": lambda sums: sums.newest_ms or 0,
}
NAME = "name"

Stored: TypeAlias = tuple[TopicName, TopicMetadata]
Key: TypeAlias = tuple[
    bool, float, bytes
]  # whether its figures are not known, the value, and the topic as the store orders them


class TopicQuery(NamedTuple):
    """A list that somebody asks for: of which topics, in which order, and behind which one a page of it begins."""

    limit: int
    namespace: str | None = None
    contains: str = ""  # in namespace:name, in any case
    deleted: bool = False
    sort: str = NAME  # one of `TOPIC_ORDERS`
    descending: bool = False
    after: TopicName | None = None
    figures: bool = False

    def takes(self, title: TopicName, stored: TopicMetadata) -> bool:
        """Tell whether a topic is in the list."""
        return (self.deleted or stored.generation > 0) and self.contains.lower() in str(title).lower()


class TopicInspection:
    """Lists the topics of one store."""

    def __init__(
        self, clock: Clock, topics: TopicLogs, stats: TopicStatistics, unstable: FirstUnstable, manager: LogState,
        ids: TransactionIds,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._topics = topics
        self._stats = stats
        self._unstable = unstable
        self._manager = manager
        self._ids = ids
        self._elsewhere: FiguresElsewhere | None = None

    def share(self, links: Links) -> None:
        """Other servers own topics from now on: ask them for their figures, and tell those of this one's."""
        self._elsewhere = FiguresElsewhere(links, self._topics.gate, self.here)

    async def here(self, asked: FiguresOf) -> ToldFigures:
        """The figures of topics that this server owns, for another one's list."""
        until_ms, written, found = self._clock.monotonic_ms() + FIGURES_MS, self._written_to(), list[Told | None]()
        prefixes = {prefix for prefix, _ in written}
        for title in asked.topics:
            sums = await self._counted(title, until_ms)
            is_held = asked.holders and sums is not None and topic_prefix(*title) in prefixes
            held = await self._held(title) if is_held else (None, None)
            found.append(None if sums is None else Told(sums, *held))
        return ToldFigures(tuple(found))

    async def page(self, query: TopicQuery, may: Callable[[TopicName], bool]) -> TopicPage:
        """A page of the topics of which one may know."""
        uncounted, unanswered = 0, tuple[str, ...]()
        if query.sort == NAME and not query.descending:
            found = await self._in_order(query, may)
        else:
            found, uncounted = await self._sorted(query, may)
        shown, figures = found[: query.limit], dict[TopicName, TopicFigures]()
        if query.figures:
            figures, unanswered = await self._figures(shown)
        following = str(shown[-1][0]) if len(found) > query.limit else None
        return TopicPage(
            [self.described(*each, figures.get(each[0])) for each in shown], following, uncounted, unanswered
        )

    def described(
        self, title: TopicName, stored: TopicMetadata, figures: TopicFigures | None = None
    ) -> TopicDescription:
        """All that is stored of a topic."""
        properties = self._topics.catalog.at(title, stored).properties
        return TopicDescription(
            *title, abs(stored.generation), stored.generation < 0, properties, stored.created_ms, stored.updated_ms, figures
        )  # fmt: skip

    async def _in_order(self, query: TopicQuery, may: Callable[[TopicName], bool]) -> list[Stored]:
        """The topics of a page in the order of the store, and the one behind it."""
        found: list[Stored] = []
        async for title, stored in self._all(query, query.after):
            if may(title):
                found.append((title, stored))
                if len(found) > query.limit:
                    break
        return found

    async def _sorted(self, query: TopicQuery, may: Callable[[TopicName], bool]) -> tuple[list[Stored], int]:
        """The same in another order, and how many topics are last in it for want of figures. No more than a page is kept."""
        sign, until_ms = -1 if query.descending else 1, self._clock.monotonic_ms() + FIGURES_MS
        behind: Key | None = None
        if query.after is not None:
            begin = query.after, await self._described(query.after)
            behind = await self._key(query, sign, begin, until_ms, await self._told(query, [begin], until_ms))
        best: list[tuple[Key, Stored]] = []
        some: list[tuple[Key, Stored]] = []
        uncounted = 0
        async for page in self._pages(query, None):
            allowed = [each for each in page if may(each[0])]
            told = await self._told(query, allowed, until_ms)
            for each in allowed:
                key = await self._key(query, sign, each, until_ms, told)
                uncounted += key[0]
                if behind is None or key > behind:
                    some.append((key, each))
                    if len(some) > query.limit:
                        best, some = _first(query.limit + 1, best + some), []
        return [each for _, each in _first(query.limit + 1, best + some)], uncounted

    async def _told(self, query: TopicQuery, some: list[Stored], until_ms: float) -> Mapping[TopicName, Told]:
        """All that the owners of these topics tell of them, where the order needs it and there is time."""
        if self._elsewhere is None or query.sort not in _FIGURES or self._clock.monotonic_ms() >= until_ms:
            return {}
        titles = (title for title, stored in some if stored.generation > 0)
        return (await self._elsewhere.ask(titles, holders=False))[0]

    async def _key(
        self, query: TopicQuery, sign: int, each: Stored, until_ms: float, told: Mapping[TopicName, Told]
    ) -> Key:
        title, stored = each
        prefix = topic_prefix(*title)
        if query.sort == NAME:
            return False, 0.0, bytes(255 - byte for byte in prefix) if sign < 0 else prefix
        if query.sort in _METADATA:
            return False, sign * _METADATA[query.sort](stored), prefix
        sums = told[title].sums if title in told else None
        if sums is None and stored.generation > 0:
            sums = await self._counted(title, until_ms)
        return (True, 0.0, prefix) if sums is None else (False, sign * _FIGURES[query.sort](sums), prefix)

    async def _described(self, title: TopicName) -> TopicMetadata:
        return await self._topics.catalog.describe(title)

    async def _all(self, query: TopicQuery, after: TopicName | None) -> AsyncIterator[Stored]:
        async for page in self._pages(query, after):
            for each in page:
                yield each

    async def _pages(self, query: TopicQuery, after: TopicName | None) -> AsyncIterator[list[Stored]]:
        async for page in self._topics.catalog.pages(query.namespace, after):
            yield [each for each in page if query.takes(*each)]

    async def _figures(self, shown: list[Stored]) -> tuple[dict[TopicName, TopicFigures], tuple[str, ...]]:
        """The figures of topics; those that are not in memory are read, for a bounded time. And the servers that did not tell theirs."""
        told: dict[TopicName, Told] = {}
        unanswered: tuple[str, ...] = ()
        if self._elsewhere is not None:
            titles = (title for title, stored in shown if stored.generation > 0)
            told, unanswered = await self._elsewhere.ask(titles, holders=True)
        until_ms, written = self._clock.monotonic_ms() + FIGURES_MS, self._written_to()
        figures: dict[TopicName, TopicFigures] = {
            title: TopicFigures(*found.sums, found.held_by, found.held_since_ms) for title, found in told.items()
        }
        for title, stored in shown:
            if title in figures:
                continue
            sums = await self._counted(title, until_ms) if stored.generation > 0 else None
            if sums is None:
                continue
            held = await self._held(title) if (topic_prefix(*title), stored.generation) in written else (None, None)
            figures[title] = TopicFigures(*sums, *held)
        return figures, unanswered

    async def _counted(self, title: TopicName, until_ms: float) -> TopicSums | None:
        """The sums of a topic's index; None where that is not in memory, and the time is over; and where the topic is another server's, or moves."""
        if not self._topics.gate.is_held(shard_of(topic_prefix(*title))):
            return None
        sums = self._stats.known_sums(title)
        if sums is not None or self._clock.monotonic_ms() >= until_ms:
            return sums
        try:
            return await self._stats.sums(title)
        except (NotFoundError, ShardMovingError):  # it was deleted meanwhile, or moves
            return None

    def _written_to(self) -> frozenset[tuple[bytes, int]]:
        """The topics that an open transaction may hold up: all others need no look."""
        transactions = self._unstable.known_transactions.in_progress()
        return frozenset((join.topic, join.generation) for each in transactions for join in each.topics)

    async def _held(self, title: TopicName) -> tuple[str | None, int | None]:
        try:
            found = await self._unstable.of_topic(await self._topics.open(title))
        except (NotFoundError, ShardMovingError):
            return None, None
        if found.held_by is None:
            return None, None
        since_ms = None if found.held_at is None else MessageId.decode(found.held_at).publish_ms
        return self._ids.text(self._manager.id_of(found.held_by)), since_ms


def after_of(text: str | None) -> TopicName | None:
    """The topic that the text namespace:name means; `InvalidNameError`."""
    if text is None:
        return None
    namespace, _, name = text.partition(":")
    return topic_name(namespace, name)


def _first(count: int, given: list[tuple[Key, Stored]]) -> list[tuple[Key, Stored]]:
    return heapq.nsmallest(count, given, key=lambda each: each[0])
