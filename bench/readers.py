"""Cheap readers: they poll a topic to its end as the client asks for it, and look at heads and lengths of the answers only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator
from dataclasses import dataclass

import uvloop

import basalt
from bench.captured import captured
from bench.load import Caller

BATCHES, AVRO = "application/vnd.basalt.batches", "avro/binary"
HEAD_END, LINE_END = b"\r\n\r\n", b"\r\n"
BUFFER_BYTES = 1 << 20
HEAD_BYTES_MAX = 64 << 10

_MARK = bytes(range(100, 120))  # stands where a position will
_NEXT = re.compile(rb"^basalt-next: *([0-9a-f]+)\r$", re.IGNORECASE | re.MULTILINE)
_LENGTH = re.compile(rb"^content-length: *(\d+)\r$", re.IGNORECASE | re.MULTILINE)
_ACCEPT = re.compile(rb"^accept:[^\r\n]*", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Polls:
    """The client's polls of a topic: the first one, and one that goes on from a position."""

    first: bytes
    following: bytes

    @classmethod
    def of(cls, topic: str, accept: str = BATCHES, wait_ms: int = 0) -> Polls:
        """The polls as the client of this tree sends them, with another `Accept` for readers of another kind."""

        def poll(client: basalt.client.Client, start: bytes | None) -> object:
            return client.topic(topic).poll(start=start, inclusive=start is None, wait_ms=wait_ms)

        first, following = captured(lambda client: poll(client, None)), captured(lambda client: poll(client, _MARK))
        assert following.count(_MARK) == 1
        line = b"Accept: " + accept.encode()
        return cls(_ACCEPT.sub(line, first, 1), _ACCEPT.sub(line, following, 1))

    def after(self, position: bytes | None) -> bytes:
        """The poll that goes on behind a position."""
        return self.first if position is None else self.following.replace(_MARK, position)


def next_position(head: bytes) -> bytes | None:
    """The position that an answer tells to go on from."""
    found = _NEXT.search(head)
    return None if found is None else bytes.fromhex(found[1].decode("ascii"))


class Reader(Caller, asyncio.BufferedProtocol):
    """Skips the bodies of answers, with a length or in chunks, and counts their bytes: a call answers the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body_bytes = 0
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._kept = 0  # bytes at the beginning of the buffer that are part of a head or of a line
        self._answers = self._wants()
        self._want = next(self._answers)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._kept :]

    def buffer_updated(self, count: int) -> None:
        at, end = 0, self._kept + count
        while at < end:
            if isinstance(self._want, int):
                step = min(self._want, end - at)
                at += step
                self._want -= step
                if not self._want:
                    self._want = self._answers.send(b"")
            else:
                text = bytes(self._buffer[at : min(end, at + HEAD_BYTES_MAX)])
                found = text.find(self._want)
                if found < 0:
                    self._buffer[: end - at] = bytes(self._buffer[at:end])
                    break
                at += found + len(self._want)
                self._want = self._answers.send(text[: found + 2])
        self._kept = end - at

    def _wants(self) -> Generator[bytes | int, bytes]:
        """Ask for text up to an end, which is sent with its line end, or for so many bytes to be skipped."""
        while True:
            head = yield HEAD_END
            length = _LENGTH.search(head)
            if length is None:
                while size := int((yield LINE_END), 16):
                    self.body_bytes += size
                    yield size + len(LINE_END)
                yield LINE_END
            elif size := int(length[1]):
                self.body_bytes += size
                yield size
            if self._answered is not None:
                self._answered.set_result(head)


def read_all(port: int, readers: int, passes: int, polls: Polls) -> int:
    """Have so many readers read the topic from its start to its end so often; the bytes of all bodies."""

    async def one() -> int:
        _, reader = await asyncio.get_running_loop().create_connection(Reader, "127.0.0.1", port)
        for _ in range(passes):
            position = None
            while (found := next_position(await reader.call(polls.after(position)))) not in (None, position):
                position = found
        reader.close()
        return reader.body_bytes

    async def run() -> int:
        return sum(await asyncio.gather(*(one() for _ in range(readers))))

    return uvloop.run(run())
