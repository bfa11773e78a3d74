"""Heads that are not parsed again: the request is the one that a parser would have found, or a parser is asked."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.http.asgi import heads
from basalt.http.asgi.heads import Heads
from basalt.http.asgi.requests import Head

LINE = b"POST /v1/namespaces/shop/topics/orders/publish?x=1 HTTP/1.1\r\n"


class Parsed:
    """All that the parser says of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.url, self.body, self.headers, self.whole = b"", b"", {}, 0
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)
        self.keep_alive = self.parser.should_keep_alive()

    def on_url(self, url):
        self.url += url

    def on_header(self, name, value):
        self.headers[name.lower()] = value

    def on_body(self, body):
        self.body += body

    def on_message_complete(self):
        self.whole += 1

    def head(self) -> Head:
        url = httptools.parse_url(self.url)
        return Head(
            self.parser.get_method().decode(), url.path.decode(), url.path, url.query or b"", dict(self.headers)
        )


def request(*lines: bytes, body: bytes = b"", line: bytes = LINE) -> bytes:
    return line + b"".join(each + b"\r\n" for each in lines) + b"\r\n" + body


def length(body: bytes, name: bytes = b"content-length") -> bytes:
    return b"%s: %d" % (name, len(body))


def keeping(*requests: bytes) -> Heads:
    known = Heads()
    for data in requests:
        known.keep(data, Parsed(data).head())
    return known


@pytest.mark.parametrize("name", [b"content-length", b"Content-Length"])
def test_a_head_is_known_again_with_another_length_and_another_id(name):
    first = request(b"Host: h", b"basalt-request-id: a-1", length(b"12", name), b"Accept: x", body=b"12")
    known = keeping(first)
    for given_id, body in [(b"a-1", b"12"), (b"another", b"some more"), (b"c", b"")]:
        found = known.find(
            request(b"Host: h", b"basalt-request-id: " + given_id, length(body, name), b"Accept: x", body=body)
        )
        assert (found.request_id, found.body) == (given_id.decode(), body)
        assert (found.head.method, found.head.path) == ("POST", "/v1/namespaces/shop/topics/orders/publish")
        assert found.head.query_string == b"x=1"
        assert found.head.headers == {b"host": b"h", b"content-length": b"", b"accept": b"x"}
    assert known.find(request(b"Host: h", length(b"", name), b"Accept: x")).request_id is None


def test_a_head_is_known_again_with_another_sequence():
    lines = (b"Host: h", b"basalt-producer: p", b"basalt-sequence: 7", b"content-length: 2")
    known = keeping(request(*lines, body=b"12"))
    for sequence in (b"7", b"8", b"0", b"9223372036854775807", b"1" * 40):
        found = known.find(request(*lines[:2], b"basalt-sequence: " + sequence, *lines[3:], body=b"12"))
        assert (found.sequence, found.head.headers[b"basalt-sequence"]) == (sequence, b"")
    for sequence in (b"", b"-1", b" 7", b"7 ", b"+7", b"x", b"7\t", b"7\r\nbasalt-sequence: 7"):
        assert known.find(request(*lines[:2], b"basalt-sequence: " + sequence, *lines[3:], body=b"12")) is None
    assert known.find(request(*lines[:2], b"Basalt-Sequence: 7", *lines[3:], body=b"12")) is None
    assert known.find(request(b"Host: h", b"basalt-producer: q", *lines[2:], body=b"12")) is None


def test_a_head_without_a_body_is_known_again():
    data = request(b"Host: h", b"Connection: keep-alive", line=b"GET /v1 HTTP/1.1\r\n")
    found = keeping(data).find(data)
    assert (found.head.method, found.body) == ("GET", b"")


@pytest.mark.parametrize(
    "data",
    [
        request(b"Host: h", length(b"12"), body=b"1"),
        request(b"Host: h", length(b"12"), body=b"123"),
        request(b"Host: h", length(b"12")) + request(b"Host: h", length(b"12"), body=b"12"),
        request(b"Host: h", body=b"12"),
        request(b"Host: i", length(b"12"), body=b"12"),
        request(b"Host: h", b"Content-length: 2", body=b"12"),
        request(b"Host: h", b"content-length: +2", body=b"12"),
        request(b"Host: h", b"content-length: -2", body=b"12"),
        request(b"Host: h", b"content-length: ", body=b"12"),
        request(b"Host: h", b"content-length: 2, 2", body=b"12"),
        request(b"Host: h", b"content-length: 2", b"content-length: 2", body=b"12"),
        request(b"Host: h", b"content-length: 2", b"transfer-encoding: chunked", body=b"12"),
        request(b"Host: h", b"content-length: 2", b"basalt-request-id: ", body=b"12"),
        request(b"Host: h", b"content-length: 2", b"basalt-request-id: a b", body=b"12"),
        request(b"Host: h", b"content-length: 2", b"basalt-request-id: " + b"a" * 200, body=b"12"),
        request(b"Host: h", b"content-length: 2", b"basalt-request-id: a", b"basalt-request-id: a", body=b"12"),
        request(b"Host: h", b"content-length: 2", body=b"12")[:-5],
        b"\r\n\r\n" + request(b"Host: h", length(b"12"), body=b"12"),
        b"",
    ],
)
def test_what_is_not_just_such_a_request_is_for_the_parser(data):
    assert keeping(request(b"Host: h", length(b"12"), body=b"12")).find(data) is None


