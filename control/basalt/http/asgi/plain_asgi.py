"""A request as plain ASGI brings it: from any ASGI server, or from an embedded client, which needs no socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Receive, Scope, Send

from basalt.access.proofs.certificate import ClientCertificate
from basalt.http.asgi.requests import ClientGoneError, Head, Headers, Parts, RequestHead, add_header
from basalt.http.asgi.responses import EVERY_ANSWER


def head_of(scope: Scope) -> Head:
    """The head of a request of type `http`. ASGI does not tell the host of an absolute target."""
    headers: dict[bytes, bytes] = {}
    repeated: tuple[bytes, ...] = ()
    for name, value in scope["headers"]:
        repeated += add_header(headers, name, value)
    return Head(
        scope["method"], scope["path"], scope.get("raw_path") or b"", scope["query_string"], headers,
        scope.get("http_version", "1.1"), repeated=repeated,
    )  # fmt: skip


async def answer_no_request(scope: Scope, receive: Receive, send: Send, close_code: int = 1000) -> None:
    """Close a web socket, of which there is none here; or tell a server that there is nothing to start or stop."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": close_code})
    elif scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})


class AsgiExchange:
    """The way to the client of one request, in ASGI's messages."""

    __slots__ = ("_receive", "_scope", "_send", "internal")
    is_admitted = False
    id_is_clients = True
    sequence: bytes | None = None  # each head is parsed
    certificate: ClientCertificate | None = None  # ASGI servers do not say how they verified one
    end_point_hash: bytes | None = None

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, internal: bool = False) -> None:
        self.internal = internal
        self._scope = scope
        self._receive = receive
        self._send = send

    @property
    def client(self) -> str | None:
        """The client's address; None where it has none."""
        client = self._scope.get("client")
        return client[0] if client else None

    @property
    def scheme(self) -> str:
        """`http` or `https`, as the client asked."""
        scheme: str = self._scope.get("scheme", "http")
        return scheme

    async def receive(self) -> tuple[bytes, bool]:
        """Wait for the next part of the body, and learn whether more follow. `ClientGoneError`."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        return message.get("body", b""), message.get("more_body", False)

    async def until_gone(self) -> None:
        """Wait until the client has closed the connection. Only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def send(self, request: RequestHead, status: int, headers: Headers, parts: Parts) -> None:
        """Send the whole answer as fast as the client takes it."""
        send, named = self._send, {name for name, _ in headers}
        sent = [*(header for header in EVERY_ANSWER if header[0] not in named), *headers]
        await send({"type": "http.response.start", "status": status, "headers": sent})
        if isinstance(parts, list):
            for number, part in enumerate(parts, 1):
                request.sent_bytes += len(part)
                await send({"type": "http.response.body", "body": part, "more_body": number < len(parts)})
            return
        if isinstance(parts, AsyncIterator):
            async for part in parts:
                request.sent_bytes += len(part)
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        for part in parts:
            request.sent_bytes += len(part)
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)  # making a part takes time: others go in between
        await send({"type": "http.response.body", "body": b"", "more_body": False})
