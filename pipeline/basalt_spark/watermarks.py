"""Event time for stateful queries: windows and timers that follow the watermark which the producers gave.

Spark's own watermark is a guess, the highest time seen less some delay; what comes later than that is dropped. A topic's is
what its tasks promise. The rows of a source carry it in the column `watermark`, and `in_event_time` makes it drive the query:

    rows = frame.selectExpr("from_json(cast(value as string), 'at timestamp, page string') as row", "watermark", "control")
    views = in_event_time(rows.select("row.*", "watermark", "control"), "at")
    views.groupBy(F.window("at", "1 hour"), "page").count()

docs/decisions/0018-event-time-in-band.md tells what Spark does, and why each step is as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from basalt.errors import InputError
from basalt_spark.columns import CONTROL, WATERMARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Rows that are messages. A filter below the watermark node would take the heartbeats away before their watermark is seen.
# Spark pushes there each part of a conjunction that does not mention the column. So it is one disjunction that mentions it,
# and whose second half (before the year 1) no row fulfils, which the optimizer cannot know.
MESSAGES = f"{CONTROL} IS NULL OR {WATERMARK} < timestamp_seconds(-62135596800)"

# The second watermark is only there because Spark wants one on the windows' own column. It must stay behind the first.
NEVER = "10000 years"

# How a query must be started for the first one to win: of several watermarks the highest counts, for all operators; and
# a batch without rows closes windows.
SETTINGS = {
    "spark.sql.streaming.multipleWatermarkPolicy": "max",
    "spark.sql.streaming.statefulOperator.allowMultiple": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
}


def in_event_time(frame: DataFrame, column: str) -> DataFrame:
    """The messages of `frame`, whose `column` (a timestamp) is event time, under the watermark that came with them.

    For whatever keeps state: windows, dropDuplicates, transformWithState. The columns `watermark` and `control` are gone
    then: a row whose watermark is no higher than the query's would be late for Spark, and dropped.
    """
    for needed in (WATERMARK, CONTROL, column):
        if needed not in frame.columns:
            raise InputError(
                f"in_event_time needs the column {needed}, and there are {', '.join(frame.columns)}:"
                f" keep {WATERMARK} and {CONTROL} as the source gives them (with control=heartbeat)",
                field=needed,
            )
    messages = frame.withWatermark(WATERMARK, "0 seconds").where(MESSAGES).drop(WATERMARK, CONTROL)
    return messages.withWatermark(column, NEVER)


def messages_where(condition: str) -> str:
    """A condition for a stage without state that keeps the messages for which `condition` is true, and what drives event time."""
    return f"{CONTROL} IS NOT NULL OR ({condition})"