@pytest.mark.parametrize(
    "lines",
    [
        (b"connection: close", b"content-length: 2"),
        (b"Connection: Upgrade", b"Upgrade: h2c", b"content-length: 2"),
        (b"expect: 100-continue", b"content-length: 2"),
        (b"x: a", b"X: b", b"content-length: 2"),
        (b"Basalt-Request-Id: a", b"content-length: 2"),
        (b"basalt-request-id: a", b"Basalt-Request-Id: b", b"content-length: 2"),
        (b"basalt-sequence: 7", b"Basalt-Sequence: 8", b"content-length: 2"),
        (b"basalt-sequence: 7", b"basalt-sequence-after: 5", b"content-length: 2"),
        (b"idempotency-key: a", b"content-length: 2"),
        (b"content-length:2",),
        (b"CONTENT-LENGTH: 2",),
    ],
)
def test_a_head_that_changes_how_its_request_is_read_is_not_kept(lines):
    data = request(b"Host: h", *lines, body=b"12")
    head = Head("POST", "/", b"/", b"", {})
    for line in lines:
        name, _, value = line.partition(b":")
        head.headers[name.lower()] = value.strip()
    head.headers[b"host"] = b"h"
    known = Heads()
    known.keep(data, head)
    assert known.find(data) is None


def test_a_chunked_request_is_not_kept():
    data = request(b"Transfer-Encoding: chunked", body=b"0\r\n\r\n")
    known = Heads()
    known.keep(data, Parsed(data).head())
    assert known.find(data) is None


names = st.sampled_from(
    [
        b"host",
        b"Accept",
        b"x-a",
        b"content-type",
        b"basalt-request-id",
        b"basalt-sequence",
        b"content-length",
        b"connection",
    ]
)
values = st.one_of(
    st.sampled_from([b"2", b"0", b"10", b"a-1", b"keep-alive", b"close", b"avro/binary", b"", b" 2", b"2 "]),
    st.binary(max_size=6).filter(lambda value: not set(value) & set(b"\r\n\0")),
)
separators = st.sampled_from([b": ", b": ", b": ", b":", b":  ", b"\t: "])
lines = st.lists(st.tuples(names, separators, values).map(b"".join), max_size=6)
requests = st.builds(
    lambda line, theirs, body: request(*theirs, body=body, line=line),
    st.sampled_from([LINE, b"GET /v1 HTTP/1.1\r\n", b"GET /v1 HTTP/1.0\r\n", b"\r\nPOST /v1 HTTP/1.1\r\n"]),
    lines,
    st.sampled_from([b"", b"12", b"0123456789", b"\r\n", b"GET / HTTP/1.1\r\n\r\n"]),
)


@given(st.lists(requests, min_size=1, max_size=4), st.data())
def test_what_is_known_is_what_the_parser_would_have_found(seen, data):
    known = Heads()
    for each in seen:
        try:
            parsed = Parsed(each)
        except httptools.HttpParserError:
            continue
        if parsed.whole == 1 and parsed.keep_alive and parsed.parser.get_http_version() == "1.1":
            known.keep(each, parsed.head())
    asked = data.draw(st.one_of(st.sampled_from(seen), requests))
    found = known.find(asked)
    if found is None:
        return
    parsed = Parsed(asked)
    assert (parsed.whole, parsed.keep_alive) == (1, True)
    assert found.body == parsed.body
    head, given_id = parsed.head(), found.request_id
    assert head.headers.pop(b"basalt-request-id", None) == (None if given_id is None else given_id.encode())
    if b"basalt-sequence" in head.headers:
        assert found.sequence == head.headers[b"basalt-sequence"]
        head.headers[b"basalt-sequence"] = b""
    if b"content-length" in head.headers:
        head.headers[b"content-length"] = b""
    fields = ("method", "path", "raw_path", "query_string", "headers")
    assert [getattr(found.head, field) for field in fields] == [getattr(head, field) for field in fields]


def test_the_heads_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(heads, "HEADS_MAX", 2)
    data = [request(b"Host: %d" % number, line=b"GET / HTTP/1.1\r\n") for number in range(3)]
    known = keeping(*data[:2])
    assert all(known.find(each) for each in data[:2])
    known.keep(data[2], Parsed(data[2]).head())
    assert [known.find(each) is not None for each in data] == [False, False, True]


def test_a_head_of_the_limit_is_kept_and_one_a_byte_longer_is_not(monkeypatch):
    fits, longer = (request(b"Host: " + host, line=b"GET / HTTP/1.1\r\n") for host in (b"h", b"hh"))
    monkeypatch.setattr(heads, "KNOWN_HEAD_BYTES_MAX", len(fits))
    assert keeping(fits).find(fits)
    assert keeping(longer).find(longer) is None


def test_a_length_of_too_many_digits_is_for_the_parser(monkeypatch):
    data = request(b"Host: h", b"content-length: 2", body=b"12")
    known = keeping(data)
    monkeypatch.setattr(heads, "LENGTH_DIGITS_MAX", 0)
    assert known.find(data) is None
