"""Which batches are compressed: what shrinks is, and what does not costs a look at a small piece now and then."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.messaging.log import packing
from basalt.messaging.log.packing import (
    LEARNT_MESSAGES_MIN,
    SAMPLE_BYTES,
    SHARE_MAX,
    TRIED_BYTES_MIN,
    UNTRIED_BATCHES,
    Packed,
    StoredSize,
    packed,
)
from basalt_engine.keys import position
from basalt_engine.messages import ROW_BYTES_MAX, MessageRow, Reference
from basalt_engine.records import Compression, compressed, decode, encode

LINE = b'10.0.0.1 - - [10/Oct/2026:13:55:36 +0000] "GET /shop HTTP/1.1" 200 2326'
LINES = encode([LINE] * 1_000)
PAGE_BYTES = 10 << 20


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not shrink."""
    return random.Random(seed).randbytes(size)


RANDOM = encode([noise(1_000, seed) for seed in range(100)])


def becomes(batch: bytes, compression: Compression | None, untried: int, wanted: Packed) -> bool:
    """True when this is how it is stored. An assertion of long bytes themselves would take minutes to say how they differ."""
    return packed(batch, compression, untried) == wanted


def is_compressed(batch: bytes) -> bool:
    return batch[3] == Compression.ZSTD


def test_what_shrinks_is_compressed() -> None:
    assert becomes(LINES, None, 0, Packed(compressed(LINES), 0))


def test_what_does_not_shrink_stays_as_it_is_and_some_batches_after_it_are_not_tried() -> None:
    assert becomes(RANDOM, None, 0, Packed(RANDOM, UNTRIED_BATCHES))
    untried = UNTRIED_BATCHES
    for left in reversed(range(UNTRIED_BATCHES)):
        stored, untried = packed(LINES, None, untried)
        assert (is_compressed(stored), untried) == (False, left)
    assert is_compressed(packed(LINES, None, untried).batch)


def test_a_small_batch_is_not_tried_and_takes_no_turn() -> None:
    at_the_limit = encode([bytes(TRIED_BYTES_MIN - 16)])
    assert len(at_the_limit) == TRIED_BYTES_MIN
    small = encode([bytes(TRIED_BYTES_MIN - 17)])
    assert is_compressed(packed(at_the_limit, None, 0).batch)
    assert becomes(small, None, 0, Packed(small, 0))
    assert becomes(small, None, 7, Packed(small, 7))


def test_only_a_small_piece_of_what_does_not_shrink_is_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(packing, "compressed", lambda _: pytest.fail("a whole batch was compressed"))
    monkeypatch.setattr(packing, "compressed_share", lambda batch, size: asked.append(size) or 1.0)
    packed(RANDOM, None, 0)
    assert asked == [SAMPLE_BYTES]


def test_a_batch_of_which_only_the_piece_shrinks_stays_as_it_is() -> None:
    batch = encode([noise(100_000, 1), bytes(SAMPLE_BYTES * 2), noise(100_000, 2)])
    assert becomes(batch, None, 0, Packed(batch, UNTRIED_BATCHES))


@pytest.mark.parametrize("batch", [LINES, RANDOM, encode([b"small"])])
def test_a_topic_that_says_so_is_always_or_never_compressed(batch: bytes) -> None:
    assert becomes(batch, Compression.NONE, 0, Packed(batch, 0))
    assert becomes(batch, Compression.ZSTD, 5, Packed(compressed(batch), 0))


@given(
    st.lists(st.binary(max_size=40) | st.builds(noise, st.integers(0, 9_000)), min_size=1, max_size=30),
    st.sampled_from([None, *Compression]),
    st.integers(0, UNTRIED_BATCHES),
)
def test_however_a_batch_is_stored_its_messages_are_the_same(
    payloads: list[bytes], compression: Compression | None, untried: int
) -> None:
    batch = encode(payloads)
    stored, left = packed(batch, compression, untried)
    same = [bytes(payload) for payload in decode(stored).payloads()] == payloads
    assert same
    assert 0 <= left <= UNTRIED_BATCHES
    if compression is None and is_compressed(stored):
        assert len(stored) <= SHARE_MAX * len(batch)


# How much of a remote store makes a page.


def row(batch: bytes | None) -> MessageRow:
    reference = Reference(bytes(10), bytes(10), 1) if batch is None else None
    return MessageRow(position(1, 0), None, batch, reference)


def learnt(*batches: bytes | None) -> StoredSize:
    size = StoredSize()
    rows = [row(batch) for batch in batches]
    assert list(size.counted(rows)) == rows
    return size


def test_a_log_that_nobody_has_read_is_asked_for_a_page_and_a_row() -> None:
    assert learnt().bytes_for(10_000, PAGE_BYTES) == PAGE_BYTES + ROW_BYTES_MAX
    few = encode([b"x"] * (LEARNT_MESSAGES_MIN - 1))
    assert learnt(few, None).bytes_for(1, PAGE_BYTES) == PAGE_BYTES + ROW_BYTES_MAX


def test_a_page_of_compressed_rows_is_asked_for_by_what_they_take_in_the_store() -> None:
    plain = encode([bytes(1_000)] * 500)
    packed = compressed(plain)
    asked = learnt(*[packed] * 10).bytes_for(1 << 40, 4 * len(plain))
    assert asked == 5 * len(packed) + 1


def test_a_page_of_few_messages_is_asked_for_by_their_number() -> None:
    plain = encode([bytes(10)] * 500)
    assert learnt(plain, None, plain).bytes_for(2_000, PAGE_BYTES) == 5 * len(plain) + 1


@given(
    st.lists(st.integers(1, 700), min_size=1, max_size=20),
    st.booleans(),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 30),
)
def test_no_more_is_ever_asked_for_than_a_page_and_a_row(
    counts: list[int], zstd: bool, messages: int, bytes_max: int
) -> None:
    batches = [encode([b"payload"] * count) for count in counts]
    size = learnt(*map(compressed, batches) if zstd else batches)
    assert 0 < size.bytes_for(messages, bytes_max) <= bytes_max + ROW_BYTES_MAX
