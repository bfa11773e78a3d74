"""A server under uvicorn, by our own protocol or by plain ASGI, and requests sent to it as the very bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from basalt.http.asgi.protocol import HttpConnection
from tests.control.http.conftest import Client, Reply
from tests.control.http.test_plain_asgi import serving

FACES = {"our own protocol": HttpConnection, "plain ASGI": "httptools"}
ANSWER_SECONDS_MAX = 60  # a bound for a hang, not an expectation


class RawLine:
    """The line to one server."""

    def __init__(self, client: Client, face: str) -> None:
        self.client = client
        self.is_ours = face == "our own protocol"
        self._protocol = FACES[face]

    def ask(self, *requests: bytes) -> list[Reply]:
        """The answers to these requests, sent over one connection, each when the one before it was answered."""
        return self.client.run(self._conversation(requests))

    def status(self, *requests: bytes) -> list[int]:
        """The statuses of those answers."""
        return [reply.status for reply in self.ask(*requests)]

    async def _conversation(self, requests: Sequence[bytes]) -> list[Reply]:
        async with asyncio.timeout(ANSWER_SECONDS_MAX), serving(self.client.app, self._protocol) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            replies = []
            for each in requests:
                writer.write(each.replace(b"PORT", b"%d" % port))
                replies.append(await _read(reader, is_head=each.startswith(b"HEAD ")))
            writer.close()
            return replies


async def _read(reader: asyncio.StreamReader, *, is_head: bool) -> Reply:
    lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    pairs = [line.split(b": ", 1) for line in lines[1:] if line]
    reply = Reply(int(lines[0].split()[1]), [(pair[0].lower(), pair[1]) for pair in pairs])
    if not is_head:
        reply.parts = [await reader.readexactly(int(reply.header("content-length") or 0))]
    return reply


def request(line: str, *headers: str, body: bytes = b"", host: str | None = "localhost:PORT") -> bytes:
    """One request of HTTP/1.1; `PORT` in it is the server's."""
    lines = [line if line.endswith(("1.0", "1.1")) else f"{line} HTTP/1.1"]
    lines += [] if host is None else [f"Host: {host}"]
    lines += headers
    if body or line.startswith(("POST", "PUT", "PATCH")):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
