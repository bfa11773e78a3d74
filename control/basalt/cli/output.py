"""Results on standard output: a table for people, json, jsonl or yaml for programs; and answers and messages as rows for all of them.

Rows have keys in snake case that end in their units. rich is loaded only when standard output is a terminal; elsewhere a table
is plain text in aligned columns. Every form escapes control and bidirectional characters: a payload with an escape sequence in
it could otherwise recolour, rewrite or retitle the terminal of whoever looks at it, and one with a right-to-left override could
show something other than it says.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from msgspec import Struct
    from rich.table import Table

    from basalt.api.bodies.topics import TopicDescription, TopicInfo
    from basalt.api.bodies.transactions import TransactionInfo

Row = Mapping[str, Any]
_TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999, where calendars of four digits end
# Keys that end in _ms and are lengths of time; all others are times.
DURATIONS = frozenset(
    [
        "age_ms",
        "duration_ms",
        "expires_in_ms",
        "interval_ms",
        "lease_age_ms",
        "lease_ms",
        "lifetime_ms",
        "late_ms",
        "lifetime_ms_max",
        "looked_ago_ms",
        "oldest_age_ms",
        "p50_ms",
        "p99_ms",
        "readers_wait_ms",
        "remaining_ms",
        "renewed_ago_ms",
        "skew_ms",
        "ttl_ms",
        "up_ms",
    ]
)

PayloadFormat = Literal["text", "hex", "base64", "raw"]
PAYLOAD_FORMATS: tuple[PayloadFormat, ...] = ("text", "hex", "base64", "raw")
ID_PUBLISH_MS_BYTES = 8  # a message id starts with the time of its publish
_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")
_UNSAFE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0 and C1 controls
    "\u00ad\u061c\u180e"  # soft hyphen, Arabic letter mark, Mongolian vowel separator
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero-width, line separators, bidirectional controls
    "\ufeff\ufff9-\ufffb"  # byte order mark, interlinear annotations
    "\ud800-\udfff"  # surrogates: bytes of an argument or a file name that were not UTF-8
    "\U000e0000-\U000e0fff"  # tags
    "]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """The text on one line, with unsafe characters as \\n, \\x1b, \\u202e; backslashes stay as they are."""
    return _UNSAFE.sub(_escape, text)


def printable_bytes(payload: bytes) -> str:
    """A payload as text; bytes that are not UTF-8 as \\xff."""
    return printable(payload.decode("utf-8", errors="backslashreplace"))


def safe_json(text: str) -> str:
    """JSON with unsafe characters inside its strings as \\u escapes; line ends stay."""
    return _UNSAFE.sub(lambda match: match[0] if match[0] == "\n" else _json_escape(match[0]), text)


def safe_yaml(text: str) -> str:
    """YAML whose strings with unsafe characters are all in double quotes, with those escaped; line ends stay."""
    return _UNSAFE.sub(lambda match: match[0] if match[0] == "\n" else _escape(match), text)


def is_safe(text: str) -> bool:
    """True if `printable` would leave the text as it is."""
    return _UNSAFE.search(text) is None


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


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
    """Milliseconds since 1970 as RFC 3339 in UTC, such as 2026-01-31T10:00:00.000Z; 0, which is no time, as -."""
    if value == 0:
        return "-"
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
    def name(self) -> str:
        """The title, or the key in words."""
        return self.title or self.key.replace("_", " ")


def columns(keys: str, *, counts: str = "", **titles: str) -> tuple[Column, ...]:
    """The columns of these keys, in order. A key's unit says how its cells are written; `counts` have commas at thousands."""
    named = {key: titles.get(key, key.removesuffix("_ms").replace("_", " ")) for key in keys.split()}
    return tuple(Column(key, _text_of(key, counts.split()), title) for key, title in named.items())


