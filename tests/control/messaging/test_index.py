"""Sums by publish time, against counting one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.messaging import index
from basalt.messaging.index import (
    BUCKET_BYTES,
    BUCKET_MS,
    BUCKETS_MAX,
    FINER,
    JOINED_FRACTION_MIN,
    Buckets,
    Count,
    OwnExpiry,
    Recent,
    RowCount,
    count_batch,
)
from basalt_engine.records import Extras, RecordBatch, RecordKind, decode, encode

DAY_MS = 86_400_000

contents = st.just((0, 0)) | st.tuples(st.integers(1, 9), st.integers(0, BUCKET_BYTES // 2))
rows = st.lists(st.tuples(st.integers(0, 3 * BUCKET_MS // 2), contents).map(lambda row: (row[0], *row[1])), max_size=60)


def placed(gaps: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Rows at growing publish times, from what lies between them."""
    at, found = 1_700_000_000_000, []
    for gap, messages, payload_bytes in gaps:
        at += gap
        found.append((at, messages, payload_bytes))
    return found


def filled(found: list[tuple[int, int, int]], finer: int = 1) -> Buckets:
    buckets = Buckets(finer)
    for row in found:
        buckets.add(*row)
    return buckets


def summed(found: list[tuple[int, int, int]], lower_ms: int, stop_ms: int | None = None) -> Count:
    within = [row for row in found if row[0] >= lower_ms and (stop_ms is None or row[0] < stop_ms)]
    return Count(sum(row[1] for row in within), sum(row[2] for row in within))


def added(left: Count, right: Count) -> Count:
    return Count(left.messages + right.messages, left.payload_bytes + right.payload_bytes)


@given(rows, st.floats(0, 1.2))
def test_whole_buckets_and_the_part_that_is_read_again_make_the_exact_sum(
    gaps: list[tuple[int, int, int]], share: float
):
    found = placed(gaps)
    lower_ms = round(1_700_000_000_000 + share * sum(gap for gap, _, _ in gaps))
    buckets = filled(found)
    whole, part = buckets.since(lower_ms)
    read = Count() if part is None else summed(found, part.start_ms, part.stop_ms)
    assert added(whole, read) == summed(found, lower_ms)
    if part is not None:
        inside = [row for row in found if row[0] >= part.start_ms and (part.stop_ms is None or row[0] < part.stop_ms)]
        buckets.refine(part, filled(inside, FINER))
        assert buckets.since(lower_ms) == (summed(found, lower_ms), None)


@given(rows, st.integers(0, 60))
def test_older_and_newer_sums_add_up_to_one(gaps: list[tuple[int, int, int]], cut: int):
    found = placed(gaps)
    buckets = filled(found[:cut])
    buckets.extend(filled(found[cut:]))
    assert buckets.since(0) == (summed(found, 0), None)
    for lower_ms in {row[0] for row in found}:
        whole, part = buckets.since(lower_ms)
        read = Count() if part is None else summed(found, part.start_ms, part.stop_ms)
        assert added(whole, read) == summed(found, lower_ms)


@given(rows)
def test_a_row_that_is_gone_counts_no_more(gaps: list[tuple[int, int, int]]):
    found = placed(gaps)
    buckets = filled(found)
    for row in found[::2]:
        buckets.subtract(RowCount(*row))
    assert buckets.since(0)[0] == summed(found[1::2], 0)


@given(rows, st.integers(0, 60))
def test_dropping_what_is_gone_keeps_what_is_not(gaps: list[tuple[int, int, int]], index: int):
    found = placed(gaps)
    lower_ms = found[min(index, len(found) - 1)][0] if found else 0
    buckets = filled(found)
    before = buckets.since(lower_ms)
    buckets.drop_before(lower_ms)
    assert buckets.since(lower_ms) == before


def test_the_number_of_buckets_is_bounded_and_nothing_is_lost():
    found = [(hour * BUCKET_MS, 2, 10) for hour in range(10 * BUCKETS_MAX)]
    buckets = filled(found)
    assert len(buckets) <= BUCKETS_MAX
    assert buckets.since(0)[0] == Count(20 * BUCKETS_MAX, 100 * BUCKETS_MAX)
    newest = found[-1][0]
    assert buckets.since(newest - 10 * BUCKET_MS)[0].messages == 22  # the newest hours stay apart


