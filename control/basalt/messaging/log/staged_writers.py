"""Who has staged payloads in which log, as memory knows it: which writers stay there, and which are read again."""

from __future__ import annotations

from collections import OrderedDict

from basalt.messaging.index import NO_TTLS, OWN_TTLS_MAX, Count, TtlCounts
from basalt.messaging.log.append import EMPTY_LOG, LogPosition
from basalt_engine.keys import position_fields
from basalt_engine.snapshot import POINTER_MAX


class StagedWriter:
    """The payloads that one writer staged in one topic: its newest place, and the rows that no reference publishes."""

    __slots__ = (
        "among", "announced", "first", "last", "messages", "newest", "own_ttls", "payload_bytes", "pins", "pointer", "published_to",
    )  # fmt: skip

    def __init__(self, pointer: int, published_to: bytes | None = None) -> None:
        self.among: dict[int, StagedWriter]  # the writers of its log that are in memory
        self.pointer = pointer
        self.newest = EMPTY_LOG if published_to is None else LogPosition(*position_fields(published_to))
        self.first: bytes | None = None
        self.last = b""
        self.messages = 0
        self.payload_bytes = 0
        self.own_ttls: TtlCounts | None = NO_TTLS  # None: too many
        self.published_to = published_to  # up to where references publish its payloads
        self.announced: bytes | None = None  # the position of the message row on which that relies
        self.pins = 0  # while not 0 it stays in memory: a group has changed it, or a stage that needs it is to run

    def add(self, where: bytes, messages: int, payload_bytes: int, own_ttls: TtlCounts) -> None:
        """One more payload row at this position."""
        self.first = self.first or where
        self.last = where
        self.messages += messages
        self.payload_bytes += payload_bytes
        self.newest = LogPosition(*position_fields(where))
        if own_ttls and self.own_ttls is not None:
            known = self.own_ttls
            joined = {**known, **{ttl: count.plus(*known.get(ttl, Count())) for ttl, count in own_ttls.items()}}
            self.own_ttls = joined if len(joined) <= OWN_TTLS_MAX else None

    def publish(self, to: bytes) -> None:
        """References publish what is staged up to this position, which is all."""
        self.first, self.messages, self.payload_bytes, self.own_ttls, self.published_to = None, 0, 0, NO_TTLS, to


class StagedWriters:
    """The writers of all logs that are in memory: those that are pinned, and at most `idle_max` others."""

    def __init__(self, idle_max: int) -> None:
        self._idle_max = idle_max
        self._idle: OrderedDict[StagedWriter, None] = OrderedDict()  # without pins, the least recently used first
        # A write pointer above this one that is not kept has nothing staged; do not ask the store.
        self.unknown_up_to = POINTER_MAX

    def recovered(self, last_pointer: int) -> None:
        """Pointers after this one are handed out from now on, so all that they stage comes through here."""
        self.unknown_up_to = last_pointer

    def keep(self, among: dict[int, StagedWriter], writer: StagedWriter) -> None:
        """Keep a writer among those of its log."""
        writer.among = among
        among[writer.pointer] = writer
        self.touch(writer)

    def touch(self, writer: StagedWriter) -> None:
        """Keep the writer while it is among those used last."""
        if writer.pins:
            return
        self._idle[writer] = None
        self._idle.move_to_end(writer)
        if len(self._idle) > self._idle_max:
            self.evict(next(iter(self._idle)))

    def pin(self, writer: StagedWriter) -> None:
        """Keep the writer in memory."""
        writer.pins += 1
        self._idle.pop(writer, None)

    def unpin(self, writer: StagedWriter) -> None:
        """The store knows the writer, and nobody is about to need it."""
        writer.pins -= 1
        if not writer.pins and writer.among.get(writer.pointer) is writer:
            self.touch(writer)

    def evict(self, writer: StagedWriter) -> None:
        """Drop the writer from memory: it is read again when somebody needs it."""
        self.unknown_up_to = max(self.unknown_up_to, writer.pointer)
        self.forget(writer)

    def forget(self, writer: StagedWriter) -> None:
        """Drop from memory what is known of a writer that has nothing staged any more."""
        self._idle.pop(writer, None)
        if writer.among.get(writer.pointer) is writer:
            del writer.among[writer.pointer]
            if not writer.among:
                writer.among.clear()  # gives back what it had grown to
