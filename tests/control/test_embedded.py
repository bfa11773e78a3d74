"""The application called without a socket: what it is given, and what becomes of its answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import basalt
from basalt.client.attempts import Send
from basalt.client.plans import Answer, AnswerLost
from basalt.embedded import embedded_directory, exchange
from basalt.errors import InputError

REQUEST = Send("POST", "/v1/a%2Fb?x=%20y", {"Accept": "avro/binary"}, b"body", 1_000)


def call(application, request=REQUEST, headers=None):
    return asyncio.run(exchange(application, request, headers or {}))


async def read_all(receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            return body


def test_an_application_sees_what_a_server_would_hand_it():
    seen: dict[str, Any] = {}

    async def application(scope, receive, send):
        seen.update(scope, body=await read_all(receive))
        await send({"type": "http.response.start", "status": 201, "headers": [(b"Basalt-Next", b"ab")]})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    answer = call(application, headers={"Authorization": "t"})
    assert answer == Answer(201, {"basalt-next": "ab"}, b"one two")
    assert (seen["method"], seen["path"], seen["raw_path"]) == ("POST", "/v1/a/b", b"/v1/a%2Fb")
    assert (seen["query_string"], seen["body"]) == (b"x=%20y", b"body")
    assert dict(seen["headers"]) == {b"accept": b"avro/binary", b"authorization": b"t", b"content-length": b"4"}


def test_an_application_that_breaks_is_a_lost_answer():
    async def breaks(_scope, _receive, _send):
        raise ValueError("a bug")

    reply = call(breaks)
    assert isinstance(reply, AnswerLost)
    assert "a bug" in reply.reason


def test_half_an_answer_is_a_lost_answer():
    async def half(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    assert isinstance(call(half), AnswerLost)


def test_an_application_that_takes_too_long_is_a_lost_answer():
    gone = []

    async def stalls(_scope, receive, _send):
        await read_all(receive)
        try:
            await receive()
        finally:
            gone.append(True)

    reply = call(stalls, Send("GET", "/", {}, b"", 10))
    assert isinstance(reply, AnswerLost)
    assert gone == [True]


def test_an_embedded_url_names_a_directory(tmp_path):
    assert embedded_directory(f"embedded:{tmp_path}", {}) == tmp_path
    assert embedded_directory("embedded:", {"store.kind": "memory"}) is None
    with pytest.raises(InputError, match="names no directory"):
        embedded_directory("embedded:", {})


def test_its_calls_are_made_by_a_part_of_this_process(tmp_path):
    with basalt.connect(f"embedded:{tmp_path}") as client:
        found = client.auth.whoami()
        assert (found.principal, found.judged) == ("internal:embedded", False)
        assert client.auth.check("operate", "cluster").allowed
