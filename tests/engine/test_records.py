"""Record batches: what goes in comes out, nothing else does, and damage is refused as corruption."""

from __future__ import annotations

import random
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine import records
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import position
from basalt_engine.records import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    NO_EXTRAS,
    Compression,
    Extras,
    RecordBatch,
    RecordKind,
    can_merge,
    compressed,
    compressed_share,
    count_messages,
    decode,
    decode_headers,
    encode,
    encode_headers,
    first_position,
    is_merged,
    merge,
    plain_span,
    uncompressed_bytes,
)
from tests.vector_lines import cases

relaxed = settings(deadline=None)

PAYLOADS = st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(min_size=1, max_size=5), st.binary(max_size=5)), max_size=3).map(tuple)
EVENT_TIMES = st.integers(-(2**63) + 1, 2**63 - 1)
TTLS = st.integers(1, 2**63 - 1)
EXTRAS = st.builds(Extras, st.none() | st.binary(max_size=5), HEADERS, st.none() | EVENT_TIMES, st.none() | TTLS)
COMPRESSIONS = st.sampled_from(Compression)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[bytes], list[Extras] | None, RecordKind, Compression]:
    payloads = draw(st.lists(PAYLOADS, min_size=1, max_size=8))
    count = len(payloads)
    extras = draw(st.none() | st.lists(EXTRAS, min_size=count, max_size=count))
    return payloads, extras, draw(st.sampled_from(RecordKind)), draw(COMPRESSIONS)


def content(batch: RecordBatch) -> tuple[list[bytes], list[Extras], RecordKind]:
    return [bytes(payload) for payload in batch.payloads()], batch.extras(), batch.kind


def sealed(data: bytes) -> bytes:
    """Made-up bytes with the checksum that they should have."""
    return data + crc32c(data).to_bytes(4, "big")


def plain(
    body: bytes, *, count: int = 1, kind: int = 0, flags: int = 0, compression: int = 0, version: int = 1
) -> bytes:
    return sealed(struct.pack(">BBBBI", version, kind, flags, compression, count) + body)


# What goes in comes out.


@relaxed
@given(batches())
def test_a_batch_comes_back_as_it_was(made: tuple[list[bytes], list[Extras] | None, RecordKind, Compression]) -> None:
    payloads, extras, kind, compression = made
    data = encode(payloads, extras, kind=kind, compression=compression)
    batch = decode(data)
    assert content(batch) == (payloads, extras or [NO_EXTRAS] * len(payloads), kind)
    assert batch.keys() == [each.key for each in extras or [NO_EXTRAS] * len(payloads)]
    assert (batch.count, count_messages(data)) == (len(payloads), len(payloads))
    assert batch.payload_bytes == sum(map(len, payloads))
    ttls = [extra.ttl_ms or 0 for extra in extras or []]
    assert batch.ttls_ms() == (tuple(ttls) if any(ttls) else None)


@relaxed
@given(batches())
def test_the_same_messages_always_make_the_same_bytes(
    made: tuple[list[bytes], list[Extras] | None, RecordKind, Compression],
) -> None:
    payloads, extras, kind, compression = made
    views = [memoryview(bytearray(payload)) for payload in payloads]
    assert encode(views, extras, kind=kind, compression=compression) == encode(
        payloads, extras, kind=kind, compression=compression
    )


@relaxed
@given(batches())
def test_a_batch_that_was_only_kept_in_memory_needs_no_check(
    made: tuple[list[bytes], list[Extras] | None, RecordKind, Compression],
) -> None:
    payloads, extras, kind, compression = made
    data = encode(payloads, extras, kind=kind, compression=compression)
    assert content(decode(data, verify=False)) == content(decode(data))


