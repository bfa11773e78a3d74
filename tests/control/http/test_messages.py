"""Publish, store, roll back and poll over HTTP: what is read, what is answered, what is refused."""

from __future__ import annotations

import asyncio
import json

import pytest

from basalt.api.bodies.messages import ConsumeRequest, Message, PublishRequest, PublishResponse
from basalt.api.codecs import avro
from basalt.api.codecs.avro_values import encode_long
from basalt.transactions.codec import TransactionFields
from tests.control.api.codecs import client_codecs
from tests.control.transactions.whole_bytes import encode_transaction

AVRO = "avro/binary"


def publish_avro(client, path, *messages, pointer=None, call="publish"):
    body = avro.encode_publish_request(PublishRequest(pointer, list(messages)))
    return client.call("POST", f"{path}/{call}", body, AVRO)


def poll_avro(client, path, *, query="", **wanted):
    reply = client.call("POST", f"{path}/poll{query}", avro.encode_consume_request(ConsumeRequest(**wanted)), AVRO)
    assert reply.status == 200, reply.body
    return client_codecs.decode_avro_messages(reply.body), reply


def text(data: bytes) -> str:
    return data.decode("latin-1")


def test_what_is_published_in_avro_is_polled_in_avro(client):
    path = client.topic()
    reply = publish_avro(client, path, b"one", b"", bytes(range(256)))
    assert (reply.status, reply.body, reply.header("content-length")) == (200, b"", "0")
    messages, _ = poll_avro(client, path)
    assert [message.payload for message in messages] == [b"one", b"", bytes(range(256))]


def test_json_and_avro_see_the_same_messages(client):
    path = client.topic()
    publish_avro(client, path, bytes(range(256)))
    client.publish(path, '\x00\xff\u00e9"\\\n')
    in_json = [
        (message["id"].encode("latin-1"), message["payload"].encode("latin-1")) for message in client.poll(path).json()
    ]
    assert in_json == [(message.id, message.payload) for message in poll_avro(client, path)[0]]
    assert in_json[1][1] == b'\x00\xff\xe9"\\\n'


def test_an_empty_topic_polls_as_an_empty_array(client):
    path = client.topic()
    assert client.poll(path).body == b"[]"
    assert poll_avro(client, path)[1].body == b"\x00"
    assert client.poll(path).header("basalt-next") is None


def test_a_long_answer_comes_in_several_parts_and_blocks(client):
    path = client.topic()
    for number in range(5):
        publish_avro(client, path, *[bytes([number]) * 1_000] * 200)
    messages, reply = poll_avro(client, path)
    assert len(messages) == 1_000
    assert len(reply.parts) > 2
    assert max(map(len, reply.parts)) < 600_000
    in_json = client.poll(path)
    assert len(in_json.parts) > 2
    assert [item["payload"] for item in in_json.json()] == [text(message.payload) for message in messages]


def test_paging_by_the_next_header_sees_every_message_once(client):
    path = client.topic()
    publish_avro(client, path, *[b"%d" % number for number in range(10)])
    seen, start = [], None
    while True:
        messages, reply = poll_avro(client, path, start_from=start, inclusive=start is None, limit=3)
        if not messages:
            break
        seen += [message.payload for message in messages]
        start = bytes.fromhex(reply.header("basalt-next"))
        assert start >= messages[-1].id
    assert seen == [b"%d" % number for number in range(10)]


def test_a_transactional_publish_answers_its_range_and_can_be_rolled_back(client):
    path = client.topic()
    pointer = client.begin()["writePointer"]
    reply = publish_avro(client, path, b"a", b"b", pointer=pointer)
    assert reply.header("content-type") == AVRO
    placed = avro.decode_publish_response(reply.body)
    assert placed.write_pointer == pointer
    assert placed.end_sequence == placed.start_sequence + 1
    for _ in range(2):
        assert client.call("POST", f"{path}/rollback", reply.body, AVRO).status == 200
    assert client.payloads(path, "?isolation=committed") == []


