"""A stream whose batches are the same whenever they are planned: what the tests of the sink write.

Each run with `availableNow` makes one batch of ten numbers, in two partitions: the even ones, then the odd ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

ROWS = 10


def numbers(spark: SparkSession):
    """The data frame: `value` is a number as text."""
    source = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=ROWS, numPartitions=2, startTimestamp=0, advanceMillisPerBatch=1_000
    )
    return source.load().selectExpr("cast(value as string) as value")


def expected(batches: int) -> list[str]:
    """The values that so many batches publish, in order."""
    every = [range(batch * ROWS, (batch + 1) * ROWS) for batch in range(batches)]
    return [str(number) for batch in every for number in (*batch[::2], *batch[1::2])]


def started(writer: DataStreamWriter, checkpoint: Path):
    """Start the query for one batch."""
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def run(writer: DataStreamWriter, checkpoint: Path) -> None:
    """One batch, or the one that was left over. Raises what the query failed with."""
    started(writer, checkpoint).awaitTermination()


def texts(client, topic: str) -> list[str]:
    """The payloads that a reader of committed messages sees."""
    return [message.text for message in client.topic(topic).read(isolation="committed")]
