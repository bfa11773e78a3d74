"""Which bodies a call reads: content types, content codings, sizes, and bodies that never end."""

from __future__ import annotations

import asyncio
import gzip
import json
import random

import pytest
import zstandard

from basalt.api.bodies.messages import ConsumeRequest, PublishRequest
from basalt.api.codecs import avro
from basalt.http.asgi import content_encoding
from tests.control.api.codecs import client_codecs

AVRO = "avro/binary"
PUBLISH = {"messages": ["a", "b"]}
PUBLISH_JSON = json.dumps(PUBLISH).encode()
PUBLISH_AVRO = avro.encode_publish_request(PublishRequest(None, [b"a", b"b"]))
POLL_AVRO = avro.encode_consume_request(ConsumeRequest())


@pytest.mark.parametrize(
    "content_type",
    ["avro/binary", "AVRO/Binary", "avro/binary; charset=utf-8", "avro/binary;q=1", " avro/binary ", "avro/binary;"],
)
def test_avro_is_known_in_any_case_and_with_parameters(client, content_type):
    path = client.topic()
    assert client.call("POST", f"{path}/publish", PUBLISH_AVRO, content_type).status == 200
    assert client.payloads(path) == ["a", "b"]


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON;charset=UTF-8"])
def test_json_is_known_in_any_case_and_with_parameters(client, content_type):
    path = client.topic()
    assert client.call("POST", f"{path}/publish", PUBLISH_JSON, content_type).status == 200
    assert client.payloads(path) == ["a", "b"]


def test_an_avro_answer_says_exactly_avro_binary(client):
    path = client.topic()
    reply = client.call("POST", f"{path}/poll", POLL_AVRO, "Avro/Binary; charset=utf-8")
    assert reply.headers.count((b"content-type", b"avro/binary")) == 1
    assert reply.body == b"\x00"


def test_a_json_answer_says_exactly_application_json(client):
    assert client.poll(client.topic()).header("content-type") == "application/json"


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "avro/json", "json", "*/*", ";"]
)
@pytest.mark.parametrize("call", ["publish", "store", "rollback", "poll", "records"])
def test_another_content_type_is_unsupported(client, call, content_type):
    reply = client.call("POST", f"{client.topic()}/{call}", PUBLISH_JSON, content_type)
    assert (reply.status, reply.code) == (415, "unsupported_media_type")
    assert "avro/binary" in reply.json()["hint"]


def test_a_messaging_call_without_a_content_type_is_unsupported(client):
    reply = client.run(client.exchange("POST", f"{client.topic()}/publish", [PUBLISH_JSON]))
    assert (reply.status, reply.code) == (415, "unsupported_media_type")


def test_properties_need_no_content_type(client):
    reply = client.run(client.exchange("PUT", "/v1/namespaces/shop/topics/orders", [b'{"ttl": 60}']))
    assert reply.json()["properties"]["ttl"] == "60"


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_others_get_their_turn_while_a_large_coded_body_is_decoded(client, coding):
    path = client.topic()
    plain = b'{"messages": ["' + random.Random(4).randbytes(500_000).hex().encode() + b'"]}'
    body = b"".join(content_encoding.encode(coding, [plain]))
    steps = len(list(content_encoding.decode(coding, body, len(plain))))

    async def story():
        turns = 0

        async def count_turns():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        reply = await client.ask("POST", f"{path}/publish", body, "application/json", content_encoding=coding)
        counting.cancel()
        return reply, turns

    reply, turns = client.run(story())
    assert reply.status == 200
    assert turns >= steps >= 30


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("x-gzip", gzip.compress),
        ("zstd", zstandard.compress),
        ("identity", bytes),
    ],
)
def test_a_coded_body_is_read(client, coding, encode):
    path = client.topic()
    reply = client.call("POST", f"{path}/publish", encode(PUBLISH_AVRO), AVRO, content_encoding=coding)
    assert reply.status == 200, reply.body
    assert client.payloads(path) == ["a", "b"]


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, gzip", "nothing-known"])
def test_another_coding_is_unsupported_and_the_answer_says_what_is_not(client, coding):
    path = client.topic()
    reply = client.call("POST", f"{path}/publish", PUBLISH_AVRO, AVRO, content_encoding=coding)
    assert (reply.status, reply.code) == (415, "unsupported_media_type")
    assert reply.header("accept-encoding") == "gzip, zstd"
    assert client.payloads(path) == []


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_a_body_that_is_not_in_its_coding_is_malformed(client, coding):
    path = client.topic()
    reply = client.call("POST", f"{path}/publish", PUBLISH_AVRO, AVRO, content_encoding=coding)
    assert (reply.status, reply.code) == (400, "malformed_body")
    assert client.payloads(path) == []


def test_a_body_of_the_limit_is_read_and_one_byte_more_is_not(small):
    path = small.topic()
    body = json.dumps({"messages": ["x" * 1_024]}).encode()
    fits = json.dumps({"messages": ["x" * (2 * 1_024 - len(body))]}).encode()
    assert len(fits) == 1_024
    assert small.call("POST", f"{path}/publish", fits, "application/json").status == 200
    reply = small.call("POST", f"{path}/publish", fits + b" ", "application/json")
    assert (reply.status, reply.code) == (413, "too_large")
    assert len(small.payloads(path)) == 1