def test_a_transactional_publish_in_json_answers_json(client):
    path = client.topic()
    pointer = client.begin()["writePointer"]
    reply = client.publish(path, "a", pointer=pointer)
    assert reply.json()["transactionWritePointer"] == {"long": pointer}
    assert client.call("POST", f"{path}/rollback", reply.body, "application/json").status == 200


def test_stored_messages_show_when_their_writer_publishes_nothing(client):
    path = client.topic()
    begun = client.begin()
    reply = publish_avro(client, path, b"a", b"b", pointer=begun["writePointer"], call="store")
    assert (reply.status, reply.body) == (200, b"")
    assert client.payloads(path, "?isolation=uncommitted") == []
    assert publish_avro(client, path, pointer=begun["writePointer"]).status == 200
    assert client.payloads(path, "?isolation=uncommitted") == ["a", "b"]


@pytest.mark.parametrize("call", ["publish", "store", "rollback"])
def test_a_writer_that_has_ended_is_refused(client, call):
    path = client.topic()
    begun = client.begin()
    placed = client.publish(path, "a", pointer=begun["writePointer"])
    client.call("POST", f"/v1/transactions/{begun['id']}/commit")
    body = placed.body if call == "rollback" else {"transactionWritePointer": begun["writePointer"], "messages": ["b"]}
    reply = client.call("POST", f"{path}/{call}", body, "application/json")
    assert (reply.status, reply.code) == (409, "transaction_ended")
    assert client.payloads(path, "?isolation=committed") == ["a"]


@pytest.mark.parametrize("call", ["publish", "store", "rollback"])
@pytest.mark.parametrize("end", ["abort", "invalidate"])
def test_a_writer_that_was_undone_or_given_up_is_refused(client, call, end):
    path = client.topic()
    begun = client.begin()
    placed = client.publish(path, "a", pointer=begun["writePointer"])
    client.call("POST", f"/v1/transactions/{begun['id']}/{end}")
    body = placed.body if call == "rollback" else {"transactionWritePointer": begun["writePointer"], "messages": ["b"]}
    reply = client.call("POST", f"{path}/{call}", body, "application/json")
    assert (reply.status, reply.code) == (409, "transaction_ended")
    assert client.payloads(path, "?isolation=committed") == []


@pytest.mark.parametrize("call", ["publish", "store"])
def test_a_writer_nobody_knows_is_refused(client, call):
    path = client.topic()
    pointer = client.services.clock.now_ms() * 1_000_000 + 5
    reply = client.call("POST", f"{path}/{call}", {"transactionWritePointer": pointer, "messages": ["b"]})
    assert (reply.status, reply.code) == (409, "transaction_ended")


@pytest.mark.parametrize("pointer", [-1, 0, -(2**63), 1, 1_000_000])
@pytest.mark.parametrize("call", ["publish", "store"])
def test_a_negative_or_over_age_write_pointer_is_refused(client, call, pointer):
    path = client.topic()
    reply = client.call("POST", f"{path}/{call}", {"transactionWritePointer": pointer, "messages": ["b"]})
    assert reply.status == 400
    assert reply.json()["field"] == "transactionWritePointer"


