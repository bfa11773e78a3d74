"""The messages of a topic, read through the server as Arrow record batches, range by range.

Only committed and decided messages are read, up to the stable end. So a range gives the same rows however often it is
read, until the first of them expires.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, NamedTuple

from basalt.api.positions import END, START, Position
from basalt.client import Client, Topic
from basalt.client.calls.messages import Isolation
from basalt.errors import ConflictError
from basalt_spark.connection import QualifiedTopic, Server, client_of, topic_of
from basalt_spark.offset import before_id, before_time

COLUMNS = ("id", "publish_time", "key", "value", "tx_id", "headers", "event_time")
PART_BYTES = 128 << 20  # of payloads, about, that one task reads and one archive file holds
PARTS_MAX = 1_000  # of one topic; a larger topic gets larger parts
US_PER_DAY = 86_400_000_000


class TopicRange(NamedTuple):
    """Messages of one generation with after < id <= through.

    `after` None: from the start; `through` None: none at all.
    """

    generation: int
    after: bytes | None
    through: bytes | None


class RangePart(NamedTuple):
    """A stretch of a range that one task reads. `turn`: its number in the range, by which several servers read in turn."""

    after: bytes | None
    through: bytes
    messages: int
    size_bytes: int
    turn: int


class TopicRows(NamedTuple):
    """A topic of a server, as a job's source or target; a value, so that it travels to executors."""

    server: Server
    name: QualifiedTopic

    @property
    def client(self) -> Client:
        return client_of(self.server)

    @property
    def topic(self) -> Topic:
        return topic_of(self.server, self.name)

    def decided(self, start: Position = START, stop: Position = END) -> TopicRange:
        """The decided messages from one position to before another.

        `ConflictError` when a transaction that is open, or has not been decided, may still add messages to the range.
        """
        end = self.topic.stable_end()
        after = before(start)
        through: bytes | None = end.id
        if stop != END:
            wanted = before(stop)
            if wanted is not None and (end.id is None or end.id < wanted):
                self._require_nothing(end.id, wanted, stop)
            through = None if end.id is None or wanted is None else min(wanted, end.id)
        if start == END or (through is not None and after is not None and through <= after):
            through = None
        return TopicRange(end.generation, after, through)

    def _require_nothing(self, decided: bytes | None, wanted: bytes, stop: Position) -> None:
        """Raise `ConflictError` when an undecided message lies in the range."""
        if self.has_messages(decided, wanted, isolation="uncommitted"):
            raise ConflictError(
                f"topic {self.name} is undecided before {stop.text}: an open transaction may add messages there",
                hint=f"`basalt explain {self.name.topic}` tells which one; wait for it, or name an earlier end",
            )

    def has_messages(self, after: bytes | None, through: bytes, *, isolation: Isolation = "committed") -> bool:
        """True when there is a message with after < id <= through. Each call of the server looks at a bounded part."""
        while after is None or after < through:
            found = self.topic.advance(after, through=through, messages_max=1, isolation=isolation)
            if found.messages or found.at_end or found.through is None:
                return bool(found.messages)
            after = found.through
        return False

    def parts(self, wanted: TopicRange, count: int | None = None) -> list[RangePart]:
        """Cut the range into parts of about `PART_BYTES`, or into `count` parts; none for an empty range."""
        if wanted.through is None:
            return []
        size_bytes = self._size_bytes(wanted)
        if count is None:
            count = max(1, min(PARTS_MAX, size_bytes // PART_BYTES + 1))
        found = self.topic.splits(wanted.after, wanted.through, count)
        return [
            RangePart(split.after, split.through, split.messages, split.bytes, turn) for turn, split in enumerate(found)
        ]

    def _size_bytes(self, wanted: TopicRange) -> int:
        """The bytes of the payloads in a range. The server remembers them, and splits the range quickly afterwards."""
        after, size_bytes = wanted.after, 0
        while True:
            found = self.topic.advance(after, through=wanted.through)
            size_bytes += found.bytes
            if found.at_end or found.through is None:
                return size_bytes
            after = found.through

    def batches(self, generation: int, part: RangePart, columns: Sequence[str] = COLUMNS) -> Iterator[Any]:
        """Read the part's messages as record batches, one page of them in memory at a time.

        `GenerationError` when the topic was deleted and created again meanwhile.
        """
        import pyarrow as pa

        after: bytes | None = part.after
        while True:
            page = self.topic.range(
                after, part.through, columns=columns, generation=generation, turn=part.turn, size_bytes=part.size_bytes
            )
            with pa.ipc.open_stream(page.body) as stream:
                yield from (batch for batch in stream if batch.num_rows)
            if page.next_id is None:
                return
            if after is not None and page.next_id <= after:
                raise ConflictError(f"the server's pages of topic {self.name} do not go on from {after.hex()}")
            after = page.next_id


def by_day(batch: Any) -> Iterator[tuple[str, Any]]:
    """Cut a batch into slices of one day each: publish times rise, so each day is one slice."""
    import pyarrow as pa

    days = [time // US_PER_DAY for time in batch.column("publish_time").cast(pa.int64()).to_pylist()]
    start = 0
    for day, rows in groupby(days):
        count = sum(1 for _ in rows)
        yield f"{datetime.fromtimestamp(day * 86_400, tz=UTC):%Y-%m-%d}", batch.slice(start, count)
        start += count


def before(position: Position) -> bytes | None:
    """The highest id before a position; None when there is none, and for the end."""
    if position.time_ms is not None:
        return before_time(position.time_ms)
    return None if position.id is None else before_id(position.id)