@relaxed
@given(st.lists(PAYLOADS, min_size=1, max_size=12), COMPRESSIONS, st.data())
def test_any_stretch_of_a_batch_is_what_its_messages_are(
    payloads: list[bytes], compression: Compression, data: st.DataObject
) -> None:
    batch = decode(encode(payloads, compression=compression))
    start = data.draw(st.integers(0, len(payloads)))
    stop = data.draw(st.integers(start, len(payloads)))
    assert [bytes(payload) for payload in batch.payloads(start, stop)] == payloads[start:stop]
    assert batch.bytes_between(start, stop) == sum(map(len, payloads[start:stop]))
    assert [bytes(payload) for payload in batch.payloads(start)] == payloads[start:]
    lengths, stretch = batch.span(start, stop)
    assert bytes(lengths) == b"".join(len(payload).to_bytes(4, "big") for payload in payloads[start:stop])
    assert bytes(stretch) == b"".join(payloads[start:stop])


@relaxed
@given(batches(), st.data())
def test_what_some_messages_of_a_batch_carry_is_their_part_of_what_all_carry(
    made: tuple[list[bytes], list[Extras] | None, RecordKind, Compression], data: st.DataObject
) -> None:
    payloads, extras, kind, compression = made
    batch = decode(encode(payloads, extras, kind=kind, compression=compression))
    first = data.draw(st.integers(0, len(payloads)))
    second = data.draw(st.integers(first, len(payloads)))
    parts = [batch.sections(start, stop) for start, stop in ((0, first), (first, second), (second, len(payloads)))]
    together = [b"".join(map(bytes, section)) for section in zip(*parts, strict=True)]
    assert together == [bytes(section) for section in batch.sections(0, len(payloads))]


@relaxed
@given(batches(), st.data())
def test_picked_messages_are_those_of_the_batch(
    made: tuple[list[bytes], list[Extras] | None, RecordKind, Compression], data: st.DataObject
) -> None:
    payloads, extras, kind, compression = made
    batch = decode(encode(payloads, extras, kind=kind, compression=compression))
    indexes = sorted(data.draw(st.sets(st.integers(0, len(payloads) - 1), min_size=1)))
    positions = b"".join(number.to_bytes(10, "big") for number in indexes)
    picked = batch.picked(indexes, positions)
    assert [bytes(each) for each in picked.payloads()] == [payloads[index] for index in indexes]
    assert picked.extras() == [batch.extras()[index] for index in indexes]
    assert (picked.keys(), bytes(picked.positions or b"")) == ([batch.keys()[index] for index in indexes], positions)


@relaxed
@given(st.lists(PAYLOADS, min_size=1, max_size=12), st.data())
def test_the_stop_within_a_number_of_bytes_is_the_furthest_one(payloads: list[bytes], data: st.DataObject) -> None:
    batch = decode(encode(payloads))
    start = data.draw(st.integers(0, len(payloads) - 1))
    bytes_max = data.draw(st.integers(0, sum(map(len, payloads)) + 1))
    fitting = [stop for stop in range(start, len(payloads) + 1) if sum(map(len, payloads[start:stop])) <= bytes_max]
    assert batch.stop_within(start, bytes_max) == fitting[-1]


def test_a_plain_batch_pays_nothing_for_the_optional_sections() -> None:
    payloads = [b"abc", b"", b"de"]
    assert len(encode(payloads)) == 8 + 4 * len(payloads) + 5 + 4
    assert encode(payloads, [NO_EXTRAS] * 3) == encode(payloads)


def test_payloads_are_slices_of_the_bytes_that_were_decoded() -> None:
    data = encode([b"abc", b"def"])
    assert all(payload.obj is data for payload in decode(data).payloads())


def test_compression_makes_alike_messages_small() -> None:
    payloads = [b"the same again and again"] * 500
    assert len(encode(payloads, compression=Compression.ZSTD)) * 10 < len(encode(payloads))


def test_a_batch_beyond_what_may_be_decompressed_stays_uncompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BATCH_BYTES_MAX", 1_000)
    largest, larger = bytes(1_000 - 4), bytes(1_000 - 3)
    for payload in (largest, larger):
        data = encode([payload], compression=Compression.ZSTD)
        assert data[3] == (Compression.ZSTD if payload is largest else Compression.NONE)
        assert bytes(decode(data).payloads()[0]) == payload


