"""The minutes of figures as rows of the system table: bytes, what comes back after a restart, and what is left out."""

from __future__ import annotations

from array import array
from math import isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.operations.series import days as module
from basalt.operations.series.days import (
    DAY_MINUTES,
    DAYS_KEPT,
    KIND,
    NAME_BYTES_MAX,
    NAMES_MAX,
    SAVE_INTERVAL_MS,
    Day,
    SeriesDays,
    day_name,
    decode_day,
    encode_day,
)
from basalt.operations.series.series import MINUTE, Figure, Series
from basalt_engine.errors import CorruptionError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable
from tests.vector_lines import lines

DAY = 19_676  # 2023-11-15
DAY_MS = DAY_MINUTES * MINUTE.step_ms
TABLE = (Figure("a", "", "most", "a", ""), Figure("b", "", "most", "b", ""))
LAG = "lag_messages:shop:orders/billing"


@pytest.fixture
def system() -> SystemTable:
    return SystemTable(MemoryStore().table(SystemTable.name))


def known(values) -> list[float | None]:
    return [None if isnan(value) else value for value in values]


def filled(first: int, count: int) -> Series:
    """Series with the minutes from `first` on."""
    series = Series(TABLE)
    for slot in range(first, first + count):
        series.minutes[0].put(slot, {"a": slot % 1_000, "b": 1})
        series.minutes[1].put(slot, {LAG: 7})
    return series


def reopened(system: SystemTable, now_ms: int) -> Series:
    series = Series(TABLE)
    SeriesDays(system, series).load(now_ms)
    return series


def save(system: SystemTable, series: Series, now_ms: int) -> SeriesDays:
    days = SeriesDays(system, series)
    days.write(days.taken(now_ms))
    return days


def test_a_day_is_written_as_its_vector_says_and_read_back():
    ((_, data, meaning),) = lines("series-day")
    day = Day(
        meaning["first"],
        {
            name: array("f", [nan if value is None else value for value in values])
            for name, values in meaning["columns"].items()
        },
    )
    assert SystemTable.put(KIND, meaning["day"], encode_day(day)).columns == {b"v": data}
    read = decode_day(data[1:-4])
    assert (read.first, {name: known(column) for name, column in read.columns.items()}) == (
        meaning["first"],
        meaning["columns"],
    )


@given(
    st.integers(0, 100),
    st.dictionaries(
        st.text(min_size=1, max_size=20), st.lists(st.floats(width=32), min_size=3, max_size=3), min_size=1, max_size=5
    ),
)
def test_every_day_comes_back_as_it_was(first, columns):
    day = Day(first, {name: array("f", values) for name, values in columns.items()})
    read = decode_day(encode_day(day))
    assert read.first == first
    assert {name: known(column) for name, column in read.columns.items()} == {
        name: known(column) for name, column in day.columns.items()
    }


@given(st.binary(max_size=60), st.integers(0, 200))
def test_bytes_that_are_no_day_are_refused_and_nothing_else(noise, cut):
    whole = encode_day(Day(3, {"a": array("f", [1, 2]), "b": array("f", [nan, 2])}))
    for body in (noise, whole[:cut], whole[:7] + noise):
        try:
            decode_day(body)
        except CorruptionError:
            continue
        assert body[: len(whole)] == whole[: len(body)]


def test_a_frame_that_says_that_it_is_huge_is_not_unpacked():
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(2 * (2 + NAME_BYTES_MAX + 4)))
    with pytest.raises(CorruptionError, match="more bytes than it can"):
        decode_day(b"\x01\x00\x00\x00\x01\x00\x01" + bomb)
    with pytest.raises(CorruptionError, match="names"):
        decode_day(b"\x01\x00\x00\x00\x01" + (NAMES_MAX + 1).to_bytes(2, "big") + bomb)


def test_history_goes_on_after_a_restart_with_the_time_between_as_a_gap(system):
    first = DAY * DAY_MINUTES + 100
    save(system, filled(first, 30), (first + 30) * MINUTE.step_ms)
    series = reopened(system, (first + 35) * MINUTE.step_ms)
    ring, groups = series.minutes
    ring.put(first + 35, {"a": 5})
    assert known(ring.read("a", first + 28, first + 35)) == [*((first + n) % 1_000 for n in (28, 29)), *[None] * 5, 5]
    assert known(ring.read("b", first - 1, first)) == [None, 1]
    assert known(groups.read(LAG, first + 29, first + 30)) == [7, None]
    assert series.find(LAG) is not None


