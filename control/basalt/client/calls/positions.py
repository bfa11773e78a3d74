"""Positions as callers may write them, turned into what a poll takes: a message id, a time, or nothing for the oldest.

Text is read by `basalt.api.positions`, so the client understands what the command line does.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from basalt.api.positions import START, Position, PositionKind, after_id, at_id, at_time, parse_position
from basalt.client.calls.pages import Message
from basalt.errors import InputError

PositionLike: TypeAlias = bytes | str | int | datetime | Message | Position | None

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

__all__ = [
    "START",
    "Position",
    "PositionKind",
    "PositionLike",
    "after_id",
    "at_id",
    "lowest_id",
    "position",
    "start_from",
]


def position(given: PositionLike, now_ms: int, field: str = "start") -> Position:
    """The position that was meant. None is the start; an int is milliseconds since 1970; text is a SPEC.

    `InputError` names `field` and what is wrong: a date without a time zone, say, which would mean another moment on
    another machine.
    """
    if given is None:
        return START
    if isinstance(given, Position):
        return given
    if isinstance(given, Message):
        return at_id(given.id)
    if isinstance(given, str):
        return parse_position(given, now_ms, field=field)
    if isinstance(given, bytes):
        return at_id(given)
    if isinstance(given, datetime):
        return at_time(max(0, _milliseconds(given, field)))
    if type(given) is int:  # not a bool, which means no time
        return at_time(given)
    raise TypeError(f"{field} is a {type(given).__name__}; give a message, its id, a time or text such as '-1h'")


def start_from(at: Position) -> bytes | int | None:
    """Return a poll's `startFrom` for this position; not for the end, which has to be found first."""
    assert at.kind is not PositionKind.END
    return at.id if at.id is not None else at.time_ms


def lowest_id(at: Position) -> bytes:
    """The smallest message id that is not before this position; not for the end."""
    if at.id is not None:
        return at.id
    return (at.time_ms or 0).to_bytes(8) + bytes(12)  # an id starts with its publish time


def _milliseconds(moment: datetime, field: str) -> int:
    if moment.tzinfo is None:
        raise InputError(
            f"{field} {moment.isoformat()} has no time zone",
            field=field,
            hint="Give one, such as datetime.now(UTC).",
        )
    return (moment - _EPOCH) // _MILLISECOND
