"""Producers over HTTP: numbers in headers, in every format; named producers; idempotency keys; and what is refused."""

from __future__ import annotations

import asyncio
import json

import pytest

from basalt.api.bodies.messages import PublishRequest
from basalt.api.codecs import arrow, avro
from basalt.http.asgi.requests import Head
from basalt.http.routes.producers import KEY_CHARS_MAX
from basalt_engine.messages import PRODUCER_BYTES_MAX

AVRO = "avro/binary"
JSON = "application/json"
LINES = "application/x-ndjson"
TWO = avro.encode_publish_request(PublishRequest(None, [b"a", b"bc"]))
BODIES = {
    ("publish", AVRO): TWO,
    ("publish", JSON): json.dumps({"messages": ["a", "bc"]}).encode(),
    ("records", JSON): json.dumps({"records": [{"payload": "a"}, {"payload": "bc", "key": "k"}]}).encode(),
    ("records", LINES): b'{"payload": "a"}\n{"payload": "bc", "key": "k"}\n',
}
FORMATS = [
    pytest.param(call, media_type, body, id=f"{call}-{media_type}") for (call, media_type), body in BODIES.items()
]


def send(client, path, call="publish", media_type=AVRO, body=TWO, **headers):
    return client.call("POST", f"{path}/{call}", body, media_type, **headers)


def numbers(by="p", at=0, **others):
    return {"Basalt_Producer": by, "Basalt_Sequence": str(at), **others}


def told(reply):
    return reply.status, reply.header("basalt-duplicate")


@pytest.mark.parametrize(("call", "media_type", "body"), FORMATS)
def test_what_is_sent_again_is_there_once_in_every_format(client, call, media_type, body):
    path = client.topic()
    replies = [send(client, path, call, media_type, body, **numbers()) for _ in range(2)]
    assert [told(reply) for reply in replies] == [(200, None), (200, "true")]
    assert [reply.body for reply in replies] == [b"", b""]
    assert told(send(client, path, call, media_type, body, **numbers(at=2))) == (200, None)
    assert client.payloads(path) == ["a", "bc"] * 2


def test_what_is_sent_again_as_arrow_is_there_once(client):
    pyarrow = pytest.importorskip("pyarrow")
    path = client.topic()
    rows = pyarrow.table({"value": pyarrow.array([b"a", b"bc"], pyarrow.binary())})
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    body, media_type = sink.getvalue().to_pybytes(), arrow.ARROW.decode()
    replies = [send(client, path, "publish", media_type, body, **numbers()) for _ in range(2)]
    assert [told(reply) for reply in replies] == [(200, None), (200, "true")]
    assert client.payloads(path) == ["a", "bc"]


def test_a_request_of_which_only_the_number_is_new_needs_no_coroutine_and_is_compared_all_the_same(client):
    path = client.topic()
    client.publish(path, "x")  # opens the topic
    known = Head("POST", f"{path}/publish", f"{path}/publish".encode(), b"", {
        b"host": b"localhost", b"content-type": b"avro/binary", b"basalt-producer": b"p", b"basalt-sequence": b"",
    })  # fmt: skip

    async def story():
        told = []
        for sequence in (b"0", b"0", b"2", b"1", b"9", None, b"99999999999999999999"):
            exchange = Known(sequence)
            answering = client.app.begin_whole(known, exchange, None, TWO)
            if answering is not None:
                await answering
            while not exchange.answers:
                await asyncio.sleep(0)
            ((status, headers),) = exchange.answers
            told.append((status, dict(headers).get(b"basalt-duplicate")))
        return told

    done, again, gap, bad = (200, None), (200, b"true"), (409, None), (400, None)
    assert client.run(story()) == [done, again, done, again, gap, bad, bad]
    assert client.payloads(path) == ["x", "a", "bc", "a", "bc"]


class Known:
    """The exchange of a request whose head was known."""

    client, internal, scheme, is_admitted, id_is_clients = None, False, "http", False, True

    def __init__(self, sequence):
        self.sequence = sequence
        self.answers = []

    async def receive(self):
        return TWO, False

    async def send(self, request, status, headers, parts):
        self.answers.append((status, headers))

    def send_now(self, request, status, headers, parts):
        self.answers.append((status, headers))


def test_a_gap_an_unknown_producer_and_a_fenced_one_have_codes_of_their_own(client):
    path = client.topic()
    assert send(client, path, **numbers(at=7)).code == "producer_unknown"
    send(client, path, **numbers())
    reply = send(client, path, **numbers(at=3))
    assert (reply.status, reply.code) == (409, "sequence_gap")
    assert "is 1," in reply.json()["detail"]
    assert send(client, path, **numbers(at=30, Basalt_Sequence_After="1")).status == 200
    opened = client.call("POST", f"{path}/producers/tailer", {"run": "run-1"}).json()
    assert opened["lastSequence"] == -1
    client.call("POST", f"{path}/producers/tailer", {"run": "run-2"})
    late = send(client, path, **numbers("tailer", Basalt_Producer_Epoch=str(opened["epoch"])))
    assert (late.status, late.code) == (409, "producer_fenced")
    assert client.payloads(path) == ["a", "bc"] * 2


