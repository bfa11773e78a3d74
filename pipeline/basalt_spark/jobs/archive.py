"""The archive of a time range of a topic: Parquet files by topic, generation and day, and a manifest of their contents.

Each task reads one stretch of the range through the server and writes its files; the driver writes the manifest when
all have ended. A job that has a manifest is done: running it again only checks the manifest. An archive that was
verified may take the place of the messages: then the topic is truncated up to the archive's end. Format:
docs/formats/archive.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from basalt.errors import ConflictError, InputError
from basalt_spark.jobs.archive_folder import (
    ArchiveFile,
    Digest,
    Folder,
    Manifest,
    Place,
    checked_job_id,
    columns_of,
    digest_of,
    manifest_of,
    manifest_path,
    read_manifest,
    total,
)
from basalt_spark.jobs.job_run import Advance, JobReport, Runner
from basalt_spark.jobs.topic_rows import COLUMNS, RangePart, TopicRange, TopicRows, by_day
from basalt_spark.offset import ID_BYTES, hex_of

ROW_GROUP_BYTES = 16 << 20  # the rows that a task holds in memory, and then a row group of the file
ROW_GROUP_ROWS = 131_072

_BITS_BELOW_MS = 8 * (ID_BYTES - 8)  # an id begins with eight bytes of milliseconds


def archive(
    source: TopicRows,
    folder: Folder,
    run: Runner,
    advance: Advance,
    *,
    wanted: TopicRange,
    parts: Sequence[RangePart],
    job_id: str,
    now_ms: int,
    open_end: bool = False,
) -> JobReport:
    """Write the archive of a range, unless the job did so before.

    With `open_end` the range was to end with the topic, and a done job stays done when messages have come since.
    `InputError` when it was done for another range.
    """
    checked_job_id(job_id)
    place = Place(*source.name, wanted.generation)
    path = manifest_path(job_id)
    if folder.exists(path):
        return _done_before(source, folder, wanted, job_id, open_end)
    folder.remove_all("data", f"{job_id}.")  # left by a crash

    def write(part: RangePart) -> list[ArchiveFile]:
        return write_files(source.batches(place.generation, part), folder, place, job_id)

    files = tuple(file for one in run(parts, write, advance) for file in one)
    made = manifest_of(place, job_id, now_ms, hex_of(wanted.after), hex_of(wanted.through), files)
    folder.write(path, made.encode())
    return _reported(folder, made, done_before=False)


def write_files(batches: Iterable[Any], folder: Folder, place: Place, job_id: str) -> list[ArchiveFile]:
    """Write record batches that are in the topic's order: a file for each day."""
    pieces = (piece for batch in batches for piece in by_day(batch.select(list(COLUMNS))))
    days = groupby(pieces, key=itemgetter(0))
    return [_write_day(map(itemgetter(1), of_day), day, folder, place, job_id) for day, of_day in days]


def _write_day(batches: Iterator[Any], day: str, folder: Folder, place: Place, job_id: str) -> ArchiveFile:
    """Write one Parquet file; on an error none appears."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    batch = next(batches)
    first = batch.column("id")[0].as_py().hex()
    path, digest, last = place.file(day, job_id, first), Digest(), first
    with folder.writing(path) as sink:
        # On an error the writer is closed first, and then the file is dropped.
        with pq.ParquetWriter(sink, batch.schema, compression="zstd", store_schema=True) as writer:
            for group in _row_groups(chain((batch,), batches)):
                digest += _digest(group)
                table = pa.Table.from_batches(group)
                writer.write_table(table, row_group_size=table.num_rows)
                last = table.column("id")[-1].as_py().hex()
        written = sink.written
    return ArchiveFile(
        path, day, written.bytes, written.sha256, digest.messages, digest.value_bytes, first, last,
        digest.digest, digest.content_digest,
    )  # fmt: skip


def _row_groups(batches: Iterable[Any]) -> Iterator[list[Any]]:
    """Put batches together until they make a row group; memory holds one."""
    group: list[Any] = []
    size_bytes = rows = 0
    for batch in batches:
        group.append(batch)
        size_bytes, rows = size_bytes + batch.nbytes, rows + batch.num_rows
        if size_bytes >= ROW_GROUP_BYTES or rows >= ROW_GROUP_ROWS:
            yield group
            group, size_bytes, rows = [], 0, 0
    if group:
        yield group


def read_file(folder: Folder, file: ArchiveFile) -> Iterable[Any]:
    """The record batches of an archive's file, in the topic's order."""
    import pyarrow.parquet as pq

    with folder.reading(file.path) as source:
        yield from pq.ParquetFile(source).iter_batches(batch_size=8_192)


def verify(
    folder: Folder, manifest: Manifest, run: Runner, advance: Advance, *, source: TopicRows | None = None
) -> JobReport:
    """Read every file again and compare it with the manifest; with `source`, the topic's messages as well."""
    by_file = run(manifest.files, lambda file: list(faults_of(folder, file)), advance)
    faults = [fault for one in by_file for fault in one]
    if source is not None:
        faults += _topic_faults(manifest, source, run)
    facts = {**_facts(folder, manifest), "compared_with_topic": source is not None}
    return JobReport("verify", manifest.job_id, facts, faults)


def faults_of(folder: Folder, file: ArchiveFile) -> Iterable[str]:
    """Sentences on what is wrong with a file."""
    if not folder.exists(file.path):
        yield f"{file.path} is missing"
        return
    found = folder.checksum(file.path)
    if found != (file.bytes, file.sha256):
        yield f"{file.path} is {found.bytes:,} bytes with checksum {found.sha256}, not as it was written"
        return
    if _digest(read_file(folder, file)) != file.digests:
        yield f"{file.path} holds other messages than the manifest says"


