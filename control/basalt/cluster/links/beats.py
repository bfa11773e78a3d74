"""Beats: what each member tells the leader four times a second, and what the leader makes of members that it does not hear. Pure.

Time is an argument: milliseconds of the leader's own monotonic clock. A leader that stood still has heard nobody, and knows nothing by that: after such
a gap it counts anew. No rule ends anything by itself; who acts by them does so by check-and-write of rows. Why these limits:
docs/decisions/0063-links-between-members.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec

from basalt.cluster.links.frames import CallKind, Kind

BEAT_MS = (
    250  # a quarter of what the quickest rule needs; a hundred members make 400 beats a second, and as many answers
)
LINKED_MS = 2_000  # a link without a beat for so long is none: eight were missed, and nobody waits for it longer
UNLINKED_MS = 30_000  # a member that renews its row and has no link for so long is ended: whatever cut it off does not go by itself
LONELY_MS = 10_000  # a leader that has lost most of its links for so long is on the wrong side of a cut
STALL_MS = (
    1_000  # between two looks: four were missed, so this process stood still, and what it has not read is no silence
)
RANGES_MAX = 512  # of shards, in one beat: no more ranges are possible, for there are 1,024 shards

SILENT_MAX = 128  # members of whom one beat asks; no more can be silent, for there are no more

# Whose loads are told one by one: the loads of the others are one sum. Of all members together they are no more than there are shards.
BUSIEST_MAX = 64


class ToldLoads(NamedTuple):
    """The loads of one member, in thousandths of a call a second: of all its shards together, and of the busiest by shard."""

    total: int = 0
    busiest: tuple[tuple[int, int], ...] = ()


class Held(NamedTuple):
    """The shards that a member holds: ranges of shards, first and last, and the version of the map by which it does; 0: it follows none."""

    shards: tuple[tuple[int, int], ...] = ()
    map_version: int = 0
    weight: int = 100  # in hundredths of that of an ordinary server


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """One word of a member: `count` rises by one with each; all else is since, or as of, the last one.

    `shards` are the ranges, first and last, that it holds. `oldest_view` is the oldest view in use by its readers, 0: none. `rtt_us` is
    how long the last beat was under way there and back, 0: none was yet. `map_version` is that of the map by which it holds them; 0: it holds none,
    and follows no map. `weight`: how much it is to have, in hundredths of what an ordinary server has. `load` is that of all shards that it holds, `busiest` are
    the busiest ones, each with its load: thousandths of a call a second (`cluster.shard_loads`). `silent`: the runs of members that
    have not renewed their rows for long, of whom it asks whether the leader hears them.
    """

    count: int
    shards: Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=RANGES_MAX)] = ()
    calls: int = 0
    bytes: int = 0
    oldest_view: int = 0
    rtt_us: int = 0
    map_version: int = 0
    weight: int = 100
    load: int = 0
    busiest: Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=BUSIEST_MAX)] = ()
    silent: Annotated[tuple[str, ...], msgspec.Meta(max_length=SILENT_MAX)] = ()

    @property
    def loads(self) -> ToldLoads:
        """The loads that it tells."""
        return ToldLoads(self.load, self.busiest)


class BeatAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The leader's answer: the epoch under which it leads, and those of the `silent` that tell it that they serve."""

    epoch: int
    serving: tuple[str, ...] = ()


BEAT: CallKind[Beat, BeatAnswer] = CallKind(Kind.BEAT, "beat", Beat, BeatAnswer)


@dataclass(slots=True)
class Heard:
    """The leader's knowledge of one member's link."""

    since_ms: float  # when it was last heard, or when the leader began to wait for it
    beat: Beat | None = None  # the last one; None: it has never been heard
    is_open: bool = False
    view: int = 0  # no reader of it uses an older view than this one, by what it told; 0: it told of none


