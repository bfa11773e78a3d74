"""The bytes with which answers begin: a status line and headers, those of every answer among them; and answers that need no application.

Nothing that is put into a header ends its line: what an answer says of a request could otherwise begin another answer.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from uvicorn.server import ServerState

from basalt.http.asgi.requests import Headers
from basalt.http.asgi.responses import EVERY_ANSWER

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus}
_EVERY_LINES = b"".join(b"%s: %s\r\n" % header for header in EVERY_ANSWER)
_NOT_KEPT = b"cache-control: no-store\r\n"
_REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class AnswerHeads:
    """The heads of one connection's answers. Those headers that are the same for a second are put together once for it."""

    __slots__ = ("_date", "_default_lines", "_server_state")

    def __init__(self, server_state: ServerState) -> None:
        self._server_state = server_state
        self._date: object = None  # the headers that uvicorn has for every answer, and those as bytes
        self._default_lines = _EVERY_LINES

    def head(self, status: int, headers: Headers, keep_alive: bool, *, chunked: bool) -> bytes:
        """The status line and headers, and the empty line behind them. `ValueError`: one of them holds the end of a line."""
        defaults = self._server_state.default_headers
        if defaults is not self._date:
            self._date = defaults
            self._default_lines = b"".join((*(b"%s: %s\r\n" % header for header in defaults), _EVERY_LINES))
        lines = [_STATUS_LINES[status], self._default_lines]
        for name, value in headers:
            if name == b"cache-control":  # an answer that may be kept says so in its own words
                lines[1] = lines[1].replace(_NOT_KEPT, b"")
            lines += (name, b": ", value, b"\r\n")
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        if chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != 2 + lines[1].count(b"\n") + len(headers) + (not keep_alive) + chunked:
            raise ValueError("a header of the answer holds the end of a line")
        return head

    def plain_problem(self, status: int) -> bytes:
        """The whole answer to a request that the application has not answered. The connection ends with it."""
        body = b"Internal Server Error"
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
        return self.head(status, headers, keep_alive=False, chunked=False) + body


def refusal(status: int, code: str, detail: str) -> bytes:
    """The whole answer to what never became a request. The connection ends with it."""
    problem = {"type": f"urn:basalt:error:{code}", "title": _REASONS[status], "status": status, "code": code}
    body = msgspec.json.encode({**problem, "detail": detail})
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/problem+json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n"
    )
    return b"".join((head.encode("ascii"), _EVERY_LINES, b"\r\n", body))
