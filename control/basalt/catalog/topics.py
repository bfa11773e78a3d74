"""Topics: created, updated, deleted, and created again as a new generation. Stored by `basalt_engine.metadata`.

This server is the only one that changes topics, so what it has read once it may keep in memory; the check-and-write
guards against a second server all the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple
from weakref import WeakValueDictionary

from basalt.catalog.topic_properties import DIGITS, settle
from basalt.errors import (
    BasaltError,
    ConflictError,
    CorruptionError,
    GenerationError,
    InvalidNameError,
    TopicChangedError,
    TopicExistsError,
    TopicNotFoundError,
)
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.keys import GENERATION_MAX, NAME_CHARS_MAX, NAME_PATTERN, TopicKeys, topic_prefix
from basalt_engine.metadata import MetadataTable, TopicMetadata
from basalt_engine.records import Compression
from basalt_engine.table import Store


class TopicName(NamedTuple):
    """A namespace and a topic's name in it; make it with `topic_name`, which checks both."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}:{self.name}"


def check_name(text: str, field: str) -> str:
    """The name itself; `InvalidNameError` when it has characters or a length that names may not have."""
    if NAME_PATTERN.fullmatch(text) is None:
        shown = text if len(text) <= 40 else f"{text[:40]}… ({len(text)} characters)"
        raise InvalidNameError(
            f"{field} {shown!r} is not a name",
            field=field,
            hint=f"use 1 to {NAME_CHARS_MAX} of the characters A-Z a-z 0-9 _ -",
        )
    return text


def topic_name(namespace: str, name: str) -> TopicName:
    """The checked pair."""
    return TopicName(check_name(namespace, "namespace"), check_name(name, "topic"))


