"""Heads of requests that were parsed before: a client sends nearly the same bytes before every body.

A whole request whose head is known is not parsed again. Three things in a head change from call to call, the request id, the
number of a producer's first message and the length of the body: they are cut out, and the rest is the key. A head is kept only when nothing in it changes how its
request is read: no transfer coding, no upgrade, no expectation, no end of the connection. Nor is one with a token that counts once.
"""

from __future__ import annotations

from typing import NamedTuple

from basalt.errors import InputError
from basalt.http.asgi.requests import Head, request_id

HEADS_MAX = 1_024  # that are kept; when they are full, all are forgotten
KNOWN_HEAD_BYTES_MAX = 2_048  # of a head that is kept: all of them take some MB at most
LENGTH_DIGITS_MAX = 9  # of a body's length; a longer one is for the parser to refuse

_END = b"\r\n\r\n"
_REQUEST_ID = b"\r\nbasalt-request-id: "
_LENGTHS = (b"\r\ncontent-length: ", b"\r\nContent-Length: ")
_SEQUENCE = b"\r\nbasalt-sequence: "
_COUNTS_ONCE = (
    b"negotiate"  # a scheme of Authorization: each such head is another one, and would have the others forgotten
)
# The last two change with each request that has them, and would have the others forgotten.
_READ_OTHERWISE = (
    b"transfer-encoding", b"upgrade", b"expect", b"basalt-request-id", b"basalt-sequence-after", b"idempotency-key",
)  # fmt: skip


class CutHead(NamedTuple):
    """The bytes of a head without what changes, and what that was."""

    key: bytes
    request_id: bytes | None
    sequence: bytes | None
    length: int | None  # of the body, where the head tells it
    body_at: int


class KnownHead(NamedTuple):
    """A request that was not parsed."""

    head: Head
    request_id: str | None
    sequence: bytes | None
    body: bytes


class Heads:
    """The heads that all connections of a server have seen of late."""

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def find(self, data: bytes) -> KnownHead | None:
        """The request that is exactly these bytes; None when a parser must look at them."""
        cut = _cut(data)
        if cut is None:
            return None
        head = self._known.get(cut.key)
        if head is None or len(data) - cut.body_at != (cut.length or 0):
            return None
        given = None
        if cut.request_id is not None:
            try:
                given = request_id(cut.request_id)
            except InputError:
                return None
        return KnownHead(head, given, cut.sequence, data[cut.body_at :])

    def keep(self, data: bytes, head: Head) -> None:
        """Note the head that the parser found in these bytes, which are one whole request that ends no connection."""
        cut = _cut(data)
        if cut is None:
            return
        headers = dict(head.headers)
        if cut.request_id is not None and headers.pop(b"basalt-request-id", None) != cut.request_id:
            return
        if cut.sequence is not None:
            if headers.get(b"basalt-sequence") != cut.sequence:
                return
            headers[b"basalt-sequence"] = b""  # that of each request came with it
        declared = headers.get(b"content-length")
        if (
            (None if declared is None else int(declared)) != cut.length
            or len(data) - cut.body_at != (cut.length or 0)
            or cut.key.count(b"\r\n") != len(headers)  # a header twice
            or b"\r\n " in cut.key  # or over two lines
            or b"\r\n\t" in cut.key
            or headers.get(b"connection", b"keep-alive").lower() != b"keep-alive"
            or headers.get(b"authorization", b"")[: len(_COUNTS_ONCE)].lower() == _COUNTS_ONCE
            or any(name in headers for name in _READ_OTHERWISE)
        ):
            return
        if declared is not None:
            headers[b"content-length"] = b""  # that of each request is the length of its body, which came with it
        if len(self._known) >= HEADS_MAX:
            self._known.clear()
        self._known[cut.key] = Head(
            head.method, head.path, head.raw_path, head.query_string, headers, head.version, head.authority
        )


def _cut(data: bytes) -> CutHead | None:
    """Take the head apart; None where it is not whole, or not one that is kept."""
    stop = data.find(_END, 0, KNOWN_HEAD_BYTES_MAX)
    if stop < 0:
        return None
    key, given, sequence, length = data[:stop], None, None, None
    start = key.find(_REQUEST_ID)
    if start >= 0:
        before, key, rest = key[:start], *_line(key, start + len(_REQUEST_ID))
        given, key = key, before + rest
    start = key.find(_SEQUENCE)
    if start >= 0:
        value_at = start + len(_SEQUENCE)
        sequence, rest = _line(key, value_at)
        if not sequence.isdigit():
            return None
        key = key[:value_at] + rest
    start = key.find(_LENGTHS[0])
    if start < 0:
        start = key.find(_LENGTHS[1])
    if start >= 0:
        value_at = start + len(_LENGTHS[0])
        digits, rest = _line(key, value_at)
        if not digits.isdigit() or len(digits) > LENGTH_DIGITS_MAX:
            return None
        length, key = int(digits), key[:value_at] + rest
    return CutHead(key, given, sequence, length, stop + len(_END))


def _line(head: bytes, start: int) -> tuple[bytes, bytes]:
    """The rest of the line from here, and what follows it."""
    stop = head.find(b"\r\n", start)
    return (head[start:], b"") if stop < 0 else (head[start:stop], head[stop:])
