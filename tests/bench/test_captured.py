"""Requests that are caught from the client and sent again: `bench.captured`."""

from __future__ import annotations

import gzip

import pytest

from bench.captured import captured, encoded, is_whole, repeatable, with_id
from bench.stalls import gzip_members

REQUEST = b"POST /publish HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\nBasalt-Request-Id: 17\r\n\r\nbody"


def test_a_request_is_whole_with_the_last_byte_of_its_body():
    assert is_whole(REQUEST)
    assert not any(is_whole(REQUEST[:length]) for length in range(len(REQUEST)))
    assert is_whole(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")


def test_a_length_in_the_body_is_none_of_the_request():
    assert is_whole(b"POST / HTTP/1.1\r\nContent-Length: 25\r\n\r\nContent-Length: 100000\r\n\r\n")


def test_a_request_without_its_id_is_another_call_each_time():
    assert repeatable(REQUEST) == b"POST /publish HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\n\r\nbody"
    assert repeatable(repeatable(REQUEST)) == repeatable(REQUEST)


def test_a_publish_without_its_numbers_is_another_publish_each_time():
    numbered = REQUEST.replace(b"Basalt-Request-Id: 17\r\n", b"basalt-producer: p\r\nbasalt-sequence: 0\r\n")
    assert repeatable(numbered) == repeatable(REQUEST)


def test_a_request_can_be_given_an_id():
    assert is_whole(with_id(REQUEST, "18"))
    assert b"\r\nBasalt-Request-Id: 18\r\n" in with_id(repeatable(REQUEST), "18")


def test_a_request_can_be_sent_in_a_content_coding():
    coded = encoded(REQUEST, "gzip", gzip.compress)
    head, _, body = coded.partition(b"\r\n\r\n")
    assert is_whole(coded)
    assert gzip.decompress(body) == b"body"
    assert b"Content-Encoding: gzip" in head
    assert head.count(b"Content-Length") == 1


def test_the_body_can_be_made_of_many_gzip_members():
    body = bytes(range(256)) * 20
    data = gzip_members(body, 1_000)
    assert gzip.decompress(data) == body
    assert data.count(b"\x1f\x8b\x08") >= 850  # 5,120 bytes by six


def test_what_the_client_sends_is_caught():
    request = captured(lambda client: client.topic("orders").publish([b"a message"]), namespace="shop")
    assert request.startswith(b"POST ")
    assert b"/shop/" in request
    assert b"/orders/" in request
    assert b"a message" in request
    assert request.lower().count(b"basalt-") == request.lower().count(
        b"basalt-direct: 1"
    )  # nothing that is new in each call


def test_a_call_that_asks_nothing_of_a_server_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bench.captured.TIMEOUT_MS", 10)
    with pytest.raises(RuntimeError, match="has sent no request"):
        captured(lambda client: None)
