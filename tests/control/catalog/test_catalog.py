"""Topics: created once, updated, deleted, created again as another generation; and what their properties may be."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.api.topic_properties import TTL_SECONDS_MAX
from basalt.catalog.catalog import check_name
from basalt.catalog.topics import (
    COUNTS_MS_MAX,
    LABELS_MAX,
    PROPERTY_CHARS_MAX,
    Topic,
    TopicName,
    Topics,
    check_properties,
    title_of,
    topic_name,
)
from basalt.errors import (
    ConflictError,
    CorruptionError,
    InvalidNameError,
    InvalidPropertyError,
    TopicChangedError,
    TopicExistsError,
    TopicNotFoundError,
    UnknownOutcomeError,
)
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.runtime.group_commit import NotLoadedError
from basalt_engine.clock import ManualClock
from basalt_engine.keys import GENERATION_MAX, NAME_CHARS_MAX, NAME_PATTERN, topic_prefix
from basalt_engine.metadata import MetadataTable, TopicMetadata
from basalt_engine.records import Compression
from basalt_engine.retention import OnInvalid
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Columns, Put, Table
from tests.wiring import described

pytestmark = pytest.mark.anyio

A, B = topic_name("shop", "orders"), topic_name("shop", "invoices")
BUCKETS = 16


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def served(store: MemoryStore, clock: ManualClock) -> TopicLogs:
    """The topics of a server."""
    return TopicLogs(store, clock, Topics(store, clock, BUCKETS), tail_bytes_max=0)


class RemoteStore(MemoryStore):
    """Called on threads, so that calls really meet."""

    remote = True


@pytest.fixture(params=[MemoryStore, RemoteStore])
def store(request: pytest.FixtureRequest) -> MemoryStore:
    made: MemoryStore = request.param()
    return made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000)


@pytest.fixture
def topics(store: MemoryStore, clock: ManualClock) -> TopicLogs:
    return served(store, clock)


DEFAULTS = {"ttl": "604800", "spread": "1", "onInvalid": "drop", "generation": "1"}


# Life.


async def test_a_new_topic_has_the_defaults_and_the_first_generation(topics: TopicLogs) -> None:
    topic = await topics.create(A, {})
    assert (topic.namespace, topic.name, topic.generation, topic.metadata.ttl_ms) == ("shop", "orders", 1, 604_800_000)
    assert topic.properties == DEFAULTS
    assert (topic.metadata.created_ms, topic.metadata.updated_ms) == (1_000, 1_000)
    assert topic.keys == topic.read_keys == (b"shop:orders:", 1, BUCKETS, 1)
    assert topic.compression is None
    assert await topics.get(A) == topics.loaded(A).topic == topic


async def test_a_topic_is_created_once(topics: TopicLogs) -> None:
    await topics.create(A, {"ttl": "60"})
    with pytest.raises(TopicExistsError, match="shop:orders exists already"):
        await topics.create(A, {})
    assert (await topics.get(A)).metadata.ttl_ms == 60_000


async def test_of_twelve_that_create_the_same_topic_one_wins(topics: TopicLogs) -> None:
    outcomes = await asyncio.gather(
        *(topics.create(A, {"ttl": str(number)}) for number in range(1, 13)), return_exceptions=True
    )
    won = [outcome for outcome in outcomes if isinstance(outcome, Topic)]
    assert len(won) == 1
    assert [type(outcome) for outcome in outcomes if outcome is not won[0]] == [TopicExistsError] * 11
    assert await topics.get(A) == won[0]
    assert won[0].generation == 1


async def test_of_twelve_servers_that_create_the_same_topic_one_wins(store: MemoryStore, clock: ManualClock) -> None:
    servers = [served(store, clock) for _ in range(12)]
    outcomes = await asyncio.gather(
        *(server.create(A, {"ttl": str(number)}) for number, server in enumerate(servers, 1)), return_exceptions=True
    )
    won = [outcome for outcome in outcomes if isinstance(outcome, Topic)]
    assert len(won) == 1
    assert sum(isinstance(outcome, TopicExistsError) for outcome in outcomes) == 11
    assert [await server.get(A) for server in servers] == won * 12


async def test_of_twelve_that_delete_the_same_topic_one_wins(topics: TopicLogs) -> None:
    await topics.create(A, {})
    outcomes = await asyncio.gather(*(topics.delete(A) for _ in range(12)), return_exceptions=True)
    assert sum(isinstance(outcome, Topic) for outcome in outcomes) == 1
    assert all(isinstance(outcome, Topic | TopicNotFoundError | ConflictError) for outcome in outcomes)
    assert (await topics.create(A, {})).generation == 2


async def test_a_topic_that_is_created_again_is_the_next_generation(topics: TopicLogs, clock: ManualClock) -> None:
    for generation in (1, 2, 3):
        clock.advance(10)
        topic = await topics.create(A, {"ttl": str(generation)})
        assert topic.generation == topic.keys.generation == generation
        assert topic.properties["generation"] == str(generation)
        assert topic.metadata.created_ms == clock.now_ms()
        gone = await topics.delete(A)
        assert gone.generation == generation
        with pytest.raises(TopicNotFoundError):
            await topics.get(A)
        held = await topics.hold([A])
        with pytest.raises(TopicNotFoundError):
            topics.loaded(A)
        held()


async def test_a_restart_knows_every_generation_that_ever_was(store: MemoryStore, clock: ManualClock) -> None:
    topics = served(store, clock)
    await topics.create(A, {})
    await topics.delete(A)
    await topics.create(B, {"spread": "3", "label.note": "x"})
    again = served(store, clock)
    assert await again.get(B) == await topics.get(B)
    with pytest.raises(TopicNotFoundError):
        await again.get(A)
    assert (await again.create(A, {})).generation == 2


async def test_the_last_generation_that_there_is_cannot_be_followed(store: MemoryStore, topics: TopicLogs) -> None:
    last = TopicMetadata(-GENERATION_MAX, 1, OnInvalid.DROP, 1, 1, 0, 0, {})
    MetadataTable(store.table("metadata")).replace(topic_prefix(*A), None, last)
    with pytest.raises(ConflictError, match="choose another name"):
        await topics.create(A, {})


@pytest.mark.parametrize("call", ["get", "delete", "update"])
async def test_a_topic_that_does_not_exist_is_not_found(topics: TopicLogs, call: str) -> None:
    arguments: tuple[Any, ...] = (A, {}) if call == "update" else (A,)
    for _ in range(2):
        with pytest.raises(TopicNotFoundError, match="shop:orders does not exist"):
            await getattr(topics, call)(*arguments)
    held = await topics.hold([A])
    with pytest.raises(TopicNotFoundError):
        topics.loaded(A)
    held()


async def test_who_holds_the_log_of_a_topic_sees_it_end_once_the_topic_is_gone(topics: TopicLogs) -> None:
    await topics.create(A, {})
    log = await topics.open(A)
    waiter = log.waiter()
    await topics.delete(A)
    assert (log.ended, log.live) == (True, False)
    await waiter
    with pytest.raises(NotLoadedError):
        topics.loaded(A)
    with pytest.raises(TopicNotFoundError):
        await topics.open(A)


# Updates.


async def test_a_merge_changes_what_it_names_and_leaves_the_rest(topics: TopicLogs, clock: ManualClock) -> None:
    await topics.create(A, {"ttl": "60", "label.owner": "billing", "label.colour": "red"})
    clock.advance(5)
    topic = await topics.merge(A, {"onInvalid": "retain", "label.owner": None, "label.size": 5})
    assert topic.properties == {
        **DEFAULTS,
        "ttl": "60",
        "onInvalid": "retain",
        "label.colour": "red",
        "label.size": "5",
    }
    assert topic.metadata.updated_ms == 1_005
    assert (await topics.merge(A, {"ttl": None, "label.never": None})).metadata.ttl_ms == 604_800_000
    assert await topics.get(A) == topics.loaded(A).topic


async def test_a_merge_takes_the_present_generation_and_no_other(topics: TopicLogs) -> None:
    before = await topics.create(A, {"ttl": "60"})
    for bad in ("2", None):
        with pytest.raises(InvalidPropertyError):
            await topics.merge(A, {"ttl": "61", "generation": bad})
    assert await topics.get(A) == before
    assert (await topics.merge(A, {"ttl": "61", "generation": "1"})).metadata.ttl_ms == 61_000


async def test_of_twelve_that_merge_at_once_each_keeps_what_the_others_did(topics: TopicLogs) -> None:
    await topics.create(A, {})
    await asyncio.gather(*(topics.merge(A, {f"label.p{number}": number}) for number in range(12)))
    assert (await topics.get(A)).properties == {**DEFAULTS, **{f"label.p{number}": str(number) for number in range(12)}}


async def test_a_topic_full_of_properties_can_still_be_changed_and_given_back(topics: TopicLogs) -> None:
    full = {f"label.p{number}": "x" for number in range(LABELS_MAX)}
    topic = await topics.create(A, full)
    assert (await topics.merge(A, {"ttl": "60"})).metadata.ttl_ms == 60_000
    assert (await topics.update(A, topic.properties)).properties == topic.properties
    with pytest.raises(InvalidPropertyError, match="65 properties"):
        await topics.merge(A, {"label.one": "x"})


@pytest.mark.parametrize("change", ["update", "merge"])
async def test_a_change_of_another_version_is_refused_and_changes_nothing(topics: TopicLogs, change: str) -> None:
    read = await topics.create(A, {"ttl": "60"})
    mine = await getattr(topics, change)(A, {"ttl": "61"}, {read.version, "other"})
    assert mine.version != read.version
    with pytest.raises(TopicChangedError, match=mine.version):
        await getattr(topics, change)(A, {"ttl": "62"}, {read.version})
    assert await topics.get(A) == mine


async def test_of_twelve_that_have_read_the_same_version_one_changes_it(topics: TopicLogs) -> None:
    read = await topics.create(A, {})
    outcomes = await asyncio.gather(
        *(topics.merge(A, {"ttl": number}, {read.version}) for number in range(1, 13)), return_exceptions=True
    )
    assert sum(isinstance(outcome, TopicChangedError) for outcome in outcomes) == 11


async def test_a_version_is_that_of_the_properties_and_of_the_generation(topics: TopicLogs) -> None:
    first = await topics.create(A, {"label.owner": "billing"})
    assert (await topics.truncate(A, 900)).version == first.version
    assert (await topics.merge(A, {"label.owner": "x"})).version != first.version
    assert (await topics.merge(A, {"label.owner": "billing"})).version == first.version
    await topics.delete(A)
    assert (await topics.create(A, {"label.owner": "billing"})).version != first.version


async def test_an_update_replaces_all_properties_and_keeps_the_generation(
    topics: TopicLogs, clock: ManualClock
) -> None:
    await topics.create(A, {"ttl": "60", "label.note": "x"})
    clock.advance(5)
    topic = await topics.update(A, {"onInvalid": "retain", "compression": "zstd"})
    assert topic.properties == {**DEFAULTS, "onInvalid": "retain", "compression": "zstd"}
    assert (topic.metadata.created_ms, topic.metadata.updated_ms) == (1_000, 1_005)
    assert topic.compression is Compression.ZSTD
    assert await topics.get(A) == topic


class SlowTable:
    """The metadata table of a store far away: calls take their turn on threads, and one kind of them can be held up."""

    def __init__(self, inner: Table) -> None:
        self.inner = inner
        self.name = inner.name
        self.get_waits: threading.Event | None = None
        self.got = threading.Event()
        self.lost_answers = 0

    def get(self, key: bytes) -> Columns | None:
        found = self.inner.get(key)
        if self.get_waits is not None:
            self.got.set()
            assert self.get_waits.wait(60)
        return found

    def check_and_write(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        written = self.inner.check_and_write(key, column, expected, columns)
        if self.lost_answers:
            self.lost_answers -= 1
            raise UnknownOutcomeError("no answer")
        return written


@pytest.fixture
def far_away(clock: ManualClock) -> tuple[SlowTable, TopicLogs]:
    store = RemoteStore()
    slow = SlowTable(store.table("metadata"))
    table = store.table
    store.table = lambda name: slow if name == slow.name else table(name)  # type: ignore[assignment, method-assign, return-value]
    return slow, served(store, clock)


async def test_a_slow_read_does_not_bring_back_a_topic_that_was_deleted_meanwhile(far_away) -> None:
    slow, topics = far_away
    await topics.create(A, {})
    topics.memory.recent.clear()  # nobody holds it any more
    slow.get_waits = threading.Event()
    reading = asyncio.create_task(topics.get(A))
    assert await asyncio.to_thread(slow.got.wait, 60)
    deleting = asyncio.create_task(topics.delete(A))
    await asyncio.sleep(0.02)
    slow.get_waits.set()
    assert (await reading).generation == 1
    await deleting
    with pytest.raises(TopicNotFoundError):
        await topics.get(A)


async def test_a_change_whose_answer_was_lost_is_read_again(far_away) -> None:
    slow, topics = far_away
    await topics.create(A, {})
    slow.lost_answers = 1
    with pytest.raises(UnknownOutcomeError):
        await topics.update(A, {"ttl": "17"})
    assert (await topics.get(A)).metadata.ttl_ms == 17_000


async def test_what_is_shown_can_be_put_back(topics: TopicLogs) -> None:
    await topics.create(A, {"label.note": "x"})
    await topics.delete(A)
    shown = (await topics.create(A, {"ttl": "60", "label.note": "y"})).properties
    assert (await topics.update(A, shown)).properties == shown
    assert (await topics.update(A, {**shown, "ttl": "61"})).metadata.ttl_ms == 61_000


async def test_rows_stay_where_they_are_when_the_spread_shrinks(topics: TopicLogs) -> None:
    await topics.create(A, {"spread": "2"})
    await topics.update(A, {"spread": "7"})
    topic = await topics.update(A, {"spread": "3"})
    assert (topic.keys.spread, topic.read_keys.spread) == (3, 7)
    assert topic.properties["spread"] == "3"
    await topics.delete(A)
    again = await topics.create(A, {})
    assert (again.keys.spread, again.read_keys.spread) == (1, 1)


async def test_an_update_that_is_refused_changes_nothing(topics: TopicLogs) -> None:
    before = await topics.create(A, {"ttl": "60"})
    for bad in ({"ttl": "0"}, {"generation": "2"}, {"spread": "17"}):
        with pytest.raises(InvalidPropertyError):
            await topics.update(A, bad)
    assert await topics.get(A) == before


# Two servers over one store.


async def test_a_change_by_another_server_is_a_conflict_and_then_seen(store: MemoryStore, clock: ManualClock) -> None:
    mine, theirs = served(store, clock), served(store, clock)
    await mine.create(A, {})
    await mine.open(A)
    await theirs.update(A, {"ttl": "60"})
    with pytest.raises(ConflictError, match="changed by another call"):
        await mine.update(A, {"ttl": "70"})
    assert (await mine.get(A)).metadata.ttl_ms == 60_000
    assert (await mine.update(A, {"ttl": "70"})).metadata.ttl_ms == 70_000


@pytest.mark.parametrize("call", ["delete", "update"])
async def test_a_topic_that_another_server_created_again_is_not_changed_as_the_old_one(
    store: MemoryStore, clock: ManualClock, call: str
) -> None:
    mine, theirs = served(store, clock), served(store, clock)
    await mine.create(A, {})
    await mine.open(A)
    await theirs.delete(A)
    await theirs.create(A, {})
    with pytest.raises(ConflictError):
        await (mine.delete(A) if call == "delete" else mine.update(A, {"ttl": "5"}))
    assert await mine.get(A) == await theirs.get(A)
    assert (await mine.get(A)).properties == {**DEFAULTS, "generation": "2"}


# Lists.


async def test_lists_show_what_exists_and_descriptions_what_ever_did(topics: TopicLogs) -> None:
    titles = [topic_name(*names) for names in (("b", "z"), ("b", "a"), ("a-", "x"), ("a", "x"), ("gone", "x"))]
    for title in titles:
        await topics.create(title, {})
    await topics.delete(titles[-1])
    await topics.delete(titles[0])
    assert await topics.catalog.namespaces() == ["a", "a-", "b"]
    assert await topics.catalog.list("b") == ["a"]
    assert await topics.catalog.list("a") == ["x"]
    assert await topics.catalog.list("gone") == await topics.catalog.list("never") == []
    everything = {str(title): stored.generation for title, stored in await described(topics.catalog, None)}
    assert everything == {"a:x": 1, "a-:x": 1, "b:a": 1, "b:z": -1, "gone:x": -1}
    assert [str(title) for title, _ in await described(topics.catalog, "b")] == ["b:a", "b:z"]


async def test_a_topic_that_is_gone_is_described_under_its_last_generation(topics: TopicLogs) -> None:
    await topics.create(A, {})
    await topics.delete(A)
    ((title, stored),) = await described(topics.catalog, None)
    assert topics.catalog.at(title, stored).keys.generation == 1


async def test_a_list_of_what_is_no_namespace_is_refused(topics: TopicLogs) -> None:
    with pytest.raises(InvalidNameError):
        await topics.catalog.list("a:b")


async def test_a_row_of_no_topic_is_corrupt_and_named(store: MemoryStore, topics: TopicLogs) -> None:
    good = TopicMetadata(1, 1, OnInvalid.DROP, 1, 1, 0, 0, {}).encode()
    store.table("metadata").write([Put(b"\xffbad", {b"m": good})])
    with pytest.raises(CorruptionError, match=b"\xffbad".hex()):
        await described(topics.catalog, None)


# Names.


@settings(deadline=None)
@given(st.from_regex(NAME_PATTERN, fullmatch=True), st.from_regex(NAME_PATTERN, fullmatch=True))
def test_names_come_back_out_of_their_prefix(namespace: str, name: str) -> None:
    assert title_of(topic_prefix(*topic_name(namespace, name))) == (namespace, name)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        " ",
        "a b",
        "a:b",
        "a/b",
        ".",
        "..",
        ".a",
        "a\n",
        "a\0",
        "é",
        "٣",
        "\uff41",
        "a" * 256,
        "a" * 5_000,
        "\ud800",
        "a\u202e",
    ],
)
def test_what_is_no_name_is_refused_with_its_field_and_shortly(bad: str) -> None:
    for field, names in (("namespace", (bad, "a")), ("topic", ("a", bad))):
        with pytest.raises(InvalidNameError) as refused:
            topic_name(*names)
        assert refused.value.field == field
        assert len(str(refused.value)) < 200
    assert check_name("a" * NAME_CHARS_MAX, "owner") == "a" * NAME_CHARS_MAX


@pytest.mark.parametrize("name", ["shop.orders.v1", "a.", "a..b", "-.-", "0.1"])
def test_a_name_may_hold_dots_behind_its_first_character(name: str) -> None:
    assert topic_name(name, name) == (name, name)


async def test_a_dot_between_names_is_no_colon_between_them(topics: TopicLogs) -> None:
    names = [topic_name("a.b", "c"), topic_name("a", "b.c"), topic_name("a", "b")]
    for name in names:
        await topics.create(name, {"label.made": str(name)})
    for name in names:
        assert (await topics.catalog.read(name)).properties["label.made"] == str(name)
    assert await topics.catalog.list("a") == ["b", "b.c"]
    assert await topics.catalog.list("a.b") == ["c"]
    assert await topics.catalog.namespaces() == ["a", "a.b"]


async def test_names_are_checked_for_an_open_log_and_for_none(topics: TopicLogs) -> None:
    await topics.create(A, {})
    for _ in range(2):
        assert topics.title(*A) == A
        assert isinstance(topics.title(*A), TopicName)
        with pytest.raises(InvalidNameError, match="topic 'or:ders' is not a name"):
            topics.title("shop", "or:ders")
        await topics.open(A)


@pytest.mark.parametrize(
    "prefix", [b"", b"a", b"a:", b"a:b", b"a:b:c", b"a:b:c:", b":b:", b"a::", b"a b:c:", b"\xff:b:"]
)
def test_what_is_no_prefix_is_corrupt(prefix: bytes) -> None:
    with pytest.raises(CorruptionError, match="is no topic prefix"):
        title_of(prefix)


def test_a_title_is_shown_with_a_colon() -> None:
    assert str(TopicName("shop", "orders")) == "shop:orders"


# Properties.


@pytest.mark.parametrize(
    ("given_as", "ttl_ms"),
    [
        ("1", 1_000),
        (1, 1_000),
        ("1d", 86_400_000),
        ("forever", TTL_SECONDS_MAX * 1_000),
        ("0060", 60_000),
        (str(TTL_SECONDS_MAX), TTL_SECONDS_MAX * 1_000),
    ],
)
def test_a_ttl_is_a_whole_number_of_seconds(given_as: object, ttl_ms: int) -> None:
    assert check_properties({"ttl": given_as}, BUCKETS, None).ttl_ms == ttl_ms


NO_NUMBERS: list[object] = [
    "0", "-1", "+1", "٣", "\uff11", "1e3", "1.0", "", " ", " 5", "5 ", "5\n", "0x10", "1_000", "²", "nan", "inf", "None",
    "9" * 10, "9" * 5_000, "1" + "0" * 18, 0, -1, 10**12, 2**63, 2**64, -(2**63), 10**5_000, 1.0, 5.5, float("nan"),
    float("inf"), None, True, False, [], {}, ["5"], b"5",
]  # fmt: skip


@pytest.mark.parametrize("bad", NO_NUMBERS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", ["ttl", "spread"])
def test_a_number_that_is_none_is_refused_with_its_name(name: str, bad: object) -> None:
    with pytest.raises(InvalidPropertyError) as refused:
        check_properties({name: bad}, BUCKETS, None)
    assert refused.value.field == name
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(("name", "bad"), [("ttl", TTL_SECONDS_MAX + 1), ("spread", BUCKETS + 1)])
def test_a_number_beyond_its_bound_is_refused(name: str, bad: int) -> None:
    with pytest.raises(InvalidPropertyError, match=f"property {name} is '{bad}'"):
        check_properties({name: str(bad)}, BUCKETS, None)
    check_properties({name: bad - 1}, BUCKETS, None)


@pytest.mark.parametrize(
    ("properties", "field"),
    [
        ({"onInvalid": "Drop"}, "onInvalid"),
        ({"onInvalid": ""}, "onInvalid"),
        ({"onInvalid": True}, "onInvalid"),
        ({"compression": "gzip"}, "compression"),
        ({"compression": ""}, "compression"),
        ({"label.note": None}, "label.note"),
        ({"label.note": 1.5}, "label.note"),
        ({"label.note": []}, "label.note"),
        ({"label.note": b"x"}, "label.note"),
        ({"label.note": 2**63}, "label.note"),
        ({"label.note": "x" * (PROPERTY_CHARS_MAX + 1)}, "label.note"),
        ({"label.note": "a\nb"}, "label.note"),
        ({"label.note": "\0"}, "label.note"),
        ({"label.note": "\ud800"}, "label.note"),
        ({"": "x"}, ""),
        ({"a b": "x"}, "a b"),
        ({"é": "x"}, "é"),
        ({"n" * 256: "x"}, "n" * 40),
        ({f"label.p{number}": "" for number in range(LABELS_MAX + 1)}, None),
    ],
)
def test_a_property_that_is_none_is_refused_with_its_name(properties: Mapping[str, object], field: str | None) -> None:
    with pytest.raises(InvalidPropertyError) as refused:
        check_properties(properties, BUCKETS, None)
    assert refused.value.field == field
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("name", ["ttll", "TTL", "owner", "labels", "label."])
@pytest.mark.parametrize("generation", [None, 1])
def test_a_name_that_is_neither_known_nor_a_label_is_refused(name: str, generation: int | None) -> None:
    with pytest.raises(InvalidPropertyError) as refused:
        check_properties({name: "5"}, BUCKETS, generation)
    assert refused.value.field == name


async def test_an_unknown_name_cannot_be_taken_away_either(topics: TopicLogs) -> None:
    await topics.create(A, {})
    with pytest.raises(InvalidPropertyError, match="ttll is no property of topics; did you mean ttl"):
        await topics.merge(A, {"ttll": None})


def test_other_properties_are_kept_as_text() -> None:
    given_as = {"label.note": "Zoë\u202e", "label.limit": 5, "label.flag": True, "label.off": False, "label.empty": ""}
    given_as["label." + "n" * 249] = "x" * PROPERTY_CHARS_MAX
    settled = check_properties({**given_as, "ttl": 5, "onInvalid": "retain"}, BUCKETS, None)
    assert settled.others == {**given_as, "label.limit": "5", "label.flag": "true", "label.off": "false"}
    assert (settled.ttl_ms, settled.spread, settled.on_invalid) == (5_000, 1, OnInvalid.RETAIN)


@pytest.mark.parametrize("given_as", ["2", 2])
def test_the_present_generation_may_be_given_back(given_as: object) -> None:
    assert check_properties({"generation": given_as}, BUCKETS, 2).others == {}


@pytest.mark.parametrize("bad", ["1", "3", "-2", "02", "", "None", 1, None, True])
def test_no_other_generation_may_be_given(bad: object) -> None:
    with pytest.raises(InvalidPropertyError) as refused:
        check_properties({"generation": bad}, BUCKETS, 2)
    assert refused.value.field == "generation"


@pytest.mark.parametrize("given_as", ["1", "3", 7, "02", ""])
def test_a_new_topic_takes_no_notice_of_a_generation(given_as: object) -> None:
    assert check_properties({"generation": given_as, "label.owner": "billing"}, BUCKETS, None).others == {
        "label.owner": "billing"
    }


@pytest.mark.parametrize("bad", [None, ["1"], {}])
def test_a_generation_that_is_no_text_is_refused_of_a_new_topic_too(bad: object) -> None:
    with pytest.raises(InvalidPropertyError) as refused:
        check_properties({"generation": bad}, BUCKETS, None)
    assert refused.value.field == "generation"


async def test_no_change_of_a_topic_waits_for_the_disk_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync may take 300 ms, and a backup holds the lock for as long: others are served meanwhile."""
    topics = Topics(MemoryStore(), ManualClock(), BUCKETS)
    threads: list[int] = []
    replace = MetadataTable.replace

    def noted(table: MetadataTable, *given: Any) -> bool:
        threads.append(threading.get_ident())
        return replace(table, *given)

    monkeypatch.setattr(MetadataTable, "replace", noted)
    topic = await topics.create(A, {})
    topic = await topics.update(topic, {"ttl": "60"})
    await topics.delete(topic)
    assert len(threads) == 3
    assert threading.get_ident() not in threads


