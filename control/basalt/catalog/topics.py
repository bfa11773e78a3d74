"""Topics: created, updated, deleted, and created again as a new generation. Stored by `basalt_engine.metadata`.

This server is the only one that changes topics, so what it has read once it may keep in memory; the check-and-write
guards against a second server all the same.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import islice
from typing import NamedTuple
from weakref import WeakValueDictionary

from basalt.api.markers.marker import TASKS_MAX
from basalt.errors import (
    BasaltError,
    ConflictError,
    CorruptionError,
    GenerationError,
    InvalidNameError,
    InvalidPropertyError,
    TopicExistsError,
    TopicNotFoundError,
)
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.keys import GENERATION_MAX, NAME_CHARS_MAX, NAME_PATTERN, TopicKeys, topic_prefix
from basalt_engine.metadata import MetadataTable, TopicMetadata
from basalt_engine.records import Compression
from basalt_engine.retention import OnInvalid
from basalt_engine.table import Store

PAGE_TOPICS = 200  # read and decoded without a pause: some milliseconds
TTL_SECONDS_DEFAULT = 604_800  # seven days
TTL_SECONDS_MAX = 3_155_760_000  # a hundred years; in milliseconds it stays far from 2^63
PROPERTIES_MAX = 64  # a topic's row stays small: it is read by every region server
PROPERTY_CHARS_MAX = 4_096
_DIGITS = re.compile(r"[0-9]{1,10}")
_PROPERTY_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")


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
        return int(tasks) if _DIGITS.fullmatch(tasks) else None

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


class Settled(NamedTuple):
    """Properties, checked."""

    ttl_ms: int
    spread: int
    on_invalid: OnInvalid
    others: dict[str, str]


def settle(properties: Mapping[str, object], buckets: int, generation: int | None) -> Settled:
    """Check the properties that a user gave; absent ones get their defaults.

    `generation` is read-only: it may be given back as it is now (so that a topic's properties can be read, changed and
    put back), but not be set.
    """
    if len(properties) > PROPERTIES_MAX:
        raise InvalidPropertyError(f"{len(properties)} properties are given, the limit is {PROPERTIES_MAX}")
    others = {name: _text(name, value) for name, value in properties.items()}
    given = others.pop("generation", None)
    if given is not None and (generation is None or given != str(generation)):
        raise InvalidPropertyError(
            f"property generation is read-only, and {given!r} is not the present one",
            field="generation",
            hint="leave it out; deleting and creating the topic raises it",
        )
    ttl = _integer("ttl", others.pop("ttl", str(TTL_SECONDS_DEFAULT)), 1, TTL_SECONDS_MAX)
    spread = _integer("spread", others.pop("spread", "1"), 1, buckets)
    on_invalid = _choice("onInvalid", others.pop("onInvalid", "drop"), ("drop", "retain"))
    if "compression" in others:
        _choice("compression", others["compression"], ("none", "zstd"))
    if "tasks" in others:
        _integer("tasks", others["tasks"], 1, TASKS_MAX)
    return Settled(ttl * 1_000, spread, OnInvalid(on_invalid), others)


def _text(name: str, value: object) -> str:
    if _PROPERTY_NAME.fullmatch(name) is None:
        raise InvalidPropertyError(
            f"{name[:40]!r} is not a property name", field=name[:40], hint="use 1 to 255 of A-Z a-z 0-9 _ . -"
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < 1 << 63 else _refuse(name, "a number beyond 64 bits")
    if not isinstance(value, str):
        return _refuse(name, f"a value of type {type(value).__name__}")
    if len(value) > PROPERTY_CHARS_MAX or any(ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 for char in value):
        return _refuse(name, "a text that is too long or has control characters")
    return value


def _refuse(name: str, what: str) -> str:
    raise InvalidPropertyError(
        f"property {name} has {what}", field=name, hint=f"give text of at most {PROPERTY_CHARS_MAX} characters"
    )


def _integer(name: str, text: str, least: int, most: int) -> int:
    if _DIGITS.fullmatch(text) is None or not least <= int(text) <= most:
        raise InvalidPropertyError(
            f"property {name} is {text[:40]!r}", field=name, hint=f"give a whole number from {least} to {most}"
        )
    return int(text)


def _choice(name: str, text: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise InvalidPropertyError(
            f"property {name} is {text[:40]!r}", field=name, hint=f"give one of {', '.join(allowed)}"
        )
    return text


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

    async def update(self, title: TopicName, properties: Mapping[str, object]) -> Topic:
        """Replace all properties; absent ones go back to their defaults. Messages stay where they are."""
        async with self._changing(title):
            old = (await self._read(title)).metadata
            settled = settle(properties, self.buckets, old.generation)
            new = old._replace(
                ttl_ms=settled.ttl_ms,
                on_invalid=settled.on_invalid,
                spread=settled.spread,
                spread_scanned=max(old.spread_scanned, settled.spread),
                updated_ms=self._clock.now_ms(),
                others=settled.others,
            )
            await self._replace(title, old, new)
            return self._remember(title, new)

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
        found: list[str] = []
        async for page in self.pages(namespace):
            found += [title.name for title, stored in page if stored.generation > 0]
        found.sort()  # they are in nearly this order, so it takes some milliseconds for 100,000
        return found


def title_of(prefix: bytes) -> TopicName:
    """The names in a topic prefix; `CorruptionError` when it is none."""
    names = prefix.decode("ascii", "replace").split(":")
    if len(names) != 3 or names[2] or not all(map(NAME_PATTERN.fullmatch, names[:2])):
        raise CorruptionError(f"{prefix.hex()} is no topic prefix")
    return TopicName(names[0], names[1])


def _exists(title: TopicName) -> TopicExistsError:
    return TopicExistsError(
        f"topic {title} exists already", field="topic", hint="update its properties, or delete it first"
    )


def _not_found(title: TopicName) -> TopicNotFoundError:
    return TopicNotFoundError(f"topic {title} does not exist", field="topic", hint="create it, or check the name")
