"""A span map: ranges of message ids with a value each, as `Spans` are ranges without one.

What a consumer group has given out is kept so: whose claim a message is in, and how often it came back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, compress, islice, repeat
from operator import and_, eq, le, not_
from typing import Any, Generic, TypeVar

from basalt_engine.spans.spans import FEW, SpanBlocks, Spans, common_parts

V = TypeVar("V")


class SpanMap(SpanBlocks, Generic[V]):
    """Disjoint spans with a value each: whose their messages are, or how often they came back. Such as touch and have an equal one are one."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # it changes

    def __init__(self) -> None:
        super().__init__([])

    def __iter__(self) -> Iterator[tuple[bytes, bytes, V]]:
        return zip(*map(chain.from_iterable, (self._afters, self._throughs, self._by_block)), strict=True)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SpanMap):
            return NotImplemented
        return len(self) == len(other) and list(self) == list(other)

    @property
    def _by_block(self) -> list[list[V]]:
        assert self._values is not None
        return self._values

    def fill(self, spans: Iterable[tuple[Spans, V]]) -> None:
        """Put many at once; most of them where nothing was."""
        given = list(spans)
        if self._are_many(sum([len(each) for each, _ in given])) and self._merge(given):
            return
        for each, value in given:
            for after, through in each:
                self.put(after, through, value)

    def copied_from(self, other: SpanMap[V]) -> None:
        """Be as the other is, and go an own way."""
        self._afters, self._throughs = list(map(list.copy, other._afters)), list(map(list.copy, other._throughs))
        self._values = list(map(list.copy, other._by_block))
        self._ends, self._count = other._ends.copy(), other._count

    def span_of(self, message_id: bytes) -> tuple[bytes, bytes, V] | None:
        """The span that this id is in, and its value."""
        block, index = self._at_or_behind(message_id)
        if block == len(self._ends):
            return None
        after = self._afters[block][index]
        return (after, self._throughs[block][index], self._by_block[block][index]) if after < message_id else None

    def within(self, after: bytes, through: bytes) -> Iterator[tuple[bytes, bytes, V]]:
        """The parts of (after, through] that have a value, in order. Do not change anything while they are asked."""
        block, index = self._behind(after)
        while block < len(self._ends):
            afters, throughs, values = self._afters[block], self._throughs[block], self._by_block[block]
            while index < len(afters):
                if afters[index] >= through:
                    return
                yield max(after, afters[index]), min(through, throughs[index]), values[index]
                index += 1
            block, index = block + 1, 0

    def put(self, after: bytes, through: bytes, value: V) -> None:
        """(after, through] has this value, whatever it had."""
        first = stop = self._at_or_behind(after)
        if first[0] < len(self._ends):
            self.remove(after, through)
            first = stop = self._at_or_behind(after)
        if (found := self._at(first)) is not None and found[1] == after:
            stop = self._next(first)
            if found[2] == value:
                after = found[0]
            else:
                first = stop
        if (found := self._at(stop)) is not None and found[0] == through and found[2] == value:
            through, stop = found[1], self._next(stop)
        self._splice(first, stop, [after], [through], [value])

    def remove(self, after: bytes, through: bytes) -> None:
        """Nothing of (after, through] has a value any more."""
        block, index = first = self._behind(after)
        found = self._at(first)
        if found is None or found[0] >= through:
            return
        if after <= found[0] and found[1] == through:
            self._splice(first, (block, index + 1), [], [], [])
            return
        stop = self._at_or_behind(through)
        kept = [(found[0], after, found[2])] if found[0] < after else []
        last = self._at(stop)
        if last is not None and last[0] < through:
            stop = self._next(stop)
            if through < last[1]:
                kept.append((through, last[1], last[2]))
        self._splice(first, stop, [each[0] for each in kept], [each[1] for each in kept], [each[2] for each in kept])

    def _merge(self, spans: list[tuple[Spans, V]]) -> bool:
        """Put them between those that are here in one go; False, and nothing done, where they overlap."""
        afters, throughs = self._columns(0, len(self._ends))
        values = list(chain.from_iterable(self._by_block))
        for each, value in spans:
            afters += chain.from_iterable(each._afters)
            throughs += chain.from_iterable(each._throughs)
            values += repeat(value, each._count)
        order = sorted(range(len(afters)), key=afters.__getitem__)
        afters, throughs = list(map(afters.__getitem__, order)), list(map(throughs.__getitem__, order))
        if not all(map(le, throughs, islice(afters, 1, None))):
            return False
        values = list(map(values.__getitem__, order))
        touching = list(map(eq, throughs, islice(afters, 1, None)))
        if any(touching):
            apart = list(map(not_, map(and_, touching, map(eq, values, islice(values, 1, None)))))
            begins, ends = [True, *apart], [*apart, True]
            afters, throughs = list(compress(afters, begins)), list(compress(throughs, ends))
            values = list(compress(values, begins))
        self._become(afters, throughs, values)
        return True

    def subtract(self, spans: Spans) -> None:
        """Nothing of these spans has a value any more."""
        if not self._are_many(len(spans)):
            for after, through in spans:
                self.remove(after, through)
            return
        if self._count:
            known, values = self._columns(0, len(self._ends)), list(chain.from_iterable(self._by_block))
            afters, throughs = self._parts_outside(spans, *known)
            self._become(afters, throughs, _values_at(throughs, known[1], values))

    def common(self, spans: Spans) -> list[tuple[bytes, bytes, V]]:
        """The parts of these spans that have a value, in order."""
        if not self._count or not spans._count:
            return []
        if not self._are_many(len(spans)):
            return [part for each in spans for part in self.within(*each)]
        if self._count * FEW <= len(spans):
            return [(*part, value) for after, through, value in self for part in spans.within(after, through)]
        known, values = self._columns(0, len(self._ends)), list(chain.from_iterable(self._by_block))
        afters, throughs = common_parts(*known, *spans._columns(0, len(spans._ends)))
        return list(zip(afters, throughs, _values_at(throughs, known[1], values), strict=True))

    def remove_of(self, value: V, spans: Spans) -> None:
        """Nothing has this very value any more; these spans are all that had it."""
        if not self._are_many(len(spans)):
            for after, through in spans:
                self.remove(after, through)
            return
        values = list(chain.from_iterable(self._by_block))
        kept = [each is not value for each in values]
        columns = (chain.from_iterable(self._afters), chain.from_iterable(self._throughs), values)
        self._become(*(list(compress(column, kept)) for column in columns))

    def _are_many(self, count: int) -> bool:
        """True when it is less work to go through all than to search for each of so many spans."""
        return count >= FEW and count * FEW > self._count

    def _become(self, *columns: list[Any]) -> None:
        self._splice((0, 0), (len(self._ends), 0), *columns)

    def _at(self, place: tuple[int, int]) -> tuple[bytes, bytes, V] | None:
        block, index = place
        if block == len(self._ends):
            return None
        return self._afters[block][index], self._throughs[block][index], self._by_block[block][index]

    def _next(self, place: tuple[int, int]) -> tuple[int, int]:
        block, index = place
        return (block, index + 1) if index + 1 < len(self._afters[block]) else (block + 1, 0)


def _values_at(asked: list[bytes], throughs: list[bytes], values: list[V]) -> list[V]:
    """The values of the spans in which these places are, each of them inside one."""
    return list(map(values.__getitem__, map(partial(bisect_left, throughs), asked)))
