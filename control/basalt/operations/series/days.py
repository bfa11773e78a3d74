"""The minutes of a server's figures in the system table: a row for each day, so that charts survive a restart.

Format: docs/formats/series-day.md. The job `stats` writes the present day every ten minutes, and so does a server that stops: after a crash up to
ten minutes are a gap. A row that cannot be read is left out and told in the log, for no start is to fail on a chart.
"""

from __future__ import annotations

import logging
import struct
from array import array
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from math import isnan, nan
from typing import NamedTuple

import zstandard

from basalt.operations.series.series import GROUPS_SHOWN_MAX, LAG_MESSAGES, LAG_SECONDS, MINUTE, Ring, Series
from basalt_engine.errors import BasaltError, CorruptionError
from basalt_engine.system import SystemTable
from basalt_engine.table import Mutation

KIND = "series"
FORM = 1
DAY_MINUTES = 1_440
DAYS_KEPT = MINUTE.slots // DAY_MINUTES + 1  # the first one in part
SAVE_INTERVAL_MS = 600_000  # of rows that may have a hundred KiB and more: a day writes some ten MiB of them
NAMES_MAX = 1_000  # of one row: twice as many as there can be
NAME_BYTES_MAX = 1_024  # of one: namespace, topic and group have up to 255 each
_ZSTD_LEVEL = 3  # one of numbers like these takes some milliseconds; a higher one saves a twentieth
_HEAD = struct.Struct(">BHHH")  # form, first minute, number of minutes, number of names
_LENGTH = struct.Struct(">H")

log = logging.getLogger("basalt.series")


class Day(NamedTuple):
    """Columns of one length: the values of the minutes of a day from `first` on; not a number is a gap."""

    first: int
    columns: Mapping[str, array[float]]


def encode_day(day: Day) -> bytes:
    """The body of a day's row."""
    parts: list[bytes] = []
    lengths = {len(column) for column in day.columns.values()}
    assert len(lengths) == 1, lengths
    for name in sorted(day.columns):
        encoded = name.encode()
        parts += [_LENGTH.pack(len(encoded)), encoded, _swapped(day.columns[name]).tobytes()]
    head = _HEAD.pack(FORM, day.first, lengths.pop(), len(day.columns))
    return head + zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(b"".join(parts))


