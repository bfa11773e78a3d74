"""A call that is made from within the process, and its answer: pages show what calls answer, and nothing else.

It has no socket, so neither host nor origin is asked of it; who makes it is handed in, and judged as over a socket. Where another server is to answer it, that one
judges the visitor by what the visitor has sent for the page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import unquote

from basalt.access.proofs.certificate import ClientCertificate
from basalt.api.bodies import json
from basalt.api.bodies.messages import Buffer
from basalt.api.bodies.operations import Problem
from basalt.http.asgi.requests import JSON, Head, Headers, Parts, RequestHead

ANSWER_BYTES_MAX = 16 << 20  # of an answer that is kept as a whole: more than any page shows


@dataclass(frozen=True, slots=True)
class InsideCall:
    """A call: its method, its target as a client would send it, and its body in JSON (empty: none).

    `once`: an Idempotency-Key, with which what is sent twice is done once. `visitor` are the headers that prove who looks at the page, and `scheme` is
    that of the page.
    """

    method: str
    target: str
    body: bytes = b""
    address: str | None = None  # of whoever looks at the page, for the audit
    agent: bytes = b""
    once: str = ""
    visitor: tuple[tuple[bytes, bytes], ...] = ()
    scheme: str = "http"

    def head(self) -> Head:
        """The head that a client would have sent."""
        raw_path, _, query = self.target.partition("?")
        headers = {b"user-agent": self.agent, **dict(self.visitor)}
        if self.body:
            headers |= {b"content-type": JSON, b"content-length": b"%d" % len(self.body)}
        if self.once:
            headers[b"idempotency-key"] = self.once.encode("ascii", "replace")
        return Head(self.method, unquote(raw_path), raw_path.encode("ascii"), query.encode("ascii"), headers)


@dataclass(slots=True)
class Reply:
    """The answer: its body is whole."""

    status: int = 0
    headers: Headers = ()  # type: ignore[assignment]
    body: bytes = b""

    def header(self, name: bytes) -> bytes | None:
        """A header of the answer, by its name in lower case."""
        return next((value for each, value in self.headers if each == name), None)


# In place of an answer that is too long: small payloads may take many times their bytes in JSON.
_TOO_LONG = Reply(
    413, [(b"content-type", b"application/problem+json")],
    json.encode(
        Problem(
            status=413, code="too_large", detail=f"the answer is longer than the {ANSWER_BYTES_MAX:,} bytes that a page shows",
            hint="Ask for fewer at once, or with the command.",
        )
    ),
)  # fmt: skip


class InsideExchange:
    """The way to the one who called."""

    internal = True
    is_admitted = False
    id_is_clients = True
    sequence: bytes | None = None
    certificate: ClientCertificate | None = None
    end_point_hash: bytes | None = None

    def __init__(self, call: InsideCall) -> None:
        self.client = call.address
        self.scheme = call.scheme
        self._body = call.body
        self.reply = Reply()

    async def receive(self) -> tuple[bytes, bool]:
        """The body, which is here."""
        return self._body, False

    async def until_gone(self) -> None:
        """Wait until whoever asked is gone: their task is cancelled then."""
        await asyncio.Event().wait()

    async def send(self, request: RequestHead, status: int, headers: Headers, parts: Parts) -> None:
        """Keep the answer."""
        collected, size = [], 0
        async for part in _each(parts):
            size += len(part)
            if size > ANSWER_BYTES_MAX:
                request.status = _TOO_LONG.status
                self.reply = _TOO_LONG
                return
            collected.append(bytes(part))
        request.sent_bytes = size
        self.reply = Reply(status, list(headers), b"".join(collected))


async def _each(parts: Parts) -> AsyncIterator[Buffer]:
    if isinstance(parts, AsyncIterator):  # of another server, which has answered
        async for part in parts:
            yield part
        return
    for part in parts:
        yield part
        if not isinstance(parts, list):
            await asyncio.sleep(0)  # making a part takes time: others go in between
