"""What regions are told and report: the bytes are those of the vectors, and whatever is not exactly so is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine.errors import CorruptionError
from basalt_engine.snapshot import PointerRuns
from basalt_engine.stores.hbase.regions import (
    OWN_VERSION,
    UNTOLD,
    RegionReport,
    RegionSnapshot,
    StoreFile,
    jar_state,
    version_number,
    version_text,
)
from tests.region_reports import encode_report
from tests.vector_lines import cases, lines

relaxed = settings(deadline=None)
LONGS = st.integers(0, 2**63 - 1)
RUNS = st.lists(st.tuples(st.integers(1, 2**63 - 1), st.integers(0, 5_000)), max_size=4).map(
    lambda found: PointerRuns((first, min(first + more, 2**63 - 1)) for first, more in found)
)
LISTS = st.frozensets(st.integers(1, 2**63 - 1), max_size=6).map(lambda found: tuple(sorted(found)))
FORMATS: dict[str, type[RegionReport] | type[RegionSnapshot]] = {
    "region-report": RegionReport,
    "region-snapshot": RegionSnapshot,
}
WHOLE = [pytest.param(name, *line[1:], id=f"{name} {line[0]}") for name in FORMATS for line in lines(name)]
CORRUPT = [pytest.param(name, line[1], id=f"{name} {line[0]}") for name in FORMATS for line in lines(f"{name}-corrupt")]


@st.composite
def snapshots(draw: st.DrawFn) -> RegionSnapshot:
    write_pointer, in_progress, runs = draw(LONGS), draw(LISTS), draw(RUNS)
    first = min((*in_progress[:1], *runs.edges[:1]), default=2**63)
    decided = draw(st.integers(0, min(write_pointer, first - 1)))
    times = [draw(LONGS) for _ in range(4)]
    lists = (in_progress, draw(LISTS), runs, draw(RUNS))
    return RegionSnapshot._make((*times, write_pointer, decided, draw(LONGS), draw(LONGS), *lists))


def made(name: str, meaning: dict[str, Any]) -> RegionReport | RegionSnapshot:
    if name == "region-snapshot":
        lists = {key: tuple(meaning[key]) for key in ("in_progress", "invalid")}
        ends = {key: meaning[key] for key in ("in_progress_runs", "invalid_runs")}
        runs = {key: PointerRuns(zip(each[::2], each[1::2], strict=True)) for key, each in ends.items()}
        return RegionSnapshot(**{**meaning, **lists, **runs})
    keys = {key: bytes.fromhex(meaning[key]) for key in ("region_name", "start_key")}
    stop = bytes.fromhex(meaning["end_key"])
    files = tuple(StoreFile(**file) for file in meaning["files"])
    rest = {key: value for key, value in meaning.items() if key not in (*keys, "end_key", "files")}
    return RegionReport(**rest, **keys, stop_key=stop, files=files)


def encoded(value: RegionReport | RegionSnapshot) -> bytes:
    return encode_report(value) if isinstance(value, RegionReport) else value.encode()


@pytest.mark.parametrize(("name", "data", "meaning"), WHOLE)
def test_each_reads_and_writes_as_its_vector(name, data, meaning):
    assert FORMATS[name].decode(data) == made(name, meaning)
    assert encoded(made(name, meaning)) == data


@pytest.mark.parametrize(("name", "data"), CORRUPT)
def test_a_corrupt_one_is_refused_by_name(name, data):
    with pytest.raises(CorruptionError, match=name.replace("-", " ")):
        FORMATS[name].decode(data)


@pytest.mark.parametrize(("name", "data", "meaning"), WHOLE)
def test_one_that_is_cut_anywhere_or_goes_on_is_refused(name, data, meaning):
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            FORMATS[name].decode(data[:size])
    for more in (b"\x00", b"\x01"):
        with pytest.raises(CorruptionError):
            FORMATS[name].decode(data + more)


@pytest.mark.parametrize("name", FORMATS)
@relaxed
@given(st.data())
def test_a_flipped_bit_is_refused_or_means_something_else_that_is_whole(name, data):
    _, body, _ = data.draw(st.sampled_from(lines(name)))
    place = data.draw(st.integers(0, 8 * len(body) - 1))
    flipped = bytearray(body)
    flipped[place // 8] ^= 1 << place % 8
    try:
        read = FORMATS[name].decode(bytes(flipped))
    except CorruptionError:
        return
    assert encoded(read) == bytes(flipped)


@relaxed
@given(snapshots())
def test_a_snapshot_comes_back_as_it_was(snapshot):
    assert RegionSnapshot.decode(snapshot.encode()) == snapshot


def test_copies_are_ordered_by_epoch_and_then_by_sequence():
    one = RegionSnapshot(3, 9, 0, 0, 0, 0, 0, 0)
    assert one.order < one._replace(epoch=4, sequence=1).order < one._replace(epoch=4, sequence=2).order


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1},
        {"in_progress": (5, 5)},
        {"in_progress": (0,)},
        {"invalid": (7, 6)},
        {"decided": 11},
        {"in_progress": (9,)},
        {"in_progress_runs": PointerRuns([(9, 20)])},
        {"in_progress_runs": PointerRuns([(0, 2)]), "decided": 0},
        {"invalid_runs": PointerRuns([(0, 2)])},
        {"invalid_runs": PointerRuns([(5, 2**63)])},
    ],
    ids=str,
)
def test_what_no_reader_would_take_is_not_written(change):
    with pytest.raises(ValueError, match=r"."):
        RegionSnapshot(1, 1, 1, 10, 10, 10, 10, 1)._replace(**change).encode()


@pytest.mark.parametrize(("text", "number"), cases("version-numbers"))
def test_a_version_is_the_number_that_java_reports(text, number):
    assert version_number(text.decode()) == number


def test_a_number_is_shown_as_the_version_that_it_stands_for():
    assert version_text(version_number("2.6.1-hadoop3")) == "2.6.1"
    assert version_text(UNTOLD) == "unknown"


def test_a_coprocessor_is_compared_with_the_program_that_asks():
    own = version_number("0.2.0.dev0")
    told = {text: jar_state(version_number(text), own) for text in ("0.1.99", "0.2.0", "0.2.1", "none")}
    assert told == {"0.1.99": "older", "0.2.0": "current", "0.2.1": "newer", "none": "untold"}
    assert jar_state(OWN_VERSION) == "current"


def test_a_report_without_the_counters_does_not_tell_its_jar():
    report = RegionReport("basalt.message", b"name", "rs1,16020,1", 1, -1, -1, -1, -1, b"", b"")
    assert (report.jar_version, report.jar_crc32c) == (UNTOLD, UNTOLD)


def test_a_run_counts_as_all_its_pointers_and_takes_the_same_bytes_however_long_it_is():
    short, long = (
        RegionSnapshot(1, 1, 1, 1, 1, 1, 1, 1, invalid=(7,), invalid_runs=PointerRuns([(first, 200_000)]))
        for first in (199_990, 100_001)
    )
    assert (short.invalid_count, long.invalid_count) == (12, 100_001)
    assert len(long.encode()) <= len(short.encode()) + 2
    undecided = RegionSnapshot(1, 1, 1, 1, 9, 1, 1, 1, (3,), in_progress_runs=PointerRuns([(5, 8)]))
    assert undecided.in_progress_count == 5
