"""Reports of regions: the bytes that the coprocessor writes, read strictly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine.errors import CorruptionError
from basalt_engine.regions import RegionReport, StoreFile
from tests.region_reports import encode_report
from tests.vector_lines import cases, lines

relaxed = settings(deadline=None)


def made(meaning: dict[str, Any]) -> RegionReport:
    keys = {name: bytes.fromhex(meaning[name]) for name in ("region_name", "start_key")}
    stop = bytes.fromhex(meaning["end_key"])
    files = tuple(StoreFile(**file) for file in meaning["files"])
    rest = {name: value for name, value in meaning.items() if name not in (*keys, "end_key", "files")}
    return RegionReport(**rest, **keys, stop_key=stop, files=files)


@pytest.mark.parametrize(("data", "meaning"), cases("region-report"))
def test_a_report_reads_and_writes_as_its_vector(data, meaning):
    assert RegionReport.decode(data) == made(meaning)
    assert encode_report(made(meaning)) == data


@pytest.mark.parametrize(("data", "reason"), cases("region-report-corrupt"))
def test_a_corrupt_report_is_refused(data, reason):
    with pytest.raises(CorruptionError, match="region report"):
        RegionReport.decode(data)


@pytest.mark.parametrize(("data", "meaning"), cases("region-report"))
def test_a_report_that_is_cut_anywhere_or_goes_on_is_refused(data, meaning):
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            RegionReport.decode(data[:size])
    with pytest.raises(CorruptionError):
        RegionReport.decode(data + b"\x00")


@relaxed
@given(st.data())
def test_a_flipped_bit_is_refused_or_means_something_else_that_is_whole(data):
    _, body, _ = data.draw(st.sampled_from(lines("region-report")))
    place = data.draw(st.integers(0, 8 * len(body) - 1))
    flipped = bytearray(body)
    flipped[place // 8] ^= 1 << place % 8
    try:
        read = RegionReport.decode(bytes(flipped))
    except CorruptionError:
        return
    assert encode_report(read) == bytes(flipped)