def _text_of(key: str, counts: Sequence[str]) -> Callable[[object], str]:
    if key in counts:
        return count_text
    if key in DURATIONS:
        return duration_text
    return time_text if key.endswith("_ms") else size_text if key.endswith("bytes") else plain


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
            self._listing([(column.name, column.text(row.get(column.key))) for column in shown])
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
        sys.stdout.write(text + "\n")

    def _listing(self, pairs: Sequence[tuple[str, str]]) -> None:
        width = max((len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            self.line(f"{name:<{width}}  {value}".rstrip())

    def _table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        if sys.stdout.isatty() and _has_rich():
            from rich.console import Console

            Console(highlight=False).print(rich_table(columns, rows))
            return
        headings, numeric, cells = _cells(columns, rows)
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


def _cells(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[list[str], list[bool], list[list[str]]]:
    """The headings, which columns hold numbers, and the cells in text."""
    numeric = [
        column.text is not time_text and _is_numeric([row.get(column.key) for row in rows]) for column in columns
    ]
    cells = [[column.text(row.get(column.key)) for column in columns] for row in rows]
    return [column.name.upper() for column in columns], numeric, cells


def _has_rich() -> bool:
    """True where tables and progress can be drawn; the client alone comes without rich, and writes plain lines."""
    try:
        import rich  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def rich_table(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """A table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    headings, numeric, cells = _cells(columns, rows)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, right in zip(headings, numeric, strict=True):
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for line in cells:
        table.add_row(*(Text(cell) for cell in line))  # Text: brackets in a name are not rich's markup
    return table


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
    if not (sys.stderr.isatty() and _has_rich()):
        yield lambda _amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)


def row(answer: Struct | Mapping[str, Any]) -> dict[str, Any]:
    """An answer of the admin API as a row; a name in it (of a report, say) becomes snake case too."""
    if not isinstance(answer, Mapping):
        return {name: _inner(getattr(answer, name)) for name in answer.__struct_fields__}
    return {_HUMP.sub(lambda hump: f"_{hump[1].lower()}", name): _inner(value) for name, value in answer.items()}


def topic_row(info: TopicInfo | TopicDescription, namespace: str) -> dict[str, Any]:
    """A topic as a row: the properties that have a type of their own, and the others."""
    others = dict(info.properties)
    return {
        "name": info.name,
        "namespace": namespace,
        "generation": int(others.pop("generation")),
        "ttl_ms": int(others.pop("ttl")) * 1_000,
        "spread": int(others.pop("spread", "1")),
        "on_invalid": others.pop("onInvalid", None),
        "properties": others,
    }


def described_topic_row(topic: TopicDescription) -> dict[str, Any]:
    """A topic as the admin API describes it, as a row."""
    shown = topic_row(topic, topic.namespace)
    # With the generation of its own, for in the properties it is negative once the topic is deleted.
    figures = {} if topic.figures is None else row(topic.figures)
    return (
        shown | figures | {name: value for name, value in row(topic).items() if name not in ("properties", "figures")}
    )


TRANSACTION_COLUMNS = columns(
    "id state kind owner began_ms expires_ms topics write_pointer read_pointer external_writes"
)


def transaction_row(info: TransactionInfo) -> dict[str, Any]:
    """A transaction as a row; what an ended one no longer has is None."""
    found = {column.key: getattr(info, column.key) for column in TRANSACTION_COLUMNS}
    topics = [f"{topic.namespace}:{topic.topic}" for topic in info.topics]
    return {**found, "kind": info.kind or None, "owner": info.owner or None, "topics": topics}


def _inner(value: Any) -> Any:
    if isinstance(value, Mapping) or hasattr(value, "__struct_fields__"):
        return row(value)
    if isinstance(value, bytes):  # an id
        return value.hex()
    return [_inner(item) for item in value] if isinstance(value, list | tuple) else value


def publish_ms(message_id: bytes) -> int:
    """The time at which the message of this id was published, in milliseconds since 1970."""
    return int.from_bytes(message_id[:ID_PUBLISH_MS_BYTES])


def payload_line(payload: bytes, form: PayloadFormat) -> str:
    """A payload on one line; text with what is not printable, or not UTF-8, as escapes."""
    if form == "hex":
        return payload.hex()
    if form == "base64":
        return base64.b64encode(payload).decode("ascii")
    return printable_bytes(payload)


def message_line(message_id: bytes, payload: bytes, form: PayloadFormat, carried: str = "") -> str:
    """A message on one line: id, time of publish, what it carries beside its payload if that is anything, payload."""
    shown = (message_id.hex(), time_text(publish_ms(message_id)), carried, payload_line(payload, form))
    return "  ".join(shown if carried else (*shown[:2], shown[3]))


def bytes_field(name: str, content: bytes, form: PayloadFormat = "text") -> dict[str, str]:
    """Bytes as a field of a row: text under `name`, or `name_base64` when they are not UTF-8 (or asked for)."""
    if form == "hex":
        return {f"{name}_hex": content.hex()}
    if form != "base64":
        try:
            return {name: content.decode("utf-8")}
        except UnicodeDecodeError:
            pass
    return {f"{name}_base64": base64.b64encode(content).decode("ascii")}


def message_row(message_id: bytes, payload: bytes, form: PayloadFormat) -> dict[str, Any]:
    """A message as a row: id, publish_ms, and the payload."""
    return {"id": message_id.hex(), "publish_ms": publish_ms(message_id), **bytes_field("payload", payload, form)}
