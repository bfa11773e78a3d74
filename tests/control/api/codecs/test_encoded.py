"""Encoded messages, cut anywhere, are what encoding just those messages would have made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from basalt.api.codecs import avro, batches
from basalt.api.codecs.encoded import AvroMessages, BatchedMessages

contents = st.lists(st.binary(max_size=9) | st.just(bytes(200)), min_size=1, max_size=12)


@given(st.data(), contents, st.integers(1, 5))
def test_a_part_is_what_its_messages_alone_are_encoded_as(
    data: st.DataObject, payloads: list[bytes], piece_messages: int
):
    ids = [number.to_bytes(20, "big") for number in range(10, 10 + 3 * len(payloads), 3)]
    start = data.draw(st.integers(0, len(payloads) - 1))
    stop = data.draw(st.integers(start + 1, len(payloads)))
    pieces = [b"".join(payloads[at : at + piece_messages]) for at in range(0, len(payloads), piece_messages)]
    lengths = list(map(len, payloads))
    in_avro, in_batches = AvroMessages(ids, lengths, pieces), BatchedMessages(ids, lengths, pieces)
    assert b"".join(in_avro.pieces(start, stop)) == avro.encode_messages_block(ids[start:stop], payloads[start:stop])
    assert b"".join(in_batches.pieces(start, stop)) == batches.encode_list(ids[start:stop], payloads[start:stop])
    for messages in (in_avro, in_batches):
        assert [messages.id_at(index) for index in range(messages.count)] == ids
        assert messages.ends[stop] - messages.ends[start] == sum(lengths[start:stop])


@given(contents, st.integers(0, 60), st.booleans())
def test_the_first_message_from_an_id_on_is_found(payloads: list[bytes], number: int, inclusive: bool):
    numbers = list(range(10, 10 + 3 * len(payloads), 3))
    messages = BatchedMessages([each.to_bytes(20, "big") for each in numbers], list(map(len, payloads)), payloads)
    wanted = [each for each in numbers if each > number or (inclusive and each == number)]
    assert messages.first_from(number.to_bytes(20, "big"), inclusive) == len(numbers) - len(wanted)
