"""Frames: how they are cut out of a stream, what is refused, and errors that are carried. The bytes are those of tests/vectors/links.tsv."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.cluster.links import frames
from basalt.cluster.links.frames import (
    CALLS_FROM,
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    TEXT_MAX,
    CallKind,
    ErrorBody,
    Frame,
    FrameReader,
    Kind,
    append_frame,
    frame_bytes,
    read_error,
)
from basalt.errors import (
    BY_CODE,
    BasaltError,
    BusyError,
    CorruptionError,
    InputError,
    InternalError,
    ProtocolError,
    RetryError,
    TooLargeError,
)
from tests.vector_lines import cases

bodies = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def read(frame: Frame) -> tuple[int, int, object]:
    return frame.number, frame.kind, msgspec.msgpack.decode(frame.body)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 255), bodies), max_size=6), st.data())
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(
    sent: list[tuple[int, int, object]], data: st.DataObject
):
    out = bytearray()
    for frame in sent:
        append_frame(out, *frame)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(out)), max_size=8)))
    reader, got = FrameReader(), []
    for start, stop in zip([0, *cuts], [*cuts, len(out)], strict=True):
        got += reader.feed(bytes(out[start:stop]))
    assert [read(frame) for frame in got] == sent
    assert reader.held_bytes == 0


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_frames_or_refused(data: bytes):
    reader = FrameReader(64)
    try:
        for frame in reader.feed(data):
            assert frame.number >= 0
        assert reader.held_bytes <= 64 + 4
    except ProtocolError:
        pass


def test_a_frame_over_the_limit_is_refused_before_its_bytes_are_here():
    with pytest.raises(ProtocolError, match=f"{HELLO_BYTES_MAX} is the most"):
        FrameReader(HELLO_BYTES_MAX).feed((HELLO_BYTES_MAX + 1).to_bytes(4, "big"))


def test_a_frame_that_is_too_large_to_send_leaves_those_before_it():
    out = bytearray()
    append_frame(out, 1, CALLS_FROM, b"first")
    with pytest.raises(TooLargeError, match=str(FRAME_BYTES_MAX)):
        append_frame(out, 2, CALLS_FROM, bytes(FRAME_BYTES_MAX))
    append_frame(out, 3, CALLS_FROM, b"last")
    assert [frame.number for frame in FrameReader().feed(bytes(out))] == [1, 3]


def test_the_largest_frame_there_is_comes_through():
    body = bytes(FRAME_BYTES_MAX - 8)
    (frame,) = FrameReader().feed(frame_bytes(1, CALLS_FROM, body))
    assert msgspec.msgpack.decode(frame.body) == body


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc0",
        b"\x92\x01\x10",
        b"\x93\xff\x10\xc0",
        b"\x93\x01\x10\xc0\x00",
        b"\x93\x01\x10" + 9_999 * b"\x91",
        b"\x93\xa1a\x10\xc0",
    ],
)
def test_what_is_no_frame_is_refused(content: bytes):
    with pytest.raises(ProtocolError):
        FrameReader().feed(len(content).to_bytes(4, "big") + content)


def carried(error: BasaltError) -> BasaltError:
    (frame,) = FrameReader().feed(frame_bytes(1, Kind.ERROR, ErrorBody.of(error)))
    return read_error(frame)


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_error_of_the_tree_is_carried_with_its_class(code: str):
    error = BY_CODE[code]("it did not work", field="topic", hint="do this")
    told = carried(error)
    assert type(told) is BY_CODE[code]
    assert (told.message, told.field, told.hint) == ("it did not work", "topic", "do this")


@pytest.mark.parametrize("base", [RetryError, InputError, CorruptionError])
def test_an_error_of_an_unknown_code_keeps_what_its_caller_does_next(base: type[BasaltError]):
    class NewerError(base, code="newer"):  # type: ignore[call-arg, misc, valid-type]
        pass

    told = carried(NewerError("of a newer version"))
    assert (type(told), told.message) == (base, "of a newer version")


def test_an_error_that_says_nothing_of_that_is_the_other_sides_fault():
    assert type(ErrorBody("newer", "", "what").error()) is InternalError


def test_how_long_to_wait_is_carried_and_long_texts_are_cut():
    error = BusyError("x" * (TEXT_MAX + 1), hint="y" * (TEXT_MAX + 1))
    error.retry_after_ms = 77
    told = carried(error)
    assert isinstance(told, BusyError)
    assert (told.retry_after_ms, len(told.message), len(told.hint or "")) == (77, TEXT_MAX, TEXT_MAX)


def test_what_should_be_an_error_and_is_none_is_refused():
    (frame,) = FrameReader().feed(frame_bytes(1, Kind.ERROR, 7))
    with pytest.raises(ProtocolError, match="cannot be read"):
        read_error(frame)


def test_a_call_has_no_number_of_the_links_own_frames():
    with pytest.raises(ValueError, match="from 16"):
        CallKind(Kind.ANSWER, "answer", int, int)
    assert max(kind for kind in frames.Kind if kind < Kind.BEAT) < CALLS_FROM <= Kind.BEAT


def plain(body: object) -> object:
    return body.hex() if isinstance(body, bytes) else [plain(each) for each in body] if isinstance(body, list) else body


@pytest.mark.parametrize(("data", "meaning"), cases("links"))
def test_the_vectors_are_read_and_written(data: bytes, meaning: dict[str, object]):
    (frame,) = FrameReader().feed(data)
    number, kind, body = read(frame)
    assert {"number": number, "kind": kind, "body": plain(body)} == meaning
    assert frame_bytes(number, kind, body) == data
