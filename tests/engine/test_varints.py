"""Rising numbers as varint deltas: both ways, fast and slow paths alike, and strict."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from basalt_engine.errors import CorruptionError
from basalt_engine.varints import VALUE_MAX, decode_rising, encode_rising

relaxed = settings(deadline=None)
deltas = st.integers(0, 62).flatmap(lambda bits: st.integers(1, 1 << bits))
rising = (
    st.lists(deltas, max_size=40)
    .map(lambda found: list(accumulate(found)))
    .filter(lambda found: not found or found[-1] <= VALUE_MAX)
)


def one_by_one(numbers: list[int]) -> bytes:
    """The encoding as the page says it."""
    made = bytearray()
    last = 0
    for number in numbers:
        delta, last = number - last, number
        while delta > 0x7F:
            made.append(delta & 0x7F | 0x80)
            delta >>= 7
        made.append(delta)
    return bytes(made)


@relaxed
@given(rising)
@example([1, 1 + (1 << 56) - 1, 1 + (1 << 57)])
@example([VALUE_MAX])
def test_numbers_are_encoded_one_by_one_and_come_back(numbers):
    data = encode_rising(numbers)
    assert data == one_by_one(numbers)
    assert decode_rising(b"x" + data + b"y", 1, len(numbers)) == (tuple(numbers), 1 + len(data))


@pytest.mark.parametrize("count", [4_095, 4_096, 4_097, 4_098, 8_193])
def test_lists_that_end_at_the_border_of_a_chunk_are_whole(count):
    dice = random.Random(count)
    numbers = list(accumulate(dice.randrange(1, 1 << dice.randrange(1, 48)) for _ in range(count)))
    assert encode_rising(numbers) == one_by_one(numbers)


@pytest.mark.parametrize("numbers", [[0], [-1], [3, 3], [3, 2], [1 << 63], [5, 1 << 63]])
def test_what_does_not_rise_is_not_encoded(numbers):
    with pytest.raises(ValueError, match="rise"):
        encode_rising(numbers)


@relaxed
@given(st.binary(max_size=12), st.integers(0, 4))
def test_any_bytes_are_refused_or_are_the_one_encoding_of_what_they_say(data, count):
    try:
        numbers, end = decode_rising(data, 0, count)
    except CorruptionError:
        return
    assert len(numbers) == count
    assert encode_rising(numbers) == data[:end]


def test_a_count_beyond_the_bytes_costs_nothing():
    with pytest.raises(CorruptionError, match="cannot be"):
        decode_rising(b"\x01" * 10, 0, 1 << 32)


def test_a_hundred_thousand_write_pointers_take_no_longer_than_a_plain_loop_or_two():
    dice = random.Random(1)
    pointers = sorted({(1_700_000_000_000 + dice.randrange(7_776_000_000)) * 1_000_000 for _ in range(100_000)})
    assert plainly(pointers) == encode_rising(pointers)
    assert best_s(encode_rising, pointers) < 2.5 * best_s(plainly, pointers)


def plainly(pointers: list[int]) -> bytes:
    """A byte for each seven bits of each delta."""
    out = []
    for before, pointer in itertools.pairwise([0, *pointers]):
        delta = pointer - before
        while delta > 0x7F:
            out.append(delta & 0x7F | 0x80)
            delta >>= 7
        out.append(delta)
    return bytes(out)


def best_s(encode: Callable[[list[int]], bytes], pointers: list[int]) -> float:
    """The time of a processor that the quickest of five takes; on a busy machine all take longer, and the quickest least so."""
    found = []
    for _ in range(5):
        started_s = time.thread_time()
        encode(pointers)
        found.append(time.thread_time() - started_s)
    return min(found)
