"""Which row is of which shard: the vectors, every kind of system row that is about a topic, and no row by accident."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from basalt_engine.cells.keys import TableKeys
from basalt_engine.errors import InputError
from basalt_engine.keys import TopicKeys, table_prefix, topic_prefix
from basalt_engine.stores.shards import (
    EPOCH_MAX,
    SHARDED_TABLES,
    SHARDS,
    TOPIC_KINDS,
    check_epoch,
    check_epochs,
    every_shard,
    row_shard,
    shard_of,
)
from basalt_engine.table import TABLE_NAMES
from tests.vector_lines import cases

NAMES = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True)


@pytest.mark.parametrize(("data", "meaning"), cases("shards"))
def test_the_shard_of_a_row_is_that_of_its_vector(data: bytes, meaning: dict[str, Any]):
    assert row_shard(meaning["table"], data) == meaning["shard"]


@given(NAMES, NAMES, st.integers(0, 255), st.integers(0, 1 << 32))
def test_all_rows_of_a_topic_are_of_its_shard(namespace: str, topic: str, buckets: int, number: int):
    prefix = topic_prefix(namespace, topic)
    shard = crc32c(prefix) % SHARDS
    keys = TopicKeys(prefix, 1, buckets + 1, 8)
    assert row_shard("message", keys.message_key(number, 1)) == shard
    assert row_shard("payload", keys.payload_key(number, number, 1)) == shard
    assert row_shard("metadata", prefix) == shard == shard_of(prefix)
    for kind in TOPIC_KINDS:
        assert row_shard("system", f"{kind}:{prefix.decode()}{number}".encode()) == shard


@given(NAMES, NAMES, st.integers(0, 255))
def test_all_rows_of_a_transactional_table_are_of_its_shard(namespace: str, table: str, buckets: int):
    prefix = table_prefix(namespace, table)
    cell = TableKeys(prefix, 1, buckets + 1).cell_key(b"row:", b"c", 17)
    assert row_shard("cell", cell) == row_shard("metadata", prefix) == shard_of(prefix)


@given(st.sampled_from(TABLE_NAMES), st.binary(max_size=40))
def test_any_key_is_of_a_shard_or_of_none(table: str, key: bytes):
    shard = row_shard(table, key)
    assert shard is None or (table in SHARDED_TABLES and 0 <= shard < SHARDS)


def test_each_kind_that_the_page_says_is_about_a_topic_is_of_its_shard():
    page = (Path(__file__).parents[3] / "docs/formats/system-table.md").read_text()
    named = set(re.findall(r"^\| `([a-z-]+)` \| (?:topic|topic or table) prefix \|", page, re.MULTILINE))
    assert named | {"hidden", "hidden-cells"} == TOPIC_KINDS  # the names of these two go on behind the prefix


def test_there_is_no_shard_and_no_epoch_beyond_the_last():
    assert every_shard(3) == dict.fromkeys(range(1_024), 3)
    check_epochs({0: 1, SHARDS - 1: EPOCH_MAX})
    check_epoch(0)
    for epochs in ({-1: 1}, {SHARDS: 1}, {0: 0}, {0: EPOCH_MAX + 1}):
        with pytest.raises(InputError):
            check_epochs(epochs)
