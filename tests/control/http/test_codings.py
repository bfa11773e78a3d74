"""Content codings: what a body or an answer may be wrapped in, and how much may come out."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from basalt.errors import MalformedBodyError, TooLargeError, UnsupportedMediaTypeError
from basalt.http.asgi import codings

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
    assert codings.decode(coding, encoded, len(PLAIN)) == PLAIN


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_an_empty_body_stays_empty(coding: str):
    assert codings.decode(coding, b"".join(codings.encode(coding, [b""])), 10) == b""


@pytest.mark.parametrize(
    ("coding", "encoded"), [("gzip", gzipped(PLAIN)), ("zstd", zstd(PLAIN)), ("zstd", zstd_stream(PLAIN))]
)
def test_a_body_one_byte_over_the_limit_is_too_large(coding: str, encoded: bytes):
    with pytest.raises(TooLargeError):
        codings.decode(coding, encoded, len(PLAIN) - 1)


@pytest.mark.parametrize(
    ("coding", "encoded", "size"), [("gzip", gzipped, 50_000_000), ("zstd", zstd_stream, 200_000_000)]
)
def test_a_bomb_is_refused_without_being_blown_up(coding: str, encoded: Callable[[bytes], bytes], size: int):
    bomb = encoded(bytes(size))
    with pytest.raises(TooLargeError):
        codings.decode(coding, bomb, 1_000_000)


@pytest.mark.parametrize(("coding", "encoded"), [("gzip", gzipped(PLAIN)), ("zstd", zstd(PLAIN))])
def test_a_coded_body_cut_at_any_byte_is_refused(coding: str, encoded: bytes):
    for cut in range(len(encoded)):
        with pytest.raises(MalformedBodyError):
            codings.decode(coding, encoded[:cut], 1_000_000)


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
        codings.decode(coding, encoded, 1_000_000)


def test_thousands_of_empty_members_are_refused_instead_of_decoded_one_by_one():
    with pytest.raises(MalformedBodyError, match="members"):
        codings.decode("gzip", gzipped(b"") * 5_000, 1_000_000)


@pytest.mark.parametrize("coding", ["br", "deflate", "compress", "gzip, gzip", "aws-chunked"])
def test_another_coding_is_unsupported(coding: str):
    with pytest.raises(UnsupportedMediaTypeError) as refused:
        codings.decode(coding, PLAIN, 1_000_000)
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
    assert codings.choose(accept_encoding) == chosen


@given(st.lists(st.binary(max_size=3_000), max_size=5), st.sampled_from(["gzip", "zstd"]))
def test_what_was_encoded_in_parts_decodes_to_the_whole(parts: list[bytes], coding: str):
    encoded = b"".join(codings.encode(coding, parts))
    assert codings.decode(coding, encoded, 100_000) == b"".join(parts)


@given(st.text(max_size=60))
def test_no_accept_encoding_is_too_odd_to_be_understood(text: str):
    assert codings.choose(text) in (None, "gzip", "zstd")
