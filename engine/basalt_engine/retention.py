"""The fate of one stored row: keep it, drop it, or roll it back; and why. Pure, and written twice.

The Java class `Retention` applies the same rule inside HBase's flush and compaction; the embedded retention job applies
this one. Only positive knowledge drops: whatever is unknown is kept. The rule as a table: docs/formats/retention.md.

Versions of a cell come newest first, and the rule carries what it learnt of one on to the next. A version is *settled*
when every present and future reader sees it or a newer one: then nobody needs an older one. Where something is unknown
the rule keeps a version too many; it never drops one that a reader may get.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from basalt_engine.cells.keys import POINTER_BYTES, CellKey
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import MessageKey, PayloadKey
from basalt_engine.snapshot import POINTERS_PER_MS, InvalidList, TransactionSnapshot

ALL_ONES_MS = (1 << 64) - 1  # the write time in the key of a writer's bound row (see basalt_engine.payloads)
# Publish times go on from the newest one when the clock is set back, and are then ahead of it; payloads outlive by this much more
# the messages that refer to them, so that no such message loses its payload.
CLOCK_SET_BACK_MS = 3_600_000


class Fate(enum.Enum):
    """The three things that compaction may do with a row."""

    KEEP = "keep"
    DROP = "drop"
    ROLL_BACK = "roll back"  # keep the row, with its column t negated


class OnInvalid(enum.Enum):
    """Topic property `onInvalid`: what becomes of rows whose writer failed."""

    DROP = "drop"
    RETAIN = "retain"


class Verdict(NamedTuple):
    """A fate, and the reason by which it is counted."""

    fate: Fate
    reason: str


class TopicRule(NamedTuple):
    """The part of a topic's metadata that retention needs. `generation` is negative once the topic is deleted."""

    generation: int
    ttl_ms: int
    on_invalid: OnInvalid = OnInvalid.DROP
    truncated_before_ms: int = 0  # this generation, and no other


UNKNOWN_TOPIC = Verdict(Fate.KEEP, "unknown topic")
OLD_GENERATION = Verdict(Fate.DROP, "old generation")
EXPIRED = Verdict(Fate.DROP, "expired")
TRUNCATED = Verdict(Fate.DROP, "truncated")
NO_SNAPSHOT = Verdict(Fate.KEEP, "no snapshot")
NO_TRANSACTION = Verdict(Fate.KEEP, "no transaction")
ROLLED_BACK = Verdict(Fate.DROP, "rolled back")
ROLLED_BACK_RETAINED = Verdict(Fate.KEEP, "rolled back, retained")
INVALID = Verdict(Fate.DROP, "invalid")
INVALID_RETAINED = Verdict(Fate.ROLL_BACK, "invalid, retained")
INVALID_PAYLOAD_RETAINED = Verdict(Fate.KEEP, "invalid payload, retained")
LIVE = Verdict(Fate.KEEP, "live")
UNREADABLE = Verdict(Fate.KEEP, "unreadable")
UNKNOWN_TABLE = Verdict(Fate.KEEP, "unknown table")
SUPERSEDED = Verdict(Fate.DROP, "superseded")
DELETED = Verdict(Fate.DROP, "deleted")


def is_old_generation(generation: int, current: int) -> bool:
    """True when the topic was deleted or created again after `generation`; `current` is negative once it is deleted."""
    return generation < abs(current) or (current < 0 and generation == -current)


def judge_message(
    key: MessageKey,
    written_by: int | None,
    expire_ms: int | None,
    topic: TopicRule | None,
    snapshot: TransactionSnapshot | None,
    now_ms: int,
) -> Verdict:
    """The verdict over a message row with columns t = `written_by` and x = `expire_ms`."""
    if topic is None:
        return UNKNOWN_TOPIC
    if is_old_generation(key.generation, topic.generation):
        return OLD_GENERATION
    if key.publish_ms + topic.ttl_ms <= now_ms or (expire_ms is not None and expire_ms <= now_ms):
        return EXPIRED
    if key.generation == topic.generation and key.publish_ms < topic.truncated_before_ms:
        return TRUNCATED
    if written_by is None:
        return NO_TRANSACTION
    if written_by < 0:
        return ROLLED_BACK if topic.on_invalid is OnInvalid.DROP else ROLLED_BACK_RETAINED
    if snapshot is None:
        return NO_SNAPSHOT
    if written_by in snapshot.invalid:
        return INVALID if topic.on_invalid is OnInvalid.DROP else INVALID_RETAINED
    return LIVE