def test_a_busy_hour_is_cut_by_bytes_so_that_little_is_read_again():
    found = [(second * 1_000, 1, BUCKET_BYTES // 4) for second in range(100)]
    buckets = filled(found)
    part = buckets.since(2_500)[1]
    assert part is not None
    assert (part.start_ms, part.stop_ms) == (2_500, 4_000)


def test_rows_of_one_millisecond_stay_in_one_bucket():
    buckets = filled([(5, 1, BUCKET_BYTES), (5, 1, BUCKET_BYTES), (6, 1, 1)])
    assert list(buckets.starts) == [5, 6]


def batch_of(
    payloads: list[bytes], ttls: list[int | None] | None = None, kind: RecordKind = RecordKind.USER
) -> RecordBatch:
    extras = None if ttls is None else [Extras(ttl_ms=ttl) for ttl in ttls]
    return decode(encode(payloads, extras, kind=kind))


def test_a_batch_counts_its_messages_and_their_bytes():
    assert count_batch(1_000_000, batch_of([b"a", b"", b"bcd"]), DAY_MS) == (1_000_000, 3, 4, ())


def test_markers_are_not_messages():
    assert count_batch(1_000_000, batch_of([b"mark"], kind=RecordKind.WATERMARK), DAY_MS)[1:3] == (0, 0)


def test_messages_that_expire_sooner_than_the_topic_says_are_counted_by_when_they_do():
    counted = count_batch(1_000_000, batch_of([b"a", b"bb", b"ccc"], [None, 10_000, 2 * DAY_MS]), DAY_MS)
    assert counted[1:3] == (2, 4)
    (own,) = counted.own
    assert (own.messages, own.payload_bytes) == (1, 2)
    assert 1_010_000 <= own.expire_ms <= 1_011_000


@given(st.lists(st.tuples(st.integers(1, DAY_MS), st.integers(0, 100)), max_size=100), st.integers(0, DAY_MS))
def test_own_expiry_is_early_never_and_late_by_a_small_part_of_the_ttl(found: list[tuple[int, int]], age_ms: int):
    own = OwnExpiry()
    for ttl_ms, size in found:
        own.add(count_batch(1_000_000, batch_of([b"x" * size], [ttl_ms]), 2 * DAY_MS).own)
    now_ms = 1_000_000 + age_ms
    alive = own.alive(now_ms).messages
    assert alive >= sum(ttl_ms > age_ms for ttl_ms, _ in found)
    assert alive <= sum(ttl_ms + max(ttl_ms // index.OWN_STEPS, index.OWN_STEP_MS_MIN) > age_ms for ttl_ms, _ in found)


@pytest.mark.parametrize(
    ("after_ms", "rate"), [(0, 10.0), (54_999, 10.0), (65_000, 0.0), (10_000_000, 0.0), (-5_000, 10.0)]
)
def test_the_rate_is_of_the_last_minute(after_ms: int, rate: float):
    recent = Recent()
    recent.add(1_000_000, 600)
    assert recent.per_second(1_000_000 + after_ms) == rate


@pytest.mark.parametrize("count", [257, 1_000, 10_000])
@pytest.mark.parametrize(
    "size_of", [lambda number: 1, lambda number: number % 7, lambda number: 1 if number % 50 else 40]
)
def test_joined_buckets_stay_a_small_part_of_the_topic(count: int, size_of: Callable[[int], int]):
    buckets = Buckets()
    for number in range(count):
        buckets.add(number * BUCKET_MS, 1, size_of(number), size_of(number + 1))
    sizes = [payload_bytes + own_bytes for _, _, payload_bytes, own_bytes in buckets.entries()]
    assert BUCKETS_MAX // 2 <= len(sizes) <= BUCKETS_MAX
    assert sum(sizes) == sum(size_of(number) + size_of(number + 1) for number in range(count))
    largest = max(size_of(number) + size_of(number + 1) for number in range(count))
    assert max(sizes) <= max(sum(sizes) // JOINED_FRACTION_MIN, largest)


@pytest.mark.parametrize("limit", [300, 3_000])
def test_a_topic_that_is_held_to_a_size_is_hardly_larger(limit: int):
    buckets = Buckets()
    for number in range(4 * limit):
        buckets.add(number * BUCKET_MS, 1, 1)
        start_ms = buckets.start_of_newest(limit)
        if start_ms is not None:
            buckets.drop_before(start_ms)
        left = sum(buckets.payload_bytes)
        assert left >= min(limit, number + 1)
        assert left <= limit + max(1, limit // (JOINED_FRACTION_MIN // 2))