def _topic_faults(manifest: Manifest, source: TopicRows, run: Runner) -> list[str]:
    """Compare the topic's present messages with the archive: both are of one range, so they must be equal."""
    now = source.topic.stable_end().generation
    if now != manifest.generation:
        return [f"topic {source.name} is of generation {now} now, the archive of {manifest.generation}"]
    if manifest.through is None:
        return []
    after = None if manifest.after is None else bytes.fromhex(manifest.after)
    parts = source.parts(TopicRange(now, after, bytes.fromhex(manifest.through)))
    found = total(run(parts, lambda part: _digest(source.batches(now, part)), lambda _parts: None))
    if found == manifest.digests:
        return []
    fewer = manifest.messages - found.messages
    what = f"{fewer:,} messages are gone, as by expiry" if fewer > 0 else "it has other messages than the archive"
    return [f"topic {source.name} differs from the archive: {what}"]


def _digest(batches: Iterable[Any]) -> Digest:
    return total(digest_of(columns_of(batch)) for batch in batches)


def _done_before(source: TopicRows, folder: Folder, wanted: TopicRange, job_id: str, open_end: bool) -> JobReport:
    manifest, fault = read_manifest(folder, job_id), None
    if (manifest.namespace, manifest.topic) != tuple(source.name):
        fault = f"topic {manifest.namespace}:{manifest.topic}, not {source.name}"
    elif manifest.generation != wanted.generation or not _same_messages(source, manifest, wanted, open_end):
        fault = (
            f"topic {source.name}, generation {manifest.generation}, after {manifest.after or 'its start'}"
            f" through {manifest.through or 'nothing'}, which is another range"
        )
    if fault is not None:
        raise InputError(f"job {job_id} archived {fault}", field="job-id", hint="use another id")
    return _reported(folder, manifest, done_before=True)


def _same_messages(source: TopicRows, manifest: Manifest, wanted: TopicRange, open_end: bool) -> bool:
    """True when no message lies between the ends of both ranges. The ends may differ, because a user asks for times."""
    afters = [manifest.after or "", hex_of(wanted.after) or ""]
    throughs = [manifest.through or afters[0], hex_of(wanted.through) or afters[1]]
    between = [sorted(afters)] if open_end and throughs[0] <= throughs[1] else [sorted(afters), sorted(throughs)]
    return not any(
        source.has_messages(bytes.fromhex(low) or None, bytes.fromhex(high)) for low, high in between if high
    )


def _reported(folder: Folder, made: Manifest, *, done_before: bool) -> JobReport:
    days: dict[str, Digest] = {}
    for file in made.files:
        days[file.day] = days.get(file.day, Digest()) + file.digests
    rows = [{"day": day, "messages": found.messages, "value_bytes": found.value_bytes} for day, found in days.items()]
    return JobReport("archive", made.job_id, {**_facts(folder, made), "done_before": done_before}, (), {"days": rows})


def _facts(folder: Folder, made: Manifest) -> dict[str, Any]:
    return {
        "topic": f"{made.namespace}:{made.topic}",
        "generation": made.generation,
        "after": made.after,
        "through": made.through,
        "messages": made.messages,
        "value_bytes": made.value_bytes,
        "files": len(made.files),
        "file_bytes": sum(file.bytes for file in made.files),
        "manifest": f"{folder}/{manifest_path(made.job_id)}",
    }


def truncate_behind(source: TopicRows, archived: Manifest) -> dict[str, Any]:
    """Truncate the topic up to the end of an archive that was verified, and give the facts of it for the report.

    Messages of the archive's last millisecond stay if more may follow in it.
    `ConflictError`: the topic has messages before the archive's first, or a group has not acknowledged some of them.
    `GenerationError`: it was created again since.
    """
    if archived.through is None:
        return {"truncated": False, "truncated_before_ms": None}
    require_nothing_before(source, None if archived.after is None else bytes.fromhex(archived.after))
    require_acknowledged(source, bytes.fromhex(archived.through))
    done = source.client.topics.truncate(
        source.name.topic, before_ms(bytes.fromhex(archived.through)), namespace=source.name.namespace,
        generation=archived.generation, reason=f"archived by job {archived.job_id}", by="basalt spark archive",
    )  # fmt: skip
    return {"truncated": done.changed, "truncated_before_ms": done.truncated_before_ms}


def require_nothing_before(source: TopicRows, after: bytes | None) -> None:
    """Raise `ConflictError` when the topic has messages up to this id: an archive that begins behind it lacks them."""
    if after is not None and source.has_messages(None, after):
        raise ConflictError(
            f"topic {source.name} has messages before the archive begins, which truncating it would lose",
            hint="archive from the start on, or without truncating",
        )


def require_acknowledged(source: TopicRows, through: bytes | None) -> None:
    """Raise `ConflictError` when a group has yet to acknowledge what truncating up to this id would take from it."""
    if through is None:
        return
    for group in source.topic.groups():
        left = source.topic.group(group.name).messages(limit=1)
        if left and int.from_bytes(left[0].id, "big") >> _BITS_BELOW_MS < before_ms(through):
            raise ConflictError(
                f"group {group.name} has not acknowledged message {left[0].id.hex()} of topic {source.name},"
                " which truncating it would take from the group",
                hint="wait for the group, seek or delete it, or archive without truncating",
            )


def before_ms(through: bytes) -> int:
    """The latest time before which every message has an id up to this one."""
    return (int.from_bytes(through, "big") + 1) >> _BITS_BELOW_MS
