"""Topics: created, updated, truncated, deleted, and created again as a new generation.

A property of a topic is declared in `basalt.api.topic_properties`, and has a field of its own in `basalt_engine.metadata` only where the
coprocessor needs it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from basalt.api.topic_properties import BY_NAME, GENERATION, LABEL, TopicProperty, unknown_property
from basalt.catalog.catalog import Catalog, EntryName, check_name
from basalt.errors import (
    CorruptionError,
    GenerationError,
    InputError,
    InvalidPropertyError,
    TopicChangedError,
    TopicExistsError,
    TopicNotFoundError,
)
from basalt_engine.clock import Clock
from basalt_engine.keys import NAME_PATTERN, TopicKeys, topic_prefix
from basalt_engine.metadata import TopicMetadata
from basalt_engine.records import Compression
from basalt_engine.retention import OnInvalid
from basalt_engine.table import Store

LABELS_MAX = 64  # properties of a user's own; its row stays small, for every region server reads it
PROPERTY_CHARS_MAX = 4_096
_DIGITS = re.compile(r"[0-9]{1,10}")
_PROPERTY_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_COMPRESSIONS: Mapping[str, Compression | None] = {"auto": None, "none": Compression.NONE, "zstd": Compression.ZSTD}
# For which counts of topics hold that were read: other servers create and delete topics, too. With 100,000 topics it is a second's reading.
COUNTS_MS_MAX = 30_000
TITLES_CACHED_MAX = 4_096  # prefixes whose names are at hand: a commit asks for those of its topics several times


class TopicName(EntryName):
    """A namespace and a topic's name in it; make it with `topic_name`, which checks both."""

    __slots__ = ()


TopicPages: TypeAlias = AsyncIterator[list[tuple[TopicName, TopicMetadata]]]


def topic_name(namespace: str, name: str) -> TopicName:
    """The checked pair."""
    return TopicName(check_name(namespace, "namespace"), check_name(name, "topic"))


class Topic(NamedTuple):
    """One generation of a topic, as the services use it."""

    title: TopicName
    metadata: TopicMetadata
    keys: TopicKeys  # under which new rows are written
    read_keys: TopicKeys  # under which rows may lie: the widest spread this generation ever had
    compression: Compression | None  # of new batches; None: what pays

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
    def tasks(self) -> int | None:
        """The number of tasks that give markers here; None where their markers say it."""
        tasks = self.metadata.others.get("tasks", "")
        return int(tasks) if _DIGITS.fullmatch(tasks) else None

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
        """The properties as a user sees them: every value as text, defaults included."""
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


