"""HBase as members see it: regions with a floor per shard, calls that arrive late or whose answer is lost, rows that are checked and replaced.

A write that was sent arrives once, whenever that is: the gateway may still be trying when its sender is dead. A floor is what keeps it out
then. Every write carries its time, (epoch, number): a later one of the same row hides an earlier one that arrives after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.sim.members.play import FencedError, Play, Process, RefusedError

TOPICS = ("a", "b", "c", "d")  # each in a shard of its own
TABLES = ("t", "u")  # shards as well
SHARDS = (*TOPICS, *TABLES)
PATIENCE_MS = 300  # of who waits for HBase, less than a third of a lease
LATE_MS = (350, 4_000)  # of a call that hangs on its way: longer than its sender waits, up to several leases
DATA_REGIONS = ("messages 0", "messages 1", "payloads", "cells", "notes")  # those that rows of topics and tables lie in
LOG, SYSTEM = "log", "system"


class Stamp(NamedTuple):
    """The time of a write: the epoch of its shard, and a number that its owner counts."""

    epoch: int
    number: int


class Row(NamedTuple):
    """A message row: `writer` is the write pointer of a transaction, or None."""

    writer: int | None
    texts: tuple[str, ...]
    stamp: Stamp
    is_rolled_back: bool = False


class Cell(NamedTuple):
    """One version of a cell."""

    writer: int
    text: str


class OwnersMap(NamedTuple):
    """Who owns which shard, and under which epoch: the world's own value, the product's row has a format."""

    version: int = 0
    leader_epoch: int = 0
    owners: dict[str, tuple[str, int]] = {}


@dataclass(slots=True)
class Region:
    """What one region knows beside its rows."""

    floors: dict[str, int] = field(default_factory=dict)
    away_until_ms: float = 0.0


def messages_of(topic: str) -> str:
    """The region of a topic's rows."""
    return f"messages {TOPICS.index(topic) % 2}"