def test_named_producers_are_opened_shown_and_forgotten(client):
    path = client.topic()
    send(client, path, **numbers())
    first = client.call("POST", f"{path}/producers/tailer", {"run": "run-1"})
    assert first.status == 200
    assert first.json() == client.call("POST", f"{path}/producers/tailer", {"run": "run-1"}).json()
    epoch = first.json()["epoch"]
    send(client, path, **numbers("tailer", Basalt_Producer_Epoch=str(epoch)))
    shown = client.call("GET", f"{path}/producers").json()["producers"]
    now_ms = client.clock.now_ms()
    expected = {"name": "tailer", "lastSequence": 1, "epoch": epoch, "run": "run-1", "usedMs": now_ms}
    assert shown == [{"name": "p", "lastSequence": 1, "epoch": 0, "run": None, "usedMs": now_ms}, expected]
    assert client.call("GET", f"{path}/producers/tailer").json() == expected
    assert client.call("DELETE", f"{path}/producers/tailer").status == 200
    assert client.call("DELETE", f"{path}/producers/tailer").code == "producer_not_found"
    assert client.call("GET", f"{path}/producers/tailer").code == "producer_not_found"


def test_an_idempotency_key_makes_a_publish_happen_once(client):
    path, other = client.topic(), client.topic("other")
    for call, media_type, body in (("publish", AVRO, TWO), ("records", JSON, BODIES["records", JSON])):
        for key in (f"{call}-1", f'"{call}-1"', f"{call}-2"):
            reply = send(client, path, call, media_type, body, Idempotency_Key=key)
            assert (reply.status, reply.body) == (200, b"")
    assert client.payloads(path) == ["a", "bc"] * 4
    assert send(client, other, Idempotency_Key="publish-1").status == 200  # another topic, another publish
    assert client.payloads(other) == ["a", "bc"]


def begun(client):
    return client.call("POST", "/v1/transactions", {}).json()


def store(client, path, *messages, pointer, before, call="store"):
    body = avro.encode_publish_request(PublishRequest(pointer, list(messages)))
    return client.call("POST", f"{path}/{call}", body, AVRO, Basalt_Stored_Before=str(before))


def test_a_store_that_is_sent_again_is_there_once(client):
    path, tx = client.topic(), begun(client)
    pointer = tx["writePointer"]
    calls = [((b"a", b"b"), 0), ((b"a", b"b"), 0), ((b"c",), 2), ((b"b", b"c", b"d"), 1), ((b"c", b"d"), 2)]
    replies = [store(client, path, *messages, pointer=pointer, before=before) for messages, before in calls]
    assert [told(reply) for reply in replies] == [(200, None), (200, "true"), (200, None), (200, None), (200, "true")]
    for before in (0, 5, 9):
        assert store(client, path, b"x", pointer=pointer, before=before).code == "sequence_gap"
    records = json.dumps({"transactionWritePointer": pointer, "records": [{"payload": "e"}]}).encode()
    for duplicate in (None, "true"):
        reply = client.call("POST", f"{path}/records/store", records, JSON, Basalt_Stored_Before="4")
        assert told(reply) == (200, duplicate)
    client.call("POST", f"/v1/transactions/{tx['id']}/commit", {})
    assert client.payloads(path) == list("abcde")
    assert store(client, path, b"a", pointer=pointer, before=0).code == "transaction_ended"


@pytest.mark.parametrize("before", ["", "-1", "x", "1.0", str(2**63), "+1"])
def test_a_number_of_stored_messages_that_is_none_is_refused(client, before):
    path, pointer = client.topic(), begun(client)["writePointer"]
    assert store(client, path, b"a", pointer=pointer, before=0).status == 200
    assert store(client, path, b"b", pointer=pointer, before=before).code == "invalid_input"
    for headers in (numbers(), {"Idempotency_Key": "k"}):
        body = avro.encode_publish_request(PublishRequest(pointer, [b"b"]))
        assert client.call("POST", f"{path}/store", body, AVRO, **headers).code == "invalid_input"
    assert told(store(client, path, b"a", pointer=pointer, before=0)) == (200, "true")


def test_metrics_count_producers_and_repetitions(client):
    path = client.topic()
    for by in "pqp":
        send(client, path, **numbers(by))
    text = client.call("GET", "/metrics").body.decode()
    assert "\nbasalt_producers 2.0\n" in text
    assert "\nbasalt_duplicates_total 1.0\n" in text