def payloads_expired_ms(messages_expired_ms: int, lifetime_ms_max: int) -> int:
    """The write time up to which payloads have expired, given the publish time up to which messages have.

    A writer can publish a reference to a payload until its lifetime ends.
    """
    return messages_expired_ms - lifetime_ms_max


def judge_payload(
    key: PayloadKey, topic: TopicRule | None, snapshot: TransactionSnapshot | None, lifetime_ms_max: int, now_ms: int
) -> Verdict:
    """The verdict over one payload row; all rows of a writer go when this drops the last that it may have written."""
    if topic is None:
        return UNKNOWN_TOPIC
    if is_old_generation(key.generation, topic.generation):
        return OLD_GENERATION
    write_ms = key.write_pointer // POINTERS_PER_MS if key.write_ms == ALL_ONES_MS else key.write_ms
    if write_ms <= payloads_expired_ms(now_ms - topic.ttl_ms, lifetime_ms_max):
        return EXPIRED
    if (
        key.generation == topic.generation
        and write_ms + lifetime_ms_max + CLOCK_SET_BACK_MS < topic.truncated_before_ms
    ):
        return TRUNCATED
    if snapshot is None:
        return NO_SNAPSHOT
    if key.write_pointer in snapshot.invalid:
        return INVALID if topic.on_invalid is OnInvalid.DROP else INVALID_PAYLOAD_RETAINED
    return LIVE


class Horizon(NamedTuple):
    """The pointers up to which transactions are decided, durably, at a moment before the first row was read.

    Every writer up to `upper_bound` is visible to all present and future readers, or is in `invalid`. A tombstone of a
    writer up to `purge_bound` may go: the pass that drops it has all older versions of its cell before it, and no more
    will come. 0 where no tombstone may go.
    """

    invalid: InvalidList
    upper_bound: int
    purge_bound: int


class CellRun(NamedTuple):
    """The state of a walk over versions: the current cell's key without a writer, and whether a version is settled."""

    cell: bytes = b""
    settled: bool = False


def judge_cell(
    key: CellKey, tombstone: bool, generation: int | None, horizon: Horizon | None, settled: bool
) -> tuple[Verdict, bool]:
    """The verdict over a version, and whether one of its cell is settled now.

    `generation` is that of the table as the metadata table tells it, negative once it is deleted; None when unknown.
    """
    if generation is None:
        return UNKNOWN_TABLE, settled
    if is_old_generation(key.generation, generation):
        return OLD_GENERATION, settled
    if horizon is None:
        return NO_SNAPSHOT, settled
    if key.write_pointer in horizon.invalid:
        return INVALID, settled
    if key.write_pointer > horizon.upper_bound:
        return LIVE, settled
    if settled:
        return SUPERSEDED, True
    if tombstone and key.write_pointer <= horizon.purge_bound:
        return DELETED, True
    return LIVE, True


def judge_cells(
    rows: Iterable[tuple[bytes, bool | None]], generations: Mapping[bytes, int], horizon: Horizon | None, run: CellRun
) -> tuple[list[Verdict], CellRun]:
    """The verdicts over rows in the order of their keys, and what is to be carried on to the rows behind them.

    A row is its key and whether it is a tombstone (None: neither that nor a value). `generations` are by table prefix.
    """
    verdicts: list[Verdict] = []
    for data, tombstone in rows:
        cell = data[:-POINTER_BYTES]
        if cell != run.cell:
            run = CellRun(cell)
        try:
            key = CellKey.decode(data)
        except CorruptionError:
            verdicts.append(UNREADABLE)
            continue
        if tombstone is None:
            verdicts.append(UNREADABLE)
            continue
        verdict, settled = judge_cell(key, tombstone, generations.get(key.prefix), horizon, run.settled)
        verdicts.append(verdict)
        run = CellRun(cell, settled)
    return verdicts, run
