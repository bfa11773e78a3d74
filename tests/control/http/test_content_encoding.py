"""Content codings: what a body or an answer may be wrapped in, and how much may come out."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from basalt.errors import MalformedBodyError, TooLargeError, UnsupportedMediaTypeError
from basalt.http.asgi import content_encoding
from basalt.http.asgi.requests import weights

PLAIN = b"orders and invoices " * 100


def gzipped(data: bytes) -> bytes:
    """Without the time, so that a test has the same name in every process of a run."""
    return gzip.compress(data, mtime=0)


def zstd(data: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def zstd_stream(data: bytes) -> bytes:
    """A frame that does not tell its size."""
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return stream.compress(data) + stream.flush()


def decoded(coding: str, encoded: bytes, bytes_max: int) -> bytes:
    return b"".join(content_encoding.decode(coding, encoded, bytes_max))


@pytest.mark.parametrize(
    ("coding", "encoded"),
    [
        ("gzip", gzipped(PLAIN)),
        ("x-gzip", gzipped(PLAIN)),
        ("gzip", gzipped(PLAIN[:700]) + gzipped(PLAIN[700:])),
        ("zstd", zstd(PLAIN)),
        ("zstd", zstd_stream(PLAIN)),
    ],
)
def test_a_coded_body_is_decoded(coding: str, encoded: bytes):
    assert decoded(coding, encoded, len(PLAIN)) == PLAIN


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_an_empty_body_stays_empty(coding: str):
    assert decoded(coding, b"".join(content_encoding.encode(coding, [b""])), 10) == b""


@pytest.mark.parametrize(
    ("coding", "encoded"), [("gzip", gzipped(PLAIN)), ("zstd", zstd(PLAIN)), ("zstd", zstd_stream(PLAIN))]
)
def test_a_body_one_byte_over_the_limit_is_too_large(coding: str, encoded: bytes):
    with pytest.raises(TooLargeError):
        decoded(coding, encoded, len(PLAIN) - 1)


@pytest.mark.parametrize(
    ("coding", "encoded", "size"), [("gzip", gzipped, 50_000_000), ("zstd", zstd_stream, 200_000_000)]
)
def test_a_bomb_is_refused_without_being_blown_up(coding: str, encoded: Callable[[bytes], bytes], size: int):
    bomb = encoded(bytes(size))
    with pytest.raises(TooLargeError):
        decoded(coding, bomb, 1_000_000)


@pytest.mark.parametrize(("coding", "encoded"), [("gzip", gzipped(PLAIN)), ("zstd", zstd(PLAIN))])
def test_a_coded_body_cut_at_any_byte_is_refused(coding: str, encoded: bytes):
    for cut in range(len(encoded)):
        with pytest.raises(MalformedBodyError):
            decoded(coding, encoded[:cut], 1_000_000)


@pytest.mark.parametrize(
    ("coding", "encoded"),
    [
        ("gzip", gzipped(PLAIN) + b"junk"),
        ("zstd", zstd(PLAIN) + b"junk"),
        ("zstd", zstd(PLAIN) + zstd(PLAIN)),
        ("gzip", b"plain text"),
        ("zstd", b"plain text"),
        ("gzip", zstd(PLAIN)),
    ],
)
def test_what_is_not_one_whole_coded_body_is_refused(coding: str, encoded: bytes):
    with pytest.raises(MalformedBodyError):
        decoded(coding, encoded, 1_000_000)


def test_thousands_of_empty_members_are_refused_instead_of_decoded_one_by_one():
    with pytest.raises(MalformedBodyError, match="members"):
        decoded("gzip", gzipped(b"") * 5_000, 1_000_000)


def test_a_body_of_as_many_members_as_the_limit_is_decoded_and_one_more_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content_encoding, "GZIP_MEMBERS_MAX", 3)
    assert decoded("gzip", gzipped(b"x") * 3, 10) == b"xxx"
    with pytest.raises(MalformedBodyError, match="more than 3 members"):
        decoded("gzip", gzipped(b"x") * 4, 10)


def test_a_frame_of_the_largest_window_is_decoded_and_one_of_the_next_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content_encoding, "ZSTD_WINDOW_BYTES_MAX", 2 * 1_024)  # the smallest that there is, twice
    plain = random.Random(4).randbytes(20_000)
    assert decoded("zstd", zstd_of_window(plain, 11), len(plain)) == plain
    with pytest.raises(MalformedBodyError):
        decoded("zstd", zstd_of_window(plain, 12), len(plain))


def zstd_of_window(data: bytes, window_log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(data) + stream.flush()


class CountingZlib:
    """Gives out real decompressors, and notes how many bytes each of their calls takes in and gives out."""

    error = zlib.error

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.given: list[int] = []

    def decompressobj(self, window_bits: int) -> Any:
        return _CountingMember(self, zlib.decompressobj(window_bits))


class _CountingMember:
    def __init__(self, counts: CountingZlib, member: Any) -> None:
        self._counts = counts
        self._member = member

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)

    def decompress(self, data: bytes, bytes_max: int) -> bytes:
        part: bytes = self._member.decompress(data, bytes_max)
        self._counts.taken.append(len(data))
        self._counts.given.append(len(part))
        return part


def test_many_members_are_read_once_and_not_once_for_each_member(monkeypatch):
    counts = CountingZlib()
    monkeypatch.setattr(content_encoding, "zlib", counts)
    plain = random.Random(1).randbytes(20_000)
    body = gzipped(plain) * 200
    assert decoded("gzip", body, 10 << 20) == plain * 200
    assert sum(counts.taken) <= len(body) + 200 * content_encoding.GZIP_SLICE_BYTES


@pytest.mark.parametrize("plain", [random.Random(2).randbytes(1_000_000), bytes(9_000_000)], ids=["random", "zeros"])
def test_gzip_is_decoded_in_steps_of_bounded_work(monkeypatch, plain: bytes):
    counts = CountingZlib()
    monkeypatch.setattr(content_encoding, "zlib", counts)
    steps = list(content_encoding.decode("gzip", gzipped(plain), 10 << 20))
    assert b"".join(steps) == plain
    assert len(counts.taken) == len(steps)
    assert max(counts.taken) <= content_encoding.GZIP_SLICE_BYTES
    assert max(counts.given) <= content_encoding.GZIP_STEP_BYTES_MAX


@pytest.mark.parametrize("plain", [random.Random(3).randbytes(1_000_000), bytes(9_000_000)], ids=["random", "zeros"])
def test_zstd_is_decoded_in_steps_of_bounded_work(plain: bytes):
    body = zstd_stream(plain)
    steps = list(content_encoding.decode("zstd", body, 10 << 20))
    assert b"".join(steps) == plain
    assert len(steps) >= len(body) // (content_encoding.ZSTD_SLICE_BYTES * content_encoding.ZSTD_STEP_SLICES)
    assert max(map(len, steps)) < content_encoding.ZSTD_STEP_BYTES + content_encoding.ZSTD_SLICE_BYTES // 4 * 131_072


def test_a_zstd_body_of_many_frames_is_refused_at_the_end_of_the_first():
    with pytest.raises(MalformedBodyError, match="follows its end"):
        decoded("zstd", zstd(b"x") * 100_000, 10 << 20)
    skippable = b"\x50\x2a\x4d\x18" + bytes(4)
    with pytest.raises(MalformedBodyError, match="follows its end"):
        decoded("zstd", skippable * 100_000 + zstd(b"x"), 10 << 20)


@pytest.mark.parametrize("coding", ["br", "deflate", "compress", "gzip, gzip", "aws-chunked"])
def test_another_coding_is_unsupported(coding: str):
    with pytest.raises(UnsupportedMediaTypeError) as refused:
        decoded(coding, PLAIN, 1_000_000)
    assert refused.value.field == "Content-Encoding"


@pytest.mark.parametrize(
    ("accept_encoding", "chosen"),
    [
        ("gzip", "gzip"),
        ("zstd", "zstd"),
        ("gzip, zstd", "zstd"),
        ("GZIP ; Q=0.5", "gzip"),
        ("gzip;q=0", None),
        ("gzip;q=0, zstd", "zstd"),
        ("gzip;q=0.8, zstd;q=0.2", "gzip"),
        ("*", "zstd"),
        ("*;q=0", None),
        ("*;q=0, gzip", "gzip"),
        ("zstd;q=0, *", "gzip"),
        ("identity, gzip;q=0.5", None),
        ("identity;q=0, gzip;q=0.1", "gzip"),
        ("identity", None),
        ("br, deflate", None),
        ("", None),
        ("gzip;q=high", None),
        ("gzip;q=nan", None),
        ("gzip;q=7", None),
        (",,;q=,", None),
    ],
)
def test_the_best_coding_that_is_accepted_is_chosen(accept_encoding: str, chosen: str | None):
    assert content_encoding.choose(weights(accept_encoding.encode())) == chosen


@given(st.lists(st.binary(max_size=3_000), max_size=5), st.sampled_from(["gzip", "zstd"]))
def test_what_was_encoded_in_parts_decodes_to_the_whole(parts: list[bytes], coding: str):
    encoded = b"".join(content_encoding.encode(coding, parts))
    assert decoded(coding, encoded, 100_000) == b"".join(parts)


@given(st.binary(max_size=60))
def test_no_accept_encoding_is_too_odd_to_be_understood(header: bytes):
    assert content_encoding.choose(weights(header)) in (None, "gzip", "zstd")