class TopicCreators:
    """The number of topics that each principal has created and that are there, once somebody asks: all of them are read then.

    What this server creates and deletes counts at once, what others do when all are read again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: Counter[str] | None = None
        self._counted_ms = 0.0
        self._counting = asyncio.Lock()
        self._changed: dict[TopicName, str | None] | None = None  # while they are read: who created one; None: deleted
        self._doubts = 0  # changes of which nobody knows whether they took effect

    async def count(self, principal: str, pages: Callable[[], TopicPages]) -> int:
        """The number of a principal's topics; `pages` reads all there are."""
        async with self._counting:
            counts = self._counts
            if counts is None or self._clock.monotonic_ms() - self._counted_ms >= COUNTS_MS_MAX:
                counts = await self._read(pages())
        return counts[principal]

    async def _read(self, pages: TopicPages) -> Counter[str]:
        changed: dict[TopicName, str | None] = {}
        found: dict[TopicName, str | None] = {}
        self._changed, doubts, began_ms = changed, self._doubts, self._clock.monotonic_ms()
        try:
            async for page in pages:
                found.update((title, stored.created_by) for title, stored in page if stored.generation > 0)
        finally:
            self._changed = None
        counts = Counter(who for who in (found | changed).values() if who is not None)
        if doubts == self._doubts:
            self._counts, self._counted_ms = counts, began_ms
        return counts

    def note(self, title: TopicName, before: str | None, after: str | None) -> None:
        """A topic is there whose creator is `after`, in place of one of `before`; None: none is."""
        if self._changed is not None:
            self._changed[title] = after
        if self._counts is not None:
            self._counts.update({who: number for who, number in ((before, -1), (after, 1)) if who is not None})

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Read all topics anew, when somebody asks, where it is unknown whether this change took effect."""
        try:
            yield
        except InputError:
            raise  # nothing was changed
        except BaseException:
            self._counts, self._doubts = None, self._doubts + 1
            raise


class Topics(Catalog[TopicName, Topic]):
    """The topics of one store, as it has them.

    Services open a topic's log to use it: `basalt.messaging.log.topic_logs`.
    """

    word = "topic"
    absent_error, exists_error = TopicNotFoundError, TopicExistsError
    exists_hint = "update its properties, or delete it first"

    def __init__(self, store: Store, clock: Clock, buckets: int) -> None:
        super().__init__(store, clock, buckets)
        self._creators = TopicCreators(clock)

    async def create(self, title: TopicName, properties: Mapping[str, object], created_by: str = "") -> Topic:
        """A new topic, or a new generation of one that was deleted; `TopicExistsError` when it is there."""
        with self._creators.changing():
            topic = await self._create(title, self._describe(properties, created_by))
            self._creators.note(title, None, created_by)
        return topic

    async def would_create(self, title: TopicName, properties: Mapping[str, object]) -> Topic:
        """The topic that `create` would make. Refuses as that does."""
        _, new = await self._planned(title, self._describe(properties, ""))
        return self.at(title, new)

    def _describe(self, properties: Mapping[str, object], created_by: str) -> Callable[[int, int], TopicMetadata]:
        def describe(generation: int, now_ms: int) -> TopicMetadata:
            ttl_ms, spread, on_invalid, others = check_properties(properties, self.buckets, None)
            return TopicMetadata(
                generation, ttl_ms, on_invalid, spread, spread, now_ms, now_ms, others, created_by=created_by
            )

        return describe

    async def created_by(self, principal: str) -> int:
        """The number of topics that a principal has created and that are there: what other servers change counts within `COUNTS_MS_MAX`."""
        return await self._creators.count(principal, lambda: self.pages(None))

    async def update(
        self, topic: Topic, properties: Mapping[str, object], versions: Collection[str] | None = None
    ) -> Topic:
        """Replace all properties; absent ones go back to their defaults. Messages stay where they are.

        `TopicChangedError`: the present version is none of those given.
        """
        return await self._change(topic, self.changed(topic, properties, versions).metadata)

    def changed(self, topic: Topic, properties: Mapping[str, object], versions: Collection[str] | None = None) -> Topic:
        """The topic that `update` would make of it. Refuses as that does."""
        if versions is not None and topic.version not in versions:
            raise _changed(topic)
        old = topic.metadata
        settled = check_properties(properties, self.buckets, old.generation)
        new = old._replace(
            ttl_ms=settled.ttl_ms,
            on_invalid=settled.on_invalid,
            spread=settled.spread,
            spread_scanned=max(old.spread_scanned, settled.spread),
            updated_ms=self._clock.now_ms(),
            others=settled.others,
        )
        return self.at(topic.title, new)

    async def truncate(self, topic: Topic, before_ms: int) -> Topic:
        """Put what was published before this time out of reach, durably; an earlier time than the last one changes nothing."""
        if before_ms <= topic.metadata.truncated_before_ms:
            return topic
        new = topic.metadata._replace(truncated_before_ms=before_ms, updated_ms=self._clock.now_ms())
        return await self._change(topic, new)

    async def delete(self, topic: Topic) -> None:
        """Delete the topic: its generation counts as a past one."""
        with self._creators.changing():
            await self._delete(topic)
            self._creators.note(topic.title, topic.metadata.created_by, None)

    def at(self, title: TopicName, metadata: TopicMetadata) -> Topic:
        """The topic that this metadata describes; a deleted one under its last generation."""
        prefix, generation = topic_prefix(*title), abs(metadata.generation)
        keys = TopicKeys(prefix, generation, self.buckets, metadata.spread)
        scanned = metadata.spread_scanned
        read_keys = keys if scanned == metadata.spread else keys._replace(spread=scanned)
        compression = _COMPRESSIONS.get(metadata.others.get("compression", "auto"))
        return Topic(title, metadata, keys, read_keys, compression)

    async def _change(self, topic: Topic, new: TopicMetadata) -> Topic:
        await self._replace(topic, new)
        return self.at(topic.title, new)

    def _prefix(self, title: EntryName) -> bytes:
        return topic_prefix(*title)

    def _title_of(self, prefix: bytes) -> TopicName:
        return title_of(prefix)

    def _scan(self, start: bytes, namespace: str | None) -> Iterator[tuple[bytes, TopicMetadata]]:
        return self._table.scan(start, namespace)


@lru_cache(maxsize=TITLES_CACHED_MAX)
def title_of(prefix: bytes) -> TopicName:
    """The names in a topic prefix; `CorruptionError` when it is none."""
    names = prefix.decode("ascii", "replace").split(":")
    if len(names) != 3 or names[2] or not all(map(NAME_PATTERN.fullmatch, names[:2])):
        raise CorruptionError(f"{prefix.hex()} is no topic prefix")
    return TopicName(names[0], names[1])


def merged_properties(topic: Topic, changes: Mapping[str, object]) -> dict[str, object]:
    """The properties that a topic would have with these changed and the others left; None puts one back to its default."""
    for name in changes.keys() - BY_NAME.keys() - topic.properties.keys():
        _text(name, "")  # also what is to be taken away must be a name
    merged = {**topic.properties, **changes}
    removed = {name for name, value in changes.items() if value is None} - {"generation"}
    return {name: merged[name] for name in merged.keys() - removed}


def _changed(topic: Topic) -> TopicChangedError:
    return TopicChangedError(
        f'the properties of topic {topic.title} were changed: their version is "{topic.version}" now',
        field="If-Match",
        hint="Read the topic again, and decide anew.",
    )


# Properties as a user gives them: which there are, what they may be, and their defaults.


class CheckedProperties(NamedTuple):
    ttl_ms: int
    spread: int
    on_invalid: OnInvalid
    others: dict[str, str]


def check_properties(properties: Mapping[str, object], buckets: int, generation: int | None) -> CheckedProperties:
    """Check the properties that a user gave; absent ones get their defaults. Which there are: `basalt.api.topic_properties`.

    `generation` is read-only, and is the present one, or None for a new topic. An update may give it back as it is now
    (so that a topic's properties can be read, changed and put back); a new topic takes no notice of it, for it comes
    with the properties that were read from another one.
    """
    count = len(properties.keys() - BY_NAME.keys() - {GENERATION})
    if count > LABELS_MAX:
        raise InvalidPropertyError(f"{count} properties of its own are given, the limit is {LABELS_MAX}")
    texts = {name: _text(name, value) for name, value in properties.items()}
    given = texts.pop(GENERATION, None)
    if given is not None and generation is not None and given != str(generation):
        raise InvalidPropertyError(
            f"property generation is read-only, and {given!r} is not the present one",
            field=GENERATION,
            hint="leave it out; deleting and creating the topic raises it",
        )
    others = {name: text if name.startswith(LABEL) else _known(name).read(text) for name, text in texts.items()}
    ttl, spread, on_invalid = (others.pop(name, BY_NAME[name].default or "") for name in ("ttl", "spread", "onInvalid"))
    if int(spread) > buckets:
        raise InvalidPropertyError(
            f"property spread is {spread!r}",
            field="spread",
            hint=f"this store has {buckets} buckets, give at most that",
        )
    return CheckedProperties(int(ttl) * 1_000, int(spread), OnInvalid(on_invalid), others)


def _known(name: str) -> TopicProperty:
    found = BY_NAME.get(name)
    if found is None:
        raise unknown_property(name)
    return found


def _text(name: str, value: object) -> str:
    if _PROPERTY_NAME.fullmatch(name) is None or name == LABEL:
        raise InvalidPropertyError(
            f"{name[:40]!r} is not a property name", field=name[:40], hint="use 1 to 255 of A-Z a-z 0-9 _ . -"
        )
    if not name.startswith(LABEL) and name != GENERATION:
        _known(name)
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
