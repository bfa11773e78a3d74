"""Where the rows of invalid writers lie: for each writer on the invalid list, how many rows it has left, in which tables.

It answers what `basalt prune explain` can only suspect: a file *may* hold a writer's rows; this job reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from basalt_engine.retention import POINTERS_PER_MS
from basalt_engine.table import Row
from basalt_spark.jobs.report import JobReport
from basalt_spark.jobs.running import Advance, Runner
from basalt_spark.jobs.stored_tables import Span, TableSource, rows_of
from basalt_spark.jobs.writers import TABLES, Finding, Writers, judge_row


class Found(NamedTuple):
    """A writer's rows in one range."""

    writer: int
    table: str
    span: str
    rows: int


def found(span: Span, rows: Iterable[Row], writers: Writers, wanted: frozenset[int]) -> list[Found]:
    """Rows of the wanted writers in a range, that are not marked as rolled back."""
    counts: Counter[int] = Counter()
    for row in rows:
        finding, writer = judge_row(span.table, row, writers)
        if writer in wanted and finding is not Finding.MARKED:
            counts[writer] += 1
    return [Found(writer, span.table, span.name, count) for writer, count in sorted(counts.items())]


def check(
    source: TableSource,
    writers: Writers,
    wanted: frozenset[int],
    run: Runner,
    advance: Advance,
    *,
    spans: Sequence[Span],
    job_id: str,
) -> JobReport:
    """Look for rows of the wanted writers in the spans."""
    by_span = run(spans, lambda span: found(span, rows_of(source, span), writers, wanted), advance)
    return reported([each for one in by_span for each in one], wanted, source.shown, job_id=job_id, ranges=len(spans))


def reported(rows: Sequence[Found], wanted: frozenset[int], shown: str, *, job_id: str, ranges: int) -> JobReport:
    """What all ranges together come to: a line for each writer, those that began first on top."""
    by_writer: dict[int, Counter[str]] = {writer: Counter() for writer in wanted}
    spans: dict[int, set[str]] = {writer: set() for writer in wanted}
    for each in rows:
        by_writer[each.writer][each.table] += each.rows
        spans[each.writer].add(f"{each.table} {each.span}")
    lines = [
        {
            "writer": writer,
            "began_ms": writer // POINTERS_PER_MS,
            **{f"{table}_rows": counts[table] for table in TABLES},
            "ranges": len(spans[writer]),
            "first_range": min(spans[writer], default=None),
        }
        for writer, counts in sorted(by_writer.items())
    ]
    facts = {
        "source": shown,
        "ranges": ranges,
        "writers": len(wanted),
        "with_rows": sum(bool(counts) for counts in by_writer.values()),
        "rows": sum(each.rows for each in rows),
    }
    return JobReport("invalid-check", job_id, facts, (), {"writers_checked": lines})