@relaxed
@given(batches())
def test_a_batch_compressed_afterwards_is_as_if_it_had_been_written_so(
    made: tuple[list[bytes], list[Extras] | None, RecordKind, Compression],
) -> None:
    payloads, extras, kind, compression = made
    plain, written = encode(payloads, extras, kind=kind), encode(payloads, extras, kind=kind, compression=compression)
    assert written == (compressed(plain) if compression else plain)
    assert uncompressed_bytes(written) == len(plain)


def test_a_sample_tells_what_shrinks_from_what_does_not() -> None:
    assert compressed_share(encode([b"the same again and again"] * 500), 1_000) < 0.1
    assert compressed_share(encode([random.Random(seed).randbytes(1_000) for seed in range(9)]), 1_000) > 1
    assert compressed_share(encode([b""]), 1_000) > 0  # there need not be as much


def test_threads_compress_side_by_side() -> None:
    plain = [encode([bytes([number]) * 10_000, random.Random(number).randbytes(50_000)]) for number in range(16)]
    with ThreadPoolExecutor(4) as threads:
        same = [content(decode(data)) for data in threads.map(compressed, plain)] == [
            content(decode(data)) for data in plain
        ]
    assert same


@pytest.mark.parametrize("count", [1, 255, 256, 32_767, 32_768, BATCH_MESSAGES_MAX])
def test_a_batch_holds_up_to_a_milliseconds_sequences(count: int) -> None:
    batch = decode(encode([b"%d" % number for number in range(count)]))
    assert batch.count == count
    assert bytes(batch.payloads(count - 1)[0]) == b"%d" % (count - 1)


# Headers.


@relaxed
@given(HEADERS)
def test_headers_come_back_as_they_were(headers: tuple[tuple[str, bytes], ...]) -> None:
    assert decode_headers(encode_headers(headers)) == headers


@relaxed
@given(HEADERS, st.data())
def test_cut_headers_are_corrupt_or_fewer(headers: tuple[tuple[str, bytes], ...], data: st.DataObject) -> None:
    encoded = encode_headers(headers)
    cut = data.draw(st.integers(0, len(encoded)))
    try:
        found = decode_headers(encoded[:cut])
    except CorruptionError:
        return
    assert found == headers[: len(found)]
    assert encode_headers(found) == encoded[:cut]


def test_a_header_name_that_is_not_utf_8_is_corrupt() -> None:
    with pytest.raises(CorruptionError, match="do not decode"):
        decode_headers(b"\x00\x01\xff\x00\x00\x00\x00")


# Damage.


@relaxed
@given(batches())
def test_every_cut_of_a_batch_is_corrupt(
    made: tuple[list[bytes], list[Extras] | None, RecordKind, Compression],
) -> None:
    payloads, extras, kind, compression = made
    data = encode(payloads, extras, kind=kind, compression=compression)
    for end in range(len(data)):
        with pytest.raises(CorruptionError):
            decode(data[:end])


@relaxed
@given(batches(), st.data())
def test_the_span_of_a_plain_batch_is_that_of_the_decoded_one_or_none_where_that_is_refused(
    made: tuple[list[bytes], list[Extras] | None, RecordKind, Compression], data: st.DataObject
) -> None:
    payloads, extras, kind, compression = made
    whole = encode(payloads, extras, kind=kind, compression=compression)
    batch, found = decode(whole), plain_span(whole, verify=True)
    if kind is not RecordKind.USER or batch.flags or whole[3]:
        assert found is None
    else:
        assert found is not None
        assert (found[0], bytes(found[1])) == (batch.lengths(), b"".join(payloads))
    bad = bytearray(whole)
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    assert plain_span(bytes(bad), verify=True) is None
    assert plain_span(whole[: data.draw(st.integers(0, len(whole) - 1))], verify=True) is None


