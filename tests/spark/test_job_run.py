"""The offline jobs on a real Spark and a real server: there and back again, twice, and past a task that fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from basalt.client import RecordIn
from basalt_spark.connection import QualifiedTopic, Server
from basalt_spark.jobs import archive_folder, job_run
from basalt_spark.jobs.archive import archive
from basalt_spark.jobs.archive_folder import Folder
from basalt_spark.jobs.copies import backfill
from basalt_spark.jobs.job_run import Runner
from basalt_spark.jobs.topic_rows import TopicRows
from tests.control.cli.conftest import Run, run
from tests.pipeline.test_archive import files_in

__all__ = ["run"]

pytestmark = pytest.mark.spark

MESSAGES = 60


class FailsOnce:
    """A runner whose every task fails at its first attempt, after it has done its work."""

    def __init__(self, spark: Any) -> None:
        self._runner = Runner(spark)

    def __call__(self, parts, work, advance):
        return self._runner(parts, failing_at_first(work), advance)


def failing_at_first(work):
    def attempt(part):
        from pyspark import TaskContext

        made = work(part)
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt is lost")
        return made

    return attempt


@pytest.fixture
def rows(basalt, basalt_server, topic) -> TopicRows:
    """A topic with messages of every kind: plain, with all extras, of a transaction, rolled back."""
    basalt.topics.create(topic)
    records = [
        RecordIn(
            b"value %d" % number,
            key=b"key %d" % number if number % 2 else None,
            headers=(("h", b"%d" % number),) if number % 3 else (),
            event_time_ms=number if number % 4 else None,
        )
        for number in range(MESSAGES - 10)
    ]
    basalt.topic(topic).publish_records(records)
    with basalt.transaction() as tx:
        tx.publish(topic, [b"of a transaction %d" % number for number in range(5)])
    lost = basalt.transactions.begin()
    basalt.topic(topic).publish(b"never seen", write_pointer=lost.write_pointer)
    basalt.transactions.abort(lost)
    with basalt.transaction() as tx:
        tx.store(topic, [b"stored %d" % number for number in range(5)])
    return TopicRows(Server(basalt_server.url), QualifiedTopic("default", topic))


def contents(rows: TopicRows) -> list[dict[str, Any]]:
    """The parts of each message that its publisher gave, in order."""
    wanted = rows.decided()
    columns = ("key", "value", "headers", "event_time")
    parts = rows.parts(wanted, 1)
    return [
        row for part in parts for batch in rows.batches(wanted.generation, part, columns) for row in batch.to_pylist()
    ]


def test_attempts_that_are_lost_leave_nothing_in_files_or_topics(spark, basalt, rows, tmp_path: Path):
    folder, told = Folder(str(tmp_path / "archive")), list[int]()
    wanted = rows.decided()
    archive(
        rows,
        folder,
        FailsOnce(spark),
        told.append,
        wanted=wanted,
        parts=rows.parts(wanted, 3),
        job_id="first",
        now_ms=1,
    )
    known = archive_folder.read_manifest(folder, "first")
    assert (known.messages, sum(told)) == (MESSAGES, 3)
    assert files_in(folder, "data") == sorted(file.path for file in known.files)
    back = rows._replace(name=QualifiedTopic("default", f"{rows.name.topic}-back"))
    basalt.topics.create(back.name.topic)
    filled = backfill(folder, known, back, FailsOnce(spark), told.append, job_id=back.name.topic)
    assert filled.facts["published_now"] == MESSAGES
    assert contents(back) == contents(rows)


def test_every_job_of_the_command_line_does_its_work_and_once(spark, run: Run, basalt, rows, tmp_path: Path):
    name, folder = rows.name.topic, str(tmp_path / "archive")

    def did(*arguments: str) -> dict[str, Any]:
        ran = run("spark", *arguments, "--url", rows.server.url, "-o", "json")
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    basalt.topics.create(f"{name}-back")
    basalt.topics.create(f"{name}-copy")
    assert did("archive", name, folder, "--job-id", "j", "--dry-run")["would"].startswith("archive 60 messages")
    assert not Path(folder).exists()
    for done_before in (False, True):
        assert did("archive", name, folder, "--job-id", "j")["done_before"] is done_before
        filled = did("backfill", folder, "j", f"{name}-back", "--job-id", f"{name}-back")
        assert filled["published_now"] == (0 if done_before else MESSAGES)
        copied = did("replay", name, f"{name}-copy", "--job-id", f"{name}-copy")
        assert copied["messages"] == (0 if done_before else MESSAGES)
    assert did("verify", folder, "j", "--against-topic")["outcome"] == "ok"
    for other in ("back", "copy"):
        assert contents(rows._replace(name=QualifiedTopic("default", f"{name}-{other}"))) == contents(rows)
    counted = did("statistics", name)
    assert (counted["messages"], counted["in_transactions"], counted["keyed"]) == (MESSAGES, 10, 25)
    assert sum(day["messages"] for day in counted["by_day"]) == MESSAGES
    late = f"@{basalt.topic(name).stats().newest_ms}"
    refused = run(
        "spark", "archive", name, folder, "--job-id", "late", "--from", late, "--truncate", "--url", rows.server.url
    )
    assert (refused.code, "before the archive begins" in refused.err) == (4, True), refused.err
    cut = did("archive", name, folder, "--job-id", "cut", "--truncate")
    assert (cut["truncated"], cut["truncated_before_ms"], cut["messages"]) == (True, int(late[1:]), MESSAGES)
    assert 0 < len(contents(rows)) < MESSAGES


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_more_parts_than_tasks_are_each_done_once_and_told_in_order(spark, monkeypatch, count):
    monkeypatch.setattr(job_run, "PARTS_MAX", 2)
    ended: list[int] = []
    made = Runner(spark)(range(count), lambda part: [part, part * part], ended.append)
    assert made == [[part, part * part] for part in range(count)]
    assert sum(ended) == count


def test_executors_audit_a_backup_side_by_side(spark, run: Run, basalt, rows):
    copy = basalt.admin.backup("copy").path
    ran = run("spark", "prune-audit", "--checkpoint", copy, "--ask-server", "--url", rows.server.url, "-o", "json")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert (report["ranges"], report["faults"], report["kept_too_long"]) == (48, [], 0)
    assert {line["finding"] for line in report["findings"]} >= {"no transaction", "committed"}
    people = run("spark", "invalid-check", "--checkpoint", copy, "--ask-server", "--url", rows.server.url)
    assert people.code == 0, people.err
    assert people.out.startswith("job        invalid-check\n")
