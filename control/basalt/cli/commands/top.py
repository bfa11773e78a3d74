"""`basalt top`: what a server does now, from two looks at its metrics; and `basalt series`: how its figures went.

The server has series of the busiest topics and consumer groups alone (docs/reference/metrics.md), so a look costs the same with 100,000 topics.
"""

from __future__ import annotations

import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from basalt.api.bodies.operations import JobInfo
from basalt.cli.failures import Usage
from basalt.cli.options import DurationMs, Invocation, command
from basalt.cli.output import (
    Column,
    columns,
    count_text,
    duration_text,
    plain,
    printable,
    rich_table,
    row,
    size_text,
    time_text,
)
from basalt_engine.clock import SystemClock

if TYPE_CHECKING:
    from rich.console import Group

    from basalt.api.bodies.operations import SeriesFigure, SeriesPage
    from basalt.client import Client

INTERVAL_MS_DEFAULT = 2_000
INTERVAL_MS_MIN = 100  # a look takes the server some milliseconds
TOPICS_DEFAULT = 20
TOPICS_MAX = 101  # as many series of topics as a server has, and that of all others
OTHER_TOPICS = "_other"  # the name under which the server counts the topics that have no series
STEP_MS_MIN = 1_000  # of a series: nothing finer is kept
OPEN, COMMITTING, ABORTING = ("open",), ("committing",), ("aborting",)

# The figures of which it shows how they went, with a number of 1 or a second as people write it.
WENT = ("publishes_per_s", "commits_per_s", "publish_p99_s", "commit_p99_s", "open", "worst_lag_s", "loop_lag_s")
WENT_SINCE, WENT_STEP_MS = "-10m", 20_000
BARS = "▁▂▃▄▅▆▇█"

Values = Mapping[
    str, Mapping[tuple[str, ...], float]
]  # of a metric: by the values of its labels, in the order of their names

_SAMPLE = re.compile(r"([a-z_]+)(?:\{(.*)\})? ([^ ]+)(?: [0-9.]+)?")
_LABEL = re.compile(r'[a-z_]+="((?:[^"\\]|\\.)*)"')

_TOPICS = (
    *columns("topic published_per_s", counts="published_per_s", published_per_s="published/s"),
    Column("published_bytes_per_s", size_text, "bytes/s"),
    *columns("read_per_s", counts="read_per_s", read_per_s="read/s"),
    Column("read_bytes_per_s", size_text, "read bytes/s"),
    *columns("published_messages", counts="published_messages", published_messages="published"),
)
_GROUPS = (
    *columns("group lag_messages", counts="lag_messages", lag_messages="lag"),
    Column("oldest_ms", duration_text, "oldest"),
    *columns("members acknowledged_per_s", counts="acknowledged_per_s", acknowledged_per_s="acknowledged/s"),
    *columns("returned_per_s", counts="returned_per_s", returned_per_s="returned/s"),
)
_FIGURES = columns("name unit help")
_WENT = columns("figure now last_10_min")
_JOBS = columns("name state late_ms last_outcome last_started_ms", last_started_ms="last run", name="job")


@dataclass(frozen=True, slots=True)
class Look:
    """A server's metrics and jobs at one time: `at_ms` of a clock that only goes forward, `now_ms` of the calendar."""

    at_ms: float
    now_ms: int
    values: Values
    jobs: Sequence[JobInfo]
    history: SeriesPage | None = None


@command()
@click.option("--once", is_flag=True, help="Show it once and end, as without a terminal and with any -o but table.")
@click.option(
    "--interval",
    "interval_ms",
    type=DurationMs(minimum_ms=INTERVAL_MS_MIN),
    default=INTERVAL_MS_DEFAULT,
    show_default="2s",
    metavar="DURATION",
    help="Time between two looks; rates are those of this time.",
)
@click.option(
    "--limit", type=click.IntRange(1, TOPICS_MAX), default=TOPICS_DEFAULT, show_default=True, metavar="N",
    help="At most so many topics, and groups.",
)  # fmt: skip
def top(invocation: Invocation, once: bool, interval_ms: int, limit: int) -> None:
    """Watch what a server does: its busiest topics, its groups, its transactions, and jobs that are late.

    Topics are those of all namespaces, or of the one that --namespace names; a server tells the busiest 100, and the sum of
    all others as _other. Ctrl-C ends it.
    """
    url = invocation.target().url
    with invocation.client() as client:
        shown = _shown(client, url, interval_ms, limit, invocation.namespace)
        if once or not invocation.out.for_people or not sys.stdout.isatty():
            _write(invocation, next(shown))
            return
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
            for each in shown:
                live.update(_screen(each), refresh=True)


