"""Positions in a topic, as people and query parameters write them: `--from -1h --to now`, `?from=@2026-01-31T10:00:00Z`.

Grammar (docs/reference/cli.md shows examples):

    SPEC     := "start" | "end" | "now" | ID | "@" MS | "@" TIME | SIGN DURATION
    ID       := 40 hexadecimal digits, a message id
    MS       := digits, milliseconds since 1970-01-01T00:00Z
    TIME     := an RFC 3339 date-time; its offset is not optional
    SIGN     := "+" | "-", later or earlier than now
    DURATION := one or more of digits and a unit: ms, s, m, h, d, w

Pure: now is an argument. What lies before 1970 is 1970, so "-9999w" means the start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

from basalt.api.bodies.messages import MESSAGE_ID_BYTES
from basalt.errors import InputError

TIME_MS_MAX = 2**63 - 1  # times are stored in eight bytes, signed
SPEC_CHARS_MAX = 100  # the longest sensible one is a date-time of some 35; a bound keeps error messages short
_SHOWN_CHARS_MAX = 48

UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

_ID = re.compile(r"[0-9a-fA-F]{40}")
_MS = re.compile(r"@[0-9]{1,19}")
_RELATIVE = re.compile(r"([+-])((?:[0-9]{1,15}(?:ms|s|m|h|d|w))+)")
_PART = re.compile(r"([0-9]+)(ms|s|m|h|d|w)")
_DATE_TIME = re.compile(
    r"@([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HINT = "write start, end, now, a message id (40 hex digits), @milliseconds, @2026-01-31T10:00:00Z, -1h or +10m"


class PositionKind(Enum):
    """Measure of a position."""

    START = "start"
    END = "end"
    TIME = "time"
    ID = "id"


@dataclass(frozen=True, slots=True)
class Position:
    """A point between two messages: everything at or after it is on its right.

    `time_ms` is set for `TIME`, `id` (20 bytes) for `ID`; `START` and `END` need neither.
    """

    kind: PositionKind
    time_ms: int | None = None
    id: bytes | None = None

    @property
    def text(self) -> str:
        """The same position as a SPEC without "now" in it, so that another clock reads it alike."""
        if self.time_ms is not None:
            return f"@{self.time_ms}"
        if self.id is not None:
            return self.id.hex()
        return self.kind.value


START = Position(PositionKind.START)
END = Position(PositionKind.END)


def at_time(time_ms: int) -> Position:
    """The position before the first message published at or after `time_ms`."""
    if not 0 <= time_ms <= TIME_MS_MAX:
        raise InputError(f"{time_ms} ms is not a time between 0 and {TIME_MS_MAX}", field="time_ms", hint=_HINT)
    return Position(PositionKind.TIME, time_ms=time_ms)


def at_id(message_id: bytes) -> Position:
    """The position before the message of this id (any 20 bytes; no such message need exist)."""
    if len(message_id) != MESSAGE_ID_BYTES:
        raise InputError(f"a message id is {MESSAGE_ID_BYTES} bytes, not {len(message_id)}", field="id", hint=_HINT)
    return Position(PositionKind.ID, id=bytes(message_id))


def after_id(message_id: bytes) -> Position:
    """The position behind the message of this id: before the id that follows it in byte order."""
    following = int.from_bytes(at_id(message_id).id or b"") + 1
    if following >> (8 * MESSAGE_ID_BYTES):
        return END
    return Position(PositionKind.ID, id=following.to_bytes(MESSAGE_ID_BYTES))


def parse_position(text: str, now_ms: int, *, field: str = "position") -> Position:
    """Read a SPEC. `InputError` names `field` and what is wrong with the text."""
    if len(text) > SPEC_CHARS_MAX:
        raise _refuse(text, field, f"is longer than {SPEC_CHARS_MAX} characters")
    if text == "start":
        return START
    if text == "end":
        return END
    if text == "now":
        return at_time(now_ms)
    if _ID.fullmatch(text):
        return at_id(bytes.fromhex(text))
    if _MS.fullmatch(text):
        return _time(int(text[1:]), text, field)
    if text.startswith("@"):
        return _time(_date_time_ms(text, field), text, field)
    relative = _RELATIVE.fullmatch(text)
    if relative:
        duration_ms = sum(int(count) * UNIT_MS[unit] for count, unit in _PART.findall(relative[2]))
        return _time(max(0, now_ms - duration_ms if relative[1] == "-" else now_ms + duration_ms), text, field)
    raise _refuse(text, field, _why(text))


def _time(time_ms: int, text: str, field: str) -> Position:
    if time_ms > TIME_MS_MAX:
        raise _refuse(text, field, f"is past the last time there is, @{TIME_MS_MAX}")
    return at_time(time_ms)


def _date_time_ms(text: str, field: str) -> int:
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        raise _refuse(text, field, _why(text))
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    offset_hours, offset_minutes = int(match[10] or 0), int(match[11] or 0)
    if offset_hours > 23 or offset_minutes > 59:
        raise _refuse(text, field, "has an offset from UTC that no clock has")
    offset = timedelta(hours=offset_hours, minutes=offset_minutes)
    try:
        local = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError as error:
        raise _refuse(text, field, f"is no date ({error})") from None
    # Arithmetic on the difference, not on the date: an offset in the year 1 or 9999 would leave datetime's range.
    since_epoch = (local - _EPOCH) + (offset if match[9] == "-" else -offset)
    fraction_ms = int(((match[7] or "") + "000")[:3])
    return max(0, since_epoch // timedelta(milliseconds=1) + fraction_ms)


def _why(text: str) -> str:
    if text == "":
        return "is empty"
    if re.fullmatch(r"@[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return "is a date without a time of day and an offset, such as T00:00:00Z"
    if text.startswith("@") and re.search(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?(\.[0-9]+)?$", text):
        return "has no offset from UTC; end it with Z or with one such as +02:00"
    if re.fullmatch(r"@[0-9]+", text):
        return f"is past the last time there is, @{TIME_MS_MAX}"
    if re.fullmatch(r"[+-][0-9.]+", text):
        return "has no unit; the units are ms, s, m, h, d and w"
    if re.fullmatch(r"[0-9a-fA-F]{20,}", text):
        return f"has {len(text)} hex digits; a message id has {2 * MESSAGE_ID_BYTES}"
    if re.fullmatch(r"[0-9]+", text):
        return "is a bare number; milliseconds since 1970 start with @"
    return "is not a position"


def _refuse(text: str, field: str, reason: str) -> InputError:
    shown = text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "…"
    return InputError(f"{field} {shown!r} {reason}", field=field, hint=_HINT)
