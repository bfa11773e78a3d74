"""Reading a range: everything after one id and through another, cut at a number of bytes.

What a range holds was decided before it was asked for (`through` is at most the topic's stable end), so it is the same at
every reading, but for messages that expire. Several looks at the log, each as long as a poll's, make one answer.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from basalt.errors import ConflictError
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.read.fetch import Limits, Slice, Start, start_from
from basalt.messaging.read.log_reads import LogReads
from basalt_engine.snapshot import TransactionSnapshot

MESSAGES_MAX = 131_072  # of one answer: very small messages take many times their own bytes in memory


class Range(NamedTuple):
    """The messages of a range, or the first of them: then `next_id` is where to go on, exclusively."""

    slices: list[Slice]
    next_id: bytes | None
    messages: int
    payload_bytes: int


async def read_range(
    reads: LogReads, log: TopicLog, after: bytes | None, through: bytes, bytes_max: int, look: Limits,
    snapshot: TransactionSnapshot | None,
) -> Range:  # fmt: skip
    """Messages after `after` (None: from the oldest on) and through `through`: at least one, if there is one.

    A `snapshot` leaves out what no transaction committed. `look` is how much is read at a time. `through` must not be beyond
    what is decided.
    """
    begin = start_from(after, after is None)
    slices: list[Slice] = []
    messages = payload_bytes = 0
    while begin.inclusive or begin.id < through:
        limits = Limits(
            min(look.messages_max, MESSAGES_MAX - messages),
            min(look.bytes_max, bytes_max - payload_bytes),
            0 if messages else 1,
            through,
        )
        found = await reads.read(log, begin, limits, snapshot)
        if found.held_by is not None:
            raise undecided(through)
        slices += found.slices
        messages += found.messages
        payload_bytes += found.payload_bytes
        if found.next_id is not None:
            begin = Start(min(found.next_id, through), False)
        full = messages >= MESSAGES_MAX or payload_bytes >= bytes_max or (found.full and not found.messages)
        if full and begin.id < through:
            return Range(slices, begin.id, messages, payload_bytes)
        if found.next_id is None:
            break
        await asyncio.sleep(0)  # others get their turn
    return Range(slices, None, messages, payload_bytes)


def undecided(through: bytes) -> ConflictError:
    """The refusal of a range that could still change."""
    return ConflictError(
        f"the range ends at {through.hex()}, beyond the topic's stable end: what it holds could still change",
        field="through",
        hint="End it at what stable-end or advance answers.",
    )
