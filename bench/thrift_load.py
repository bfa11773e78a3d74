"""Load on the Thrift face: begin, canCommit and commit, by frames made here, so that no client's own cost is in the figures."""

from __future__ import annotations

import asyncio
import struct
from typing import cast

_LENGTH = struct.Struct(">i")
_LONG = struct.Struct(">q")


def message(name: str, arguments: bytes) -> bytes:
    """A framed call with these encoded arguments."""
    body = struct.pack(">HHi", 0x8001, 1, len(name)) + name.encode() + bytes(4) + arguments
    return _LENGTH.pack(len(body)) + body


_BEGIN = message("startShort", b"\x00")
_ID_START = 8 + len("startShort") + 4 + 6  # in an answer's frame: its header, the field of the result, that of the id


async def transaction(connection: Connection, change: bytes) -> None:
    begun = await connection.call(_BEGIN)
    (id_,) = _LONG.unpack_from(begun, _ID_START)
    changes = b"\x0e\x00\x02\x0b" + _LENGTH.pack(1) + _LENGTH.pack(len(change)) + change
    first = b"\x0a\x00\x01" + _LONG.pack(id_)
    for call in (
        message("canCommitOrThrow", first + changes + b"\x00"),
        message("commitOrThrow", first + b"\x0a\x00\x02" + _LONG.pack(id_) + b"\x00"),
    ):
        answer = await connection.call(call)
        if answer[-5:] != bytes(5):  # the sequence number, and a result without an exception
            raise RuntimeError(bytes(answer[:500]).decode(errors="replace"))


async def connected(port: int) -> Connection:
    """A connection to the face on this port."""
    return (await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port))[1]


class Connection(asyncio.Protocol):
    """Sends a frame, waits for the whole frame that answers it."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._answered: asyncio.Future[bytearray]
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class, not one of asyncio's

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= 4 and len(self._buffer) >= 4 + _LENGTH.unpack_from(self._buffer)[0]:
            answer, self._buffer = self._buffer, bytearray()
            del answer[:4]
            self._answered.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_exception(ConnectionError("the server closed the connection"))

    async def call(self, frame: bytes) -> bytearray:
        """Send a frame; the one that answers it."""
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(frame)
        return await self._answered

    def close(self) -> None:
        self._transport.close()
