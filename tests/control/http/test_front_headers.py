"""Headers that are there twice, and behind the body; and the headers that every answer has."""

from __future__ import annotations

import json

import pytest

from tests.control.http.raw_line import FACES, RawLine, request

PUBLISH = "POST /v1/namespaces/shop/topics/orders/publish"
BODY = b'{"messages": ["a"]}'
JSON = "Content-Type: application/json"
TWICE = [
    ["Host: localhost"],
    ["host: evil.example"],
    [JSON],
    ["Content-Type: text/plain"],
    ["content-type: avro/binary"],
    ["Authorization: Bearer a", "Authorization: Bearer b"],
    ["Authorization: Bearer a", "authorization: Bearer a"],
    ["Basalt-Request-Id: a", "Basalt-Request-Id: b"],
    ["basalt-request-id: a", "basalt-request-id: a"],
    ["basalt-request-id: a", "Basalt-Request-Id: b"],
    ["Origin: http://localhost:PORT", "Origin: http://evil.example"],
    ["Origin: http://evil.example", "Origin: http://localhost:PORT"],
    ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: none"],
    ["basalt-producer: p", "basalt-producer: q", "basalt-sequence: 1"],
    ["basalt-producer: p", "basalt-sequence: 1", "basalt-sequence: 2"],
    ["Basalt-Anything: 1", "Basalt-Anything: 1"],
    ["Content-Encoding: identity", "Content-Encoding: gzip"],
    ["If-Match: a", "If-Match: b"],
    ["Idempotency-Key: a", "Idempotency-Key: b"],
    ["Cookie: a=1", "Cookie: a=2"],
]


@pytest.fixture(params=FACES)
def line(request, client):
    client.topic()
    return RawLine(client, request.param)


def polled(line: RawLine) -> list[str]:
    return line.client.payloads("/v1/namespaces/shop/topics/orders")


@pytest.mark.parametrize("headers", TWICE, ids="; ".join)
def test_a_header_that_says_one_thing_is_refused_when_it_is_there_twice(line, headers):
    replies = line.ask(*[request(PUBLISH, JSON, *headers, body=BODY)] * 2)
    assert [(reply.status, reply.code) for reply in replies] == [(400, "invalid_input")] * 2
    names = [header.partition(":")[0].lower() for header in ("host:", JSON, *headers)]
    assert replies[0].json()["field"].lower() == next(name for name in names if names.count(name) == 2)
    assert polled(line) == []


def test_a_head_that_was_seen_once_opens_nothing_to_one_with_a_header_more(line):
    once = request(PUBLISH, JSON, "basalt-request-id: a", body=BODY)
    twice = once.replace(b"basalt-request-id: a\r\n", b"basalt-request-id: a\r\nbasalt-request-id: b\r\n")
    assert line.status(once, once, twice, once, twice) == [200, 200, 400, 200, 400]


def test_two_lengths_are_none(line):
    (reply,) = line.ask(request(PUBLISH, JSON, "Content-Length: 2", body=BODY))
    assert reply.status == 400
    assert polled(line) == []


def test_a_list_goes_on_in_its_second_header(line):
    line.client.publish("/v1/namespaces/shop/topics/orders", "a")
    poll = "POST /v1/namespaces/shop/topics/orders/poll"
    wanted = ["Accept: application/vnd.basalt.batches;q=0.5", "Accept: avro/binary"]
    for accept in (wanted, wanted[::-1]):
        (reply,) = line.ask(request(poll, JSON, *accept, body=b"{}"))
        assert (reply.status, reply.header("content-type")) == (200, "application/vnd.basalt.batches")


def test_what_comes_behind_a_body_is_no_header(client):
    client.topic()
    line = RawLine(client, "our own protocol")
    chunked = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    head = "\r\n".join([f"{PUBLISH} HTTP/1.1", "Host: localhost", JSON, "Transfer-Encoding: chunked", "", ""]).encode()
    trailers = [
        b"",
        b"Basalt-Request-Id: mine\r\n",
        b"Host: evil.example\r\n",
        b"Content-Type: text/plain\r\n",
        b"Origin: null\r\n",
    ]
    replies = line.ask(*[head + chunked + trailer + b"\r\n" for trailer in trailers])
    assert [reply.status for reply in replies] == [200] * len(trailers)
    assert "mine" not in [reply.header("basalt-request-id") for reply in replies]
    assert polled(line) == ["a"] * len(trailers)


def test_a_trailer_does_not_make_up_for_a_header_that_is_missing(client):
    client.topic()
    head = "\r\n".join([f"{PUBLISH} HTTP/1.1", JSON, "Transfer-Encoding: chunked", "", ""]).encode()
    sent = head + b"%x\r\n%s\r\n0\r\nHost: localhost\r\n\r\n" % (len(BODY), BODY)
    assert RawLine(client, "our own protocol").status(sent) == [400]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request("GET /v1"), 200),
        (request("HEAD /v1"), 200),
        (request("OPTIONS /v1"), 204),
        (request("GET /metrics"), 200),
        (request("GET /v1/none"), 404),
        (request("PATCH /v1"), 405),
        (request("GET /v1", host="evil.example"), 421),
        (request("GET /v1", host=None), 400),
        (request("POST /v1/admin/jobs/stats/run", "Origin: null"), 403),
        (request(PUBLISH, JSON, body=BODY), 200),
        (request(PUBLISH, JSON, body=b"nonsense"), 400),
    ],
)
def test_an_answer_is_no_page_and_is_kept_by_nobody(line, asked, status):
    for reply in line.ask(asked, asked):
        assert reply.status == status
        assert reply.header("x-content-type-options") == "nosniff"
        assert reply.header("cache-control") == "no-store"


@pytest.mark.parametrize(
    ("sent", "status"), [(b"nonsense\r\n\r\n", 400), (b"GET /v1 HTTP/1.1\r\nX: " + b"x" * 70_000, 431)]
)
def test_so_is_the_answer_to_what_is_no_request(client, sent, status):
    (reply,) = RawLine(client, "our own protocol").ask(sent)
    assert reply.status == status == json.loads(reply.body)["status"]
    assert (reply.header("x-content-type-options"), reply.header("cache-control")) == ("nosniff", "no-store")


def test_so_is_the_answer_to_what_breaks(line, monkeypatch):
    monkeypatch.setattr(type(line.client.app), "_answer", lambda self, request: 1 / 0)
    (reply,) = line.ask(request("GET /v1"))
    assert (reply.status, reply.header("cache-control")) == (500, "no-store")