def test_lengths_that_do_not_fill_a_plain_batch_are_no_span() -> None:
    assert plain_span(plain(struct.pack(">I", 2) + b"abc"), verify=True) is None
    assert plain_span(plain(struct.pack(">II", 2, 2) + b"abc", count=2), verify=True) is None
    assert plain_span(plain(b"abc", count=65_536), verify=True) is None


@pytest.mark.parametrize(("data", "meaning"), cases("record-batches"))
def test_every_flipped_bit_of_a_batch_is_corrupt(data: bytes, meaning: dict[str, Any]) -> None:
    for index in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[index] ^= 1 << bit
            with pytest.raises(CorruptionError):
                decode(bytes(bad))


@relaxed
@given(batches(), st.binary(min_size=1, max_size=5))
def test_a_batch_with_something_behind_it_is_corrupt(
    made: tuple[list[bytes], list[Extras] | None, RecordKind, Compression], more: bytes
) -> None:
    payloads, extras, kind, compression = made
    with pytest.raises(CorruptionError):
        decode(encode(payloads, extras, kind=kind, compression=compression) + more)


@settings(deadline=None, max_examples=300)
@given(batches(), st.data())
def test_nothing_but_corruption_is_raised_even_where_the_checksum_is_right(
    made: tuple[list[bytes], list[Extras] | None, RecordKind, Compression], data: st.DataObject
) -> None:
    payloads, extras, kind, compression = made
    good = encode(payloads, extras, kind=kind, compression=compression)[:-4]
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        batch = decode(sealed(bytes(bad)))
        payloads, extras, _ = content(batch)
    except CorruptionError:
        return
    assert len(payloads) == len(extras) == batch.count
    assert sum(map(len, payloads)) == batch.payload_bytes


@relaxed
@given(st.binary(max_size=80))
def test_any_bytes_are_a_batch_or_corrupt(data: bytes) -> None:
    for whole in (data, sealed(data)):
        try:
            content(decode(whole))
        except CorruptionError:
            pass


HELLO = b"\x00\x00\x00\x05hello"


