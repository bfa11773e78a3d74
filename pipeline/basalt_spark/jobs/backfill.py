"""Publishes an archive to a topic again, in its order, exactly once.

Messages get new ids and publish times; keys, headers, values and event times are as they were. The files are taken in
groups, a transaction each, which the manifest alone decides: so a job that is repeated goes on with the group that it
came to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from basalt.errors import CorruptionError
from basalt_spark.jobs.archive import read_file
from basalt_spark.jobs.folder import Folder
from basalt_spark.jobs.manifest import ArchiveFile, Manifest
from basalt_spark.jobs.publishing import Published, Target, Work, ledger_of, new_run, publish, session_of
from basalt_spark.jobs.report import JobReport
from basalt_spark.jobs.running import Advance, Runner

JOB = "backfill"
GROUP_MESSAGES = 1_000_000  # in one transaction, about. Part of what a job id means: another number needs another JOB


def groups(manifest: Manifest) -> list[Sequence[ArchiveFile]]:
    """The archive's files in order, as many to a group as hold `GROUP_MESSAGES`, and at least one."""
    found: list[list[ArchiveFile]] = []
    messages = 0
    for file in manifest.files:
        if not found or messages + file.messages > GROUP_MESSAGES:
            found.append([])
            messages = 0
        found[-1].append(file)
        messages += file.messages
    return list(found)


def backfill(
    folder: Folder, manifest: Manifest, target: Target, run: Runner, advance: Advance, *, job_id: str
) -> JobReport:
    """Publish the archive's messages; `advance` counts files."""
    run_id, ledger = new_run(), ledger_of(JOB, manifest.job_id, manifest.digest, f"to {target.name}")
    done: list[Published] = []
    for version, files in enumerate(groups(manifest), start=1):
        work = Work(session_of(JOB, job_id), run_id, version, ledger)
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
    return JobReport(JOB, job_id, facts)


def checked_batches(folder: Folder, file: ArchiveFile) -> Iterator[Any]:
    """The messages of a file. `CorruptionError` before the first of them when it is not as it was written."""
    if folder.checksum(file.path) != (file.bytes, file.sha256):
        raise CorruptionError(
            f"{folder}/{file.path} is not as it was written", hint="`basalt jobs verify` tells what else is wrong"
        )
    yield from read_file(folder, file)
