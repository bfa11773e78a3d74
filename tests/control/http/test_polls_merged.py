"""Merged rows in answers: a reader gets the messages, ids and order that it would get of the rows that they were merged from."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.codecs import batches
from basalt.api.codecs.arrow import COLUMNS, Source
from basalt.api.codecs.encoded import ALONE_BYTES_MIN, RUN_MESSAGES_MIN
from basalt.http.routes import polls as routes
from basalt.http.routes import ranges
from basalt.messaging.read.slices import Slice
from basalt.transactions.rules.transaction import TransactionIds
from basalt_engine.keys import position
from basalt_engine.messages import MessageRow
from basalt_engine.records import Buffer, Compression, Extras, compressed, decode, encode, merge
from tests.control.api.codecs import client_codecs

ROWS = st.lists(st.lists(st.binary(max_size=30), min_size=1, max_size=4), min_size=2, max_size=40)


def stored(rows: list[list[bytes]], *, keyed: bool, compression: Compression) -> tuple[Slice, list[Slice]]:
    """The slice of a merged row, and those of the rows before, one in every second millisecond."""
    before = []
    for number, payloads in enumerate(rows):
        extras = [Extras(b"k%d" % number, (("h", payload),)) for payload in payloads] if keyed else None
        data = encode(payloads, extras, compression=compression)
        before.append(MessageRow(position(5 + 2 * number, len(payloads) + 254), None, data))
    data = merge([(row.position, decode(row.batch or b"")) for row in before])
    data = compressed(data) if compression else data
    whole = Slice(before[-1]._replace(batch=data), decode(data), None)
    return whole, [Slice(row, decode(row.batch or b""), None) for row in before]


def told(frames: list[batches.BatchFrame], body: bytes) -> list[object]:
    return [
        (message_id, bytes(payload), carried)
        for frame in frames
        for message_id, payload, carried in zip(
            frame.ids(body), frame.payloads(body), frame.carried(body) or [None] * frame.count, strict=True
        )
    ]


@given(ROWS, st.booleans(), st.sampled_from(Compression), st.data())
def test_every_kind_of_answer_has_the_messages_of_a_merged_row_as_they_were(
    rows: list[list[bytes]], keyed: bool, compression: Compression, data: st.DataObject
) -> None:
    whole, before = stored(rows, keyed=keyed, compression=compression)
    start = data.draw(st.integers(0, whole.count - 1))
    first_id = whole.id_at(start)
    merged_slices = [whole.after(first_id, True)]
    slices = [part for part in (each.after(first_id, True) for each in before) if part.count]

    def same(answer: Callable[[list[Slice]], Iterable[Buffer]], read: Callable[[bytes], object]) -> None:
        assert read(b"".join(answer(merged_slices))) == read(b"".join(answer(slices)))

    same(routes.batch_parts, lambda body: told(batches.decode(body), body))
    same(routes.json_parts, bytes)
    assert list(routes.records_of(merged_slices)) == list(routes.records_of(slices))
    if not keyed:
        same(routes.avro_parts, client_codecs.decode_avro_messages)


@pytest.mark.parametrize("names", [tuple(COLUMNS), ("id", "publish_time")])
@given(rows=ROWS, keyed=st.booleans())
def test_an_arrow_answer_of_a_merged_row_is_the_same_to_the_byte(
    names: tuple[str, ...], rows: list[list[bytes]], keyed: bool
) -> None:
    whole, before = stored(rows, keyed=keyed, compression=Compression.NONE)
    source = Source(b"orders", 1)
    ids = TransactionIds("00" * 8)
    assert b"".join(ranges._arrow([whole], names, source, ids)) == b"".join(ranges._arrow(before, names, source, ids))


@pytest.mark.parametrize(("count", "size_bytes"), [(RUN_MESSAGES_MIN, 1), (2, ALONE_BYTES_MIN)])
def test_long_merged_rows_are_one_frame_of_stored_bytes(count: int, size_bytes: int) -> None:
    whole, _ = stored([[bytes(size_bytes)]] * count, keyed=False, compression=Compression.NONE)
    pieces = list(routes._batch_pieces([whole]))
    _, stretch = whole.span()
    assert [len(piece) for piece in pieces[1:]] == [20 * count, 4 * count, len(stretch)]
    assert isinstance(pieces[-1], memoryview)
    (frame,) = batches.decode(b"".join([batches.START, *pieces, batches.END]))
    assert frame.count == count
