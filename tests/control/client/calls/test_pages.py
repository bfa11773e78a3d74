"""Pages: decoded when asked, right for every shape of messages, and never silently wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.codecs import batches
from basalt.client.calls.pages import Message, Page
from basalt.errors import BasaltError, NotTextError, ProtocolError

ID = bytes.fromhex("0000018bcfe56800" + "0001" + "0000018bcfe56800" + "0000")


def body_of(blocks: list[list[bytes]]) -> bytes:
    """An answer of these payloads, with rising ids: runs (whose ids count up in their last number) and lists by turns."""
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


sizes = st.one_of(st.integers(0, 300), st.sampled_from([63, 64, 8_191, 8_192, 8_193, 20_000]))
uniform = st.builds(lambda size, count: [b"u" * size] * count, sizes, st.integers(1, 40))
mixed = st.lists(sizes.map(lambda size: b"m" * size), min_size=1, max_size=40)


@given(st.lists(st.one_of(uniform, mixed), max_size=5))
def test_a_page_has_what_was_encoded(blocks):
    payloads = [payload for block in blocks for payload in block]
    page = Page(body_of(blocks))
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


def test_a_run_of_equal_lengths_that_ends_early_is_not_taken_for_whole():
    # Equal stretches of bytes that only look like messages of one length.
    payloads = [b"\x28" * 30] * 9 + [b"\x28" * 29] + [b"\x28" * 30] * 6
    assert Page(body_of([payloads])).payloads() == payloads


@given(st.lists(mixed, min_size=1, max_size=2), st.data())
def test_a_cut_answer_is_refused(blocks, data):
    body = body_of(blocks)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(ProtocolError, match="not one of message batches"):
        len(Page(body[:cut]))


@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(body):
    page = Page(batches.START + body)
    try:
        count = len(page)
    except ProtocolError:
        return
    assert len(page.ids()) == len(page.payloads()) == len(list(page)) == count
    assert page.bytes <= len(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x02" + batches.END,  # a version that this client does not know
        batches.START + b"\x09" + batches.END,  # a kind of frame that there is not
        batches.START + batches.encode_marker("watermark", ID, b"{}") + batches.END,  # nobody asked for it
        batches.START + batches.encode_list([ID], [b"a"]) + batches.END + b"\x00",  # bytes after the end
    ],
)
def test_what_no_server_sends_is_refused(body):
    with pytest.raises(ProtocolError, match="not one of message batches"):
        list(Page(body))


def test_a_message_knows_when_it_was_published():
    message = Message(ID, "Grüße".encode())
    assert message.published_ms == 1_700_000_000_000
    assert message.hex_id == ID.hex()
    assert message.text == "Grüße"


def test_messages_before_an_id_are_counted():
    page = Page(body_of([[b"a"] * 4, [b"a"] * 6]))
    assert [page.count_before(number.to_bytes(20)) for number in (0, 1, 9, 10, 99)] == [0, 1, 9, 10, 10]


def test_a_list_of_ids_stays_the_callers_own():
    page = Page(body_of([[b"a", b"b"]]))
    page.ids().clear()
    assert len(page.ids()) == len(list(page)) == 2


def test_a_payload_that_is_no_text_is_told_with_its_message_and_the_way_out() -> None:
    message = Message(ID, "café".encode("latin-1"))
    with pytest.raises(
        BasaltError, match=f"message {ID.hex()} is no UTF-8 text: byte 3 of its payload is e9"
    ) as raised:
        _ = message.text
    assert isinstance(raised.value, NotTextError)
    assert "message.payload" in str(raised.value.hint)
    assert "text_or" in str(raised.value.hint)
    assert (message.text_or(None), message.text_or("?")) == (None, "?")
    whole = Message(ID, "café".encode())
    assert (whole.text, whole.text_or(None)) == ("café", "café")