BAD = {
    "no producer": {"Basalt_Sequence": "0"},
    "an after alone": {"Basalt_Sequence_After": "0"},
    "an epoch alone": {"Basalt_Producer_Epoch": "1"},
    "no sequence": {"Basalt_Producer": "p"},
    "an empty sequence": numbers(at=""),
    "an empty producer": numbers(by=""),
    "a producer with a blank": numbers(by="p q"),
    "a producer too long": numbers(by="p" * (PRODUCER_BYTES_MAX + 1)),
    "a producer not of ASCII": numbers(by="caf\u00e9"),
    "a sequence below 0": numbers(at=-1),
    "a sequence of no number": numbers(at="one"),
    "a sequence with a plus": numbers(at="+1"),
    "a sequence with a dot": numbers(at="1.0"),
    "a sequence in other digits": numbers(at="\u00b2"),
    "a sequence too large": numbers(at=2**63),
    "a last number too large": numbers(at=2**63 - 1),
    "a sequence of twenty digits": numbers(at="0" * 20),
    "an after as large": numbers(at=5, Basalt_Sequence_After="5"),
    "an after below -1": numbers(at=5, Basalt_Sequence_After="-2"),
    "an after of no number": numbers(at=5, Basalt_Sequence_After="x"),
    "an epoch of 0": numbers(Basalt_Producer_Epoch="0"),
    "an epoch of no number": numbers(Basalt_Producer_Epoch="new"),
    "an epoch too large": numbers(Basalt_Producer_Epoch=str(2**63)),
    "an empty key": {"Idempotency_Key": ""},
    "a key too long": {"Idempotency_Key": "k" * (KEY_CHARS_MAX + 1)},
    "a key with a blank": {"Idempotency_Key": "a b"},
    "a key of quotes": {"Idempotency_Key": '""'},
    "a key and a producer": numbers(Idempotency_Key="k"),
}


def state(client, path):
    """All that the store has, but for what the mere use of a topic leaves."""
    shown = client.call("GET", f"{path}/producers").json()
    return (
        client.payloads(path),
        shown,
        [list(client.services.store.table(name).scan(b"", None)) for name in ("message", "system")],
    )


@pytest.mark.parametrize(("call", "media_type", "body"), FORMATS[:3])
@pytest.mark.parametrize("headers", BAD.values(), ids=list(BAD))
def test_headers_that_mean_nothing_are_refused_and_change_nothing(client, headers, call, media_type, body):
    path = client.topic()
    send(client, path, **numbers("before"))
    before = state(client, path)
    reply = send(client, path, call, media_type, body, **headers)
    assert (reply.status, reply.code) == (400, "invalid_input")
    assert reply.json()["field"] in (
        "Basalt-Producer",
        "Basalt-Sequence",
        "Basalt-Sequence-After",
        "Basalt-Producer-Epoch",
        "Idempotency-Key",
    )
    assert state(client, path) == before


@pytest.mark.parametrize("headers", [numbers(), {"Idempotency_Key": "k"}, {"Basalt_Producer": "p"}])
def test_a_publish_under_a_write_pointer_takes_no_numbers_and_no_key(client, headers):
    path = client.topic()
    pointer = client.call("POST", "/v1/transactions", {}).json()["writePointer"]
    before = state(client, path)
    body = avro.encode_publish_request(PublishRequest(pointer, [b"a"]))
    reply = send(client, path, body=body, **headers)
    assert (reply.status, reply.code) == (400, "invalid_input")
    assert state(client, path) == before


@pytest.mark.parametrize(
    ("method", "name", "body", "code"),
    [
        ("POST", "tailer", {}, "malformed_body"),
        ("POST", "tailer", {"run": ""}, "invalid_input"),
        ("POST", "tailer", {"run": "a\nb"}, "invalid_input"),
        ("POST", "tailer", {"run": "r" * 2_001}, "invalid_input"),
        ("POST", "tailer", {"run": 7}, "malformed_body"),
        ("POST", "tailer", {"run": "r", "epoch": 1}, "malformed_body"),
        ("POST", "a%20b", {"run": "r"}, "invalid_input"),
        ("POST", "caf%C3%A9", {"run": "r"}, "invalid_input"),
        ("POST", "p" * 65, {"run": "r"}, "invalid_input"),
        ("POST", "a%2Fb", {"run": "r"}, "invalid_input"),
        ("GET", "a%20b", b"", "invalid_input"),
        ("DELETE", "a%20b", b"", "invalid_input"),
        ("DELETE", "nobody", b"", "producer_not_found"),
        ("PUT", "tailer", {"run": "r"}, "method_not_allowed"),
    ],
)
def test_calls_on_named_producers_that_mean_nothing_change_nothing(client, method, name, body, code):
    path = client.topic()
    client.call("POST", f"{path}/producers/before", {"run": "run-1"})
    before = state(client, path)
    assert client.call(method, f"{path}/producers/{name}", body).code == code
    assert state(client, path) == before


def test_a_topic_that_is_not_there_has_no_producers(client):
    for method, body in (("POST", {"run": "r"}), ("GET", b""), ("DELETE", b"")):
        assert client.call(method, "/v1/namespaces/shop/topics/none/producers/p", body).code == "topic_not_found"
    reply = client.call("POST", "/v1/namespaces/shop/topics/none/publish", TWO, AVRO, **numbers())
    assert reply.code == "topic_not_found"
