"""The part that topics and transactional tables share: names, generations, and how their rows in the metadata table change.

This server is the only one that changes them; the check-and-write guards against a second server all the same. A deleted
entry keeps its row, with a negative generation, so that no generation number is used twice. Format: docs/formats/metadata.md.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

from basalt.errors import BasaltError, BusyError, ConflictError, InvalidNameError
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.errors import StoreError
from basalt_engine.keys import GENERATION_MAX, NAME_CHARS_MAX, NAME_PATTERN
from basalt_engine.metadata import MetadataTable, TopicMetadata
from basalt_engine.stores.shards import shard_of
from basalt_engine.table import Store

PAGE_ENTRIES = 200  # read and decoded without a pause: some milliseconds
IN_DOUBT_MAX = 10_000  # entries whose change is in doubt, some 500 bytes each: with more, one is decided about before the next change
NOT_TRIED = (StoreError, BusyError)  # errors of a write that surely was not made


class EntryName(NamedTuple):
    """A namespace and a name in it."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}:{self.name}"


class Entry(Protocol):
    """One generation of a topic or a table."""

    @property
    def title(self) -> EntryName: ...

    @property
    def metadata(self) -> TopicMetadata: ...


NameT = TypeVar("NameT", bound=EntryName)
EntryT = TypeVar("EntryT", bound=Entry)


def check_name(text: str, field: str) -> str:
    """The name itself; `InvalidNameError` when it has characters or a length that names may not have."""
    if NAME_PATTERN.fullmatch(text) is None:
        shown = text if len(text) <= 40 else f"{text[:40]}… ({len(text)} characters)"
        raise InvalidNameError(
            f"{field} {shown!r} is not a name",
            field=field,
            hint=f"use 1 to {NAME_CHARS_MAX} of the characters A-Z a-z 0-9 _ - and ., not first a dot",
        )
    return text


