"""A web server that publishes its log: chunk by chunk, each once whatever happens, with the watermark that is true behind it."""

from __future__ import annotations

from collections.abc import Sequence

import basalt
from demo.spark.views import chunks_of


class WebServer:
    """One of the two. What it has published is in its session on the server, so it can be stopped and made anew."""

    def __init__(self, name: str, lines: Sequence[bytes], lines_per_chunk: int) -> None:
        self.name = name
        self.topic = f"lines-{name}"
        self.task = f"web-{name}"
        self._chunks = chunks_of(lines, lines_per_chunk)
        self._next = 0

    @property
    def left(self) -> int:
        """The number of chunks that are not published yet."""
        return len(self._chunks) - self._next

    def publish(self, client: basalt.client.Client, chunks: int | None = None) -> int:
        """Publish so many chunks, or all that are left, and the end behind the last; returns how many lines that was."""
        session = client.session(self.task)
        lines = 0
        for number in range(self._next, min(len(self._chunks), self._next + (chunks or len(self._chunks)))):
            chunk = self._chunks[number]
            with session.transaction(version=number) as tx:
                if not tx.committed_before:
                    tx.publish(self.topic, chunk.lines)
                    if chunk.watermark_ms is not None:
                        tx.watermark(self.topic, self.task, chunk.watermark_ms)
            self._next = number + 1
            lines += len(chunk.lines)
        if not self.left:
            client.topic(self.topic).end(self.task)
        return lines
