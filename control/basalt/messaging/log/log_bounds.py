"""The end and the start of a log, as far as its rows cannot tell: durable, written together with their removal.

The end is the newest place that was ever given out (kind `newest`): a row that is gone cannot tell it after a restart, and
a place that was given out once must never be given out again. The start is the time before which everything is gone (kind
`expired`): counts that were kept from before a removal leave that out. Formats: docs/formats/system-table.md.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from basalt.catalog.topics import Topic
from basalt.errors import CorruptionError
from basalt.runtime.group_commit import Group, Phase
from basalt_engine.system import SystemTable

NEWEST = "newest"
EXPIRED = "expired"

T = TypeVar("T")


class LogEnd(msgspec.Struct, frozen=True):
    """No place up to this position (hex) is given out again in this generation."""

    generation: int
    position: str


class LogStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every row of this generation that was published before this time is gone.

    `last` is the position (hex) of the newest one that was there to be removed; None where nobody looked.
    """

    generation: int
    before_ms: int
    last: str | None = None


def entry_name(prefix: bytes) -> str:
    """Under which name a topic's entries lie in the system table: its prefix, so that both sort alike."""
    return prefix.decode("ascii")


def note_newest(group: Group, topic: Topic, newest: bytes) -> None:
    """Write, with the group that removes rows and no later than they go, the newest place that was given out."""
    put = SystemTable.put(
        NEWEST, entry_name(topic.keys.prefix), msgspec.json.encode(LogEnd(topic.generation, newest.hex()))
    )
    group.add(SystemTable.name, put, phase=Phase.INTENT)


def note_expired(group: Group, topic: Topic, before_ms: int, last: bytes) -> None:
    """Write, with the group that removes them, that all rows published before this time are gone, and which was the last."""
    noted = LogStart(topic.generation, before_ms, last.hex())
    put = SystemTable.put(EXPIRED, entry_name(topic.keys.prefix), msgspec.json.encode(noted))
    group.add(SystemTable.name, put, phase=Phase.OUTCOME)


def forget(group: Group, prefix: bytes) -> None:
    """The topic is no more."""
    for kind in (NEWEST, EXPIRED):
        group.add(SystemTable.name, SystemTable.delete(kind, entry_name(prefix)))


def newest(system: SystemTable, topic: Topic) -> bytes:
    """The newest place that was given out when rows were last removed; empty when none ever were."""
    found = read(system, NEWEST, topic, LogEnd)
    return b"" if found is None or found.generation != topic.generation else bytes.fromhex(found.position)


def expired_before_ms(system: SystemTable, topic: Topic) -> int:
    """The time before which every row is gone; 0 when none was ever removed."""
    found = expired(system, topic)
    return 0 if found is None else found.before_ms


def expired(system: SystemTable, topic: Topic) -> LogStart | None:
    """The note about the rows of this generation that the TTL has taken; None when none ever went."""
    found = read(system, EXPIRED, topic, LogStart)
    return None if found is None or found.generation != topic.generation else found


def read(system: SystemTable, kind: str, topic: Topic, form: type[T]) -> T | None:
    """The topic's entry of this kind; of whichever generation it is."""
    name = entry_name(topic.keys.prefix)
    body = system.get(kind, name)
    return None if body is None else decoded(body, kind, name, form)


def decoded(body: bytes, kind: str, name: str, form: type[T]) -> T:
    """The value in the body of an entry; `CorruptionError` when it holds something else."""
    try:
        return msgspec.json.decode(body, type=form)
    except msgspec.DecodeError as error:
        raise CorruptionError(f"system entry {kind}:{name} is not what it should be: {error}") from None
