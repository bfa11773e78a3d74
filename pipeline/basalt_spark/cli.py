"""`basalt spark`: offline jobs on Spark. Spark is imported when a job runs, and not before.

The command line finds this group by the entry point `jobs` of `basalt.commands`; the package `basalt` never imports it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import click

from basalt.cli.failures import CommandFailure, Usage
from basalt.cli.options import (
    TIMEOUT_MS_DEFAULT,
    Command,
    DurationMs,
    Invocation,
    PositionText,
    Target,
    common_options,
    dry_run_option,
    pass_invocation,
    settings_options,
    stacked,
)
from basalt.cli.output import Column, counted, progress, size_text, time_text
from basalt.cli.root import group
from basalt.errors import BasaltError, InputError
from basalt.settings import HBaseSettings, load_settings
from basalt_engine.snapshot import POINTER_MAX

if TYPE_CHECKING:
    from basalt.api.positions import Position
    from basalt_spark.jobs.audits import TableSource, Writers
    from basalt_spark.jobs.job_run import JobReport
    from basalt_spark.jobs.topic_rows import TopicRows

F = TypeVar("F", bound=Callable[..., Any])

jobs = group("spark", "Audit, archive, copy and count topics with Spark.")


_job_id_option = click.option(
    "--job-id", required=True, metavar="ID",
    help="Id of the job. Repeated with the same id it goes on, or finds that it is done.",
)  # fmt: skip
_store_options = stacked(
    click.option("--hbase", metavar="HOST:PORT", help="Read an HBase through its second Thrift gateway."),
    click.option("--prefix", default="basalt", show_default=True, metavar="NAME", help="Prefix of its tables."),
    click.option("--checkpoint", metavar="DIR", help="Read a backup, or the data directory of a stopped server."),
    click.option("--ask-server", is_flag=True, help="Take the invalid list from the server: a checkpoint has none."),
    settings_options,
)
_range_options = stacked(
    click.option(
        "--from", "start", type=PositionText(), default="start", metavar="SPEC", help="First position that is taken."
    ),
    click.option(
        "--to", "stop", type=PositionText(), default="end", metavar="SPEC", help="First position that is left out."
    ),
)
_master_option = click.option(
    "--master", metavar="MASTER", help="Spark's master. [default: Spark's own settings, else this machine]"
)
_on_spark = stacked(_master_option, common_options, pass_invocation)
_on_spark_or_dry = stacked(_master_option, dry_run_option, common_options, pass_invocation)


@jobs.command("prune-audit", cls=Command)
@_store_options
@click.option(
    "--kept-max", "kept_ms_max", type=DurationMs(), default="7d", show_default=True, metavar="DURATION",
    help="Longest time that a writer without a row may stay on the invalid list after its life.",
)  # fmt: skip
@_on_spark
def prune_audit(
    invocation: Invocation, hbase: str | None, prefix: str, checkpoint: str | None, ask_server: bool, config: Path | None,
    settings: tuple[str, ...], kept_ms_max: int, master: str | None,
) -> int:  # fmt: skip
    """Prove on the stored rows that pruning was safe; exit code 1 when it was not.

    Reads every row of the tables message, payload and cell. No writer that was forgotten may have one left, and none
    may stay on the invalid list for ever without one.
    """
    from basalt_engine.clock import SystemClock
    from basalt_spark.jobs.audits import TABLES, audit

    source = _table_source(hbase, prefix, checkpoint, load_settings(settings, os.environ, config).store.hbase)
    writers = _writers(invocation, source, ask_server)
    spans = source.spans(TABLES)
    now_ms = SystemClock().now_ms()
    with _running("prune-audit", master, "auditing", len(spans)) as (run, advance):
        report = audit(
            source, writers, run, advance, spans=spans, job_id=_made_id(), now_ms=now_ms, kept_ms_max=kept_ms_max
        )
    return _shown(invocation, report, {"findings": (Column("table"), Column("finding"), Column("rows"))})


@jobs.command("invalid-check", cls=Command)
@click.argument("write_pointers", nargs=-1, type=click.IntRange(1, POINTER_MAX), metavar="[WRITE_POINTER]...")
@_store_options
@_on_spark
def invalid_check(
    invocation: Invocation, write_pointers: tuple[int, ...], hbase: str | None, prefix: str, checkpoint: str | None,
    ask_server: bool, config: Path | None, settings: tuple[str, ...], master: str | None,
) -> int:  # fmt: skip
    """Count the rows of invalid writers, and name their ranges: of the writers named, or of all on the invalid list."""
    from basalt_spark.jobs.audits import TABLES, check, only

    source = _table_source(hbase, prefix, checkpoint, load_settings(settings, os.environ, config).store.hbase)
    writers = _writers(invocation, source, ask_server)
    wanted = only(writers, write_pointers)
    spans = source.spans(TABLES)
    with _running("invalid-check", master, "reading", len(spans)) as (run, advance):
        report = check(source, writers, wanted, run, advance, spans=spans, job_id=_made_id())
    columns = [Column("writer"), Column("began_ms", time_text, "began"), *(Column(f"{name}_rows") for name in TABLES)]
    return _shown(invocation, report, {"writers_checked": (*columns, Column("ranges"), Column("first_range"))})


@jobs.command("archive", cls=Command)
@click.argument("topic")
@click.argument("folder")
@_range_options
@_job_id_option
@click.option("--truncate", is_flag=True, help="Then truncate the topic up to the archive's end.")
@_on_spark_or_dry
def archive(
    invocation: Invocation, topic: str, folder: str, start: Position, stop: Position, job_id: str, truncate: bool,
    master: str | None, dry_run: bool,
) -> int:  # fmt: skip
    """Write a topic's messages to Parquet files in FOLDER, with a manifest, and verify them.

    FOLDER is a path, or a URI such as hdfs://… or s3://…, that every executor reaches. The topic keeps its messages,
    unless it is to be truncated: then it must have none before --from, its consumer groups must have acknowledged what
    goes, and nothing is truncated before every file was read again.
    """
    from basalt.api.positions import END
    from basalt_engine.clock import SystemClock
    from basalt_spark.jobs import archive as archives
    from basalt_spark.jobs import archive_folder
    from basalt_spark.jobs.archive import require_acknowledged, require_nothing_before, truncate_behind
    from basalt_spark.jobs.archive_folder import Folder

    archive_folder.checked_job_id(job_id)
    source, to = _topic_rows(invocation, topic), Folder(folder)
    wanted = source.decided(start, stop)
    if truncate:
        require_nothing_before(source, wanted.after)
        require_acknowledged(source, wanted.through)
    parts = source.parts(wanted)
    if dry_run:
        messages = counted(sum(part.messages for part in parts), "message")
        return _would(invocation, f"archive {messages} of {source.name}{', and truncate it' if truncate else ''}")
    now_ms = SystemClock().now_ms()
    with _running("archive", master, "archiving", len(parts)) as (run, advance):
        report = archives.archive(
            source, to, run, advance, wanted=wanted, parts=parts, job_id=job_id, now_ms=now_ms, open_end=stop == END
        )
        known = archive_folder.read_manifest(to, job_id)
        checked = archives.verify(to, known, run, lambda _files: None)
    if checked.faults:
        return _shown(invocation, checked, {})
    if truncate:
        report = report.with_facts(**truncate_behind(source, known))
    days = (Column("day"), Column("messages"), Column("value_bytes", size_text, "size"))
    return _shown(invocation, report, {"days": days})


@jobs.command("verify", cls=Command)
@click.argument("folder")
@click.argument("archive_job")
@click.option("--against-topic", is_flag=True, help="Read the topic again as well, and compare.")
@_on_spark
def verify(invocation: Invocation, folder: str, archive_job: str, against_topic: bool, master: str | None) -> int:
    """Read an archive again and compare it with its manifest; exit code 1 when they differ."""
    from basalt_spark.jobs import archive as archives
    from basalt_spark.jobs import archive_folder
    from basalt_spark.jobs.archive_folder import Folder

    to = Folder(folder)
    known = archive_folder.read_manifest(to, archive_folder.checked_job_id(archive_job))
    source = _topic_rows(invocation, f"{known.namespace}:{known.topic}") if against_topic else None
    with _running("verify", master, "verifying", len(known.files)) as (run, advance):
        report = archives.verify(to, known, run, advance, source=source)
    return _shown(invocation, report, {})


@jobs.command("backfill", cls=Command)
@click.argument("folder")
@click.argument("archive_job")
@click.argument("topic")
@_job_id_option
@_on_spark_or_dry
def backfill(
    invocation: Invocation, folder: str, archive_job: str, topic: str, job_id: str, master: str | None, dry_run: bool
) -> int:
    """Publish an archive's messages to TOPIC, in their order, exactly once.

    They get new ids and publish times; key, headers, value and event time are as they were.
    """
    from basalt_spark.jobs import archive_folder
    from basalt_spark.jobs.archive_folder import Folder
    from basalt_spark.jobs.copies import backfill as run_backfill

    archive_folder.checked_job_id(job_id)
    source = Folder(folder)
    known = archive_folder.read_manifest(source, archive_folder.checked_job_id(archive_job))
    rows = _topic_rows(invocation, topic)
    if dry_run:
        return _would(invocation, f"publish {counted(known.messages, 'message')} to {rows.name}")
    with _running("backfill", master, "publishing", len(known.files)) as (run, advance):
        report = run_backfill(source, known, rows, run, advance, job_id=job_id)
    return _shown(invocation, report, {})


@jobs.command("replay", cls=Command)
@click.argument("source")
@click.argument("target")
@_range_options
@click.option("--to-url", metavar="URL", help="Server of the target. [default: that of the source]")
@_job_id_option
@_on_spark_or_dry
def replay(
    invocation: Invocation, source: str, target: str, start: Position, stop: Position, to_url: str | None, job_id: str,
    master: str | None, dry_run: bool,
) -> int:  # fmt: skip
    """Copy messages of the topic SOURCE to the topic TARGET, in their order, exactly once.

    Repeated it goes on behind what it has copied; --from counts the first time only.
    """
    from basalt_spark.jobs import archive_folder
    from basalt_spark.jobs.copies import replay as run_replay

    archive_folder.checked_job_id(job_id)
    rows, to = _topic_rows(invocation, source), _topic_rows(invocation, target)
    server = to.server._replace(url=to_url) if to_url else to.server
    if (server.url, to.name) == (rows.server.url, rows.name):
        raise Usage("a topic cannot be copied to itself", hint="name another target")
    wanted = rows.decided(start, stop)
    messages = sum(part.messages for part in rows.parts(wanted))
    if dry_run:
        return _would(invocation, f"copy up to {counted(messages, 'message')} of {rows.name} to {to.name}")
    with _running("replay", master, "copying", messages) as (run, advance):
        report = run_replay(rows, to._replace(server=server), run, advance, wanted=wanted, job_id=job_id)
    return _shown(invocation, report, {})


@jobs.command("statistics", cls=Command)
@click.argument("topic")
@_range_options
@_on_spark
def statistics(invocation: Invocation, topic: str, start: Position, stop: Position, master: str | None) -> int:
    """Count a topic's committed messages, day by day."""
    from basalt_spark.jobs.statistics import statistics as run_statistics

    source = _topic_rows(invocation, topic)
    wanted = source.decided(start, stop)
    parts = source.parts(wanted)
    with _running("statistics", master, "counting", len(parts)) as (run, advance):
        report = run_statistics(source, run, advance, wanted=wanted, parts=parts, job_id=_made_id())
    columns = (
        Column("day"), Column("messages"), Column("value_bytes", size_text, "size"),
        Column("largest_bytes", size_text, "largest"), Column("keyed"), Column("with_headers"),
        Column("in_transactions"), Column("event_first_ms", time_text, "events from"),
        Column("event_last_ms", time_text, "events to"),
    )  # fmt: skip
    return _shown(invocation, report, {"by_day": columns})


