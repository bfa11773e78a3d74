"""The list of all groups over all topics: filtered, in an order, a page at a time.

How far a group is behind has to be counted, which costs. So each count is kept with its time, and a call counts for as long as it is
given: first what it shows, then those whose counts are the oldest. In an order by lag that may lag behind itself a little; each row
says when it was counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from heapq import nsmallest
from typing import NamedTuple

from basalt.api.bodies.groups import GroupMode, ListedGroup, ListedGroups
from basalt.catalog.topics import TopicName, title_of
from basalt.errors import BasaltError, InputError
from basalt.groups.figures import Lag
from basalt.groups.groups import Groups
from basalt.groups.live_group import options_of
from basalt.operations.group_inspection import GroupInspection
from basalt.transactions.rules.groups import GroupState
from basalt_engine.clock import Clock

NAME, LAG, AGE = "name", "lag", "age"
SORTS = (NAME, LAG, AGE)
FRESH_MS = 1_000  # a count that is younger is not made again
LOOKED_AT = 500  # groups without a pause: about a millisecond
TOP_PART = 2  # of the time for counting, one in so many is for the rows that are shown; the rest goes round all
_UNKNOWN = -1  # stands for a lag that nobody has counted: behind all others


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
    """A group with its place among others: as its name, and as what it is sorted by."""

    title: TopicName
    state: GroupState

    @property
    def name(self) -> tuple[str, str, str]:
        return (*self.title, self.state.name)


class GroupListing:
    """Lists the groups of one store."""

    def __init__(self, clock: Clock, groups: Groups, inspection: GroupInspection) -> None:
        self._clock = clock
        self._groups = groups
        self._inspection = inspection

    async def page(
        self, wanted: GroupFilter, may: Callable[[TopicName, str], bool], *, sort: str = NAME, after: str | None = None,
        limit: int, count_ms: int,
    ) -> ListedGroups:  # fmt: skip
        """A page of the groups that the filter and `may` let through. About `count_ms` are spent on counting."""
        behind = None if after is None else _place(after, sort)
        rows = await self._rows(wanted, may)
        await self._count(rows, sort, behind, limit, count_ms)
        there = self._after(rows, sort, behind, limit + 1)
        now_ms = self._clock.now_ms()
        following = _cursor(self._key(there[limit - 1], sort), sort) if len(there) > limit else None
        uncounted = sum(self._inspection.counted(row.state.number) is None for row in rows)
        return ListedGroups(tuple(self._shown(row, now_ms) for row in there[:limit]), len(rows), uncounted, following)

    async def _rows(self, wanted: GroupFilter, may: Callable[[TopicName, str], bool]) -> list[_Row]:
        found = []
        for number, state in enumerate(self._inspection.states(), 1):
            title = title_of(state.prefix)
            if wanted.lets_through(title, state) and may(title, state.name):
                found.append(_Row(title, state))
            if number % LOOKED_AT == 0:
                await asyncio.sleep(0)  # others go in between
        return found

    async def _count(
        self, rows: list[_Row], sort: str, behind: tuple[object, ...] | None, limit: int, count_ms: int
    ) -> None:
        """Count those that will be shown, then the others, the oldest counts first; drop those that are no more."""
        if count_ms <= 0:
            return
        begin_ms, gone = self._clock.monotonic_ms(), set[int]()
        shown = self._after(rows, sort, behind, limit)
        # In an order by name nobody asks for the others.
        rest = [] if sort == NAME else sorted(rows, key=lambda row: self._inspection.counted(row.state.number) or 0)
        for some, until_ms in ((shown, count_ms if sort == NAME else count_ms // TOP_PART), (rest, count_ms)):
            for row in some:
                if self._clock.monotonic_ms() - begin_ms >= until_ms:
                    break
                counted_ms = self._inspection.counted(row.state.number)
                if counted_ms is not None and self._clock.now_ms() - counted_ms < FRESH_MS:
                    continue
                if not await self._is_there(row):
                    gone.add(row.state.number)
                await asyncio.sleep(0)
        rows[:] = [row for row in rows if row.state.number not in gone]

    async def _is_there(self, row: _Row) -> bool:
        """Count the lag of a group; False where it is gone, or its topic is, or the store fails."""
        try:
            await self._inspection.lag(await self._groups.find(row.title, row.state.name))
        except BasaltError:
            return False
        return True

    def _key(self, row: _Row, sort: str) -> tuple[object, ...]:
        if sort == NAME:
            return row.name
        lag = self._inspection.known_lag(row.state.number)
        if sort == LAG:
            return (-(_UNKNOWN if lag is None else lag.messages), *row.name)
        # The oldest message first: its id tells when it was published. Those without one come last, uncounted ones behind them.
        oldest = "" if lag is None or lag.oldest_id is None else lag.oldest_id.hex()
        return (oldest or ("h" if lag is None else "g"), *row.name)

    def _after(self, rows: Sequence[_Row], sort: str, behind: tuple[object, ...] | None, count: int) -> list[_Row]:
        keyed = ((self._key(row, sort), row) for row in rows)
        return [row for _, row in nsmallest(count, (each for each in keyed if behind is None or each[0] > behind))]

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


def _cursor(key: tuple[object, ...], sort: str) -> str:
    """The place of a row in words: names have neither colon nor slash."""
    *first, namespace, topic, name = key
    place = f"{namespace}:{topic}/{name}"
    return place if sort == NAME else f"{first[0]}~{place}"


def _place(text: str, sort: str) -> tuple[object, ...]:
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
        return (int(value) if sort == LAG else value, namespace, topic, name)
    except ValueError:
        raise InputError(
            f"after {text[:80]!r} is no place in a list by {sort}", field="after", hint="Use `next` of the page before."
        ) from None