def decode_day(body: bytes) -> Day:
    """The day in a row; `CorruptionError` for what is none."""
    if len(body) < _HEAD.size:
        raise CorruptionError(f"a day of series has {len(body)} bytes, fewer than its head")
    form, first, minutes, names = _HEAD.unpack_from(body)
    if form != FORM:
        raise CorruptionError(f"a day of series has form {form}; this Basalt reads form {FORM}")
    if not (minutes > 0 and first + minutes <= DAY_MINUTES and 0 < names <= NAMES_MAX):
        raise CorruptionError(f"a day of series says {minutes} minutes from {first} on, and {names} names")
    bytes_max = names * (_LENGTH.size + NAME_BYTES_MAX + 4 * minutes)
    try:
        if not 0 < zstandard.frame_content_size(body[_HEAD.size :]) <= bytes_max:
            raise CorruptionError("a day of series says that it has more bytes than it can")
        data = zstandard.ZstdDecompressor().decompress(body[_HEAD.size :], allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptionError(f"a day of series cannot be decompressed: {error}") from None
    columns: dict[str, array[float]] = {}
    at = 0
    for _ in range(names):
        if at + _LENGTH.size > len(data):
            raise CorruptionError("a day of series is cut")
        (length,) = _LENGTH.unpack_from(data, at)
        stop = at + _LENGTH.size + length
        column = array("f")
        if stop + 4 * minutes > len(data):
            raise CorruptionError("a day of series is cut")
        column.frombytes(data[stop : stop + 4 * minutes])
        try:
            columns[data[at + _LENGTH.size : stop].decode()] = _swapped(column)
        except UnicodeDecodeError:
            raise CorruptionError("a day of series has a name that is not UTF-8") from None
        at = stop + 4 * minutes
    if at != len(data) or len(columns) != names:
        raise CorruptionError("a day of series has bytes behind its end, or a name twice")
    return Day(first, columns)


class SeriesDays:
    """Keeps the minutes of series in the system table. Its calls read and write the store: make them on a thread."""

    def __init__(self, system: SystemTable, series: Series) -> None:
        self._system = system
        self.series = series
        self._saved_ms: int | None = None
        self._saved_slot = -1  # the newest minute that a row has

    def load(self, now_ms: int) -> None:
        """Begin with the minutes that were kept, up to the present one."""
        today = now_ms // MINUTE.step_ms // DAY_MINUTES
        days = dict[int, Day]()
        for name, body in self._rows(day_name(today - DAYS_KEPT + 1)):
            try:
                days[_number_of(name)] = decode_day(body)
            except (CorruptionError, ValueError) as error:
                log.warning("the series of %s are left out: %s", name[:40], error)
        days = {number: day for number, day in days.items() if today - DAYS_KEPT < number <= today}
        for ring, of_groups in zip(self.series.minutes, (False, True), strict=True):
            _fill(ring, days, of_groups, set(self.series.figures), now_ms // MINUTE.step_ms)
        newest = [ring.newest for ring in self.series.minutes if ring.newest is not None]
        self._saved_slot = max(newest, default=-1)

    def due(self, now_ms: int) -> bool:
        """True where minutes are worth saving: there are some that no row has, and the last look is some time ago."""
        newest = self.series.minutes[0].newest
        if newest is None or newest == self._saved_slot:
            return False
        return self._saved_ms is None or not 0 <= now_ms - self._saved_ms < SAVE_INTERVAL_MS

    def taken(self, now_ms: int) -> list[tuple[int, Day]]:
        """Copy the days that have minutes which no row has yet: on the event loop, to be written on a thread."""
        ring, groups = self.series.minutes
        if ring.newest is None:
            return []
        first = min(max(self._saved_slot + 1, ring.oldest), ring.newest)
        numbers = range(first // DAY_MINUTES, ring.newest // DAY_MINUTES + 1)
        self._saved_ms, self._saved_slot = now_ms, ring.newest
        return [(number, _day_of(ring, groups, number)) for number in numbers]

    def write(self, days: list[tuple[int, Day]]) -> int:
        """Write these days, and delete those that no ring reaches back to; how many bytes were written."""
        rows = [(number, encode_day(day)) for number, day in days]
        if not rows:
            return 0
        mutations: list[Mutation] = [SystemTable.put(KIND, day_name(number), body) for number, body in rows]
        oldest = day_name(rows[-1][0] - DAYS_KEPT + 1)
        mutations += [SystemTable.delete(KIND, name) for name, _ in self._system.scan(KIND) if name < oldest]
        self._system.write_all(mutations)
        return sum(len(body) for _, body in rows)

    def forget_saved(self) -> None:
        """A write failed: the next one has its minutes, too."""
        self._saved_slot = -1

    def _rows(self, start: str) -> list[tuple[str, bytes]]:
        try:
            return list(self._system.scan(KIND, start))
        except BasaltError as error:
            log.warning("the series that were kept are left out: %s", error.message)
            return []


def day_name(number: int) -> str:
    """The name of a day's row, by the number of days since 1970; names sort as days do."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=number)).strftime("%Y-%m-%d")


def _number_of(name: str) -> int:
    return (datetime.fromisoformat(name).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days


def _day_of(ring: Ring, groups: Ring, number: int) -> Day:
    assert ring.newest is not None
    first = max(number * DAY_MINUTES, ring.oldest)
    last = min((number + 1) * DAY_MINUTES - 1, ring.newest)
    columns = {name: array("f", each.read(name, first, last)) for each in (ring, groups) for name in each.names}
    return Day(first - number * DAY_MINUTES, columns)


def _fill(ring: Ring, days: Mapping[int, Day], of_groups: bool, figures: set[str], now: int) -> None:
    """Lay the columns of several days behind each other, with gaps where nothing is known."""
    prefixes = (f"{LAG_MESSAGES}:", f"{LAG_SECONDS}:")
    names = {
        name
        for day in days.values()
        for name in day.columns
        if name in figures or (of_groups and name.startswith(prefixes))
    }
    names = {name for name in names if name.startswith(prefixes) == of_groups}
    starts = [number * DAY_MINUTES + day.first for number, day in days.items()]
    if not names or len(names) > max(len(figures), 2 * GROUPS_SHOWN_MAX):
        return
    first = max(min(starts), now - ring.slots + 1)
    ends = [start + len(next(iter(days[number].columns.values()))) for start, number in zip(starts, days, strict=True)]
    stop = min(max(ends), now)
    if stop <= first:
        return
    columns = {name: array("f", [nan]) * (stop - first) for name in names}
    for number, day in days.items():
        start = number * DAY_MINUTES + day.first
        for name in names & day.columns.keys():
            column = day.columns[name]
            low, high = max(start, first), min(start + len(column), stop)
            if low < high:
                columns[name][low - first : high - first] = column[low - start : high - start]
    ring.fill(first, {name: column for name, column in columns.items() if not all(map(isnan, column))} or columns)


def _swapped(column: array[float]) -> array[float]:
    """The values with the bytes of each in the order of the format, which is big-endian; and back."""
    swapped = array("f", column)
    if _LITTLE_ENDIAN:
        swapped.byteswap()
    return swapped


_LITTLE_ENDIAN = array("H", [1]).tobytes() == b"\x01\x00"