# Who created topics.


async def test_topics_are_counted_by_who_created_them_and_are_there(store: MemoryStore, clock: ManualClock) -> None:
    topics = served(store, clock)
    await topics.create(A, {}, "token:etl")
    await topics.create(B, {}, "token:etl")
    assert await topics.catalog.created_by("token:etl") == 2
    await topics.update(A, {"ttl": "60"})
    await topics.truncate(B, 5)
    assert await topics.catalog.created_by("token:etl") == 2
    await topics.delete(A)
    assert await topics.catalog.created_by("token:etl") == 1
    await topics.create(A, {}, "jwt:alice")
    for catalog in (topics.catalog, served(store, clock).catalog):  # the latter is a server that was started anew
        counts = [await catalog.created_by(who) for who in ("token:etl", "jwt:alice", "token:other", "")]
        assert counts == [1, 1, 0, 0]


async def test_a_refused_change_counts_nothing(store: MemoryStore, clock: ManualClock) -> None:
    topics = served(store, clock)
    await topics.create(A, {}, "token:etl")
    assert await topics.catalog.created_by("token:etl") == 1
    with pytest.raises(TopicExistsError):
        await topics.create(A, {}, "token:etl")
    with pytest.raises(InvalidPropertyError):
        await topics.create(B, {"ttl": "never"}, "token:etl")
    assert await topics.catalog.created_by("token:etl") == 1