class Catalog(ABC, Generic[NameT, EntryT]):
    """The entries of one kind in one store, as the store has them."""

    word: str  # for people: topic or table
    absent_error: type[BasaltError]
    exists_error: type[BasaltError]
    exists_hint: str

    def __init__(self, store: Store, clock: Clock, buckets: int) -> None:
        self._table = MetadataTable(store.table(MetadataTable.name))
        self._call = StoreCalls(store)
        self._clock = clock
        self.buckets = buckets
        self._locks: WeakValueDictionary[EntryName, asyncio.Lock] = WeakValueDictionary()
        # Entries of which nobody knows whether a change took effect, or still will: as they were before it.
        self._in_doubt: dict[EntryName, TopicMetadata] = {}

    def changing(self, title: NameT) -> asyncio.Lock:
        """Held while an entry is changed or read: a read that takes long must not bring back what was changed meanwhile."""
        lock = self._locks.get(title)
        if lock is None:
            lock = self._locks[title] = asyncio.Lock()
        return lock

    def forget_doubts(self, shards: Collection[int]) -> None:
        """These shards get another epoch: no region takes what is under way for their entries any more, so what is stored stays."""
        for title in [title for title in self._in_doubt if shard_of(self._prefix(title)) in shards]:
            del self._in_doubt[title]

    @abstractmethod
    def at(self, title: NameT, metadata: TopicMetadata) -> EntryT:
        """The entry that this metadata describes; a deleted one under its last generation."""

    @abstractmethod
    def _prefix(self, title: EntryName) -> bytes:
        """The key of its row."""

    @abstractmethod
    def _title_of(self, prefix: bytes) -> NameT:
        """The names in such a key."""

    @abstractmethod
    def _scan(self, start: bytes, namespace: str | None) -> Iterator[tuple[bytes, TopicMetadata]]:
        """The rows of this kind, from a key on."""

    def absent(self, title: NameT) -> BasaltError:
        """The error that there is no such entry."""
        return self.absent_error(
            f"{self.word} {title} does not exist", field=self.word, hint="create it, or check the name"
        )

    def _exists(self, title: NameT) -> BasaltError:
        return self.exists_error(f"{self.word} {title} exists already", field=self.word, hint=self.exists_hint)

    async def read(self, title: NameT) -> EntryT:
        """The entry; a `NotFoundError` when it does not exist or was deleted. It has no change in doubt afterwards."""
        metadata = await self._decided(title)
        if metadata is None or metadata.generation < 0:
            raise self.absent(title)
        return self.at(title, metadata)

    async def describe(self, title: NameT) -> TopicMetadata:
        """All that is stored of an entry, also of a deleted one; a `NotFoundError` when there never was one."""
        metadata = await self._call(self._table.get, self._prefix(title))
        if metadata is None:
            raise self.absent(title)
        return metadata

    async def require(self, title: NameT) -> None:
        """Raise a `NotFoundError` unless the entry is there, whoever owns it: the store is asked."""
        if (await self.describe(title)).generation < 0:
            raise self.absent(title)

    async def pages(
        self, namespace: str | None, after: EntryName | None = None
    ) -> AsyncIterator[list[tuple[NameT, TopicMetadata]]]:
        """All that is stored of each entry, deleted ones (negative generation) too: a page at a time, in the order of the store.

        `after`: only those behind it in that order, whether it is there or not.
        """
        start = b"" if after is None else self._prefix(after) + b"\0"
        while rows := await self._call(self._page, start, namespace):
            yield [(self._title_of(prefix), metadata) for prefix, metadata in rows]
            start = rows[-1][0] + b"\0"
            await asyncio.sleep(0)

    def _page(self, start: bytes, namespace: str | None) -> list[tuple[bytes, TopicMetadata]]:
        return list(islice(self._scan(start, namespace), PAGE_ENTRIES))

    async def namespaces(self) -> list[str]:
        """Namespaces in which an entry exists, sorted."""
        found: set[str] = set()
        async for page in self.pages(None):
            found.update(title.namespace for title, stored in page if stored.generation > 0)
        return sorted(found)

    async def list(self, namespace: str) -> list[str]:
        """Names in a namespace, sorted."""
        check_name(namespace, "namespace")
        found: list[str] = []
        async for page in self.pages(namespace):
            found += [title.name for title, stored in page if stored.generation > 0]
        found.sort()  # they are in nearly this order, so it takes some milliseconds for 100,000
        return found

    async def _create(self, title: NameT, describe: Callable[[int, int], TopicMetadata]) -> EntryT:
        """A new entry, or a new generation of one that was deleted, as `describe` says of generation and time."""
        old, new = await self._planned(title, describe)
        if not await self._call.long(self._table.replace, self._prefix(title), old, new):
            raise self._exists(title)
        return self.at(title, new)

    async def _planned(
        self, title: NameT, describe: Callable[[int, int], TopicMetadata]
    ) -> tuple[TopicMetadata | None, TopicMetadata]:
        """The metadata of an entry that is not there: as stored now, and as it would be once it is created."""
        old = await self._decided(title)
        if old is not None and old.generation > 0:
            raise self._exists(title)
        generation = 1 if old is None else -old.generation + 1
        if generation > GENERATION_MAX:
            raise ConflictError(f"{self.word} {title} was created {GENERATION_MAX} times; choose another name")
        return old, describe(generation, self._clock.now_ms())

    async def _delete(self, entry: EntryT) -> None:
        generation = entry.metadata.generation
        await self._replace(entry, entry.metadata._replace(generation=-generation, updated_ms=self._clock.now_ms()))

    async def _replace(self, entry: EntryT, new: TopicMetadata) -> None:
        """Store new metadata; `ConflictError` when they are not what they were when the entry was read."""
        old = entry.metadata
        if entry.title in self._in_doubt:
            await self._decided(entry.title)
        while len(self._in_doubt) >= IN_DOUBT_MAX:
            await self._decided(next(iter(self._in_doubt)))
        try:
            replaced = await self._call.long(self._table.replace, self._prefix(entry.title), old, new)
        except NOT_TRIED:
            raise
        except BaseException:  # also who gave up waiting: the call goes on
            self._in_doubt[entry.title] = old
            raise
        if not replaced:
            raise ConflictError(
                f"{self.word} {entry.title} was changed by another call at the same time",
                hint="read it again, then repeat the call",
            )

    async def _decided(self, title: EntryName) -> TopicMetadata | None:
        """Read what is stored of an entry, and stays so until the next change. A change in doubt has taken effect, or never will.

        It compares the row with what was there before. Where that is still there, the row is written again as it is, but for its time: then
        the change finds another row whenever it comes. Without it, this server would go on with an entry that is deleted a moment later.
        """
        prefix = self._prefix(title)
        while True:
            stored = await self._call(self._table.get, prefix)
            before = self._in_doubt.get(title)
            if before is None:
                return stored
            if stored == before:
                again = before._replace(updated_ms=max(before.updated_ms + 1, self._clock.now_ms()))
                if not await self._call.long(self._table.replace, prefix, before, again):
                    continue  # the change came meanwhile
                stored = again
            if self._in_doubt.get(title) is before:
                del self._in_doubt[title]
            return stored
