"""Slices by themselves: what each says of its messages, and where it cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.messaging.read.log_reader import start_from
from basalt.messaging.read.slices import Slice
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import MessageId, position
from basalt_engine.messages import MessageRow
from basalt_engine.records import decode, encode, merge
from basalt_engine.snapshot import TransactionSnapshot
from tests.control.messaging.read.test_log_reader import EVERYTHING, SNAPSHOTS, Log, fetched, logs, relaxed


@relaxed
@given(logs(), SNAPSHOTS)
def test_every_slice_says_the_same_of_its_messages_in_every_way(log: Log, snapshot: TransactionSnapshot | None) -> None:
    slices = fetched(log, start_from(None, True), EVERYTHING, snapshot).slices
    for part in (run for each in slices for run in each.runs()):
        assert part.counted_at is not None
        head, own, tail = part.id_parts()
        assert [head + number + tail for number in own] == part.ids()
        assert (part.first_id(), part.last_id()) == (part.ids()[0], part.ids()[-1])
        first = part.first_id()
        at = part.counted_at
        number = int.from_bytes(first[at : at + 2], "big")
        counted = [first[:at] + (number + more).to_bytes(2, "big") + first[at + 2 :] for more in range(part.count)]
        assert counted == part.ids()
        lengths, stretch = part.span()
        assert bytes(lengths) == b"".join(len(payload).to_bytes(4, "big") for payload in part.payloads())
        assert bytes(stretch) == b"".join(part.payloads())
        assert len(part.payloads()) == len(part.extras()) == part.count
        assert part.payload_bytes == sum(map(len, part.payloads()))


@relaxed
@given(
    st.lists(st.binary(max_size=9), min_size=1, max_size=9), st.integers(-5, 12), st.integers(-9, 60), st.integers(0, 1),
    st.integers(0, 7),
)  # fmt: skip
def test_a_cut_is_the_most_that_fits(
    payloads: list[bytes], messages_max: int, bytes_max: int, least: int, message_bytes: int
) -> None:
    data = encode(payloads)
    whole = Slice(MessageRow(position(1, len(payloads) - 1), None, data), decode(data), None)
    fitting = [
        count
        for count in range(len(payloads) + 1)
        if count <= max(messages_max, 0)
        and (count <= least or sum(map(len, payloads[:count])) + message_bytes * count <= bytes_max)
    ]
    assert max(whole.up_to(messages_max, bytes_max, least, message_bytes).count, 0) == max(fitting)


# Merged batches.

PLACES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=6)


def merged(places: list[tuple[int, int]], payload: bytes = b"abc") -> tuple[Slice, list[Slice]]:
    """A merged row's slice, and those of the rows that it was merged from: each so many ms later, and so many messages."""
    rows, ms, sequence = [], 50, -1
    for later_ms, count in places:
        ms, sequence = (ms + later_ms, -1) if later_ms else (ms, sequence)
        sequence += count
        rows.append(MessageRow(position(ms, sequence), None, encode([payload[: 1 + index] for index in range(count)])))
    data = merge([(row.position, decode(row.batch or b"")) for row in rows])
    whole = Slice(MessageRow(rows[-1].position, None, data), decode(data), None)
    return whole, [Slice(row, decode(row.batch or b""), None) for row in rows]


def told(slices: list[Slice]) -> list[tuple[bytes, bytes]]:
    """The id and the payload of each message."""
    return [
        (message_id, bytes(payload))
        for each in slices
        for message_id, payload in zip(each.ids(), each.payloads(), strict=True)
    ]


@relaxed
@given(PLACES, st.data())
def test_a_slice_of_a_merged_row_is_those_of_the_rows_before_in_every_way(
    places: list[tuple[int, int]], data: st.DataObject
) -> None:
    whole, parts = merged(places)
    known = told(parts)
    assert told([whole]) == known
    assert whole.counted_at is None
    assert whole.id_bytes() == b"".join(message_id for message_id, _ in known)
    assert (whole.first_id(), whole.last_id()) == (known[0][0], known[-1][0])
    assert told(whole.runs()) == known
    assert all(
        run.counted_at is not None and run.publish_ms == MessageId.decode(run.first_id()).publish_ms
        for run in whole.runs()
    )
    near = data.draw(st.sampled_from(known))[0]
    for start in (near, near[:10] + b"\xff" * 10, near[:9] + b"\xff" * 11, near[:10] + bytes(9) + b"\x01", bytes(20)):
        for inclusive in (True, False):
            left = whole.after(start, inclusive)
            assert told([left]) == [each for each in known if each[0] > start or (inclusive and each[0] == start)]
            assert told(left.runs()) == told([left])
        assert told([whole.through(start)]) == [each for each in known if each[0] <= start]
    at = data.draw(st.integers(0, whole.count))
    assert [told([part]) for part in whole.cut_at(at)] == [known[:at], known[at:]]


def test_a_merged_row_that_does_not_end_at_its_key_is_corrupt() -> None:
    whole, _ = merged([(0, 2), (1, 1)])
    with pytest.raises(CorruptionError, match="does not end with the last"):
        Slice(MessageRow(position(50, 9), None, b""), whole.batch, None)
