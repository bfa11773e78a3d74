"""Two jobs that read every stored row and judge its writer (`row_writers.py`): the prune audit and the invalid check.

Pruning decides by the reports of regions and reads no row. `prune-audit` proves on the rows themselves that it was
safe: no forgotten writer has a row left, and none is kept for ever. `invalid-check` counts the rows that invalid
writers have left, where `basalt prune explain` can only say which files may hold some. Executors answer with counts and
a bounded list of faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from basalt_engine.retention import POINTERS_PER_MS
from basalt_engine.table import Row
from basalt_spark.jobs.job_run import Advance, JobReport, Runner
from basalt_spark.jobs.row_writers import FAULTS, KEPT_MS_MAX, TABLES, Finding, Writers, judge_row
from basalt_spark.jobs.stored_tables import Span, TableSource, rows_of

FAULTS_MAX = 100  # that one range reports; the counts have all
SHOWN_MAX = 20  # sentences of each sort in the report


class Fault(NamedTuple):
    """One writer whose rows are wrong: the place of the first one, and the number in the range."""

    finding: str
    writer: int
    table: str
    span: str
    key: str
    rows: int


class Tally(NamedTuple):
    """The result of one range. `listed` are the writers on the invalid list of which it has a row."""

    table: str
    span: str
    counts: Mapping[str, int]
    listed: frozenset[int]
    faults: tuple[Fault, ...]


def tally(span: Span, rows: Iterable[Row], writers: Writers) -> Tally:
    """Judge every row of a range, and keep none."""
    counts: Counter[str] = Counter()
    listed: set[int] = set()
    faults: dict[tuple[Finding, int], Fault] = {}
    for row in rows:
        finding, writer = judge_row(span.table, row, writers)
        counts[finding.value] += 1
        if finding is Finding.LISTED:
            listed.add(writer)
        elif finding in FAULTS:
            known = faults.get((finding, writer))
            if known is not None:
                faults[finding, writer] = known._replace(rows=known.rows + 1)
            elif len(faults) < FAULTS_MAX:
                faults[finding, writer] = Fault(finding.value, writer, span.table, span.name, row.key.hex(), 1)
    return Tally(span.table, span.name, dict(counts), frozenset(listed), tuple(faults.values()))


def audit(
    source: TableSource,
    writers: Writers,
    run: Runner,
    advance: Advance,
    *,
    spans: Sequence[Span],
    job_id: str,
    now_ms: int,
    kept_ms_max: int = KEPT_MS_MAX,
) -> JobReport:
    """Judge every row of the spans; `writers` must have been read before."""
    tallies = run(spans, lambda span: tally(span, rows_of(source, span), writers), advance)
    return audit_report(tallies, writers, source.shown, job_id=job_id, now_ms=now_ms, kept_ms_max=kept_ms_max)


def audit_report(
    tallies: Sequence[Tally], writers: Writers, shown: str, *, job_id: str, now_ms: int, kept_ms_max: int
) -> JobReport:
    """Put the results of all ranges together."""
    seen = frozenset[int]().union(*(each.listed for each in tallies))
    kept = writers.kept_too_long(seen, now_ms, kept_ms_max) if writers.invalid_known else []
    faults = [fault for each in tallies for fault in each.faults]
    sentences = [_sentence(fault) for fault in faults[:SHOWN_MAX]]
    sentences += [
        f"writer {writer} is kept too long: it is on the invalid list, and no row of it is anywhere"
        for writer in kept[:SHOWN_MAX]
    ]
    left_out = len(faults) + len(kept) - len(sentences)
    if left_out:
        sentences.append(f"and {left_out:,} more")
    counts: Counter[str] = Counter()
    for each in tallies:
        counts.update(each.counts)
    facts = {
        "source": shown,
        "ranges": len(tallies),
        "rows": sum(counts.values()),
        "invalid": len(writers.invalid) if writers.invalid_known else None,
        "invalid_with_rows": len(seen),
        "forgotten": len(writers.forgotten),
        "forgotten_too_early": len({fault.writer for fault in faults if fault.finding == Finding.FORGOTTEN.value}),
        "kept_too_long": len(kept) if writers.invalid_known else None,
        "unreadable": counts[Finding.UNREADABLE.value],
    }
    tables = {
        "findings": _findings(tallies),
        "writers": [fault._asdict() for fault in faults],
        "kept": [{"writer": writer, "began_ms": writer // POINTERS_PER_MS} for writer in kept],
    }
    return JobReport("prune-audit", job_id, facts, sentences, tables)


def _findings(tallies: Sequence[Tally]) -> list[dict[str, object]]:
    by_table: dict[str, Counter[str]] = {table: Counter() for table in TABLES}
    for each in tallies:
        by_table[each.table].update(each.counts)
    return [
        {"table": table, "finding": finding.value, "rows": counts[finding.value]}
        for table, counts in by_table.items()
        for finding in Finding
        if counts[finding.value]
    ]


def _sentence(fault: Fault) -> str:
    where = f"table {fault.table}, {fault.span}, key {fault.key}"
    if fault.finding == Finding.UNREADABLE.value:
        return f"{fault.rows:,} rows cannot be read, so their writers are unknown; the first: {where}"
    return f"writer {fault.writer} was forgotten too early: it has {fault.rows:,} rows left; the first: {where}"


class Found(NamedTuple):
    """The rows of one writer in one range."""

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
    return check_report(
        [each for one in by_span for each in one], wanted, source.shown, job_id=job_id, ranges=len(spans)
    )


def check_report(rows: Sequence[Found], wanted: frozenset[int], shown: str, *, job_id: str, ranges: int) -> JobReport:
    """Put the results of all ranges together: a line for each writer, the oldest on top."""
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
