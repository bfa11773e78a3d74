"""Topics in and out of Spark on two cores, next to Spark's own file sources, a bare source in Python, and the client alone.

The target of a figure that is there to compare is 0: it cannot be missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import basalt
from bench import processes
from bench.figures import Figure
from bench.load import drive
from bench.processes import Process
from bench.reading import count_payloads, read_all
from bench.setting_up import BATCH, NAMESPACE, create_topics, publish_request
from bench.spark_session import fresh, memory_mib, running_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_UPS = 4  # turns: a JVM is at its speed after some seconds of the same work
ROUNDS = 5
READ_ROWS_PER_S = 100_000  # so many, or
READ_RATIO = 0.6  # such a part of what a bare source does, on a machine that is slow
SINK_RATIO = 0.5  # of reading
FLOOR_MS = 400.0
MEMORY_RATIO = 1.15
TOPIC = "full"  # what `read_all` reads


def read(folder: Path, quick: bool) -> Iterator[Figure]:
    """A topic of 1 KB messages as a data frame, all its columns and the value alone."""
    total = 50_000 if quick else 400_000
    with processes.basalt(folder / "data") as server, running_spark(folder) as spark:
        fill(server, total)
        ways: dict[str, Callable[[], object]] = {
            "bare": lambda: drain(spark.read.format("bare").option("rows", total).load()),
            "all": lambda: drain(topic_frame(spark, server)),
            "value": lambda: drain(topic_frame(spark, server, columns="value")),
        }
        topic_frame(spark, server, columns="value").write.parquet(str(folder / "parquet"))
        topic_frame(spark, server).selectExpr("base64(value)").write.text(str(folder / "text"))
        ways["parquet"] = lambda: drain(spark.read.parquet(str(folder / "parquet")))
        ways["text"] = lambda: drain(spark.read.text(str(folder / "text")))
        with basalt.connect(url(server), namespace=NAMESPACE) as client:
            ways["client"] = lambda: check(read_all(client, count_payloads), total)
            ways["ranges"] = lambda: check(read_ranges(client), total)
            rates = measured(ways, total)
        bare = rates["bare"]
        promised = min(READ_ROWS_PER_S, READ_RATIO * bare)
        yield Figure("Spark: read, value alone", rates["value"], "rows/s", "rows/s promised", promised, 1.0)
        yield Figure("Spark: read, all columns", rates["all"], "rows/s", "rows/s promised", promised, 1.0)
        for name, yardstick in (
            ("bare", "a bare source"),
            ("parquet", "a parquet file of the values"),
            ("text", "a text file of the values"),
            ("client", "the client's pages, one process"),
            ("ranges", "the client's Arrow ranges, one process"),
        ):
            yield Figure("Spark: read, all columns", rates["all"], "rows/s", f"rows/s of {yardstick}", rates[name], 0)


def sink(folder: Path, quick: bool) -> Iterator[Figure]:
    """From a topic into a topic, as a batch and as a stream, against reading it alone and a parquet sink."""
    total = 50_000 if quick else 200_000
    with processes.basalt(folder / "data") as server, running_spark(folder) as spark:
        fill(server, total)
        create_topics(server, "batch", "stream")

        def streamed(sinks: Callable[[Any], Any]) -> None:
            run_to_the_end(sinks(topic_stream(spark, server).select("value").writeStream), fresh(folder, "checkpoint"))

        rates = measured(
            {
                "read": lambda: drain(topic_frame(spark, server, columns="value")),
                "batch": lambda: to_topic(
                    topic_frame(spark, server, columns="value").write.mode("append"), server, "batch"
                ),
                "parquet": lambda: topic_frame(spark, server, columns="value").write.parquet(fresh(folder, "copy")),
                "stream read": lambda: streamed(lambda writer: writer.format("noop")),
                "stream": lambda: streamed(lambda writer: to_topic_once(writer, server, "stream")),
            },
            total,
        )
        yield Figure("Spark: batch, topic to topic", rates["batch"], "rows/s", "rows/s read", rates["read"], SINK_RATIO)
        yield Figure(
            "Spark: stream, topic to topic", rates["stream"], "rows/s", "rows/s read by a stream", rates["stream read"],
            SINK_RATIO,
        )  # fmt: skip
        yield Figure("Spark: batch, topic to topic", rates["batch"], "rows/s", "rows/s to parquet", rates["parquet"], 0)


def floor(folder: Path, quick: bool) -> Iterator[Figure]:
    """Measure a micro-batch of one row: from a topic, into one, and from the bare source."""
    triggers = 10 if quick else 40
    with processes.basalt(folder / "data") as server, running_spark(folder) as spark:
        create_topics(server, TOPIC, "copy")
        one = publish_request(TOPIC, 1)
        bare = trigger_ms(
            spark.readStream.format("bare").load().writeStream.format("noop"), folder, triggers, lambda: None
        )
        source = topic_stream(spark, server).select("value").writeStream
        reading = trigger_ms(source.format("noop"), folder, triggers, lambda: drive(server.port, 1, 1, one))
        source = topic_stream(spark, server).select("value").writeStream
        copying = trigger_ms(
            to_topic_once(source, server, "copy"), folder, triggers, lambda: drive(server.port, 1, 1, one),
        )  # fmt: skip
        for name, value in (("from a topic", reading), ("from topic to topic", copying)):
            yield Figure(f"Spark: trigger of one row, {name}", value, "ms", "ms", FLOOR_MS, 1.0, at_most=True)
        yield Figure(
            "Spark: trigger of one row, from topic to topic",
            copying,
            "ms",
            "ms of a bare source",
            bare,
            99,
            at_most=True,
        )


def memory(folder: Path, quick: bool) -> Iterator[Figure]:
    """Measure the memory of driver, JVM and workers while a stream copies a topic, in its second half against its first."""
    total = 100_000 if quick else 1_000_000
    with processes.basalt(folder / "data") as server, running_spark(folder) as spark:
        fill(server, total)
        create_topics(server, "copy")
        frame = topic_stream(spark, server, maxRowsPerTrigger=str(total // 50)).select("value")
        writer = to_topic_once(frame.writeStream, server, "copy")
        query = writer.option("checkpointLocation", fresh(folder, "memory")).trigger(availableNow=True).start()
        samples: list[dict[str, float]] = []
        while not query.awaitTermination(1):
            samples.append(memory_mib())
        half = len(samples) // 2
        for part in ("driver", "workers", "JVM"):
            first, second = (max(sample[part] for sample in some) for some in (samples[:half], samples[half:]))
            yield Figure(
                f"Spark: memory of the {part} over {total:,} rows", second, "MiB", "MiB in the first half", first,
                MEMORY_RATIO if part != "JVM" else 99, at_most=True,
            )  # fmt: skip


def measured(ways: dict[str, Callable[[], object]], rows: int) -> dict[str, float]:
    """The rows per second of each way, turn by turn; the first turns warm up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(WARM_UPS + ROUNDS):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - start)
    return {name: rows / median(seconds[WARM_UPS:]) for name, seconds in times.items()}