def test_the_batch_of_the_following_tests_is_good() -> None:
    assert content(decode(plain(HELLO))) == ([b"hello"], [NO_EXTRAS], RecordKind.USER)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (plain(HELLO, version=2), "version 2; this Basalt reads version 1"),
        (plain(HELLO, kind=3), "kind 3"),
        (plain(HELLO, flags=32), "flags 32"),
        (plain(HELLO, flags=16), "reach byte 19 of 9"),
        (plain(HELLO, flags=18), "flags 18"),
        (plain(HELLO, flags=16, kind=1), "kind 1, flags 16"),
        (plain(HELLO, compression=2), "compression 2"),
        (plain(HELLO, count=0), "0 messages"),
        (plain(HELLO, count=BATCH_MESSAGES_MAX + 1), "65537 messages"),
        (plain(b"\x00\x00\x00", count=1), "only 3 bytes"),
        (plain(b"\x00\x00\x00\x06hello"), "reach byte 10 of 9"),
        (plain(b"\x00\x00\x00\x04hello"), "reach byte 8 of 9"),
        (plain(b"\xff\xff\xff\xffhello"), "reach byte"),
        (plain(HELLO, flags=1), "reach byte 17 of 9"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_batch_that_says_something_impossible_is_corrupt(data: bytes, what: str) -> None:
    with pytest.raises(CorruptionError, match=what):
        decode(data)


@pytest.mark.parametrize("flags", [4, 8])
@pytest.mark.parametrize(("length", "blob"), [(b"\x00\x00\x00\x02", b"k"), (b"\x00\x00\x00\x00", b"k")])
def test_keys_and_headers_that_do_not_end_with_the_batch_are_corrupt(flags: int, length: bytes, blob: bytes) -> None:
    batch = decode(plain(b"\x00\x00\x00\x05" + length + b"hello" + blob, flags=flags))
    with pytest.raises(CorruptionError):
        batch.extras()


def frame(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(body)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(bytes(4), id="no bytes and no frame"),
        pytest.param(b"\x00\x00\x00\x09" + b"not a frame", id="no frame"),
        pytest.param(b"\x00\x00\x00\x08" + frame(HELLO), id="a size below the frame's"),
        pytest.param(b"\x00\x00\x00\x0a" + frame(HELLO), id="a size above the frame's"),
        pytest.param(b"\x00\x00\x00\x00" + frame(HELLO), id="a size of nothing"),
        pytest.param(b"\x00\x00\x00\x09" + frame(HELLO)[:-1], id="a cut frame"),
        pytest.param(b"\x00\x00\x00\x09" + frame(HELLO) + b"\x00", id="something behind the frame"),
        pytest.param(b"\x00\x00\x00\x09" + frame(HELLO) + frame(HELLO), id="two frames"),
        pytest.param(struct.pack(">I", BATCH_BYTES_MAX + 1) + frame(HELLO), id="more than is ever decompressed"),
        pytest.param(
            b"\x00\x00\x00\x09" + zstandard.ZstdCompressor(write_content_size=False).compress(HELLO),
            id="a frame that does not say its size",
        ),
    ],
)
def test_a_compressed_body_that_is_not_what_it_says_is_corrupt(body: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode(plain(body, compression=1))


def test_a_frame_that_claims_to_be_huge_is_refused_before_anything_is_allocated_for_it() -> None:
    huge = bytes.fromhex("28b52ffd") + b"\xe0" + (1 << 60).to_bytes(8, "little") + b"\x01\x00\x00"
    assert zstandard.frame_content_size(huge) == 1 << 60
    with pytest.raises(CorruptionError, match="does not hold the 9 bytes"):
        decode(plain(b"\x00\x00\x00\x09" + huge, compression=1))


# Merging.

Row = tuple[bytes, list[bytes], list[Extras] | None]  # position of the last message, payloads, what they carry
PLACES = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 300])), min_size=1, max_size=8)


@st.composite
def neighbours(draw: st.DrawFn) -> list[Row]:
    """Rows as they lie side by side in a topic: all plain, or all with the same sections."""
    carried = st.builds(Extras, st.binary(max_size=3), st.just((("h", b"v"),)), st.none() | EVENT_TIMES, st.none())
    with_extras = draw(st.booleans())
    rows, ms, sequence = list[Row](), 0, -1
    for later_ms, gap in draw(PLACES):
        payloads = draw(st.lists(PAYLOADS, min_size=1, max_size=4))
        extras = (
            [draw(carried)._replace(event_time_ms=5), *(draw(carried) for _ in payloads[1:])] if with_extras else None
        )
        ms, sequence = (ms + later_ms, -1) if later_ms else (ms, sequence)
        sequence += gap + len(payloads)
        rows.append((position(ms, sequence), payloads, extras))
    return rows


def places_of(row: Row) -> list[bytes]:
    ms, last = int.from_bytes(row[0][:8], "big"), int.from_bytes(row[0][8:], "big")
    return [position(ms, last - len(row[1]) + 1 + index) for index in range(len(row[1]))]


