"""The counts of one topic, as memory and the system table keep them. Format: docs/formats/system-table.md, kind `usage`.

They are incomplete until what was counted before this process began, and rows that no saved count covers, are added in
front of what observers told since.
"""

from __future__ import annotations

import msgspec

from basalt.messaging.index.counts import Buckets, Expiry, OwnExpiry, Recent, RowCount


class SavedCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a `usage` entry: everything up to position `counted_to` (hex) and not published before `from_ms`.

    Nothing in `own` was published before `truncated_ms`.
    """

    generation: int
    counted_to: str
    from_ms: int
    newest_ms: int
    starts: list[int]
    messages: list[int]
    payload_bytes: list[int]
    own: list[tuple[int, int, int]]
    truncated_ms: int = 0


class TopicCounts:
    """What one generation of a topic holds."""

    __slots__ = (
        "buckets", "changed_ms", "complete", "counted_to", "first", "gone_before_ms", "own", "recent", "removals",
        "truncated_ms", "unsaved_bytes",
    )  # fmt: skip

    def __init__(self, truncated_ms: int = 0) -> None:
        self.truncated_ms = truncated_ms  # the topic was truncated before: no message in `own` is older
        self.buckets = Buckets()
        self.own = OwnExpiry()
        self.recent = Recent()
        self.counted_to = b""  # the position of the newest row that is counted
        self.first = b""  # while incomplete: the position of the oldest row that was observed
        self.complete = False
        self.gone_before_ms = 0  # everything published before was removed
        self.removals = 0
        self.changed_ms: int | None = None  # when they changed first since they were saved
        self.unsaved_bytes = 0

    def observe(self, where: bytes, counted: RowCount, now_ms: int) -> None:
        """A row at this position became durable."""
        if where <= self.counted_to:  # it was read before we were told
            return
        self.first = self.first or where
        self.add(where, counted)
        self.recent.add(now_ms, counted.messages + len(counted.own))
        self.changed_ms = now_ms if self.changed_ms is None else self.changed_ms
        self.unsaved_bytes += counted.payload_bytes

    def add(self, where: bytes, counted: RowCount) -> None:
        """Count a row that is newer than all before it."""
        self.counted_to = where
        self.buckets.add(counted.publish_ms, counted.messages, counted.payload_bytes)
        if counted.publish_ms >= self.truncated_ms:
            self.own.add(counted.own)

    def complete_with(self, older: TopicCounts) -> None:
        """Add the counts of all rows older than those that were observed."""
        older.buckets.extend(self.buckets)
        self.buckets = older.buckets
        self.own.add(older.own.entries())
        self.counted_to = max(self.counted_to, older.counted_to)
        self.expired(max(self.gone_before_ms, older.gone_before_ms))
        self.complete = True

    def remove(self, where: bytes, counted: RowCount) -> None:
        """The row at this position is gone."""
        if where <= self.counted_to:
            self.buckets.subtract(counted.publish_ms, counted.messages, counted.payload_bytes)
            if counted.publish_ms >= self.truncated_ms:
                self.own.add(counted.own, -1)
            self.removals += 1

    def truncated(self, before_ms: int) -> TopicCounts:
        """The counts of a topic that was truncated before this time.

        Buckets tell what is older; of messages with a TTL of their own nobody knows, so where there are some it is counted anew.
        """
        if before_ms <= self.truncated_ms:
            return self
        if self.complete and not self.own:
            self.truncated_ms = before_ms
            return self
        anew = TopicCounts(before_ms)
        anew.recent = self.recent
        return anew

    def expired(self, before_ms: int) -> None:
        """All rows published before this time are gone."""
        self.gone_before_ms = max(self.gone_before_ms, before_ms)
        self.buckets.drop_before(self.gone_before_ms)

    def saved(self) -> None:
        """The counts are being saved as they are."""
        self.changed_ms, self.unsaved_bytes = None, 0

    def body(self, generation: int) -> bytes:
        """What to save."""
        kept = self.buckets
        return msgspec.json.encode(
            SavedCounts(
                generation,
                self.counted_to.hex(),
                kept.from_ms,
                kept.newest_ms,
                kept.starts.tolist(),
                kept.messages.tolist(),
                kept.payload_bytes.tolist(),
                [(entry.expire_ms, entry.messages, entry.payload_bytes) for entry in self.own.entries()],
                self.truncated_ms,
            )
        )

    @classmethod
    def of(cls, stored: SavedCounts) -> TopicCounts:
        """The counts that were saved."""
        counts = cls(stored.truncated_ms)
        counts.counted_to = bytes.fromhex(stored.counted_to)
        counts.own = OwnExpiry(Expiry(*entry) for entry in stored.own)
        counts.buckets = Buckets.of(
            stored.from_ms, stored.newest_ms, stored.starts, stored.messages, stored.payload_bytes
        )
        return counts