class Topic(NamedTuple):
    """One generation of a topic, as the services use it."""

    title: TopicName
    metadata: TopicMetadata
    keys: TopicKeys  # under which new rows are written
    read_keys: TopicKeys  # under which rows may lie: the widest spread this generation ever had

    @property
    def namespace(self) -> str:
        return self.title.namespace

    @property
    def name(self) -> str:
        return self.title.name

    @property
    def generation(self) -> int:
        return self.metadata.generation

    @property
    def ttl_ms(self) -> int:
        return self.metadata.ttl_ms

    @property
    def truncated_before_ms(self) -> int:
        """What was published before is out of reach for ever; 0 where nothing was truncated."""
        return self.metadata.truncated_before_ms

    def oldest_ms(self, now_ms: int) -> int:
        """What was published before is out of reach for every reader: its TTL is over, or the topic was truncated."""
        return max(now_ms - self.ttl_ms + 1, self.truncated_before_ms, 0)

    @property
    def tasks(self) -> int | None:
        """How many tasks give markers here; None where their markers say."""
        tasks = self.metadata.others.get("tasks", "")
        return int(tasks) if DIGITS.fullmatch(tasks) else None

    @property
    def compression(self) -> Compression:
        return Compression.ZSTD if self.metadata.others.get("compression") == "zstd" else Compression.NONE

    def of_generation(self, generation: int | None) -> Topic:
        """The topic itself; `GenerationError` when it is of another generation than the one given."""
        if generation is not None and generation != self.generation:
            raise GenerationError(
                f"topic {self.title} is of generation {self.generation}, not {generation}",
                field="generation",
                hint="It was deleted and created again: what is known of the former one means nothing here.",
            )
        return self

    @property
    def properties(self) -> dict[str, str]:
        """What a user sees: every value as text, defaults included."""
        stored = self.metadata
        return {
            **stored.others,
            "ttl": str(stored.ttl_ms // 1_000),
            "spread": str(stored.spread),
            "onInvalid": stored.on_invalid.value,
            "generation": str(stored.generation),
        }

    @property
    def version(self) -> str:
        """A fingerprint of the properties: 16 hex digits that change when one of them does."""
        return hashlib.sha256(json.dumps(self.properties, sort_keys=True).encode()).hexdigest()[:16]


class Topics:
    """The topics of one store."""

    def __init__(self, store: Store, clock: Clock, buckets: int) -> None:
        self._table = MetadataTable(store.table(MetadataTable.name))
        self._call = StoreCalls(store)
        self._clock = clock
        self.buckets = buckets
        self._known: dict[TopicName, Topic] = {}
        self._locks: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        self.when_deleted: list[Callable[[Topic], None]] = []

    async def create(self, title: TopicName, properties: Mapping[str, object]) -> Topic:
        """A new topic, or a new generation of one that was deleted; `TopicExistsError` when it is there."""
        prefix = topic_prefix(*title)
        async with self._changing(title):
            old = await self._call(self._table.get, prefix)
            if old is not None and old.generation > 0:
                raise _exists(title)
            generation = 1 if old is None else -old.generation + 1
            if generation > GENERATION_MAX:
                raise ConflictError(f"topic {title} was created {GENERATION_MAX} times; choose another name")
            settled = settle(properties, self.buckets, None)
            now_ms = self._clock.now_ms()
            new = TopicMetadata(
                generation,
                settled.ttl_ms,
                settled.on_invalid,
                settled.spread,
                settled.spread,
                now_ms,
                now_ms,
                settled.others,
            )
            if not await self._call(self._table.replace, prefix, old, new):
                raise _exists(title)
            return self._remember(title, new)

    async def update(
        self, title: TopicName, properties: Mapping[str, object], versions: Collection[str] | None = None
    ) -> Topic:
        """Replace all properties; absent ones go back to their defaults. Messages stay where they are.

        `TopicChangedError`: the present version is none of those given.
        """
        async with self._changing(title):
            return await self._update(await self._read(title), properties, versions)

    async def merge(
        self, title: TopicName, changes: Mapping[str, object], versions: Collection[str] | None = None
    ) -> Topic:
        """Change these properties and leave the others; None puts one back to its default. Refuses as `update` does."""
        async with self._changing(title):
            topic = await self._read(title)
            merged = {**topic.properties, **changes}
            removed = {name for name, value in changes.items() if value is None} - {"generation"}
            return await self._update(topic, {name: merged[name] for name in merged.keys() - removed}, versions)

    async def _update(self, topic: Topic, properties: Mapping[str, object], versions: Collection[str] | None) -> Topic:
        if versions is not None and topic.version not in versions:
            raise _changed(topic)
        old = topic.metadata
        settled = settle(properties, self.buckets, old.generation)
        new = old._replace(
            ttl_ms=settled.ttl_ms,
            on_invalid=settled.on_invalid,
            spread=settled.spread,
            spread_scanned=max(old.spread_scanned, settled.spread),
            updated_ms=self._clock.now_ms(),
            others=settled.others,
        )
        await self._replace(topic.title, old, new)
        return self._remember(topic.title, new)

    async def truncate(self, title: TopicName, before_ms: int, generation: int | None = None) -> Topic:
        """Put what was published before this time out of reach, durably; an earlier time than the last one changes nothing.

        `GenerationError`: it is of another generation than the one given.
        """
        async with self._changing(title):
            topic = (await self._read(title)).of_generation(generation)
            old = topic.metadata
            if before_ms <= old.truncated_before_ms:
                return topic
            new = old._replace(truncated_before_ms=before_ms, updated_ms=self._clock.now_ms())
            await self._replace(title, old, new)
            return self._remember(title, new)

    async def get(self, title: TopicName) -> Topic:
        """The topic; `TopicNotFoundError` when it does not exist or was deleted."""
        known = self._known.get(title)
        if known is not None:
            return known
        async with self._changing(title):
            return await self._read(title)

    def known(self, title: TopicName) -> Topic:
        """The same at once, for the moment at which its rows are written. Reads only what this process has not met yet."""
        known = self._known.get(title)
        return self._found(title, self._table.get(topic_prefix(*title))) if known is None else known

    def lives(self, topic: Topic) -> bool:
        """In a stage: whether this generation is the present one. It may have ended since the topic was looked up."""
        try:
            return self.known(topic.title).generation == topic.generation
        except TopicNotFoundError:
            return False

    async def _read(self, title: TopicName) -> Topic:
        known = self._known.get(title)
        return known or self._found(title, await self._call(self._table.get, topic_prefix(*title)))

    def _found(self, title: TopicName, metadata: TopicMetadata | None) -> Topic:
        if metadata is None or metadata.generation < 0:
            raise _not_found(title)
        return self._remember(title, metadata)

    async def delete(self, title: TopicName) -> Topic:
        """Delete the topic. Its rows are out of reach at once, and are removed by retention later."""
        async with self._changing(title):
            topic = await self._read(title)
            old = topic.metadata
            new = old._replace(generation=-old.generation, updated_ms=self._clock.now_ms())
            await self._replace(title, old, new)
            self._known.pop(title, None)
        for call in self.when_deleted:
            call(topic)
        return topic

    def _changing(self, title: TopicName) -> asyncio.Lock:
        """Held while a topic is changed or read: a read that takes long must not bring back what was changed meanwhile."""
        lock = self._locks.get(title)
        if lock is None:
            lock = self._locks[title] = asyncio.Lock()
        return lock

    async def namespaces(self) -> list[str]:
        """Namespaces in which a topic exists, sorted."""
        everything = await self.describe_all(None)
        return sorted({title.namespace for title, stored in everything if stored.generation > 0})

    async def describe_all(self, namespace: str | None) -> list[tuple[TopicName, TopicMetadata]]:
        """All that is stored of each topic, deleted ones (negative generation) too."""
        rows = await self._call(lambda: list(self._table.scan(namespace=namespace)))
        return [(title_of(prefix), metadata) for prefix, metadata in rows]

    async def describe(self, title: TopicName) -> TopicMetadata:
        """All that is stored of a topic, also of a deleted one; `TopicNotFoundError` when there never was one."""
        metadata = await self._call(self._table.get, topic_prefix(*title))
        if metadata is None:
            raise _not_found(title)
        return metadata

    def at(self, title: TopicName, metadata: TopicMetadata) -> Topic:
        """The topic that this metadata describes; a deleted one under its last generation."""
        prefix, generation = topic_prefix(*title), abs(metadata.generation)
        keys = TopicKeys(prefix, generation, self.buckets, metadata.spread)
        return Topic(title, metadata, keys, keys._replace(spread=metadata.spread_scanned))

    def _remember(self, title: TopicName, metadata: TopicMetadata) -> Topic:
        topic = self._known[title] = self.at(title, metadata)
        return topic

    async def _replace(self, title: TopicName, old: TopicMetadata, new: TopicMetadata) -> None:
        try:
            replaced = await self._call(self._table.replace, topic_prefix(*title), old, new)
        except BasaltError:  # it may have taken effect
            self._known.pop(title, None)
            raise
        if not replaced:
            self._known.pop(title, None)
            raise ConflictError(
                f"topic {title} was changed by another call at the same time",
                hint="read it again, then repeat the call",
            )

    async def list(self, namespace: str) -> list[str]:
        """Names of the topics in a namespace, sorted."""
        check_name(namespace, "namespace")
        return sorted(title.name for title, stored in await self.describe_all(namespace) if stored.generation > 0)


def title_of(prefix: bytes) -> TopicName:
    """The names in a topic prefix; `CorruptionError` when it is none."""
    names = prefix.decode("ascii", "replace").split(":")
    if len(names) != 3 or names[2] or not all(map(NAME_PATTERN.fullmatch, names[:2])):
        raise CorruptionError(f"{prefix.hex()} is no topic prefix")
    return TopicName(names[0], names[1])


def _changed(topic: Topic) -> TopicChangedError:
    return TopicChangedError(
        f'the properties of topic {topic.title} were changed: their version is "{topic.version}" now',
        field="If-Match",
        hint="Read the topic again, and decide anew.",
    )


def _exists(title: TopicName) -> TopicExistsError:
    return TopicExistsError(
        f"topic {title} exists already", field="topic", hint="update its properties, or delete it first"
    )


def _not_found(title: TopicName) -> TopicNotFoundError:
    return TopicNotFoundError(f"topic {title} does not exist", field="topic", hint="create it, or check the name")
