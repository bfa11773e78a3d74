"""One lock per topic for whoever reads rows and then changes or removes what it found.

A row that is rolled back gets a new value in one of its columns. Were it removed after it was found, and before that is
written, a row with this one column would come into being. Appending needs no lock: it changes no row that is there.
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from basalt.messaging.log.tail import TopicKey


class TopicLocks:
    """A lock for each generation of a topic, kept while somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[TopicKey, asyncio.Lock] = WeakValueDictionary()

    def of(self, topic: TopicKey) -> asyncio.Lock:
        """The topic's lock, the same for all who ask while one of them has it."""
        lock = self._locks.get(topic)
        if lock is None:
            lock = self._locks[topic] = asyncio.Lock()
        return lock