def _table_source(hbase: str | None, prefix: str, checkpoint: str | None, settings: HBaseSettings) -> TableSource:
    from basalt_spark.jobs.audits import CheckpointRows, HBaseRows

    if hbase is not None and checkpoint is None:
        return HBaseRows(hbase, prefix, settings.kerberos)
    if checkpoint is not None and hbase is None:
        return CheckpointRows(checkpoint)
    raise Usage("name one of --hbase and --checkpoint", hint="a job reads the store itself, not through a server")


def _writers(invocation: Invocation, source: TableSource, ask_server: bool) -> Writers:
    from basalt_spark.jobs.audits import EXPLAINED_MAX, read_writers, with_explained

    explained, status = None, None
    if ask_server:
        # Before the store is read: a writer that is forgotten meanwhile is still on the list.
        with invocation.client() as client:
            explained, status = client.admin.prune_explain(limit=EXPLAINED_MAX), client.admin.prune_status()
    with closing(source.open()) as store:
        writers = read_writers(store)
    if explained is None or status is None or writers.invalid_known:
        return writers
    return with_explained(writers, explained, status.lifetime_ms, invalid=status.invalid)


def _topic_rows(invocation: Invocation, topic: str) -> TopicRows:
    from basalt_spark.connection import Server, topic_name
    from basalt_spark.jobs.topic_rows import TopicRows

    target = invocation.target()
    if target.url.startswith("embedded:"):
        raise Usage(
            "jobs run in several processes, and one alone can have a data directory open",
            hint="start a server with `basalt serve` and name it with --url",
        )
    timeout_ms = invocation.timeout_ms or TIMEOUT_MS_DEFAULT
    server = Server(target.url, target.namespace, timeout_ms=timeout_ms, **_files(target))
    try:
        return TopicRows(server, topic_name(topic, target.namespace, "topic"))
    except InputError as error:
        raise Usage(error.message, hint=error.hint) from None


