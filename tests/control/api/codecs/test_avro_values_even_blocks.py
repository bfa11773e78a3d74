"""Blocks whose items are equally long are read by slices: always with what the reading of one item after the other finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.codecs import avro, avro_values
from basalt.errors import MalformedBodyError

COUNT = avro_values.EVEN_ITEMS_MIN
# Of one, two and three bytes; none at all; and the largest and smallest of each.
LENGTHS = st.sampled_from([0, 1, 63, 64, 100, 300, 8_191, 8_192, 9_000])


def publish(lengths: list[int]) -> tuple[bytes, list[bytes]]:
    messages = [bytes((index % 251,)) * length for index, length in enumerate(lengths)]
    items = b"".join(avro_values.encode_bytes(message) for message in messages)
    return b"\x02" + avro_values.encode_long(len(messages)) + items + avro_values.END_OF_ARRAY, messages


def outcome(body: bytes) -> object:
    try:
        request = avro.decode_publish_request(body)
    except MalformedBodyError as error:
        return error.message
    return list(map(bytes, request.messages))


def one_by_one(body: bytes) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro_values, "EVEN_ITEMS_MIN", 1 << 62)
        return outcome(body)


@given(length=LENGTHS, count=st.integers(COUNT, 3 * COUNT))
def test_equally_long_messages_are_read_whole(length: int, count: int) -> None:
    body, messages = publish([length] * count)
    assert avro.decode_publish_request(body).messages == messages


@given(length=LENGTHS, other=LENGTHS, index=st.integers(0, COUNT - 1))
def test_one_message_of_another_length_is_read_too(length: int, other: int, index: int) -> None:
    lengths = [length] * COUNT
    lengths[index] = other
    body, messages = publish(lengths)
    assert outcome(body) == messages


@given(length=st.sampled_from([0, 1, 63, 64, 300]), data=st.data())
def test_a_damaged_block_is_refused_as_it_is_one_by_one(length: int, data: st.DataObject) -> None:
    body = bytearray(publish([length] * COUNT)[0])
    at = data.draw(st.integers(1, len(body) - 1))
    change: Callable[[], object] = data.draw(
        st.sampled_from([lambda: body.__setitem__(at, body[at] ^ 0x80), lambda: body.__setitem__(at, body[at] ^ 2),
                         lambda: body.__delitem__(at), lambda: body.__delitem__(slice(at, None))])
    )  # fmt: skip
    change()
    assert outcome(bytes(body)) == one_by_one(bytes(body))


@pytest.mark.parametrize("length", [0, 1, 64])
def test_a_block_that_is_cut_in_its_last_message_is_refused_as_it_is_one_by_one(length: int) -> None:
    body, _ = publish([length] * COUNT)
    for cut in range(1, length + 4):
        refusal = outcome(body[:-cut])
        assert isinstance(refusal, str)
        assert refusal == one_by_one(body[:-cut])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_equally_long_messages_are_views_of_any_body(kind: Callable[[bytes], bytes | bytearray | memoryview]) -> None:
    body, messages = publish([300] * COUNT)
    given_body = kind(body)
    found = avro.decode_publish_request(given_body).messages
    assert found == messages
    assert all(isinstance(message, memoryview) and message.obj is memoryview(given_body).obj for message in found)
