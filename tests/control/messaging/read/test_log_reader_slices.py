"""Slices, starts and limits by themselves: what each says of its messages, and where it cuts them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from basalt.messaging.read.log_reader import Slice, Start, not_before, start_from
from basalt_engine.keys import MessageId, position
from basalt_engine.messages import MessageRow
from basalt_engine.records import decode, encode
from basalt_engine.snapshot import TransactionSnapshot
from tests.control.messaging.read.test_log_reader import EVERYTHING, SNAPSHOTS, Log, fetched, logs, relaxed


@relaxed
@given(logs(), SNAPSHOTS)
def test_every_slice_says_the_same_of_its_messages_in_every_way(log: Log, snapshot: TransactionSnapshot | None) -> None:
    for part in fetched(log, start_from(None, True), EVERYTHING, snapshot).slices:
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


def test_what_has_expired_moves_the_start_and_never_back() -> None:
    early, late = start_from(5, True), start_from(50, True)
    assert not_before(early, 20) == start_from(20, True)
    assert not_before(late, 20) == late
    assert not_before(early, -3) == early
    exclusive = Start(MessageId(20, 0).encode(), False)
    assert not_before(exclusive, 20) == exclusive


def test_reading_on_within_a_reference_reads_no_payload_row_again() -> None:
    log = Log()
    log.refer([[b"a"], [b"b", b"c"], [b"d"]], 11, 0, lost=False)
    for message, first in zip(log.messages, (0, 1, 1, 2), strict=True):
        narrowed = Start(message.id, True).within(log.rows[0])
        assert log.payload_rows(narrowed) == log.stored[11][first:]
        assert Start(message.id[:9] + b"\xff" + message.id[10:], True).within(log.rows[0]) == log.rows[0]


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
