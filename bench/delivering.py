"""Measures how long messages take from their publish to the answer of a long poll, with cheap connections on one event loop."""

from __future__ import annotations

import asyncio
import time

import uvloop

from bench.load import Connection, Load
from bench.readers import Polls, next_position

PER_S = 200


def delivered(port: int, messages: int, publish: bytes, polls: Polls, waiting: Polls) -> Load:
    """Publish one message after the other, 200 a second; each latency ends when the answer with the message is there."""

    async def run() -> Load:
        loop = asyncio.get_running_loop()
        (_, writer), (_, reader) = [await loop.create_connection(Connection, "127.0.0.1", port) for _ in range(2)]
        position = await _end(reader, polls)
        latencies: list[float] = []
        start = due = time.perf_counter()
        for _ in range(messages):
            due += 1 / PER_S
            arriving = asyncio.ensure_future(reader.call(waiting.after(position)))
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sent = time.perf_counter()
            published = asyncio.ensure_future(writer.call(publish))
            answer = await arriving
            latencies.append((time.perf_counter() - sent) * 1_000)
            position = _next(answer)
            await published
        writer.close()
        reader.close()
        return Load(messages, time.perf_counter() - start, latencies)

    return uvloop.run(run())


async def _end(reader: Connection, polls: Polls) -> bytes | None:
    """The position behind the last message: from there on polls wait."""
    position = None
    while (found := _next(await reader.call(polls.after(position)))) not in (None, position):
        position = found
    return position


def _next(answer: bytes) -> bytes | None:
    return next_position(answer.partition(b"\r\n\r\n")[0] + b"\r\n")
