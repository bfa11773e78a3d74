"""Plain ASGI under uvicorn, beside our own protocol: the same bytes in, the same bytes out."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import uvicorn

from basalt.api.bodies.messages import ConsumeRequest, PublishRequest
from basalt.api.codecs import avro
from basalt.http.asgi import requests
from basalt.http.asgi.protocol import HttpConnection

ORDERS = "/v1/namespaces/shop/topics/orders"
TRANSACTION_ID = re.compile(rb'(?<="id":")[^"]+')
END = b"GET /v1/none HTTP/1.1\r\nHost: localhost\r\nBasalt-Request-Id: the-end\r\nConnection: close\r\n\r\n"
PUBLISH = avro.encode_publish_request(PublishRequest(None, [b"a", b"b"]))
POLL = avro.encode_consume_request(ConsumeRequest())


NEXT = END.replace(b"Connection: close", b"X: y").replace(b"the-end", b"next")


def request(method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *headers]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def avro_call(call: str, body: bytes, *headers: str) -> bytes:
    return request("POST", f"{ORDERS}/{call}", "Content-Type: avro/binary", *headers, body=body)


def json_call(call: str, body: bytes, *headers: str) -> bytes:
    return request("POST", f"{ORDERS}/{call}", "Content-Type: application/json", *headers, body=body)


LARGE = avro.encode_publish_request(PublishRequest(None, [b"%d" % number * 70_000 for number in range(10, 30)]))
CONVERSATIONS = {
    "messages": [avro_call("publish", PUBLISH), avro_call("publish", PUBLISH), avro_call("poll", POLL)],
    "an id of the client": [avro_call("publish", PUBLISH, "basalt-request-id: mine-1")] * 2,
    "JSON": [json_call("publish", b'{"messages": ["c"]}'), json_call("poll", b"{}")],
    "a body that is none": [avro_call("publish", b"nonsense")] * 2,
    "a topic that is not there": [request("POST", "/v1/namespaces/shop/topics/none/publish", "Content-Type: avro/binary", body=PUBLISH)] * 2,
    "a name that is none": [request("POST", "/v1/namespaces/shop/topics/$/publish", "Content-Type: avro/binary", body=PUBLISH)] * 2,
    "no content type": [request("POST", f"{ORDERS}/publish", body=PUBLISH)] * 2,
    "another content type": [avro_call("publish", PUBLISH).replace(b"avro/binary", b"text/plain")] * 2,
    "a coded body": [avro_call("publish", PUBLISH, "Content-Encoding: gzip"), avro_call("publish", PUBLISH, "Content-Encoding: br")],
    "a query that is not of this call": [avro_call("publish?no=1", PUBLISH)] * 2,
    "a query that is": [avro_call("poll?isolation=uncommitted&waitMs=0", POLL)] * 2,
    "a pointer": [avro_call("publish", avro.encode_publish_request(PublishRequest(1 << 40, [b"a"])))] * 2,
    "no messages": [avro_call("publish", avro.encode_publish_request(PublishRequest(1 << 40, [])))] * 2,
    "heads only": [request("HEAD", "/v1"), request("HEAD", ORDERS), request("HEAD", "/none")],
    "options": [request("OPTIONS", f"{ORDERS}/publish"), request("OPTIONS", f"{ORDERS}/publish?x=1")],
    "a method that is not there": [request("PATCH", f"{ORDERS}/publish")],
    "no route": [request("GET", "/v1/nothing"), request("GET", "/"), request("GET", f"{ORDERS}/")],
    "a path to decode": [request("GET", "/v1/namespaces/sh%6Fp/topics"), request("GET", "/v1/namespaces/a%2Fb/topics")],
    "one-shots": [
        request("POST", "/v1/transactions", "Content-Type: application/json", body=b'{"work": {"publish": []}}')
    ],
    "large answers": [
        avro_call("publish", LARGE), avro_call("poll", POLL), avro_call("poll", POLL, "Accept: application/vnd.basalt.batches"),
        avro_call("poll", POLL, "Accept-Encoding: gzip"), json_call("poll", b'{"limit": 3}', "Accept-Encoding: zstd"),
        request("GET", f"{ORDERS}/records?limit=20", "Accept: application/json"),
    ],
    "pipelined": [b"".join([avro_call("publish", PUBLISH), request("GET", "/v1"), avro_call("poll", POLL)] * 5)],
    "what expects to be asked for its body": [
        avro_call("publish", PUBLISH, "Expect: 100-continue"), avro_call("none", PUBLISH, "Expect: 100-continue")
    ],
    "chunks": [
        avro_call("publish", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        + b"%x\r\n%s\r\n0\r\n\r\n" % (len(PUBLISH), PUBLISH)
    ] * 2,
    "HTTP/1.0": [request("GET", "/v1").replace(b"HTTP/1.1", b"HTTP/1.0")],
    "a last request": [request("GET", "/v1", "Connection: close")],
}  # fmt: skip


@asynccontextmanager
async def serving(app, protocol):
    listener = socket.create_server(("127.0.0.1", 0))
    # asyncio does it to no connection of such a listener, and an answer in two pieces takes 40 ms then.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        app, http=protocol, lifespan="off", log_config=None, access_log=False, server_header=False, proxy_headers=False
    )
    server = uvicorn.Server(config)
    server.capture_signals = AsyncExitStack  # type: ignore[method-assign, assignment]
    server.main_loop = asyncio.Event().wait  # type: ignore[method-assign, assignment]
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    server.server_state.default_headers = [(b"date", b"today")]
    try:
        yield listener.getsockname()[1]
    finally:
        server.force_exit = True
        await server.shutdown(sockets=[listener])


async def conversation(port: int, asked: list[bytes]) -> bytes:
    """All that is answered, one request after the other has been."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    answers = b""
    async with asyncio.timeout(60):
        for each in asked:
            writer.write(each)
            if not answers.startswith(b"HTTP/1.1 100"):
                answers += await answered(reader, writer)
        writer.write(END)
        answers += await reader.read()
    writer.close()
    return TRANSACTION_ID.sub(b"", answers)  # which is another on each store


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """All up to the answer to one more request, whose id tells it; or to the end."""
    writer.write(NEXT)
    try:
        return await reader.readuntil(b'"requestId":"next"') + await reader.readuntil(b"}")
    except asyncio.IncompleteReadError as ended:
        return ended.partial


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_both_answer_alike(connect, settings, monkeypatch, name):
    monkeypatch.setattr(requests, "_ID_NUMBERS", itertools.repeat(7))
    answers = []
    for protocol in ("httptools", HttpConnection):
        client = connect(settings)
        client.topic()

        async def story(client=client, protocol=protocol):
            async with serving(client.app, protocol) as port:
                return await conversation(port, CONVERSATIONS[name])

        answers.append(client.run(story()))
    assert answers[0] == answers[1]
    assert answers[0].startswith(b"HTTP/1.1 ")