def _files(target: Target) -> dict[str, str]:
    """The files that say who calls: tasks open them where they run. Nothing that is secret goes to them any other way."""
    from basalt.cli.credentials import kerberos_for, tls_for, token_for

    token, tls = token_for(target.url, target.profile), tls_for(target.url, target.profile)
    by_ticket = token is None and kerberos_for(target.url, target.profile)
    if by_ticket or not isinstance(token, Path | None):
        raise Usage(
            "the tasks of a job use no login and no ticket, and run no token_command",
            hint="give them a token in a file (token_file, BASALT_TOKEN_FILE), or in BASALT_TOKEN of driver and executors",
        )
    found = {"token_file": token, **({} if tls is None else asdict(tls))}
    return {name: str(path) for name, path in found.items() if path is not None}


@contextmanager
def _running(
    name: str, master: str | None, description: str, total: int
) -> Iterator[tuple[Any, Callable[[int], None]]]:
    """Open the Spark session and the progress bar of a job; report the failure of a task in one line."""
    from basalt_spark.jobs.job_run import Runner, spark_session

    with spark_session(name, master) as spark, progress(description, total) as advance:
        try:
            yield Runner(spark), advance
        except (BasaltError, click.ClickException):
            raise
        except Exception as error:
            reason = _task_failure(error)
            if reason is None:
                raise
            raise CommandFailure(f"a task of the job failed: {reason}", hint="run it again with the same id") from error


