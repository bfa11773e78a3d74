"""The metadata table: what is stored of a topic comes back, changes by comparison, and damage is refused."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine.errors import CorruptionError
from basalt_engine.keys import topic_prefix
from basalt_engine.metadata import METADATA, MetadataTable, TopicMetadata
from basalt_engine.retention import OnInvalid, TopicRule
from basalt_engine.stores.memory import MemoryStore, MemoryTable
from basalt_engine.table import Put
from tests.vector_lines import cases

relaxed = settings(deadline=None)

PREFIX = b"shop:orders:"
FIRST = TopicMetadata(1, 604_800_000, OnInvalid.DROP, 1, 1, 5, 5, {})
LONGS = st.integers(0, 2**63 - 1)
SPREADS = st.integers(1, 256)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
TOPICS = st.builds(
    TopicMetadata,
    st.integers(1, 2**31 - 1).flatmap(lambda number: st.sampled_from([number, -number])),
    LONGS,
    st.sampled_from(OnInvalid),
    SPREADS,
    SPREADS,
    LONGS,
    LONGS,
    st.dictionaries(TEXTS, TEXTS, max_size=3),
    st.integers(0, 10**18 - 1),
)


def table() -> MemoryTable:
    return MemoryStore().table(MetadataTable.name)


def sealed(data: bytes) -> bytes:
    return data + crc32c(data).to_bytes(4, "big")


@relaxed
@given(TOPICS)
def test_metadata_comes_back_as_it_was(metadata: TopicMetadata) -> None:
    assert TopicMetadata.decode(metadata.encode(), PREFIX) == metadata
    assert metadata.rule == TopicRule(
        metadata.generation, metadata.ttl_ms, metadata.on_invalid, metadata.truncated_before_ms
    )


@relaxed
@given(TOPICS)
def test_the_same_metadata_always_makes_the_same_bytes(metadata: TopicMetadata) -> None:
    """Else comparing a row with what was read before would fail for ever."""
    shuffled = metadata._replace(others=dict(reversed(list(metadata.others.items()))))
    assert shuffled.encode() == metadata.encode()
    assert TopicMetadata.decode(metadata.encode(), PREFIX).encode() == metadata.encode()


@relaxed
@given(TOPICS)
def test_what_the_coprocessor_needs_stands_at_a_fixed_place(metadata: TopicMetadata) -> None:
    version, generation, ttl_ms, on_invalid = struct.unpack_from(">BiqB", metadata.encode())
    assert (version, generation, ttl_ms) == (1, metadata.generation, metadata.ttl_ms)
    assert on_invalid == (metadata.on_invalid is OnInvalid.RETAIN)


@pytest.mark.parametrize(("data", "meaning"), cases("metadata"))
def test_every_cut_and_every_flipped_bit_is_corrupt(data: bytes, meaning: dict[str, Any]) -> None:
    for end in range(len(data)):
        with pytest.raises(CorruptionError, match=meaning["topic"]):
            TopicMetadata.decode(data[:end], PREFIX)
    for index in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[index] ^= 1 << bit
            with pytest.raises(CorruptionError):
                TopicMetadata.decode(bytes(bad), PREFIX)


@relaxed
@given(TOPICS, st.data())
def test_nothing_but_corruption_is_raised_even_where_the_checksum_is_right(
    metadata: TopicMetadata, data: st.DataObject
) -> None:
    bad = bytearray(metadata.encode()[:-4])
    at = data.draw(st.integers(0, len(bad) - 1))
    bad[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        found = TopicMetadata.decode(sealed(bytes(bad)), PREFIX)
    except CorruptionError:
        return
    assert all(isinstance(text, str) for item in found.others.items() for text in item)


FIXED = FIRST.encode()[:34]


def with_others(others: bytes) -> bytes:
    return sealed(FIXED + len(others).to_bytes(4, "big") + others)


def test_the_metadata_of_the_following_tests_is_good() -> None:
    assert TopicMetadata.decode(with_others(b'{"a":"b"}'), PREFIX).others == {"a": "b"}


@pytest.mark.parametrize(
    "others", [b"", b"[]", b"null", b'{"a":1}', b'{"a":null}', b'{"a"', b'{"a":"\xff"}', b'{"a":"b"}x', b"\xff"]
)
def test_properties_that_are_no_object_of_texts_are_corrupt(others: bytes) -> None:
    with pytest.raises(CorruptionError, match="shop:orders:"):
        TopicMetadata.decode(with_others(others), PREFIX)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "0 bytes"),
        (sealed(b"\x02" + FIRST.encode()[1:-4]), "version 2; this Basalt reads version 1"),
        (sealed(FIRST.encode()[:13] + b"\x02" + FIRST.encode()[14:-4]), "onInvalid 2"),
        (sealed(FIRST.encode()[:-4] + b" "), "3 bytes of properties"),
    ],
)
def test_metadata_that_says_something_impossible_is_corrupt(data: bytes, what: str) -> None:
    with pytest.raises(CorruptionError, match=what):
        TopicMetadata.decode(data, PREFIX)


@pytest.mark.parametrize(("data", "meaning"), cases("metadata"))
def test_a_metadata_vector_has_its_meaning_and_its_bytes(data: bytes, meaning: dict[str, Any]) -> None:
    metadata = TopicMetadata(
        meaning["generation"],
        meaning["ttlMs"],
        OnInvalid(meaning["onInvalid"]),
        meaning["spread"],
        meaning["spreadScanned"],
        meaning["createdMs"],
        meaning["updatedMs"],
        meaning["others"],
        meaning.get("truncatedBeforeMs", 0),
        meaning.get("createdBy", ""),
    )
    assert TopicMetadata.decode(data, meaning["topic"].encode()) == metadata
    assert metadata.encode() == data
    assert json.dumps(meaning["others"]) == json.dumps(dict(sorted(meaning["others"].items())))


@pytest.mark.parametrize("text", ["", "0", "01", "-1", "1.0", "soon", "1" * 19])
def test_a_truncation_before_no_time_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptionError, match="truncated before"):
        TopicMetadata.decode(with_others(b'{"~truncatedBefore":"' + text.encode() + b'"}'), PREFIX)


def test_a_truncation_is_no_property() -> None:
    truncated = TopicMetadata.decode(with_others(b'{"a":"b","~truncatedBefore":"7"}'), PREFIX)
    assert (truncated.others, truncated.truncated_before_ms) == ({"a": "b"}, 7)


def test_who_created_a_topic_is_no_property_and_stands_before_its_truncation_whatever_the_name() -> None:
    found = TopicMetadata.decode(with_others(b'{"a":"b","~createdBy":"token:etl"}'), PREFIX)
    assert (found.others, found.created_by) == ({"a": "b"}, "token:etl")
    sly = FIRST._replace(created_by='token:","~truncatedBefore":"7')
    assert TopicMetadata.decode(sly.encode(), PREFIX) == sly
    assert not sly.encode()[:-4].endswith(b'"~truncatedBefore":"7"}')  # what a region server looks for
    both = sly._replace(truncated_before_ms=9)
    assert both.encode()[:-4].endswith(b'"~truncatedBefore":"9"}')


# The table.


def test_a_topic_that_never_was_has_no_metadata() -> None:
    assert MetadataTable(table()).get(PREFIX) is None


def test_replace_stores_only_what_follows_from_what_is_there() -> None:
    metadata = MetadataTable(table())
    second = FIRST._replace(ttl_ms=9_000, others={"b": "2", "a": "1"})
    assert not metadata.replace(PREFIX, FIRST, second)
    assert metadata.get(PREFIX) is None
    assert metadata.replace(PREFIX, None, FIRST)
    assert not metadata.replace(PREFIX, None, second)
    assert not metadata.replace(PREFIX, second, second)
    assert metadata.get(PREFIX) == FIRST
    assert metadata.replace(PREFIX, FIRST, second)
    assert metadata.replace(PREFIX, metadata.get(PREFIX), FIRST)
    assert metadata.get(PREFIX) == FIRST


def test_a_scan_yields_each_topic_of_a_namespace_or_of_all_in_order() -> None:
    metadata = MetadataTable(table())
    names = [("b", "x"), ("a", "z"), ("a-", "a"), ("a", "y"), ("ab", "a"), ("B", "x")]
    for number, title in enumerate(names, 1):
        metadata.replace(topic_prefix(*title), None, FIRST._replace(generation=number if number % 2 else -number))
    everything = list(metadata.scan())
    assert [prefix for prefix, _ in everything] == sorted(topic_prefix(*title) for title in names)
    assert {abs(found.generation) for _, found in everything} == set(range(1, 7))
    assert [prefix for prefix, _ in metadata.scan(namespace="a")] == [b"a:y:", b"a:z:"]
    assert [prefix for prefix, _ in metadata.scan(b"a:z:", "a")] == [b"a:z:"]
    assert [prefix for prefix, _ in metadata.scan(b"ab")] == [b"ab:a:", b"b:x:"]
    assert list(metadata.scan(namespace="c")) == []


def test_a_row_without_its_column_is_corrupt() -> None:
    store = table()
    store.write([Put(PREFIX, {b"z": b""})])
    with pytest.raises(CorruptionError, match="no column m"):
        MetadataTable(store).get(PREFIX)
    store.write([Put(PREFIX, {METADATA: FIRST.encode()[:-1]})])
    with pytest.raises(CorruptionError, match="checksum"):
        list(MetadataTable(store).scan())
