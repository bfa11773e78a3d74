"""A memory for entries about topics or writers: the least recently used is forgotten, where it can be read again.

It cannot be read again while a group of the group commit has changed it and is not durable yet: the store does not know
of it. Such an entry is pinned until the group is durable or has failed, and does not count against the limit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Hashable
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentEntries(Generic[K, V]):
    """Entries by key: at most `entries_max` that the store knows too, and those that are pinned.

    Nothing is forgotten but by `evict`, so that a stage finds in its second half what it found in its first.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._idle: dict[K, V] = {}  # the least recently used first
        self._pinned: dict[K, V] = {}
        self._reads: dict[K, object] = {}  # a token for each key that is being read

    def __contains__(self, key: K) -> bool:
        return key in self._idle or key in self._pinned

    def __len__(self) -> int:
        return len(self._idle) + len(self._pinned)

    def get(self, key: K) -> V | None:
        """The entry, if it is remembered."""
        found = self._pinned.get(key)
        return self._idle.get(key) if found is None else found

    def put(self, key: K, value: V) -> None:
        """Remember an entry, the most recently used from now on."""
        if key in self._pinned:
            self._pinned[key] = value
        else:
            self._idle.pop(key, None)
            self._idle[key] = value

    def pin(self, key: K, value: V) -> None:
        """A group changes the entry: keep it until `unpin`."""
        self._idle.pop(key, None)
        self._pinned[key] = value

    def unpin(self, key: K) -> None:
        """The store knows the entry now, or can say what became of it."""
        if key in self._pinned:
            self._idle[key] = self._pinned.pop(key)

    def unpin_all(self, except_for: Container[K] = ()) -> None:
        """The group is durable, or has failed: unpin what it changed."""
        for key in [key for key in self._pinned if key not in except_for]:
            self.unpin(key)

    def pop(self, key: K) -> None:
        """Forget the entry, and what is being read of it: the store says something else from now on."""
        self._idle.pop(key, None)
        self._pinned.pop(key, None)
        self._reads.pop(key, None)

    def evict(self, keep: K | None = None) -> list[K]:
        """Forget the least recently used beyond the limit, but for the one to keep; which. Not called from a stage."""
        evicted = []
        for key in list(islice(self._idle, max(0, len(self._idle) - self._entries_max))):
            # While a key is being read its entry must not go: what was read may be older, and would stand in for it.
            if key != keep and key not in self._reads:
                del self._idle[key]
                evicted.append(key)
        return evicted

    async def load(self, key: K, read: Callable[[], Awaitable[V]]) -> None:
        """Read the entry unless it is remembered. What was remembered meanwhile is newer, and stays."""
        while key not in self:
            token = self._reads.setdefault(key, object())
            try:
                value = await read()
                if self._reads.get(key) is token and key not in self:
                    self.put(key, value)
            finally:
                if self._reads.get(key) is token:
                    del self._reads[key]