def fill(server: Process, total: int) -> None:
    """Publish so many messages."""
    create_topics(server, TOPIC)
    drive(server.port, 2, total // BATCH, publish_request(TOPIC, BATCH))


def url(server: Process) -> str:
    return f"http://127.0.0.1:{server.port}"


def options(server: Process, topic: str) -> dict[str, str]:
    return {"server": url(server), "namespace": NAMESPACE, "topic": topic}


def topic_frame(spark: SparkSession, server: Process, **more: str) -> DataFrame:
    return spark.read.format("basalt").options(**options(server, TOPIC), **more).load()


def topic_stream(spark: SparkSession, server: Process, **more: str) -> DataFrame:
    return (
        spark.readStream.format("basalt").options(**options(server, TOPIC), startingOffsets="earliest", **more).load()
    )


def drain(frame: DataFrame) -> None:
    """Read all of it, and do nothing with it."""
    frame.write.format("noop").mode("overwrite").save()


def to_topic(writer: Any, server: Process, topic: str) -> None:
    writer.format("basalt").options(**options(server, topic)).save()


def to_topic_once(writer: Any, server: Process, topic: str) -> Any:
    """A stream's writer into a topic, as a query that the server has not seen before."""
    return writer.format("basalt").options(**options(server, topic), txnAppId=f"bench-{time.monotonic_ns()}")


def run_to_the_end(writer: Any, checkpoint: str) -> None:
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def trigger_ms(writer: Any, folder: Path, triggers: int, before_each: Callable[[], object]) -> float:
    """The median time of a trigger with a row, as the query itself reports it."""
    query = writer.option("checkpointLocation", fresh(folder, "floor")).start()
    try:
        seen: dict[int, int] = {}
        while len(seen) < triggers + 3:
            before_each()
            deadline, known = time.monotonic() + 30, len(seen)
            while len(seen) == known and time.monotonic() < deadline:
                if error := query.exception():
                    raise error
                for progress in query.recentProgress:
                    if progress["numInputRows"]:
                        seen[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
                time.sleep(0.02)
        return median(list(seen.values())[3:])
    finally:
        query.stop()


def read_ranges(client: basalt.client.Client) -> int:
    """The rows of all Arrow ranges of a topic, one after the other."""
    import pyarrow as pa

    topic, rows, after = client.topic(TOPIC), 0, None
    through = topic.stable_end().id
    while through is not None:
        page = topic.range(after, through)
        rows += sum(batch.num_rows for batch in pa.ipc.open_stream(page.body))
        after = page.next_id
        if after is None:
            break
    return rows


def check(rows: int, total: int) -> None:
    assert rows == total, (rows, total)