def _shown(client: Client, url: str, interval_ms: int, limit: int, namespace: str | None) -> Iterator[dict[str, Any]]:
    before = _look(client)
    while True:
        time.sleep(interval_ms / 1_000)
        after = _look(client)
        yield activity(url, before, after, limit, namespace)
        before = after


def _look(client: Client) -> Look:
    clock = SystemClock()
    text = client.admin.metrics()
    history = client.admin.series(WENT, since=WENT_SINCE, step_ms=WENT_STEP_MS)
    return Look(clock.monotonic_ms(), clock.now_ms(), parsed(text), client.admin.jobs(), history)


def parsed(text: str) -> Values:
    """Read what `GET /metrics` answers, but for comments and for what is no number."""
    values: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample is not None:
            values[sample[1]][tuple(_LABEL.findall(sample[2] or ""))] = float(sample[3])
    return values


def activity(url: str, before: Look, after: Look, limit: int, namespace: str | None) -> dict[str, Any]:
    """Compare two looks, and make a row of what happened between them: of the server, its transactions, topics and jobs."""
    seconds = max((after.at_ms - before.at_ms) / 1_000, 1e-3)
    rates = _Rates(before.values, after.values, seconds)
    return {
        "server": _server(url, rates, after),
        "figures": [] if after.history is None else _went(after.history),
        "transactions": _transactions(rates),
        "topics": _topics(rates, limit, namespace),
        "groups": _groups(rates, limit, namespace),
        "jobs": [_job(job, after.now_ms) for job in after.jobs],
    }


@dataclass(frozen=True, slots=True)
class _Rates:
    """Two values of every series: how fast counters rise, and what gauges are now."""

    before: Values
    after: Values
    seconds: float

    def per_s(self, name: str, labels: tuple[str, ...] = ()) -> float:
        """The speed at which a counter rises. A lower value than before is that of a server, or a series, that began anew."""
        now, then = (values.get(name, {}).get(labels, 0.0) for values in (self.after, self.before))
        return round((now - then if now >= then else now) / self.seconds, 3)

    def total_per_s(self, name: str) -> float:
        """The speed at which all series of a counter rise together."""
        return round(sum(self.per_s(name, labels) for labels in self.after.get(name, {})), 3)

    def now(self, name: str, labels: tuple[str, ...] = ()) -> float | None:
        """A gauge; None where the server does not tell it."""
        return self.after.get(name, {}).get(labels)

    def count(self, name: str, labels: tuple[str, ...] = ()) -> int | None:
        """A gauge that counts something."""
        value = self.now(name, labels)
        return None if value is None else int(value)

    def age_ms(self, name: str) -> int | None:
        """A gauge of seconds."""
        value = self.now(name)
        return None if value is None else int(value * 1_000)


def _server(url: str, rates: _Rates, after: Look) -> dict[str, Any]:
    kind, version = next(iter(rates.after.get("basalt_server_info", {})), ("", ""))
    started_s = rates.now("basalt_start_time_seconds")
    return {
        "url": url,
        "version": version or None,
        "store": kind or None,
        "up_ms": None if started_s is None else max(0, after.now_ms - int(started_s * 1_000)),
        "cpu_percent": round(100 * rates.per_s("process_cpu_seconds_total"), 1),
        "memory_bytes": rates.count("process_resident_memory_bytes"),
        "requests_per_s": rates.total_per_s("basalt_http_request_duration_seconds_count"),
        "problems_per_s": rates.total_per_s("basalt_http_problems_total"),
        "published_per_s": rates.per_s("basalt_published_messages_total"),
        "read_per_s": rates.per_s("basalt_fetched_messages_total"),
        "long_polls": rates.count("basalt_waiting_fetches"),
    }


def _transactions(rates: _Rates) -> dict[str, Any]:
    live = "basalt_transactions_live"
    events = ("begun", "committed", "aborted", "invalidated", "conflicts", "timed_out")
    return {
        "open": rates.count(live, OPEN),
        "committing": rates.count(live, COMMITTING),
        "aborting": rates.count(live, ABORTING),
        **{f"{event}_per_s": rates.per_s("basalt_transactions_total", (event,)) for event in events},
        "oldest_age_ms": rates.age_ms("basalt_transactions_oldest_seconds"),
        "readers_wait_ms": rates.age_ms("basalt_transactions_oldest_blocking_seconds"),
        "invalid": rates.count("basalt_transactions_invalid"),
    }


