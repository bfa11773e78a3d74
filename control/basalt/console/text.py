"""Text on pages: what clients made up is hostile, so it is escaped and its controls are shown; numbers, sizes and times for people.

Escaping markup is the templates' business. Here characters are shown that would turn a line around, end it, or hide in it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from markupsafe import Markup, escape

NOTHING = "\u2013"  # where there is no value
SHOWN_CHARS_MAX = 65_536  # of one text; the rest is there for download
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DURATIONS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
# Not printable are controls, marks of direction, invisible spaces and lone surrogates. Line ends and tabs are, in a block of text.
_HUMP = re.compile("[A-Z]")
_PLAIN = re.compile(r"[ -~\u00a1-\u00ac\u00ae-\u02ff]*")


def shown(text: object, *, block: bool = False) -> str:
    """The text with `\\u202e` in place of what would not be seen as it is; a block keeps its line ends and tabs."""
    given = str(text)
    cut = given[:SHOWN_CHARS_MAX]
    if _PLAIN.fullmatch(cut) is None:
        cut = "".join(char if char.isprintable() or (block and char in "\n\t") else _escaped(char) for char in cut)
    return cut if len(given) <= SHOWN_CHARS_MAX else f"{cut}… ({len(given) - SHOWN_CHARS_MAX:,} more characters)"


def number(value: float | None) -> str:
    """A number with its thousands apart."""
    if value is None:
        return NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if abs(value) < 1_000 else f"{value:,.0f}"


def size(value: int | None) -> str:
    """Bytes as people read them: 1.5 MiB."""
    if value is None:
        return NOTHING
    amount, unit = float(value), 0
    while abs(amount) >= 1_024 and unit < len(_SIZES) - 1:
        amount, unit = amount / 1_024, unit + 1
    return f"{value:,} B" if unit == 0 else f"{amount:,.1f} {_SIZES[unit]}"


def duration(value_ms: float | None) -> str:
    """A time span in its two largest units: 2 d 3 h, 850 ms."""
    if value_ms is None:
        return NOTHING
    rest = abs(value_ms)
    sign = "-" if value_ms < 0 else ""
    if rest < 1_000:
        return f"{sign}{rest:,.0f} ms"
    parts: list[str] = []
    for unit_ms, name in _DURATIONS:
        count, rest = divmod(rest, unit_ms)
        if count or parts:
            parts.append(f"{count:,.0f} {name}" if count else "")
        if len(parts) == 2:
            break
    return sign + " ".join(filter(None, parts))


def moment(value_ms: int | None) -> Markup:
    """A time in UTC, as an element that a script shows in local time, too."""
    if value_ms is None:
        return escape(NOTHING)
    try:
        at = datetime.fromtimestamp(value_ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        return escape(number(value_ms))
    written = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}">{}</time>').format(written, at.strftime("%Y-%m-%d %H:%M:%S UTC"))


def age(value_ms: int | None, now_ms: int) -> Markup:
    """The time that has passed since, as an element whose text a script keeps up."""
    if value_ms is None:
        return escape(NOTHING)
    written = datetime.fromtimestamp(value_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time class="age" datetime="{}">{}</time>').format(written, duration(max(0, now_ms - value_ms)))


def left(value_ms: int | None, now_ms: int) -> Markup:
    """The time that is left until then, as an element whose text a script runs down."""
    if value_ms is None:
        return escape(NOTHING)
    written = datetime.fromtimestamp(value_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time class="left" datetime="{}">{}</time>').format(written, duration(max(0, value_ms - now_ms)))


def block(text: object) -> Markup:
    """A payload, a plan, a settings file: text of several lines."""
    return Markup("<pre>{}</pre>").format(escape(shown(text, block=True)))


def content(value: bytes | None, chars_max: int = SHOWN_CHARS_MAX) -> str:
    """Bytes of a row, a column or a value: text where they are UTF-8, hex behind 0x otherwise."""
    if value is None:
        return NOTHING
    try:
        given = value.decode("utf-8")
    except UnicodeDecodeError:
        given = f"0x{value[:chars_max].hex()}"
    cut = shown(given[:chars_max])
    return cut if len(given) <= chars_max else f"{cut}… ({len(value):,} bytes)"


def advice(given: str) -> Markup:
    """A sentence of the server's, whose commands are between backticks."""
    parts = (escape(shown(part)) for part in given.split("`"))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else part for place, part in enumerate(parts)
    )


def anchor(name: str) -> str:
    """The part of a link that leads to what has this name on a page."""
    return "".join(each if each.isalnum() else "-" for each in name.lower())


def words(name: str) -> str:
    """The name of a member of an answer, as people read it: externalWrites is external writes."""
    return shown(_HUMP.sub(lambda hump: f" {hump[0].lower()}", name.removesuffix("Ms").replace("_", " ")))


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"
