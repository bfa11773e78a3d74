"""The parts of a poll's answer: whatever rows the messages lie in, the whole is one array of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.http.message_parts import PART_BYTES, RUN_MESSAGES_MIN
from basalt.wire import avro
from basalt.wire.bodies import ConsumeRequest, Message, PublishRequest

AVRO = "avro/binary"


@given(
    st.binary(max_size=18),
    st.lists(st.tuples(st.integers(0, 65_535), st.binary(max_size=200)), max_size=50),
)
def test_a_run_is_encoded_as_a_block_of_the_same_messages(head: bytes, messages: list[tuple[int, bytes]]):
    tail = bytes(18 - len(head))
    numbers = [number.to_bytes(2) for number, _ in messages]
    payloads = [payload for _, payload in messages]
    ids = [head + number + tail for number in numbers]
    run = avro.encode_messages_run(head, numbers, tail, payloads)
    assert run == avro.encode_messages_block(ids, payloads)
    if messages:
        assert avro.decode_messages(run + avro.END_OF_ARRAY) == list(map(Message, ids, payloads))


@pytest.mark.parametrize(
    ("head", "numbers", "tail", "payloads"),
    [
        (bytes(8), [b"\0\0"], bytes(9), [b"x"]),
        (bytes(8), [b"\0\0", b"\0"], bytes(10), [b"x", b"y"]),
        (bytes(8), [b"\0\0"], bytes(10), []),
    ],
)
def test_a_run_that_makes_no_ids_is_refused(head, numbers, tail, payloads):
    with pytest.raises(ValueError):
        avro.encode_messages_run(head, numbers, tail, payloads)


@pytest.mark.parametrize(
    "rows",
    [
        [1] * 40,
        [RUN_MESSAGES_MIN - 1, RUN_MESSAGES_MIN, RUN_MESSAGES_MIN + 1],
        [1, 500, 1, 1, 500],
        [500, 500, 1],
        [1, 1, PART_BYTES, 1],
    ],
)
@pytest.mark.parametrize("media_type", [AVRO, "application/json"])
def test_short_and_long_rows_make_one_array_in_order(client, rows, media_type):
    path = client.topic()
    expected = []
    for row, count in enumerate(rows):
        messages = [b"%d/%d" % (row, index) for index in range(count)] if count < PART_BYTES else [bytes(PART_BYTES)]
        body = avro.encode_publish_request(PublishRequest(None, messages))
        assert client.call("POST", f"{path}/publish", body, AVRO).status == 200
        client.clock.advance(1)
        expected += messages
    if media_type == AVRO:
        reply = client.call("POST", f"{path}/poll", avro.encode_consume_request(ConsumeRequest()), AVRO)
        found = avro.decode_messages(reply.body)
    else:
        found = [
            Message(message["id"].encode("latin-1"), message["payload"].encode("latin-1"))
            for message in client.poll(path).json()
        ]
    assert [message.payload for message in found] == expected
    ids = [message.id for message in found]
    assert ids == sorted(set(ids))


def test_stored_messages_have_the_ids_that_their_rows_give_them(client):
    path = client.topic()
    client.clock.advance(5)
    begun = client.begin()
    body = avro.encode_publish_request(PublishRequest(begun["writePointer"], [b"%d" % number for number in range(40)]))
    assert client.call("POST", f"{path}/store", body, AVRO).status == 200
    client.clock.advance(5)
    client.call("POST", f"/v1/transactions/{begun['id']}/commit")
    reply = client.call("POST", f"{path}/poll", avro.encode_consume_request(ConsumeRequest()), AVRO)
    for message in avro.decode_messages(reply.body):
        following = client.payloads(path, startFrom=message.id.decode("latin-1"), limit=1)
        assert following == [message.payload.decode()]