def _task_failure(error: Exception) -> str | None:
    """The error of a failed Python worker, out of the text that Spark makes of it.

    None when Spark did not raise this.
    """
    if not type(error).__module__.startswith(("py4j", "pyspark")):
        return None
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line.startswith(("basalt", "basalt_engine")) and ": " in line]
    return told[-1] if told else next((line for line in lines if line), type(error).__name__)


def _made_id() -> str:
    return uuid4().hex


def _would(invocation: Invocation, what: str) -> int:
    invocation.out.done(f"would {what}", {"dry_run": True, "would": what})
    return 0


_TEXTS = {"value_bytes": size_text, "file_bytes": size_text, "mean_bytes": size_text, "largest_bytes": size_text}


def _shown(invocation: Invocation, report: JobReport, tables: dict[str, tuple[Column, ...]]) -> int:
    """Write the report, with faults on standard error for people; return the command's exit code."""
    if not invocation.out.for_people:
        invocation.out.record(report.row())
        return report.exit_code
    facts = {"job": report.job, "job_id": report.job_id, "outcome": report.outcome, **report.facts}
    invocation.out.record(facts, [Column(name, _text(name)) for name in facts])
    for name, columns in tables.items():
        if report.tables.get(name):
            invocation.out.line("")
            invocation.out.rows(columns, report.tables[name])
    for fault in report.faults:
        click.echo(f"basalt: {fault}", err=True)
    return report.exit_code


def _text(name: str) -> Callable[[object], str]:
    if name.endswith("_ms"):
        return time_text
    return _TEXTS.get(name, Column(name).text)