@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("publish", b""),
        ("publish", b"null"),
        ("publish", b"[]"),
        ("publish", b"{}"),
        ("publish", b'{"messages": []}'),
        ("publish", b'{"transactionWritePointer": null}'),
        ("publish", b'{"messages": "a"}'),
        ("publish", b'{"messages": [1]}'),
        ("publish", b'{"messages": [null]}'),
        ("publish", b'{"messages": ["\\u0100"]}'),
        ("publish", b'{"messages": ["a"], "Messages": ["b"]}'),
        ("publish", b'{"messages": ["a"], "messages": ["b"]}'),
        ("publish", b'{"messages": ["a"], "transactionWritePointer": "5"}'),
        ("publish", b'{"messages": ["a"], "transactionWritePointer": true}'),
        ("publish", b'{"messages": ["a"], "transactionWritePointer": 5.0}'),
        ("publish", b'{"messages": ["a"], "transactionWritePointer": 9223372036854775808}'),
        ("publish", b'{"messages": ["a"], "transactionWritePointer": {"int": 5}}'),
        ("publish", b'{"messages": ["a"]} trailing'),
        ("publish", b"[" * 100_000),
        ("store", b'{"messages": ["a"]}'),
        ("store", b'{"transactionWritePointer": 5}'),
        ("store", b'{"transactionWritePointer": 5, "messages": []}'),
        ("rollback", b"{}"),
        ("rollback", b'{"transactionWritePointer": 5}'),
        (
            "rollback",
            b'{"transactionWritePointer": null, "startTimestamp": 1, "startSequenceId": 0, "endTimestamp": 1, "endSequenceId": 0}',
        ),
        ("poll", b""),
        ("poll", b'{"limit": 0}'),
        ("poll", b'{"limit": -1}'),
        ("poll", b'{"limit": 2147483648}'),
        ("poll", b'{"limit": 1.0}'),
        ("poll", b'{"limit": true}'),
        ("poll", b'{"startFrom": -1}'),
        ("poll", b'{"startFrom": {"long": -1}}'),
        ("poll", b'{"startFrom": "short"}'),
        ("poll", b'{"startFrom": "012345678901234567890"}'),
        ("poll", b'{"startFrom": [1]}'),
        ("poll", b'{"inclusive": null}'),
        ("poll", b'{"inclusive": 1}'),
        ("poll", b'{"transaction": ""}'),
        ("poll", b'{"transaction": "nonsense"}'),
        ("poll", b'{"from": 1}'),
    ],
)
def test_malformed_json_is_refused_and_changes_nothing(client, call, body):
    path = client.topic()
    client.publish(path, "before")
    reply = client.call("POST", f"{path}/{call}", body, "application/json")
    assert (reply.status, reply.code) == (400, "malformed_body"), reply.body
    assert client.payloads(path) == ["before"]


def test_avro_cut_at_any_byte_is_refused_and_changes_nothing(client):
    path = client.topic()
    whole = avro.encode_publish_request(PublishRequest(None, [b"abc", b"", b"d" * 200]))
    for cut in range(len(whole)):
        reply = client.call("POST", f"{path}/publish", whole[:cut], AVRO)
        assert (reply.status, reply.code) == (400, "malformed_body"), cut
    whole = avro.encode_consume_request(ConsumeRequest(bytes(20), True, 5, b"x"))
    for cut in range(len(whole)):
        assert client.call("POST", f"{path}/poll", whole[:cut], AVRO).status == 400
    assert client.payloads(path) == []


@pytest.mark.parametrize(
    "body",
    [
        b"\x02\x02\x06abc\x00\x00",  # a byte too many
        b"\x01\x02\x06abc\x00",  # union branch -1
        b"\x04\x02\x06abc\x00",  # union branch 2
        b"\x0e\x02\x06abc\x00",  # union branch 7
        b"\x02\x02\x05abc\x00",  # a length of -3
        b"\x02\x02\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01abc\x00",  # a length of 2^62
        b"\x02\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x06abc\x00",  # a count of 2^61
        b"\x02\x01\x06abc\x00",  # a negative count without a size that fits
        b"\x82\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00\x02\x06abc\x00",  # a varint of 11 bytes
        b"Obj\x01" + bytes(30),  # a container file
        b"\xc3\x01" + bytes(30),  # single-object encoding
    ],
)
def test_avro_that_means_nothing_is_refused(client, body):
    path = client.topic()
    reply = client.call("POST", f"{path}/publish", body, AVRO)
    assert (reply.status, reply.code) == (400, "malformed_body"), reply.body
    assert client.payloads(path) == []


def test_a_flood_of_empty_messages_is_too_large(client):
    path = client.topic()
    count = 65_537
    body = b"\x02" + _long(count) + bytes(count) + b"\x00"
    reply = client.call("POST", f"{path}/publish", body, AVRO)
    assert (reply.status, reply.code) == (413, "too_large")
    assert client.payloads(path) == []


