"""What the progress of a query tells of event time, and what may be said of its results then. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from basalt.errors import InputError
from basalt_spark.event_time import END_OF_TIME_MS
from basalt_spark.offset import parse_offset

# The batch at watermark W writes each window that ends by W. Of the others the event time of the result, its window's end
# less a millisecond, may be W itself; so what can be promised ends before that.
STEP_MS = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """One report of a query. An idle one has no state and no watermark, whatever the query has."""

    batch: int
    done: bool  # each source has ended and was read to its end
    stateful: bool
    watermark_ms: int | None  # under which the batch wrote its results; None: none yet
    dropped: int  # rows that came too late for the state
    ran: bool = True  # False for an idle report

    @property
    def closed(self) -> bool:
        """Whether the batch closed every window there was."""
        return self.stateful and self.watermark_ms == END_OF_TIME_MS

    @property
    def promise_ms(self) -> int | None:
        """The event time at or before which no more results come; None: nothing new can be said."""
        if not self.stateful or self.watermark_ms is None or self.closed:
            return None
        return self.watermark_ms - STEP_MS


def read_progress(report: Mapping[str, Any]) -> Progress:
    """A query's progress (`StreamingQuery.lastProgress`)."""
    operators = report["stateOperators"]
    return Progress(
        batch=report["batchId"],
        done=all(_done(source["endOffset"]) for source in report["sources"]),
        stateful=bool(operators),
        watermark_ms=_watermark_ms(report),
        dropped=sum(operator["numRowsDroppedByWatermark"] for operator in operators),
        ran=report["numInputRows"] > 0 or bool(operators),
    )


def _done(offset: str | Mapping[str, Any] | None) -> bool:
    """Whether a source's end offset says so. One that is none of ours never does."""
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
    # By way of whole seconds and microseconds: a float has no milliseconds left in the year 9999.
    milliseconds = int(moment.replace(microsecond=0).timestamp()) * 1_000 + moment.microsecond // 1_000
    return milliseconds or None  # Spark begins at 1970, which nobody has said
