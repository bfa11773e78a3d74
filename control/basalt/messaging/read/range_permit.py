"""The leader's permit to read one range: whose rows are seen in it, and all else that reading it needs beside the rows themselves. Pure.

A server that does not lead gets it with the question whether its caller may read the range, and reads the rows afterwards. The range ends at or before
the topic's stable end, so nothing in it is undecided, and the view judges every row for ever. Format: msgpack, see docs/formats/range-permit.md.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from basalt.catalog.topics import Topic, TopicName, topic_name
from basalt.errors import ProtocolError
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import topic_prefix
from basalt_engine.metadata import TopicMetadata
from basalt_engine.snapshot import NO_INVALID, InvalidList, PointerRuns, TransactionSnapshot

VIEW_ENTRIES_MAX = (
    10_000  # of the lists of a view: some 90 KB, and a millisecond on each side; of more, the leader reads
)
VERSION = 1


class View(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot of the transactions; runs as the first and the last pointer of each."""

    read_pointer: int
    in_progress: tuple[int, ...] = ()
    in_progress_runs: tuple[tuple[int, int], ...] = ()
    invalid: tuple[int, ...] = ()
    invalid_runs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, snapshot: TransactionSnapshot) -> View | None:
        """The view that says the same; None where it would be too long to be sent with every range."""
        entries = len(snapshot.in_progress) + len(snapshot.in_progress_runs) + snapshot.invalid.entries
        if entries > VIEW_ENTRIES_MAX:
            return None
        return cls(
            snapshot.read_pointer, snapshot.in_progress, tuple((run.first, run.last) for run in snapshot.in_progress_runs),
            snapshot.invalid.pointers, tuple((run.first, run.last) for run in snapshot.invalid.runs),
        )  # fmt: skip

    def snapshot(self) -> TransactionSnapshot:
        """The snapshot. `ValueError` where its lists are none."""
        invalid = NO_INVALID
        if self.invalid or self.invalid_runs:
            invalid = InvalidList(self.invalid, runs=PointerRuns(self.invalid_runs))
        return TransactionSnapshot(
            self.read_pointer, in_progress=self.in_progress, invalid=invalid,
            in_progress_runs=PointerRuns(self.in_progress_runs),
        )  # fmt: skip


class Asked(NamedTuple):
    """The words of the caller: the range, how much of it at once, and which columns."""

    after: bytes | None
    through: bytes
    bytes_max: int
    columns: tuple[str, ...]


class RangePermit(msgspec.Struct, frozen=True, array_like=True):
    """All that reading one range needs. `now_ms` is the leader's time, by which messages have expired; `view` None sees everything."""

    version: int
    namespace: str
    topic: str
    metadata: bytes  # of the topic, as the leader knows it
    buckets: int
    coordinator: str  # with which the ids of the installation's transactions begin
    now_ms: int
    oldest_ms: int  # no message before it is reached
    after: bytes | None
    through: bytes
    bytes_max: int
    columns: tuple[str, ...]
    view: View | None

    @classmethod
    def of(
        cls, topic: Topic, asked: Asked, view: View | None, *, coordinator: str, now_ms: int, oldest_ms: int
    ) -> RangePermit:
        """The permit to read this of the topic."""
        return cls(
            VERSION, topic.namespace, topic.name, topic.metadata.encode(), topic.keys.buckets, coordinator, now_ms, oldest_ms,
            asked.after, asked.through, asked.bytes_max, asked.columns, view,
        )  # fmt: skip

    @property
    def title(self) -> TopicName:
        return topic_name(self.namespace, self.topic)

    def stored(self) -> TopicMetadata:
        """The topic as the leader knows it."""
        return TopicMetadata.decode(self.metadata, topic_prefix(*self.title))

    def still_holds(self, stored: TopicMetadata | None) -> bool:
        """Tell whether all rows that the range had are there still, as far as the topic's row says: read it after them."""
        then = self.stored()
        return stored is not None and (
            (stored.generation, stored.truncated_before_ms, stored.ttl_ms)
            == (then.generation, then.truncated_before_ms, then.ttl_ms)
        )

    def encode(self) -> bytes:
        """The bytes that are sent."""
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> RangePermit:
        """Read what `encode` wrote. `ProtocolError`: a server of another version has sent it, or none."""
        try:
            permit = _DECODER.decode(data)
            permit.stored()
        except (msgspec.DecodeError, UnicodeDecodeError, CorruptionError) as error:
            raise ProtocolError(f"a permit to read a range cannot be read: {error}") from error
        if permit.version != VERSION:
            raise ProtocolError(f"a permit to read a range is of version {permit.version}, not {VERSION}")
        return permit


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(RangePermit)
