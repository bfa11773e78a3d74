"""The demo's parser: Common and Combined Log Format lines, and lines that are neither."""

from __future__ import annotations

import pytest

from demo.access_log import NotAnAccessLineError, PageView, parse

COMBINED = (
    b"83.149.9.216 - - [17/May/2015:10:05:03 +0000] "
    b'"GET /images/search.png?size=2 HTTP/1.1" 200 203023 "http://example.com/" "Mozilla/5.0 (X11)"'
)


def test_a_combined_line_gives_its_client_hour_and_path():
    assert parse(COMBINED) == PageView(client="83.149.9.216", hour="2015-05-17 10h", path="/images/search.png?size=2")


def test_a_common_line_with_a_user_and_an_ipv6_client_is_read_too():
    line = b'2001:db8::1 - ann [01/Jan/2024:00:59:59 +0200] "HEAD / HTTP/1.0" 304 -'
    assert parse(line) == PageView(client="2001:db8::1", hour="2024-01-01 00h", path="/")


def test_a_path_that_is_not_utf_8_stays_one_path():
    first = parse(b'1.1.1.1 - - [01/Jan/2024:00:00:00 +0000] "GET /\xff HTTP/1.1" 200 1')
    second = parse(b'1.1.1.1 - - [01/Jan/2024:00:00:00 +0000] "GET /\xfe HTTP/1.1" 200 1')
    assert first.path != second.path


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b'1.1.1.1 - - [01/Foo/2024:00:00:00 +0000] "GET / HTTP/1.1" 200 1',
        b'1.1.1.1 - - [01/Jan/2024] "GET / HTTP/1.1" 200 1',
        b'1.1.1.1 - - [01/Jan/2024:00:00:00 +0000] "-" 400 0',
    ],
)
def test_another_line_is_refused_and_named(line: bytes):
    with pytest.raises(NotAnAccessLineError, match="not an access log line"):
        parse(line)
