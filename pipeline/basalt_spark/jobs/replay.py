"""Copies a range of one topic to another, in its order, exactly once.

It goes in steps, a transaction each. The version of a step is the place in the source that it ends at, so the target's
session knows how far the job has come, in the same commit as the messages: a job that is repeated goes on from there, and
nothing else need be kept. A step ends at the end of a publish, for a version has room for its time and sequence only.
"""

from __future__ import annotations

from typing import NamedTuple

from basalt.errors import ConflictError, InputError
from basalt_spark.checkpoint import instance_of
from basalt_spark.jobs.publishing import (
    COLUMNS,
    Published,
    Target,
    Work,
    ledger_of,
    new_run,
    publish,
    session_of,
    version_of,
)
from basalt_spark.jobs.report import JobReport
from basalt_spark.jobs.running import Advance, Runner
from basalt_spark.jobs.server_rows import ID_BYTES, TopicRange, TopicRows

JOB = "replay"
STEP_MESSAGES = 500_000  # in one transaction, about
STEP_BYTES = 1 << 30
PARTS_PER_STEP = 16  # tasks of a step
SEQUENCE_BITS = 16
POSITION_BYTES = 10  # of an id: publish time and sequence


class Step(NamedTuple):
    """A part of the range that one transaction copies: after < id <= through."""

    after: bytes | None
    through: bytes


def version_at(through: bytes) -> int:
    """The version of a step that ends at this place: its publish time and sequence as one number, which rises with them."""
    publish_ms, sequence = int.from_bytes(through[:8], "big"), int.from_bytes(through[8:POSITION_BYTES], "big")
    return publish_ms << SEQUENCE_BITS | sequence


def place_of(version: int) -> bytes:
    """The place that a step of this version ends at: behind every message of that publish time and sequence."""
    publish_ms, sequence = version >> SEQUENCE_BITS, version & ((1 << SEQUENCE_BITS) - 1)
    return publish_ms.to_bytes(8, "big") + sequence.to_bytes(2, "big") + b"\xff" * (ID_BYTES - POSITION_BYTES)


def rounded(id_: bytes) -> bytes:
    """The place behind every message of this one's publish time and sequence."""
    return place_of(version_at(id_))


def next_step(source: TopicRows, wanted: TopicRange, after: bytes | None) -> Step | None:
    """The next part of the range to copy; None when there is none left."""
    stop = wanted.through
    while stop is not None and (after is None or after < stop):
        found = source.topic.advance(after, through=stop, messages_max=STEP_MESSAGES, bytes_max=STEP_BYTES)
        if found.generation != wanted.generation:
            raise ConflictError(
                f"topic {source.name} is of generation {found.generation} now, the range of {wanted.generation}",
                hint="it was deleted and created again: start another job",
            )
        if found.messages and found.through is not None:
            return Step(after, min(rounded(found.through), rounded(stop)))
        if found.at_end or found.through is None:
            return None
        after = found.through
    return None


def replay(
    source: TopicRows, target: Target, run: Runner, advance: Advance, *, wanted: TopicRange, job_id: str
) -> JobReport:
    """Copy the range, or what of it lies behind the place that the job has come to; `advance` counts messages."""
    _require_whole_publishes(source, wanted)
    session, run_id = session_of(JOB, job_id), new_run()
    installation = instance_of(source.client)
    ledger = ledger_of(JOB, installation, str(source.name), f"generation {wanted.generation} to {target.name}")
    version = version_of(target.server, session, ledger)
    # Where the range begins counts once: as a time that is counted from now it would leave out what came in between.
    begin = after = wanted.after if version is None else place_of(version)
    done: list[Published] = []
    while step := next_step(source, wanted, after):
        done.append(_copy(source, target, step, wanted, Work(session, run_id, version_at(step.through), ledger), run))
        advance(done[-1].messages)
        after = step.through
    facts = {
        "source": str(source.name),
        "generation": wanted.generation,
        "after": _text(begin),
        "through": None if wanted.through is None else wanted.through.hex(),
        "topic": str(target.name),
        "messages": sum(each.messages for each in done),
        "value_bytes": sum(each.value_bytes for each in done),
        "transactions": len(done),
        "went_on": version is not None,
    }
    return JobReport(JOB, job_id, facts)


def _require_whole_publishes(source: TopicRows, wanted: TopicRange) -> None:
    """A range that ended within a publish would be taken for one that holds all of it, and the rest never be copied."""
    if wanted.through is not None and source.has_messages(wanted.through, rounded(wanted.through)):
        raise InputError(
            f"the range of topic {source.name} ends within one publish, at {wanted.through.hex()}: a copy cannot go on there",
            field="to",
            hint="end it at a time, or at the first message of a publish",
        )


def _copy(source: TopicRows, target: Target, step: Step, wanted: TopicRange, work: Work, run: Runner) -> Published:
    end = step.through if wanted.through is None else min(step.through, wanted.through)
    parts = source.parts(TopicRange(wanted.generation, step.after, end), PARTS_PER_STEP)
    generation = wanted.generation
    return publish(
        target, work, parts, lambda part: source.batches(generation, part, COLUMNS), run, lambda _parts: None
    )


def _text(id_: bytes | None) -> str:
    return "start" if id_ is None else id_.hex()
