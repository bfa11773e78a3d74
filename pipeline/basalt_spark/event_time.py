"""Event time in stateful queries: the watermark of the producers drives windows and timers, and a query's progress.

Spark's own watermark is a guess, the highest time seen less some delay; Spark drops rows that come later. A topic's
watermark is the promise of its tasks. The rows of a source carry it in the column `watermark`, and `in_event_time`
makes it drive the query:

    line = "from_json(cast(value as string), 'at timestamp, page string') as row"
    rows = frame.selectExpr(line, "watermark", "control")
    views = in_event_time(rows.select("row.*", "watermark", "control"), "at")
    views.groupBy(F.window("at", "1 hour"), "page").count()

docs/decisions/0018-event-time-in-band.md says what Spark does, and gives the reason of each step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from basalt.errors import InputError
from basalt_spark.columns import CONTROL, END_OF_TIME_MS, WATERMARK
from basalt_spark.offset import parse_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# The condition for rows that are messages. A filter below the watermark node would drop the heartbeats before Spark
# sees their watermark, and Spark pushes each part of a conjunction there that does not mention the column. So the
# condition is one disjunction that mentions it. No row fulfils its second half (before the year 1), which the optimizer
# cannot know.
MESSAGES = f"{CONTROL} IS NULL OR {WATERMARK} < timestamp_seconds(-62135596800)"

# Spark wants a second watermark, on the windows' own column. This delay keeps it behind the first one.
NEVER = "10000 years"

# A query needs these settings for the first watermark to win: the highest of several counts, for all operators, and a
# batch without rows closes windows.
SETTINGS = {
    "spark.sql.streaming.multipleWatermarkPolicy": "max",
    "spark.sql.streaming.statefulOperator.allowMultiple": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
}

# The batch at watermark W writes each window that ends by W. A later result's event time, the end of its window less a
# millisecond, may be W itself; so the batch can promise the time before W only.
PROMISE_MARGIN_MS = 1


def in_event_time(frame: DataFrame, column: str) -> DataFrame:
    """The messages of `frame`, whose `column` (a timestamp) is event time, under the watermark that came with them.

    Use it before anything that keeps state: windows, dropDuplicates, transformWithState. It drops the columns
    `watermark` and `control`: Spark would take a row whose watermark is not above the query's for late, and drop the
    row.
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
    """A condition for a step without state: messages that fulfil `condition`, and the rows that drive event time."""
    return f"{CONTROL} IS NOT NULL OR ({condition})"


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """One progress report of a query. An idle report has no state and no watermark, whatever the query has."""

    batch: int
    done: bool  # each source has ended and is read to its end
    stateful: bool
    watermark_ms: int | None  # under which the batch wrote its results; None: none yet
    dropped: int  # rows that came too late for the state
    ran: bool = True  # False for an idle report

    @property
    def closed(self) -> bool:
        """True when the batch closed every window."""
        return self.stateful and self.watermark_ms == END_OF_TIME_MS

    @property
    def promise_ms(self) -> int | None:
        """The event time up to which no more results come; None: no new promise is possible."""
        if not self.stateful or self.watermark_ms is None or self.closed:
            return None
        return self.watermark_ms - PROMISE_MARGIN_MS


def read_progress(report: Mapping[str, Any]) -> QueryProgress:
    """Read a query's progress (`StreamingQuery.lastProgress`)."""
    operators = report["stateOperators"]
    return QueryProgress(
        batch=report["batchId"],
        done=all(_done(source["endOffset"]) for source in report["sources"]),
        stateful=bool(operators),
        watermark_ms=_watermark_ms(report),
        dropped=sum(operator["numRowsDroppedByWatermark"] for operator in operators),
        ran=report["numInputRows"] > 0 or bool(operators),
    )


def _done(offset: str | Mapping[str, Any] | None) -> bool:
    """True when a source's end offset says that nothing follows; never for the offset of another format."""
    members = json.loads(offset) if isinstance(offset, str) else offset
    if not isinstance(members, Mapping):
        return False
    try:
        return parse_offset(members).done
    except InputError:
        return False


def _watermark_ms(report: Mapping[str, Any]) -> int | None:
    text = (report.get("eventTime") or {}).get("watermark")
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    # Convert whole seconds and microseconds apart: a float has no milliseconds left in the year 9999.
    milliseconds = int(moment.replace(microsecond=0).timestamp()) * 1_000 + moment.microsecond // 1_000
    return milliseconds or None  # Spark's watermark starts at 1970, before any is known
