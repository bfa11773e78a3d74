"""The figures of topics that other servers own: each owner of topics of a list is asked once for all of them. Format: docs/formats/links.md, "Figures".

Only the owner of a topic counts its messages. One that does not answer in time leaves its figures out, and the list names it. Decision 0080.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from basalt.catalog.topics import TopicName
from basalt.cluster.links.frames import CallKind, Kind
from basalt.cluster.links.links import Links
from basalt.cluster.shard_gate import ShardGate
from basalt.errors import BasaltError
from basalt.messaging.topic_stats import TopicSums
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.shards import shard_of

TOPICS_ASKED_MAX = 1_000  # in one call: a list's page has no more, and the answer has some 100 KB
ANSWER_MS_MAX = (
    500  # the owner reads for 250 ms what it has not in memory, and whoever looks at the list waits for the slowest
)


class FiguresOf(msgspec.Struct, frozen=True, array_like=True):
    """The figures of these topics of the asked member; `holders`: with the transactions at which readers stop."""

    topics: Annotated[tuple[TopicName, ...], msgspec.Meta(max_length=TOPICS_ASKED_MAX)]
    holders: bool


class Told(NamedTuple):
    """The figures of one topic as its owner knows them: its sums, which transaction holds readers back, and since when."""

    sums: TopicSums
    held_by: str | None = None
    held_since_ms: int | None = None


class ToldFigures(msgspec.Struct, frozen=True, array_like=True):
    """For each topic of the question what is known; None: it is not the member's, or was not counted in time."""

    figures: tuple[Told | None, ...]


Here: TypeAlias = Callable[[FiguresOf], Awaitable[ToldFigures]]

FIGURES: CallKind[FiguresOf, ToldFigures] = CallKind(Kind.FIGURES, "figures", FiguresOf, ToldFigures)


class FiguresElsewhere:
    """The other owners, as a server knows them that lists topics; and the side that answers."""

    def __init__(self, links: Links, gate: ShardGate, here: Here) -> None:
        self._links = links
        self._gate = gate
        links.handlers.add(FIGURES, lambda _, asked: here(asked))

    async def ask(self, titles: Iterable[TopicName], *, holders: bool) -> tuple[dict[TopicName, Told], tuple[str, ...]]:
        """The figures of those that others own, as far as they tell; and the names, in the map, of those who did not answer."""
        owned = self._by_owner(titles)
        answers = await asyncio.gather(*(self._told(owner, FiguresOf(asked, holders)) for owner, asked in owned))
        found: dict[TopicName, Told] = {}
        silent: set[str] = set()
        for (owner, asked), answer in zip(owned, answers, strict=True):
            if answer is None or len(answer) != len(asked):
                silent.add(owner)
            else:
                found.update((title, told) for title, told in zip(asked, answer, strict=True) if told is not None)
        return found, tuple(sorted(silent))

    def _by_owner(self, titles: Iterable[TopicName]) -> list[tuple[str, tuple[TopicName, ...]]]:
        owners = self._gate.owners
        found: dict[str, list[TopicName]] = {}
        for title in () if owners is None else titles:
            assert owners is not None
            owner = owners.owner_of(shard_of(topic_prefix(*title)))
            if owner != self._gate.member:
                found.setdefault(owner, []).append(title)
        return [
            (owner, tuple(asked[start : start + TOPICS_ASKED_MAX]))
            for owner, asked in found.items()
            for start in range(0, len(asked), TOPICS_ASKED_MAX)
        ]

    async def _told(self, owner: str, asked: FiguresOf) -> tuple[Told | None, ...] | None:
        link = self._links.of_run(owner)
        if link is None:
            return None
        try:
            return (await link.call(FIGURES, asked, ANSWER_MS_MAX)).figures
        except BasaltError:
            return None
