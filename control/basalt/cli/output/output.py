"""Results on standard output: a table for people, json, jsonl or yaml for programs.

rich is loaded only when standard output is a terminal; elsewhere a table is plain text in aligned columns. Every form
escapes control and bidirectional characters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from basalt.cli.output.escaping import is_safe, printable, safe_json, safe_yaml

Row = Mapping[str, Any]
_TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999, where calendars of four digits end


def plain(value: object) -> str:
    """A cell: nothing as -, truth as yes or no, anything else as text on one line."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return printable(" ".join(f"{name}={content}" for name, content in value.items())) or "-"
    if isinstance(value, list | tuple):
        return printable(" ".join(str(item) for item in value)) or "-"
    return printable(str(value))


def time_text(value: object) -> str:
    """Milliseconds since 1970 as RFC 3339 in UTC, such as 2026-01-31T10:00:00.000Z."""
    if not isinstance(value, int) or not 0 <= value <= _TIME_MS_MAX:
        return plain(value)
    moment = datetime.fromtimestamp(value // 1_000, tz=UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{value % 1_000:03}Z"


def duration_text(value: object) -> str:
    """Milliseconds as people say them: 850ms, 2.5s, 3m20s, 25h, 7d."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return plain(value)
    if value < 1_000:
        return f"{value:.3g}ms"
    if value < 60_000:
        return f"{value / 1_000:.3g}s"
    units = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
    rest, parts = int(value), []
    for unit, size in units:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def size_text(value: object) -> str:
    """Bytes as people say them: 12 B, 1.5 KiB, 10 MiB."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return plain(value)
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def count_text(value: object) -> str:
    """A number with a comma at every thousand; a fraction with few digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return plain(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"


def counted(count: int, noun: str) -> str:
    """A number and what it counts: 1 message, 1,500 messages."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the row's key, how its cells are written, and a heading if the key will not do."""

    key: str
    text: Callable[[object], str] = plain
    title: str = ""

    @property
    def heading(self) -> str:
        return (self.title or self.key.replace("_", " ")).upper()


@dataclass(frozen=True, slots=True)
class Output:
    """Writes results in one format: table, json, jsonl or yaml."""

    format: str

    @property
    def for_people(self) -> bool:
        """True if sentences are welcome on standard output."""
        return self.format == "table"

    def rows(self, columns: Sequence[Column], rows: Iterable[Row]) -> None:
        """A list of results; programs get every key of a row, people the columns."""
        if self.format == "table":
            self._table(columns, list(rows))
        elif self.format == "jsonl":
            for row in rows:
                self.line(_json(row))
        elif self.format == "yaml":
            empty = True
            for row in rows:
                empty = False
                self.line(_yaml([dict(row)]).rstrip("\n"))
            if empty:
                self.line("[]")
        else:
            separator = "["
            for row in rows:
                self.line(f"{separator} {_json(row)}" if separator == "[" else f", {_json(row)}")
                separator = ","
            self.line("[]" if separator == "[" else "]")

    def record(self, row: Row, columns: Sequence[Column] = ()) -> None:
        """One result: its keys one below the other for people."""
        if self.format == "table":
            shown = columns or [Column(key) for key in row]
            self._listing(
                [(column.title or column.key.replace("_", " "), column.text(row.get(column.key))) for column in shown]
            )
        elif self.format == "yaml":
            self.line(_yaml(dict(row)).rstrip("\n"))
        else:
            self.line(_json(row, indent=2 if self.format == "json" else None))

    def done(self, sentence: str, row: Row) -> None:
        """Tell what a write did: a sentence for people, the row for programs."""
        if self.for_people:
            self.line(printable(sentence))
        else:
            self.record(row)

    def line(self, text: str) -> None:
        """One line as it is."""
        sys.stdout.write(text + "\n")

    def _listing(self, pairs: Sequence[tuple[str, str]]) -> None:
        width = max((len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            self.line(f"{name:<{width}}  {value}".rstrip())

    def _table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        cells = [[column.text(row.get(column.key)) for column in columns] for row in rows]
        numeric = [
            column.text is not time_text and _is_numeric([row.get(column.key) for row in rows]) for column in columns
        ]
        headings = [column.heading for column in columns]
        if sys.stdout.isatty():
            _rich_table(headings, numeric, cells)
            return
        widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
        for line in (headings, *cells):
            padded = (
                f"{cell:>{width}}" if right else f"{cell:<{width}}"
                for cell, width, right in zip(line, widths, numeric, strict=True)
            )
            self.line("  ".join(padded).rstrip())


def _is_numeric(values: Sequence[object]) -> bool:
    numbers = [value for value in values if value is not None]
    return bool(numbers) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers)


def _rich_table(headings: Sequence[str], numeric: Sequence[bool], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, right in zip(headings, numeric, strict=True):
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for line in cells:
        table.add_row(*(Text(cell) for cell in line))  # Text: brackets in a name are not rich's markup
    Console(highlight=False).print(table)


def _json(value: Any, indent: int | None = None) -> str:
    import json

    return safe_json(json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False))


def _yaml(value: Any) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Strings with unsafe characters go in double quotes, where they can be escaped."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if is_safe(value) else '"')

    Dumper.add_representer(str, text)
    return safe_yaml(yaml.dump(value, Dumper=Dumper, allow_unicode=True, sort_keys=False, width=1_000_000))


@contextmanager
def progress(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes how much more is done; `total` None when nobody knows how much there is."""
    if not sys.stderr.isatty():
        yield lambda _amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)
