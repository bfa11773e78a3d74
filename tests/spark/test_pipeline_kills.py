"""A pipeline that is killed anywhere and run again gives what it would have given, and ends its topics once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from basalt_spark.pipeline import Pipeline, RunningStep
from tests.spark.page_views import create_topics, parse, per_hour, steps
from tests.spark.test_pipeline import DAYS, HOURS, publish_first_half, publish_second_half, results

pytestmark = pytest.mark.spark


class PowerCutError(Exception):
    """Stands for the end of a driver."""


def all_published(client, topic: str) -> None:
    create_topics(client, topic)
    publish_first_half(client, topic)
    publish_second_half(client, topic)


def ends_in_the_log(client, topic: str) -> dict[str, int]:
    """The number of ends of each task in the topic's log, whatever they count for."""
    found: dict[str, int] = {}
    for message in client.topic(topic).peek("start", limit=1_000):
        if message.kind == "end_of_stream":
            task = message.content.decode()
            found[task] = found.get(task, 0) + 1
    return found


def right(client, topic: str) -> None:
    assert results(client, f"{topic}-hours") == HOURS
    assert results(client, f"{topic}-days") == DAYS
    for name, tasks in (("views", 2), ("hours", 1), ("days", 1)):
        facts = client.topic(f"{topic}-{name}").markers()
        assert facts.ended
        assert [task.ended for task in facts.tasks] == [True] * tasks


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had been killed between the server's commit of the last batch and Spark's own."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    last.unlink()


def kill_own_worker_once(mark: str, value: bytes | None) -> bytes | None:
    """In a task: SIGKILL of the Python worker, the first time."""
    if value is not None and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def intact(mark: str, value: str) -> str:
    """In a task: the value, while there is no such file."""
    if Path(mark).exists():
        raise PowerCutError("the power is cut")
    return value


def test_killed_at_every_point_the_results_are_the_same_and_each_end_is_said_once(
    spark, basalt, basalt_server, topic, tmp_path, monkeypatch
):
    all_published(basalt, topic)
    mark = str(tmp_path / "killed")

    def parse_with_a_death(frame):
        deadly = F.udf(lambda value: kill_own_worker_once(mark, value), "binary")
        return parse(frame.withColumn("value", deadly("value")))

    pipeline = Pipeline(steps(basalt_server.url, tmp_path, topic, parse_a=parse_with_a_death))

    # A Python worker is killed in a task, and the first driver to come to the end, before it can say so.
    say_the_end = RunningStep._end

    def cut(step):
        raise PowerCutError(step.name)

    monkeypatch.setattr(RunningStep, "_end", cut)
    with pytest.raises(PowerCutError):
        pipeline.run(spark=spark)
    assert Path(mark).exists()
    assert not any(task.ended for task in basalt.topic(f"{topic}-views").markers().tasks)
    monkeypatch.setattr(RunningStep, "_end", say_the_end)

    # The parsers alone come to their end, and are killed between the server's commit and Spark's.
    for name in ("parse-a", "parse-b"):
        step = next(step for step in pipeline.steps if step.name.endswith(name))
        step.run("eos", spark=spark)
        forget_last_commit(tmp_path / name)

    # The others too, each time behind a batch.
    pipeline.run(spark=spark)
    for name in ("hours", "days"):
        forget_last_commit(tmp_path / name)
    pipeline.run(spark=spark)
    right(basalt, topic)
    pipeline.run(spark=spark)  # behind the end there is nothing more to do
    right(basalt, topic)
    for name, tasks in (("views", 2), ("hours", 1), ("days", 1)):
        ends = ends_in_the_log(basalt, f"{topic}-{name}")
        assert (len(ends), sum(ends.values())) == (tasks, tasks)


def test_a_query_killed_before_the_batch_that_closes_its_windows_closes_them_when_it_runs_again(
    spark, basalt, basalt_server, topic, tmp_path
):
    all_published(basalt, topic)
    broken = tmp_path / "broken"
    broken.touch()

    def cut_with_results(frame):
        return per_hour(frame).withColumn("value", F.udf(lambda value: intact(str(broken), value))("value"))

    pipeline = Pipeline(steps(basalt_server.url, tmp_path, topic, hours=cut_with_results)[:3])
    with pytest.raises(StreamingQueryException, match="the power is cut"):
        pipeline.run(spark=spark)
    # The driver dies a moment earlier still: the batch that closes the windows was not even planned.
    checkpoint = tmp_path / "hours"
    planned = {path.name for path in (checkpoint / "offsets").glob("[0-9]*")}
    (last,) = planned - {path.name for path in (checkpoint / "commits").glob("[0-9]*")}
    (checkpoint / "offsets" / last).unlink()
    (checkpoint / "offsets" / f".{last}.crc").unlink(missing_ok=True)

    broken.unlink()
    pipeline.run(spark=spark)
    assert results(basalt, f"{topic}-hours") == HOURS


def test_a_step_that_fails_stops_the_others_and_its_error_is_raised(spark, basalt, basalt_server, topic, tmp_path):
    all_published(basalt, topic)

    def broken(frame):
        return per_hour(frame.withColumn("value", F.raise_error(F.lit("a bad transform"))))

    pipeline = Pipeline(steps(basalt_server.url, tmp_path, topic, hours=broken)[:3])
    with pytest.raises(StreamingQueryException, match="a bad transform"):
        pipeline.run(spark=spark)
    assert spark.streams.active == []
