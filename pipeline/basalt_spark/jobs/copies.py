"""Jobs that copy messages to a topic in order, exactly once: `backfill` from an archive, `replay` from another topic.

Messages get new ids and publish times; keys, headers, values and event times are kept. The work goes in portions, a named
transaction each, to which every task stores its share under a segment of its own. The driver commits the segments of
those attempts that Spark answered, in the order of the parts; the rows of other attempts are removed. The job's session
remembers the committed version in the same commit. So a repeated job goes on behind what it has done, and a job that is
started a second time while the first one still runs takes over from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import uuid4

from basalt.errors import ConflictError, CorruptionError, InputError, NotFoundError
from basalt_spark.connection import Server, client_of, instance_of
from basalt_spark.jobs.archive import read_file
from basalt_spark.jobs.archive_folder import ArchiveFile, Folder, Manifest
from basalt_spark.jobs.job_run import Advance, JobReport, Runner
from basalt_spark.jobs.topic_rows import RangePart, TopicRange, TopicRows
from basalt_spark.offset import ID_BYTES, hex_of

if TYPE_CHECKING:  # Spark is imported when a job runs, and not before
    from basalt_spark.sink.commit import SinkWork

BACKFILL = "backfill"
# In one transaction, about. The number is part of a backfill's id: change it only with the job's name.
GROUP_MESSAGES = 1_000_000
REPLAY = "replay"
PORTION_MESSAGES = 500_000  # in one transaction, about
PORTION_BYTES = 1 << 30
PARTS_PER_PORTION = 16  # tasks of a portion
SEQUENCE_BITS = 16
POSITION_BYTES = 10  # of an id: publish time and sequence
COUNTER_OWNER_CHARS_MAX = 255  # of a counter owner on a server

Part = TypeVar("Part")


class Stored(NamedTuple):
    """The messages that one task stored; without a segment none."""

    write_pointer: int | None
    messages: int
    value_bytes: int


class Published(NamedTuple):
    """The messages of one version; `before`: it was committed by an earlier run."""

    messages: int
    value_bytes: int
    before: bool


def ledger_of(job: str, *what: str) -> str:
    """The name of what a session's versions count; a digest if the names are too long to be kept."""
    name = " ".join((job, *what))
    return name if len(name) <= COUNTER_OWNER_CHARS_MAX else f"{job} sha256 {sha256(name.encode()).hexdigest()}"


def version_of(server: Server, session: str, counter_owner: str) -> int | None:
    """The newest version that the session has committed. `InputError` when it counts something else."""
    try:
        info = client_of(server).sessions.get(session)
    except NotFoundError:
        return None
    if info.version is not None and info.counter_owner != counter_owner:
        raise InputError(
            f"session {session} of this job id was written by {info.counter_owner!r}, and this is {counter_owner!r}",
            field="job-id",
            hint="use another id",
        )
    return info.version


def publish(
    target: TopicRows,
    work: SinkWork,
    parts: Sequence[Part],
    batches: Callable[[Part], Iterable[Any]],
    run: Runner,
    advance: Advance,
) -> Published:
    """Publish the batches of each part, in the order of the parts: all or nothing, and once."""
    from basalt_spark.sink import commit as sink_commit

    opened = sink_commit.named(target.client, work)
    if opened.committed_before:
        advance(len(parts))
        return Published(0, 0, before=True)
    try:
        stored = run(parts, lambda part: store_part(target, work, batches(part)), advance)
    except BaseException:
        # If another run has taken over, nothing is left to abort; in any case raise the first error.
        sink_commit.abort_transaction(target.client, opened.id)
        raise
    segments = [each.write_pointer for each in stored if each.write_pointer is not None]
    sink_commit.commit_segments(target.client, opened.id, segments)
    return Published(sum(each.messages for each in stored), sum(each.value_bytes for each in stored), before=False)


def store_part(target: TopicRows, work: SinkWork, batches: Iterable[Any]) -> Stored:
    """Store one task's messages under a segment of its own, begun at the first of them."""
    import pyarrow.compute as pc

    from basalt_spark.options import MESSAGE_COLUMNS, SinkColumns
    from basalt_spark.sink import commit as sink_commit
    from basalt_spark.sink.segment_writer import SegmentWriter, storing

    value_bytes = 0

    def counted() -> Iterator[Any]:
        nonlocal value_bytes
        for batch in batches:
            value_bytes += pc.sum(pc.binary_length(batch.column("value"))).as_py() or 0
            yield batch

    store = storing(target.client, target.name, "")
    writer = SegmentWriter(SinkColumns(MESSAGE_COLUMNS), lambda: sink_commit.join_segment(target.client, work), store)
    found = writer.write(counted(), 0, work)
    return Stored(None if found.segment is None else found.segment.write_pointer, found.rows, value_bytes)


def groups(manifest: Manifest) -> list[Sequence[ArchiveFile]]:
    """The archive's files in order, as many to a group as hold `GROUP_MESSAGES`, and at least one.

    The manifest alone decides them, so a repeated backfill finds the group that it came to.
    """
    filled: list[list[ArchiveFile]] = []
    messages = 0
    for file in manifest.files:
        if not filled or messages + file.messages > GROUP_MESSAGES:
            filled.append([])
            messages = 0
        filled[-1].append(file)
        messages += file.messages
    return list(filled)


