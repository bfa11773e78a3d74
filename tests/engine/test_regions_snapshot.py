"""The snapshot for region servers: its bytes are those of the vectors, and whatever is not exactly so is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine.errors import CorruptionError
from basalt_engine.regions import RegionSnapshot
from tests.vector_lines import cases, lines

relaxed = settings(deadline=None)
LONGS = st.integers(0, 2**63 - 1)
LISTS = st.frozensets(st.integers(1, 2**63 - 1), max_size=6).map(lambda found: tuple(sorted(found)))


@st.composite
def snapshots(draw: st.DrawFn) -> RegionSnapshot:
    write_pointer, in_progress = draw(LONGS), draw(LISTS)
    decided = draw(st.integers(0, min(write_pointer, in_progress[0] - 1 if in_progress else write_pointer)))
    times = [draw(LONGS) for _ in range(4)]
    return RegionSnapshot._make((*times, write_pointer, decided, draw(LONGS), draw(LONGS), in_progress, draw(LISTS)))


def made(meaning: dict[str, Any]) -> RegionSnapshot:
    return RegionSnapshot(
        **{**meaning, "in_progress": tuple(meaning["in_progress"]), "invalid": tuple(meaning["invalid"])}
    )


@pytest.mark.parametrize(("data", "meaning"), cases("region-snapshot"))
def test_a_snapshot_reads_and_writes_as_its_vector(data, meaning):
    assert RegionSnapshot.decode(data) == made(meaning)
    assert made(meaning).encode() == data


@pytest.mark.parametrize(("data", "reason"), cases("region-snapshot-corrupt"))
def test_a_corrupt_snapshot_is_refused(data, reason):
    with pytest.raises(CorruptionError, match="region snapshot"):
        RegionSnapshot.decode(data)


@relaxed
@given(snapshots())
def test_a_snapshot_comes_back_as_it_was(snapshot):
    assert RegionSnapshot.decode(snapshot.encode()) == snapshot


@pytest.mark.parametrize(("data", "meaning"), cases("region-snapshot"))
def test_a_snapshot_that_is_cut_anywhere_or_goes_on_is_refused(data, meaning):
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            RegionSnapshot.decode(data[:size])
    with pytest.raises(CorruptionError):
        RegionSnapshot.decode(data + b"\x01")


@relaxed
@given(st.data())
def test_a_flipped_bit_is_refused_or_means_something_else_that_is_whole(data):
    _, body, _ = data.draw(st.sampled_from(lines("region-snapshot")))
    place = data.draw(st.integers(0, 8 * len(body) - 1))
    flipped = bytearray(body)
    flipped[place // 8] ^= 1 << place % 8
    try:
        read = RegionSnapshot.decode(bytes(flipped))
    except CorruptionError:
        return
    assert read.encode() == bytes(flipped)


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
    ],
    ids=str,
)
def test_what_no_reader_would_take_is_not_written(change):
    with pytest.raises(ValueError, match=r"."):
        RegionSnapshot(1, 1, 1, 10, 10, 10, 10, 1)._replace(**change).encode()
