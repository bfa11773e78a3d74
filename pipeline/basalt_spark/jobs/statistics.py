"""Statistics of a topic's committed messages, day by day: their number, sizes, keys and times."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from basalt_spark.jobs.job_run import Advance, JobReport, Runner
from basalt_spark.jobs.topic_rows import RangePart, TopicRange, TopicRows, by_day

COLUMNS = ("publish_time", "key", "value", "tx_id", "headers", "event_time")
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)  # bytes; larger values are counted apart


class DayCounts(NamedTuple):
    """The counts of some messages.

    Times are in microseconds; `sizes` counts values up to each of `SIZES`, larger ones last.
    """

    messages: int = 0
    value_bytes: int = 0
    largest: int = 0
    keyed: int = 0
    with_headers: int = 0
    in_transactions: int = 0
    first_us: int | None = None
    last_us: int | None = None
    event_first_us: int | None = None
    event_last_us: int | None = None
    sizes: tuple[int, ...] = (0,) * (len(SIZES) + 1)

    def merged(self, other: DayCounts) -> DayCounts:
        merges = (_MERGES.get(name, int.__add__) for name in self._fields)
        return DayCounts(*(merge(mine, others) for merge, mine, others in zip(merges, self, other, strict=True)))


def _least(one: int | None, other: int | None) -> int | None:
    return min((time for time in (one, other) if time is not None), default=None)


def _most(one: int | None, other: int | None) -> int | None:
    return max((time for time in (one, other) if time is not None), default=None)


# The counts that are not added up.
_MERGES: dict[str, Callable[[Any, Any], Any]] = {
    "largest": max,
    "first_us": _least,
    "last_us": _most,
    "event_first_us": _least,
    "event_last_us": _most,
    "sizes": lambda mine, others: tuple(map(int.__add__, mine, others)),
}


def counts_of(batch: Any) -> DayCounts:
    import pyarrow as pa

    sizes = [len(value) for value in batch.column("value").to_pylist()]
    times = batch.column("publish_time").cast(pa.int64()).to_pylist()
    events = [time for time in batch.column("event_time").cast(pa.int64()).to_pylist() if time is not None]
    by_class = Counter(bisect_left(SIZES, size) for size in sizes)
    return DayCounts(
        len(sizes),
        sum(sizes),
        max(sizes, default=0),
        batch.num_rows - batch.column("key").null_count,
        sum(bool(headers) for headers in batch.column("headers").to_pylist()),
        batch.num_rows - batch.column("tx_id").null_count,
        min(times, default=None),
        max(times, default=None),
        min(events, default=None),
        max(events, default=None),
        tuple(by_class[index] for index in range(len(SIZES) + 1)),
    )


def by_days(batches: Iterable[Any]) -> dict[str, DayCounts]:
    """Count record batches in the topic's order, by day."""
    return _merged((day, counts_of(piece)) for batch in batches for day, piece in by_day(batch))


def _merged(counted: Iterable[tuple[str, DayCounts]]) -> dict[str, DayCounts]:
    days: dict[str, DayCounts] = {}
    for day, counts in counted:
        days[day] = days.get(day, DayCounts()).merged(counts)
    return days


def statistics(
    source: TopicRows, run: Runner, advance: Advance, *, wanted: TopicRange, parts: Sequence[RangePart], job_id: str
) -> JobReport:
    generation = wanted.generation
    found = run(parts, lambda part: by_days(source.batches(generation, part, COLUMNS)), advance)
    days = _merged(counted for one in found for counted in one.items())
    whole = reduce(DayCounts.merged, days.values(), DayCounts())
    facts = {"topic": str(source.name), "generation": generation, "days": len(days), **_row(whole)}
    rows = [{"day": day, **_row(counts)} for day, counts in sorted(days.items())]
    return JobReport("statistics", job_id, facts, (), {"by_day": rows})


def _row(counts: DayCounts) -> Mapping[str, Any]:
    mean = counts.value_bytes / counts.messages if counts.messages else None
    names = [f"up_to_{limit}_bytes" for limit in SIZES] + ["larger"]
    times_us = [(name, getattr(counts, f"{name}_us")) for name in ("first", "last", "event_first", "event_last")]
    return {
        "messages": counts.messages,
        "value_bytes": counts.value_bytes,
        "mean_bytes": mean,
        "largest_bytes": counts.largest,
        "keyed": counts.keyed,
        "with_headers": counts.with_headers,
        "in_transactions": counts.in_transactions,
        **{f"{name}_ms": None if time_us is None else time_us // 1_000 for name, time_us in times_us},
        **dict(zip(names, counts.sizes, strict=True)),
    }
