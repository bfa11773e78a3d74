"""The list of all groups over all topics: filtered, in an order, a page at a time.

How far a group is behind has to be counted, which costs. So each count is kept with its time, and a call counts for as long as it is
given: first what it shows, then those whose counts are the oldest. In an order by lag that may lag behind itself a little; each row
says when it was counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from heapq import nsmallest
from operator import itemgetter
from typing import Any, NamedTuple

from basalt.api.bodies.groups import GroupMode, ListedGroup, ListedGroups
from basalt.catalog.topics import TopicName, title_of
from basalt.errors import BasaltError, InputError
from basalt.groups.figures import Lag
from basalt.groups.groups import Groups
from basalt.groups.live_group import options_of
from basalt.operations.groups.inspection import GroupInspection
from basalt.transactions.rules.groups import GroupState
from basalt_engine.clock import Clock
from basalt_engine.keys import MESSAGE_ID_BYTES

NAME, LAG, AGE = "name", "lag", "age"
SORTS = (NAME, LAG, AGE)
FRESH_MS = 1_000  # a count that is younger is not made again
LOOKED_AT = 500  # groups without a pause: about a millisecond
TOP_PART = 2  # of the time for counting, one in so many is for the rows that are shown; the rest goes round all
ROUND_MAX = 1_000  # of the others, that one call may count
# Behind every id of a message.
_NOTHING, _NEVER = b"\xff" * MESSAGE_ID_BYTES, b"\xff" * (MESSAGE_ID_BYTES + 1)


class GroupFilter(NamedTuple):
    """The groups that a list is to have: of this namespace or topic, of this mode, with this in their names."""

    namespace: str | None = None
    topic: str | None = None  # namespace:topic
    mode: GroupMode | None = None
    contains: str | None = None
    paused: bool | None = None

    def lets_through(self, title: TopicName, state: GroupState) -> bool:
        """Tell whether everything that is given is true of the group."""
        if self.namespace is not None and title.namespace != self.namespace:
            return False
        if self.topic is not None and str(title) != self.topic:
            return False
        if self.contains is not None and self.contains.lower() not in f"{title}/{state.name}".lower():
            return False
        if self.paused is not None and state.paused is not self.paused:
            return False
        return self.mode is None or options_of(state).mode == self.mode


class _Row(NamedTuple):
    """A group with its place among others: what it is sorted by, and its name."""

    key: tuple[Any, ...]
    title: TopicName
    state: GroupState


class GroupListing:
    """Lists the groups of one store."""

    def __init__(self, clock: Clock, groups: Groups, inspection: GroupInspection) -> None:
        self._clock = clock
        self._groups = groups
        self._inspection = inspection
        self._titles: dict[bytes, TopicName] = {}  # by prefix, for names are read out of many at each call

    async def page(
        self, wanted: GroupFilter, may: Callable[[TopicName, str], bool], *, sort: str = NAME, after: str | None = None,
        limit: int, count_ms: int,
    ) -> ListedGroups:  # fmt: skip
        """A page of the groups that the filter and `may` let through. About `count_ms` are spent on counting."""
        behind = None if after is None else _place(after, sort)
        rows = await self._rows(wanted, may, sort)
        if count_ms > 0:
            await self._count(rows, sort, behind, limit, count_ms)
        there = _after(rows, behind, limit + 1)
        now_ms, known = self._clock.now_ms(), self._inspection.known_lag
        following = _cursor(there[limit - 1].key, sort) if len(there) > limit else None
        uncounted = sum(known(row.state.number) is None for row in rows)
        return ListedGroups(tuple(self._shown(row, now_ms) for row in there[:limit]), len(rows), uncounted, following)

    async def _rows(self, wanted: GroupFilter, may: Callable[[TopicName, str], bool], sort: str) -> list[_Row]:
        found, titles = list[_Row](), self._titles
        everything, is_all = self._inspection.states(), wanted == GroupFilter()
        if len(titles) > 2 * len(everything):
            titles.clear()
        for number, state in enumerate(everything, 1):
            title = titles.get(state.prefix)
            if title is None:
                title = titles[state.prefix] = title_of(state.prefix)
            if (is_all or wanted.lets_through(title, state)) and may(title, state.name):
                found.append(_Row(self._key(title, state, sort), title, state))
            if number % LOOKED_AT == 0:
                await asyncio.sleep(0)  # others go in between
        return found

    async def _count(
        self, rows: list[_Row], sort: str, behind: tuple[Any, ...] | None, limit: int, count_ms: int
    ) -> None:
        """Count those that will be shown, then the others, the oldest counts first; drop those that are no more."""
        begin_ms, counted = self._clock.monotonic_ms(), self._inspection.counted
        again: dict[int, _Row | None] = {}
        shown = _after(rows, behind, limit)
        # In an order by name nobody asks for the others.
        rest = iter(()) if sort == NAME else self._oldest_counts(rows)
        for some, until_ms in ((shown, count_ms if sort == NAME else count_ms // TOP_PART), (rest, count_ms)):
            for row in some:
                if self._clock.monotonic_ms() - begin_ms >= until_ms:
                    break
                counted_ms = counted(row.state.number)
                if counted_ms is not None and self._clock.now_ms() - counted_ms < FRESH_MS:
                    continue
                there = await self._is_there(row)
                again[row.state.number] = row._replace(key=self._key(row.title, row.state, sort)) if there else None
                await asyncio.sleep(0)
        if again:
            rows[:] = [new for row in rows if (new := again.get(row.state.number, row)) is not None]

    def _oldest_counts(self, rows: Sequence[_Row]) -> Iterator[_Row]:
        """The groups in the order in which they were counted, those first that never were: some of them, for no call gets round all."""
        counted = self._inspection.counted
        yield from nsmallest(ROUND_MAX, rows, key=lambda row: counted(row.state.number) or 0)

    async def _is_there(self, row: _Row) -> bool:
        """Count the lag of a group; False where it is gone, or its topic is, or the store fails."""
        if not self._inspection.is_here(row.state):
            return True  # its owner knows more
        try:
            await self._inspection.lag(await self._groups.find(row.title, row.state.name))
        except BasaltError:
            return False
        return True

    def _key(self, title: TopicName, state: GroupState, sort: str) -> tuple[Any, ...]:
        if sort == NAME:
            return (*title, state.name)
        lag = self._inspection.known_lag(state.number)
        if sort == LAG:
            return (1 if lag is None else -lag.messages, *title, state.name)
        # The oldest message first: its id tells when it was published. Those without one come last, uncounted ones behind them.
        return (_NEVER if lag is None else lag.oldest_id or _NOTHING, *title, state.name)

    def _shown(self, row: _Row, now_ms: int) -> ListedGroup:
        info = self._groups.info(row.title, row.state)
        lag: Lag | None = self._inspection.known_lag(row.state.number)
        return ListedGroup(
            info.namespace, info.topic, info.name, info.options.mode, info.paused, info.members, info.claims, info.used_ms,
            None if lag is None else lag.messages,
            None if lag is None else lag.age_ms(now_ms) / 1_000,
            lag is None or lag.exact,
            self._inspection.counted(row.state.number),
        )  # fmt: skip


def _after(rows: Sequence[_Row], behind: tuple[Any, ...] | None, count: int) -> list[_Row]:
    return nsmallest(count, rows if behind is None else [row for row in rows if row.key > behind], key=itemgetter(0))


def _cursor(key: tuple[Any, ...], sort: str) -> str:
    """The place of a row in words: names have neither colon nor slash."""
    *first, namespace, topic, name = key
    place = f"{namespace}:{topic}/{name}"
    if sort == NAME:
        return place
    return f"{first[0] if sort == LAG else first[0].hex()}~{place}"


def _place(text: str, sort: str) -> tuple[Any, ...]:
    """The place that a cursor means."""
    value, tilde, place = text.partition("~")
    if not tilde:
        value, place = "", text
    title, slash, name = place.partition("/")
    namespace, colon, topic = title.partition(":")
    try:
        if not (slash and colon) or bool(tilde) == (sort == NAME):
            raise ValueError
        if sort == NAME:
            return namespace, topic, name
        return (int(value) if sort == LAG else bytes.fromhex(value), namespace, topic, name)
    except ValueError:
        raise InputError(
            f"after {text[:80]!r} is no place in a list by {sort}", field="after", hint="Use `next` of the page before."
        ) from None