def _topics(rates: _Rates, limit: int, namespace: str | None) -> list[dict[str, Any]]:
    """The topics, busiest first, and the sum of those that the server does not tell apart."""
    found: list[dict[str, Any]] = []
    for title, published in rates.after.get("basalt_topic_published_messages_total", {}).items():
        space, name = title
        if namespace is not None and space != namespace:
            continue
        found.append(
            {
                "topic": OTHER_TOPICS if name == OTHER_TOPICS else f"{space}:{name}",
                "published_per_s": rates.per_s("basalt_topic_published_messages_total", title),
                "published_bytes_per_s": rates.per_s("basalt_topic_published_bytes_total", title),
                "read_per_s": rates.per_s("basalt_topic_fetched_messages_total", title),
                "read_bytes_per_s": rates.per_s("basalt_topic_fetched_bytes_total", title),
                "published_messages": int(published),
            }
        )
    found.sort(key=lambda topic: (-topic["published_per_s"] - topic["read_per_s"], -topic["published_messages"]))
    return found[:limit]


def _groups(rates: _Rates, limit: int, namespace: str | None) -> list[dict[str, Any]]:
    """The consumer groups that the server tells apart, that which is furthest behind first."""
    found: list[dict[str, Any]] = []
    for labels, lag_messages in rates.after.get("basalt_group_lag_messages", {}).items():
        group, space, topic = labels
        if namespace is not None and space != namespace:
            continue
        reasons = [
            each for each in rates.after.get("basalt_group_returned_total", {}) if (each[0], each[1], each[3]) == labels
        ]
        found.append(
            {
                "group": f"{space}:{topic}/{group}",
                "lag_messages": int(lag_messages),
                "oldest_ms": round((rates.now("basalt_group_lag_seconds", labels) or 0) * 1_000),
                "members": rates.count("basalt_group_members", labels),
                "acknowledged_per_s": rates.per_s("basalt_group_acknowledged_total", labels),
                "returned_per_s": round(sum(rates.per_s("basalt_group_returned_total", each) for each in reasons), 3),
            }
        )
    found.sort(key=lambda group: (-group["lag_messages"], group["group"]))
    return found[:limit]


def _went(history: SeriesPage) -> list[dict[str, Any]]:
    """The figures: the newest value of each, and how it went."""
    found: list[dict[str, Any]] = []
    for figure in history.figures:
        values = history.values[figure.name]
        newest = next((value for value in reversed(values) if value is not None), None)
        found.append({"figure": figure.name, "unit": figure.unit, "now": newest, "values": list(values)})
    return found


def bars(values: Sequence[float | None]) -> str:
    """A line of bars, from nothing to the most that there was; a gap is a space."""
    most = max((value for value in values if value is not None), default=0.0)
    last = len(BARS) - 1
    return "".join(
        " " if value is None else BARS[0] if most <= 0 else BARS[round(max(value, 0.0) / most * last)]
        for value in values
    ).rstrip()


def _in_words(figure: Mapping[str, Any]) -> dict[str, Any]:
    """A figure as a line of a table. Bars only where the terminal has them."""
    value, unit = figure["now"], figure["unit"]
    now = plain(None) if value is None else duration_text(value * 1_000) if unit == "s" else count_text(value)
    try:
        BARS.encode(
            (sys.__stdout__ and sys.__stdout__.encoding) or "ascii"
        )  # rich puts a file of its own in place of stdout
    except (UnicodeEncodeError, LookupError):
        return {"figure": figure["figure"], "now": now, "last_10_min": None}
    return {"figure": figure["figure"], "now": now, "last_10_min": bars(figure["values"])}


def _job(job: JobInfo, now_ms: int) -> dict[str, Any]:
    """A job as a row: `late_ms` is since when it should have run."""
    state = "running" if job.running else "paused" if job.paused else "waiting" if job.enabled else "off"
    late_ms = 0 if job.next_run_ms is None or state != "waiting" else max(0, now_ms - job.next_run_ms)
    return {**row(job), "state": state, "late_ms": late_ms}


def _write(invocation: Invocation, shown: dict[str, Any]) -> None:
    out = invocation.out
    if not out.for_people:
        out.record(shown)
        return
    for line in _head(shown):
        out.line(line)
    for heads, rows in _tables(shown):
        out.line("")
        out.rows(heads, rows)