def test_a_publish_of_65_536_messages_is_taken_whole(client):
    path = client.topic()
    publish_avro(client, path, *[b""] * 65_536)
    seen, start = 0, None
    while True:
        messages, reply = poll_avro(client, path, start_from=start, inclusive=start is None)
        if not messages:
            break
        seen += len(messages)
        start = bytes.fromhex(reply.header("basalt-next"))
    assert seen == 65_536


@pytest.mark.parametrize("call", ["publish", "store", "rollback", "poll"])
def test_a_topic_that_is_not_there_is_not_found(client, call):
    placed = PublishResponse(client.services.clock.now_ms() * 1_000_000, 1, 0, 1, 0)
    body = {
        "publish": avro.encode_publish_request(PublishRequest(None, [b"a"])),
        "store": avro.encode_publish_request(PublishRequest(placed.write_pointer, [b"a"])),
        "rollback": avro.encode_publish_response(placed),
        "poll": avro.encode_consume_request(ConsumeRequest()),
    }[call]
    reply = client.call("POST", f"/v1/namespaces/shop/topics/none/{call}", body, AVRO)
    assert (reply.status, reply.code) == (404, "topic_not_found")


def test_committed_isolation_holds_at_an_open_transaction_and_names_it(client):
    path = client.topic()
    client.publish(path, "before")
    begun = client.begin(owner="billing")
    client.publish(path, "open", pointer=begun["writePointer"])
    client.publish(path, "after")
    assert client.payloads(path, "?isolation=uncommitted") == ["before", "open", "after"]
    for query in ("", "?isolation=committed"):
        reply = client.poll(path, query)
        assert [message["payload"] for message in reply.json()] == ["before"]
        assert reply.header("basalt-held-by") == begun["id"]
    client.call("POST", f"/v1/transactions/{begun['id']}/commit")
    reply = client.poll(path, "?isolation=committed")
    assert [message["payload"] for message in reply.json()] == ["before", "open", "after"]
    assert reply.header("basalt-held-by") is None


def test_a_checkpointed_holder_is_named_by_its_id(client):
    path = client.topic()
    begun = client.begin()
    later = client.call("POST", f"/v1/transactions/{begun['id']}/checkpoint").json()
    assert later["writePointer"] > begun["writePointer"]
    client.publish(path, "open", pointer=later["writePointer"])
    assert client.poll(path, "?isolation=committed").header("basalt-held-by") == begun["id"]


def test_a_poll_reads_under_a_transaction_by_its_id_or_its_bytes(client):
    import base64

    path = client.topic()
    client.publish(path, "before")
    own, other = client.begin(), client.begin()
    client.publish(path, "own", pointer=own["writePointer"])
    client.publish(path, "other", pointer=other["writePointer"])
    by_id = client.poll(path, f"?transaction={own['id']}")
    by_bytes = client.poll(path, transaction=base64.b64decode(own["transaction"]).decode("latin-1"))
    for reply in (by_id, by_bytes):
        assert [message["payload"] for message in reply.json()] == ["before", "own"]
        assert reply.header("basalt-held-by") == other["id"]


def test_a_snapshot_reads_the_same_after_its_transaction_ended(client):
    import base64

    path = client.topic()
    client.publish(path, "before")
    own, other = client.begin(), client.begin()
    client.publish(path, "other", pointer=other["writePointer"])
    snapshot = base64.b64decode(own["transaction"]).decode("latin-1")
    client.call("POST", f"/v1/transactions/{other['id']}/commit")
    client.call("POST", f"/v1/transactions/{own['id']}/abort")
    assert client.payloads(path, transaction=snapshot) == ["before"]
    assert client.poll(path, f"?transaction={own['id']}").code == "transaction_ended"


def test_a_snapshot_may_name_an_invalid_writer_twice(client):
    path = client.topic()
    begun = client.begin()
    client.publish(path, "invalid", pointer=begun["writePointer"])
    client.publish(path, "plain")
    pointer = begun["writePointer"]
    fields = TransactionFields(id=pointer + 5, read_pointer=pointer + 5, invalid=[pointer] * 3, in_progress=[7, 7])
    snapshot = encode_transaction(fields).decode("latin-1")
    assert client.payloads(path, transaction=snapshot) == ["plain"]