@pytest.mark.parametrize("encode", [gzip.compress, zstandard.compress])
def test_a_small_body_that_decodes_to_a_large_one_is_too_large(small, encode):
    path = small.topic()
    body = encode(json.dumps({"messages": ["x" * 4_000]}).encode())
    coding = "gzip" if encode is gzip.compress else "zstd"
    reply = small.call("POST", f"{path}/publish", body, "application/json", content_encoding=coding)
    assert (reply.status, reply.code) == (413, "too_large")
    assert small.payloads(path) == []


def test_a_declared_length_over_the_limit_is_refused_before_anything_is_read(small):
    path = small.topic()
    reads = []

    async def ask():
        small.app, app = watch(small.app, reads), small.app
        try:
            return await small.exchange("POST", f"{path}/publish", [b"x"], AVRO, {"content-length": "1025"})
        finally:
            small.app = app

    reply = small.run(ask())
    assert (reply.status, reply.code) == (413, "too_large")
    assert reads == []


def test_a_body_over_the_limit_is_not_read_on(small):
    path = small.topic()
    reads = []

    async def ask():
        small.app, app = watch(small.app, reads), small.app
        try:
            return await small.exchange("POST", f"{path}/publish", [b"x" * 600] * 9, AVRO)
        finally:
            small.app = app

    reply = small.run(ask())
    assert (reply.status, reply.code) == (413, "too_large")
    assert len(reads) == 2


@pytest.mark.parametrize("declared", ["1", "0", "-5", "many", "9" * 40])
def test_a_declared_length_that_lies_changes_nothing_about_the_limit(small, declared):
    path = small.topic()
    chunks = [b"x" * 600] * 3
    reply = small.run(small.exchange("POST", f"{path}/publish", chunks, AVRO, {"content-length": declared}))
    assert reply.status == 413
    assert small.payloads(path) == []


def test_a_body_may_come_in_chunks_of_any_size(client):
    path = client.topic()
    chunks = [PUBLISH_AVRO[index : index + 1] for index in range(len(PUBLISH_AVRO))]
    assert client.run(client.exchange("POST", f"{path}/publish", [b"", *chunks, b""], AVRO)).status == 200
    assert client.payloads(path) == ["a", "b"]


@pytest.mark.parametrize(
    ("method", "target", "body", "content_type"),
    [
        ("POST", "/publish", PUBLISH_AVRO, AVRO),
        ("POST", "/publish", PUBLISH_JSON, "application/json"),
        ("POST", "/records", b'{"records": [{"payload": "a"}]}', "application/json"),
        ("PUT", "/properties", b'{"ttl": 60}', "application/json"),
    ],
)
def test_a_body_that_stops_half_way_changes_nothing_and_is_not_answered(client, method, target, body, content_type):
    path = client.topic()
    before = client.call("GET", path).json()
    # Even when what came is whole by itself: the client said that there was more.
    for cut in (body[:3], body):
        reply = client.run(client.exchange(method, path + target, [cut], content_type, cut=True))
        assert reply.status == 0
    assert client.payloads(path) == []
    assert client.call("GET", path).json() == before


def test_a_topic_is_not_created_by_half_a_body(client):
    client.run(client.exchange("PUT", "/v1/namespaces/shop/topics/orders", [b"{}"], "application/json", cut=True))
    assert client.call("GET", "/v1/namespaces/shop/topics").json() == []


@pytest.mark.parametrize(
    ("accept_encoding", "coding"),
    [
        ("gzip", "gzip"),
        ("zstd, gzip", "zstd"),
        ("gzip;q=0", None),
        ("gzip;q=0, zstd;q=0", None),
        ("br", None),
        ("*", "zstd"),
    ],
)
@pytest.mark.parametrize("media_type", [AVRO, "application/json"])
def test_an_answer_is_coded_as_the_client_asks(client, accept_encoding, coding, media_type):
    path = client.topic()
    client.publish(path, "y" * 5_000)
    body = POLL_AVRO if media_type == AVRO else b"{}"
    reply = client.call("POST", f"{path}/poll", body, media_type, accept_encoding=accept_encoding)
    assert reply.header("content-encoding") == coding
    assert reply.header("vary") == "accept-encoding"
    assert reply.header("content-type") == media_type
    assert int(reply.header("content-length")) == len(reply.body)
    assert b"y" * 5_000 in decoded(reply.body, coding)


def test_a_short_answer_is_not_coded(client):
    reply = client.call("GET", "/v1", accept_encoding="gzip, zstd")
    assert reply.header("content-encoding") is None
    assert reply.json()["name"] == "basalt"


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_an_answer_in_parts_is_coded_too(client, coding):
    path = client.topic()
    for _ in range(6):
        client.publish(path, "y" * 200_000)
    reply = client.call("POST", f"{path}/poll", POLL_AVRO, AVRO, accept_encoding=coding)
    assert reply.header("content-length") is None
    assert [len(message.payload) for message in client_codecs.decode_avro_messages(decoded(reply.body, coding))] == [
        200_000
    ] * 6


def watch(app, reads):
    """The application, with every part of a body that it reads noted."""

    async def watched(scope, receive, send):
        async def noting():
            message = await receive()
            reads.append(message)
            return message

        await app(scope, noting, send)

    return watched


def decoded(body, coding):
    if coding == "gzip":
        return gzip.decompress(body)
    if coding == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(body)
    return body


@pytest.mark.parametrize("member", ['"snapshot": "\\ud83d"', '"timeoutMs": "\\udc00 "', '"\\ud83d": 1'])
def test_half_a_surrogate_pair_where_no_text_belongs_is_malformed(client, member):
    reply = client.call("POST", "/v1/transactions", b"{%s}" % member.encode(), "application/json")
    assert (reply.status, reply.code) == (400, "malformed_body")
