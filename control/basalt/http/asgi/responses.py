"""Answers, and how they are sent: as one body with its length, or in parts as they are made; coded when that pays.

Every answer carries `Basalt-Request-Id`. One that breaks off half-way is never ended properly, so that no reader takes
it for whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from starlette.types import Send

from basalt.api.bodies import json
from basalt.api.bodies.work import Buffer
from basalt.http.asgi import codings
from basalt.http.asgi.requests import RequestHead

JSON = b"application/json"
AVRO = b"avro/binary"
PROBLEM = b"application/problem+json"
BATCHES = b"application/vnd.basalt.batches"

CODED_AT_ONCE_BYTES_MAX = 1024 * 1024  # a larger answer is coded while it is sent, so that others go in between

Headers = list[tuple[bytes, bytes]]


Body = bytes | Sequence[Buffer] | Iterator[Buffer]


class Response:
    """A status, a body and its content type (None: no body).

    A body is one piece, or a list of pieces, or pieces that are made while they are sent.
    """

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        status: int = 200,
        body: Body = b"",
        content_type: bytes | None = None,
        headers: Headers | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers


def json_response(value: object, status: int = 200, headers: Headers | None = None) -> Response:
    """An answer of any value that msgspec writes as JSON."""
    return Response(status, json.encode(value), JSON, headers)


async def send_response(request: RequestHead, answer: Response, send: Send) -> None:
    """Send the answer; the request learns its status and size, for the log and the figures."""
    headers: Headers = [(b"basalt-request-id", request.id.encode("ascii"))]
    if answer.content_type is not None:
        headers.append((b"content-type", answer.content_type))
    if answer.headers:
        headers += answer.headers
    parts: Sequence[Buffer] | Iterator[Buffer] = [answer.body] if isinstance(answer.body, bytes) else answer.body
    accepted = request.headers.get(b"accept-encoding")
    if accepted is not None:
        parts = _coded(accepted.decode("latin-1"), parts, headers)
    if isinstance(parts, list) and answer.status != 204:
        headers.append((b"content-length", b"%d" % sum(map(len, parts))))
    request.status = answer.status
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    if request.is_head:
        parts = [b""]
    if isinstance(parts, list):
        for number, part in enumerate(parts, 1):
            request.sent_bytes += len(part)
            await send({"type": "http.response.body", "body": part, "more_body": number < len(parts)})
        return
    for part in parts:
        request.sent_bytes += len(part)
        await send({"type": "http.response.body", "body": part, "more_body": True})
        await asyncio.sleep(0)  # making a part takes time: others go in between
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _coded(
    accept_encoding: str, parts: Sequence[Buffer] | Iterator[Buffer], headers: Headers
) -> Sequence[Buffer] | Iterator[Buffer]:
    """The parts in the content coding that the client likes best, if that pays; and the headers that say so."""
    size_bytes = sum(map(len, parts)) if isinstance(parts, list) else None
    if size_bytes is not None and size_bytes < codings.CODED_BYTES_MIN:
        return parts
    headers.append((b"vary", b"accept-encoding"))
    coding = codings.choose(accept_encoding)
    if coding is None:
        return parts
    headers.append((b"content-encoding", coding.encode("ascii")))
    coded = codings.encode(coding, parts)
    return coded if size_bytes is None or size_bytes > CODED_AT_ONCE_BYTES_MAX else list(coded)