@relaxed
@given(neighbours(), COMPRESSIONS)
def test_merged_batches_are_the_messages_of_all_of_them_each_with_its_position(
    rows: list[Row], compression: Compression
) -> None:
    encoded = [encode(payloads, extras, compression=compression) for _, payloads, extras in rows]
    assert all(map(can_merge, encoded))
    data = merge([(row[0], decode(each)) for row, each in zip(rows, encoded, strict=True)])
    data = compressed(data) if compression else data
    assert is_merged(data)
    assert not can_merge(data)
    batch, places = decode(data), [place for row in rows for place in places_of(row)]
    payloads = [payload for row in rows for payload in row[1]]
    extras = [extra for row in rows for extra in row[2] or [NO_EXTRAS] * len(row[1])]
    assert content(batch) == (payloads, extras, RecordKind.USER)
    assert bytes(batch.positions or b"") == b"".join(places)
    assert first_position(data, rows[-1][0]) == places[0]
    assert [position(*batch.place(index)) for index in range(batch.count)] == places
    for start, stop in batch.runs(0, batch.count):
        assert [int.from_bytes(place, "big") for place in places[start:stop]] == [
            int.from_bytes(places[start], "big") + index for index in range(stop - start)
        ]
        part = decode(batch.part(start, stop))
        assert content(part) == (payloads[start:stop], extras[start:stop], RecordKind.USER)
        assert part.positions is None


@relaxed
@given(neighbours(), st.data())
def test_the_index_of_a_position_is_that_of_the_first_message_that_is_not_before_it(
    rows: list[Row], data: st.DataObject
) -> None:
    batch = decode(merge([(row[0], decode(encode(row[1], row[2]))) for row in rows]))
    places = [place for row in rows for place in places_of(row)]
    near = data.draw(st.sampled_from(places))
    for where in (near, near + b"\0", near[:8], b"", b"\xff" * 10):
        assert batch.index_of(where) == sum(place < where for place in places)


@pytest.mark.parametrize(
    "data",
    [
        encode([b"a"], kind=RecordKind.WATERMARK),
        encode([b"a"], [Extras(ttl_ms=5)]),
        merge([(position(1, 0), decode(encode([b"a"])))]),
    ],
    ids=["a marker", "a TTL of its own", "merged before"],
)
def test_what_is_no_plain_batch_is_not_merged(data: bytes) -> None:
    assert not can_merge(data)


@pytest.mark.parametrize("compression", Compression)
def test_the_first_position_of_a_batch_is_told_without_decoding_what_need_not_be(compression: Compression) -> None:
    assert first_position(encode([b"a", b"b"], compression=compression), position(7, 4)) == position(7, 3)
    merged = merge([(position(3, 4), decode(encode([b"a", b"b"]))), (position(7, 0), decode(encode([b"c"])))])
    merged = compressed(merged) if compression else merged
    assert first_position(merged, position(7, 0)) == position(3, 3)


# Vectors.


def meant(message: dict[str, Any]) -> Extras:
    headers = tuple((header["name"], bytes.fromhex(header["value"])) for header in message["headers"])
    key = None if message["key"] is None else bytes.fromhex(message["key"])
    return Extras(key, headers, message["eventTimeMs"], message["ttlMs"])


@pytest.mark.parametrize(("data", "meaning"), cases("record-batches"))
def test_a_batch_vector_has_its_meaning_and_its_bytes(data: bytes, meaning: dict[str, Any]) -> None:
    payloads = [bytes.fromhex(message["payload"]) for message in meaning["messages"]]
    extras = [meant(message) for message in meaning["messages"]]
    kind = RecordKind[meaning["kind"].upper()]
    assert content(decode(data)) == (payloads, extras, kind)
    assert (data[3] == Compression.ZSTD) == (meaning["compression"] == "zstd")
    positions = [bytes.fromhex(each) for each in meaning.get("positions", [])]
    assert bytes(decode(data).positions or b"") == b"".join(positions)
    if positions:  # however they were cut before
        each = [decode(encode([payload], [extra])) for payload, extra in zip(payloads, extras, strict=True)]
        kept = [decode(encode(payloads, extras)).part(at, at + 1) for at in range(len(payloads))]
        assert [batch.flags for batch in map(decode, kept)] == [data[2] & 15] * len(kept)
        assert merge(list(zip(positions, map(decode, kept), strict=True))).hex() == data.hex()
        assert [content(batch) for batch in each] == [content(decode(part)) for part in kept]
    elif meaning["compression"] == "none":  # what zstd makes of a body depends on its version
        assert encode(payloads, extras, kind=kind).hex() == data.hex()
