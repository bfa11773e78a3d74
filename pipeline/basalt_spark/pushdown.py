"""Filters that bound a range: comparisons of `publish_time` and `id` with constants. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

from basalt_spark.offset import ID_BYTES
from basalt_spark.read_edges import before_id, before_time

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_NOWHERE = b""  # before every id: nothing is up to it


class Bounds(NamedTuple):
    """The rows that filters let through lie in (after, through]; None: unbounded."""

    after: bytes | None = None
    through: bytes | None = None

    def within(self, after: bytes | None, through: bytes | None) -> tuple[bytes | None, bytes | None]:
        """The part of (after, through] that lies within the bounds; `through` is None where that is nothing."""
        if self.after is not None:
            after = self.after if after is None else max(after, self.after)
        if self.through is not None and through is not None:
            through = min(through, self.through)
        return after, None if not through or (after is not None and after >= through) else through

    def both(self, other: Bounds) -> Bounds:
        """What lies within these and within others."""
        after = max(filter(None, (self.after, other.after)), default=None)
        through = min((one for one in (self.through, other.through) if one is not None), default=None)
        return Bounds(after, through)


EVERYTHING = Bounds()


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """The range outside of which these filters, all of them, let nothing through."""
    bounds = EVERYTHING
    for given in filters:
        bounds = bounds.both(_bounds(given))
    return bounds


def _bounds(given: Filter) -> Bounds:
    if not isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return EVERYTHING
    if given.attribute == ("publish_time",):
        edges = _edges_of_time(given.value)
    elif given.attribute == ("id",):
        edges = _edges_of_id(given.value)
    else:
        return EVERYTHING
    if edges is None:
        return EVERYTHING
    below, through = edges
    if isinstance(given, EqualTo):
        return Bounds(below, through or _NOWHERE)
    if isinstance(given, GreaterThan):
        return Bounds(after=through)
    if isinstance(given, GreaterThanOrEqual):
        return Bounds(after=below)
    return Bounds(through=(through if isinstance(given, LessThanOrEqual) else below) or _NOWHERE)


def _edges_of_time(value: Any) -> tuple[bytes | None, bytes | None] | None:
    """The last ids before this moment and at it. Messages have whole milliseconds; a moment between two is at none."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value - _EPOCH
    if since < timedelta(0):
        return None
    whole_ms = since // _MILLISECOND
    before = before_time(whole_ms if whole_ms * _MILLISECOND == since else whole_ms + 1)
    return before, before_time(whole_ms + 1)


def _edges_of_id(value: Any) -> tuple[bytes | None, bytes | None] | None:
    """The last ids before these bytes and at them. Bytes of another length are compared as bytes are, as Spark does."""
    if not isinstance(value, bytes | bytearray):
        return None
    padded = bytes(value[:ID_BYTES]).ljust(ID_BYTES, b"\0")
    if len(value) <= ID_BYTES:
        # Shorter bytes are less than every id that they begin; longer ones lie behind the id that begins them.
        return before_id(padded), padded if len(value) == ID_BYTES else before_id(padded)
    return padded, padded
