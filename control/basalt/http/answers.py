"""Answers, and how they are sent: as one body with its length, or in parts as they are made; coded when that pays.

Every answer carries `Basalt-Request-Id`. One that breaks off half-way is never ended properly, so that no reader takes
it for whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import msgspec
from starlette.types import Send

from basalt.http import codings
from basalt.http.requests import Request

JSON = b"application/json"
AVRO = b"avro/binary"
PROBLEM = b"application/problem+json"

Headers = list[tuple[bytes, bytes]]


class Answer:
    """A status, a body (bytes, or parts made while they are sent) and its content type; None: no body."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        status: int = 200,
        body: bytes | Iterable[bytes] = b"",
        content_type: bytes | None = None,
        headers: Headers | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers


def json_answer(value: object, status: int = 200, headers: Headers | None = None) -> Answer:
    """An answer of any value that msgspec writes as JSON."""
    return Answer(status, msgspec.json.encode(value), JSON, headers)


async def send_answer(request: Request, answer: Answer, send: Send) -> None:
    """Send the answer; the request learns its status and size, for the log and the figures."""
    headers: Headers = [(b"basalt-request-id", request.id.encode("ascii"))]
    if answer.content_type is not None:
        headers.append((b"content-type", answer.content_type))
    if answer.headers:
        headers += answer.headers
    body = answer.body
    accepted = request.headers.get(b"accept-encoding")
    if accepted is not None and (not isinstance(body, bytes) or len(body) >= codings.CODED_BYTES_MIN):
        headers.append((b"vary", b"accept-encoding"))
        coding = codings.choose(accepted.decode("latin-1"))
        if coding is not None:
            headers.append((b"content-encoding", coding.encode("ascii")))
            whole = isinstance(body, bytes)
            body = codings.encode(coding, [body] if isinstance(body, bytes) else body)
            body = b"".join(body) if whole else body
    request.status = answer.status
    if isinstance(body, bytes):
        if answer.status != 204:
            headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        sent = b"" if request.is_head else body
        request.sent_bytes = len(sent)
        await send({"type": "http.response.body", "body": sent})
    else:
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await _send_parts(request, iter(() if request.is_head else body), send)


async def _send_parts(request: Request, parts: Iterator[bytes], send: Send) -> None:
    for part in parts:
        request.sent_bytes += len(part)
        await send({"type": "http.response.body", "body": part, "more_body": True})
        await asyncio.sleep(0)  # making a part takes time: others go in between
    await send({"type": "http.response.body", "body": b""})