def test_two_snapshots_at_once_are_refused(client):
    path = client.topic()
    own = client.begin()
    for isolation in ("committed", "uncommitted"):
        reply = client.poll(path, f"?isolation={isolation}&transaction={own['id']}")
        assert reply.json()["field"] == "transaction"
        assert client.poll(path, f"?isolation={isolation}", transaction="x").json()["field"] == "transaction"


def test_a_poll_under_an_unknown_transaction_is_not_found(client):
    assert client.poll(client.topic(), "?transaction=5").code == "transaction_not_found"


def test_a_waiting_poll_is_answered_when_something_is_published(client):
    path = client.topic()

    async def meet():
        poll = asyncio.create_task(client.ask("POST", f"{path}/poll?waitMs=60000", {}))
        while not client.services.topics.memory.waiting:
            await asyncio.sleep(0)
        assert not poll.done()
        await client.ask("POST", f"{path}/publish", {"messages": ["news"]})
        return await poll

    assert [message["payload"] for message in client.run(meet()).json()] == ["news"]


def test_a_waiting_poll_ends_when_its_client_goes_and_waits_no_more(client):
    path = client.topic()

    async def leave():
        gone = asyncio.Event()
        poll = asyncio.create_task(
            client.exchange("POST", f"{path}/poll?waitMs=60000", [b"{}"], "application/json", gone=gone)
        )
        while not client.services.topics.memory.waiting:
            await asyncio.sleep(0)
        gone.set()
        reply = await poll
        return reply, client.services.topics.memory.waiting

    reply, waiters = client.run(leave())
    assert (reply.status, waiters) == (0, 0)


def test_a_waiting_poll_for_nothing_is_answered_at_once(client):
    path = client.topic()
    assert client.poll(path, "?waitMs=0").body == b"[]"
    client.publish(path, "there")
    assert client.payloads(path, "?waitMs=60000") == ["there"]


def test_a_topic_deleted_under_a_waiting_poll_is_not_found(client):
    path = client.topic()

    async def meet():
        poll = asyncio.create_task(client.ask("POST", f"{path}/poll?waitMs=60000", {}))
        while not client.services.topics.memory.waiting:
            await asyncio.sleep(0)
        await client.ask("DELETE", path)
        return await poll

    assert client.run(meet()).code == "topic_not_found"


def test_any_twenty_bytes_are_a_start(client):
    path = client.topic()
    publish_avro(client, path, b"a")
    message = poll_avro(client, path)[0][0]
    assert isinstance(message, Message)
    for start in (bytes(20), b"\xff" * 20, b"\x80" + bytes(19), bytes(8) + b"\xff" * 12, message.id):
        messages, _ = poll_avro(client, path, start_from=start)
        assert [found.id for found in messages] == ([message.id] if start <= message.id else [])


@pytest.mark.parametrize("length", [0, 1, 19, 21, 40])
def test_an_id_of_another_length_is_refused(client, length):
    body = b"\x00" + _long(length) + bytes(length) + b"\x01\x02\x02"
    reply = client.call("POST", f"{client.topic()}/poll", body, AVRO)
    assert (reply.status, reply.code) == (400, "malformed_body")
    reply = client.poll(client.topic("other"), startFrom={"bytes": "x" * length})
    assert (reply.status, reply.code) == (400, "malformed_body")


def test_a_limit_above_the_servers_own_is_no_error(client):
    path = client.topic()
    client.publish(path, "a", "b")
    assert client.payloads(path, limit=2**31 - 1) == ["a", "b"]


def test_the_body_of_a_poll_may_leave_everything_out(client):
    path = client.topic()
    client.publish(path, "a")
    assert json.loads(client.call("POST", f"{path}/poll", b"{}", "application/json").body)[0]["payload"] == "a"


def _long(value: int) -> bytes:
    return encode_long(value)