@dataclass(slots=True)
class Beats:
    """All that one leader has heard in its present term. Its event loop changes it; other threads read single members of it."""

    epoch: int = 0  # of the term; 0: this server does not lead
    heard: dict[str, Heard] = field(default_factory=dict)
    to_end: frozenset[str] = frozenset()  # members that are to be ended, as of the last look
    lonely_ms: float = 0.0  # for how long the leader has been without most of its links
    _looked_ms: float = 0.0
    _lonely_since_ms: float | None = None
    _had_most: bool = False

    def begin(self, epoch: int, now_ms: float) -> None:
        """A term begins: nobody was heard in it."""
        self.epoch, self.heard, self.to_end = epoch, {}, frozenset()
        self.lonely_ms, self._looked_ms, self._lonely_since_ms, self._had_most = 0.0, now_ms, None, False

    def end(self) -> None:
        """The term is over: nothing follows from silence."""
        self.begin(0, 0.0)

    def opened(self, instance: str, now_ms: float) -> None:
        """A link to this member has come to be."""
        known = self.heard.get(instance)
        self.heard[instance] = Heard(now_ms, is_open=True, view=0 if known is None else known.view)

    def hear(self, instance: str, beat: Beat, now_ms: float) -> None:
        """A beat came."""
        known = self.heard.get(instance)
        if known is not None:
            known.since_ms, known.beat = now_ms, beat
            known.view = beat.oldest_view or known.view

    def views(self, instance: str, oldest_view: int) -> None:
        """The member begins to read, under no view that is older."""
        known = self.heard.get(instance)
        if known is not None:
            known.view = known.view or oldest_view

    def oldest_view(self, members: Iterable[str]) -> int | None:
        """The oldest view in use by these members, as far as they told. None: none of them uses one. 0: one that is not linked may use any."""
        views = []
        for instance in members:
            known = self.heard.get(instance)
            if known is None or not (known.view or (known.is_open and known.beat is not None)):
                return 0
            if known.view:
                views.append(known.view)
        return min(views, default=None)

    def closed(self, instance: str) -> None:
        """The member's link is gone. It counts from when it was last heard."""
        known = self.heard.get(instance)
        if known is not None:
            known.is_open = False

    def is_linked(self, instance: str, now_ms: float) -> bool:
        """True while the member's link is open, and not silent."""
        known = self.heard.get(instance)
        return known is not None and known.is_open and now_ms - known.since_ms < LINKED_MS

    def linked(self, now_ms: float) -> list[str]:
        """All members that are linked."""
        return [instance for instance in list(self.heard) if self.is_linked(instance, now_ms)]

    def look(self, live: Iterable[str], lease_ms: int, now_ms: float) -> bool:
        """Judge the others that are live by their rows; True when the leader is to give up the lead.

        A member that died without a word counts as live for a lease, so nothing follows from a silence that is shorter.
        """
        others = tuple(live)
        self._forget(others, now_ms)
        if now_ms - self._looked_ms >= STALL_MS:
            self._count_anew(now_ms)
        self._looked_ms = now_ms
        limit_ms = max(UNLINKED_MS, 2 * lease_ms)
        self.to_end = frozenset(
            each for each in others if not self.heard[each].is_open and now_ms - self.heard[each].since_ms >= limit_ms
        )
        return self._is_lonely(others, lease_ms, now_ms)

    def _forget(self, others: tuple[str, ...], now_ms: float) -> None:
        for instance in others:
            self.heard.setdefault(instance, Heard(now_ms))
        for instance in self.heard.keys() - set(others):
            if not self.heard[instance].is_open:
                del self.heard[instance]

    def _count_anew(self, now_ms: float) -> None:
        self._lonely_since_ms = None
        for known in self.heard.values():
            known.since_ms = now_ms

    def _is_lonely(self, others: tuple[str, ...], lease_ms: int, now_ms: float) -> bool:
        linked = 1 + sum(self.is_linked(each, now_ms) for each in others)  # itself, too
        if 2 * linked >= 1 + len(others):
            self._had_most, self._lonely_since_ms, self.lonely_ms = True, None, 0.0
            return False
        if self._lonely_since_ms is None:
            self._lonely_since_ms = now_ms
        self.lonely_ms = now_ms - self._lonely_since_ms
        return self._had_most and self.lonely_ms >= max(LONELY_MS, lease_ms)
