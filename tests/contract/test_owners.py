"""Owners of shards: a write under an old epoch of one shard is refused, while the same handle's other shards go on."""

from __future__ import annotations

import pytest

from basalt_engine.errors import FencedError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.rocks import RocksStore
from basalt_engine.stores.shards import SHARDED_TABLES, every_shard, shard_of
from basalt_engine.table import TABLE_NAMES, Delete, DeleteRange, Insert, Put, TableWrite

ORDERS, BILLS = b"shop:orders:", b"shop:bills:"
PREFIXES = {"message": b"\1", "payload": b"\1", "cell": b"\1", "metadata": b"", "system": b"newest:"}


def rows(table, topic):
    return PREFIXES[table] + topic


@pytest.fixture(params=[True, False], ids=["atomic", "row by row"])
def owners(request):
    """A store that lost one topic's shard to another handle, and has the other topic's still."""
    former = MemoryStore(atomic=request.param)
    former.lead(1)
    former.take(every_shard(1))
    for table in SHARDED_TABLES:
        former.table(table).write([Put(rows(table, topic), {b"v": b"1"}) for topic in (ORDERS, BILLS)])
    later = former.another()
    later.take({shard_of(ORDERS): 2})
    return former, later


def writes(key):
    return {
        "put": [Put(key, {b"v": b"late"})],
        "delete": [Delete(key)],
        "columns": [Delete(key, (b"v",))],
        "insert": [Insert(key + b"new", {b"v": b"late"})],
        "range": [DeleteRange(key, key + b"\xff")],
    }


@pytest.mark.parametrize("write", list(writes(b"")))
@pytest.mark.parametrize("table", SHARDED_TABLES)
def test_an_old_epoch_of_one_shard_writes_nothing_and_the_other_shards_of_the_handle_go_on(owners, table, write):
    former, later = owners
    key = rows(table, ORDERS)
    with pytest.raises(FencedError, match=f"epoch 1 of shard {shard_of(ORDERS)} is over"):
        former.table(table).write(writes(key)[write])
    assert [row.key for row in later.table(table).scan(key, key + b"\xff")] == [key]
    former.table(table).write(writes(rows(table, BILLS))[write])
    later.table(table).write(writes(key)[write])


def test_a_conditional_write_of_an_old_epoch_is_refused_too(owners):
    former, later = owners
    key = rows("system", ORDERS)
    with pytest.raises(FencedError):
        former.table("system").check_and_write(key, b"v", b"1", {b"v": b"late"})
    assert former.table("system").check_and_write(rows("system", BILLS), b"v", b"1", {b"v": b"2"})
    assert later.table("system").check_and_write(key, b"v", b"1", {b"v": b"2"})


def test_a_write_over_several_shards_is_refused_as_a_whole_where_the_store_is_atomic(owners):
    former, _ = owners
    with pytest.raises(FencedError):
        former.write([TableWrite("message", [Put(rows("message", topic), {b"v": b"2"}) for topic in (BILLS, ORDERS)])])
    expected = b"1" if former.atomic else b"2"
    assert former.table("message").get(rows("message", BILLS)) == {b"v": expected}


def test_who_owns_some_shards_writes_to_no_other_and_who_owns_none_to_all(owners):
    former, later = owners
    with pytest.raises(FencedError, match="has not taken"):
        later.table("message").write([Put(rows("message", BILLS), {b"v": b"2"})])
    tool = former.another()
    tool.table("message").write([Put(rows("message", topic), {b"v": b"3"}) for topic in (BILLS, ORDERS)])


def test_an_epoch_that_is_over_cannot_be_taken(owners):
    former, later = owners
    with pytest.raises(FencedError):
        former.take({shard_of(ORDERS): 1, shard_of(BILLS): 5})
    former.table("message").write([Put(rows("message", BILLS), {b"v": b"2"})])  # nothing of it was taken
    later.take({shard_of(ORDERS): 2})  # sent again


def test_owners_leave_the_leaders_rows_alone(owners):
    former, later = owners
    former.table("system").write([Put(b"job:x", {b"v": b"1"})])
    later.lead(2)
    with pytest.raises(FencedError, match="epoch 1 is over"):
        former.table("system").write([Put(b"job:x", {b"v": b"2"})])
    former.table("message").write([Put(rows("message", BILLS), {b"v": b"2"})])


def test_a_store_of_one_process_refuses_nobody(tmp_path):
    store = RocksStore.open(tmp_path, sync=False)
    store.take({shard_of(ORDERS): 2})
    for table in TABLE_NAMES:
        store.table(table).write([Put(b"\1" + ORDERS, {b"v": b"1"}), Put(b"\1" + BILLS, {b"v": b"1"})])
    store.close()
