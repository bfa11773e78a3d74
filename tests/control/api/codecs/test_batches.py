"""Message batches: what goes in comes out, and what is no whole answer is refused before anything is made of it."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies.messages import NOTHING_CARRIED
from basalt.api.codecs import batches
from basalt.errors import MalformedBodyError
from basalt_engine import records
from basalt_engine.records import Extras

ID = bytes.fromhex("0000018bcfe56800" + "00ff" + "0000018bcfe56801" + "fffe")
RUN = "01 01 00000001 00 0000018bcfe5680000ff00000000000000000000"
LIST = "01 02 00000001"

# ids, which of their numbers counts (None: a list), payloads
Held = tuple[list[bytes], int | None, list[bytes]]


@st.composite
def frames(draw: st.DrawFn) -> Held:
    payloads = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=30))
    count = len(payloads)
    counted_at = draw(st.sampled_from([None, batches.SEQUENCE_AT, batches.PAYLOAD_SEQUENCE_AT]))
    if counted_at is None:
        return draw(st.lists(st.binary(min_size=20, max_size=20), min_size=count, max_size=count)), None, payloads
    template = draw(st.binary(min_size=18, max_size=18))
    first = draw(st.integers(0, 65_536 - count) | st.sampled_from([0, 255, 65_536 - count]))
    return [
        template[:counted_at] + number.to_bytes(2, "big") + template[counted_at:]
        for number in range(first, first + count)
    ], counted_at, payloads  # fmt: skip


def encoded(held: Held) -> bytes:
    ids, counted_at, payloads = held
    if counted_at is None:
        return batches.encode_list(ids, payloads)
    lengths = list(map(len, payloads))
    head = batches.encode_run_head(ids[0], counted_at, len(ids), sum(lengths))
    return head + struct.pack(f">{len(ids)}I", *lengths) + b"".join(payloads)


@given(st.lists(frames(), max_size=4))
def test_an_answer_has_the_messages_that_were_put_into_it(held: list[Held]) -> None:
    body = batches.START + b"".join(map(encoded, held)) + batches.END
    found = []
    for frame in batches.decode(body):
        ends = frame.ends()
        assert ends[-1] - ends[0] == frame.payload_bytes
        payloads = [body[start:stop] for start, stop in pairwise(ends)]
        assert list(frame.payloads(body)) == payloads
        found.append((list(frame.ids(body)), frame.counted_at, payloads))
        assert frame.count == len(payloads)
    assert found == held


@given(st.lists(frames(), max_size=3))
def test_an_answer_cut_anywhere_is_refused(held: list[Held]) -> None:
    body = batches.START + b"".join(map(encoded, held)) + batches.END
    for length in range(len(body)):
        with pytest.raises(MalformedBodyError):
            batches.decode(body[:length])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "version missing"),
        ("00", "version 0"),
        ("02 00", "version 2"),
        ("5b 5d", "version 91"),
        ("01", "cut short"),
        ("01 04 00", "kind 4"),
        ("01 03 00", "cut short"),
        ("01 03 00 0000018bcfe5680000ff00000000000000000000 00000000 00", "kind 0"),
        ("01 03 01 0000018bcfe5680000ff00000000000000000000 00000001 61 00", "a marker that nobody asked for"),
        ("01 00 00", "1 bytes follow the end"),
        ("01 00 01 00", "2 bytes follow the end"),
        ("01 01 00000000 00 0000018bcfe5680000ff00000000000000000000 00000000 00", "a frame without messages"),
        ("01 02 00000000 00000000 00", "a frame without messages"),
        (RUN.replace(" 00 ", " 02 ") + "00000001 00000001 61 00", "number 2 of an id"),
        (RUN.replace("00ff", "ffff").replace("00000001", "00000002") + "00000000 00000000 00000000 00", "beyond 65535"),
        (RUN + "00000002 00000001 61 00", "payloads of 1 bytes, expected 2"),
        (RUN + "00000001 00000002 61 00", "payloads of 2 bytes, expected 1"),
        (RUN + "00000001 ffffffff 61 00", "payloads of 4294967295 bytes"),
        (RUN + "00000009 00000009 61 00", "1 messages of 9 bytes in"),
        (RUN.replace("00000001", "0000ff00") + "00000001 00000001 61 00", "65280 messages of 1 bytes in"),
        (LIST.replace("00000001", "ffffffff") + "00000001" + ID.hex() + "00000001 61 00", "4294967295 messages of"),
        (LIST + "ffffffff" + ID.hex() + "00000001 61 00", "1 messages of 4294967295 bytes"),
        (LIST + "00000001" + ID.hex() + "00000000 61 00", "payloads of 0 bytes, expected 1"),
        (LIST + "00000001" + ID.hex() + "00000001 61", "cut short"),
    ],
)
def test_what_is_no_answer_is_refused_and_says_why(body: str, words: str) -> None:
    with pytest.raises(MalformedBodyError, match=words):
        batches.decode(bytes.fromhex(body))


def test_a_run_may_count_up_to_the_last_number_there_is() -> None:
    body = batches.START + encoded(([ID[:18] + b"\xff\xfe", ID[:18] + b"\xff\xff"], 18, [b"", b""])) + batches.END
    (frame,) = batches.decode(body)
    assert frame.ids(body) == (ID[:18] + b"\xff\xfe", ID[:18] + b"\xff\xff")


def test_markers_lie_between_messages_for_who_asked_for_them() -> None:
    marker = batches.encode_marker("end_of_stream", ID, b"{}")
    body = batches.START + batches.encode_list([ID], [b"a"]) + marker + batches.encode_list([ID], [b"b"]) + batches.END
    first, found, last = batches.decode_marked(body)
    assert found == batches.MarkerFrame("end_of_stream", ID, b"{}")
    assert [list(frame.payloads(body)) for frame in (first, last)] == [[b"a"], [b"b"]]
    for length in range(len(body)):
        with pytest.raises(MalformedBodyError):
            batches.decode_marked(body[:length])


EXTRAS = st.builds(
    Extras,
    st.none() | st.binary(max_size=10),
    st.lists(st.tuples(st.text(min_size=1, max_size=5), st.binary(max_size=5)), max_size=3).map(tuple),
    st.none() | st.integers(-(2**63) + 1, 2**63 - 1),
    st.none() | st.integers(1, 2**63 - 1),
)


@given(st.lists(st.tuples(st.binary(max_size=5), EXTRAS), min_size=1, max_size=20), st.data())
def test_what_messages_carry_comes_out_of_any_part_of_a_stored_row(
    messages: list[tuple[bytes, Extras]], data: st.DataObject
) -> None:
    row = records.decode(records.encode([payload for payload, _ in messages], [extras for _, extras in messages]))
    start = data.draw(st.integers(0, len(messages) - 1))
    stop = data.draw(st.integers(start + 1, len(messages)))
    ids = [number.to_bytes(20) for number in range(start, stop)]
    body = batches.START + batches.encode_list(ids, row.payloads(start, stop))
    if row.flags:
        body += batches.encode_carried(row.flags, [row.sections(start, stop)])
    body += batches.END
    (frame,) = batches.decode(body)
    carried = frame.carried(body) or [NOTHING_CARRIED] * frame.count
    assert [tuple(each) for each in carried] == [tuple(extras) for _, extras in messages[start:stop]]
    for length in range(len(body)):
        with pytest.raises(MalformedBodyError):
            batches.decode(body[:length])


MESSAGE = f"{LIST} 00000001 0000018bcfe5680000ff00000000000000000000 00000001 61"


@pytest.mark.parametrize(
    ("carried", "words"),
    [
        ("04 00 00000000", "flags 0"),
        ("04 10 00000004 00000000", "flags 16"),
        ("04 04", "cut short"),
        ("04 04 00000003 000000", "3 bytes"),
        ("04 04 00000006 00000001", "6 bytes"),
        ("04 04 00000005 00000000 61", "end at byte"),
        ("04 04 00000004 00000001", "end at byte"),
        ("04 08 0000000b 00000007 0001ff00000000", "not UTF-8"),
        ("04 08 00000006 00000002 0001", "end at byte"),
        ("04 04 00000004 00000000 04 04 00000004 00000000", "kind 4"),
    ],
)
def test_what_messages_cannot_carry_is_refused(carried: str, words: str) -> None:
    body = bytes.fromhex(f"{MESSAGE} {carried} 00")
    with pytest.raises(MalformedBodyError, match=words):
        for frame in batches.decode(body):
            frame.carried(body)
