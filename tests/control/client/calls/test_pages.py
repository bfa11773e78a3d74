"""Pages: decoded when asked, right for every shape of messages, and never silently wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies import work as bodies
from basalt.api.codecs import batches
from basalt.api.codecs.avro import END_OF_ARRAY, encode_long, encode_messages_block
from basalt.client.calls.pages import Message, Page, index_messages
from basalt.errors import ProtocolError
from tests.control.api.codecs.client_codecs import encode_avro_messages

ID = bytes.fromhex("0000018bcfe56800" + "0001" + "0000018bcfe56800" + "0000")


def body_of(blocks: list[list[bytes]]) -> bytes:
    """An answer of these payloads, block by block, with rising ids."""
    encoded = []
    number = 0
    for block in blocks:
        ids = [(number + at).to_bytes(20) for at in range(len(block))]
        number += len(block)
        encoded.append(encode_messages_block(ids, block))
    return b"".join(encoded) + END_OF_ARRAY


def batches_of(blocks: list[list[bytes]]) -> bytes:
    """The same answer as batches: runs (whose ids count up in their last number) and lists by turns."""
    encoded = [batches.START]
    number = 0
    for turn, block in enumerate(blocks):
        ids = [(number + at).to_bytes(20) for at in range(len(block))]
        number += len(block)
        if turn % 2:
            encoded.append(batches.encode_list(ids, block))
        else:
            size = sum(map(len, block))
            encoded.append(batches.encode_run_head(ids[0], batches.PAYLOAD_SEQUENCE_AT, len(block), size))
            encoded += [len(payload).to_bytes(4) for payload in block] + block
    return b"".join([*encoded, batches.END])


def pages_of(blocks: list[list[bytes]]) -> list[Page]:
    return [Page(body_of(blocks)), Page(batches_of(blocks), batches=True)]


sizes = st.one_of(st.integers(0, 300), st.sampled_from([63, 64, 8_191, 8_192, 8_193, 20_000]))
uniform = st.builds(lambda size, count: [b"u" * size] * count, sizes, st.integers(1, 40))
mixed = st.lists(sizes.map(lambda size: b"m" * size), min_size=1, max_size=40)


@given(st.lists(st.one_of(uniform, mixed), max_size=5))
def test_a_page_has_what_was_encoded(blocks):
    payloads = [payload for block in blocks for payload in block]
    for page in pages_of(blocks):
        assert len(page) == len(payloads)
        assert bool(page) == bool(payloads)
        assert page.bytes == sum(map(len, payloads))
        assert page.payloads() == payloads
        assert page.ids() == [number.to_bytes(20) for number in range(len(payloads))]
        assert [message.payload for message in page] == payloads
        assert [message.id for message in page] == page.ids()
        assert list(page) == [page[index] for index in range(len(page))]
        assert page[1:3] == list(page)[1:3]
        assert page[-2:] == list(page)[-2:]


def test_a_block_with_its_size_is_read_too():
    sized = encode_long(-1) + encode_long(23) + encode_avro_messages([bodies.Message(ID, b"a")])[1:-1] + END_OF_ARRAY
    assert [message.payload for message in Page(sized)] == [b"a"]


def test_a_run_of_equal_lengths_that_ends_early_is_not_taken_for_whole():
    # Equal stretches of bytes that only look like messages of one length.
    payloads = [b"\x28" * 30] * 9 + [b"\x28" * 29] + [b"\x28" * 30] * 6
    assert Page(body_of([payloads])).payloads() == payloads


@given(st.lists(mixed, min_size=1, max_size=2), st.data())
def test_a_cut_answer_is_refused(blocks, data):
    body = body_of(blocks)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(ProtocolError):
        len(Page(body[:cut]))
    body = batches_of(blocks)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(ProtocolError, match="not one of message batches"):
        len(Page(body[:cut], batches=True))


@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(body):
    try:
        index = index_messages(body)
    except (ValueError, IndexError):
        return
    assert all(start <= stop <= len(body) for start, stop in zip(index.starts, index.stops, strict=True))


@pytest.mark.parametrize(
    "body",
    [
        encode_long(1) + b"\x26" + bytes(19) + b"\x00" + END_OF_ARRAY,  # an id of 19 bytes
        encode_long(1) + b"\x28" + bytes(20) + b"\x01" + END_OF_ARRAY,  # a length of -1
        encode_long(2**40) + END_OF_ARRAY,
        encode_avro_messages([bodies.Message(ID, b"a")]) + b"\x00",  # bytes after the end
    ],
)
def test_what_no_server_sends_is_refused(body):
    with pytest.raises(ProtocolError, match="not an Avro array of messages"):
        list(Page(body))


def test_a_message_knows_when_it_was_published():
    message = Message(ID, "Grüße".encode())
    assert message.published_ms == 1_700_000_000_000
    assert message.hex_id == ID.hex()
    assert message.text == "Grüße"


def test_messages_before_an_id_are_counted():
    for page in pages_of([[b"a"] * 4, [b"a"] * 6]):
        assert [page.count_before(number.to_bytes(20)) for number in (0, 1, 9, 10, 99)] == [0, 1, 9, 10, 10]


def test_a_list_of_ids_stays_the_callers_own():
    for page in pages_of([[b"a", b"b"]]):
        page.ids().clear()
        assert len(page.ids()) == len(list(page)) == 2