def backfill(
    folder: Folder, manifest: Manifest, target: TopicRows, run: Runner, advance: Advance, *, job_id: str
) -> JobReport:
    """Publish the archive's messages; `advance` counts files."""
    from basalt_spark.sink.commit import SinkWork

    run_id, counter_owner = uuid4().hex, ledger_of(BACKFILL, manifest.job_id, manifest.digest, f"to {target.name}")
    done: list[Published] = []
    for version, files in enumerate(groups(manifest), start=1):
        work = SinkWork(f"jobs-{BACKFILL}-{job_id}", run_id, version, counter_owner)
        done.append(publish(target, work, files, lambda file: checked_batches(folder, file), run, advance))
    facts = {
        "archive": f"{folder} {manifest.job_id}",
        "topic": str(target.name),
        "messages": manifest.messages,
        "value_bytes": manifest.value_bytes,
        "published_now": sum(each.messages for each in done),
        "transactions": len(done),
        "done_before": sum(each.before for each in done),
    }
    return JobReport(BACKFILL, job_id, facts)


def checked_batches(folder: Folder, file: ArchiveFile) -> Iterator[Any]:
    """The messages of a file. `CorruptionError` before the first of them when the file was changed."""
    if folder.checksum(file.path) != (file.bytes, file.sha256):
        raise CorruptionError(
            f"{folder}/{file.path} is not as it was written", hint="`basalt spark verify` tells what else is wrong"
        )
    yield from read_file(folder, file)


class Portion(NamedTuple):
    """The part of the range that one transaction of a replay copies: after < id <= through."""

    after: bytes | None
    through: bytes


def version_at(through: bytes) -> int:
    """The version of a portion that ends at this place: publish time and sequence as one number, which rises with them.

    So the target's session knows how far the job has come. A portion ends at the end of a publish, because a version has
    room for no more of an id.
    """
    publish_ms, sequence = int.from_bytes(through[:8], "big"), int.from_bytes(through[8:POSITION_BYTES], "big")
    return publish_ms << SEQUENCE_BITS | sequence


def place_of(version: int) -> bytes:
    """The place that a portion of this version ends at: behind every message of that publish time and sequence."""
    publish_ms, sequence = version >> SEQUENCE_BITS, version & ((1 << SEQUENCE_BITS) - 1)
    return publish_ms.to_bytes(8, "big") + sequence.to_bytes(2, "big") + b"\xff" * (ID_BYTES - POSITION_BYTES)


def rounded(id_: bytes) -> bytes:
    """The place behind every message of this one's publish time and sequence."""
    return place_of(version_at(id_))


def next_portion(source: TopicRows, wanted: TopicRange, after: bytes | None) -> Portion | None:
    """The next part of the range to copy; None when none is left."""
    stop = wanted.through
    while stop is not None and (after is None or after < stop):
        advance = source.topic.advance(after, through=stop, messages_max=PORTION_MESSAGES, bytes_max=PORTION_BYTES)
        if advance.generation != wanted.generation:
            raise ConflictError(
                f"topic {source.name} is of generation {advance.generation} now, the range of {wanted.generation}",
                hint="it was deleted and created again: start another job",
            )
        if advance.messages and advance.through is not None:
            return Portion(after, min(rounded(advance.through), rounded(stop)))
        if advance.at_end or advance.through is None:
            return None
        after = advance.through
    return None


def replay(
    source: TopicRows, target: TopicRows, run: Runner, advance: Advance, *, wanted: TopicRange, job_id: str
) -> JobReport:
    """Copy the range, or the part of it behind the place that the job has come to; `advance` counts messages."""
    from basalt_spark.options import MESSAGE_COLUMNS
    from basalt_spark.sink.commit import SinkWork

    _require_whole_publishes(source, wanted)
    session, run_id = f"jobs-{REPLAY}-{job_id}", uuid4().hex
    installation = instance_of(source.client)
    counter_owner = ledger_of(
        REPLAY, installation, str(source.name), f"generation {wanted.generation} to {target.name}"
    )
    version = version_of(target.server, session, counter_owner)
    # The start of the range counts the first time only: a time that is counted from now would skip messages when
    # repeated.
    begin = after = wanted.after if version is None else place_of(version)

    def read(part: RangePart) -> Iterator[Any]:
        return source.batches(wanted.generation, part, MESSAGE_COLUMNS)

    def copy(portion: Portion, work: SinkWork) -> Published:
        end = portion.through if wanted.through is None else min(portion.through, wanted.through)
        parts = source.parts(TopicRange(wanted.generation, portion.after, end), PARTS_PER_PORTION)
        return publish(target, work, parts, read, run, lambda _parts: None)

    done: list[Published] = []
    while portion := next_portion(source, wanted, after):
        done.append(copy(portion, SinkWork(session, run_id, version_at(portion.through), counter_owner)))
        advance(done[-1].messages)
        after = portion.through
    facts = {
        "source": str(source.name),
        "generation": wanted.generation,
        "after": hex_of(begin) or "start",
        "through": hex_of(wanted.through),
        "topic": str(target.name),
        "messages": sum(each.messages for each in done),
        "value_bytes": sum(each.value_bytes for each in done),
        "transactions": len(done),
        "went_on": version is not None,
    }
    return JobReport(REPLAY, job_id, facts)


def _require_whole_publishes(source: TopicRows, wanted: TopicRange) -> None:
    """Refuse a range that ends within a publish: a version cannot say so, and the rest would never be copied."""
    if wanted.through is not None and source.has_messages(wanted.through, rounded(wanted.through)):
        raise InputError(
            f"the range of topic {source.name} ends within one publish, at {wanted.through.hex()}:"
            " a copy cannot go on there",
            field="to",
            hint="end it at a time, or at the first message of a publish",
        )
