"""The parts of a poll's answer: whatever rows the messages lie in, the whole is one array of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies.messages import ConsumeRequest, Message, PublishRequest
from basalt.api.codecs import avro, avro_values
from basalt.api.codecs.encoded import ALONE_BYTES_MIN, RUN_MESSAGES_MIN
from basalt.client.calls.pages import Page
from basalt.http.asgi import content_encoding
from basalt.http.asgi.responses import CODED_AT_ONCE_BYTES_MAX
from basalt.http.routes import polls as routes
from basalt.http.routes.polls import PART_BYTES
from tests.control.api.codecs import client_codecs

AVRO = "avro/binary"
BATCHES = "application/vnd.basalt.batches"


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
        assert client_codecs.decode_avro_messages(run + avro_values.END_OF_ARRAY) == list(map(Message, ids, payloads))


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


def batched(client, path, query="", **wanted) -> Page:
    """The messages of a poll that asks for batches."""
    body = avro.encode_consume_request(ConsumeRequest(**wanted))
    reply = client.call("POST", f"{path}/poll{query}", body, AVRO, accept=BATCHES)
    assert (reply.status, reply.header("content-type")) == (200, BATCHES)
    assert reply.header("content-length") == str(len(reply.body))
    next_id = reply.header("basalt-next")
    return Page(reply.body, next_id and bytes.fromhex(next_id), reply.header("basalt-held-by"))


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
@pytest.mark.parametrize("media_type", [AVRO, BATCHES, "application/json"])
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
        found = client_codecs.decode_avro_messages(reply.body)
    elif media_type == BATCHES:
        found = list(batched(client, path))
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
    for message in client_codecs.decode_avro_messages(reply.body):
        following = client.payloads(path, startFrom=message.id.decode("latin-1"), limit=1)
        assert following == [message.payload.decode()]


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        (BATCHES, BATCHES),
        (f"{BATCHES}, {AVRO}", BATCHES),
        (f"{AVRO}, Application/Vnd.Basalt.Batches ; q=0.1", BATCHES),
        (f"{BATCHES};version=1", BATCHES),
        (f"{BATCHES};q=0", AVRO),
        (f"{BATCHES}; Q=0.0, {AVRO}", AVRO),
        (f"{BATCHES}2", AVRO),
        ("*/*", AVRO),
        ("application/*", AVRO),
        ("", AVRO),
    ],
)
def test_batches_are_answered_to_who_names_them(client, accept, answered):
    path = client.topic()
    request = avro.encode_consume_request(ConsumeRequest())
    reply = client.call("POST", f"{path}/poll", request, AVRO, accept=accept)
    assert (reply.header("content-type"), reply.body) == (answered, b"\x01\x00" if answered == BATCHES else b"\x00")


def test_a_poll_in_json_is_answered_in_batches_too(client):
    path = client.topic()
    client.publish(path, "a")
    reply = client.call("POST", f"{path}/poll", {}, accept=BATCHES)
    assert Page(reply.body)[0].payload == b"a"


@pytest.mark.parametrize("query", ["?isolation=uncommitted", "?isolation=committed"])
@pytest.mark.parametrize("limit", [None, 1, 2, 19, 20, 21, 60, 200])
def test_batches_hold_what_avro_does(client, query, limit):
    """Plain and lone rows, stored payloads, what was rolled back, what expired amid a row; and a writer still open."""
    path = publish_all_kinds(client)
    start, inclusive = None, True
    messages: list[Message] | None = None
    while messages != []:
        wanted = ConsumeRequest(start, inclusive, limit)
        reply = client.call("POST", f"{path}/poll{query}", avro.encode_consume_request(wanted), AVRO)
        page = batched(client, path, query, start_from=start, inclusive=inclusive, limit=limit)
        messages = client_codecs.decode_avro_messages(reply.body)
        assert (page.ids(), page.payloads()) == ([m.id for m in messages], [m.payload for m in messages])
        assert len(page) == len(messages)
        assert (page.next_id and page.next_id.hex(), page.held_by) == (
            reply.header("basalt-next"),
            reply.header("basalt-held-by"),
        )
        start, inclusive = page.next_id or start, False
    assert start is not None
    assert (page.held_by is not None) == (query == "?isolation=committed")


def publish_all_kinds(client) -> str:
    path = client.topic()

    def publish(count, pointer=None, call="publish"):
        client.clock.advance(1)
        body = avro.encode_publish_request(
            PublishRequest(pointer, [b"%d of %d" % (number, count) for number in range(count)])
        )
        reply = client.call("POST", f"{path}/{call}", body, AVRO)
        assert reply.status == 200, reply.body
        return reply

    publish(40)
    publish(1)
    publish(2)
    stored = client.begin()
    for count in (20, 1, 30):
        publish(count, stored["writePointer"], "store")
    client.call("POST", f"/v1/transactions/{stored['id']}/commit")
    undone = client.begin()
    answer = publish(25, undone["writePointer"])
    assert client.call("POST", f"{path}/rollback", answer.body, AVRO).status == 200
    client.call("POST", f"/v1/transactions/{undone['id']}/abort")
    records = [{"payload": str(number), **({"ttlMs": 5} if number in (0, 20, 21, 59) else {})} for number in range(60)]
    assert client.call("POST", f"{path}/records", {"records": records}).status == 200
    client.clock.advance(10)
    publish(18)
    publish(3, client.begin()["writePointer"])
    publish(17)
    return path


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_batches_are_coded_as_any_answer_and_large_ones_while_they_are_sent(client, coding):
    path = client.topic()
    for payload in (b"a" * 700, b"b" * 70_000):
        body = avro.encode_publish_request(PublishRequest(None, [payload] * 20))
        assert client.call("POST", f"{path}/publish", body, AVRO).status == 200
        request = avro.encode_consume_request(ConsumeRequest())
        plain = client.call("POST", f"{path}/poll", request, AVRO, accept=BATCHES)
        coded = client.call("POST", f"{path}/poll", request, AVRO, accept=BATCHES, accept_encoding=coding)
        assert coded.header("content-encoding") == coding
        assert b"".join(content_encoding.decode(coding, coded.body, 10 << 20)) == plain.body
        assert (coded.header("content-length") is None) == (len(plain.body) > CODED_AT_ONCE_BYTES_MAX)


def test_long_stretches_are_sent_as_they_are_stored(client):
    path = client.topic()
    body = avro.encode_publish_request(PublishRequest(None, [bytes(ALONE_BYTES_MIN)] * 3))
    assert client.call("POST", f"{path}/publish", body, AVRO).status == 200
    reply = client.call("POST", f"{path}/poll", avro.encode_consume_request(ConsumeRequest()), AVRO, accept=BATCHES)
    assert [type(part) for part in reply.parts] == [bytes, memoryview, bytes]


def test_an_answer_above_the_limit_is_sent_in_parts_and_says_the_same(client, monkeypatch):
    path = client.topic()
    client.publish(path, "a", "b", "c")
    whole = client.poll(path)
    monkeypatch.setattr(routes, "WHOLE_BYTES_MAX", 2)
    monkeypatch.setattr(routes, "PART_BYTES", 2)
    parted = client.poll(path)
    assert (whole.header("content-length"), parted.header("content-length")) == (str(len(whole.body)), None)
    assert parted.body == whole.body