async def test_topics_that_change_while_all_are_read_are_counted_as_they_are_then(
    store: MemoryStore, clock: ManualClock
) -> None:
    topics = served(store, clock)
    for number in range(3):
        await topics.create(topic_name("shop", f"t{number}"), {}, "token:etl")
    pages = topics.catalog.pages

    async def held(namespace: str | None) -> Any:
        async for page in pages(namespace):
            yield page
            await topics.create(A, {}, "token:etl")  # behind the page: it is not in it
            await topics.delete(topic_name("shop", "t0"))  # and this one is
            await topics.delete(topic_name("shop", "t1"))
            await topics.create(topic_name("shop", "t1"), {}, "jwt:alice")

    topics.catalog.pages = held  # type: ignore[method-assign]
    assert await topics.catalog.created_by("token:etl") == 2
    assert await topics.catalog.created_by("jwt:alice") == 1


async def test_after_a_change_of_which_nobody_knows_the_outcome_all_are_counted_anew(
    store: MemoryStore, clock: ManualClock
) -> None:
    topics = served(store, clock)
    assert await topics.catalog.created_by("token:etl") == 0
    table = topics.catalog._table
    replace = table.replace

    def lost(*args: Any) -> bool:
        replace(*args)
        raise UnknownOutcomeError("the answer was lost")

    table.replace = lost  # type: ignore[method-assign]
    with pytest.raises(UnknownOutcomeError):
        await topics.create(A, {}, "token:etl")
    assert await topics.catalog.created_by("token:etl") == 1


async def test_topics_that_other_servers_create_and_delete_count_when_all_are_counted_again(
    store: MemoryStore, clock: ManualClock
) -> None:
    here, there = served(store, clock), served(store, clock)
    await here.create(A, {}, "token:etl")
    assert await here.catalog.created_by("token:etl") == 1
    await there.create(B, {}, "token:etl")
    clock.advance(COUNTS_MS_MAX - 1)
    assert await here.catalog.created_by("token:etl") == 1
    clock.advance(1)
    assert await here.catalog.created_by("token:etl") == 2
    await there.delete(B)
    await there.delete(A)
    clock.advance(COUNTS_MS_MAX)
    assert await here.catalog.created_by("token:etl") == 0, "else whoever has deleted them would be refused for ever"
