"""Truncating a topic behind an archive that holds all of its messages up to there. What is not in the archive stays.

The time is that of the archive's end. Messages of its last millisecond stay where more may follow in it.
"""

from __future__ import annotations

from typing import NamedTuple

from basalt.errors import ConflictError
from basalt_spark.jobs.manifest import Manifest
from basalt_spark.jobs.server_rows import ID_BYTES, TopicRows

_BITS_BELOW_MS = 8 * (ID_BYTES - 8)  # an id begins with eight bytes of milliseconds


class Truncation(NamedTuple):
    """Before which time the topic is truncated, and whether this job did it."""

    before_ms: int
    changed: bool


def truncate_behind(source: TopicRows, archived: Manifest) -> Truncation | None:
    """Truncate the topic up to the end of an archive that was verified; None when the archive is of an empty range.

    `ConflictError`: the topic has messages before the archive's first. `GenerationError`: it was created again since.
    """
    if archived.through is None:
        return None
    require_nothing_before(source, None if archived.after is None else bytes.fromhex(archived.after))
    done = source.client.topics.truncate(
        source.name.topic, before_ms(bytes.fromhex(archived.through)), namespace=source.name.namespace,
        generation=archived.generation, reason=f"archived by job {archived.job_id}", by="basalt jobs archive",
    )  # fmt: skip
    return Truncation(done.truncated_before_ms, done.changed)


def require_nothing_before(source: TopicRows, after: bytes | None) -> None:
    """`ConflictError` when the topic has messages up to this id, which an archive that begins behind it does not hold."""
    if after is not None and source.has_messages(None, after):
        raise ConflictError(
            f"topic {source.name} has messages before the archive begins, which truncating it would lose",
            hint="archive from the start on, or without truncating",
        )


def before_ms(through: bytes) -> int:
    """The latest time before which every message has an id up to this one."""
    return (int.from_bytes(through, "big") + 1) >> _BITS_BELOW_MS