def _screen(shown: dict[str, Any]) -> Group:
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [Text(line) for line in _head(shown)]
    for heads, rows in _tables(shown):
        parts += [Text(), rich_table(heads, rows)]
    return Group(*parts)


def _tables(shown: dict[str, Any]) -> tuple[tuple[Sequence[Column], list[dict[str, Any]]], ...]:
    """Figures and jobs before the groups and the topics: of those there may be more than a screen has lines."""
    groups = ((_GROUPS, shown["groups"]),) if shown["groups"] else ()
    figures = ((_WENT, [_in_words(each) for each in shown["figures"]]),) if shown["figures"] else ()
    return *figures, (_JOBS, shown["jobs"]), *groups, (_TOPICS, shown["topics"])


def _head(shown: dict[str, Any]) -> Iterator[str]:
    server, transactions = shown["server"], shown["transactions"]
    yield printable(
        f"{server['url']}: basalt {server['version']}, store {server['store']}, up {duration_text(server['up_ms'])},"
        f" CPU {server['cpu_percent']} %, memory {size_text(server['memory_bytes'])}"
    )
    yield (
        f"{_per_s(server, 'published', 'read', 'requests', 'problems')}, {count_text(server['long_polls'])} long polls wait"
    )
    live = ", ".join(f"{count_text(transactions[state])} {state}" for state in ("open", "committing", "aborting"))
    yield (
        f"transactions: {live}; {_per_s(transactions, 'begun', 'committed', 'aborted', 'conflicts', 'timed_out')};"
        f" oldest {duration_text(transactions['oldest_age_ms'])},"
        f" readers wait for {duration_text(transactions['readers_wait_ms'])}"
    )


def _per_s(figures: Mapping[str, Any], *names: str) -> str:
    return ", ".join(f"{count_text(figures[f'{name}_per_s'])} {name.replace('_', ' ')}/s" for name in names)


@command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--from", "since", metavar="SPEC", help="Begin at this time: -1h, or @ and a time.  [default: -10m]")
@click.option("--to", "until", metavar="SPEC", help="End before this time.  [default: now]")
@click.option(
    "--step",
    "step_ms",
    type=DurationMs(minimum_ms=STEP_MS_MIN),
    metavar="DURATION",
    help="Time of one line.  [default: as fine as the server has it]",
)
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values; a gap is an empty one.")
def series(
    invocation: Invocation,
    names: tuple[str, ...],
    since: str | None,
    until: str | None,
    step_ms: int | None,
    as_csv: bool,
) -> None:
    """Show how a server's figures went: rates, latencies, transactions, lag, memory.

    There is a value for each second of the last 10 minutes, for 10 seconds each of 6 hours, and for each minute of 8 days. Names may
    have commas between. Without a name the figures that there are, are listed. A gap is a time at which the server did not run, or had no
    such figure.
    """
    if as_csv and not names:
        raise Usage("--csv needs the names of figures", hint="`basalt series` lists them")
    asked = [name for each in names for name in each.split(",") if name]
    with invocation.client() as client:
        page = client.admin.series(asked, since=since, until=until, step_ms=step_ms)
    if as_csv:
        _write_csv(page)
    elif not asked:
        invocation.out.rows(
            _FIGURES, [{"name": each.name, "unit": each.unit, "help": each.help} for each in page.figures]
        )
    else:
        _write_rows(invocation, page)


def _write_rows(invocation: Invocation, page: SeriesPage) -> None:
    heads = [
        Column("time_ms", time_text, "time"),
        *(Column(each.name, _text_of(each), each.name) for each in page.figures),
    ]
    rows: list[dict[str, Any]] = [
        {"time_ms": at_ms, **{name: column[number] for name, column in page.values.items()}}
        for number, at_ms in enumerate(page.time)
    ]
    invocation.out.rows(heads, rows)


def _write_csv(page: SeriesPage) -> None:
    import csv

    out = csv.writer(sys.stdout, lineterminator="\n")
    names = [each.name for each in page.figures]
    out.writerow(["time", *names])
    for number, at_ms in enumerate(page.time):
        values = [page.values[name][number] for name in names]
        out.writerow([time_text(at_ms), *("" if value is None else value for value in values)])


def _text_of(figure: SeriesFigure) -> Any:
    """The text of a cell: a number with its unit where that changes with its size."""
    if figure.unit == "s":
        return lambda value: "-" if value is None else duration_text(value * 1_000)
    return {"B": size_text, "B/s": size_text}.get(figure.unit, count_text)
