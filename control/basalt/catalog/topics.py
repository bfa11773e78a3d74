"""Topics: created, updated, deleted, and created again as a new generation. Stored by `basalt_engine.metadata`.

This server is the only one that changes topics; the check-and-write guards against a second server all the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Collection, Mapping
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from basalt.catalog.topic_properties import DIGITS, settle
from basalt.errors import (
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

PAGE_TOPICS = 200  # read and decoded without a pause: some milliseconds
TITLES_CACHED_MAX = 4_096  # prefixes whose names are at hand: a commit asks for those of its topics several times


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
    """The topics of one store, as it has them. Who uses topics opens their logs: `basalt.messaging.log.topic_logs`."""

    def __init__(self, store: Store, clock: Clock, buckets: int) -> None:
        self._table = MetadataTable(store.table(MetadataTable.name))
        self._call = StoreCalls(store)
        self._clock = clock
        self.buckets = buckets

    async def create(self, title: TopicName, properties: Mapping[str, object]) -> Topic:
        """A new topic, or a new generation of one that was deleted; `TopicExistsError` when it is there."""
        prefix = topic_prefix(*title)
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
        return self.at(title, new)

    async def read(self, title: TopicName) -> Topic:
        """The topic; `TopicNotFoundError` when it does not exist or was deleted."""
        metadata = await self._call(self._table.get, topic_prefix(*title))
        if metadata is None or metadata.generation < 0:
            raise topic_not_found(title)
        return self.at(title, metadata)

    async def update(
        self, topic: Topic, properties: Mapping[str, object], versions: Collection[str] | None = None
    ) -> Topic:
        """Replace all properties; absent ones go back to their defaults. Messages stay where they are.

        `TopicChangedError`: the present version is none of those given.
        """
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
        return await self._replace(topic, new)

    async def merge(
        self, topic: Topic, changes: Mapping[str, object], versions: Collection[str] | None = None
    ) -> Topic:
        """Change these properties and leave the others; None puts one back to its default. Refuses as `update` does."""
        merged = {**topic.properties, **changes}
        removed = {name for name, value in changes.items() if value is None} - {"generation"}
        return await self.update(topic, {name: merged[name] for name in merged.keys() - removed}, versions)

    async def truncate(self, topic: Topic, before_ms: int) -> Topic:
        """Put what was published before this time out of reach, durably; an earlier time than the last one changes nothing."""
        if before_ms <= topic.truncated_before_ms:
            return topic
        new = topic.metadata._replace(truncated_before_ms=before_ms, updated_ms=self._clock.now_ms())
        return await self._replace(topic, new)

    async def delete(self, topic: Topic) -> None:
        """Delete the topic: its generation counts as a past one."""
        new = topic.metadata._replace(generation=-topic.generation, updated_ms=self._clock.now_ms())
        await self._replace(topic, new)

    async def namespaces(self) -> list[str]:
        """Namespaces in which a topic exists, sorted."""
        found: set[str] = set()
        async for page in self.pages(None):
            found.update(title.namespace for title, stored in page if stored.generation > 0)
        return sorted(found)

    async def describe_all(self, namespace: str | None) -> list[tuple[TopicName, TopicMetadata]]:
        """All that is stored of each topic, deleted ones (negative generation) too."""
        return [each async for page in self.pages(namespace) for each in page]

    async def pages(self, namespace: str | None) -> AsyncIterator[list[tuple[TopicName, TopicMetadata]]]:
        """The same a page at a time, in the order of the store; others go in between."""
        start = b""
        while rows := await self._call(self._page, start, namespace):
            yield [(title_of(prefix), metadata) for prefix, metadata in rows]
            start = rows[-1][0] + b"\0"
            await asyncio.sleep(0)

    def _page(self, start: bytes, namespace: str | None) -> list[tuple[bytes, TopicMetadata]]:
        return list(islice(self._table.scan(start, namespace), PAGE_TOPICS))

    async def describe(self, title: TopicName) -> TopicMetadata:
        """All that is stored of a topic, also of a deleted one; `TopicNotFoundError` when there never was one."""
        metadata = await self._call(self._table.get, topic_prefix(*title))
        if metadata is None:
            raise topic_not_found(title)
        return metadata

    def at(self, title: TopicName, metadata: TopicMetadata) -> Topic:
        """The topic that this metadata describes; a deleted one under its last generation."""
        prefix, generation = topic_prefix(*title), abs(metadata.generation)
        keys = TopicKeys(prefix, generation, self.buckets, metadata.spread)
        return Topic(title, metadata, keys, keys._replace(spread=metadata.spread_scanned))

    async def _replace(self, topic: Topic, new: TopicMetadata) -> Topic:
        if not await self._call(self._table.replace, topic_prefix(*topic.title), topic.metadata, new):
            raise ConflictError(
                f"topic {topic.title} was changed by another call at the same time",
                hint="read it again, then repeat the call",
            )
        return self.at(topic.title, new)

    async def list(self, namespace: str) -> list[str]:
        """Names of the topics in a namespace, sorted."""
        check_name(namespace, "namespace")
        found: list[str] = []
        async for page in self.pages(namespace):
            found += [title.name for title, stored in page if stored.generation > 0]
        found.sort()  # they are in nearly this order, so it takes some milliseconds for 100,000
        return found


@lru_cache(maxsize=TITLES_CACHED_MAX)
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


def topic_not_found(title: TopicName) -> TopicNotFoundError:
    """The error that says so."""
    return TopicNotFoundError(f"topic {title} does not exist", field="topic", hint="create it, or check the name")
