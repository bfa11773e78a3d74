"""Waking the fetches that wait for something new in a topic."""

from __future__ import annotations

import asyncio

from basalt.messaging.log.tail import TopicKey

WAITERS_MAX = 100_000  # fetches that wait at the same time, over all topics


class Arrivals:
    """Who waits for which topic."""

    def __init__(self) -> None:
        self._waiting: dict[TopicKey, set[asyncio.Future[None]]] = {}
        self.waiters = 0

    def waiter(self, topic: TopicKey) -> asyncio.Future[None]:
        """A future that is done at the next notice for the topic. Take it before looking, then nothing is missed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(topic, set()).add(future)
        self.waiters += 1
        future.add_done_callback(lambda done: self._left(topic, done))
        return future

    def waiting(self, topic: TopicKey) -> int:
        """How many fetches wait for the topic."""
        return len(self._waiting.get(topic, ()))

    def notify(self, topic: TopicKey) -> None:
        """Something was appended to the topic, or a transaction in it has ended."""
        for future in list(self._waiting.get(topic, ())):
            if not future.done():
                future.set_result(None)

    def notify_all(self) -> None:
        """Wake everybody: the server stops, or what was decided elsewhere may concern any topic."""
        for topic in list(self._waiting):
            self.notify(topic)

    def _left(self, topic: TopicKey, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(topic)
        if waiting is not None and future in waiting:
            waiting.discard(future)
            self.waiters -= 1
            if not waiting:
                del self._waiting[topic]
