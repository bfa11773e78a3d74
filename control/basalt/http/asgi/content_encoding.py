"""Content codings, gzip and zstd: request bodies decoded under a limit, answers encoded as Accept-Encoding asks.

A few kilobytes can stand for gigabytes, so nothing here produces more than its limit before it looks. Decoding goes in
steps, each of bounded work, so that the event loop can serve others in between.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import zstandard

from basalt.api.bodies.messages import Buffer
from basalt.errors import MalformedBodyError, TooLargeError, UnsupportedMediaTypeError

ACCEPTED = b"gzip, zstd"  # what a 415 answer's Accept-Encoding says
GZIP_WINDOW_BITS = 31  # zlib's way to say: with a gzip header and trailer
GZIP_MEMBERS_MAX = 1_000  # a file of many members is legal; each costs microseconds, however empty
GZIP_SLICE_BYTES = 16_384  # taken in by one step; a member that ends in a slice copies the rest of the slice, no more
GZIP_STEP_BYTES_MAX = 262_144  # given out by one step: below a millisecond
ZSTD_WINDOW_BYTES_MAX = 8 * 1024 * 1024  # what RFC 9659 lets a sender of this content coding use
ZSTD_SLICE_BYTES = 256  # four bytes can stand for a block of 128 KiB, so a slice for 8 MiB at most
ZSTD_STEP_SLICES = 64  # taken in by one step, unless they give ZSTD_STEP_BYTES before
ZSTD_STEP_BYTES = 262_144
GZIP_LEVEL = 1  # answers are made while others wait: level 1 is four times faster than 6, a tenth larger
ZSTD_LEVEL = 1
CODED_BYTES_MIN = 1_024  # below this the coding's own bytes and time cost more than they save

_PREFERENCE = ("zstd", "gzip")  # at equal quality the faster one


def decode(coding: str, body: bytes, bytes_max: int) -> Iterator[bytes]:
    """The body without its content coding, in parts: each is one step of bounded work, and may be empty.

    `TooLargeError` over `bytes_max`, `MalformedBodyError` for damaged bytes, either of them after good parts too.
    """
    if coding in ("gzip", "x-gzip"):
        return _gunzip(body, bytes_max)
    if coding == "zstd":
        return _unzstd(body, bytes_max)
    raise UnsupportedMediaTypeError(
        f"content encoding {coding[:40]!r} is not one that this server reads",
        field="Content-Encoding",
        hint="Send gzip, zstd, or no encoding.",
    )


def choose(weights: Mapping[bytes, float]) -> str | None:
    """The coding for an answer: the best one that we have, by the items of Accept-Encoding; None for none."""
    others = weights.get(b"*", 0.0)
    identity = weights.get(b"identity", weights.get(b"*", 0.001))  # allowed unless ruled out, wanted least
    offered = {name: weights.get(name.encode("ascii"), others) for name in _PREFERENCE}
    best = max(_PREFERENCE, key=offered.__getitem__)
    return best if offered[best] > 0 and offered[best] >= identity else None


def encode(coding: str, parts: Iterable[Buffer]) -> Iterator[bytes]:
    """The parts in the given coding, each flushed, so that a reader gets whole parts as they come."""
    coder: Any = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WINDOW_BITS)
    whole_parts = zlib.Z_SYNC_FLUSH
    if coding == "zstd":
        coder = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compressobj()
        whole_parts = zstandard.COMPRESSOBJ_FLUSH_BLOCK
    for part in parts:
        yield coder.compress(part) + coder.flush(whole_parts)
    yield coder.flush()


def _gunzip(body: bytes, bytes_max: int) -> Iterator[bytes]:
    """All members, fed in slices: a decompressor copies what it leaves over, which must not be the rest of the body."""
    whole = memoryview(body)
    room, start, members = bytes_max, 0, 1
    member = zlib.decompressobj(GZIP_WINDOW_BITS)
    while True:
        fed = whole[start : start + GZIP_SLICE_BYTES]
        try:
            part = member.decompress(fed, min(room + 1, GZIP_STEP_BYTES_MAX))
        except zlib.error as error:
            raise _damaged("gzip", str(error)) from None
        room -= len(part)
        if room < 0:
            raise too_large(bytes_max, " when decoded")
        start += len(fed) - len(member.unused_data) - len(member.unconsumed_tail)
        if not member.eof and not fed and not part:
            raise _damaged("gzip", "it ends in the middle")
        yield part
        if member.eof:
            if start == len(body):
                return
            if members == GZIP_MEMBERS_MAX:
                raise _damaged("gzip", f"it has more than {GZIP_MEMBERS_MAX} members")
            members += 1
            member = zlib.decompressobj(GZIP_WINDOW_BITS)


def _unzstd(body: bytes, bytes_max: int) -> Iterator[bytes]:
    """One frame, fed in slices: the decoder has no output limit of its own, but a slice only makes so much."""
    frame = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX).decompressobj()
    room = bytes_max
    step: list[bytes] = []
    step_bytes = 0
    try:
        for start in range(0, len(body), ZSTD_SLICE_BYTES):
            if frame.eof:
                raise _damaged("zstd", "something follows its end")
            part = frame.decompress(body[start : start + ZSTD_SLICE_BYTES])
            room -= len(part)
            if room < 0:
                raise too_large(bytes_max, " when decoded")
            step.append(part)
            step_bytes += len(part)
            if len(step) == ZSTD_STEP_SLICES or step_bytes >= ZSTD_STEP_BYTES:
                yield b"".join(step)
                step, step_bytes = [], 0
    except zstandard.ZstdError as error:
        raise _damaged("zstd", str(error)) from None
    if not frame.eof:
        raise _damaged("zstd", "it ends in the middle")
    if frame.unused_data:
        raise _damaged("zstd", "something follows its end")
    yield b"".join(step)


def too_large(bytes_max: int, when: str = "") -> TooLargeError:
    """The refusal of a body over the limit."""
    hint = "Send it in several requests, or raise http.body_bytes_max."
    return TooLargeError(f"the request body is more than {bytes_max} bytes{when}", hint=hint)


def _damaged(coding: str, why: str) -> MalformedBodyError:
    return MalformedBodyError(
        f"the request body is not whole {coding} data: {why}",
        field="Content-Encoding",
        hint="Encode the body anew, or send it as it is.",
    )