def test_a_figure_that_is_new_after_a_restart_begins_in_its_own_minute(system):
    first = DAY * DAY_MINUTES
    save(system, filled(first, 10), (first + 10) * MINUTE.step_ms)
    ring = reopened(system, (first + 11) * MINUTE.step_ms).minutes[0]
    ring.put(first + 11, {"new": 3})
    assert known(ring.read("new", first + 9, first + 12)) == [None, None, 3, None]


def test_several_days_are_a_row_each_and_come_back_as_one_stretch(system):
    first = DAY * DAY_MINUTES + 1_430
    save(system, filled(first, 1_460), (first + 1_460) * MINUTE.step_ms)
    assert [name for name, _ in system.scan(KIND)] == ["2023-11-15", "2023-11-16", "2023-11-17"]
    ring = reopened(system, (first + 1_461) * MINUTE.step_ms).minutes[0]
    assert None not in known(ring.read("a", first, first + 1_459))


def test_only_days_with_something_new_are_written_again_and_at_most_every_ten_minutes(system):
    first = DAY * DAY_MINUTES
    series = filled(first, 1_500)
    now_ms = (first + 1_500) * MINUTE.step_ms
    days = save(system, series, now_ms)
    assert not days.due(now_ms + SAVE_INTERVAL_MS)  # nothing has come
    series.minutes[0].put(first + 1_500, {"a": 1})
    assert not days.due(now_ms + SAVE_INTERVAL_MS - 1)
    assert days.due(now_ms + SAVE_INTERVAL_MS)
    assert days.due(now_ms - 1)  # a clock that was set back
    assert [number for number, _ in days.taken(now_ms)] == [DAY + 1]


def test_minutes_whose_write_failed_are_written_the_next_time(system):
    series = filled(DAY * DAY_MINUTES, 1_500)
    days = SeriesDays(system, series)
    now_ms = (DAY + 2) * DAY_MS
    assert [number for number, _ in days.taken(now_ms)] == [DAY, DAY + 1]
    days.forget_saved()
    assert [number for number, _ in days.taken(now_ms)] == [DAY, DAY + 1]
    assert [number for number, _ in days.taken(now_ms)] == [DAY + 1]


def test_days_that_no_ring_reaches_back_to_are_deleted_and_not_read(system):
    save(system, filled(DAY * DAY_MINUTES, 10), (DAY + 1) * DAY_MS)
    later = DAY + DAYS_KEPT
    assert reopened(system, later * DAY_MS).minutes[0].newest is None
    save(system, filled(later * DAY_MINUTES, 10), (later + 1) * DAY_MS)
    assert [name for name, _ in system.scan(KIND)] == [day_name(later)]


def test_what_is_of_the_future_is_left_out(system):
    save(system, filled((DAY + 3) * DAY_MINUTES, 10), (DAY + 4) * DAY_MS)
    assert reopened(system, DAY * DAY_MS).minutes[0].newest is None
    ring = reopened(system, (DAY + 3) * DAY_MS + 4 * MINUTE.step_ms).minutes[0]
    assert ring.newest == (DAY + 3) * DAY_MINUTES + 3


def test_a_row_that_cannot_be_read_is_left_out_and_told(system, caplog):
    save(system, filled(DAY * DAY_MINUTES, 2_000), (DAY + 2) * DAY_MS)
    system.write(KIND, day_name(DAY), b"\x01nothing")
    system.write(KIND, "no day", b"")
    ring = reopened(system, (DAY + 2) * DAY_MS).minutes[0]
    assert ring.oldest == (DAY + 1) * DAY_MINUTES
    assert caplog.text.count("left out") == 2


def test_a_column_that_is_no_figure_any_more_is_left_out(system):
    first = DAY * DAY_MINUTES
    save(system, filled(first, 10), (first + 10) * MINUTE.step_ms)
    series = Series(TABLE[:1])
    SeriesDays(system, series).load((first + 11) * MINUTE.step_ms)
    assert set(series.minutes[0].names) == {"a"}


def test_nothing_is_written_before_a_minute_is_over(system):
    days = SeriesDays(system, Series(TABLE))
    assert not days.due(DAY * DAY_MS)
    assert days.write(days.taken(DAY * DAY_MS)) == 0
    assert list(system.scan(KIND)) == []
    assert module.FORM == 1