class HBase:
    """All tables, and the network in front of them."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.late_rate = self.lost_rate = 0.0
        self.late_write_rate = 0.0  # of writes of owners, where they are late more often than the rest
        self.cut_until_ms: dict[Process, float] = {}
        self.regions = {name: Region() for name in (*DATA_REGIONS, LOG, SYSTEM)}
        self.rows: dict[str, dict[int, Row]] = {topic: {} for topic in TOPICS}
        self.deleted: dict[tuple[str, int], Stamp] = {}
        self.payloads: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        self.cells: defaultdict[tuple[str, str], list[Cell]] = defaultdict(list)
        self.ends: dict[str, int] = {}  # notes of where topics end
        self.log: list[object] = []
        self.system: dict[str, Any] = {"owners:map": OwnersMap()}
        self.was_at: dict[tuple[str, int], tuple[str, ...]] = {}  # what has ever been at a place
        self.broken: list[str] = []

    # The network.

    async def call(
        self,
        process: Process,
        region: str,
        action: Callable[[], Any],
        *,
        patience_ms: float = PATIENCE_MS,
        is_write: bool = False,
    ) -> Any:
        """Have a region do this, whenever the call arrives; UnansweredError when no answer comes in time."""
        answer = self.play.answer()
        chances = self.play.chances
        arrives_ms = max(self.play.now_ms + self.delay_ms(is_write=is_write), self.cut_until_ms.get(process, 0.0))

        def arrive() -> None:
            away_until_ms = self.regions[region].away_until_ms
            if away_until_ms > self.play.now_ms:
                self.play.at(away_until_ms + chances.uniform(0, 5), arrive)
                return
            value, error = None, None
            try:
                value = action()
            except RefusedError as refused:
                error = refused
            if chances.random() >= self.lost_rate:
                self.play.at(self.play.now_ms + chances.uniform(0.5, 2), lambda: answer.give(value, error))

        self.play.at(arrives_ms, arrive)
        return await self.play.within(patience_ms, answer)

    def delay_ms(self, *, is_write: bool = False) -> float:
        """The time that a call is on its way."""
        chances = self.play.chances
        rate = max(self.late_rate, self.late_write_rate) if is_write else self.late_rate
        return chances.uniform(*LATE_MS) if chances.random() < rate else chances.uniform(0.5, 4)

    async def write(self, process: Process, region: str, shard: str, epoch: int, change: Callable[[], None]) -> None:
        """A write of an owner: the region refuses it once it has heard of a later reign over the shard."""

        def change_unless_fenced() -> None:
            if self.is_fenced(region, shard, epoch):
                raise FencedError(f"{region} knows a later owner of {shard}")
            change()

        await self.call(process, region, change_unless_fenced, is_write=True)

    def is_fenced(self, region: str, shard: str, epoch: int) -> bool:
        """True when the region takes no more from this reign."""
        return epoch < self.regions[region].floors.get(shard, 0)

    def raise_floor(self, region: str, shard: str, epoch: int) -> None:
        """The fence that a new owner sends to every region."""
        if self.is_fenced(region, shard, epoch):
            raise FencedError(f"{region} knows a later owner of {shard}")
        self.regions[region].floors[shard] = epoch

    def reopen(self, region: str) -> None:
        """The region moves to another server: what it knew of owners, it reads from the map before it takes a write."""
        owners: OwnersMap = self.system["owners:map"]
        self.regions[region].floors = {shard: epoch for shard, (_, epoch) in owners.owners.items()}

    # Rows of topics and tables: run where the rows lie.

    def put_row(self, topic: str, place: int, row: Row) -> None:
        """Put a message row, unless a later write or delete of the place is there already."""
        if self.deleted.get((topic, place), Stamp(0, 0)) >= row.stamp:
            return
        old = self.rows[topic].get(place)
        if old is not None and old.stamp >= row.stamp:
            return
        if self.was_at.setdefault((topic, place), row.texts) != row.texts:
            self.broken.append(
                f"place {place} of {topic} was given out twice: {self.was_at[topic, place]} and {row.texts}"
            )
        self.rows[topic][place] = row

    def delete_row(self, topic: str, place: int, stamp: Stamp) -> None:
        """Delete what is at a place, and what arrives there later and was sent before."""
        self.deleted[topic, place] = max(stamp, self.deleted.get((topic, place), Stamp(0, 0)))
        old = self.rows[topic].get(place)
        if old is not None and old.stamp <= stamp:
            del self.rows[topic][place]
            del self.was_at[topic, place]  # in doubt until now, so nobody has seen it

    def rows_between(self, topic: str, after: int, stop: int) -> list[tuple[int, Row]]:
        """The rows of a topic after a place and before another."""
        return sorted((place, row) for place, row in self.rows[topic].items() if after < place < stop)

    def end_of(self, topic: str) -> int:
        """The last place that a topic is known to have given out."""
        return max(max(self.rows[topic], default=0), self.ends.get(topic, 0))

    def note_end(self, topic: str, place: int) -> None:
        """Keep where a topic ends, for the time when its last row is gone."""
        self.ends[topic] = max(place, self.ends.get(topic, 0))

    def clean(self, region: str, writers: Callable[[int], bool]) -> None:
        """What a compaction does: drop rows and cells of failed writers."""
        for topic in TOPICS:
            if messages_of(topic) == region:
                kept = {
                    at: row for at, row in self.rows[topic].items() if row.writer is None or not writers(row.writer)
                }
                self.rows[topic] = kept
        if region == "cells":
            for versions in self.cells.values():
                versions[:] = [cell for cell in versions if not writers(cell.writer)]

    # Rows of the system table and of the log.

    def replace(self, key: str, expected: object, new: object) -> None:
        """Check and write: the row is replaced if it is what the writer has read."""
        if self.system.get(key) != expected:
            raise RefusedError(f"{key} is no more what it was")
        self.system[key] = new

    def insert(self, index: int, entry: object) -> None:
        """An entry of the log takes its place; a place is taken once."""
        if index != len(self.log):
            if index < len(self.log) and self.log[index] is entry:
                return
            raise FencedError(f"place {index} of the log is taken")
        self.log.append(entry)
